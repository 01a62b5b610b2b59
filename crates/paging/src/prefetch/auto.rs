//! Auto: runs the prefetchers streams, rows, markov and cluster side by side. All four propose at every access, and all are
//! measured. Only the proposals of the best prefetcher are fetched, and only while most of them are right. A prefetcher
//! that predicts hardly anything rests during most accesses, because to ask four prefetchers takes a tenth of a fault's
//! time.

use core::fmt::Write;

use super::accuracy::Judge;
use super::cluster::Cluster;
use super::markov::Markov;
use super::rows::Rows;
use super::streams::Streams;
use super::{Info, Prefetcher, Proposals, Touch};

/// Number of accesses before the first choice, and between choices while no candidate is chosen.
const FIRST_CHOICE: u32 = 64;
/// Number of accesses between choices while a candidate is chosen.
const NEXT_CHOICE: u32 = 128;
/// A prefetcher that is not chosen rests if it predicts fewer than one in this number of accesses.
const PREDICTS: u64 = 16;
/// Number of accesses for which a prefetcher is asked before it rests, and of the accesses of a rest.
const ASKED: u32 = 256;
const REST: u32 = 768;
const CANDIDATES: usize = 4;
const MARKOV_DEPTH: u32 = 8;
const CLUSTER_PAGES: u32 = 8;

pub(super) const INFO: Info = Info {
    name: "auto",
    summary: "the best of streams, rows, markov and cluster, measured all the time; nothing while none is mostly right",
    source: "Hanare",
    params: &[],
    build: |space, _| Box::new(Auto::new(space.units)),
};

/// A candidate: its name, its prefetcher, and the filter that measures it.
struct Candidate {
    name: &'static str,
    prefetcher: Box<dyn Prefetcher>,
    judge: Judge,
    /// Number of accesses up to the last choice since the prefetcher last predicted a fair part of them.
    vain: u32,
    /// Number of accesses until the prefetcher is asked again.
    rest: u32,
}

/// Memory use: one word per unit (for markov), and 24 KiB of ghosts (remembered proposals) per candidate.
pub(super) struct Auto {
    /// The candidates. Those that predict furthest ahead come first.
    candidates: [Candidate; CANDIDATES],
    chosen: Option<usize>,
    changes: u32,
    touches: u32,
    /// Number of accesses. It is halved at each choice, and so are the candidates' counts of right proposals.
    seen: u32,
    offered: Proposals,
}

impl Auto {
    pub(super) fn new(units: u32) -> Self {
        let candidate = |name, prefetcher| Candidate { name, prefetcher, judge: Judge::new(), vain: 0, rest: 0 };
        Self {
            candidates: [
                candidate("streams", Box::new(Streams::new())),
                candidate("rows", Box::new(Rows::new())),
                candidate("markov", Box::new(Markov::new(units, MARKOV_DEPTH))),
                candidate("cluster", Box::new(Cluster::new(CLUSTER_PAGES))),
            ],
            chosen: None,
            changes: 0,
            touches: 0,
            seen: 0,
            offered: Proposals::default(),
        }
    }

