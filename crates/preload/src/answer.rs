//! How an interposed call returns its result: `errno`, direct system calls, and a line on stderr. This room must not
//! allocate, and does not know which call it serves.

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

/// Runs `call` and restores `errno`: the engine's own system calls must not change it.
pub(crate) fn keeping_errno<T>(call: impl FnOnce() -> T) -> T {
    let before = errno();
    let result = call();
    set_errno(before);
    result
}

/// The result of a call that returns 0, or -1 with `errno`.
pub(crate) fn status(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// The result of a call that returns an address, or `MAP_FAILED` with `errno`.
pub(crate) fn address(result: Result<usize, c_int>) -> *mut c_void {
    match result {
        Ok(addr) => addr as *mut c_void,
        Err(error) => {
            set_errno(error);
            MAP_FAILED
        }
    }
}

/// Makes a system call by number. Returns a value or an errno, and does not change `errno` itself.
///
/// # Safety
/// The arguments must be valid for the call. The call affects the process as its manual page says.
pub(crate) unsafe fn kernel(number: libc::c_long, args: [usize; 6]) -> Result<usize, c_int> {
    // SAFETY: the caller's promise.
    unsafe { hanare_sys::syscall(number, args) }.map_err(|errno| errno.0)
}

/// A line on the stack. It is cut when it is too long.
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
    // A line that does not fit is cut. A line that cannot be written cannot be reported either.
    let _ = line.write_fmt(text);
    // SAFETY: the buffer is valid for `len` bytes.
    let _ = unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.len) };
}
