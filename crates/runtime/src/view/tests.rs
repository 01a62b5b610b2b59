//! Tests of the userfaultfd view on the real kernel. They move pages aside. Some of these pages are held by transfers,
//! shared with children, or accessed during the move.

use super::{Abilities, LiveView, Mechanism, Moved, Sizes, View, moving};
use crate::near::resident;
use crate::span::{OS_PAGE, Span};
use hanare_paging::FrameId;
use hanare_sys::features::{Disabled, Features};
use hanare_sys::map::{self, Advice};
use hanare_sys::uffd::{EVENTS_PER_READ, Event, MoveMode, Uffd, UffdAccess, feature};

const PLACES: usize = 8;

/// Makes a view and brings `pages` pages into it. Every byte of page `n` is `n + 1`. Returns `None` if the kernel
/// cannot move pages.
fn view(pages: usize) -> Option<LiveView> {
    view_with(pages, 0, false)
}

/// Makes a view like [`view`], with `small_frames` frames for base pages. Requests huge pages if `huge` is true.
fn view_with(pages: usize, small_frames: usize, huge: bool) -> Option<LiveView> {
    let sizes = Sizes { small_frames, ..SIZES };
    let view = empty_view(sizes, |features| features.move_.then_some(Abilities { huge, ..Abilities::NONE }))?;
    for page in 0..pages {
        let bytes = [page as u8 + 1; OS_PAGE];
        // SAFETY: the page is absent, and only this test uses the view. `bytes` has the size of a page.
        assert!(unsafe { view.copy_in(span(page, 1), bytes.as_ptr(), true) });
    }
    Some(view)
}

const SIZES: Sizes = Sizes {
    reserve: 4 << 20,
    place: None,
    unit: OS_PAGE,
    block: OS_PAGE,
    small_frames: 0,
    wide_frames: 0,
    aside_units: PLACES,
};

/// Makes a view without pages. Returns `None` if the kernel has no userfaultfd, or if `able` finds that it lacks a
/// feature.
fn empty_view(sizes: Sizes, able: impl Fn(&Features) -> Option<Abilities>) -> Option<LiveView> {
    let features = Features::probe(&Disabled::default());
    let able = able(&features).filter(|_| features.access != UffdAccess::None)?;
    let uffd = Uffd::open(features.access, feature::WP | feature::MOVE).expect("userfaultfd");
    Some(LiveView::new(Mechanism::Uffd(uffd), sizes, able).expect("a view"))
}

fn span(page: usize, pages: usize) -> Span {
    Span { offset: page * OS_PAGE, len: pages * OS_PAGE }
}

/// Returns for each of the first `pages` pages whether it is in view. Accesses no page, because nothing would resolve a
/// fault on an absent page.
fn in_view(view: &LiveView, pages: usize) -> Vec<bool> {
    (0..pages).map(|page| resident(view.base() + page * OS_PAGE, OS_PAGE) > 0).collect()
}

/// Asserts that every byte of a present page equals `byte`.
fn assert_filled(page: *const u8, byte: u8, what: &str) {
    for at in 0..OS_PAGE {
        // SAFETY: `page` is present and belongs to this test, and `at` lies in the page.
        let found = unsafe { page.add(at).read_volatile() };
        assert_eq!(found, byte, "{what}, byte {at}");
    }
}

#[test]
fn pages_moved_aside_are_out_of_view_and_whole_in_their_places_until_these_are_emptied() {
    let Some(view) = view(5) else { return };
    for round in 0..2 {
        let first = 1 + 2 * round;
        // SAFETY: the pages are open for writing and the places are empty. Only this test uses them.
        assert_eq!(unsafe { view.move_aside(span(first, 2), 3) }, Moved::Gone);
        for place in 0..2 {
            assert_filled(view.aside(3 + place), (first + place) as u8 + 1, "a page moved aside");
        }
        view.drop_aside(0, PLACES);
        assert_eq!(resident(view.aside(0) as usize, PLACES * OS_PAGE), 0, "the places are empty");
    }
    assert_eq!(in_view(&view, 5), [true, false, false, false, false]);
}

