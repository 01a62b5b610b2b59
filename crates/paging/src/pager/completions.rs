//! Completions: decide the next state of a page when an action on the page has ended.

use super::Pager;
use super::page::{DIRTY, DISCARDED, GUESSED, HELD, HELD_BACK, HIDDEN, PREFETCHED, STALE, WANTED, WRITE, WRITING};
use crate::config::State;
use crate::event::{Action, Actions, Bytes};
use crate::limits;
use crate::units::{FrameId, PageId};

impl Pager {
    pub(super) fn fetched(&mut self, page: PageId, ok: bool, actions: &mut Actions) {
        self.copy_done(page);
        if !ok {
            return self.refetch(page, actions);
        }
        if self.has(page, WANTED) {
            let write = self.has(page, WRITE);
            return self.install(page, write, actions);
        }
        self.move_to(page, State::Staged);
        self.ahead.push_back(page);
    }

    /// Ends a failed fetch. If a thread waits for the page, starts another fetch.
    pub(super) fn refetch(&mut self, page: PageId, actions: &mut Actions) {
        let frame = self.its_frame(page);
        let wanted = self.has(page, WANTED);
        let write = self.has(page, WRITE) || frame.is_none() && self.has(page, DIRTY);
        self.used -= self.span(page);
        self.clear(page, WANTED | WRITE | DIRTY | PREFETCHED | GUESSED);
        self.move_to(page, if self.has(page, HELD) { State::Remote } else { State::Untouched });
        if wanted {
            self.launch(page, frame, write, true, actions);
        } else if let Some(frame) = frame {
            // The failed fetch may have filled part of the frame, so the frame counts as filled.
            self.pool(frame.wide).frames.put_filled(frame.index);
        }
    }

    pub(super) fn arrived(&mut self, page: PageId, certain: bool, ok: bool, actions: &mut Actions) {
        let installing = self.state(page) == State::Installing;
        let hidden = self.has(page, HIDDEN);
        if !ok && installing {
            let writable = self.has(page, DIRTY);
            if hidden {
                return actions.push(Action::Show { page, frame: self.hiding_frame(page), writable });
            }
            return actions.push(Action::Install { page, frame: self.frame_of(page), writable });
        }
        if !ok {
            return self.refetch(page, actions);
        }
        self.copy_done(page);
        if installing && let Some(frame) = self.its_frame(page) {
            self.pool(frame.wide).frames.put_empty(frame.index);
        }
        self.move_to(page, State::Resident);
        if !certain && !self.has(page, DIRTY) {
            // The page may have been written to, so it counts as dirty. A comparison at its eviction shows whether it
            // was.
            self.set(page, DIRTY | GUESSED);
        }
        self.clean += if self.has(page, DIRTY) { 0 } else { self.span(page) };
        if hidden {
            self.clear(page, HIDDEN);
        } else {
            self.enter(page, self.cause(page));
        }
        if self.has(page, WANTED) {
            self.guarded = [page, self.guarded[0]];
        }
        let write = self.has(page, WRITE);
        self.clear(page, WANTED | WRITE | PREFETCHED);
        if write && !self.has(page, DIRTY) {
            self.open(page, actions);
        }
    }

    pub(super) fn opened(&mut self, page: PageId) {
        self.move_to(page, State::Resident);
        self.clear(page, WANTED | WRITE);
    }

    pub(super) fn taken_out(&mut self, page: PageId, ok: bool, changed: bool, actions: &mut Actions) {
        let guessed = self.has(page, GUESSED);
        let dirty = self.has(page, DIRTY) && (changed || !guessed);
        if !ok {
            return self.still_in_view(page, actions);
        }
        self.clear(page, HIDDEN);
        let pool_frame = self.its_frame(page);
        if self.has(page, DISCARDED) {
            self.leave_done(page);
            self.forget_frame(page, pool_frame);
            self.used -= self.span(page);
            return self.forget(page, actions);
        }
        match pool_frame {
            Some(_) if self.pool_of(page).class.moves && self.has(page, WANTED) => {
                self.leave_done(page);
                self.counters.faults_rescued += 1;
                let write = self.has(page, WRITE);
                self.install(page, write, actions);
            }
            Some(frame) if dirty => {
                if !self.pool_of(page).class.moves {
                    self.leave_done(page);
                    self.used -= self.span(page);
                }
                self.move_to(page, State::Staged);
                self.write_back(page, frame, actions);
                if self.has(page, WANTED) {
                    let write = self.has(page, WRITE);
                    self.clear(page, WANTED | WRITE);
                    self.minor_fault(page, write, actions);
                }
            }
            _ => self.gone(page, pool_frame, dirty, actions),
        }
    }

