//! Sleeping on a word. The lock that is built on it is in `lock.rs`.
//!
//! Unlike `std::sync`, nothing here allocates, poisons, or calls a function that the program could have replaced. Words
//! are private to the process, unless a name contains "shared".

use crate::raw::Errno;
use rustix::thread::futex::{self as kernel, Flags, Timespec};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

pub use crate::lock::{Lock, LockCell, LockCellGuard, LockGuard};

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Another thread woke the word, a signal came, or the wake was spurious. Read the word again.
    Woken,
    /// The word did not hold the expected value.
    Changed,
    /// The time was over.
    TimedOut,
}

/// Sleeps while `word` holds `expected`, at most for `timeout`. May return early, so callers loop on the word.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Wait {
    let limit = timeout.map(|time| Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    });
    match kernel::wait(word, Flags::PRIVATE, expected, limit.as_ref()).map_err(Errno::from) {
        Err(Errno(libc::EAGAIN)) => Wait::Changed,
        Err(Errno(libc::ETIMEDOUT)) => Wait::TimedOut,
        _ => Wait::Woken,
    }
}

/// Wakes one thread that sleeps on `word`. Returns whether there was one.
pub fn wake_one(word: &AtomicU32) -> bool {
    kernel::wake(word, Flags::PRIVATE, 1).is_ok_and(|woken| woken > 0)
}

/// Wakes all threads that sleep on `word`. Returns how many.
pub fn wake_all(word: &AtomicU32) -> usize {
    kernel::wake(word, Flags::PRIVATE, i32::MAX as u32).unwrap_or(0)
}

/// Like [`wait`] without a limit, on a word in memory that processes share.
pub fn wait_shared(word: &AtomicU32, expected: u32) {
    // Ignored: the caller reads the word again in any case.
    let _ = kernel::wait(word, Flags::empty(), expected, None);
}

/// Wakes all threads of all processes that sleep on `word` by [`wait_shared`].
pub fn wake_shared(word: &AtomicU32) {
    // Ignored: it fails only for a word outside memory, and this one is borrowed.
    let _ = kernel::wake(word, Flags::empty(), i32::MAX as u32);
}
