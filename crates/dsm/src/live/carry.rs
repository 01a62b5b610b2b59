//! What the machine answers, carried out on the region and the links.

use std::fs::OpenOptions;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hanare_sys::Errno;
use hanare_sys::map::Mapping;
use hanare_sys::uffd::{self, EVENTS_PER_READ};

use super::engine::Counts;
use super::events::{Events, TRAPS};
use super::fatal::{EXIT_LOST, EXIT_OWN, die};
use super::links::{Link, LinkError};
use super::meet::Join;
use super::post::Post;
use super::region::{PAGE, Region};
use super::room::Room;
use crate::codec::{self, Bodies, Sizes};
use crate::coherence::{Action, Event, Machine, Message, Misuse, Outcome, Purpose, Rank, Run, State};
use crate::diff::{self, Differ};

/// Pages opened around the touched one, where they are this rank's own and nobody shares them.
const AROUND: u32 = 64;
/// Traps whose wait is timed at once; further ones are answered all the same.
const TIMED_MAX: usize = 64;
/// Pages named in one frame when their bytes do not travel with it.
const NAMED_MAX: usize = 32_768;

/// Maps the memory of another rank on this host: its region, and its post.
pub(super) fn peer_memory(join: &Join, bytes: u64) -> Result<(Mapping, Post), String> {
    let path = format!("/proc/{}/fd/{}", join.process, join.memory);
    let advice = "set HANARE_TRANSFER=message (hanare launch --transfer message)";
    let failed = |error: &dyn std::fmt::Display| {
        format!("cannot reach the memory of rank {} by {path}: {error}; {advice}", join.rank)
    };
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(|error| failed(&error))?;
    // A shorter one would end this process at a touch beyond its end.
    if file.metadata().map_err(|error| failed(&error))?.len() != bytes + Post::len_for(join.ranks) {
        return Err(failed(&"it has another size"));
    }
    let region = Mapping::shared(&file, 0, bytes as usize).map_err(|error| failed(&error))?;
    let post = Post::map(&file, bytes, join.ranks).map_err(|error| failed(&error))?;
    Ok((region, post))
}

/// The connection to another rank, and its memory where pages are not carried in messages.
pub(super) struct Peer {
    link: Link,
    memory: Option<Mapping>,
    /// The events tell also when there is room to send.
    wants_room: bool,
}

impl Peer {
    pub(super) fn new(link: Link, memory: Option<Mapping>) -> Self {
        Self { link, memory, wants_room: false }
    }
}

/// The memory of another rank, where pages are not carried in messages.
fn memory_of(peers: &[Option<Peer>], rank: Rank) -> Option<&Mapping> {
    peers.get(usize::from(rank.0))?.as_ref()?.memory.as_ref()
}

/// A message being carried out: from whom, its pages, and their bytes.
#[derive(Clone, Copy)]
struct Source<'a> {
    from: Rank,
    pages: &'a [u32],
    bodies: &'a [&'a [u8]],
    is_update: bool,
}

const NOWHERE: Source<'static> = Source { from: Rank(0), pages: &[], bodies: &[], is_update: false };

/// How often this rank's post is looked into before the kernel is asked what is ready, where every rank has a CPU.
const LOOKS: u32 = 50;
/// How often there may be something in the post before the kernel is asked all the same.
const TAKES_MAX: u32 = 8;

pub(super) struct Engine {
    machine: Machine,
    /// Where ranks of this host write, with zero copy.
    post: Option<Arc<Post>>,
    looks: u32,
    /// How often it had something since the kernel was asked.
    takes: u32,
    region: Region,
    peers: Vec<Option<Peer>>,
    is_zero_copy: bool,
    differ: Differ,
    bodies: Bodies,
    actions: Vec<Action>,
    /// A buffer for the next frame.
    spare: Vec<u8>,
    outcome: Option<Outcome>,
    /// Pages on their way, and since when.
    timed: Vec<(u32, Instant)>,
    lost: Option<(Rank, Instant)>,
    /// The call that ends everything has begun: peers may go.
    is_ending: bool,
    /// Frames carry checksums. Nothing is damaged between processes of one host.
    is_guarded: bool,
    /// Copies are given up when there is no room for them. None for a rank that keeps all.
    room: Option<Room>,
    is_limited: bool,
    rank: Rank,
    pub(super) counts: Counts,
}

