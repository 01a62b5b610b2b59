//! A clock that stands still while this process is paused. The silence of servers is measured on it, because a server may
//! have been paused with this process.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use hanare_sys::clock::now_ns;

/// The maximum time between two readings of the clock in a running process, in nanoseconds. The links are checked more
/// often than that. A longer time means that the process or the machine was stopped.
const PAUSE_NS: u64 = 100_000_000;

/// The clock. Its times are nanoseconds on CLOCK_MONOTONIC without the pauses.
pub(crate) struct AwakeClock {
    /// The time of the last reading, on CLOCK_MONOTONIC.
    read_ns: AtomicU64,
    /// The sum of all pauses. A pause is the time between two readings beyond [`PAUSE_NS`].
    paused_ns: AtomicU64,
}

impl AwakeClock {
    pub(crate) fn new() -> Self {
        Self { read_ns: AtomicU64::new(now_ns()), paused_ns: AtomicU64::new(0) }
    }

    /// Reads the clock. Counts a pause since the last reading first. So a time that is read after a pause and before the
    /// next check of the links is not too late by the pause.
    pub(crate) fn now_ns(&self) -> u64 {
        self.read(now_ns())
    }

    fn read(&self, now_ns: u64) -> u64 {
        let pause_ns = now_ns.saturating_sub(self.read_ns.fetch_max(now_ns, AcqRel)).saturating_sub(PAUSE_NS);
        if pause_ns > 0 {
            self.paused_ns.fetch_add(pause_ns, AcqRel);
        }
        self.at(now_ns)
    }

    /// Returns the time of this clock at `then_ns` on CLOCK_MONOTONIC, which must not be before the last pause.
    fn at(&self, then_ns: u64) -> u64 {
        then_ns.saturating_sub(self.paused_ns.load(Acquire))
    }

    /// Checks whether `len_ns` have passed between `since_ns` on this clock and `looked_ns` on CLOCK_MONOTONIC. If the
    /// process was paused since the last reading, the answer is no: the pause is not counted yet.
    pub(crate) fn has_passed(&self, len_ns: u64, since_ns: u64, looked_ns: u64) -> bool {
        self.at(looked_ns).saturating_sub(since_ns) > len_ns
            && now_ns().saturating_sub(self.read_ns.load(Acquire)) <= PAUSE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_do_not_count() {
        let clock = AwakeClock::new();
        let start_ns = clock.read_ns.load(Acquire);
        let before_ns = clock.read(start_ns + PAUSE_NS);
        assert_eq!(before_ns, start_ns + PAUSE_NS, "two checks so far apart are no pause");
        let stamp_ns = clock.read(start_ns + 2 * PAUSE_NS + 5_000_000_000);
        assert_eq!(stamp_ns - before_ns, PAUSE_NS, "the first reading after a pause leaves it out");
        assert_eq!(clock.read(start_ns + 2 * PAUSE_NS + 5_000_000_001) - stamp_ns, 1);
    }

    #[test]
    fn a_reading_in_the_past_is_no_pause() {
        let clock = AwakeClock::new();
        let start_ns = clock.read_ns.load(Acquire);
        clock.read(start_ns + 50);
        clock.read(start_ns);
        assert_eq!(clock.read(start_ns + PAUSE_NS + 50), start_ns + PAUSE_NS + 50);
    }
}
