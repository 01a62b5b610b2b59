//! Shape: discards pages, and changes blocks between base pages and one huge page.

use super::Pager;
use super::page::{
    DIRTY, DISCARDED, GUESSED, HELD, HIDDEN, LOCKED, PREFETCHED, STALE, WANTED, WRITE, WRITING, WRITTEN_BEFORE,
};
use crate::config::{Progress, State};
use crate::event::{Action, Actions, Event};
use crate::limits;
use crate::policy::Leave;
use crate::units::PageId;

impl Pager {
    /// Processes an event that tells what the program has allocated or no longer needs.
    pub(super) fn allocation(&mut self, event: Event, actions: &mut Actions) -> Progress {
        match event {
            Event::Discard { first, end } => {
                self.unused.remove(first, end);
                self.fresh.remove(first, end);
                return self.discard(first, end, actions);
            }
            Event::Unused { first, next, end } => {
                self.fresh.remove(first, end);
                return self.unuse(first, next, end, actions);
            }
            Event::Used { first, end } => return self.use_again(first, end),
            Event::Lock { first, end } => return self.lock(first, end, actions),
            Event::Unlock { first, end } => return self.unlock(first, end, actions),
            Event::Allocated { first, end, is_open: true } => self.fresh.add(first, end.min(self.geometry.units)),
            Event::Allocated { first, end, .. } => self.fresh.remove(first, end),
            _ => {}
        }
        Progress::Done
    }

    pub(super) fn discard(&mut self, first: u32, end: u32, actions: &mut Actions) -> Progress {
        let end = end.min(self.geometry.units);
        let stop = end.min(first.saturating_add(limits::DISCARD_UNITS_MAX));
        let mut unit = first;
        while unit < stop {
            let page = self.head(unit);
            let span = self.span(page);
            let whole = page.0 >= first && page.0 + span <= end;
            if !whole && self.state(page) != State::Untouched && !self.part(page, actions) {
                return Progress::Busy(unit);
            }
            if whole && !self.discard_page(page, actions) {
                return Progress::Busy(unit);
            }
            // If the page was split above, the loop continues with the same unit and discards the new pages one by one.
            // If the page is untouched, there is nothing to discard.
            if whole || self.span(page) == span {
                unit = page.0 + span;
            }
        }
        if unit < end { Progress::Continue(unit) } else { Progress::Done }
    }

    /// Splits a huge page, because an event concerns only a part of it. Returns false if the page is in transit.
    pub(super) fn part(&mut self, page: PageId, actions: &mut Actions) -> bool {
        // No completion follows for a prefetched page that waits in a frame. A caller that waits for one would wait for
        // ever. So the page is dropped here.
        if self.state(page) == State::Staged && self.has(page, PREFETCHED) {
            self.drop_prefetched_page(page);
        }
        let is_split = self.split(page);
        if !is_split && self.is_hidden(page) {
            self.unhide(page, false, actions);
        }
        is_split
    }

    /// Discards one page. Returns false if the page is in transit.
    pub(super) fn discard_page(&mut self, page: PageId, actions: &mut Actions) -> bool {
        match self.state(page) {
            State::Untouched => {
                self.end_lock(page);
                return true;
            }
            State::Remote => {
                self.end_lock(page);
                self.policy.forgotten(page);
                self.note_discarded(page);
                self.forget(page, actions);
            }
            State::Resident => {
                self.withdraw(page, Leave::Forgotten);
                self.end_lock(page);
                self.clean -= if self.has(page, DIRTY) { 0 } else { self.span(page) };
                self.clear(page, DIRTY);
                self.set(page, DISCARDED);
                let frame = if self.pool_of(page).class.moves { self.empty_frame(page) } else { None };
                self.leave(page, frame, false, actions);
            }
            State::Staged if self.has(page, HIDDEN) => self.discard_hidden(page, actions),
            State::Staged if self.has(page, WRITING) => {
                self.end_lock(page);
                self.set(page, DISCARDED);
            }
            State::Staged => {
                self.drop_prefetched_page(page);
                return self.discard_page(page, actions);
            }
            State::Fetching | State::Installing | State::Opening | State::TakingOut | State::Hiding => {
                return false;
            }
        }
        self.counters.discarded += u64::from(self.span(page));
        true
    }

