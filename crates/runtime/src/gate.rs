//! The gate: the fork barrier of this process. Each thread enters the gate before it uses the engine, for a call or a
//! fault, and leaves the gate afterwards. A fork closes the gate and waits until no thread is inside. From then on the
//! engine only receives completions of requests that were already sent.
//!
//! A thread blocks all signals before it enters. It must not enter twice, and must not access far memory inside. These
//! rules ensure that every thread inside leaves in bounded time, so a fork does not wait for ever.

mod barrier;

use barrier::{Barrier, Inside};

/// The barrier of this process.
static GATE: Barrier = Barrier::new();

/// Enters the gate. Waits while it is closed.
#[inline]
pub(crate) fn enter() -> Inside<'static> {
    GATE.enter()
}

/// Enters the gate without waiting. Returns `None` if it is closed.
pub(crate) fn try_enter() -> Option<Inside<'static>> {
    GATE.try_enter()
}

/// Closes the gate and waits until no thread is inside. Waits first if another thread has closed it.
pub(crate) fn close() {
    GATE.close();
}

/// Checks whether a fork has closed the gate and no thread is inside.
pub(crate) fn is_shut() -> bool {
    GATE.is_shut()
}

/// Opens the gate again.
pub(crate) fn open() {
    GATE.open();
}

/// Opens the gate in a forked child, where no other thread exists.
pub(crate) fn reset() {
    GATE.reset();
}

/// Opens the gate in a forked child if it is closed or counts threads inside. Otherwise writes nothing, because a write
/// would make the kernel copy a page.
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
