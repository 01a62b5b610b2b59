//! The engine of a rank. It turns messages and traps into events of the coherence machine, and carries out the
//! machine's actions (module `act`).

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

/// Maximum number of traps whose wait is timed at the same time. Further traps are answered without being timed.
const TIMED_MAX: usize = 64;

/// The connection to another rank, and that rank's mapped memory if messages do not carry pages.
pub(super) struct Peer {
    link: Link,
    memory: Option<Mapping>,
    gates: Option<Gates>,
    shelf: Option<Shelf>,
    /// Whether `Events` also reports when the link has room to send.
    wants_room: bool,
}

impl Peer {
    /// Makes a peer. `memory` is the mapped memory of a rank on this host. `None` means that the peer is reached by its
    /// link alone.
    pub(super) fn new(link: Link, memory: Option<Pages>) -> Self {
        let (memory, gates, shelf) = match memory {
            Some(Pages { region, gates, shelf }) => (Some(region), gates, shelf),
            None => (None, None, None),
        };
        Self { link, memory, gates, shelf, wants_room: false }
    }
}

/// Returns the mapped memory of another rank. `None` if messages carry the pages.
fn memory_of(peers: &[Option<Peer>], rank: Rank) -> Option<&Mapping> {
    peers.get(usize::from(rank.0))?.as_ref()?.memory.as_ref()
}

/// Returns the pin words of another rank's pages. `None` if that rank's memory is unlimited or not mapped.
fn gates_of(peers: &[Option<Peer>], rank: Rank) -> Option<&Gates> {
    peers.get(usize::from(rank.0))?.as_ref()?.gates.as_ref()
}

/// The message that is being processed: its sender, its pages, and their bytes.
#[derive(Clone, Copy)]
struct Source<'a> {
    from: Rank,
    pages: &'a [u32],
    bodies: &'a [&'a [u8]],
    /// Whether a page without a body already has the right bytes.
    is_in_place: bool,
}

const NOWHERE: Source<'static> = Source { from: Rank(0), pages: &[], bodies: &[], is_in_place: false };

/// Number of times that this rank checks its message rings before it asks the kernel for events. If some rank has no
/// CPU of its own, one check is made instead.
const LOOKS: u32 = 50;
/// Maximum number of consecutive checks that find messages in the rings. After these checks, the kernel is asked for
/// events too.
const TAKES_MAX: u32 = 8;
/// Maximum number of pages whose diffs are sent home early at one time.
const SHED_MAX: usize = 64;
/// Maximum number of pages that this rank reads without a request during one event. The list `reads` has room for this
/// many.
const READS_MAX: usize = FETCH_AHEAD as usize + 1;

pub(super) struct Engine {
    machine: Machine,
    /// The message rings into which ranks of this host write. `None` without zero copy.
    post: Option<Arc<Post>>,
    looks: u32,
    /// Number of checks of the rings that found messages since the kernel was last asked for events.
    takes: u32,
    region: Region,
    peers: Vec<Option<Peer>>,
    is_zero_copy: bool,
    /// The pages that peers may read without a request.
    offers: Option<Offers>,
    /// Pages that this rank tried to read without a request, and whether each read succeeded. The machine has not
    /// received these results yet.
    reads: Vec<(u32, bool)>,
    differ: Differ,
    bodies: Bodies,
    actions: Vec<Action>,
    /// A list that [`Self::find_written`] and [`Self::shed_twins`] reuse.
    written: Vec<u32>,
    /// An empty buffer that the next frame uses.
    spare: Vec<u8>,
    outcome: Option<Outcome>,
    /// Pages being fetched, each with the time of its trap.
    timed: Vec<(u32, Instant)>,
    lost: Option<(Rank, Instant)>,
    /// Whether the program is in a call, no matter which thread answers messages during the call.
    is_in_call: bool,
    /// Whether the shutdown call has begun. From then on, ranks other than rank 0 may end.
    is_ending: bool,
    /// Whether the shutdown call is over. From then on, every rank may end.
    is_over: bool,
    /// Whether frames carry checksums. Frames that stay on one host need none.
    is_guarded: bool,
    /// The limit on this rank's memory, if there is one.
    limit: Option<Limit>,
    /// The access that is being answered: its page, and whether it is a write.
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

