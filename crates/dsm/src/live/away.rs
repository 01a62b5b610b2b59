//! The backing store of a rank. Its calls block: when a write returns, the page's bytes may change, and when a read
//! returns, the page is in memory.
//!
//! This module only moves bytes. It does not know which pages leave memory, or which pages the store holds. A page on
//! its way to a memory server waits in a frame, which is a buffer of one page. The page is read from its frame until a
//! sender thread reports that its write has ended. A page that was read stays in the store. So the page need not be
//! written again if it does not change.
#![allow(unsafe_code, reason = "memory that is only borrowed from the program")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use hanare_paging::{FrameId, PageId};
use hanare_settings::Seal;
use hanare_store::{
    Begun, Guarding, Kind, OpenError, Read, Saved, Shape, Store, StoreError, Take, Target, Turn, Worker, Write,
};
use hanare_sys::clock::now_ns;
use hanare_sys::copy;
use hanare_sys::futex::{self, LockCell};
use hanare_sys::map::{MapError, Mapping};
use hanare_sys::signal::SignalMask;
use hanare_wire::Wait;
use hanare_wire::limits::RANGE_MAX;

use super::fatal::die;
use super::region::PAGE;
use crate::coherence::{Rank, Run};

/// Number of frames (buffers of one page) for pages on their way to servers.
const FRAMES: usize = 512;
/// Time between two checks of the servers, in nanoseconds.
const UPKEEP_NS: u64 = 100_000_000;
/// Number of attempts to receive a page before this rank sleeps.
const ATTEMPTS: u32 = 50;
/// Longest time of one sleep while the rank waits for the store.
const NAP: Duration = Duration::from_millis(20);
/// Maximum number of pages that one request reads.
const RUN_MAX: u32 = RANGE_MAX / PAGE as u32;

/// Wait queue that the store notifies when few free slots are left. No thread waits in this queue, because the next
/// write requests more slots itself.
static NOBODY_WAITS: AtomicU32 = AtomicU32::new(0);

/// The reason why a rank has no backing store.
#[derive(Debug, thiserror::Error)]
pub(super) enum AwayError {
    /// The backing store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is no memory for the frames.
    #[error("cannot have room for pages on their way: {0}; raise the limit on address space")]
    Map(#[from] MapError),
    /// A sender thread cannot be started.
    #[error("cannot start a thread that writes to a memory server: {0}; raise 'ulimit -u'")]
    Thread(#[from] std::io::Error),
}

/// The writes that have ended, reported by the senders to the engine.
struct Ended {
    writes: LockCell<Vec<(PageId, FrameId)>>,
    bell: AtomicU32,
    is_over: AtomicBool,
}

/// The backing store of one rank.
pub(super) struct Away {
    store: &'static Kind,
    ended: &'static Ended,
    frames: Mapping,
    free: Vec<u32>,
    /// The frame of each page whose write has not ended.
    leaving: HashMap<u32, u32>,
    looked_ns: u64,
}

/// Receives pages at the addresses that `place` returns for them.
struct Arriving<F> {
    place: F,
    pages_left: u32,
}

impl<F: Fn(u32) -> *mut u8> Take for Arriving<F> {
    fn place(&mut self, read: &Read) -> Option<*mut u8> {
        Some((self.place)(read.page.0))
    }

    fn placed(&mut self, _: &Read) {}

    unsafe fn part(&mut self, _: &Read, _: usize, _: *const u8, _: usize) {}

    fn arrived(&mut self, read: &Read) {
        self.pages_left = self.pages_left.saturating_sub(read.count);
    }

    fn spare(&mut self) -> *mut u8 {
        (self.place)(0)
    }
}

/// Returns a receiver for polls while no read is in progress.
fn nothing() -> Arriving<impl Fn(u32) -> *mut u8> {
    Arriving { place: |_| std::ptr::null_mut(), pages_left: 0 }
}

impl Away {
    /// Connects a rank to its servers and starts the sender threads. The rank's region has `pages` pages. The setting
    /// beside the servers decides whether its pages are sealed.
    pub(super) fn open((target, seal): (&Target, Seal), pages: u32, rank: Rank, ranks: u16) -> Result<Self, AwayError> {
        let sealed = match target {
            Target::Servers { servers, key, .. } => seal.is_on(key.is_some(), servers),
            Target::Own | Target::Private(_) => seal.is_on(false, &[]),
        };
        let small_frames = FRAMES as u32;
        let guarding = if sealed { Guarding::Seals } else { Guarding::Sums };
        let shape = Shape { units: pages, unit_bytes: PAGE, slot_bytes: PAGE, small_frames, wide_frames: 0, guarding };
        let (store, workers) = Kind::open(target, shape, ranks, &NOBODY_WAITS)?;
        let store: &'static Kind = Box::leak(store.into());
        let writes = LockCell::new(Vec::with_capacity(FRAMES));
        let ended = Ended { writes, bell: AtomicU32::new(0), is_over: AtomicBool::new(false) };
        let ended: &'static Ended = Box::leak(ended.into());
        // The sender threads inherit this mask, so that no signal handler of the program runs in them. Such a handler
        // could wait for the engine while the engine waits for the sender.
        let _mask = SignalMask::block_all();
        for worker in workers {
            std::thread::Builder::new()
                .name("hanare-writer".to_owned())
                .spawn(move || work(store, worker, ended, rank))?;
        }
        Ok(Self {
            store,
            ended,
            frames: Mapping::anonymous(FRAMES * PAGE)?,
            free: (0..FRAMES as u32).rev().collect(),
            leaving: HashMap::with_capacity(FRAMES),
            looked_ns: now_ns(),
        })
    }

    fn frame(&self, index: u32) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.frames.addr() + index as usize * PAGE)
    }

