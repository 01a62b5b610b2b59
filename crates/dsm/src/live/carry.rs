//! The engine of a rank: takes what ranks and traps say to the machine, and has done what it answers (`act`).

mod act;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hanare_sys::map::Mapping;
use hanare_sys::uffd::{self, EVENTS_PER_READ};
use rustix::io::Errno;

use super::behind::{Pages, Shelf};
use super::engine::Counts;
use super::events::{Events, TRAPS};
use super::fatal::{EXIT_LOST, EXIT_OWN, die, must};
use super::gates::Gates;
use super::limit::{Limit, Moved, Trouble};
use super::links::{Link, LinkError};
use super::offers::Offers;
use super::post::{Post, Rest};
use super::region::{PAGE, Region};
use crate::codec::{self, Bodies, Sizes};
use crate::coherence::{Action, Event, Machine, Message, Misuse, Outcome, Rank, State};
use crate::diff::Differ;
use crate::limits::FETCH_AHEAD;

/// Traps whose wait is timed at once; further ones are answered all the same.
const TIMED_MAX: usize = 64;

/// The connection to another rank, and its memory where pages are not carried in messages.
pub(super) struct Peer {
    link: Link,
    memory: Option<Mapping>,
    gates: Option<Gates>,
    shelf: Option<Shelf>,
    /// The events tell also when there is room to send.
    wants_room: bool,
}

impl Peer {
    /// By a link alone, or with what was mapped of a rank of this host, whose post is the link's.
    pub(super) fn new(link: Link, memory: Option<Pages>) -> Self {
        let (memory, gates, shelf) = match memory {
            Some(Pages { region, gates, shelf }) => (Some(region), gates, shelf),
            None => (None, None, None),
        };
        Self { link, memory, gates, shelf, wants_room: false }
    }
}

/// The memory of another rank, where pages are not carried in messages.
fn memory_of(peers: &[Option<Peer>], rank: Rank) -> Option<&Mapping> {
    peers.get(usize::from(rank.0))?.as_ref()?.memory.as_ref()
}

/// Which pages of another rank are in its memory, where that is limited.
fn gates_of(peers: &[Option<Peer>], rank: Rank) -> Option<&Gates> {
    peers.get(usize::from(rank.0))?.as_ref()?.gates.as_ref()
}

/// A message being carried out: from whom, its pages, and their bytes.
#[derive(Clone, Copy)]
struct Source<'a> {
    from: Rank,
    pages: &'a [u32],
    bodies: &'a [&'a [u8]],
    /// The bytes that are not among them are in their pages already.
    is_in_place: bool,
}

const NOWHERE: Source<'static> = Source { from: Rank(0), pages: &[], bodies: &[], is_in_place: false };

/// How often this rank's post is looked into before the kernel is asked what is ready, where every rank has a CPU.
const LOOKS: u32 = 50;
/// How often there may be something in the post before the kernel is asked all the same.
const TAKES_MAX: u32 = 8;
/// Most pages whose diffs go home early at once.
const SHED_MAX: usize = 64;
/// Most pages that one event makes this rank read, for which there is room in a list.
const READS_MAX: usize = FETCH_AHEAD as usize + 1;

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
    /// What peers may read without asking.
    offers: Option<Offers>,
    /// Pages that this rank tried to read without asking, and whether it did; the machine has to be told.
    reads: Vec<(u32, bool)>,
    differ: Differ,
    bodies: Bodies,
    actions: Vec<Action>,
    /// A list for [`Self::find_written`].
    written: Vec<u32>,
    /// A buffer for the next frame.
    spare: Vec<u8>,
    outcome: Option<Outcome>,
    /// Pages on their way, and since when.
    timed: Vec<(u32, Instant)>,
    lost: Option<(Rank, Instant)>,
    /// A call is under way, whoever answers meanwhile.
    is_in_call: bool,
    /// The call that ends everything has begun: peers but rank 0 may go.
    is_ending: bool,
    /// It is over: all may go.
    is_over: bool,
    /// Frames carry checksums. Nothing is damaged between processes of one host.
    is_guarded: bool,
    /// What a rank that does not keep all its pages keeps.
    limit: Option<Limit>,
    /// The touch that is being answered: its page, and whether it is a write.
    touch: Option<(u32, bool)>,
    rank: Rank,
    pub(super) counts: Counts,
}

impl Engine {
    pub(super) fn new(
        machine: Machine,
        region: Region,
        peers: Vec<Option<Peer>>,
        (post, offers): (Option<Arc<Post>>, Option<Offers>),
        has_cpu: bool,
        is_guarded: bool,
        limit: Option<Limit>,
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
            offers,
            reads: Vec::with_capacity(READS_MAX),
            differ: Differ::new(),
            bodies: Bodies::new(),
            actions: Vec::with_capacity(64),
            written: Vec::new(),
            spare: Vec::new(),
            outcome: None,
            timed: Vec::with_capacity(TIMED_MAX),
            lost: None,
            is_in_call: false,
            is_ending: false,
            is_over: false,
            is_guarded,
            limit,
            touch: None,
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
        self.is_in_call &= self.outcome.is_none();
        self.outcome.take()
    }

