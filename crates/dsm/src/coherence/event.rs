//! The events that the machine receives, and the actions that it answers.

use super::message::{Failure, Message, Purpose};
use super::placement::Placement;
use super::units::{Rank, Run};

/// The operation of a reduction. It combines each value over all ranks, in the order of the ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Reduction {
    /// Sum of signed integers, wrapping around.
    SumI64 = 1,
    /// Least of signed integers.
    MinI64 = 2,
    /// Largest of signed integers.
    MaxI64 = 3,
    /// Sum of doubles.
    SumF64 = 4,
    /// Least of doubles.
    MinF64 = 5,
    /// Largest of doubles.
    MaxF64 = 6,
}

impl Reduction {
    pub(crate) fn from_detail(detail: u64) -> Option<Self> {
        use Reduction::*;
        [SumI64, MinI64, MaxI64, SumF64, MinF64, MaxF64].into_iter().find(|known| *known as u64 == detail)
    }

    /// Combines the result of the previous ranks, `a`, with the next rank's value, `b`.
    pub(crate) fn combine(self, a: u64, b: u64) -> u64 {
        let (x, y) = (a as i64, b as i64);
        let (f, g) = (f64::from_bits(a), f64::from_bits(b));
        match self {
            Reduction::SumI64 => x.wrapping_add(y) as u64,
            Reduction::MinI64 => x.min(y) as u64,
            Reduction::MaxI64 => x.max(y) as u64,
            Reduction::SumF64 => (f + g).to_bits(),
            Reduction::MinF64 => f.min(g).to_bits(),
            Reduction::MaxF64 => f.max(g).to_bits(),
        }
    }
}

/// An event. Pages are indices into the shared region.
///
/// A rank may access pages from many threads. The events from `Barrier` on are calls: a rank makes one at a time, and
/// waits for [`Action::Finished`] before the next.
#[derive(Debug)]
pub enum Event<'a> {
    /// A thread accessed a page in a way that its view does not allow.
    Touch {
        /// The page.
        page: u32,
        /// Whether the access was a write.
        write: bool,
    },
    /// A message arrived.
    Received {
        /// The sender.
        from: Rank,
        /// The message. The bytes of its pages are available while the actions are carried out.
        message: Message,
    },
    /// The rank no longer needs its copy of a page. Ignored if the copy is in use or the only one.
    Drop {
        /// The page.
        page: u32,
    },
    /// The rank wants to drop the twins of these pages: their diffs go home now, and the copies become clean. Ignored
    /// for pages without a twin, and while the rank waits in a call.
    Shed {
        /// The pages.
        pages: &'a [u32],
    },
    /// These watched pages ([`Action::Watch`]) differ from their twins, and the twins were renewed. Must precede each
    /// `Barrier` and `Release`.
    Wrote {
        /// The pages.
        pages: &'a [u32],
    },
    /// The result of an [`Action::Read`].
    Read {
        /// The page.
        page: u32,
        /// Whether its bytes are in its place. Otherwise the machine asks the home.
        is_here: bool,
    },
    /// The rank enters a memory barrier.
    Barrier,
    /// The rank wants a lock.
    Acquire {
        /// Below [`crate::limits::LOCKS_MAX`].
        lock: u32,
    },
    /// The rank releases a lock, and publishes what it wrote.
    Release {
        /// A lock it holds.
        lock: u32,
    },
    /// All ranks together: allocates pages.
    Alloc {
        /// Number of pages.
        pages: u32,
        /// Their homes.
        placement: &'a Placement,
    },
    /// All ranks together: frees the allocation that begins with this page.
    Free {
        /// Its first page.
        first: u32,
    },
    /// All ranks together: a reduction. It is not a memory barrier.
    Reduce {
        /// The operation.
        reduction: Reduction,
        /// This rank's values. Their number is the same on every rank, at most [`crate::limits::VALUES_MAX`].
        values: &'a [u64],
    },
    /// All ranks together: nothing is shared from now on.
    Shutdown,
}

