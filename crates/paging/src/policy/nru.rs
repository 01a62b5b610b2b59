//! U-NRU: four classes by pseudo reference and modified bits. Evicts a random page of the lowest class that is not
//! empty. Reference bits are cleared after a number of swaps or milliseconds (paper 1, section 2.3).

use super::classes::Classes;
use super::random::Draw;
use super::{Cause, Info, Leave, Param, Policy};
use crate::limits;
use crate::units::PageId;

pub(super) const BY_SWAPS: Info = Info {
    name: "nru-swaps",
    summary: "a random page of the lowest class by reference and write, cleared by swap count; unmaps pages to see references",
    source: "paper 1, U-NRU_s",
    params: &[Param {
        name: "swaps",
        help: "pages replaced between two rounds of clearing",
        default: 50,
        min: 10,
        max: limits::UNITS_MAX as u64,
    }],
    build: |space, values| Box::new(Nru::new(space.units, space.seed, Every::Swaps(values.get("swaps")))),
};

pub(super) const BY_TIMER: Info = Info {
    name: "nru-timer",
    summary: "a random page of the lowest class by reference and write, cleared by timer; unmaps pages to see references",
    source: "paper 1, U-NRU_t",
    params: &[Param {
        name: "ms",
        help: "milliseconds between two rounds of clearing",
        default: 500,
        min: 10,
        max: 3_600_000,
    }],
    build: |space, values| Box::new(Nru::new(space.units, space.seed, Every::Millis(values.get("ms")))),
};

/// Segments: the four classes in order. Each class of referenced pages has two segments. Pages that were referenced
/// before the present round of clearing began are in its "due" segment, and lose their bit one by one. Pages referenced
/// since then keep their bit.
const QUIET_CLEAN: usize = 0;
const QUIET_DIRTY: usize = 1;
const DUE_CLEAN: usize = 2;
const DUE_DIRTY: usize = 3;
const REFERENCED_CLEAN: usize = 4;
const REFERENCED_DIRTY: usize = 5;
const CLASSES: [(usize, Option<usize>); 4] = [
    (QUIET_CLEAN, None),
    (QUIET_DIRTY, None),
    (DUE_CLEAN, Some(REFERENCED_CLEAN)),
    (DUE_DIRTY, Some(REFERENCED_DIRTY)),
];

#[derive(Clone, Copy, Debug)]
pub(super) enum Every {
    Swaps(u64),
    Millis(u64),
}

/// Memory use: one page number and one position per unit.
#[derive(Debug)]
pub(super) struct Nru {
    pages: Classes<6>,
    draw: Draw,
    every: Every,
    swaps: u64,
    since_ms: Option<u64>,
    /// Whether a new round of clearing must begin as soon as the present round is done.
    round_wanted: bool,
}

impl Nru {
    pub(super) fn new(units: u32, seed: u64, every: Every) -> Self {
        Self { pages: Classes::new(units), draw: Draw::new(seed), every, swaps: 0, since_ms: None, round_wanted: false }
    }

    fn is_dirty(&self, page: PageId) -> bool {
        matches!(self.pages.class_of(page), QUIET_DIRTY | DUE_DIRTY | REFERENCED_DIRTY)
    }

    fn begin_round(&mut self) {
        if self.round_wanted && self.pages.len(DUE_CLEAN) + self.pages.len(DUE_DIRTY) == 0 {
            self.pages.hand_down(DUE_CLEAN);
            self.round_wanted = false;
        }
    }
}

impl Policy for Nru {
    fn inserted(&mut self, page: PageId, cause: Cause) {
        let class = match cause {
            Cause::Ahead => QUIET_CLEAN,
            Cause::Read => REFERENCED_CLEAN,
            Cause::Write => REFERENCED_DIRTY,
        };
        self.pages.insert(page, class);
    }

    fn referenced(&mut self, page: PageId, write: bool) {
        let dirty = write || self.is_dirty(page);
        self.pages.change(page, if dirty { REFERENCED_DIRTY } else { REFERENCED_CLEAN });
    }

    fn removed(&mut self, page: PageId, why: Leave) {
        self.pages.remove(page);
        self.swaps += u64::from(why == Leave::Evicted);
        if let Every::Swaps(count) = self.every
            && self.swaps >= count
        {
            (self.swaps, self.round_wanted) = (0, true);
        }
    }

