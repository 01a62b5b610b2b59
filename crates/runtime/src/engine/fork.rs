//! Fork: brings an engine to rest, takes it apart, and assembles it again in the child.

use hanare_sys::pagemap::{Pagemap, PagemapError};
use std::sync::atomic::AtomicU32;
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

/// If no page has left for this time, in nanoseconds, transfers are assumed to hold the remaining pages.
const HELD_NS: u64 = 1_000_000_000;

/// The parts of an engine that outlive a fork: all but the view and the store.
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

/// The goal for an engine that comes to rest, and its progress.
pub(super) struct Resting {
    leave: bool,
    local_max: u64,
    /// Least local memory so far, in bytes. `since_ns` is the time when it was reached.
    least: u64,
    since_ns: u64,
}

impl Resting {
    pub(super) fn new(leave: bool, local_max: u64) -> Self {
        Self { leave, local_max, least: u64::MAX, since_ns: now_ns() }
    }
}

impl<V: View, S: Store> Engine<V, S> {
    /// Local memory in use, in bytes.
    pub(crate) fn local_bytes(&self) -> u64 {
        let core = self.core.lock();
        core.accounts.local_bytes(&core.pager)
    }

    /// Reports its local memory in this budget share from now on.
    pub(crate) fn sit(&self, seat: Seat) {
        let core = &mut *self.core.lock();
        core.accounts.sit(seat, &core.pager);
    }

    /// Whether no page is in transit.
    pub(crate) fn is_settled(&self) -> bool {
        let settled = self.core.lock().pager.is_settled();
        settled && self.poll(Turn::Rest) == Polled::Idle
    }

    /// Whether the server may hold bytes of any page.
    pub(crate) fn has_written_back(&self) -> bool {
        self.core.lock().pager.has_written_back()
    }

    /// Keeps the policy from unmapping pages until the next access or tick. Otherwise the next event could unmap a page
    /// that is at rest, and a child would read zeroes there.
    pub(crate) fn rest(&self) {
        self.submit(Event::Settle { first: 0, end: 0, leave: false });
    }

    /// Brings everything to rest, with at most `local_max` bytes in local memory, and with nothing in view if `leave`
    /// is true. Meanwhile other threads may only submit completions. `taken` are the allocated spans. Pages that
    /// transfers hold stay, even beyond `local_max`. Returns false when it takes longer than `limit`.
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

    /// Takes one step towards rest. Returns whether all is at rest.
    pub(super) fn rest_turn(&self, taken: &[Span], resting: &mut Resting) -> bool {
        let Resting { leave, local_max, .. } = *resting;
        if self.local_bytes() > local_max {
            let overhead_bytes = self.core.lock().accounts.overhead_bytes();
            self.set_budget(local_max.saturating_sub(overhead_bytes));
        }
        let looked_through = taken.iter().all(|span| self.settle_span(*span, leave));
        // Pages that could not be taken out are back in view.
        let is_back = || leave && taken.iter().any(|span| self.has_in_view(*span));
        let local = self.local_bytes();
        if local < resting.least {
            (resting.least, resting.since_ns) = (local, now_ns());
        }
        let fits = local <= local_max || !leave && now_ns() - resting.since_ns > HELD_NS;
        looked_through && self.is_settled() && !is_back() && fits
    }

    fn has_in_view(&self, span: Span) -> bool {
        let (first, end) = self.units_of(span);
        self.core.lock().pager.next_in_view(first, end).is_some()
    }

    fn units_of(&self, span: Span) -> (u32, u32) {
        ((span.offset / self.unit_bytes) as u32, ((span.offset + span.len) / self.unit_bytes) as u32)
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

    /// Receives pages in transit, or waits a moment for the threads that receive them.
    fn lend_a_hand(&self) {
        if self.receive(Wait::Spin { iterations: 100 }) != Polled::Received {
            let nobody = AtomicU32::new(0);
            futex::wait(&nobody, 0, Some(Duration::from_micros(50)));
        }
    }

    /// Takes the engine apart. Called in a child where no other thread exists.
    pub(crate) fn apart(self) -> (Kept, V, S) {
        let Core { pager, accounts, .. } = self.core.into_inner();
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

    /// Assembles an engine from the parts that were kept.
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
            small_moves: kept.small_moves,
            unit_bytes: kept.unit_bytes,
            block_units: kept.block_units,
            units_max: kept.units_max,
            counters: kept.counters,
        }
    }
}

#[cfg(test)]
impl Kept {
    /// Whether the tests have enough work spaces left. A run that ends by a panic keeps its own.
    pub(super) fn has_works(&self) -> bool {
        self.works.len() >= 8
    }

    /// The same parts with another pager.
    pub(super) fn with_pager(self, pager: Pager, small_moves: bool, geometry: hanare_paging::Geometry) -> Self {
        let hanare_paging::Geometry { units, block_units, .. } = geometry;
        Self { pager, small_moves, block_units, units_max: units, ..self }
    }
}

impl Kept {
    /// Protects the clean pages in view. The operating system copies pages into a child without their protection.
    pub(crate) fn protect_clean(&self, view: &impl View, taken: &[Span]) {
        for span in taken {
            let end = ((span.offset + span.len) / self.unit_bytes) as u32;
            let mut next = (span.offset / self.unit_bytes) as u32;
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

    /// Takes over pages that came into view, or were written to, while nothing trapped. Accesses trap again when this
    /// is called, so no more pages come meanwhile.
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
                        // SAFETY: fills the absent pages of a unit that is partly present; present pages keep their
                        // bytes.
                        unsafe { view.copy_in(whole, view.zeroes(), true) };
                    }
                    self.pager.adopt(unit as u32);
                }
            })?;
        }
        Ok(())
    }
}
