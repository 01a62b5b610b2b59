//! Calls that send several messages. The kernel gets far messages one by one, through near copies (`data`).

use std::ffi::{c_int, c_uint, c_void};
use std::mem::transmute;

use super::data::{far_message, length, sendmsg};
use super::near::{is_far, kernel_is_blind};
use super::real;
use super::splice::keeps_pages;
use crate::answer::{errno, set_errno, status};

/// Maximum number of messages in one call. The kernel ignores the others.
const MESSAGES_MAX: c_uint = 1024;

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
    let looked_at = if messages.is_null() || !kernel_is_blind() { 0 } else { count.min(MESSAGES_MAX) as usize };
    // SAFETY: under the contract of sendmmsg(2), `messages` is a table of `count` valid messages, or it is null.
    let is_far_message = |nth: usize| unsafe { far_message(&raw const (*messages.add(nth)).msg_hdr) }.is_some();
    if !is_far(messages.cast(), looked_at * size_of::<libc::mmsghdr>()) && !(0..looked_at).any(is_far_message) {
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
