//! S3-FIFO: a small queue, a main queue and a ghost queue. New pages enter the small queue, and most are soon evicted
//! from it. The main queue reinserts pages that were referenced. A page that comes back while it is in the ghost queue
//! enters the main queue (Yang et al., SOSP'23, algorithm 1).

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

/// Largest reference count of a resident page. Further references are not counted.
const FREQUENCY_MAX: u32 = 3;
/// Number of references that move a page from the small queue to the main one.
const FREQUENCY_MAIN: u32 = 2;

/// Memory use: two links per unit. A page's reference count is the mark in its list entry.
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

    /// Returns the oldest accepted page that has too few references to stay. On the way, moves pages with enough
    /// references to the back of the main queue. Each counted reference allows at most one such move.
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
                // If the page is the only page of its list, the search continues with the same page.
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
        self.capacity.came(1);
        let list = if self.lists.of(page) == Some(GHOST) { MAIN } else { SMALL };
        self.lists.move_back(list, page);
        // The ghost queue is trimmed after the arrival. Before the arrival, the arriving page may still be in the queue
        // while its victim is already in it. Trimming would then drop one ghost too many.
        while self.lists.len(GHOST) > self.capacity.percent(100 - self.small_percent) {
            self.lists.pop_front(GHOST);
        }
    }

    fn referenced(&mut self, page: PageId, _write: bool) {
        self.lists.set_mark(page, (self.lists.mark(page) + 1).min(FREQUENCY_MAX));
    }

    fn removed(&mut self, page: PageId, why: Leave) {
        self.capacity.left(1);
        let list = self.lists.remove(page);
        if list == Some(SMALL) && why == Leave::Evicted {
            self.lists.push_back(GHOST, page);
        }
    }

    fn forgotten(&mut self, page: PageId) {
        // If the ghost queue is empty, the page's entry need not be read. Reading it would cost a cache miss.
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
            // The search of the small queue may have moved its last pages to the main queue.
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
        // Page 0 was referenced twice and goes to the main queue. Page 1 was referenced once and leaves.
        assert_eq!(trial.victims(&[0, 1, 2, 3, 0, 0, 1, 4]), [1]);
        // Page 1 is in the ghost queue, so it enters the main queue.
        assert_eq!(trial.victims(&[1, 5, 6]), [2, 3, 4]);
        // The small queue holds 5 6, and the main queue 0 1. A scan does not disturb the main queue.
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
