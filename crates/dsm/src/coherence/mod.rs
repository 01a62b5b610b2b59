//! The coherence machine of one rank: a pure state machine without I/O, clock, threads or the bytes of pages.
//!
//! It implements eager release consistency with multiple writers, after SCASH (section 2). The states of a page at a
//! rank:
//!
//! ```text
//!  at its home                                     elsewhere
//!
//!     Open ── served to a reader ──► HomeClean       Invalid ── touch ──► Fetching ── reply ──► Clean
//!      ▲                              │   ▲             ▲                    ▲                  │   ▲
//!      │ flushed,               write │   │ flushed,    │ first touch        │            write │   │ flushed
//!      │ nobody shares it             ▼   │ shared      └─► Asking ─ reply ──┘                  ▼   │
//!      └───────────────────────── HomeDirty             (home unknown)                         Dirty
//! ```
//!
//! `Open` pages are written without a trap, because no other rank has a copy. A memory barrier, a release, or a write
//! notice for a `Dirty` page flushes it: protects it and sends its diff home. The home's own writes need no twin,
//! unless they are found by comparison instead of traps (`watch`).
//!
//! **Memory barrier.** All ranks meet (rank 0 counts the arrivals), so that no rank computes any more. Writers send
//! their diffs, one message per home. Homes settle with the ranks whose copies are stale, one message per rank. Then
//! all meet again. *Invalidate* and *adaptive* meet twice, *update* three times (figures 1 and 2): with *update*, homes
//! settle after the second meeting. When a rank arrives at a meeting it names the ranks to which it sends, and rank 0
//! tells each rank how many senders to wait for. So neither diffs nor settlements need acknowledgements of their own.
//!
//! **Locks.** Rank 0 grants them and keeps one log of write notices in the order of the releases. A release flushes,
//! waits until the homes have the diffs, and adds its notices to the log. A grant carries all notices since the rank's
//! last grant. Such a grant may name pages that need no invalidation. But it needs no vector clocks: the writes that
//! happen before a release are in the log before it. A memory barrier makes all copies current and empties the log.
//!
//! **One-sided reads** ([`Action::Read`]). A home offers its shared pages to be read without a request. A reader first
//! sends a message for which it does not wait ([`Message::Joined`]). The message reaches the home before the home next
//! publishes what it wrote. So the reader learns of missing words like any other sharer.
//!
//! **Twins without room** go early ([`Event::Shed`]): the diff goes home at once, and no rank waits for it. The
//! messages that rely on the diff come behind it on the same link: the next request for the page, and the message that
//! every such home gets at the next memory barrier or release, with diffs or without.
//!
//! **Moving a home** happens at the settlement of a memory barrier, when nothing else is in progress, and every rank
//! learns of it. The new home wrote the page at this barrier and has a current copy, so no bytes travel. The old home
//! gives its copy up, so that a page without other copies is `Open` at once.

#![forbid(unsafe_code)]

mod areas;
mod barrier;
mod directory;
mod event;
mod locks;
mod meeting;
mod message;
mod notices;
mod pages;
mod placement;
mod units;
mod watch;

use std::collections::{BTreeSet, VecDeque};

pub use event::{Action, Event, Misuse, Outcome, Reduction};
pub use message::{Adopt, Failure, Message, Move, Purpose, Together, Urgency, Violation};
pub use placement::Placement;
pub(crate) use units::{PageSet, runs_of};
pub use units::{Rank, RankSet, Run};

use crate::limits;
use areas::Areas;
use barrier::Barrier;
use directory::Directory;
use locks::LockCall;
use meeting::Meeting;
use notices::LockKeeper;

/// How stale copies become current again at a memory barrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Stale copies are taken away, and fetched at the next access (section 2.3.2).
    Invalidate,
    /// Their homes send the pages (section 2.3.1).
    Update,
    /// One of the two, chosen for each copy by its rank's past use.
    Adaptive,
}

