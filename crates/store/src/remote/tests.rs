//! Tests of the store with a memory server in this process.

use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Instant;

use hanare_paging::{FrameId, PageId};
use hanare_server::{Server as MemoryServer, ServerConfig, ServerError, StopHandle};
use hanare_wire::Endpoint;

use super::*;

mod damaged;
mod same;

const PAGE: usize = 4096;
const SILENT: Duration = Duration::from_millis(500);
const SOON: Duration = Duration::from_secs(30);

/// A memory server in a thread of this process.
pub(in crate::remote) struct Serving {
    pub endpoint: Endpoint,
    stop: StopHandle,
    thread: JoinHandle<Result<(), ServerError>>,
}

impl Serving {
    pub(in crate::remote) fn start() -> Self {
        Self::with(ServerConfig::new(vec!["127.0.0.1:0".parse().expect("an address")], 64 << 20))
    }

    pub(in crate::remote) fn with(config: ServerConfig) -> Self {
        let server = MemoryServer::bind(config).expect("a server");
        let (endpoint, stop) = (server.local_addrs()[0].clone(), server.stop_handle());
        Self { endpoint, stop, thread: std::thread::spawn(move || server.run()) }
    }

    /// A session on the server, as a store takes it.
    pub(in crate::remote) fn opened(&self) -> Opened {
        let options = SessionOptions::for_endpoint(&self.endpoint, PAGE as u32);
        let session = Session::open(&self.endpoint, &options).expect("a session");
        let name = self.endpoint.to_string();
        Opened { name, session, options, capacity_bytes: 64 << 20, limit_bytes: None }
    }

    pub(in crate::remote) fn end(self) {
        self.stop.stop();
        self.thread.join().expect("no panic").expect("a good end");
    }
}

/// Returns the shape of a store of 4 KiB pages, with room for `units` pages and with `small_frames` frames.
pub(in crate::remote) fn shape(units: u32, small_frames: u32, guarding: Guarding) -> Shape {
    Shape { units, unit_bytes: PAGE, slot_bytes: PAGE, small_frames, wide_frames: 0, guarding }
}

/// A taker whose thread sleeps in the middle of the first read, as if it waited for a CPU.
#[derive(Default)]
struct Starved {
    holds: AtomicBool,
    read: AtomicU32,
}

impl Take for &Starved {
    fn place(&mut self, _: &Read) -> Option<*mut u8> {
        if !self.holds.swap(true, AcqRel) {
            std::thread::sleep(3 * SILENT);
        }
        None
    }

    fn placed(&mut self, _: &Read) {}

    unsafe fn part(&mut self, _: &Read, _: usize, from: *const u8, len: usize) {
        // SAFETY: the store passes memory with `len` bytes, which do not change during this call.
        let bytes = unsafe { std::slice::from_raw_parts(from, len) };
        assert!(len == PAGE && bytes.iter().all(|&byte| byte == 7), "the page that was written");
    }

    fn arrived(&mut self, _: &Read) {
        self.read.fetch_add(1, AcqRel);
    }

    fn spare(&mut self) -> *mut u8 {
        std::ptr::null_mut()
    }
}

