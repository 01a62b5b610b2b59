//! Reads `/proc/self/pagemap`, which tells which pages were written and which pages are present.
//!
//! See <https://docs.kernel.org/admin-guide/mm/pagemap.html>.

use crate::descriptors;
use crate::map::page_size;
use crate::raw::{self, Errno};
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The reasons why the page tables could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PagemapError {
    /// `/proc/self/pagemap` could not be opened or read.
    #[error("cannot open /proc/self/pagemap: {0}; is /proc mounted?")]
    Open(Errno),
    /// The kernel refused the scan.
    #[error("cannot scan {start:#x}..{end:#x} for written pages: {errno}; PAGEMAP_SCAN needs Linux 6.7")]
    Scan {
        /// The first byte of the range.
        start: usize,
        /// The first byte after the range.
        end: usize,
        /// The kernel's error.
        errno: Errno,
    },
}

/// A run of adjacent pages that were written. It is the kernel's `struct page_region`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Region {
    /// The address of the first byte.
    pub start: u64,
    /// The address of the first byte after the run.
    pub end: u64,
    categories: u64,
}

impl Region {
    /// An empty region, to fill an output array with.
    pub const EMPTY: Self = Self { start: 0, end: 0, categories: 0 };
}

/// The result of one [`Pagemap::scan_written`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scan {
    /// The number of output regions that the kernel filled.
    pub regions: usize,
    /// The address where the scan ended. If the output array became full, this address is less than the requested
    /// `end`, and the next scan must start here.
    pub walk_end: usize,
}

const PAGEMAP_SCAN: u32 = 0xC060_6610;
const PM_SCAN_WP_MATCHING: u64 = 1 << 0;
const PM_SCAN_CHECK_WPASYNC: u64 = 1 << 1;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;

/// The kernel's `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// An open `/proc/self/pagemap`. The file shows the pages of the process that opened it, even when a forked child reads
/// it.
#[derive(Debug)]
pub struct Pagemap {
    fd: OwnedFd,
}

impl Pagemap {
    /// Opens `/proc/self/pagemap` of this process.
    ///
    /// # Errors
    /// [`PagemapError::Open`] if the kernel refuses to open the file.
    pub fn open() -> Result<Self, PagemapError> {
        rustix::fs::open(c"/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map(|fd| Self { fd })
            .map_err(|errno| PagemapError::Open(errno.into()))
    }

    /// Checks whether this process may open `/proc/self/pagemap`. If so, a child that is forked now can open its own.
    #[must_use]
    pub fn is_in_reach() -> bool {
        rustix::fs::access(c"/proc/self/pagemap", rustix::fs::Access::READ_OK).is_ok()
    }

    /// Returns the same open file under a recorded descriptor ([`crate::descriptors`]), which the program cannot close.
    #[must_use]
    pub fn kept(self) -> Self {
        Self { fd: descriptors::keep(self.fd) }
    }

    /// Sets each element of `held` to true if the corresponding page is in memory or swapped out, else to false. The
    /// first element is for the page at `addr`. A page that was never accessed is neither in memory nor swapped out.
    ///
    /// # Errors
    /// [`PagemapError::Open`] if the file cannot be read.
    pub fn held(&self, addr: usize, held: &mut [bool]) -> Result<(), PagemapError> {
        const AT_ONCE: usize = 512;
        const PRESENT_OR_SWAPPED: u64 = 3 << 62;
        let first = addr / page_size();
        for (index, part) in held.chunks_mut(AT_ONCE).enumerate() {
            let mut entries = [0u8; AT_ONCE * 8];
            let entries = &mut entries[..part.len() * 8];
            let at = (first + index * AT_ONCE) as u64 * 8;
            let read =
                rustix::io::pread(&self.fd, &mut *entries, at).map_err(|errno| PagemapError::Open(errno.into()))?;
            if read < entries.len() {
                return Err(PagemapError::Open(Errno(libc::EIO)));
            }
            for (held, entry) in part.iter_mut().zip(entries.as_chunks::<8>().0) {
                *held = u64::from_ne_bytes(*entry) & PRESENT_OR_SWAPPED != 0;
            }
        }
        Ok(())
    }

    /// Finds the pages of `start..end` that were written since they were last write-protected. The range is
    /// page-aligned and registered with [`crate::uffd::feature::WP_ASYNC`]. With `wp_matching`, the scan also
    /// write-protects the pages that it finds. The scan neither reports absent pages nor leaves markers in their
    /// places, so UFFDIO_MOVE to these places still works. It allocates nothing.
    ///
    /// # Errors
    /// [`PagemapError::Scan`]. Its errno is `EPERM` if the range is not registered with `WP_ASYNC`, and `ENOTTY` if the
    /// kernel has no PAGEMAP_SCAN.
    pub fn scan_written(
        &self,
        start: usize,
        end: usize,
        wp_matching: bool,
        out: &mut [Region],
    ) -> Result<Scan, PagemapError> {
        let mut argument = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            flags: PM_SCAN_CHECK_WPASYNC | if wp_matching { PM_SCAN_WP_MATCHING } else { 0 },
            start: start as u64,
            end: end as u64,
            vec: out.as_mut_ptr() as u64,
            vec_len: out.len() as u64,
            category_mask: PAGE_IS_WRITTEN,
            // Without this mask, the kernel would use a fast path, which reports missing pages as written and leaves
            // markers in their places.
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_WRITTEN,
            ..ScanArgument::default()
        };
        // SAFETY: `argument` is a struct pm_scan_arg. The kernel writes only to `argument` and to its output vector
        // `out`. Write-protecting pages changes no contents.
        let answer = unsafe { raw::ioctl(self.fd.as_raw_fd(), PAGEMAP_SCAN, &raw mut argument as usize) };
        match answer {
            Ok(regions) => Ok(Scan { regions, walk_end: argument.walk_end as usize }),
            Err(errno) => Err(PagemapError::Scan { start, end, errno }),
        }
    }

