//! The coherence machine of one rank. It is a pure state machine: it has no I/O, clock or threads, and never sees the
//! bytes of pages.
//!
//! The machine implements eager release consistency with multiple writers, after SCASH (section 2). A page has these
//! states at a rank:
//!
//! ```text
//!  at its home                                     at other ranks
//!
//!     Open ── served to a reader ──► HomeClean       Invalid ─ access ─► Fetching ── reply ──► Clean
//!      ▲                              │   ▲             ▲                    ▲                  │   ▲
//!      │ flushed,               write │   │ flushed,    │ first touch        │            write │   │ flushed
//!      │ nobody shares it             ▼   │ shared      └─► Asking ─ reply ──┘                  ▼   │
//!      └───────────────────────── HomeDirty             (home unknown)                         Dirty
//! ```
//!
//! An `Open` page is written without a trap, because no other rank has a copy. A memory barrier or a release *flushes*
//! all `Dirty` pages: it write-protects them and sends their diffs home. A write notice for a `Dirty` page flushes only
//! that page. The home's own writes need no twin, except on watched pages (module `watch`). Writes to a watched page
//! are found by comparison with a twin instead of traps.
//!
//! **Memory barrier.** All ranks meet: each rank waits until rank 0 has counted the arrivals of all ranks. After this
//! meeting no rank computes until the barrier ends. Writers send their diffs, one message per home. Then homes *settle*
//! with the ranks whose copies are stale: they invalidate or update these copies, with one message per rank. Then all
//! ranks meet again. *Invalidate* and *adaptive* need two meetings, *update* needs three (figures 1 and 2). With
//! *update*, homes settle after the second meeting. When a rank arrives at a meeting, it names the ranks to which it
//! sends messages. Rank 0 then tells each rank the number of senders to wait for. So diffs and settlements need no
//! acknowledgements.
//!
//! **Locks.** Rank 0 grants the locks. It keeps one log of write notices, in the order of the releases. A rank that
//! releases a lock flushes its pages, waits until the homes have the diffs, and adds its notices to the log. A grant
//! carries all notices that were added since the rank's last grant. Some of these notices may name pages that need no
//! invalidation. But no needed notice is missing, because all writes that happen before a release are in the log before
//! that release. So vector clocks are not needed. A memory barrier makes all copies current and empties the log.
//!
//! **One-sided reads** ([`Action::Read`]). A home offers its shared pages: other ranks may read them from the home's
//! memory without a request. A reader first sends [`Message::Joined`] and does not wait for an answer. This message
//! reaches the home before the home next publishes its writes. So the home tells the reader of later writes, as it
//! tells every sharer.
//!
//! **Early diffs** ([`Event::Shed`]). A rank with too little memory for its twins sends the diffs home immediately, and
//! no rank waits for them. A later message on the same link arrives after the diffs. So the next request for the page
//! finds the diff applied. At the next memory barrier or release, every home that got early diffs gets a message, with
//! or without further diffs.
//!
//! **Moving a home.** A page's home moves only at the settlement of a memory barrier, because no rank computes then.
//! Every rank learns of the move. The new home wrote the page at this barrier and has a current copy, so no bytes are
//! sent. The old home invalidates its copy. So a page without other copies becomes `Open` immediately.

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
    /// Stale copies are invalidated. They are fetched again at the next access (section 2.3.2).
    Invalidate,
    /// Homes send the current pages to the ranks with stale copies (section 2.3.1).
    Update,
    /// Each stale copy is invalidated or updated. The choice depends on how the copy's rank has used the page so far.
    Adaptive,
}

/// The parameters of one rank's machine. All but `rank` are the same on every rank.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The number of this rank.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: u16,
    /// Number of pages of the region.
    pub pages: u32,
    /// How stale copies become current again at a memory barrier.
    pub protocol: Protocol,
    /// Whether a page's home moves to the rank that alone writes the page.
    pub migrate: bool,
    /// Whether writes to shared home pages may be found by comparison with a twin ([`Action::Watch`]). Such a page must
    /// not be evicted.
    pub watch: bool,
    /// Whether ranks may read offered pages from the home's memory ([`Action::Read`]).
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

