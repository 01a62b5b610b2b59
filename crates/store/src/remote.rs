//! The store on memory servers: ranged reads on one connection, write-backs and discards on another.
//!
//! Any thread that waits for a page receives what arrives for all threads ([`Turn::Receive`]), so no thread must be
//! woken to be served. Replies come in the order of the requests. This is checked: any other answer is invalid data.
//! Write-backs and discards wait in [`Places`], which has room for all of them. One thread for each server sends them
//! ([`Remote::send`]), with adjacent pages in one frame.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;

use hanare_paging::PageId;
use hanare_sys::clock::now_ns;
use hanare_sys::futex::{self, LockCell};
use hanare_sys::map::{MapError, Mapping};
use hanare_sys::ready;
use hanare_wire::{LinkError, ReadReplies, ReadRequests, Session, SessionInfo, SessionOptions, Wait};

use crate::placement::Placement;
use crate::{Ask, Begun, Polled, Read, Room, Saved, Store, StoreError, Take, Telling, Turn, Words, Write};

mod bits;
mod places;
mod room;
#[cfg(test)]
mod tests;
mod writer;

pub use places::Shape;
use places::{Places, WriteBack};
pub use writer::Sender;

/// Most reads in flight on one link.
const READS_MAX: usize = 1024;
/// Most write-backs that a writer takes at once.
const WRITES_AT_ONCE: usize = 256;
/// Longest time between two checks of the links in a running process, in nanoseconds.
const PAUSE_NS: u64 = 1_000_000_000;
/// Longest placement extent, in bytes: far memory that is on one server as a whole. One frame of write-backs covers no more.
pub const EXTENT_BYTES: usize = 2 << 20;

/// The result of an attempt to receive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Received {
    Page,
    Nothing,
    /// Another thread is receiving.
    Busy,
}

struct Server {
    name: String,
    info: SessionInfo,
    options: SessionOptions,
    link_fd: RawFd,
    requests: LockCell<Requests>,
    replies: LockCell<Replies>,
    reads_in_flight: AtomicU32,
    last_reply_ns: AtomicU64,
    /// Incremented, with its writer woken, when something waits for this server.
    wait_word: AtomicU32,
    writes_in_flight: AtomicU32,
    /// Number of the last request for its room.
    asked: AtomicU32,
    /// Number of the last such request that it answered.
    answered: AtomicU32,
    /// When it last reported its room.
    room_known_ns: AtomicU64,
}

struct Requests {
    link: ReadRequests,
    expected: VecDeque<Read>,
}

/// The receiving end, with a buffer for pages that are copied into view.
struct Replies {
    link: ReadReplies,
    bounce: usize,
}

/// The store on memory servers.
pub struct Remote {
    servers: Vec<Server>,
    places: LockCell<Places>,
    unit_bytes: usize,
    extent_bytes: usize,
    silent: Duration,
    /// When the links were last checked.
    watched_ns: AtomicU64,
    /// When the links were first checked after a long pause. Such a pause means that this process was stopped or the
    /// whole machine slept. Servers may have been stopped, too.
    woke_ns: AtomicU64,
}

/// A named server's session, and its room.
#[derive(Debug)]
pub struct Opened {
    /// Its name in messages.
    pub name: String,
    /// The session.
    pub session: Session,
    /// How it was opened.
    pub options: SessionOptions,
    /// Bytes that it could hold for this session.
    pub capacity_bytes: u64,
    /// The most bytes to use, if the user set a limit.
    pub limit_bytes: Option<u64>,
}

impl Server {
    fn new(name: String, options: SessionOptions, session: Session, bounce: usize) -> (Self, hanare_wire::Writer) {
        let (link, replies, writer, info) = session.split();
        let server = Server {
            name,
            info,
            options,
            link_fd: link.as_fd().as_raw_fd(),
            requests: LockCell::new(Requests { link, expected: VecDeque::with_capacity(READS_MAX) }),
            replies: LockCell::new(Replies { link: replies, bounce }),
            reads_in_flight: AtomicU32::new(0),
            last_reply_ns: AtomicU64::new(0),
            wait_word: AtomicU32::new(0),
            writes_in_flight: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            room_known_ns: AtomicU64::new(now_ns()),
        };
        (server, writer)
    }
}

impl Remote {
    /// Makes a store over opened sessions, and returns it with the senders. Pass each sender to [`Self::send`] in a
    /// thread of its own. Reads have at most `bounce_bytes` bytes. A server that owes an answer for longer than
    /// `silent` counts as lost.
    ///
    /// # Errors
    /// There is no memory for its buffers and tables.
    pub fn new(
        opened: Vec<Opened>,
        shape: Shape,
        bounce_bytes: usize,
        silent: Duration,
    ) -> Result<(Self, Vec<Sender>), MapError> {
        Self::with_extents(opened, shape, EXTENT_BYTES, bounce_bytes, silent)
    }

