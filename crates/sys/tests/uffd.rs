//! Tests of userfaultfd on the real kernel. After every request, they check the contents of the memory.

mod common;

use common::*;
use hanare_sys::map::{self, Advice, Mapping, page_size};
use hanare_sys::pagemap::present_pages;
use hanare_sys::thread::gettid;
use hanare_sys::uffd::{CopyMode, Event, IoctlResult, MoveMode, RegisterMode, Uffd, UffdAccess, UffdError, feature};
use std::sync::mpsc;
use std::time::Duration;

const HUGE: usize = 2 << 20;

/// Runs `touch`, which accesses memory, in a new thread. The thread first sends its id to the returned receiver. When
/// `touch` has returned, the thread sends its result.
fn toucher(touch: impl FnOnce() -> u64 + Send + 'static) -> mpsc::Receiver<u64> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        sender.send(gettid() as u64).unwrap();
        sender.send(touch()).unwrap();
    });
    receiver
}

fn done(len: usize) -> IoctlResult {
    IoctlResult { done: len, errno: None }
}

#[test]
fn a_missing_touch_sleeps_until_copy_brings_the_page() {
    let features = features();
    need!(features.missing && features.thread_id, "userfaultfd with thread ids");
    let uffd = Uffd::open(features.access, feature::THREAD_ID).unwrap();
    let page = page_size();
    let (far, near) = (far(&uffd, 2 * page, MISSING), near(page, 1));
    let addr = far.addr() + page;
    let reply = toucher(move || read(addr + 64));
    let tid = reply.recv_timeout(PATIENCE).unwrap() as i32;
    let events = next_events(&uffd);
    assert_eq!(events, [Event::Fault { addr, write: false, wp: false, minor: false, tid }]);
    assert!(reply.try_recv().is_err(), "the touch must still sleep");
    // SAFETY: both mappings belong to this test, so no other code relies on their contents.
    let copied = unsafe { uffd.copy(addr, near.addr(), page, CopyMode::default()) };
    assert_eq!(copied, done(page));
    assert_eq!(reply.recv_timeout(PATIENCE).unwrap(), read(near.addr() + 64));
    check(addr, page, 1);
    assert_eq!(present_pages(far.addr(), 2 * page).unwrap(), 1);
}

#[test]
fn a_page_copied_write_protected_traps_the_first_write_only() {
    let features = features();
    need!(features.wp, "userfaultfd write protection");
    let uffd = Uffd::open(features.access, feature::WP).unwrap();
    let page = page_size();
    let (far, near) = (far(&uffd, page, MISSING_WP), near(page, 2));
    let addr = far.addr();
    // SAFETY: both mappings belong to this test, so no other code relies on their contents.
    let copied = unsafe { uffd.copy(addr, near.addr(), page, CopyMode { wp: true, dontwake: true }) };
    assert_eq!(copied, done(page));
    check(addr, page, 2);
    let reply = toucher(move || {
        write(addr + 8, 77);
        read(addr + 8)
    });
    reply.recv_timeout(PATIENCE).unwrap();
    let events = next_events(&uffd);
    assert_eq!(events, [Event::Fault { addr, write: true, wp: true, minor: false, tid: 0 }]);
    check(addr, page, 2);
    uffd.write_protect(addr, page, false, true).unwrap();
    assert!(reply.recv_timeout(Duration::from_millis(50)).is_err(), "dontwake must not wake");
    uffd.wake(addr, page).unwrap();
    assert_eq!(reply.recv_timeout(PATIENCE).unwrap(), 77);
    write(addr, 5);
    assert_eq!(uffd.read_events(&mut [Event::EMPTY; 16]), Ok(0));
}

#[test]
fn dontwake_leaves_the_thread_asleep_until_wake() {
    let features = features();
    need!(features.missing, "userfaultfd");
    let uffd = Uffd::open(features.access, 0).unwrap();
    let page = page_size();
    let (far, near) = (far(&uffd, page, MISSING), near(page, 3));
    let addr = far.addr();
    let reply = toucher(move || {
        write(addr + 8, 33);
        read(addr)
    });
    reply.recv_timeout(PATIENCE).unwrap();
    let fault = Event::Fault { addr, write: true, wp: false, minor: false, tid: 0 };
    assert_eq!(next_events(&uffd), [fault]);
    // SAFETY: both mappings belong to this test, so no other code relies on their contents.
    let copied = unsafe { uffd.copy(addr, near.addr(), page, CopyMode { wp: false, dontwake: true }) };
    assert_eq!(copied, done(page));
    assert!(reply.recv_timeout(Duration::from_millis(50)).is_err(), "dontwake must not wake");
    uffd.wake(addr, page).unwrap();
    assert_eq!(reply.recv_timeout(PATIENCE).unwrap(), read(near.addr()));
    assert_eq!(read(addr + 8), 33);
}

