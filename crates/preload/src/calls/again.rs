//! Calls whose arguments only the kernel can interpret. If such a call fails with EFAULT, this module accesses the
//! pages of the arguments and repeats the call. The kernel reads the arguments before it acts, so a repeated call is
//! safe. System calls that act first go to this library's functions of the same names ([`numbers`]). An argument
//! structure that spans more than two pages, or that points to further far memory, is not supported.

use std::ffi::{c_int, c_long, c_ulong};
use std::mem::transmute;
use std::sync::atomic::{AtomicU8, Ordering};

use hanare::far;
use hanare_sys::descriptors::is_own;

use super::descriptors::answer_by_number;
use super::near::{Near, filled_elements, is_far, kernel_is_blind};
use super::real;
use crate::answer::{errno, set_errno, status};
use crate::range::PAGE;
use crate::{numbers, signals};

/// Maximum number of times that a call is repeated. A page may be evicted between the access and the repeated call, but
/// not this often.
const TRIES: u32 = 100;

/// Makes a call, and repeats it while it fails because pages of its arguments are absent. In thread mode the kernel
/// waits for the pages itself, so the call is made once.
fn again(arguments: &[usize], call: impl Fn() -> c_long) -> c_long {
    if kernel_is_blind() { until_present(arguments, call) } else { call() }
}

/// Makes a call, and repeats it while it fails with EFAULT and any argument is far.
fn until_present(arguments: &[usize], call: impl Fn() -> c_long) -> c_long {
    let before = errno();
    let mut answer = call();
    let mut tries = 0;
    while answer == -1 && errno() == libc::EFAULT && tries < TRIES {
        if !arguments.iter().fold(false, |any, &argument| touch(argument) | any) {
            break;
        }
        set_errno(before);
        answer = call();
        tries += 1;
    }
    answer
}

/// Makes the page of `addr` and the next page present, and writable if the program may write them. Returns false if
/// `addr` is not far.
fn touch(addr: usize) -> bool {
    for page in [addr, addr.saturating_add(PAGE)].into_iter().filter(|&page| far::contains(page)) {
        // SAFETY: `page` is the address of a byte in far memory, which is mapped. Adding 0 is one atomic step, so it
        // cannot undo another thread's write.
        let byte = unsafe { AtomicU8::from_ptr(page as *mut u8) };
        if far::is_writable(page) {
            // `black_box` hides the 0 from the compiler, which could otherwise replace the addition with a read.
            byte.fetch_add(std::hint::black_box(0), Ordering::SeqCst);
        } else if far::is_readable(page) {
            byte.load(Ordering::SeqCst);
        }
    }
    far::contains(addr)
}

/// Returns whether a call makes the kernel write a word of the program under a lock of its own. There the kernel waits
/// for no absent page, in thread mode either, and fails the call before it has acted. `FUTEX_WAIT_REQUEUE_PI` is
/// missing: its thread has waited by then, so the call must not be repeated.
fn writes_under_lock(number: c_long, args: [usize; 6]) -> bool {
    const LOCK_PI2: c_int = 13;
    let operation = args[1] as c_int & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    number == libc::SYS_futex
        && matches!(
            operation,
            libc::FUTEX_WAKE_OP
                | libc::FUTEX_LOCK_PI
                | LOCK_PI2
                | libc::FUTEX_TRYLOCK_PI
                | libc::FUTEX_UNLOCK_PI
                | libc::FUTEX_CMP_REQUEUE_PI
        )
}

/// The kernel's `struct ifconf`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Interfaces {
    len: c_int,
    list: usize,
}

/// Makes the ioctl SIOCGIFCONF by `call`, with a near copy of the list that its argument points to. Returns `None` if the
/// list is not far.
fn list_interfaces(argument: usize, call: impl Fn(usize) -> c_long) -> Option<c_long> {
    let mut near = signals::fetch::<Interfaces>(argument).ok()?;
    let len = usize::try_from(near.len).ok()?;
    if !is_far(near.list as *const _, len) {
        return None;
    }
    // SAFETY: the program passes a list of `len` bytes for the result.
    let mut list = unsafe { filled_elements(near.list as *mut u8, len) };
    near.list = list.pointer() as usize;
    let answer = call(&raw mut near as usize);
    list.settle(if answer == 0 { near.len.into() } else { answer });
    if answer == 0 {
        // SAFETY: the program passes an `Interfaces`, which could be read above, for the result.
        unsafe { (&raw mut (*(argument as *mut Interfaces)).len).write_unaligned(near.len) };
    }
    Some(answer)
}

/// ioctl(2). The C prototype is variadic, but a variadic third argument is in the same register as this fixed one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    type Call = unsafe extern "C-unwind" fn(c_int, c_ulong, ...) -> c_int;
    let Some(call) = real::ioctl.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: `call` is the C library's `ioctl`, which has the type `Call`. Its arguments are the caller's, or copies.
    let make = |argument: usize| unsafe { transmute::<*mut _, Call>(call)(fd, request, argument) }.into();
    if request == libc::SIOCGIFCONF
        && kernel_is_blind()
        && let Some(answer) = list_interfaces(argument, make)
    {
        return answer as c_int;
    }
    again(&[argument], || make(argument)) as c_int
}

