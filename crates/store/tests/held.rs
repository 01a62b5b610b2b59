//! Tests of `Slots` and `Remote` with servers in this process. Random writes, reads and releases are compared with a
//! simple model. Every byte that is held must be read back. The environment variable `HANARE_SEED` sets the seed, to
//! repeat a run.

use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::time::{Duration, Instant};

use hanare_paging::{FrameId, PageId};
use hanare_server::{Server, ServerConfig};
use hanare_store::{
    Ask, Begun, Guarding, Opened, Polled, Read, Remote, Saved, Shape, Slots, Store, Take, Telling, Turn, Words, Write,
};
use hanare_wire::{Attachment, Endpoint, Session, SessionOptions, Wait};

const PAGE: usize = 4096;
const UNITS: u32 = 2048;
const FRAMES: u32 = 24;
const TURNS: u32 = 12_000;
/// The maximum number of pages of one read.
const RUN: u32 = 8;
const SOON: Duration = Duration::from_secs(60);

/// Runs a test on servers of its own, each with the given bytes of memory. Passes their TCP and AF_UNIX addresses to
/// `test`.
fn with_servers(memory: &[u64], test: impl FnOnce(&[(Endpoint, std::path::PathBuf)])) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut addresses = Vec::new();
    let mut running = Vec::new();
    for (index, &bytes) in memory.iter().enumerate() {
        let path = dir.path().join(index.to_string());
        let listen = vec!["127.0.0.1:0".parse().expect("an address"), Endpoint::Unix(path.clone())];
        let mut config = ServerConfig::new(listen, bytes);
        config.spill = Some(dir.path().to_owned());
        config.spill_margin = 0;
        let server = Server::bind(config).expect("a server");
        addresses.push((server.local_addrs()[0].clone(), path));
        running.push((server.stop_handle(), std::thread::spawn(move || server.run())));
    }
    test(&addresses);
    for (stop, thread) in running {
        stop.stop();
        thread.join().expect("no panic").expect("a good end");
    }
}

/// A random number generator. The same seed produces the same numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(bound)) as u32
    }
}

/// Returns the byte that fills a page. It depends on the page and on how often the page was written.
fn byte_of(unit: u32, version: u32) -> u8 {
    (unit.wrapping_mul(31).wrapping_add(version.wrapping_mul(101)) % 251) as u8 + 1
}

/// The state of a page in the model.
#[derive(Clone, Copy, Default)]
struct Unit {
    version: u32,
    held: bool,
    writing: bool,
    /// Whether the last write was of a new version.
    changed: bool,
}

/// Receives reads into a buffer, alternately in place and in parts. Compares the bytes with the model.
struct Checking<'a> {
    units: &'a RefCell<Vec<Unit>>,
    bytes: Vec<u8>,
    spare: Vec<u8>,
    in_parts: bool,
    arrived: u32,
}

impl Checking<'_> {
    fn check(&mut self, read: &Read) {
        let units = self.units.borrow();
        for (unit, page) in (read.page.0..).zip(self.bytes[..read.bytes as usize].chunks(PAGE)) {
            let wanted = byte_of(unit, units[unit as usize].version);
            assert!(page.iter().all(|&byte| byte == wanted), "unit {unit} holds {} and not {wanted}", page[0]);
        }
        self.bytes.fill(0);
        self.arrived += 1;
    }
}

impl Take for Checking<'_> {
    fn place(&mut self, _: &Read) -> Option<*mut u8> {
        self.in_parts = !self.in_parts;
        if self.in_parts { None } else { Some(self.bytes.as_mut_ptr()) }
    }

    fn placed(&mut self, _: &Read) {}

    unsafe fn part(&mut self, _: &Read, at: usize, from: *const u8, len: usize) {
        // SAFETY: the store passes memory with `len` bytes, which do not change during this call.
        self.bytes[at..at + len].copy_from_slice(unsafe { std::slice::from_raw_parts(from, len) });
    }

    fn arrived(&mut self, read: &Read) {
        self.check(read);
    }

    fn spare(&mut self) -> *mut u8 {
        self.spare.as_mut_ptr()
    }
}

/// The frames of the test, which contain the pages that wait for their sender.
struct Frames(Vec<Box<[u8; PAGE]>>);