/// Frames for base pages must not share a huge page. Otherwise the first write to a frame would fill all frames in the
/// same 2 MiB. MOVE requires an empty destination.
#[test]
fn a_frame_that_is_written_leaves_its_neighbours_empty() {
    let Some(view) = view_with(3, 1024, true) else { return };
    let frame = |index| FrameId { wide: false, index };
    // SAFETY: frame 600 exists, has `OS_PAGE` bytes, and belongs to this test.
    unsafe { view.frame(frame(600)).write_bytes(7, OS_PAGE) };
    let near = |index: u32| resident(view.frame(frame(index)) as usize, OS_PAGE);
    assert_eq!([599, 600, 601].map(near), [0, OS_PAGE as u64, 0]);
    // SAFETY: the page is in view and the frame is empty. Only this test uses them.
    assert!(unsafe { view.move_out(span(1, 1), frame(601), false) });
    assert_filled(view.frame(frame(601)), 2, "the page that was moved");
    assert_eq!(in_view(&view, 3), [true, false, true]);
}

/// MOVE refuses a page that a forked child shares. The view must then make the page private to the parent and move it
/// aside. The child keeps its own copy.
#[test]
fn pages_that_a_child_shares_are_moved_and_the_child_keeps_its_own() {
    let Some(view) = view(4) else { return };
    view.let_fork(true).expect("inherited");
    let mut pipe = [0; 2];
    // SAFETY: `pipe` has room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: the child only reads the pipe and its memory and ends. It takes no lock that another thread could hold.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut word = 0_u8;
        // SAFETY: `read` writes one byte to `word`. The child's 4 pages are present. `_exit` runs no code of the
        // parent.
        unsafe {
            libc::close(pipe[1]);
            libc::read(pipe[0], (&raw mut word).cast(), 1);
            let kept =
                (0..4).all(|page| ((view.base() + page * OS_PAGE) as *const u8).read_volatile() == page as u8 + 1);
            libc::_exit(i32::from(!kept));
        }
    }
    view.end_fork();
    // SAFETY: the pages are open for writing and the places are empty. Only this test uses them.
    assert_eq!(unsafe { view.move_aside(span(0, 4), 0) }, Moved::Gone);
    assert_eq!(in_view(&view, 4), [false; 4]);
    for page in 0..4 {
        assert_filled(view.aside(page), page as u8 + 1, "a page that was shared");
    }
    let mut status = 0;
    // SAFETY: the descriptors and the child belong to this test. `status` has room for the child's status.
    unsafe {
        libc::close(pipe[0]);
        libc::close(pipe[1]);
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
    }
    assert_eq!(status, 0, "the child's bytes are as they were");
}

/// A program can lock far memory by an instruction of its own. It must not end for that.
#[test]
fn a_page_that_the_program_has_locked_leaves() {
    let Some(view) = view(3) else { return };
    // SAFETY: the page belongs to this test. A lock changes no contents.
    if unsafe { libc::mlock((view.base() + OS_PAGE) as *const libc::c_void, OS_PAGE) } != 0 {
        println!("skipped: this user may lock no memory");
        return;
    }
    view.drop_together(&mut [0, 1].into_iter().map(|page| span(page, 1)));
    assert_eq!(in_view(&view, 3), [false, false, true]);
}

/// Brings 512 pages into an empty view as one huge page. Every byte is `byte`. Returns false if the kernel has no huge
/// page.
fn bring_huge(view: &LiveView, byte: u8) -> bool {
    const LEN: usize = 2 << 20;
    let source = map::Mapping::reserve(LEN, LEN).expect("memory");
    // SAFETY: the mapping belongs to this test.
    unsafe {
        map::advise(source.addr(), LEN, Advice::HugePage).expect("huge pages");
        source.as_ptr().write_bytes(byte, LEN);
    }
    let (uffd, mode) = (view.uffd().expect("userfaultfd"), MoveMode { dontwake: true, allow_src_holes: false });
    // SAFETY: the source belongs to this test, and the view is empty.
    unsafe { moving::move_all(uffd, view.base(), source.addr(), LEN, mode) }.expect("moved");
    has_huge_page(view)
}

