//! First accesses in order. A program usually fills a new allocation from its start to its end. So an access to the page
//! after the last filled one fills a run of pages with zeroes, and each run is twice as long as the one before. A run
//! uses only free memory, and stays within pages that the program has allocated and may access.

use std::collections::VecDeque;

use super::Pager;
use super::page::{DIRTY, GUESSED, WANTED};
use crate::config::State;
use crate::event::Actions;
use crate::limits;
use crate::units::PageId;

/// Divisor of the free local memory: a run takes at most 1/8 of it.
const ROOM_PART: u32 = 8;

/// An allocated range that the program may access. Its pages before `first` were filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u32,
    end: u32,
    /// Number of units that the last fill of this range covered.
    filled: u32,
}

/// The ranges that may be filled, the most recent last. If there are too many, the oldest is forgotten.
#[derive(Debug)]
pub(super) struct Fresh {
    ranges: VecDeque<Range>,
}

impl Fresh {
    pub(super) fn new() -> Self {
        Self { ranges: VecDeque::with_capacity(limits::FRESH_MAX) }
    }

    pub(super) fn add(&mut self, first: u32, end: u32) {
        self.remove(first, end);
        self.push(Range { first, end, filled: 0 });
    }

    fn push(&mut self, range: Range) {
        if range.first >= range.end {
            return;
        }
        if self.ranges.len() == limits::FRESH_MAX {
            self.ranges.pop_front();
        }
        self.ranges.push_back(range);
    }

    /// Removes the units of `[first, end)`. A range keeps its other units.
    pub(super) fn remove(&mut self, first: u32, end: u32) {
        while let Some(at) = self.ranges.iter().position(|range| range.first < end && first < range.end)
            && let Some(range) = self.ranges.remove(at)
        {
            self.push(Range { end: first, ..range });
            self.push(Range { first: end, filled: 0, ..range });
        }
    }

    /// Whether the accesses before this one were in order, this one is the next, and `count` units from this one on may
    /// be filled. If so, they count as filled.
    fn goes_on(&mut self, unit: u32, count: u32) -> bool {
        let goes_on = |range: &&mut Range| range.first == unit && range.filled > 0 && range.end - unit >= count;
        let Some(range) = self.ranges.iter_mut().find(goes_on) else { return false };
        (range.first, range.filled) = (unit + count, count);
        true
    }

    /// Notes an access to an untouched unit. Returns the number of units after it that may be filled with it, at most
    /// `most`.
    fn accessed(&mut self, unit: u32, most: u32) -> u32 {
        let Some(at) = self.ranges.iter().rposition(|range| (range.first..range.end).contains(&unit)) else { return 0 };
        let Some(range) = self.ranges.remove(at) else { return 0 };
        let fill = if unit == range.first { 2 * range.filled } else { 1 }.max(1);
        let fill = fill.min(most.saturating_add(1)).min(range.end - unit);
        self.push(Range { end: unit, filled: 0, ..range });
        self.push(Range { first: unit + fill, end: range.end, filled: fill });
        fill - 1
    }
}

impl Pager {
    /// Whether to fill the untouched run of this unit as one middle page. While much memory is free, runs of base pages
    /// are filled instead, because they are longer.
    pub(super) fn fills_middle(&mut self, unit: u32) -> bool {
        let count = self.geometry.middle_units;
        unit.is_multiple_of(count) && self.fill_room() < count && self.fresh.goes_on(unit, count)
    }

    /// Returns the number of free units that a fill may take.
    fn fill_room(&self) -> u32 {
        self.budget.saturating_sub(self.local_units() + self.low) / ROOM_PART
    }

    /// Returns the number of pages to fill with zeroes together with this one, the first access to an allocated page.
    pub(super) fn fresh_run(&mut self, page: PageId) -> u32 {
        if self.state(page) != State::Untouched || self.span(page) > 1 || self.pool_of(page).class.moves {
            return 0;
        }
        let run_max = (limits::RUN_BYTES_MAX / self.geometry.unit_bytes).max(1);
        let most = if self.starved.is_empty() { (run_max - 1).min(self.fill_room()) } else { 0 };
        let run = self.fresh.accessed(page.0, most);
        let is_untouched = |unit: &u32| {
            let next = PageId(*unit);
            self.head(next.0) == next
                && self.span(next) == 1
                && self.state(next) == State::Untouched
                && !self.has(next, WANTED)
        };
        (page.0 + 1..page.0 + 1 + run).take_while(is_untouched).count() as u32
    }

    /// Adds the `run` pages after `page` to its fill, the action at index `fetch`. The pages are open for writing. If the
    /// program does not write to such a page, it still holds zeroes when it is evicted, and is dropped.
    pub(super) fn fill_run(&mut self, page: PageId, run: u32, fetch: usize, actions: &mut Actions) {
        for unit in page.0 + 1..page.0 + 1 + run {
            let next = PageId(unit);
            self.used += 1;
            self.counters.pages_small += 1;
            self.move_to(next, State::Fetching);
            self.set_frame(next, None);
            self.set(next, DIRTY | GUESSED);
            actions.extend_run(fetch, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_double_while_the_accesses_are_in_order() {
        let mut fresh = Fresh::new();
        fresh.add(10, 100);
        let mut unit = 10;
        let runs: Vec<u32> = (0..6)
            .map(|_| {
                let run = fresh.accessed(unit, 15);
                unit += run + 1;
                run
            })
            .collect();
        assert_eq!(runs, [0, 1, 3, 7, 15, 15]);
        assert_eq!(fresh.accessed(99, 15), 0, "the last unit");
        assert_eq!(fresh.accessed(100, 15), 0, "not allocated");
    }

    #[test]
    fn each_part_of_a_range_has_its_own_order() {
        let mut fresh = Fresh::new();
        fresh.add(0, 100);
        assert_eq!((fresh.accessed(50, 15), fresh.accessed(0, 15)), (0, 0));
        assert_eq!((fresh.accessed(51, 15), fresh.accessed(1, 15)), (1, 1));
        assert_eq!((fresh.accessed(53, 15), fresh.accessed(3, 15)), (3, 3));
        assert_eq!(fresh.accessed(48, 15), 0);
        assert_eq!(fresh.accessed(49, 15), 0, "the next part is filled already");
    }

    #[test]
    fn removed_units_are_not_filled() {
        let mut fresh = Fresh::new();
        fresh.add(0, 100);
        fresh.remove(4, 8);
        assert_eq!([0, 1, 3].map(|unit| fresh.accessed(unit, 15)), [0, 1, 0]);
        assert_eq!([4, 7, 8, 9].map(|unit| fresh.accessed(unit, 15)), [0, 0, 0, 1]);
        for first in 0..2 * limits::FRESH_MAX as u32 {
            fresh.add(1000 + 2 * first, 1001 + 2 * first);
        }
        assert_eq!(fresh.ranges.len(), limits::FRESH_MAX);
    }
}
