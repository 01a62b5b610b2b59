//! Mappings: reserving address space, sharing memfds, protecting and advising ranges.
//!
//! This room does not know who uses the memory. Calls go straight to the kernel, never through an interposable `mmap`.

use crate::descriptors;
use crate::limits;
use crate::raw::{self, Errno, again};
use crate::refuse::{self, Call};
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};

/// Why memory was not mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The length or alignment is invalid.
    #[error(
        "cannot map {len} bytes aligned to {align}: the length must not be 0 and the alignment must be a power of two"
    )]
    Shape {
        /// The length asked for.
        len: usize,
        /// The alignment asked for.
        align: usize,
    },
    /// The kernel has no address space left.
    #[error(
        "cannot reserve {len} bytes of address space: {errno}; check `ulimit -v`, vm.overcommit_memory and vm.max_map_count"
    )]
    Reserve {
        /// The length asked for.
        len: usize,
        /// The kernel's error.
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
        /// The kernel's error.
        errno: Errno,
    },
    /// A memfd could not be created or sized.
    #[error(
        "cannot create a shared memory object of {len} bytes: {errno}; check `ulimit -n`, `ulimit -f` and the memory that is left"
    )]
    Memfd {
        /// The size asked for.
        len: u64,
        /// The kernel's error.
        errno: Errno,
    },
}

/// Size of the base page in bytes.
#[must_use]
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// Access rights of a range, as the bits of `mprotect(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prot(pub i32);

impl Prot {
    /// Every access traps.
    pub const NONE: Self = Self(libc::PROT_NONE);
    /// Writes trap.
    pub const READ: Self = Self(libc::PROT_READ);
    /// Nothing traps.
    pub const READ_WRITE: Self = Self(libc::PROT_READ | libc::PROT_WRITE);
}

/// Advice for `madvise(2)` about a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Use transparent huge pages.
    HugePage,
    /// Use no transparent huge pages.
    NoHugePage,
    /// Exclude it from a forked child.
    DontFork,
    /// Give it to a forked child, copy-on-write.
    DoFork,
    /// Give a forked child zeroes in its place.
    WipeOnFork,
    /// Drop its pages.
    DontNeed,
    /// Drop its pages and those of the shared object behind it.
    Remove,
    /// Make every page present and writable.
    PopulateWrite,
    /// Exclude it from a core dump.
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
    /// Reserves `len` bytes (rounded up to pages) of private anonymous memory, readable and writable, aligned to
    /// `align` (a power of two). Memory is charged only when it is accessed.
    ///
    /// # Errors
    /// [`MapError::Shape`], [`MapError::Reserve`].
    pub fn reserve(len: usize, align: usize) -> Result<Self, MapError> {
        Self::private(len, align, ProtFlags::READ | ProtFlags::WRITE, MapFlags::NORESERVE)
    }

    /// Like [`Mapping::reserve`], page-aligned, and every access traps.
    ///
    /// # Errors
    /// As for [`Mapping::reserve`].
    pub fn reserve_none(len: usize) -> Result<Self, MapError> {
        Self::private(len, page_size(), ProtFlags::empty(), MapFlags::NORESERVE)
    }

    /// Maps `len` bytes of ordinary private anonymous memory, page-aligned.
    ///
    /// # Errors
    /// As for [`Mapping::reserve`].
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

    /// Like [`Mapping::shared`] from offset 0, exactly at this page-aligned address.
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

    /// Like [`Mapping::shared`] from offset 0, at an address aligned to `align` (a power of two).
    ///
    /// # Errors
    /// [`MapError::Shape`], [`MapError::Reserve`], [`MapError::Shared`].
    pub fn shared_aligned(fd: impl AsFd, len: usize, align: usize) -> Result<Self, MapError> {
        let place = Self::private(len, align, ProtFlags::empty(), MapFlags::NORESERVE)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: replaces a reservation made just now, which no other code knows.
        let mapped = unsafe { rustix::mm::mmap(pointer(place.addr), place.len, prot, flags, fd, 0) };
        match mapped {
            Ok(_) => Ok(place),
            Err(errno) => Err(MapError::Shared { offset: 0, len: place.len, errno: errno.into() }),
        }
    }

    /// Maps more than needed and unmaps the surplus at both ends, which leaves an aligned range.
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
        // Owned first, so that an early return cannot leak them.
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

    /// Always false: a mapping has at least a page.
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
            // SAFETY: the range is owned by `self`. A failure (no mappings left for a split) only leaves it mapped.
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

/// Creates an anonymous shared memory object of `len` bytes. It is close-on-exec and reads as zeroes.
///
/// # Errors
/// [`MapError::Memfd`].
pub fn memfd(name: &str, len: u64) -> Result<OwnedFd, MapError> {
    again(|| refuse::draw(Call::Memfd)).map_err(|errno| MapError::Memfd { len, errno })?;
    let failed = |errno: rustix::io::Errno| MapError::Memfd { len, errno: errno.into() };
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).map_err(failed)?;
    // Checked before: if the file were longer than the limit, the kernel would send SIGXFSZ, which ends the process.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < len) {
        return Err(failed(rustix::io::Errno::FBIG));
    }
    rustix::fs::ftruncate(&fd, len).map_err(failed)?;
    Ok(descriptors::keep(fd))
}