    pub(super) fn counts(&self) -> Counts {
        let moved = self.limit.as_ref().map_or(Moved::default(), |limit| limit.moved);
        Counts { machine: *self.machine.counters(), moved, ..self.counts }
    }

    /// Finds out which of the pages that are written without traps were written, ahead of a call that tells of them.
    fn find_written(&mut self) {
        let mut written = std::mem::take(&mut self.written);
        written.clear();
        let (machine, region) = (&self.machine, &self.region);
        written.extend(machine.watched().iter().copied().filter(|&page| region.renew_twin(page)));
        if !written.is_empty() {
            // Ignored: never the program's misuse, which is all that it tells.
            let _ = self.step(Event::Wrote { pages: &written }, NOWHERE);
        }
        self.written = written;
    }

    /// Begins a call.
    pub(super) fn call(&mut self, event: Event<'_>, events: &Events) -> Result<(), Misuse> {
        self.is_ending |= matches!(event, Event::Shutdown);
        let tells = matches!(event, Event::Barrier | Event::Release { .. });
        if tells {
            // Until all that is to be protected is, nobody may read what this rank then writes unseen.
            self.offers.iter().for_each(Offers::begin_flush);
            self.find_written();
            self.hear_readers(None, events);
        }
        let begun = self.step(event, NOWHERE);
        self.is_in_call |= begun.is_ok();
        if tells {
            self.offers.iter().for_each(Offers::end_flush);
        }
        self.watch_room(events);
        begun
    }

    /// Takes in what ranks of this host have written, such as that they read pages of this one: ahead of all that makes it tell
    /// what was written to them.
    fn hear_readers(&mut self, but: Option<Rank>, events: &Events) {
        if self.offers.is_none() {
            return;
        }
        for rank in (0..self.peers.len()).filter(|&rank| but != Some(Rank(rank as u16))) {
            if self.peers[rank].as_ref().is_some_and(|peer| peer.link.has_post()) {
                self.take_messages(Rank(rank as u16), false, events);
            }
        }
    }

    /// Has the machine take an event, and carries out what it answers.
    fn step(&mut self, event: Event<'_>, source: Source<'_>) -> Result<(), Misuse> {
        let stepped = self.step_once(event, source);
        while let Some((page, is_here)) = self.reads.pop() {
            // Ignored: never the program's misuse, which is all that it tells.
            let _ = self.step_once(Event::Read { page, is_here }, Source { is_in_place: true, ..NOWHERE });
        }
        stepped
    }

