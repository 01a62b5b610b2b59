//! Counts what other sizes of local memory would have cost, while a program runs with one size: sampled reuse distances.
//!
//! The evicted pages are kept in the order of their eviction. A page that comes in has a *depth*: the pages in local
//! memory, the evicted pages that left after it, and itself. With LRU replacement, the page would still be local if local
//! memory held at least this number of pages (Mattson et al., "Evaluation techniques for storage hierarchies", 1970). For
//! any other policy, the depth describes the policy with a victim cache behind it that replaces its pages by LRU. Each
//! arrival and each write-back is counted by the depth at which it was avoided. Nothing is said about less memory than the
//! program had, because references to local pages do not trap.
//!
//! Only pages are tracked whose hash is below a threshold, and each counts for all those that are not (Waldspurger et al.,
//! "Efficient MRC construction with SHARDS", FAST '15). When the table is full, the threshold is halved. All memory is
//! made before, and no call allocates. A call takes time logarithmic in the size of the table, amortised.

use crate::limits;

/// Number of buckets of depth.
pub const BUCKETS: usize = 176;
/// Bytes of the smallest bucket.
const GRANULE_BYTES: u64 = 64 << 10;
/// Each power of two has this number of buckets.
const PER_POWER: u64 = 8;
/// No slot, in the index.
const NONE: u32 = u32::MAX;

/// The events that are counted by depth, in units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Base pages for which a thread waited.
    Small,
    /// Units of huge pages for which a thread waited.
    Wide,
    /// Units that were prefetched.
    Ahead,
    /// Units that were written back before they came in again or were discarded.
    Written,
}

/// Number of [`Kind`]s.
pub const KINDS: usize = 4;

/// Units by [`Kind`] and by bucket of depth.
pub type Depths = [[u64; BUCKETS]; KINDS];

/// Returns the bucket of a depth in bytes.
#[must_use]
pub fn bucket_of(bytes: u64) -> usize {
    let granules = bytes / GRANULE_BYTES;
    if granules < PER_POWER {
        return granules as usize;
    }
    let power = u64::from(granules.ilog2());
    let part = (granules >> (power - 3)) & (PER_POWER - 1);
    (((power - 2) * PER_POWER + part) as usize).min(BUCKETS - 1)
}

/// Returns the smallest depth of a bucket, in bytes. For [`BUCKETS`], returns the end of the last bucket.
#[must_use]
pub fn bucket_floor(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < PER_POWER {
        return bucket * GRANULE_BYTES;
    }
    ((PER_POWER + bucket % PER_POWER) << (bucket / PER_POWER - 1)) * GRANULE_BYTES
}

/// An evicted unit.
#[derive(Clone, Copy, Debug)]
struct Slot {
    unit: u32,
    is_out: bool,
    is_written: bool,
}

/// The account of evicted units.
#[derive(Debug)]
pub(crate) struct Reuse {
    unit_bytes: u64,
    capacity: usize,
    /// A unit is tracked if this number of the highest bits of its hash are zero.
    shift: u32,
    /// The evicted units in the order of their eviction. Units that came in again leave gaps.
    slots: Vec<Slot>,
    /// Fenwick tree: how many of the slots are in use, by ranges of slots.
    tree: Vec<u32>,
    /// Hash table of slots, by unit. Its length is a power of two.
    index: Vec<u32>,
    /// Number of tracked units that are out.
    out: usize,
    depths: Depths,
}

impl Reuse {
    /// Makes an account of at most `capacity` units of `unit_bytes` bytes.
    pub(crate) fn new(unit_bytes: u32, capacity: usize) -> Self {
        let capacity = capacity.max(2);
        Self {
            unit_bytes: u64::from(unit_bytes),
            capacity,
            shift: 0,
            slots: Vec::with_capacity(2 * capacity),
            tree: vec![0; 2 * capacity + 1],
            index: vec![NONE; (4 * capacity).next_power_of_two()],
            out: 0,
            depths: [[0; BUCKETS]; KINDS],
        }
    }

    pub(crate) fn depths(&self) -> &Depths {
        &self.depths
    }

    /// Notes that units left local memory and are on the server now. `is_written` says that they were written back.
    pub(crate) fn evicted(&mut self, first: u32, count: u32, is_written: bool) {
        for unit in first..first.saturating_add(count) {
            if self.is_tracked(unit) {
                self.push(unit, is_written);
            }
        }
    }

    /// Notes that evicted units come in, while `local` units are in local memory.
    pub(crate) fn returned(&mut self, first: u32, count: u32, local: u32, kind: Kind) {
        self.take_range(first, count, local, Some(kind));
    }

    /// Notes that evicted units were discarded, while `local` units are in local memory.
    pub(crate) fn discarded(&mut self, first: u32, count: u32, local: u32) {
        self.take_range(first, count, local, None);
    }

