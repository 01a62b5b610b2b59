//! Reference sampling: pages are unmapped so that their next access traps (a hint fault). The trap stands for the
//! pseudo reference bit of paper 1.
//!
//! An unmapped page keeps its memory. If pages of its size are moved in frames, its bytes are in a frame. Otherwise its
//! bytes stay at the page's address, and only the protection changes. For the policy, the page is still resident and
//! may be replaced.

use super::Pager;
use super::page::{DIRTY, DISCARDED, HIDDEN, LOCKED, WANTED, WRITE, WRITING};
use crate::config::State;
use crate::event::{Action, Actions};
use crate::limits;
use crate::policy::Leave;
use crate::units::{FrameId, PageId};

impl Pager {
    /// Unmaps the pages that the policy wants to sample, up to a limit. Returns whether the limit was reached, so that
    /// the policy may want more.
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
        // An earlier write-back of the page may still be in progress. Its completion expects the page to be resident or
        // remote.
        if self.state(page) != State::Resident || self.has(page, WRITING | LOCKED) || self.guarded.contains(&page) {
            return;
        }
        // If pages of this size are copied to their addresses, the frames are reserved for dirty pages that are being
        // evicted.
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

    /// Notes the end of an attempt to unmap a page. `ok` says whether the page is unmapped.
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

    /// Answers an access to an unmapped page: reports the reference to the policy and maps the page again.
    pub(super) fn show(&mut self, page: PageId, write: bool, actions: &mut Actions) {
        self.counters.faults_hidden += 1;
        self.note_reference(page, write);
        // The flag says that a thread waits for the page. It prevents the page's eviction until the access is repeated.
        self.set(page, WANTED);
        self.unhide(page, write, actions);
    }

    /// Maps an unmapped page again.
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

    /// Evicts an unmapped page whose bytes are in a frame. The page need not be unmapped again.
    pub(super) fn evict_hidden(&mut self, page: PageId, frame: FrameId, actions: &mut Actions) {
        self.clear(page, HIDDEN);
        self.leaving += self.span(page);
        if self.has(page, DIRTY) {
            return self.write_back(page, frame, actions);
        }
        self.gone(page, Some(frame), false, actions);
    }

    /// Discards an unmapped page.
    pub(super) fn discard_hidden(&mut self, page: PageId, actions: &mut Actions) {
        self.withdraw(page, Leave::Forgotten);
        self.end_lock(page);
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

    /// Whether a page is unmapped for reference sampling, and no action on the page is in progress.
    pub(super) fn is_hidden(&self, page: PageId) -> bool {
        self.state(page) == State::Staged && self.has(page, HIDDEN) && !self.has(page, WRITING)
    }

    /// Returns the frame with an unmapped page's bytes, or `None` if the bytes are at the page's address.
    pub(super) fn hiding_frame(&self, page: PageId) -> Option<FrameId> {
        self.its_frame(page)
    }
}
