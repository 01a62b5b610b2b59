//! Counts the allocated bytes of far memory, and the *far bytes*: the allocated bytes that the program can access.
//! After each change, updates the counters, the program's resource limits and the budget. Reserves room on the servers
//! for allocations.

use std::sync::atomic::Ordering::*;

use hanare_settings::{Local, Mode, Overcommit};
use hanare_sys::limits;
use hanare_sys::signal::SignalMask;

use super::{State, inside};
use crate::places;
use crate::promise::Refusal;
use crate::spare;

/// Bytes of server room that are reserved for the heap at a time.
const HEAP_AHEAD: u64 = 256 << 10;

impl State {
    /// Checks whether `more` bytes can be allocated: the program's resource limits must allow them, and the servers
    /// must have room for them.
    pub(crate) fn promises(&self, more: usize, overcommit: Overcommit, refusal: Refusal) -> bool {
        // A request larger than the address space fails in any case, so the servers are not asked.
        if more > places::len() {
            return false;
        }
        if !limits::has_room(more) {
            return false;
        }
        let allocated = self.taken.load(Relaxed).saturating_sub(self.idle.load(Relaxed));
        self.engine.promises(more as u64, allocated, overcommit, refusal)
    }

    /// Checks whether the heap can use `more` bytes. The heap asks for few bytes at a time. So this function reserves
    /// [`HEAP_AHEAD`] bytes in advance, and most calls need no new reservation.
    pub(crate) fn promises_heap(&self, more: usize) -> bool {
        let take = |promised: u64| promised.checked_sub(more as u64);
        if self.heap_promised.fetch_update(Relaxed, Relaxed, take).is_ok() {
            return true;
        }
        inside(move || {
            let overcommit = self.launch.settings.overcommit;
            let ahead = more
                .checked_add(HEAP_AHEAD as usize)
                .is_some_and(|bytes| self.promises(bytes, overcommit, Refusal::Silent));
            self.heap_promised.store(if ahead { HEAP_AHEAD } else { 0 }, Relaxed);
            ahead || self.promises(more, overcommit, Refusal::Told)
        })
    }

    /// Adds `bytes` to the idle bytes, which are allocated but not used by the program.
    pub(crate) fn idles_more(&self, bytes: u64) {
        self.idle.fetch_add(bytes, Relaxed);
    }

    /// Subtracts `bytes` from the idle bytes.
    pub(crate) fn idles_less(&self, bytes: u64) {
        self.idle.fetch_sub(bytes, Relaxed);
    }

    /// Updates all figures after a change of the allocated extents.
    pub(crate) fn far_changed(&self) {
        let taken = self.extents.lock().taken_bytes();
        self.taken.store(taken, Relaxed);
        self.count_far(taken);
    }

    /// Updates all figures after a change of the idle bytes alone.
    pub(crate) fn idle_changed(&self) {
        self.count_far(self.taken.load(Relaxed));
    }

    /// Updates the counters, the resource limits, and the budget if it is a percentage of the far bytes.
    fn count_far(&self, taken: u64) {
        let far = self.far_bytes_of(taken);
        self.seat.set_far(far);
        self.lend(taken, far);
        if let Local::Percent(percent) = self.launch.settings.local {
            let _mask = SignalMask::block_all();
            // All of the far memory is to be local, and so the kept blocks, too.
            let kept = if percent == 100 { self.kept_bytes.load(Relaxed) } else { 0 };
            let share = self.launch.plan.budget_of_share(far + kept, percent);
            self.engine.set_budget(self.share.want(share));
        }
    }

    /// Keeps a budget that is a share of the far bytes within what the machine can give. The keeper calls this periodically.
    pub(crate) fn follow_spare(&self) {
        let spare = spare::spare_bytes(self.launch.counters).filter(|_| self.seat.whole().is_none());
        let bound =
            |spare| spare::bound(self.engine.local_bytes(), spare, self.seat.processes(), self.launch.least_bytes());
        if let Some(bytes) = spare.and_then(|spare| self.share.look(spare, bound)) {
            self.engine.set_budget(bytes);
        }
    }

    /// Reports how many bytes of Hanare's mappings the program's resource limits must count. Static arrays do not
    /// count, because they are in mappings of the program itself. In sigsegv mode, inaccessible memory counts as
    /// address space and not as data.
    fn lend(&self, taken: u64, far: u64) {
        let space = taken.saturating_sub(self.idle.load(Relaxed) + places::adopted_bytes());
        let data = if self.launch.mode == Mode::Sigsegv { far } else { space };
        limits::lend(space, data);
    }

    /// Returns the far bytes: the allocated bytes that the program can access.
    pub(crate) fn far_bytes(&self) -> u64 {
        self.far_bytes_of(self.taken.load(Relaxed))
    }

    fn far_bytes_of(&self, taken: u64) -> u64 {
        taken.saturating_sub(self.idle.load(Relaxed) + self.engine.view().idle_bytes() as u64)
    }

    /// Returns the idle bytes, which are allocated but not used by the program.
    pub(crate) fn idle(&self) -> u64 {
        self.idle.load(Relaxed)
    }

    /// Sets the budget of this process to `share` bytes, its share of the common budget. Does nothing if each process
    /// has a budget of its own.
    pub(crate) fn budget_is(&self, share: u64) {
        if self.seat.whole().is_some() {
            self.engine.set_budget(share.saturating_sub(self.launch.plan.overhead_bytes));
        }
    }

    /// Balances the budget among the processes of the run ([`Seat::balance`]). A thread inside the gate (the barrier
    /// that a fork closes) calls this function periodically.
    pub(crate) fn balance(&self) {
        let wants = self.far_bytes() + 2 * self.launch.least_bytes();
        self.seat.balance(wants, |share| {
            self.budget_is(share);
            self.engine.local_bytes()
        });
    }
}
