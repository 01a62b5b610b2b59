//! A lock that signal handlers may acquire. It does not allocate or poison, and calls no function that the program
//! could have replaced.
//!
//! The crate in `models/` compiles this file with the atomics of loom and tries every interleaving. Loom's atomics have
//! no constant constructor, so the models create a lock by `default` and not by `new`.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::futex::{wait, wake_one};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::sized;

const FREE: u32 = 0;
const HELD: u32 = 1;
/// The lock is held, and a thread may be sleeping until its release.
const CONTENDED: u32 = 2;
/// The number of attempts before a thread sleeps. Together, they last longer than a short critical section on another
/// CPU. If the holder needs this thread's CPU, the attempts waste little time.
const SPINS_MAX: usize = sized(100, 1);

/// A mutual exclusion lock of one word. It spins for a bounded time, then sleeps.
///
/// If a signal handler acquires this lock, every other holder must block that signal (see
/// [`crate::signal::SignalMask`]). Otherwise the handler could wait for the very thread that it interrupted.
#[derive(Debug, Default)]
pub struct Lock {
    state: AtomicU32,
}

impl Lock {
    /// Creates a free lock.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self { state: AtomicU32::new(FREE) }
    }

    /// Acquires the lock, and waits as long as necessary.
    #[inline]
    pub fn lock(&self) -> LockGuard<'_> {
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_contended();
        }
        LockGuard { lock: self, _not_send: PhantomData }
    }

    /// Acquires the lock if it is free. Returns `None` otherwise.
    #[inline]
    pub fn try_lock(&self) -> Option<LockGuard<'_>> {
        self.state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| LockGuard { lock: self, _not_send: PhantomData })
    }

    /// Frees the lock, whichever thread holds it. A forked child uses this, because the holder may be a thread of the
    /// parent.
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
        // A thread that slept sets the state to `CONTENDED` when it acquires the lock. Other threads may still sleep,
        // and the release of a `CONTENDED` lock wakes one of them.
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

// SAFETY: only the guard gives access to the value, so only one thread at a time uses the value. Sharing the cell can
// move the value between threads, so `T` must be Send.
unsafe impl<T: Send> Sync for LockCell<T> {}

impl<T> LockCell<T> {
    /// Creates a free lock around `value`.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        Self { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// Acquires the lock and returns a guard that gives access to the value.
    #[inline]
    pub fn lock(&self) -> LockCellGuard<'_, T> {
        LockCellGuard { value: &self.value, _lock: self.lock.lock() }
    }

    /// Acquires the lock if it is free. Returns `None` otherwise.
    #[inline]
    pub fn try_lock(&self) -> Option<LockCellGuard<'_, T>> {
        self.lock.try_lock().map(|lock| LockCellGuard { value: &self.value, _lock: lock })
    }

    /// Returns the value without locking. The exclusive borrow shows that no guard exists.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Returns the value and drops the lock.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// Frees the lock, whichever thread holds it. A forked child uses this, because the holder may be a thread of the
    /// parent.
    ///
    /// # Safety
    /// No guard may be alive in this process. The last holder may have stopped in the middle of a change. So the caller
    /// must be able to use a half-changed value.
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
        // SAFETY: this guard holds the lock, so no other guard exists and no other thread accesses the value.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for LockCellGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock, so no other guard exists and no other thread accesses the value.
        unsafe { &mut *self.value.get() }
    }
}
