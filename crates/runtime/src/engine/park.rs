//! Parking: sends all far pages away that may leave. The work is done in slices, so that a fork need not wait for its end.

use hanare_paging::{Event, Progress};
use hanare_store::{Ask, Store, Turn};
use hanare_sys::clock::now_ns;

use super::Engine;
use crate::accounts;
use crate::span::Span;
use crate::view::View;

/// Length of one slice, in nanoseconds.
const SLICE_NS: u64 = 5_000_000;
/// Time without progress, in nanoseconds, after which the rest counts as in use again. The program's own faults move pages
/// meanwhile.
const STALLED_NS: u64 = 500_000_000;
/// Number of transfers that end without progress, from which on they are those of such faults.
const OWN_TRANSFERS: u64 = 64;
/// Time without progress while few transfers end, or while pages are left that were not looked at. The program's own faults
/// may take each frame that is free.
const CROWDED_NS: u64 = 30_000_000_000;
/// The same while no transfer ends, because a server does not answer. `hanare park` gives up before.
const SILENT_NS: u64 = 60_000_000_000;
/// Most of the time between two steps that counts as time without progress, in nanoseconds. A thread that does not get to
/// run sees no progress, and no lack of it.
const STEP_MAX_NS: u64 = 5_000_000;

/// The state of one pass over the far pages.
pub(crate) struct Parking {
    /// The spans in which pages are in use, the last one first.
    left: Vec<Span>,
    /// Local memory at the beginning, in bytes.
    before: u64,
    /// Smallest local memory since, in bytes.
    least: u64,
    /// Time without progress, in nanoseconds.
    idle_ns: u64,
    /// Time of the last step, in nanoseconds.
    last_ns: u64,
    /// Number of units that had been fetched or written back at the last progress.
    moved: u64,
}

impl Parking {
    /// Returns how many bytes have left local memory.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.before.saturating_sub(self.least)
    }

    /// Takes note of a step. `local` is local memory after it, in bytes, and `moved` is the number of units that have been
    /// fetched or written back so far. Returns whether to wait no longer.
    fn is_stalled_after(&mut self, step: Step, now_ns: u64, local: u64, moved: u64) -> bool {
        let took_ns = now_ns.saturating_sub(self.last_ns);
        self.last_ns = now_ns;
        if step == Step::Begun || local < self.least {
            (self.idle_ns, self.moved) = (0, moved);
        } else {
            self.idle_ns += took_ns.min(STEP_MAX_NS);
        }
        self.least = self.least.min(local);
        // Once every page was looked at, only transfers are left. Those of the program's own faults never end.
        let patience_ns = match moved.saturating_sub(self.moved) {
            0 => SILENT_NS,
            OWN_TRANSFERS.. if self.left.is_empty() => STALLED_NS,
            _ => CROWDED_NS,
        };
        self.idle_ns > patience_ns
    }
}

/// The result of one step of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It looked at pages that no step had looked at, and sent those away that may leave.
    Begun,
    /// It waited for a moment, or gave frames back.
    Waited,
    /// Nothing is left to do.
    Ended,
}

impl<V: View, S: Store> Engine<V, S> {
    /// Begins to park the pages in `taken`, the allocated spans. Returns `None` if the servers have no room for all far
    /// memory that was accessed. Parking would then end the run. This may wait for the servers' answer.
    pub(crate) fn begin_to_park(&self, taken: Vec<Span>) -> Option<Parking> {
        let (touched, to_place, _) = self.touched_placed_and_budget_bytes();
        let room = self.store.room(Ask::Servers);
        if room.placed_bytes.unwrap_or(0).max(touched).max(to_place) > room.capacity_bytes {
            return None;
        }
        let mut left = self.in_use(taken);
        left.reverse();
        let before = self.local_bytes();
        Some(Parking { left, before, least: before, idle_ns: 0, last_ns: now_ns(), moved: self.moved_units() })
    }