    fn take_range(&mut self, first: u32, count: u32, local: u32, kind: Option<Kind>) {
        for unit in first..first.saturating_add(count) {
            if self.is_tracked(unit)
                && let Some(at) = self.find(unit)
            {
                self.count(at, local, kind);
                self.drop_slot(at);
            }
        }
    }

    fn count(&mut self, at: usize, local: u32, kind: Option<Kind>) {
        let slot = self.slots[self.index[at] as usize];
        let later = self.out as u64 - u64::from(self.sum_to(self.index[at] as usize));
        let depth = u64::from(local) + (later << self.shift) + 1;
        let bucket = bucket_of(depth.saturating_mul(self.unit_bytes));
        let weight = 1 << self.shift;
        if let Some(kind) = kind {
            self.depths[kind as usize][bucket] += weight;
        }
        if slot.is_written {
            self.depths[Kind::Written as usize][bucket] += weight;
        }
    }

    fn is_tracked(&self, unit: u32) -> bool {
        is_below(unit, self.shift)
    }

    fn push(&mut self, unit: u32, is_written: bool) {
        if self.find(unit).is_some() {
            return;
        }
        if self.out == self.capacity {
            self.shift += 1;
            self.compact();
            if self.out == self.capacity || !self.is_tracked(unit) {
                return;
            }
        }
        if self.slots.len() == 2 * self.capacity {
            self.compact();
        }
        self.append(Slot { unit, is_out: true, is_written });
    }

    fn append(&mut self, slot: Slot) {
        self.slots.push(slot);
        self.enter(self.slots.len() - 1);
    }

    /// Closes the gaps between the slots, and drops the units that are not tracked any more.
    fn compact(&mut self) {
        self.tree.fill(0);
        self.index.fill(NONE);
        self.out = 0;
        let shift = self.shift;
        self.slots.retain(|slot| slot.is_out && is_below(slot.unit, shift));
        (0..self.slots.len()).for_each(|at| self.enter(at));
    }

    /// Enters a slot that is in the list into the tree and the index.
    fn enter(&mut self, at: usize) {
        let unit = self.slots[at].unit;
        self.out += 1;
        self.add_at(at, 1);
        let mask = self.index.len() - 1;
        let mut place = hash(unit) as usize & mask;
        while self.index[place] != NONE {
            place = (place + 1) & mask;
        }
        self.index[place] = at as u32;
    }

    /// Returns the place of a unit in the index.
    fn find(&self, unit: u32) -> Option<usize> {
        let mask = self.index.len() - 1;
        let mut place = hash(unit) as usize & mask;
        while self.index[place] != NONE {
            if self.slots[self.index[place] as usize].unit == unit {
                return Some(place);
            }
            place = (place + 1) & mask;
        }
        None
    }

    /// Removes the slot at this place of the index. Moves the entries behind it, so that no search ends too early.
    fn drop_slot(&mut self, mut place: usize) {
        let at = self.index[place] as usize;
        self.slots[at].is_out = false;
        self.out -= 1;
        self.add_at(at, u32::MAX);
        let mask = self.index.len() - 1;
        let mut next = (place + 1) & mask;
        while self.index[next] != NONE {
            let home = hash(self.slots[self.index[next] as usize].unit) as usize & mask;
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(place) & mask) {
                self.index[place] = self.index[next];
                place = next;
            }
            next = (next + 1) & mask;
        }
        self.index[place] = NONE;
    }

    /// Adds to the count of a slot. `u32::MAX` subtracts one.
    fn add_at(&mut self, at: usize, amount: u32) {
        let mut node = at + 1;
        while node < self.tree.len() {
            self.tree[node] = self.tree[node].wrapping_add(amount);
            node += node & node.wrapping_neg();
        }
    }

    /// Returns how many slots from the first to this one, inclusive, are in use.
    fn sum_to(&self, at: usize) -> u32 {
        let (mut node, mut sum) = (at + 1, 0);
        while node > 0 {
            sum += self.tree[node];
            node &= node - 1;
        }
        sum
    }
}

/// Checks whether this number of the highest bits of a unit's hash are zero.
fn is_below(unit: u32, shift: u32) -> bool {
    u64::from(hash(unit)) << shift <= u64::from(u32::MAX)
}

/// Mixes the bits of a unit's number.
fn hash(unit: u32) -> u32 {
    let mut bits = unit.wrapping_mul(0x9e37_79b1);
    bits = (bits ^ bits >> 16).wrapping_mul(0x85eb_ca6b);
    bits = (bits ^ bits >> 13).wrapping_mul(0xc2b2_ae35);
    bits ^ bits >> 16
}

