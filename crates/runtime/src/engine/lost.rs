//! Notices pages that the program has dropped behind the engine's back: by an instruction of its own, or by io_uring. The
//! pager takes such a page for one in view. Each access traps, the pager sees nothing to do, and the access traps again.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hanare_paging::PageId;

use crate::fatal::{self, EXIT_KERNEL};

/// Number of pages that are watched at the same time.
const WATCHED: usize = 16;
/// Number of times in a row that an access to a page in view must trap before the engine looks whether the page is there.
const REPEATS: u64 = 1 << 12;

/// Counts the accesses that trap although their page is in view. A few are usual, because several threads wait for a page.
#[derive(Default)]
pub(super) struct Repeats([AtomicU64; WATCHED]);

impl Repeats {
    /// Notes that an access to a page in view has trapped. Returns true after [`REPEATS`] such accesses in a row. Calls for
    /// other pages may interrupt the row, so this answer can come late.
    pub(super) fn are_many(&self, page: PageId) -> bool {
        let watched = &self.0[page.0 as usize % WATCHED];
        let (name, last) = (u64::from(page.0) << 32, watched.load(Relaxed));
        let count = if last >> 32 == u64::from(page.0) { (last & u64::from(u32::MAX)) + 1 } else { 1 };
        watched.store(name | (count % REPEATS), Relaxed);
        count == REPEATS
    }
}

/// Ends the run, because the program has dropped the page at `addr`.
#[cold]
pub(super) fn end(addr: usize) -> ! {
    fatal::die(
        EXIT_KERNEL,
        format_args!(
            "the page at {addr:#x} of far memory is gone: the program dropped it by a call that Hanare does not see (madvise \
             by io_uring, or by an instruction of its own); let it drop memory by the C library's functions"
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_must_trap_often_and_in_a_row() {
        let repeats = Repeats::default();
        let many = |page, times: u64| (0..times).filter(|_| repeats.are_many(PageId(page))).count();
        assert_eq!((many(7, REPEATS - 1), many(7, 1), many(7, REPEATS - 1), many(7, 1)), (0, 1, 0, 1));
        assert_eq!(many(7, REPEATS - 1), 0);
        assert_eq!(many(7 + WATCHED as u32, 1), 0);
        assert_eq!(many(7, REPEATS - 1), 0);
        assert_eq!(many(8, REPEATS), 1);
    }
}
