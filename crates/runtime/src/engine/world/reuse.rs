//! Freed ranges that the program uses again.

use hanare_paging::{Event, Progress};

use crate::view::fake::Trapped;

use super::{FakeView, Op, Thread, WORDS, World};

/// The step that a freed range has reached. The number is the unit from which the step continues.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reuse {
    Freeing(u32),
    Freed,
    Reusing(u32),
}

impl World {
    /// Tells the engine that a random range is allocated.
    pub(super) fn allocate(&mut self) {
        let first = self.random.below(self.units());
        let end = (first + 1 + self.random.below(40)).min(self.units());
        if !(first..end).any(|unit| self.is_discarded(unit)) {
            self.engine().allocated((first as u32, end as u32), true);
        }
    }

    /// Notes a store to a word of a unit.
    pub(super) fn is_stored(&mut self, unit: usize, at: usize, value: u64) {
        self.model[unit][at] = value;
        self.others.entry(unit).and_modify(|other| other[at] = value);
    }

    /// Does the next step of freeing a range and using it again. At the end, a thread stores to the range at once.
    pub(super) fn go_on_reusing(&mut self) {
        let Some((range, step)) = self.freed.clone() else { return };
        let (first, end) = (range.start as u32, range.end as u32);
        let next = match step {
            Reuse::Freeing(next) => match self.engine().submit_asking(Event::Unused { first, next, end }) {
                Progress::Done => Reuse::Freed,
                Progress::Continue(unit) | Progress::Busy(unit) => Reuse::Freeing(unit),
            },
            Reuse::Freed => Reuse::Reusing(first),
            Reuse::Reusing(next) => match self.engine().submit_asking(Event::Used { first: next, end }) {
                Progress::Done => return self.is_used_again(range),
                Progress::Continue(unit) | Progress::Busy(unit) => Reuse::Reusing(unit),
            },
        };
        self.freed = Some((range, next));
    }

    fn is_used_again(&mut self, range: std::ops::Range<usize>) {
        self.freed = None;
        self.others.extend(range.clone().map(|unit| (unit, [0; WORDS.len()])));
        if let Some(index) = self.threads.iter().position(|thread| matches!(thread, Thread::Ready)) {
            self.fresh += 1;
            let (unit, word) = (range.start + self.random.below(range.len()), self.random.below(WORDS.len()));
            self.attempt(index, Op::Store(unit, word, self.fresh));
        }
    }
}

/// Loads the words of a unit.
pub(super) fn load(view: &FakeView, unit: usize) -> Result<[u64; WORDS.len()], Trapped> {
    let mut found = [0; WORDS.len()];
    WORDS.iter().zip(&mut found).try_for_each(|(&word, found)| view.load(unit, word).map(|value| *found = value))?;
    Ok(found)
}
