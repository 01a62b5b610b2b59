//! A store on memory servers. Each server has one connection for reads of page ranges, and another one for write-backs
//! and discards.
//!
//! Any thread that waits for a page receives what arrives for all threads ([`Turn::Receive`]). So no special receiver
//! thread must be woken for a page. Replies arrive in the order of the requests. The store checks this, and treats any
//! other reply as invalid data. A reply with other bytes than those that were sent is an error too (`guard`).
//! Write-backs and discards wait in [`Places`], which has room for all of them. One thread for each server sends them
//! ([`Remote::send`]), with adjacent pages in one message.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;

use hanare_paging::PageId;
use hanare_sys::clock::now_ns;
use hanare_sys::futex::{self, LockCell};
use hanare_sys::map::{MapError, Mapping};
use hanare_sys::ready;
use hanare_wire::{LinkError, ReadReplies, ReadRequests, Session, SessionInfo, SessionOptions, Wait};

use crate::awake::AwakeClock;
use crate::guard::{Damaged, Guard, GuardError};
use crate::placement::Placement;
use crate::{Ask, Begun, Polled, Read, Room, Saved, Store, StoreError, Take, Telling, Turn, Words, Write};

mod again;
mod places;
mod room;
mod scatter;
mod silence;
#[cfg(test)]
mod tests;
mod writer;

pub use again::Notice;
use again::Presence;
pub(crate) use again::passes;
pub use places::{Guarding, Shape};
use places::{Places, WriteBack};
use scatter::Scattered;
pub use writer::Sender;
pub(crate) use writer::WriteEnd;

/// The maximum number of reads in flight on one link.
const READS_MAX: usize = 1024;
/// The maximum number of reads that a link records: those in flight, and one whose page did not arrive as a whole.
const EXPECTED_MAX: usize = READS_MAX + 1;
/// The maximum number of write-backs that a sender removes from its queue at once.
const WRITES_AT_ONCE: usize = 256;
/// The maximum length of a placement extent in bytes. A placement extent is a range of far memory that is on one server
/// as a whole. One message of write-backs stays inside one such range.
pub const EXTENT_BYTES: usize = 2 << 20;

/// The result of one attempt to receive a reply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Received {
    Page,
    Nothing,
    /// Another thread is receiving on this link.
    Busy,
}

struct Server {
    name: String,
    info: SessionInfo,
    options: SessionOptions,
    /// The connection for reads.
    link_fd: RawFd,
    /// The connection for writes.
    writer_fd: RawFd,
    requests: LockCell<Requests>,
    replies: LockCell<Replies>,
    reads_in_flight: AtomicU32,
    /// Whether the receiving end holds a further reply, or a part of one, that does not make the link readable.
    holds_more: AtomicBool,
    presence: Presence,
    /// The time of the last reply on the clock of [`Remote::awake`].
    last_reply_ns: AtomicU64,
    /// The time since which the server owes an acknowledgement, on the same clock. 0 if it owes none.
    owes_ack_ns: AtomicU64,
    /// A futex word. It is incremented when something waits to be sent to this server, and the server's sender is
    /// woken.
    wait_word: AtomicU32,
    writes_in_flight: AtomicU32,
    /// The number of the newest room request to the server.
    asked: AtomicU32,
    /// The number of the newest room request that the server answered.
    answered: AtomicU32,
    /// The time of the server's last report of its room, in nanoseconds on CLOCK_MONOTONIC.
    room_known_ns: AtomicU64,
}

struct Requests {
    link: ReadRequests,
    expected: VecDeque<Read>,
}

/// The receiving end of a link. `bounce` is the address of a buffer for pages that are then copied into the program's
/// mapping.
struct Replies {
    link: ReadReplies,
    bounce: usize,
}

