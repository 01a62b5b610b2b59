//! The page sizes of the far space: which units form a page together, and when this may change.

use super::Pager;
use super::page::{HELD, STALE, WANTED, WRITING, WRITTEN_BEFORE};
use crate::config::State;
use crate::units::{Geometry, PageId, Size};

/// The page size of each run. All runs of a huge page have the size `Wide`.
#[derive(Debug)]
pub(super) struct Sizes {
    of_run: Vec<u8>,
    run_units: u32,
    middle_units: u32,
    block_units: u32,
}

impl Sizes {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let run_units = geometry.run_units();
        let runs = if geometry.block_units > 1 { geometry.units / run_units } else { 0 };
        let Geometry { middle_units, block_units, .. } = *geometry;
        Self { of_run: vec![Size::Small as u8; runs as usize], run_units, middle_units, block_units }
    }

    /// Returns the size of the page that contains a unit.
    pub(super) fn of(&self, unit: u32) -> Size {
        match self.of_run.get((unit / self.run_units) as usize) {
            None | Some(0) => Size::Small,
            Some(1) => Size::Middle,
            Some(_) => Size::Wide,
        }
    }

    /// Returns the page that contains a unit.
    pub(super) fn head(&self, unit: u32) -> PageId {
        match self.of(unit) {
            Size::Small => PageId(unit),
            Size::Middle => PageId(unit & !(self.middle_units - 1)),
            Size::Wide => PageId(unit & !(self.block_units - 1)),
        }
    }

    /// Sets the page size of the runs from `first` on that `count` units form.
    fn set(&mut self, first: u32, count: u32, size: Size) {
        let run = (first / self.run_units) as usize;
        self.of_run[run..run + (count / self.run_units) as usize].fill(size as u8);
    }
}

impl Pager {
    /// Decides in which page size an accessed unit is fetched. Changes nothing if pages in memory prevent this.
    pub(super) fn choose_size(&mut self, unit: u32) {
        self.choose(unit, true);
    }

    /// Does the work of [`Self::choose_size`] for a unit that is prefetched. The page-size policy makes no observation.
    pub(super) fn lean_size(&mut self, unit: u32) {
        self.choose(unit, false);
    }

    fn choose(&mut self, unit: u32, is_access: bool) {
        let block = self.geometry.block(unit);
        if self.block_is_away(block) {
            let wide =
                self.affords_wide() && if is_access { self.grain.decide(block) } else { self.grain.leans_wide(block) };
            let size = self.size(PageId(unit));
            if wide != (size == Size::Wide) {
                let first = self.geometry.block_start(unit);
                self.resize(first, self.geometry.block_units, if wide { Size::Wide } else { Size::Small });
            }
        }
        let size = self.size(PageId(unit));
        if size == Size::Wide || !self.geometry.has_middle() || !self.run_is_away(unit) {
            return;
        }
        let run = unit / self.geometry.middle_units;
        let middle = self.affords_middle()
            && match self.state(self.head(unit)) {
                State::Untouched => self.fills_middle(unit),
                _ if is_access => self.grain.decide_run(run),
                _ => self.grain.leans_middle(run),
            };
        let size = if middle { Size::Middle } else { Size::Small };
        self.resize(run * self.geometry.middle_units, self.geometry.middle_units, size);
    }

    /// Whether a block has no unit in memory, all its units have the same state, and no fault or write-back concerns
    /// them.
    pub(super) fn block_is_away(&self, block: u32) -> bool {
        let span = self.geometry.block_units;
        let remote = u32::from(self.remote[block as usize]);
        if self.in_memory[block as usize] != 0 || (remote != 0 && remote != span) {
            return false;
        }
        self.no_flags(block * span, span)
    }

    /// Does the work of [`Self::block_is_away`] for the run that contains a unit. The run is no part of a huge page.
    fn run_is_away(&self, unit: u32) -> bool {
        let span = self.geometry.middle_units;
        let first = unit & !(span - 1);
        let state = self.state[first as usize];
        if state != State::Untouched as u8 && state != State::Remote as u8 {
            return false;
        }
        let states = &self.state[first as usize..(first + span) as usize];
        let is_uniform = self.size(PageId(first)) == Size::Middle || states.iter().all(|&other| other == state);
        is_uniform && self.no_flags(first, span)
    }

    fn no_flags(&self, first: u32, count: u32) -> bool {
        let flags = &self.flags[first as usize..(first + count) as usize];
        flags.iter().fold(0, |all, flags| all | flags) & (WRITING | WANTED | STALE) == 0
    }

    /// Changes the page size of `count` units from `first` on. They are a block or a run, they are away and have the same
    /// state. Huge pages are changed as a whole.
    pub(super) fn resize(&mut self, first: u32, count: u32, size: Size) {
        let old = self.size(PageId(first));
        if old == size {
            return;
        }
        // All units have the same state, so the first unit's state is valid for the new pages.
        // Whether the page was written to before predicts whether its parts will be written to.
        let head = first as usize;
        let (state, flags) = (self.state[head], self.flags[head] & (HELD | WRITTEN_BEFORE));
        self.counters.widened += u64::from(size > old);
        self.counters.narrowed += u64::from(size < old);
        self.resize_with(first, count, size, state, flags);
    }

    /// Changes the page size of units, which get this state and these flags.
    pub(super) fn resize_with(&mut self, first: u32, count: u32, size: Size, state: u8, flags: u16) {
        self.sizes.set(first, count, size);
        let range = first as usize..(first + count) as usize;
        self.state[range.clone()].fill(state);
        self.flags[range].fill(flags);
    }
}
