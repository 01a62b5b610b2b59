//! How an interposed call answers: `errno`, the kernel called by number, and a line on stderr. It must not
//! allocate and must not know which call it answers for.

use std::ffi::{c_int, c_void};
use std::fmt::{self, Write};

/// What a failed `mmap` or `mremap` returns.
pub(crate) const MAP_FAILED: *mut c_void = libc::MAP_FAILED;

pub(crate) fn errno() -> c_int {
    // SAFETY: the location of the calling thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value }
}

/// Runs `call`, after which `errno` is what it was before: the engine's own system calls must not show through.
pub(crate) fn keeping_errno<T>(call: impl FnOnce() -> T) -> T {
    let before = errno();
    let result = call();
    set_errno(before);
    result
}

/// The answer of a call that returns 0, or -1 with `errno`.
pub(crate) fn status(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// The answer of a call that returns an address, or `MAP_FAILED` with `errno`.
pub(crate) fn address(result: Result<usize, c_int>) -> *mut c_void {
    match result {
        Ok(addr) => addr as *mut c_void,
        Err(error) => {
            set_errno(error);
            MAP_FAILED
        }
    }
}

/// A system call by number, answered as a value or an errno, leaving `errno` itself alone.
///
/// # Safety
/// The arguments must be valid for the call, which does to the process what its manual page says.
pub(crate) unsafe fn kernel(number: libc::c_long, args: [usize; 6]) -> Result<usize, c_int> {
    // SAFETY: the caller's promise.
    unsafe { hanare_sys::syscall(number, args) }.map_err(|errno| errno.0)
}

/// A line on the stack, cut when it is too long.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let taken = text.len().min(room.len());
        room[..taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
        Ok(())
    }
}

/// Writes one line to standard error without allocating.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 512], len: 0 };
    // A line that does not fit is cut, and one that cannot be written has nobody to be told.
    let _ = line.write_fmt(text);
    // SAFETY: the buffer is valid for `len` bytes.
    let _ = unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.len) };
}
