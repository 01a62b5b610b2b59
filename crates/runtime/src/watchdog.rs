//! The watchdog: detects a run that makes no progress, so that it ends with a message instead of hanging.
//!
//! A thread registers when it begins to wait for a page. The engine counts the page transfers that complete. The keeper
//! (a background thread) checks the waits and the count. The keeper reports a hang in two cases: some thread waits and
//! nothing was completed for longer than the limit, or a single wait lasts ten times the limit. Then the run ends with
//! a message about the state of the engine. Only time in which the keeper itself runs counts. So a stopped process or a
//! suspended machine is no hang.

use std::sync::atomic::{AtomicU64, Ordering::*};

/// Maximum number of waits that are watched at the same time. Further waits are not watched. A hang is still found,
/// because during a hang the watched waits do not end either.
const WAITS: usize = 64;
/// Maximum number of milliseconds that one check adds to the lengths of waits, however long ago the last check was.
const STEP_MAX_MS: u64 = 200;
/// A single wait may last this many times the limit while the engine makes progress elsewhere.
const SINGLE_FACTOR: u64 = 10;

/// The present waits, and the number of completed actions of the pager.
pub(crate) struct Waits {
    /// The time when each wait began, in nanoseconds. 0 for an unused entry.
    since_ns: [AtomicU64; WAITS],
    /// Number of completed actions of the pager, such as fetched or evicted pages.
    completed: AtomicU64,
}

/// A registered wait, which ends when this value is dropped. `None` if the wait is not watched.
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
    /// Registers a wait of the calling thread that begins now.
    pub(crate) fn begin(&self, now_ns: u64) -> Waiting<'_> {
        let free = |since: &&AtomicU64| since.compare_exchange(0, now_ns.max(1), AcqRel, Relaxed).is_ok();
        Waiting(self.since_ns.iter().find(free))
    }

    /// Counts one completed action of the pager, such as a fetched page.
    #[inline]
    pub(crate) fn completed(&self) {
        self.completed.fetch_add(1, Relaxed);
    }
}

/// What the keeper (the thread that runs the watchdog) remembers between two checks.
pub(crate) struct Watchdog {
    /// Milliseconds without a completion after which a wait is a hang.
    limit_ms: u64,
    /// Time of the last check.
    looked_ns: u64,
    /// Value of [`Waits`]' counter `completed` at the last check.
    completed: u64,
    /// Milliseconds for which some thread has waited without any completion.
    idle_ms: u64,
    /// For each entry of [`Waits`]: the time when its wait began, and the milliseconds counted for that wait so far.
    seen: [(u64, u64); WAITS],
}

/// A detected hang, for which the run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hang {
    /// Number of threads that wait.
    pub(crate) waits: u32,
    /// Length of the longest wait, in seconds. If no action has completed for a longer time, the length of that time.
    pub(crate) seconds: u64,
}

impl Watchdog {
    /// Returns a watchdog that reports a hang after `limit_ms` milliseconds of waiting without a completion.
    pub(crate) fn new(limit_ms: u64, now_ns: u64) -> Self {
        Self { limit_ms, looked_ns: now_ns, completed: 0, idle_ms: 0, seen: [(0, 0); WAITS] }
    }

    /// Raises the limit, which grows with the load of the machine. Returns false if it is as high already: then a hang
    /// that was found is one. The load is asked for only then, not at every check.
    pub(crate) fn raise(&mut self, limit_ms: u64) -> bool {
        let is_higher = limit_ms > self.limit_ms;
        self.limit_ms = self.limit_ms.max(limit_ms);
        is_higher
    }

    /// Lets the waits begin anew. The keeper calls this instead of [`Watchdog::look`] while the run waits for a memory
    /// server.
    pub(crate) fn rest(&mut self, now_ns: u64) {
        (self.looked_ns, self.idle_ms, self.seen) = (now_ns, 0, [(0, 0); WAITS]);
    }

    /// Checks the waits once. Returns a hang if there is one.
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
    fn time_in_which_the_run_waits_for_a_server_does_not_count() {
        let (waits, mut dog) = (Waits::default(), Watchdog::new(1000, 0));
        let _wait = waits.begin(7);
        let mut now = 0;
        let mut step = || {
            now += 100 * MS;
            now
        };
        assert_eq!((0..9).find_map(|_| dog.look(&waits, step())), None);
        (0..100).for_each(|_| dog.rest(step()));
        assert_eq!((0..9).find_map(|_| dog.look(&waits, step())), None, "the wait begins anew");
        assert!((0..9).find_map(|_| dog.look(&waits, step())).is_some());
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
