//! Room: the budget, the watermarks, the faults that wait for memory, and the choice of victims.

use super::Pager;
use super::page::{DIRTY, DISCARDED, GUESSED, HELD, HELD_BACK, HIDDEN, LOCKED, PREFETCHED, WANTED, WRITE, WRITING};
use crate::config::State;
use crate::event::{Action, Actions, Bytes};
use crate::limits;
use crate::policy::Leave;
use crate::units::{FrameId, PageId};

impl Pager {
    pub(super) fn set_budget(&mut self, units: u32) {
        self.budget_set = units.max(limits::BUDGET_PAGES_MIN);
        self.set_room();
    }

    /// Sets what follows from the budget and the locked pages.
    pub(super) fn set_room(&mut self) {
        self.budget = self.budget_set.max(self.locked + limits::BUDGET_PAGES_MIN);
        self.grain.set_capacity(self.room() / self.geometry.block_units);
        self.set_watermarks();
    }

    /// Returns the part of the budget that pages may share which are not locked.
    pub(super) fn room(&self) -> u32 {
        self.budget - self.locked
    }

    /// Sets how much memory is kept free. The amount is small, because free memory holds no pages. For example, if half
    /// of a program's tree is local, each 1 % of the budget kept free causes 2 % more misses.
    pub(super) fn set_watermarks(&mut self) {
        let block = self.geometry.block_units;
        // With `direct`, victims are freed in the step that chooses them. Only runs of pages then need more room than
        // one batch of victims frees.
        let lone = self.direct && self.run_faults == 0;
        let (low, batch, share) = match (self.wide_faults > 0 && self.affords_wide(), self.small.class.moves) {
            (true, _) => (block, block, 16),
            // A page that goes to a server uses memory until its write-back ends. With these watermarks, enough
            // write-backs are in flight, and read-ahead finds room beside them.
            (false, true) if !self.direct => (8, 4, 16),
            (false, true) => (4, 2, 16),
            (false, false) if lone => (8, 64, 64),
            // With these watermarks, the longest run of base pages fits without waiting.
            (false, false) => (96, 64, 16),
        };
        self.low = low.min(self.room() / 16);
        self.high = self.low + batch.min((self.room() / share).max(1));
    }

    /// Whether the budget has room for enough huge pages to make them worthwhile.
    pub(super) fn affords_wide(&self) -> bool {
        self.room() >= limits::WIDE_PAGES_MIN * self.geometry.block_units
    }

    /// Notes whether an access caused prefetching. If so, the pager keeps room for a run of pages during the next
    /// [`limits::RUN_FAULTS`] accesses.
    pub(super) fn note_run(&mut self, came: bool) {
        let before = self.run_faults;
        self.run_faults = if came { limits::RUN_FAULTS } else { before.saturating_sub(1) };
        if (before == 0) != (self.run_faults == 0) {
            self.set_watermarks();
        }
    }

    /// Notes that a page comes in for a fault, or a huge page for any reason. The pager keeps room for a huge page during
    /// the [`limits::WIDE_FAULTS`] faults after one.
    pub(super) fn note_size(&mut self, wide: bool) {
        let before = self.wide_faults;
        self.wide_faults = if wide { limits::WIDE_FAULTS } else { before.saturating_sub(1) };
        if (before == 0) != (self.wide_faults == 0) {
            self.set_watermarks();
        }
    }

    /// Finds room for a page and, if its class needs frames, a frame. Returns `None` if there is no room, and
    /// `Some(None)` if the page needs no frame.
    pub(super) fn admit(&mut self, page: PageId, actions: &mut Actions) -> Option<Option<FrameId>> {
        let (span, wide) = (self.span(page), self.span(page) > 1);
        if !self.pool(wide).class.moves {
            return self.has_room(span, actions).then_some(None);
        }
        if self.used + span <= self.budget
            && let Some(index) = self.pool(wide).frames.take_filled()
        {
            return Some(Some(FrameId { wide, index }));
        }
        if !self.pool(wide).frames.has_empty() || !self.has_room(span, actions) {
            return None;
        }
        self.pool(wide).frames.take_empty().map(|index| Some(FrameId { wide, index }))
    }

    /// Checks whether `span` units of new memory fit into the budget now. If only free frames prevent this, starts to
    /// return a bounded number of them to the system. Their return makes room.
    pub(super) fn has_room(&mut self, span: u32, actions: &mut Actions) -> bool {
        let mut over = (self.local_units() + span).saturating_sub(self.budget);
        if over == 0 {
            return true;
        }
        over = over.saturating_sub(self.freeing);
        self.empty_spare_frames(over, actions);
        false
    }

    /// Starts to return free frames with `over` units of memory to the system, as far as one step gets.
    pub(super) fn empty_spare_frames(&mut self, mut over: u32, actions: &mut Actions) {
        for wide in [true, false] {
            let size = self.span_of(wide);
            while over > 0 && self.frees < limits::FREES_MAX && self.pool(wide).class.moves {
                let Some(index) = self.pool(wide).frames.take_filled() else {
                    break;
                };
                self.frees += 1;
                self.freeing += size;
                over = over.saturating_sub(size);
                actions.push(Action::FreeFrame { frame: FrameId { wide, index } });
            }
        }
    }

