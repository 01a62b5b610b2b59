//! Stores evicted pages: in slots that this process copies itself ([`Slots`]), or on memory servers behind links
//! ([`Remote`]), if wanted with redundancy ([`Redundant`]).
//!
//! The store moves bytes and records where each page is held. It checks that pages come back from memory servers as
//! they were sent, and encrypts them if its user asks for it. It makes no decisions about pages and starts no threads.
//! Its user polls it ([`Store::poll`]) to receive the pages that have arrived. Its user also runs the senders
//! ([`Remote::send`]), and learns from them which writes have ended. Only this crate places pages on servers, checks
//! the servers' free space and silence, and starts the private server of a run.
//!
//! [`Store::read`], [`Store::write`], [`Store::release`] and [`Store::poll`] with [`Turn::Receive`] are part of the
//! fault path. They allocate nothing and acquire no lock that the program could hold.

mod awake;
mod bits;
mod error;
pub mod faulty;
mod guard;
mod held;
mod kind;
mod open;
mod placement;
pub mod private;
mod redundant;
mod remote;
mod slots;

use std::fmt;

use hanare_paging::{FrameId, PageId};
use hanare_wire::Wait;

pub use error::{EXIT_FULL, EXIT_LOST, StoreError};
pub use guard::GuardError;
pub use kind::{Kind, Links, Worker};
pub use open::{Copies, OpenError, Target};
pub use redundant::{Copyist, Progress, Rebuilder, Redundant};
pub use remote::{EXTENT_BYTES, Guarding, Notice, Opened, Remote, Sender, Shape};
pub use slots::{Slots, SlotsError};

/// A store of evicted pages.
pub trait Store: Send + Sync {
    /// Reads a held range, or begins to read it. `take` receives the bytes during this call or in a later poll
    /// ([`Begun`] says which).
    ///
    /// # Errors
    /// The store is lost, or sent invalid data. With [`StoreError::Damaged`], only this read has failed.
    fn read(&self, read: &Read, take: &mut dyn Take) -> Result<Begun, StoreError<'_>>;

    /// Writes a page, or begins to write it. `fill` writes the page's bytes to the address that it receives.
    ///
    /// # Errors
    /// There is no room, or the store is lost.
    ///
    /// # Safety
    /// If [`Write::at`] is `Some`, the page's bytes are at this address and do not change until the write has ended.
    /// [`Write::spare`] has room for a slot, and no other code uses it meanwhile.
    unsafe fn write(&self, write: &Write, fill: &mut dyn FnMut(*mut u8)) -> Result<Saved, StoreError<'_>>;

    /// Drops units (base pages) that are no longer needed. Never waits. The store applies the releases and writes of a
    /// unit in the order of the calls. So the caller must not begin a write of the unit between its decision to release
    /// the unit and this call.
    fn release(&self, unit: u32, count: u32);

    /// Returns how many bytes the store has room for.
    fn room(&self, ask: Ask) -> Room;

    /// Passes arrived pages to `take`, maintains the links, or does what else `turn` says.
    ///
    /// # Errors
    /// The store is lost or silent, or sent invalid data. With [`StoreError::Damaged`], only one read has failed, which
    /// the error names, and the caller may poll again.
    fn poll(&self, turn: Turn, take: &mut dyn Take) -> Result<Polled, StoreError<'_>>;

    /// Writes a message about the store for the user.
    ///
    /// # Errors
    /// The errors of `out`.
    fn tell(&self, what: Words, out: &mut dyn fmt::Write) -> fmt::Result;
}

/// A range of pages to read. The store passes `frame` and `writable` on to [`Take`], and does not use them itself.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// The first page.
    pub page: PageId,
    /// The number of pages.
    pub count: u32,
    /// The number of bytes of all pages.
    pub bytes: u32,
    /// The frame (local memory outside the program's view) that receives the bytes. `None` if the program's own mapping
    /// receives them.
    pub frame: Option<FrameId>,
    /// The number of pages, counted from the first, that become writable in the program's mapping.
    pub writable: u32,
}

/// Receives the bytes of reads.
pub trait Take {
    /// Returns memory for all bytes of a read. No other code accesses this memory. Returns `None` if the store must
    /// pass the bytes to [`Take::part`]. The store asks once, when the read begins or its bytes arrive. It may tell another
    /// taker that the bytes are there.
    fn place(&mut self, read: &Read) -> Option<*mut u8>;