/// The pages and frames whose writes have ended, and whether the store had other bytes before.
type Ended = Mutex<Vec<(PageId, FrameId, bool)>>;

/// Random work on a store, with the model that the store is compared with.
struct Work<'a> {
    store: &'a dyn Store,
    random: Random,
    units: &'a RefCell<Vec<Unit>>,
    take: Checking<'a>,
    frames: Frames,
    /// The frames without a write in progress.
    free: Vec<u32>,
    /// Whether the store writes from frames.
    frames_wanted: bool,
    spare: Vec<u8>,
    /// The number of writes whose bytes the store recognised as unchanged.
    same: u32,
    /// The number of reads that were begun.
    begun: u32,
}

impl Work<'_> {
    fn end_writes(&mut self, ended: &Ended) {
        for (page, frame, changed) in ended.lock().expect("no panic").drain(..) {
            let unit = &mut self.units.borrow_mut()[page.0 as usize];
            assert!(std::mem::replace(&mut unit.writing, false), "unit {} ended twice", page.0);
            assert!(changed || !unit.changed, "unit {} was taken for what it was not", page.0);
            self.same += u32::from(!changed);
            unit.held = true;
            self.free.push(frame.index);
        }
    }

    /// Releases pages, except those with a write in progress, because a release of such a page is not allowed.
    fn release(&mut self, first: u32) {
        let count = (1 + self.random.below(200)).min(UNITS - first);
        let mut at = first;
        for unit in first..first + count {
            if self.units.borrow()[unit as usize].writing {
                self.store.release(at, unit - at);
                at = unit + 1;
            } else {
                self.units.borrow_mut()[unit as usize].held = false;
            }
        }
        self.store.release(at, first + count - at);
    }

    fn write(&mut self, first: u32, turn: u32) {
        let mut unit = self.units.borrow()[first as usize];
        if unit.writing {
            return;
        }
        let Some(index) = self.free.pop() else {
            return std::thread::sleep(Duration::from_millis(1));
        };
        // Some writes repeat the bytes that the store holds already.
        let may_be_same = unit.held && self.random.below(2) == 0;
        unit.changed = !may_be_same || self.random.below(2) == 0;
        unit.version += u32::from(unit.changed);
        let frame = &mut self.frames.0[index as usize];
        frame.fill(byte_of(first, unit.version));
        let from = frame.as_ptr();
        let write = Write {
            page: PageId(first),
            bytes: PAGE as u32,
            frame: self.frames_wanted.then_some(FrameId { wide: false, index }),
            at: Some(from),
            may_be_same,
            spare: self.spare.as_mut_ptr(),
        };
        // SAFETY: `from` is a frame, which does not change until the write has ended. `to` has room for a page.
        let saved = unsafe { self.store.write(&write, &mut |to| to.copy_from_nonoverlapping(from, PAGE)) };
        match saved.expect("room") {
            Saved::Later => unit.writing = true,
            Saved::Done => unit.held = true,
            Saved::Same => {
                assert!(!unit.changed, "a page was taken for what it was not, at turn {turn}");
                self.same += 1;
            }
        }
        if !unit.writing {
            self.free.push(index);
        }
        self.units.borrow_mut()[first as usize] = unit;
    }

    fn read(&mut self, first: u32) {
        let is_held = |&unit: &u32| {
            let Unit { held, writing, .. } = self.units.borrow()[unit as usize];
            held && !writing && unit / 512 == first / 512
        };
        let count = (first..UNITS.min(first + RUN)).take_while(is_held).count() as u32;
        if count == 0 {
            return;
        }
        let read = Read { page: PageId(first), count, bytes: count * PAGE as u32, frame: None, writable: 0 };
        match self.store.read(&read, &mut self.take).expect("a held range") {
            Begun::Done => self.take.check(&read),
            Begun::Later => {}
            Begun::Full => panic!("one read is under way at a time"),
        }
        self.begun += 1;
        let end = Instant::now() + SOON;
        while self.take.arrived < self.begun {
            assert!(Instant::now() < end, "unit {first} does not arrive");
            let turn = Turn::Receive(Wait::Block { timeout: Duration::from_millis(20) });
            assert_eq!(self.store.poll(turn, &mut self.take).expect("a server that answers"), Polled::Received);
        }
    }

    fn keep_up(&mut self) {
        self.store.poll(Turn::Upkeep, &mut self.take).expect("a server that is there");
        let room = self.store.room(Ask::Servers);
        let held = self.units.borrow().iter().filter(|unit| unit.held).count() as u64 * PAGE as u64;
        assert!(room.capacity_bytes >= held, "{room:?} with {held} bytes held");
        assert!(!Telling(self.store, Words::NoRoom).to_string().is_empty());
    }
}

