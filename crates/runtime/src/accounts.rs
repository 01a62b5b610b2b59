//! Adds the pager's own counts to the shared counters of a run.

use std::sync::atomic::AtomicU64;

use hanare_paging::reuse::{BUCKETS, Depths, KINDS};
use hanare_paging::{self as paging, Pager};

use crate::counters::{Counters, add, raise};
use crate::tree::Seat;

/// After this many transferred bytes the counts are published. A program that ends itself by its own instruction, or is
/// killed, thus leaves counters from which little is missing.
const PUBLISHED_EACH: u64 = 1 << 20;

const NO_DEPTHS: Depths = [[0; BUCKETS]; KINDS];

/// Adds the pager's counts of this process to the shared counters. Several processes add to the same counters, so each
/// process adds only what it has counted since its last addition.
pub(crate) struct Accounts {
    counters: &'static Counters,
    published: paging::Counters,
    /// The counts by depth that were published.
    depths: Depths,
    unit_bytes: u64,
    overhead_bytes: u64,
    /// The entry of this process in the table of budget shares. It receives the local bytes. If processes share no
    /// budget, it also receives the budget of this process. `None` until `sit` is called.
    seat: Option<Seat>,
    /// The budget last reported, in bytes.
    told: u64,
    /// Faults that the pager counted before this process was forked.
    inherited: u64,
}

/// Counts one fault that took `ns` nanoseconds. `opened` says that the page was present, and only its access rights had
/// to change. `swap_ns` is the time that threads of this process waited for pages.
pub(crate) fn fault(counters: &Counters, swap_ns: &AtomicU64, opened: bool, ns: u64) {
    if opened {
        add(&counters.set_bit_ns, ns);
    } else {
        add(&counters.swap_ns, ns);
        add(swap_ns, ns);
    }
    counters.fault_took(ns);
}

impl Accounts {
    pub(crate) fn new(counters: &'static Counters, unit_bytes: usize, overhead_bytes: u64) -> Self {
        Self {
            counters,
            published: paging::Counters::default(),
            depths: NO_DEPTHS,
            unit_bytes: unit_bytes as u64,
            overhead_bytes,
            seat: None,
            told: 0,
            inherited: 0,
        }
    }

    /// Returns accounts that publish only what the pager counts from now on. A forked child uses them, because its
    /// parent publishes the earlier counts.
    pub(crate) fn from_now_on(
        counters: &'static Counters,
        unit_bytes: usize,
        overhead_bytes: u64,
        pager: &Pager,
    ) -> Self {
        let (published, inherited) = (*pager.counters(), faults(pager.counters()));
        let depths = pager.depths().copied().unwrap_or(NO_DEPTHS);
        Self { published, inherited, depths, ..Self::new(counters, unit_bytes, overhead_bytes) }
    }

    /// From now on, records the local bytes of this process in `seat`, its entry in the table of budget shares.
    pub(crate) fn sit(&mut self, seat: Seat, pager: &Pager) {
        (self.seat, self.told) = (Some(seat), 0);
        self.stepped(pager);
    }

    pub(crate) fn overhead_bytes(&self) -> u64 {
        self.overhead_bytes
    }

    /// Returns the local memory in use, in bytes.
    pub(crate) fn local_bytes(&self, pager: &Pager) -> u64 {
        u64::from(pager.local_units()) * self.unit_bytes + self.overhead_bytes
    }

    /// Publishes how many bytes of local memory are in use. If each process has its own budget, publishes that budget
    /// too. Publishes the counts after each [`PUBLISHED_EACH`] transferred bytes. Called after each step of the pager.
    pub(crate) fn stepped(&mut self, pager: &Pager) {
        if (moved(pager.counters()) - moved(&self.published)) * self.unit_bytes >= PUBLISHED_EACH {
            self.publish_counts(pager);
        }
        let Some(seat) = self.seat else { return };
        let local = self.local_bytes(pager);
        if seat.whole().is_none() {
            // After the budget has shrunk, pages must still be evicted. Until they are evicted, the reported budget
            // does not fall below the local bytes.
            let budget = self.budget_bytes(pager).max(local.min(self.told));
            if budget != self.told {
                self.told = budget;
                seat.set_own_budget(budget);
            }
        }
        seat.set_local(local);
    }

    fn budget_bytes(&self, pager: &Pager) -> u64 {
        u64::from(pager.budget_units()) * self.unit_bytes + self.overhead_bytes
    }

