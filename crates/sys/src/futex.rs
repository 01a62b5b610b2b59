//! Lets threads sleep on a word until another thread wakes them. The lock in `lock.rs` uses these functions.
//!
//! Unlike `std::sync`, nothing here allocates, poisons, or calls a function that the program could have replaced. Only
//! the functions with "shared" in their names work between processes.

use crate::raw::{self, Errno};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

pub use crate::lock::{Lock, LockCell, LockCellGuard, LockGuard};

/// The reasons why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Another thread woke this one, a signal arrived, or the wake was spurious. The caller must read the word again.
    Woken,
    /// The word did not hold the expected value.
    Changed,
    /// The timeout has passed.
    TimedOut,
}

/// Makes one futex call. `limit` is 0 or the address of a timespec.
fn call(word: &AtomicU32, operation: libc::c_int, value: u32, limit: usize) -> Result<usize, Errno> {
    let args = [std::ptr::from_ref(word) as usize, operation as usize, value as usize, limit, 0, 0];
    // SAFETY: `word` is a valid word, and `limit` is 0 or the address of the caller's timespec. The kernel only reads
    // both.
    unsafe { raw::syscall(libc::SYS_futex, args) }
}

/// Sleeps while `word` holds `expected`, at most for `timeout`. The function may return early, so the caller checks
/// `word` in a loop.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Wait {
    let limit = timeout.map(|time| libc::timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    });
    let limit = limit.as_ref().map_or(0, |limit| std::ptr::from_ref(limit) as usize);
    match call(word, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, expected, limit) {
        Err(Errno(libc::EAGAIN)) => Wait::Changed,
        Err(Errno(libc::ETIMEDOUT)) => Wait::TimedOut,
        _ => Wait::Woken,
    }
}

/// Wakes one thread that sleeps on `word`. Returns true if a thread was woken.
pub fn wake_one(word: &AtomicU32) -> bool {
    call(word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1, 0).is_ok_and(|woken| woken > 0)
}

/// Wakes all threads that sleep on `word`. Returns the number of woken threads.
pub fn wake_all(word: &AtomicU32) -> usize {
    call(word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX as u32, 0).unwrap_or(0)
}

/// Like [`wait`] without a timeout, on a word in memory that several processes share.
pub fn wait_shared(word: &AtomicU32, expected: u32) {
    // Ignored: the caller reads the word again in any case.
    let _ = call(word, libc::FUTEX_WAIT, expected, 0);
}

/// Wakes all threads of all processes that sleep on `word` by [`wait_shared`].
pub fn wake_shared(word: &AtomicU32) {
    // Ignored: the call fails only for an invalid address, and `word` is a valid reference.
    let _ = call(word, libc::FUTEX_WAKE, i32::MAX as u32, 0);
}
