//! Copies memory that other threads and processes may change during the copy.
//!
//! The program's threads and other processes may write such memory at any time, so no Rust reference to it is ever
//! formed. Only raw pointers and the C library's block functions are used. A copy taken during a write may be torn: a
//! mix of old and new bytes. A caller that needs more must keep writers out first.

use crate::descriptors;
use crate::raw::{self, Errno};
use crate::refuse::{self, Call};
use rustix::fs::{Mode, OFlags};
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Copies `len` bytes. Torn values are possible.
///
/// # Safety
/// `src` must be mapped for reading and `dst` for writing, `len` bytes each, without overlap. No Rust reference may
/// cover `dst`.
#[inline]
pub unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        libc::memcpy(dst.cast::<c_void>(), src.cast::<c_void>(), len);
    }
}

/// Writes `len` zero bytes.
///
/// # Safety
/// `dst` must be mapped for writing, `len` bytes. No Rust reference may cover it.
#[inline]
pub unsafe fn zero(dst: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        libc::memset(dst.cast::<c_void>(), 0, len);
    }
}

/// Whether two ranges hold the same bytes.
///
/// # Safety
/// Both must be mapped for reading, `len` bytes each.
#[inline]
#[must_use]
pub unsafe fn equal(a: *const u8, b: *const u8, len: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { libc::memcmp(a.cast::<c_void>(), b.cast::<c_void>(), len) == 0 }
}

/// This process's own memory as a file, `/proc/self/mem`. It can read pages that the process may not read, and returns
/// an errno where a load would kill the process.
///
/// The file shows the process that opened it, even when a forked child reads it. So a child must open its own.
#[derive(Debug)]
pub struct OwnMemory {
    fd: OwnedFd,
}

impl OwnMemory {
    /// Opens it.
    ///
    /// # Errors
    /// `EMFILE` without a free descriptor; `ENOENT` without `/proc`.
    pub fn open() -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let open = || {
            refuse::draw(Call::Open)?;
            rustix::fs::open(c"/proc/self/mem", flags, Mode::empty()).map_err(Errno::from)
        };
        raw::again(open).map(|fd| Self { fd: descriptors::keep(fd) })
    }

    /// Fills `buf` from `addr` on.
    ///
    /// # Errors
    /// `EIO` for an address that is not mapped or not present. The bytes before that address may be in `buf` then.
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
