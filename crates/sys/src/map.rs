//! Mappings: reserves address space, maps memfds, protects and advises ranges.
//!
//! This module does not know which code uses the memory. Its calls go straight to the kernel and not through a `mmap`
//! that a preloaded library may replace.

use crate::descriptors;
use crate::limits;
use crate::raw::{self, Errno, again};
use crate::refuse::{self, Call};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};

/// The reasons why memory could not be mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The length or alignment is invalid.
    #[error(
        "cannot map {len} bytes aligned to {align}: the length must not be 0 and the alignment must be a power of two"
    )]
    Shape {
        /// The requested length in bytes.
        len: usize,
        /// The requested alignment in bytes.
        align: usize,
    },
    /// The kernel has no address space left.
    #[error(
        "cannot reserve {len} bytes of address space: {errno}; check `ulimit -v`, vm.overcommit_memory and vm.max_map_count"
    )]
    Reserve {
        /// The requested length in bytes.
        len: usize,
        /// The kernel's error.
        errno: Errno,
    },
    /// A shared object could not be mapped.
    #[error(
        "cannot map {len} bytes at offset {offset} of a shared object: {errno}; check `ulimit -v` and vm.max_map_count"
    )]
    Shared {
        /// The offset in the object, in bytes.
        offset: u64,
        /// The requested length in bytes.
        len: usize,
        /// The kernel's error.
        errno: Errno,
    },
    /// A memfd could not be created, or its size could not be set.
    #[error(
        "cannot create a shared memory object of {len} bytes: {errno}; check `ulimit -n`, `ulimit -f` and the memory that is left"
    )]
    Memfd {
        /// The requested size in bytes.
        len: u64,
        /// The kernel's error.
        errno: Errno,
    },
    /// The kernel does not seal the length of a memfd.
    #[error(
        "cannot seal the length of a shared memory object: {errno}; this kernel or its sandbox forbids F_ADD_SEALS, so allow it there"
    )]
    Seal {
        /// The kernel's error.
        errno: Errno,
    },
}

/// Returns the size of the base page in bytes.
#[must_use]
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// Access rights of a range, as the bits of `mprotect(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prot(pub i32);

impl Prot {
    /// Every access raises a fault.
    pub const NONE: Self = Self(libc::PROT_NONE);
    /// Writes raise a fault.
    pub const READ: Self = Self(libc::PROT_READ);
    /// No access raises a fault.
    pub const READ_WRITE: Self = Self(libc::PROT_READ | libc::PROT_WRITE);
}

/// Advice to `madvise(2)` about a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Use transparent huge pages for the range.
    HugePage,
    /// Use no transparent huge pages for the range.
    NoHugePage,
    /// Exclude the range from forked children.
    DontFork,
    /// Include the range in forked children, copy-on-write.
    DoFork,
    /// Replace the range by zeroes in forked children.
    WipeOnFork,
    /// Drop the pages of the range.
    DontNeed,
    /// Drop the pages of the range, even if they are locked.
    DontNeedLocked,
    /// Drop the pages of the range, and also those of the shared object that it maps.
    Remove,
    /// Make every page of the range present and writable.
    PopulateWrite,
    /// Exclude the range from core dumps.
    DontDump,
    /// Count the pages of the range as unused for a while. Splits huge pages of which the range has only a part.
    Cold,
    /// Bring the pages of the range that are swapped out into the swap cache. Absent pages stay absent.
    WillNeed,
}

/// A mapped range of address space. Dropping this value unmaps the range.
#[derive(Debug)]
pub struct Mapping {
    addr: usize,
    len: usize,
    /// Whether the kernel counts the range as data, because it is private and writable.
    data: bool,
}

impl Mapping {
    /// Reserves `len` bytes of private anonymous memory, readable and writable. The length is rounded up to pages. The
    /// address is a multiple of `align`, a power of two. The kernel uses memory only for pages that are accessed.
    ///
    /// # Errors
    /// [`MapError::Shape`] or [`MapError::Reserve`].
    pub fn reserve(len: usize, align: usize) -> Result<Self, MapError> {
        Self::private(len, align, ProtFlags::READ | ProtFlags::WRITE, MapFlags::NORESERVE)
    }

