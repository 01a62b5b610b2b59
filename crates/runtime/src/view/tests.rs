//! The view on the real kernel, with pages that are moved aside, held by transfers, shared with children, and accessed
//! meanwhile.

use super::{LiveView, Mechanism, Moved, Program, Sizes, View};
use crate::near::resident;
use crate::span::{OS_PAGE, Span};
use hanare_paging::FrameId;
use hanare_sys::features::{Disabled, Features};
use hanare_sys::map::{self, Advice};
use hanare_sys::uffd::{Uffd, UffdAccess, feature};

const PLACES: usize = 8;

/// A view with these pages in it, page `n` filled with `n + 1`. `None` where this machine cannot move pages.
fn view(pages: usize) -> Option<LiveView> {
    view_with(pages, 0, false)
}

/// The same with frames for base pages, and optionally with huge pages requested.
fn view_with(pages: usize, small_frames: usize, huge: bool) -> Option<LiveView> {
    let features = Features::probe(&Disabled::default());
    if features.access == UffdAccess::None || !features.move_ {
        return None;
    }
    let uffd = Uffd::open(features.access, feature::WP | feature::MOVE).expect("userfaultfd");
    let sizes =
        Sizes { reserve: 4 << 20, unit: OS_PAGE, block: OS_PAGE, small_frames, wide_frames: 0, aside_units: PLACES };
    let program = Program { is_alone: || false, still: || None, arrivals: || None };
    let view = LiveView::new(Mechanism::Uffd(uffd), sizes, huge, false, program).expect("a view");
    for page in 0..pages {
        let bytes = [page as u8 + 1; OS_PAGE];
        // SAFETY: the page is absent, and the bytes are this test's.
        assert!(unsafe { view.copy_in(span(page, 1), bytes.as_ptr(), true) });
    }
    Some(view)
}

fn span(page: usize, pages: usize) -> Span {
    Span { offset: page * OS_PAGE, len: pages * OS_PAGE }
}

/// Whether each of the first `pages` pages is in view. No test may access an absent page: nothing would resolve the
/// fault.
fn in_view(view: &LiveView, pages: usize) -> Vec<bool> {
    (0..pages).map(|page| resident(view.base() + page * OS_PAGE, OS_PAGE) > 0).collect()
}

/// Asserts that every byte of a present page is this one.
fn assert_filled(page: *const u8, byte: u8, what: &str) {
    for at in 0..OS_PAGE {
        // SAFETY: a page of the test's that is present.
        let found = unsafe { page.add(at).read_volatile() };
        assert_eq!(found, byte, "{what}, byte {at}");
    }
}

#[test]
fn pages_moved_aside_are_out_of_view_and_whole_in_their_places_until_these_are_emptied() {
    let Some(view) = view(5) else { return };
    for round in 0..2 {
        let first = 1 + 2 * round;
        // SAFETY: pages and places are this test's.
        assert_eq!(unsafe { view.move_aside(span(first, 2), 3) }, Moved::Gone);
        for place in 0..2 {
            assert_filled(view.aside(3 + place), (first + place) as u8 + 1, "a page moved aside");
        }
        view.drop_aside(0, PLACES);
        assert_eq!(resident(view.aside(0) as usize, PLACES * OS_PAGE), 0, "the places are empty");
    }
    assert_eq!(in_view(&view, 5), [true, false, false, false, false]);
}

/// Frames for base pages are no part of a huge page: the first write to one would fill all others in the same 2 MiB,
/// and MOVE requires an empty destination.
#[test]
fn a_frame_that_is_written_leaves_its_neighbours_empty() {
    let Some(view) = view_with(3, 1024, true) else { return };
    let frame = |index| FrameId { wide: false, index };
    // SAFETY: a frame of the test's own.
    unsafe { view.frame(frame(600)).write_bytes(7, OS_PAGE) };
    let near = |index: u32| resident(view.frame(frame(index)) as usize, OS_PAGE);
    assert_eq!([599, 600, 601].map(near), [0, OS_PAGE as u64, 0]);
    // SAFETY: the page is in view, and the frame empty.
    assert!(unsafe { view.move_out(span(1, 1), frame(601), false) });
    assert_filled(view.frame(frame(601)), 2, "the page that was moved");
    assert_eq!(in_view(&view, 3), [true, false, true]);
}

/// MOVE refuses a page that a forked child shares. The page is then made the parent's own, and leaves; the child keeps
/// its bytes.
#[test]
fn pages_that_a_child_shares_are_moved_and_the_child_keeps_its_own() {
    let Some(view) = view(4) else { return };
    view.let_fork(true).expect("inherited");
    let mut pipe = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: the child waits, looks at its memory and ends, and does nothing that needs the locks of other threads.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut word = 0_u8;
        // SAFETY: one byte of the child's; its pages are present; then it ends without running anything of the parent's.
        unsafe {
            libc::close(pipe[1]);
            libc::read(pipe[0], (&raw mut word).cast(), 1);
            let kept =
                (0..4).all(|page| ((view.base() + page * OS_PAGE) as *const u8).read_volatile() == page as u8 + 1);
            libc::_exit(i32::from(!kept));
        }
    }
    view.end_fork();
    // SAFETY: pages and places are this test's.
    assert_eq!(unsafe { view.move_aside(span(0, 4), 0) }, Moved::Gone);
    assert_eq!(in_view(&view, 4), [false; 4]);
    for page in 0..4 {
        assert_filled(view.aside(page), page as u8 + 1, "a page that was shared");
    }
    let mut status = 0;
    // SAFETY: descriptors and a child of this test's, and a place for its status.
    unsafe {
        libc::close(pipe[0]);
        libc::close(pipe[1]);
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
    }
    assert_eq!(status, 0, "the child's bytes are as they were");
}

