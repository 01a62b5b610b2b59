//! Waiting: for descriptors, times, children and signals.

use std::ffi::c_int;
use std::ffi::c_ulong;

use libc::{
    clockid_t, epoll_event, fd_set, id_t, idtype_t, itimerspec, itimerval, nfds_t, pid_t, pollfd, rusage, siginfo_t,
    sigset_t, size_t, timespec, timeval,
};

use super::near::{filled, filled_bytes, given, given_bytes};
use super::wrap;

fn poll_bytes(count: nfds_t) -> usize {
    (count as usize).saturating_mul(size_of::<pollfd>())
}

fn event_bytes(count: c_int) -> usize {
    usize::try_from(count).unwrap_or(0).saturating_mul(size_of::<epoll_event>())
}

/// The kernel reads and writes whole words of the bits that were asked about.
fn set_bytes(count: c_int) -> usize {
    let bits = c_ulong::BITS as usize;
    usize::try_from(count).unwrap_or(0).div_ceil(bits) * size_of::<c_ulong>()
}

wrap! {
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int { fds = filled_bytes(fds, poll_bytes(count)) }
    __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
        fds = filled_bytes(fds, poll_bytes(count).min(room))
    }
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        fds = filled_bytes(fds, poll_bytes(count)), timeout = given(timeout), mask = given(mask)
    }
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int {
        read = filled_bytes(read, set_bytes(count)),
        write = filled_bytes(write, set_bytes(count)),
        except = filled_bytes(except, set_bytes(count)),
        timeout = filled(timeout)
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
        mask = given(mask)
    }
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int { event = given(event) }
    epoll_wait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int {
        events = filled_bytes(events, event_bytes(count))
    }
    epoll_pwait(
        epoll: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout: c_int,
        mask: *const sigset_t
    ) -> c_int {
        events = filled_bytes(events, event_bytes(count)), mask = given(mask)
    }
    nanosleep(time: *const timespec, left: *mut timespec) -> c_int { time = given(time), left = filled(left) }
    clock_nanosleep(clock: clockid_t, flags: c_int, time: *const timespec, left: *mut timespec) -> c_int {
        time = given(time), left = filled(left)
    }
    clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int { time = filled(time) }
    clock_getres(clock: clockid_t, time: *mut timespec) -> c_int { time = filled(time) }

    wait(status: *mut c_int) -> pid_t { status = filled(status) }
    waitpid(process: pid_t, status: *mut c_int, options: c_int) -> pid_t { status = filled(status) }
    wait3(status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t {
        status = filled(status), usage = filled(usage)
    }
    wait4(process: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t {
        status = filled(status), usage = filled(usage)
    }
    waitid(kind: idtype_t, id: id_t, info: *mut siginfo_t, options: c_int) -> c_int { info = filled(info) }
    sigwait(set: *const sigset_t, signal: *mut c_int) -> c_int { set = given(set), signal = filled(signal) }
    sigwaitinfo(set: *const sigset_t, info: *mut siginfo_t) -> c_int { set = given(set), info = filled(info) }
    sigtimedwait(set: *const sigset_t, info: *mut siginfo_t, timeout: *const timespec) -> c_int {
        set = given(set), info = filled(info), timeout = given(timeout)
    }
    sigsuspend(mask: *const sigset_t) -> c_int { mask = given(mask) }
    sigpending(set: *mut sigset_t) -> c_int { set = filled(set) }
    getitimer(which: c_int, value: *mut itimerval) -> c_int { value = filled(value) }
    setitimer(which: c_int, value: *const itimerval, old: *mut itimerval) -> c_int {
        value = given(value), old = filled(old)
    }
    timer_settime(timer: libc::timer_t, flags: c_int, value: *const itimerspec, old: *mut itimerspec) -> c_int {
        value = given(value), old = filled(old)
    }
    timerfd_settime(fd: c_int, flags: c_int, value: *const itimerspec, old: *mut itimerspec) -> c_int {
        value = given(value), old = filled(old)
    }
    getentropy(to: *mut u8, len: size_t) -> c_int { to = filled_bytes(to, len) }
}

// `given_bytes` serves sets whose length the caller gives.
wrap! {
    sched_getaffinity(process: pid_t, len: size_t, set: *mut libc::cpu_set_t) -> c_int { set = filled_bytes(set, len) }
    sched_setaffinity(process: pid_t, len: size_t, set: *const libc::cpu_set_t) -> c_int { set = given_bytes(set, len) }
}