/// The state of a page at a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The page belongs to no allocation.
    Free,
    /// This rank is the home. The page is writable and not watched, because no other rank has a copy.
    Open,
    /// This rank is the home. The page is write-protected, or it is watched and no write has been found since the last
    /// flush.
    HomeClean,
    /// This rank is the home, and may have written the page since the last flush.
    HomeDirty,
    /// This rank has no copy.
    Invalid,
    /// This rank has a copy that it only reads.
    Clean,
    /// This rank has written its copy, and has a twin of the page.
    Dirty,
    /// This rank has no copy. It has asked another rank which rank is the home.
    Asking,
    /// This rank has no copy. It has requested the page from the home.
    Fetching,
}

/// Flag: a write of this rank waits for the page.
const WANTS_WRITE: u8 = 1;
/// Flag: this rank has no copy, and the home knows that. Either this rank has sent [`Message::Leave`], or it has never
/// had a copy.
const LEFT: u8 = 2;
/// Flag: the page must be fetched again after its arrival, because a write notice has named the page during the fetch.
const FETCH_AGAIN: u8 = 4;
/// Flag: the page is in the list of pages to settle at the next memory barrier.
const CHANGED: u8 = 8;
/// Flag: the page is fetched with the page before it, because both belong to a block that is read whole.
const JOINED: u8 = 16;
/// Flag: this rank is the page's home, and finds its writes to the page by comparison with a twin instead of traps.
const WATCHED: u8 = 32;

/// The value of a page's `home` while this rank does not know the home.
const UNKNOWN: Rank = Rank(u16::MAX);

#[derive(Clone, Copy, Debug)]
struct Local {
    home: Rank,
    state: State,
    flags: u8,
    /// Index of the page's entry in the directory. `directory::NONE` if the page is not shared or this rank is not its
    /// home.
    entry: u32,
    /// Number of the last flush that published a write of this rank to the page, if this rank is the home. 0 if there
    /// was no such flush.
    told: u32,
}

const FREE: Local = Local { home: UNKNOWN, state: State::Free, flags: 0, entry: directory::NONE, told: 0 };

/// A rank's counts since its start, for the tables of the paper (figures 8 to 13).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Memory barriers that this rank has passed.
    pub barriers: u64,
    /// Meetings of all ranks, in barriers and other calls.
    pub meetings: u64,
    /// Reads that trapped.
    pub read_faults: u64,
    /// Writes that trapped.
    pub write_faults: u64,
    /// Pages fetched from their homes (page shares).
    pub pages_fetched: u64,
    /// Pages sent to sharers at memory barriers (page updates).
    pub pages_updated: u64,
    /// Copies of this rank that were invalidated.
    pub pages_invalidated: u64,
    /// Copies that this rank dropped because of [`Event::Drop`].
    pub pages_dropped: u64,
    /// Twins that this rank has made.
    pub twins: u64,
    /// Pages compared with their twins to send diffs to a home.
    pub pages_flushed: u64,
    /// Flushes, counted once for each home that gets a message. The message may have no diffs.
    pub flushes: u64,
    /// Pages whose home moved away from this rank.
    pub homes_moved: u64,
    /// Locks that this rank has acquired.
    pub locks: u64,
}

