//! The events that the coherence machine receives, and the actions that it returns.

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

    /// Combines `a`, the result of the previous ranks, with `b`, the value of the next rank.
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

/// An event for the coherence machine. A page is named by its index in the shared region.
///
/// A rank may access pages from many threads. `Barrier` and all events after it in this list are calls. A rank makes
/// one call at a time: it waits for [`Action::Finished`] before it makes the next call.
#[derive(Debug)]
pub enum Event<'a> {
    /// A thread accessed a page in a way that the page's protection does not allow.
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
        /// The message. The bytes of its pages and diffs must be available while the actions are carried out.
        message: Message,
    },
    /// The rank no longer needs its copy of a page. The event has no effect on pages of which the rank is home, and on
    /// copies that it has written. It has no effect during a memory barrier either.
    Drop {
        /// The page.
        page: u32,
    },
    /// The rank wants to drop the twins of these pages. The diffs are sent home now, and the copies become clean. The
    /// event has no effect on pages without a twin. It has no effect while the rank is in a call either.
    Shed {
        /// The pages.
        pages: &'a [u32],
    },
    /// These watched pages ([`Action::Watch`]) differed from their twins, and the driver has copied the pages to the
    /// twins. The driver must report this event before each `Barrier` and `Release`.
    Wrote {
        /// The pages.
        pages: &'a [u32],
    },
    /// The result of an [`Action::Read`].
    Read {
        /// The page.
        page: u32,
        /// Whether the page's bytes have been copied into this rank's region. If not, the machine requests the page
        /// from the home.
        is_here: bool,
    },
    /// The rank enters a memory barrier.
    Barrier,
    /// The rank wants a lock.
    Acquire {
        /// The lock's number, which is below [`crate::limits::LOCKS_MAX`].
        lock: u32,
    },
    /// The rank releases a lock, and publishes its writes.
    Release {
        /// The number of a lock that the rank holds.
        lock: u32,
    },
    /// All ranks allocate pages together.
    Alloc {
        /// Number of pages.
        pages: u32,
        /// The placement of the pages, which determines the pages' homes.
        placement: &'a Placement,
    },
    /// All ranks together free the allocation that begins with this page.
    Free {
        /// The first page of the allocation.
        first: u32,
    },
    /// All ranks make a reduction together. A reduction is not a memory barrier.
    Reduce {
        /// The operation.
        reduction: Reduction,
        /// The values of this rank. All ranks pass the same number of values, at most [`crate::limits::VALUES_MAX`].
        values: &'a [u64],
    },
    /// All ranks end shared memory together.
    Shutdown,
}

/// An action that the driver must carry out. The driver carries out the actions of a list in order, and all of them
/// before the next event. So a peer receives the bytes that a page had when the machine decided to send the page. The
/// driver may queue messages if it copies their bytes immediately.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send this message, without bytes of pages or diffs.
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
    /// Read a page from the memory of its home, if the home offers the page. First send [`Message::Joined`]. Then copy
    /// the offered bytes into the page's place in this rank's region, but do not make the page accessible. The offered
    /// bytes are those of the twin if the page is watched. Then check that the page is still offered, and that the home
    /// has not entered [`Event::Release`] or [`Event::Barrier`] during the read. Report the result as [`Event::Read`]
    /// before any other event.
    ///
    /// Every `Joined` sent so far must reach the home before the home enters `Release` or `Barrier`, and before the
    /// home receives [`Message::Go`].
    Read {
        /// The page.
        page: u32,
        /// The page's home.
        home: Rank,
    },
    /// Let other ranks read this page from this rank's memory from now on. This rank is the page's home. While the page
    /// is watched, offer its twin.
    Offer {
        /// The page.
        page: u32,
    },
    /// Stop offering the page to other ranks. [`Action::Discard`] also withdraws the offers of its pages.
    Withhold {
        /// The page.
        page: u32,
    },
    /// Compare these pages with their twins, drop the twins, and send the diffs as [`Message::Diffs`] in frames of
    /// bounded length. Set `last` only on the last frame. Omit pages without a difference. Send at least one frame.
    SendDiffs {
        /// The receiver.
        to: Rank,
        /// The pages, in ascending order. They are write-protected.
        pages: Vec<u32>,
        /// The purpose of the diffs.
        purpose: Purpose,
    },
    /// Send these whole pages as [`Message::Updates`] in frames of bounded length. Set `last` only on the last frame.
    SendUpdates {
        /// The receiver.
        to: Rank,
        /// The pages, in ascending order.
        pages: Vec<u32>,
    },
    /// Put a page from the message just received, or from a successful [`Action::Read`], into the region. Then make the
    /// page readable. If `writable` is true, also make a twin of the same bytes and make the page writable.
    Install {
        /// The page.
        page: u32,
        /// Whether to make the page writable.
        writable: bool,
    },
    /// Apply a diff from the message just received to its page.
    Apply {
        /// Index of the diff among the diffs of the message.
        index: u32,
        /// The page.
        page: u32,
    },
    /// Make a twin of a readable page, and then make the page writable.
    Twin {
        /// The page.
        page: u32,
    },
    /// Make pages writable, without a copy of their old bytes (a twin). Pages without memory read as zeroes.
    Open {
        /// The pages.
        run: Run,
    },
    /// Make a twin of a writable page whose home is this rank. From now on readers receive the twin. Before the driver
    /// reports a difference as [`Event::Wrote`], it copies the page's bytes into the twin.
    Watch {
        /// The page.
        page: u32,
    },
    /// Drop the twin of a watched page. From now on readers receive the page itself.
    Unwatch {
        /// The page.
        page: u32,
    },
    /// Write-protect pages. Their twins stay.
    Protect {
        /// The pages.
        run: Run,
    },
    /// Make copies inaccessible, so that the next access traps.
    Invalidate {
        /// The pages.
        run: Run,
    },
    /// Make readable pages writable, without twins.
    Reopen {
        /// The pages.
        run: Run,
    },
    /// This rank becomes the home of a page. This rank's copy becomes the master copy.
    Adopted {
        /// The page.
        page: u32,
    },
    /// This rank is no longer the home of a page, but keeps a current copy of the page.
    GivenAway {
        /// The page.
        page: u32,
    },
    /// Drop pages: free their bytes and their twins (the copies of their old bytes).
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
    /// The rank's call is complete.
    Finished {
        /// The result of the call.
        outcome: Outcome,
    },
    /// Shared memory has failed, and the machine has stopped.
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
    /// The allocation has succeeded.
    Allocated {
        /// The first page of the allocation.
        first: u32,
    },
    /// The region has no gap of that many pages. The result is the same on all ranks.
    NoRoom,
    /// The reduction is complete.
    Reduced {
        /// The results, one for each value that a rank has passed in.
        values: Vec<u64>,
    },
}

/// Why this rank cannot make a call.
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
    /// No allocation begins at this page.
    #[error("no allocation begins at page {0}; free what dsm_alloc returned, once")]
    NotAnAllocation(u32),
    /// The reduction has no values, or too many values.
    #[error("a reduction of {0} values; reduce between 1 and 64 at a time")]
    BadReduction(usize),
    /// The call came after the shutdown.
    #[error("shared memory is shut down; make no calls after dsm_shutdown")]
    Over,
}
