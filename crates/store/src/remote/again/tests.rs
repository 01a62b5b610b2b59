//! Tests of a store whose server is stopped and started again.

use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use hanare_paging::{FrameId, PageId};
use hanare_server::ServerConfig;
use hanare_sys::map::Mapping;
use hanare_wire::Endpoint;

use super::*;
use crate::remote::tests::{Serving, shape};
use crate::{Begun, Guarding, Read, Saved, Store, Take, Turn, Write};

const PAGE: usize = 4096;
const PAGES: u32 = 64;
const SOON: Duration = Duration::from_secs(60);

/// A taker that compares each page with the version that was last written to it.
struct Checking {
    version: AtomicU32,
    read: AtomicU32,
}

impl Take for &Checking {
    fn place(&mut self, _: &Read) -> Option<*mut u8> {
        None
    }

    fn placed(&mut self, _: &Read) {}

    unsafe fn part(&mut self, read: &Read, _: usize, from: *const u8, len: usize) {
        // SAFETY: the store passes memory with `len` bytes, which do not change during this call.
        let bytes = unsafe { std::slice::from_raw_parts(from, len) };
        let byte = byte_of(read.page.0, self.version.load(Acquire));
        assert!(len == PAGE && bytes.iter().all(|&found| found == byte), "page {}", read.page.0);
    }

    fn arrived(&mut self, _: &Read) {
        self.read.fetch_add(1, AcqRel);
    }

    fn spare(&mut self) -> *mut u8 {
        std::ptr::null_mut()
    }
}

fn byte_of(page: u32, version: u32) -> u8 {
    (page * 7 + version * 31 + 1) as u8
}

/// Starts a server that keeps its sessions in a directory.
fn start(endpoint: &Endpoint, keep: &Path) -> Serving {
    let mut config = ServerConfig::new(vec![endpoint.clone()], 64 << 20);
    config.keep = Some(keep.to_owned());
    Serving::with(config)
}

static WRITTEN: AtomicU32 = AtomicU32::new(0);
static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A store that waits for its server, and the pages that are written to it.
struct Waiting {
    remote: &'static Remote,
    taker: &'static Checking,
    pages: usize,
}

impl Waiting {
    fn on(server: &Serving) -> Self {
        let shape = shape(1024, PAGES, Guarding::Sums);
        let (remote, senders) = Remote::new(vec![server.opened()], shape, PAGE, SOON).expect("a store");
        let remote: &'static Remote = Box::leak(remote.waiting().into());
        let taker = Box::leak(Box::new(Checking { version: AtomicU32::new(0), read: AtomicU32::new(0) }));
        for mut sender in senders {
            // The thread runs until the process ends.
            std::thread::spawn(move || {
                loop {
                    let mut ended = |_, _, _| _ = WRITTEN.fetch_add(1, AcqRel);
                    remote.send(&mut sender, &mut ended).map_err(|error| error.to_string()).expect("a server");
                    let notice = remote.notice(&mut sender).map(|notice| notice.to_string());
                    NOTICES.lock().expect("no panic").extend(notice);
                }
            });
        }
        Self { remote, taker, pages: Mapping::anonymous(PAGE * PAGES as usize).expect("pages").leak() }
    }

    fn until(&self, what: &str, done: impl Fn() -> bool) {
        let end = Instant::now() + SOON;
        while !done() {
            assert!(Instant::now() < end, "{what}");
            for turn in [Turn::Upkeep, Turn::Receive(Wait::Block { timeout: Duration::from_millis(1) })] {
                self.remote.poll(turn, &mut &*self.taker).expect("a server that comes back");
            }
        }
    }

    fn write(&self, page: u32, version: u32) {
        let at = (self.pages + page as usize * PAGE) as *mut u8;
        // SAFETY: the page's bytes are inside the mapping, and its last write-back has ended.
        unsafe { at.write_bytes(byte_of(page, version), PAGE) };
        let (frame, at) = (Some(FrameId { wide: false, index: page }), Some(at.cast_const()));
        let (page, spare) = (PageId(page), std::ptr::null_mut());
        let write = Write { page, bytes: PAGE as u32, frame, at, may_be_same: false, spare };
        // SAFETY: the page's bytes do not change before the write-back has ended.
        let saved = unsafe { self.remote.write(&write, &mut |_| {}) }.expect("room");
        assert_eq!(saved, Saved::Later);
    }

    fn read(&self, page: u32) {
        let read = Read { page: PageId(page), count: 1, bytes: PAGE as u32, frame: None, writable: 0 };
        assert_eq!(self.remote.read(&read, &mut &*self.taker).expect("a request"), Begun::Later);
    }
}

/// Stops the server in the middle of write-backs, of discards and of reads, and starts it again.
#[test]
fn what_was_on_its_way_to_a_lost_server_arrives_when_it_is_back() {
    let keep = tempfile::tempdir().expect("a directory");
    let mut server = start(&"127.0.0.1:0".parse().expect("an address"), keep.path());
    let endpoint = server.endpoint.clone();
    let start = || start(&endpoint, keep.path());
    let store = Waiting::on(&server);
    let mut expected = 0;
    for version in 1..=3 {
        // Half of the messages are on their way when the server ends, and half come while it is away.
        (0..PAGES / 2).for_each(|page| store.write(page, version));
        server.end();
        (PAGES / 2..PAGES).for_each(|page| store.write(page, version));
        std::thread::sleep(Duration::from_millis(300));
        server = start();
        store.until("pages are written", || WRITTEN.load(Acquire) == version * PAGES);
        store.taker.version.store(version, Release);
        (0..PAGES / 2).for_each(|page| store.read(page));
        server.end();
        (PAGES / 2..PAGES).for_each(|page| store.read(page));
        assert!(store.remote.is_reading());
        server = start();
        expected += PAGES;
        store.until("pages are read", || store.taker.read.load(Acquire) == expected);
        store.remote.release(0, PAGES / 4);
        server.end();
        store.remote.release(PAGES / 4, PAGES / 4);
        server = start();
        store.until("nothing is on its way", || store.remote.is_idle() && !store.remote.is_waiting());
        (PAGES / 2..PAGES).for_each(|page| store.read(page));
        expected += PAGES / 2;
        store.until("pages are read", || store.taker.read.load(Acquire) == expected);
    }
    store.until("the last notice", || NOTICES.lock().expect("no panic").len().is_multiple_of(2));
    let notices = NOTICES.lock().expect("no panic").clone();
    let name = endpoint.to_string();
    let count = |word: &str| notices.iter().filter(|line| line.contains(word) && line.contains(&name)).count();
    let (lost, back) = (count("waits until"), count("is back after"));
    assert!(lost >= 3 && lost == back && lost + back == notices.len(), "{notices:#?}");
    server.end();
}
