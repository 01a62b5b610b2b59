//! Moving bytes of memory that others change meanwhile.
//!
//! The program's threads and other processes write such memory whenever they like, so no Rust
//! reference to it is ever formed: raw pointers and the C library's block functions only. A copy
//! taken while another writes may be torn (a mix of old and new bytes); who needs better keeps the
//! others out first.

use crate::raw::Errno;
use rustix::fs::{Mode, OFlags};
use std::ffi::c_void;
use std::os::fd::OwnedFd;

/// Copies `len` bytes. Torn values are possible.
///
/// # Safety
/// `src` must be mapped for reading and `dst` for writing, `len` bytes each, not overlapping; no
/// Rust reference may cover `dst`.
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
/// `dst` must be mapped for writing, `len` bytes; no Rust reference may cover it.
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

/// Reads this process's own memory at `addr` through `/proc/self/mem`, which works on pages the
/// process may not read and answers an errno where a load would die. Returns the bytes read: fewer
/// than asked where the mapping ends.
///
/// # Errors
/// `EIO` for an address that is not mapped.
pub fn read_foreign(addr: usize, buf: &mut [u8]) -> Result<usize, Errno> {
    // Opened for each call: a kept descriptor would show the parent's memory in a forked child.
    let mem: OwnedFd = rustix::fs::open(c"/proc/self/mem", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pread(&mem, &mut buf[done..], (addr + done) as u64) {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(done)
}
