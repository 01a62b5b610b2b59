//! Parking: sends resident pages away at once, because the program will not access them for long. The budget stays as it
//! is, so that each page comes back at its next access.

use super::Pager;
use super::page::{DIRTY, HELD_BACK, HIDDEN, LOCKED, WANTED, WRITING};
use crate::config::{Progress, State};
use crate::event::Actions;
use crate::limits;
use crate::policy::Leave;
use crate::units::PageId;

impl Pager {
    /// Returns the number of units in free frames that keep their memory.
    #[must_use]
    pub fn spare_units(&self) -> u32 {
        self.spare() + self.freeing
    }

    /// Starts to evict the pages of a range, as far as one step gets. First drops unused pages, whose bytes nobody needs,
    /// and returns free frames to the system.
    pub(super) fn park(
        &mut self,
        first: u32,
        end: u32,
        actions: &mut Actions,
        keeps: &dyn Fn(PageId) -> bool,
    ) -> Progress {
        self.empty_spare_frames(self.spare(), actions);
        let mut dropped = 0;
        while self.drop_unused(actions, keeps) {
            dropped += 1;
            if dropped == limits::VICTIMS_MAX {
                return Progress::Continue(first);
            }
        }
        let end = end.min(self.geometry.units);
        let stop = end.min(first.saturating_add(limits::DISCARD_UNITS_MAX));
        let mut unit = first;
        while unit < stop && self.held_back.len() < limits::HELD_MAX {
            let page = self.head(unit);
            if !keeps(page) && !self.park_page(page, actions) {
                return Progress::Busy(unit);
            }
            unit = page.0 + self.span(page);
        }
        if unit < stop {
            // So many pages are held by transfers that no page is evicted until the next tick.
            return Progress::Busy(unit);
        }
        if unit < end { Progress::Continue(unit) } else { Progress::Done }
    }

    /// Starts to evict a page, unless it is locked, in transit, or used by a transfer. Returns false if the page needs a
    /// frame and none is free, or if an action on the page must complete first.
    fn park_page(&mut self, page: PageId, actions: &mut Actions) -> bool {
        match self.state(page) {
            State::Resident if !self.has(page, LOCKED | WRITING | WANTED | HELD_BACK) => self.send_away(page, actions),
            State::Staged if self.is_hidden(page) && !self.has(page, LOCKED | WANTED | HELD_BACK) => {
                self.park_hidden(page, actions)
            }
            State::Staged if !self.has(page, WRITING | HIDDEN) => {
                self.drop_prefetched_page(page);
                true
            }
            // It is staged soon, unmapped for reference sampling.
            State::Hiding => false,
            _ => true,
        }
    }

    /// Starts to evict a page that is unmapped for reference sampling.
    fn park_hidden(&mut self, page: PageId, actions: &mut Actions) -> bool {
        let Some(frame) = self.hiding_frame(page) else { return self.send_away(page, actions) };
        self.withdraw(page, Leave::Evicted);
        self.clean -= if self.has(page, DIRTY) { 0 } else { self.span(page) };
        self.evict_hidden(page, frame, actions);
        true
    }
}
