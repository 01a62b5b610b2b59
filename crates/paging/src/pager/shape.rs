//! Shape: allocations and discards, and the pages that a discard splits.

use super::Pager;
use super::page::{DIRTY, DISCARDED, GUESSED, HELD, HIDDEN, PREFETCHED, STALE, WANTED, WRITE, WRITING, WRITTEN_BEFORE};
use crate::config::{Progress, State};
use crate::event::{Action, Actions, Event};
use crate::limits;
use crate::policy::Leave;
use crate::units::{PageId, Size};

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
            // No completion follows for a prefetched page that waits in a frame. A caller that waits for one would wait
            // for ever. So the page is dropped here.
            if !whole && self.state(page) == State::Staged && self.has(page, PREFETCHED) {
                self.drop_prefetched_page(page);
            }
            if !whole && self.state(page) != State::Untouched && !self.split(page) {
                if self.is_hidden(page) {
                    self.unhide(page, false, actions);
                }
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

    /// Discards one page. Returns false if the page is in transit.
    pub(super) fn discard_page(&mut self, page: PageId, actions: &mut Actions) -> bool {
        match self.state(page) {
            State::Untouched => return true,
            State::Remote => {
                self.policy.forgotten(page);
                self.forget(page, actions);
            }
            State::Resident => {
                self.policy.removed(page, Leave::Forgotten);
                self.clean -= if self.has(page, DIRTY) { 0 } else { self.span(page) };
                self.clear(page, DIRTY);
                self.set(page, DISCARDED);
                let frame = if self.pool_of(page).class.moves { self.empty_frame(page) } else { None };
                self.leave(page, frame, false, actions);
            }
            State::Staged if self.has(page, HIDDEN) => self.discard_hidden(page, actions),
            State::Staged if self.has(page, WRITING) => self.set(page, DISCARDED),
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

    /// Splits a resident, remote or untouched middle or huge page into base pages. Returns false if the page is in transit.
    pub(super) fn split(&mut self, page: PageId) -> bool {
        let state = self.state(page);
        let span = self.span(page);
        let at_rest = matches!(state, State::Untouched | State::Remote | State::Resident);
        if span == 1 || !at_rest || self.has(page, WRITING | WANTED) {
            return false;
        }
        let flags = self.flags[page.0 as usize] & (DIRTY | HELD | WRITTEN_BEFORE);
        if state == State::Resident {
            self.policy.removed(page, Leave::Forgotten);
        }
        self.resize_with(page.0, span, Size::Small, state as u8, flags);
        if state == State::Resident {
            let cause = self.cause(page);
            (page.0..page.0 + span).for_each(|unit| self.policy.inserted(PageId(unit), cause));
        }
        true
    }
}
