//! Auto: runs the prefetchers streams, rows, markov and cluster side by side. All four propose at every access, and all are
//! measured. Only the proposals of the best prefetcher are fetched, and only while most of them are right.

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
        let candidate = |name, prefetcher| Candidate { name, prefetcher, judge: Judge::new() };
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
