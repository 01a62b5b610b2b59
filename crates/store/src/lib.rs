//! Where evicted pages are: in slots that this process copies itself ([`Slots`]), or on memory servers behind links
//! ([`Remote`]).
//!
//! The store moves bytes and records where each page is held. It decides nothing about pages and does not know its
//! user. It never calls its user on its own: a thread polls it ([`Store::poll`]) and receives the pages that have
//! arrived. A sender ([`Remote::send`]) reports which writes have ended. Only this crate places pages on servers,
//! tracks their room and silence, and starts the private server of a run.
//!
//! [`Store::read`], [`Store::write`], [`Store::release`] and [`Store::poll`] with [`Turn::Receive`] are part of the
//! fault path. They allocate nothing and take no lock that the program could hold.

mod error;
pub mod faulty;
mod held;
mod kind;
mod open;
mod placement;
pub mod private;
mod remote;
mod slots;

use std::fmt;

use hanare_paging::{FrameId, PageId};
use hanare_wire::Wait;

pub use error::{EXIT_FULL, EXIT_LOST, StoreError};
pub use kind::{Kind, Links};
pub use open::{OpenError, Target};
pub use remote::{EXTENT_BYTES, Opened, Remote, Sender, Shape};
pub use slots::{Slots, SlotsError};

/// Where evicted pages are.
pub trait Store: Send + Sync {
    /// Reads a held range, or begins to. `take` receives the bytes before this returns or in a later poll ([`Begun`]).
    ///
    /// # Errors
    /// The store is lost, or sent invalid data.
    fn read(&self, read: &Read, take: &mut dyn Take) -> Result<Begun, StoreError<'_>>;

    /// Writes a page, or begins to. `fill` writes the page's bytes to the address that it receives.
    ///
    /// # Errors
    /// There is no room, or the store is lost.
    ///
    /// # Safety
    /// If [`Write::at`] is given, the page's bytes are there and do not change until the write has ended.
    /// [`Write::spare`] has room for a slot, and no other code uses it meanwhile.
    unsafe fn write(&self, write: &Write, fill: &mut dyn FnMut(*mut u8)) -> Result<Saved, StoreError<'_>>;

    /// Drops units that are no longer needed. Releases keep their order relative to writes, so the caller must not
    /// write the same unit in between. Never waits.
    fn release(&self, unit: u32, count: u32);

    /// How much the store has room for.
    fn room(&self, ask: Ask) -> Room;

    /// Passes arrived pages to `take`, or maintains the links.
    ///
    /// # Errors
    /// The store is lost or silent, or sent invalid data.
    fn poll(&self, turn: Turn, take: &mut dyn Take) -> Result<Polled, StoreError<'_>>;

    /// Writes a message for the user.
    ///
    /// # Errors
    /// The errors of `out`.
    fn tell(&self, what: Words, out: &mut dyn fmt::Write) -> fmt::Result;
}

/// A range of pages to read. The store passes `frame` and `writable` on to [`Take`] and does not use them.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// First page.
    pub page: PageId,
    /// Number of pages.
    pub count: u32,
    /// Bytes of all pages.
    pub bytes: u32,
    /// The frame that receives it; `None` if it goes into view.
    pub frame: Option<FrameId>,
    /// How many of its pages come into view writable, counted from the first.
    pub writable: u32,
}

/// Receives what was read.
pub trait Take {
    /// Memory for all bytes of a read, which no other code accesses. `None` if [`Take::part`] must receive them.
    fn place(&mut self, read: &Read) -> Option<*mut u8>;

    /// All bytes of the read are in the memory that [`Take::place`] returned.
    fn placed(&mut self, read: &Read);

    /// Receives a part of a read that has no place. The part begins `at` bytes after the read's first byte.
    ///
    /// # Safety
    /// The memory at `from` holds `len` bytes, which do not change during the call.
    unsafe fn part(&mut self, read: &Read, at: usize, from: *const u8, len: usize);

    /// The read is complete. The store holds no lock during this call.
    fn arrived(&mut self, read: &Read);

    /// Memory for a slot or for all bytes of any read. No other code uses it.
    fn spare(&mut self) -> *mut u8;
}

/// The progress of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begun {
    /// It is complete.
    Done,
    /// A later poll completes it.
    Later,
    /// Too many reads are in progress. Poll, and try again.
    Full,
}

/// A page to write.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// The page.
    pub page: PageId,
    /// Its length in bytes.
    pub bytes: u32,
    /// Its frame, if it waits in a frame.
    pub frame: Option<FrameId>,
    /// Address of its bytes, if they are at one address.
    pub at: Option<*const u8>,
    /// Whether the bytes may equal those already held. They are then compared where that costs no request.
    pub may_be_same: bool,
    /// Room for a slot.
    pub spare: *mut u8,
}

/// The progress of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Saved {
    /// The store has the bytes.
    Done,
    /// The store already had the same bytes.
    Same,
    /// A sender reports its end.
    Later,
}

/// Whether to answer from what is known or to ask the servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// From what is known already.
    Known,
    /// From new answers of the servers. This may wait, so it is not for fault paths.
    Servers,
}

/// How much a store has room for.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes that it can hold for this process, those it holds now included, as far as known.
    pub capacity_bytes: u64,
    /// Bytes that the held pages take on the servers, if that is more than their own size.
    pub placed_bytes: Option<u64>,
    /// Time of the oldest server's answer on which these figures rest, in nanoseconds on CLOCK_MONOTONIC.
    pub known_ns: u64,
}

/// The purpose of a poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Receives pages, with this much patience.
    Receive(Wait),
    /// Maintains the links: finds those that have ended, and asks for room ahead of need.
    Upkeep,
    /// Asks whether any read or write is in progress or queued: [`Polled::Idle`] if none is.
    Rest,
}

/// The result of a poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polled {
    /// Nothing is being read, and no upkeep is due.
    Idle,
    /// Another thread is receiving, or a read or write is in progress.
    Busy,
    /// This thread received.
    Received,
}

/// The subject of [`Store::tell`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Words {
    /// The state of each link, for a message.
    Stand,
    /// Why there is no room, and what to do about it.
    NoRoom,
}

/// A store's message about itself, as part of a line.
#[derive(Clone, Copy)]
pub struct Telling<'a>(pub &'a dyn Store, pub Words);

impl fmt::Display for Telling<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.tell(self.1, out)
    }
}

impl fmt::Debug for Telling<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}
