//! Messages between ranks. The bytes of pages and diffs follow a message. Only the driver (the code that sends and
//! receives messages) reads and writes these bytes.

use super::units::{Rank, RankSet, Run};

/// A call that all ranks make together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Together {
    /// A memory barrier.
    Barrier = 1,
    /// An allocation.
    Alloc = 2,
    /// A free.
    Free = 3,
    /// A reduction.
    Reduce = 4,
    /// The end of shared memory.
    Shutdown = 5,
}

impl Together {
    /// Returns the call with this number on the wire, or `None` if there is no such call.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        use Together::*;
        [Barrier, Alloc, Free, Reduce, Shutdown].into_iter().find(|known| *known as u8 == number)
    }
}

impl std::fmt::Display for Together {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Together::Barrier => "dsm_barrier",
            Together::Alloc => "dsm_alloc",
            Together::Free => "dsm_free",
            Together::Reduce => "dsm_reduce",
            Together::Shutdown => "dsm_shutdown",
        })
    }
}

/// The purpose of diffs that are sent home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Purpose {
    /// A memory barrier. The home counts the ranks whose diffs have all arrived.
    Barrier = 1,
    /// A lock call or a free. The home acknowledges the diffs.
    Lock = 2,
    /// The writer has too little memory for its twins. The home does not acknowledge the diffs. A message for another
    /// purpose follows before any rank relies on them.
    Early = 3,
}

/// A move of a page's home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The page.
    pub page: u32,
    /// The page's new home.
    pub home: Rank,
}

/// The state of a page whose home moves, sent to the new home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Adopt {
    /// The page.
    pub page: u32,
    /// The ranks with a copy of the page, except the new home.
    pub sharers: RankSet,
}

/// Why the ranks cannot continue together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// Two ranks made different calls.
    #[error(
        "rank {rank} called {called} while rank {other} called {other_called}; every rank must make the same calls \
             with the same arguments in the same order"
    )]
    Mismatch {
        /// The rank that arrived later.
        rank: Rank,
        /// The call of the rank that arrived later.
        called: Together,
        /// The rank that arrived first.
        other: Rank,
        /// The call of the rank that arrived first.
        other_called: Together,
    },
    /// A rank sent an invalid message.
    #[error(
        "rank {rank} broke the protocol between ranks ({what}); run the same hanare release and program on every rank"
    )]
    Violation {
        /// The rank that sent the message.
        rank: Rank,
        /// The error in the message.
        what: Violation,
    },
}

/// The error in an invalid message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Violation {
    /// A page outside every allocation.
    Page = 1,
    /// A message for the home of a page, which a rank received that is not the page's home.
    NotHome = 2,
    /// An answer to no request, or a second answer to one request.
    Unasked = 3,
    /// A rank, lock or number that does not exist.
    Number = 4,
    /// Bytes that are not a message.
    Garbage = 5,
}

impl Violation {
    /// Returns the error with this number on the wire, or `None` if there is no such error.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        use Violation::*;
        [Page, NotHome, Unasked, Number, Garbage].into_iter().find(|known| *known as u8 == number)
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Violation::Page => "a page that is not allocated",
            Violation::NotHome => "a page whose home is elsewhere",
            Violation::Unasked => "an answer nobody asked for",
            Violation::Number => "a rank, lock or number that does not exist",
            Violation::Garbage => "bytes that are no message",
        })
    }
}

/// How soon the receiver needs a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// The receiver needs the message immediately.
    Now,
    /// The receiver needs the message when it makes its next call, or immediately if it waits in a call.
    AtNextCall,
    /// The receiver needs the message when it next checks for messages. The message itself causes no check.
    AtNextLook,
}

