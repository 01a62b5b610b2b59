//! What the machine is told, and what it answers.

use super::message::{Failure, Message, Purpose};
use super::placement::Placement;
use super::units::{Rank, Run};

/// What a reduction computes, value by value over all ranks, in the order of the ranks.
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

    /// One step: what came of the ranks before, and the next rank's value.
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

/// Something that happened. Pages are indices into the shared region.
///
/// A rank may touch from many threads, and makes one of the calls below `Wrote` at a time: it waits for [`Action::Finished`] before the next.
#[derive(Debug)]
pub enum Event<'a> {
    /// A thread touched a page that its view does not allow.
    Touch {
        /// The page.
        page: u32,
        /// Whether it was a write.
        write: bool,
    },
    /// A message arrived.
    Received {
        /// From whom.
        from: Rank,
        /// The message. Its pages' bytes are at hand while the actions are carried out.
        message: Message,
    },
    /// The rank can do without its copy of a page. Nothing happens when the copy is in use or the only one.
    Drop {
        /// The page.
        page: u32,
    },
    /// The rank can do without the twins of these pages: what was written goes home now, and the copies are clean. Nothing
    /// happens to those that have none, or while the rank waits in a call.
    Shed {
        /// The pages.
        pages: &'a [u32],
    },
    /// Of the watched pages ([`Action::Watch`]) these differ from their twins, which are made anew. To be told ahead of each
    /// `Barrier` and `Release`.
    Wrote {
        /// The pages.
        pages: &'a [u32],
    },
    /// What came of an [`Action::Read`].
    Read {
        /// The page.
        page: u32,
        /// Whether its bytes are in its place. Otherwise its home is asked.
        is_here: bool,
    },
    /// The rank enters a memory barrier.
    Barrier,
    /// The rank wants a lock.
    Acquire {
        /// Below [`crate::limits::LOCKS_MAX`].
        lock: u32,
    },
    /// The rank gives a lock back, and with it what it wrote.
    Release {
        /// A lock it holds.
        lock: u32,
    },
    /// All ranks together: so many pages.
    Alloc {
        /// Number of pages.
        pages: u32,
        /// Their homes.
        placement: &'a Placement,
    },
    /// All ranks together: the allocation that begins with this page goes.
    Free {
        /// Its first page.
        first: u32,
    },
    /// All ranks together: a reduction. It is no barrier for memory.
    Reduce {
        /// What of.
        reduction: Reduction,
        /// This rank's values, as many on every rank, at most [`crate::limits::VALUES_MAX`].
        values: &'a [u64],
    },
    /// All ranks together: nothing is shared from now on.
    Shutdown,
}