    /// Resumes faults that wait for free memory, then evicts pages until the free memory is between the watermarks. If
    /// the budget shrank, first returns free frames that keep their memory to the system.
    pub(super) fn balance(&mut self, actions: &mut Actions, keeps: &dyn Fn(PageId) -> bool) {
        if self.local_units() > self.budget {
            self.has_room(0, actions);
        }
        while let Some(&page) = self.starved.front() {
            if !self.resume(page, actions) {
                break;
            }
            self.starved.pop_front();
        }
        let need = self.starved.front().map_or(0, |&page| self.span(page));
        if self.expected() < i64::from(self.low.max(need)) {
            let target = i64::from(self.high.max(need));
            let mut victims = 0;
            while self.expected() < target && victims < limits::VICTIMS_MAX {
                let presses = need > 0 || self.expected() < 0;
                if !self.make_room(false, presses, actions, keeps) {
                    break;
                }
                victims += 1;
            }
        }
        self.help_starved(need, actions, keeps);
    }

    /// Returns the units that are free, or become free when the actions in progress end. The number is negative if the
    /// budget shrank below the used units.
    pub(super) fn expected(&self) -> i64 {
        i64::from(self.budget) - i64::from(self.used) + i64::from(self.leaving)
    }

    /// Drops clean pages for a fault that waits for free memory, so that the fault need not wait for a write-back.
    pub(super) fn help_starved(&mut self, need: u32, actions: &mut Actions, keeps: &dyn Fn(PageId) -> bool) {
        if need == 0 {
            return;
        }
        let mut tries = 0;
        let free = |pager: &Self| pager.budget.saturating_sub(pager.used) + pager.leaving_clean;
        while free(self) < need && tries < limits::VICTIMS_MAX {
            if !self.make_room(true, true, actions, keeps) {
                break;
            }
            tries += 1;
        }
        // Dropping a clean page may free its memory immediately. So waiting faults are retried now.
        while let Some(&page) = self.starved.front() {
            if !self.resume(page, actions) {
                break;
            }
            self.starved.pop_front();
        }
    }

    /// Retries a waiting fault. Returns false if the fault must still wait for free memory.
    pub(super) fn resume(&mut self, page: PageId, actions: &mut Actions) -> bool {
        if !self.has(page, WANTED) {
            return true;
        }
        let write = self.has(page, WRITE);
        match self.state(page) {
            // The budget shrank below the huge page. The access is repeated, and finds a base page.
            State::Untouched | State::Remote if self.span(page) > self.room() && !self.has(page, LOCKED) => {
                self.clear(page, WANTED | WRITE);
                actions.push(Action::Wake { page });
            }
            State::Untouched | State::Remote => {
                let Some(frame) = self.admit(page, actions) else {
                    return false;
                };
                self.launch(page, frame, write, true, actions);
            }
            State::Staged if self.has(page, WRITING) && !self.has(page, DISCARDED) => {
                if self.budget.saturating_sub(self.local_units()) < self.span(page) && self.spare() == 0 {
                    return false;
                }
                self.clear(page, WANTED | WRITE);
                let waiting = self.starved.len();
                self.minor_fault(page, write, actions);
                // The fault has to wait again, and `minor_fault` queued it a second time. Its first entry stays at the
                // front of the queue. Its new entry at the back is removed.
                if self.starved.len() > waiting {
                    self.starved.pop_back();
                    return false;
                }
            }
            _ => {}
        }
        true
    }

    /// Gives up the page that is needed least. Returns false if no page can go.
    ///
    /// Room `presses` if a fault waits for it, or if more is used than the budget allows. Only then a prefetched page
    /// goes. A page for which one of the last accesses waited goes only if room presses and nothing else makes room.
    /// Otherwise it could leave before each repetition of the access.
    fn make_room(
        &mut self,
        clean_only: bool,
        presses: bool,
        actions: &mut Actions,
        keeps: &dyn Fn(PageId) -> bool,
    ) -> bool {
        let guarded = self.guarded;
        let keeps_guarded = |page: PageId| guarded.contains(&page) || keeps(page);
        self.drop_unused(actions, keeps)
            || self.evict(clean_only, actions, &keeps_guarded)
            || presses && self.drop_prefetched()
            || presses && self.leaving == 0 && self.freeing == 0 && self.evict(clean_only, actions, keeps)
    }

