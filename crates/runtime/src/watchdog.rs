//! The watchdog: a run in which nothing goes on any more ends with a line instead of hanging.
//!
//! Threads that wait for long say so here; the engine counts what it completes. The keeper looks at both. When somebody
//! waits and nothing is completed for longer than a memory server may be silent, or when one wait lasts far longer than
//! that, the run ends and says where every part stands. Only time in which the keeper itself runs counts, so a stopped
//! process or a sleeping machine is no hang.

use std::sync::atomic::{AtomicU64, Ordering::*};

/// Waits that are watched at a time; more go unwatched, and these show the hang.
const WAITS: usize = 64;
/// Longest step of time that one look of the keeper accounts for, in milliseconds.
const STEP_MAX_MS: u64 = 200;
/// How many times the limit a single wait may last while other things go on.
const SINGLE_FACTOR: u64 = 10;

/// Who waits, and what was completed.
pub(crate) struct Waits {
    /// When each wait began, in nanoseconds; 0 for none.
    since_ns: [AtomicU64; WAITS],
    completed: AtomicU64,
}

/// A wait, until this is dropped.
pub(crate) struct Waiting<'a>(Option<&'a AtomicU64>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(since) = self.0 {
            since.store(0, Release);
        }
    }
}

impl Default for Waits {
    fn default() -> Self {
        Self { since_ns: [const { AtomicU64::new(0) }; WAITS], completed: AtomicU64::new(0) }
    }
}

impl Waits {
    /// The calling thread waits from now on.
    pub(crate) fn begin(&self, now_ns: u64) -> Waiting<'_> {
        let free = |since: &&AtomicU64| since.compare_exchange(0, now_ns.max(1), AcqRel, Relaxed).is_ok();
        Waiting(self.since_ns.iter().find(free))
    }

    /// Something was completed.
    #[inline]
    pub(crate) fn completed(&self) {
        self.completed.fetch_add(1, Relaxed);
    }
}

/// What the keeper remembers between two looks.
pub(crate) struct Watchdog {
    limit_ms: u64,
    looked_ns: u64,
    completed: u64,
    /// Time in which somebody waited and nothing was completed.
    idle_ms: u64,
    /// Each wait as seen last, and for how long.
    seen: [(u64, u64); WAITS],
}

/// Why a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hang {
    /// Waits under way.
    pub(crate) waits: u32,
    /// The longest of them, in seconds.
    pub(crate) seconds: u64,
}

impl Watchdog {
    /// A watchdog that lets nothing go on for at most `limit_ms`.
    pub(crate) fn new(limit_ms: u64, now_ns: u64) -> Self {
        Self { limit_ms, looked_ns: now_ns, completed: 0, idle_ms: 0, seen: [(0, 0); WAITS] }
    }

    /// One look; the hang if there is one.
    pub(crate) fn look(&mut self, waits: &Waits, now_ns: u64) -> Option<Hang> {
        let passed_ms = (now_ns.saturating_sub(self.looked_ns) / 1_000_000).min(STEP_MAX_MS);
        if passed_ms == 0 {
            return None;
        }
        self.looked_ns = now_ns;
        let mut hang = Hang { waits: 0, seconds: 0 };
        let mut longest_ms = 0;
        for (since, (seen, lasted_ms)) in waits.since_ns.iter().zip(&mut self.seen) {
            let since = since.load(Acquire);
            *lasted_ms = if since != 0 && since == *seen { *lasted_ms + passed_ms } else { 0 };
            *seen = since;
            hang.waits += u32::from(since != 0);
            longest_ms = longest_ms.max(*lasted_ms);
        }
        let completed = waits.completed.load(Relaxed);
        let idle = hang.waits > 0 && completed == self.completed;
        self.idle_ms = if idle { self.idle_ms + passed_ms } else { 0 };
        self.completed = completed;
        hang.seconds = longest_ms.max(self.idle_ms) / 1000;
        (self.idle_ms > self.limit_ms || longest_ms > SINGLE_FACTOR * self.limit_ms).then_some(hang)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_wait_in_which_nothing_is_completed_is_a_hang_and_no_other() {
        let (waits, mut dog) = (Waits::default(), Watchdog::new(1000, 0));
        let mut now = 0;
        let mut look = |dog: &mut Watchdog, count: u64| {
            (0..count).find_map(|_| {
                now += 100 * MS;
                dog.look(&waits, now)
            })
        };
        assert_eq!(look(&mut dog, 100), None, "nobody waits");
        let wait = waits.begin(7);
        assert_eq!(look(&mut dog, 9), None, "not for long");
        waits.completed();
        assert_eq!(look(&mut dog, 9), None, "something was completed");
        drop(wait);
        let wait = waits.begin(8);
        assert_eq!(look(&mut dog, 12).map(|hang| hang.waits), Some(1));
        waits.completed();
        drop(wait);
        assert_eq!(look(&mut dog, 100), None, "it ended");
    }

    #[test]
    fn a_single_wait_is_a_hang_in_the_end_whatever_else_goes_on() {
        let (waits, mut dog) = (Waits::default(), Watchdog::new(1000, 0));
        let _wait = waits.begin(7);
        let looks = (1..1000).take_while(|n| {
            waits.completed();
            dog.look(&waits, n * 100 * MS).is_none()
        });
        assert!((95..105).contains(&looks.count()));
    }

    #[test]
    fn time_in_which_the_process_was_stopped_does_not_count() {
        let (waits, mut dog) = (Waits::default(), Watchdog::new(1000, 0));
        let _wait = waits.begin(7);
        assert_eq!(dog.look(&waits, 100 * MS), None);
        assert_eq!(dog.look(&waits, 3_600_000 * MS), None, "an hour's sleep");
    }

    #[test]
    fn more_waits_than_are_watched_do_no_harm() {
        let waits = Waits::default();
        let many: Vec<Waiting<'_>> = (0..2 * WAITS as u64).map(|n| waits.begin(n)).collect();
        let mut dog = Watchdog::new(1000, 0);
        dog.look(&waits, 100 * MS);
        drop(many);
        assert!(waits.since_ns.iter().all(|since| since.load(Relaxed) == 0));
    }
}