/// A store on memory servers.
pub struct Remote {
    servers: Vec<Server>,
    places: LockCell<Places>,
    /// Checks what comes back. A sender notes each unit (base page) when it sends the unit.
    guard: Guard,
    unit_bytes: usize,
    extent_bytes: usize,
    silent: Duration,
    /// Whether the run waits for a server that is lost.
    waits: bool,
    /// Servers may be stopped together with this process. Their silence is measured on this clock.
    awake: AwakeClock,
    /// Whether the links were closed by this process.
    is_over: AtomicBool,
}

/// An open session with a server, and the server's room.
#[derive(Debug)]
pub struct Opened {
    /// The server's name in messages.
    pub name: String,
    /// The open session.
    pub session: Session,
    /// The options with which the session was opened.
    pub options: SessionOptions,
    /// The number of bytes that the server could hold for this session when it was opened.
    pub capacity_bytes: u64,
    /// The maximum number of bytes to use on this server. `None` if the user set no limit.
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
            writer_fd: writer.as_fd().as_raw_fd(),
            requests: LockCell::new(Requests { link, expected: VecDeque::with_capacity(EXPECTED_MAX) }),
            replies: LockCell::new(Replies { link: replies, bounce }),
            reads_in_flight: AtomicU32::new(0),
            holds_more: AtomicBool::new(false),
            presence: Presence::default(),
            last_reply_ns: AtomicU64::new(0),
            owes_ack_ns: AtomicU64::new(0),
            wait_word: AtomicU32::new(0),
            writes_in_flight: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            room_known_ns: AtomicU64::new(now_ns()),
        };
        (server, writer)
    }

    /// Checks whether a page is expected on the link. A link that is lost is readable without a page.
    fn is_arriving(&self) -> bool {
        self.reads_in_flight.load(Acquire) > 0 && !self.presence.is_lost()
    }
}

impl Remote {
    /// Makes a store over opened sessions, and returns it with its senders. Pass each sender to [`Self::send`] in a
    /// thread of its own. No read may have more than `bounce_bytes` bytes. A server that owes an answer for longer than
    /// `silent` counts as lost.
    ///
    /// # Errors
    /// There is no memory for the store's buffers and tables, or no key can be made.
    pub fn new(
        opened: Vec<Opened>,
        shape: Shape,
        bounce_bytes: usize,
        silent: Duration,
    ) -> Result<(Self, Vec<Sender>), GuardError> {
        Self::with_extents(opened, shape, EXTENT_BYTES, bounce_bytes, silent)
    }

    /// Like [`Self::new`], with placement extents of `extent_bytes`, at most [`EXTENT_BYTES`]. Each extent
    /// reserves room on its server as a whole. So a process that stores only some pages of a range uses short extents.
    pub(crate) fn with_extents(
        opened: Vec<Opened>,
        shape: Shape,
        extent_bytes: usize,
        bounce_bytes: usize,
        silent: Duration,
    ) -> Result<(Self, Vec<Sender>), GuardError> {
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
        let awake = AwakeClock::new();
        let unit_bytes = shape.unit_bytes;
        let guard = Guard::new(shape.units, unit_bytes, shape.guarding)?;
        let is_over = AtomicBool::new(false);
        Ok((Self { servers, places, guard, unit_bytes, extent_bytes, silent, waits: false, awake, is_over }, senders))
    }

    // ---- fork -------------------------------------------------------------------------------------------------------

    /// Checks that no read or write is in progress and that nothing waits to be sent. Reads the clock of silence, as the
    /// upkeep does: the upkeep waits for the end of a fork.
    fn is_idle(&self) -> bool {
        self.awake.now_ns();
        self.servers.iter().all(|server| server.reads_in_flight.load(Acquire) == 0)
            && (0..self.servers.len()).all(|index| {
                // The queue is checked before `writes_in_flight`. A sender sets `writes_in_flight` before it removes
                // anything from its queue, so no write is overlooked.
                !self.places.lock().waits_for(index) && self.servers[index].writes_in_flight.load(Acquire) == 0
            })
    }

    /// Clones the sessions for a child that is about to be forked. No read or write may be in progress. Waits for a lost
    /// server if the run does. A server must answer within `limit`, or within the time for connections.
    pub(crate) fn share(&self, limit: Option<Duration>) -> Result<Vec<Session>, LinkError> {
        (0..self.servers.len()).map(|index| self.share_one(index, limit)).collect()
    }