    /// Evicts the policy's next victim. Returns false if no page can be evicted.
    fn evict(&mut self, clean_only: bool, actions: &mut Actions, keeps: &dyn Fn(PageId) -> bool) -> bool {
        if self.held_back.len() == limits::HELD_MAX || clean_only && self.clean == 0 {
            return false;
        }
        let dirty_small = self.may_take_dirty(false) && !clean_only;
        let dirty_wide = self.may_take_dirty(true) && !clean_only;
        let only_wide = self.clean == 0 && !dirty_small;
        if only_wide && self.writing > 0 && self.searches_spared > 0 {
            self.searches_spared -= 1;
            return false;
        }
        let Self { policy, state, flags, is_wide, geometry, .. } = self;
        let accept = |page: PageId| {
            let flags = flags[page.0 as usize];
            let wide = is_wide.get(geometry.block(page.0) as usize).is_some_and(|&wide| wide != 0);
            let state = state[page.0 as usize];
            let in_view = state == State::Resident as u8 || state == State::Staged as u8 && flags & HIDDEN != 0;
            in_view
                && flags & (WRITING | WANTED | HELD_BACK) == 0
                && (flags & DIRTY == 0 || if wide { dirty_wide } else { dirty_small })
                && !keeps(page)
        };
        let Some(page) = policy.victim(&accept) else {
            self.searches_spared = if only_wide { limits::SEARCHES_SPARED } else { 0 };
            return false;
        };
        let dirty = self.has(page, DIRTY);
        if self.is_hidden(page)
            && let Some(frame) = self.hiding_frame(page)
        {
            self.policy.removed(page, Leave::Evicted);
            self.clean -= if dirty { 0 } else { self.span(page) };
            self.evict_hidden(page, frame, actions);
            return true;
        }
        let pool = self.pool_of(page);
        let wants_frame = pool.class.moves || (dirty && !self.direct);
        let frame = if wants_frame { self.empty_frame(page) } else { None };
        if wants_frame && frame.is_none() && dirty {
            return false;
        }
        self.policy.removed(page, Leave::Evicted);
        self.clean -= if dirty { 0 } else { self.span(page) };
        self.leave(page, frame, dirty, actions);
        true
    }

    pub(super) fn may_take_dirty(&self, wide: bool) -> bool {
        let pool = if wide { &self.wide } else { &self.small };
        pool.frames.has_empty() || (self.direct && !pool.class.moves)
    }

    /// Drops the oldest page that was prefetched but never used. Returns false if there is no such page.
    pub(super) fn drop_prefetched(&mut self) -> bool {
        let Some(page) = self.ahead.pop_front() else {
            return false;
        };
        self.give_up_prefetched(page);
        true
    }

    /// Drops this prefetched page and removes it from the queue of prefetched pages.
    pub(super) fn drop_prefetched_page(&mut self, page: PageId) {
        self.ahead.retain(|&other| other != page);
        self.give_up_prefetched(page);
    }

    /// Makes a staged, prefetched page remote again. The caller has already removed it from the queue of prefetched
    /// pages.
    fn give_up_prefetched(&mut self, page: PageId) {
        self.counters.prefetch_wasted += u64::from(self.span(page));
        self.forget_frame(page, self.its_frame(page));
        self.used -= self.span(page);
        self.clear(page, PREFETCHED);
        self.move_to(page, State::Remote);
        self.note_evicted(page, false);
    }

    pub(super) fn leave(&mut self, page: PageId, frame: Option<FrameId>, dirty: bool, actions: &mut Actions) {
        self.set_frame(page, frame);
        self.move_to(page, State::TakingOut);
        self.leaving += self.span(page);
        self.leaving_clean += if self.frees_at_once(page) { self.span(page) } else { 0 };
        let bytes = match dirty {
            true if self.has(page, GUESSED) && self.has(page, HELD) => Bytes::Unknown,
            true if self.has(page, GUESSED) => Bytes::MaybeZero,
            true => Bytes::Dirty,
            false => Bytes::Clean,
        };
        actions.push(Action::TakeOut { page, frame, bytes });
    }

    /// Notes that the attempt to evict a page has ended. The page then no longer counts in `leaving`.
    pub(super) fn leave_done(&mut self, page: PageId) {
        match self.state(page) {
            State::TakingOut => {
                self.leaving -= self.span(page);
                self.leaving_clean -= if self.frees_at_once(page) { self.span(page) } else { 0 };
            }
            // A staged page counts in `leaving` only if pages of its size are moved in frames. Only such a page uses
            // budget while it is written back.
            State::Staged if self.pool_of(page).class.moves => self.leaving -= self.span(page),
            _ => {}
        }
    }

    /// Whether a page's memory becomes free as soon as the page is unmapped.
    pub(super) fn frees_at_once(&self, page: PageId) -> bool {
        !self.has(page, DIRTY) || !self.pool_of(page).class.moves
    }

    pub(super) fn forget_frame(&mut self, page: PageId, frame: Option<FrameId>) {
        if let Some(frame) = frame {
            let moves = self.pool_of(page).class.moves;
            self.give_frame(frame, moves);
        }
    }

    pub(super) fn give_frame(&mut self, frame: FrameId, filled: bool) {
        match filled {
            true => self.pool(frame.wide).frames.put_filled(frame.index),
            false => self.pool(frame.wide).frames.put_empty(frame.index),
        }
    }

    pub(super) fn empty_frame(&mut self, page: PageId) -> Option<FrameId> {
        let wide = self.span(page) > 1;
        self.pool(wide).frames.take_empty().map(|index| FrameId { wide, index })
    }
}
