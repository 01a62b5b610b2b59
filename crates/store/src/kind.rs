//! An enum of the stores that running programs use. Tests have another store, `faulty`.

use std::ffi::CStr;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use hanare_paging::{FrameId, PageId};
use hanare_wire::{Attachment, LinkError, Session, patience};

use crate::redundant::{Copyist, Progress, Rebuilder, Redundant};
use crate::remote::{Notice, Remote, Sender};
use crate::slots::Slots;
use crate::{Ask, Begun, OpenError, Polled, Read, Room, Saved, Store, StoreError, Take, Turn, Words, Write};

/// The silence after which a private server counts as lost. The server is on this host, so the end of its connection
/// normally shows the loss earlier.
const PRIVATE_SILENT: Duration = Duration::from_secs(30);

/// The store of one process.
pub enum Kind {
    /// The store is in slots of a private server.
    Slots(Box<Slots>),
    /// The store is on memory servers. Each page has one copy.
    Remote(Box<Remote>),
    /// The store is on memory servers, and survives the loss of some of them.
    Redundant(Box<Redundant>),
}

/// The work of one of the threads that a store needs ([`Kind::work`]).
#[derive(Debug)]
pub enum Worker {
    /// Sends pages to a server.
    Sender(Box<Sender>),
    /// Sends parts of pages to a server of a redundant store.
    Copyist(Box<Copyist>),
    /// Rebuilds missing parts.
    Rebuilder(Rebuilder),
}

impl Worker {
    /// Returns the name for the worker's thread.
    #[must_use]
    pub fn name(&self) -> &'static CStr {
        match self {
            Worker::Sender(_) | Worker::Copyist(_) => c"hanare-writer",
            Worker::Rebuilder(_) => c"hanare-rebuilder",
        }
    }

    pub(crate) fn of_redundant(copyists: Vec<Copyist>) -> Vec<Self> {
        let copyists = copyists.into_iter().map(|copyist| Worker::Copyist(Box::new(copyist)));
        copyists.chain([Worker::Rebuilder(Rebuilder::default())]).collect()
    }

    pub(crate) fn of_remote(senders: Vec<Sender>) -> Vec<Self> {
        senders.into_iter().map(|sender| Worker::Sender(Box::new(sender))).collect()
    }
}

/// The links of a child process that is about to be forked.
pub enum Links {
    /// The link to the private server.
    Slots(Attachment),
    /// The sessions with the memory servers, one for each server.
    Remote(Vec<Session>),
    /// The sessions with the servers of a redundant store. `None` for a lost server.
    Redundant(Vec<Option<Session>>),
}

impl fmt::Debug for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Kind::Slots(_) => "Slots",
            Kind::Remote(_) => "Remote",
            Kind::Redundant(_) => "Redundant",
        })
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Links::Slots(_) => "Slots",
            Links::Remote(_) => "Remote",
            Links::Redundant(_) => "Redundant",
        })
    }
}

impl Kind {
    /// Checks whether writes can end later. They do if a sender writes the pages from their frames.
    #[must_use]
    pub fn writes_later(&self) -> bool {
        matches!(self, Kind::Remote(_) | Kind::Redundant(_))
    }

    /// Makes a store on memory servers wait for a server that is lost, until the server is back with the same session. The
    /// caller of [`Remote::send`] asks for the lines that say so ([`Remote::notice`]).
    #[must_use]
    pub fn waiting(self) -> Self {
        match self {
            Kind::Slots(slots) => Kind::Slots(slots),
            Kind::Remote(remote) => Kind::Remote(Box::new(remote.waiting())),
            // It goes on without the server.
            Kind::Redundant(redundant) => Kind::Redundant(redundant),
        }
    }