/// An action. Carry out the actions of a list in order, and all of them before the next event. A peer then receives the
/// bytes of the moment at which the machine decided. Messages may be queued if their bytes are copied at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send this message, without bytes.
    Send {
        /// The receiver.
        to: Rank,
        /// The message.
        message: Message,
    },
    /// Send [`Message::PageReply`] with the page's bytes.
    SendPage {
        /// The receiver.
        to: Rank,
        /// The page.
        page: u32,
    },
    /// Read a page from its home's memory, if the home offers it. First send [`Message::Joined`]. Then copy what is
    /// offered (the twin of a watched page) into the page's place, out of view. Then check that it is still offered,
    /// and that the home did not enter [`Event::Release`] or [`Event::Barrier`] in between. [`Event::Read`] must follow
    /// before any other event.
    ///
    /// The home must receive the `Joined` before any `Release` and [`Message::Go`] that is sent later.
    Read {
        /// The page.
        page: u32,
        /// Its home.
        home: Rank,
    },
    /// Let others read this page from now on, whose home is this rank. Offer its twin while it is watched.
    Offer {
        /// The page.
        page: u32,
    },
    /// Stop offering the page. [`Action::Discard`] also stops it.
    Withhold {
        /// The page.
        page: u32,
    },
    /// Compare these pages with their twins, drop the twins, and send [`Message::Diffs`] in frames of bounded length,
    /// with `last` only on the last one. Leave out pages without a difference. Send at least one frame.
    SendDiffs {
        /// The receiver.
        to: Rank,
        /// The pages, ascending. They are protected.
        pages: Vec<u32>,
        /// The purpose.
        purpose: Purpose,
    },
    /// Send [`Message::Updates`] with these whole pages, in the same way.
    SendUpdates {
        /// The receiver.
        to: Rank,
        /// The pages, ascending.
        pages: Vec<u32>,
    },
    /// Put a page from the message just received into its place. Then show it for reading, or for writing with a twin
    /// of the same bytes.
    Install {
        /// The page.
        page: u32,
        /// Whether to show it for writing.
        writable: bool,
    },
    /// Write a diff from the message just received into its page.
    Apply {
        /// Index of the diff in the message.
        index: u32,
        /// The page.
        page: u32,
    },
    /// Make a twin of a page that is shown for reading, then allow writes to it.
    Twin {
        /// The page.
        page: u32,
    },
    /// Allow writes to pages without twins. Absent pages read as zeroes.
    Open {
        /// The pages.
        run: Run,
    },
    /// Make a twin of a page that is shown for writing, whose home is this rank. From now on readers receive the twin.
    /// The twin takes over the page's bytes when [`Event::Wrote`] reports that they differ.
    Watch {
        /// The page.
        page: u32,
    },
    /// Drop the twin of a watched page: readers receive the page itself.
    Unwatch {
        /// The page.
        page: u32,
    },
    /// Make pages read-only. Their twins stay.
    Protect {
        /// The pages.
        run: Run,
    },
    /// Take copies away: the next access traps.
    Invalidate {
        /// The pages.
        run: Run,
    },
    /// Allow writes to pages that are shown for reading, without twins.
    Reopen {
        /// The pages.
        run: Run,
    },
    /// This rank becomes a page's home: its copy is the master.
    Adopted {
        /// The page.
        page: u32,
    },
    /// This rank is no longer a page's home. It keeps a copy, which is current.
    GivenAway {
        /// The page.
        page: u32,
    },
    /// Drop pages with their bytes and their twins.
    Discard {
        /// The pages.
        run: Run,
    },
    /// Wake the threads that wait for this page.
    Wake {
        /// The page.
        page: u32,
    },
    /// Wake all threads that wait for pages.
    WakeAll,
    /// The call is complete.
    Finished {
        /// Its result.
        outcome: Outcome,
    },
    /// Sharing has failed; the machine stops.
    Fail {
        /// The reason.
        failure: Failure,
    },
}

/// The result of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The call succeeded.
    Done,
    /// The allocation's first page.
    Allocated {
        /// The page.
        first: u32,
    },
    /// No rank has room for the allocation.
    NoRoom,
    /// The reduction's result.
    Reduced {
        /// The values, in the number that each rank gave.
        values: Vec<u64>,
    },
}

/// A call that this rank cannot make.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Misuse {
    /// A page outside every allocation.
    #[error("page {0} of the shared region is not allocated; allocate it with dsm_alloc before touching it")]
    NotAllocated(u32),
    /// Another call is in progress.
    #[error("another call of this rank is under way; make calls that wait for other ranks from one thread at a time")]
    Busy,
    /// The rank does not hold the lock.
    #[error("lock {0} is not held by this rank; call dsm_lock before dsm_unlock")]
    NotHeld(u32),
    /// The rank holds the lock already.
    #[error("lock {0} is held by this rank already; unlock it before locking it again")]
    Held(u32),
    /// The lock does not exist.
    #[error("lock {0} does not exist; locks have numbers from 0 to 65535")]
    NoLock(u32),
    /// The allocation is empty, or names homes that do not exist.
    #[error("the allocation names no page, or a home that is not a rank; give a size, and ranks below dsm_size()")]
    BadAllocation,
    /// No allocation begins there.
    #[error("no allocation begins at page {0}; free what dsm_alloc returned, once")]
    NotAnAllocation(u32),
    /// The reduction has too many values.
    #[error("a reduction of {0} values; reduce between 1 and 64 at a time")]
    BadReduction(usize),
    /// The call came after the shutdown.
    #[error("shared memory is shut down; make no calls after dsm_shutdown")]
    Over,
}
