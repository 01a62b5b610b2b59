//! Messages between ranks. The bytes of pages and diffs travel behind the message; only the driver handles them.

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
    /// The end of sharing.
    Shutdown = 5,
}

impl Together {
    /// The call with this number.
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
    /// A memory barrier. The home counts the ranks whose diffs are complete.
    Barrier = 1,
    /// A lock. The home acknowledges.
    Lock = 2,
    /// The writer has no room for its twin. Before anything relies on the diff, a message for another purpose follows.
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

/// A page's state for its new home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Adopt {
    /// The page.
    pub page: u32,
    /// The other ranks with a copy.
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
        /// The rank that came later.
        rank: Rank,
        /// Its call.
        called: Together,
        /// The rank that came first.
        other: Rank,
        /// That rank's call.
        other_called: Together,
    },
    /// A rank sent an invalid message.
    #[error(
        "rank {rank} broke the protocol between ranks ({what}); run the same hanare release and program on every rank"
    )]
    Violation {
        /// The rank.
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
    /// A message for the home of a page, sent to another rank.
    NotHome = 2,
    /// An answer that was not requested, or that came twice.
    Unasked = 3,
    /// A rank, lock or number that does not exist.
    Number = 4,
    /// Bytes that are not a message.
    Garbage = 5,
}

impl Violation {
    /// The error with this number.
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

/// The urgency of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// At once.
    Now,
    /// When its receiver makes its next call; at once if it waits in one.
    AtNextCall,
    /// When its receiver next checks for messages, for any reason.
    AtNextLook,
}

/// A message between two ranks. Those of one pair arrive in the order in which they were sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// To the home: `reader` joins the sharers and wants the page.
    PageRequest {
        /// The page.
        page: u32,
        /// The reader. It differs from the sender if an old home forwards the request.
        reader: Rank,
    },
    /// From the home, with the page.
    PageReply {
        /// The page.
        page: u32,
    },
    /// To the rank that records first accesses: asks for the home of a page.
    HomeRequest {
        /// The page.
        page: u32,
    },
    /// The answer.
    HomeReply {
        /// The page.
        page: u32,
        /// Its home: the asking rank, if no rank asked before.
        home: Rank,
    },
    /// To the home, with diffs.
    Diffs {
        /// Their purpose.
        purpose: Purpose,
        /// The pages, in the order of their diffs.
        pages: Vec<u32>,
        /// Whether these are the sender's last for this purpose.
        last: bool,
    },
    /// From the home: the last diffs of a [`Purpose::Lock`] are in their pages.
    DiffsDone,
    /// From a home at a memory barrier, to one rank.
    Settle {
        /// Copies that are stale.
        invalid: Vec<Run>,
        /// Pages of the sender that have a new home.
        moves: Vec<Move>,
        /// The moved pages whose new home is the receiver.
        adopts: Vec<Adopt>,
        /// Whether the sender sends nothing more at this barrier.
        last: bool,
    },
    /// From a home at a memory barrier, with whole pages.
    Updates {
        /// The pages, in the order of their bytes.
        pages: Vec<u32>,
        /// Whether the sender sends nothing more at this barrier.
        last: bool,
    },
    /// To the home: the sender has dropped its copy.
    Leave {
        /// The page.
        page: u32,
    },
    /// To the home: the sender is about to read an offered page, and becomes one of its sharers.
    Joined {
        /// The page.
        page: u32,
    },
    /// To rank 0: the sender has arrived at a meeting.
    Arrive {
        /// The call.
        what: Together,
        /// A value that must be equal on all ranks.
        detail: u64,
        /// Number of the meeting within its barrier, from 1.
        meeting: u8,
        /// The ranks to which the sender sends diffs or settlements.
        targets: RankSet,
        /// Its values in a reduction.
        values: Vec<u64>,
    },
    /// From rank 0: all ranks have arrived.
    Go {
        /// The call.
        what: Together,
        /// Number of the meeting.
        meeting: u8,
        /// Number of ranks that named the receiver among their targets.
        expect: u16,
        /// The reduction's result.
        values: Vec<u64>,
    },
    /// To rank 0: the sender wants the lock.
    Acquire {
        /// The lock.
        lock: u32,
    },
    /// From rank 0: the receiver has the lock.
    Grant {
        /// The lock.
        lock: u32,
    },
    /// To rank 0, before [`Message::Release`]: write notices of the sender.
    Wrote {
        /// The pages.
        runs: Vec<Run>,
    },
    /// From rank 0, before [`Message::Grant`]: write notices of others that the receiver has not seen.
    Notice {
        /// The pages.
        runs: Vec<Run>,
    },
    /// To rank 0: the sender frees the lock.
    Release {
        /// The lock.
        lock: u32,
    },
    /// To all ranks: sharing has failed.
    Failed {
        /// The reason.
        failure: Failure,
    },
}

impl Message {
    /// The urgency of a message. An arrival at rank 0 is not urgent before rank 0 arrives, too. A home needs to know
    /// which ranks have or leave a copy only at its next flush.
    #[must_use]
    pub fn urgency(&self) -> Urgency {
        match self {
            Message::Arrive { .. } | Message::Leave { .. } => Urgency::AtNextCall,
            Message::Joined { .. } => Urgency::AtNextLook,
            _ => Urgency::Now,
        }
    }
}