    /// Searches class by class, from a random page of the class on, for the first accepted page. Each class may use its
    /// share of the search limit, and what the classes before it did not use. So a large class of refused pages does
    /// not prevent the search of the next class.
    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let mut left = limits::VICTIM_SCAN_MAX as u32;
        for (above, &(part, other)) in (1..=CLASSES.len() as u32).rev().zip(&CLASSES) {
            let first = self.pages.len(part);
            let len = first + other.map_or(0, |other| self.pages.len(other));
            let count = len.min(left / above);
            if count == 0 {
                continue;
            }
            left -= count;
            let start = self.draw.below(len);
            let page = |step| match (start + step) % len {
                index if index < first => self.pages.get(part, index),
                index => self.pages.get(other.unwrap_or(part), index - first),
            };
            if let Some(page) = (0..count).map(page).find(|&page| accept(page)) {
                return Some(page);
            }
        }
        None
    }

    fn next_to_hide(&mut self) -> Option<PageId> {
        self.begin_round();
        let clean = self.pages.last(DUE_CLEAN);
        let page = clean.or_else(|| self.pages.last(DUE_DIRTY))?;
        self.pages.change(page, if clean.is_some() { QUIET_CLEAN } else { QUIET_DIRTY });
        Some(page)
    }

    fn hides(&self) -> bool {
        true
    }

    fn tick(&mut self, now_ms: u64) {
        let Every::Millis(interval) = self.every else {
            return;
        };
        let since = *self.since_ms.get_or_insert(now_ms);
        if now_ms.saturating_sub(since) >= interval {
            (self.since_ms, self.round_wanted) = (Some(now_ms), true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn evict(nru: &mut Nru) -> Option<u32> {
        let victim = nru.victim(&|_| true)?;
        nru.removed(victim, Leave::Evicted);
        Some(victim.0)
    }

    fn hidden(nru: &mut Nru) -> BTreeSet<u32> {
        std::iter::from_fn(|| nru.next_to_hide()).map(|page| page.0).collect()
    }

    fn insert(nru: &mut Nru, cause: Cause, pages: std::ops::Range<u32>) {
        pages.for_each(|page| nru.inserted(PageId(page), cause));
    }

    #[test]
    fn the_classes_leave_in_their_order() {
        for seed in 0..20 {
            let mut nru = Nru::new(64, seed, Every::Millis(100));
            insert(&mut nru, Cause::Read, 0..6);
            insert(&mut nru, Cause::Write, 6..12);
            nru.tick(1000);
            assert_eq!(hidden(&mut nru), BTreeSet::new(), "the first tick starts the interval");
            nru.tick(1099);
            assert_eq!(hidden(&mut nru), BTreeSet::new());
            nru.tick(1100);
            assert_eq!(hidden(&mut nru), (0..12).collect());
            // Pages 0 and 1, which are clean, are read. Page 2, also clean, is written. Pages 6 and 7, which are dirty,
            // are read.
            (0..2).for_each(|page| nru.referenced(PageId(page), false));
            nru.referenced(PageId(2), true);
            (6..8).for_each(|page| nru.referenced(PageId(page), false));
            let order: Vec<_> = std::iter::from_fn(|| evict(&mut nru)).collect();
            let class = |range: std::ops::Range<usize>| order[range].iter().copied().collect::<BTreeSet<_>>();
            assert_eq!(class(0..3), BTreeSet::from([3, 4, 5]), "neither referenced nor modified");
            assert_eq!(class(3..7), BTreeSet::from([8, 9, 10, 11]), "modified, not referenced");
            assert_eq!(class(7..9), BTreeSet::from([0, 1]), "referenced, not modified");
            assert_eq!(class(9..12), BTreeSet::from([2, 6, 7]), "both");
        }
    }

    #[test]
    fn within_a_class_the_choice_is_random_also_while_a_round_is_under_way() {
        let mut seen = BTreeSet::new();
        for seed in 0..400 {
            let mut nru = Nru::new(64, seed, Every::Swaps(10));
            insert(&mut nru, Cause::Write, 20..30);
            (20..30).for_each(|page| nru.removed(PageId(page), Leave::Evicted));
            insert(&mut nru, Cause::Read, 0..4);
            nru.begin_round();
            insert(&mut nru, Cause::Read, 4..8);
            insert(&mut nru, Cause::Write, 8..12);
            seen.extend(nru.victim(&|_| true).map(|page| page.0));
        }
        assert_eq!(seen, (0..8).collect());
    }

    #[test]
    fn a_round_comes_every_so_many_swaps_and_clears_what_was_referenced_when_it_began() {
        let mut nru = Nru::new(64, 1, Every::Swaps(10));
        insert(&mut nru, Cause::Read, 0..20);
        for left in (0..10).rev() {
            assert_eq!(nru.next_to_hide(), None, "{left} swaps to go");
            nru.removed(PageId(left), Leave::Evicted);
        }
        let first = nru.next_to_hide().expect("a round began");
        nru.referenced(first, false);
        nru.inserted(PageId(30), Cause::Read);
        nru.inserted(PageId(31), Cause::Ahead);
        nru.removed(PageId(if first.0 == 12 { 13 } else { 12 }), Leave::Forgotten);
        assert_eq!(hidden(&mut nru).len(), 8, "not the page referenced again, nor those that came or went");
        assert_eq!(nru.pages.class_of(first), REFERENCED_CLEAN);
        assert_eq!(nru.pages.class_of(PageId(30)), REFERENCED_CLEAN);
        // Discarded pages do not count as swaps.
        for page in 0..9 {
            nru.inserted(PageId(page), Cause::Ahead);
            nru.removed(PageId(page), if page == 0 { Leave::Forgotten } else { Leave::Evicted });
        }
        assert_eq!(nru.next_to_hide(), None);
        evict(&mut nru);
        evict(&mut nru);
        assert_eq!(hidden(&mut nru), BTreeSet::from([first.0, 30]));
    }

    #[test]
    fn a_round_waits_for_the_one_before_it() {
        let mut nru = Nru::new(64, 1, Every::Millis(10));
        nru.tick(0);
        insert(&mut nru, Cause::Write, 0..4);
        nru.tick(10);
        let first = nru.next_to_hide().expect("a round began");
        nru.referenced(first, false);
        nru.tick(20);
        let rest: Vec<_> = (0..3).filter_map(|_| nru.next_to_hide()).collect();
        assert!(!rest.contains(&first), "the three others come first");
        assert_eq!(nru.next_to_hide(), Some(first));
        assert_eq!(nru.next_to_hide(), None);
    }

    #[test]
    fn a_large_class_that_is_refused_does_not_end_the_search() {
        let mut nru = Nru::new(5000, 1, Every::Swaps(10));
        insert(&mut nru, Cause::Ahead, 0..4000);
        insert(&mut nru, Cause::Write, 4000..4100);
        assert_eq!(nru.victim(&|page| page.0 == 4050), Some(PageId(4050)));
        nru.referenced(PageId(17), false);
        assert_eq!(nru.victim(&|page| page.0 == 17), Some(PageId(17)));
    }
}