/// Something to be done, in the order of the list and before the next event, so that what a peer is sent is what was
/// there when the machine decided. Sending may be put into a queue, with bytes copied at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send this, without bytes.
    Send {
        /// To whom.
        to: Rank,
        /// What.
        message: Message,
    },
    /// Send [`Message::PageReply`] with the page's bytes.
    SendPage {
        /// To whom.
        to: Rank,
        /// The page.
        page: u32,
    },
    /// Read a page out of its home's memory, if the home offers it: send [`Message::Joined`], then copy what is offered (the twin of a
    /// watched page) into the page's place, out of view, and see that it is offered as before and that the home did not enter
    /// [`Event::Release`] or [`Event::Barrier`] in between. [`Event::Read`] has to follow before any other event.
    ///
    /// The home must get a `Joined` ahead of the `Release` and the [`Message::Go`] that come after it in time.
    Read {
        /// The page.
        page: u32,
        /// Its home.
        home: Rank,
    },
    /// From now on others may read this page of which this rank is home: its twin as long as it is watched.
    Offer {
        /// The page.
        page: u32,
    },
    /// Others may not any more, nor after [`Action::Discard`].
    Withhold {
        /// The page.
        page: u32,
    },
    /// Compare these pages with their twins, drop the twins, and send [`Message::Diffs`] in frames that are not too
    /// long, `last` only on the last one. Pages without a difference are left out; one frame goes in any case.
    SendDiffs {
        /// To whom.
        to: Rank,
        /// The pages, ascending. They are protected.
        pages: Vec<u32>,
        /// Why.
        purpose: Purpose,
    },
    /// Send [`Message::Updates`] with these whole pages, likewise.
    SendUpdates {
        /// To whom.
        to: Rank,
        /// The pages, ascending.
        pages: Vec<u32>,
    },
    /// Put a page from the message just received into its place; then show it, for reading, or for writing with a twin of
    /// the same bytes.
    Install {
        /// The page.
        page: u32,
        /// Whether for writing.
        writable: bool,
    },
    /// Write a diff from the message just received into its page.
    Apply {
        /// Which of the message's.
        index: u32,
        /// The page.
        page: u32,
    },
    /// Make a twin of a page that is shown for reading; then let it be written.
    Twin {
        /// The page.
        page: u32,
    },
    /// Let pages be written, without twins. What is not there reads as zeroes.
    Open {
        /// The pages.
        run: Run,
    },
    /// Make a twin of a page that is shown for writing, of which this rank is home. From now on readers get what the twin has,
    /// and the twin becomes what the page has when [`Event::Wrote`] tells that they differ.
    Watch {
        /// The page.
        page: u32,
    },
    /// Drop that twin: readers get what the page has.
    Unwatch {
        /// The page.
        page: u32,
    },
    /// Let pages be read only. Their twins stay.
    Protect {
        /// The pages.
        run: Run,
    },
    /// Take copies away: the next touch traps.
    Invalidate {
        /// The pages.
        run: Run,
    },
    /// Let pages be written, without twins, that are shown for reading.
    Reopen {
        /// The pages.
        run: Run,
    },
    /// This rank is a page's home from now on: its copy is the master.
    Adopted {
        /// The page.
        page: u32,
    },
    /// This rank is a page's home no more: what it has is a copy, which is true.
    GivenAway {
        /// The page.
        page: u32,
    },
    /// Take pages, their bytes and their twins away.
    Discard {
        /// The pages.
        run: Run,
    },
    /// Let the threads that wait for this page try again.
    Wake {
        /// The page.
        page: u32,
    },
    /// Let all threads that wait for pages try again.
    WakeAll,
    /// The call is over.
    Finished {
        /// What came of it.
        outcome: Outcome,
    },
    /// It is over; the machine does nothing any more.
    Fail {
        /// Why.
        failure: Failure,
    },
}

/// What came of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is done.
    Done,
    /// The allocation's first page.
    Allocated {
        /// The page.
        first: u32,
    },
    /// No room for the allocation, on any rank.
    NoRoom,
    /// The reduction's result.
    Reduced {
        /// As many values as each rank gave.
        values: Vec<u64>,
    },
}

/// A call this rank cannot make.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Misuse {
    /// A page outside every allocation.
    #[error("page {0} of the shared region is not allocated; allocate it with dsm_alloc before touching it")]
    NotAllocated(u32),
    /// Another call is under way.
    #[error("another call of this rank is under way; make calls that wait for other ranks from one thread at a time")]
    Busy,
    /// The lock is not this rank's.
    #[error("lock {0} is not held by this rank; call dsm_lock before dsm_unlock")]
    NotHeld(u32),
    /// The lock is this rank's already.
    #[error("lock {0} is held by this rank already; unlock it before locking it again")]
    Held(u32),
    /// No such lock.
    #[error("lock {0} does not exist; locks have numbers from 0 to 65535")]
    NoLock(u32),
    /// Nothing to allocate, or homes that do not exist.
    #[error("the allocation names no page, or a home that is not a rank; give a size, and ranks below dsm_size()")]
    BadAllocation,
    /// Not an allocation.
    #[error("no allocation begins at page {0}; free what dsm_alloc returned, once")]
    NotAnAllocation(u32),
    /// Too many values.
    #[error("a reduction of {0} values; reduce between 1 and 64 at a time")]
    BadReduction(usize),
    /// After the end.
    #[error("shared memory is shut down; make no calls after dsm_shutdown")]
    Over,
}
