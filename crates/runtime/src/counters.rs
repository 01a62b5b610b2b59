//! The counters of a run. This module only counts; other modules supply the numbers and show them.
//!
//! Adding to a counter is one relaxed atomic instruction, so it is safe everywhere, also in a signal handler.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

pub use hanare_paging::reuse;

use crate::hold::Hold;
use crate::polling::FaultRate;

/// First word of the counters. It identifies their layout. Its last byte is the version of the layout.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"HANARE\0\x09");
/// Number of buckets of the fault latency histogram.
pub const BUCKETS: usize = 128;
/// Size, in bytes, of the text that lists automatic choices with their reasons.
const CHOICES_LEN: usize = 1024;
/// Size, in bytes, of the text for the name of a policy or prefetcher.
const NAME_LEN: usize = 64;

/// A text kept in the counters, such as the name of the policy.
#[repr(transparent)]
pub struct Text<const LEN: usize>([AtomicU8; LEN]);

impl<const LEN: usize> Text<LEN> {
    /// Stores `text`, cut to at most `LEN - 1` bytes.
    pub fn set(&self, text: &str) {
        let mut bytes = text.bytes().take(LEN - 1);
        for slot in &self.0 {
            slot.store(bytes.next().unwrap_or(0), Relaxed);
        }
    }