    /// Does one slice of the work. Returns whether all is done.
    pub(crate) fn park(&self, parking: &mut Parking) -> bool {
        let end_ns = now_ns() + SLICE_NS;
        loop {
            let step = self.park_step(parking);
            let now_ns = now_ns();
            let is_stalled = parking.is_stalled_after(step, now_ns, self.local_bytes(), self.moved_units());
            if step == Step::Ended || is_stalled {
                self.poll(Turn::Unmap);
                return true;
            }
            if now_ns > end_ns {
                return false;
            }
        }
    }

    /// Returns how many units were fetched and written back.
    fn moved_units(&self) -> u64 {
        accounts::moved(self.core.lock().pager.counters())
    }

    /// Parks some pages, or waits a moment for those that were begun.
    fn park_step(&self, parking: &mut Parking) -> Step {
        if let Some(span) = parking.left.pop() {
            let (first, end) = (span.offset / self.unit_bytes, (span.offset + span.len).div_ceil(self.unit_bytes));
            let (next, is_busy) = match self.submit_asking(Event::Park { first: first as u32, end: end as u32 }) {
                Progress::Done => return Step::Begun,
                Progress::Continue(unit) => (unit, false),
                Progress::Busy(unit) => (unit, true),
            };
            let offset = self.bytes(next);
            parking.left.push(Span { offset, len: (span.offset + span.len).saturating_sub(offset) });
            if !is_busy {
                return Step::Begun;
            }
            self.lend_a_hand();
            return Step::Waited;
        }
        // The frame of a page that has left is free and keeps its memory until it is given back. Each counts as progress, so
        // none waits for the last page.
        let (is_moving, has_spare) = (self.is_moving(), self.core.lock().pager.spare_units() > 0);
        if has_spare {
            self.submit(Event::Park { first: 0, end: 0 });
        }
        if is_moving {
            self.lend_a_hand();
        }
        if is_moving || has_spare { Step::Waited } else { Step::Ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parking() -> Parking {
        Parking { left: Vec::new(), before: 9, least: 9, idle_ns: 0, last_ns: 0, moved: 7 }
    }

    /// Waits in steps of a millisecond. Returns whether the pass was stalled at the end of this time.
    fn waits(mut parking: Parking, time_ns: u64, moved: u64) -> bool {
        (1..=time_ns / 1_000_000 + 1)
            .fold(false, |_, ms| parking.is_stalled_after(Step::Waited, ms * 1_000_000, 9, moved))
    }

    #[test]
    fn a_slow_or_silent_server_is_waited_for_and_the_programs_own_faults_are_not() {
        let busy = 7 + OWN_TRANSFERS;
        assert!(waits(parking(), STALLED_NS, busy), "the transfers of faults end, and nothing leaves");
        assert!(!waits(parking(), STALLED_NS, busy - 1), "a slow server has taken some pages");
        assert!(waits(parking(), CROWDED_NS, busy - 1));
        assert!(!waits(parking(), CROWDED_NS, 7), "no transfer ends");
        assert!(waits(parking(), SILENT_NS, 7));
        let with_rest = || Parking { left: vec![Span { offset: 0, len: 1 }], ..parking() };
        assert!(!waits(with_rest(), STALLED_NS, busy), "faults take each free frame for now");
        assert!(waits(with_rest(), CROWDED_NS, busy));
    }

    #[test]
    fn a_thread_that_does_not_get_to_run_keeps_its_patience() {
        let (mut parking, busy) = (parking(), 7 + OWN_TRANSFERS);
        let hour_ns = 3_600_000_000_000;
        // Other threads carried out the transfers of the first step while this thread did not run.
        assert!(!parking.is_stalled_after(Step::Begun, hour_ns, 9, busy));
        assert!(!parking.is_stalled_after(Step::Waited, 2 * hour_ns, 9, 2 * busy));
        assert!(!parking.is_stalled_after(Step::Waited, 3 * hour_ns, 8, 3 * busy), "memory has left");
        assert_eq!((parking.left_bytes(), parking.idle_ns), (1, 0));
    }
}