    /// Writes a run of pages, whose bytes lie one after another at `from`. The caller may change the bytes after the
    /// call.
    ///
    /// # Safety
    /// The run's bytes are mapped at `from`, and nobody writes to them during the call.
    pub(super) unsafe fn write(&mut self, run: Run, from: *const u8) -> Result<(), StoreError<'static>> {
        for (index, page) in run.pages().enumerate() {
            let mut at = from.wrapping_add(index * PAGE);
            let mut frame = None;
            if self.store.writes_later() {
                self.wait_until(|away| !away.free.is_empty() && !away.leaving.contains_key(&page))?;
                frame = self.free.pop();
            }
            if let Some(index) = frame {
                // SAFETY: `at` is a page at `from`, to which nobody writes, as the caller promises. The frame was free,
                // so no sender reads it.
                unsafe { copy::copy(at, self.frame(index), PAGE) };
                at = self.frame(index).cast_const();
            }
            let write = Write {
                page: PageId(page),
                bytes: PAGE as u32,
                frame: frame.map(|index| FrameId { wide: false, index }),
                at: Some(at),
                may_be_same: false,
                spare: self.frame(0),
            };
            // SAFETY: `at` is a page at `from`, or a frame, which stays unchanged until its write has ended. `to` has
            // room for a page. A store that writes immediately leaves all frames free, so frame 0 can serve as `spare`.
            let saved = unsafe { self.store.write(&write, &mut |to| copy::copy(at, to, PAGE)) }?;
            if let (Saved::Later, Some(frame)) = (saved, frame) {
                self.leaving.insert(page, frame);
            }
        }
        Ok(())
    }

    /// Reads pages that the store holds, in ascending order, each to the address that `place` returns for the page.
    /// Adjacent pages must have adjacent addresses.
    ///
    /// # Safety
    /// Each address has room for a page, which no other code accesses during the call.
    pub(super) unsafe fn read(
        &mut self,
        pages: &[u32],
        place: impl Fn(u32) -> *mut u8,
    ) -> Result<(), StoreError<'static>> {
        self.collect();
        let mut arriving = Arriving { place, pages_left: 0 };
        let mut left = pages;
        while let Some(&first) = left.first() {
            if let Some(&frame) = self.leaving.get(&first) {
                // SAFETY: the frame holds the bytes of page `first`. The address from `place` has room for a page, as
                // the caller promises.
                unsafe { copy::copy(self.frame(frame), (arriving.place)(first), PAGE) };
                left = &left[1..];
                continue;
            }
            let count = self.reach(left);
            let read = Read { page: PageId(first), count, bytes: count * PAGE as u32, frame: None, writable: 0 };
            match self.store.read(&read, &mut arriving)? {
                Begun::Done => left = &left[count as usize..],
                Begun::Later => {
                    arriving.pages_left += count;
                    left = &left[count as usize..];
                }
                Begun::Full => self.receive(&mut arriving)?,
            }
        }
        while arriving.pages_left > 0 {
            self.receive(&mut arriving)?;
        }
        Ok(())
    }

    /// Returns the number of pages at the start of `pages` that one request can read. These pages are adjacent, lie on
    /// one server, and are in no frame.
    fn reach(&self, pages: &[u32]) -> u32 {
        let is_next = |pair: &&[u32]| pair[0] + 1 == pair[1] && !self.leaving.contains_key(&pair[1]);
        let neighbours = 1 + pages.windows(2).take_while(is_next).count() as u32;
        self.store.reach(PageId(pages[0]), neighbours.min(RUN_MAX))
    }

    /// Receives some of the requested pages, or returns after a short wait.
    fn receive(&mut self, take: &mut dyn Take) -> Result<(), StoreError<'static>> {
        for wait in [Wait::Spin { iterations: ATTEMPTS }, Wait::Block { timeout: NAP }] {
            self.store.poll(Turn::Receive(wait), take)?;
            if !self.store.is_reading() {
                return Ok(());
            }
        }
        self.look_in_time(take)?;
        Ok(())
    }

    /// Discards pages that the store holds.
    pub(super) fn forget(&mut self, run: Run) -> Result<(), StoreError<'static>> {
        // A discard must not reach the store before the write of the same page has ended.
        self.wait_until(|away| away.leaving.is_empty() || run.pages().all(|page| !away.leaving.contains_key(&page)))?;
        self.store.release(run.first, run.count);
        Ok(())
    }

    /// Frees the frames of the writes that have ended.
    fn collect(&mut self) {
        if self.leaving.is_empty() {
            return;
        }
        for (page, frame) in self.ended.writes.lock().drain(..) {
            self.leaving.remove(&page.0);
            self.free.push(frame.index);
        }
    }

    fn wait_until(&mut self, enough: impl Fn(&Self) -> bool) -> Result<(), StoreError<'static>> {
        loop {
            let bell = self.ended.bell.load(Ordering::Acquire);
            self.collect();
            if enough(self) {
                return Ok(());
            }
            futex::wait(&self.ended.bell, bell, Some(NAP));
            self.look_in_time(&mut nothing())?;
        }
    }

    /// Checks the servers from time to time. A check finds a server that has ended or is silent, and lets other ranks
    /// use room that this rank does not need. Returns whether it was time for a check.
    pub(super) fn look(&mut self) -> Result<bool, StoreError<'static>> {
        self.look_in_time(&mut nothing())
    }

    fn look_in_time(&mut self, take: &mut dyn Take) -> Result<bool, StoreError<'static>> {
        let now = now_ns();
        let is_time = now.saturating_sub(self.looked_ns) > UPKEEP_NS;
        if is_time {
            self.looked_ns = now;
            self.store.poll(Turn::Upkeep, take)?;
        }
        Ok(is_time)
    }

    /// Closes the store. From now on, the rank needs neither its evicted pages nor its servers.
    pub(super) fn close(&self) {
        self.ended.is_over.store(true, Ordering::Release);
    }
}

