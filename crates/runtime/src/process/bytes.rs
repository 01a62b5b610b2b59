//! Bytes of far memory that are taken, and those of them that the program can access. The counters, the program's limits and
//! the budget follow them, and the memory servers are asked for room.

use std::sync::atomic::Ordering::*;

use hanare_settings::{Local, Mode, Overcommit};
use hanare_sys::limits;
use hanare_sys::signal::SignalMask;

use super::{State, inside};
use crate::places;
use crate::promise::Refusal;

/// Bytes promised to the heap at a time.
const HEAP_AHEAD: u64 = 256 << 10;

impl State {
    /// Whether `more` bytes can be promised.
    pub(crate) fn promises(&self, more: usize, overcommit: Overcommit, refusal: Refusal) -> bool {
        // More than can be addressed fails by itself, and is nothing to tell of the servers.
        if more > places::len() {
            return false;
        }
        if !limits::has_room(more) {
            return false;
        }
        let allocated = self.taken.load(Relaxed).saturating_sub(self.idle.load(Relaxed));
        self.engine.promises(more as u64, allocated, overcommit, refusal)
    }

    /// The same for the heap, which uses little at a time: most calls are answered from what was promised ahead.
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

    /// `bytes` more of what is taken hold no page of the program's.
    pub(crate) fn idles_more(&self, bytes: u64) {
        self.idle.fetch_add(bytes, Relaxed);
    }

    /// `bytes` less of what is taken hold no page of the program's.
    pub(crate) fn idles_less(&self, bytes: u64) {
        self.idle.fetch_sub(bytes, Relaxed);
    }

    /// After the extents changed.
    pub(crate) fn far_changed(&self) {
        let taken = self.extents.lock().taken_bytes();
        self.taken.store(taken, Relaxed);
        self.count_far(taken);
    }

    /// After the idle part of what is taken changed, and nothing else.
    pub(crate) fn idle_changed(&self) {
        self.count_far(self.taken.load(Relaxed));
    }

    /// After the far bytes changed: counters, and a budget that is a share of them.
    fn count_far(&self, taken: u64) {
        let far = self.far_bytes_of(taken);
        self.seat.set_far(far);
        self.lend(taken, far);
        if let Local::Percent(percent) = self.launch.settings.local {
            let _mask = SignalMask::block_all();
            self.engine.set_budget(self.launch.plan.budget_of_share(far, percent));
        }
    }

    /// Tells which far bytes the program's limits are to count. Static arrays lie in mappings that were the program's before.
    /// A range that it closed is address space, and data neither for the kernel nor here.
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

    /// The idle part of what is taken.
    pub(crate) fn idle(&self) -> u64 {
        self.idle.load(Relaxed)
    }

    /// This process' share of the budget is `share` bytes now.
    pub(crate) fn budget_is(&self, share: u64) {
        if self.seat.whole().is_some() {
            self.engine.set_budget(share.saturating_sub(self.launch.plan.overhead_bytes));
        }
    }

    /// Now and then: a fair share among the processes of the run. By a thread that is inside the gate, see [`Seat::balance`].
    pub(crate) fn balance(&self) {
        let wants = self.far_bytes() + 2 * self.launch.least_bytes();
        self.seat.balance(wants, |share| {
            self.budget_is(share);
            self.engine.local_bytes()
        });
    }
}
