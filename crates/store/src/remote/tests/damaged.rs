//! Tests of pages that come back wrong. The test changes what the client notes about a page after the page was sent. To
//! the client, the server's bytes are then those of an older version.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use super::*;

const PAGES: u32 = 4;

/// Receives reads, in place or in parts.
struct Taking {
    bytes: Vec<u8>,
    in_place: bool,
    /// The reads whose bytes were passed on. `arrived` has those that were reported as complete.
    passed: Vec<PageId>,
    arrived: Vec<PageId>,
}

impl Taking {
    fn new(in_place: bool) -> Self {
        Self { bytes: vec![0; PAGES as usize * PAGE], in_place, passed: Vec::new(), arrived: Vec::new() }
    }
}

impl Take for Taking {
    fn place(&mut self, _: &Read) -> Option<*mut u8> {
        self.in_place.then_some(self.bytes.as_mut_ptr())
    }

    fn placed(&mut self, read: &Read) {
        self.passed.push(read.page);
    }

    unsafe fn part(&mut self, read: &Read, at: usize, from: *const u8, len: usize) {
        // SAFETY: the store passes memory with `len` bytes, which do not change during this call.
        self.bytes[at..at + len].copy_from_slice(unsafe { std::slice::from_raw_parts(from, len) });
        self.passed.push(read.page);
    }

    fn arrived(&mut self, read: &Read) {
        self.arrived.push(read.page);
    }

    fn spare(&mut self) -> *mut u8 {
        std::ptr::null_mut()
    }
}

/// A store with a sender that runs, and the number of writes that have ended.
struct World<'a> {
    remote: &'a Remote,
    written: &'a Mutex<u32>,
}

