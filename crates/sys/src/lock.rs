//! A lock that signal handlers may take. It does not allocate or poison, and calls no function that the program could
//! have replaced.
//!
//! `models/` compiles this file on its own `sync` and runs every interleaving. There a lock is made by `default`, since
//! the atomics of loom cannot be constants.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::futex::{wait, wake_one};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::sized;

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and a thread may be sleeping.
const CONTENDED: u32 = 2;
/// Attempts before sleeping: enough to outlast a short critical section on another CPU, few enough not to waste a
/// shared one.
const SPINS_MAX: usize = sized(100, 1);

/// A mutual exclusion lock of one word. It spins for a bounded time, then sleeps.
///
/// If a signal handler takes it, every other holder must block that signal (see [`crate::signal::SignalMask`]).
/// Otherwise the handler waits for the thread that it interrupted.
#[derive(Debug, Default)]
pub struct Lock {
    state: AtomicU32,
}

impl Lock {
    /// A free lock.
    #[cfg(not(loom))]
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
    #[cfg(not(loom))]
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
