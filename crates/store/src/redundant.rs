//! A store over memory servers that keeps each page in K + M parts on different servers. Any K parts give the page back.
//! So the run outlives the loss of any M servers, and goes on while what they held is rebuilt on others.
//!
//! The decisions are those of a pure machine ([`machine`]). This module carries them out over *members*. A member is a
//! [`Remote`] with a single server. Its far space holds one part of each page, so its units are K times smaller.
//!
//! The machine is locked for each event. Writes and releases are passed to the members under this lock, so that their
//! order stays. They only enter tables there. Requests for parts are sent without the lock, because they may wait for the
//! link. The lock order is: a member's receiving end, the machine, a member's tables.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering::*};
use std::time::Duration;

use hanare_paging::limits::RUN_BYTES_MAX;
use hanare_paging::{FrameId, PageId};
use hanare_settings::Redundancy;
use hanare_sys::clock::now_ns;
use hanare_sys::futex::{self, LockCell};
use hanare_wire::{Endpoint, Session, SessionOptions, Wait};

use crate::guard::GuardError;
use crate::remote::{EXTENT_BYTES, Remote, Sender, Shape};
use crate::{Ask, Begun, Polled, Read, Room, Saved, Store, StoreError, Take, Telling, Turn, Words, Write};

mod buffers;
mod code;
mod compare;
mod fork;
mod machine;
mod measures;
mod news;
mod pace;
mod rebuilder;
mod take;
mod waiting;
mod worker;

#[cfg(test)]
mod tests;

use buffers::Buffers;
use code::Code;
use machine::{Fatal, Machine, Order, Sizes};
use measures::Measures;
pub(crate) use measures::slot_bytes;
pub use news::Progress;
use news::{News, Why};
use pace::Pace;
pub use rebuilder::Rebuilder;
use take::Parts;
use waiting::Turns;
pub use worker::Copyist;

/// The maximum number of parts of a page.
const PARTS_MAX: usize = hanare_settings::REDUNDANCY_PARTS_MAX as usize;
/// The maximum number of data parts of a page.
const DATA_MAX: usize = 4;
/// The maximum number of bytes of far memory that are rebuilt together.
const JOB_BYTES: usize = RUN_BYTES_MAX as usize;
/// The time for which a server may owe an answer while others answer. After this time it counts as lost.
const SUSPECT: Duration = Duration::from_secs(1);
/// The maximum number of times that a lost server is taken in again. Each time, the tables and descriptors of its last
/// session stay, because other threads may still use them.
const RETURNS_MAX: u32 = 16;

/// Threads in the background may use the machine.
const GO_ON: u8 = 0;
/// They may only end what is under way.
const END: u8 = 1;
/// They must leave the machine alone.
const REST: u8 = 2;

const _: () = assert!(DATA_MAX <= PARTS_MAX && PARTS_MAX <= u8::BITS as usize);

/// A named server, and how to reach it.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
    pub(crate) options: SessionOptions,
    /// The maximum number of bytes to use on this server. `None` if the user set no limit.
    pub(crate) limit_bytes: Option<u64>,
    /// The number of the server's host.
    pub(crate) host: u16,
}

/// One server of the store.
struct Member {
    named: Named,
    /// The session's store. Null if the server was never reached. The pointer comes from `Box::into_raw`. What it points
    /// to stays until the process ends, because other threads may use it at any time.
    remote: AtomicPtr<Remote>,
    is_there: AtomicBool,
    /// The sender of the session, until the member's worker takes it.
    sender: LockCell<Option<Sender>>,
    returns: AtomicU32,
    /// Whether the server has given a page back wrong, or not at all. Once lost, it is not taken in again.
    has_failed: AtomicBool,
    /// Whether the server did not answer when a fork asked it to clone the session.
    is_mute: AtomicBool,
    /// A futex word on which the worker of a lost member sleeps.
    wait_word: AtomicU32,
}

/// A store that survives the loss of memory servers.
pub struct Redundant {
    members: Vec<Member>,
    machine: LockCell<Machine>,
    /// Held while a lost member is taken in again, so that two of them do not become the same server.
    returning: LockCell<()>,
    code: Code,
    buffers: Buffers,
    measures: Measures,
    pace: Pace,
    turns: Turns,
    news: News,
    /// The address of the page in each frame that is being written.
    pages: Vec<AtomicUsize>,
    /// The present rule for threads in the background: [`GO_ON`], [`END`] or [`REST`]. A fork changes it.
    pause: AtomicU8,
    /// The number of background threads that use the machine.
    background: AtomicU32,
    /// A futex word. It is incremented when the rebuilder may have something to do.
    rebuild_word: AtomicU32,
}

