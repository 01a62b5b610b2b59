//! A cluster of ranks in one test: their coherence machines, the memory that the machines control, and the links
//! between the ranks. The link that delivers next is chosen at random.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use std::collections::{HashMap, HashSet, VecDeque};

use hanare_dsm::codec::{self, Arrived, Bodies, Sizes};
use hanare_dsm::coherence::{
    Action, Config, Event, Failure, Machine, Message, Misuse, Outcome, Protocol, Purpose, Rank, Run, State,
};
use hanare_dsm::diff::{self, Differ};
use hanare_wire::frame::{HEADER_BYTES, Header};

pub const PAGE: usize = 32;
pub const WORDS: u32 = 8;

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0 ^ (self.0 >> 33);
        x.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 16
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// The accesses to a page that its protection allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    None,
    Read,
    Write,
}

/// A result that a rank's program receives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    Wake(u32),
    WakeAll,
    Finished(Outcome),
    Failed(Failure),
}

pub struct Node {
    pub machine: Machine,
    pub memory: Vec<[u8; PAGE]>,
    pub access: Vec<Access>,
    pub twins: HashMap<u32, [u8; PAGE]>,
    /// Evicted pages with their bytes. The rank is their home.
    pub away: HashMap<u32, [u8; PAGE]>,
    /// Pages that other ranks may read from this rank's memory.
    pub offered: HashSet<u32>,
    differ: Differ,
}

/// All ranks and the links between them.
pub struct Cluster {
    pub nodes: Vec<Node>,
    links: Vec<VecDeque<Vec<u8>>>,
    /// Whether each link is slow. The frames of a slow link usually arrive after frames that were sent later on other
    /// links.
    slow: Vec<bool>,
    pub random: Random,
    /// Number of frames sent, for each kind of message.
    pub sent: HashMap<&'static str, u64>,
    /// Whether diffs and updates are split into more frames than needed, and some direct reads of pages fail.
    pub chop: bool,
    /// Number of direct reads from a home's memory that succeeded.
    pub reads: u64,
}

impl Cluster {
    pub fn new(ranks: u16, pages: u32, protocol: Protocol, migrate: bool, seed: u64) -> Self {
        Self::with(Config { rank: Rank(0), ranks, pages, protocol, migrate, watch: true, one_sided: false }, seed)
    }

    /// Makes a cluster with the number of ranks in `config`.
    pub fn with(config: Config, seed: u64) -> Self {
        let (ranks, pages) = (config.ranks, config.pages);
        let node = |rank| Node {
            machine: Machine::new(Config { rank: Rank(rank), ..config }).expect("valid"),
            memory: vec![[0; PAGE]; pages as usize],
            access: vec![Access::None; pages as usize],
            twins: HashMap::new(),
            away: HashMap::new(),
            offered: HashSet::new(),
            differ: Differ::new(),
        };
        let mut random = Random(seed);
        let count = usize::from(ranks) * usize::from(ranks);
        Self {
            slow: (0..count).map(|_| random.chance(250)).collect(),
            nodes: (0..ranks).map(node).collect(),
            links: vec![VecDeque::new(); count],
            random,
            sent: HashMap::new(),
            chop: true,
            reads: 0,
        }
    }

    /// Passes an event to a rank, carries out its actions, and returns the results for the rank's program.
    pub fn step(&mut self, rank: usize, event: Event<'_>) -> Result<Vec<News>, Misuse> {
        let mut news = Vec::new();
        if matches!(event, Event::Barrier | Event::Release { .. }) {
            let written = self.nodes[rank].find_written();
            news = self.step_with(rank, Event::Wrote { pages: &written }, &[], &[])?;
            news.extend(self.hear_readers(rank, None));
        }
        news.extend(self.step_with(rank, event, &[], &[])?);
        Ok(news)
    }

    fn step_with(
        &mut self,
        rank: usize,
        event: Event<'_>,
        pages: &[u32],
        bodies: &[&[u8]],
    ) -> Result<Vec<News>, Misuse> {
        let mut actions = Vec::new();
        self.nodes[rank].machine.step(event, &mut actions)?;
        let mut news = Vec::new();
        let mut reads = Vec::new();
        for action in actions {
            if let Action::Read { page, home } = action {
                reads.push((page, self.read(rank, page, home)));
            } else {
                self.carry_out(rank, action, pages, bodies, &mut news);
            }
        }
        for (page, bytes) in reads {
            let event = Event::Read { page, is_here: bytes.is_some() };
            let body = bytes.unwrap_or_default();
            news.extend(self.step_with(rank, event, &[page], &[&body])?);
        }
        self.check_views(rank);
        Ok(news)
    }