    /// Checks whether the store waits for a lost server.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        match self {
            Kind::Slots(_) | Kind::Redundant(_) => false,
            Kind::Remote(remote) => remote.is_waiting(),
        }
    }

    /// Returns how often the store began or ended to wait for a lost server.
    #[must_use]
    pub fn turns(&self) -> u32 {
        match self {
            Kind::Slots(_) | Kind::Redundant(_) => 0,
            Kind::Remote(remote) => remote.turns(),
        }
    }

    /// Returns the silence after which a server counts as lost, under the present load of this machine.
    #[must_use]
    pub fn silent(&self) -> Duration {
        patience(match self {
            Kind::Slots(_) => PRIVATE_SILENT,
            Kind::Remote(remote) => remote.silent(),
            Kind::Redundant(redundant) => redundant.silent(),
        })
    }

    /// Checks whether a read is in progress.
    #[must_use]
    pub fn is_reading(&self) -> bool {
        match self {
            Kind::Slots(_) => false,
            Kind::Remote(remote) => remote.is_reading(),
            Kind::Redundant(redundant) => redundant.is_reading(),
        }
    }

    /// Returns how many of these held base pages, from the first on, one read can fetch.
    #[must_use]
    pub fn reach(&self, first: PageId, count: u32) -> u32 {
        match self {
            Kind::Slots(_) => count,
            Kind::Remote(remote) => remote.reach(first, count),
            Kind::Redundant(redundant) => redundant.reach(first, count),
        }
    }

    /// Returns the links on which pages are expected. A thread can sleep on these links until a page arrives. It may sleep
    /// only after a poll has found nothing, because bytes that were already received do not make a link readable.
    pub fn arriving(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (remote, redundant) = match self {
            Kind::Slots(_) => (None, None),
            Kind::Remote(remote) => (Some(remote), None),
            Kind::Redundant(redundant) => (None, Some(redundant)),
        };
        let remote = remote.into_iter().flat_map(|remote| remote.arriving());
        remote.chain(redundant.into_iter().flat_map(|redundant| redundant.arriving()))
    }

    /// Checks whether a thread that waits for a page should sleep at once, and not poll first. Each page needs the answers
    /// of several servers then.
    #[must_use]
    pub fn is_split(&self) -> bool {
        matches!(self, Kind::Redundant(redundant) if redundant.is_split())
    }

    /// Does a part of a worker's work. Calls `ended` for each write that has ended, with false if the store held the same
    /// bytes before. `take` receives the pages that arrive
    /// meanwhile. Sleeps if there is nothing to do. Returns the number of messages sent. The caller repeats this call in a
    /// thread of the worker's own.
    ///
    /// # Errors
    /// The store cannot go on, or the worker is one of another kind of store.
    pub fn work(
        &self,
        worker: &mut Worker,
        ended: &mut dyn FnMut(PageId, FrameId, bool),
        take: &mut dyn Take,
    ) -> Result<u64, StoreError<'_>> {
        match (self, worker) {
            (Kind::Remote(remote), Worker::Sender(sender)) => remote.send(sender, ended),
            (Kind::Redundant(redundant), Worker::Copyist(copyist)) => {
                redundant.send(copyist, &mut |page, frame| ended(page, frame, true))
            }
            (Kind::Redundant(redundant), Worker::Rebuilder(rebuilder)) => {
                redundant.rebuild(rebuilder, take).map(|()| 0)
            }
            _ => Err(StoreError::OtherWorker),
        }
    }

    /// Returns what the user is to learn about the worker's server since the last call, if the store waits for lost
    /// servers.
    #[must_use]
    pub fn notice(&self, worker: &mut Worker) -> Option<Notice<'_>> {
        match (self, worker) {
            (Kind::Remote(remote), Worker::Sender(sender)) => remote.notice(sender),
            _ => None,
        }
    }

    /// Checks whether the store has news for the user ([`Words::News`]).
    #[must_use]
    pub fn has_news(&self) -> bool {
        matches!(self, Kind::Redundant(redundant) if redundant.has_news())
    }

    /// Returns how far the rebuilding of missing parts is. All is 0 for a store without redundancy.
    #[must_use]
    pub fn progress(&self) -> Progress {
        match self {
            Kind::Slots(_) | Kind::Remote(_) => Progress::default(),
            Kind::Redundant(redundant) => redundant.progress(),
        }
    }

    // ---- fork -------------------------------------------------------------------------------------------------------

    /// Opens links to the same pages for a child that is about to be forked. No read or write may be in progress. From
    /// then on, both processes only read the slots of these pages. Each process writes to new slots.
    ///
    /// # Errors
    /// A server cannot clone its session.
    pub fn clone_links(&self) -> Result<Links, LinkError> {
        match self {
            Kind::Slots(slots) => slots.share().map(Links::Slots),
            Kind::Remote(remote) => remote.share(None).map(Links::Remote),
            Kind::Redundant(redundant) => redundant.share().map(Links::Redundant),
        }
    }

    /// Makes the child's store, with the same pages, on the child's own links. Returns the store with its workers,
    /// which the caller must run. Returns `None` if the links do not fit this kind of store.
    ///
    /// # Errors
    /// The slots cannot be mapped, or the child can have no key of its own.
    pub fn on(self, links: Links) -> Result<Option<(Kind, Vec<Worker>)>, OpenError> {
        Ok(match (self, links) {
            (Kind::Slots(slots), Links::Slots(link)) => Some((Kind::Slots(Box::new(slots.again(link)?)), Vec::new())),
            (Kind::Remote(remote), Links::Remote(sessions)) => {
                let (remote, senders) = remote.again(sessions)?;
                Some((Kind::Remote(Box::new(remote)), Worker::of_remote(senders)))
            }
            (Kind::Redundant(redundant), Links::Redundant(sessions)) => {
                let (redundant, copyists) = redundant.again(sessions)?;
                Some((Kind::Redundant(Box::new(redundant)), Worker::of_redundant(copyists)))
            }
            _ => None,
        })
    }

    /// Returns the door, the descriptor that opens further links to the private server, and drops the rest of the
    /// store. Returns `None` if the store is on memory servers.
    #[must_use]
    pub fn into_door(self) -> Option<OwnedFd> {
        match self {
            Kind::Slots(slots) => Some(slots.into_door()),
            Kind::Remote(_) | Kind::Redundant(_) => None,
        }
    }
}

