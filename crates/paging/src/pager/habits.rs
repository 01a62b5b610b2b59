//! Whether a page will be written to, guessed from whether it was before.

use super::Pager;
use super::page::{WRITTEN_BEFORE, WRITTEN_SHIFT};
use crate::units::PageId;

/// How often a page has to be written to again, of [`u16::MAX`] times, for the guess that it will be. A wrong guess costs a
/// comparison, and the stop to writes before it; a missed one costs a trap, several times as dear.
const GUESS_FROM: u16 = u16::MAX / 4;
/// The last outcome's weight in that frequency is two to the minus this.
const HABIT_SHIFT: u32 = 6;

impl Pager {
    /// Whether a page that is fetched into view is opened at once: it was written to before, and such pages are again.
    pub(super) fn will_be_written(&self, page: PageId) -> bool {
        self.direct && self.written_before(page).is_some_and(|times| self.habits[times] >= GUESS_FROM)
    }

    /// What [`WRITTEN_BEFORE`] says of a page, less one.
    pub(super) fn written_before(&self, page: PageId) -> Option<usize> {
        usize::from((self.flags[page.0 as usize] & WRITTEN_BEFORE) >> WRITTEN_SHIFT).checked_sub(1)
    }

    /// Keeps in mind whether a page was written to this time.
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