impl Engine {
    pub(super) fn new(
        machine: Machine,
        region: Region,
        peers: Vec<Option<Peer>>,
        post: Option<Arc<Post>>,
        has_cpu: bool,
        is_guarded: bool,
        room: Option<Room>,
    ) -> Self {
        let rank = peers.iter().position(Option::is_none).unwrap_or(0);
        Self {
            machine,
            post,
            looks: if has_cpu { LOOKS } else { 1 },
            takes: 0,
            region,
            is_zero_copy: peers.iter().flatten().any(|peer| peer.memory.is_some()),
            peers,
            differ: Differ::new(),
            bodies: Bodies::new(),
            actions: Vec::with_capacity(64),
            spare: Vec::new(),
            outcome: None,
            timed: Vec::with_capacity(TIMED_MAX),
            lost: None,
            is_ending: false,
            is_guarded,
            is_limited: room.is_some(),
            room,
            rank: Rank(rank as u16),
            counts: Counts::default(),
        }
    }

    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    pub(super) fn lost(&self) -> Option<(Rank, Instant)> {
        self.lost
    }

    pub(super) fn is_fetching(&self) -> bool {
        !self.timed.is_empty()
    }

    pub(super) fn take_outcome(&mut self) -> Option<Outcome> {
        self.outcome.take()
    }

    pub(super) fn counts(&self) -> Counts {
        Counts { machine: *self.machine.counters(), ..self.counts }
    }

    /// Begins a call.
    pub(super) fn call(&mut self, event: Event<'_>, events: &Events) -> Result<(), Misuse> {
        self.is_ending |= matches!(event, Event::Shutdown);
        self.step(event, NOWHERE)?;
        self.watch_room(events);
        Ok(())
    }

    fn step(&mut self, event: Event<'_>, source: Source<'_>) -> Result<(), Misuse> {
        let mut actions = std::mem::take(&mut self.actions);
        actions.clear();
        self.region.take_last_shown();
        let stepped = self.machine.step(event, &mut actions);
        for action in actions.drain(..) {
            self.carry_out(action, source);
        }
        self.actions = actions;
        stepped
    }

    /// Answers what is ready within so many microseconds; says whether anything was.
    pub(super) fn pump(&mut self, events: &Events, timeout_us: u64) -> bool {
        let mut any = self.take_post(events);
        // Traps and ends are heard of however much is written.
        self.takes = if any { self.takes + 1 } else { 0 };
        if any && self.takes < TAKES_MAX {
            self.make_room();
            self.watch_room(events);
            return true;
        }
        self.takes = 0;
        let (ready, count) = match timeout_us {
            0 => events.wait(0),
            _ if any || !self.lie_down() => events.wait(0),
            _ => {
                let ready = events.wait(timeout_us);
                self.get_up();
                ready
            }
        };
        for &number in &ready[..count] {
            match number {
                TRAPS => self.take_traps(),
                rank => self.take_messages(Rank(rank as u16), true, events),
            }
        }
        any |= count > 0;
        if any {
            self.make_room();
            self.watch_room(events);
        }
        any
    }

