//! Fork: brings the parent's engine to rest, so that no page is in transit at the fork, and lets it go on afterwards. In
//! the child, takes the inherited engine apart and assembles a new engine from the parts.

use hanare_sys::pagemap::{Pagemap, PagemapError};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use hanare_paging::{Event, Pager, Progress};
use hanare_store::{Polled, Store, Turn};
use hanare_sys::futex::{self, LockCell};
use hanare_sys::stack::Stacks;
use hanare_wire::Wait;

use super::{Core, Engine, WAIT_QUEUES, Work};
use crate::accounts::Accounts;
use crate::counters::Counters;
use crate::span::Span;
use crate::tree::Seat;
use crate::view::{LiveView, View};
use hanare_sys::clock::now_ns;

/// Longest wait, in nanoseconds, for local memory to shrink. After this time the remaining pages count as held by
/// transfers, which prevent their eviction.
const HELD_NS: u64 = 1_000_000_000;

/// The parts of a parent's engine from which the child's engine is assembled. The view and the store are not among
/// them.
pub(crate) struct Kept {
    pager: Pager,
    works: Vec<Work>,
    stacks: Stacks,
    traps_by_signal: bool,
    small_moves: bool,
    unit_bytes: usize,
    block_units: u32,
    units_max: u32,
    overhead_bytes: u64,
    counters: &'static Counters,
}

/// The goal of an engine that comes to rest, and the progress towards this goal.
pub(super) struct Resting {
    /// Whether all pages must leave the program's view.
    leave: bool,
    /// Maximum local memory at rest, in bytes.
    local_max: u64,
    /// Smallest local memory observed so far, in bytes.
    least: u64,
    /// Time when local memory shrank to `least`, in nanoseconds.
    since_ns: u64,
}

impl Resting {
    pub(super) fn new(leave: bool, local_max: u64) -> Self {
        Self { leave, local_max, least: u64::MAX, since_ns: now_ns() }
    }
}

impl<V: View, S: Store> Engine<V, S> {
    /// Returns the local memory in use, in bytes.
    pub(crate) fn local_bytes(&self) -> u64 {
        let core = self.core.lock();
        core.accounts.local_bytes(&core.pager)
    }

    /// Makes the engine report its local memory in `seat`, the process' share of the budget, from now on.
    pub(crate) fn sit(&self, seat: Seat) {
        let core = &mut *self.core.lock();
        core.accounts.sit(seat, &core.pager);
    }

    /// Checks whether no page is in transit, and the store has no read or write in progress.
    pub(crate) fn is_settled(&self) -> bool {
        let settled = self.core.lock().pager.is_settled();
        // The store is asked in any case: one that has answered that it rests may do nothing more until it is asked again.
        let rests = self.poll(Turn::Rest) == Polled::Idle;
        settled && rests
    }

    /// Lets the store go on after a fork, or after a fork that did not come about.
    pub(crate) fn go_on(&self) {
        self.poll(Turn::GoOn);
    }

    /// Checks whether a server may hold bytes of any page.
    pub(crate) fn has_written_back(&self) -> bool {
        self.core.lock().pager.has_written_back()
    }

    /// Stops reference sampling until the next access, hint, discard or tick. Otherwise the next event could unmap a
    /// page before the fork, and the child would read zeroes in this page.
    pub(crate) fn rest(&self) {
        self.submit(Event::Settle { first: 0, end: 0, leave: false });
    }

    /// Returns the spans in which pages are in use, if `taken` lists the allocated spans.
    pub(crate) fn in_use(&self, taken: Vec<Span>) -> Vec<Span> {
        in_use(&self.core.lock().pager, taken, self.unit_bytes, self.block_units)
    }

    /// Brings the engine to rest: afterwards no page is in transit. Evicts pages until local memory has at most
    /// `local_max` bytes. If `leave` is true, also evicts every page in the program's view. If `leave` is false, pages
    /// that transfers hold stay local, even beyond `local_max`. `taken` lists the spans in which pages are in use
    /// ([`Self::in_use`]). Returns false if `limit` passes before the engine is at rest. Meanwhile other threads may only
    /// submit the results of actions.
    pub(crate) fn come_to_rest(&self, taken: &[Span], leave: bool, local_max: u64, limit: Duration) -> bool {
        let end_ns = now_ns() + limit.as_nanos() as u64;
        let mut resting = Resting::new(leave, local_max);
        loop {
            if self.rest_turn(taken, &mut resting) {
                return true;
            }
            self.lend_a_hand();
            if now_ns() > end_ns {
                return false;
            }
        }
    }

