//! Turns: one thread after another goes on where local memory holds fewer pages than the threads need at the same time.
//!
//! One instruction may need four pages at the same time. If the pages of several threads do not fit together, each thread
//! evicts a page of another thread before that thread has repeated its instruction. Then none of them goes on. Such a
//! thread faults again and again on the same few pages. It then takes a turn: the faults of other threads wait until it
//! has gone on, or for a bounded time. Turns decide only when a fault begins. They never decide about pages.

use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Duration;

use hanare_sys::clock::now_ns;
use hanare_sys::futex::{self, LockCell};

/// Number of threads that are watched at the same time. Two threads with the same remainder share a seat.
const SEATS: usize = 128;
/// Number of pages that are remembered of each thread.
const PAGES: usize = 8;
/// Number of faults in a row on remembered pages after which a thread takes a turn.
const REPEATS: u32 = 16;
/// Maximum number of faults in a turn. An instruction needs four pages.
const TURN_FAULTS: u32 = 8;
/// Longest time in nanoseconds that a turn lasts after its thread has faulted, while the page has not come.
const FAULT_NS: u64 = 50_000_000;
/// Time in nanoseconds that a turn lasts after a page has come. Its thread repeats its instruction in this time.
const GRACE_NS: u64 = 500_000;
/// Longest time in nanoseconds that one fault waits for the turns of other threads.
const WAIT_NS: u64 = 200_000_000;

/// The turns of one engine.
pub(crate) struct Turns {
    state: LockCell<State>,
    /// The number of turns that ended early. Threads that wait for the end of a turn sleep on it.
    ended: AtomicU32,
}

struct State {
    seats: [Seat; SEATS],
    turn: Turn,
}

/// A record of the last faults of a thread.
#[derive(Clone, Copy)]
struct Seat {
    thread: i32,
    pages: [u32; PAGES],
    /// Index of the page that is forgotten next.
    oldest: usize,
    /// Number of faults in a row on remembered pages.
    repeats: u32,
}

/// The present turn, or the last one. It is over at `until_ns`.
struct Turn {
    thread: i32,
    until_ns: u64,
    faults: u32,
}

impl Seat {
    const fn of(thread: i32) -> Self {
        Self { thread, pages: [u32::MAX; PAGES], oldest: 0, repeats: 0 }
    }

    /// Notes a fault. Returns whether the page is one of the last pages on which the thread has faulted.
    fn note(&mut self, page: u32) -> bool {
        if self.pages.contains(&page) {
            self.repeats += 1;
            return true;
        }
        self.pages[self.oldest] = page;
        self.oldest = (self.oldest + 1) % PAGES;
        self.repeats = 0;
        false
    }
}

impl Turns {
    pub(crate) const fn new() -> Self {
        let state = State { seats: [Seat::of(0); SEATS], turn: Turn { thread: 0, until_ns: 0, faults: 0 } };
        Self { state: LockCell::new(state), ended: AtomicU32::new(0) }
    }

    /// Returns when the turn of another thread ends. Returns `None` if a fault of `thread`, which began at `since_ns`, need
    /// not wait (any longer).
    pub(crate) fn until(&self, thread: i32, since_ns: u64, now_ns: u64) -> Option<u64> {
        let turn = &self.state.lock().turn;
        let waits = now_ns < turn.until_ns && turn.thread != thread && now_ns < since_ns + WAIT_NS;
        waits.then_some(turn.until_ns)
    }

    /// Waits while another thread has its turn.
    pub(crate) fn wait(&self, thread: i32, since_ns: u64) {
        loop {
            let (ended, now) = (self.ended.load(Acquire), now_ns());
            let Some(until) = self.until(thread, since_ns, now) else { return };
            futex::wait(&self.ended, ended, Some(Duration::from_nanos(until - now)));
        }
    }

    /// Notes that a fault of `thread` begins. The thread may take a turn. Its turn ends if the thread has gone on.
    pub(crate) fn begin(&self, thread: i32, page: u32, now_ns: u64) {
        let State { seats, turn } = &mut *self.state.lock();
        let seat = &mut seats[thread as usize % SEATS];
        if seat.thread != thread {
            *seat = Seat::of(thread);
        }
        let is_known = seat.note(page);
        if now_ns >= turn.until_ns {
            if seat.repeats >= REPEATS {
                seat.repeats = 0;
                *turn = Turn { thread, until_ns: now_ns + FAULT_NS, faults: 1 };
            }
        } else if turn.thread == thread {
            turn.faults += 1;
            turn.until_ns = now_ns + FAULT_NS;
            if !is_known || turn.faults > TURN_FAULTS {
                turn.until_ns = 0;
                self.ended.fetch_add(1, Release);
                futex::wake_all(&self.ended);
            }
        }
    }

    /// Notes that the page of a fault of `thread` has come.
    pub(crate) fn end(&self, thread: i32, now_ns: u64) {
        let turn = &mut self.state.lock().turn;
        if turn.thread == thread && now_ns < turn.until_ns {
            turn.until_ns = now_ns + GRACE_NS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets `thread` fault on `pages` in turn, `faults` times.
    fn faults(turns: &Turns, thread: i32, pages: u32, faults: u32) {
        for fault in 0..faults {
            turns.begin(thread, fault % pages, 1);
            turns.end(thread, 1);
        }
    }

    #[test]
    fn a_thread_that_repeats_its_faults_takes_a_turn() {
        let turns = Turns::new();
        faults(&turns, 7, 9, 1000);
        assert_eq!(turns.until(8, 1, 1), None, "nine pages are no repetition");
        faults(&turns, 8, 4, 4 + REPEATS - 1);
        assert_eq!(turns.until(7, 1, 1), None);
        turns.begin(8, 3, 1);
        assert_eq!((turns.until(7, 1, 1), turns.until(8, 1, 1)), (Some(1 + FAULT_NS), None));
        turns.end(7, 2);
        turns.end(8, 3);
        assert_eq!((turns.until(7, 1, 3), turns.until(7, 1, 3 + GRACE_NS)), (Some(3 + GRACE_NS), None));
    }

    #[test]
    fn a_turn_ends_when_its_thread_goes_on_or_has_faulted_enough() {
        let turns = Turns::new();
        faults(&turns, 8, 4, 4 + REPEATS);
        turns.begin(8, 100, 1);
        assert_eq!(turns.until(7, 1, 1), None, "the thread has gone on");
        faults(&turns, 8, 4, 4 + REPEATS);
        assert!(turns.until(7, 1, 1).is_some());
        faults(&turns, 8, 4, TURN_FAULTS);
        assert_eq!(turns.until(7, 1, 1), None, "the thread has faulted enough");
    }

    #[test]
    fn a_fault_waits_a_bounded_time_and_another_thread_takes_no_turn_meanwhile() {
        let turns = Turns::new();
        faults(&turns, 8, 4, 4 + REPEATS);
        faults(&turns, 7, 4, 4 + 2 * REPEATS);
        assert!(turns.until(7, 1, 1).is_some() && turns.until(8, 1, 1).is_none());
        turns.state.lock().turn.until_ns = u64::MAX;
        assert!(turns.until(7, 1, WAIT_NS).is_some() && turns.until(7, 1, 1 + WAIT_NS).is_none());
    }
}