    /// Answers what ranks of this host wrote; says whether there was anything.
    fn take_post(&mut self, events: &Events) -> bool {
        if self.post.is_none() {
            return false;
        }
        for _ in 0..self.looks {
            let mut any = false;
            for rank in 0..self.peers.len() {
                if self.peers[rank].as_ref().is_some_and(|peer| peer.link.has_post()) {
                    self.take_messages(Rank(rank as u16), false, events);
                    any = true;
                }
            }
            if any {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// To be called before whoever looks sleeps or leaves: from now on writers ring. Not when there is something to take.
    pub(super) fn lie_down(&self) -> bool {
        let Some(post) = &self.post else { return true };
        post.lie_down();
        let has_none = self.peers.iter().flatten().all(|peer| !peer.link.has_post());
        if !has_none {
            post.get_up();
        }
        has_none
    }

    /// Somebody looks again.
    pub(super) fn get_up(&self) {
        if let Some(post) = &self.post {
            post.get_up();
        }
    }

    fn take_traps(&mut self) {
        let mut traps = [uffd::Event::EMPTY; EVENTS_PER_READ];
        let count = self.region.uffd().read_events(&mut traps);
        for trap in &traps[..count] {
            let since = Instant::now();
            let uffd::Event::Fault { addr, write, wp, .. } = *trap else { continue };
            let Some(page) = self.region.page_at(addr) else { continue };
            match self.step(Event::Touch { page, write: write || wp }, NOWHERE) {
                Ok(()) => {}
                Err(misuse) => die(EXIT_OWN, &format!("rank {}: touch of {addr:#x}: {misuse}", self.rank)),
            }
            self.counts.fault_ns += since.elapsed().as_nanos() as u64;
            let waits = matches!(self.machine.state(page), State::Fetching | State::Asking);
            if waits && self.timed.len() < TIMED_MAX && self.timed.iter().all(|(other, _)| *other != page) {
                self.timed.push((page, since));
            }
        }
    }

    /// A page is no longer on its way.
    fn came(&mut self, page: u32) {
        if let Some(at) = self.timed.iter().position(|(other, _)| *other == page) {
            let (_, since) = self.timed.swap_remove(at);
            let ns = since.elapsed().as_nanos() as u64;
            self.counts.share_ns += ns;
            self.counts.fault_ns += ns;
        }
    }

    /// Gives up the oldest copies while shared pages take more than there is room for.
    fn make_room(&mut self) {
        let Some(mut room) = self.room.take() else { return };
        if !self.machine.is_in_barrier() {
            for _ in 0..room.copies() {
                let Some(page) = room.victim(self.region.pages_held()) else { break };
                match self.machine.state(page) {
                    // Never the program's misuse.
                    State::Clean => _ = self.step(Event::Drop { page }, NOWHERE),
                    // Under coherence: perhaps later.
                    State::Dirty | State::Fetching | State::Asking => room.came(page),
                    _ => {}
                }
            }
        }
        self.room = Some(room);
    }

    /// Takes what a rank has sent; `told` says that its socket has something.
    fn take_messages(&mut self, from: Rank, told: bool, events: &Events) {
        let Some(Some(peer)) = self.peers.get_mut(usize::from(from.0)) else { return };
        let since = Instant::now();
        let mut brought_updates = false;
        let filled = peer.link.fill(told);
        let mut inbox = peer.link.take_inbox();
        let ended = loop {
            match inbox.frame() {
                Ok(Some((header, payload))) => {
                    let carried = if self.is_zero_copy { 0 } else { PAGE };
                    match codec::decode(&header, payload, Sizes { page: PAGE, carried }) {
                        Ok(arrived) => {
                            brought_updates |= matches!(arrived.message, Message::Updates { .. });
                            self.receive(from, arrived, payload);
                        }
                        Err(_) => break Some(LinkError::Garbage),
                    }
                }
                Ok(None) => break filled.err(),
                Err(error) => break Some(error),
            }
        };
        if brought_updates {
            self.counts.update_ns += since.elapsed().as_nanos() as u64;
        }
        if let Some(Some(peer)) = self.peers.get_mut(usize::from(from.0)) {
            peer.link.put_inbox(inbox);
            if ended.is_some() {
                events.remove(peer.link.as_fd());
            }
        }
        match ended {
            Some(LinkError::Closed) if !self.is_ending && self.lost.is_none() => {
                self.lost = Some((from, Instant::now()))
            }
            Some(LinkError::Garbage) => die(
                EXIT_LOST,
                &format!("rank {from} sent rank {} what is no message; use the same release everywhere", self.rank),
            ),
            _ => {}
        }
    }

    fn receive(&mut self, from: Rank, arrived: codec::Arrived, payload: &[u8]) {
        let bodies: Vec<&[u8]> = arrived.bodies.into_iter().map(|range| &payload[range]).collect();
        let pages = match &arrived.message {
            Message::Diffs { pages, .. } | Message::Updates { pages, .. } => pages.clone(),
            Message::PageReply { page } => vec![*page],
            _ => Vec::new(),
        };
        let is_update = matches!(arrived.message, Message::Updates { .. });
        // A message is never this rank's misuse.
        let _ = self.step(
            Event::Received { from, message: arrived.message },
            Source { from, pages: &pages, bodies: &bodies, is_update },
        );
    }

    fn carry_out(&mut self, action: Action, source: Source<'_>) {
        let done = match action {
            Action::Send { to, message } => {
                self.bodies.clear();
                self.send(to, &message);
                Ok(())
            }
            Action::SendPage { to, page } => self.send_page(to, page),
            Action::SendDiffs { to, pages, purpose } => self.send_diffs(to, pages, purpose),
            Action::SendUpdates { to, pages } => self.send_updates(to, &pages),
            Action::Install { page, writable } => self.install(page, writable, source),
            // The rank that wrote them has put them here.
            Action::Apply { .. } if self.is_zero_copy => Ok(()),
            Action::Apply { index, page } => {
                let body = source.bodies.get(index as usize).copied().unwrap_or_default();
                // Judged when it was decoded.
                let _ = diff::walk_checked(body, PAGE, |at, bytes| self.region.write(page, at, bytes));
                Ok(())
            }
            Action::Twin { page } => {
                self.region.make_twin(page);
                self.region.show(page, true)
            }
            Action::Open { run } => self.open(run),
            Action::Protect { run } => self.region.protect(run),
            // A copy that has gone leaves nothing that anybody asks for.
            Action::Invalidate { run } if self.is_limited => self.region.discard(run),
            Action::Invalidate { run } => self.region.hide(run),
            Action::Discard { run } => self.region.discard(run),
            Action::Wake { page } => self.wake(page),
            Action::WakeAll => {
                self.timed.clear();
                self.region.wake_all();
                Ok(())
            }
            Action::Finished { outcome } => {
                self.outcome = Some(outcome);
                Ok(())
            }
            Action::Fail { failure } => {
                self.last_words(Duration::from_secs(1));
                die(EXIT_LOST, &format!("rank {}: {failure}", self.rank))
            }
        };
        if let Err(Errno(errno)) = done {
            let error = std::io::Error::from_raw_os_error(errno);
            die(
                EXIT_LOST,
                &format!("rank {}: cannot change the view of shared pages: {error}; free memory", self.rank),
            );
        }
    }

    fn send(&mut self, to: Rank, message: &Message) {
        let Some(Some(peer)) = self.peers.get_mut(usize::from(to.0)) else { return };
        let mut frame = std::mem::take(&mut self.spare);
        frame.clear();
        let sequence = peer.link.next_sequence();
        codec::encode(message, &self.bodies, sequence, self.is_guarded, &mut frame);
        self.counts.frames_sent += 1;
        self.counts.bytes_sent += frame.len() as u64;
        // A link that has ended is heard of when it is read.
        if let Ok(Some(emptied)) = peer.link.send(frame) {
            self.spare = emptied;
        }
    }

    fn send_page(&mut self, to: Rank, page: u32) -> Result<(), Errno> {
        self.bodies.clear();
        if !self.is_zero_copy {
            let mut bytes = [0; PAGE];
            self.region.read(page, &mut bytes);
            if bytes != [0; PAGE] {
                self.bodies.add(|out| out.extend_from_slice(&bytes));
            }
        }
        self.send(to, &Message::PageReply { page });
        Ok(())
    }

    fn send_diffs(&mut self, to: Rank, pages: Vec<u32>, purpose: Purpose) -> Result<(), Errno> {
        self.bodies.clear();
        let mut named = Vec::new();
        let (mut twin, mut bytes) = ([0; PAGE], [0; PAGE]);
        for &page in &pages {
            let is_changed = match memory_of(&self.peers, to) {
                Some(memory) => self.region.put_changed(memory, page),
                None => {
                    self.region.read_twin(page, &mut twin);
                    self.region.read(page, &mut bytes);
                    let differ = &mut self.differ;
                    self.bodies.add(|out| _ = differ.encode(&twin, &bytes, out))
                }
            };
            if is_changed {
                named.push(page);
            }
            if self.bodies.is_full() || named.len() == NAMED_MAX {
                let pages = std::mem::take(&mut named);
                self.send(to, &Message::Diffs { purpose, pages, last: false });
                self.bodies.clear();
            }
        }
        self.send(to, &Message::Diffs { purpose, pages: named, last: true });
        if self.is_limited {
            pages.into_iter().try_for_each(|page| self.region.forget_twins(Run { first: page, count: 1 }))?;
        }
        Ok(())
    }

    fn send_updates(&mut self, to: Rank, pages: &[u32]) -> Result<(), Errno> {
        let since = Instant::now();
        self.bodies.clear();
        let mut named = Vec::new();
        for (index, &page) in pages.iter().enumerate() {
            named.push(page);
            match memory_of(&self.peers, to) {
                Some(memory) => self.region.exchange(memory, page, false),
                None => {
                    let mut bytes = [0; PAGE];
                    self.region.read(page, &mut bytes);
                    self.bodies.add(|out| out.extend_from_slice(&bytes));
                }
            }
            let last = index + 1 == pages.len();
            if last || self.bodies.is_full() || named.len() == NAMED_MAX {
                let pages = std::mem::take(&mut named);
                self.send(to, &Message::Updates { pages, last });
                self.bodies.clear();
            }
        }
        self.counts.update_ns += since.elapsed().as_nanos() as u64;
        Ok(())
    }

    fn install(&mut self, page: u32, writable: bool, source: Source<'_>) -> Result<(), Errno> {
        // Ascending in what a rank of ours sends; of another's, a page that is not found counts as one of zeroes.
        let at = source.pages.binary_search(&page).ok();
        match at.and_then(|at| source.bodies.get(at)) {
            Some(body) if !body.is_empty() => self.region.write(page, 0, body),
            // Its home has written it into this page already.
            _ if self.is_zero_copy && source.is_update => {}
            _ if self.is_zero_copy => {
                if let Some(memory) = memory_of(&self.peers, source.from) {
                    self.region.exchange(memory, page, true);
                }
            }
            _ => self.region.clear(page),
        }
        if !source.is_update {
            self.came(page);
        }
        if let Some(room) = &mut self.room {
            room.came(page);
        }
        if writable {
            self.region.make_twin(page);
        }
        self.region.show(page, writable)
    }

    /// Opens this rank's own pages. A whole allocation is left to its first touches, each of which opens some neighbours
    /// too: what is never touched takes no memory.
    fn open(&mut self, run: Run) -> Result<(), Errno> {
        if run.count > 1 {
            return Ok(());
        }
        let page = run.first;
        let is_mine = |page: u32| self.machine.state(page) == State::Open && !self.region.is_shown(page);
        if !is_mine(page) {
            return self.region.show(page, true);
        }
        let block = page / AROUND * AROUND;
        let first = (block..page).rev().take_while(|&page| is_mine(page)).last().unwrap_or(page);
        let count = (page..block + AROUND).take_while(|&page| is_mine(page)).count() as u32 + (page - first);
        self.region.show_all(Run { first, count })
    }

    /// Lets threads try again, with the page as its state allows.
    fn wake(&mut self, page: u32) -> Result<(), Errno> {
        match self.machine.state(page) {
            State::Clean | State::HomeClean if !self.region.is_shown(page) => self.region.show(page, false)?,
            State::Open | State::Dirty | State::HomeDirty if !self.region.is_shown(page) => {
                self.region.show(page, true)?
            }
            _ => {}
        }
        // Showing a page wakes who waits for it.
        if self.region.take_last_shown() != Some(page) {
            self.region.wake(Run { first: page, count: 1 });
        }
        Ok(())
    }

    /// Has the events tell of room on links that are behind, and only on those.
    fn watch_room(&mut self, events: &Events) {
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            if peer.link.is_behind() {
                let _ = peer.link.flush();
            }
            let wants = peer.link.is_behind() && peer.link.is_told_of_room();
            if wants != peer.wants_room {
                peer.wants_room = wants;
                // A link that ended is watched no more.
                let _ = events.want_room(peer.link.as_fd(), rank as u64, wants);
            }
        }
    }

    /// Sends what is still to be sent, for so long.
    pub(super) fn last_words(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        for peer in self.peers.iter_mut().flatten() {
            while peer.link.is_behind() && peer.link.flush().is_ok() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    /// The end: the shared memory is gone, and the links with it.
    pub(super) fn take_away_everything(&mut self) {
        self.region.close();
        self.peers.clear();
    }
}