    /// Checks whether no page of `start..end` is in memory or swapped out. The range is page-aligned. For 2 MiB of
    /// absent pages, this takes a fifth of the time that `mincore` takes.
    ///
    /// # Errors
    /// [`PagemapError::Scan`], with `ENOTTY` if the kernel has no PAGEMAP_SCAN.
    pub fn is_absent(&self, start: usize, end: usize) -> Result<bool, PagemapError> {
        let mut found = Region::EMPTY;
        let mut argument = ScanArgument {
            size: size_of::<ScanArgument>() as u64,
            start: start as u64,
            end: end as u64,
            vec: &raw mut found as u64,
            vec_len: 1,
            max_pages: 1,
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_PRESENT,
            ..ScanArgument::default()
        };
        // SAFETY: `argument` is a struct pm_scan_arg. The kernel writes only to `argument` and to `found`.
        let answer = unsafe { raw::ioctl(self.fd.as_raw_fd(), PAGEMAP_SCAN, &raw mut argument as usize) };
        answer.map(|regions| regions == 0).map_err(|errno| PagemapError::Scan { start, end, errno })
    }
}

impl Pagemap {
    /// Calls `visit` with the address and length of each run of pages of the range that are in memory or swapped out.
    /// This needs no privilege.
    ///
    /// # Errors
    /// [`PagemapError::Open`] if the file cannot be read.
    pub fn visit_present(
        &self,
        addr: usize,
        len: usize,
        mut visit: impl FnMut(usize, usize),
    ) -> Result<(), PagemapError> {
        const THERE: u64 = 3 << 62;
        const ENTRY_BYTES: usize = size_of::<u64>();
        let page = page_size();
        let (mut next, end) = (addr / page, (addr + len).div_ceil(page));
        let mut run: Option<(usize, usize)> = None;
        while next < end {
            let mut bytes = [0u8; 1024 * ENTRY_BYTES];
            let wanted = (end - next).saturating_mul(ENTRY_BYTES).min(bytes.len());
            let got = rustix::io::pread(&self.fd, &mut bytes[..wanted], (next * ENTRY_BYTES) as u64)
                .map_err(|errno| PagemapError::Open(errno.into()))?;
            if got < ENTRY_BYTES {
                break;
            }
            for entry in bytes[..got].chunks_exact(ENTRY_BYTES) {
                let there = entry.try_into().is_ok_and(|e| u64::from_ne_bytes(e) & THERE != 0);
                match (&mut run, there) {
                    (Some((_, len)), true) => *len += page,
                    (None, true) => run = Some((next * page, page)),
                    (Some((start, len)), false) => {
                        visit(*start, *len);
                        run = None;
                    }
                    (None, false) => {}
                }
                next += 1;
            }
        }
        if let Some((start, len)) = run {
            visit(start, len);
        }
        Ok(())
    }
}

impl AsFd for Pagemap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the number of pages of a range that are in memory. Tests and reports use it. It needs no privilege.
///
/// # Errors
/// [`PagemapError::Open`] if the file cannot be opened or read.
pub fn present_pages(addr: usize, len: usize) -> Result<usize, PagemapError> {
    const PRESENT: u64 = 1 << 63;
    const ENTRY_BYTES: usize = size_of::<u64>();
    let pagemap = Pagemap::open()?;
    let (mut next, end) = (addr / page_size(), (addr + len).div_ceil(page_size()));
    let mut count = 0;
    while next < end {
        let mut bytes = [0u8; 512 * ENTRY_BYTES];
        let wanted = (end - next).saturating_mul(ENTRY_BYTES).min(bytes.len());
        let got = rustix::io::pread(&pagemap.fd, &mut bytes[..wanted], (next * ENTRY_BYTES) as u64)
            .map_err(|errno| PagemapError::Open(errno.into()))?;
        let entries = bytes[..got].chunks_exact(ENTRY_BYTES);
        if entries.len() == 0 {
            break;
        }
        next += entries.len();
        let present = |entry: &[u8]| entry.try_into().is_ok_and(|e| u64::from_ne_bytes(e) & PRESENT != 0);
        count += entries.filter(|entry| present(entry)).count();
    }
    Ok(count)
}
