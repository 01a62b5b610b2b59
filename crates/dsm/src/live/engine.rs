//! A rank's calls and the engine's thread: which of them passes events to the engine, and how long each waits.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hanare_paging::kinds::{ByKind, Kind};
use hanare_paging::{Space, prefetch};
use hanare_sys::filter::{self, Refused};
use hanare_sys::futex::{LockCell, LockCellGuard};
use hanare_sys::signal::SignalMask;
use hanare_sys::thread;

use super::away::Away;
use super::behind::{Behind, pages_of, peer_memory};
use super::carry::{Engine, Peer};
use super::events::{Events, TRAPS};
use super::fatal::{EXIT_LOST, EXIT_OWN, die};
use super::gates::Gates;
use super::job::{Job, Meet};
use super::join::Join;
use super::limit::{Limit, Moved};
use super::links::{Link, Posts};
use super::meet::{MeetError, has_hung_up, meet};
use super::region::{PAGE, Region};
use crate::coherence::{Config, Counters, Event, Machine, Misuse, Outcome};

/// How long ranks wait for each other at the start.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time that the engine's thread polls for the answer to a trap before it sleeps. The thread does not poll if
/// some rank has no CPU of its own.
const SPIN: Duration = Duration::from_micros(200);
/// Longest time that a thread polls in a call before it sleeps. The thread does not poll if some rank has no CPU of its
/// own. Polling avoids sleeps, because it takes another rank some ten microseconds to wake a sleeping rank. The time
/// stays below one millisecond.
const SPIN_IN_CALL: Duration = Duration::from_micros(800);
/// Time between two checks for waiting signals while a thread polls in a call.
const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(1);
/// Maximum number of times that a thread answers arriving messages before it leaves a call. Later messages wait at most
/// `NAP_US`.
const LEAVE_MAX: u32 = 1000;
/// Longest sleep in microseconds. It bounds every wait for which no notification arrives.
const NAP_US: u64 = 100_000;
/// Time after the loss of a rank in which another rank may still report the reason.
const EXPLAIN: Duration = Duration::from_millis(300);
/// Longest time for sending the last frames.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The counts and times of a rank. Times are wall-clock nanoseconds.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// The counts of the coherence machine.
    pub machine: Counters,
    /// Time in memory barriers.
    pub barrier_ns: u64,
    /// Time for sending updates and applying received ones, in memory barriers.
    pub update_ns: u64,
    /// Time for answering traps, including the wait for their pages.
    pub fault_ns: u64,
    /// Time from a trap to the arrival of its page, for the traps that had to wait.
    pub share_ns: u64,
    /// Frames sent.
    pub frames_sent: u64,
    /// Bytes of the frames sent.
    pub bytes_sent: u64,
    /// Pages moved to and from memory servers.
    pub moved: Moved,
}

/// Makes the pager and opens the backing store of a rank whose memory is limited. Returns `None` if the memory is
/// unlimited. The rank's pin words lie at the offset `gates_at` of its memfd.
fn open_limit(job: &Job, region: &Region, gates_at: u64) -> Result<Option<Limit>, String> {
    let Some(bytes) = job.local_bytes else { return Ok(None) };
    // Evicted pages are copied and dropped. A transfer that holds such a page would write to memory that is no longer its
    // own.
    filter::refuse(Refused::TransfersAndDirectIo)
        .map_err(|errno| format!("cannot refuse transfers that hold shared pages: {errno}; run without --local"))?;
    let pages = pages_of(job);
    let gates = Gates::map(region.memory(), gates_at, pages).map_err(|error| error.to_string())?;
    let away = Away::open((&job.elsewhere, job.seal), pages, job.rank, job.ranks);
    let away = away.map_err(|error| format!("rank {}: {error}", job.rank))?;
    let space = Space { units: pages, block_units: 1, seed: u64::from(job.rank.0) + 1, hides: true };
    let policy = ByKind::new(&job.policy, space, Kind::LastShared).map_err(|error| error.to_string())?;
    let prefetcher = prefetch::build(&job.prefetch, space).map_err(|error| error.to_string())?;
    let limit = Limit::new(bytes, pages, (gates, away), (policy, prefetcher));
    limit
        .map(Some)
        .map_err(|error| format!("the pager refuses this region ({error:?}); give a smaller HANARE_SHARED_BYTES"))
}

/// The reason why a rank cannot share memory, as one line of text, and the exit code for this error.
#[derive(Debug)]
pub struct StartError {
    /// The exit code.
    pub code: i32,
    /// What is wrong, and what the user should do.
    pub why: String,
}

impl From<String> for StartError {
    fn from(why: String) -> Self {
        Self { code: EXIT_OWN, why }
    }
}