    /// Makes a page resident again after an attempt to unmap it failed. The page becomes the newest one for the policy.
    /// If the page was discarded in the meantime, starts another attempt to unmap it.
    pub(super) fn still_in_view(&mut self, page: PageId, actions: &mut Actions) {
        if let Some(frame) = self.its_frame(page) {
            self.pool(frame.wide).frames.put_empty(frame.index);
            self.set_frame(page, None);
        }
        if self.has(page, DISCARDED) {
            return actions.push(Action::TakeOut { page, frame: None, bytes: Bytes::Clean });
        }
        self.counters.held_back += 1;
        if self.held_back.len() < limits::HELD_MAX {
            self.set(page, HELD_BACK);
            self.held_back.push(page);
        }
        self.leave_done(page);
        self.clean += if self.has(page, DIRTY) { 0 } else { self.span(page) };
        self.enter(page, self.cause(page));
        if self.has(page, HIDDEN) {
            return self.hiding_done(page, true, actions);
        }
        self.move_to(page, State::Resident);
        let write = self.has(page, WRITE) && !self.has(page, DIRTY);
        if self.has(page, WANTED) {
            actions.push(Action::Wake { page });
        }
        self.clear(page, WANTED | WRITE);
        if write {
            self.open(page, actions);
        }
    }

    /// Makes pages whose eviction a transfer prevented candidates for eviction again. Does so at intervals of
    /// [`limits::HELD_MS`], or immediately if a fault waits for free memory.
    pub(super) fn look_again(&mut self, now_ms: u64) {
        let is_due = now_ms.saturating_sub(self.held_back_ms) >= limits::HELD_MS || !self.starved.is_empty();
        if self.held_back.is_empty() || !is_due {
            return;
        }
        self.held_back_ms = now_ms;
        while let Some(page) = self.held_back.pop() {
            self.clear(page, HELD_BACK);
        }
    }

    /// Notes that a page has left local memory. `dirty` says that its bytes were written to the server.
    pub(super) fn gone(&mut self, page: PageId, frame: Option<FrameId>, dirty: bool, actions: &mut Actions) {
        self.leave_done(page);
        self.forget_frame(page, frame);
        self.used -= self.span(page);
        self.remember(page, dirty);
        if dirty {
            self.set(page, HELD);
            self.counters.written_back += u64::from(self.span(page));
        } else {
            self.counters.dropped_clean += u64::from(self.span(page));
        }
        self.clear(page, DIRTY | GUESSED);
        if self.has(page, HELD) {
            self.note_evicted(page, dirty);
        }
        self.settle(page, actions);
    }

    /// Marks a page without local memory as remote or untouched. If a thread waits for the page, fetches the page
    /// again.
    pub(super) fn settle(&mut self, page: PageId, actions: &mut Actions) {
        self.move_to(page, if self.has(page, HELD) { State::Remote } else { State::Untouched });
        if self.has(page, WANTED) {
            let write = self.has(page, WRITE);
            self.clear(page, WANTED | WRITE);
            self.demand(page, write, actions);
        }
    }

    pub(super) fn write_back(&mut self, page: PageId, frame: FrameId, actions: &mut Actions) {
        self.set(page, WRITING);
        self.writing += 1;
        let may_be_same = self.has(page, GUESSED) && self.has(page, HELD);
        actions.push(Action::WriteBack { page, frame, may_be_same });
    }

    pub(super) fn written_back(
        &mut self,
        page: PageId,
        frame: FrameId,
        ok: bool,
        changed: bool,
        actions: &mut Actions,
    ) {
        let moves = self.pool(frame.wide).class.moves;
        self.writing -= 1;
        if self.state(page) != State::Staged {
            // The page became resident again or was discarded during the write-back. Only the frame is still in use.
            self.clear(page, WRITING);
            if self.state(page) == State::Fetching {
                // A fetch is copying the page out of this frame. The completion of the fetch frees the frame.
                self.copied_from.push((page, frame));
            } else {
                self.free_written(frame);
            }
            if self.has(page, STALE) {
                actions.push(Action::Release { unit: page.0, count: self.span_of(frame.wide) });
                self.clear(page, STALE);
            } else if ok {
                self.set(page, HELD);
            }
            return;
        }
        if !ok && !self.has(page, DISCARDED) {
            return self.write_back(page, frame, actions);
        }
        self.clear(page, WRITING | DIRTY);
        self.set(page, HELD);
        if moves {
            self.leave_done(page);
        }
        if self.has(page, DISCARDED) {
            self.give_frame(frame, moves);
            self.used -= self.span(page) * u32::from(moves);
            return self.forget(page, actions);
        }
        match changed {
            true => self.counters.written_back += u64::from(self.span(page)),
            false => self.counters.dropped_clean += u64::from(self.span(page)),
        }
        if moves && self.has(page, WANTED) {
            self.counters.faults_rescued += 1;
            let write = self.has(page, WRITE);
            return self.install(page, write, actions);
        }
        self.give_frame(frame, moves);
        self.used -= self.span(page) * u32::from(moves);
        self.note_evicted(page, changed);
        self.settle(page, actions);
    }

    /// Frees a frame after its write-back. The frame's page does not use the frame any more.
    pub(super) fn free_written(&mut self, frame: FrameId) {
        let moves = self.pool(frame.wide).class.moves;
        self.give_frame(frame, moves);
        self.used -= self.span_of(frame.wide) * u32::from(moves);
    }

    /// Notes that a copy out of a page's old frame has ended. If the write-back of the frame has ended, too, frees the
    /// frame.
    pub(super) fn copy_done(&mut self, page: PageId) {
        if let Some(index) = self.copied_from.iter().position(|&(other, _)| other == page) {
            let (_, frame) = self.copied_from.swap_remove(index);
            self.free_written(frame);
        }
    }
}
