//! Hide: pages taken out of sight so that their next touch is seen, the pseudo reference bit of paper 1.
//!
//! A hidden page keeps its memory. Where pages move, its bytes wait in a frame; where they are protected instead, they stay
//! in place. To the policy it is in view all the while, and it may be replaced like any other page in view.

use super::Pager;
use super::page::{DIRTY, DISCARDED, HIDDEN, WANTED, WRITE, WRITING};
use crate::config::State;
use crate::event::{Action, Actions};
use crate::limits;
use crate::policy::Leave;
use crate::units::{FrameId, PageId};

impl Pager {
    /// Hides what the policy wishes for; whether it may wish for more.
    pub(super) fn hide_wished(&mut self, actions: &mut Actions) -> bool {
        for _ in 0..limits::HIDES_MAX {
            match self.policy.next_to_hide() {
                Some(page) => self.hide(page, actions),
                None => return false,
            }
        }
        true
    }

    fn hide(&mut self, page: PageId, actions: &mut Actions) {
        // An earlier write-back of it may still be under way, whose end must find the page in view or away.
        if self.state(page) != State::Resident || self.has(page, WRITING) || self.guarded.contains(&page) {
            return;
        }
        // Frames of pages that are copied are for dirty pages on their way out only.
        let framed = !self.hides_in_place && self.pool_of(page).class.moves;
        let frame = if framed { self.empty_frame(page) } else { None };
        if frame.is_none() && !self.hides_in_place {
            return;
        }
        self.set_frame(page, frame);
        self.set(page, HIDDEN);
        self.move_to(page, State::Hiding);
        self.counters.hidden += u64::from(self.span(page));
        actions.push(Action::Hide { page, frame, is_clean: !self.has(page, DIRTY) });
    }

    /// A page is out of sight, or could not be taken there.
    pub(super) fn hiding_done(&mut self, page: PageId, ok: bool, actions: &mut Actions) {
        let write = self.has(page, WRITE);
        if ok {
            self.move_to(page, State::Staged);
            if self.has(page, WANTED) {
                self.show(page, write, actions);
            }
            return;
        }
        if let Some(frame) = self.hiding_frame(page) {
            self.give_frame(frame, false);
        }
        self.clear(page, HIDDEN);
        self.move_to(page, State::Resident);
        if self.has(page, WANTED) {
            actions.push(Action::Wake { page });
        }
        self.clear(page, WANTED | WRITE);
        if write && !self.has(page, DIRTY) {
            self.open(page, actions);
        }
    }

    /// A hidden page was touched: its reference bit is set, and it comes back into sight.
    pub(super) fn show(&mut self, page: PageId, write: bool, actions: &mut Actions) {
        self.counters.faults_hidden += 1;
        self.policy.referenced(page, write);
        // It counts as wanted until it is there, so that it is not replaced before the touch is tried again.
        self.set(page, WANTED);
        self.unhide(page, write, actions);
    }

    /// Brings a hidden page back into sight.
    pub(super) fn unhide(&mut self, page: PageId, write: bool, actions: &mut Actions) {
        self.clean -= if self.has(page, DIRTY) { 0 } else { self.span(page) };
        let writable = write || self.has(page, DIRTY);
        if writable {
            self.set(page, DIRTY);
        }
        self.clear(page, WRITE);
        self.move_to(page, State::Installing);
        actions.push(Action::Show { page, frame: self.hiding_frame(page), writable });
    }

    /// Replaces a hidden page whose bytes wait in a frame: it is out of view already.
    pub(super) fn evict_hidden(&mut self, page: PageId, frame: FrameId, actions: &mut Actions) {
        self.clear(page, HIDDEN);
        self.leaving += self.span(page);
        if self.has(page, DIRTY) {
            return self.write_back(page, frame, actions);
        }
        self.gone(page, Some(frame), false, actions);
    }

    /// Discards a hidden page.
    pub(super) fn discard_hidden(&mut self, page: PageId, actions: &mut Actions) {
        self.policy.removed(page, Leave::Forgotten);
        self.clean -= if self.has(page, DIRTY) { 0 } else { self.span(page) };
        self.clear(page, DIRTY);
        match self.hiding_frame(page) {
            Some(frame) => {
                self.clear(page, HIDDEN);
                self.give_frame(frame, true);
                self.used -= self.span(page);
                self.forget(page, actions);
            }
            None => {
                self.set(page, DISCARDED);
                self.leave(page, None, false, actions);
            }
        }
    }

    /// Whether a page is out of sight and at rest there.
    pub(super) fn is_hidden(&self, page: PageId) -> bool {
        self.state(page) == State::Staged && self.has(page, HIDDEN) && !self.has(page, WRITING)
    }

    /// The frame a hidden page's bytes wait in; none where they stay in place.
    pub(super) fn hiding_frame(&self, page: PageId) -> Option<FrameId> {
        self.its_frame(page)
    }
}
