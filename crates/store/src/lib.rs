//! Where pages are while they are away: in slots that this process copies itself ([`Slots`]), or on memory servers behind
//! links ([`Remote`]).
//!
//! The store moves bytes and keeps a record of where each page is held. It decides nothing about pages and does not know its
//! user. It calls nobody by itself: a thread polls it ([`Store::poll`]) and receives the pages that have arrived. A sender
//! ([`Remote::send`]) returns the ends of writes. Placement over servers, room, silence and the private server of a run are
//! this crate's alone.
//!
//! [`Store::read`], [`Store::write`], [`Store::release`] and receiving by [`Store::poll`] are part of the fault path: they
//! allocate nothing and take no lock that the program could hold.

mod error;
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
pub use remote::{Opened, Remote, STRETCH_BYTES, Sender, Shape};
pub use slots::{Slots, SlotsError};

/// Where pages are while they are away.
pub trait Store: Send + Sync {
    /// Begins to read a held range. `take` receives the bytes before this returns, or in a later poll ([`Begun`]).
    ///
    /// # Errors
    /// The store is lost, or lied.
    fn read(&self, read: &Read, take: &mut dyn Take) -> Result<Begun, StoreError<'_>>;

    /// Writes a page, or begins to. `fill` puts its bytes at the address that it is given.
    ///
    /// # Errors
    /// There is no room, or the store is lost.
    ///
    /// # Safety
    /// The page's bytes lie at [`Write::at`], where that is given, and nobody changes them until the write has ended; at
    /// [`Write::spare`] there is room for a slot that nobody else uses meanwhile.
    unsafe fn write(&self, write: &Write, fill: &mut dyn FnMut(*mut u8)) -> Result<Saved, StoreError<'_>>;

    /// These units are no longer needed. Discards keep their place among writes, so the caller sees to it that no write of
    /// the same unit comes in between. Waits for nothing.
    fn release(&self, unit: u32, count: u32);

    /// How much there is room for.
    fn room(&self, ask: Ask) -> Room;

    /// Hands what has come to `take`, or looks after the links.
    ///
    /// # Errors
    /// The store is lost, silent, or lied.
    fn poll(&self, turn: Turn, take: &mut dyn Take) -> Result<Polled, StoreError<'_>>;

    /// Writes words for a line to the user.
    ///
    /// # Errors
    /// Those of `out`.
    fn tell(&self, what: Words, out: &mut dyn fmt::Write) -> fmt::Result;
}

/// A range of pages to be read. The store passes `frame` and `writable` on to [`Take`] and does not use them.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// First page.
    pub page: PageId,
    /// Pages.
    pub count: u32,
    /// Bytes of all of them.
    pub bytes: u32,
    /// The frame it goes to; without, it goes into view.
    pub frame: Option<FrameId>,
    /// Pages of it that come into view writable, from the first on.
    pub writable: u32,
}

/// Takes what was read.
pub trait Take {
    /// Memory for all bytes of a read, which nobody else accesses; `None` when the taker wants them by [`Take::part`].
    fn place(&mut self, read: &Read) -> Option<*mut u8>;

    /// All bytes of the read are at that place.
    fn placed(&mut self, read: &Read);

    /// A part of a read that has no place, `at` bytes behind its beginning.
    ///
    /// # Safety
    /// The memory at `from` holds `len` bytes, and nobody changes them during the call.
    unsafe fn part(&mut self, read: &Read, at: usize, from: *const u8, len: usize);

    /// The read is complete. Nothing of the store is locked now.
    fn arrived(&mut self, read: &Read);

    /// Room for a slot, and for all bytes of any read, that nobody else uses.
    fn spare(&mut self) -> *mut u8;
}

/// How far a read came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begun {
    /// It is complete.
    Done,
    /// A poll will bring it.
    Later,
    /// As much is under way as can be: poll, and ask again.
    Full,
}

/// A page to be written.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// The page.
    pub page: PageId,
    /// Its length in bytes.
    pub bytes: u32,
    /// Its frame, if it waits in one.
    pub frame: Option<FrameId>,
    /// Where its bytes lie, if they do at one address.
    pub at: Option<*const u8>,
    /// Whether the bytes may be those that are held already. They are compared where that costs no request.
    pub may_be_same: bool,
    /// Room for a slot.
    pub spare: *mut u8,
}

/// How far a write came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Saved {
    /// The store has the bytes.
    Done,
    /// It had them already.
    Same,
    /// A sender will tell.
    Later,
}

/// Whether a question is answered with what is known, or the servers are asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// What is known.
    Known,
    /// The servers' answer, for which this may wait; not for fault paths.
    Servers,
}

/// How much a store has room for.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Bytes it can hold for this process, those it holds included, as far as is known.
    pub capacity_bytes: u64,
    /// Bytes that are taken by what is held, where that is more than the pages' own.
    pub placed_bytes: Option<u64>,
    /// Time of the oldest answer about room that this counts with, in nanoseconds on CLOCK_MONOTONIC.
    pub known_ns: u64,
}

/// The purpose of a poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// To receive what was asked for, with this much patience.
    Receive(Wait),
    /// To look after the links: to find those that have ended, and to have room ahead of need.
    Upkeep,
}

/// The result of a poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polled {
    /// Nothing is being read.
    Idle,
    /// Another thread receives.
    Busy,
    /// This thread did.
    Received,
}

/// The subject of [`Store::tell`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Words {
    /// Where each link stands.
    Stand,
    /// Why there is no room, and what to do about it.
    NoRoom,
}

/// A store's words about itself, as part of a line.
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