/// The parameters of one rank's machine. All but `rank` are the same on every rank.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// This rank.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: u16,
    /// Pages of the region.
    pub pages: u32,
    /// How to treat stale copies.
    pub protocol: Protocol,
    /// Whether homes move to the main writer.
    pub migrate: bool,
    /// Whether writes to shared home pages may be found by comparison ([`Action::Watch`]). Such a page must stay in
    /// memory.
    pub watch: bool,
    /// Whether readers may read a home's offered pages themselves ([`Action::Read`]).
    pub one_sided: bool,
}

/// Why a machine cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// Too few or too many ranks.
    #[error("{0} ranks; start between 1 and 256")]
    Ranks(u16),
    /// A rank number that is too large.
    #[error("rank {0} of {1}; ranks count from 0")]
    Rank(Rank, u16),
    /// Too few or too many pages.
    #[error("a shared region of {0} pages; give it between 1 and 67108864")]
    Pages(u32),
}

/// State of a page at a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// In no allocation.
    Free,
    /// Home, writable, not watched: no other rank has a copy.
    Open,
    /// Home, protected.
    HomeClean,
    /// Home, written since it was protected.
    HomeDirty,
    /// No copy here.
    Invalid,
    /// A copy for reading.
    Clean,
    /// A copy that is written, with a twin.
    Dirty,
    /// No copy. The rank has asked which rank is home.
    Asking,
    /// Requested from its home.
    Fetching,
}

/// A write waits for the page.
const WANTS_WRITE: u8 = 1;
/// This rank has no copy, and the home knows it: it was told by a message, or this rank never had one.
const LEFT: u8 = 2;
/// The page being fetched may lack words of which a lock's grant gave notice: fetch it again.
const FETCH_AGAIN: u8 = 4;
/// The page is in the list of pages to settle.
const CHANGED: u8 = 8;
/// Fetched with the page before it: part of a block that is read whole.
const JOINED: u8 = 16;
/// This rank is the page's home, and writes it without traps.
const WATCHED: u8 = 32;

/// The home of a page whose home is unknown.
const UNKNOWN: Rank = Rank(u16::MAX);

#[derive(Clone, Copy, Debug)]
struct Local {
    home: Rank,
    state: State,
    flags: u8,
    /// Index in the directory, at the home of a shared page.
    entry: u32,
    /// At the home of a shared page: the number of the last flush that published a write of this rank; 0 for none.
    told: u32,
}

const FREE: Local = Local { home: UNKNOWN, state: State::Free, flags: 0, entry: directory::NONE, told: 0 };

/// A rank's counts since its start, for the tables of the paper (figures 8 to 13).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Memory barriers passed.
    pub barriers: u64,
    /// Meetings of all ranks, in barriers and other calls.
    pub meetings: u64,
    /// Reads that had to wait or change something.
    pub read_faults: u64,
    /// Writes that had to wait or change something.
    pub write_faults: u64,
    /// Pages fetched from their homes (page shares).
    pub pages_fetched: u64,
    /// Pages sent to sharers at memory barriers (page updates).
    pub pages_updated: u64,
    /// Copies of this rank that were invalidated.
    pub pages_invalidated: u64,
    /// Copies that this rank gave up by itself.
    pub pages_dropped: u64,
    /// Twins made.
    pub twins: u64,
    /// Pages compared with their twins for a home.
    pub pages_flushed: u64,
    /// Messages with diffs: one per home and flush.
    pub flushes: u64,
    /// Pages whose home moved away from this rank.
    pub homes_moved: u64,
    /// Locks acquired.
    pub locks: u64,
}

/// The call in progress.
#[derive(Debug)]
enum Call {
    None,
    Barrier(Barrier),
    Lock(LockCall),
    /// A free. It waits until these homes have the early diffs, which may concern freed pages, and until none of the
    /// freed pages is being fetched.
    Freeing {
        first: u32,
        homes: RankSet,
    },
    /// A call that ends with its meeting.
    Gather {
        what: Together,
        then: Then,
    },
}

#[derive(Clone, Copy, Debug)]
enum Then {
    Alloc { first: Option<u32> },
    Free { first: u32 },
    Reduce,
    Shutdown,
}

/// The result of checking a peer's message. An error ends the program with a message, and never crashes this process.
type Checked = Result<(), Violation>;

