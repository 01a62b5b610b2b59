//! The store against a server in this process.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use hanare_server::{Server as MemoryServer, ServerConfig};

use super::*;

const PAGE: usize = 4096;
const SILENT: Duration = Duration::from_millis(500);
const SOON: Duration = Duration::from_secs(30);

/// A client whose thread stands still for a while in the middle of a read, as one does that waits for a CPU.
struct Starved {
    page: Mapping,
    holds: AtomicBool,
    written: AtomicU32,
    read: AtomicU32,
}

impl Client for Starved {
    fn frame(&self, _: FrameId) -> *mut u8 {
        self.page.addr() as *mut u8
    }

    fn receive(&self, read: Read, spare: *mut u8, payload: impl FnOnce(*mut u8)) -> Event {
        if !self.holds.swap(true, AcqRel) {
            std::thread::sleep(3 * SILENT);
        }
        payload(spare);
        // SAFETY: the buffer has the bytes of a page, and is this thread's while it holds the receiving end.
        let bytes = unsafe { std::slice::from_raw_parts(spare, PAGE) };
        assert!(bytes.iter().all(|&byte| byte == 7), "the page that was written");
        self.read.fetch_add(1, AcqRel);
        Event::Fetched { page: read.page, ok: true }
    }

    fn ended(&self, event: Event) {
        if matches!(event, Event::WrittenBack { ok: true, .. }) {
            self.written.fetch_add(1, AcqRel);
        }
    }

    fn notify(&self, _: PageId, _: u32) {}

    fn requested(&self) {}
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
    let shape = Shape { units: 1024, unit_bytes: PAGE, slot_bytes: PAGE, small_frames: 4, wide_frames: 0 };
    let (remote, writers) = Remote::new(vec![opened], shape, PAGE, SILENT).expect("a store");
    let page = Mapping::anonymous(PAGE).expect("a page");
    // SAFETY: the mapping has a page, and nobody else knows of it yet.
    unsafe { (page.addr() as *mut u8).write_bytes(7, PAGE) };
    let client = Starved { page, holds: AtomicBool::new(false), written: AtomicU32::new(0), read: AtomicU32::new(0) };
    // A writer's loop has no end but the process's.
    let (remote, client): (&'static Remote, &'static Starved) = (Box::leak(remote.into()), Box::leak(client.into()));
    for writer in writers {
        std::thread::spawn(move || remote.run_writer(client, 0, writer));
    }
    let until = |done: &dyn Fn() -> bool| {
        let end = Instant::now() + SOON;
        while !done() {
            assert!(Instant::now() < end, "it does not come");
            // As the keeper does; were the server blamed, the process would end here.
            remote.watch(client);
            std::thread::sleep(Duration::from_millis(10));
        }
    };

    let frame = |index| FrameId { wide: false, index };
    for page in 0..2 {
        remote.write_back(PageId(page), frame(page), PAGE as u32);
    }
    until(&|| client.written.load(Acquire) == 2);
    remote.mark_held(0, 2);
    for page in 0..2 {
        let read = Read { page: PageId(page), count: 1, bytes: PAGE as u32, frame: Some(frame(page)), writable: 0 };
        remote.fetch(client, read, &mut |_| {});
    }
    let reading = std::thread::spawn(|| {
        while client.read.load(Acquire) < 2 {
            remote.pump(client, Wait::Spin { iterations: 100 });
        }
    });
    // The reader holds the receiving end first, then the watching begins.
    let end = Instant::now() + SOON;
    while !client.holds.load(Acquire) {
        assert!(Instant::now() < end, "nothing arrives");
        std::thread::sleep(Duration::from_millis(1));
    }
    until(&|| client.read.load(Acquire) == 2);
    reading.join().expect("a reader");
    stop.stop();
    serving.join().expect("a server").expect("a good end");
}