    /// Reads a page for `rank` from the home's memory, if the home offers the page. Some reads fail at random if `chop`
    /// is set.
    fn read(&mut self, rank: usize, page: u32, home: Rank) -> Option<[u8; PAGE]> {
        let node = &self.nodes[usize::from(home.0)];
        if !node.offered.contains(&page) || node.away.contains_key(&page) {
            return None;
        }
        assert!(node.machine.is_home(page), "page {page} is offered by its home");
        let bytes = node.for_others(page);
        self.send(rank, home, &Message::Joined { page }, &Bodies::new());
        let is_good = !self.chop || !self.random.chance(100);
        self.reads += u64::from(is_good);
        is_good.then_some(bytes)
    }

    /// Delivers all `Joined` messages to a rank, with the frames that were sent before them on the same links. The link
    /// from the rank `but` is left out.
    fn hear_readers(&mut self, rank: usize, but: Option<usize>) -> Vec<News> {
        let mut news = Vec::new();
        for from in (0..self.nodes.len()).filter(|from| Some(*from) != but) {
            let link = from * self.nodes.len() + rank;
            while self.links[link].iter().any(|frame| matches!(decode(frame).message, Message::Joined { .. })) {
                news.extend(self.deliver_from(from, rank).map(|(_, news)| news).unwrap_or_default());
            }
        }
        news
    }

    fn carry_out(&mut self, rank: usize, action: Action, pages: &[u32], bodies: &[&[u8]], news: &mut Vec<News>) {
        let node = &mut self.nodes[rank];
        match action {
            Action::Send { to, message } => self.send(rank, to, &message, &Bodies::new()),
            Action::SendPage { to, page } => {
                node.bring_in(page);
                let mut body = Bodies::new();
                let bytes = node.for_others(page);
                if bytes != [0; PAGE] {
                    body.add(|out| out.extend_from_slice(&bytes));
                }
                self.send(rank, to, &Message::PageReply { page }, &body);
            }
            Action::SendDiffs { to, pages, purpose } => self.send_diffs(rank, to, pages, purpose),
            Action::SendUpdates { to, pages } => self.send_updates(rank, to, &pages),
            Action::Install { page, writable } => {
                let at = pages.iter().position(|&other| other == page).expect("the page came with the message");
                let bytes = bodies.get(at).map_or([0; PAGE], |body| (*body).try_into().expect("a page"));
                node.memory[page as usize] = bytes;
                if writable {
                    assert!(node.twins.insert(page, bytes).is_none(), "page {page} had a twin");
                }
                node.access[page as usize] = if writable { Access::Write } else { Access::Read };
            }
            Action::Apply { index, page } => {
                assert_eq!(pages[index as usize], page);
                node.bring_in(page);
                diff::apply(bodies[index as usize], &mut node.memory[page as usize]).expect("a diff");
            }
            Action::Read { .. } => unreachable!("done by who carries out the others"),
            Action::Wake { page } => {
                node.show_own(page);
                news.push(News::Wake(page));
            }
            Action::WakeAll => news.push(News::WakeAll),
            Action::Finished { outcome } => news.push(News::Finished(outcome)),
            Action::Fail { failure } => news.push(News::Failed(failure)),
            of_pages => node.change(of_pages),
        }
    }

    fn send_diffs(&mut self, rank: usize, to: Rank, pages: Vec<u32>, purpose: Purpose) {
        let (mut bodies, mut named) = (Bodies::new(), Vec::new());
        for page in pages {
            let node = &mut self.nodes[rank];
            assert_eq!(node.access[page as usize], Access::Read, "a page is protected before it is compared");
            let twin = node.twins.remove(&page).expect("a written page has a twin");
            if bodies.add(|out| _ = node.differ.encode(&twin, &node.memory[page as usize], out)) {
                named.push(page);
            }
            if self.chop && self.random.chance(300) {
                let pages = std::mem::take(&mut named);
                self.send(rank, to, &Message::Diffs { purpose, pages, last: false }, &bodies);
                bodies.clear();
            }
        }
        self.send(rank, to, &Message::Diffs { purpose, pages: named, last: true }, &bodies);
    }

    fn send_updates(&mut self, rank: usize, to: Rank, pages: &[u32]) {
        let size = if self.chop { 1 + self.random.below(pages.len() as u64) as usize } else { pages.len() };
        let mut chunks = pages.chunks(size).peekable();
        while let Some(chunk) = chunks.next() {
            let mut bodies = Bodies::new();
            for &page in chunk {
                self.nodes[rank].bring_in(page);
                let bytes = self.nodes[rank].for_others(page);
                bodies.add(|out| out.extend_from_slice(&bytes));
            }
            let message = Message::Updates { pages: chunk.to_vec(), last: chunks.peek().is_none() };
            self.send(rank, to, &message, &bodies);
        }
    }