/// Checks whether the view contains one huge page.
fn has_huge_page(view: &LiveView) -> bool {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("/proc/self/smaps");
    let ours = smaps.split_once(&format!("{:x}-", view.base())).expect("the view's mapping").1;
    let huge = ours.lines().find(|line| line.starts_with("AnonHugePages:")).expect("huge pages");
    huge.contains(" 2048 kB")
}

/// The bytes of a block, and of a huge page.
const BLOCK: Span = Span { offset: 0, len: 2 << 20 };
const FRAME: FrameId = FrameId { wide: true, index: 0 };

/// Makes a view without pages, whose blocks are huge pages. Fills the frame of a block with `byte`. Returns `None` if
/// the kernel does not free page tables together with their pages.
fn view_of_blocks(byte: u8) -> Option<LiveView> {
    let sizes = Sizes { block: BLOCK.len, wide_frames: 1, ..SIZES };
    let view = empty_view(sizes, |features| {
        let able = features.move_ && features.thp.usable() && features.frees_tables;
        able.then_some(Abilities { huge: true, batches: false, frees_tables: true })
    });
    let Some(view) = view else {
        println!("skipped: the kernel does not free page tables");
        return None;
    };
    // SAFETY: the frame has the bytes of a block and belongs to this test.
    unsafe { view.frame(FRAME).write_bytes(byte, BLOCK.len) };
    Some(view)
}

/// Waits until a thread waits for an absent page.
fn await_fault(view: &LiveView) {
    let uffd = view.uffd().expect("userfaultfd");
    for _ in 0..2000 {
        let mut events = [Event::EMPTY; EVENTS_PER_READ];
        if uffd.read_events(&mut events).expect("events") > 0 {
            return;
        }
        uffd.wait(None, Some(std::time::Duration::from_millis(10))).expect("events");
    }
    panic!("no access has trapped");
}

/// A trapped access leaves a page table in the empty block. The page that is moved in must be huge all the same.
#[test]
fn a_block_is_one_huge_page_after_an_access_to_it_has_trapped() {
    let Some(view) = view_of_blocks(6) else { return };
    let page = view.base() + 300 * OS_PAGE;
    std::thread::scope(|scope| {
        // SAFETY: the page belongs to this test. The write waits until the page is in view.
        scope.spawn(move || unsafe { (page as *mut u8).write_volatile(7) });
        await_fault(&view);
        // SAFETY: the block is absent and the frame is filled. Only this test uses them.
        assert!(unsafe { view.move_in(BLOCK, FRAME, true) });
    });
    // SAFETY: the page is in view and belongs to this test.
    assert_eq!(unsafe { (page as *const u8).read_volatile() }, 7, "the byte that was written");
    assert_filled((page + OS_PAGE) as *const u8, 6, "the page behind it");
    if !has_huge_page(&view) {
        // The frame itself may have been made of base pages, if the kernel had no huge page for it.
        let Some(other) = view_of_blocks(6) else { return };
        // SAFETY: as above.
        assert!(unsafe { other.move_in(BLOCK, FRAME, true) });
        assert!(!has_huge_page(&other), "a huge page was split");
    }
}

#[test]
fn a_frame_is_zero_whether_it_was_empty_or_filled() {
    let Some(view) = view_with(1, 2, true) else { return };
    let frame = FrameId { wide: false, index: 1 };
    for _ in 0..2 {
        // SAFETY: the frame has `OS_PAGE` bytes and belongs to this test.
        unsafe { view.zero_frame(frame) };
        assert_eq!(resident(view.frame(frame) as usize, OS_PAGE), OS_PAGE as u64);
        assert_filled(view.frame(frame), 0, "a frame");
        // SAFETY: as above.
        unsafe { view.frame(frame).write_bytes(7, OS_PAGE) };
    }
}

