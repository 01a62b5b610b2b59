//! Copies memory that other threads and processes may change during the copy.
//!
//! Other threads of the program and other processes may write to the copied memory at any time. So this module never
//! forms a Rust reference to this memory. It uses only raw pointers and the C library's block functions. If another
//! thread writes during a copy, the copy may be torn: a mix of old and new bytes. A caller that needs a consistent copy
//! must first keep writers out.

use crate::descriptors;
use crate::raw::{self, Errno};
use crate::refuse::{self, Call};
use rustix::fs::{Mode, OFlags};
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Copies `len` bytes. The copy may be torn.
///
/// # Safety
/// `src` must be mapped for reading and `dst` for writing, `len` bytes each. The two ranges must not overlap. No Rust
/// reference may cover `dst`.
#[inline]
pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller guarantees that `src` is readable, `dst` is writable, and the two ranges do not overlap.
    unsafe {
        libc::memcpy(dst.cast::<c_void>(), src.cast::<c_void>(), len);
    }
}

/// Writes `len` zero bytes to `dst`.
///
/// # Safety
/// `dst` must be mapped for writing, `len` bytes. No Rust reference may cover `dst`.
#[inline]
pub unsafe fn zero(dst: *mut u8, len: usize) {
    // SAFETY: the caller guarantees that `dst` is mapped for writing.
    unsafe {
        libc::memset(dst.cast::<c_void>(), 0, len);
    }
}

/// Checks whether two ranges contain the same bytes.
///
/// # Safety
/// Both ranges must be mapped for reading, `len` bytes each.
#[inline]
#[must_use]
pub unsafe fn equal(a: *const u8, b: *const u8, len: usize) -> bool {
    // SAFETY: the caller guarantees that both ranges are mapped for reading.
    unsafe { libc::memcmp(a.cast::<c_void>(), b.cast::<c_void>(), len) == 0 }
}

/// This process's own memory as the file `/proc/self/mem`. A read of this file works even on pages without read
/// permission. It returns an errno if a load from the address would kill the process.
///
/// The file shows the memory of the process that opened it, even when a forked child reads it. So a forked child must
/// open a new `OwnMemory`.
#[derive(Debug)]
pub struct OwnMemory {
    fd: OwnedFd,
}

impl OwnMemory {
    /// Opens `/proc/self/mem`.
    ///
    /// # Errors
    /// `EMFILE` if no descriptor is free. `ENOENT` if `/proc` is not mounted.
    pub fn open() -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let open = || {
            refuse::draw(Call::Open)?;
            rustix::fs::open(c"/proc/self/mem", flags, Mode::empty()).map_err(Errno::from)
        };
        raw::again(open).map(|fd| Self { fd: descriptors::keep(fd) })
    }

    /// Reads the bytes from `addr` on into the whole of `buf`.
    ///
    /// # Errors
    /// `EIO` if an address is not mapped, or if a userfaultfd traps its missing page. The bytes before that address may
    /// already be in `buf`.
    pub fn read(&self, addr: usize, buf: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < buf.len() {
            refuse::draw(Call::Read)?;
            match rustix::io::pread(&self.fd, &mut buf[done..], (addr + done) as u64) {
                Ok(0) => return Err(Errno(libc::EIO)),
                Ok(bytes) => done += bytes,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

impl AsFd for OwnMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
