//! Page-size policy: decides from observed faults whether a block is fetched as base pages or as one huge page.
//!
//! Fetching a huge page takes about as long as 26 fetches of base pages (130 us against 5 us on one host, 350 us
//! against 14 us over TCP). But a huge page needs the memory of 512 base pages, and evicts pages that may be needed
//! next. Each of those then costs a fault. So a huge page is worthwhile only if at least half of its units are accessed
//! while it is in memory. With an eighth, a program with strided accesses transferred ten times as much.
//!
//! The faults on a block of base pages show how many of its units are accessed. They count only while the block would
//! stay in memory as a huge page: until more other blocks were accessed than local memory could hold as huge pages.
//! Otherwise a program that takes one unit of each block in turn would get a huge page for each. The pager cannot see
//! accesses within a huge page. So it sometimes fetches a block as base pages, as a probe. While probes find what was
//! expected, they become rarer, up to one each time huge pages have filled half of the budget, or each 64 huge pages. A new phase of the
//! program that accesses few units of each block is noticed by then.
//!
//! Results are kept for each *district*, a range of neighbouring blocks, because different arrays are used differently.
//! A district without a result uses the result of the whole space.

/// Divisor of a block's units: a block counts as dense if at least 1/2 of them are accessed.
const DENSE_PART: u32 = 2;
/// Number of blocks in one district.
const DISTRICT_BLOCKS: u32 = 32;
/// Maximum number of blocks of base pages whose faults are observed at the same time.
const WATCHED: usize = 32;
/// The observation of a block ends after accesses to this number of other blocks, if local memory could hold them.
const PATIENCE_BLOCKS: u32 = 64;
/// Divisor of the budget: half of it may hold other pages than huge ones.
const CAPACITY_PART: u32 = 2;
const SCORE_MAX: i8 = 16;
const DENSE_SCORE: i8 = 8;
const SPARSE_SCORE: i8 = -1;
const SPARSE_PROBE_SCORE: i8 = -8;
/// Minimum number of huge fetches between two probes. A probe with an unexpected result resets the gap to this number.
const PROBE_GAP_MIN: u32 = 4;

/// The page-size policy. Memory use: one byte for each district, and 32 observed blocks.
#[derive(Debug)]
pub(crate) struct Grain {
    districts: Vec<i8>,
    /// Number of accessed units from which a block counts as dense.
    dense_units: u32,
    overall: i8,
    watched: [Watch; WATCHED],
    faults: u64,
    /// Number of faults on huge pages.
    wide_faults: u64,
    /// Number of other blocks after whose accesses an observation ends. Also the maximum number of huge fetches between
    /// two probes.
    patience: u32,
    /// No observation ends before this number of further events of this kind: a fault on a huge page, or an observation
    /// that takes a free place.
    unexpired: u32,
    probe_gap: u32,
    probe_in: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    block: u32,
    accessed: u32,
    /// Values of `faults` and `wide_faults` at the last fault on the block.
    last: u64,
    last_wide: u64,
    state: Observation,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Observation {
    #[default]
    Free,
    Watching,
    Probing,
    Dense,
}

impl Grain {
    pub(crate) fn new(blocks: u32, block_units: u32) -> Self {
        Self {
            districts: vec![0; (blocks / DISTRICT_BLOCKS + 1) as usize],
            dense_units: (block_units / DENSE_PART).max(1),
            overall: 0,
            watched: [Watch::default(); WATCHED],
            faults: 0,
            wide_faults: 0,
            patience: PATIENCE_BLOCKS,
            unexpired: 0,
            probe_gap: 4 * PROBE_GAP_MIN,
            probe_in: 4 * PROBE_GAP_MIN,
        }
    }

    /// Notes how many huge pages the budget could hold.
    pub(crate) fn set_capacity(&mut self, pages: u32) {
        self.patience = (pages / CAPACITY_PART).clamp(1, PATIENCE_BLOCKS);
        self.unexpired = 0;
    }

    /// Decides whether to fetch a block as one huge page. The caller ensures that no page of the block is in memory.
    pub(crate) fn decide(&mut self, block: u32) -> bool {
        if !self.leans_wide(block) {
            return false;
        }
        self.probe_in = self.probe_in.saturating_sub(1);
        if self.probe_in > 0 {
            return true;
        }
        self.probe_in = self.probe_gap;
        self.watch(block, Observation::Probing);
        false
    }