    pub fn send(&mut self, from: usize, to: Rank, message: &Message, bodies: &Bodies) {
        let name = format!("{message:?}");
        let name: &str = name.split([' ', '{']).next().unwrap_or_default();
        *self.sent.entry(Box::leak(name.to_owned().into_boxed_str())).or_default() += 1;
        let mut frame = Vec::new();
        codec::encode(message, bodies, 1, true, &mut frame);
        let link = from * self.nodes.len() + usize::from(to.0);
        assert!(from != usize::from(to.0), "a rank does not send to itself");
        self.links[link].push_back(frame);
    }

    /// Checks whether no frame is in transit.
    pub fn is_still(&self) -> bool {
        self.links.iter().all(VecDeque::is_empty)
    }

    /// Delivers the next frame of a random link. Returns the rank that received the frame, and the results for its
    /// program.
    pub fn deliver(&mut self) -> Option<(usize, Vec<News>)> {
        let with_slow = self.random.chance(40);
        let waits = |link: &usize| !self.links[*link].is_empty();
        let mut full: Vec<usize> =
            (0..self.links.len()).filter(waits).filter(|&l| with_slow || !self.slow[l]).collect();
        if full.is_empty() {
            full = (0..self.links.len()).filter(waits).collect();
        }
        let link = *full.get(self.random.below(full.len().max(1) as u64) as usize)?;
        self.deliver_from(link / self.nodes.len(), link % self.nodes.len())
    }

    /// Delivers all frames except those on the link from rank `from` to rank `to`.
    pub fn deliver_all_but(&mut self, from: usize, to: usize) -> Vec<(usize, News)> {
        let held = std::mem::take(&mut self.links[from * self.nodes.len() + to]);
        let mut heard = Vec::new();
        let mut later = VecDeque::new();
        while let Some((rank, news)) = self.deliver() {
            heard.extend(news.into_iter().map(|one| (rank, one)));
            // Frames that were sent on the held link in the meantime wait behind the frames that were held before.
            later.append(&mut self.links[from * self.nodes.len() + to]);
        }
        let link = &mut self.links[from * self.nodes.len() + to];
        *link = held;
        link.append(&mut later);
        heard
    }

    /// Delivers the next frame from one rank to another. Returns the receiver and the results for its program.
    pub fn deliver_from(&mut self, from: usize, to: usize) -> Option<(usize, Vec<News>)> {
        let frame = self.links[from * self.nodes.len() + to].pop_front()?;
        let payload = &frame[HEADER_BYTES..];
        let Arrived { message, bodies } = decode(&frame);
        let mut news = Vec::new();
        if matches!(message, Message::Go { .. }) {
            news = self.hear_readers(to, Some(from));
        }
        let pages = match &message {
            Message::Diffs { pages, .. } | Message::Updates { pages, .. } => pages.clone(),
            Message::PageReply { page } => vec![*page],
            _ => Vec::new(),
        };
        let bodies: Vec<&[u8]> = bodies.into_iter().map(|range| &payload[range]).collect();
        let event = Event::Received { from: Rank(from as u16), message };
        news.extend(self.step_with(to, event, &pages, &bodies).expect("a message is no misuse"));
        Some((to, news))
    }

    /// Checks that the access to each page of a rank is the one that the page's state requires.
    fn check_views(&self, rank: usize) {
        let node = &self.nodes[rank];
        for (page, &access) in node.access.iter().enumerate() {
            let state = node.machine.state(page as u32);
            // A home page may be inaccessible in any state: it is evicted, or it was brought back without an access.
            if node.machine.is_home(page as u32) && access == Access::None {
                continue;
            }
            assert!(!node.away.contains_key(&(page as u32)), "page {page} of rank {rank} is away and {state:?}");
            let is_watched = node.machine.is_watched(page as u32);
            assert!(
                !node.offered.contains(&(page as u32)) || matches!(state, State::HomeClean | State::HomeDirty),
                "page {page} of rank {rank} is offered and {state:?}"
            );
            let expected = match state {
                // A watched page may be writable or write-protected.
                State::HomeClean if is_watched => access,
                State::Free | State::Invalid | State::Asking | State::Fetching => Access::None,
                State::Clean | State::HomeClean => Access::Read,
                State::Dirty | State::HomeDirty | State::Open => Access::Write,
            };
            assert_eq!(access, expected, "page {page} of rank {rank} is {state:?}");
            assert_eq!(
                node.twins.contains_key(&(page as u32)),
                state == State::Dirty || is_watched,
                "twin of page {page}, {state:?}"
            );
        }
    }
}

