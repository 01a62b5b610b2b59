//! ARC: one LRU list of pages seen once, and one of pages seen more often. When an evicted page comes back, the list
//! that evicted it gains a larger share of memory (Megiddo & Modha, FAST'03, figure 4).

use super::list::{Capacity, Lists};
use super::{Cause, Info, Leave, Policy};
use crate::units::PageId;

pub(super) const INFO: Info = Info {
    name: "arc",
    summary: "LRU of pages seen once and of pages seen again, with adaptive shares",
    source: "Megiddo & Modha, FAST'03",
    params: &[],
    build: |space, _| Box::new(Arc::new(space.units)),
};

/// T1: the resident pages that were seen once recently.
const ONCE: usize = 0;
/// T2: the resident pages that were seen at least twice recently.
const OFTEN: usize = 1;
/// B1: the pages that were evicted from T1.
const GONE_ONCE: usize = 2;
/// B2: the pages that were evicted from T2.
const GONE_OFTEN: usize = 3;
/// The list of the page that is about to come back, if any. The page was in B1, or, if its mark is set, in B2.
const COMING: usize = 4;

/// Memory use: two links per unit.
#[derive(Debug)]
pub(super) struct Arc {
    lists: Lists<5>,
    capacity: Capacity,
    /// p: the target size of T1, in pages. It is a fraction, because the paper's steps are fractions.
    target: f64,
    /// Whether the page that is about to come back was in B2.
    coming_often: bool,
}

impl Arc {
    pub(super) fn new(units: u32) -> Self {
        Self { lists: Lists::new(units), capacity: Capacity::default(), target: 0.0, coming_often: false }
    }

    /// Adapts the target if a page comes back from B1 or B2, as in the paper's cases II and III. Returns whether the
    /// page comes back from either list.
    fn learn(&mut self, page: PageId) -> bool {
        let (once, often) = (f64::from(self.lists.len(GONE_ONCE)), f64::from(self.lists.len(GONE_OFTEN)));
        match self.lists.of(page) {
            Some(GONE_ONCE) => {
                self.target = (self.target + (often / once).max(1.0)).min(f64::from(self.capacity.full()));
            }
            Some(GONE_OFTEN) => self.target = (self.target - (once / often).max(1.0)).max(0.0),
            list => return list == Some(COMING),
        }
        true
    }
}

impl Policy for Arc {
    fn coming(&mut self, page: PageId) {
        self.coming_often = match self.lists.of(page) {
            Some(COMING) => self.lists.mark(page) != 0,
            list => list == Some(GONE_OFTEN),
        };
        if self.learn(page) {
            self.lists.move_back(COMING, page);
            self.lists.set_mark(page, u32::from(self.coming_often));
        }
    }

    fn inserted(&mut self, page: PageId, _cause: Cause) {
        self.capacity.came(1);
        let list = if self.learn(page) { OFTEN } else { ONCE };
        self.lists.move_back(list, page);
        self.coming_often = false;
        // In the paper's case IV, the oldest ghost is dropped before the victim becomes a ghost and the page arrives.
        // Here, the oldest ghost is dropped last. The resulting lists are the same: |T1| + |B1| <= c, and all four
        // together <= 2c.
        let pages = self.capacity.full();
        while self.lists.len(ONCE) + self.lists.len(GONE_ONCE) > pages && self.lists.pop_front(GONE_ONCE).is_some() {}
        let in_view = self.lists.len(ONCE) + self.lists.len(OFTEN);
        let ghosts_max = pages.saturating_mul(2).saturating_sub(in_view);
        while self.lists.len(GONE_ONCE) + self.lists.len(GONE_OFTEN) > ghosts_max
            && self.lists.pop_front(GONE_OFTEN).is_some()
        {}
    }

    fn referenced(&mut self, page: PageId, _write: bool) {
        self.lists.move_back(OFTEN, page);
    }

    fn removed(&mut self, page: PageId, why: Leave) {
        self.capacity.left(1);
        let list = self.lists.remove(page);
        if why == Leave::Evicted {
            self.lists.push_back(if list == Some(ONCE) { GONE_ONCE } else { GONE_OFTEN }, page);
        }
    }

    fn forgotten(&mut self, page: PageId) {
        self.lists.remove(page);
    }

    /// Chooses a victim: the paper's subroutine REPLACE.
    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        self.capacity.asked();
        let once = f64::from(self.lists.len(ONCE));
        let from_once = once > self.target || once == self.target && self.coming_often;
        self.lists.first_of(if from_once { &[ONCE, OFTEN] } else { &[OFTEN, ONCE] }, accept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::trial::Trial;

    #[test]
    fn the_share_of_pages_seen_once_follows_what_comes_back() {
        let mut trial = Trial::new(Box::new(Arc::new(64)), 4);
        assert_eq!(trial.victims(&[0, 1, 2, 3, 0, 1]), []);
        // Pages 0 and 1 were seen twice. T1 = 2 3, T2 = 0 1, and the target of T1 is 0. So pages of T1 are evicted
        // first.
        assert_eq!(trial.victims(&[4, 5]), [2, 3]);
        // B1 = 2 3. Page 2 comes back, which raises the target to 1. T1 has two pages, so one of them is evicted.
        assert_eq!(trial.victims(&[2]), [4]);
        // B1 = 3 4. Page 3 comes back, which raises the target to 2. T1 has only one page, so page 0 of T2 is evicted.
        assert_eq!(trial.victims(&[3]), [0]);
        // B2 = 0. Page 0 comes back, and the target falls to 1. T1 = 5 has exactly this size. After a return from B2,
        // such a tie evicts a page of T1.
        assert_eq!(trial.victims(&[0]), [5]);
        assert!([0, 1, 2, 3].iter().all(|&page| trial.holds(page)));
    }

    #[test]
    fn without_being_told_what_comes_ghosts_still_join_the_frequent() {
        let mut arc = Arc::new(8);
        for page in 0..3 {
            arc.inserted(PageId(page), Cause::Read);
        }
        assert_eq!(arc.victim(&|_| true), Some(PageId(0)));
        arc.removed(PageId(0), Leave::Evicted);
        arc.inserted(PageId(0), Cause::Read);
        assert_eq!(arc.lists.of(PageId(0)), Some(OFTEN));
        assert!(arc.target > 0.5, "{}", arc.target);
    }
}
