//! Tests of the store with a memory server in this process.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use hanare_paging::{FrameId, PageId};
use hanare_server::{Server as MemoryServer, ServerConfig};

use super::*;

mod damaged;

const PAGE: usize = 4096;
const SILENT: Duration = Duration::from_millis(500);
const SOON: Duration = Duration::from_secs(30);

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
    let server = MemoryServer::bind(ServerConfig::new(vec!["127.0.0.1:0".parse().expect("an address")], 64 << 20));
    let server = server.expect("a server");
    let endpoint = server.local_addrs()[0].clone();
    let stop = server.stop_handle();
    let serving = std::thread::spawn(move || server.run());

    let options = SessionOptions::for_endpoint(&endpoint, PAGE as u32);
    let session = Session::open(&endpoint, &options).expect("a session");
    let opened = Opened { name: endpoint.to_string(), session, options, capacity_bytes: 64 << 20, limit_bytes: None };
    let (units, unit_bytes, slot_bytes) = (1024, PAGE, PAGE);
    let shape = Shape { units, unit_bytes, slot_bytes, small_frames: 4, wide_frames: 0, guarding: Guarding::Sums };
    let (remote, senders) = Remote::new(vec![opened], shape, PAGE, SILENT).expect("a store");
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
    stop.stop();
    serving.join().expect("a server").expect("a good end");
}

/// Without the error, such a worker would sleep for ever, and no page would be written.
#[test]
fn a_worker_of_another_kind_of_store_is_an_error() {
    let server = MemoryServer::bind(ServerConfig::new(vec!["127.0.0.1:0".parse().expect("an address")], 64 << 20));
    let server = server.expect("a server");
    let endpoint = server.local_addrs()[0].clone();
    let stop = server.stop_handle();
    let serving = std::thread::spawn(move || server.run());
    let options = SessionOptions::for_endpoint(&endpoint, PAGE as u32);
    let session = Session::open(&endpoint, &options).expect("a session");
    let opened = Opened { name: endpoint.to_string(), session, options, capacity_bytes: 64 << 20, limit_bytes: None };
    let (unit_bytes, slot_bytes) = (PAGE, PAGE);
    let shape =
        Shape { units: 1024, unit_bytes, slot_bytes, small_frames: 4, wide_frames: 0, guarding: Guarding::Sums };
    let (remote, senders) = Remote::new(vec![opened], shape, PAGE, SILENT).expect("a store");
    let store = crate::Kind::Remote(Box::new(remote));
    let mut worker = crate::Worker::Rebuilder(crate::Rebuilder::default());
    let error = store.work(&mut worker, &mut |_, _, _| {}, &mut &Starved::default()).expect_err("another store");
    assert!(matches!(error, StoreError::OtherWorker), "{error}");
    drop((store, senders));
    stop.stop();
    serving.join().expect("a server").expect("a good end");
}
