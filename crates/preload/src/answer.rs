//! Helpers of the interposed calls: `errno`, results, direct system calls, and messages on stderr. Nothing here
//! allocates.

use std::ffi::{c_int, c_void};
use std::fmt::{self, Write};

/// The value that a failed `mmap` or `mremap` returns.
pub(crate) const MAP_FAILED: *mut c_void = libc::MAP_FAILED;

pub(crate) fn errno() -> c_int {
    // SAFETY: the location of the calling thread's `errno` is always valid.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: the location of the calling thread's `errno` is always valid.
    unsafe { *libc::__errno_location() = value }
}

/// Runs `call` and then restores `errno`, because the engine's own system calls must not change the program's `errno`.
pub(crate) fn keeping_errno<T>(call: impl FnOnce() -> T) -> T {
    let before = errno();
    let result = call();
    set_errno(before);
    result
}

/// Returns 0 on success. On failure, sets `errno` and returns -1.
pub(crate) fn status(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// Returns the address on success. On failure, sets `errno` and returns `MAP_FAILED`.
pub(crate) fn address(result: Result<usize, c_int>) -> *mut c_void {
    match result {
        Ok(addr) => addr as *mut c_void,
        Err(error) => {
            set_errno(error);
            MAP_FAILED
        }
    }
}

/// Makes a system call by number. Returns its value or its error number, and leaves `errno` unchanged.
///
/// # Safety
/// The arguments must be valid for the call. The call affects the process as its manual page says.
pub(crate) unsafe fn kernel(number: libc::c_long, args: [usize; 6]) -> Result<usize, c_int> {
    // SAFETY: the caller promises that the arguments are valid for the call.
    unsafe { hanare_sys::syscall(number, args) }.map_err(|errno| errno.0)
}

/// Makes a system call whose pointers may lead to a stack that was far once. The filter for calls on far memory does not
/// trap it.
///
/// # Errors
/// The kernel's error number.
///
/// # Safety
/// As for [`kernel`].
pub(crate) unsafe fn unfiltered(number: libc::c_long, args: [usize; 6]) -> Result<usize, c_int> {
    #[cfg(target_arch = "x86_64")]
    if hanare_sys::calls::are_served() {
        // SAFETY: the caller promises that the arguments are valid for the call.
        return unsafe { hanare_sys::calls::pass(number, args) }.map_err(|errno| errno.0);
    }
    // SAFETY: the caller promises that the arguments are valid for the call.
    unsafe { kernel(number, args) }
}

/// A line of text on the stack. Text that does not fit is cut off.
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
    // Both results are ignored: a line that does not fit is cut, and a failed write cannot be reported.
    let _ = line.write_fmt(text);
    // SAFETY: the line's buffer is valid for `len` bytes.
    let _ = unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.len) };
}
