//! Calls whose argument types only the kernel knows. If such a call fails with EFAULT, this module accesses the pages
//! of its arguments and repeats the call. Repeating is safe because the kernel reads the arguments before it acts.
//! [`numbers`] treats the calls that act first one by one. A structure that spans more than two pages, or that points
//! to further far memory, still causes EFAULT.

use std::ffi::{c_int, c_long, c_ulong};
use std::mem::transmute;
use std::sync::atomic::{AtomicU8, Ordering};

use hanare::far;
use hanare_sys::descriptors::is_own;

use super::descriptors::answer_by_number;
use super::near::kernel_is_blind;
use super::real;
use crate::answer::{errno, set_errno, status};
use crate::numbers;
use crate::range::PAGE;

/// Most repetitions of a call. The pages may be evicted between the access and the call, but not this often.
const TRIES: u32 = 100;

/// Makes a call, and repeats it while it fails because pages of its arguments are absent.
fn again(arguments: &[usize], call: impl Fn() -> c_long) -> c_long {
    let before = errno();
    let mut answer = call();
    let mut tries = 0;
    while answer == -1 && errno() == libc::EFAULT && kernel_is_blind() && tries < TRIES {
        if !arguments.iter().fold(false, |any, &argument| touch(argument) | any) {
            break;
        }
        set_errno(before);
        answer = call();
        tries += 1;
    }
    answer
}

/// Makes a page and the next one present by an access: a write if the program may write the page, else a read. Returns
/// false if the first page is not far.
fn touch(addr: usize) -> bool {
    for page in [addr, addr.saturating_add(PAGE)].into_iter().filter(|&page| far::contains(page)) {
        // SAFETY: `page` is an address in mapped far memory. Adding 0 is one atomic step, so it changes nothing.
        let byte = unsafe { AtomicU8::from_ptr(page as *mut u8) };
        if far::is_writable(page) {
            // `black_box` hides the 0. If the compiler saw the 0, it could turn the addition into a read.
            byte.fetch_add(std::hint::black_box(0), Ordering::SeqCst);
        } else if far::is_readable(page) {
            byte.load(Ordering::SeqCst);
        }
    }
    far::contains(addr)
}

/// The C prototype is variadic. A caller passes the third argument in the same register as for this signature.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    type Call = unsafe extern "C-unwind" fn(c_int, c_ulong, ...) -> c_int;
    let Some(call) = real::ioctl.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: `call` is the C library's function of this type. Its arguments are the caller's.
    again(&[argument], || unsafe { transmute::<*mut _, Call>(call)(fd, request, argument) }.into()) as c_int
}

/// The C prototype is variadic, as that of [`ioctl`]. Repeating the call is safe, because it writes little and the same
/// again.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    type Call = unsafe extern "C-unwind" fn(c_int, ...) -> c_int;
    let Some(call) = real::prctl.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: `call` is the C library's function of this type. Its arguments are the caller's.
    again(&[a, b, c, d], || unsafe { transmute::<*mut _, Call>(call)(option, a, b, c, d) }.into()) as c_int
}

/// # Safety
/// The caller keeps the contract of fcntl(2).
unsafe fn control(real: &real::Real, fd: c_int, command: c_int, argument: usize) -> c_int {
    type Call = unsafe extern "C-unwind" fn(c_int, c_int, ...) -> c_int;
    let Some(call) = real.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // Programs that this process executes must not inherit Hanare's descriptors. So their close-on-exec flag cannot be
    // changed.
    if command == libc::F_SETFD && is_own(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    // SAFETY: `call` is the C library's function of this type. Its arguments are the caller's.
    again(&[argument], || unsafe { transmute::<*mut _, Call>(call)(fd, command, argument) }.into()) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller keeps the contract of `fcntl`.
    unsafe { control(&real::fcntl, fd, command, argument) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller keeps the contract of `fcntl64`.
    unsafe { control(&real::fcntl64, fd, command, argument) }
}

/// Makes any call by number, above all `futex`, for which the C library has no function. [`numbers`] passes calls that
/// need special treatment on far memory to the functions of their names.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    type Call = unsafe extern "C-unwind" fn(c_long, ...) -> c_long;
    if let Some(answer) = answer_by_number(number, [a, b, c]) {
        return status(answer.map_err(|errno| errno.0)).into();
    }
    // SAFETY: the arguments are the caller's, who keeps the contract of the call.
    if let Some(answer) = unsafe { numbers::by_name(number, [a, b, c, d, e, f]) } {
        return answer;
    }
    let Some(call) = real::syscall.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: `call` is the C library's function of this type. Its arguments are the caller's.
    again(&[a, b, c, d, e, f], || unsafe { transmute::<*mut _, Call>(call)(number, a, b, c, d, e, f) })
}
