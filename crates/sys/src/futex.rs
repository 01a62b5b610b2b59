//! Sleeping on a word, and a lock that signal handlers may take.
//!
//! Unlike `std::sync`, nothing here allocates, poisons, or calls a function that the program could have replaced. Words
//! are private to the process, unless a name contains "shared".

use crate::raw::Errno;
use rustix::thread::futex::{self as kernel, Flags, Timespec};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

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

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and a thread may be sleeping.
const CONTENDED: u32 = 2;
/// Attempts before sleeping: enough to outlast a short critical section on another CPU, few enough not to waste a
/// shared one.
const SPINS_MAX: u32 = 100;

/// A mutual exclusion lock of one word. It spins for a bounded time, then sleeps.
///
/// If a signal handler takes it, every other holder must block that signal (see [`crate::signal::SignalMask`]).
/// Otherwise the handler waits for the thread that it interrupted.
#[derive(Debug)]
pub struct Lock {
    state: AtomicU32,
}

impl Lock {
    /// A free lock.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: AtomicU32::new(FREE) }
    }

    /// Takes the lock. Waits as long as necessary.
    #[inline]
    pub fn lock(&self) -> LockGuard<'_> {
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_contended();
        }
        LockGuard { lock: self, _not_send: PhantomData }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<LockGuard<'_>> {
        self.state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| LockGuard { lock: self, _not_send: PhantomData })
    }

    /// Frees the lock, whoever holds it. This is for a forked child, where the holder may not exist.
    pub fn reset(&self) {
        self.state.store(FREE, Ordering::Release);
    }

    #[cold]
    fn lock_contended(&self) {
        for _ in 0..SPINS_MAX {
            if self.state.load(Ordering::Relaxed) == FREE
                && self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            std::hint::spin_loop();
        }
        // A thread that slept takes the lock as contended: others may still sleep, and the release must wake one of
        // them.
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            wait(&self.state, CONTENDED, None);
        }
    }
}

impl Default for Lock {
    fn default() -> Self {
        Self::new()
    }
}

/// Holds a [`Lock`] until dropped.
#[derive(Debug)]
#[must_use = "the lock is free again as soon as the guard is dropped"]
pub struct LockGuard<'a> {
    lock: &'a Lock,
    _not_send: PhantomData<*const ()>,
}

impl Drop for LockGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.lock.state.swap(FREE, Ordering::Release) == CONTENDED {
            wake_one(&self.lock.state);
        }
    }
}

/// A value behind a [`Lock`].
#[derive(Debug, Default)]
pub struct LockCell<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through the guard, so by one thread at a time. Sharing the cell can move the value
// between threads, so it must be Send.
unsafe impl<T: Send> Sync for LockCell<T> {}

impl<T> LockCell<T> {
    /// A free lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// Takes the lock and gives access to the value.
    #[inline]
    pub fn lock(&self) -> LockCellGuard<'_, T> {
        LockCellGuard { value: &self.value, _lock: self.lock.lock() }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<LockCellGuard<'_, T>> {
        self.lock.try_lock().map(|lock| LockCellGuard { value: &self.value, _lock: lock })
    }

    /// The value, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// The value, whoever holds the lock.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// Frees the lock, whoever holds it. This is for a forked child, where the holder may not exist.
    ///
    /// # Safety
    /// No guard may be alive in this process, and an incomplete change by the lost holder must be acceptable.
    pub unsafe fn reset(&self) {
        self.lock.reset();
    }
}

/// Access to the value of a [`LockCell`] until dropped.
#[derive(Debug)]
#[must_use = "the lock is free again as soon as the guard is dropped"]
pub struct LockCellGuard<'a, T> {
    value: &'a UnsafeCell<T>,
    _lock: LockGuard<'a>,
}

impl<T> Deref for LockCellGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held, so no other thread reaches the value.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for LockCellGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, so no other thread reaches the value.
        unsafe { &mut *self.value.get() }
    }
}