    /// Makes the child's store, with the same pages, on the child's own sessions. Returns the store with its senders,
    /// which the caller must run. The child checks its parent's pages by its copy of the parent's table.
    pub(crate) fn again(self, sessions: Vec<Session>) -> Result<(Self, Vec<Sender>), GuardError> {
        let mut senders = Vec::new();
        let servers = self.servers.into_iter().zip(sessions).map(|(server, session)| {
            let bounce = server.replies.into_inner().bounce;
            let (server, writer) = Server::new(server.name, server.options, session, bounce);
            senders.push(Sender::new(senders.len(), writer));
            server
        });
        let servers = servers.collect();
        // The tables get a new, free lock, because a sender of the parent may have held the old lock at the fork. That
        // sender changed nothing, because nothing waited to be sent.
        let places = LockCell::new(self.places.into_inner());
        let guard = self.guard.again()?;
        Ok((Self { servers, places, guard, ..self }, senders))
    }

    // ---- reading ----------------------------------------------------------------------------------------------------

    /// Receives what has arrived for any thread. With one server, the thread waits in the server's link. With several
    /// servers, it checks each link in turn, and then waits for all links together.
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

    /// Waits until a link on which a page is expected is readable. The thread sleeps, because polling would keep a
    /// server on the same host from the CPU.
    fn wait_for_any(&self, wait: Wait) {
        match wait {
            Wait::Now => {}
            Wait::Spin { iterations } => (0..iterations).for_each(|_| std::hint::spin_loop()),
            Wait::Block { timeout } if !self.servers.iter().any(Server::is_arriving) => {
                // All servers on which a page is expected are lost.
                let lost = self.servers.iter().find(|server| server.presence.is_lost());
                lost.iter().for_each(|server| server.presence.nap(Wait::Block { timeout }));
            }
            Wait::Block { timeout } => {
                // Ignored: if the wait fails, the caller checks the links again at once.
                let (Ok(()) | Err(_)) = ready::wait_readable(self.arriving(), timeout);
            }
        }
    }

    /// Returns how many of these held pages, from the first on, one read can fetch. These are the pages on the first
    /// page's server.
    pub(crate) fn reach(&self, first: PageId, count: u32) -> u32 {
        self.places.lock().reach(first.0, count)
    }

    /// Checks whether one of the servers is the one of another session.
    pub(crate) fn is_on(&self, other: &SessionInfo) -> bool {
        self.servers.iter().any(|server| server.info.server_id == other.server_id)
    }

    /// Checks whether any read is in progress.
    pub(crate) fn is_reading(&self) -> bool {
        self.servers.iter().any(|server| server.reads_in_flight.load(Acquire) > 0)
    }

    /// Returns the links on which pages are expected. A thread can sleep on these links until a page arrives. It may sleep
    /// only after a poll has found nothing, because bytes that were already received do not make a link readable.
    pub(crate) fn arriving(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        // SAFETY: a link that is replaced hands its number on, and links stay open until the process ends. So the
        // descriptor is valid.
        let link = |server: &Server| unsafe { BorrowedFd::borrow_raw(server.link_fd) };
        self.servers.iter().filter(|server| server.is_arriving()).map(link)
    }