impl Member {
    fn new(named: Named) -> Self {
        Self {
            named,
            remote: AtomicPtr::new(std::ptr::null_mut()),
            is_there: AtomicBool::new(false),
            sender: LockCell::new(None),
            returns: AtomicU32::new(0),
            has_failed: AtomicBool::new(false),
            is_mute: AtomicBool::new(false),
            wait_word: AtomicU32::new(0),
        }
    }

    /// Returns the store of the member's last session.
    fn remote(&self) -> Option<&Remote> {
        // SAFETY: the pointer is null, or it comes from `Box::into_raw` and is never freed in this process.
        unsafe { self.remote.load(Acquire).as_ref() }
    }

    /// Returns the store of the member's session if the member is not lost.
    fn there(&self) -> Option<&Remote> {
        if self.is_there.load(Acquire) { self.remote() } else { None }
    }

    /// Takes in a new session. The store of the last one stays where it is.
    fn take_in(&self, remote: Remote, sender: Option<Sender>) {
        self.remote.store(Box::into_raw(Box::new(remote)), Release);
        *self.sender.lock() = sender;
        // A forked child has its parent's note about the last session.
        self.is_mute.store(false, Release);
        self.is_there.store(true, Release);
    }
}

impl Redundant {
    /// Makes a store over named servers, some of which may be unreachable. Returns it with its workers, which the caller
    /// must run.
    pub(crate) fn new(
        servers: Vec<(Named, Option<Session>)>,
        shape: Shape,
        redundancy: Redundancy,
        silent: Duration,
    ) -> Result<(Self, Vec<Copyist>), GuardError> {
        let part_bytes = shape.unit_bytes / usize::from(redundancy.data);
        let read_bytes = shape.slot_bytes.max(shape.unit_bytes).max(RUN_BYTES_MAX as usize);
        let measures = Measures { shape, redundancy, part_bytes, read_bytes, silent };
        let mut members = Vec::new();
        let mut states = Vec::new();
        for (named, session) in servers {
            let member = Member::new(named);
            let (host, mut room) = (member.named.host, 0);
            if let Some(session) = session {
                let (remote, mut senders) = measures.remote(&member.named, session)?;
                room = measures.extents_in(remote.room(Ask::Known).capacity_bytes);
                member.take_in(remote, senders.pop());
            }
            states.push(machine::Member::new(host, room, !member.is_there.load(Acquire)));
            members.push(member);
        }
        let sizes = Sizes {
            units: shape.units,
            extent_units: (EXTENT_BYTES / shape.unit_bytes).max(1) as u32,
            frames: measures.frames(),
            data: redundancy.data,
            parity: redundancy.parity,
            job_units: measures.job_units(),
        };
        let machine = Machine::new(sizes, states);
        let store = Self::of(members, machine, Buffers::new(&measures)?, measures);
        store.note_absent();
        let copyists = (0..store.members.len()).map(Copyist::new).collect();
        Ok((store, copyists))
    }

    fn of(members: Vec<Member>, machine: Machine, buffers: Buffers, measures: Measures) -> Self {
        Self {
            news: News::new(members.len()),
            members,
            machine: LockCell::new(machine),
            returning: LockCell::new(()),
            code: Code::new(measures.redundancy.data, measures.redundancy.parity),
            buffers,
            pace: Pace::new(),
            turns: Turns::new(),
            pages: (0..measures.frames()).map(|_| AtomicUsize::new(0)).collect(),
            measures,
            pause: AtomicU8::new(GO_ON),
            background: AtomicU32::new(0),
            rebuild_word: AtomicU32::new(0),
        }
    }

    /// Returns the silence after which a server counts as lost, even if no other server answers.
    pub(crate) fn silent(&self) -> Duration {
        self.measures.silent
    }

    /// Checks whether a member owes an answer to a read.
    pub(crate) fn is_reading(&self) -> bool {
        self.members.iter().filter_map(Member::there).any(Remote::is_reading)
    }

    /// Returns how many of these held base pages, from the first on, one read can fetch.
    pub(crate) fn reach(&self, first: PageId, count: u32) -> u32 {
        self.machine.lock().reach(first.0, count)
    }

