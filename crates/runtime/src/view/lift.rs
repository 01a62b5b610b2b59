//! Lift: small dirty pages moved aside on their way to a slot, so that no write can fall into their copy.

use hanare_sys::map::{self, Advice};
use hanare_sys::uffd::MoveMode;

use super::{Span, View, move_all};

impl View {
    /// How many small pages can be lifted at once.
    pub(crate) fn lift_frames(&self) -> usize {
        self.sizes.lift_frames
    }

    /// Where the page lifted to the place of this number lies.
    pub(crate) fn lifted(&self, place: usize) -> *const u8 {
        debug_assert!(place < self.sizes.lift_frames);
        (self.lift_pool + place * self.sizes.unit) as *const u8
    }

    /// Moves small pages out of view, in one step that no write can fall into, to the places from this number on; false,
    /// and they are as they were, when they cannot be moved. Cheaper than to freeze and drop them: it is one change of
    /// the page table instead of two.
    ///
    /// # Safety
    /// The pages are in transit and the places empty, all this call's to handle.
    pub(crate) unsafe fn lift(&self, span: Span, place: usize) -> bool {
        let (Some(uffd), Some(from)) = (&self.uffd, self.windows.whole(span)) else { return false };
        let mode = MoveMode { dontwake: true, allow_src_holes: true };
        // SAFETY: passed on from the caller.
        unsafe { move_all(uffd, self.lifted(place) as usize, from, span.len, mode) }
    }

    /// Empties the first `count` places of lifted pages.
    pub(crate) fn drop_lifted(&self, count: usize) {
        // SAFETY: memory of our own whose bytes nobody needs any more.
        let _ = unsafe { map::advise(self.lift_pool, count * self.sizes.unit, Advice::DontNeed) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Mechanism, OS_PAGE, Program, Sizes};
    use super::*;
    use crate::near::resident;
    use hanare_sys::features::{Disabled, Features};
    use hanare_sys::uffd::{Uffd, UffdAccess, feature};

    const PLACES: usize = 8;

    /// A view with these pages in it, page `n` filled with `n + 1`; none where this machine cannot move pages.
    fn view(pages: usize) -> Option<View> {
        let features = Features::probe(&Disabled::default());
        if features.access == UffdAccess::None || !features.move_ {
            return None;
        }
        let uffd = Uffd::open(features.access, feature::WP | feature::MOVE).expect("userfaultfd");
        let sizes = Sizes {
            reserve: 4 << 20,
            unit: OS_PAGE,
            block: OS_PAGE,
            small_frames: 0,
            wide_frames: 0,
            lift_frames: PLACES,
        };
        let program = Program { is_alone: || false, still: || None };
        let view = View::new(Mechanism::Uffd(uffd), sizes, false, program).expect("a view");
        for page in 0..pages {
            let bytes = [page as u8 + 1; OS_PAGE];
            // SAFETY: the page is absent, and the bytes are this test's.
            unsafe { view.copy_in(span(page, 1), bytes.as_ptr(), true) };
        }
        Some(view)
    }

    fn span(page: usize, pages: usize) -> Span {
        Span { offset: page * OS_PAGE, len: pages * OS_PAGE }
    }

    /// Which of the first pages are in view. Nothing here may touch one that is not: nobody would answer.
    fn in_view(view: &View, pages: usize) -> Vec<bool> {
        (0..pages).map(|page| resident(view.base() + page * OS_PAGE, OS_PAGE) > 0).collect()
    }

    /// Asserts that every byte of a page that is there is this one.
    fn assert_filled(page: *const u8, byte: u8, what: &str) {
        for at in 0..OS_PAGE {
            // SAFETY: a page of the test's that is present.
            let found = unsafe { page.add(at).read_volatile() };
            assert_eq!(found, byte, "{what}, byte {at}");
        }
    }

    #[test]
    fn lifted_pages_are_out_of_view_and_whole_in_their_places_until_these_are_emptied() {
        let Some(view) = view(5) else { return };
        for round in 0..2 {
            let first = 1 + 2 * round;
            // SAFETY: pages and places are this test's.
            assert!(unsafe { view.lift(span(first, 2), 3) });
            for place in 0..2 {
                assert_filled(view.lifted(3 + place), (first + place) as u8 + 1, "a lifted page");
            }
            view.drop_lifted(PLACES);
            assert_eq!(resident(view.lifted(0) as usize, PLACES * OS_PAGE), 0, "the places are empty");
        }
        assert_eq!(in_view(&view, 5), [true, false, false, false, false]);
    }

    /// A page that a forked child still shares cannot be moved. Those before it in its run, which the parent has written to
    /// since, have gone by the time this shows, and must come back: who lifts them copies them from their place in view.
    #[test]
    fn a_run_with_a_page_that_cannot_be_moved_stays_in_view_with_its_bytes() {
        let Some(view) = view(4) else { return };
        view.let_fork(true);
        // SAFETY: the child ends at once, and does nothing that needs the locks of other threads.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: a child of this test's, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        view.let_fork(false);
        for page in [0, 1] {
            // SAFETY: a page of the test's that is present and open for writing.
            unsafe { ((view.base() + page * OS_PAGE) as *mut u8).write_volatile(page as u8 + 1) };
        }
        // SAFETY: pages and places are this test's.
        assert!(!unsafe { view.lift(span(0, 4), 0) }, "a shared page was moved");
        assert_eq!(in_view(&view, 4), [true; 4]);
        assert_eq!(resident(view.lifted(0) as usize, PLACES * OS_PAGE), 0, "the places are empty again");
        for page in 0..4 {
            assert_filled((view.base() + page * OS_PAGE) as *const u8, page as u8 + 1, "a page that stayed");
        }
        // SAFETY: as above.
        assert!(unsafe { view.lift(span(0, 2), 0) }, "those that are the parent's own can go");
    }

    /// The processor notes in the page table that a page is touched, and a MOVE that meets this begins again. Whatever the
    /// kernel then says of how far it came, pages are here or there and never lost.
    #[test]
    fn pages_that_are_touched_while_they_are_lifted_are_lifted_or_stay() {
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
                // SAFETY: takes the pages' marks of having been touched, and nothing else.
                unsafe { libc::madvise(view.base() as *mut libc::c_void, RUN * OS_PAGE, libc::MADV_COLD) };
                rounds.store(round, SeqCst);
                // SAFETY: pages and places are this test's.
                let lifted = unsafe { view.lift(span(0, RUN), 0) };
                let here = resident(view.base(), RUN * OS_PAGE);
                let there = resident(view.lifted(0) as usize, RUN * OS_PAGE);
                if (here, there) != if lifted { (0, ALL) } else { (ALL, 0) } {
                    lost = Some((round, lifted, here, there));
                    break;
                }
                if lifted {
                    view.drop_lifted(RUN);
                    // SAFETY: as above; lets the other thread go on.
                    unsafe { view.copy_in(span(0, RUN), bytes.as_ptr(), true) };
                }
                while touched.load(SeqCst) < round {
                    std::thread::yield_now();
                }
                // SAFETY: the pages are this test's, and nobody touches them now.
                unsafe { map::advise(view.base(), RUN * OS_PAGE, Advice::DontNeed) }.expect("dropped");
            }
            rounds.store(usize::MAX, SeqCst);
            // SAFETY: fills what is absent, so that the other thread comes to its end.
            unsafe { view.copy_in(span(0, RUN), bytes.as_ptr(), true) };
        });
        assert_eq!(lost, None, "round, whether it was said to be lifted, and bytes in view and in the places");
        assert_eq!(wrong.into_inner(), 0, "bytes that were not what was copied in");
    }
}
