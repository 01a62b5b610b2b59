//! S3-FIFO: three queues. Most pages soon leave the small queue. The main queue reinserts pages that were referenced. A
//! page in the ghost queue skips the small one when it comes back (Yang et al., SOSP'23, algorithm 1).

use super::list::{Capacity, Lists};
use super::{Cause, Info, Leave, Param, Policy};
use crate::limits;
use crate::units::PageId;

pub(super) const INFO: Info = Info {
    name: "s3-fifo",
    summary: "a small queue for new pages, a main queue, and a ghost queue for returning pages",
    source: "Yang et al., SOSP'23",
    params: &[Param { name: "small_percent", help: "part of memory for new pages, %", default: 10, min: 1, max: 99 }],
    build: |space, values| Box::new(S3Fifo::new(space.units, values.get("small_percent"))),
};

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOST: usize = 2;

/// Most references counted while a page is in view.
const FREQUENCY_MAX: u32 = 3;
/// References that move a page from the small queue to the main one.
const FREQUENCY_MAIN: u32 = 2;

/// Memory use: two links a unit. The reference count is the page's mark.
#[derive(Debug)]
pub(super) struct S3Fifo {
    lists: Lists<3>,
    capacity: Capacity,
    small_percent: u64,
}

impl S3Fifo {
    pub(super) fn new(units: u32, small_percent: u64) -> Self {
        Self { lists: Lists::new(units), capacity: Capacity::default(), small_percent }
    }

    /// The oldest accepted page with too few references to stay. Moves on the pages with enough references. There is at
    /// most one such move for each reference counted.
    fn oldest(&mut self, list: usize, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let mut at = self.lists.front(list);
        let mut left = limits::VICTIM_SCAN_MAX / 3;
        while let Some(page) = at {
            at = self.lists.next(page);
            let frequency = self.lists.mark(page);
            if list == SMALL && frequency >= FREQUENCY_MAIN {
                self.lists.move_back(MAIN, page);
            } else if list == MAIN && frequency > 0 {
                self.lists.move_back(MAIN, page);
                self.lists.set_mark(page, frequency - 1);
                // The page is the only one of its list, so it is the next one, too.
                at = at.or(Some(page));
            } else if left == 0 || accept(page) {
                return (left > 0).then_some(page);
            } else {
                left -= 1;
            }
        }
        None
    }
}

impl Policy for S3Fifo {
    fn inserted(&mut self, page: PageId, _cause: Cause) {
        self.capacity.came();
        let list = if self.lists.of(page) == Some(GHOST) { MAIN } else { SMALL };
        self.lists.move_back(list, page);
        // The ghost queue is trimmed only now. The arriving page left it before its victim entered, so trimming earlier
        // could drop one ghost too many.
        while self.lists.len(GHOST) > self.capacity.percent(100 - self.small_percent) {
            self.lists.pop_front(GHOST);
        }
    }

    fn referenced(&mut self, page: PageId, _write: bool) {
        self.lists.set_mark(page, (self.lists.mark(page) + 1).min(FREQUENCY_MAX));
    }

    fn removed(&mut self, page: PageId, why: Leave) {
        self.capacity.left();
        let list = self.lists.remove(page);
        if list == Some(SMALL) && why == Leave::Evicted {
            self.lists.push_back(GHOST, page);
        }
    }

    fn forgotten(&mut self, page: PageId) {
        // If nothing is remembered, this reads no page's memory.
        if self.lists.len(GHOST) > 0 {
            self.lists.remove(page);
        }
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        self.capacity.asked();
        let small_max = self.capacity.percent(self.small_percent).max(1);
        if self.lists.len(SMALL) >= small_max {
            self.oldest(SMALL, accept).or_else(|| self.oldest(MAIN, accept))
        } else {
            // The search of the small queue may have moved its only pages to the main one.
            let oldest = self.oldest(MAIN, accept).or_else(|| self.oldest(SMALL, accept));
            oldest.or_else(|| self.oldest(MAIN, accept))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::trial::Trial;

    #[test]
    fn new_pages_leave_soon_and_those_referenced_or_back_stay() {
        let mut trial = Trial::new(Box::new(S3Fifo::new(64, 25)), 4);
        // 0 was referenced twice and goes to the main queue. 1 was referenced once and leaves.
        assert_eq!(trial.victims(&[0, 1, 2, 3, 0, 0, 1, 4]), [1]);
        // 1 is in the ghost queue and joins the main queue.
        assert_eq!(trial.victims(&[1, 5, 6]), [2, 3, 4]);
        // Small: 5 6, main: 0 1. A scan does not disturb the main queue.
        assert_eq!(trial.victims(&[7, 8, 9]), [5, 6, 7]);
        assert!(trial.holds(0) && trial.holds(1));
    }

    #[test]
    fn a_main_queue_of_referenced_pages_goes_around_until_one_is_left_without() {
        let mut s3 = S3Fifo::new(8, 10);
        for page in [0, 1] {
            s3.inserted(PageId(page), Cause::Read);
            (0..3 - page).for_each(|_| s3.referenced(PageId(page), false));
        }
        assert_eq!(s3.victim(&|_| true), Some(PageId(0)), "both went to the main queue, where they begin anew");
        (0..9).for_each(|_| s3.referenced(PageId(0), false));
        s3.referenced(PageId(1), true);
        s3.referenced(PageId(1), true);
        assert_eq!(s3.victim(&|_| true), Some(PageId(1)), "its two references were used up before the other's three");
        assert_eq!(s3.victim(&|page| page.0 == 0), Some(PageId(0)));
        s3.removed(PageId(1), Leave::Evicted);
        s3.referenced(PageId(0), true);
        assert_eq!(s3.victim(&|_| true), Some(PageId(0)), "alone, it is its own next");
        s3.removed(PageId(0), Leave::Forgotten);
        assert_eq!(s3.victim(&|_| true), None);
    }
}
