//! Calls that show and take pending signals. The kernel does not know the signals that wait in this library, because the
//! program blocks them and Hanare does not (`hanare_sys::signal::take_waiting`).

use std::ffi::{c_int, c_void};
use std::mem::{transmute, zeroed};

use hanare_sys::signal;
use libc::{siginfo_t, sigset_t, timespec};

use super::near::{Argument, filled, given, kernel_is_blind};
use super::real;
use crate::answer::{set_errno, status};

/// Takes a signal of `set` that waits in this library.
///
/// # Safety
/// `set` is null or valid.
unsafe fn taken(set: *const sigset_t) -> Option<siginfo_t> {
    if !kernel_is_blind() || set.is_null() || signal::waiting() == 0 {
        return None;
    }
    // SAFETY: `set` is not null, so it is valid. It begins with the kernel's set.
    let words = signal::take_waiting(unsafe { set.cast::<u64>().read_unaligned() })?;
    // SAFETY: zeroes are a valid siginfo, and it is longer than the words.
    unsafe {
        let mut info: siginfo_t = zeroed();
        (&raw mut info).cast::<[u32; 12]>().write_unaligned(words);
        // The C library's functions show a signal to a thread as one to the process.
        if info.si_code == libc::SI_TKILL {
            info.si_code = libc::SI_USER;
        }
        Some(info)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigpending(set: *mut sigset_t) -> c_int {
    type Call = unsafe extern "C-unwind" fn(*mut sigset_t) -> c_int;
    let Some(call) = real::sigpending.get() else { return status(Err(libc::ENOSYS)) };
    // SAFETY: the caller keeps the contract of sigpending(2). `call` is the C library's function of type `Call`.
    unsafe { shown(set.cast(), |near| transmute::<*mut c_void, Call>(call)(near.cast())) }
}

/// Makes the call that writes the pending signals to `set`, and adds those that wait in this library.
///
/// # Safety
/// `set` is null or valid for the kernel's set. So is the argument of `call`.
pub(crate) unsafe fn shown(set: *mut u64, call: impl FnOnce(*mut u64) -> c_int) -> c_int {
    // SAFETY: the caller promises what `set` is.
    let mut near = unsafe { filled(set) };
    let answer = call(near.pointer().cast());
    near.settle(answer.into());
    if answer == 0 && kernel_is_blind() {
        let place = near.pointer().cast::<u64>();
        // SAFETY: the kernel has just written this set.
        unsafe { place.write_unaligned(place.read_unaligned() | signal::waiting()) };
    }
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigwait(set: *const sigset_t, number: *mut c_int) -> c_int {
    type Call = unsafe extern "C-unwind" fn(*const sigset_t, *mut c_int) -> c_int;
    let Some(call) = real::sigwait.get() else { return libc::ENOSYS };
    // SAFETY: the caller keeps the contract of sigwait(3). Near copies replace far arguments. `call` is the C library's
    // function of type `Call`.
    unsafe {
        if let Some(info) = taken(set) {
            number.write_unaligned(info.si_signo);
            return 0;
        }
        let (set, mut number) = (given(set), filled(number));
        let answer = transmute::<*mut c_void, Call>(call)(set.given(), number.pointer().cast());
        number.settle((-answer).into());
        answer
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigwaitinfo(set: *const sigset_t, info: *mut siginfo_t) -> c_int {
    // SAFETY: the caller keeps the contract of sigwaitinfo(2).
    unsafe { sigtimedwait(set, info, std::ptr::null()) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sigtimedwait(
    set: *const sigset_t,
    info: *mut siginfo_t,
    timeout: *const timespec,
) -> c_int {
    type Call = unsafe extern "C-unwind" fn(*const sigset_t, *mut siginfo_t, *const timespec) -> c_int;
    let Some(call) = real::sigtimedwait.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: the caller keeps the contract of sigtimedwait(2). Near copies replace far arguments. `call` is the C
    // library's function of type `Call`.
    unsafe {
        if let Some(found) = taken(set) {
            if !info.is_null() {
                info.write_unaligned(found);
            }
            return found.si_signo;
        }
        let (set, mut near, timeout) = (given(set), filled(info), given(timeout));
        let answer = transmute::<*mut c_void, Call>(call)(set.given(), near.pointer().cast(), timeout.given());
        near.settle(answer.into());
        answer
    }
}