/// The call in progress.
#[derive(Debug)]
enum Call {
    None,
    Barrier(Barrier),
    Lock(LockCall),
    /// A call that frees an allocation. It waits until all of `homes` have acknowledged the early diffs, which may be
    /// diffs of freed pages. It also waits until none of the freed pages is being fetched.
    Freeing {
        first: u32,
        homes: RankSet,
    },
    /// A call that is complete when all ranks have met once.
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

/// The result of processing a peer's message. A violation ends the program with an error message, without a crash of
/// this process.
type Checked = Result<(), Violation>;

/// The coherence machine of one rank.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    /// The pages from 0 to the last page that was ever allocated.
    pages: Vec<Local>,
    directory: Directory,
    areas: Areas,
    /// Pages in [`State::Dirty`] or [`State::HomeDirty`].
    dirty: Vec<u32>,
    /// Pages that were flushed since the last release or memory barrier. The next release publishes them.
    flushed_early: Vec<u32>,
    /// Homes that got early diffs. The next flush sends each of them a message, which arrives after the early diffs.
    early_homes: RankSet,
    /// Pages that this rank, as their home, must settle at the next memory barrier.
    changed: Vec<u32>,
    /// Ranks that have sent all their diffs for this memory barrier.
    diffs_here: RankSet,
    /// Homes that have sent all their invalidations, updates and moves for this memory barrier.
    settled_here: RankSet,
    /// Copies to invalidate at the end of this memory barrier.
    to_invalidate: Vec<u32>,
    /// Whether an access waits for the end of this memory barrier.
    is_waited_for: bool,
    /// Watched pages: pages whose home is this rank and whose writes are found by comparison.
    watched: Vec<u32>,
    /// Number of the last flush.
    flushes: u32,
    /// Number of writes at which `open_ahead` could also open the following pages. Once in every [`limits::LOOK_AGAIN`]
    /// such writes, it leaves these pages protected.
    guesses: u32,
    call: Call,
    held: BTreeSet<u32>,
    /// Pages named by the write notices that have arrived. The next grant invalidates these pages.
    noticed: Vec<u32>,
    /// At rank 0: the ranks that have arrived at the current meeting.
    meeting: Meeting,
    keeper: LockKeeper,
    /// Messages from this rank to itself.
    to_self: VecDeque<Message>,
    over: bool,
    counters: Counters,
}

impl Machine {
    /// Makes a machine. No pages are allocated yet.
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

    /// Processes one event and appends the resulting actions to `actions`.
    ///
    /// # Errors
    /// Returns an error if this rank's program must not make this call now. The machine is then unchanged. A peer's
    /// error is not returned: it becomes [`Action::Fail`] on every rank.
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

    /// Returns a page's state. It is [`State::Free`] for a page outside the region.
    #[must_use]
    pub fn state(&self, page: u32) -> State {
        self.pages.get(page as usize).map_or(State::Free, |local| local.state)
    }

    /// Returns a page's home, or `None` if this rank does not know the home.
    #[must_use]
    pub fn home(&self, page: u32) -> Option<Rank> {
        self.pages.get(page as usize).map(|local| local.home).filter(|&home| home != UNKNOWN)
    }

    /// Returns the pages that were written since the last flush: copies with twins, and pages whose home is this rank.
    /// Pages in [`State::Open`] are not among them.
    #[must_use]
    pub fn dirty(&self) -> &[u32] {
        &self.dirty
    }

    /// Returns this rank's counts since its start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// At rank 0, returns the call that the arrived ranks make, and the ranks that have not arrived. Returns `None`
    /// when no rank waits.
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
                // The pages get their homes before the other ranks continue, because another rank may then request a
                // page immediately.
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

    /// Checks whether this rank is the home of a page. If so, this rank has the only copy or the master copy of the
    /// page.
    ///
    /// The driver may evict a home page from this rank's memory at any time, unless the page is watched. The driver
    /// must bring the page back before an action, the program or a peer reads or writes it.
    #[must_use]
    pub fn is_home(&self, page: u32) -> bool {
        matches!(self.state(page), State::Open | State::HomeClean | State::HomeDirty)
    }

    fn in_barrier(&self) -> bool {
        matches!(self.call, Call::Barrier(_))
    }

    /// Checks whether this rank is in a memory barrier. During a barrier, [`Event::Drop`] has no effect.
    #[must_use]
    pub fn is_in_barrier(&self) -> bool {
        self.in_barrier()
    }
}

/// A hash of a call's arguments (FNV-1a, 64 bits). Rank 0 compares the hashes of all ranks.
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
