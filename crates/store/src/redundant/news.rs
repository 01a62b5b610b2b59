//! What happened to the servers, for messages and for counters.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::*};

use hanare_settings::HumanSize;
use hanare_wire::LinkError;

use super::Redundant;
use crate::{Ask, Store, StoreError};

/// How far the rebuilding is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// The number of losses of servers so far.
    pub losses: u64,
    /// An upper bound of the bytes of pages of which a part is missing.
    pub behind_bytes: u64,
    /// The bytes of parts that were rebuilt so far.
    pub rebuilt_bytes: u64,
    /// The time in which pages lacked parts so far, in nanoseconds.
    pub degraded_ns: u64,
}

/// What is to be told.
pub(super) struct News {
    /// For each member: why it was lost ([`Why::ALL`], from 1 on), if this is still to be told. 0 if not.
    lost: Vec<AtomicU8>,
    /// Whether it is to be told that every page has all its parts again.
    is_restored: AtomicBool,
    /// Whether the user must still hear that pages lack parts, because too few servers have room.
    is_short: AtomicBool,
    /// Whether servers had too little room since every page had all its parts.
    has_been_short: AtomicBool,
    /// Whether too few parts of a page are left, so that the run ends.
    pub(super) is_lost: AtomicBool,
    /// Whether pages have lacked parts since a server was lost or was short of room.
    is_behind: AtomicBool,
    /// Whether a server was lost since every page had all its parts.
    has_lost: AtomicBool,
    losses: AtomicU32,
    pub(super) degraded_ns: AtomicU64,
}

/// Why a server counts as lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    Closed,
    Silent,
    Invalid,
    Link,
    /// The server gave a page back wrong.
    Wrong,
    /// The server did not give a page back that it had taken.
    Kept,
    /// The server could not be reached when the program started.
    Absent,
    /// Another user's server is at the address of the lost one.
    Foreign,
}

impl Why {
    /// All reasons, in their order.
    const ALL: [Why; 8] =
        [Why::Closed, Why::Silent, Why::Invalid, Why::Link, Why::Wrong, Why::Kept, Why::Absent, Why::Foreign];

    /// Returns why a server is lost whose store returned this error.
    pub(super) fn of(error: &StoreError<'_>) -> Self {
        match error {
            StoreError::Lost { source: LinkError::Closed, .. } => Why::Closed,
            StoreError::Lost { source: LinkError::Silent { .. } | LinkError::TimedOut, .. } => Why::Silent,
            StoreError::Lost { source: LinkError::Garbage { .. } | LinkError::Version { .. }, .. } => Why::Invalid,
            StoreError::Damaged { .. } => Why::Wrong,
            _ => Why::Link,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Why::Closed => "it closed the connection: it, or its machine, has ended",
            Why::Silent => "it fell silent",
            Why::Invalid => "it sent invalid data",
            Why::Link => "its link failed",
            Why::Wrong => "it gave a page back wrong, and is not used again",
            Why::Kept => "it did not give a page back that it had, and is not used again",
            Why::Absent => "it could not be reached at the start",
            Why::Foreign => "another user's server is at its address now, and is not used",
        }
    }
}

impl News {
    pub(super) fn new(members: usize) -> Self {
        Self {
            lost: (0..members).map(|_| AtomicU8::new(0)).collect(),
            is_restored: AtomicBool::new(false),
            is_short: AtomicBool::new(false),
            has_been_short: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            is_behind: AtomicBool::new(false),
            has_lost: AtomicBool::new(false),
            losses: AtomicU32::new(0),
            degraded_ns: AtomicU64::new(0),
        }
    }

    /// Takes note of the loss of a member.
    pub(super) fn lost(&self, member: usize, why: Why) {
        self.losses.fetch_add(1, Relaxed);
        self.is_restored.store(false, Relaxed);
        self.has_lost.store(true, Relaxed);
        self.lost[member].store(why as u8 + 1, Release);
    }

    /// Takes note that pages lack parts, because too few servers have room. The user hears this once, until every page has
    /// all its parts again.
    pub(super) fn short(&self) {
        if !self.has_been_short.swap(true, Relaxed) {
            self.is_behind.store(true, Relaxed);
            self.is_short.store(true, Release);
        }
    }