/// Runs the thread that sends to one server.
fn work(store: &'static Kind, mut worker: Worker, ended: &'static Ended, rank: Rank) {
    while !ended.is_over.load(Ordering::Acquire) {
        let mut report = |page, frame, _| {
            ended.writes.lock().push((page, frame));
            ended.bell.fetch_add(1, Ordering::Release);
            futex::wake_one(&ended.bell);
        };
        let sent = store.work(&mut worker, &mut report, &mut nothing());
        if let Err(error) = sent
            && !ended.is_over.load(Ordering::Acquire)
        {
            die(error.exit_code(), &format!("rank {rank}: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use hanare_server::{Server, ServerConfig};
    use hanare_settings::ServerSpec;
    use hanare_store::{Copies, EXIT_FULL, EXIT_LOST};
    use hanare_wire::Endpoint;

    use super::*;
    use crate::coherence::runs_of;

    const PAGES: u32 = 1500;

    /// Starts one memory server for each size in `memory`, and runs a test with these servers. Passes the directory of
    /// their Unix sockets and their TCP endpoints.
    fn with_servers(memory: &[u64], test: impl FnOnce(&Path, &[ServerSpec])) {
        let dir = tempfile::tempdir().expect("a directory");
        let mut running = Vec::new();
        let mut specs = Vec::new();
        for (index, &bytes) in memory.iter().enumerate() {
            let unix = Endpoint::Unix(dir.path().join(index.to_string()));
            let config = ServerConfig::new(vec!["127.0.0.1:0".parse().expect("an address"), unix], bytes);
            let server = Server::bind(config).expect("a server");
            specs.push(ServerSpec { endpoint: server.local_addrs()[0].clone(), capacity: None });
            running.push((server.stop_handle(), std::thread::spawn(move || server.run())));
        }
        test(dir.path(), &specs);
        for (stop, thread) in running {
            stop.stop();
            thread.join().expect("no panic").expect("a good end");
        }
    }

    fn named(servers: Vec<ServerSpec>) -> Target {
        Target::Servers { servers, key: None, timeout_s: 5, copies: Copies::default() }
    }

    struct Pages(Mapping);

    impl Pages {
        fn new() -> Self {
            Self(Mapping::anonymous(PAGES as usize * PAGE).expect("memory"))
        }

        fn at(&self, page: u32) -> *mut u8 {
            std::ptr::with_exposed_provenance_mut(self.0.addr() + page as usize * PAGE)
        }

        fn fill(&self, page: u32, value: u8) {
            // SAFETY: the page lies in the mapping, to which no references exist.
            unsafe { self.at(page).write_bytes(value, PAGE) };
        }

        fn holds(&self, page: u32, value: u8) -> bool {
            // SAFETY: the bytes lie in a page of the mapping, to which no references exist.
            (0..PAGE).step_by(97).all(|at| unsafe { self.at(page).add(at).read() } == value)
        }
    }

    /// Writes, reads and discards random runs, and compares what was read with a model. The bytes in memory are
    /// destroyed before each read.
    fn check_against_a_model(away: &mut Away, seed: u64) {
        let pages = Pages::new();
        let mut model: Vec<Option<u8>> = vec![None; PAGES as usize];
        let mut random = seed;
        let mut below = |n: u32| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((random >> 33) % u64::from(n)) as u32
        };
        for turn in 0..600_u32 {
            let first = below(PAGES);
            let run = Run { first, count: 1 + below((PAGES - first).min(40)) };
            match below(10) {
                0 => {
                    let held = run.pages().filter(|&page| model[page as usize].is_some());
                    let held = runs_of(&mut held.collect());
                    held.into_iter().for_each(|run| away.forget(run).expect("forgotten"));
                    run.pages().for_each(|page| model[page as usize] = None);
                }
                1..5 => {
                    let value = (turn % 251) as u8 + 1;
                    run.pages().for_each(|page| pages.fill(page, value));
                    // SAFETY: the run lies in `pages`, which only this test accesses.
                    unsafe { away.write(run, pages.at(run.first)) }.expect("written");
                    run.pages().for_each(|page| pages.fill(page, 0xee));
                    run.pages().for_each(|page| model[page as usize] = Some(value));
                }
                _ => {
                    let held: Vec<u32> = run.pages().filter(|&page| model[page as usize].is_some()).collect();
                    // SAFETY: the pages lie in `pages`, which only this test accesses.
                    unsafe { away.read(&held, |page| pages.at(page)) }.expect("read");
                    for page in held {
                        let value = model[page as usize].expect("held");
                        assert!(pages.holds(page, value), "page {page} at turn {turn}");
                        pages.fill(page, 0xee);
                    }
                }
            }
            away.look().expect("the servers are there");
        }
        assert!(away.leaving.len() + away.free.len() == FRAMES, "each frame is free or used");
    }

    #[test]
    fn slots_give_back_what_was_put_there() {
        with_servers(&[16 << 20], |dir, _| {
            let private = Target::Private(dir.join("0"));
            let mut away = Away::open((&private, Seal::Auto), PAGES, Rank(0), 1).expect("a link");
            check_against_a_model(&mut away, 1);
            away.close();
        });
    }

    #[test]
    fn servers_give_back_what_was_put_there() {
        with_servers(&[16 << 20, 16 << 20], |_, specs| {
            let mut away = Away::open((&named(specs.to_vec()), Seal::Auto), PAGES, Rank(0), 1).expect("links");
            check_against_a_model(&mut away, 2);
            away.close();
        });
    }

    #[test]
    fn a_bound_is_for_all_ranks_and_full_servers_say_so() {
        with_servers(&[64 << 20], |_, specs| {
            let bound = ServerSpec { capacity: Some(64 * PAGE as u64), ..specs[0].clone() };
            let mut away = Away::open((&named(vec![bound]), Seal::Auto), PAGES, Rank(0), 2).expect("links");
            let pages = Pages::new();
            // SAFETY: the run lies in `pages`, which only this test accesses.
            let mut write = |first, count| unsafe { away.write(Run { first, count }, pages.at(first)) };
            write(0, 32).expect("half of the bound for one of two ranks");
            write(0, 32).expect("the same pages again");
            let error = write(40, 1).expect_err("one more");
            assert_eq!(error.exit_code(), EXIT_FULL);
            away.close();
        });
    }

    #[test]
    fn a_server_that_is_gone_is_named() {
        let mut kept = None;
        with_servers(&[16 << 20, 16 << 20], |dir, specs| {
            let servers = Away::open((&named(specs[..1].to_vec()), Seal::Auto), PAGES, Rank(0), 1).expect("a link");
            let slots = Away::open((&Target::Private(dir.join("1")), Seal::Auto), PAGES, Rank(0), 1).expect("a link");
            kept = Some((servers, slots, specs[0].endpoint.to_string()));
        });
        let (mut servers, mut slots, name) = kept.expect("the test ran");
        std::thread::sleep(Duration::from_nanos(2 * UPKEEP_NS));
        let error = servers.look().expect_err("it has ended");
        assert!(error.to_string().contains(&name) && error.exit_code() == EXIT_LOST, "{error}");
        let error = slots.look().expect_err("it has ended");
        assert!(matches!(error, StoreError::Gone) && error.exit_code() == EXIT_LOST, "{error}");
        servers.close();
    }
}
