//! When a server counts as silent: for the time after which it is lost, and for the shorter one after which other copies
//! of its pages are used.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use hanare_sys::clock::now_ns;
use hanare_sys::ready;
use hanare_wire::{LinkError, patience};

use super::{Remote, Server};
use crate::StoreError;

impl Remote {
    /// Returns the silence after which a server counts as lost.
    pub(crate) fn silent(&self) -> Duration {
        self.silent
    }

    pub(super) fn silence(&self) -> LinkError {
        LinkError::Silent { seconds: patience(self.silent).as_secs() as u32 }
    }

    /// Returns an error if a server was silent for too long while reads wait for the server. The caller holds the
    /// receiving end. The caller began to look for a reply at `looked_ns` and found none. While another thread is
    /// sending a request to the server, the result is never an error.
    pub(super) fn check_reads(&self, index: usize, looked_ns: u64) -> Result<(), StoreError<'_>> {
        let server = &self.servers[index];
        let is_silent = || self.is_silent(server.last_reply_ns.load(Relaxed), looked_ns);
        let is_asked =
            || server.requests.try_lock().is_some_and(|requests| !requests.expected.is_empty() && is_silent());
        // The first check acquires no lock. Otherwise each check would delay threads that request pages.
        if is_silent() && is_asked() { self.loses(index, self.silence()) } else { Ok(()) }
    }

    /// Checks whether a server that has owed an answer since `last_ns` (on the clock of `awake`) is silent. The caller
    /// must have begun to look for the answer at `looked_ns` (on CLOCK_MONOTONIC) and found none. The time after
    /// `looked_ns` does not count, because an answer may be unread while this process's threads wait for a CPU.
    pub(super) fn is_silent(&self, last_ns: u64, looked_ns: u64) -> bool {
        let has_passed = |time: Duration| self.awake.has_passed(time.as_nanos() as u64, last_ns, looked_ns);
        // The load is asked for only when it matters.
        has_passed(self.silent) && has_passed(patience(self.silent))
    }

    /// Checks whether a server has owed an answer for longer than `len`, without time in which this process was stopped.
    /// An answer that has arrived and was not read yet is not owed.
    pub(crate) fn owes_longer_than(&self, len: Duration) -> bool {
        let has_passed = |since_ns| self.awake.has_passed(len.as_nanos() as u64, since_ns, now_ns());
        self.servers.iter().any(|server| {
            let ack_ns = server.owes_ack_ns.load(Relaxed);
            (owes_page(server, has_passed) && !has_arrived(server.link_fd))
                || (ack_ns > 0 && has_passed(ack_ns) && !has_arrived(server.writer_fd))
        })
    }
}

/// Checks whether a server owes a page, and `has_passed` holds for the time of its last reply.
fn owes_page(server: &Server, has_passed: impl Fn(u64) -> bool) -> bool {
    let owes = || {
        let since_ns = server.last_reply_ns.load(Relaxed);
        server.reads_in_flight.load(Acquire) > 0 && since_ns > 0 && has_passed(since_ns)
    };
    // A thread that is sending the first request after a while holds the lock, and sets the time only after it has sent.
    // The first check acquires no lock, as in `check_reads`.
    owes() && server.requests.try_lock().is_some_and(|_requests| owes())
}

/// Checks whether bytes have arrived on a link. If the kernel does not say, none have.
fn has_arrived(link: RawFd) -> bool {
    // SAFETY: a link that is replaced hands its number on, and links stay open until the process ends. So the descriptor
    // is valid.
    ready::is_readable(unsafe { BorrowedFd::borrow_raw(link) })
}
