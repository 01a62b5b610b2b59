//! Prefetching: fetches pages before they are accessed.

use super::Pager;
use super::page::{DIRTY, GUESSED, PREFETCHED, WANTED, WRITE};
use crate::config::State;
use crate::event::Actions;
use crate::limits;
use crate::prefetch::{Proposals, Touch};
use crate::units::PageId;

impl Pager {
    /// Fetches the units that the prefetcher proposes after an access. Proposed units directly behind the accessed page
    /// become part of the page's fetch, the action at index `fetch`. Returns the number of units in that fetch beside
    /// the page.
    pub(super) fn read_ahead(&mut self, page: PageId, fetch: Option<usize>, actions: &mut Actions) -> u32 {
        let span = self.span(page);
        let copied = !self.pool_of(page).class.moves;
        if !copied && self.ahead_units == 0 {
            return 0;
        }
        let run_max = (limits::RUN_BYTES_MAX / self.geometry.unit_bytes).max(1);
        // If pages are copied to their addresses, an accessed page and the pages prefetched with it form one run.
        let window_max = if copied { (run_max - 1).max(1) } else { self.ahead_units };
        let staged = matches!(self.state(page), State::Staged | State::Installing);
        let touch = Touch { unit: page.0, span, window_max, staged, told: !copied };
        let mut proposals = Proposals::default();
        let Self { prefetcher, state, flags, is_wide, geometry, .. } = self;
        let away = |unit: u32| {
            let wide = is_wide.get(geometry.block(unit) as usize).is_some_and(|&wide| wide != 0);
            let head = if wide { geometry.block_start(unit) } else { unit } as usize;
            unit < geometry.units && state[head] == State::Remote as u8 && flags[head] & WANTED == 0
        };
        prefetcher.touched(touch, &away, &mut proposals);
        if copied {
            self.counters.prefetch_used += u64::from(proposals.confirmed());
            self.counters.prefetch_wasted += u64::from(proposals.missed());
        }
        if copied {
            self.note_run(!proposals.as_slice().is_empty());
        }
        let (mut run, mut pages_left) = (0, limits::PREFETCH_UNITS_MAX);
        for &(mut first, mut count) in proposals.as_slice() {
            if let Some(fetch) = fetch
                && (copied && span == 1 && first == page.0 + span && self.its_frame(page).is_none() && run == 0)
            {
                run = self.join_run(fetch, first, count.min(run_max - 1), actions);
                (first, count) = (first + run, count - run);
            }
            self.prefetch_some(first, count, &mut pages_left, actions);
        }
        run
    }

    /// Extends the fetch at index `fetch`, which uses no frame, by up to `count` units from `first` on. Stops at the
    /// first unit that cannot join.
    fn join_run(&mut self, fetch: usize, first: u32, count: u32, actions: &mut Actions) -> u32 {
        let mut run = 0;
        let mut writable = self.has(PageId(first - 1), DIRTY);
        let extent = self.geometry.stretch_units();
        while run < count && first + run < self.geometry.units {
            let page = PageId(first + run);
            // A run of pages ends at the border of a placement extent, because adjacent extents may be on different
            // servers.
            if page.0.is_multiple_of(extent) {
                break;
            }
            if self.head(page.0) != page || self.span(page) > 1 || !self.may_prefetch(page) {
                break;
            }
            // All pages after the first write-protected page are protected, too. To fetch them separately as writable
            // pages would cost more than an occasional trap.
            writable &= self.will_be_written(page);
            self.note_returned(page, false);
            self.used += 1;
            self.counters.fetched += 1;
            self.counters.prefetched += 1;
            self.counters.pages_small += 1;
            self.move_to(page, State::Fetching);
            self.clear(page, WANTED | WRITE);
            self.set_frame(page, None);
            self.set(page, PREFETCHED | if writable { GUESSED | DIRTY } else { 0 });
            actions.extend_run(fetch, writable);
            run += 1;
        }
        run
    }

    pub(super) fn may_prefetch(&self, page: PageId) -> bool {
        let room = self.budget.saturating_sub(self.used + self.spare() + self.freeing);
        let copied = !self.pool_of(page).class.moves;
        // Number of units that stay free for faults. Pages that are copied in need few free units.
        let margin = if copied { (self.low / 2).min(16) } else { self.low / 2 };
        let spare = if copied { room } else { self.budget.saturating_sub(self.used) };
        self.state(page) == State::Remote
            && !self.has(page, WANTED)
            && self.starved.is_empty()
            && spare >= self.span(page) + margin
    }

    /// Prefetches the remote pages of a range while enough memory is free.
    pub(super) fn prefetch_range(&mut self, first: u32, count: u32, actions: &mut Actions) {
        let count = count.min(limits::PREFETCH_UNITS_MAX.max(self.ahead_units));
        self.prefetch_some(first, count, &mut { limits::PREFETCH_UNITS_MAX }, actions);
    }

    /// Does the work of [`Self::prefetch_range`], but examines at most `pages_left` pages. Subtracts the number of
    /// examined pages from `pages_left`.
    fn prefetch_some(&mut self, first: u32, count: u32, pages_left: &mut u32, actions: &mut Actions) {
        let end = first.saturating_add(count).min(self.geometry.units);
        let run_max = (limits::RUN_BYTES_MAX / self.geometry.unit_bytes).max(1);
        let mut unit = first;
        while unit < end && *pages_left > 0 {
            if self.geometry.block_units > 1 && self.block_is_away(self.geometry.block(unit)) {
                let block = self.geometry.block(unit);
                let wide = self.affords_wide() && self.grain.leans_wide(block);
                self.set_grain(block, wide);
            }
            let page = self.head(unit);
            let span = self.span(page);
            *pages_left -= 1;
            unit = page.0 + span;
            let quota = self.room() / 4;
            let moves = self.pool_of(page).class.moves;
            if !self.may_prefetch(page) || moves && self.ahead.len() as u32 * span >= quota {
                continue;
            }
            let Some(frame) = self.admit(page, actions) else {
                return;
            };
            self.counters.prefetched += u64::from(span);
            let at = actions.as_slice().len();
            self.launch(page, frame, false, false, actions);
            if frame.is_none() && span == 1 {
                let more = (run_max - 1).min(end - unit).min(*pages_left);
                let run = self.join_run(at, unit, more, actions);
                (unit, *pages_left) = (unit + run, *pages_left - run);
            }
        }
    }
}
