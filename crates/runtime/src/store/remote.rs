//! The store on memory servers: ranged reads in flight on one connection, write-backs and discards on another.
//!
//! Whoever waits for a page receives what arrives, for everybody ([`Remote::pump`]); nobody needs to be woken to be
//! served. Replies come in the order of the requests, which is checked: a server that answers anything else has lied.
//! Write-backs are sent by a thread a server ([`Remote::run_writer`]), adjacent pages in one frame.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;

use hanare_paging::{Event, FrameId, PageId, Placement};
use hanare_sys::futex::{self, LockCell};
use hanare_sys::map::{MapError, Mapping};
use hanare_wire::limits::{PARTS_MAX, RANGE_MAX};
use hanare_wire::{
    Ack, AckStatus, LinkError, ReadReplies, ReadRequests, Session, SessionInfo, SessionOptions, Wait, Writer,
};

use super::Held;
use crate::engine::{Engine, now_ns};
use crate::fatal::{self, EXIT_FULL, EXIT_LOST};
use crate::stats::add;

mod room;

/// Reads in flight on one link.
const READS_MAX: usize = 1024;
/// Write-backs and discards waiting for the writer of one link.
const JOBS_MAX: usize = 1 << 16;
/// Bytes a writer has sent and not seen acknowledged.
const UNACKNOWLEDGED_BYTES_MAX: usize = 8 << 20;
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

#[derive(Clone, Copy)]
enum Job {
    WriteBack {
        page: PageId,
        frame: FrameId,
        bytes: u32,
    },
    Discard {
        offset: u64,
        bytes: u32,
    },
    /// Asks for a sign of life, which tells of the server's room: the asking with this number.
    Ask {
        number: u32,
    },
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
    jobs: LockCell<VecDeque<Job>>,
    bell: AtomicU32,
    writes_in_flight: AtomicU32,
    last_ack_ns: AtomicU64,
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

/// Which server each stretch lies on (number plus one; 0 is none).
struct Places {
    of_stretch: Vec<u8>,
    placement: Placement,
    held: Held,
    slots_held: Held,
    /// Write-backs under way, by stretch: as long as there are any, it keeps its server.
    writing: Vec<u16>,
    /// Slots held on each server.
    slots_of: Vec<u64>,
    stretch_units: u32,
    slot_units: u32,
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
            jobs: LockCell::new(VecDeque::with_capacity(JOBS_MAX)),
            bell: AtomicU32::new(0),
            writes_in_flight: AtomicU32::new(0),
            last_ack_ns: AtomicU64::new(0),
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
        units: u32,
        unit_bytes: usize,
        slot_bytes: usize,
        bounce_bytes: usize,
        silent: Duration,
    ) -> Result<(Self, Vec<Writer>), MapError> {
        let stretch_units = (STRETCH_BYTES / unit_bytes) as u32;
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
        let slot_units = (slot_bytes / unit_bytes) as u32;
        let places = Places {
            of_stretch: vec![0; units.div_ceil(stretch_units) as usize],
            placement,
            held: Held::new(units, stretch_units),
            slots_held: Held::new(units, slot_units),
            writing: vec![0; units.div_ceil(stretch_units) as usize],
            slots_of: vec![0; servers.len()],
            stretch_units,
            slot_units,
        };
        let places = LockCell::new(places);
        let (watched_ns, woke_ns) = (AtomicU64::new(now_ns()), AtomicU64::new(0));
        Ok((Self { servers, places, unit_bytes, silent, watched_ns, woke_ns }, writers))
    }

    // ---- fork -------------------------------------------------------------------------------------------------------