/// The coherence machine of one rank.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    /// All pages up to the last one ever allocated.
    pages: Vec<Local>,
    directory: Directory,
    areas: Areas,
    /// Pages in [`State::Dirty`] or [`State::HomeDirty`].
    dirty: Vec<u32>,
    /// Pages written since the last release and flushed before it.
    flushed_early: Vec<u32>,
    /// Homes that got diffs early. The next flush sends each a message, behind which the diffs have arrived.
    early_homes: RankSet,
    /// Home pages to settle at the next memory barrier.
    changed: Vec<u32>,
    /// Ranks whose diffs of this barrier have arrived.
    diffs_here: RankSet,
    /// Ranks that have settled with this one at this barrier.
    settled_here: RankSet,
    /// Copies to take away at the end of this barrier.
    to_invalidate: Vec<u32>,
    /// Whether an access was deferred to the end of this barrier.
    is_waited_for: bool,
    /// Home pages whose writes are found by comparison.
    watched: Vec<u32>,
    /// Number of the last flush.
    flushes: u32,
    /// Number of times that the pages after a written one were candidates for opening. It decides when the guess is
    /// checked.
    guesses: u32,
    call: Call,
    held: BTreeSet<u32>,
    /// Write notices that came with a grant.
    noticed: Vec<u32>,
    /// At rank 0: the meeting and the locks.
    meeting: Meeting,
    keeper: LockKeeper,
    /// Messages of this rank to itself.
    to_self: VecDeque<Message>,
    over: bool,
    counters: Counters,
}