    /// Receives one reply from one server, if there is one.
    fn receive(&self, index: usize, wait: Wait, take: &mut dyn Take) -> Result<Received, StoreError<'_>> {
        let server = &self.servers[index];
        let lost = |source| self.lost(index, source);
        let Some(mut replies) = server.replies.try_lock() else { return Ok(Received::Busy) };
        if server.presence.is_lost() {
            drop(replies);
            server.presence.nap(wait);
            return Ok(Received::Nothing);
        }
        let Replies { link, bounce } = &mut *replies;
        let looked_ns = now_ns();
        let header = match link.try_header(wait) {
            Ok(Some(header)) => header,
            Ok(None) => return self.check_reads(index, looked_ns).map(|()| Received::Nothing),
            Err(source) => match self.failed(server, source, take) {
                Ok(received) => {
                    server.holds_more.store(link.holds_more(), Relaxed);
                    return Ok(received);
                }
                Err(source) => return self.loses(index, source).map(|()| Received::Nothing),
            },
        };
        let expected = server.requests.lock().expected.pop_front();
        let Some(read) = expected.filter(|read| header.tag == u64::from(read.page.0) && header.len == read.bytes)
        else {
            return Err(lost(LinkError::Garbage { what: "a page that was not asked for" }));
        };
        let len = read.bytes as usize;
        let place = take.place(&read);
        let to = place.unwrap_or(*bounce as *mut u8);
        let stride = if place.is_some() { take.stride(self.unit_bytes) } else { self.unit_bytes };
        // SAFETY: `to` has room for all units of the read at this distance. It is memory of the taker that no other code
        // accesses, or it is the bounce buffer. The lock held here protects that buffer.
        let mut into = unsafe { Scattered::new(to, len, self.unit_bytes, stride) };
        if let Err(source) = into.receive(link) {
            // If the server comes back, the page is asked for again, before those behind it.
            server.requests.lock().expected.push_front(read);
            return self.loses(index, source).map(|()| Received::Nothing);
        }
        let opened = into.open(&self.guard, read.page.0);
        match place {
            _ if opened.is_err() => {}
            Some(_) => take.placed(&read),
            // SAFETY: the bytes were just received into the bounce buffer, which the lock held here protects.
            None => unsafe { take.part(&read, 0, to, len) },
        }
        // Whether its bytes are right or not, the reply was received as a whole, and its read has ended. So the link can
        // still be used.
        server.last_reply_ns.store(self.awake.now_ns(), Relaxed);
        server.reads_in_flight.fetch_sub(1, AcqRel);
        server.holds_more.store(link.holds_more(), Relaxed);
        drop(replies);
        if let Err(Damaged { unit }) = opened {
            return Err(StoreError::Damaged { server: &server.name, page: unit, read });
        }
        take.arrived(&read);
        Ok(Received::Page)
    }

    /// Passes a server's error to the reader of the request that it answers. Returns the error if it answers none, or if
    /// the reader needs the answer. The caller holds the receiving end.
    fn failed(&self, server: &Server, source: LinkError, take: &mut dyn Take) -> Result<Received, LinkError> {
        let LinkError::Server { tag, .. } = source else { return Err(source) };
        let mut requests = server.requests.lock();
        let Some(read) = requests.expected.front().copied().filter(|read| u64::from(read.page.0) == tag) else {
            return Err(source);
        };
        drop(requests);
        if !take.failed(&read) {
            return Err(source);
        }
        requests = server.requests.lock();
        requests.expected.pop_front();
        drop(requests);
        server.last_reply_ns.store(self.awake.now_ns(), Relaxed);
        server.reads_in_flight.fetch_sub(1, AcqRel);
        Ok(Received::Page)
    }

    // ---- as one of several copies ----------------------------------------------------------------------------------

    /// Asks the only server for a range that it holds. Returns [`Begun::Full`] if too many reads are in progress.
    pub(crate) fn ask(&self, read: &Read) -> Result<Begun, StoreError<'_>> {
        self.request(0, read)
    }

    /// Checks whether a further reply has arrived together with the last one. The link is not readable then.
    pub(crate) fn holds_more(&self) -> bool {
        self.servers.iter().any(|server| server.holds_more.load(Relaxed))
    }

    /// Closes the links of all servers. Threads that wait for a server end their waits with an error. The descriptors
    /// stay open.
    pub(crate) fn hang_up(&self) {
        self.is_over.store(true, Release);
        for fd in self.servers.iter().flat_map(|server| [server.link_fd, server.writer_fd]) {
            // SAFETY: the links stay open until the process ends, so the descriptor is valid.
            ready::hang_up(unsafe { BorrowedFd::borrow_raw(fd) });
        }
    }

    /// Returns the link for reads of the only server.
    pub(crate) fn link(&self) -> BorrowedFd<'_> {
        // SAFETY: links stay open until the process ends, so the descriptor is valid.
        unsafe { BorrowedFd::borrow_raw(self.servers[0].link_fd) }
    }

    /// Wakes the senders of all servers.
    pub(crate) fn notify_all(&self) {
        (0..self.servers.len()).for_each(|server| self.notify(server));
    }

    // ---- writing ----------------------------------------------------------------------------------------------------

    /// Wakes the sender of a server.
    fn notify(&self, server: usize) {
        let server = &self.servers[server];
        server.wait_word.fetch_add(1, Release);
        futex::wake_one(&server.wait_word);
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

    /// Checks every link for servers that are closed or silent.
    fn watch(&self, take: &mut dyn Take) -> Result<(), StoreError<'_>> {
        // Every check reads the clock, so that it notices pauses.
        self.awake.now_ns();
        for index in 0..self.servers.len() {
            while self.receive(index, Wait::Now, take)? == Received::Page {}
        }
        Ok(())
    }

    fn full(&self) -> StoreError<'_> {
        StoreError::Full(Telling(self, Words::NoRoom))
    }

    fn lost(&self, index: usize, source: LinkError) -> StoreError<'_> {
        StoreError::Lost { server: &self.servers[index].name, source }
    }
}

