//! The gate through which everything enters the engine that the program does or touches. A fork closes it: when nobody is
//! inside any more, only completions of what is under way still happen.
//!
//! Nobody enters twice, and nobody touches far memory inside, so whoever is inside comes out. Signals are blocked before.

mod barrier;

use barrier::{Barrier, Inside};

/// The barrier of this process.
static GATE: Barrier = Barrier::new();

/// Waits while the gate is closed, then goes in.
#[inline]
pub(crate) fn enter() -> Inside<'static> {
    GATE.enter()
}

/// Goes in unless the gate is closed.
pub(crate) fn try_enter() -> Option<Inside<'static>> {
    GATE.try_enter()
}

/// Closes the gate, one thread at a time, and waits until everybody is outside.
pub(crate) fn close() {
    GATE.close();
}

/// Lets everybody in again.
pub(crate) fn open() {
    GATE.open();
}

/// In a forked child, where nobody else is.
pub(crate) fn reset() {
    GATE.reset();
}

/// The same, and nothing is written where there is nothing to reset.
pub(crate) fn reset_if_closed() {
    if !GATE.is_at_rest() {
        reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

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
        assert_eq!((GATE.is_at_rest(), ENTERED.load(SeqCst)), (true, 60_000));
    }
}
