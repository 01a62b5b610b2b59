//! The store on memory servers: ranged reads in flight on one connection, write-backs and discards on another.
//!
//! Whoever waits for a page receives what arrives, for everybody ([`Remote::pump`]); nobody needs to be woken to be
//! served. Replies come in the order of the requests, which is checked: a server that answers anything else has lied.
//! Write-backs and discards wait in [`Places`], where there is room for all of them, and are sent by a thread a server
//! ([`Remote::run_writer`]), adjacent pages in one frame.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;

use hanare_paging::{Event, FrameId, PageId, Placement};
use hanare_sys::futex::{self, LockCell};
use hanare_sys::map::{MapError, Mapping};
use hanare_sys::ready;
use hanare_wire::{LinkError, ReadReplies, ReadRequests, Session, SessionInfo, SessionOptions, Wait, Writer};

use super::Client;
use crate::clock::now_ns;
use crate::fatal::{self, EXIT_FULL, EXIT_LOST};

mod bits;
mod places;
mod room;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use places::Shape;
use places::{Places, WriteBack};

/// Reads in flight on one link.
const READS_MAX: usize = 1024;
/// Write-backs that a writer takes at once.
const WRITES_AT_ONCE: usize = 256;
/// Longest time between two looks after the links of a process that runs.
const PAUSE_NS: u64 = 1_000_000_000;
/// Stretch of far memory that lies on one server as a whole.
pub(crate) const STRETCH_BYTES: usize = 2 << 20;

/// What a read brings, and to where.
#[derive(Clone, Copy)]
pub(crate) struct Read {
    pub(crate) page: PageId,
    pub(crate) count: u32,
    pub(crate) bytes: u32,
    pub(crate) frame: Option<FrameId>,
    /// Pages of it that come into view writable, from the first on.
    pub(crate) writable: u32,
}

/// What came of an attempt to receive.
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
    bell: AtomicU32,
    writes_in_flight: AtomicU32,
    /// How often it was to be asked for its room, and the last asking that it answered.
    asked: AtomicU32,
    answered: AtomicU32,
    /// When it last told of its room.
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

pub(crate) struct Remote {
    servers: Vec<Server>,
    places: LockCell<Places>,
    unit_bytes: usize,
    silent: Duration,
    /// When the links were looked after last, and when that was first done again after a long pause: this process was stopped
    /// then, or the whole machine slept, and servers may have been, too.
    watched_ns: AtomicU64,
    woke_ns: AtomicU64,
}

/// A named server's session, with the room it is used for.
pub(crate) struct Opened {
    pub(crate) name: String,
    pub(crate) session: Session,
    pub(crate) options: SessionOptions,
    pub(crate) capacity_bytes: u64,
    /// The most it is to be used for, where the user set a bound.
    pub(crate) limit_bytes: Option<u64>,
}

impl Server {
    fn new(name: String, options: SessionOptions, session: Session, bounce: usize) -> (Self, Writer) {
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
            bell: AtomicU32::new(0),
            writes_in_flight: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            room_known_ns: AtomicU64::new(now_ns()),
        };
        (server, writer)
    }
}

impl Remote {
    /// Takes over opened sessions; the writers come back to be run in threads of their own.
    pub(crate) fn new(
        opened: Vec<Opened>,
        shape: Shape,
        bounce_bytes: usize,
        silent: Duration,
    ) -> Result<(Self, Vec<Writer>), MapError> {
        let capacities: Vec<u64> = opened.iter().map(|o| (o.capacity_bytes / STRETCH_BYTES as u64).max(1)).collect();
        let mut placement = Placement::new(&capacities);
        for (index, opened) in opened.iter().enumerate() {
            if let Some(bytes) = opened.limit_bytes {
                placement.limit(index, (bytes / STRETCH_BYTES as u64).max(1));
            }
        }
        let mut writers = Vec::new();
        let servers = opened.into_iter().map(|opened| {
            let bounce = Mapping::anonymous(bounce_bytes)?.leak();
            let (server, writer) = Server::new(opened.name, opened.options, opened.session, bounce);
            writers.push(writer);
            Ok(server)
        });
        let servers: Vec<Server> = servers.collect::<Result<_, MapError>>()?;
        let places = Places::new(shape, placement, servers.len());
        let places = LockCell::new(places);
        let (watched_ns, woke_ns) = (AtomicU64::new(now_ns()), AtomicU64::new(0));
        Ok((Self { servers, places, unit_bytes: shape.unit_bytes, silent, watched_ns, woke_ns }, writers))
    }

    // ---- fork -------------------------------------------------------------------------------------------------------

