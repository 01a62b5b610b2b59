//! Waits for links and traps, in one of two threads: the engine's own thread, or a thread of the program in a call.
//!
//! The inner epoll set holds the links and the trap descriptor. The outer set holds the inner set, and the engine's
//! thread sleeps on the outer set. When a thread of the program enters a call, one system call makes the outer set
//! ignore the inner set. At the end of the call, another system call reverts this. So events that the program's thread
//! answers do not wake the engine's thread. Neither system call allocates memory, so neither can fail for lack of
//! memory.
//!
//! A thread in a call blocks signals. The descriptor on which it sleeps reports blocked signals too.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use hanare_sys::ready::nap;
use hanare_sys::signal::{SignalMask, SignalWatch};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::fatal::must;

/// Number of the trap descriptor among the ready descriptors. Links have the number of their rank.
pub(super) const TRAPS: u64 = u64::MAX;
/// Most descriptors reported at once.
const READY_MAX: usize = 64;

pub(super) struct Events {
    inner: OwnedFd,
    outer: OwnedFd,
    signals: SignalWatch,
}

/// The numbers of the ready descriptors, and their count.
pub(super) type Ready = ([u64; READY_MAX], usize);

fn nanoseconds(time_us: u64) -> Timespec {
    Timespec { tv_sec: (time_us / 1_000_000) as i64, tv_nsec: (time_us % 1_000_000 * 1000) as i64 }
}

impl Events {
    pub(super) fn new() -> Result<Self, Errno> {
        let inner = epoll::create(CreateFlags::CLOEXEC)?;
        let outer = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&outer, &inner, EventData::new_u64(0), EventFlags::IN)?;
        let signals = SignalWatch::new().map_err(|errno| Errno::from_raw_os_error(errno.0))?;
        Ok(Self { inner, outer, signals })
    }

    pub(super) fn add(&self, fd: BorrowedFd<'_>, number: u64) -> Result<(), Errno> {
        epoll::add(&self.inner, fd, EventData::new_u64(number), EventFlags::IN)
    }

    /// Sets whether the events also report room to send on a link.
    pub(super) fn want_room(&self, fd: BorrowedFd<'_>, number: u64, want: bool) -> Result<(), Errno> {
        let flags = if want { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        epoll::modify(&self.inner, fd, EventData::new_u64(number), flags)
    }

    pub(super) fn remove(&self, fd: BorrowedFd<'_>) {
        match epoll::delete(&self.inner, fd) {
            // A link that has already been removed needs no change.
            Ok(()) | Err(Errno::NOENT) => {}
            other => must("leave a link alone that has ended", other),
        }
    }

    /// Returns the descriptors that are ready now.
    pub(super) fn look(&self) -> Ready {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; READY_MAX];
        let count = match epoll::wait(&self.inner, &mut events[..], Some(&nanoseconds(0))) {
            Err(Errno::INTR) => 0,
            other => must("look for what other ranks sent", other),
        };
        let mut ready = [0; READY_MAX];
        ready.iter_mut().zip(&events[..count]).for_each(|(ready, event)| *ready = event.data.u64());
        (ready, count)
    }

    /// Waits for at most `timeout_us` microseconds. Returns the descriptors that are ready. A signal that the thread
    /// has passed to [`Self::watch`] also ends the wait.
    pub(super) fn wait(&self, timeout_us: u64) -> Ready {
        let mut fds = [PollFd::new(&self.inner, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
        match poll(&mut fds, Some(&nanoseconds(timeout_us))) {
            Ok(0) | Err(Errno::INTR) => return ([0; READY_MAX], 0),
            Err(Errno::INVAL) => nap(Duration::from_micros(timeout_us)),
            other => {
                must("wait for other ranks", other);
            }
        }
        self.look()
    }

    /// Makes [`Self::wait`] report the signals that `mask` blocks. Called by the thread that waits from now on.
    pub(super) fn watch(&self, mask: &SignalMask) {
        must("watch for signals", self.signals.watch(mask).map_err(|errno| Errno::from_raw_os_error(errno.0)));
    }

    /// Sleeps until a descriptor is ready, for at most `timeout_us` microseconds. Only the engine's thread calls this.
    /// Events that a thread of the program answers do not wake the engine's thread.
    pub(super) fn sleep(&self, timeout_us: u64) {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 1];
        match epoll::wait(self.outer.as_fd(), &mut events[..], Some(&nanoseconds(timeout_us))) {
            // A signal may end the sleep early, which is harmless.
            Err(Errno::INTR) => {}
            other => {
                must("wait for other ranks", other);
            }
        }
    }

    /// Lets the calling thread of the program answer all events, until [`Self::give_back`].
    pub(super) fn take_over(&self) {
        self.have_outer_look(EventFlags::empty());
    }

    /// Lets the engine's thread answer the events again.
    pub(super) fn give_back(&self) {
        self.have_outer_look(EventFlags::IN);
    }

    fn have_outer_look(&self, at: EventFlags) {
        must("say who answers other ranks", epoll::modify(&self.outer, &self.inner, EventData::new_u64(0), at));
    }
}
