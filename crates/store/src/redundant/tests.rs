//! Tests of the store with memory servers in this process.

use std::sync::OnceLock;
use std::time::Instant;

use hanare_server::{Server as MemoryServer, ServerConfig, StatusHandle, StopHandle};
use hanare_settings::ServerSpec;
use hanare_sys::map::Mapping;

use super::*;
use crate::{Copies, Guarding, Kind, Target, Worker};

const PAGE: usize = 4096;
const UNITS: u32 = 2048;
/// The units of a page in a wide frame.
const BLOCK: u32 = 16;
const SMALL: u32 = 24;
const WIDE: u32 = 4;
const SOON: Duration = Duration::from_secs(30);

/// The memory of the program, and what it has been told.
struct Program {
    memory: Mapping,
    frames: Mapping,
    free: LockCell<Vec<FrameId>>,
    free_count: AtomicU32,
    /// Whether a write of each unit is in progress. A pager reads such a unit from its frame.
    is_writing: Vec<AtomicBool>,
    arrived: AtomicU32,
    is_over: AtomicBool,
    error: OnceLock<String>,
}

impl Program {
    fn page(&self, unit: u32) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(unit as usize * PAGE)
    }

    fn frame(&self, frame: FrameId) -> *mut u8 {
        let units = if frame.wide { SMALL + frame.index * BLOCK } else { frame.index };
        self.frames.as_ptr().wrapping_add(units as usize * PAGE)
    }
}

impl Take for &Program {
    fn place(&mut self, read: &Read) -> Option<*mut u8> {
        // Half of the reads get a place, the others receive their bytes in parts.
        (read.page.0.is_multiple_of(2)).then(|| self.page(read.page.0))
    }

    fn placed(&mut self, _: &Read) {}

    unsafe fn part(&mut self, read: &Read, at: usize, from: *const u8, len: usize) {
        // SAFETY: the store passes `len` bytes at `from`. The pages of the read belong to it until it has arrived.
        unsafe { self.page(read.page.0).add(at).copy_from_nonoverlapping(from, len) };
    }

    fn arrived(&mut self, read: &Read) {
        self.arrived.fetch_add(read.count, AcqRel);
    }

    fn spare(&mut self) -> *mut u8 {
        std::ptr::null_mut()
    }
}

/// Memory servers in this process.
struct Servers {
    specs: Vec<ServerSpec>,
    running: Vec<Option<(StopHandle, std::thread::JoinHandle<()>)>>,
}

impl Servers {
    fn start(count: usize) -> Self {
        Self::start_with(&vec![64 << 20; count])
    }

    /// Starts a server for each size of memory in bytes.
    fn start_with(sizes: &[u64]) -> Self {
        let mut servers = Self { specs: Vec::new(), running: Vec::new() };
        for size in sizes {
            let address = "127.0.0.1:0".parse().expect("an address");
            let server = MemoryServer::bind(ServerConfig::new(vec![address], *size)).expect("a server");
            servers.specs.push(ServerSpec { endpoint: server.local_addrs()[0].clone(), capacity: None });
            let stop = server.stop_handle();
            let thread = std::thread::spawn(move || server.run().expect("a good end"));
            servers.running.push(Some((stop, thread)));
        }
        servers
    }

    fn stop(&mut self, index: usize) {
        let (stop, thread) = self.running[index].take().expect("a running server");
        stop.stop();
        thread.join().expect("no panic");
    }

    /// Starts a server of another user at a server's address. Returns the handle of its status. Only root can do this.
    /// The kernel knows the user of each thread.
    fn start_by_another_user(&mut self, index: usize) -> StatusHandle {
        let config = ServerConfig::new(vec![self.specs[index].endpoint.clone()], 64 << 20);
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let other = rustix::process::Uid::from_raw(65_534);
            rustix::thread::set_thread_res_uid(other, other, other).expect("root may do this");
            let server = MemoryServer::bind(config).expect("the address is free");
            sender.send((server.stop_handle(), server.status_handle())).expect("a receiver");
            server.run().expect("a good end");
        });
        let (stop, status) = receiver.recv().expect("a server");
        self.running[index] = Some((stop, thread));
        status
    }

    /// Starts a server again at its address, without its contents.
    fn start_again(&mut self, index: usize) {
        let config = ServerConfig::new(vec![self.specs[index].endpoint.clone()], 64 << 20);
        let server = MemoryServer::bind(config).expect("the address is free");
        let stop = server.stop_handle();
        self.running[index] = Some((stop, std::thread::spawn(move || server.run().expect("a good end"))));
    }
}