    /// The same with placement extents of `extent_bytes`, at most [`EXTENT_BYTES`]. An extent takes room as a whole, so
    /// they are short for a process that has only some pages of each.
    pub(crate) fn with_extents(
        opened: Vec<Opened>,
        shape: Shape,
        extent_bytes: usize,
        bounce_bytes: usize,
        silent: Duration,
    ) -> Result<(Self, Vec<Sender>), MapError> {
        let extents = |bytes: u64| (bytes / extent_bytes as u64).max(1);
        let capacities: Vec<u64> = opened.iter().map(|opened| extents(opened.capacity_bytes)).collect();
        let mut placement = Placement::new(&capacities);
        for (index, opened) in opened.iter().enumerate() {
            if let Some(bytes) = opened.limit_bytes {
                placement.limit(index, extents(bytes));
            }
        }
        let mut senders = Vec::new();
        let servers = opened.into_iter().map(|opened| {
            let bounce = Mapping::anonymous(bounce_bytes)?.leak();
            let (server, writer) = Server::new(opened.name, opened.options, opened.session, bounce);
            senders.push(Sender::new(senders.len(), writer));
            Ok(server)
        });
        let servers: Vec<Server> = servers.collect::<Result<_, MapError>>()?;
        let places = LockCell::new(Places::new(shape, extent_bytes, placement, servers.len()));
        let (watched_ns, woke_ns) = (AtomicU64::new(now_ns()), AtomicU64::new(0));
        let unit_bytes = shape.unit_bytes;
        Ok((Self { servers, places, unit_bytes, extent_bytes, silent, watched_ns, woke_ns }, senders))
    }

    // ---- fork -------------------------------------------------------------------------------------------------------

    /// Whether no read or write is in progress and nothing waits to be sent.
    fn is_idle(&self) -> bool {
        self.servers.iter().all(|server| server.reads_in_flight.load(Acquire) == 0)
            && (0..self.servers.len()).all(|index| {
                // Checked in this order, because a writer marks itself as busy before it takes anything.
                !self.places.lock().waits_for(index) && self.servers[index].writes_in_flight.load(Acquire) == 0
            })
    }

    /// Clones the sessions for a child that is about to be forked. No read or write may be in progress.
    pub(crate) fn share(&self) -> Result<Vec<Session>, LinkError> {
        self.servers.iter().map(|server| Session::open_clone(&server.info, &server.options)).collect()
    }

    /// In the child: the same pages on the child's own sessions, with the senders to be run.
    pub(crate) fn again(self, sessions: Vec<Session>) -> (Self, Vec<Sender>) {
        let mut senders = Vec::new();
        let servers = self.servers.into_iter().zip(sessions).map(|(server, session)| {
            let bounce = server.replies.into_inner().bounce;
            let (server, writer) = Server::new(server.name, server.options, session, bounce);
            senders.push(Sender::new(senders.len(), writer));
            server
        });
        let servers = servers.collect();
        // Unlocked, even if a writer of the parent was reading it at the fork: nothing waited to be sent.
        let places = LockCell::new(self.places.into_inner());
        (Self { servers, places, ..self }, senders)
    }

    // ---- reading ----------------------------------------------------------------------------------------------------

