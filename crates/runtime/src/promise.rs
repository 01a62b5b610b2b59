//! Decides whether an allocation can be granted, by the overcommit rule and the room on the memory servers.
//!
//! Every far page that was accessed needs a place on a server sooner or later, because local memory is a cache of far
//! memory. So the accessed memory, the new allocation and some headroom must fit into the servers' room. It is also
//! enough if the accessed memory and the new allocation fit into seven eighths of the local budget. Otherwise malloc or
//! mmap fails with ENOMEM, and the program can still react. Without this check, the run would end later, when a page
//! cannot be evicted because all servers are full.
//!
//! By default, memory that is allocated but not accessed counts only up to an eighth of the room. The kernel's
//! heuristic overcommit is similar. An allocation is often used soon, but a sparse program never uses most of what it
//! allocates. If a program later accesses more than fits, the servers become full and its run ends.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::counters::add;
use crate::engine::Engine;
use crate::fatal;
use hanare_settings::{HumanSize, Overcommit};
use hanare_store::{Ask, EXTENT_BYTES, Store, Telling, Words};
use hanare_sys::clock::now_ns;

/// Longest age of the servers' answer about their room. After that time the servers are asked again.
const BELIEVED: Duration = Duration::from_secs(1);
/// Longest wait for pages in transit before an allocation is refused.
const SETTLING: Duration = Duration::from_millis(200);
/// Time between two checks during a wait of up to [`SETTLING`].
const SETTLING_STEP: Duration = Duration::from_millis(2);
/// Divisor of the servers' room: 1/64 of it stays free for memory that is allocated now and accessed later.
const HEADROOM_PART: u64 = 64;
/// Divisor of the servers' room: memory that is allocated but not accessed counts only up to 1/8 of it.
const UNTOUCHED_PART: u64 = 8;

/// The figures on which a decision is based, all in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Books {
    /// Sum of the bytes that the servers hold for this process and the bytes that they could still hold.
    pub(crate) capacity: u64,
    /// Far memory that was accessed.
    pub(crate) touched: u64,
    /// Bytes on the servers that the accessed memory occupies, or will need.
    pub(crate) placed: u64,
    /// Far memory that is allocated.
    pub(crate) allocated: u64,
    /// The local budget.
    pub(crate) local: u64,
}

impl Books {
    /// Returns whether `request` more bytes can be granted.
    pub(crate) fn allow(&self, request: u64, overcommit: Overcommit) -> bool {
        let untouched = self.allocated.saturating_sub(self.touched);
        let counted = match overcommit {
            Overcommit::Always => return true,
            Overcommit::Heuristic => untouched.min(self.capacity / UNTOUCHED_PART),
            Overcommit::Never => untouched,
        };
        let more = counted.saturating_add(request);
        let headroom = (self.capacity / HEADROOM_PART).max(EXTENT_BYTES as u64);
        // A process that uses at most seven eighths of its budget evicts nothing, so it needs no room on servers.
        self.touched.saturating_add(more) <= self.local - self.local / 8
            || self.placed.saturating_add(more) <= self.capacity.saturating_sub(headroom)
    }
}

/// Whether a refusal is reported to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The refusal is counted and reported in a message, because the program gets ENOMEM.
    Told,
    /// The refusal is not reported, because the caller next asks for less.
    Silent,
}

/// Whether a message about a refusal was printed.
static TOLD: AtomicBool = AtomicBool::new(false);

impl Engine {
    /// Returns whether `request` more bytes can be granted if `allocated` bytes are allocated already. Counts a refusal
    /// and prints a message about the first one, unless `refusal` is `Silent`. A fault path must not call this, because
    /// it may wait for the servers' answer.
    pub(crate) fn promises(&self, request: u64, allocated: u64, overcommit: Overcommit, refusal: Refusal) -> bool {
        if overcommit == Overcommit::Always {
            return true;
        }
        let age = now_ns().saturating_sub(self.store().room(Ask::Known).known_ns);
        if age > BELIEVED.as_nanos() as u64 {
            self.store().room(Ask::Servers);
        }
        if self.books(allocated).allow(request, overcommit) {
            return true;
        }
        if refusal == Refusal::Silent {
            return false;
        }
        // Freed pages may still be in transit to a server, and the known room may be out of date. So the check is
        // repeated.
        let mut waits = SETTLING.as_millis() / SETTLING_STEP.as_millis();
        while waits > 0 && self.is_moving() && !self.books(allocated).allow(request, overcommit) {
            waits -= 1;
            std::thread::sleep(SETTLING_STEP);
        }
        self.store().room(Ask::Servers);
        self.books(allocated).allow(request, overcommit) || self.refuses(request)
    }

    fn refuses(&self, request: u64) -> bool {
        add(&self.counters.allocations_refused, 1);
        if !TOLD.swap(true, Relaxed) {
            self.tell_refusal(request);
        }
        false
    }

    fn books(&self, allocated: u64) -> Books {
        let (touched, to_place, local) = self.touched_placed_and_budget_bytes();
        let room = self.store().room(Ask::Known);
        let placed = room.placed_bytes.map_or(touched, |placed| placed.max(to_place));
        Books { capacity: room.capacity_bytes, touched, placed, allocated, local }
    }

    fn tell_refusal(&self, request: u64) {
        let why = Telling(self.store(), Words::NoRoom);
        fatal::say(format_args!("an allocation of {} was refused (ENOMEM): {why}", HumanSize(request)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;

    fn books(capacity: u64, touched: u64, allocated: u64, local: u64) -> Books {
        let [capacity, touched, allocated, local] = [capacity, touched, allocated, local].map(|mib| mib * M);
        Books { capacity, touched, placed: touched, allocated, local }
    }

    #[test]
    fn what_was_touched_counts_and_what_was_only_allocated_counts_little() {
        let sparse = books(64, 10, 1000, 8);
        assert!(sparse.allow(44 * M, Overcommit::Heuristic) && !sparse.allow(45 * M, Overcommit::Heuristic));
        assert!(!sparse.allow(1, Overcommit::Never) && sparse.allow(1 << 60, Overcommit::Always));
        assert!(books(64, 10, 40, 8).allow(22 * M, Overcommit::Never));
        assert!(!books(64, 10, 40, 8).allow(23 * M, Overcommit::Never));
    }

    #[test]
    fn what_stays_local_needs_no_server() {
        let tiny = books(0, 3, 3, 8);
        assert!(tiny.allow(4 * M, Overcommit::Heuristic) && !tiny.allow(5 * M, Overcommit::Heuristic));
        let none = books(4, 0, 0, 8);
        assert!(none.allow(7 * M, Overcommit::Never) && !none.allow(u64::MAX, Overcommit::Heuristic));
    }

    #[test]
    fn what_lies_scattered_needs_the_room_of_all_it_lies_in() {
        let scattered = Books { placed: 28 * M, ..books(32, 10, 10, 8) };
        assert!(scattered.allow(2 * M, Overcommit::Heuristic) && !scattered.allow(3 * M, Overcommit::Heuristic));
        let local = Books { local: 16 * M, ..scattered };
        assert!(local.allow(4 * M, Overcommit::Heuristic) && !local.allow(5 * M, Overcommit::Heuristic));
    }

    #[test]
    fn a_large_store_keeps_a_share_of_itself_back() {
        assert!(books(64 << 10, 0, 0, 8).allow(63 << 30, Overcommit::Heuristic));
        assert!(!books(64 << 10, 0, 0, 8).allow((63 << 30) + 1, Overcommit::Heuristic));
    }
}