    /// Tells the machine which watched pages were written without traps. Must be called before a call that publishes
    /// this rank's writes.
    fn find_written(&mut self) {
        let mut written = std::mem::take(&mut self.written);
        written.clear();
        let (machine, region) = (&self.machine, &self.region);
        written.extend(machine.watched().iter().copied().filter(|&page| region.renew_twin(page)));
        if !written.is_empty() {
            // Ignored: this event fails only after the shutdown, and then it has no effect.
            let _ = self.step(Event::Wrote { pages: &written }, NOWHERE);
        }
        self.written = written;
    }

    /// Begins a call.
    pub(super) fn call(&mut self, event: Event<'_>, events: &Events) -> Result<(), Misuse> {
        self.is_ending |= matches!(event, Event::Shutdown);
        let tells = matches!(event, Event::Barrier | Event::Release { .. });
        if tells {
            // From here to `end_flush`, peers discard what they read of this rank's pages. So a peer whose read is
            // valid has already sent the message that `hear_readers` processes.
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

    /// Processes the messages in the message rings, except those of the rank `but`. Some of them report reads of this
    /// rank's pages. Must be called before this rank publishes its writes.
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

    /// Passes an event to the machine, and carries out the resulting actions.
    fn step(&mut self, event: Event<'_>, source: Source<'_>) -> Result<(), Misuse> {
        let stepped = self.step_once(event, source);
        while let Some((page, is_here)) = self.reads.pop() {
            // Ignored: this event fails only after the shutdown, and then it has no effect.
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

    /// Answers all messages and traps that are ready within `timeout_us` microseconds. Returns whether there were any.
    pub(super) fn pump(&mut self, events: &Events, timeout_us: u64) -> bool {
        let mut any = self.take_post(events);
        // After `TAKES_MAX` such checks, the kernel is asked for events too. So traps and closed links are noticed even
        // if messages never stop.
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

    /// Answers the messages in the message rings. Returns whether there was a message.
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

    /// Returns the reason why this rank stops checking its message rings. A rank in a call counts as sleeping, even if
    /// its thread has left the call to run a signal handler.
    pub(super) fn rest(&self) -> Rest {
        if self.is_in_call { Rest::Sleeps } else { Rest::Computes }
    }

    /// Makes other ranks notify this rank of messages from now on. Must be called before the thread that checks the
    /// rings sleeps or stops checking. If the rings already hold a message, reverts this and returns false.
    pub(super) fn lie_down(&self, rest: Rest) -> bool {
        let Some(post) = &self.post else { return true };
        post.lie_down(rest);
        let has_none = self.peers.iter().flatten().all(|peer| !peer.link.has_post());
        if !has_none {
            post.get_up();
        }
        has_none
    }

    /// Notes that a thread checks the message rings again.
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
            let seen = self.limit.as_mut().map_or(Ok(()), |limit| limit.seen(&mut self.region, page));
            self.must(seen);
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

    /// Notes that a page is no longer being fetched, and counts the time of its fetch.
    fn came(&mut self, page: u32) {
        if let Some(at) = self.timed.iter().position(|(other, _)| *other == page) {
            let (_, since) = self.timed.swap_remove(at);
            let ns = since.elapsed().as_nanos() as u64;
            self.counts.share_ns += ns;
            self.counts.fault_ns += ns;
        }
    }

    /// Evicts pages and drops copies while too little memory is free. If twins use the memory, sends the diffs of their
    /// pages home early.
    fn make_room(&mut self) {
        let may_drop = !self.machine.is_in_barrier();
        let Some(limit) = &mut self.limit else { return };
        let machine = &self.machine;
        let is_used =
            |page| !matches!(machine.state(page), State::Invalid | State::Free | State::Asking | State::Fetching);
        let made =
            limit.see_off(&mut self.region, is_used).and_then(|()| limit.make_spare_room(&mut self.region, may_drop));
        self.must(made);
        while let Some(page) = self.limit.as_mut().and_then(|limit| limit.dropping.pop()) {
            // Ignored: this event fails only after the shutdown, and then it has no effect.
            let _ = self.step(Event::Drop { page }, NOWHERE);
            let is_out = self.machine.state(page) == State::Invalid;
            let told = self.limit.as_mut().map_or(Ok(()), |limit| limit.dropped(&mut self.region, page, is_out));
            self.must(told);
        }
        if self.limit.as_ref().is_some_and(|limit| limit.lacks_room(&self.region)) {
            self.shed_twins();
        }
    }

    /// Sends home the diffs of the copies that were written first. These copies become clean, so that they can be
    /// dropped.
    fn shed_twins(&mut self) {
        let mut written = std::mem::take(&mut self.written);
        written.clear();
        let is_copy = |&page: &u32| self.machine.state(page) == State::Dirty;
        written.extend(self.machine.dirty().iter().copied().filter(is_copy).take(SHED_MAX));
        if !written.is_empty() {
            // Ignored: this event fails only after the shutdown, and then it has no effect.
            let _ = self.step(Event::Shed { pages: &written }, NOWHERE);
        }
        self.written = written;
    }

    fn look_after_servers(&mut self) {
        let looked = self.limit.as_mut().map_or(Ok(()), |limit| limit.look(&mut self.region));
        self.must(looked);
    }

    /// Ends this rank with a message if an operation on its memory or its servers has failed.
    fn must(&mut self, done: Result<(), Trouble>) {
        if let Err(trouble) = done {
            die(trouble.exit_code(), &format!("rank {}: {trouble}", self.rank))
        }
    }

    /// Processes the messages of the rank `from`. `told` says that the link's socket is readable.
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
                                // After `Go`, this rank may flush or free pages. So it first processes messages about
                                // reads of its pages. The ring of `from` is skipped, because the inbox of `from` is in
                                // use here.
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

    /// Returns whether a rank whose link has closed may have ended normally. In the shutdown call, rank 0 informs all
    /// other ranks and then ends. Each other rank ends as soon as rank 0 has informed it. So rank 0 cannot end before
    /// it has informed this rank. Any other rank may end before this rank is informed.
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
        // Ignored: a received message never fails here. The machine reports a wrong message by `Action::Fail`.
        let _ = self.step(
            Event::Received { from, message: arrived.message },
            Source { from, pages: &pages, bodies: &bodies, is_in_place },
        );
        // The home pinned the page for this rank. The pin is released even if this rank no longer needs the page.
        if let (Some(page), Some(gates)) = (pinned, gates_of(&self.peers, from)) {
            gates.unpin(page);
        }
    }

    /// Sends queued frames as far as the links have room. A link whose socket reports room is watched for room exactly
    /// while it has queued frames.
    fn watch_room(&mut self, events: &Events) {
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            let Some(peer) = peer else { continue };
            if peer.link.is_behind() {
                // Ignored: if the link is closed, its next read notices that. Frames without room stay queued.
                let _ = peer.link.flush();
            }
            let wants = peer.link.is_behind() && peer.link.is_told_of_room();
            if wants != peer.wants_room {
                peer.wants_room = wants;
                match events.want_room(peer.link.as_fd(), rank as u64, wants) {
                    // The link has closed and been removed from `events`, so nothing has to be set.
                    Ok(()) | Err(Errno::NOENT) => {}
                    other => must("wait for room on a link", other),
                }
            }
        }
    }

    /// Sends the queued frames of each link, until `patience` has passed.
    pub(super) fn last_words(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        for peer in self.peers.iter_mut().flatten() {
            while peer.link.is_behind() && peer.link.flush().is_ok() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    /// Unmaps the shared memory and closes the backing store and the links.
    pub(super) fn take_away_everything(&mut self) {
        let closed = self.region.close();
        self.must(closed.map_err(Trouble::from));
        self.limit.iter().for_each(Limit::close);
        self.peers.clear();
    }
}