const _: () = assert!(limits::REUSE_TRACKED_MAX.is_power_of_two() && limits::REUSE_TRACKED_MAX < NONE as usize / 4);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNIT: u32 = 64 << 10;

    /// Runs a reference string through an LRU memory of `room` units with an account behind it. Returns the account
    /// and the number of arrivals that were not first accesses.
    fn run(references: &[u32], room: usize, capacity: usize) -> (Reuse, u64) {
        let mut reuse = Reuse::new(UNIT, capacity);
        let (mut local, mut seen, mut arrivals): (Vec<u32>, Vec<u32>, u64) = (Vec::new(), Vec::new(), 0);
        for &unit in references {
            if let Some(at) = local.iter().position(|&other| other == unit) {
                local.remove(at);
            } else {
                if seen.contains(&unit) {
                    reuse.returned(unit, 1, local.len() as u32, Kind::Small);
                    arrivals += 1;
                } else {
                    seen.push(unit);
                }
                if local.len() == room {
                    reuse.evicted(local.remove(0), 1, unit.is_multiple_of(2));
                }
            }
            local.push(unit);
        }
        (reuse, arrivals)
    }

    /// Returns how many arrivals a memory of `room` units would still have had, from an account of exact buckets.
    fn beyond(reuse: &Reuse, room: usize) -> u64 {
        reuse.depths()[Kind::Small as usize][bucket_of(room as u64 * u64::from(UNIT)) + 1..].iter().sum()
    }

    #[test]
    fn a_loop_is_avoided_only_where_all_of_it_fits() {
        let references: Vec<u32> = (0..10).flat_map(|_| 0..7).collect();
        let (reuse, arrivals) = run(&references, 3, 64);
        assert_eq!(arrivals, 63);
        assert_eq!((beyond(&reuse, 6), beyond(&reuse, 7)), (63, 0));
    }

    #[test]
    fn a_discarded_unit_takes_no_room() {
        let mut reuse = Reuse::new(UNIT, 8);
        for unit in 0..4 {
            reuse.evicted(unit, 1, true);
        }
        reuse.discarded(2, 2, 3);
        reuse.returned(1, 1, 3, Kind::Ahead);
        let depth = |kind: Kind| reuse.depths()[kind as usize].iter().rposition(|&count| count > 0);
        // The local units, and itself.
        assert_eq!(depth(Kind::Ahead), Some(4));
        // Unit 2 had unit 3 behind it.
        assert_eq!(reuse.depths()[Kind::Written as usize].iter().sum::<u64>(), 3);
        assert_eq!(depth(Kind::Written), Some(5));
    }

    #[test]
    fn a_sample_tells_what_all_units_tell() {
        let mut state = 7_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Low units are referenced more often than high ones.
            ((state >> 16) * (state >> 20 & 0xfff) / 0xfff) % 6000
        };
        let references: Vec<u32> = (0..60_000).map(|_| next()).collect();
        let (sampled, arrivals) = run(&references, 100, 256);
        assert!(sampled.shift >= 3 && sampled.out <= 256, "{} {}", sampled.shift, sampled.out);
        let (exact, _) = run(&references, 100, 1 << 14);
        assert_eq!(exact.depths()[Kind::Small as usize].iter().sum::<u64>(), arrivals);
        for bucket in (0..BUCKETS).step_by(4) {
            let beyond = |reuse: &Reuse| reuse.depths()[Kind::Small as usize][bucket..].iter().sum::<u64>() as f64;
            let off = (beyond(&sampled) - beyond(&exact)).abs() / arrivals as f64;
            assert!(off < 0.06, "bucket {bucket}: {off}");
        }
    }

    #[test]
    fn buckets_hold_the_depths_between_their_edges() {
        for bucket in 0..BUCKETS {
            assert_eq!(bucket_of(bucket_floor(bucket)), bucket);
            assert_eq!(bucket_of(bucket_floor(bucket + 1) - 1), bucket);
        }
        assert_eq!(bucket_floor(BUCKETS), 1 << 40);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    proptest! {
        #[test]
        fn the_account_is_that_of_lru(references in prop::collection::vec(0_u32..7, 1..300), room in 2_usize..5) {
            let (reuse, arrivals) = run(&references, room, 4096);
            prop_assert_eq!(reuse.depths()[Kind::Small as usize].iter().sum::<u64>(), arrivals);
            for more in room..8 {
                prop_assert_eq!(beyond(&reuse, more), run(&references, more, 4096).1, "{} units", more);
            }
        }

        #[test]
        fn a_small_table_stays_consistent(events in prop::collection::vec((0_u32..3, 0_u32..200), 1..2000)) {
            let mut reuse = Reuse::new(UNIT, 8);
            for (what, unit) in events {
                match what {
                    0 => reuse.evicted(unit, 3, unit.is_multiple_of(2)),
                    1 => reuse.returned(unit, 2, 5, Kind::Small),
                    _ => reuse.discarded(unit, 4, 5),
                }
                prop_assert!(reuse.out <= 8);
                prop_assert_eq!(reuse.out, reuse.slots.iter().filter(|slot| slot.is_out).count());
                prop_assert_eq!(reuse.out, reuse.index.iter().filter(|&&at| at != NONE).count());
                for slot in reuse.slots.iter().filter(|slot| slot.is_out) {
                    prop_assert!(reuse.find(slot.unit).is_some());
                }
            }
        }
    }
}
