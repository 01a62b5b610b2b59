//! Asynchronous I/O of POSIX (`aio_read` and its relatives). The C library carries it out in threads of its own, in
//! which every signal is blocked. There a fault or a trapped call would end the process. So in signal modes (sigbus and
//! sigsegv) a request with a far buffer or a far control block is refused with `ENOSYS`.

use std::ffi::{c_int, c_void};
use std::mem::transmute;

use libc::{aiocb, sigevent};

use super::near::is_far;
use super::real::{self, Real};
use crate::answer::status;

/// # Safety
/// `request` is null or a valid control block.
unsafe fn is_refused(request: *const aiocb) -> bool {
    if request.is_null() || is_far(request.cast(), size_of::<aiocb>()) {
        return !request.is_null();
    }
    // SAFETY: `request` is neither null nor far, so it is a valid control block.
    let request = unsafe { &*request };
    is_far(request.aio_buf.cast_const(), request.aio_nbytes)
}

/// # Safety
/// `real` is a function of one control block, and `request` is valid for it.
unsafe fn submit(real: &Real, request: *mut aiocb) -> c_int {
    type Call = unsafe extern "C-unwind" fn(*mut aiocb) -> c_int;
    // SAFETY: the caller promises that `request` is valid.
    let refuses = unsafe { is_refused(request) };
    match real.get() {
        // SAFETY: `call` has the type `Call`, as the caller promises. Its argument is the caller's.
        Some(call) if !refuses => unsafe { transmute::<*mut c_void, Call>(call)(request) },
        _ => status(Err(libc::ENOSYS)),
    }
}

type List = *const *mut aiocb;

/// # Safety
/// `real` has the type of lio_listio(3), and the other arguments are valid for it.
unsafe fn submit_list(real: &Real, mode: c_int, list: List, count: c_int, event: *mut sigevent) -> c_int {
    type Call = unsafe extern "C-unwind" fn(c_int, List, c_int, *mut sigevent) -> c_int;
    // SAFETY: a valid list has `count` entries.
    let refuses = (0..usize::try_from(count).unwrap_or(0)).any(|index| unsafe { is_refused(list.add(index).read()) });
    match real.get() {
        // SAFETY: `call` has the type `Call`, as the caller promises. Its arguments are the caller's.
        Some(call) if !refuses => unsafe { transmute::<*mut c_void, Call>(call)(mode, list, count, event) },
        _ => status(Err(libc::ENOSYS)),
    }
}

macro_rules! submitting {
    ($($name:ident)*; $($list:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(request: *mut aiocb) -> c_int {
                // SAFETY: the caller keeps the contract of the call. The real function has the same type.
                unsafe { submit(&real::$name, request) }
            }
        )*
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $list(mode: c_int, list: List, count: c_int, event: *mut sigevent) -> c_int {
                // SAFETY: the caller keeps the contract of the call. The real function has the same type.
                unsafe { submit_list(&real::$list, mode, list, count, event) }
            }
        )*
    };
}

submitting! { aio_read aio_read64 aio_write aio_write64; lio_listio lio_listio64 }