    /// Publishes the pager's counts since the last call, the budget, and what the policies say of themselves. `swap_ns` is
    /// the time that threads of this process waited for pages.
    pub(crate) fn publish(&mut self, pager: &Pager, swap_ns: u64) {
        self.publish_counts(pager);
        if let Some(seat) = self.seat {
            seat.set_paging(faults(pager.counters()) - self.inherited, swap_ns);
        }
        match (self.seat, self.seat.and_then(|seat| seat.whole())) {
            // A budget that holds a slowdown changes. Its largest value is compared with the peak of local memory.
            (_, Some(whole)) => raise(&self.counters.budget_bytes, whole),
            (None, None) => raise(&self.counters.budget_bytes, self.budget_bytes(pager)),
            // Nothing is to be done here: `stepped` reports the budget of this process whenever it changes.
            (Some(_), None) => {}
        }
        let mut words = Words { text: [0; 1023], len: 0 };
        // Ignored: a text that does not fit into the buffer is left out.
        let _ = pager.describe(&mut words);
        self.counters.choices.set(std::str::from_utf8(&words.text[..words.len]).unwrap_or_default());
    }

    fn publish_counts(&mut self, pager: &Pager) {
        let (now, old, to) = (*pager.counters(), self.published, self.counters);
        let unit = self.unit_bytes;
        add(&to.faults_read, now.faults_read - old.faults_read);
        add(&to.faults_write, now.faults_write - old.faults_write);
        add(&to.faults_first_write, now.faults_first_write - old.faults_first_write);
        add(&to.faults_zero, now.faults_zero - old.faults_zero);
        add(&to.faults_rescued, now.faults_rescued - old.faults_rescued);
        add(&to.faults_waited, now.faults_waited - old.faults_waited);
        add(&to.faults_hidden, now.faults_hidden - old.faults_hidden);
        add(&to.pages_hidden, now.hidden - old.hidden);
        add(&to.pages_held_back, now.held_back - old.held_back);
        add(&to.pages_in, now.fetched - old.fetched);
        add(&to.bytes_in, (now.fetched - old.fetched) * unit);
        add(&to.pages_out, now.written_back - old.written_back);
        add(&to.bytes_out, (now.written_back - old.written_back) * unit);
        add(&to.pages_dropped_clean, now.dropped_clean - old.dropped_clean);
        add(&to.pages_discarded, now.discarded - old.discarded);
        add(&to.prefetch_pages, now.prefetched - old.prefetched);
        add(&to.prefetch_bytes, (now.prefetched - old.prefetched) * unit);
        add(&to.prefetch_used, now.prefetch_used - old.prefetch_used);
        add(&to.prefetch_wasted, now.prefetch_wasted - old.prefetch_wasted);
        add(&to.pages_small, now.pages_small - old.pages_small);
        add(&to.pages_large, now.pages_wide - old.pages_wide);
        add(&to.promotions, now.widened - old.widened);
        add(&to.demotions, now.narrowed - old.narrowed);
        self.published = now;
        self.publish_depths(pager);
    }

    fn publish_depths(&mut self, pager: &Pager) {
        let Some(now) = pager.depths() else { return };
        for (kind, to) in self.counters.depths.iter().enumerate() {
            for (bucket, to) in to.iter().enumerate() {
                let (now, old) = (now[kind][bucket], &mut self.depths[kind][bucket]);
                if now != *old {
                    add(to, now - *old);
                    *old = now;
                }
            }
        }
    }
}

/// Returns the number of faults, without those on pages that were only unmapped for reference sampling.
fn faults(counts: &paging::Counters) -> u64 {
    let &paging::Counters { faults_read, faults_write, faults_first_write, faults_zero, .. } = counts;
    faults_read + faults_write + faults_first_write + faults_zero + counts.faults_rescued + counts.faults_waited
}

/// Returns how many units were fetched and written back.
pub(crate) fn moved(counts: &paging::Counters) -> u64 {
    counts.fetched + counts.written_back
}

/// A text buffer that allocates nothing. A piece of text that does not fit is refused.
struct Words {
    text: [u8; 1023],
    len: usize,
}

impl std::fmt::Write for Words {
    fn write_str(&mut self, more: &str) -> std::fmt::Result {
        let room = &mut self.text[self.len..];
        let Some(room) = room.get_mut(..more.len()) else { return Err(std::fmt::Error) };
        room.copy_from_slice(more.as_bytes());
        self.len += more.len();
        Ok(())
    }
}