impl Machine {
    /// A machine without shared pages yet.
    ///
    /// # Errors
    /// When the configuration is outside the [`limits`].
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        if config.ranks == 0 || usize::from(config.ranks) > limits::RANKS_MAX {
            return Err(ConfigError::Ranks(config.ranks));
        }
        if config.rank.0 >= config.ranks {
            return Err(ConfigError::Rank(config.rank, config.ranks));
        }
        if config.pages == 0 || config.pages > limits::PAGES_MAX {
            return Err(ConfigError::Pages(config.pages));
        }
        Ok(Self {
            config,
            pages: Vec::new(),
            directory: Directory::default(),
            areas: Areas::new(config.pages),
            dirty: Vec::new(),
            flushed_early: Vec::new(),
            early_homes: RankSet::EMPTY,
            changed: Vec::new(),
            diffs_here: RankSet::EMPTY,
            settled_here: RankSet::EMPTY,
            to_invalidate: Vec::new(),
            is_waited_for: false,
            watched: Vec::new(),
            flushes: 0,
            guesses: 0,
            call: Call::None,
            held: BTreeSet::new(),
            noticed: Vec::new(),
            meeting: Meeting::new(config.ranks),
            keeper: LockKeeper::new(config.ranks),
            to_self: VecDeque::with_capacity(16),
            over: false,
            counters: Counters::default(),
        })
    }

    /// Takes one event and appends the resulting actions.
    ///
    /// # Errors
    /// When this rank's program made a call that it cannot make; then nothing changed. A peer's error becomes
    /// [`Action::Fail`] instead, on every rank.
    pub fn step(&mut self, event: Event<'_>, actions: &mut Vec<Action>) -> Result<(), Misuse> {
        if self.over {
            return match event {
                Event::Received { .. } => Ok(()),
                _ => Err(Misuse::Over),
            };
        }
        match event {
            Event::Touch { page, write } => self.touch(page, write, actions)?,
            Event::Drop { page } => self.drop_copy(page, actions),
            Event::Shed { pages } => self.shed(pages, actions),
            Event::Wrote { pages } => self.found_written(pages, actions),
            Event::Read { page, is_here } => self.has_read(page, is_here, actions),
            Event::Received { from, message } => self.receive_checked(from, message, actions),
            call => {
                if !matches!(self.call, Call::None) {
                    return Err(Misuse::Busy);
                }
                self.begin(call, actions)?;
            }
        }
        while let Some(message) = self.to_self.pop_front() {
            self.receive_checked(self.config.rank, message, actions);
        }
        Ok(())
    }

    /// A page's state. [`State::Free`] outside the region.
    #[must_use]
    pub fn state(&self, page: u32) -> State {
        self.pages.get(page as usize).map_or(State::Free, |local| local.state)
    }

    /// A page's home, if this rank knows it.
    #[must_use]
    pub fn home(&self, page: u32) -> Option<Rank> {
        self.pages.get(page as usize).map(|local| local.home).filter(|&home| home != UNKNOWN)
    }

    /// The pages that were written since the last flush: copies with twins, and pages at home.
    #[must_use]
    pub fn dirty(&self) -> &[u32] {
        &self.dirty
    }

    /// The counts since the start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// At rank 0: the call of the ranks that have arrived, and the missing ranks. `None` when no rank waits.
    #[must_use]
    pub fn missing(&self) -> Option<(Together, RankSet)> {
        self.meeting.missing()
    }

    fn begin(&mut self, call: Event<'_>, actions: &mut Vec<Action>) -> Result<(), Misuse> {
        match call {
            Event::Barrier => {
                self.enter_barrier(actions);
                Ok(())
            }
            Event::Acquire { lock } => self.acquire(lock, actions),
            Event::Release { lock } => self.release(lock, actions),
            Event::Alloc { pages, placement } => {
                if pages == 0 || !placement.is_valid(self.config.ranks) {
                    return Err(Misuse::BadAllocation);
                }
                let mut detail = Detail::new();
                detail.take(u64::from(pages));
                placement.describe(&mut |number| detail.take(number));
                // The pages get their homes before the other ranks continue, because another rank may request a page at
                // once.
                let first = self.areas.take(pages);
                if let Some(first) = first {
                    self.lay_out(first, pages, placement, actions);
                }
                let then = Then::Alloc { first };
                self.gather(Together::Alloc, detail.0, Vec::new(), then, actions);
                Ok(())
            }
            Event::Free { first } => {
                self.areas.find(first).ok_or(Misuse::NotAnAllocation(first))?;
                let homes = std::mem::take(&mut self.early_homes);
                self.call = Call::Freeing { first, homes };
                self.send_diffs_to(homes, Purpose::Lock, actions);
                self.diffs_arrived(actions);
                Ok(())
            }
            Event::Reduce { reduction, values } => {
                if values.is_empty() || values.len() > limits::VALUES_MAX {
                    return Err(Misuse::BadReduction(values.len()));
                }
                self.gather(Together::Reduce, reduction as u64, values.to_vec(), Then::Reduce, actions);
                Ok(())
            }
            Event::Shutdown => {
                self.gather(Together::Shutdown, 0, Vec::new(), Then::Shutdown, actions);
                Ok(())
            }
            Event::Touch { .. }
            | Event::Drop { .. }
            | Event::Shed { .. }
            | Event::Wrote { .. }
            | Event::Read { .. }
            | Event::Received { .. } => Ok(()),
        }
    }

    fn gather(&mut self, what: Together, detail: u64, values: Vec<u64>, then: Then, actions: &mut Vec<Action>) {
        self.call = Call::Gather { what, then };
        let targets = RankSet::EMPTY;
        self.send(Rank(0), Message::Arrive { what, detail, meeting: 1, targets, values }, actions);
    }

    fn receive_checked(&mut self, from: Rank, message: Message, actions: &mut Vec<Action>) {
        if self.over {
            return;
        }
        if let Err(what) = self.receive(from, message, actions) {
            self.fail(Failure::Violation { rank: from, what }, actions);
        }
    }

    fn receive(&mut self, from: Rank, message: Message, actions: &mut Vec<Action>) -> Checked {
        if from.0 >= self.config.ranks {
            return Err(Violation::Number);
        }
        match message {
            Message::PageRequest { page, reader } => self.serve(page, reader, actions),
            Message::PageReply { page } => self.fetched(page, actions),
            Message::HomeRequest { page } => self.say_home(from, page, actions),
            Message::HomeReply { page, home } => self.learn_home(page, home, actions),
            Message::Diffs { purpose, pages, last } => self.take_diffs(from, purpose, &pages, last, actions),
            Message::DiffsDone => self.diffs_done(from, actions),
            Message::Settle { invalid, moves, adopts, last } => {
                self.take_settlement(from, &invalid, &moves, &adopts, actions)?;
                self.count_settlement(from, last, actions)
            }
            Message::Updates { pages, last } => {
                self.take_updates(&pages, actions)?;
                self.count_settlement(from, last, actions)
            }
            Message::Leave { page } => self.forget_sharer(from, page),
            Message::Joined { page } => self.joined(from, page, actions),
            Message::Arrive { what, detail, meeting, targets, values } => {
                self.arrived(from, meeting::Arrival { what, detail, meeting, targets, values }, actions)
            }
            Message::Go { what, meeting, expect, values } => self.go(what, meeting, expect, values, actions),
            Message::Acquire { lock } => self.lock_wanted(from, lock, actions),
            Message::Wrote { runs } => self.log_notices(from, &runs),
            Message::Release { lock } => self.lock_released(from, lock, actions),
            Message::Notice { runs } => self.take_notices(&runs),
            Message::Grant { lock } => self.granted(lock, actions),
            Message::Failed { failure } => {
                self.over = true;
                actions.push(Action::Fail { failure });
                Ok(())
            }
        }
    }

    fn go(&mut self, what: Together, meeting: u8, expect: u16, values: Vec<u64>, actions: &mut Vec<Action>) -> Checked {
        self.counters.meetings += 1;
        match std::mem::replace(&mut self.call, Call::None) {
            Call::Barrier(barrier) if what == Together::Barrier => self.go_on(barrier, meeting, expect, actions),
            Call::Gather { what: mine, then } if mine == what => {
                self.gathered(then, values, actions);
                Ok(())
            }
            _ => Err(Violation::Unasked),
        }
    }

    fn gathered(&mut self, then: Then, values: Vec<u64>, actions: &mut Vec<Action>) {
        let outcome = match then {
            Then::Alloc { first } => first.map_or(Outcome::NoRoom, |first| Outcome::Allocated { first }),
            Then::Free { first } => {
                if let Some(run) = self.areas.give(first) {
                    self.clear_away(run, actions);
                }
                Outcome::Done
            }
            Then::Reduce => Outcome::Reduced { values },
            Then::Shutdown => {
                self.over = true;
                Outcome::Done
            }
        };
        actions.push(Action::Finished { outcome });
    }

    /// Reports the failure to all ranks and to this rank's driver.
    fn fail(&mut self, failure: Failure, actions: &mut Vec<Action>) {
        self.over = true;
        for rank in (0..self.config.ranks).map(Rank).filter(|&rank| rank != self.config.rank) {
            actions.push(Action::Send { to: rank, message: Message::Failed { failure } });
        }
        actions.push(Action::Fail { failure });
    }

    fn send(&mut self, to: Rank, message: Message, actions: &mut Vec<Action>) {
        if to == self.config.rank {
            self.to_self.push_back(message);
        } else {
            actions.push(Action::Send { to, message });
        }
    }

    fn local(&mut self, page: u32) -> Result<&mut Local, Violation> {
        self.pages.get_mut(page as usize).filter(|local| local.state != State::Free).ok_or(Violation::Page)
    }

    /// Whether this rank is the home of a page: its bytes here are the only ones, or the master of all copies.
    ///
    /// The driver may evict such a page from the rank's memory at any time. It must bring the page back before an
    /// action, the program or a peer reads or writes it.
    #[must_use]
    pub fn is_home(&self, page: u32) -> bool {
        matches!(self.state(page), State::Open | State::HomeClean | State::HomeDirty)
    }

    fn in_barrier(&self) -> bool {
        matches!(self.call, Call::Barrier(_))
    }

    /// Whether this rank is in a memory barrier. Then no copy is given up.
    #[must_use]
    pub fn is_in_barrier(&self) -> bool {
        self.in_barrier()
    }
}

/// A hash of a call's arguments, by which ranks compare them (FNV-1a, 64 bits).
struct Detail(u64);

impl Detail {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn take(&mut self, number: u64) {
        for byte in number.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