    fn step_once(&mut self, event: Event<'_>, source: Source<'_>) -> Result<(), Misuse> {
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
        self.look_after_servers();
        let (ready, count) = match timeout_us {
            0 => events.look(),
            _ if any || !self.lie_down(Rest::Sleeps) => events.look(),
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

    /// What this rank does when nobody looks: whoever interrupts a call for a signal's sake still waits for others.
    pub(super) fn rest(&self) -> Rest {
        if self.is_in_call { Rest::Sleeps } else { Rest::Computes }
    }

    /// To be called before whoever looks sleeps or leaves: from now on writers ring. Not when there is something to take.
    pub(super) fn lie_down(&self, rest: Rest) -> bool {
        let Some(post) = &self.post else { return true };
        post.lie_down(rest);
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
        let count = match self.region.uffd().read_events(&mut traps) {
            Ok(count) => count,
            Err(errno) => die(EXIT_OWN, &format!("rank {}: its userfaultfd cannot be read: {errno}", self.rank)),
        };
        for trap in &traps[..count] {
            let since = Instant::now();
            let uffd::Event::Fault { addr, write, wp, .. } = *trap else { continue };
            let Some(page) = self.region.page_at(addr) else { continue };
            self.touch = Some((page, write || wp));
            match self.step(Event::Touch { page, write: write || wp }, NOWHERE) {
                Ok(()) => {}
                Err(misuse) => die(EXIT_OWN, &format!("rank {}: touch of {addr:#x}: {misuse}", self.rank)),
            }
            self.touch = None;
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

    /// Gives up the oldest copies while shared pages take more than there is room for, then pages at home. Where it is twins
    /// that take the room, what they are compared with goes home early.
    fn make_room(&mut self) {
        if self.limit.is_none() {
            return;
        }
        if !self.machine.is_in_barrier() {
            self.drop_copies();
        }
        let done = self.make_room_at_home();
        self.must(done);
        if self.limit.as_ref().is_some_and(|limit| limit.lacks_room(&self.region)) {
            self.shed_twins();
        }
    }

    /// Drops clean copies while there is too little room, the oldest first.
    fn drop_copies(&mut self) {
        for _ in 0..self.limit.as_ref().map_or(0, |limit| limit.copies.count()) {
            let held = self.region.pages_held();
            let Some(page) = self.limit.as_mut().and_then(|limit| limit.copies.victim(held)) else { break };
            match self.machine.state(page) {
                // Ignored: never the program's misuse, which is all that it tells.
                State::Clean => _ = self.step(Event::Drop { page }, NOWHERE),
                // Under coherence: perhaps later.
                State::Dirty | State::Fetching | State::Asking => {
                    self.limit.iter_mut().for_each(|limit| limit.copies.came(page));
                }
                _ => {}
            }
        }
    }

    /// Sends home what was written to the oldest copies. They are clean then, and can be dropped.
    fn shed_twins(&mut self) {
        let Some(limit) = &mut self.limit else { return };
        let mut written = std::mem::take(&mut limit.written);
        written.clear();
        let is_dirty = |&page: &u32| self.machine.state(page) == State::Dirty;
        written.extend(limit.copies.iter().filter(is_dirty).take(SHED_MAX));
        if !written.is_empty() {
            // Ignored: never the program's misuse, which is all that it tells.
            let _ = self.step(Event::Shed { pages: &written }, NOWHERE);
        }
        self.limit.iter_mut().for_each(|limit| limit.written = std::mem::take(&mut written));
    }

    fn make_room_at_home(&mut self) -> Result<(), Trouble> {
        let Some(limit) = &mut self.limit else { return Ok(()) };
        let machine = &self.machine;
        let is_used =
            |page| !matches!(machine.state(page), State::Invalid | State::Free | State::Asking | State::Fetching);
        limit.see_off(&mut self.region, is_used)?;
        limit.make_spare_room(&mut self.region)?;
        Ok(limit.hide(&mut self.region)?)
    }

    fn look_after_servers(&mut self) {
        let looked = self.limit.as_mut().map_or(Ok(()), Limit::look);
        self.must(looked.map_err(Trouble::from));
    }

    /// Ends this rank when something it relies on cannot be done.
    fn must(&mut self, done: Result<(), Trouble>) {
        if let Err(trouble) = done {
            die(trouble.exit_code(), &format!("rank {}: {trouble}", self.rank))
        }
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
                    let carried = if self.is_zero_copy && self.limit.is_none() { 0 } else { PAGE };
                    match codec::decode(&header, payload, Sizes { page: PAGE, carried }) {
                        Ok(arrived) => {
                            brought_updates |= matches!(arrived.message, Message::Updates { .. });
                            if from == Rank(0) && matches!(arrived.message, Message::Go { .. }) {
                                // It lets this rank flush, or forget pages. This link's inbox is empty meanwhile.
                                self.hear_readers(Some(from), events);
                            }
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
            Some(LinkError::Closed) if self.lost.is_none() && !self.may_go(from) => {
                self.lost = Some((from, Instant::now()))
            }
            Some(LinkError::Garbage) => die(
                EXIT_LOST,
                &format!("rank {from} sent rank {} what is no message; use the same release everywhere", self.rank),
            ),
            _ => {}
        }
    }

    /// Whether a rank that has gone may have gone in good order. In the last call rank 0 goes when it has told all others, and
    /// those others go when they heard: so rank 0 may not go before this rank, nor anybody before rank 0.
    fn may_go(&self, from: Rank) -> bool {
        self.is_over || self.is_ending && from != Rank(0) && self.rank != Rank(0)
    }

    fn receive(&mut self, from: Rank, arrived: codec::Arrived, payload: &[u8]) {
        let bodies: Vec<&[u8]> = arrived.bodies.into_iter().map(|range| &payload[range]).collect();
        let pages = match &arrived.message {
            Message::Diffs { pages, .. } | Message::Updates { pages, .. } => pages.clone(),
            Message::PageReply { page } => vec![*page],
            _ => Vec::new(),
        };
        let is_in_place = self.is_zero_copy && matches!(arrived.message, Message::Updates { .. });
        let pinned = match arrived.message {
            Message::PageReply { page } if bodies.is_empty() => Some(page),
            _ => None,
        };
        // Ignored: a message is never this rank's misuse, which is all that it tells.
        let _ = self.step(
            Event::Received { from, message: arrived.message },
            Source { from, pages: &pages, bodies: &bodies, is_in_place },
        );
        // Its home has pinned the page for this rank, whether it was still wanted or not.
        if let (Some(page), Some(gates)) = (pinned, gates_of(&self.peers, from)) {
            gates.unpin(page);
        }
    }

    /// Has the events tell of room on links that are behind, and only on those.
    fn watch_room(&mut self, events: &Events) {
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            if peer.link.is_behind() {
                // Ignored: a link that has ended is heard of when it is read; what found no room goes when there is some.
                let _ = peer.link.flush();
            }
            let wants = peer.link.is_behind() && peer.link.is_told_of_room();
            if wants != peer.wants_room {
                peer.wants_room = wants;
                match events.want_room(peer.link.as_fd(), rank as u64, wants) {
                    // A link that ended is watched no more.
                    Ok(()) | Err(Errno::NOENT) => {}
                    other => must("wait for room on a link", other),
                }
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
        let closed = self.region.close();
        self.must(closed.map_err(Trouble::from));
        self.limit.iter().for_each(Limit::close);
        self.peers.clear();
    }
}