    /// Returns the stored text. It is empty if none was stored.
    #[must_use]
    pub fn get(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().map(|slot| slot.load(Relaxed)).take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters that all processes of a run share. Times are in nanoseconds. `started_ns` and `ended_ns` are
        /// readings of CLOCK_MONOTONIC.
        #[repr(C)]
        pub struct Counters {
            magic: AtomicU64,
            $($(#[$doc])* pub $name: AtomicU64,)*
            /// Fault latencies, by [`bucket_of`].
            pub fault_hist: [AtomicU64; BUCKETS],
            /// Name of the replacement policy.
            pub policy: Text<NAME_LEN>,
            /// Name of the prefetcher.
            pub prefetch: Text<NAME_LEN>,
            /// A text that lists what the engine, the policy and the prefetcher chose automatically, with the reasons.
            pub choices: Text<CHOICES_LEN>,
            /// The rate of faults on base pages.
            pub fault_rate: FaultRate,
            /// Units by kind and by depth ([`reuse`]), if the run counts them.
            pub depths: [[AtomicU64; reuse::BUCKETS]; reuse::KINDS],
            /// The state of the controller that holds a slowdown.
            pub hold: Hold,
        }

        /// A copy of the counters. The values were read one after another, not at one instant.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Snapshot {
            $($(#[$doc])* pub $name: u64,)*
            /// Fault latencies, by [`bucket_of`].
            pub fault_hist: [u64; BUCKETS],
            /// Name of the replacement policy.
            pub policy: String,
            /// Name of the prefetcher.
            pub prefetch: String,
            /// A text that lists what the engine, the policy and the prefetcher chose automatically, with the reasons.
            pub choices: String,
            /// Units by kind and by depth ([`reuse`]), if the run counts them.
            pub depths: reuse::Depths,
            /// The slowdown so far in thousandths, if one is held. 0 if none is.
            pub held_slowdown: u64,
        }

        impl Counters {
            /// Copies the counters. Each value is exact. The values are read one after another, so they belong to
            /// slightly different times.
            #[must_use]
            pub fn snapshot(&self) -> Snapshot {
                Snapshot {
                    $($name: self.$name.load(Relaxed),)*
                    fault_hist: std::array::from_fn(|bucket| self.fault_hist[bucket].load(Relaxed)),
                    policy: self.policy.get(),
                    prefetch: self.prefetch.get(),
                    choices: self.choices.get(),
                    depths: self.depths.each_ref().map(|kind| kind.each_ref().map(|count| count.load(Relaxed))),
                    held_slowdown: self.hold.thousandths(),
                }
            }
        }
    };
}

counters! {
    /// The time when the engine started. 0 if it never started.
    started_ns,
    /// The time when the engine stopped at the end of the program. 0 if the program was killed or called `_exit`.
    ended_ns,
    /// Read faults on pages that had to come from a server.
    faults_read,
    /// Write faults on pages that had to come from a server.
    faults_write,
    /// Write faults on a present page that was write-protected because it was clean.
    faults_first_write,
    /// Faults at the first access to a page. The pager fills such a page with zeroes.
    faults_zero,
    /// Faults on a page whose bytes were still in a local frame (minor faults).
    faults_rescued,
    /// Faults on a page that was already in transit.
    faults_waited,
    /// Faults that set a pseudo reference bit: the page was present but unmapped for reference sampling.
    faults_hidden,
    /// Pages unmapped to clear their pseudo reference bits.
    pages_hidden,
    /// Number of times that a page could not be evicted because an I/O transfer used it (direct I/O, io_uring, a
    /// device).
    pages_held_back,
    /// Pages fetched.
    pages_in,
    /// Bytes fetched.
    bytes_in,
    /// Pages written back.
    pages_out,
    /// Bytes written back.
    bytes_out,
    /// Clean pages evicted without a write-back, because the server still held their bytes.
    pages_dropped_clean,
    /// Pages freed by the program.
    pages_discarded,
    /// Pages prefetched.
    prefetch_pages,
    /// Bytes prefetched.
    prefetch_bytes,
    /// Prefetched pages that were then accessed.
    prefetch_used,
    /// Prefetched pages that were evicted without an access.
    prefetch_wasted,
    /// Time that threads of the program waited for pages.
    swap_ns,
    /// Time that threads of the program waited for present pages to become accessible: for a first write, or to set a
    /// reference bit.
    set_bit_ns,
    /// Time spent unmapping pages for reference sampling.
    clear_bit_ns,
    /// Time spent choosing and evicting pages.
    evict_ns,
    /// Requests sent to servers.
    requests,
    /// Local bytes now: resident pages, pages staged in frames, and pages in transit.
    local_bytes,
    /// Maximum of `local_bytes` during the run.
    local_bytes_peak,
    /// The budget for local bytes.
    budget_bytes,
    /// Far bytes allocated now.
    far_bytes,
    /// Maximum of `far_bytes` during the run.
    far_bytes_peak,
    /// Resident private bytes of all processes with an engine that are not far: the program's near memory and Hanare's
    /// own data. Read every tenth of a second.
    private_bytes,
    /// Maximum of `private_bytes` during the run.
    private_bytes_peak,
    /// Base pages in use now, if the page size is chosen automatically.
    pages_small,
    /// Huge pages in use now, if the page size is chosen automatically.
    pages_large,
    /// Changes from base pages to huge pages.
    promotions,
    /// Changes from huge pages to base pages.
    demotions,
    /// Number of processes that started an engine. A process counts again if it executes another program that starts
    /// one.
    processes,
    /// Forked children that started an engine at the fork. They share the evicted pages of their parents.
    forks,
    /// Trap mode: 1 thread, 2 sigbus, 3 sigsegv.
    mode,
    /// Page size in bytes. 0 if it is chosen automatically.
    page_size,
    /// Resident bytes of the heap's and the pager's own data at the end of the run. 0 if the run had less than 16 MiB
    /// of far memory.
    near_bytes,
    /// Allocations refused because the servers had no room for them.
    allocations_refused,
    /// Losses of memory servers that the run survived.
    servers_lost,
    /// Bytes of pages of which a part is missing now. An upper bound.
    parts_behind_bytes,
    /// Bytes of missing parts that were rebuilt.
    parts_rebuilt_bytes,
    /// Time in which pages lacked parts.
    degraded_ns,
    /// Time on CPUs of all processes with an engine, since their engines started.
    cpu_ns,
    /// Bytes of a base page of the process that started last. With the next one, it gives a meaning to `depths`.
    base_bytes,
    /// Base pages of a huge page of that process. 1 if it has no huge pages.
    huge_units,
    /// Whether evicted pages are in memory of this host that the faulting thread copies itself.
    store_is_direct,
    /// The slowdown that the run is to hold, in thousandths. 0 if none is.
    slowdown,
    /// The budget that holds it now. `budget_bytes` is the largest one.
    held_bytes,
    /// Memory that the machine can still give to shares of local memory ([`crate::spare`]). 0 if nobody looks.
    spare_bytes,
}

/// Adds to a counter.
#[inline]
pub fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Relaxed);
}

/// Raises a counter to `value` if it is lower.
#[inline]
pub fn raise(counter: &AtomicU64, value: u64) {
    // Most calls change nothing. For them, this read avoids an atomic write to a shared cache line.
    if counter.load(Relaxed) < value {
        counter.fetch_max(value, Relaxed);
    }
}

impl Counters {
    /// Counts one fault that took `ns` nanoseconds.
    #[inline]
    pub fn fault_took(&self, ns: u64) {
        add(&self.fault_hist[bucket_of(ns)], 1);
    }
}

/// Returns the histogram bucket of a latency. Each power of two is divided into four buckets. The last bucket
/// holds all latencies from 7.5 s on.
#[inline]
#[must_use]
pub fn bucket_of(ns: u64) -> usize {
    if ns < 4 {
        return ns as usize;
    }
    let power = ns.ilog2();
    let quarter = (ns >> (power - 2)) & 3;
    ((power as usize - 1) * 4 + quarter as usize).min(BUCKETS - 1)
}

/// Returns the smallest latency of a bucket, in nanoseconds. For `BUCKETS`, returns the end of the last bucket.
#[must_use]
pub fn bucket_floor_ns(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64;
    }
    (4 + bucket as u64 % 4) << (bucket / 4 - 1)
}

