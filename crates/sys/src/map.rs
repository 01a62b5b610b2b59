//! Mappings: reserving address space, sharing memfds, protecting and advising ranges.
//!
//! Knows nothing of who uses the memory. Calls go straight to the kernel, never through an
//! interposable `mmap`.

use crate::descriptors;
use crate::limits;
use crate::raw::{self, Errno, again};
use crate::refuse::{self, Call};
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};

/// What failed while memory was mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Length or alignment make no sense.
    #[error(
        "cannot map {len} bytes aligned to {align}: the length must not be 0 and the alignment must be a power of two"
    )]
    Shape {
        /// The length asked for.
        len: usize,
        /// The alignment asked for.
        align: usize,
    },
    /// The kernel has no address space left for it.
    #[error(
        "cannot reserve {len} bytes of address space: {errno}; check `ulimit -v`, vm.overcommit_memory and vm.max_map_count"
    )]
    Reserve {
        /// The length asked for.
        len: usize,
        /// The kernel's answer.
        errno: Errno,
    },
    /// A shared object could not be mapped.
    #[error(
        "cannot map {len} bytes at offset {offset} of a shared object: {errno}; check `ulimit -v` and vm.max_map_count"
    )]
    Shared {
        /// The offset in the object.
        offset: u64,
        /// The length asked for.
        len: usize,
        /// The kernel's answer.
        errno: Errno,
    },
    /// A memfd could not be made or sized.
    #[error(
        "cannot create a shared memory object of {len} bytes: {errno}; check `ulimit -n`, `ulimit -f` and the memory that is left"
    )]
    Memfd {
        /// The size asked for.
        len: u64,
        /// The kernel's answer.
        errno: Errno,
    },
}

/// Size of the base page in bytes.
#[must_use]
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// Access to a range, as the bits of `mprotect(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prot(pub i32);

impl Prot {
    /// Every touch traps.
    pub const NONE: Self = Self(libc::PROT_NONE);
    /// Writes trap.
    pub const READ: Self = Self(libc::PROT_READ);
    /// Nothing traps.
    pub const READ_WRITE: Self = Self(libc::PROT_READ | libc::PROT_WRITE);
}

/// What `madvise(2)` is told of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Use transparent huge pages.
    HugePage,
    /// Use no transparent huge pages.
    NoHugePage,
    /// Leave it out of a forked child.
    DontFork,
    /// Let a forked child have it, copy-on-write.
    DoFork,
    /// Let a forked child have zeroes in its place.
    WipeOnFork,
    /// Drop its pages.
    DontNeed,
    /// Drop its pages and those of the shared object beneath.
    Remove,
    /// Make every page present and writable.
    PopulateWrite,
    /// Leave it out of a core dump.
    DontDump,
}

/// A range of address space that is unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    addr: usize,
    len: usize,
    /// Whether the kernel counts it as data: private and writable.
    data: bool,
}

impl Mapping {
    /// Reserves `len` bytes (rounded up to pages) of private anonymous memory, readable and
    /// writable, aligned to `align` (a power of two). Nothing is charged until it is touched.
    ///
    /// # Errors
    /// [`MapError::Shape`], [`MapError::Reserve`].
    pub fn reserve(len: usize, align: usize) -> Result<Self, MapError> {
        Self::private(len, align, ProtFlags::READ | ProtFlags::WRITE, MapFlags::NORESERVE)
    }

    /// As [`Mapping::reserve`], page-aligned, and every touch traps.
    ///
    /// # Errors
    /// As [`Mapping::reserve`].
    pub fn reserve_none(len: usize) -> Result<Self, MapError> {
        Self::private(len, page_size(), ProtFlags::empty(), MapFlags::NORESERVE)
    }

    /// Maps `len` bytes of ordinary private anonymous memory, page-aligned.
    ///
    /// # Errors
    /// As [`Mapping::reserve`].
    pub fn anonymous(len: usize) -> Result<Self, MapError> {
        Self::private(len, page_size(), ProtFlags::READ | ProtFlags::WRITE, MapFlags::empty())
    }

