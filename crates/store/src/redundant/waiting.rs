//! How threads wait for the parts of pages.
//!
//! Of a mirrored page, one server sends the whole. A thread that waits for one polls first, as without redundancy.
//!
//! For a page in K > 1 parts, K servers answer. A thread that polled their links would take a CPU from servers on this
//! host, and need several system calls for each round. So a thread that waits for such a page sleeps at once, and one sleep
//! covers all parts that are still missing. One thread at a time sleeps on the links. It receives for all threads. The
//! others sleep until it has received the last part of their page, which the reader then tells them
//! ([`Take::arrived`](crate::Take::arrived)).

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

use hanare_sys::clock::now_ns;
use hanare_sys::ready;
use hanare_wire::Wait;

use super::{Member, Redundant};
use crate::remote::Remote;

/// The longest sleep in place of a spin.
const NAP: Duration = Duration::from_micros(200);
/// The time after the end of its sleep in which a thread gives its turn back, in nanoseconds. Later, it counts as gone.
const LATE_NS: u64 = 5_000_000;

/// The turn of one thread to sleep on the links.
pub(super) struct Turns {
    /// The time until which a thread has the turn, in nanoseconds on CLOCK_MONOTONIC. 0 if nobody has it. The time ends the
    /// turn of a thread that was cancelled in its sleep.
    until_ns: AtomicU64,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self { until_ns: AtomicU64::new(0) }
    }

    /// Gives the turn to the calling thread for `sleep`, unless another thread has it. Returns a token for [`Self::end`].
    fn begin(&self, now_ns: u64, sleep: Duration) -> Option<u64> {
        let last_ns = self.until_ns.load(Relaxed);
        let until_ns = now_ns + sleep.as_nanos() as u64 + LATE_NS;
        let is_mine = last_ns <= now_ns && self.until_ns.compare_exchange(last_ns, until_ns, Acquire, Relaxed).is_ok();
        is_mine.then_some(until_ns)
    }

    /// Gives the turn back. If the turn has ended before, it may be another thread's now, and stays with it.
    fn end(&self, token: u64) {
        let (Ok(_) | Err(_)) = self.until_ns.compare_exchange(token, 0, Release, Relaxed);
    }
}

impl Redundant {
    /// Returns the links to sleep on until a page is complete. If only one read is in progress, and each part that was asked
    /// for is needed, this is the link of one of the missing parts. The others arrive meanwhile.
    pub(crate) fn arriving(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let awaited = self.machine.lock().awaited();
        let members = self.members.iter().enumerate();
        let needed = members.filter(move |(index, _)| awaited.is_none_or(|awaited| awaited == *index));
        let reading = needed.filter_map(|(_, member)| Member::there(member)).filter(|remote| remote.is_reading());
        reading.map(Remote::link)
    }

    /// Checks whether a page needs the answers of several servers.
    pub(crate) fn is_split(&self) -> bool {
        self.measures.redundancy.data > 1
    }

    /// Waits until a part has arrived. Returns false if another thread sleeps on the links.
    pub(super) fn wait_for_links(&self, wait: Wait) -> bool {
        let timeout = match wait {
            Wait::Now => return true,
            Wait::Spin { iterations } if !self.is_split() => {
                (0..iterations).for_each(|_| std::hint::spin_loop());
                return true;
            }
            Wait::Spin { .. } => NAP,
            Wait::Block { timeout } => timeout,
        };
        let Some(token) = self.turns.begin(now_ns(), timeout) else { return false };
        // Ignored: if the wait fails, the caller checks the links at once.
        let (Ok(()) | Err(_)) = ready::wait_readable(self.arriving(), timeout);
        self.turns.end(token);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_sleeps_on_the_links_and_its_turn_ends_with_it_or_with_its_time() {
        let turns = Turns::new();
        let first = turns.begin(1_000, NAP).expect("nobody has the turn");
        assert_eq!(turns.begin(1_001, NAP), None);
        turns.end(first);
        let lost = turns.begin(1_002, NAP).expect("it was given back");
        assert_eq!(turns.begin(lost - 1, NAP), None);
        let next = turns.begin(lost, NAP).expect("its time is over");
        turns.end(lost);
        assert_eq!(turns.begin(lost + 1, NAP), None, "the turn is no longer that of the first thread");
        turns.end(next);
        assert!(turns.begin(lost + 1, NAP).is_some());
    }
}
