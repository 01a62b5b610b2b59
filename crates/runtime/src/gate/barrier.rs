//! The fork barrier itself. `models/` runs every interleaving of this file.

use std::time::Duration;

use crate::sync::atomic::{AtomicU32, Ordering::*};
use crate::sync::futex;

const CLOSED: u32 = 1 << 31;

/// A barrier that threads enter and leave, and that a fork closes.
#[derive(Default)]
pub(crate) struct Barrier {
    /// How many are inside, and whether others have to wait.
    word: AtomicU32,
}

/// A thread is inside until this is dropped.
#[must_use = "the thread is outside again as soon as this is dropped"]
pub(crate) struct Inside<'a>(&'a Barrier);

impl Barrier {
    /// An open barrier with nobody inside.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Barrier {
        Barrier { word: AtomicU32::new(0) }
    }

    /// Waits while the barrier is closed, then goes in.
    #[inline]
    pub(crate) fn enter(&self) -> Inside<'_> {
        let before = self.word.fetch_add(1, Acquire);
        if before & CLOSED != 0 {
            self.enter_later();
        }
        Inside(self)
    }

    /// Goes in unless the barrier is closed.
    pub(crate) fn try_enter(&self) -> Option<Inside<'_>> {
        let before = self.word.fetch_add(1, Acquire);
        // Dropping it leaves again.
        let inside = Inside(self);
        (before & CLOSED == 0).then_some(inside)
    }

    #[cold]
    fn enter_later(&self) {
        loop {
            self.leave();
            // Not inside meanwhile: whoever leaves wakes the others that wait here, and they would wake it in turn.
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

    /// Closes the barrier, one thread at a time, and waits until everybody is outside.
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

    /// Lets everybody in again.
    pub(crate) fn open(&self) {
        self.word.fetch_and(!CLOSED, Release);
        futex::wake_all(&self.word);
    }

    /// Opens the barrier in a forked child, where nobody is inside.
    pub(crate) fn reset(&self) {
        self.word.store(0, Release);
    }

    /// Whether nobody is inside and the barrier is open.
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