    /// Returns an error if the run cannot go on.
    fn check(&self, machine: &Machine) -> Result<(), StoreError<'_>> {
        match machine.fatal() {
            None => Ok(()),
            Some(Fatal::Full) => Err(StoreError::Full(Telling(self, Words::NoRoom))),
            Some(Fatal::Lost) => {
                self.news.is_lost.store(true, Release);
                let mut lost = self.members.iter().filter(|member| !member.is_there.load(Relaxed));
                let server = lost.next().map_or("a memory server", |member| member.named.name.as_str());
                let has_others = lost.next().is_some();
                Err(StoreError::TooFewParts { server, has_others, needed: self.measures.redundancy.data })
            }
        }
    }

    // ---- carrying out ----------------------------------------------------------------------------------------------

    /// Passes the machine's orders to the members. The caller holds the machine.
    fn obey(&self, machine: &mut Machine) {
        while let Some(order) = machine.next_order() {
            match order {
                Order::Write { member, part, frame } => {
                    let (unit, count) = machine.units_in(frame);
                    let page = self.pages[frame as usize].load(Acquire);
                    let at = self.buffers.part_of_page(page, frame, part, count);
                    if self.write_part(member, unit, count, self.measures.frame_of(frame), at) == Some(false) {
                        machine.refused(frame, member);
                    }
                }
                Order::WriteRebuilt { member, job } => {
                    let machine::Job { unit, count, .. } = machine.job(job);
                    let (at, frame) = (self.buffers.job(job), self.measures.frame_of_job(job));
                    if self.write_part(member, unit, count, frame, at) == Some(false) {
                        machine.rebuilt_refused(job, member);
                    }
                }
                Order::Release { member, unit, count } => {
                    if let Some(remote) = self.members[member].there() {
                        remote.release(unit, count);
                    }
                }
            }
        }
    }

    /// Queues the write of a part at a member. Returns whether the member has room. Returns `None` if it is lost.
    fn write_part(&self, member: usize, unit: u32, count: u32, frame: FrameId, at: *const u8) -> Option<bool> {
        let remote = self.members[member].there()?;
        let bytes = count * self.measures.part_bytes as u32;
        let spare = std::ptr::null_mut();
        let write = Write { page: PageId(unit), bytes, frame: Some(frame), at: Some(at), may_be_same: false, spare };
        // SAFETY: the bytes at `at` are those of a page in a frame, of its parity parts, or of a rebuilt part. They do
        // not change before the machine gives the frame back or ends the job. It does so only after the member's sender
        // has acknowledged the part or has stopped. `spare` is not used by a store of servers.
        Some(unsafe { remote.write(&write, &mut |_| {}) }.is_ok())
    }

    /// Sends the machine's requests for parts. The caller does not hold the machine.
    fn send_requests(&self) {
        loop {
            // The lock is held only while the request is taken out.
            let request = self.machine.lock().next_request();
            let Some(request) = request else { return };
            // If the member was lost meanwhile, the machine has asked another member.
            let Some(remote) = self.members[request.member].there() else { continue };
            let read = take::read_of(request, self.measures.part_bytes);
            match remote.ask(&read) {
                Ok(Begun::Later | Begun::Done) => {}
                // So many answers are missing only if the member does not answer.
                Ok(Begun::Full) => self.lose(request.member, remote, Why::Silent),
                Err(error) => self.lose(request.member, remote, Why::of(&error)),
            }
        }
    }

    /// Takes note of the loss of a member, whose session was that of `remote`. The caller then sends requests.
    fn lose(&self, member: usize, remote: &Remote, why: Why) {
        let mut machine = self.machine.lock();
        // The error may belong to an earlier session.
        let is_last = self.members[member].remote().is_some_and(|last| std::ptr::eq(last, remote));
        if !is_last || !machine.lost(member) {
            return;
        }
        self.members[member].is_there.store(false, Release);
        self.obey(&mut machine);
        drop(machine);
        remote.hang_up();
        remote.notify_all();
        self.news.lost(member, why);
        self.notify_rebuilder();
    }

    fn notify_rebuilder(&self) {
        self.rebuild_word.fetch_add(1, Release);
        futex::wake_one(&self.rebuild_word);
    }

    // ---- receiving -------------------------------------------------------------------------------------------------

    /// Polls one member. Returns what came of it, and whether an answer came. A member whose link has ended is lost.
    fn poll_member(&self, index: usize, turn: Turn, take: &mut dyn Take) -> (Polled, bool) {
        let Some(remote) = self.members[index].there() else { return (Polled::Idle, false) };
        let mut parts = Parts::new(self, take);
        match remote.poll(turn, &mut parts) {
            Ok(polled) => {
                let (has_come, has_failed) = (parts.has_come(), parts.has_failed());
                if has_failed {
                    self.leave_out(index, remote, Why::Kept);
                }
                (polled, has_come)
            }
            Err(StoreError::Damaged { read, .. }) => {
                if parts.damaged(&read) {
                    self.leave_out(index, remote, Why::Wrong);
                }
                (Polled::Received, true)
            }
            Err(error) => {
                parts.break_off();
                self.lose(index, remote, Why::of(&error));
                (Polled::Received, true)
            }
        }
    }

    /// Waits for all links together. Then receives the parts that have arrived for any thread.
    fn receive(&self, wait: Wait, take: &mut dyn Take) -> Polled {
        let (mut idle, mut any, mut came) = (true, false, false);
        let has_turn = self.wait_for_links(wait);
        for index in 0..self.members.len() {
            // All replies that were received are passed on, because none of them makes the link readable again.
            while let Some(remote) = self.members[index].there().filter(|remote| remote.is_reading()) {
                let (polled, has_come) = self.poll_member(index, Turn::Receive(Wait::Now), take);
                idle = false;
                any |= polled != Polled::Busy;
                came |= has_come;
                if !has_come || !remote.holds_more() {
                    break;
                }
            }
        }
        self.send_requests();
        if !came {
            self.hedge();
        }
        match (idle, any && (came || has_turn)) {
            (true, _) => Polled::Idle,
            (_, true) => Polled::Received,
            (_, false) => Polled::Busy,
        }
    }

    /// Asks one more server for each read that lasts long.
    fn hedge(&self) {
        let now_ns = now_ns();
        if !self.pace.is_time_to_look(now_ns) {
            return;
        }
        for read in self.pace.slow_reads(now_ns) {
            let mut machine = self.machine.lock();
            machine.slow(read);
            // If all servers are asked, there is nothing more to do for this read.
            self.pace.asked_again(read, now_ns);
        }
        self.send_requests();
    }

    // ---- watching --------------------------------------------------------------------------------------------------

    /// Checks every link, and takes note of the members' room.
    fn keep_up(&self, take: &mut dyn Take) {
        for index in 0..self.members.len() {
            self.poll_member(index, Turn::Upkeep, take);
            let Some(remote) = self.members[index].there() else { continue };
            let room = self.measures.extents_in(remote.room(Ask::Known).capacity_bytes);
            self.machine.lock().set_room(index, room);
        }
        self.suspect();
        self.send_requests();
    }

    /// Ends the pause for a fork. Loses the members that did not answer it.
    fn go_on(&self) {
        self.pause.store(GO_ON, SeqCst);
        for (index, member) in self.members.iter().enumerate() {
            if member.is_mute.swap(false, AcqRel)
                && let Some(remote) = member.there()
            {
                self.lose(index, remote, Why::Silent);
            }
        }
        self.send_requests();
        self.notify_rebuilder();
    }

    /// Loses a member that has owed an answer for long while others answer, if each page can do without it.
    fn suspect(&self) {
        let owes = |member: &&Member| member.there().is_some_and(|remote| remote.owes_longer_than(SUSPECT));
        let answers = self.members.iter().any(|member| member.there().is_some() && !owes(&member));
        if !answers {
            return;
        }
        for (index, member) in self.members.iter().enumerate().filter(|(_, member)| owes(member)) {
            let Some(remote) = member.there() else { continue };
            if self.machine.lock().bears_loss_of(index) {
                self.lose(index, remote, Why::Silent);
            }
        }
    }

    /// Checks whether nothing is under way. From now on, nothing is begun in the background until [`Turn::GoOn`]. While
    /// something is under way, threads in the background end it: what a lost member owed ends with the note of its loss.
    fn is_at_rest(&self, take: &mut dyn Take) -> bool {
        let is_idle = || self.machine.lock().is_idle();
        self.pause.store(if is_idle() { REST } else { END }, SeqCst);
        let mut polled = (0..self.members.len()).map(|index| self.poll_member(index, Turn::Rest, take).0);
        let is_quiet = polled.all(|polled| polled == Polled::Idle);
        let rests = self.pause.load(SeqCst) == REST && self.background.load(SeqCst) == 0 && is_idle() && is_quiet;
        if !rests {
            self.pause.store(END, SeqCst);
            // The upkeep, which also does this, waits for the fork.
            self.suspect();
            self.send_requests();
        }
        rests
    }
}