impl Remote {
    /// Sends a request for a range to a server.
    fn request(&self, index: usize, read: &Read) -> Result<Begun, StoreError<'_>> {
        let server = &self.servers[index];
        let offset = u64::from(read.page.0) * self.unit_bytes as u64;
        let mut requests = server.requests.lock();
        if requests.expected.len() >= READS_MAX {
            return Ok(Begun::Full);
        }
        server.reads_in_flight.fetch_add(1, AcqRel);
        requests.expected.push_back(*read);
        if server.presence.is_lost() {
            return Ok(Begun::Later);
        }
        let tag = u64::from(read.page.0);
        if let Err(source) = requests.link.request(tag, offset, read.bytes) {
            return self.loses(index, source).map(|()| Begun::Later);
        }
        // The server's silence counts from the end of sending, because sending may take long.
        if requests.expected.len() == 1 {
            server.last_reply_ns.store(self.awake.now_ns(), Relaxed);
        }
        Ok(Begun::Later)
    }
}

impl Remote {
    /// Checks whether these are the bytes of a page that were sent last. Returns false if this is not known.
    pub(crate) fn has_sent(&self, page: PageId, bytes: &[u8]) -> bool {
        self.guard.fits(page.0, bytes)
    }
}

impl Store for Remote {
    fn read(&self, read: &Read, _: &mut dyn Take) -> Result<Begun, StoreError<'_>> {
        let index = self.places.lock().server_of(read.page.0);
        self.request(index, read)
    }

    /// Queues the write-back of a page that is in a frame. The caller of [`Remote::send`] learns when the write-back
    /// ends.
    unsafe fn write(&self, write: &Write, _: &mut dyn FnMut(*mut u8)) -> Result<Saved, StoreError<'_>> {
        let Write { page, bytes, frame: Some(frame), at: Some(from), may_be_same, .. } = *write else {
            debug_assert!(false, "a page that goes to a server waits in a frame");
            return Err(self.full());
        };
        let job = WriteBack { page, frame, bytes, from: from as usize, may_be_same };
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
            Turn::GoOn | Turn::Unmap => Ok(Polled::Idle),
            Turn::Rest => Ok(if self.is_idle() { Polled::Idle } else { Polled::Busy }),
        }
    }

    fn tell(&self, what: Words, out: &mut dyn fmt::Write) -> fmt::Result {
        match what {
            Words::Stand => self.tell_stand(out),
            Words::NoRoom => self.tell_no_room(out),
            Words::News => Ok(()),
        }
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.servers.iter().map(|server| &server.name)).finish()
    }
}