    /// Maps `len` bytes of a memfd or file from `offset` (page-aligned), shared, readable and
    /// writable.
    ///
    /// # Errors
    /// [`MapError::Shape`], [`MapError::Shared`].
    pub fn shared(fd: impl AsFd, offset: u64, len: usize) -> Result<Self, MapError> {
        let len = round_up(len, page_size()).ok_or(MapError::Shape { len, align: page_size() })?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free address, so no existing mapping changes.
        let map = || unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, &fd, offset) };
        limits::holding(len, false, map)
            .map(|ptr| Self { addr: ptr as usize, len, data: false })
            .map_err(|errno| MapError::Shared { offset, len, errno: errno.into() })
    }

    /// As [`Mapping::shared`] from offset 0, at this page-aligned address and nowhere else.
    ///
    /// # Errors
    /// [`MapError::Shape`], and [`MapError::Shared`]: `EEXIST` when something is mapped there.
    pub fn shared_at(fd: impl AsFd, addr: usize, len: usize) -> Result<Self, MapError> {
        let len = round_up(len, page_size()).ok_or(MapError::Shape { len, align: page_size() })?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
        // SAFETY: NOREPLACE leaves every existing mapping as it is.
        let map = || unsafe { rustix::mm::mmap(pointer(addr), len, prot, flags, &fd, 0) };
        limits::holding(len, false, map)
            .map(|ptr| Self { addr: ptr as usize, len, data: false })
            .map_err(|errno| MapError::Shared { offset: 0, len, errno: errno.into() })
    }

    /// As [`Mapping::shared`] from offset 0, at an address aligned to `align` (a power of two).
    ///
    /// # Errors
    /// [`MapError::Shape`], [`MapError::Reserve`], [`MapError::Shared`].
    pub fn shared_aligned(fd: impl AsFd, len: usize, align: usize) -> Result<Self, MapError> {
        let place = Self::private(len, align, ProtFlags::empty(), MapFlags::NORESERVE)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: replaces a reservation made just now, which nobody knows of.
        let mapped = unsafe { rustix::mm::mmap(pointer(place.addr), place.len, prot, flags, fd, 0) };
        match mapped {
            Ok(_) => Ok(place),
            Err(errno) => Err(MapError::Shared { offset: 0, len: place.len, errno: errno.into() }),
        }
    }

    /// Maps more than needed and gives the surplus at both ends back, which leaves an aligned
    /// range.
    fn private(len: usize, align: usize, prot: ProtFlags, flags: MapFlags) -> Result<Self, MapError> {
        let shape = MapError::Shape { len, align };
        if !align.is_power_of_two() {
            return Err(shape);
        }
        let page = page_size();
        let align = align.max(page);
        let len = round_up(len, page).ok_or(shape)?;
        let total = len.checked_add(align - page).ok_or(shape)?;
        let data = prot.contains(ProtFlags::WRITE);
        // SAFETY: the kernel chooses a free address, so no existing mapping changes.
        let map =
            || unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), total, prot, MapFlags::PRIVATE | flags) };
        let base =
            limits::holding(total, data, map).map_err(|errno| MapError::Reserve { len, errno: errno.into() })? as usize;
        let addr = (base + align - 1) & !(align - 1);
        // Owned first, so that an early return cannot lose them.
        let mapping = Self { addr, len, data };
        drop(Self { addr: base, len: addr - base, data });
        drop(Self { addr: addr + len, len: base + total - (addr + len), data });
        Ok(mapping)
    }

    /// First byte.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Length in bytes, a multiple of the page size.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: a mapping has at least a page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One past the last byte.
    #[must_use]
    pub fn end(&self) -> usize {
        self.addr + self.len
    }

    /// First byte as a pointer.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.addr)
    }

    /// Keeps the range mapped for the life of the process and returns its address.
    #[must_use = "the address is the only way left to reach the mapping"]
    pub fn leak(self) -> usize {
        let addr = self.addr;
        std::mem::forget(self);
        addr
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the range is owned by `self`. A failure (out of VMAs while splitting) only
            // leaves it mapped.
            if unsafe { rustix::mm::munmap(pointer(self.addr), self.len) }.is_ok() {
                limits::give_back(self.len, self.data);
            }
        }
    }
}

