//! Predicts from past writes whether a page will be written to.

use super::Pager;
use super::page::{WRITTEN_BEFORE, WRITTEN_SHIFT};
use crate::units::PageId;

/// A write is predicted if the frequency of repeated writes is at least this share of [`u16::MAX`]. A wrong prediction
/// costs a comparison of the page, during which writes must be stopped. A write that was not predicted costs a trap,
/// which is several times as expensive.
const GUESS_FROM: u16 = u16::MAX / 4;
/// Weight of one outcome. Each outcome changes the frequency by 1 / 2^`HABIT_SHIFT` of its distance to 0 or 1.
const HABIT_SHIFT: u32 = 6;

impl Pager {
    /// Predicts whether a page that is fetched without a frame will be written to. If so, the caller maps the page
    /// writable.
    pub(super) fn will_be_written(&self, page: PageId) -> bool {
        self.direct && self.written_before(page).is_some_and(|times| self.habits[times] >= GUESS_FROM)
    }

    /// Returns the value of [`WRITTEN_BEFORE`] for a page, minus one. Returns `None` if the value is 0.
    pub(super) fn written_before(&self, page: PageId) -> Option<usize> {
        usize::from((self.flags[page.0 as usize] & WRITTEN_BEFORE) >> WRITTEN_SHIFT).checked_sub(1)
    }

    /// Records whether a page was written to while it was resident.
    pub(super) fn remember(&mut self, page: PageId, written: bool) {
        if let Some(times) = self.written_before(page) {
            let habit = &mut self.habits[times];
            *habit = match written {
                true => *habit + ((u16::MAX - *habit) >> HABIT_SHIFT),
                false => *habit - (*habit >> HABIT_SHIFT),
            };
        }
        let flags = &mut self.flags[page.0 as usize];
        if written {
            *flags |= WRITTEN_BEFORE;
        } else if *flags & WRITTEN_BEFORE != 0 {
            *flags -= 1 << WRITTEN_SHIFT;
        }
    }
}
