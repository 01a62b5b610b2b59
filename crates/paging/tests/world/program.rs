//! The program: threads that read, write and discard, and compare what they read with the model.

use hanare_paging::{Event, PageId, Progress, State};

use super::{Mapped, World};

#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Read(u32),
    Write(u32, u64),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Thread {
    Ready,
    Doing(Op),
    Waiting(Op, PageId),
    Discarding {
        next: u32,
        end: u32,
        first: u32,
    },
    /// The thread marks units as unused, from `next` on.
    Freeing {
        next: u32,
        end: u32,
        first: u32,
    },
    /// The thread has freed the units.
    Freed {
        end: u32,
        first: u32,
    },
    /// The thread takes freed units into use again, from `next` on.
    Reusing {
        next: u32,
        end: u32,
        first: u32,
    },
}

impl World {
    pub(super) fn run_thread(&mut self) {
        let index = self.random.below(self.threads.len() as u64) as usize;
        match self.threads[index] {
            Thread::Ready => self.choose(index),
            Thread::Doing(op) => self.attempt(index, op),
            Thread::Waiting(op, page) => {
                if self.random.chance(20) {
                    self.fault(index, op);
                } else {
                    self.threads[index] = Thread::Waiting(op, page);
                }
            }
            Thread::Discarding { next, end, first } => self.go_on_discarding(index, next, end, first),
            Thread::Freeing { next, end, first } => self.go_on_freeing(index, next, end, first),
            Thread::Freed { end, first } if self.random.chance(30) => {
                self.threads[index] = Thread::Discarding { next: first, end, first };
            }
            Thread::Freed { end, first } if self.random.chance(60) => {
                self.threads[index] = Thread::Reusing { next: first, end, first };
            }
            Thread::Freed { .. } => {}
            Thread::Reusing { next, end, first } => self.go_on_reusing(index, next, end, first),
        }
    }

    fn choose(&mut self, index: usize) {
        if self.random.chance(30) {
            return self.choose_discard(index);
        }
        let unit = if self.shape.sequential && self.random.chance(900) {
            self.cursor = (self.cursor + 1) % self.shape.units;
            self.cursor
        } else {
            self.random.below(u64::from(self.shape.units)) as u32
        };
        if self.discarding.contains(&unit) {
            return;
        }
        self.fresh += 1;
        let op = if self.random.chance(500) { Op::Read(unit) } else { Op::Write(unit, self.fresh) };
        self.threads[index] = Thread::Doing(op);
    }

    /// Picks a range to discard that no thread uses at the moment. A program that discards memory in use would itself
    /// be wrong.
    fn choose_discard(&mut self, index: usize) {
        // In large worlds, some discards are longer than one step allows.
        let longest = if self.random.chance(100) { self.shape.units / 4 } else { 2 * self.shape.block_units + 2 };
        let first = self.random.below(u64::from(self.shape.units)) as u32;
        let end = (first + 1 + self.random.below(u64::from(longest)) as u32).min(self.shape.units);
        let busy = |unit: u32| {
            self.discarding.contains(&unit)
                || self.threads.iter().any(|thread| match *thread {
                    Thread::Doing(op) | Thread::Waiting(op, _) => unit_of(op) == unit,
                    _ => false,
                })
        };
        if (first..end).any(busy) {
            return;
        }
        self.discarding.extend(first..end);
        // A transfer into a discarded page continues, but writes to memory that no longer belongs to the program.
        self.pins.retain(|unit| !(first..end).contains(unit));
        self.threads[index] = match self.random.chance(500) {
            true => Thread::Discarding { next: first, end, first },
            false => Thread::Freeing { next: first, end, first },
        };
    }

    pub(super) fn go_on_freeing(&mut self, index: usize, next: u32, end: u32, first: u32) {
        self.threads[index] = match self.step(Event::Unused { first, next, end }) {
            Progress::Done => Thread::Freed { end, first },
            Progress::Continue(next) | Progress::Busy(next) => Thread::Freeing { next, end, first },
        };
    }

    /// Goes on to take units into use. At the end, each unit has its old bytes or zeroes. The first read finds out
    /// which. The thread then writes to one of the units at once.
    pub(super) fn go_on_reusing(&mut self, index: usize, next: u32, end: u32, first: u32) {
        self.threads[index] = match self.step(Event::Used { first: next, end }) {
            Progress::Continue(next) | Progress::Busy(next) => Thread::Reusing { next, end, first },
            Progress::Done => {
                for unit in first..end {
                    self.discarding.remove(&unit);
                    self.uncertain.insert(unit);
                }
                self.fresh += 1;
                let unit = first + self.random.below(u64::from(end - first)) as u32;
                Thread::Doing(Op::Write(unit, self.fresh))
            }
        };
    }

    /// Returns what a read of a unit must find, if the unit holds `found`.
    pub(super) fn expected(&mut self, unit: u32, found: u64) -> u64 {
        if self.uncertain.remove(&unit) && found == 0 {
            self.model.remove(&unit);
        }
        self.model.get(&unit).copied().unwrap_or(0)
    }

    pub(super) fn go_on_discarding(&mut self, index: usize, next: u32, end: u32, first: u32) {
        let mut next = next;
        if next < end {
            next = match self.step(Event::Discard { first: next, end }) {
                Progress::Done => end,
                Progress::Continue(unit) | Progress::Busy(unit) => unit,
            };
            self.threads[index] = Thread::Discarding { next, end, first };
            return;
        }
        // The discarding call must not return to the program before its actions were carried out.
        if (first..end).any(|unit| {
            let there = self.view.contains_key(&unit) || self.hidden.contains_key(&unit);
            there && self.pager.state_of(unit) == State::TakingOut
        }) {
            return;
        }
        for unit in first..end {
            self.model.remove(&unit);
            self.uncertain.remove(&unit);
            self.discarding.remove(&unit);
        }
        self.threads[index] = Thread::Ready;
    }

    pub(super) fn attempt(&mut self, index: usize, op: Op) {
        let unit = unit_of(op);
        match (self.view.get_mut(&unit), op) {
            (Some(&mut Mapped { value: found, .. }), Op::Read(_)) => {
                assert_eq!(found, self.expected(unit, found), "unit {unit} reads wrong");
                self.threads[index] = Thread::Ready;
            }
            (Some(mapped), Op::Write(_, value)) if mapped.writable => {
                mapped.value = value;
                self.model.insert(unit, value);
                self.uncertain.remove(&unit);
                self.threads[index] = Thread::Ready;
            }
            _ => self.fault(index, op),
        }
    }

    fn fault(&mut self, index: usize, op: Op) {
        let unit = unit_of(op);
        self.threads[index] = Thread::Waiting(op, PageId(unit));
        self.step(Event::Fault { unit, write: matches!(op, Op::Write(..)) });
    }
}

pub(super) fn unit_of(op: Op) -> u32 {
    match op {
        Op::Read(unit) | Op::Write(unit, _) => unit,
    }
}