/// Rounds up to a multiple of `unit` (a power of two); `None` for 0 and on overflow.
fn round_up(len: usize, unit: usize) -> Option<usize> {
    if len == 0 { None } else { Some(len.checked_add(unit - 1)? & !(unit - 1)) }
}

fn pointer(addr: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(addr)
}

/// Creates an anonymous shared memory object of `len` bytes, close-on-exec, that reads as zeroes.
///
/// # Errors
/// [`MapError::Memfd`].
pub fn memfd(name: &str, len: u64) -> Result<OwnedFd, MapError> {
    again(|| refuse::draw(Call::Memfd)).map_err(|errno| MapError::Memfd { len, errno })?;
    let failed = |errno: rustix::io::Errno| MapError::Memfd { len, errno: errno.into() };
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).map_err(failed)?;
    // Asked beforehand: for a file beyond the limit the kernel sends SIGXFSZ, which ends the process.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < len) {
        return Err(failed(rustix::io::Errno::FBIG));
    }
    rustix::fs::ftruncate(&fd, len).map_err(failed)?;
    Ok(descriptors::keep(fd))
}

/// Changes the access to a range of whole pages. Allocation-free and async-signal-safe.
///
/// # Errors
/// `ENOMEM` when the range has holes or splitting it would pass vm.max_map_count.
///
/// # Safety
/// Nobody may hold a Rust reference into the range that the new access would break.
pub unsafe fn protect(addr: usize, len: usize, prot: Prot) -> Result<(), Errno> {
    refuse::draw(Call::Protect)?;
    let flags = MprotectFlags::from_bits_retain(prot.0 as u32);
    // SAFETY: passed on to the caller.
    unsafe { rustix::mm::mprotect(pointer(addr), len, flags) }.map_err(Errno::from)
}

/// Advises a range of whole pages. Allocation-free and async-signal-safe.
///
/// # Errors
/// The kernel's; `EINVAL` for advice this kernel does not know.
///
/// # Safety
/// [`Advice::DontNeed`] and [`Advice::Remove`] destroy contents, which the caller must own.
pub unsafe fn advise(addr: usize, len: usize, advice: Advice) -> Result<(), Errno> {
    use rustix::mm::Advice as Kernel;
    refuse::draw(Call::Advise)?;
    let advice = match advice {
        Advice::HugePage => Kernel::LinuxHugepage,
        Advice::NoHugePage => Kernel::LinuxNoHugepage,
        Advice::DontFork => Kernel::LinuxDontFork,
        Advice::DoFork => Kernel::LinuxDoFork,
        Advice::DontNeed => Kernel::LinuxDontNeed,
        Advice::Remove => Kernel::LinuxRemove,
        Advice::PopulateWrite => Kernel::LinuxPopulateWrite,
        Advice::WipeOnFork => Kernel::LinuxWipeOnFork,
        Advice::DontDump => Kernel::LinuxDontDump,
    };
    // SAFETY: passed on to the caller.
    unsafe { rustix::mm::madvise(pointer(addr), len, advice) }.map_err(Errno::from)
}

/// MADV_GUARD_INSTALL and MADV_GUARD_REMOVE of madvise(2), which the C library does not name yet.
const GUARD_INSTALL: usize = 102;
const GUARD_REMOVE: usize = 103;

/// Makes every access to a range of whole pages of a shared mapping trap (SIGSEGV), and reads from outside fail. Takes the
/// pages from this mapping alone: the object beneath keeps its bytes, and no mapping is split. Allocation-free and
/// async-signal-safe.
///
/// # Errors
/// `EINVAL` from a kernel that has no guards on shared memory (before 6.15), and on locked memory; `EINTR`.
///
/// # Safety
/// Nobody may hold a Rust reference into the range. Of private memory the contents are lost.
pub unsafe fn guard(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: passed on to the caller.
    unsafe { change_guards(addr, len, GUARD_INSTALL) }
}

/// Takes the guards from a range of whole pages; what has none stays as it is. Allocation-free and async-signal-safe.
///
/// # Errors
/// As [`guard`].
pub fn unguard(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: changes no contents.
    unsafe { change_guards(addr, len, GUARD_REMOVE) }
}

