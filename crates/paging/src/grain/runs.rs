//! Page-size policy of runs: decides from observed faults whether a run is fetched as base pages or as one middle page.
//!
//! A middle page takes the time of a few base pages, and the memory of the whole run. So it is worthwhile
//! where the program accesses most units of a run while they are in memory. An observation of a run of base pages begins
//! with a fetch from the server. It ends when a page that was fetched meanwhile is evicted, because a middle page would
//! have left by then, too. It also ends when all units were fetched. The units fetched in between are the accessed ones.
//!
//! Each observation changes the score of its block by the number of base pages that a middle page would have saved. A
//! block without a score uses the score of the whole space. While a block has middle pages, a run of it is fetched as
//! base pages now and then, as a probe.

use crate::units::Geometry;

/// Cost of a middle page, in fetches of base pages: 3/4 of its units. With a half, trees moved a half more than with base
/// pages.
const COST_PARTS: (u32, u32) = (3, 4);
/// Bound of a score, in base pages saved.
const SCORE_MAX: i32 = 64;
/// Weight of a probe. Probes are rare.
const PROBE_WEIGHT: i32 = 2;
/// Smallest number of middle pages between two probes. A probe with an unexpected result resets the gap to this number.
const PROBE_GAP_MIN: u32 = 8;
/// Largest number of middle pages between two probes.
const PROBE_GAP_MAX: u32 = 128;

/// Memory use: a word of two bytes for each run, and a byte for each block.
#[derive(Debug)]
pub(super) struct Runs {
    /// For each run, a bit for each unit that was fetched as a base page since the observation began.
    accessed: Vec<u16>,
    blocks: Vec<i8>,
    overall: i32,
    run_units: u32,
    block_units: u32,
    probe_gap: u32,
    probe_in: u32,
}

impl Runs {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let (runs, blocks) = match geometry.has_middle() {
            true => (geometry.units / geometry.middle_units, geometry.blocks()),
            false => (0, 0),
        };
        Self {
            accessed: vec![0; runs as usize],
            blocks: vec![0; blocks as usize],
            overall: 0,
            run_units: geometry.middle_units,
            block_units: geometry.block_units,
            probe_gap: PROBE_GAP_MIN,
            probe_in: PROBE_GAP_MIN,
        }
    }

    /// Decides whether to fetch a run as a middle page. The caller ensures that no page of the run is in memory.
    pub(super) fn decide(&mut self, run: u32) -> bool {
        self.accessed[run as usize] = 0;
        if !self.leans_middle(run) {
            return false;
        }
        self.probe_in = self.probe_in.saturating_sub(1);
        if self.probe_in == 0 {
            self.probe_in = self.probe_gap;
            return false;
        }
        true
    }

    /// Returns the answer that [`Self::decide`] would return, but starts no probe.
    pub(super) fn leans_middle(&self, run: u32) -> bool {
        match self.blocks[self.block(run)] {
            0 => self.overall > 0,
            score => score > 0,
        }
    }

    fn block(&self, run: u32) -> usize {
        (run * self.run_units / self.block_units) as usize
    }

    /// Notes a fetch of `count` base pages from the server, from `unit` on.
    pub(super) fn fetched(&mut self, unit: u32, count: u32) {
        for unit in unit..unit + count {
            let run = unit / self.run_units;
            if let Some(accessed) = self.accessed.get_mut(run as usize) {
                *accessed |= 1 << (unit % self.run_units);
                if accessed.count_ones() == self.run_units {
                    self.conclude(run);
                }
            }
        }
    }

    /// Notes the eviction of a base page. Ends the observation of its run if the page was fetched meanwhile.
    pub(super) fn evicted(&mut self, unit: u32) {
        let run = unit / self.run_units;
        if self.accessed[run as usize] & 1 << (unit % self.run_units) != 0 {
            self.conclude(run);
        }
    }

    /// Ends the observation of a run.
    fn conclude(&mut self, run: u32) {
        let accessed = std::mem::take(&mut self.accessed[run as usize]);
        let cost = (self.run_units * COST_PARTS.0 / COST_PARTS.1) as i32;
        let mut saved = accessed.count_ones() as i32 - cost;
        if self.leans_middle(run) {
            self.probe_gap = if saved > 0 { (2 * self.probe_gap).min(PROBE_GAP_MAX) } else { PROBE_GAP_MIN };
            self.probe_in = self.probe_in.min(self.probe_gap);
            saved *= PROBE_WEIGHT;
        }
        let block = self.block(run);
        let score = (i32::from(self.blocks[block]) + saved).clamp(-SCORE_MAX, SCORE_MAX);
        self.blocks[block] = score as i8;
        self.overall = (self.overall + saved).clamp(-SCORE_MAX, SCORE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the policy of two blocks with 32 runs of 16 units each.
    fn runs() -> Runs {
        Runs::new(&Geometry { units: 1024, unit_bytes: 4096, block_units: 512, middle_units: 16 })
    }

    /// Fetches `count` units of a run as base pages, and then evicts them.
    fn stay(runs: &mut Runs, run: u32, count: u32) {
        runs.fetched(run * 16, count);
        (0..count).for_each(|unit| runs.evicted(run * 16 + unit));
    }

    #[test]
    fn one_run_that_is_fetched_as_a_whole_makes_middle_pages_and_few_probes() {
        let mut runs = runs();
        runs.fetched(0, 16);
        let mut probes = 0;
        for round in 0..1000 {
            let run = round % 64;
            if !runs.decide(run) {
                probes += 1;
                stay(&mut runs, run, 16);
            }
        }
        assert!((8..20).contains(&probes), "{probes} probes");
    }

    #[test]
    fn few_accesses_to_each_run_keep_base_pages() {
        let mut runs = runs();
        for round in 0..1000 {
            assert!(!runs.decide(round % 64));
            stay(&mut runs, round % 64, 1 + round % 10);
        }
    }

    #[test]
    fn accesses_count_only_while_a_middle_page_would_stay() {
        let mut runs = runs();
        for unit in (0..16).cycle().take(1600) {
            runs.fetched(unit, 1);
            runs.evicted(unit);
            assert!(!runs.leans_middle(0));
        }
    }

    #[test]
    fn a_sparse_phase_after_a_dense_one_is_noticed_within_eight_probes() {
        let mut runs = runs();
        (0..100).for_each(|run| stay(&mut runs, run % 64, 16));
        let mut middle = 0;
        for round in 0..2000 {
            match runs.decide(round % 64) {
                true => middle += 1,
                false => stay(&mut runs, round % 64, 2),
            }
        }
        assert!(middle < 8 * PROBE_GAP_MIN + PROBE_GAP_MAX, "{middle} middle pages for two units each");
    }
}
