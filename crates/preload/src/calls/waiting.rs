//! Calls that wait for descriptors, times, children or signals.

use std::ffi::c_int;
use std::ffi::c_ulong;

use libc::{
    clockid_t, epoll_event, fd_set, id_t, idtype_t, itimerspec, itimerval, nfds_t, pid_t, pollfd, pthread_attr_t,
    rusage, siginfo_t, sigset_t, size_t, timespec, timeval,
};

use super::near::{
    Mask, counted_down, filled, filled_bytes, filled_elements, given, given_bytes, kernel_is_blind, polled,
};
use super::{real, wrap};
use crate::answer::set_errno;

/// Returns the number of events for which the caller has room.
pub(crate) fn events(count: c_int) -> usize {
    usize::try_from(count).unwrap_or(0)
}

/// Returns the size in bytes of a descriptor set for `count` descriptors. The kernel reads and writes whole words of
/// the set.
pub(crate) fn set_bytes(count: c_int) -> usize {
    let bits = c_ulong::BITS as usize;
    usize::try_from(count).unwrap_or(0).div_ceil(bits) * size_of::<c_ulong>()
}

wrap! {
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int { fds = polled(fds, count as usize) }
    __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int { fds = polled(fds, count as usize) }
    __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
        fds = polled(fds, (count as usize).min(room / size_of::<pollfd>()))
    }
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        fds = polled(fds, count as usize), timeout = given(timeout), mask = Mask::new(mask)
    }
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int {
        read = filled_bytes(read, set_bytes(count)),
        write = filled_bytes(write, set_bytes(count)),
        except = filled_bytes(except, set_bytes(count)),
        timeout = counted_down(timeout)
    }
    __select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int {
        read = filled_bytes(read, set_bytes(count)),
        write = filled_bytes(write, set_bytes(count)),
        except = filled_bytes(except, set_bytes(count)),
        timeout = counted_down(timeout)
    }
    pselect(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int {
        read = filled_bytes(read, set_bytes(count)),
        write = filled_bytes(write, set_bytes(count)),
        except = filled_bytes(except, set_bytes(count)),
        timeout = given(timeout),
        mask = Mask::new(mask)
    }
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int { event = given(event) }
    epoll_wait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int {
        events = filled_elements(events, self::events(count))
    }
    epoll_pwait(
        epoll: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout: c_int,
        mask: *const sigset_t
    ) -> c_int {
        events = filled_elements(events, self::events(count)), mask = Mask::new(mask)
    }
    epoll_pwait2(
        epoll: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int {
        events = filled_elements(events, self::events(count)), timeout = given(timeout), mask = Mask::new(mask)
    }
    nanosleep(time: *const timespec, left: *mut timespec) -> c_int { time = given(time), left = counted_down(left) }
    __nanosleep(time: *const timespec, left: *mut timespec) -> c_int { time = given(time), left = counted_down(left) }
    clock_nanosleep(clock: clockid_t, flags: c_int, time: *const timespec, left: *mut timespec) -> c_int {
        time = given(time), left = counted_down(left)
    }
    clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int { time = filled(time) }
    clock_getres(clock: clockid_t, time: *mut timespec) -> c_int { time = filled(time) }

    wait(status: *mut c_int) -> pid_t { status = filled(status) }
    __wait(status: *mut c_int) -> pid_t { status = filled(status) }
    __waitpid(process: pid_t, status: *mut c_int, options: c_int) -> pid_t { status = filled(status) }
    waitpid(process: pid_t, status: *mut c_int, options: c_int) -> pid_t { status = filled(status) }
    wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t {
        status = filled(status), usage = filled(usage)
    }
    wait4(process: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t {
        status = filled(status), usage = filled(usage)
    }
    waitid(kind: idtype_t, id: id_t, info: *mut siginfo_t, options: c_int) -> c_int { info = filled(info) }
    sigsuspend(mask: *const sigset_t) -> c_int { mask = Mask::new(mask) }
    __sigsuspend(mask: *const sigset_t) -> c_int { mask = Mask::new(mask) }
    getitimer(which: c_int, value: *mut itimerval) -> c_int { value = filled(value) }
    setitimer(which: c_int, value: *const itimerval, old: *mut itimerval) -> c_int {
        value = given(value), old = filled(old)
    }
    timer_settime(timer: libc::timer_t, flags: c_int, value: *const itimerspec, old: *mut itimerspec) -> c_int {
        value = given(value), old = filled(old)
    }
    timer_gettime(timer: libc::timer_t, value: *mut itimerspec) -> c_int { value = filled(value) }
    timerfd_gettime(fd: c_int, value: *mut itimerspec) -> c_int { value = filled(value) }
    signalfd(fd: c_int, set: *const sigset_t, flags: c_int) -> c_int { set = given(set) }
    timerfd_settime(fd: c_int, flags: c_int, value: *const itimerspec, old: *mut itimerspec) -> c_int {
        value = given(value), old = filled(old)
    }
    getentropy(to: *mut u8, len: size_t) -> c_int { to = filled_bytes(to, len) }
}

// The program passes the length of the set to these two functions, in bytes.
wrap! {
    sched_getaffinity(process: pid_t, len: size_t, set: *mut libc::cpu_set_t) -> c_int { set = filled_bytes(set, len) }
    sched_setaffinity(process: pid_t, len: size_t, set: *const libc::cpu_set_t) -> c_int { set = given_bytes(set, len) }
}

// ---- timers with callbacks ------------------------------------------------------------------------------------------

/// The part of `struct sigevent` that SIGEV_THREAD uses.
#[repr(C)]
#[derive(Clone, Copy)]
struct Event {
    value: usize,
    signal: c_int,
    notify: c_int,
    function: Option<unsafe extern "C" fn(usize)>,
    attributes: *mut pthread_attr_t,
    rest: [u64; 4],
}

const _: () = assert!(size_of::<Event>() == size_of::<libc::sigevent>());

/// The program's function that a timer calls, and its argument.
struct Callback {
    function: unsafe extern "C" fn(usize),
    value: usize,
}

/// Runs the callback of a timer. The C library calls this function in a thread with every signal blocked, in which no
/// access to far memory can trap. So this function unblocks the trap signal first.
unsafe extern "C" fn call_back(callback: usize) {
    crate::masks::unblock_trap_of_thread();
    // SAFETY: `callback` comes from `Box::into_raw` in `timer_create`, and it is never freed.
    let callback = unsafe { &*(callback as *const Callback) };
    // SAFETY: the program passed this function and this value to timer_create(2).
    unsafe { (callback.function)(callback.value) }
}

/// timer_create(2). In signal modes (sigbus and sigsegv), the `Callback` of a timer is never freed, because the C
/// library may call it even after the timer was deleted.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn timer_create(clock: clockid_t, event: *mut Event, timer: *mut libc::timer_t) -> c_int {
    type Call = unsafe extern "C-unwind" fn(clockid_t, *mut Event, *mut libc::timer_t) -> c_int;
    let Some(call) = real::timer_create.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: `call` is the C library's `timer_create`, which has the type `Call`.
    let call = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Call>(call) };
    if !kernel_is_blind() || event.is_null() {
        // SAFETY: the arguments are the caller's, and `call` is timer_create(2).
        return unsafe { call(clock, event, timer) };
    }
    // SAFETY: under the contract of timer_create(2), `event` is valid, and `timer` is valid for the result.
    let (mut event, mut near) = unsafe { (event.read_unaligned(), filled(timer)) };
    if let (libc::SIGEV_THREAD, Some(function)) = (event.notify, event.function) {
        event.value = Box::into_raw(Box::new(Callback { function, value: event.value })) as usize;
        event.function = Some(call_back);
    }
    // SAFETY: `event` and `near` are near copies of the caller's valid arguments.
    let answer = unsafe { call(clock, &raw mut event, near.pointer().cast()) };
    near.settle(answer.into());
    answer
}