    /// Returns the answer that [`Self::decide`] would return, but starts no probe and does not count as a decision.
    pub(crate) fn leans_wide(&self, block: u32) -> bool {
        match self.districts[(block / DISTRICT_BLOCKS) as usize] {
            0 => self.overall > 0,
            score => score > 0,
        }
    }

    /// Notes a fault on an absent huge page.
    pub(crate) fn wide_fault(&mut self) {
        self.faults += 1;
        self.wide_faults += 1;
        self.unexpired = self.unexpired.saturating_sub(1);
        self.expire();
    }

    /// Notes a fault on an absent base page of this block. `units` is the number of units that the fault shows to be
    /// accessed. These are the page, the units fetched with it, and units known to have been accessed before.
    pub(crate) fn small_fault(&mut self, block: u32, units: u32) {
        self.faults += 1;
        self.expire();
        let (faults, wide_faults, dense_units) = (self.faults, self.wide_faults, self.dense_units);
        let known = self.watched.iter().position(|w| w.state != Observation::Free && w.block == block);
        let index = known.unwrap_or_else(|| self.watch(block, Observation::Watching));
        let watch = &mut self.watched[index];
        (watch.last, watch.last_wide) = (faults, wide_faults);
        watch.accessed += units;
        if watch.accessed >= dense_units && watch.state != Observation::Dense {
            let probe = watch.state == Observation::Probing;
            watch.state = Observation::Dense;
            if probe {
                self.probe_gap = (self.probe_gap * 2).min(self.patience).max(PROBE_GAP_MIN);
            }
            self.vote(block, DENSE_SCORE);
        }
    }

    fn watch(&mut self, block: u32, state: Observation) -> usize {
        let index = (0..WATCHED)
            .min_by_key(|&i| if self.watched[i].state == Observation::Free { 0 } else { self.watched[i].last + 1 })
            .unwrap_or(0);
        if self.watched[index].state == Observation::Free {
            self.unexpired = self.unexpired.saturating_sub(1);
        }
        self.conclude(index);
        self.watched[index] = Watch { block, accessed: 0, last: self.faults, last_wide: self.wide_faults, state };
        index
    }

    /// Ends the observations of blocks since whose last fault many other blocks were accessed.
    fn expire(&mut self) {
        while self.unexpired == 0 {
            let active = (0..WATCHED).filter(|&index| self.watched[index].state != Observation::Free);
            // Since the oldest fault, all other observed blocks were accessed. No other observation has more to count.
            let (count, oldest) = (active.clone().count(), active.min_by_key(|&index| self.watched[index].last));
            let Some(oldest) = oldest else {
                self.unexpired = self.patience;
                return;
            };
            // A block that is fetched as a huge page was not in memory, so each such fault is on another block.
            let others = count as u64 - 1 + self.wide_faults - self.watched[oldest].last_wide;
            // Each of the events adds at most one to `others`. A later fault on the oldest block makes it smaller.
            match u64::from(self.patience).checked_sub(others) {
                Some(more) => self.unexpired = more as u32 + 1,
                None => self.conclude(oldest),
            }
        }
    }

    /// Ends an observation. The block counts as sparse, except if it was already found dense.
    fn conclude(&mut self, index: usize) {
        let watch = self.watched[index];
        match watch.state {
            Observation::Free | Observation::Dense => {}
            Observation::Watching => self.vote(watch.block, SPARSE_SCORE),
            Observation::Probing => {
                self.probe_gap = PROBE_GAP_MIN;
                self.probe_in = self.probe_in.min(PROBE_GAP_MIN);
                self.vote(watch.block, SPARSE_PROBE_SCORE);
            }
        }
        self.watched[index].state = Observation::Free;
    }

