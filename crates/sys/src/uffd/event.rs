//! Events, as read from a userfaultfd.

use std::os::fd::RawFd;

/// How many events one [`Uffd::read_events`] returns at most.
pub const EVENTS_PER_READ: usize = 16;

/// One event read from a userfaultfd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A thread accessed a page and sleeps until it is woken.
    Fault {
        /// The accessed address, rounded down to the page.
        addr: usize,
        /// The access was a write.
        write: bool,
        /// The page is there but write-protected.
        wp: bool,
        /// The page is cached but not mapped.
        minor: bool,
        /// The thread that accessed it; 0 without [`super::feature::THREAD_ID`].
        tid: i32,
    },
    /// The process forked; `fd` is the child's userfaultfd, which the reader now owns.
    Fork {
        /// The new descriptor. Close it, or take it over with `OwnedFd::from_raw_fd`.
        fd: RawFd,
    },
    /// A range was moved by `mremap`.
    Remap {
        /// The old address.
        from: usize,
        /// The new address.
        to: usize,
        /// The length in bytes.
        len: usize,
    },
    /// The pages of a range were dropped.
    Remove {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
    },
    /// A range was unmapped.
    Unmap {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
    },
}

impl Event {
    /// The initial value for an array of events.
    pub const EMPTY: Self = Self::Remove { start: 0, end: 0 };

    /// Decodes a `struct uffd_msg`, 32 bytes as four words. `None` for a kind this crate never asks
    /// for.
    pub(super) fn decode(message: [u64; 4]) -> Option<Self> {
        let [head, a, b, c] = message;
        let (x, y, z) = (a as usize, b as usize, c as usize);
        Some(match head & 0xff {
            0x12 => Self::Fault { addr: y, write: a & 1 != 0, wp: a & 2 != 0, minor: a & 4 != 0, tid: c as u32 as i32 },
            0x13 => Self::Fork { fd: a as u32 as RawFd },
            0x14 => Self::Remap { from: x, to: y, len: z },
            0x15 => Self::Remove { start: x, end: y },
            0x16 => Self::Unmap { start: x, end: y },
            _ => return None,
        })
    }
}