    /// Makes a page untouched. The server drops the page, too.
    pub(super) fn forget(&mut self, page: PageId, actions: &mut Actions) {
        if self.has(page, WRITING) {
            self.set(page, STALE);
        } else if self.has(page, HELD) {
            actions.push(Action::Release { unit: page.0, count: self.span(page) });
        }
        self.clear(page, HELD | DIRTY | DISCARDED | PREFETCHED | WRITTEN_BEFORE | GUESSED);
        self.settle_untouched(page, actions);
    }

    pub(super) fn settle_untouched(&mut self, page: PageId, actions: &mut Actions) {
        let queued = matches!(self.state(page), State::Remote | State::Untouched);
        self.move_to(page, State::Untouched);
        if self.has(page, WANTED) && !queued {
            let write = self.has(page, WRITE);
            self.clear(page, WANTED | WRITE);
            self.demand(page, write, actions);
        }
    }

    /// Splits a resident, remote or untouched huge page into base pages. Returns false if the page is in transit.
    pub(super) fn split(&mut self, page: PageId) -> bool {
        let state = self.state(page);
        let span = self.span(page);
        let at_rest = matches!(state, State::Untouched | State::Remote | State::Resident);
        if span == 1 || !at_rest || self.has(page, WRITING | WANTED) {
            return false;
        }
        let flags = self.flags[page.0 as usize] & (DIRTY | HELD | WRITTEN_BEFORE | LOCKED);
        if state == State::Resident {
            self.withdraw(page, Leave::Forgotten);
        }
        self.is_wide[self.geometry.block(page.0) as usize] = 0;
        let range = page.0 as usize..(page.0 + span) as usize;
        self.state[range.clone()].fill(state as u8);
        self.flags[range.clone()].fill(flags);
        if state == State::Resident {
            let cause = self.cause(page);
            range.for_each(|unit| self.enter(PageId(unit as u32), cause));
        }
        true
    }

    /// Decides whether a unit's block is fetched as base pages or as a huge page. Changes nothing if the block is in
    /// use.
    pub(super) fn choose_grain(&mut self, unit: u32) {
        let block = self.geometry.block(unit);
        if !self.block_is_away(block) {
            return;
        }
        let wide = self.affords_wide() && self.grain.decide(block);
        self.set_grain(block, wide);
    }

    /// Whether a block has no unit in memory, all its units have the same state, no fault or write-back concerns them,
    /// and none is locked.
    pub(super) fn block_is_away(&self, block: u32) -> bool {
        let span = self.geometry.block_units;
        let remote = u32::from(self.remote[block as usize]);
        if self.in_memory[block as usize] != 0 || (remote != 0 && remote != span) {
            return false;
        }
        let first = (block * span) as usize;
        let flags = &self.flags[first..first + span as usize];
        flags.iter().fold(0, |all, flags| all | flags) & (WRITING | WANTED | STALE | LOCKED) == 0
    }

    pub(super) fn set_grain(&mut self, block: u32, wide: bool) {
        if (self.is_wide[block as usize] != 0) == wide {
            return;
        }
        let first = (block * self.geometry.block_units) as usize;
        let range = first..first + self.geometry.block_units as usize;
        // All units of the block have the same state, so the first unit's state is valid for the new pages.
        // Whether the page was written to before predicts whether its parts will be written to.
        let (state, flags) = (self.state[first], self.flags[first] & (HELD | WRITTEN_BEFORE | LOCKED));
        self.is_wide[block as usize] = u8::from(wide);
        if wide {
            self.counters.widened += 1
        } else {
            self.counters.narrowed += 1
        }
        self.state[range.clone()].fill(state);
        self.flags[range].fill(flags);
    }
}