/// A program with a redundant store.
struct Run {
    store: &'static Kind,
    program: &'static Program,
    threads: Vec<std::thread::JoinHandle<()>>,
    /// The version of each unit. 0 if it was never written.
    versions: Vec<u8>,
}

/// Returns the byte of a unit's version at an offset.
fn byte(unit: u32, version: u8, at: usize) -> u8 {
    (unit as usize * 31 + at * 7 + at / 256) as u8 ^ version.wrapping_mul(37)
}

impl Run {
    fn start(servers: &Servers, scheme: &str) -> Self {
        Self::start_guarded(servers, scheme, Guarding::Sums)
    }

    fn start_guarded(servers: &Servers, scheme: &str, guarding: Guarding) -> Self {
        let redundancy = scheme.parse().expect("a redundancy");
        let target = Target::Servers {
            servers: servers.specs.clone(),
            key: None,
            timeout_s: 5,
            copies: Copies { redundancy, allow_same_host: true },
        };
        let slot_bytes = BLOCK as usize * PAGE;
        let shape =
            Shape { units: UNITS, unit_bytes: PAGE, slot_bytes, small_frames: SMALL, wide_frames: WIDE, guarding };
        static UPKEEP: AtomicU32 = AtomicU32::new(0);
        let (store, workers) = Kind::open(&target, shape, 1, &UPKEEP).expect("a store");
        let frames = (0..SMALL).map(|index| FrameId { wide: false, index });
        let free: Vec<FrameId> = frames.chain((0..WIDE).map(|index| FrameId { wide: true, index })).collect();
        let program = Program {
            memory: Mapping::anonymous(UNITS as usize * PAGE).expect("memory"),
            frames: Mapping::anonymous((SMALL + WIDE * BLOCK) as usize * PAGE).expect("memory"),
            free_count: AtomicU32::new(free.len() as u32),
            free: LockCell::new(free),
            is_writing: (0..UNITS).map(|_| AtomicBool::new(false)).collect(),
            arrived: AtomicU32::new(0),
            is_over: AtomicBool::new(false),
            error: OnceLock::new(),
        };
        let (store, program): (&'static Kind, &'static Program) = (Box::leak(store.into()), Box::leak(program.into()));
        let threads = workers.into_iter().map(|worker| std::thread::spawn(move || work(store, program, worker)));
        Self { store, program, threads: threads.collect(), versions: vec![0; UNITS as usize] }
    }