impl World<'_> {
    /// Writes a page that is full of `byte`, and waits until the server has it.
    fn write(&self, page: u32, byte: u8) {
        let bytes = vec![byte; PAGE];
        let before = *self.written.lock().expect("no panic");
        let (frame, at) = (Some(FrameId { wide: false, index: page }), Some(bytes.as_ptr()));
        let (page, spare) = (PageId(page), std::ptr::null_mut());
        let write = Write { page, bytes: PAGE as u32, frame, at, may_be_same: false, spare };
        // SAFETY: the bytes do not change before the write has ended.
        let saved = unsafe { self.remote.write(&write, &mut |_| {}) }.expect("room");
        assert_eq!(saved, Saved::Later);
        let end = Instant::now() + SOON;
        while *self.written.lock().expect("no panic") == before {
            assert!(Instant::now() < end, "the write does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn ask(&self, page: u32, count: u32, take: &mut Taking) {
        let read = Read { page: PageId(page), count, bytes: count * PAGE as u32, frame: None, writable: 0 };
        assert_eq!(self.remote.read(&read, take).expect("a request"), Begun::Later);
    }

    /// Polls until a page arrives. Returns the wrong unit and its read if a poll reports one.
    fn next(&self, take: &mut Taking) -> Result<PageId, (u32, PageId)> {
        let (before, end) = (take.arrived.len(), Instant::now() + SOON);
        while take.arrived.len() == before {
            assert!(Instant::now() < end, "nothing arrives");
            match self.remote.poll(Turn::Receive(Wait::Block { timeout: Duration::from_millis(20) }), take) {
                Ok(_) => {}
                Err(StoreError::Damaged { page, read, server }) => {
                    let told = StoreError::Damaged { page, read, server };
                    assert_eq!(told.exit_code(), crate::EXIT_LOST);
                    let words = told.to_string();
                    assert!(words.contains(server) && words.contains(&format!("page {page} back wrong")), "{words}");
                    return Err((page, read.page));
                }
                Err(error) => panic!("{error}"),
            }
        }
        Ok(take.arrived[before])
    }

    /// Changes what the client notes about a page.
    fn forget_the_last_version(&self, page: u32) {
        let mut other = vec![0xee; PAGE];
        match self.remote.guard.seals() {
            true => self.remote.guard.seal(page, &mut other).expect("a nonce"),
            false => self.remote.guard.note(page, &other),
        }
    }
}

/// Runs a test on a store over a server in this process. Then stops the store's sender, and passes the store to `then`.
fn with_store(sealed: bool, test: impl FnOnce(World<'_>), then: impl FnOnce(Remote)) {
    let server = Serving::start();
    let shape = shape(64, PAGES, if sealed { Guarding::Seals } else { Guarding::Sums });
    let bounce = PAGES as usize * PAGE;
    let (remote, senders) =
        Remote::new(vec![server.opened()], shape, bounce, Duration::from_secs(10)).expect("a store");
    let (written, is_over) = (Mutex::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for mut sender in senders {
            let (remote, written, is_over) = (&remote, &written, &is_over);
            scope.spawn(move || {
                while !is_over.load(Acquire) {
                    let mut ended = |_, _, _| *written.lock().expect("no panic") += 1;
                    let sent = remote.send(&mut sender, &mut ended).map(drop);
                    sent.map_err(|error| error.to_string()).expect("a server that answers");
                }
            });
        }
        let world = World { remote: &remote, written: &written };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(world)));
        is_over.store(true, Release);
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    then(remote);
    server.end();
}

#[test]
fn a_wrong_page_is_never_passed_on_and_its_link_goes_on() {
    for (sealed, in_place) in [(false, false), (false, true), (true, false), (true, true)] {
        let test = |world: World<'_>| {
            (0..PAGES).for_each(|page| world.write(page, page as u8 + 1));
            world.forget_the_last_version(1);
            let mut take = Taking::new(in_place);
            world.ask(0, 3, &mut take);
            world.ask(3, 1, &mut take);
            world.ask(1, 1, &mut take);
            assert_eq!(world.next(&mut take), Err((1, PageId(0))), "the range has a wrong page");
            assert_eq!(world.next(&mut take), Ok(PageId(3)), "the next reply on the same link");
            assert_eq!(world.next(&mut take), Err((1, PageId(1))), "the wrong page alone");
            assert!(!world.remote.is_reading() && take.passed == [PageId(3)] && take.arrived == [PageId(3)]);
            assert!(take.bytes[..PAGE].iter().all(|&byte| byte == 4) || in_place, "the right page");

            world.write(1, 77);
            world.ask(0, 3, &mut take);
            assert_eq!(world.next(&mut take), Ok(PageId(0)), "all pages are right again");
            let filled = |page: usize, byte: u8| take.bytes[page * PAGE..(page + 1) * PAGE].iter().all(|&b| b == byte);
            assert!(filled(0, 1) && filled(1, 77) && filled(2, 3), "{sealed}, {in_place}");
        };
        with_store(sealed, test, drop);
    }
}

/// The table of a store belongs to its process. A child that forgot it could read none of its parent's pages.
#[test]
fn a_childs_store_checks_and_opens_its_parents_pages() {
    for sealed in [false, true] {
        let write = |world: World<'_>| (0..PAGES).for_each(|page| world.write(page, page as u8 + 1));
        with_store(sealed, write, |remote| {
            let sessions = remote.share(None).expect("cloned sessions");
            let (child, _) = remote.again(sessions).expect("a store");
            let world = World { remote: &child, written: &Mutex::new(0) };
            world.forget_the_last_version(3);
            let mut take = Taking::new(false);
            world.ask(0, 3, &mut take);
            world.ask(3, 1, &mut take);
            assert_eq!(world.next(&mut take), Ok(PageId(0)), "{sealed}");
            assert_eq!(world.next(&mut take), Err((3, PageId(3))), "{sealed}");
            for (page, bytes) in (1..4).zip(take.bytes.chunks(PAGE)) {
                assert!(bytes.iter().all(|&byte| byte == page), "{sealed}: page {page}");
            }
        });
    }
}