    /// Does one step towards the goal in `resting`. Returns whether the goal is reached.
    pub(super) fn rest_turn(&self, taken: &[Span], resting: &mut Resting) -> bool {
        let Resting { leave, local_max, .. } = *resting;
        if self.local_bytes() > local_max {
            let overhead_bytes = self.core.lock().accounts.overhead_bytes();
            self.set_budget(local_max.saturating_sub(overhead_bytes));
        }
        let looked_through = taken.iter().all(|span| self.settle_span(*span, leave));
        // The kernel may refuse to take a page out of view. The page is then in view again, and the caller retries.
        let is_back = || leave && taken.iter().any(|span| self.has_in_view(*span));
        let local = self.local_bytes();
        if local < resting.least {
            (resting.least, resting.since_ns) = (local, now_ns());
        }
        let fits = local <= local_max || !leave && now_ns() - resting.since_ns > HELD_NS;
        self.is_settled() && looked_through && !is_back() && fits
    }

    fn has_in_view(&self, span: Span) -> bool {
        let (first, end) = self.units_of(span);
        self.core.lock().pager.next_in_view(first, end).is_some()
    }

    fn units_of(&self, span: Span) -> (u32, u32) {
        units_of(span, self.unit_bytes)
    }

    fn settle_span(&self, span: Span, leave: bool) -> bool {
        let (mut next, end) = self.units_of(span);
        loop {
            match self.submit_asking(Event::Settle { first: next, end, leave }) {
                Progress::Done => return true,
                Progress::Continue(unit) => next = unit,
                Progress::Busy(_) => return false,
            }
        }
    }

    /// Receives pages in transit. If no page was received, waits a moment for other threads that receive pages.
    pub(super) fn lend_a_hand(&self) {
        if self.receive(Wait::Spin { iterations: 100 }) != Polled::Received {
            let nobody = AtomicU32::new(0);
            futex::wait(&nobody, 0, Some(Duration::from_micros(50)));
        }
    }

    /// Takes the engine apart: returns its view, its store and all other parts. A forked child calls this method. The
    /// child has no other thread, so no other code uses the engine. Locks end, as the kernel's do.
    pub(crate) fn apart(self) -> (Kept, V, S) {
        let Core { mut pager, accounts, .. } = self.core.into_inner();
        pager.unlock_all();
        let kept = Kept {
            pager,
            works: self.works.into_inner(),
            stacks: self.stacks,
            traps_by_signal: self.traps_by_signal,
            small_moves: self.small_moves,
            unit_bytes: self.unit_bytes,
            block_units: self.block_units,
            units_max: self.units_max,
            overhead_bytes: accounts.overhead_bytes(),
            counters: self.counters,
        };
        (kept, self.view, self.store)
    }

    /// Assembles an engine from a view, a store and the parts that [`Self::apart`] returned.
    pub(crate) fn again(kept: Kept, view: V, store: S) -> Self {
        let accounts = Accounts::from_now_on(kept.counters, kept.unit_bytes, kept.overhead_bytes, &kept.pager);
        Self {
            view,
            store,
            core: LockCell::new(Core { pager: kept.pager, actions: hanare_paging::Actions::new(), accounts }),
            stacks: kept.stacks,
            traps_by_signal: kept.traps_by_signal,
            works: LockCell::new(kept.works),
            wait_queues: [const { AtomicU32::new(0) }; WAIT_QUEUES],
            waiters: AtomicU32::new(0),
            waits: crate::watchdog::Waits::default(),
            swap_ns: AtomicU64::new(0),
            turns: crate::turns::Turns::new(),
            repeats: super::lost::Repeats::default(),
            small_moves: kept.small_moves,
            unit_bytes: kept.unit_bytes,
            block_units: kept.block_units,
            units_max: kept.units_max,
            counters: kept.counters,
        }
    }
}

