//! The gate through which everything enters the engine that the program does or touches. A fork closes it: when nobody is
//! inside any more, only completions of what is under way still happen.
//!
//! Nobody enters twice, and nobody touches far memory inside, so whoever is inside comes out. Signals are blocked before.

use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Duration;

use hanare_sys::futex;

const CLOSED: u32 = 1 << 31;

/// How many are inside, and whether others have to wait.
static GATE: AtomicU32 = AtomicU32::new(0);

/// A thread is inside until this is dropped.
#[must_use = "the thread is outside again as soon as this is dropped"]
pub(crate) struct Inside(());

/// Waits while the gate is closed, then goes in.
#[inline]
pub(crate) fn enter() -> Inside {
    let before = GATE.fetch_add(1, Acquire);
    if before & CLOSED != 0 {
        enter_later();
    }
    Inside(())
}

/// Goes in unless the gate is closed.
pub(crate) fn try_enter() -> Option<Inside> {
    let before = GATE.fetch_add(1, Acquire);
    // Dropping it leaves again.
    let inside = Inside(());
    (before & CLOSED == 0).then_some(inside)
}

#[cold]
fn enter_later() {
    loop {
        leave();
        let now = GATE.load(Acquire);
        if now & CLOSED != 0 {
            futex::wait(&GATE, now, Some(Duration::from_millis(100)));
        }
        if GATE.fetch_add(1, Acquire) & CLOSED == 0 {
            return;
        }
    }
}

fn leave() {
    if GATE.fetch_sub(1, Release) == CLOSED | 1 {
        futex::wake_all(&GATE);
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        leave();
    }
}

/// Closes the gate, one thread at a time, and waits until everybody is outside.
pub(crate) fn close() {
    while GATE.fetch_or(CLOSED, AcqRel) & CLOSED != 0 {
        futex::wait(&GATE, GATE.load(Acquire) | CLOSED, Some(Duration::from_millis(10)));
    }
    loop {
        let now = GATE.load(Acquire);
        if now == CLOSED {
            return;
        }
        futex::wait(&GATE, now, Some(Duration::from_millis(10)));
    }
}

/// Lets everybody in again.
pub(crate) fn open() {
    GATE.fetch_and(!CLOSED, Release);
    futex::wake_all(&GATE);
}

/// In a forked child, where nobody else is.
pub(crate) fn reset() {
    GATE.store(0, Release);
}

/// The same, and nothing is written where there is nothing to reset.
pub(crate) fn reset_if_closed() {
    if GATE.load(Acquire) != 0 {
        reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn nobody_is_inside_while_it_is_closed() {
        static INSIDE: AtomicU32 = AtomicU32::new(0);
        static ENTERED: AtomicU64 = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let inside = enter();
                        INSIDE.fetch_add(1, SeqCst);
                        ENTERED.fetch_add(1, SeqCst);
                        INSIDE.fetch_sub(1, SeqCst);
                        drop(inside);
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        close();
                        let before = ENTERED.load(SeqCst);
                        std::thread::yield_now();
                        assert_eq!((INSIDE.load(SeqCst), ENTERED.load(SeqCst)), (0, before));
                        open();
                    }
                });
            }
        });
        assert_eq!((GATE.load(SeqCst), ENTERED.load(SeqCst)), (0, 60_000));
    }
}
