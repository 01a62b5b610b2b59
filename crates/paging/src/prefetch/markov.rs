//! Markov: remembers for each page the page that was accessed after it the last time (paper 1's swap-in history, used
//! for prefetching; Joseph and Grunwald, "Prefetching using Markov Predictors", ISCA 1997). The prefetcher proposes the
//! chain of successors, until a link has no confidence.

use super::accuracy::{self, FILTER};
use super::{Info, Param, Prefetcher, Proposals, Touch};

/// A word holds the successor's unit plus one in this number of low bits. The two bits above them hold the confidence.
const UNIT_BITS: u32 = 30;
/// Maximum confidence. The confidence counts how often a successor was right recently.
const CONFIDENCE_MAX: u32 = 3;

const _: () = assert!(crate::limits::UNITS_MAX < 1 << UNIT_BITS);

pub(super) const INFO: Info = Info {
    name: "markov",
    summary: "the pages that followed the last time",
    source: "paper 1, swap-in history; Joseph, Grunwald, ISCA 1997",
    params: &[Param { name: "depth", help: "successors followed", default: 4, min: 1, max: 32 }, FILTER],
    build: |space, values| accuracy::filtered(Box::new(Markov::new(space.units, values.get("depth") as u32)), values),
};

/// Memory use: one word per unit.
pub(super) struct Markov {
    next: Vec<u32>,
    last: Option<u32>,
    depth: u32,
}

impl Markov {
    pub(super) fn new(units: u32, depth: u32) -> Self {
        Self { next: vec![0; units as usize], last: None, depth }
    }

    fn successor(&self, unit: u32) -> Option<u32> {
        let entry = *self.next.get(unit as usize)?;
        (entry & ((1 << UNIT_BITS) - 1)).checked_sub(1)
    }

    fn strengthen(&mut self, unit: u32) {
        let entry = &mut self.next[unit as usize];
        if *entry >> UNIT_BITS < CONFIDENCE_MAX {
            *entry += 1 << UNIT_BITS;
        }
    }

    /// Learns that `unit` was accessed after `last`, without having been predicted. First lowers the confidence in the
    /// old successor of `last`. If its confidence is already 0, `unit` replaces the old successor.
    fn learn(&mut self, last: u32, unit: u32) {
        let entry = &mut self.next[last as usize];
        match *entry >> UNIT_BITS {
            0 => *entry = 1 << UNIT_BITS | (unit + 1),
            _ => *entry -= 1 << UNIT_BITS,
        }
    }

    /// Searches for an accessed unit along the chain that starts at the previous access. The units in between may have
    /// been prefetched and mapped, so that accesses to them were not seen.
    fn follow(&mut self, last: u32, unit: u32, proposals: &mut Proposals) {
        let mut at = last;
        for step in 0..=self.depth {
            match self.successor(at) {
                Some(next) if next == unit => {
                    self.strengthen(at);
                    self.strengthen_path(last, step);
                    return proposals.confirm(step);
                }
                Some(next) => at = next,
                None => break,
            }
        }
        self.learn(last, unit);
    }

    fn strengthen_path(&mut self, from: u32, steps: u32) {
        let mut at = from;
        for _ in 0..steps {
            self.strengthen(at);
            let Some(next) = self.successor(at) else {
                return;
            };
            at = next;
        }
    }
}

impl Prefetcher for Markov {
    fn remembers(&self) -> bool {
        true
    }

    fn touched(&mut self, touch: Touch, _away: &dyn Fn(u32) -> bool, proposals: &mut Proposals) {
        if touch.unit as usize >= self.next.len() {
            return;
        }
        if let Some(last) = self.last.replace(touch.unit)
            && last != touch.unit
        {
            self.follow(last, touch.unit, proposals);
        }
        let span = touch.span.max(1);
        let mut at = touch.unit;
        for _ in 0..self.depth.min(touch.window_max / span) {
            match self.successor(at) {
                Some(next) if self.next[at as usize] >> UNIT_BITS > 0 && next != touch.unit => {
                    proposals.push(next, span);
                    at = next;
                }
                _ => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::propose;
    use super::*;

    #[test]
    fn a_chain_seen_once_is_followed_to_its_depth() {
        let mut markov = Markov::new(100, 3);
        for unit in [7, 90, 31, 55, 2] {
            assert_eq!(propose(&mut markov, unit, 1, 64), []);
        }
        assert_eq!(propose(&mut markov, 7, 1, 64), [(90, 1), (31, 1), (55, 1)]);
        assert_eq!(
            propose(&mut markov, 31, 1, 64),
            [(55, 1), (2, 1), (7, 1)],
            "seen again only behind what was fetched"
        );
        assert_eq!(propose(&mut markov, 31, 1, 2), [(55, 1), (2, 1)]);
    }

    #[test]
    fn what_was_passed_unseen_is_confirmed() {
        let mut markov = Markov::new(100, 3);
        for unit in [7, 90, 31, 55, 2, 7] {
            propose(&mut markov, unit, 1, 64);
        }
        let mut proposals = Proposals::default();
        let touch = Touch { unit: 2, span: 1, window_max: 64, staged: false, told: false };
        markov.touched(touch, &|_| true, &mut proposals);
        assert_eq!(proposals.confirmed(), 3);
    }

    #[test]
    fn a_successor_that_fails_is_given_up() {
        let mut markov = Markov::new(100, 1);
        for unit in [1, 2, 1] {
            propose(&mut markov, unit, 1, 64);
        }
        for other in [50, 60] {
            propose(&mut markov, other, 1, 64);
            assert!(!propose(&mut markov, 1, 1, 64).contains(&(2, 1)), "after {other}");
        }
        propose(&mut markov, 60, 1, 64);
        assert_eq!(propose(&mut markov, 1, 1, 64), [(60, 1)]);
    }
}