    /// Returns how many bytes lie between the first bytes of two adjacent pages in the memory that [`Take::place`] has
    /// returned last: `unit_bytes`, the length of a page, or more.
    fn stride(&self, unit_bytes: usize) -> usize {
        unit_bytes
    }

    /// Called when all bytes of the read are in the memory that [`Take::place`] returned.
    fn placed(&mut self, read: &Read);

    /// Receives a part of a read for which [`Take::place`] returned `None`. The part begins `at` bytes after the read's
    /// first byte.
    ///
    /// # Safety
    /// The memory at `from` holds `len` bytes, which do not change during the call.
    unsafe fn part(&mut self, read: &Read, at: usize, from: *const u8, len: usize);

    /// Called after a poll has completed the read. Not called for a read that was complete when [`Store::read`]
    /// returned ([`Begun::Done`]). The store holds no lock during this call.
    fn arrived(&mut self, read: &Read);

    /// Returns memory with room for a slot and for all bytes of any read. No other code uses this memory.
    fn spare(&mut self) -> *mut u8;

    /// Called when the server answered the read with an error and its link can go on. Returns true if the reader can do
    /// without the answer. Otherwise the store is lost.
    fn failed(&mut self, _: &Read) -> bool {
        false
    }
}

/// The progress of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begun {
    /// The read is complete.
    Done,
    /// A later poll completes the read.
    Later,
    /// Too many reads are in progress. The caller must poll and then read again.
    Full,
}

/// A page to write.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// The page to write.
    pub page: PageId,
    /// The length of the page in bytes.
    pub bytes: u32,
    /// The frame (local memory outside the program's view) that contains the page. `None` if no frame does.
    pub frame: Option<FrameId>,
    /// The address of the page's bytes. `None` if the bytes are not at one address.
    pub at: Option<*const u8>,
    /// Whether the store holds bytes of the page that may be the same. The store then compares, if this needs no
    /// request, and does not write the same bytes again.
    pub may_be_same: bool,
    /// Memory with room for a slot.
    pub spare: *mut u8,
}

/// The progress of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Saved {
    /// The store has the bytes.
    Done,
    /// The store already had the same bytes.
    Same,
    /// The write ends later. The caller of [`Remote::send`] learns of its end.
    Later,
}

/// Which reports of the servers [`Store::room`] uses for its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Answer from the last reports of the servers.
    Known,
    /// Answer from new reports of the servers. This may wait, so fault paths must not use it.
    Servers,
}

/// The room of a store.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// The bytes that the store can hold for this process, as far as known. Bytes that it holds now are included.
    pub capacity_bytes: u64,
    /// The bytes of all placement extents that contain pages of this process. `None` if the store does not use
    /// placement extents.
    pub placed_bytes: Option<u64>,
    /// The time of the oldest server report that these numbers use, in nanoseconds on CLOCK_MONOTONIC.
    pub known_ns: u64,
}

/// The purpose of a poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Receive arrived pages, and wait for them as [`Wait`] says.
    Receive(Wait),
    /// Maintain the links: find links that have ended, and request free slots ahead of need.
    Upkeep,
    /// Check whether any read or write is in progress or queued. The result is [`Polled::Idle`] if none is. In this case
    /// the store may leave later work alone until it is polled again with [`Turn::Rest`] or [`Turn::GoOn`].
    Rest,
    /// Allow work in the background again, after polls with [`Turn::Rest`].
    GoOn,
    /// Return memory of this process that the store can do without until its next read or write.
    Unmap,
}

/// The result of a poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polled {
    /// For [`Turn::Receive`]: no read is in progress. For [`Turn::Rest`]: no read or write is in progress or queued.
    /// [`Turn::Upkeep`], [`Turn::GoOn`] and [`Turn::Unmap`] always return this value.
    Idle,
    /// For [`Turn::Receive`]: another thread is receiving. For [`Turn::Rest`]: a read or write is in progress or
    /// queued.
    Busy,
    /// This thread looked for arrived pages.
    Received,
}

/// The subject of [`Store::tell`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Words {
    /// The state of each link, as part of a message.
    Stand,
    /// The reason why there is no room, and how the user can make room.
    NoRoom,
    /// One thing that happened to the servers since the last call. Nothing if the store has no news.
    News,
}

/// Displays what a store says about itself, without a line end, for use inside a longer line.
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