impl Store for Redundant {
    fn read(&self, read: &Read, take: &mut dyn Take) -> Result<Begun, StoreError<'_>> {
        let place = take.place(read);
        let mut machine = self.machine.lock();
        let Some(index) = machine.read(*read, read.page.0, self.measures.units_of(read.bytes)) else {
            return Ok(Begun::Full);
        };
        self.buffers.begin(index, place);
        self.pace.begins(index, now_ns());
        self.check(&machine)?;
        drop(machine);
        self.send_requests();
        Ok(Begun::Later)
    }

    /// Computes the parts of a page that is in a frame, and queues them at their servers. The caller of
    /// [`Redundant::send`] learns when all parts are held.
    unsafe fn write(&self, write: &Write, _: &mut dyn FnMut(*mut u8)) -> Result<Saved, StoreError<'_>> {
        let Write { page, bytes, frame: Some(frame), at: Some(from), .. } = *write else {
            debug_assert!(false, "a page that goes to servers waits in a frame");
            return Err(StoreError::Full(Telling(self, Words::NoRoom)));
        };
        // SAFETY: the caller of `write` keeps the page's bytes at `from` unchanged until the write has ended.
        if write.may_be_same && unsafe { self.has_sent(page, from, bytes as usize) } {
            return Ok(Saved::Same);
        }
        let index = self.measures.index_of(frame);
        if self.measures.data() > 1 {
            // SAFETY: the caller of `write` keeps the page's bytes at `from` unchanged until the write has ended.
            let bytes = unsafe { std::slice::from_raw_parts(from, bytes as usize) };
            self.buffers.encode(&self.code, bytes, index);
        }
        self.pages[index as usize].store(from as usize, Release);
        let mut machine = self.machine.lock();
        // Ignored: the error is among those that `check` returns.
        let (Ok(()) | Err(_)) = machine.write(index, page.0, self.measures.units_of(bytes));
        self.obey(&mut machine);
        self.check(&machine)?;
        Ok(Saved::Later)
    }

    fn release(&self, unit: u32, count: u32) {
        let mut machine = self.machine.lock();
        let (mut unit, end) = (unit, unit + count);
        while unit < end {
            let count = machine.reach(unit, end - unit);
            machine.release(unit, count);
            self.obey(&mut machine);
            unit += count;
        }
    }

    fn room(&self, ask: Ask) -> Room {
        let mut known_ns = u64::MAX;
        for (index, member) in self.members.iter().enumerate() {
            if let Some(remote) = member.there() {
                let room = remote.room(ask);
                known_ns = known_ns.min(room.known_ns);
                self.machine.lock().set_room(index, self.measures.extents_in(room.capacity_bytes));
            }
        }
        let machine = self.machine.lock();
        let bytes = |extents: u64| extents.saturating_mul(EXTENT_BYTES as u64);
        let known_ns = if known_ns == u64::MAX { now_ns() } else { known_ns };
        Room { capacity_bytes: bytes(machine.room()), placed_bytes: Some(bytes(machine.extents_used())), known_ns }
    }

    fn poll(&self, turn: Turn, take: &mut dyn Take) -> Result<Polled, StoreError<'_>> {
        let polled = match turn {
            Turn::Receive(wait) => self.receive(wait, take),
            Turn::Upkeep => {
                self.keep_up(take);
                Polled::Idle
            }
            Turn::GoOn => {
                self.go_on();
                Polled::Idle
            }
            Turn::Unmap => Polled::Idle,
            Turn::Rest if self.is_at_rest(take) => Polled::Idle,
            Turn::Rest => Polled::Busy,
        };
        let machine = self.machine.lock();
        self.check(&machine)?;
        Ok(polled)
    }

    fn tell(&self, what: Words, out: &mut dyn fmt::Write) -> fmt::Result {
        match what {
            Words::News => self.tell_news(out),
            Words::NoRoom => self.tell_no_room(out),
            Words::Stand => self.members.iter().try_for_each(|member| match member.there() {
                Some(remote) => remote.tell(what, out),
                None => write!(out, "; {} is lost", member.named.name),
            }),
        }
    }
}

impl fmt::Debug for Redundant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.members.iter().map(|member| &member.named.name)).finish()
    }
}