    /// Receives what has arrived for any thread. With one server, the wait is spent in its link. With several, the
    /// links are checked in turn, and then waited for together.
    fn receive_all(&self, wait: Wait, take: &mut dyn Take) -> Result<Polled, StoreError<'_>> {
        let (mut idle, mut any, mut came) = (true, false, false);
        for index in 0..self.servers.len() {
            if self.servers[index].reads_in_flight.load(Acquire) > 0 {
                let wait = if self.servers.len() == 1 { wait } else { Wait::Now };
                let received = self.receive(index, wait, take)?;
                idle = false;
                any |= received != Received::Busy;
                came |= received == Received::Page;
            }
        }
        if any && !came && self.servers.len() > 1 {
            self.wait_for_any(wait);
        }
        Ok(match (idle, any) {
            (true, _) => Polled::Idle,
            (_, true) => Polled::Received,
            (_, false) => Polled::Busy,
        })
    }

    /// Waits until a link on which a page is expected is readable. A thread that only polled would keep a server on the
    /// same host from the CPU.
    fn wait_for_any(&self, wait: Wait) {
        match wait {
            Wait::Now => {}
            Wait::Spin { iterations } => (0..iterations).for_each(|_| std::hint::spin_loop()),
            Wait::Block { timeout } => {
                let reading = self.servers.iter().filter(|server| server.reads_in_flight.load(Acquire) > 0);
                // SAFETY: links stay open until the process ends.
                let links = reading.map(|server| unsafe { BorrowedFd::borrow_raw(server.link_fd) });
                // If the wait is refused, the caller checks again at once.
                let (Ok(()) | Err(_)) = ready::wait_readable(links, timeout);
            }
        }
    }

    /// How many of these held pages, from the first on, one read can fetch: those on one server.
    pub(crate) fn reach(&self, first: PageId, count: u32) -> u32 {
        self.places.lock().reach(first.0, count)
    }

    /// Whether any read is in progress.
    pub(crate) fn is_reading(&self) -> bool {
        self.servers.iter().any(|server| server.reads_in_flight.load(Acquire) > 0)
    }

    /// The link on which a page is expected, for a thread that sleeps until the page comes. Bytes that were received
    /// already do not make the link readable. So sleep on it only after a poll has found nothing.
    pub(crate) fn arriving(&self) -> Option<BorrowedFd<'_>> {
        let server = self.servers.iter().find(|server| server.reads_in_flight.load(Acquire) > 0)?;
        // SAFETY: links stay open until the process ends.
        Some(unsafe { BorrowedFd::borrow_raw(server.link_fd) })
    }

    /// Receives one reply from one server.
    fn receive(&self, index: usize, wait: Wait, take: &mut dyn Take) -> Result<Received, StoreError<'_>> {
        let server = &self.servers[index];
        let lost = |source| self.lost(index, source);
        let Some(mut replies) = server.replies.try_lock() else { return Ok(Received::Busy) };
        let Replies { link, bounce } = &mut *replies;
        let looked_ns = now_ns();
        let Some(header) = link.try_header(wait).map_err(lost)? else {
            self.check_reads(index, looked_ns)?;
            return Ok(Received::Nothing);
        };
        let expected = server.requests.lock().expected.pop_front();
        let Some(read) = expected.filter(|read| header.tag == u64::from(read.page.0) && header.len == read.bytes)
        else {
            return Err(lost(LinkError::Garbage { what: "a page that was not asked for" }));
        };
        let len = read.bytes as usize;
        let place = take.place(&read);
        let to = place.unwrap_or(*bounce as *mut u8);
        // SAFETY: `to` has `len` bytes: memory of the taker that no other code accesses, or the buffer that belongs to
        // the lock held here.
        let into = unsafe { std::slice::from_raw_parts_mut(to, len) };
        link.receive_payload(into).map_err(lost)?;
        match place {
            Some(_) => take.placed(&read),
            // SAFETY: the bytes were just received into the buffer that belongs to the lock held here.
            None => unsafe { take.part(&read, 0, to, len) },
        }
        server.last_reply_ns.store(now_ns(), Relaxed);
        server.reads_in_flight.fetch_sub(1, AcqRel);
        drop(replies);
        take.arrived(&read);
        Ok(Received::Page)
    }

    // ---- writing ----------------------------------------------------------------------------------------------------

    /// Wakes the writer of a server.
    fn notify(&self, server: usize) {
        let server = &self.servers[server];
        server.wait_word.fetch_add(1, Release);
        futex::wake_one(&server.wait_word);
    }

    /// Silence after which a server counts as lost.
    pub(crate) fn silent(&self) -> Duration {
        self.silent
    }

    fn tell_stand(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        for (index, server) in self.servers.iter().enumerate() {
            let reads = server.reads_in_flight.load(Relaxed);
            let writes = server.writes_in_flight.load(Relaxed);
            write!(out, "; {}: {reads} reads and {writes} writes under way, ", server.name)?;
            out.write_str(match self.places.try_lock().map(|places| places.waits_for(index)) {
                Some(true) => "more queued",
                Some(false) => "nothing queued",
                None => "its queue locked",
            })?;
        }
        Ok(())
    }

    // ---- watching ---------------------------------------------------------------------------------------------------

    /// Checks every link for closed and silent servers.
    fn watch(&self, take: &mut dyn Take) -> Result<(), StoreError<'_>> {
        let now = now_ns();
        if now.saturating_sub(self.watched_ns.swap(now, AcqRel)) > PAUSE_NS {
            self.woke_ns.store(now, Release);
        }
        for index in 0..self.servers.len() {
            while self.receive(index, Wait::Now, take)? == Received::Page {}
        }
        Ok(())
    }

    /// Checks one link's reads for silence. The caller holds the receiving end, and has looked for a reply in vain
    /// after `looked_ns`. A request that is still being sent does not count.
    fn check_reads(&self, index: usize, looked_ns: u64) -> Result<(), StoreError<'_>> {
        let server = &self.servers[index];
        let is_silent = || self.is_silent(server.last_reply_ns.load(Relaxed), looked_ns);
        let is_asked =
            || server.requests.try_lock().is_some_and(|requests| !requests.expected.is_empty() && is_silent());
        // The first check takes no lock: a lock at each check would delay threads that request pages.
        if is_silent() && is_asked() { Err(self.lost_in_silence(index)) } else { Ok(()) }
    }

    /// Whether a server that has owed an answer since `last_ns` is silent. Only a thread that looked for the answer in
    /// vain after `looked_ns` may ask. An answer may lie here unread because a thread of this process waits for a CPU;
    /// that is not the server's silence.
    fn is_silent(&self, last_ns: u64, looked_ns: u64) -> bool {
        let since_ns = last_ns.max(self.woke_ns.load(Acquire));
        looked_ns.saturating_sub(since_ns) > self.silent.as_nanos() as u64
            // If not, a long pause has just ended, or still lasts.
            && now_ns().saturating_sub(self.watched_ns.load(Acquire)) <= PAUSE_NS
    }

    fn lost_in_silence(&self, index: usize) -> StoreError<'_> {
        self.lost(index, LinkError::Silent { seconds: self.silent.as_secs() as u32 })
    }

    fn full(&self) -> StoreError<'_> {
        StoreError::Full(Telling(self, Words::NoRoom))
    }

    fn lost(&self, index: usize, source: LinkError) -> StoreError<'_> {
        StoreError::Lost { server: &self.servers[index].name, source }
    }
}

