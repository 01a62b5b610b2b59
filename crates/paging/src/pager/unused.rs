//! Unused ranges: units that the program freed and may use again soon. Their resident pages stay in local memory while
//! there is room, and are the first to go when room is needed. Their bytes are lost then, and nothing is transferred.

use std::collections::VecDeque;

use super::Pager;
use super::page::{DISCARDED, HELD_BACK, HIDDEN, WANTED, WRITING};
use crate::config::{Progress, State};
use crate::event::Actions;
use crate::limits;
use crate::units::PageId;

/// A range of unused units.
#[derive(Clone, Copy, Debug)]
struct Range {
    first: u32,
    end: u32,
    /// The next unit to drop. The pages before this unit were dropped, or could not be.
    next: u32,
}

/// The unused ranges, the oldest first.
#[derive(Debug)]
pub(super) struct Unused {
    ranges: VecDeque<Range>,
}

impl Unused {
    pub(super) fn new() -> Self {
        Self { ranges: VecDeque::with_capacity(limits::UNUSED_MAX) }
    }

    /// Adds a range. If the list is full, the oldest range leaves it, and its pages count as used again.
    fn add(&mut self, first: u32, end: u32) {
        if self.ranges.len() == limits::UNUSED_MAX {
            self.ranges.pop_front();
        }
        self.ranges.push_back(Range { first, end, next: first });
    }

    /// Removes the ranges that overlap `[first, end)`. Returns whether one range contained all of these units and no
    /// page of it was dropped.
    pub(super) fn remove(&mut self, first: u32, end: u32) -> bool {
        let mut whole = false;
        self.ranges.retain(|range| {
            whole |= range.first <= first && end <= range.end && range.next == range.first;
            range.end <= first || end <= range.first
        });
        whole
    }

    pub(super) fn clear(&mut self) {
        self.ranges.clear();
    }
}

impl Pager {
    /// Marks units as unused, from `next` on. Their resident pages stay, and are no longer locked. Absent pages are
    /// discarded.
    pub(super) fn unuse(&mut self, first: u32, next: u32, end: u32, actions: &mut Actions) -> Progress {
        let end = end.min(self.geometry.units);
        let stop = end.min(next.saturating_add(limits::DISCARD_UNITS_MAX));
        let mut unit = next;
        while unit < stop {
            let page = self.head(unit);
            let after = page.0 + self.span(page);
            let is_absent = match self.state(page) {
                State::Remote => true,
                State::Staged => !self.has(page, HIDDEN),
                _ => false,
            };
            let whole = page.0 >= first && after <= end;
            if whole {
                self.unlock_page(page);
            }
            if whole && is_absent {
                self.discard_page(page, actions);
            }
            unit = after;
        }
        if unit < end {
            return Progress::Continue(unit);
        }
        self.unused.remove(first, end);
        self.unused.add(first, end);
        Progress::Done
    }

    /// Ends the state of being unused. Returns [`Progress::Busy`] while a page of the range is being dropped, because
    /// bytes that the program writes to such a page would be lost.
    pub(super) fn use_again(&mut self, first: u32, end: u32) -> Progress {
        let end = end.min(self.geometry.units);
        if self.unused.remove(first, end) {
            return Progress::Done;
        }
        let stop = end.min(first.saturating_add(limits::DISCARD_UNITS_MAX));
        let mut unit = first;
        while unit < stop {
            let page = self.head(unit);
            if self.state(page) == State::TakingOut && self.has(page, DISCARDED) {
                return Progress::Busy(unit);
            }
            unit = page.0 + self.span(page);
        }
        if unit < end { Progress::Continue(unit) } else { Progress::Done }
    }

    /// Drops a page of the oldest unused range. Returns false if there is none.
    pub(super) fn drop_unused(&mut self, actions: &mut Actions, keeps: &dyn Fn(PageId) -> bool) -> bool {
        let mut looks = limits::DISCARD_UNITS_MAX;
        while let Some(range) = self.unused.ranges.front().copied() {
            if range.next >= range.end {
                self.unused.ranges.pop_front();
                continue;
            }
            if looks == 0 {
                return false;
            }
            looks -= 1;
            let page = self.head(range.next);
            let after = page.0 + self.span(page);
            if let Some(front) = self.unused.ranges.front_mut() {
                front.next = after;
            }
            let whole = page.0 >= range.first && after <= range.end;
            let goes = self.state(page) == State::Resident
                && !self.has(page, WRITING | WANTED | HELD_BACK)
                && whole
                && !keeps(page);
            if goes && self.discard_page(page, actions) {
                return true;
            }
        }
        false
    }
}