#[test]
fn a_copy_that_meets_a_present_page_tells_how_far_it_came() {
    let features = features();
    need!(features.missing, "userfaultfd");
    let uffd = Uffd::open(features.access, 0).unwrap();
    let page = page_size();
    let (far, near) = (far(&uffd, 4 * page, MISSING), near(4 * page, 4));
    let copy = |first: usize, pages: usize| {
        // SAFETY: both mappings belong to this test, so no other code relies on their contents.
        unsafe {
            let (dst, src) = (far.addr() + first * page, near.addr() + first * page);
            uffd.copy(dst, src, pages * page, CopyMode::default())
        }
    };
    assert_eq!(copy(2, 1), done(page));
    let partial = copy(0, 4);
    assert_eq!(partial.done, 2 * page);
    assert_eq!(partial.errno, Some(libc::EAGAIN));
    assert_eq!(copy(2, 2), IoctlResult { done: 0, errno: Some(libc::EEXIST) });
    assert_eq!(copy(3, 1), done(page));
    check(far.addr(), 4 * page, 4);
}

#[test]
fn zeropage_gives_zeroes() {
    let features = features();
    need!(features.missing, "userfaultfd");
    let uffd = Uffd::open(features.access, 0).unwrap();
    let len = 3 * page_size();
    let far = far(&uffd, len, MISSING);
    // SAFETY: the mapping belongs to this test, so no other code relies on its contents.
    assert_eq!(unsafe { uffd.zeropage(far.addr(), len, false) }, done(len));
    check_zero(far.addr(), len);
    fill(far.addr(), len, 5);
    check(far.addr(), len, 5);
}

fn moves_in_and_out(len: usize) {
    let features = features();
    need!(features.move_, "UFFDIO_MOVE");
    let uffd = Uffd::open(features.access, feature::MOVE).unwrap();
    let far = far(&uffd, len, MISSING);
    let frame = far_frame(&uffd, len);
    fill(frame.addr(), len, 6);
    let shift = |dst: &Mapping, src: &Mapping| {
        // SAFETY: both mappings belong to this test, so no other code relies on their contents.
        unsafe { uffd.move_pages(dst.addr(), src.addr(), len, MoveMode::default()) }
    };
    assert_eq!(shift(&far, &frame), done(len));
    assert_eq!(present_pages(frame.addr(), len).unwrap(), 0);
    check(far.addr(), len, 6);
    fill(far.addr(), len, 7);
    assert_eq!(shift(&frame, &far), done(len));
    assert_eq!(present_pages(far.addr(), len).unwrap(), 0);
    check(frame.addr(), len, 7);
    let fails = |errno| IoctlResult { done: 0, errno: Some(errno) };
    let empty = far_frame(&uffd, len);
    assert_eq!(shift(&empty, &far), fails(libc::ENOENT), "no page to move");
    fill(empty.addr(), len, 8);
    assert_eq!(shift(&empty, &frame), fails(libc::EEXIST), "a page in the way");
    check(frame.addr(), len, 7);
}

/// Makes a range from which and to which pages are moved. The range is registered, because the destination of MOVE must
/// be registered.
fn far_frame(uffd: &Uffd, len: usize) -> Mapping {
    let frame = Mapping::reserve(len, page_size()).unwrap();
    uffd.register(frame.addr(), len, WP).unwrap();
    frame
}

#[test]
fn one_page_moves_in_and_out() {
    moves_in_and_out(page_size());
}

#[test]
fn sixty_four_kib_move_in_and_out() {
    moves_in_and_out(64 << 10);
}

#[test]
fn a_move_skips_holes_when_told_to() {
    let features = features();
    need!(features.move_, "UFFDIO_MOVE");
    let uffd = Uffd::open(features.access, feature::MOVE).unwrap();
    let page = page_size();
    let far = far(&uffd, 2 * page, MISSING);
    let frame = far_frame(&uffd, 2 * page);
    fill(frame.addr() + page, page, 8);
    let mode = MoveMode { dontwake: false, allow_src_holes: true };
    // SAFETY: both mappings belong to this test, so no other code relies on their contents.
    let moved = unsafe { uffd.move_pages(far.addr(), frame.addr(), 2 * page, mode) };
    assert_eq!(moved, done(2 * page));
    assert_eq!(present_pages(far.addr(), page).unwrap(), 0);
    check(far.addr() + page, page, 8);
}