#[test]
fn a_page_that_is_present_keeps_its_bytes_when_its_block_comes_in() {
    let Some(view) = view_of_blocks(6) else { return };
    let bytes = [9; OS_PAGE];
    // SAFETY: the page is absent, and only this test uses the view. `bytes` has the size of a page.
    assert!(unsafe { view.copy_in(span(3, 1), bytes.as_ptr(), true) });
    // SAFETY: the frame is filled. Only this test uses it and the view.
    assert!(!unsafe { view.move_in(BLOCK, FRAME, true) }, "a page was there before");
    for (page, byte) in [(2, 6), (3, 9), (4, 6)] {
        assert_filled((view.base() + page * OS_PAGE) as *const u8, byte, "a page of the block");
    }
}

/// The first part of a huge page is dropped while a child shares it. The kernel then refuses to move the rest, until the
/// huge page is split.
#[test]
fn the_rest_of_a_huge_page_that_a_child_shared_is_moved() {
    let Some(view) = view_with(0, 0, true) else { return };
    if !bring_huge(&view, 5) {
        println!("skipped: the kernel has no huge page");
        return;
    }
    view.let_fork(true).expect("inherited");
    // SAFETY: the child only waits for a signal. It takes no lock that another thread could hold.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: `pause` has no preconditions.
            unsafe { libc::pause() };
        }
    }
    view.end_fork();
    // SAFETY: the pages belong to this test. The child is this test's.
    unsafe {
        map::advise(view.base(), 100 * OS_PAGE, Advice::DontNeed).expect("dropped");
        assert_eq!(libc::kill(child, libc::SIGKILL), 0);
        assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
    }
    // SAFETY: the pages are open for writing and the places are empty. Only this test uses them.
    assert_eq!(unsafe { view.move_aside(span(200, PLACES), 0) }, Moved::Gone);
    for place in 0..PLACES {
        assert_filled(view.aside(place), 5, "a part of a huge page");
    }
}

/// Pins the pages of a range: makes an io_uring and registers the range as its buffer. The pages are pinned until the
/// returned descriptor is closed. Returns `None` if the kernel has no io_uring.
fn pinned(addr: usize, len: usize) -> Option<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd;
    const REGISTER_BUFFERS: usize = 0;
    let mut params = [0_u8; 120];
    // SAFETY: `params` has the size of `struct io_uring_params`, and all its bytes are zero.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    if ring < 0 {
        return None;
    }
    // SAFETY: the kernel has just returned `ring` as a new descriptor, which nothing else owns.
    let ring_fd = unsafe { std::os::fd::OwnedFd::from_raw_fd(ring as i32) };
    let buffer = [addr, len];
    // SAFETY: `buffer` has the layout of one `struct iovec`. It describes memory that belongs to this test.
    let registered = unsafe { libc::syscall(libc::SYS_io_uring_register, ring, REGISTER_BUFFERS, buffer.as_ptr(), 1) };
    (registered == 0).then_some(ring_fd)
}

/// A transfer (direct I/O, io_uring) writes to the physical memory of a page. If the page left the view during the
/// transfer, the transferred bytes would be lost. The test checks that a page stays in view while a transfer holds it.
#[test]
fn a_page_that_a_transfer_holds_stays_with_its_bytes_until_it_is_let_go() {
    let Some(view) = view(4) else { return };
    let Some(ring) = pinned(view.base() + 2 * OS_PAGE, OS_PAGE) else {
        println!("skipped: no io_uring");
        return;
    };
    // SAFETY: the pages are open for writing and the places are empty. Only this test uses them.
    let aside = |first, count, place| unsafe { view.move_aside(span(first, count), place) };
    assert_eq!(aside(0, 4, 0), Moved::Stays, "one of the run is held");
    assert_eq!(in_view(&view, 4), [true; 4], "all of it is as it was");
    assert_eq!([aside(0, 2, 0), aside(2, 1, 2), aside(3, 1, 3)], [Moved::Gone, Moved::Stays, Moved::Gone]);
    assert_eq!(in_view(&view, 4), [false, false, true, false]);
    assert_filled((view.base() + 2 * OS_PAGE) as *const u8, 3, "the held page");
    // SAFETY: the page is present and open for writing, and only this test uses it.
    unsafe { ((view.base() + 2 * OS_PAGE) as *mut u8).write_bytes(9, OS_PAGE) };
    drop(ring);
    // The kernel unpins the pages a moment after the descriptor was closed.
    let let_go = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        aside(2, 1, 2) == Moved::Gone
    });
    assert!(let_go, "the page is held by nothing any more");
    assert_filled(view.aside(2), 9, "the page that was held");
}