impl Snapshot {
    /// Returns the number of faults whose latency was measured.
    #[must_use]
    pub fn faults_timed(&self) -> u64 {
        self.fault_hist.iter().sum()
    }

    /// Returns the latency, in nanoseconds, that a fraction `p` (0 to 1) of all faults did not exceed. The value is
    /// interpolated within its bucket. Returns 0 if there was no fault.
    #[must_use]
    pub fn percentile(&self, p: f64) -> u64 {
        let total = self.faults_timed();
        // Float casts saturate, so any `p` is safe.
        let rank = ((p * total as f64).ceil() as u64).clamp(1, total.max(1));
        let mut below = 0;
        for (bucket, count) in self.fault_hist.iter().copied().enumerate() {
            if below + count >= rank {
                let (floor, end) = (bucket_floor_ns(bucket), bucket_floor_ns(bucket + 1));
                let share = (rank - below) as f64 / count as f64;
                return floor + ((end - floor) as f64 * share) as u64;
            }
            below += count;
        }
        0
    }

    /// Returns the upper edge of the highest bucket with a fault, in nanoseconds. Returns 0 if there was no fault.
    #[must_use]
    pub fn slowest_ns(&self) -> u64 {
        self.fault_hist.iter().rposition(|count| *count > 0).map_or(0, |bucket| bucket_floor_ns(bucket + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::HOLD_WORDS;
    use proptest::prelude::*;

    #[test]
    fn the_layout_has_no_gaps() {
        let words = size_of::<Counters>() / 8;
        assert_eq!(words * 8, size_of::<Counters>());
        assert_eq!(
            words,
            1 + 54
                + BUCKETS
                + HOLD_WORDS
                + reuse::KINDS * reuse::BUCKETS
                + (2 * NAME_LEN + CHOICES_LEN + size_of::<FaultRate>()) / 8,
            "a change of the layout needs a new version in MAGIC"
        );
    }

    proptest! {
        #[test]
        fn every_latency_lies_in_its_bucket(ns: u64, shift in 0_u32..64) {
            let ns = ns >> shift;
            let bucket = bucket_of(ns);
            prop_assert!(bucket < BUCKETS);
            prop_assert!(bucket_floor_ns(bucket) <= ns);
            prop_assert!(bucket == BUCKETS - 1 || ns < bucket_floor_ns(bucket + 1));
        }
    }
}
