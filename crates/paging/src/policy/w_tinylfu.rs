//! W-TinyLFU: a new page waits in a small LRU window. It enters the main memory, a segmented LRU, only if it was seen
//! more often than the page that it would replace (Einziger, Friedman & Manes, ACM ToS 2017, section 4).

use super::list::{Capacity, Lists};
use super::sketch::Sketch;
use super::{Cause, Info, Leave, Param, Policy};
use crate::limits;
use crate::units::PageId;

pub(super) const INFO: Info = Info {
    name: "w-tinylfu",
    summary: "a window for new pages; beyond it, only pages seen more often than those they replace",
    source: "Einziger et al., ACM ToS 2017",
    params: &[Param { name: "window_percent", help: "part of memory for new pages, %", default: 1, min: 1, max: 99 }],
    build: |space, values| Box::new(WTinyLfu::new(space.units, values.get("window_percent"))),
};

const WINDOW: usize = 0;
/// Index of the list of main pages that were not seen again, or not recently.
const PROBATION: usize = 1;
/// Index of the list of main pages that were seen again.
const PROTECTED: usize = 2;

/// Maximum share of protected pages in the main memory, in percent.
const PROTECTED_PERCENT: u32 = 80;

/// Maximum number of pages that one search examines. The choice of a victim makes up to four searches.
const SCAN_MAX: usize = limits::VICTIM_SCAN_MAX / 4;

/// Memory use: two links per unit. The sketch takes 8 to 16 bytes per resident page.
#[derive(Debug)]
pub(super) struct WTinyLfu {
    lists: Lists<3>,
    capacity: Capacity,
    sketch: Sketch,
    window_percent: u64,
}

impl WTinyLfu {
    pub(super) fn new(units: u32, window_percent: u64) -> Self {
        Self { lists: Lists::new(units), capacity: Capacity::default(), sketch: Sketch::new(units), window_percent }
    }

    fn in_view(&self) -> u32 {
        self.lists.len(WINDOW) + self.lists.len(PROBATION) + self.lists.len(PROTECTED)
    }

    fn window_max(&self) -> u32 {
        self.capacity.percent(self.window_percent).max(1)
    }

    fn count(&mut self, page: PageId) {
        let in_view = self.in_view();
        self.sketch.fit(in_view);
        self.sketch.count(page, self.capacity.full().max(in_view));
    }

    /// Moves the oldest page of the window to the main memory.
    fn enter(&mut self) {
        if let Some(page) = self.lists.front(WINDOW) {
            self.lists.move_back(PROBATION, page);
        }
    }
}

impl Policy for WTinyLfu {
    fn inserted(&mut self, page: PageId, _cause: Cause) {
        self.capacity.came(1);
        self.lists.move_back(WINDOW, page);
        self.count(page);
    }

    fn referenced(&mut self, page: PageId, _write: bool) {
        self.count(page);
        match self.lists.of(page) {
            Some(PROBATION) => {
                self.lists.move_back(PROTECTED, page);
                let main = self.lists.len(PROBATION) + self.lists.len(PROTECTED);
                while u64::from(self.lists.len(PROTECTED)) * 100 > u64::from(main) * u64::from(PROTECTED_PERCENT) {
                    let Some(oldest) = self.lists.front(PROTECTED) else {
                        return;
                    };
                    self.lists.move_back(PROBATION, oldest);
                }
            }
            Some(list) => self.lists.move_back(list, page),
            None => {}
        }
    }

    fn removed(&mut self, page: PageId, why: Leave) {
        self.capacity.left(1);
        let list = self.lists.remove(page);
        // The main page was evicted because the oldest page of the window was seen more often. That window page enters
        // the main memory.
        if why == Leave::Evicted && list != Some(WINDOW) && self.lists.len(WINDOW) >= self.window_max() {
            self.enter();
        }
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        self.capacity.asked();
        // While the main memory has room, the window may hold more than its share.
        while self.lists.len(WINDOW) > self.window_max() {
            self.enter();
        }
        let full = self.lists.len(WINDOW) == self.window_max();
        let candidate = if full { self.lists.first_within(WINDOW, accept, SCAN_MAX) } else { None };
        let victim =
            [PROBATION, PROTECTED].into_iter().find_map(|list| self.lists.first_within(list, accept, SCAN_MAX));
        match (candidate, victim) {
            (Some(new), Some(old)) if self.sketch.estimate(new) <= self.sketch.estimate(old) => Some(new),
            (_, Some(old)) => Some(old),
            (new, None) => new.or_else(|| self.lists.first_within(WINDOW, accept, SCAN_MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::trial::Trial;

    #[test]
    fn a_new_page_stays_only_if_seen_more_often_than_the_one_that_leaves() {
        let mut trial = Trial::new(Box::new(WTinyLfu::new(64, 1)), 5);
        // The window holds page 4. The main memory holds 0 1 2 3, each seen once. A scan passes through the window.
        assert_eq!(trial.victims(&[0, 1, 2, 3, 4, 5, 6, 7]), [4, 5, 6]);
        // Page 7 is seen again in the window. It replaces 0, the oldest page on probation.
        assert_eq!(trial.victims(&[7, 8]), [0]);
        // A hit protects page 1, so the next pages are compared with page 2. Page 8 loses against page 2, and page 9
        // wins.
        assert_eq!(trial.victims(&[1, 9, 9, 10, 11]), [8, 2, 10]);
        assert!([1, 3, 7, 9, 11].iter().all(|&page| trial.holds(page)));
    }

    #[test]
    fn at_most_four_fifths_of_the_main_memory_are_protected() {
        let mut policy = WTinyLfu::new(64, 10);
        (0..10).for_each(|page| policy.inserted(PageId(page), Cause::Read));
        assert_eq!(policy.victim(&|_| true), Some(PageId(9)));
        (0..9).for_each(|page| policy.referenced(PageId(page), false));
        assert_eq!([WINDOW, PROBATION, PROTECTED].map(|list| policy.lists.len(list)), [1, 2, 7]);
        assert_eq!(policy.victim(&|page| page.0 != 9), Some(PageId(0)), "the one protected longest ago");
    }
}