    /// Like [`Mapping::reserve`], but exactly at the page-aligned address `addr`.
    ///
    /// # Errors
    /// [`MapError::Shape`] or [`MapError::Reserve`]. The errno is `EEXIST` if something is already mapped in the range.
    pub fn reserve_at(addr: usize, len: usize) -> Result<Self, MapError> {
        let len = round_up(len, page_size()).ok_or(MapError::Shape { len, align: page_size() })?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: with FIXED_NOREPLACE, the call fails instead of replacing an existing mapping.
        let map =
            || unsafe { rustix::mm::mmap_anonymous(pointer(addr), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let placed = limits::holding(len, true, map)
            .map(|ptr| Self { addr: ptr as usize, len, data: true })
            .map_err(|errno| MapError::Reserve { len, errno: errno.into() })?;
        // A kernel before 4.17 takes the address as a hint.
        if placed.addr == addr { Ok(placed) } else { Err(MapError::Reserve { len, errno: Errno(libc::EEXIST) }) }
    }

    /// Reserves `len` bytes of address space like [`Mapping::reserve`], but page-aligned. Every access to the range
    /// raises a fault.
    ///
    /// # Errors
    /// [`MapError::Shape`] or [`MapError::Reserve`].
    pub fn reserve_none(len: usize) -> Result<Self, MapError> {
        Self::private(len, page_size(), ProtFlags::empty(), MapFlags::NORESERVE)
    }

    /// Maps `len` bytes of ordinary private anonymous memory, page-aligned.
    ///
    /// # Errors
    /// [`MapError::Shape`] or [`MapError::Reserve`].
    pub fn anonymous(len: usize) -> Result<Self, MapError> {
        Self::private(len, page_size(), ProtFlags::READ | ProtFlags::WRITE, MapFlags::empty())
    }

    /// Maps `len` bytes of a memfd or file from `offset` (page-aligned). The mapping is shared, readable and writable.
    ///
    /// # Errors
    /// [`MapError::Shape`] or [`MapError::Shared`].
    pub fn shared(fd: impl AsFd, offset: u64, len: usize) -> Result<Self, MapError> {
        let len = round_up(len, page_size()).ok_or(MapError::Shape { len, align: page_size() })?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free address, so no existing mapping changes.
        let map = || unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, &fd, offset) };
        limits::holding(len, false, map)
            .map(|ptr| Self { addr: ptr as usize, len, data: false })
            .map_err(|errno| MapError::Shared { offset, len, errno: errno.into() })
    }

    /// Like [`Mapping::shared`] from offset 0, but exactly at the page-aligned address `addr`.
    ///
    /// # Errors
    /// [`MapError::Shape`] or [`MapError::Shared`]. The errno is `EEXIST` if something is already mapped in the range.
    pub fn shared_at(fd: impl AsFd, addr: usize, len: usize) -> Result<Self, MapError> {
        let len = round_up(len, page_size()).ok_or(MapError::Shape { len, align: page_size() })?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
        // SAFETY: with FIXED_NOREPLACE, the call fails instead of replacing an existing mapping.
        let map = || unsafe { rustix::mm::mmap(pointer(addr), len, prot, flags, &fd, 0) };
        limits::holding(len, false, map)
            .map(|ptr| Self { addr: ptr as usize, len, data: false })
            .map_err(|errno| MapError::Shared { offset: 0, len, errno: errno.into() })
    }

    /// Like [`Mapping::shared`] from offset 0, but at an address that is a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// [`MapError::Shape`], [`MapError::Reserve`] or [`MapError::Shared`].
    pub fn shared_aligned(fd: impl AsFd, len: usize, align: usize) -> Result<Self, MapError> {
        let place = Self::private(len, align, ProtFlags::empty(), MapFlags::NORESERVE)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the call replaces only `place`, which was reserved just now and which no other code knows.
        let mapped = unsafe { rustix::mm::mmap(pointer(place.addr), place.len, prot, flags, fd, 0) };
        match mapped {
            Ok(_) => Ok(place),
            Err(errno) => Err(MapError::Shared { offset: 0, len: place.len, errno: errno.into() }),
        }
    }

    /// Maps private anonymous memory at an aligned address. It maps more than needed and unmaps the surplus at both
    /// ends.
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
        // `mapping` becomes the owner of the range before any call that may fail. So an early return unmaps the range.
        let mapping = Self { addr, len, data };
        drop(Self { addr: base, len: addr - base, data });
        drop(Self { addr: addr + len, len: base + total - (addr + len), data });
        Ok(mapping)
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Returns the length in bytes, a multiple of the page size.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always returns false, because a mapping has at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte after the mapping.
    #[must_use]
    pub fn end(&self) -> usize {
        self.addr + self.len
    }

    /// Returns a pointer to the first byte.
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
            // SAFETY: `self` owns the range, so no other code uses it. If munmap fails because the process has too many
            // mappings, the range stays mapped.
            if unsafe { rustix::mm::munmap(pointer(self.addr), self.len) }.is_ok() {
                limits::give_back(self.len, self.data);
            }
        }
    }
}

/// Rounds `len` up to a multiple of `unit`, a power of two. Returns `None` for 0 and on overflow.
fn round_up(len: usize, unit: usize) -> Option<usize> {
    if len == 0 { None } else { Some(len.checked_add(unit - 1)? & !(unit - 1)) }
}