impl From<MeetError> for StartError {
    fn from(error: MeetError) -> Self {
        Self { code: error.exit_code(), why: error.to_string() }
    }
}

/// The engine, locked by a thread of the program. The fields are dropped in order, so the engine is unlocked before
/// signals are delivered.
struct Held<'a> {
    engine: LockCellGuard<'a, Engine>,
    mask: SignalMask,
}

/// A rank that shares memory.
pub struct Live {
    engine: LockCell<Engine>,
    events: Events,
    /// Whether the engine's thread must end.
    is_over: AtomicBool,
    job: Job,
    base: usize,
    spin: Duration,
    spin_in_call: Duration,
}

impl Live {
    /// Connects to the other ranks and starts the engine's thread, which answers their messages. The returned value is
    /// never freed.
    ///
    /// # Errors
    /// The ranks do not meet, or this machine lacks a resource ([`StartError`]).
    pub fn start(job: Job) -> Result<&'static Self, StartError> {
        let (behind, pages) = (Behind::of(&job), pages_of(&job));
        let region = Region::new(job.region_bytes, behind.bytes(), behind.twins_at(), job.rank.0);
        let region = region.map_err(|error| error.to_string())?;
        let post = behind.map_post(region.memory(), job.ranks).map_err(|error| error.to_string())?.map(Arc::new);
        let offers = behind.map_offers(region.memory(), pages).map_err(|error| error.to_string())?;
        let Job { rank, ranks, protocol, migrate, .. } = job;
        // Watched home pages must always be in memory. So a rank with limited memory watches none.
        let watch = job.local_bytes.is_none();
        let config = Config { rank, ranks, pages, protocol, migrate, watch, one_sided: offers.is_some() };
        let machine = Machine::new(config).map_err(|error| error.to_string())?;
        let limit = open_limit(&job, &region, behind.gates_at())?;
        let join = Join::of(&job, region.memory_number());
        let met = meet(&job, &join, PATIENCE)?;
        let failed = |error: &dyn std::fmt::Display| format!("cannot watch the other ranks: {error}; free descriptors");
        let events = Events::new().map_err(|errno| failed(&errno))?;
        events.add(region.uffd().as_fd(), TRAPS).map_err(|errno| failed(&errno))?;
        let mut peers = Vec::new();
        for (rank, met) in met.into_iter().enumerate() {
            let Some((join, line)) = met else {
                peers.push(None);
                continue;
            };
            let (memory, posts) = match &post {
                Some(own) => {
                    let theirs = peer_memory(&join, &job).map_err(|why| match has_hung_up(&line.stream) {
                        true => MeetError::Lost { rank: job.rank, other: join.rank }.into(),
                        false => StartError::from(why),
                    })?;
                    let (theirs, memory) = theirs.split();
                    (Some(memory), Some(Posts { own: own.clone(), peer: join.rank, theirs, me: job.rank }))
                }
                None => (None, None),
            };
            let link = Link::new(line, posts).map_err(|error| failed(&error))?;
            events.add(link.as_fd(), rank as u64).map_err(|errno| failed(&errno))?;
            peers.push(Some(Peer::new(link, memory)));
        }
        let by_tcp = matches!(job.meet, Some(Meet::Address(_)));
        let has_cpu = usize::from(job.ranks) <= thread::cpus_allowed();
        if job.bind && has_cpu && job.ranks > 1 {
            // Ignored: without a binding, ranks may share one CPU while another CPU is idle. This is only slower.
            let _ = thread::set_affinity_share(job.rank.0.into(), job.ranks.into());
        }
        let live: &'static Self = Box::leak(Box::new(Self {
            base: region.address_of(0),
            engine: LockCell::new(Engine::new(machine, region, peers, (post, offers), has_cpu, by_tcp, limit)),
            events,
            is_over: AtomicBool::new(false),
            job,
            spin: if has_cpu { SPIN } else { Duration::ZERO },
            spin_in_call: if has_cpu { SPIN_IN_CALL } else { Duration::ZERO },
        }));
        let thread = std::thread::Builder::new().name("hanare-shared".to_owned());
        {
            // The engine's thread inherits this mask, so no signal handler of the program runs in it. If such a handler
            // accessed shared memory, no thread would answer its trap.
            let _mask = SignalMask::block_all();
            thread.spawn(|| live.serve()).map_err(|error| failed(&error))?;
        }
        // Ignored: a failure only costs time. The program's thread may then preempt the engine's thread, and other
        // ranks wait while the program computes.
        let _ = thread::set_patient();
        Ok(live)
    }

    /// This rank's part in the job.
    #[must_use]
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The address of a page.
    #[must_use]
    pub fn address_of(&self, page: u32) -> usize {
        self.base + page as usize * PAGE
    }

    /// Returns the page that begins at an address. `None` if no page of the region begins there.
    #[must_use]
    pub fn page_at(&self, addr: usize) -> Option<u32> {
        let offset = addr.checked_sub(self.base)?;
        let inside = (offset as u64) < self.job.region_bytes && offset.is_multiple_of(PAGE);
        inside.then_some((offset / PAGE) as u32)
    }

    /// Makes a call and waits for its end. Answers traps and other ranks meanwhile.
    ///
    /// Signals are blocked while this thread holds the engine. Otherwise a handler that accessed shared memory would
    /// wait for the thread that it interrupted. If a signal arrives, this thread soon releases the engine for a moment,
    /// so that the signal is delivered.
    ///
    /// # Errors
    /// Returns an error if the program must not make this call now.
    pub fn call(&self, event: Event<'_>) -> Result<Outcome, Misuse> {
        let is_barrier = matches!(event, Event::Barrier);
        let since = Instant::now();
        let mut held = self.take_over();
        if let Err(misuse) = held.engine.call(event, &self.events) {
            self.give_back(held);
            return Err(misuse);
        }
        let mut quiet_since = Instant::now();
        let mut looked = quiet_since;
        let outcome = loop {
            if let Some(outcome) = held.engine.take_outcome() {
                break outcome;
            }
            let now = Instant::now();
            let sleeps = now.duration_since(quiet_since) >= self.spin_in_call;
            if sleeps || now.duration_since(looked) >= LOOK_FOR_SIGNALS {
                looked = now;
                self.events.watch(&held.mask);
                if held.mask.has_waiting() {
                    self.give_back(held);
                    held = self.take_over();
                    continue;
                }
            }
            if held.engine.pump(&self.events, if sleeps { NAP_US } else { 0 }) {
                quiet_since = Instant::now();
            } else {
                // The rank that this thread waits for may run on the same CPU.
                std::thread::yield_now();
            }
            Self::mourn(&held.engine);
        };
        if is_barrier {
            held.engine.counts.barrier_ns += since.elapsed().as_nanos() as u64;
        }
        self.give_back(held);
        Ok(outcome)
    }

    fn hold(&self) -> Held<'_> {
        let mask = SignalMask::block_all();
        Held { engine: self.engine.lock(), mask }
    }

    /// Locks the engine for the calling thread, which answers traps and other ranks from now on.
    fn take_over(&self) -> Held<'_> {
        let held = self.hold();
        self.events.take_over();
        held.engine.get_up();
        held
    }

    /// Lets the engine's thread answer traps and other ranks again. Then signals that were blocked are delivered.
    fn give_back(&self, mut held: Held<'_>) {
        self.leave(&mut held.engine);
        self.events.give_back();
    }

    /// Makes other ranks wake the engine's thread for urgent messages from now on. Answers the messages that are
    /// already there, because no notification follows for them.
    fn leave(&self, engine: &mut Engine) {
        for _ in 0..LEAVE_MAX {
            if engine.lie_down(engine.rest()) {
                return;
            }
            engine.pump(&self.events, 0);
        }
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.hold().engine.counts()
    }

    /// Sends the queued frames, ends the engine's thread, and unmaps the shared memory. Called after the shutdown call.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        let mut held = self.hold();
        held.engine.last_words(LAST_WORDS);
        held.engine.take_away_everything();
    }

    /// Runs the engine's thread until [`Self::end`].
    fn serve(&self) {
        // Ignored: after a failure, other ranks only wait longer while the program of this rank computes.
        let _ = thread::set_prompt();
        while !self.is_over.load(Ordering::Acquire) {
            if let Some(mut engine) = self.engine.try_lock() {
                engine.get_up();
                engine.pump(&self.events, 0);
                let since = Instant::now();
                // The answer to a trap takes some microseconds. A sleep with its wake-up takes some tens of
                // microseconds.
                while engine.is_fetching() && since.elapsed() < self.spin {
                    if !engine.pump(&self.events, 0) {
                        std::thread::yield_now();
                    }
                }
                self.leave(&mut engine);
                Self::mourn(&engine);
            }
            self.events.sleep(NAP_US);
        }
    }

    /// Ends this rank if another rank was lost longer than `EXPLAIN` ago. Until then, a third rank may still report the
    /// reason.
    fn mourn(engine: &Engine) {
        if let Some((rank, since)) = engine.lost()
            && since.elapsed() > EXPLAIN
        {
            let why = "it ended before dsm_shutdown, or was killed; look at what it said";
            die(EXIT_LOST, &format!("rank {} lost rank {rank}: {why}", engine.rank()));
        }
    }
}