    fn vote(&mut self, block: u32, score: i8) {
        let district = &mut self.districts[(block / DISTRICT_BLOCKS) as usize];
        *district = (*district + score).clamp(-SCORE_MAX, SCORE_MAX);
        self.overall = (self.overall + score).clamp(-SCORE_MAX, SCORE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_turns_wide_and_stays_so_but_for_few_probes() {
        let mut grain = Grain::new(4096, 512);
        let mut small = 0;
        for block in 0..4096 {
            if grain.decide(block) {
                grain.wide_fault();
            } else {
                small += 1;
                (0..64).for_each(|_| grain.small_fault(block, 8));
            }
        }
        assert!(small < 4096 / 50, "{small} of 4096 blocks came in small");
    }

    /// A transposition accesses one unit of each block in turn. If local memory cannot hold all blocks as huge pages, each
    /// huge page would leave before its second access.
    #[test]
    fn blocks_accessed_in_turn_are_wide_only_if_all_of_them_fit() {
        let wide_fetches = |capacity: usize| {
            let mut grain = Grain::new(512, 512);
            grain.set_capacity(capacity as u32);
            let (mut wide, mut fetches) = (std::collections::VecDeque::new(), 0);
            for access in 0..32 * 512 {
                let block = access % 32;
                if wide.contains(&block) {
                    continue;
                }
                // Base pages of a block are in memory after its first accesses, so the block stays as it is for a while.
                if access / 32 % 128 == 0 && grain.decide(block) {
                    grain.wide_fault();
                    wide.push_back(block);
                    fetches += 1;
                } else {
                    grain.small_fault(block, 1);
                }
                if wide.len() > capacity {
                    wide.pop_front();
                }
            }
            fetches
        };
        assert_eq!(wide_fetches(16), 0);
        assert!(wide_fetches(128) >= 31, "{}", wide_fetches(128));
    }

    /// After many fetches of huge pages that were dense, the program accesses one unit of each block in turn. This must
    /// be noticed soon.
    #[test]
    fn a_sparse_phase_after_a_dense_one_is_noticed_within_three_rounds_of_the_budget() {
        let mut grain = Grain::new(64, 512);
        grain.set_capacity(64);
        for block in (0..64).cycle().take(64 * 61) {
            match grain.decide(block) {
                true => grain.wide_fault(),
                false => (0..64).for_each(|_| grain.small_fault(block, 8)),
            }
        }
        let mut fetches = 0;
        for block in (0..64).cycle().take(64 * 64) {
            match grain.decide(block) {
                true => {
                    grain.wide_fault();
                    fetches += 1;
                }
                false => grain.small_fault(block, 1),
            }
        }
        assert!(fetches < 3 * 64, "{fetches} huge pages were fetched for one unit each");
    }

    /// Looks for ended observations at every fault, in the second of two policies with the same faults.
    #[test]
    fn observations_end_at_the_same_fault_if_one_looks_at_each() {
        let (mut one, mut other) = (Grain::new(256, 512), Grain::new(256, 512));
        let mut seed = 1u32;
        let mut draw = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % below
        };
        for _ in 0..100_000 {
            let size = 1 << draw(9);
            let (block, event, units) = (draw(size), draw(1000), 1 + draw(64));
            other.unexpired = 0;
            for grain in [&mut one, &mut other] {
                match event {
                    0 => grain.set_capacity(units),
                    1..300 if grain.decide(block) => grain.wide_fault(),
                    300..400 => grain.wide_fault(),
                    _ => grain.small_fault(block, units),
                }
            }
            let seen = |grain: &Grain| (grain.districts.clone(), format!("{:?}", grain.watched), grain.probe_in);
            assert_eq!(seen(&one), seen(&other));
        }
    }

    #[test]
    fn scattered_touches_turn_wide_space_small_again_within_bounded_faults() {
        let mut grain = Grain::new(512, 512);
        (0..8).for_each(|block| (0..64).for_each(|_| grain.small_fault(block * 64, 8)));
        let mut wide_in_the_end = 0;
        let mut seed = 1u32;
        for fault in 0..20_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let block = (seed >> 16) % 512;
            if grain.decide(block) {
                grain.wide_fault();
                wide_in_the_end += u32::from(fault >= 2_000);
            } else {
                grain.small_fault(block, 1);
            }
        }
        assert!(wide_in_the_end < 200, "{wide_in_the_end} of 18,000 scattered faults were served wide");
    }
}
