//! How long reads take, and which reads take too long.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use super::machine::READS;

/// The number of classes of read times. Each power of two is one class.
const CLASSES: usize = 40;
/// The number of reads after which older reads count half.
const COUNTED: u32 = 4096;
/// The shortest time after which another server is asked, in nanoseconds.
const LIMIT_MIN_NS: u64 = 2_000_000;
/// The longest such time, in nanoseconds.
const LIMIT_MAX_NS: u64 = 500_000_000;
/// The shortest time between two looks for slow reads, in nanoseconds.
const LOOK_NS: u64 = 500_000;

/// The times of reads.
pub(super) struct Pace {
    /// The number of reads of each class of times.
    classes: [AtomicU32; CLASSES],
    counted: AtomicU32,
    /// The time after which another server is asked, in nanoseconds.
    limit_ns: AtomicU64,
    /// The time when each read in progress began, in nanoseconds on CLOCK_MONOTONIC. 0 for none.
    begun_ns: [AtomicU64; READS],
    /// The time when a server was last asked for a read.
    asked_ns: [AtomicU64; READS],
    looked_ns: AtomicU64,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            classes: [const { AtomicU32::new(0) }; CLASSES],
            counted: AtomicU32::new(0),
            limit_ns: AtomicU64::new(LIMIT_MAX_NS),
            begun_ns: [const { AtomicU64::new(0) }; READS],
            asked_ns: [const { AtomicU64::new(0) }; READS],
            looked_ns: AtomicU64::new(0),
        }
    }

    /// A read has begun.
    pub(super) fn begins(&self, read: u16, now_ns: u64) {
        self.begun_ns[usize::from(read)].store(now_ns, Relaxed);
        self.asked_ns[usize::from(read)].store(now_ns, Relaxed);
    }

    /// A read is complete.
    pub(super) fn ends(&self, read: u16, now_ns: u64) {
        let begun_ns = self.begun_ns[usize::from(read)].swap(0, Relaxed);
        if begun_ns == 0 {
            return;
        }
        let took_ns = now_ns.saturating_sub(begun_ns).max(1);
        let class = (took_ns.ilog2() as usize).min(CLASSES - 1);
        self.classes[class].fetch_add(1, Relaxed);
        let counted = self.counted.fetch_add(1, Relaxed) + 1;
        if counted.is_multiple_of(64) {
            self.limit_ns.store(self.limit(), Relaxed);
        }
        if counted >= COUNTED {
            self.counted.store(0, Relaxed);
            self.classes.iter().for_each(|class| class.store(class.load(Relaxed) / 2, Relaxed));
        }
    }

    /// Returns twice the time that 99 of 100 reads do not exceed, within the bounds.
    fn limit(&self) -> u64 {
        let all: u64 = self.classes.iter().map(|class| u64::from(class.load(Relaxed))).sum();
        let mut below = 0;
        for (class, count) in self.classes.iter().enumerate() {
            below += u64::from(count.load(Relaxed));
            if below * 100 >= all * 99 {
                return (4_u64 << class).clamp(LIMIT_MIN_NS, LIMIT_MAX_NS);
            }
        }
        LIMIT_MAX_NS
    }

    /// Checks whether it is time to look for slow reads. Only one of several threads gets the answer yes.
    pub(super) fn is_time_to_look(&self, now_ns: u64) -> bool {
        let looked_ns = self.looked_ns.load(Relaxed);
        now_ns.saturating_sub(looked_ns) > LOOK_NS
            && self.looked_ns.compare_exchange(looked_ns, now_ns, Relaxed, Relaxed).is_ok()
    }

    /// Returns the reads for which no server was asked for too long.
    pub(super) fn slow_reads(&self, now_ns: u64) -> impl Iterator<Item = u16> {
        let limit_ns = self.limit_ns.load(Relaxed);
        let is_slow = move |read: &u16| {
            let asked_ns = self.asked_ns[usize::from(*read)].load(Relaxed);
            self.begun_ns[usize::from(*read)].load(Relaxed) > 0 && now_ns.saturating_sub(asked_ns) > limit_ns
        };
        (0..READS as u16).filter(is_slow)
    }

    /// One more server was asked for a read.
    pub(super) fn asked_again(&self, read: u16, now_ns: u64) {
        self.asked_ns[usize::from(read)].store(now_ns, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_the_slowest_hundredth_within_bounds() {
        let pace = Pace::new();
        let take = |count: u32, took_ns: u64| {
            for _ in 0..count {
                pace.begins(0, 1_000);
                pace.ends(0, 1_000 + took_ns);
            }
        };
        take(64, 100_000);
        assert_eq!(pace.limit_ns.load(Relaxed), LIMIT_MIN_NS);
        take(640, 10_000_000);
        assert!((20_000_000..=40_000_000).contains(&pace.limit_ns.load(Relaxed)));
        take(6_400, 10_000_000_000);
        assert_eq!(pace.limit_ns.load(Relaxed), LIMIT_MAX_NS);
        take(64_000, 100_000);
        assert_eq!(pace.limit_ns.load(Relaxed), LIMIT_MIN_NS, "old reads are forgotten");
    }

    #[test]
    fn a_slow_read_is_found_once_for_each_server_that_is_asked() {
        let pace = Pace::new();
        pace.begins(3, 1_000);
        let late_ns = 2_000 + LIMIT_MAX_NS;
        assert_eq!(pace.slow_reads(LIMIT_MAX_NS).count(), 0);
        assert_eq!(pace.slow_reads(late_ns).collect::<Vec<_>>(), [3]);
        pace.asked_again(3, late_ns);
        assert_eq!(pace.slow_reads(late_ns + 1).count(), 0);
        pace.ends(3, late_ns + 2);
        assert_eq!(pace.slow_reads(10 * late_ns).count(), 0);
    }
}
