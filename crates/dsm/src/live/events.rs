//! Waiting for links and traps, by one of two: the engine's own thread, or a thread of the program that waits in a call.
//!
//! The links and the trap descriptor are in one set; the engine's thread sleeps on an outer set that contains it. A thread of the program that
//! takes over takes the inner set out of the outer one, which costs one system call, and puts it back in the end: so
//! the engine's thread is not woken for what the other one answers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

/// Number of the trap descriptor among what is ready; links have their rank's.
pub(super) const TRAPS: u64 = u64::MAX;
/// Number of the links to memory servers.
pub(super) const SERVERS: u64 = u64::MAX - 1;
/// How many are told of at once.
const READY_MAX: usize = 64;

pub(super) struct Events {
    inner: OwnedFd,
    outer: OwnedFd,
}

/// What is ready: numbers, and how many.
pub(super) type Ready = ([u64; READY_MAX], usize);

fn nanoseconds(time_us: u64) -> Timespec {
    Timespec { tv_sec: (time_us / 1_000_000) as i64, tv_nsec: (time_us % 1_000_000 * 1000) as i64 }
}

impl Events {
    pub(super) fn new() -> Result<Self, Errno> {
        let inner = epoll::create(CreateFlags::CLOEXEC)?;
        let outer = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&outer, &inner, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self { inner, outer })
    }

    pub(super) fn add(&self, fd: BorrowedFd<'_>, number: u64) -> Result<(), Errno> {
        epoll::add(&self.inner, fd, EventData::new_u64(number), EventFlags::IN)
    }

    /// Whether to be told also when there is room to send.
    pub(super) fn want_room(&self, fd: BorrowedFd<'_>, number: u64, want: bool) -> Result<(), Errno> {
        let flags = if want { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        epoll::modify(&self.inner, fd, EventData::new_u64(number), flags)
    }

    pub(super) fn remove(&self, fd: BorrowedFd<'_>) {
        // It may be gone already, which is what is wanted.
        let _ = epoll::delete(&self.inner, fd);
    }

    /// What is ready within so many microseconds.
    pub(super) fn wait(&self, timeout_us: u64) -> Ready {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; READY_MAX];
        let count = epoll::wait(&self.inner, &mut events[..], Some(&nanoseconds(timeout_us))).unwrap_or(0);
        let mut ready = [0; READY_MAX];
        ready.iter_mut().zip(&events[..count]).for_each(|(ready, event)| *ready = event.data.u64());
        (ready, count)
    }

    /// The engine's thread: sleeps until something is ready that nobody else answers.
    pub(super) fn sleep(&self, timeout_us: u64) {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 1];
        // Woken in vain at worst.
        let _ = epoll::wait(self.outer.as_fd(), &mut events[..], Some(&nanoseconds(timeout_us)));
    }

    /// A thread of the program answers from now on.
    pub(super) fn take_over(&self) {
        // Fails only without memory; then both are woken, and the one without the lock sleeps again.
        let _ = epoll::delete(&self.outer, &self.inner);
    }

    /// It no longer does.
    pub(super) fn give_back(&self) {
        let _ = epoll::add(&self.outer, &self.inner, EventData::new_u64(0), EventFlags::IN);
    }
}