/// Changes the access rights of a range of whole pages. Allocation-free and async-signal-safe.
///
/// # Errors
/// `ENOMEM` if the range has unmapped parts, or if splitting it would exceed vm.max_map_count.
///
/// # Safety
/// No Rust reference into the range may exist that the new rights would break.
pub unsafe fn protect(addr: usize, len: usize, prot: Prot) -> Result<(), Errno> {
    refuse::draw(Call::Protect)?;
    let flags = MprotectFlags::from_bits_retain(prot.0 as u32);
    // SAFETY: the caller keeps the same promise.
    unsafe { rustix::mm::mprotect(pointer(addr), len, flags) }.map_err(Errno::from)
}

/// Advises a range of whole pages. Allocation-free and async-signal-safe.
///
/// # Errors
/// The kernel's error; `EINVAL` for advice that this kernel does not know.
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
    // SAFETY: the caller keeps the same promise.
    unsafe { rustix::mm::madvise(pointer(addr), len, advice) }.map_err(Errno::from)
}

/// MADV_GUARD_INSTALL of madvise(2). The C library does not name it yet.
const GUARD_INSTALL: usize = 102;
/// MADV_GUARD_REMOVE, likewise.
const GUARD_REMOVE: usize = 103;

/// Makes every access to a range of whole pages of a shared mapping trap (SIGSEGV). Reads by other means fail. It
/// removes the pages from this mapping alone: the object keeps its bytes, and no mapping is split. Allocation-free and
/// async-signal-safe.
///
/// # Errors
/// `EINVAL` from a kernel without guards on shared memory (before 6.15), and for locked memory; `EINTR`.
///
/// # Safety
/// No Rust reference into the range may exist. If the memory is private, its contents are lost.
pub unsafe fn guard(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller keeps the same promise.
    unsafe { change_guards(addr, len, GUARD_INSTALL) }
}

/// Removes the guards from a range of whole pages. Pages without a guard stay as they are. Allocation-free and
/// async-signal-safe.
///
/// # Errors
/// As for [`guard`].
pub fn unguard(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: changes no contents.
    unsafe { change_guards(addr, len, GUARD_REMOVE) }
}

/// # Safety
/// As for [`guard`].
unsafe fn change_guards(addr: usize, len: usize, advice: usize) -> Result<(), Errno> {
    refuse::draw(Call::Guard)?;
    // SAFETY: the caller keeps the same promise.
    unsafe { raw::syscall(libc::SYS_madvise, [addr, len, advice, 0, 0, 0]) }.map(drop)
}

/// Replaces all mappings in a range of whole pages by reserved address space where every access traps. The old pages
/// are freed, and any userfaultfd registration of the range ends.
///
/// # Errors
/// `ENOMEM` if it would exceed vm.max_map_count.
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

/// Reserves a range of whole pages where nothing is mapped. Every access traps.
///
/// # Errors
/// `EEXIST` if something is mapped there.
pub fn claim(addr: usize, len: usize) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
    // SAFETY: replaces nothing.
    unsafe { rustix::mm::mmap_anonymous(pointer(addr), len, ProtFlags::empty(), flags) }?;
    Ok(())
}

/// Replaces all mappings in a range of whole pages by private anonymous memory: readable, writable, zero, charged when
/// accessed.
///
/// # Errors
/// `ENOMEM` if it would exceed vm.max_map_count.
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

/// Replaces all mappings in a range of whole pages by a shared mapping of a memfd from `offset` (page-aligned).
///
/// # Errors
/// `ENOMEM` if it would exceed vm.max_map_count.
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

/// Moves the mapping of a range of whole pages, with its pages, to `to`. Replaces the mappings there. Nothing is mapped
/// at `from` afterwards.
///
/// # Errors
/// `EFAULT` if the range is not one mapping, `ENOMEM` if it would exceed vm.max_map_count. Then nothing is moved.
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

/// Frees a range of a memfd or file. It reads as zeroes afterwards, and the size stays.
///
/// # Errors
/// `EOPNOTSUPP` on a file system without holes.
pub fn punch_hole(fd: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
    refuse::draw(Call::Punch)?;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(fd, flags, offset, len).map_err(Errno::from)
}

/// Allocates the memory of a range of a memfd or file. New memory reads as zeroes. Existing contents stay.
///
/// # Errors
/// `ENOSPC` and `ENOMEM` if there is no memory for it.
pub fn allocate(fd: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
    rustix::fs::fallocate(fd, FallocateFlags::KEEP_SIZE, offset, len).map_err(Errno::from)
}
