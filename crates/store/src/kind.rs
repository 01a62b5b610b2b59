//! The stores that live programs use, as one.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use hanare_paging::PageId;
use hanare_wire::{Attachment, LinkError, Session};

use crate::remote::{Remote, Sender};
use crate::slots::{Slots, SlotsError};
use crate::{Ask, Begun, Polled, Read, Room, Saved, Store, StoreError, Take, Turn, Words, Write};

/// How long the private server may be silent: it is on this host, and only its end counts before.
const PRIVATE_SILENT: Duration = Duration::from_secs(30);

/// The store of a process.
pub enum Kind {
    /// Slots of the private server.
    Slots(Box<Slots>),
    /// Memory servers.
    Remote(Box<Remote>),
}

/// Links for a child that is about to be forked.
pub enum Links {
    /// To the private server.
    Slots(Attachment),
    /// To each memory server.
    Remote(Vec<Session>),
}

impl fmt::Debug for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Kind::Slots(_) => "Slots",
            Kind::Remote(_) => "Remote",
        })
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Links::Slots(_) => "Slots",
            Links::Remote(_) => "Remote",
        })
    }
}

impl Kind {
    /// Whether a sender writes the pages that wait in frames, so that their writes end later.
    #[must_use]
    pub fn writes_later(&self) -> bool {
        matches!(self, Kind::Remote(_))
    }

    /// How long it may be silent.
    #[must_use]
    pub fn silent(&self) -> Duration {
        match self {
            Kind::Slots(_) => PRIVATE_SILENT,
            Kind::Remote(remote) => remote.silent(),
        }
    }

    /// Whether nothing is asked for, on its way or waiting to be sent.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        match self {
            Kind::Slots(_) => true,
            Kind::Remote(remote) => remote.is_idle(),
        }
    }

    /// Whether a read is under way.
    #[must_use]
    pub fn is_reading(&self) -> bool {
        match self {
            Kind::Slots(_) => false,
            Kind::Remote(remote) => remote.is_reading(),
        }
    }

    /// How many of these held pages of one unit each, from the first on, one read reaches.
    #[must_use]
    pub fn reach(&self, first: PageId, count: u32) -> u32 {
        match self {
            Kind::Slots(_) => count,
            Kind::Remote(remote) => remote.reach(first, count),
        }
    }

    /// The link on which a page is expected, for a thread that sleeps until it comes. Bytes that were received already
    /// do not wake it, so this is for who has just found nothing to receive.
    #[must_use]
    pub fn arriving(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Kind::Slots(_) => None,
            Kind::Remote(remote) => remote.arriving(),
        }
    }

    // ---- fork -------------------------------------------------------------------------------------------------------

    /// Links for a child that is about to be forked, with the same pages behind them; nothing may be under way. Both
    /// processes only read these pages' slots from then on, and write to new ones.
    ///
    /// # Errors
    /// A server does not share.
    pub fn clone_links(&self) -> Result<Links, LinkError> {
        match self {
            Kind::Slots(slots) => slots.share().map(Links::Slots),
            Kind::Remote(remote) => remote.share().map(Links::Remote),
        }
    }

    /// In the child: the same places on the child's own links, with the senders to be run. Links of another kind are no
    /// links to this store: `None`.
    ///
    /// # Errors
    /// The slots cannot be mapped.
    pub fn on(self, links: Links) -> Result<Option<(Kind, Vec<Sender>)>, SlotsError> {
        Ok(match (self, links) {
            (Kind::Slots(slots), Links::Slots(link)) => Some((Kind::Slots(Box::new(slots.again(link)?)), Vec::new())),
            (Kind::Remote(remote), Links::Remote(sessions)) => {
                let (remote, senders) = remote.again(sessions);
                Some((Kind::Remote(Box::new(remote)), senders))
            }
            _ => None,
        })
    }

    /// Takes out the private server's door, which opens further links to it; nothing else is kept.
    #[must_use]
    pub fn into_door(self) -> Option<OwnedFd> {
        match self {
            Kind::Slots(slots) => Some(slots.into_door()),
            Kind::Remote(_) => None,
        }
    }
}

impl Store for Kind {
    fn read(&self, read: &Read, take: &mut dyn Take) -> Result<Begun, StoreError<'_>> {
        match self {
            Kind::Slots(slots) => slots.read(read, take),
            Kind::Remote(remote) => remote.read(read, take),
        }
    }

    unsafe fn write(&self, write: &Write, fill: &mut dyn FnMut(*mut u8)) -> Result<Saved, StoreError<'_>> {
        // SAFETY: passed on from the caller.
        unsafe {
            match self {
                Kind::Slots(slots) => slots.write(write, fill),
                Kind::Remote(remote) => remote.write(write, fill),
            }
        }
    }

    fn release(&self, unit: u32, count: u32) {
        match self {
            Kind::Slots(slots) => slots.release(unit, count),
            Kind::Remote(remote) => remote.release(unit, count),
        }
    }

    fn room(&self, ask: Ask) -> Room {
        match self {
            Kind::Slots(slots) => slots.room(ask),
            Kind::Remote(remote) => remote.room(ask),
        }
    }

    fn poll(&self, turn: Turn, take: &mut dyn Take) -> Result<Polled, StoreError<'_>> {
        match self {
            Kind::Slots(slots) => slots.poll(turn, take),
            Kind::Remote(remote) => remote.poll(turn, take),
        }
    }

    fn tell(&self, what: Words, out: &mut dyn fmt::Write) -> fmt::Result {
        match self {
            Kind::Slots(slots) => slots.tell(what, out),
            Kind::Remote(remote) => remote.tell(what, out),
        }
    }
}