/// An io_uring whose registered buffer is this range, so that its pages are pinned until it is closed; `None` where there
/// is no io_uring.
fn pinned(addr: usize, len: usize) -> Option<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd;
    const REGISTER_BUFFERS: usize = 0;
    let mut params = [0_u8; 120];
    // SAFETY: room for a struct io_uring_params, all zeroes; a success is a new descriptor.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    if ring < 0 {
        return None;
    }
    // SAFETY: a new descriptor that nobody else owns.
    let ring_fd = unsafe { std::os::fd::OwnedFd::from_raw_fd(ring as i32) };
    let buffer = [addr, len];
    // SAFETY: one struct iovec, of memory that is this test's.
    let registered = unsafe { libc::syscall(libc::SYS_io_uring_register, ring, REGISTER_BUFFERS, buffer.as_ptr(), 1) };
    (registered == 0).then_some(ring_fd)
}

/// Guards against wrong bytes under direct I/O: a transfer into a page that had left ended in memory that no longer
/// belonged to the page.
#[test]
fn a_page_that_a_transfer_holds_stays_with_its_bytes_until_it_is_let_go() {
    let Some(view) = view(4) else { return };
    let Some(ring) = pinned(view.base() + 2 * OS_PAGE, OS_PAGE) else {
        println!("skipped: no io_uring");
        return;
    };
    // SAFETY: pages and places are this test's.
    let aside = |first, count, place| unsafe { view.move_aside(span(first, count), place) };
    assert_eq!(aside(0, 4, 0), Moved::Stays, "one of the run is held");
    assert_eq!(in_view(&view, 4), [true; 4], "all of it is as it was");
    assert_eq!([aside(0, 2, 0), aside(2, 1, 2), aside(3, 1, 3)], [Moved::Gone, Moved::Stays, Moved::Gone]);
    assert_eq!(in_view(&view, 4), [false, false, true, false]);
    assert_filled((view.base() + 2 * OS_PAGE) as *const u8, 3, "the held page");
    // SAFETY: the page is present, this test's, and still open for writing.
    unsafe { ((view.base() + 2 * OS_PAGE) as *mut u8).write_bytes(9, OS_PAGE) };
    drop(ring);
    // The kernel releases the buffer a moment after the last descriptor is closed.
    let let_go = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        aside(2, 1, 2) == Moved::Gone
    });
    assert!(let_go, "the page is held by nothing any more");
    assert_filled(view.aside(2), 9, "the page that was held");
}

/// The processor notes an access in the page table, and a MOVE that meets this starts again. Whatever number of bytes
/// the kernel then reports, each page is in one of the two places and never lost.
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
                    // SAFETY: a page of the test's; where it is absent this waits until it is copied in.
                    let found = unsafe { ((view.base() + page * OS_PAGE) as *const u8).read_volatile() };
                    wrong.fetch_add(usize::from(found != 7), SeqCst);
                }
                touched.store(round, SeqCst);
            }
        });
        for round in 1..ROUNDS {
            // SAFETY: the pages are absent, and the bytes are this test's.
            unsafe { view.copy_in(span(0, RUN), bytes.as_ptr(), true) };
            // SAFETY: clears the pages' accessed bits, and nothing else.
            unsafe { libc::madvise(view.base() as *mut libc::c_void, RUN * OS_PAGE, libc::MADV_COLD) };
            rounds.store(round, SeqCst);
            // SAFETY: pages and places are this test's.
            let moved_aside = unsafe { view.move_aside(span(0, RUN), 0) } == Moved::Gone;
            let here = resident(view.base(), RUN * OS_PAGE);
            let there = resident(view.aside(0) as usize, RUN * OS_PAGE);
            if (here, there) != if moved_aside { (0, ALL) } else { (ALL, 0) } {
                lost = Some((round, moved_aside, here, there));
                break;
            }
            if moved_aside {
                view.drop_aside(0, RUN);
                // SAFETY: as above; lets the other thread go on.
                unsafe { view.copy_in(span(0, RUN), bytes.as_ptr(), true) };
            }
            while touched.load(SeqCst) < round {
                std::thread::yield_now();
            }
            // SAFETY: the pages are this test's, and nothing accesses them now.
            unsafe { map::advise(view.base(), RUN * OS_PAGE, Advice::DontNeed) }.expect("dropped");
        }
        rounds.store(usize::MAX, SeqCst);
        // SAFETY: fills what is absent, so that the other thread comes to its end.
        unsafe { view.copy_in(span(0, RUN), bytes.as_ptr(), true) };
    });
    assert_eq!(lost, None, "round, whether it was said to be moved aside, and bytes in view and in the places");
    assert_eq!(wrong.into_inner(), 0, "bytes that were not what was copied in");
}