fn pointer(addr: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(addr)
}

/// The seals of a shared memory object. Without them, every process of the same user could shorten it through
/// `/proc/PID/fd`. An access beyond its new end would then end its reader by SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Creates an anonymous shared memory object of `len` bytes. It is close-on-exec and reads as zeroes. Its length is
/// sealed: no process can change it. Holes may still be punched into it.
///
/// # Errors
/// [`MapError::Memfd`] if there are no descriptors or no memory, or if `len` is above the file size limit.
/// [`MapError::Seal`] if the kernel does not seal its length.
pub fn memfd(name: &str, len: u64) -> Result<OwnedFd, MapError> {
    again(|| refuse::draw(Call::Memfd)).map_err(|errno| MapError::Memfd { len, errno })?;
    let failed = |errno: rustix::io::Errno| MapError::Memfd { len, errno: errno.into() };
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(failed)?;
    // The file size limit is checked first. If the file became longer than the limit, the kernel would send SIGXFSZ,
    // which ends the process.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < len) {
        return Err(failed(rustix::io::Errno::FBIG));
    }
    rustix::fs::ftruncate(&fd, len).map_err(failed)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(|errno| MapError::Seal { errno: errno.into() })?;
    Ok(descriptors::keep(fd))
}

/// Checks whether the length of an object is sealed, so that a mapping of it stays readable up to that length. It is
/// not for a file that is no memfd.
#[must_use]
pub fn has_sealed_length(fd: impl AsFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// Changes the access rights of a range of whole pages. Allocation-free and async-signal-safe.
///
/// # Errors
/// `ENOMEM` if the range has unmapped parts, or if splitting it would exceed vm.max_map_count.
///
/// # Safety
/// If a Rust reference into the range exists, `prot` must allow every access through the reference.
pub unsafe fn protect(addr: usize, len: usize, prot: Prot) -> Result<(), Errno> {
    refuse::draw(Call::Protect)?;
    let flags = MprotectFlags::from_bits_retain(prot.0 as u32);
    // SAFETY: the caller guarantees that `prot` allows every access through existing references into the range.
    unsafe { rustix::mm::mprotect(pointer(addr), len, flags) }.map_err(Errno::from)
}

/// Calls `madvise(2)` for a range of whole pages. Allocation-free and async-signal-safe.
///
/// # Errors
/// The kernel's error, such as `EINVAL` for advice that this kernel does not know.
///
/// # Safety
/// [`Advice::DontNeed`], [`Advice::DontNeedLocked`] and [`Advice::Remove`] destroy contents, so the caller must own the
/// range.
pub unsafe fn advise(addr: usize, len: usize, advice: Advice) -> Result<(), Errno> {
    refuse::draw(Call::Advise)?;
    let advice = match advice {
        Advice::HugePage => libc::MADV_HUGEPAGE,
        Advice::NoHugePage => libc::MADV_NOHUGEPAGE,
        Advice::DontFork => libc::MADV_DONTFORK,
        Advice::DoFork => libc::MADV_DOFORK,
        Advice::DontNeed => libc::MADV_DONTNEED,
        Advice::DontNeedLocked => libc::MADV_DONTNEED_LOCKED,
        Advice::Remove => libc::MADV_REMOVE,
        Advice::PopulateWrite => libc::MADV_POPULATE_WRITE,
        Advice::WipeOnFork => libc::MADV_WIPEONFORK,
        Advice::DontDump => libc::MADV_DONTDUMP,
        Advice::Cold => libc::MADV_COLD,
        Advice::WillNeed => libc::MADV_WILLNEED,
    };
    // SAFETY: the caller owns the range if the advice destroys its contents.
    unsafe { raw::syscall(libc::SYS_madvise, [addr, len, advice as usize, 0, 0, 0]) }.map(drop)
}

/// The number of MADV_GUARD_INSTALL of madvise(2), which the C library does not define yet.
const GUARD_INSTALL: usize = 102;
/// The number of MADV_GUARD_REMOVE of madvise(2), which the C library does not define yet.
const GUARD_REMOVE: usize = 103;

/// Installs guards in a range of whole pages of a shared mapping. Every access to the range then raises SIGSEGV. System
/// calls that access the range fail. The pages are removed from this mapping only. The shared object keeps its bytes,
/// and no mapping is split. Allocation-free and async-signal-safe.
///
/// # Errors
/// `EINVAL` if the memory is locked, or if the kernel (before 6.15) has no guards in shared memory. `EINTR` after a
/// signal.
///
/// # Safety
/// No Rust reference into the range may exist. If the memory is private, its contents are lost.
pub unsafe fn guard(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller guarantees that no Rust reference into the range exists.
    unsafe { change_guards(addr, len, GUARD_INSTALL) }
}

/// Removes the guards from a range of whole pages. Pages without a guard stay as they are. Allocation-free and
/// async-signal-safe.
///
/// # Errors
/// The kernel's error, such as `EINVAL` if it has no guards in shared memory (before 6.15), or `EINTR` after a signal.
pub fn unguard(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: removing guards changes no contents of memory, so it is sound for any range.
    unsafe { change_guards(addr, len, GUARD_REMOVE) }
}

/// Installs or removes guards in a range of whole pages.
///
/// # Safety
/// For `GUARD_INSTALL`, no Rust reference into the range may exist. If the memory is private, its contents are lost.
unsafe fn change_guards(addr: usize, len: usize, advice: usize) -> Result<(), Errno> {
    refuse::draw(Call::Guard)?;
    // SAFETY: the caller guarantees that the advice is sound for this range.
    unsafe { raw::syscall(libc::SYS_madvise, [addr, len, advice, 0, 0, 0]) }.map(drop)
}

/// Replaces all mappings in a range of whole pages by reserved address space, in which every access raises a fault. The
/// old pages are freed. Any userfaultfd registration of the range ends.
///
/// # Errors
/// `ENOMEM` if the change would exceed vm.max_map_count.
///
/// # Safety
/// The caller must own the range and its contents.
pub unsafe fn replace_with_none(addr: usize, len: usize) -> Result<(), Errno> {
    refuse::draw(Call::Map)?;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: MAP_FIXED replaces the mappings of the range. The caller owns the range and its contents.
    unsafe { rustix::mm::mmap_anonymous(pointer(addr), len, ProtFlags::empty(), flags) }?;
    Ok(())
}

/// Reserves a range of whole pages in which nothing is mapped. Every access then raises a fault.
///
/// # Errors
/// `EEXIST` if something is mapped in the range.
pub fn claim(addr: usize, len: usize) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
    // SAFETY: with FIXED_NOREPLACE, the call fails instead of replacing an existing mapping.
    unsafe { rustix::mm::mmap_anonymous(pointer(addr), len, ProtFlags::empty(), flags) }?;
    Ok(())
}