/// # Safety
/// As [`guard`].
unsafe fn change_guards(addr: usize, len: usize, advice: usize) -> Result<(), Errno> {
    refuse::draw(Call::Guard)?;
    // SAFETY: passed on to the caller.
    unsafe { raw::syscall(libc::SYS_madvise, [addr, len, advice, 0, 0, 0]) }.map(drop)
}

/// Replaces whatever is mapped in a range of whole pages by reserved address space where every
/// touch traps; the old pages are freed, and any userfaultfd registration of the range ends.
///
/// # Errors
/// `ENOMEM` when it would pass vm.max_map_count.
///
/// # Safety
/// The caller must own the range and its contents.
pub unsafe fn replace_with_none(addr: usize, len: usize) -> Result<(), Errno> {
    refuse::draw(Call::Map)?;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the caller owns the range that MAP_FIXED replaces.
    unsafe { rustix::mm::mmap_anonymous(pointer(addr), len, ProtFlags::empty(), flags) }?;
    Ok(())
}

/// Reserves a range of whole pages where nothing is mapped; every touch traps.
///
/// # Errors
/// `EEXIST` when something is mapped there.
pub fn claim(addr: usize, len: usize) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
    // SAFETY: replaces nothing.
    unsafe { rustix::mm::mmap_anonymous(pointer(addr), len, ProtFlags::empty(), flags) }?;
    Ok(())
}

/// Replaces whatever is mapped in a range of whole pages by private anonymous memory, readable and writable, zeroes,
/// charged as it is touched.
///
/// # Errors
/// `ENOMEM` when it would pass vm.max_map_count.
///
/// # Safety
/// The caller must own the range and its contents.
pub unsafe fn replace_with_anonymous(addr: usize, len: usize) -> Result<(), Errno> {
    refuse::draw(Call::Map)?;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the caller owns the range that MAP_FIXED replaces.
    unsafe { rustix::mm::mmap_anonymous(pointer(addr), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
    Ok(())
}

/// Replaces whatever is mapped in a range of whole pages by a shared mapping of a memfd from `offset` (page-aligned).
///
/// # Errors
/// `ENOMEM` when it would pass vm.max_map_count.
///
/// # Safety
/// The caller must own the range and its contents.
pub unsafe fn replace_with_shared(
    addr: usize,
    len: usize,
    fd: impl AsFd,
    offset: u64,
    prot: Prot,
) -> Result<(), Errno> {
    refuse::draw(Call::Map)?;
    let prot = ProtFlags::from_bits_retain(prot.0 as u32);
    // SAFETY: the caller owns the range that MAP_FIXED replaces.
    unsafe { rustix::mm::mmap(pointer(addr), len, prot, MapFlags::SHARED | MapFlags::FIXED, fd, offset) }?;
    Ok(())
}

/// Moves the mapping of a range of whole pages, pages and all, to `to`, replacing what is mapped there; nothing is mapped
/// at `from` afterwards.
///
/// # Errors
/// `EFAULT` when the range is not one mapping, `ENOMEM` when it would pass vm.max_map_count; nothing is moved.
///
/// # Safety
/// The caller must own both ranges, which do not overlap.
pub unsafe fn move_to(from: usize, to: usize, len: usize) -> Result<(), Errno> {
    refuse::draw(Call::Map)?;
    let flags = rustix::mm::MremapFlags::MAYMOVE;
    // SAFETY: the caller owns both ranges.
    unsafe { rustix::mm::mremap_fixed(pointer(from), len, len, flags, pointer(to)) }?;
    Ok(())
}

/// Frees a range of a memfd or file; it reads as zeroes afterwards and the size stays.
///
/// # Errors
/// `EOPNOTSUPP` on a file system without holes.
pub fn punch_hole(fd: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
    refuse::draw(Call::Punch)?;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(fd, flags, offset, len).map_err(Errno::from)
}

/// Gives a range of a memfd or file its memory, zeroes where there was none; what is there stays.
///
/// # Errors
/// `ENOSPC` and `ENOMEM` without memory for it.
pub fn allocate(fd: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
    rustix::fs::fallocate(fd, FallocateFlags::KEEP_SIZE, offset, len).map_err(Errno::from)
}