    fn until(&self, what: &str, done: impl Fn() -> bool) {
        let end = Instant::now() + SOON;
        while !done() {
            assert!(Instant::now() < end, "{what} does not come: {:?}", self.store.progress());
            self.upkeep();
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn upkeep(&self) {
        let polled = self.store.poll(Turn::Upkeep, &mut &*self.program);
        assert_eq!(polled.map_err(|error| error.to_string()), Ok(Polled::Idle));
        assert_eq!(self.program.error.get(), None);
    }

    /// Writes a new version of the units from `unit` on: one, or a block of them.
    fn write(&mut self, unit: u32, is_wide: bool) {
        let program = self.program;
        let take = || {
            let mut free = program.free.lock();
            let index = free.iter().position(|frame| frame.wide == is_wide)?;
            program.free_count.fetch_sub(1, AcqRel);
            Some(free.swap_remove(index))
        };
        let end = Instant::now() + SOON;
        let frame = loop {
            match take() {
                Some(frame) => break frame,
                None => {
                    assert!(Instant::now() < end, "no frame becomes free");
                    self.upkeep();
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        };
        let count = if is_wide { BLOCK } else { 1 };
        let at = program.frame(frame);
        for unit in unit..unit + count {
            program.is_writing[unit as usize].store(true, Release);
            self.versions[unit as usize] = self.versions[unit as usize].wrapping_add(1).max(1);
        }
        for (index, unit) in (unit..unit + count).enumerate() {
            let version = self.versions[unit as usize];
            for offset in 0..PAGE {
                // SAFETY: the frame is free, so only this thread uses it. It has room for the page.
                unsafe { at.add(index * PAGE + offset).write(byte(unit, version, offset)) };
            }
        }
        let (page, bytes) = (PageId(unit), count * PAGE as u32);
        let spare = std::ptr::null_mut();
        let write = Write { page, bytes, frame: Some(frame), at: Some(at), may_be_same: false, spare };
        // SAFETY: the frame is not used before its write has ended.
        let saved = unsafe { self.store.write(&write, &mut |_| {}) };
        assert_eq!(saved.map_err(|error| error.to_string()), Ok(Saved::Later));
    }

    fn finish_writes(&self) {
        self.until("the end of the writes", || self.program.free_count.load(Acquire) == SMALL + WIDE);
    }

    /// Reads all written units in runs of up to `most`, and checks their bytes. Leaves out units that are being written.
    fn check_all(&self, most: u32) {
        // SAFETY: no read is in progress, so only this thread uses the memory.
        unsafe { self.program.memory.as_ptr().write_bytes(0xee, UNITS as usize * PAGE) };
        self.program.arrived.store(0, Release);
        let mut asked = 0;
        let mut was_asked = vec![false; UNITS as usize];
        let mut unit = 0;
        while unit < UNITS {
            let is_writing = |unit: u32| self.program.is_writing[unit as usize].load(Acquire);
            let held = |unit: &u32| self.versions[*unit as usize] != 0 && !is_writing(*unit);
            let count = (unit..UNITS).take(most as usize).take_while(held).count() as u32;
            if count > 0 {
                let count = self.store.reach(PageId(unit), count);
                self.read(unit, count);
                was_asked[unit as usize..(unit + count) as usize].fill(true);
                asked += count;
                unit += count;
            } else {
                unit += 1;
            }
        }
        self.until("the pages", || {
            self.receive();
            self.program.arrived.load(Acquire) == asked
        });
        for unit in (0..UNITS).filter(|&unit| was_asked[unit as usize]) {
            let version = self.versions[unit as usize];
            // SAFETY: the page has arrived, so only this thread uses it.
            let page = unsafe { std::slice::from_raw_parts(self.program.page(unit), PAGE) };
            let wrong = (0..PAGE).find(|&at| page[at] != byte(unit, version, at));
            assert_eq!(wrong, None, "unit {unit}, version {version}");
        }
    }

    /// Compares all written units with what the servers hold, one by one and in blocks. Nothing is being written. Returns
    /// the number of units that the store recognizes. Checks that it recognizes no other bytes.
    fn check_same(&self) -> u32 {
        let Kind::Redundant(store) = self.store else { unreachable!("these tests have a redundant store") };
        let mut seen = 0;
        let blocks = (0..UNITS).step_by(BLOCK as usize).map(|unit| (unit, BLOCK));
        for (unit, count) in (0..UNITS).map(|unit| (unit, 1)).chain(blocks) {
            let units = unit..unit + count;
            if units.clone().any(|unit| self.versions[unit as usize] == 0) {
                continue;
            }
            let page = |unit: u32| (0..PAGE).map(move |at| byte(unit, self.versions[unit as usize], at));
            let mut bytes: Vec<u8> = units.flat_map(page).collect();
            // SAFETY: the store holds these units, and nothing writes to them or to `bytes`.
            let is_same = |bytes: &[u8]| unsafe { store.has_sent(PageId(unit), bytes.as_ptr(), bytes.len()) };
            seen += if is_same(&bytes) { count } else { 0 };
            let at = unit as usize * 131 % bytes.len();
            bytes[at] ^= 1;
            assert!(!is_same(&bytes), "unit {unit}, byte {at}");
        }
        seen
    }

    fn read(&self, unit: u32, count: u32) {
        let read = Read { page: PageId(unit), count, bytes: count * PAGE as u32, frame: None, writable: 0 };
        let end = Instant::now() + SOON;
        loop {
            let begun = self.store.read(&read, &mut &*self.program).map_err(|error| error.to_string());
            match begun.expect("the store goes on") {
                Begun::Later => return,
                Begun::Done => unreachable!("a page of a server comes later"),
                Begun::Full => self.receive(),
            }
            assert!(Instant::now() < end, "no read comes to its end");
        }
    }

    fn receive(&self) {
        let wait = Wait::Block { timeout: Duration::from_millis(1) };
        let polled = self.store.poll(Turn::Receive(wait), &mut &*self.program);
        assert!(polled.map_err(|error| error.to_string()).is_ok());
    }

    fn until_whole(&self) {
        self.until("every part", || self.store.progress().behind_bytes == 0);
    }

    fn news(&self) -> String {
        let mut all = String::new();
        while self.store.has_news() {
            all += &format!("{}\n", Telling(self.store, Words::News));
        }
        all
    }

    fn end(self) {
        self.program.is_over.store(true, Release);
        self.threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }
}

fn work(store: &'static Kind, program: &'static Program, mut worker: Worker) {
    while !program.is_over.load(Acquire) {
        let mut ended = |page: PageId, frame: FrameId, _| {
            let count = if frame.wide { BLOCK } else { 1 };
            (page.0..page.0 + count).for_each(|unit| program.is_writing[unit as usize].store(false, Release));
            program.free.lock().push(frame);
            program.free_count.fetch_add(1, AcqRel);
        };
        if let Err(error) = store.work(&mut worker, &mut ended, &mut &*program) {
            program.error.get_or_init(|| error.to_string());
            return;
        }
    }
}

/// Writes everything, loses one server after another with a rebuilding between them, and reads everything each time.
fn outlives(scheme: &str, servers: usize, losses: usize) {
    let mut running = Servers::start(servers);
    let mut run = Run::start(&running, scheme);
    (0..UNITS / 2).for_each(|unit| run.write(unit, false));
    (UNITS / 2..UNITS).step_by(BLOCK as usize).for_each(|unit| run.write(unit, true));
    run.finish_writes();
    assert_eq!(run.check_same(), 2 * UNITS);
    run.check_all(1);
    run.check_all(64);
    for lost in 0..losses {
        (0..UNITS / 2).step_by(3).for_each(|unit| run.write(unit, false));
        running.stop(lost);
        // Some of these writes meet the loss.
        (0..UNITS / 2).step_by(2).for_each(|unit| run.write(unit, false));
        (UNITS / 2..UNITS).step_by(2 * BLOCK as usize).for_each(|unit| run.write(unit, true));
        run.check_all(16);
        run.finish_writes();
        run.check_all(64);
        run.check_same();
        run.until_whole();
        assert_eq!(run.check_same(), 2 * UNITS);
    }
    let news = run.news();
    assert!(news.contains("lost memory server 127.0.0.1:") && news.contains("no page is lost"), "{news}");
    let progress = run.store.progress();
    assert_eq!(progress.losses, losses as u64, "{progress:?}");
    assert!(progress.rebuilt_bytes > 0 && progress.degraded_ns > 0, "{progress:?}");
    run.check_all(7);
    (0..UNITS).step_by(BLOCK as usize).for_each(|unit| run.store.release(unit, BLOCK));
    run.end();
    drop(running);
}

#[test]
fn a_mirror_outlives_one_server_after_another() {
    outlives("mirror", 4, 2);
}

#[test]
fn parity_outlives_one_server_after_another() {
    outlives("parity:2+1", 5, 2);
    outlives("parity:4+1", 6, 1);
}

#[test]
fn two_parity_parts_and_three_copies_outlive_losses_too() {
    outlives("parity:2+2", 5, 1);
    outlives("parity:1+2", 4, 1);
}

#[test]
fn sealed_parts_are_opened_at_their_places() {
    for (scheme, servers) in [("parity:2+1", 3), ("parity:4+1", 5), ("mirror", 2)] {
        let mut running = Servers::start(servers);
        let mut run = Run::start_guarded(&running, scheme, Guarding::Seals);
        (0..UNITS).step_by(BLOCK as usize).for_each(|unit| run.write(unit, true));
        run.finish_writes();
        [1, 3, 64].into_iter().for_each(|most| run.check_all(most));
        running.stop(1);
        run.until("the loss", || run.store.progress().losses == 1);
        [1, 3, 64].into_iter().for_each(|most| run.check_all(most));
        run.end();
    }
}

#[test]
fn a_server_that_comes_back_makes_pages_whole_again() {
    let mut running = Servers::start(2);
    let mut run = Run::start(&running, "mirror");
    (0..600).for_each(|unit| run.write(unit, false));
    run.finish_writes();
    running.stop(0);
    run.until("the loss", || run.store.progress().losses == 1);
    run.check_all(16);
    assert!(run.store.progress().behind_bytes > 0, "no server is left for the second copies");
    let news = run.news();
    assert!(news.contains("until it is back"), "{news}");
    running.start_again(0);
    run.until_whole();
    running.stop(1);
    run.until("the second loss", || run.store.progress().losses == 2);
    run.check_all(16);
    run.end();
}

/// One of two servers has room for half of the second copies. The user hears of this, and of the time when there is room again.
#[test]
fn too_little_room_for_all_parts_is_told() {
    let running = Servers::start_with(&[64 << 20, 4 << 20]);
    let mut run = Run::start(&running, "mirror");
    (0..UNITS).step_by(BLOCK as usize).for_each(|unit| run.write(unit, true));
    run.finish_writes();
    run.until("the news", || run.store.has_news());
    let news = run.news();
    assert!(news.contains("pages stay without a part: each page takes 2 servers with room, and "), "{news}");
    assert!(news.contains("127.0.0.1:") && news.contains(" has no room beyond "), "{news}");
    assert!(!news.contains("lost"), "{news}");
    run.check_all(64);
    assert!(run.store.progress().behind_bytes > 0);
    for unit in (UNITS / 4..UNITS).step_by(BLOCK as usize) {
        run.store.release(unit, BLOCK);
        run.versions[unit as usize..(unit + BLOCK) as usize].fill(0);
    }
    run.until_whole();
    run.until("the good news", || run.store.has_news());
    assert_eq!(run.news(), "every page has all its parts again\n");
    run.check_all(64);
    run.end();
}

/// Clients did not ask for a server's user before. A server that took the address of a lost one received every page.
#[test]
fn another_users_server_at_the_address_of_a_lost_one_receives_nothing() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can take another user's number");
        return;
    }
    let mut running = Servers::start(2);
    let mut run = Run::start(&running, "mirror");
    (0..600).for_each(|unit| run.write(unit, false));
    run.finish_writes();
    running.stop(0);
    let foreign = running.start_by_another_user(0);
    let mut news = String::new();
    let end = Instant::now() + SOON;
    while !news.contains("another user's server") {
        assert!(Instant::now() < end, "it is not named: {news}");
        assert_eq!(foreign.status().expect("it runs").sessions, 0, "{news}");
        run.upkeep();
        news += &run.news();
        std::thread::sleep(Duration::from_millis(5));
    }
    (0..600).step_by(7).for_each(|unit| run.write(unit, false));
    run.finish_writes();
    run.check_all(16);
    let status = foreign.status().expect("it runs");
    assert_eq!((status.sessions, status.slots, status.write_bytes), (0, 0, 0), "{status:?}");
    running.stop(0);
    running.start_again(0);
    run.until_whole();
    running.stop(1);
    run.until("the second loss", || run.store.progress().losses == 2);
    run.check_all(16);
    news += &run.news();
    assert_eq!(news.matches("another user's server").count(), 1, "{news}");
    run.end();
}

#[test]
fn the_loss_of_too_many_servers_is_named() {
    let mut running = Servers::start(2);
    let mut run = Run::start(&running, "mirror");
    (0..100).for_each(|unit| run.write(unit, false));
    run.finish_writes();
    (0..2).for_each(|index| running.stop(index));
    let end = Instant::now() + SOON;
    let read = Read { page: PageId(7), count: 1, bytes: PAGE as u32, frame: None, writable: 0 };
    let error = loop {
        assert!(Instant::now() < end, "the loss is not noticed");
        let begun = run.store.read(&read, &mut &*run.program).map(|_| ());
        let polled = run.store.poll(Turn::Upkeep, &mut &*run.program).map(|_| ());
        if let Err(error) = begun.and(polled) {
            break error;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(error.exit_code(), crate::EXIT_LOST);
    let text = error.to_string();
    assert!(
        text.contains("127.0.0.1:") && text.contains("and others are lost, and no copy of a page is left"),
        "{text}"
    );
    let news = run.news();
    assert!(news.contains("lost memory server ") && !news.contains("no page is lost"), "{news}");
    run.program.is_over.store(true, Release);
}