impl Store for Kind {
    fn read(&self, read: &Read, take: &mut dyn Take) -> Result<Begun, StoreError<'_>> {
        match self {
            Kind::Slots(slots) => slots.read(read, take),
            Kind::Remote(remote) => remote.read(read, take),
            Kind::Redundant(redundant) => redundant.read(read, take),
        }
    }

    unsafe fn write(&self, write: &Write, fill: &mut dyn FnMut(*mut u8)) -> Result<Saved, StoreError<'_>> {
        // SAFETY: the caller keeps the promises of `Store::write`.
        unsafe {
            match self {
                Kind::Slots(slots) => slots.write(write, fill),
                Kind::Remote(remote) => remote.write(write, fill),
                Kind::Redundant(redundant) => redundant.write(write, fill),
            }
        }
    }

    fn release(&self, unit: u32, count: u32) {
        match self {
            Kind::Slots(slots) => slots.release(unit, count),
            Kind::Remote(remote) => remote.release(unit, count),
            Kind::Redundant(redundant) => redundant.release(unit, count),
        }
    }

    fn room(&self, ask: Ask) -> Room {
        match self {
            Kind::Slots(slots) => slots.room(ask),
            Kind::Remote(remote) => remote.room(ask),
            Kind::Redundant(redundant) => redundant.room(ask),
        }
    }

    fn poll(&self, turn: Turn, take: &mut dyn Take) -> Result<Polled, StoreError<'_>> {
        match self {
            Kind::Slots(slots) => slots.poll(turn, take),
            Kind::Remote(remote) => remote.poll(turn, take),
            Kind::Redundant(redundant) => redundant.poll(turn, take),
        }
    }

    fn tell(&self, what: Words, out: &mut dyn fmt::Write) -> fmt::Result {
        match self {
            Kind::Slots(slots) => slots.tell(what, out),
            Kind::Remote(remote) => remote.tell(what, out),
            Kind::Redundant(redundant) => redundant.tell(what, out),
        }
    }
}
