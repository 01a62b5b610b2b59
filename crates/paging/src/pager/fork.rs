//! Fork: stops all transfers of a pager, so that a copy of the pager can continue in another process.
//!
//! When all transfers have ended, every page is untouched, resident or remote. The operating system's copy-on-write
//! shares the resident pages of the parent with the child. The servers must share the remote pages.

use super::Pager;
use super::page::{DIRTY, HIDDEN, WRITING};
use crate::config::{Progress, State};
use crate::event::Actions;
use crate::limits;
use crate::policy::{Cause, Leave};
use crate::units::PageId;

impl Pager {
    /// Whether no page is in transit, no frame is in use and no fault waits for free memory.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.moving == 0 && self.writing == 0 && self.freeing == 0 && self.starved.is_empty()
    }

    /// Whether the server may hold bytes of any page.
    #[must_use]
    pub fn has_written_back(&self) -> bool {
        self.counters.written_back > 0
    }

    pub(super) fn settle_range(&mut self, first: u32, end: u32, leave: bool, actions: &mut Actions) -> Progress {
        let end = end.min(self.geometry.units);
        let stop = end.min(first.saturating_add(limits::DISCARD_UNITS_MAX));
        let mut unit = first;
        while unit < stop {
            let page = self.head(unit);
            if !self.settle_page(page, leave, actions) {
                return Progress::Busy(unit);
            }
            unit = page.0 + self.span(page);
        }
        if unit < end { Progress::Continue(unit) } else { Progress::Done }
    }

    /// Starts to make a page untouched, resident or remote; with `leave`, starts to evict it, too. Returns false if an
    /// action on the page must complete first.
    fn settle_page(&mut self, page: PageId, leave: bool, actions: &mut Actions) -> bool {
        match self.state(page) {
            State::Untouched | State::Remote => true,
            State::Resident if leave && !self.has(page, WRITING) => self.send_away(page, actions),
            State::Resident => !leave,
            State::Staged if self.is_hidden(page) => {
                self.unhide(page, false, actions);
                !leave
            }
            State::Staged if self.has(page, WRITING | HIDDEN) => false,
            State::Staged => {
                self.drop_prefetched_page(page);
                true
            }
            State::Fetching | State::Installing | State::Opening | State::TakingOut | State::Hiding => false,
        }
    }

    /// Starts to evict a page, regardless of the policy's order. Returns false if the page needs a frame and none is
    /// free.
    pub(super) fn send_away(&mut self, page: PageId, actions: &mut Actions) -> bool {
        let dirty = self.has(page, DIRTY);
        let pool = self.pool_of(page);
        let wants_frame = pool.class.moves || dirty && !self.direct;
        let frame = if wants_frame { self.empty_frame(page) } else { None };
        if wants_frame && frame.is_none() {
            return false;
        }
        self.withdraw(page, Leave::Evicted);
        self.clean -= if dirty { 0 } else { self.span(page) };
        self.leave(page, frame, dirty, actions);
        true
    }

    /// Finds the next blocks with pages in use, from the block of `unit` on. Returns the first unit of adjacent ones and
    /// the one past their last. Returns `None` if there are no more, or if a block has one unit.
    ///
    /// Pages may be in use beside the memory that is allocated. A huge page covers its whole block. If a part of it is
    /// discarded, base pages remain, also where nothing was allocated.
    #[must_use]
    pub fn next_blocks_in_use(&self, unit: u32) -> Option<(u32, u32)> {
        let is_used = |block: &usize| self.in_memory[*block] + self.remote[*block] > 0;
        let blocks = self.in_memory.len();
        let first = (self.geometry.block(unit) as usize..blocks).find(is_used)?;
        let end = (first..blocks).find(|block| !is_used(block)).unwrap_or(blocks);
        let size = self.geometry.block_units;
        Some((first as u32 * size, (end as u32 * size).min(self.geometry.units)))
    }

    /// Finds the first resident page among the units from `from` up to `end`, exclusive. Returns the page, its length
    /// in units, and whether it counts as written.
    #[must_use]
    pub fn next_in_view(&self, from: u32, end: u32) -> Option<(PageId, u32, bool)> {
        let mut unit = from;
        while unit < end.min(self.geometry.units) {
            let page = self.head(unit);
            if self.state(page) == State::Resident {
                return Some((page, self.span(page), self.has(page, DIRTY)));
            }
            unit = page.0 + self.span(page);
        }
        None
    }

    /// Marks a unit as resident and possibly written, although the pager saw no event for it. If the unit belongs to a
    /// resident page, only marks that page as written. Any other page in use keeps its state.
    pub fn adopt(&mut self, unit: u32) {
        let page = self.head(unit);
        match self.state(page) {
            State::Resident if !self.has(page, DIRTY) => {
                self.clean -= self.span(page);
                self.set(page, DIRTY);
            }
            State::Untouched => {
                if self.span(page) > 1 {
                    self.set_grain(self.geometry.block(unit), false);
                }
                let page = PageId(unit);
                self.used += 1;
                self.set(page, DIRTY);
                self.move_to(page, State::Resident);
                self.policy.coming(page);
                self.enter(page, Cause::Write);
                self.counters.used_peak = self.counters.used_peak.max(u64::from(self.local_units()));
            }
            _ => {}
        }
    }
}