    /// Takes note that another user's server is at the address of a lost member. Returns false if other news of the member
    /// comes first.
    pub(super) fn is_foreign(&self, member: usize) -> bool {
        self.lost[member].compare_exchange(0, Why::Foreign as u8 + 1, AcqRel, Relaxed).is_ok()
    }

    /// Takes note of whether every page has all its parts.
    pub(super) fn is_whole(&self, is_whole: bool) {
        if !is_whole {
            self.is_behind.store(self.has_lost.load(Relaxed) || self.has_been_short.load(Relaxed), Relaxed);
        } else if self.is_behind.swap(false, Relaxed) {
            self.has_lost.store(false, Relaxed);
            self.has_been_short.store(false, Relaxed);
            self.is_restored.store(true, Release);
        }
    }

    fn any(&self) -> bool {
        let flags = [&self.is_restored, &self.is_short];
        flags.iter().any(|flag| flag.load(Acquire)) || self.lost.iter().any(|reason| reason.load(Acquire) != 0)
    }
}

impl Redundant {
    /// Writes the room of each server, and how the user can get more.
    pub(super) fn tell_no_room(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let parts = self.measures.redundancy.parts();
        write!(out, "each page takes {parts} servers with room, and ")?;
        for (index, member) in self.members.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            match member.there().map(|remote| remote.room(Ask::Known).capacity_bytes) {
                Some(bytes) => write!(out, "{comma}{} has no room beyond {}", member.named.name, HumanSize(bytes))?,
                None => write!(out, "{comma}{} is lost", member.named.name)?,
            }
        }
        out.write_str(
            "; name a further --server, or give one more --memory, a --spill directory or a larger --client-quota",
        )
    }

    /// Takes note of the servers that could not be reached at the start.
    pub(super) fn note_absent(&self) {
        let absent = self.members.iter().enumerate().filter(|(_, member)| member.there().is_none());
        absent.for_each(|(index, _)| self.news.lost(index, Why::Absent));
    }

    /// Checks whether there is something to tell the user ([`Words::News`](crate::Words::News)).
    pub(crate) fn has_news(&self) -> bool {
        self.news.any()
    }

    /// Returns how far the rebuilding is.
    pub(crate) fn progress(&self) -> Progress {
        let machine = self.machine.lock();
        let (unit_bytes, part_bytes) = (self.measures.shape.unit_bytes as u64, self.measures.part_bytes as u64);
        Progress {
            losses: self.news.losses.load(Relaxed).into(),
            behind_bytes: machine.units_behind().saturating_mul(unit_bytes),
            rebuilt_bytes: machine.rebuilt_units().saturating_mul(part_bytes),
            degraded_ns: self.news.degraded_ns.load(Relaxed),
        }
    }

    /// Writes one piece of news, and forgets it.
    pub(super) fn tell_news(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let mut lost = self.news.lost.iter().zip(&self.members);
        let told = lost.find_map(|(reason, member)| {
            let reason = usize::from(reason.swap(0, AcqRel));
            Why::ALL.get(reason.checked_sub(1)?).map(|why| (*why, member))
        });
        if let Some((why, member)) = told {
            write!(out, "lost {} ({})", member.named.name, why.words())?;
            if self.news.is_lost.load(Acquire) {
                return Ok(());
            }
            out.write_str("; no page is lost, ")?;
            let there = self.members.iter().filter(|member| member.is_there.load(Relaxed)).count();
            let wanted = self.measures.redundancy.parts();
            return if there < usize::from(wanted) {
                let until = if member.has_failed.load(Acquire) { "" } else { " until it is back" };
                write!(out, "but pages stay without a part{until}: {wanted} servers are needed for that")
            } else if why == Why::Absent {
                out.write_str("and the other servers hold all parts")
            } else {
                out.write_str("and what it held is rebuilt on the other servers, as far as they have room")
            };
        }
        if self.news.is_short.swap(false, AcqRel) {
            out.write_str("pages stay without a part: ")?;
            return self.tell_no_room(out);
        }
        if self.news.is_restored.swap(false, AcqRel) {
            out.write_str("every page has all its parts again")?;
        }
        Ok(())
    }
}
