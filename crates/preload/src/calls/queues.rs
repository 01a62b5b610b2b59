//! POSIX and System V message queues.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use libc::{mode_t, mq_attr, mqd_t, size_t, ssize_t, timespec};

use super::near::{filled, filled_bytes, filled_elements, given, given_bytes, text};
use super::wrap;

wrap! {
    // The C prototype of `mq_open` is variadic, but variadic arguments are in the same registers as these fixed ones.
    mq_open(name: *const c_char, flags: c_int, mode: mode_t, attributes: *const mq_attr) -> mqd_t {
        name = text(name), attributes = created_with(attributes, flags)
    }
    mq_unlink(name: *const c_char) -> c_int { name = text(name) }
    mq_send(queue: mqd_t, message: *const c_char, len: size_t, priority: c_uint) -> c_int {
        message = given_bytes(message, len)
    }
    mq_timedsend(
        queue: mqd_t,
        message: *const c_char,
        len: size_t,
        priority: c_uint,
        timeout: *const timespec
    ) -> c_int {
        message = given_bytes(message, len), timeout = given(timeout)
    }
    mq_receive(queue: mqd_t, message: *mut c_char, len: size_t, priority: *mut c_uint) -> ssize_t {
        message = filled_elements(message, len), priority = filled(priority)
    }
    mq_timedreceive(
        queue: mqd_t,
        message: *mut c_char,
        len: size_t,
        priority: *mut c_uint,
        timeout: *const timespec
    ) -> ssize_t {
        message = filled_elements(message, len), priority = filled(priority), timeout = given(timeout)
    }
    mq_getattr(queue: mqd_t, to: *mut mq_attr) -> c_int { to = filled(to) }
    mq_setattr(queue: mqd_t, attributes: *const mq_attr, old: *mut mq_attr) -> c_int {
        attributes = given(attributes), old = filled(old)
    }
    msgsnd(queue: c_int, message: *const c_void, len: size_t, flags: c_int) -> c_int {
        message = given_bytes(message, with_type(len))
    }
    msgrcv(queue: c_int, message: *mut c_void, len: size_t, kind: c_long, flags: c_int) -> ssize_t {
        message = filled_bytes(message, with_type(len))
    }
}

/// Returns the size in bytes of a System V message of `len` bytes, including the type that precedes the text.
fn with_type(len: size_t) -> usize {
    len.saturating_add(size_of::<c_long>())
}

/// Makes a `Near` for the attributes of a new queue. Its pointer is null if the call creates no queue, because the call
/// then has no such argument.
///
/// # Safety
/// If the call creates a queue, `attributes` is null or valid.
unsafe fn created_with<'a>(attributes: *const mq_attr, flags: c_int) -> super::near::Near<'a> {
    // SAFETY: the caller promises that `attributes` is null or valid if the call creates a queue.
    unsafe { given(if flags & libc::O_CREAT != 0 { attributes } else { std::ptr::null() }) }
}
