//! Auto: streams, successors and blocks side by side. All are asked and measured all the time; what the best of them
//! proposes is fetched, as long as it is mostly right.

use core::fmt::Write;

use super::cluster::Cluster;
use super::gate::Judge;
use super::markov::Markov;
use super::streams::Streams;
use super::{Info, Prefetcher, Proposals, Touch};

/// Touches between two choices, while nothing is chosen and while something is.
const FIRST_CHOICE: u32 = 64;
const NEXT_CHOICE: u32 = 128;
const CANDIDATES: usize = 3;
const MARKOV_DEPTH: u32 = 8;
const CLUSTER_PAGES: u32 = 8;

pub(super) const INFO: Info = Info {
    name: "auto",
    summary: "the best of streams, markov and cluster, measured all the time; nothing while none is mostly right",
    source: "Hanare",
    params: &[],
    build: |space, _| Box::new(Auto::new(space.units)),
};

/// A candidate: its name, what proposes, and what measures it.
struct Candidate {
    name: &'static str,
    prefetcher: Box<dyn Prefetcher>,
    judge: Judge,
}

/// State: one word a unit (markov's), and 24 KiB of ghosts a candidate.
pub(super) struct Auto {
    /// Those that see furthest ahead first.
    candidates: [Candidate; CANDIDATES],
    chosen: Option<usize>,
    changes: u32,
    touches: u32,
    /// Touches of late, as the candidates' rights are counted.
    seen: u32,
    offered: Proposals,
}

impl Auto {
    pub(super) fn new(units: u32) -> Self {
        let candidate = |name, prefetcher| Candidate { name, prefetcher, judge: Judge::new() };
        Self {
            candidates: [
                candidate("streams", Box::new(Streams::new())),
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

    /// Chooses, of the candidates that are mostly right, the first that is right about half of what there is to see;
    /// else the one right about the most pages, the present one unless another is better by a quarter. (While first
    /// uses are not told, what the chosen one is right about is hidden from the others.)
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
        self.touches = 0;
        let rights = self.candidates.each_mut().map(|candidate| {
            let rights = candidate.judge.take_rights();
            if candidate.judge.is_open() { u64::from(rights) } else { 0 }
        });
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
    }
}

impl Prefetcher for Auto {
    fn touched(&mut self, touch: Touch, away: &dyn Fn(u32) -> bool, proposals: &mut Proposals) {
        self.choose();
        for (index, Candidate { prefetcher, judge, .. }) in self.candidates.iter_mut().enumerate() {
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
