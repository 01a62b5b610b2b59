//! Polling for requests before sleeping: how many threads may poll, and for how long each.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::time::{Duration, Instant};

/// Keeps the number of polling threads below the number of CPUs, so that polling never delays threads that have work.
pub(crate) struct Spinners {
    now: AtomicUsize,
    max: usize,
}

impl Spinners {
    pub(crate) fn new() -> Spinners {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Spinners { now: AtomicUsize::new(0), max: cpus - 1 }
    }

    /// Repeats `attempt` until it returns a value, for at most `time`. If the allowed number of threads polls already,
    /// immediately returns `None`.
    pub(crate) fn poll<T>(&self, time: Duration, attempt: impl FnMut() -> Option<T>) -> Option<T> {
        let more = |now: usize| (now < self.max).then_some(now + 1);
        self.now.fetch_update(AcqRel, Relaxed, more).ok()?;
        let result = repeat(time, attempt);
        self.now.fetch_sub(1, AcqRel);
        result
    }
}

fn repeat<T>(time: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    while start.elapsed() < time {
        for _ in 0..8 {
            if let Some(found) = attempt() {
                return Some(found);
            }
            std::hint::spin_loop();
        }
    }
    None
}

/// The time for which a connection's thread polls for the next request. It follows the client's pace: polling for a
/// client that takes longer only takes a CPU from others, such as further servers on the same host.
pub(crate) struct Pace {
    time: Duration,
    max: Duration,
}

impl Pace {
    /// Begins with `max`, the longest time.
    pub(crate) fn new(max: Duration) -> Pace {
        Pace { time: max, max }
    }

    pub(crate) fn time(&self) -> Duration {
        self.time
    }

    /// Notes how long the thread waited for a request. After a wait that polling for `max` would have covered, the next
    /// one is polled longer, because that finds the request without a sleep. After a longer wait, the next one is polled
    /// for a shorter time.
    pub(crate) fn note(&mut self, waited: Duration) {
        let next = if waited < self.max { 2 * self.time } else { self.time / 2 };
        self.time = next.clamp(self.max / 16, self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn a_poll_returns_what_an_attempt_finds_and_ends_after_its_time() {
        let spinners = Spinners { max: 1, ..Spinners::new() };
        let mut attempts = 0;
        let third = || {
            attempts += 1;
            (attempts == 3).then_some(attempts)
        };
        assert_eq!(spinners.poll(LONG, third), Some(3));
        assert_eq!(spinners.poll(Duration::from_micros(80), || None::<u32>), None);
        assert_eq!(spinners.poll(LONG, || Some(4)), Some(4), "earlier polls have ended");
    }

    #[test]
    fn one_cpu_is_left_to_threads_that_have_work() {
        let spinners = Spinners { max: 1, ..Spinners::new() };
        assert_eq!(spinners.poll(LONG, || Some(spinners.poll(LONG, || Some(1)))), Some(None));
    }

    #[test]
    fn polling_follows_the_pace_of_the_client() {
        let max = Duration::from_micros(80);
        let mut pace = Pace::new(max);
        assert_eq!(pace.time(), max);
        pace.note(max);
        assert_eq!(pace.time(), max / 2, "polling was in vain");
        (0..10).for_each(|_| pace.note(LONG));
        assert_eq!(pace.time(), max / 16);
        pace.note(max / 2);
        assert_eq!(pace.time(), max / 8, "more polling would have sufficed");
        (0..10).for_each(|_| pace.note(Duration::ZERO));
        assert_eq!(pace.time(), max);
    }
}
