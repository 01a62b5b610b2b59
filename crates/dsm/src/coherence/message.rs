//! What ranks say to each other. Bytes of pages and diffs travel behind the message and are the driver's business.

use super::units::{Rank, RankSet, Run};

/// What all ranks do together.
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
    /// The one with this number.
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

/// Why diffs go home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Purpose {
    /// A memory barrier; the home counts who is through.
    Barrier = 1,
    /// A lock; the home acknowledges.
    Lock = 2,
    /// The writer has no room for its twin; a message for one of the others follows before anybody relies on it.
    Early = 3,
}

/// A page's new home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The page.
    pub page: u32,
    /// Its home from now on.
    pub home: Rank,
}

/// What a new home must know of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Adopt {
    /// The page.
    pub page: u32,
    /// Who else has a copy.
    pub sharers: RankSet,
}

/// Why the ranks cannot go on together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// Ranks called different things.
    #[error(
        "rank {rank} called {called} while rank {other} called {other_called}; every rank must make the same calls \
             with the same arguments in the same order"
    )]
    Mismatch {
        /// Who came later.
        rank: Rank,
        /// What it called.
        called: Together,
        /// Who came first.
        other: Rank,
        /// What that one called.
        other_called: Together,
    },
    /// A rank sent what it cannot have meant.
    #[error(
        "rank {rank} broke the protocol between ranks ({what}); run the same hanare release and program on every rank"
    )]
    Violation {
        /// Who.
        rank: Rank,
        /// What was wrong.
        what: Violation,
    },
}

/// What was wrong with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Violation {
    /// A page outside every allocation.
    Page = 1,
    /// Meant for the home of a page, and sent to another rank.
    NotHome = 2,
    /// Nobody waits for it, or it comes a second time.
    Unasked = 3,
    /// A rank, lock or number that does not exist.
    Number = 4,
    /// Not a message at all.
    Garbage = 5,
}

impl Violation {
    /// The one with this number.
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

/// How soon a message is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// At once.
    Now,
    /// When its receiver makes a call by itself; at once where it waits in one.
    AtNextCall,
    /// When its receiver looks for whatever reason.
    AtNextLook,
}

/// A message between two ranks. Those of one pair arrive in the order in which they were sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// To the home: `reader` joins the sharers and wants the page.
    PageRequest {
        /// The page.
        page: u32,
        /// Who wants it; not the sender when an old home passes the request on.
        reader: Rank,
    },
    /// From the home, with the page.
    PageReply {
        /// The page.
        page: u32,
    },
    /// To the rank that keeps account of first touches: who is home?
    HomeRequest {
        /// The page.
        page: u32,
    },
    /// The answer.
    HomeReply {
        /// The page.
        page: u32,
        /// Its home: the asker, when nobody asked before.
        home: Rank,
    },
    /// To the home, with diffs.
    Diffs {
        /// Why.
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
        /// Copies that are no longer true.
        invalid: Vec<Run>,
        /// Pages of the sender that have a new home.
        moves: Vec<Move>,
        /// Those whose new home is the receiver.
        adopts: Vec<Adopt>,
        /// Whether nothing else comes from the sender at this barrier.
        last: bool,
    },
    /// From a home at a memory barrier, with whole pages.
    Updates {
        /// The pages, in the order of their bytes.
        pages: Vec<u32>,
        /// Whether nothing else comes from the sender at this barrier.
        last: bool,
    },
    /// To the home: the sender has dropped its copy.
    Leave {
        /// The page.
        page: u32,
    },
    /// To the home: the sender is about to read a page that is offered, and is among its sharers.
    Joined {
        /// The page.
        page: u32,
    },
    /// To rank 0: the sender has come so far.
    Arrive {
        /// In what.
        what: Together,
        /// What must be equal on all ranks.
        detail: u64,
        /// How many meetings of the same barrier came before, from 1.
        meeting: u8,
        /// The ranks that get diffs, or settlements, from the sender.
        targets: RankSet,
        /// Its values in a reduction.
        values: Vec<u64>,
    },
    /// From rank 0: all have come so far.
    Go {
        /// In what.
        what: Together,
        /// Which meeting.
        meeting: u8,
        /// How many ranks named the receiver among their targets.
        expect: u16,
        /// The reduction's result.
        values: Vec<u64>,
    },
    /// To rank 0: the lock is wanted.
    Acquire {
        /// The lock.
        lock: u32,
    },
    /// From rank 0: the lock is the receiver's.
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
    /// To rank 0: the lock is free.
    Release {
        /// The lock.
        lock: u32,
    },
    /// To everyone: it is over.
    Failed {
        /// Why.
        failure: Failure,
    },
}

impl Message {
    /// How soon its receiver needs it: nobody goes on from a meeting before rank 0 has arrived as well, and who has or leaves a
    /// copy is of interest at the next flush.
    #[must_use]
    pub fn urgency(&self) -> Urgency {
        match self {
            Message::Arrive { .. } | Message::Leave { .. } => Urgency::AtNextCall,
            Message::Joined { .. } => Urgency::AtNextLook,
            _ => Urgency::Now,
        }
    }
}
