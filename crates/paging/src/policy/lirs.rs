//! LIRS: keeps the pages with the shortest time between their last two references (*LIR*). All other pages (*HIR*) pass
//! through a small queue (Jiang & Zhang, SIGMETRICS'02, section 3).
//!
//! Stack S holds pages by recency, down to the oldest LIR page. It includes evicted pages. Queue Q holds the resident
//! HIR pages. If a page is referenced while it is in S, the time between its references is shorter than the recency of
//! the oldest LIR page. So the page becomes LIR in place of the oldest LIR page. If hits are not visible, arrivals
//! count as references.
//!
//! The paper assumes a cache of known size, so this implementation differs in three points. First, all pages are LIR
//! until a victim is first requested. Then the excess moves from the bottom of S to Q. Second, the number of remembered
//! evicted pages is bounded, and the oldest is forgotten first. By default, this number is the number of pages that
//! memory holds, without Q. It suffices to learn any set of pages that fits in memory. In a loop twice as long as
//! memory, the kept pages are still not displaced. Third, if no page of Q may be evicted, the oldest LIR page that may
//! be evicted is the victim.

use super::list::{Capacity, Lists};
use super::{Cause, Info, Leave, Param, Policy};
use crate::limits;
use crate::units::PageId;

pub(super) const INFO: Info = Info {
    name: "lirs",
    summary: "keeps pages with the shortest time between references",
    source: "Jiang & Zhang, SIGMETRICS'02",
    params: &[
        Param { name: "hir_percent", help: "part of memory for other pages, %", default: 5, min: 1, max: 99 },
        Param {
            name: "ghost_percent",
            help: "pages remembered, % of those in memory",
            default: 95,
            min: 0,
            max: 10_000,
        },
    ],
    build: |space, values| Box::new(Lirs::new(space.units, values.get("hir_percent"), values.get("ghost_percent"))),
};

/// Index of S, the only list of `stack`.
const STACK: usize = 0;
/// Index of Q in `rest`: the resident HIR pages.
const QUEUE: usize = 0;
/// Index in `rest` of the pages of S that are not resident.
const GHOST: usize = 1;

/// Memory use: four links per unit. A page that is in the stack and in no list of `rest` is LIR.
#[derive(Debug)]
pub(super) struct Lirs {
    stack: Lists<1>,
    rest: Lists<2>,
    capacity: Capacity,
    lirs: u32,
    hir_percent: u64,
    ghost_percent: u64,
}

impl Lirs {
    pub(super) fn new(units: u32, hir_percent: u64, ghost_percent: u64) -> Self {
        Self {
            stack: Lists::new(units),
            rest: Lists::new(units),
            capacity: Capacity::default(),
            lirs: 0,
            hir_percent,
            ghost_percent,
        }
    }

    fn lirs_max(&self) -> u32 {
        match self.capacity.full() {
            0 => u32::MAX,
            pages => pages - self.capacity.percent(self.hir_percent).max(1),
        }
    }

    /// Makes a page LIR and puts it on top of the stack.
    fn promote(&mut self, page: PageId) {
        self.rest.remove(page);
        self.stack.move_back(STACK, page);
        self.lirs += 1;
        self.demote();
    }

    /// Moves LIR pages to the queue, oldest first, until the others fit into the LIR share.
    fn demote(&mut self) {
        while self.lirs > self.lirs_max() {
            let Some(page) = self.stack.pop_front(STACK) else {
                return;
            };
            self.lirs -= 1;
            self.rest.push_back(QUEUE, page);
            self.prune();
        }
    }

    /// Removes pages from the bottom of the stack until a LIR page is at the bottom. A page below the oldest LIR page
    /// need not be in the stack: its next reference could not make it LIR.
    fn prune(&mut self) {
        while let Some(page) = self.stack.front(STACK) {
            match self.rest.of(page) {
                None => return,
                Some(QUEUE) => {}
                Some(_) => {
                    self.rest.remove(page);
                }
            }
            self.stack.remove(page);
        }
    }

    fn trim_ghosts(&mut self) {
        while self.rest.len(GHOST) > self.capacity.percent(self.ghost_percent) {
            if let Some(page) = self.rest.pop_front(GHOST) {
                self.stack.remove(page);
            }
        }
    }

    /// Returns the oldest LIR page that the filter accepts.
    fn oldest_lir(&self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let mut at = self.stack.front(STACK);
        for _ in 0..limits::VICTIM_SCAN_MAX / 2 {
            let page = at?;
            if self.rest.of(page).is_none() && accept(page) {
                return Some(page);
            }
            at = self.stack.next(page);
        }
        None
    }
}