/// Replaces all mappings in a range of whole pages by private anonymous memory, which is readable, writable and zero.
/// The kernel uses memory only for pages that are accessed.
///
/// # Errors
/// `ENOMEM` if the change would exceed vm.max_map_count.
///
/// # Safety
/// The caller must own the range and its contents.
pub unsafe fn replace_with_anonymous(addr: usize, len: usize) -> Result<(), Errno> {
    refuse::draw(Call::Map)?;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: MAP_FIXED replaces the mappings of the range. The caller owns the range and its contents.
    unsafe { rustix::mm::mmap_anonymous(pointer(addr), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
    Ok(())
}

/// Replaces all mappings in a range of whole pages by a shared mapping of a memfd from `offset` (page-aligned).
///
/// # Errors
/// `ENOMEM` if the change would exceed vm.max_map_count.
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
    // SAFETY: MAP_FIXED replaces the mappings of the range. The caller owns the range and its contents.
    unsafe { rustix::mm::mmap(pointer(addr), len, prot, MapFlags::SHARED | MapFlags::FIXED, fd, offset) }?;
    Ok(())
}

/// Moves the mapping of a range of whole pages, with its pages, from `from` to `to`. Replaces the mappings at `to`.
/// Nothing is mapped at `from` afterwards.
///
/// # Errors
/// `EFAULT` if the range is not one mapping, `ENOMEM` if the change would exceed vm.max_map_count. In both cases
/// nothing is moved.
///
/// # Safety
/// The caller must own both ranges, which do not overlap.
pub unsafe fn move_to(from: usize, to: usize, len: usize) -> Result<(), Errno> {
    refuse::draw(Call::Map)?;
    let flags = rustix::mm::MremapFlags::MAYMOVE;
    // SAFETY: the caller owns both ranges, so no other code relies on their mappings.
    unsafe { rustix::mm::mremap_fixed(pointer(from), len, len, flags, pointer(to)) }?;
    Ok(())
}

/// Frees the memory of a range of a memfd or file. The range reads as zeroes afterwards, and the file keeps its size.
///
/// # Errors
/// `EOPNOTSUPP` on a file system without holes.
pub fn punch_hole(fd: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
    refuse::draw(Call::Punch)?;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(fd, flags, offset, len).map_err(Errno::from)
}

/// Allocates the memory of a range of a memfd or file. New memory reads as zeroes. Existing contents stay unchanged.
///
/// # Errors
/// `ENOSPC` or `ENOMEM` if there is not enough memory.
pub fn allocate(fd: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
    rustix::fs::fallocate(fd, FallocateFlags::KEEP_SIZE, offset, len).map_err(Errno::from)
}
