//! The store of a rank, for an engine that waits: a page is away when its write returns, and here when its read does.
//!
//! This room moves bytes; which pages leave, and which are held, it does not know. A page on its way to a memory
//! server waits in a frame, whose end a sender tells; it is read again from there. A page that comes back stays held, so that
//! one that is not written meanwhile need not go again.
#![allow(unsafe_code, reason = "memory that is only borrowed from the program")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use hanare_paging::{FrameId, PageId};
use hanare_store::{Begun, Kind, OpenError, Read, Saved, Sender, Shape, Store, StoreError, Take, Target, Turn, Write};
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

/// Frames for pages on their way to servers.
const FRAMES: usize = 512;
/// Time between two looks after the servers, in nanoseconds.
const UPKEEP_NS: u64 = 100_000_000;
/// Attempts to receive a page before sleeping for it.
const ATTEMPTS: u32 = 50;
/// One sleep while something is waited for.
const NAP: Duration = Duration::from_millis(20);
/// Pages read by one request.
const RUN_MAX: u32 = RANGE_MAX / PAGE as u32;

/// Rung when few free slots are left; the next write asks for more by itself.
static NOBODY_WAITS: AtomicU32 = AtomicU32::new(0);

/// Why a rank has no store.
#[derive(Debug, thiserror::Error)]
pub(super) enum AwayError {
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is no memory.
    #[error("cannot have room for pages on their way: {0}; raise the limit on address space")]
    Map(#[from] MapError),
    /// There is no thread.
    #[error("cannot start a thread that writes to a memory server: {0}; raise 'ulimit -u'")]
    Thread(#[from] std::io::Error),
}

/// Ends of writes, from the senders to the engine.
struct Ended {
    writes: LockCell<Vec<(PageId, FrameId)>>,
    bell: AtomicU32,
    is_over: AtomicBool,
}

/// The store of one rank.
pub(super) struct Away {
    store: &'static Kind,
    ended: &'static Ended,
    frames: Mapping,
    free: Vec<u32>,
    /// The frame of each page that is on its way out.
    leaving: HashMap<u32, u32>,
    looked_ns: u64,
}

/// Takes pages at the addresses that this gives for them.
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

/// For who reads nothing.
fn nothing() -> Arriving<impl Fn(u32) -> *mut u8> {
    Arriving { place: |_| std::ptr::null_mut(), pages_left: 0 }
}

impl Away {
    /// Connects a rank to its servers and starts the threads that send. Its region has `pages` pages.
    pub(super) fn open(target: &Target, pages: u32, rank: Rank, ranks: u16) -> Result<Self, AwayError> {
        let shape =
            Shape { units: pages, unit_bytes: PAGE, slot_bytes: PAGE, small_frames: FRAMES as u32, wide_frames: 0 };
        let (store, senders) = Kind::open(target, shape, ranks, &NOBODY_WAITS)?;
        let store: &'static Kind = Box::leak(store.into());
        let writes = LockCell::new(Vec::with_capacity(FRAMES));
        let ended = Ended { writes, bell: AtomicU32::new(0), is_over: AtomicBool::new(false) };
        let ended: &'static Ended = Box::leak(ended.into());
        // No handler of the program's ever runs in them: it could wait for the engine, which waits for them.
        let _mask = SignalMask::block_all();
        for sender in senders {
            std::thread::Builder::new()
                .name("hanare-writer".to_owned())
                .spawn(move || send(store, sender, ended, rank))?;
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

    /// Puts a run of pages away, whose bytes lie at an address one behind the other. They may change from then on.
    ///
    /// # Safety
    /// So many bytes are mapped there, and nobody writes to them meanwhile.
    pub(super) unsafe fn write(&mut self, run: Run, from: *const u8) -> Result<(), StoreError<'static>> {
        for (index, page) in run.pages().enumerate() {
            let mut at = from.wrapping_add(index * PAGE);
            let mut frame = None;
            if self.store.writes_later() {
                self.wait_until(|away| !away.free.is_empty() && !away.leaving.contains_key(&page))?;
                frame = self.free.pop();
            }
            if let Some(index) = frame {
                // SAFETY: the run's bytes lie there and nobody writes to them, as the caller promises; the frame is free.
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
            // SAFETY: as above. A frame stays as it is until its write has ended, and `to` has room for a page. Where no page
            // waits in a frame, the first one is spare.
            let saved = unsafe { self.store.write(&write, &mut |to| copy::copy(at, to, PAGE)) }?;
            if let (Saved::Later, Some(frame)) = (saved, frame) {
                self.leaving.insert(page, frame);
            }
        }
        Ok(())
    }

    /// Brings held pages, ascending, each to the address that `place` gives for it. Neighbours have neighbouring addresses.
    ///
    /// # Safety
    /// A page fits at each address, and nobody else touches it meanwhile.
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
                // SAFETY: the frame has a page's bytes, and there is room for them as the caller promises.
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

    /// How many of these pages one read reaches: neighbours that are on one server and in no frame.
    fn reach(&self, pages: &[u32]) -> u32 {
        let is_next = |pair: &&[u32]| pair[0] + 1 == pair[1] && !self.leaving.contains_key(&pair[1]);
        let neighbours = 1 + pages.windows(2).take_while(is_next).count() as u32;
        self.store.reach(PageId(pages[0]), neighbours.min(RUN_MAX))
    }

    /// Receives some of what was asked for, or waits for it a while.
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

    /// These pages are held, and not needed any more.
    pub(super) fn forget(&mut self, run: Run) -> Result<(), StoreError<'static>> {
        // A discard would overtake a write.
        self.wait_until(|away| away.leaving.is_empty() || run.pages().all(|page| !away.leaving.contains_key(&page)))?;
        self.store.release(run.first, run.count);
        Ok(())
    }

    /// Takes in which writes have ended.
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

    /// Looks after the servers now and then: to find that one has ended or is silent, and to let other ranks have room that is
    /// not needed here. Says whether it was time for it.
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

    /// The rank needs its pages no more, and no server.
    pub(super) fn close(&self) {
        self.ended.is_over.store(true, Ordering::Release);
    }
}

/// The life of a thread that sends to one server.
fn send(store: &'static Kind, mut sender: Sender, ended: &'static Ended, rank: Rank) {
    let Kind::Remote(remote) = store else { return };
    while !ended.is_over.load(Ordering::Acquire) {
        let sent = remote.send(&mut sender, &mut |page, frame| {
            ended.writes.lock().push((page, frame));
            ended.bell.fetch_add(1, Ordering::Release);
            futex::wake_one(&ended.bell);
        });
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
    use hanare_store::{EXIT_FULL, EXIT_LOST};
    use hanare_wire::Endpoint;

    use super::*;
    use crate::coherence::runs_of;

    const PAGES: u32 = 1500;

    /// Runs a test on servers of its own with so much memory each: a directory for all, and their TCP and Unix endpoints.
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
        Target::Servers { servers, key: None, timeout_s: 5 }
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
            // SAFETY: a page of the mapping, to which there are no references.
            unsafe { self.at(page).write_bytes(value, PAGE) };
        }

        fn holds(&self, page: u32, value: u8) -> bool {
            // SAFETY: as above.
            (0..PAGE).step_by(97).all(|at| unsafe { self.at(page).add(at).read() } == value)
        }
    }

    /// Random runs are written, read after their bytes were destroyed, and forgotten, against a model.
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
                    // SAFETY: pages of the test's own.
                    unsafe { away.write(run, pages.at(run.first)) }.expect("written");
                    run.pages().for_each(|page| pages.fill(page, 0xee));
                    run.pages().for_each(|page| model[page as usize] = Some(value));
                }
                _ => {
                    let held: Vec<u32> = run.pages().filter(|&page| model[page as usize].is_some()).collect();
                    // SAFETY: as above.
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
            let mut away = Away::open(&private, PAGES, Rank(0), 1).expect("a link");
            check_against_a_model(&mut away, 1);
            away.close();
        });
    }

    #[test]
    fn servers_give_back_what_was_put_there() {
        with_servers(&[16 << 20, 16 << 20], |_, specs| {
            let mut away = Away::open(&named(specs.to_vec()), PAGES, Rank(0), 1).expect("links");
            check_against_a_model(&mut away, 2);
            away.close();
        });
    }

    #[test]
    fn a_bound_is_for_all_ranks_and_full_servers_say_so() {
        with_servers(&[64 << 20], |_, specs| {
            let bound = ServerSpec { capacity: Some(64 * PAGE as u64), ..specs[0].clone() };
            let mut away = Away::open(&named(vec![bound]), PAGES, Rank(0), 2).expect("links");
            let pages = Pages::new();
            // SAFETY: pages of the test's own.
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
            let servers = Away::open(&named(specs[..1].to_vec()), PAGES, Rank(0), 1).expect("a link");
            let slots = Away::open(&Target::Private(dir.join("1")), PAGES, Rank(0), 1).expect("a link");
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