/// An access by another thread sets the accessed bit in the page table, which makes a MOVE restart. After a restart,
/// the kernel may report a wrong number of moved bytes. The test checks that still either all pages are in view or all
/// pages are in the places.
#[test]
fn pages_that_are_accessed_while_they_are_moved_have_gone_or_stay() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    const ROUNDS: usize = 10_000;
    const RUN: usize = 8;
    const ALL: u64 = (RUN * OS_PAGE) as u64;
    let Some(view) = view(0) else { return };
    let [rounds, touched, wrong] = [const { AtomicUsize::new(0) }; 3];
    let bytes = [7; RUN * OS_PAGE];
    let mut lost = None;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1.. {
                while rounds.load(SeqCst) < round {
                    std::thread::yield_now();
                }
                if rounds.load(SeqCst) == usize::MAX {
                    return;
                }
                (0..round % 128).for_each(|_| std::hint::spin_loop());
                for page in 0..RUN {
                    // SAFETY: the page belongs to this test. If the page is absent, the read waits until the main
                    // thread copies it in.
                    let found = unsafe { ((view.base() + page * OS_PAGE) as *const u8).read_volatile() };
                    wrong.fetch_add(usize::from(found != 7), SeqCst);
                }
                touched.store(round, SeqCst);
            }
        });
        for round in 1..ROUNDS {
            // SAFETY: the pages are absent, and only this thread fills them. `bytes` has the size of the run.
            unsafe { view.copy_in(span(0, RUN), bytes.as_ptr(), true) };
            // SAFETY: MADV_COLD clears the accessed bits of the pages and keeps their contents.
            unsafe { libc::madvise(view.base() as *mut libc::c_void, RUN * OS_PAGE, libc::MADV_COLD) };
            rounds.store(round, SeqCst);
            // SAFETY: the pages are open for writing and the places are empty. Only this test uses them.
            let moved_aside = unsafe { view.move_aside(span(0, RUN), 0) } == Moved::Gone;
            let here = resident(view.base(), RUN * OS_PAGE);
            let there = resident(view.aside(0) as usize, RUN * OS_PAGE);
            if (here, there) != if moved_aside { (0, ALL) } else { (ALL, 0) } {
                lost = Some((round, moved_aside, here, there));
                break;
            }
            if moved_aside {
                view.drop_aside(0, RUN);
                // The other thread may wait for an absent page. This call lets the thread continue.
                // SAFETY: the pages are absent, and only this thread fills them. `bytes` has the size of the run.
                unsafe { view.copy_in(span(0, RUN), bytes.as_ptr(), true) };
            }
            while touched.load(SeqCst) < round {
                std::thread::yield_now();
            }
            // SAFETY: the pages belong to this test. The other thread has finished its round, so nothing accesses them.
            unsafe { map::advise(view.base(), RUN * OS_PAGE, Advice::DontNeed) }.expect("dropped");
        }
        rounds.store(usize::MAX, SeqCst);
        // The other thread may wait for an absent page. This call lets the thread end.
        // SAFETY: only this thread fills the pages. Present pages keep their bytes. `bytes` has the size of the run.
        unsafe { view.copy_in(span(0, RUN), bytes.as_ptr(), true) };
    });
    assert_eq!(lost, None, "round, whether it was said to be moved aside, and bytes in view and in the places");
    assert_eq!(wrong.into_inner(), 0, "bytes that were not what was copied in");
}
