//! How an interposed call returns its result: `errno`, direct system calls, and a line on stderr. The functions here do
//! not allocate and do not know which call uses them.

use std::ffi::{c_int, c_void};
use std::fmt::{self, Write};

/// What a failed `mmap` or `mremap` returns.
pub(crate) const MAP_FAILED: *mut c_void = libc::MAP_FAILED;

pub(crate) fn errno() -> c_int {
    // SAFETY: `__errno_location` always returns a valid pointer to the calling thread's errno.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: `__errno_location` always returns a valid pointer to the calling thread's errno.
    unsafe { *libc::__errno_location() = value }
}

/// Runs `call` and then restores `errno`, because the program must not see errors of the engine's own system calls.
pub(crate) fn keeping_errno<T>(call: impl FnOnce() -> T) -> T {
    let before = errno();
    let result = call();
    set_errno(before);
    result
}

/// Converts a result into a status: 0, or -1 with `errno` set.
pub(crate) fn status(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// Converts a result into an address. An error becomes `MAP_FAILED` with `errno` set.
pub(crate) fn address(result: Result<usize, c_int>) -> *mut c_void {
    match result {
        Ok(addr) => addr as *mut c_void,
        Err(error) => {
            set_errno(error);
            MAP_FAILED
        }
    }
}

/// Makes a system call by number. Returns the kernel's result or error number, and does not change `errno`.
///
/// # Safety
/// The arguments must be valid for the call. The call affects the process as its manual page says.
pub(crate) unsafe fn kernel(number: libc::c_long, args: [usize; 6]) -> Result<usize, c_int> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { hanare_sys::syscall(number, args) }.map_err(|errno| errno.0)
}

/// A buffer on the stack for one line of text. Text beyond its size is cut off.
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
    // `Line` cuts a line that is too long. If writing to standard error fails, the error is ignored: no other place
    // could report it.
    let _ = line.write_fmt(text);
    // SAFETY: the first `len` bytes of the buffer are valid.
    let _ = unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.len) };
}
