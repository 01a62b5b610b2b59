//! Locked pages: the program asked that they stay in local memory (mlock). Such a page comes at its first access like any
//! other, and then stays until it is discarded or unlocked. The policy does not know it, so no search for a victim passes
//! over it. Pages that are not locked share the rest of the budget.

use super::Pager;
use super::page::{HIDDEN, LOCKED};
use crate::config::{Progress, State};
use crate::event::Actions;
use crate::limits;
use crate::policy::Leave;
use crate::units::PageId;

impl Pager {
    /// Returns the number of units that are locked, wherever their pages are.
    #[must_use]
    pub fn locked_units(&self) -> u32 {
        self.locked
    }

    /// Returns whether a range may be locked. At most 1/[`limits::LOCKED_PART`] of the budget may be locked, and the smallest
    /// budget must fit beside it in half of the budget.
    #[must_use]
    pub fn may_lock(&self, first: u32, end: u32) -> bool {
        let end = end.min(self.geometry.units);
        let half = self.budget_set / 2;
        let most = (self.budget_set / limits::LOCKED_PART).min(half.saturating_sub(limits::BUDGET_PAGES_MIN));
        let not_yet = |unit: &u32| !self.has(self.head(*unit), LOCKED);
        end.saturating_sub(first) <= most && self.locked + (first..end).filter(not_yet).count() as u32 <= most
    }

    /// Returns the first run of locked units in a range, as its first unit and the one past its last.
    #[must_use]
    pub fn locked_run(&self, first: u32, end: u32) -> Option<(u32, u32)> {
        let end = end.min(self.geometry.units);
        let is_locked = |unit: &u32| self.has(self.head(*unit), LOCKED);
        let first = (first..end).filter(|_| self.locked > 0).find(is_locked)?;
        Some((first, (first..end).find(|unit| !is_locked(unit)).unwrap_or(end)))
    }

    /// Ends the locks of all pages, in a forked child.
    pub fn unlock_all(&mut self) {
        let mut unit = 0;
        while self.locked > 0 && unit < self.geometry.units {
            let page = self.head(unit);
            self.unlock_page(page);
            unit = page.0 + self.span(page);
        }
    }

    pub(super) fn lock(&mut self, first: u32, end: u32, actions: &mut Actions) -> Progress {
        let end = end.min(self.geometry.units);
        let stop = end.min(first.saturating_add(limits::DISCARD_UNITS_MAX));
        self.each_page(first, stop, end, false, actions, Self::lock_page)
    }

    pub(super) fn unlock(&mut self, first: u32, end: u32, actions: &mut Actions) -> Progress {
        let end = end.min(self.geometry.units);
        if self.locked == 0 {
            return Progress::Done;
        }
        let stop = end.min(first.saturating_add(limits::DISCARD_UNITS_MAX));
        self.each_page(first, stop, end, true, actions, Self::unlock_page)
    }

    /// Calls `change` for the pages of `[first, stop)` that are locked, or those that are not. Splits a huge page that the
    /// range up to `end` covers only partly.
    fn each_page(
        &mut self,
        first: u32,
        stop: u32,
        end: u32,
        locked: bool,
        actions: &mut Actions,
        change: fn(&mut Self, PageId),
    ) -> Progress {
        let mut unit = first;
        while unit < stop {
            let page = self.head(unit);
            let after = page.0 + self.span(page);
            if self.has(page, LOCKED) == locked {
                if (page.0 < first || after > end) && !self.part(page, actions) {
                    return Progress::Busy(unit);
                }
                change(self, self.head(unit));
            }
            let page = self.head(unit);
            unit = page.0 + self.span(page);
        }
        if unit < end { Progress::Continue(unit) } else { Progress::Done }
    }

    fn lock_page(&mut self, page: PageId) {
        self.withdraw(page, Leave::Forgotten);
        self.set(page, LOCKED);
        self.locked += self.span(page);
        self.set_room();
    }

    /// Ends the lock of a page, if it is locked. The policy learns of the page if it is resident.
    pub(super) fn unlock_page(&mut self, page: PageId) {
        if !self.has(page, LOCKED) {
            return;
        }
        self.end_lock(page);
        if self.is_evictable(page) {
            self.enter(page, self.cause(page));
        }
    }

    /// Ends the lock of a page without telling the policy.
    pub(super) fn end_lock(&mut self, page: PageId) {
        if self.has(page, LOCKED) {
            self.clear(page, LOCKED);
            self.locked -= self.span(page);
            self.set_room();
        }
    }

    /// Tells the policy that a page is no longer to be evicted, if the policy knows it.
    pub(super) fn withdraw(&mut self, page: PageId, why: Leave) {
        if self.is_evictable(page) {
            self.policy.removed(page, why);
        }
    }

    /// Tells the policy of a reference to a page that it knows.
    pub(super) fn note_reference(&mut self, page: PageId, write: bool) {
        if !self.has(page, LOCKED) {
            self.policy.referenced(page, write);
        }
    }

    /// Whether the policy knows a page: it is in local memory to stay, and is not locked.
    fn is_evictable(&self, page: PageId) -> bool {
        let stays = match self.state(page) {
            State::Resident | State::Opening | State::Hiding => true,
            // A page that was unmapped for reference sampling, or is being mapped again.
            State::Staged | State::Installing => self.has(page, HIDDEN),
            _ => false,
        };
        stays && !self.has(page, LOCKED)
    }
}