fn decode(frame: &[u8]) -> Arrived {
    let (head, payload) = frame.split_at(HEADER_BYTES);
    let header = Header::decode(head.try_into().expect("a header")).expect("a header of ours");
    codec::decode(&header, payload, Sizes { page: PAGE, carried: PAGE }).expect("a message of ours")
}

impl Node {
    /// Carries out an action that changes only this rank's own pages.
    fn change(&mut self, action: Action) {
        match action {
            Action::Twin { page } => {
                assert_eq!(self.access[page as usize], Access::Read, "a twin is made of what is shown for reading");
                assert!(self.twins.insert(page, self.memory[page as usize]).is_none(), "page {page} had a twin");
                self.access[page as usize] = Access::Write;
            }
            Action::Open { run } => {
                run.pages().for_each(|page| self.bring_in(page));
                self.set_access(run, Access::Write);
            }
            Action::Offer { page } => assert!(self.offered.insert(page), "page {page} was offered"),
            Action::Withhold { page } => assert!(self.offered.remove(&page), "page {page} was not offered"),
            Action::Watch { page } => {
                assert_eq!(self.access[page as usize], Access::Write, "a page that is watched is written");
                assert!(self.twins.insert(page, self.memory[page as usize]).is_none(), "page {page} had a twin");
            }
            Action::Unwatch { page } => assert!(self.twins.remove(&page).is_some(), "page {page} had no twin"),
            // An inaccessible page stays inaccessible.
            Action::Protect { run } => run.pages().for_each(|page| {
                let access = &mut self.access[page as usize];
                *access = if *access == Access::None { Access::None } else { Access::Read };
            }),
            Action::Invalidate { run } => {
                self.set_access(run, Access::None);
                // The old bytes must not be read any more, so the test overwrites them.
                run.pages().for_each(|page| self.memory[page as usize] = [0xee; PAGE]);
            }
            Action::Reopen { run } => run.pages().for_each(|page| {
                let access = &mut self.access[page as usize];
                assert_eq!(*access, Access::Read, "page {page} is shown for reading");
                *access = Access::Write;
            }),
            Action::Adopted { page } => assert!(self.machine.is_home(page)),
            Action::GivenAway { page } => {
                assert_eq!(self.machine.state(page), State::Clean);
                self.bring_in(page);
                self.access[page as usize] = Access::Read;
            }
            Action::Discard { run } => {
                self.set_access(run, Access::None);
                for page in run.pages() {
                    self.memory[page as usize] = [0; PAGE];
                    self.twins.remove(&page);
                    self.away.remove(&page);
                    self.offered.remove(&page);
                }
            }
            other => unreachable!("{other:?} is done by the cluster"),
        }
    }

    fn set_access(&mut self, run: Run, access: Access) {
        run.pages().for_each(|page| self.access[page as usize] = access);
    }

    /// Evicts a page, if the rank is its home and the page is in memory.
    pub fn take_out(&mut self, page: u32) {
        if self.machine.is_home(page) && !self.away.contains_key(&page) {
            // The old bytes must not be read any more, so the test overwrites them.
            let bytes = std::mem::replace(&mut self.memory[page as usize], [0xdd; PAGE]);
            self.away.insert(page, bytes);
            self.access[page as usize] = Access::None;
        }
    }

    /// Makes an inaccessible home page accessible, as its state allows.
    fn show_own(&mut self, page: u32) {
        if self.machine.is_home(page) && self.access[page as usize] == Access::None {
            self.bring_in(page);
            let writable = matches!(self.machine.state(page), State::Open | State::HomeDirty);
            self.access[page as usize] = if writable { Access::Write } else { Access::Read };
        }
    }

    /// Renews the twins of the watched pages that differ from their twins. Returns these pages.
    fn find_written(&mut self) -> Vec<u32> {
        let differs = |page: &u32| self.twins.get(page) != Some(&self.memory[*page as usize]);
        let written: Vec<u32> = self.machine.watched().iter().copied().filter(differs).collect();
        written.iter().for_each(|&page| _ = self.twins.insert(page, self.memory[page as usize]));
        written
    }

    /// Returns the bytes of a page that sharers receive.
    fn for_others(&self, page: u32) -> [u8; PAGE] {
        let is_watched = self.machine.is_watched(page);
        if is_watched { self.twins[&page] } else { self.memory[page as usize] }
    }

    fn bring_in(&mut self, page: u32) {
        if let Some(bytes) = self.away.remove(&page) {
            self.memory[page as usize] = bytes;
        }
    }

    pub fn word(&mut self, word: u32) -> &mut [u8] {
        let at = (word % WORDS * 4) as usize;
        &mut self.memory[(word / WORDS) as usize][at..at + 4]
    }
}
