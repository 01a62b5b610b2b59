//! System calls that the program makes by number (`syscall`). A call that needs special treatment on far memory is
//! passed to this library's function of that name. All other calls go to the kernel.

use std::ffi::{c_int, c_long, c_uint};

use hanare::far;

use crate::answer::status;
use crate::calls::again::with_copies;
use crate::calls::near::{Argument, Mask, counted_down, filled, filled_bytes, filled_elements, given, polled};
use crate::calls::{
    again, data, limits, messages, near, own, pending, process, queues, sockets, splice, stack, waiting,
};
use crate::mapping::with_far;
use crate::{advice, locking, mapping, masks, signals};

/// Returns the result of a call that one of this library's functions serves, or `None` if the call must go to the
/// kernel.
///
/// # Safety
/// `args` are valid arguments of the system call `number`.
pub(crate) unsafe fn by_name(number: c_long, args: [usize; 6]) -> Option<c_long> {
    let [a, b, c, d, e, f] = args;
    let int = |value: usize| value as c_int;
    if !far::active() {
        return None;
    }
    // SAFETY: the caller passes valid arguments of the system call `number`.
    Some(unsafe {
        match number {
            // A mapping made by number is near. Only a fixed mapping over far memory is served here.
            libc::SYS_mmap if int(d) & libc::MAP_FIXED != 0 && with_far(a, b).is_some() => {
                // This must not call `mmap`: inside this library, that name is bound to another function (runtime's
                // `jemalloc.c`).
                mapping::map(a as *mut _, b, int(c), int(d), int(e), f as libc::off_t, 0) as c_long
            }
            libc::SYS_munmap => mapping::munmap(a as *mut _, b).into(),
            libc::SYS_mprotect => mapping::mprotect(a as *mut _, b, int(c)).into(),
            libc::SYS_pkey_mprotect => mapping::pkey_mprotect(a as *mut _, b, int(c), int(d)).into(),
            libc::SYS_mremap => mapping::mremap(a as *mut _, b, c, int(d), e as *mut _) as c_long,
            libc::SYS_madvise => advice::madvise(a as *mut _, b, int(c)).into(),
            libc::SYS_process_madvise => advice::process_madvise(int(a), b as *const _, c, int(d), e as u32) as c_long,
            advice::SYS_MSEAL => advice::mseal(a as *mut _, b, c as u64).into(),
            // The kernel rearranges only pages of shared mappings, and refuses other mappings with EINVAL. Far memory
            // is private.
            libc::SYS_remap_file_pages if with_far(a, b).is_some() => status(Err(libc::EINVAL)).into(),
            libc::SYS_mbind => advice::mbind(args).into(),
            libc::SYS_mlock => locking::mlock(a as *const _, b).into(),
            libc::SYS_mlock2 => locking::mlock2(a as *const _, b, c as u32).into(),
            libc::SYS_munlock => locking::munlock(a as *const _, b).into(),
            libc::SYS_mlockall => locking::mlockall(int(a)).into(),
            libc::SYS_munlockall => locking::munlockall().into(),
            libc::SYS_vmsplice => splice::vmsplice(int(a), b as *const _, c, d as u32) as c_long,
            libc::SYS_setsockopt => splice::setsockopt(int(a), int(b), int(c), d as *const _, e as u32).into(),
            libc::SYS_sendto => data::sendto(int(a), b as *mut _, c, int(d), e as *const _, f as u32) as c_long,
            libc::SYS_sendmsg => data::sendmsg(int(a), b as *const _, int(c)) as c_long,
            libc::SYS_sendmmsg => messages::sendmmsg(int(a), b as *mut _, c as u32, int(d)).into(),
            libc::SYS_getrlimit => limits::getrlimit(int(a), b as *mut _).into(),
            libc::SYS_setrlimit => limits::setrlimit(int(a), b as *const _).into(),
            libc::SYS_prlimit64 => limits::prlimit(int(a), int(b), c as *const _, d as *mut _).into(),
            libc::SYS_process_vm_readv => {
                own::process_vm_readv(int(a), b as *const _, c as u64, d as *const _, e as u64, f as u64) as c_long
            }
            libc::SYS_process_vm_writev => {
                own::process_vm_writev(int(a), b as *const _, c as u64, d as *const _, e as u64, f as u64) as c_long
            }
            libc::SYS_seccomp => {
                if matches!(a as c_uint, libc::SECCOMP_SET_MODE_STRICT | libc::SECCOMP_SET_MODE_FILTER) {
                    signals::sets_filter();
                }
                return None;
            }
            libc::SYS_io_uring_setup | libc::SYS_io_setup if !far::may_do_async_io() => {
                status(Err(libc::ENOSYS)).into()
            }
            libc::SYS_io_uring_setup => {
                far::has_rings();
                return None;
            }
            libc::SYS_prctl => status(again::refused_option(int(a), b)?).into(),
            // `far::leaves` records the exit code. The kernel then ends this thread.
            libc::SYS_exit => {
                far::leaves(int(a));
                return None;
            }
            _ if near::kernel_is_blind() => return by_copies(number, args),
            _ => return None,
        }
    })
}