impl Policy for Lirs {
    fn inserted(&mut self, page: PageId, _cause: Cause) {
        self.capacity.came(1);
        if self.rest.of(page) == Some(GHOST) || self.lirs < self.lirs_max() {
            self.promote(page);
        } else {
            self.stack.move_back(STACK, page);
            self.rest.move_back(QUEUE, page);
            self.prune();
        }
        self.trim_ghosts();
    }

    fn referenced(&mut self, page: PageId, _write: bool) {
        let stacked = self.stack.of(page).is_some();
        match (self.rest.of(page), stacked) {
            (None, _) => {
                self.stack.move_back(STACK, page);
                self.prune();
            }
            (Some(_), true) => self.promote(page),
            (Some(_), false) => {
                self.stack.push_back(STACK, page);
                self.rest.move_back(QUEUE, page);
                self.prune();
            }
        }
    }

    fn removed(&mut self, page: PageId, why: Leave) {
        self.capacity.left(1);
        if self.rest.remove(page).is_none() {
            self.lirs -= 1;
        }
        match why {
            Leave::Evicted if self.stack.of(page).is_some() => self.rest.push_back(GHOST, page),
            _ => {
                self.stack.remove(page);
            }
        }
        self.prune();
    }

    fn forgotten(&mut self, page: PageId) {
        // If no page is remembered, the links of this page need not be read. Reading them would cost a cache
        // miss.
        if self.rest.len(GHOST) > 0 && self.rest.of(page) == Some(GHOST) {
            self.rest.remove(page);
            self.stack.remove(page);
        }
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        self.capacity.asked();
        self.demote();
        self.rest.first_within(QUEUE, accept, limits::VICTIM_SCAN_MAX / 2).or_else(|| self.oldest_lir(accept))
    }
}

#[cfg(test)]
#[path = "lirs_model.rs"]
mod model;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::trial::Trial;

    #[test]
    fn a_page_back_while_the_stack_remembers_it_takes_the_place_of_the_oldest() {
        let mut trial = Trial::new(Box::new(Lirs::new(64, 20, 100)), 5);
        // Page 0 is the oldest, so it is the first LIR page to be demoted. Afterwards, HIR pages pass through a queue
        // of one page.
        assert_eq!(trial.victims(&[0, 1, 2, 3, 4, 5, 6, 7]), [0, 5, 6]);
        // Page 1, the stack's oldest LIR page, was referenced before page 6 was evicted. So page 6 becomes LIR when it
        // returns, and page 1 moves to the queue.
        assert_eq!(trial.victims(&[6]), [7]);
        assert_eq!(trial.victims(&[8]), [1]);
        assert!([2, 3, 4, 6, 8].iter().all(|&page| trial.holds(page)));
        // A visible hit on page 2, at the bottom of the stack, makes page 3 the oldest LIR page. Nothing else changes.
        assert_eq!(trial.victims(&[2, 9]), [8]);
        // Page 8 comes back and becomes LIR, so page 3 is demoted instead of page 2.
        assert_eq!(trial.victims(&[8, 10]), [9, 3]);
    }

    #[test]
    fn a_loop_a_little_longer_than_memory_keeps_its_kept_pages() {
        let mut trial = Trial::new(Box::new(Lirs::new(256, 5, 100)), 100);
        for _ in 0..10 {
            (0..120).for_each(|page| {
                trial.touch(page);
            });
        }
        assert!(trial.hits >= 9 * 94, "LRU has none: {}", trial.hits);
    }

    #[test]
    fn when_no_page_of_the_queue_may_leave_a_lir_page_does() {
        let mut lirs = Lirs::new(64, 20, 100);
        (0..5).for_each(|page| lirs.inserted(PageId(page), Cause::Read));
        assert_eq!(lirs.victim(&|page| page.0 != 0), Some(PageId(1)));
        lirs.removed(PageId(1), Leave::Evicted);
        assert_eq!(lirs.victim(&|_| true), Some(PageId(0)));
        assert_eq!(lirs.victim(&|_| false), None);
        // Page 1 was evicted from the bottom of the stack and is not remembered. One LIR place is free, and page 1 gets
        // it at its return.
        lirs.inserted(PageId(5), Cause::Read);
        assert_eq!((lirs.lirs, lirs.rest.len(GHOST)), (4, 0));
    }
}
