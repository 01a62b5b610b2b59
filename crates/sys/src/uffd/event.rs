//! The events that are read from a userfaultfd.

use std::os::fd::RawFd;

/// The maximum number of events that one `Uffd::read_events` returns.
pub const EVENTS_PER_READ: usize = 16;

/// One event that was read from a userfaultfd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A thread accessed a page and sleeps until it is woken.
    Fault {
        /// The accessed address, rounded down to the page.
        addr: usize,
        /// Whether the access was a write.
        write: bool,
        /// Whether the page is present but write-protected.
        wp: bool,
        /// Whether the page is in the page cache but not mapped.
        minor: bool,
        /// The id of the thread that accessed the page. 0 without [`super::feature::THREAD_ID`].
        tid: i32,
    },
    /// The process forked, and the kernel created a userfaultfd for the child.
    Fork {
        /// The descriptor of the child's userfaultfd. The reader owns this descriptor and must close it or wrap it in
        /// an `OwnedFd`.
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
        /// The address of the first byte.
        start: usize,
        /// The address of the first byte after the range.
        end: usize,
    },
    /// A range was unmapped.
    Unmap {
        /// The address of the first byte.
        start: usize,
        /// The address of the first byte after the range.
        end: usize,
    },
}

impl Event {
    /// A value to initialize an array of events with.
    pub const EMPTY: Self = Self::Remove { start: 0, end: 0 };

    /// Decodes a `struct uffd_msg`, given as four words of 8 bytes. Returns `None` for kinds of events that this crate
    /// never requests.
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
