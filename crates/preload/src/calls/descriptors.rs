//! Calls that close descriptors. Some programs (daemons, shells, process starters) close descriptors that they did not
//! open, and must not close Hanare's. To the program, Hanare's descriptors appear closed. The kernel never gives the
//! program one of their numbers.
//!
//! Hanare's own code also closes its descriptors through this module, because it calls the C library's `close` like any
//! other code. `close_for` recognizes such a call by its return address, which lies in this library.

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::mem::transmute;

use hanare_sys::{Errno, descriptors};

use super::real;
use crate::answer::{kernel, set_errno, status};
use crate::code::OWN;
use crate::entry::entry;

fn refused(error: c_int) -> c_int {
    set_errno(error);
    -1
}

type Close = unsafe extern "C-unwind" fn(c_int) -> c_int;

/// close(2), called by code at `caller`.
unsafe extern "C-unwind" fn close_for(fd: c_int, caller: usize) -> c_int {
    if OWN.contains(caller) {
        descriptors::forget(fd);
    } else if descriptors::is_own(fd) {
        return refused(libc::EBADF);
    }
    match real::close.known() {
        // SAFETY: `call` is the C library's `close`, which has the type `Close`. The argument is the caller's.
        Some(call) => unsafe { transmute::<*mut c_void, Close>(call)(fd) },
        // SAFETY: the argument is a plain number. The call closes a descriptor of the caller.
        None => status(unsafe { kernel(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) }.map(drop)),
    }
}

entry!(close, "rsi", "x1", close_for, fn(_fd: c_int) -> c_int);
entry!(__close, "rsi", "x1", close_for, fn(_fd: c_int) -> c_int);

/// Does close_range(2) for all descriptors from `first` to `last`, except Hanare's own.
pub(super) fn close_others(first: c_uint, last: c_uint, flags: c_int) -> Result<(), c_int> {
    let call = |first: c_uint, last: c_uint| {
        let args = [first as usize, last as usize, flags as usize, 0, 0, 0];
        // SAFETY: the arguments are plain numbers. The call closes only descriptors of the program.
        unsafe { kernel(libc::SYS_close_range, args) }.map(drop)
    };
    // The kernel itself refuses an invalid range. With CLOSE_RANGE_CLOEXEC, the kernel closes nothing now, and Hanare's
    // own descriptors are close-on-exec already.
    if first > last || flags & CLOSE_RANGE_CLOEXEC != 0 {
        return call(first, last);
    }
    descriptors::others(first, last, call)
}

const CLOSE_RANGE_CLOEXEC: c_int = 4;

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    status(close_others(first, last, flags))
}

/// closefrom(3). If the kernel has no close_range(2) (Linux before 5.9), closes the descriptors one by one, up to the
/// process's limit.
#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    let first = first.max(0);
    if close_others(first as c_uint, c_uint::MAX, 0).is_ok() {
        return;
    }
    // SAFETY: `sysconf` only returns a number.
    let end = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) };
    for fd in first..c_int::try_from(end).unwrap_or(c_int::MAX) {
        if !descriptors::is_own(fd) {
            // SAFETY: the argument is a plain number. The call closes only a descriptor of the program.
            let _ = unsafe { kernel(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
        }
    }
}

/// Duplicates `from` at the number `to`, as dup3(2) does. If `to` is one of Hanare's descriptors, fails with EBADF, as
/// for a number above the limit on descriptors.
fn put_onto(from: c_int, to: c_int, flags: c_int) -> c_int {
    if descriptors::is_own(to) {
        return refused(libc::EBADF);
    }
    let args = [from as usize, to as usize, flags as usize, 0, 0, 0];
    // SAFETY: the arguments are plain numbers. The call closes only a descriptor of the program.
    match unsafe { kernel(libc::SYS_dup3, args) } {
        Ok(fd) => fd as c_int,
        Err(error) => refused(error),
    }
}

fn put_or_keep(from: c_int, to: c_int) -> c_int {
    if from != to {
        return put_onto(from, to, 0);
    }
    // SAFETY: F_GETFD only returns the flags of a descriptor.
    match unsafe { kernel(libc::SYS_fcntl, [from as usize, libc::F_GETFD as usize, 0, 0, 0, 0]) } {
        Ok(_) => to,
        Err(error) => refused(error),
    }
}

#[unsafe(no_mangle)]
extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    put_or_keep(from, to)
}

#[unsafe(no_mangle)]
extern "C" fn __dup2(from: c_int, to: c_int) -> c_int {
    put_or_keep(from, to)
}

#[unsafe(no_mangle)]
extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    put_onto(from, to, flags)
}

/// Returns the result of a system call that would close Hanare's descriptors, and of every close_range. Returns `None`
/// for all other calls.
pub(super) fn answer_by_number(number: c_long, args: [usize; 3]) -> Option<Result<(), Errno>> {
    let [a, b, c] = args;
    let is_own = |fd: usize| descriptors::is_own(fd as c_int);
    let closes = match number {
        libc::SYS_close => is_own(a),
        libc::SYS_dup3 => a as c_int != b as c_int && is_own(b),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => a as c_int != b as c_int && is_own(b),
        libc::SYS_close_range => {
            return Some(close_others(a as c_uint, b as c_uint, c as c_int).map_err(Errno));
        }
        _ => false,
    };
    closes.then_some(Err(Errno(libc::EBADF)))
}