    /// Whether nothing is asked for, on its way or waiting to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.servers.iter().all(|server| server.reads_in_flight.load(Acquire) == 0)
            && (0..self.servers.len()).all(|index| {
                // In this order: a writer says that it is at work before it takes anything.
                !self.places.lock().waits_for(index) && self.servers[index].writes_in_flight.load(Acquire) == 0
            })
    }

    /// Sessions for a child that is about to be forked, which hold what these hold; nothing may be under way.
    pub(crate) fn share(&self) -> Result<Vec<Session>, LinkError> {
        self.servers.iter().map(|server| Session::open_clone(&server.info, &server.options)).collect()
    }

    /// In the child: the same places on the child's own sessions, with the writers to be run.
    pub(crate) fn again(self, sessions: Vec<Session>) -> (Self, Vec<Writer>) {
        let mut writers = Vec::new();
        let servers = self.servers.into_iter().zip(sessions).map(|(server, session)| {
            let bounce = server.replies.into_inner().bounce;
            let (server, writer) = Server::new(server.name, server.options, session, bounce);
            writers.push(writer);
            server
        });
        let servers = servers.collect();
        // Unlocked, whatever a writer of the parent was looking at just then: nothing waited to be sent.
        let places = LockCell::new(self.places.into_inner());
        (Self { servers, places, ..self }, writers)
    }

    // ---- reading ----------------------------------------------------------------------------------------------------

    /// Asks for a held range; it arrives through [`Self::pump`]. While too much is under way already, the caller receives, and is
    /// told what came: it carries on from there itself, so that nobody comes back here from within.
    pub(crate) fn fetch(&self, client: &impl Client, read: Read, tell: &mut dyn FnMut(Event)) {
        let index = self.places.lock().server_of(read.page.0);
        let server = &self.servers[index];
        let offset = u64::from(read.page.0) * self.unit_bytes as u64;
        loop {
            let mut requests = server.requests.lock();
            if requests.expected.len() < READS_MAX {
                server.reads_in_flight.fetch_add(1, AcqRel);
                requests.expected.push_back(read);
                let tag = u64::from(read.page.0);
                if let Err(error) = requests.link.request(tag, offset, read.bytes) {
                    self.lost(index, &error);
                }
                // The server owes nothing before it was asked, however long the sending took.
                if requests.expected.len() == 1 {
                    server.last_reply_ns.store(now_ns(), Relaxed);
                }
                return;
            }
            drop(requests);
            if self.receive_telling(client, index, Wait::Spin { iterations: 1000 }, tell) == Received::Busy {
                std::thread::yield_now();
            }
        }
    }

    /// Receives what has arrived for anyone. With one server the wait is spent in its link; several are looked at in turn,
    /// and then waited for together. False when another thread is at it.
    pub(crate) fn pump(&self, client: &impl Client, wait: Wait) -> bool {
        let (mut any, mut came) = (false, false);
        for index in 0..self.servers.len() {
            if self.servers[index].reads_in_flight.load(Acquire) > 0 {
                let wait = if self.servers.len() == 1 { wait } else { Wait::Now };
                let received = self.receive(client, index, wait);
                any |= received != Received::Busy;
                came |= received == Received::Page;
            }
        }
        if any && !came && self.servers.len() > 1 {
            self.wait_for_any(wait);
        }
        any
    }

    /// Lets time pass until one of the links on which a page is expected has something. A waiting thread that only looked
    /// again and again would keep a server of the same host from the CPU.
    fn wait_for_any(&self, wait: Wait) {
        match wait {
            Wait::Now => {}
            Wait::Spin { iterations } => (0..iterations).for_each(|_| std::hint::spin_loop()),
            Wait::Block { timeout } => {
                let reading = self.servers.iter().filter(|server| server.reads_in_flight.load(Acquire) > 0);
                // SAFETY: links are closed by no one before the process ends.
                let links = reading.map(|server| unsafe { BorrowedFd::borrow_raw(server.link_fd) });
                // Refused, it does not sleep: then the caller looks again at once.
                let (Ok(()) | Err(_)) = ready::wait_readable(links, timeout);
            }
        }
    }

    /// Whether any read is under way.
    pub(crate) fn is_reading(&self) -> bool {
        self.servers.iter().any(|server| server.reads_in_flight.load(Acquire) > 0)
    }

    /// The link on which a page is expected, for a thread that sleeps until it comes. Bytes that were received already
    /// do not wake it, so this is for who has just found nothing to receive.
    pub(crate) fn arriving(&self) -> Option<BorrowedFd<'_>> {
        let server = self.servers.iter().find(|server| server.reads_in_flight.load(Acquire) > 0)?;
        // SAFETY: links are closed by no one before the process ends.
        Some(unsafe { BorrowedFd::borrow_raw(server.link_fd) })
    }

    /// One reply from one server.
    fn receive(&self, client: &impl Client, index: usize, wait: Wait) -> Received {
        self.receive_telling(client, index, wait, &mut |event| client.ended(event))
    }

    fn receive_telling(&self, client: &impl Client, index: usize, wait: Wait, tell: &mut dyn FnMut(Event)) -> Received {
        let server = &self.servers[index];
        let Some(mut replies) = server.replies.try_lock() else { return Received::Busy };
        let Replies { link, bounce } = &mut *replies;
        let looked_ns = now_ns();
        let header = match link.try_header(wait) {
            Ok(Some(header)) => header,
            Ok(None) => {
                self.check_reads(index, looked_ns);
                return Received::Nothing;
            }
            Err(error) => self.lost(index, &error),
        };
        let expected = server.requests.lock().expected.pop_front();
        let read = match expected {
            Some(read) if header.tag == u64::from(read.page.0) && header.len == read.bytes => read,
            _ => self.lost(index, &LinkError::Garbage { what: "a page that was not asked for" }),
        };
        let event = client.receive(read, *bounce as *mut u8, |to| {
            // SAFETY: `to` is a frame in transit, the place of a page out of view, or the buffer that goes with the
            // lock held here: so many bytes, and nobody else's.
            let into = unsafe { std::slice::from_raw_parts_mut(to, read.bytes as usize) };
            if let Err(error) = link.receive_payload(into) {
                self.lost(index, &error);
            }
        });
        server.last_reply_ns.store(now_ns(), Relaxed);
        server.reads_in_flight.fetch_sub(1, AcqRel);
        drop(replies);
        tell(event);
        if read.frame.is_none() {
            client.notify(read.page, read.count);
        }
        Received::Page
    }

    // ---- writing ----------------------------------------------------------------------------------------------------

    /// Queues a write-back; its end is told by an event.
    pub(crate) fn write_back(&self, page: PageId, frame: FrameId, bytes: u32) {
        let server = self.places.lock().write_back(WriteBack { page, frame, bytes });
        match server {
            Some(server) => self.ring(server),
            None => self.full(),
        }
    }

    /// Tells a writer that something waits for it.
    fn ring(&self, server: usize) {
        let server = &self.servers[server];
        server.bell.fetch_add(1, Release);
        futex::wake_one(&server.bell);
    }

    /// These units are no longer needed. Called with the pager locked, so that discards keep their place among writes; waits
    /// for nothing.
    pub(crate) fn release(&self, unit: u32, count: u32) {
        let stretch_units = (STRETCH_BYTES / self.unit_bytes) as u32;
        for (unit, count) in Places::by_stretch(unit, count, stretch_units) {
            let server = self.places.lock().release(unit, count);
            if let Some(server) = server {
                self.ring(server);
            }
        }
    }

    /// These units' bytes are on their server from now on. Called with the pager locked.
    pub(crate) fn mark_held(&self, unit: u32, count: u32) {
        self.places.lock().mark_held(unit, count);
    }

    /// How long a server may be silent.
    pub(crate) fn silent(&self) -> Duration {
        self.silent
    }

    /// Where each link stands, in words.
    pub(crate) fn write_stand(&self, out: &mut dyn std::fmt::Write) -> std::fmt::Result {
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

    /// Looks after every link: closed ones and silent ones end the program.
    pub(crate) fn watch(&self, client: &impl Client) {
        let now = now_ns();
        if now.saturating_sub(self.watched_ns.swap(now, AcqRel)) > PAUSE_NS {
            self.woke_ns.store(now, Release);
        }
        for index in 0..self.servers.len() {
            while self.receive(client, index, Wait::Now) == Received::Page {}
        }
    }

    /// Called by the holder of the receiving end, which looked for a reply in vain after `looked_ns`. A request that is
    /// just being sent counts for nothing.
    fn check_reads(&self, index: usize, looked_ns: u64) {
        let server = &self.servers[index];
        let is_silent = || self.is_silent(server.last_reply_ns.load(Relaxed), looked_ns);
        let is_asked =
            || server.requests.try_lock().is_some_and(|requests| !requests.expected.is_empty() && is_silent());
        // First without the lock: taken at each look, it would be in the way of who asks for pages.
        if is_silent() && is_asked() {
            self.lost_in_silence(index);
        }
    }

    /// Whether a server that has owed an answer since `last_ns` is silent. Only who looked for the answer in vain after
    /// `looked_ns` may ask this: an answer that lies here unread, because a thread of this process waits for a CPU, is not
    /// the server's silence.
    fn is_silent(&self, last_ns: u64, looked_ns: u64) -> bool {
        let since_ns = last_ns.max(self.woke_ns.load(Acquire));
        looked_ns.saturating_sub(since_ns) > self.silent.as_nanos() as u64
            // Else a pause has just ended, or goes on.
            && now_ns().saturating_sub(self.watched_ns.load(Acquire)) <= PAUSE_NS
    }

    fn lost_in_silence(&self, index: usize) -> ! {
        self.lost(index, &LinkError::Silent { seconds: self.silent.as_secs() as u32 })
    }

    fn lost(&self, index: usize, error: &LinkError) -> ! {
        fatal::die(EXIT_LOST, format_args!("{}: {error}", self.servers[index].name))
    }

    fn full(&self) -> ! {
        fatal::die(
            EXIT_FULL,
            format_args!(
                "all memory servers are full: {}; name a further --server, or give one more --memory, a --spill directory \
                 or a larger --client-quota",
                self.room_in_words()
            ),
        )
    }
}
