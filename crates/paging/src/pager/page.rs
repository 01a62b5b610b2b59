//! The record of each page: its state, flags and frame. Counters derived from these records are kept here, too.

use super::transitions;
use super::{Pager, Pool};
use crate::config::{STATES, State};
use crate::policy::Cause;
use crate::reuse::Kind;
use crate::units::{FrameId, PageId};

/// The program may have written to the page since the server last received it.
pub(super) const DIRTY: u16 = 1;
/// The server holds bytes of the page.
pub(super) const HELD: u16 = 2;
/// A thread waits for the page.
pub(super) const WANTED: u16 = 4;
/// A thread waits to write to the page. If the page is being fetched or installed, it will be mapped writable.
pub(super) const WRITE: u16 = 8;
/// The page is being unmapped because it was discarded.
pub(super) const DISCARDED: u16 = 16;
/// The page was prefetched and has not been used.
pub(super) const PREFETCHED: u16 = 32;
/// A write-back of the page is in progress.
pub(super) const WRITING: u16 = 64;
/// The bytes of the write-back in progress are out of date. The server drops them when the write-back ends.
pub(super) const STALE: u16 = 128;
/// The page was mapped writable, because of earlier writes or because it could not be protected. It is not known
/// whether the page was written to since then.
pub(super) const GUESSED: u16 = 256;
/// Two bits. They are 3 if the page was written to during its last stay in memory. Each later stay without a write
/// lowers them by one.
pub(super) const WRITTEN_BEFORE: u16 = 3 << WRITTEN_SHIFT;
pub(super) const WRITTEN_SHIFT: u32 = 9;
/// The page is unmapped for reference sampling, or is being unmapped.
pub(super) const HIDDEN: u16 = 2048;
/// A transfer prevented the page's eviction. The page is not chosen as a victim until the next check.
pub(super) const HELD_BACK: u16 = 4096;
/// The page must not be evicted. The policy does not know a locked page. Any page that is not being discarded may be locked.
pub(super) const LOCKED: u16 = 8192;

impl Pager {
    pub(super) fn head(&self, unit: u32) -> PageId {
        match self.is_wide.get(self.geometry.block(unit) as usize) {
            Some(&wide) if wide != 0 => PageId(self.geometry.block_start(unit)),
            _ => PageId(unit),
        }
    }

    pub(super) fn span(&self, page: PageId) -> u32 {
        match self.is_wide.get(self.geometry.block(page.0) as usize) {
            Some(&wide) if wide != 0 => self.geometry.block_units,
            _ => 1,
        }
    }

    /// Tells the policy that a page became resident, unless the page is locked.
    pub(super) fn enter(&mut self, page: PageId, cause: Cause) {
        if self.has(page, LOCKED) {
            return;
        }
        if self.span(page) > 1 {
            self.policy.wide(page);
        }
        self.policy.inserted(page, cause);
    }

    /// Returns the cause of a page's arrival in memory, in the terms of a policy.
    pub(super) fn cause(&self, page: PageId) -> Cause {
        match (self.has(page, PREFETCHED), self.has(page, DIRTY)) {
            (true, _) => Cause::Ahead,
            (false, true) => Cause::Write,
            (false, false) => Cause::Read,
        }
    }

    pub(super) fn span_of(&self, wide: bool) -> u32 {
        if wide { self.geometry.block_units } else { 1 }
    }

    pub(super) fn pool(&mut self, wide: bool) -> &mut Pool {
        if wide { &mut self.wide } else { &mut self.small }
    }

    pub(super) fn pool_of(&self, page: PageId) -> &Pool {
        if self.span(page) > 1 { &self.wide } else { &self.small }
    }

    /// Returns the frame of a page. The page must have a frame.
    pub(super) fn frame_of(&self, page: PageId) -> FrameId {
        self.its_frame(page).unwrap_or(FrameId { wide: self.span(page) > 1, index: u32::MAX })
    }