#[test]
fn a_reply_that_a_thread_of_this_process_leaves_unread_is_not_the_servers_silence() {
    let server = Serving::start();
    let shape = shape(1024, 4, Guarding::Sums);
    let (remote, senders) = Remote::new(vec![server.opened()], shape, PAGE, SILENT).expect("a store");
    let page = Mapping::anonymous(PAGE).expect("a page").leak() as *mut u8;
    // SAFETY: the mapping has one page, and no other code knows the mapping yet.
    unsafe { page.write_bytes(7, PAGE) };
    let (remote, taker): (&'static Remote, &'static Starved) = (Box::leak(remote.into()), Box::leak(Box::default()));
    static WRITTEN: AtomicU32 = AtomicU32::new(0);
    for mut sender in senders {
        // The thread runs until the process ends.
        std::thread::spawn(move || {
            loop {
                let mut ended = |_, _, _| _ = WRITTEN.fetch_add(1, AcqRel);
                remote.send(&mut sender, &mut ended).map_err(|error| error.to_string()).expect("a server");
            }
        });
    }
    let until = |done: &dyn Fn() -> bool| {
        let end = Instant::now() + SOON;
        while !done() {
            assert!(Instant::now() < end, "it does not come");
            // The test polls for upkeep, as a running program does. The poll must not report the server as silent.
            remote.poll(Turn::Upkeep, &mut &*taker).expect("a server that answers");
            std::thread::sleep(Duration::from_millis(10));
        }
    };

    for index in 0..2 {
        let frame = Some(FrameId { wide: false, index });
        let (page, at) = (PageId(index), Some(page.cast_const()));
        let write = Write { page, bytes: PAGE as u32, frame, at, may_be_same: false, spare: std::ptr::null_mut() };
        // SAFETY: the page's bytes never change again.
        let saved = unsafe { remote.write(&write, &mut |_| {}) }.expect("room");
        assert_eq!(saved, Saved::Later);
    }
    until(&|| WRITTEN.load(Acquire) == 2);
    for page in 0..2 {
        let read = Read { page: PageId(page), count: 1, bytes: PAGE as u32, frame: None, writable: 0 };
        assert_eq!(remote.read(&read, &mut &*taker).expect("a request"), Begun::Later);
    }
    let reading = std::thread::spawn(|| {
        let end = Instant::now() + SOON;
        while taker.read.load(Acquire) < 2 {
            assert!(Instant::now() < end, "a page does not come");
            remote.poll(Turn::Receive(Wait::Spin { iterations: 100 }), &mut &*taker).expect("a server that answers");
        }
    });
    // This loop waits until the reader holds the receiving end. The polls for upkeep begin only after that.
    let end = Instant::now() + SOON;
    while !taker.holds.load(Acquire) {
        assert!(Instant::now() < end, "nothing arrives");
        std::thread::sleep(Duration::from_millis(1));
    }
    until(&|| taker.read.load(Acquire) == 2);
    reading.join().expect("a reader");
    server.end();
}

#[test]
fn a_server_that_a_thread_is_about_to_ask_owes_nothing() {
    let server = Serving::start();
    let shape = shape(1024, 4, Guarding::Sums);
    let (remote, senders) = Remote::new(vec![server.opened()], shape, PAGE, SILENT).expect("a store");
    let asked = &remote.servers[0];
    asked.last_reply_ns.store(remote.awake.now_ns() - 1_000_000, Release);
    assert!(!remote.owes_longer_than(Duration::ZERO), "no page is owed");

    // A thread has counted its request. It waits for a CPU before it has sent the request.
    let sending = asked.requests.lock();
    asked.reads_in_flight.fetch_add(1, AcqRel);
    assert!(!remote.owes_longer_than(Duration::ZERO), "the server was not asked yet");
    drop(sending);
    assert!(remote.owes_longer_than(Duration::ZERO), "the server was asked");
    assert!(!remote.owes_longer_than(SOON), "it may answer for a while");
    asked.reads_in_flight.fetch_sub(1, AcqRel);
    drop((remote, senders));
    server.end();
}

/// Without the error, such a worker would sleep for ever, and no page would be written.
#[test]
fn a_worker_of_another_kind_of_store_is_an_error() {
    let server = Serving::start();
    let shape = shape(1024, 4, Guarding::Sums);
    let (remote, senders) = Remote::new(vec![server.opened()], shape, PAGE, SILENT).expect("a store");
    let store = crate::Kind::Remote(Box::new(remote));
    let mut worker = crate::Worker::Rebuilder(crate::Rebuilder::default());
    let error = store.work(&mut worker, &mut |_, _, _| {}, &mut &Starved::default()).expect_err("another store");
    assert!(matches!(error, StoreError::OtherWorker), "{error}");
    drop((store, senders));
    server.end();
}