/// A message between two ranks. Messages from one rank to another arrive in the order in which they were sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Sent to the home of a page: `reader` requests the page and becomes a sharer.
    PageRequest {
        /// The page.
        page: u32,
        /// The rank that reads the page. It differs from the sender if an old home forwards the request.
        reader: Rank,
    },
    /// Sent by the home of a page to a reader, with the page's bytes.
    PageReply {
        /// The page.
        page: u32,
    },
    /// Sent to the rank that records the first access to a page: the sender asks which rank is the page's home.
    HomeRequest {
        /// The page.
        page: u32,
    },
    /// The answer to [`Message::HomeRequest`].
    HomeReply {
        /// The page.
        page: u32,
        /// The page's home. It is the asking rank if no rank has asked before.
        home: Rank,
    },
    /// Sent to a home, with diffs of its pages.
    Diffs {
        /// The purpose of the diffs.
        purpose: Purpose,
        /// The pages that the diffs change, in the order of the diffs.
        pages: Vec<u32>,
        /// Whether the sender sends this home no more diffs for the current barrier, lock call or free.
        last: bool,
    },
    /// Sent by a home: all diffs with [`Purpose::Lock`] from the receiver have been applied to their pages.
    DiffsDone,
    /// Sent by a home to another rank at a memory barrier: the receiver's stale copies, and the moves of homes.
    Settle {
        /// The copies of the receiver that are stale and must be invalidated.
        invalid: Vec<Run>,
        /// Pages whose home was the sender and is now another rank.
        moves: Vec<Move>,
        /// The moved pages whose new home is the receiver.
        adopts: Vec<Adopt>,
        /// Whether the sender sends the receiver nothing more at this barrier.
        last: bool,
    },
    /// Sent by a home to a rank with stale copies at a memory barrier, with the bytes of whole pages.
    Updates {
        /// The pages, in the order in which their bytes follow.
        pages: Vec<u32>,
        /// Whether the sender sends the receiver nothing more at this barrier.
        last: bool,
    },
    /// Sent to the home of a page: the sender has dropped its copy.
    Leave {
        /// The page.
        page: u32,
    },
    /// Sent to the home of a page: the sender is about to read the page from the home's memory, and becomes a sharer.
    Joined {
        /// The page.
        page: u32,
    },
    /// Sent to rank 0: the sender has arrived at a meeting. A meeting is a point in a call at which every rank waits
    /// for all others.
    Arrive {
        /// The call that the sender makes.
        what: Together,
        /// A value that must be equal on all ranks, such as a hash of the call's arguments.
        detail: u64,
        /// Number of the meeting within the call, from 1. A memory barrier has two or three meetings, any other call
        /// has one.
        meeting: u8,
        /// The ranks to which the sender sends diffs or settlements.
        targets: RankSet,
        /// The sender's values in a reduction. Empty in other calls.
        values: Vec<u64>,
    },
    /// Sent by rank 0: all ranks have arrived at the meeting, so the receiver continues its call.
    Go {
        /// The call that all ranks make.
        what: Together,
        /// Number of the meeting within the call, from 1. A memory barrier has two or three meetings, any other call
        /// has one.
        meeting: u8,
        /// Number of ranks that named the receiver among the `targets` of their [`Message::Arrive`].
        expect: u16,
        /// The result of a reduction. Empty in other calls.
        values: Vec<u64>,
    },
    /// Sent to rank 0: the sender wants the lock.
    Acquire {
        /// The lock.
        lock: u32,
    },
    /// Sent by rank 0: the receiver holds the lock now.
    Grant {
        /// The lock.
        lock: u32,
    },
    /// Sent to rank 0 before [`Message::Release`]: write notices for pages that the sender wrote.
    Wrote {
        /// The pages.
        runs: Vec<Run>,
    },
    /// Sent by rank 0 before [`Message::Grant`]: write notices of other ranks that the receiver has not received yet.
    Notice {
        /// The pages.
        runs: Vec<Run>,
    },
    /// Sent to rank 0: the sender releases the lock.
    Release {
        /// The lock.
        lock: u32,
    },
    /// Sent to all ranks: shared memory has failed.
    Failed {
        /// The reason.
        failure: Failure,
    },
}

impl Message {
    /// Returns the urgency of a message. Rank 0 needs the arrival of another rank only when rank 0 arrives as well. A
    /// home needs a [`Message::Leave`] or [`Message::Joined`] only at its next flush.
    #[must_use]
    pub fn urgency(&self) -> Urgency {
        match self {
            Message::Arrive { .. } | Message::Leave { .. } => Urgency::AtNextCall,
            Message::Joined { .. } => Urgency::AtNextLook,
            _ => Urgency::Now,
        }
    }
}