/// Does random work on a store and checks the results.
fn check(store: &dyn Store, seed: u64, frames_wanted: bool, ended: &Ended) {
    let units = RefCell::new(vec![Unit::default(); UNITS as usize]);
    let bytes = vec![0; RUN as usize * PAGE];
    let mut work = Work {
        store,
        random: Random(seed),
        units: &units,
        take: Checking { units: &units, spare: vec![0; 64 << 10], bytes, in_parts: false, arrived: 0 },
        frames: Frames((0..FRAMES).map(|_| Box::new([0; PAGE])).collect()),
        free: (0..FRAMES).collect(),
        frames_wanted,
        spare: vec![0; 64 << 10],
        same: 0,
        begun: 0,
    };
    for turn in 0..TURNS {
        work.end_writes(ended);
        let first = work.random.below(UNITS);
        match work.random.below(20) {
            0 => work.release(first),
            1..12 => work.write(first, turn),
            _ => work.read(first),
        }
        if turn % 500 == 0 {
            work.keep_up();
        }
    }
    let Work { free, same, begun, .. } = work;
    assert!(begun > 100, "only {begun} reads");
    assert!(same > 20, "only {same} pages were seen to be the same");
    let end = Instant::now() + SOON;
    while free.len() + ended.lock().expect("no panic").len() < FRAMES as usize {
        assert!(Instant::now() < end, "writes do not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn seed() -> u64 {
    let seed = std::env::var("HANARE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    println!("HANARE_SEED={seed}");
    seed
}

fn shape(slot_bytes: usize, sealed: bool) -> Shape {
    let guarding = if sealed { Guarding::Seals } else { Guarding::Sums };
    Shape { units: UNITS, unit_bytes: PAGE, slot_bytes, small_frames: FRAMES, wide_frames: 0, guarding }
}

#[test]
fn slots_give_back_what_they_hold_also_from_the_spill_file() {
    static UPKEEP_WANTED: AtomicU32 = AtomicU32::new(0);
    for sealed in [false, true] {
        with_servers(&[4 << 20], |servers| {
            let attachment = Attachment::open(&servers[0].1, 64 << 10).expect("a link");
            let slots = Slots::new(attachment, &shape(64 << 10, sealed), &UPKEEP_WANTED).expect("slots");
            check(&slots, seed(), false, &Mutex::new(Vec::new()));
        });
    }
}

#[test]
fn servers_give_back_what_they_hold() {
    give_back_what_they_hold(false);
}

#[test]
fn servers_give_back_sealed_pages() {
    give_back_what_they_hold(true);
}

fn give_back_what_they_hold(sealed: bool) {
    with_servers(&[8 << 20, 6 << 20], |servers| {
        let opened = servers.iter().map(|(endpoint, _)| {
            let options = SessionOptions::for_endpoint(endpoint, 16 << 10);
            let session = Session::open(endpoint, &options).expect("a session");
            let capacity_bytes = session.info().capacity_bytes;
            Opened { name: endpoint.to_string(), session, options, capacity_bytes, limit_bytes: None }
        });
        let shape = shape(16 << 10, sealed);
        let bounce = RUN as usize * PAGE;
        let (remote, senders) = Remote::new(opened.collect(), shape, bounce, Duration::from_secs(10)).expect("a store");
        let (ended, over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for mut sender in senders {
                let (remote, ended, over) = (&remote, &ended, &over);
                scope.spawn(move || {
                    while !over.load(Acquire) {
                        let mut tell =
                            |page, frame, changed| ended.lock().expect("no panic").push((page, frame, changed));
                        remote.send(&mut sender, &mut tell).expect("a server that answers");
                    }
                });
            }
            let checked =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&remote, seed(), true, &ended)));
            over.store(true, Release);
            checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    });
}