    /// Whether nothing is asked for, on its way or waiting to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.servers.iter().all(|server| {
            server.reads_in_flight.load(Acquire) == 0
                && server.jobs.lock().is_empty()
                && server.writes_in_flight.load(Acquire) == 0
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
        (Self { servers, ..self }, writers)
    }

    // ---- reading ----------------------------------------------------------------------------------------------------

    /// Asks for a held range; it arrives through [`Self::pump`].
    pub(crate) fn fetch(&self, engine: &Engine, read: Read) {
        let index = self.places.lock().server_of(read.page.0);
        let server = &self.servers[index];
        let offset = u64::from(read.page.0) * self.unit_bytes as u64;
        loop {
            let mut requests = server.requests.lock();
            if requests.expected.len() < READS_MAX {
                // In this order: who sees the read in flight must not see how long nothing was asked before it.
                if server.reads_in_flight.load(Acquire) == 0 {
                    server.last_reply_ns.store(now_ns(), Release);
                }
                server.reads_in_flight.fetch_add(1, AcqRel);
                requests.expected.push_back(read);
                let tag = u64::from(read.page.0);
                if let Err(error) = requests.link.request(tag, offset, read.bytes) {
                    self.lost(index, &error);
                }
                return;
            }
            drop(requests);
            self.receive(engine, index, Wait::Spin { iterations: 1000 });
        }
    }

    /// Receives what has arrived for anyone. With one server the wait is spent in its link; with several they are looked
    /// at in turn. False when another thread is at it.
    pub(crate) fn pump(&self, engine: &Engine, wait: Wait) -> bool {
        let mut any = false;
        for index in 0..self.servers.len() {
            if self.servers[index].reads_in_flight.load(Acquire) > 0 {
                let wait = if self.servers.len() == 1 { wait } else { Wait::Now };
                any |= self.receive(engine, index, wait) != Received::Busy;
                self.check_silence(index);
            }
        }
        any
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
    fn receive(&self, engine: &Engine, index: usize, wait: Wait) -> Received {
        let server = &self.servers[index];
        let Some(mut replies) = server.replies.try_lock() else { return Received::Busy };
        let Replies { link, bounce } = &mut *replies;
        let header = match link.try_header(wait) {
            Ok(Some(header)) => header,
            Ok(None) => return Received::Nothing,
            Err(error) => self.lost(index, &error),
        };
        let expected = server.requests.lock().expected.pop_front();
        let read = match expected {
            Some(read) if header.tag == u64::from(read.page.0) && header.len == read.bytes => read,
            _ => self.lost(index, &LinkError::Garbage { what: "a page that was not asked for" }),
        };
        let event = engine.receive(read, *bounce as *mut u8, |to| {
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
        engine.submit(event);
        if read.frame.is_none() {
            engine.ring_run(read.page, read.count);
        }
        Received::Page
    }

    // ---- writing ----------------------------------------------------------------------------------------------------

    /// Queues a write-back; its end is told by an event.
    pub(crate) fn write_back(&self, page: PageId, frame: FrameId, bytes: u32) {
        let index = self.places.lock().place_write(page.0);
        let Some(index) = index else { self.full() };
        self.queue(index, Job::WriteBack { page, frame, bytes });
    }

    fn queue(&self, index: usize, job: Job) {
        let server = &self.servers[index];
        loop {
            let mut jobs = server.jobs.lock();
            if jobs.len() < JOBS_MAX {
                let joined = match (jobs.back_mut(), job) {
                    (Some(Job::Discard { offset, bytes }), Job::Discard { offset: next, bytes: more })
                        if *offset + u64::from(*bytes) == next && *bytes < 1 << 28 =>
                    {
                        *bytes += more;
                        true
                    }
                    _ => false,
                };
                if !joined {
                    jobs.push_back(job);
                }
                break;
            }
            drop(jobs);
            std::thread::yield_now();
        }
        server.bell.fetch_add(1, Release);
        futex::wake_one(&server.bell);
    }

    /// These units are no longer needed. Called with the pager locked, so that discards keep their place among writes.
    pub(crate) fn release(&self, unit: u32, count: u32) {
        let mut places = self.places.lock();
        for unit in unit..unit + count {
            let server = places.server_of(unit);
            if places.slots_held.release(unit) {
                places.slots_of[server] = places.slots_of[server].saturating_sub(1);
                self.queue(server, places.discard_slot(unit, self.unit_bytes));
            }
            if places.held.release(unit) {
                let stretch = unit / places.stretch_units;
                places.free_if_unused(stretch);
            }
        }
    }

    /// These units' bytes are on their server from now on.
    pub(crate) fn mark_held(&self, unit: u32, count: u32) {
        let mut places = self.places.lock();
        let server = places.server_of(unit);
        for slot in unit / places.slot_units..=(unit + count - 1) / places.slot_units {
            places.slots_of[server] += u64::from(!places.slots_held.any_in(slot));
        }
        places.held.mark(unit, count);
        places.slots_held.mark(unit, count);
    }

    /// The life of a writer thread.
    pub(crate) fn run_writer(&self, engine: &'static Engine, index: usize, mut writer: Writer) {
        let mut unacknowledged: VecDeque<Vec<Job>> = VecDeque::new();
        let mut bytes_out = 0;
        let mut tag = 0;
        let mut asked = 0;
        let server = &self.servers[index];
        loop {
            let bell = server.bell.load(Acquire);
            let mut batch = if bytes_out < UNACKNOWLEDGED_BYTES_MAX { self.next_batch(index) } else { Vec::new() };
            let number = server.asked.load(Acquire);
            if std::mem::replace(&mut asked, number) != number {
                batch.push(vec![Job::Ask { number }]);
            }
            for group in batch {
                bytes_out += group_bytes(&group);
                if unacknowledged.is_empty() {
                    server.last_ack_ns.store(now_ns(), Relaxed);
                }
                server.writes_in_flight.store(1, Release);
                self.send(engine, index, &mut writer, tag, &group);
                add(&engine.counters.requests, 1);
                tag += 1;
                unacknowledged.push_back(group);
            }
            if unacknowledged.is_empty() {
                server.writes_in_flight.store(0, Release);
                futex::wait(&server.bell, bell, Some(Duration::from_millis(200)));
                continue;
            }
            let wait = match bytes_out < UNACKNOWLEDGED_BYTES_MAX && !server.jobs.lock().is_empty() {
                true => Wait::Now,
                false => Wait::Block { timeout: Duration::from_millis(20) },
            };
            let first_tag = tag - unacknowledged.len() as u64;
            match writer.try_ack(wait) {
                Ok(None) => {}
                Ok(Some(ack)) if ack.tag == first_tag => {
                    server.last_ack_ns.store(now_ns(), Relaxed);
                    let group = unacknowledged.pop_front().unwrap_or_default();
                    bytes_out -= group_bytes(&group);
                    self.acknowledged(engine, index, group, &ack);
                }
                Ok(Some(_)) => self.lost(index, &LinkError::Garbage { what: "an acknowledgement of nothing" }),
                Err(error) => self.lost(index, &error),
            }
        }
    }

    /// Takes what waits to be sent, write-backs of adjacent pages grouped into frames.
    fn next_batch(&self, index: usize) -> Vec<Vec<Job>> {
        let mut jobs: Vec<Job> = {
            let mut queue = self.servers[index].jobs.lock();
            let mut bytes = 0;
            let count = queue.iter().take(256).take_while(|job| {
                let fits = bytes < RANGE_MAX as usize;
                bytes += job.bytes_sent();
                fits
            });
            let count = count.count();
            queue.drain(..count).collect()
        };
        // Writes may change places among each other, for no page is twice among them; a discard stays where it is.
        for part in jobs.split_mut(|job| matches!(job, Job::Discard { .. })) {
            part.sort_by_key(|job| job.start(self.unit_bytes));
        }
        let mut groups: Vec<Vec<Job>> = Vec::new();
        for job in jobs {
            match groups.last_mut() {
                Some(group) if joins(group, &job, self.unit_bytes) => group.push(job),
                _ => groups.push(vec![job]),
            }
        }
        groups
    }

    fn send(&self, engine: &Engine, index: usize, writer: &mut Writer, tag: u64, group: &[Job]) {
        let sent = match group[0] {
            Job::Discard { offset, bytes } => writer.discard(tag, offset, bytes),
            Job::Ask { .. } => writer.ping(tag),
            Job::WriteBack { .. } => {
                let parts: Vec<IoSlice<'_>> = group
                    .iter()
                    .filter_map(|job| match *job {
                        // SAFETY: a frame being written back is not disturbed until its end is told, so its bytes do
                        // not change while they are sent.
                        Job::WriteBack { frame, bytes, .. } => Some(IoSlice::new(unsafe {
                            std::slice::from_raw_parts(engine.view().frame(frame), bytes as usize)
                        })),
                        Job::Discard { .. } | Job::Ask { .. } => None,
                    })
                    .collect();
                writer.write(tag, group[0].start(self.unit_bytes), &parts)
            }
        };
        if let Err(error) = sent {
            self.lost(index, &error);
        }
    }

    fn acknowledged(&self, engine: &Engine, index: usize, group: Vec<Job>, ack: &Ack) {
        if ack.status != AckStatus::Done {
            self.places.lock().placement.close(index);
        }
        let asking = group.first().and_then(|job| if let Job::Ask { number } = job { Some(*number) } else { None });
        for job in group {
            let Job::WriteBack { page, frame, bytes } = job else { continue };
            match ack.status {
                AckStatus::Done => {
                    let here = self.places.lock().server_of(page.0);
                    if here != index {
                        // Its stretch moved on, for another part of it was refused: this part has to follow.
                        let discard = self.places.lock().discard_slot(page.0, self.unit_bytes);
                        self.queue(index, discard);
                        self.queue(here, job);
                        continue;
                    }
                    engine.submit(Event::WrittenBack { page, frame, ok: true });
                    self.places.lock().written(page.0);
                }
                AckStatus::Full | AckStatus::OverQuota => {
                    let moved = self.places.lock().move_away(page.0, index);
                    let Some(other) = moved else { self.full() };
                    self.queue(other, Job::WriteBack { page, frame, bytes });
                }
            }
        }
        // Only now, for what was just written counts as held.
        if ack.status == AckStatus::Done {
            self.heard(index, ack.capacity_bytes);
        }
        if let Some(number) = asking {
            self.servers[index].answered.store(number, Release);
            futex::wake_all(&self.servers[index].answered);
        }
    }

    /// How long a server may be silent.
    pub(crate) fn silent(&self) -> Duration {
        self.silent
    }

    /// Where each link stands, in words.
    pub(crate) fn write_stand(&self, out: &mut dyn std::fmt::Write) -> std::fmt::Result {
        for server in &self.servers {
            let reads = server.reads_in_flight.load(Relaxed);
            let writes = server.writes_in_flight.load(Relaxed);
            write!(out, "; {}: {reads} reads under way, ", server.name)?;
            match server.jobs.try_lock() {
                Some(jobs) => write!(out, "{} jobs queued, {writes} sent", jobs.len())?,
                None => out.write_str("its queue is locked")?,
            }
        }
        Ok(())
    }

    // ---- watching ---------------------------------------------------------------------------------------------------

    /// Looks after every link: closed ones and silent ones end the program.
    pub(crate) fn watch(&self, engine: &Engine) {
        let now = now_ns();
        if now.saturating_sub(self.watched_ns.swap(now, AcqRel)) > PAUSE_NS {
            self.woke_ns.store(now, Release);
        }
        for index in 0..self.servers.len() {
            while self.receive(engine, index, Wait::Now) == Received::Page {}
            self.check_silence(index);
        }
    }

    fn check_silence(&self, index: usize) {
        let server = &self.servers[index];
        let limit = self.silent.as_nanos() as u64;
        let now = now_ns();
        if now.saturating_sub(self.watched_ns.load(Acquire)) > PAUSE_NS {
            // A pause has just ended, or goes on.
            return;
        }
        let woke = self.woke_ns.load(Acquire);
        let late = |in_flight: &AtomicU32, last: &AtomicU64| {
            in_flight.load(Acquire) > 0 && now.saturating_sub(last.load(Relaxed).max(woke)) > limit
        };
        if late(&server.reads_in_flight, &server.last_reply_ns) || late(&server.writes_in_flight, &server.last_ack_ns) {
            self.lost(index, &LinkError::Silent { seconds: self.silent.as_secs() as u32 });
        }
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

impl Job {
    fn bytes_sent(&self) -> usize {
        match *self {
            Job::WriteBack { bytes, .. } => bytes as usize,
            Job::Discard { .. } | Job::Ask { .. } => 0,
        }
    }

    /// Offset of the first byte in far memory.
    fn start(&self, unit_bytes: usize) -> u64 {
        match *self {
            Job::WriteBack { page, .. } => u64::from(page.0) * unit_bytes as u64,
            Job::Discard { offset, .. } => offset,
            Job::Ask { .. } => 0,
        }
    }
}

fn group_bytes(group: &[Job]) -> usize {
    group.iter().map(Job::bytes_sent).sum()
}

/// Whether a write-back continues a group, within one frame's bounds and one stretch.
fn joins(group: &[Job], job: &Job, unit_bytes: usize) -> bool {
    let (Some(last @ Job::WriteBack { .. }), Job::WriteBack { .. }) = (group.last(), job) else { return false };
    let start = job.start(unit_bytes);
    group.len() < PARTS_MAX
        && last.start(unit_bytes) + last.bytes_sent() as u64 == start
        && !start.is_multiple_of(STRETCH_BYTES as u64)
}

impl Places {
    /// The server a held unit is on.
    fn server_of(&self, unit: u32) -> usize {
        let place = self.of_stretch[(unit / self.stretch_units) as usize];
        debug_assert!(place > 0, "unit {unit} is on no server");
        usize::from(place.max(1)) - 1
    }

    /// The server for a unit to be written, chosen now if its stretch is on none.
    fn place(&mut self, unit: u32) -> Option<usize> {
        let stretch = (unit / self.stretch_units) as usize;
        if self.of_stretch[stretch] == 0 {
            self.of_stretch[stretch] = self.placement.place()? as u8 + 1;
        }
        Some(usize::from(self.of_stretch[stretch]) - 1)
    }

    /// Lets a server forget a unit's slot.
    fn discard_slot(&self, unit: u32, unit_bytes: usize) -> Job {
        let first = unit / self.slot_units * self.slot_units;
        Job::Discard { offset: u64::from(first) * unit_bytes as u64, bytes: self.slot_units * unit_bytes as u32 }
    }

    /// The server for a write-back that begins.
    fn place_write(&mut self, unit: u32) -> Option<usize> {
        let server = self.place(unit)?;
        self.writing[(unit / self.stretch_units) as usize] += 1;
        Some(server)
    }

    /// A write-back ended, and its page was told so.
    fn written(&mut self, unit: u32) {
        let stretch = unit / self.stretch_units;
        self.writing[stretch as usize] -= 1;
        self.free_if_unused(stretch);
    }

    /// A stretch of which nothing is held, nor on its way, is on no server.
    fn free_if_unused(&mut self, stretch: u32) {
        let server = usize::from(self.of_stretch[stretch as usize]);
        if server > 0 && self.writing[stretch as usize] == 0 && !self.held.any_in(stretch) {
            self.of_stretch[stretch as usize] = 0;
            self.placement.free(server - 1);
        }
    }

    /// Another server for a stretch that one refused. A stretch that is partly there already has nowhere to go.
    fn move_away(&mut self, unit: u32, from: usize) -> Option<usize> {
        let stretch = unit / self.stretch_units;
        let here = usize::from(self.of_stretch[stretch as usize]) - 1;
        if here != from {
            return Some(here);
        }
        if self.held.any_in(stretch) {
            return None;
        }
        self.of_stretch[stretch as usize] = 0;
        self.placement.free(from);
        self.placement.close(from);
        self.place(unit)
    }
}