    pub(super) fn its_frame(&self, page: PageId) -> Option<FrameId> {
        let wide = self.span(page) > 1;
        self.frame.get(page, wide).map(|index| FrameId { wide, index })
    }

    pub(super) fn set_frame(&mut self, page: PageId, frame: Option<FrameId>) {
        self.frame.set(page, self.span(page) > 1, frame.map(|frame| frame.index));
    }

    /// Returns the number of units of free frames that keep their memory.
    pub(super) fn spare(&self) -> u32 {
        let of = |pool: &Pool, span| {
            if pool.class.moves { pool.frames.filled() * span } else { 0 }
        };
        of(&self.small, 1) + of(&self.wide, self.geometry.block_units)
    }

    pub(super) fn state(&self, page: PageId) -> State {
        STATES[self.state[page.0 as usize] as usize]
    }

    pub(super) fn move_to(&mut self, page: PageId, to: State) {
        let from = self.state(page);
        debug_assert!(transitions::is_known(from, to), "{page:?} goes from {from:?} to {to:?}");
        self.state[page.0 as usize] = to as u8;
        self.moving -= u32::from(!from.is_at_rest());
        self.moving += u32::from(!to.is_at_rest());
        if self.geometry.block_units == 1 {
            return self.count_touched(page, from != State::Untouched, to != State::Untouched);
        }
        let (block, span) = (self.geometry.block(page.0) as usize, self.span(page) as u16);
        let is_touched = |pager: &Self| pager.in_memory[block] + pager.remote[block] > 0;
        let was_touched = is_touched(self);
        match from {
            State::Untouched => {}
            State::Remote => self.remote[block] -= span,
            _ => self.in_memory[block] -= span,
        }
        match to {
            State::Untouched => {}
            State::Remote => self.remote[block] += span,
            _ => self.in_memory[block] += span,
        }
        match (was_touched, is_touched(self)) {
            (false, true) => self.touched += self.geometry.block_units,
            (true, false) => self.touched -= self.geometry.block_units,
            _ => {}
        }
    }

    pub(super) fn count_touched(&mut self, page: PageId, was: bool, is: bool) {
        let extent = &mut self.in_extent[(page.0 / self.geometry.stretch_units()) as usize];
        match (was, is) {
            (false, true) => {
                self.touched += 1;
                self.extents += u32::from(*extent == 0);
                *extent += 1;
            }
            (true, false) => {
                self.touched -= 1;
                *extent -= 1;
                self.extents -= u32::from(*extent == 0);
            }
            _ => {}
        }
    }

    /// Counts a page that left local memory and is on the server now. `is_written` says that it was written back.
    pub(super) fn note_evicted(&mut self, page: PageId, is_written: bool) {
        let span = self.span(page);
        if let Some(reuse) = &mut self.reuse {
            reuse.evicted(page.0, span, is_written);
        }
    }

    /// Counts an evicted page that comes in. Call it before the page counts as used.
    pub(super) fn note_returned(&mut self, page: PageId, demand: bool) {
        let span = self.span(page);
        let kind = match (demand, span) {
            (false, _) => Kind::Ahead,
            (true, 1) => Kind::Small,
            (true, _) => Kind::Wide,
        };
        if let Some(reuse) = &mut self.reuse {
            reuse.returned(page.0, span, self.used, kind);
        }
    }

    /// Counts an evicted page that is discarded.
    pub(super) fn note_discarded(&mut self, page: PageId) {
        let span = self.span(page);
        if let Some(reuse) = &mut self.reuse {
            reuse.discarded(page.0, span, self.used);
        }
    }

    pub(super) fn has(&self, page: PageId, flags: u16) -> bool {
        self.flags[page.0 as usize] & flags != 0
    }

    pub(super) fn set(&mut self, page: PageId, flags: u16) {
        self.flags[page.0 as usize] |= flags;
    }

    pub(super) fn clear(&mut self, page: PageId, flags: u16) {
        self.flags[page.0 as usize] &= !flags;
    }
}
