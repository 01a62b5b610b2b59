//! Faults: accesses to a page that is not mapped, and writes to a page that is write-protected.

use super::Pager;
use super::page::{DIRTY, DISCARDED, GUESSED, HIDDEN, LOCKED, PREFETCHED, WANTED, WRITE, WRITING};
use crate::config::State;
use crate::event::{Action, Actions, Source};
use crate::limits;
use crate::units::{FrameId, PageId};

impl Pager {
    pub(super) fn fault(&mut self, unit: u32, write: bool, actions: &mut Actions) {
        let mut page = self.head(unit);
        match self.state(page) {
            State::Resident if write && !self.has(page, DIRTY) => {
                self.counters.faults_first_write += 1;
                self.note_reference(page, true);
                self.open(page, actions);
            }
            State::Resident => actions.push(Action::Wake { page }),
            State::Fetching | State::Installing | State::Opening | State::TakingOut | State::Hiding => {
                self.wait_for(page, write);
            }
            State::Untouched | State::Remote if self.has(page, WANTED) => self.wait_for(page, write),
            State::Staged if self.has(page, HIDDEN) => self.show(page, write, actions),
            State::Staged => {
                self.minor_fault(page, write, actions);
                if self.pool_of(page).class.moves {
                    self.read_ahead(page, None, actions);
                }
            }
            State::Untouched | State::Remote => {
                if self.geometry.block_units > 1 {
                    self.choose_grain(unit);
                    page = self.head(unit);
                }
                self.demand(page, write, actions);
            }
        }
    }

    pub(super) fn wait_for(&mut self, page: PageId, write: bool) {
        self.counters.faults_waited += 1;
        self.set(page, WANTED);
        // The fetch in progress has already fixed whether the page arrives writable. If it arrives protected, it is
        // opened for writing later.
        if write {
            self.set(page, WRITE);
        }
    }

    pub(super) fn demand(&mut self, page: PageId, write: bool, actions: &mut Actions) {
        match (self.state(page), write) {
            (State::Untouched, _) => self.counters.faults_zero += 1,
            (_, true) => self.counters.faults_write += 1,
            (_, false) => self.counters.faults_read += 1,
        }
        if !self.has(page, LOCKED) {
            self.policy.coming(page);
        }
        if self.span(page) > 1 {
            self.grain.wide_fault();
        }
        let Some(frame) = self.admit(page, actions) else {
            if self.geometry.block_units > 1 && self.span(page) == 1 {
                self.grain.small_fault(self.geometry.block(page.0), 1);
            }
            return self.starve(page, write, actions);
        };
        let was_remote = self.state(page) == State::Remote;
        let at = actions.as_slice().len();
        let mut run = self.fresh_run(page);
        self.launch(page, frame, write, true, actions);
        match was_remote {
            true => run = self.read_ahead(page, Some(at), actions),
            false => self.fill_run(page, run, at, actions),
        }
        if self.geometry.block_units > 1 && self.span(page) == 1 {
            self.grain.small_fault(self.geometry.block(page.0), 1 + run);
        }
    }

    /// Queues a fault for which there is no free memory. The fault continues as soon as there is enough.
    pub(super) fn starve(&mut self, page: PageId, write: bool, actions: &mut Actions) {
        if self.starved.len() == limits::STARVED_MAX {
            return actions.push(Action::Wake { page });
        }
        self.set(page, WANTED);
        if write {
            self.set(page, WRITE);
        }
        self.starved.push_back(page);
    }

    /// Starts the fetch of a page whose memory and frame are already reserved.
    pub(super) fn launch(
        &mut self,
        page: PageId,
        frame: Option<FrameId>,
        write: bool,
        demand: bool,
        actions: &mut Actions,
    ) {
        let source = if self.state(page) == State::Remote { Source::Server } else { Source::Zero };
        if source == Source::Server {
            self.counters.fetched += u64::from(self.span(page));
            self.note_returned(page, demand);
        }
        let wide = self.span(page) > 1;
        match wide {
            false => self.counters.pages_small += 1,
            true => self.counters.pages_wide += 1,
        }
        if wide || demand {
            self.note_size(wide);
        }
        self.used += self.span(page);
        self.move_to(page, State::Fetching);
        self.clear(page, WANTED | WRITE | PREFETCHED | GUESSED);
        self.set(page, if demand { WANTED } else { PREFETCHED });
        // A page of zeroes is usually written soon. If it is not, it is dropped at its eviction like a clean page.
        if !write && frame.is_none() && (source == Source::Zero || self.will_be_written(page)) {
            self.set(page, GUESSED);
        }
        let write = write || self.has(page, GUESSED);
        if write {
            // A page fetched without a frame is mapped writable. A page in a frame becomes writable when it is
            // installed.
            self.set(page, if frame.is_none() { DIRTY } else { WRITE });
        }
        self.set_frame(page, frame);
        actions.push(Action::Fetch { page, count: 1, source, frame, writable: u32::from(write), demand });
    }

    /// Answers a minor fault: an access to a page whose bytes are still in a frame.
    pub(super) fn minor_fault(&mut self, page: PageId, write: bool, actions: &mut Actions) {
        if self.has(page, DISCARDED) || self.has(page, WRITING) && self.has(page, WANTED) {
            return self.wait_for(page, write);
        }
        if self.has(page, WRITING) {
            // The link is still reading the frame. Fetching a second copy of the page from the frame avoids a wait for
            // the link.
            let Some(frame) = self.admit(page, actions) else {
                return self.starve(page, write, actions);
            };
            self.counters.faults_rescued += 1;
            let from = self.frame_of(page);
            self.leave_done(page);
            self.used += self.span(page);
            self.move_to(page, State::Fetching);
            self.set(page, WANTED | DIRTY | WRITE);
            self.set_frame(page, frame);
            let source = Source::Frame(from);
            return actions.push(Action::Fetch { page, count: 1, source, frame, writable: 1, demand: true });
        }
        if self.has(page, PREFETCHED) {
            self.counters.prefetch_used += u64::from(self.span(page));
            self.ahead.retain(|&other| other != page);
        }
        self.counters.faults_rescued += 1;
        self.clear(page, PREFETCHED);
        self.install(page, write, actions);
    }

    pub(super) fn install(&mut self, page: PageId, write: bool, actions: &mut Actions) {
        let writable = write || self.has(page, DIRTY);
        if writable {
            self.set(page, DIRTY);
        }
        self.clear(page, WRITE);
        self.move_to(page, State::Installing);
        actions.push(Action::Install { page, frame: self.frame_of(page), writable });
    }

    pub(super) fn open(&mut self, page: PageId, actions: &mut Actions) {
        self.set(page, DIRTY);
        self.clean -= self.span(page);
        self.move_to(page, State::Opening);
        actions.push(Action::Open { page });
    }
}