/// Serves system calls that act before they write their result, through functions that use near copies. If the result
/// went to an absent far page, the kernel would act and then return EFAULT. A child, a signal, a message or a
/// connection would then be lost.
///
/// # Safety
/// `args` are valid arguments of the system call `number`.
unsafe fn by_copies(number: c_long, args: [usize; 6]) -> Option<c_long> {
    let [a, b, c, d, e, f] = args;
    let int = |value: usize| value as c_int;
    // SAFETY: the caller passes valid arguments of the system call `number`.
    Some(unsafe {
        match number {
            libc::SYS_read => data::read(int(a), b as *mut _, c) as c_long,
            libc::SYS_pread64 => data::pread64(int(a), b as *mut _, c, d as i64) as c_long,
            libc::SYS_readv => data::readv(int(a), b as *const _, int(c)) as c_long,
            libc::SYS_preadv => data::preadv64(int(a), b as *const _, int(c), d as i64) as c_long,
            libc::SYS_getrandom => data::getrandom(a as *mut _, b, c as u32) as c_long,
            libc::SYS_write => data::write(int(a), b as *mut _, c) as c_long,
            libc::SYS_pwrite64 => data::pwrite64(int(a), b as *mut _, c, d as i64) as c_long,
            libc::SYS_writev => data::writev(int(a), b as *const _, int(c)) as c_long,
            libc::SYS_pwritev => data::pwritev64(int(a), b as *const _, int(c), d as i64) as c_long,
            // The fifth word is the upper half of an offset of 128 bits, which the kernel ignores.
            libc::SYS_preadv2 => data::preadv64v2(int(a), b as *const _, int(c), d as i64, int(f)) as c_long,
            libc::SYS_pwritev2 => data::pwritev64v2(int(a), b as *const _, int(c), d as i64, int(f)) as c_long,
            libc::SYS_recvfrom => data::recvfrom(int(a), b as *mut _, c, int(d), e as *mut _, f as *mut _) as c_long,
            libc::SYS_recvmsg => data::recvmsg(int(a), b as *mut _, int(c)) as c_long,
            libc::SYS_recvmmsg => messages::recvmmsg(int(a), b as *mut _, c as u32, int(d), e as *mut _).into(),
            libc::SYS_accept => sockets::accept(int(a), b as *mut _, c as *mut _).into(),
            libc::SYS_accept4 => sockets::accept4(int(a), b as *mut _, c as *mut _, int(d)).into(),
            libc::SYS_wait4 => waiting::wait4(int(a), b as *mut _, int(c), d as *mut _).into(),
            libc::SYS_waitid => {
                let (info, usage) = (filled(c as *mut libc::siginfo_t), filled(e as *mut libc::rusage));
                with_copies(number, args, [(2, info), (4, usage)])
            }
            libc::SYS_rt_sigtimedwait if d == size_of::<u64>() && a != 0 => {
                let mut set: libc::sigset_t = std::mem::zeroed();
                // The C library's set is longer than the kernel's set and begins with it.
                (&raw mut set).cast::<u64>().write((a as *const u64).read_unaligned());
                pending::sigtimedwait(&raw const set, b as *mut _, c as *const _).into()
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => waiting::epoll_wait(int(a), b as *mut _, int(c), int(d)).into(),
            libc::SYS_mq_timedreceive => {
                queues::mq_timedreceive(int(a), b as *mut _, c, d as *mut _, e as *const _) as c_long
            }
            libc::SYS_rt_sigprocmask => status(masks::change_mask_by_number(int(a), b, c, d).map(drop)).into(),
            libc::SYS_rt_sigaction => status(signals::set_action_by_number(int(a), b, c, d)).into(),
            libc::SYS_rt_sigpending if b == size_of::<u64>() => {
                pending::shown(a as *mut u64, |set| again::repeated(number, [set as usize, b, 0, 0, 0, 0]) as c_int)
                    .into()
            }
            libc::SYS_ioctl if b as u64 == libc::SIOCGIFCONF => again::ioctl(int(a), b as u64, c).into(),
            libc::SYS_sigaltstack => stack::sigaltstack(a as *const _, b as *mut _).into(),
            libc::SYS_execve => process::execve(a as *const _, b as *const _, c as *const _).into(),
            libc::SYS_execveat => process::execveat(int(a), b as *const _, c as *const _, d as *const _, int(e)).into(),
            libc::SYS_getsockopt => sockets::getsockopt(int(a), int(b), int(c), d as *mut _, e as *mut _).into(),
            _ => return waiting_by_copies(number, args),
        }
    })
}

/// Serves system calls that wait: those with a signal mask, which must not block the signals that Hanare keeps, and
/// those that write their results after the wait. Also serves those that tell an old value after they have set a new one.
///
/// # Safety
/// `args` are valid arguments of the system call `number`.
unsafe fn waiting_by_copies(number: c_long, args: [usize; 6]) -> Option<c_long> {
    let [a, b, c, d, e, f] = args;
    let int = |value: usize| value as c_int;
    let is_mask = |size: usize| size == size_of::<u64>();
    // Calls `call` with the address of a copy of the mask. Null stays null.
    let copied = |mask: usize, call: &dyn Fn(usize) -> c_long| match masks::set_at(mask) {
        Ok(set) => call(set.as_ref().map_or(0, |set| std::ptr::from_ref(set) as usize)),
        Err(error) => status(Err(error)).into(),
    };
    // As `copied`, without the signals that Hanare keeps.
    let masked = |mask: usize, call: &dyn Fn(usize) -> c_long| {
        copied(mask, &|set| {
            // SAFETY: `set` is null or the address of the copy.
            let mask = unsafe { Mask::new(set as *const _) };
            match mask.is_interrupted() {
                true => status(Err(libc::EINTR)).into(),
                false => call(mask.given() as usize),
            }
        })
    };
    // SAFETY: the caller passes valid arguments of the system call `number`.
    Some(unsafe {
        match number {
            libc::SYS_rt_sigsuspend if is_mask(b) && a != 0 => {
                copied(a, &|set| waiting::sigsuspend(set as *const _).into())
            }
            // Unlike the C library's functions, the system calls ppoll and pselect6 write the remaining time.
            libc::SYS_ppoll if d == 0 || is_mask(e) => masked(d, &|set| {
                let (found, time) = (polled(a as *mut _, b), counted_down(c as *mut libc::timespec));
                with_copies(number, [a, b, c, set, e, f], [(0, found), (2, time)])
            }),
            libc::SYS_epoll_pwait if e == 0 || is_mask(f) => {
                copied(e, &|set| waiting::epoll_pwait(int(a), b as *mut _, int(c), int(d), set as *const _).into())
            }
            libc::SYS_epoll_pwait2 if e == 0 || is_mask(f) => masked(e, &|set| {
                let found = filled_elements(b as *mut libc::epoll_event, waiting::events(int(c)));
                with_copies(number, [a, b, c, d, set, f], [(1, found), (3, given(d as *const libc::timespec))])
            }),
            libc::SYS_pselect6 => {
                let [mask, size] = match if f == 0 { Ok([0; 2]) } else { signals::fetch::<[usize; 2]>(f) } {
                    Ok(both) if both[0] == 0 || is_mask(both[1]) => both,
                    Ok(_) => return Some(status(Err(libc::EINVAL)).into()),
                    Err(error) => return Some(status(Err(error)).into()),
                };
                masked(mask, &|set| {
                    let sets = |at: usize| filled_bytes(at as *mut u8, waiting::set_bytes(int(a)));
                    let (copies, time) = ([b, c, d].map(sets), counted_down(e as *mut libc::timespec));
                    let ([read, write, except], both) = (copies, [set, size]);
                    let args = [a, b, c, d, e, both.as_ptr() as usize];
                    with_copies(number, args, [(1, read), (2, write), (3, except), (4, time)])
                })
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => waiting::poll(a as *mut _, b as u64, int(c)).into(),
            libc::SYS_nanosleep => waiting::nanosleep(a as *const _, b as *mut _).into(),
            libc::SYS_clock_nanosleep => {
                // The C library's function returns the error number.
                let error = waiting::clock_nanosleep(int(a), int(b), c as *const _, d as *mut _);
                status(if error == 0 { Ok(()) } else { Err(error) }).into()
            }
            libc::SYS_setitimer => waiting::setitimer(int(a), b as *const _, c as *mut _).into(),
            libc::SYS_timerfd_settime => waiting::timerfd_settime(int(a), int(b), c as *const _, d as *mut _).into(),
            // The C library has other numbers of timers and other types of queues than the kernel.
            libc::SYS_timer_settime => with_copies(number, args, [(3, filled(d as *mut libc::itimerspec))]),
            libc::SYS_mq_getsetattr => with_copies(number, args, [(2, filled(c as *mut libc::mq_attr))]),
            libc::SYS_msgrcv => queues::msgrcv(int(a), b as *mut _, c, d as c_long, int(e)) as c_long,
            _ => return None,
        }
    })
}