/// prctl(2). The C prototype is variadic, but variadic arguments are in the same registers as these fixed ones.
/// Repeating a call is safe, because it writes the same result again.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    type Call = unsafe extern "C-unwind" fn(c_int, ...) -> c_int;
    let Some(call) = real::prctl.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    if let Some(answer) = refused_option(option, a) {
        return status(answer);
    }
    // SAFETY: `call` is the C library's `prctl`, which has the type `Call`. Its arguments are the caller's.
    again(&[a, b, c, d], || unsafe { transmute::<*mut _, Call>(call)(option, a, b, c, d) }.into()) as c_int
}

/// Notes what a prctl does to the traps of system calls. Returns its result if it must not reach the kernel. A program
/// cannot dispatch calls itself while Hanare does. It cannot forbid the time stamp counter, by which Hanare's handlers
/// read the clock.
pub(crate) fn refused_option(option: c_int, argument: usize) -> Option<Result<(), c_int>> {
    const SET_DISPATCH: c_int = 59;
    if option == libc::PR_SET_SECCOMP {
        signals::sets_filter();
    }
    let forbids_clock = option == libc::PR_SET_TSC && argument == libc::PR_TSC_SIGSEGV as usize;
    let is_refused = forbids_clock || option == SET_DISPATCH && far::call_traps().dispatch;
    is_refused.then_some(Err(libc::EINVAL))
}

/// # Safety
/// The caller keeps the contract of fcntl(2).
unsafe fn control(real: &real::Real, fd: c_int, command: c_int, argument: usize) -> c_int {
    type Call = unsafe extern "C-unwind" fn(c_int, c_int, ...) -> c_int;
    let Some(call) = real.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // F_SETFD fails on Hanare's own descriptors, which must stay close-on-exec.
    if command == libc::F_SETFD && is_own(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    // SAFETY: `call` is the C library's `fcntl` or `fcntl64`, which has the type `Call`. Its arguments are the
    // caller's.
    again(&[argument], || unsafe { transmute::<*mut _, Call>(call)(fd, command, argument) }.into()) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller keeps the contract of fcntl(2).
    unsafe { control(&real::fcntl, fd, command, argument) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller keeps the contract of fcntl(2).
    unsafe { control(&real::fcntl64, fd, command, argument) }
}

/// syscall(2). Programs use it above all for `futex`, for which the C library has no function. System calls that need
/// special treatment on far memory go to this library's functions of the same names ([`numbers`]).
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
    // SAFETY: the arguments are valid for this system call, as the caller promises.
    unsafe { by_number(number, [a, b, c, d, e, f]) }
}

/// Serves a system call that the program made by number. Returns its result, or -1 with `errno`.
///
/// # Safety
/// `args` are valid arguments of the system call `number`.
pub(crate) unsafe fn by_number(number: c_long, args: [usize; 6]) -> c_long {
    if let Some(answer) = answer_by_number(number, [args[0], args[1], args[2]]) {
        return status(answer.map_err(|errno| errno.0)).into();
    }
    // SAFETY: the arguments are valid for this system call, as the caller promises.
    unsafe { numbers::by_name(number, args).unwrap_or_else(|| repeated(number, args)) }
}

/// Makes a system call, and repeats it while it fails because pages of its arguments are absent.
///
/// # Safety
/// `args` are valid arguments of the system call `number`.
pub(crate) unsafe fn repeated(number: c_long, args: [usize; 6]) -> c_long {
    type Call = unsafe extern "C-unwind" fn(c_long, ...) -> c_long;
    // A filter, perhaps an inherited one, could trap the call again.
    #[cfg(target_arch = "x86_64")]
    if hanare_sys::calls::are_served() {
        // SAFETY: the arguments are the caller's.
        let pass = || match unsafe { hanare_sys::calls::pass(number, args) } {
            Ok(value) => value as c_long,
            Err(error) => {
                set_errno(error.0);
                -1
            }
        };
        return again(&args, pass);
    }
    let Some(call) = real::syscall.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    let [a, b, c, d, e, f] = args;
    // SAFETY: `call` is the C library's `syscall`, which has the type `Call`. Its arguments are the caller's.
    let make = || unsafe { transmute::<*mut _, Call>(call)(number, a, b, c, d, e, f) };
    if writes_under_lock(number, args) { until_present(&args, make) } else { again(&args, make) }
}

/// Makes a system call with near copies in the place of the arguments at these indexes.
///
/// # Safety
/// `args` are valid arguments of the system call `number`. Each copy is that of its argument.
pub(crate) unsafe fn with_copies<const N: usize>(
    number: c_long,
    mut args: [usize; 6],
    copies: [(usize, Near<'_>); N],
) -> c_long {
    for (index, copy) in &copies {
        args[*index] = copy.pointer() as usize;
    }
    // SAFETY: the arguments are the caller's, or near copies of them.
    let answer = unsafe { repeated(number, args) };
    for (_, mut copy) in copies {
        copy.settle(answer);
    }
    answer
}