/// Returns the first unit of a span, and the unit after its last one. An allocation that was shortened may end within
/// its last unit.
fn units_of(span: Span, unit_bytes: usize) -> (u32, u32) {
    ((span.offset / unit_bytes) as u32, (span.offset + span.len).div_ceil(unit_bytes) as u32)
}

/// Returns the spans in which pages are in use, if `taken` lists the allocated spans. With huge pages, these are whole
/// blocks ([`Pager::next_blocks_in_use`]).
fn in_use(pager: &Pager, taken: Vec<Span>, unit_bytes: usize, block_units: u32) -> Vec<Span> {
    if block_units == 1 {
        return taken;
    }
    let next = |(_, end): &(u32, u32)| pager.next_blocks_in_use(*end);
    let blocks = std::iter::successors(pager.next_blocks_in_use(0), next);
    let span = |(first, end): (u32, u32)| Span {
        offset: first as usize * unit_bytes,
        len: (end - first) as usize * unit_bytes,
    };
    blocks.map(span).collect()
}

#[cfg(test)]
impl Kept {
    /// Checks whether at least 8 work spaces are left. A test run that ends by a panic does not return its work space.
    pub(super) fn has_works(&self) -> bool {
        self.works.len() >= 8
    }

    /// Replaces the pager, and the sizes that belong to the old pager.
    pub(super) fn with_pager(self, pager: Pager, small_moves: bool, geometry: hanare_paging::Geometry) -> Self {
        let hanare_paging::Geometry { units, block_units, .. } = geometry;
        Self { pager, small_moves, block_units, units_max: units, ..self }
    }
}

impl Kept {
    /// Returns the spans in which pages are in use, as [`Engine::in_use`] does.
    pub(crate) fn in_use(&self, taken: Vec<Span>) -> Vec<Span> {
        in_use(&self.pager, taken, self.unit_bytes, self.block_units)
    }

    /// Write-protects the clean pages in the child's view. The kernel's fork gives the child these pages without
    /// userfaultfd's write protection, so the child could write to them unseen.
    pub(crate) fn protect_clean(&self, view: &impl View, taken: &[Span]) {
        for span in taken {
            let (mut next, end) = units_of(*span, self.unit_bytes);
            let mut run: Option<Span> = None;
            while let Some((page, units, written)) = self.pager.next_in_view(next, end) {
                next = page.0 + units;
                if written {
                    continue;
                }
                let here = Span { offset: page.0 as usize * self.unit_bytes, len: units as usize * self.unit_bytes };
                match &mut run {
                    Some(run) if run.offset + run.len == here.offset => run.len += here.len,
                    _ => {
                        if let Some(run) = run.replace(here) {
                            view.write_protect(run);
                        }
                    }
                }
            }
            if let Some(run) = run {
                view.write_protect(run);
            }
        }
    }

    /// Registers pages that the child accessed before its engine started. Before the start no access trapped, so the
    /// pager does not know these pages. The caller has set up the trap, so no further page appears unnoticed during the
    /// call.
    pub(crate) fn adopt_present(
        &mut self,
        view: &LiveView,
        taken: &[Span],
        pagemap: &Pagemap,
    ) -> Result<(), PagemapError> {
        let unit_bytes = self.unit_bytes;
        for span in taken {
            view.visit_present(pagemap, *span, |there| {
                let first = there.offset / unit_bytes;
                let end = (there.offset + there.len).div_ceil(unit_bytes);
                for unit in first..end {
                    let whole = Span { offset: unit * unit_bytes, len: unit_bytes };
                    if whole.offset < there.offset || whole.offset + whole.len > there.offset + there.len {
                        // SAFETY: `view.zeroes()` has `unit_bytes` zeroes, and nothing writes to them. No engine runs
                        // yet, so only this call fills the absent pages of `whole`. Present pages keep their bytes.
                        unsafe { view.copy_in(whole, view.zeroes(), true) };
                    }
                    self.pager.adopt(unit as u32);
                }
            })?;
        }
        Ok(())
    }
}