impl Store for Remote {
    fn read(&self, read: &Read, _: &mut dyn Take) -> Result<Begun, StoreError<'_>> {
        let index = self.places.lock().server_of(read.page.0);
        let server = &self.servers[index];
        let offset = u64::from(read.page.0) * self.unit_bytes as u64;
        let mut requests = server.requests.lock();
        if requests.expected.len() >= READS_MAX {
            return Ok(Begun::Full);
        }
        server.reads_in_flight.fetch_add(1, AcqRel);
        requests.expected.push_back(*read);
        let tag = u64::from(read.page.0);
        requests.link.request(tag, offset, read.bytes).map_err(|source| self.lost(index, source))?;
        // The server's silence counts from the end of sending, however long that took.
        if requests.expected.len() == 1 {
            server.last_reply_ns.store(now_ns(), Relaxed);
        }
        Ok(Begun::Later)
    }

    /// Queues a page in a frame. A sender reports its end.
    unsafe fn write(&self, write: &Write, _: &mut dyn FnMut(*mut u8)) -> Result<Saved, StoreError<'_>> {
        let Write { page, bytes, frame: Some(frame), at: Some(from), .. } = *write else {
            debug_assert!(false, "a page that goes to a server waits in a frame");
            return Err(self.full());
        };
        let job = WriteBack { page, frame, bytes, from: from as usize };
        let server = self.places.lock().write_back(job).ok_or_else(|| self.full())?;
        self.notify(server);
        Ok(Saved::Later)
    }

    fn release(&self, unit: u32, count: u32) {
        let extent_units = (self.extent_bytes / self.unit_bytes) as u32;
        for (unit, count) in Places::by_extent(unit, count, extent_units) {
            let server = self.places.lock().release(unit, count);
            if let Some(server) = server {
                self.notify(server);
            }
        }
    }

    fn room(&self, ask: Ask) -> Room {
        if ask == Ask::Servers {
            self.ask_for_room();
        }
        let (capacity_bytes, placed_bytes) = self.capacity_and_placed_bytes();
        Room { capacity_bytes, placed_bytes: Some(placed_bytes), known_ns: self.room_known_ns() }
    }

    fn poll(&self, turn: Turn, take: &mut dyn Take) -> Result<Polled, StoreError<'_>> {
        match turn {
            Turn::Receive(wait) => self.receive_all(wait, take),
            Turn::Upkeep => self.watch(take).map(|()| Polled::Idle),
            Turn::Rest => Ok(if self.is_idle() { Polled::Idle } else { Polled::Busy }),
        }
    }

    fn tell(&self, what: Words, out: &mut dyn fmt::Write) -> fmt::Result {
        match what {
            Words::Stand => self.tell_stand(out),
            Words::NoRoom => self.tell_no_room(out),
        }
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.servers.iter().map(|server| &server.name)).finish()
    }
}