#[test]
fn a_huge_page_moves_whole_in_and_out() {
    let features = features();
    need!(features.move_ && features.thp.usable(), "UFFDIO_MOVE of huge pages");
    let uffd = Uffd::open(features.access, feature::MOVE).unwrap();
    let region = |mode: RegisterMode| {
        let mapping = Mapping::reserve(HUGE, HUGE).unwrap();
        assert_eq!(mapping.addr() % HUGE, 0);
        // SAFETY: the advice to use huge pages changes no contents.
        unsafe { map::advise(mapping.addr(), HUGE, Advice::HugePage) }.unwrap();
        uffd.register(mapping.addr(), HUGE, mode).unwrap();
        mapping
    };
    let (far, frame) = (region(MISSING), region(WP));
    fill(frame.addr(), HUGE, 9);
    need!(huge_kib(frame.addr()) == HUGE >> 10, "huge page to give at this moment");
    let shift = |dst: &Mapping, src: &Mapping| {
        // SAFETY: both mappings belong to this test, so no other code relies on their contents.
        unsafe { uffd.move_pages(dst.addr(), src.addr(), HUGE, MoveMode::default()) }
    };
    assert_eq!(shift(&far, &frame), done(HUGE));
    assert_eq!((huge_kib(far.addr()), huge_kib(frame.addr())), (HUGE >> 10, 0));
    check(far.addr(), HUGE, 9);
    fill(far.addr(), HUGE, 10);
    assert_eq!(shift(&frame, &far), done(HUGE));
    assert_eq!((huge_kib(far.addr()), huge_kib(frame.addr())), (0, HUGE >> 10));
    check(frame.addr(), HUGE, 10);
}

#[test]
fn a_minor_fault_continues_with_what_the_other_mapping_wrote() {
    let features = features();
    need!(features.continue_, "UFFDIO_CONTINUE");
    let uffd = Uffd::open(features.access, feature::MINOR_SHMEM | feature::MISSING_SHMEM).unwrap();
    let page = page_size();
    let object = map::memfd("hanare-test", 2 * page as u64).unwrap();
    let view = Mapping::shared(&object, 0, 2 * page).unwrap();
    let filler = Mapping::shared(&object, 0, 2 * page).unwrap();
    let mode = RegisterMode { missing: true, wp: false, minor: true };
    uffd.register(view.addr(), view.len(), mode).unwrap();
    fill(filler.addr(), page, 11);
    let addr = view.addr();
    let reply = toucher(move || read(addr));
    reply.recv_timeout(PATIENCE).unwrap();
    let events = next_events(&uffd);
    assert_eq!(events, [Event::Fault { addr, write: false, wp: false, minor: true, tid: 0 }]);
    assert_eq!(uffd.continue_(addr, page, false), done(page));
    assert_eq!(reply.recv_timeout(PATIENCE).unwrap(), read(filler.addr()));
    check(addr, page, 11);
    let absent = uffd.continue_(addr + page, page, false);
    assert_eq!((absent.done, absent.errno), (0, Some(libc::EFAULT)));
}

#[test]
fn a_shared_page_continued_protected_traps_its_first_write_and_again_after_it_was_dropped() {
    let features = features();
    need!(features.continue_ && features.wp, "UFFDIO_CONTINUE with write protection");
    let wanted = feature::MINOR_SHMEM | feature::MISSING_SHMEM | feature::WP | feature::WP_HUGETLBFS_SHMEM;
    let uffd = Uffd::open(features.access, wanted).unwrap();
    let page = page_size();
    let object = map::memfd("hanare-test", page as u64).unwrap();
    let view = Mapping::shared(&object, 0, page).unwrap();
    let filler = Mapping::shared(&object, 0, page).unwrap();
    uffd.register(view.addr(), view.len(), RegisterMode { missing: true, wp: true, minor: true }).unwrap();
    fill(filler.addr(), page, 12);
    let addr = view.addr();
    for _ in 0..2 {
        assert_eq!(uffd.continue_protected(addr, page), done(page));
        check(addr, page, 12);
        let reply = toucher(move || {
            fill(addr, 8, 12);
            0
        });
        reply.recv_timeout(PATIENCE).unwrap();
        assert_eq!(next_events(&uffd), [Event::Fault { addr, write: true, wp: true, minor: false, tid: 0 }]);
        uffd.write_protect(addr, page, false, false).unwrap();
        reply.recv_timeout(PATIENCE).unwrap();
        // SAFETY: the mapping belongs to this test, and no reference points into it. Only the mapping loses its pages;
        // the shared object keeps its bytes.
        unsafe { map::advise(addr, page, map::Advice::DontNeed) }.unwrap();
        let reply = toucher(move || read(addr));
        reply.recv_timeout(PATIENCE).unwrap();
        assert_eq!(next_events(&uffd), [Event::Fault { addr, write: false, wp: false, minor: true, tid: 0 }]);
        assert_eq!(uffd.continue_protected(addr, page), done(page));
        assert_eq!(reply.recv_timeout(PATIENCE).unwrap(), read(filler.addr()));
        // SAFETY: the mapping belongs to this test, and no reference points into it. Only the mapping loses its pages;
        // the shared object keeps its bytes.
        unsafe { map::advise(addr, page, map::Advice::DontNeed) }.unwrap();
    }
}

