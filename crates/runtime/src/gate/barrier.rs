//! The fork barrier. The loom models in `models/` run every interleaving of this file.

use std::time::Duration;

use crate::sync::atomic::{AtomicU32, Ordering::*};
use crate::sync::futex;

/// Bit of the barrier's word that is set while the barrier is closed.
const CLOSED: u32 = 1 << 31;

/// A barrier that threads enter and leave, and that a fork closes.
#[derive(Default)]
pub(crate) struct Barrier {
    /// Number of threads inside, plus the bit [`CLOSED`] while the barrier is closed.
    word: AtomicU32,
}

/// Proof that the calling thread is inside the barrier. The thread leaves when the value is dropped.
#[must_use = "the thread is outside again as soon as this is dropped"]
pub(crate) struct Inside<'a>(&'a Barrier);

impl Barrier {
    /// Returns an open barrier with no thread inside.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Barrier {
        Barrier { word: AtomicU32::new(0) }
    }

    /// Enters the barrier. Waits while it is closed.
    #[inline]
    pub(crate) fn enter(&self) -> Inside<'_> {
        let before = self.word.fetch_add(1, Acquire);
        if before & CLOSED != 0 {
            self.enter_later();
        }
        Inside(self)
    }

    /// Enters the barrier without waiting. Returns `None` if it is closed.
    pub(crate) fn try_enter(&self) -> Option<Inside<'_>> {
        let before = self.word.fetch_add(1, Acquire);
        // If the barrier is closed, `inside` is dropped, and the thread leaves the barrier again.
        let inside = Inside(self);
        (before & CLOSED == 0).then_some(inside)
    }

    #[cold]
    fn enter_later(&self) {
        loop {
            self.leave();
            // The thread waits outside and retries only when the barrier is open. A thread that leaves wakes all
            // waiting threads. If waiting threads entered and left while the barrier is closed, they would wake each
            // other without end.
            loop {
                let now = self.word.load(Acquire);
                if now & CLOSED == 0 {
                    break;
                }
                futex::wait(&self.word, now, Some(Duration::from_millis(100)));
            }
            if self.word.fetch_add(1, Acquire) & CLOSED == 0 {
                return;
            }
        }
    }

    fn leave(&self) {
        if self.word.fetch_sub(1, Release) == CLOSED | 1 {
            futex::wake_all(&self.word);
        }
    }

    /// Closes the barrier and waits until no thread is inside. Waits first if another thread has closed it.
    pub(crate) fn close(&self) {
        while self.word.fetch_or(CLOSED, AcqRel) & CLOSED != 0 {
            futex::wait(&self.word, self.word.load(Acquire) | CLOSED, Some(Duration::from_millis(10)));
        }
        loop {
            let now = self.word.load(Acquire);
            if now == CLOSED {
                return;
            }
            futex::wait(&self.word, now, Some(Duration::from_millis(10)));
        }
    }

    /// Checks whether the barrier is closed with no thread inside.
    pub(crate) fn is_shut(&self) -> bool {
        self.word.load(Acquire) == CLOSED
    }

    /// Opens the barrier again and wakes the threads that wait to enter.
    pub(crate) fn open(&self) {
        self.word.fetch_and(!CLOSED, Release);
        futex::wake_all(&self.word);
    }

    /// Opens the barrier in a forked child, where no other thread exists.
    pub(crate) fn reset(&self) {
        self.word.store(0, Release);
    }

    /// Returns whether the barrier is open and no thread is inside.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.word.load(Acquire) == 0
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.leave();
    }
}
