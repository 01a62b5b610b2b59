//! Calls that send or receive several messages. The kernel gets far messages one by one, through near copies (`data`).

use std::ffi::{c_int, c_uint, c_void};
use std::mem::transmute;
use std::time::{Duration, Instant};

use super::data::{far_message, length, recvmsg, sendmsg};
use super::near::{is_far, kernel_is_blind};
use super::real;
use super::splice::keeps_pages;
use crate::answer::{errno, set_errno, status};

/// Maximum number of messages in one call. The kernel ignores the others.
const MESSAGES_MAX: c_uint = 1024;

/// Returns whether any part of the messages is far and the kernel cannot access it.
///
/// # Safety
/// `messages` is null or a table of `count` valid messages.
unsafe fn are_far(messages: *const libc::mmsghdr, count: usize) -> bool {
    // SAFETY: the caller promises a table of `count` valid messages.
    let is_far_message = |nth: usize| unsafe { far_message(&raw const (*messages.add(nth)).msg_hdr) }.is_some();
    !messages.is_null()
        && kernel_is_blind()
        && (is_far(messages.cast(), count * size_of::<libc::mmsghdr>()) || (0..count).any(is_far_message))
}

/// sendmmsg(2). Far messages are sent one by one. As in the kernel, a message that is sent in part ends the call, and an
/// error counts only at the first message.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    type Call = unsafe extern "C-unwind" fn(c_int, *mut libc::mmsghdr, c_uint, c_int) -> c_int;
    let Some(call) = real::sendmmsg.get() else { return status(Err(libc::ENOSYS)) };
    if keeps_pages(fd, flags) {
        return status(Err(libc::ENOBUFS));
    }
    let looked_at = count.min(MESSAGES_MAX) as usize;
    // SAFETY: under the contract of sendmmsg(2), `messages` is a table of `count` valid messages, or it is null.
    if !unsafe { are_far(messages, looked_at) } {
        // SAFETY: `call` is the C library's `sendmmsg`, which has the type `Call`. The arguments are the caller's.
        return unsafe { transmute::<*mut c_void, Call>(call)(fd, messages, count, flags) };
    }
    let before = errno();
    for sent in 0..looked_at {
        // SAFETY: `sent` is below the number of messages, which are valid. The kernel writes the same field.
        let (answer, total) = unsafe {
            let message = messages.add(sent);
            let header = &raw mut (*message).msg_hdr;
            let answer = sendmsg(fd, header, flags);
            if answer >= 0 {
                (*message).msg_len = answer as c_uint;
            }
            (answer, length(&header.read()))
        };
        match answer {
            ..0 if sent == 0 => return -1,
            ..0 => {
                set_errno(before);
                return sent as c_int;
            }
            part if part.unsigned_abs() < total => return sent as c_int + 1,
            _ => {}
        }
    }
    looked_at as c_int
}

/// The end of a wait, and the place where the remaining time is written.
struct Deadline {
    end: Instant,
    place: *mut libc::timespec,
}

impl Deadline {
    /// Returns the end of a wait of the time at `place`, `None` if that is null.
    ///
    /// # Errors
    /// `EINVAL` if it is no time.
    ///
    /// # Safety
    /// `place` is null or valid.
    unsafe fn at(place: *mut libc::timespec) -> Result<Option<Self>, c_int> {
        // SAFETY: the caller promises that `place` is null or valid.
        let Some(time) = (unsafe { place.as_ref() }) else { return Ok(None) };
        match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
            (Ok(seconds), Ok(nanoseconds @ ..1_000_000_000)) => {
                let wait = Duration::new(seconds.min(u64::from(u32::MAX)), nanoseconds);
                Ok(Some(Self { end: Instant::now() + wait, place }))
            }
            _ => Err(libc::EINVAL),
        }
    }

    /// Writes the remaining time, and returns whether none is left.
    fn is_over(&self) -> bool {
        let left = self.end.saturating_duration_since(Instant::now());
        let left_now = libc::timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // SAFETY: `at` got a valid place, to which the kernel would write.
        unsafe { self.place.write(left_now) };
        left.is_zero()
    }
}

/// recvmmsg(2). Far messages are received one by one. As in the kernel, the time is looked at after each message, and an
/// error counts only at the first message. Unlike in the kernel, a later error is not kept for the next call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut libc::timespec,
) -> c_int {
    type Call = unsafe extern "C-unwind" fn(c_int, *mut libc::mmsghdr, c_uint, c_int, *mut libc::timespec) -> c_int;
    let Some(call) = real::recvmmsg.get() else { return status(Err(libc::ENOSYS)) };
    let looked_at = count.min(MESSAGES_MAX) as usize;
    let far_time = kernel_is_blind() && is_far(timeout.cast(), size_of::<libc::timespec>());
    // SAFETY: under the contract of recvmmsg(2), `messages` is a table of `count` valid messages, or it is null.
    if !far_time && !unsafe { are_far(messages, looked_at) } {
        // SAFETY: `call` is the C library's `recvmmsg`, which has the type `Call`. The arguments are the caller's.
        return unsafe { transmute::<*mut c_void, Call>(call)(fd, messages, count, flags, timeout) };
    }
    // SAFETY: under the contract of recvmmsg(2), `timeout` is null or valid.
    let deadline = match unsafe { Deadline::at(timeout) } {
        Ok(deadline) => deadline,
        Err(error) => return status(Err(error)),
    };
    let (before, mut each) = (errno(), flags & !libc::MSG_WAITFORONE);
    for received in 0..looked_at {
        // SAFETY: `received` is below the number of messages, which are valid. The kernel writes the same fields.
        let (answer, told) = unsafe {
            let message = messages.add(received);
            let answer = recvmsg(fd, &raw mut (*message).msg_hdr, each);
            if answer >= 0 {
                (*message).msg_len = answer as c_uint;
            }
            (answer, (*message).msg_hdr.msg_flags)
        };
        if answer < 0 {
            if received > 0 {
                set_errno(before);
            }
            return if received > 0 { received as c_int } else { -1 };
        }
        if flags & libc::MSG_WAITFORONE != 0 {
            each |= libc::MSG_DONTWAIT;
        }
        if deadline.as_ref().is_some_and(Deadline::is_over) || told & libc::MSG_OOB != 0 {
            return received as c_int + 1;
        }
    }
    looked_at as c_int
}