#[test]
fn dropped_and_unmapped_ranges_are_reported() {
    let features = features();
    need!(features.missing, "userfaultfd");
    let wanted = feature::EVENT_REMOVE | feature::EVENT_UNMAP;
    let uffd = Uffd::open(features.access, wanted).unwrap();
    let page = page_size();
    let far = far(&uffd, 4 * page, MISSING);
    let (start, end) = (far.addr() + page, far.addr() + 3 * page);
    // SAFETY: the mapping belongs to this test, so no other code relies on its contents.
    let dropper = std::thread::spawn(move || unsafe { map::advise(start, end - start, Advice::DontNeed) });
    assert_eq!(next_events(&uffd), [Event::Remove { start, end }]);
    dropper.join().unwrap().unwrap();
    let (start, end) = (far.addr(), far.end());
    let unmapper = std::thread::spawn(move || drop(far));
    assert_eq!(next_events(&uffd), [Event::Unmap { start, end }]);
    unmapper.join().unwrap();
}

#[test]
fn wait_tells_events_from_the_other_descriptor() {
    let features = features();
    need!(features.missing, "userfaultfd");
    let uffd = Uffd::open(features.access, 0).unwrap();
    let page = page_size();
    let (far, near) = (far(&uffd, page, MISSING), near(page, 12));
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let other = Some(std::os::fd::AsFd::as_fd(&reader));
    let nothing = uffd.wait(other, Some(Duration::from_millis(1))).unwrap();
    assert!(!nothing.events && !nothing.other);
    let (quiet, _silent) = rustix::pipe::pipe().unwrap();
    drop(writer);
    let hung_up = uffd.wait(other, Some(PATIENCE)).unwrap();
    assert!(!hung_up.events && hung_up.other);
    let second = [&quiet, &reader].map(std::os::fd::AsFd::as_fd);
    assert!(uffd.wait(second, Some(PATIENCE)).unwrap().other, "any of several ends the wait");
    let addr = far.addr();
    let reply = toucher(move || read(addr));
    reply.recv_timeout(PATIENCE).unwrap();
    assert!(uffd.wait(None, Some(PATIENCE)).unwrap().events);
    next_events(&uffd);
    // SAFETY: both mappings belong to this test, so no other code relies on their contents.
    assert!(unsafe { uffd.copy(addr, near.addr(), page, CopyMode::default()) }.is_ok());
    assert_eq!(reply.recv_timeout(PATIENCE).unwrap(), read(near.addr()));
}

#[test]
fn refusals_say_what_was_refused() {
    assert_eq!(Uffd::open(UffdAccess::None, 0).unwrap_err(), UffdError::NoAccess);
    let features = features();
    need!(features.missing, "userfaultfd");
    let unknown = 1 << 60;
    let error = Uffd::open(features.access, unknown).unwrap_err();
    assert_eq!(error, UffdError::Features { absent: unknown });
    let uffd = Uffd::open(features.access, 0).unwrap();
    let error = uffd.register(1, page_size(), MISSING).unwrap_err();
    assert!(error.to_string().contains("cannot register 4096 bytes at 0x1"), "{error}");
    assert!(Uffd::supported(features.access).unwrap() & feature::WP != 0 || !features.wp);
}

#[test]
fn an_unregistered_range_reads_zeroes_without_a_trap() {
    let features = features();
    need!(features.missing, "userfaultfd");
    let uffd = Uffd::open(features.access, 0).unwrap();
    let far = far(&uffd, page_size(), MISSING);
    uffd.unregister(far.addr(), far.len()).unwrap();
    check_zero(far.addr(), far.len());
}
