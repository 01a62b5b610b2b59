//! The allocated bytes of far memory, and the part of them that the program can access. The counters, the program's
//! limits and the budget follow them. The servers are asked for room.

use std::sync::atomic::Ordering::*;

use hanare_settings::{Local, Mode, Overcommit};
use hanare_sys::limits;
use hanare_sys::signal::SignalMask;

use super::{State, inside};
use crate::places;
use crate::promise::Refusal;

/// Bytes reserved for the heap at a time.
const HEAP_AHEAD: u64 = 256 << 10;

impl State {
    /// Whether `more` bytes can be reserved.
    pub(crate) fn promises(&self, more: usize, overcommit: Overcommit, refusal: Refusal) -> bool {
        // A request larger than the address space fails anyway, whatever room the servers have.
        if more > places::len() {
            return false;
        }
        if !limits::has_room(more) {
            return false;
        }
        let allocated = self.taken.load(Relaxed).saturating_sub(self.idle.load(Relaxed));
        self.engine.promises(more as u64, allocated, overcommit, refusal)
    }

    /// Whether the heap can use `more` bytes. It uses little at a time, so most calls are answered from bytes reserved
    /// ahead.
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

    /// Adds to the idle bytes: allocated, but without access for the program.
    pub(crate) fn idles_more(&self, bytes: u64) {
        self.idle.fetch_add(bytes, Relaxed);
    }

    /// Subtracts from the idle bytes.
    pub(crate) fn idles_less(&self, bytes: u64) {
        self.idle.fetch_sub(bytes, Relaxed);
    }

    /// Follows a change of the extents.
    pub(crate) fn far_changed(&self) {
        let taken = self.extents.lock().taken_bytes();
        self.taken.store(taken, Relaxed);
        self.count_far(taken);
    }

    /// Follows a change of the idle bytes alone.
    pub(crate) fn idle_changed(&self) {
        self.count_far(self.taken.load(Relaxed));
    }

    /// Follows a change of the far bytes: updates the counters, and a budget that is a share of them.
    fn count_far(&self, taken: u64) {
        let far = self.far_bytes_of(taken);
        self.seat.set_far(far);
        self.lend(taken, far);
        if let Local::Percent(percent) = self.launch.settings.local {
            let _mask = SignalMask::block_all();
            self.engine.set_budget(self.launch.plan.budget_of_share(far, percent));
        }
    }

    /// Reports the far bytes that the program's limits must count. Static arrays do not count: they lie in mappings
    /// that the program already had. A range without access counts as address space and not as data, as in the kernel.
    fn lend(&self, taken: u64, far: u64) {
        let space = taken.saturating_sub(self.idle.load(Relaxed) + places::adopted_bytes());
        let data = if self.launch.mode == Mode::Sigsegv { far } else { space };
        limits::lend(space, data);
    }

    /// Bytes of far memory that the program can access.
    pub(crate) fn far_bytes(&self) -> u64 {
        self.far_bytes_of(self.taken.load(Relaxed))
    }

    fn far_bytes_of(&self, taken: u64) -> u64 {
        taken.saturating_sub(self.idle.load(Relaxed) + self.engine.view().idle_bytes() as u64)
    }

    /// The idle part of the allocated bytes.
    pub(crate) fn idle(&self) -> u64 {
        self.idle.load(Relaxed)
    }

    /// Sets this process' share of the budget to `share` bytes.
    pub(crate) fn budget_is(&self, share: u64) {
        if self.seat.whole().is_some() {
            self.engine.set_budget(share.saturating_sub(self.launch.plan.overhead_bytes));
        }
    }

    /// Balances the budget among the processes of the run. Called periodically, by a thread inside the gate; see
    /// [`Seat::balance`].
    pub(crate) fn balance(&self) {
        let wants = self.far_bytes() + 2 * self.launch.least_bytes();
        self.seat.balance(wants, |share| {
            self.budget_is(share);
            self.engine.local_bytes()
        });
    }
}