    /// Chooses among the candidates that are mostly right. The first candidate that predicts about half of the visible
    /// accesses wins. If there is none, the candidate that predicts the most wins. The present candidate stays if no
    /// other is better by a quarter. If first uses of fetched pages are not seen, only the present candidate gets
    /// credit for the pages that it fetches rightly.
    fn choose(&mut self) {
        if let Some(chosen) = self.chosen
            && !self.candidates[chosen].judge.is_open()
        {
            self.chosen = None;
        }
        self.touches += 1;
        self.seen = self.seen.saturating_add(1);
        if self.touches < if self.chosen.is_some() { NEXT_CHOICE } else { FIRST_CHOICE } {
            return;
        }
        let touches = core::mem::take(&mut self.touches);
        let mut rights = self.candidates.each_mut().map(|candidate| u64::from(candidate.judge.take_rights()));
        for (rights, candidate) in rights.iter_mut().zip(&mut self.candidates) {
            let hardly = *rights * PREDICTS < u64::from(self.seen);
            candidate.vain = if hardly && candidate.rest == 0 { candidate.vain + touches } else { 0 };
            *rights = if candidate.judge.is_open() { *rights } else { 0 };
        }
        let half = u64::from(self.seen) / 2;
        self.seen /= 2;
        let mut best = self.chosen.unwrap_or(0);
        if let Some(first) = rights.iter().position(|&rights| rights > half) {
            best = first;
        } else {
            for other in 0..CANDIDATES {
                if rights[other] * 4 > rights[best] * 5 {
                    best = other;
                }
            }
        }
        let chosen = self.candidates[best].judge.is_open().then_some(best);
        self.changes += u32::from(chosen != self.chosen);
        self.chosen = chosen;
        for (index, candidate) in self.candidates.iter_mut().enumerate() {
            if candidate.vain >= ASKED && chosen != Some(index) {
                (candidate.vain, candidate.rest) = (0, REST);
            }
        }
    }
}

impl Prefetcher for Auto {
    fn touched(&mut self, touch: Touch, away: &dyn Fn(u32) -> bool, proposals: &mut Proposals) {
        self.choose();
        for (index, Candidate { prefetcher, judge, rest, .. }) in self.candidates.iter_mut().enumerate() {
            if *rest > 0 {
                *rest -= 1;
                if prefetcher.remembers() {
                    self.offered.clear();
                    prefetcher.touched(touch, away, &mut self.offered);
                }
                continue;
            }
            judge.watch(touch, self.chosen == Some(index), prefetcher.accounts());
            self.offered.clear();
            prefetcher.touched(touch, away, &mut self.offered);
            judge.pass(touch, &self.offered, away, proposals);
        }
    }

    fn describe(&self, out: &mut dyn Write) -> core::fmt::Result {
        let chosen = self.chosen.map_or("none", |index| self.candidates[index].name);
        write!(out, "chosen: {chosen} (change {})", self.changes)?;
        for Candidate { name, judge, .. } in &self.candidates {
            write!(out, "; {name}: ")?;
            judge.describe(out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(auto: &mut Auto, unit: u32) -> bool {
        let mut proposals = Proposals::default();
        let touch = Touch { unit, span: 1, window_max: 16, staged: false, told: false };
        auto.touched(touch, &|_| true, &mut proposals);
        !proposals.as_slice().is_empty()
    }

    /// After many random accesses, most are not looked at. A sweep that follows is found at the end of the rest.
    #[test]
    fn random_accesses_make_it_rest_and_a_sweep_is_found_after_that() {
        let units = 1 << 20;
        let mut auto = Auto::new(units);
        let (mut seed, mut looked) = (7u32, 0);
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            looked += auto.candidates.iter().filter(|candidate| candidate.rest == 0).count();
            assert!(!touch(&mut auto, (seed >> 8) % units));
        }
        let each = looked / CANDIDATES;
        assert!((4_000..8_000).contains(&each), "each looked at {each} of 20,000 accesses");
        let found = (0..4_000).position(|unit| touch(&mut auto, unit));
        assert!(found.is_some_and(|accesses| accesses < (REST + 2 * ASKED) as usize), "{found:?}");
    }
    /// While a sweep keeps one prefetcher busy, the others rest.
    #[test]
    fn prefetchers_that_predict_nothing_rest_beside_one_that_is_chosen() {
        let mut auto = Auto::new(1 << 20);
        let (mut looked, mut proposed) = ([0; CANDIDATES], 0);
        for turn in 0..20_000 {
            // A stride that `cluster` does not reach.
            proposed += u32::from(touch(&mut auto, turn * 40 % (1 << 20)));
            for (looked, candidate) in looked.iter_mut().zip(&auto.candidates) {
                *looked += u32::from(candidate.rest == 0);
            }
        }
        assert!(proposed > 15_000, "{proposed}");
        assert!(looked.iter().filter(|&&looked| looked < 8_000).count() >= 2, "{looked:?}");
    }
}
