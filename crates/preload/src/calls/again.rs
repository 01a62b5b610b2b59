//! Calls whose arguments only the kernel knows: when one fails with EFAULT, the pages that its arguments lie in are touched
//! and it is made again. Nothing has happened by then, as the kernel reads its arguments before it acts; calls that act
//! first are those of their names ([`numbers`]). A structure that reaches over more than two pages, or points to further
//! far memory, is not served.

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

/// Pages may leave between the touch and the call; so often they do not.
const TRIES: u32 = 100;

/// Makes a call, and makes it again while the pages of its arguments are not there.
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

/// Brings a page and the next into view, writable where the program may write. False when it is not far.
fn touch(addr: usize) -> bool {
    for page in [addr, addr.saturating_add(PAGE)].into_iter().filter(|&page| far::contains(page)) {
        // SAFETY: a byte of far memory, which is mapped; adding nothing to it changes nothing, in one step.
        let byte = unsafe { AtomicU8::from_ptr(page as *mut u8) };
        if far::is_writable(page) {
            // A nothing that the compiler knows of would become a read.
            byte.fetch_add(std::hint::black_box(0), Ordering::SeqCst);
        } else if far::is_readable(page) {
            byte.load(Ordering::SeqCst);
        }
    }
    far::contains(addr)
}

/// The C prototype is variadic; the third argument comes in the same register.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    type Call = unsafe extern "C-unwind" fn(c_int, c_ulong, ...) -> c_int;
    let Some(call) = real::ioctl.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: the C library's function of this type, with the caller's arguments.
    again(&[argument], || unsafe { transmute::<*mut _, Call>(call)(fd, request, argument) }.into()) as c_int
}

/// As for [`ioctl`]. What it may write is small, and the same when it is asked again.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    type Call = unsafe extern "C-unwind" fn(c_int, ...) -> c_int;
    let Some(call) = real::prctl.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: the C library's function of this type, with the caller's arguments.
    again(&[a, b, c, d], || unsafe { transmute::<*mut _, Call>(call)(option, a, b, c, d) }.into()) as c_int
}

/// # Safety
/// The contract of fcntl(2).
unsafe fn control(real: &real::Real, fd: c_int, command: c_int, argument: usize) -> c_int {
    type Call = unsafe extern "C-unwind" fn(c_int, c_int, ...) -> c_int;
    let Some(call) = real.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // Hanare's own are not left to programs that are executed.
    if command == libc::F_SETFD && is_own(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    // SAFETY: the C library's function of this type, with the caller's arguments.
    again(&[argument], || unsafe { transmute::<*mut _, Call>(call)(fd, command, argument) }.into()) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: passed on from the caller.
    unsafe { control(&real::fcntl, fd, command, argument) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: passed on from the caller.
    unsafe { control(&real::fcntl64, fd, command, argument) }
}

/// Any call by number: `futex` above all, which the C library has no function for. Calls whose meaning on far memory is not
/// the kernel's are those of their names ([`numbers`]).
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
    // SAFETY: the caller's arguments, under the contract of the call.
    if let Some(answer) = unsafe { numbers::by_name(number, [a, b, c, d, e, f]) } {
        return answer;
    }
    let Some(call) = real::syscall.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: the C library's function of this type, with the caller's arguments.
    again(&[a, b, c, d, e, f], || unsafe { transmute::<*mut _, Call>(call)(number, a, b, c, d, e, f) })
}
