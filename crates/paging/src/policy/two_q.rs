//! 2Q, full version: a new page enters a queue of pages on trial. A page that comes back while it is remembered joins
//! the pages kept by LRU (Johnson & Shasha, VLDB'94, section 3.2).

use super::list::{Capacity, Lists};
use super::{Cause, Info, Leave, Param, Policy};
use crate::units::PageId;

pub(super) const INFO: Info = Info {
    name: "2q",
    summary: "a queue for first visits, and LRU for pages that come back while the queue remembers them",
    source: "Johnson & Shasha, VLDB'94",
    params: &[
        Param { name: "in_percent", help: "part of memory for first visits, %", default: 25, min: 1, max: 99 },
        Param { name: "out_percent", help: "pages remembered, % of those in memory", default: 50, min: 0, max: 1000 },
    ],
    build: |space, values| Box::new(TwoQ::new(space.units, values.get("in_percent"), values.get("out_percent"))),
};

/// A1in: the resident pages on their first visit, oldest first.
const IN: usize = 0;
/// A1out: the pages that were evicted during their first visit and are remembered.
const OUT: usize = 1;
/// Am: the resident pages that came back.
const MAIN: usize = 2;

/// Memory use: two links per unit.
#[derive(Debug)]
pub(super) struct TwoQ {
    lists: Lists<3>,
    capacity: Capacity,
    in_percent: u64,
    out_percent: u64,
}

impl TwoQ {
    pub(super) fn new(units: u32, in_percent: u64, out_percent: u64) -> Self {
        Self { lists: Lists::new(units), capacity: Capacity::default(), in_percent, out_percent }
    }
}

impl Policy for TwoQ {
    fn inserted(&mut self, page: PageId, _cause: Cause) {
        self.capacity.came();
        let list = if self.lists.of(page) == Some(OUT) { MAIN } else { IN };
        self.lists.move_back(list, page);
        // The list of remembered pages is trimmed after the arrival. Before the arrival, the arriving page may still be
        // in the list while its victim is already in it. Trimming would then drop one page too many.
        while self.lists.len(OUT) > self.capacity.percent(self.out_percent) {
            self.lists.pop_front(OUT);
        }
    }

    fn referenced(&mut self, page: PageId, _write: bool) {
        if self.lists.of(page) == Some(MAIN) {
            self.lists.move_back(MAIN, page);
        }
    }

    fn removed(&mut self, page: PageId, why: Leave) {
        self.capacity.left();
        let list = self.lists.remove(page);
        if list == Some(IN) && why == Leave::Evicted {
            self.lists.push_back(OUT, page);
        }
    }

    fn forgotten(&mut self, page: PageId) {
        self.lists.remove(page);
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        self.capacity.asked();
        let over = self.lists.len(IN) > self.capacity.percent(self.in_percent);
        self.lists.first_of(if over { &[IN, MAIN] } else { &[MAIN, IN] }, accept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::trial::Trial;

    #[test]
    fn a_page_that_comes_back_while_remembered_outlives_a_scan() {
        let mut trial = Trial::new(Box::new(TwoQ::new(64, 25, 50)), 4);
        assert_eq!(trial.victims(&[0, 1, 2, 3, 4, 5]), [0, 1]);
        // Page 0 is remembered, so it joins the kept pages. A scan passes through the queue and does not displace the
        // kept pages.
        assert_eq!(trial.victims(&[0, 6, 7, 8, 9]), [2, 3, 4, 5, 6]);
        // A visible hit on a page in the queue does not prolong its trial.
        assert_eq!(trial.victims(&[7, 10]), [7]);
        assert!(trial.holds(0));
        // Only two pages are remembered: page 7 is one of them, page 4 is not.
        assert_eq!(trial.victims(&[4, 7]), [8, 9]);
        assert_eq!(trial.victims(&[11, 12, 13]), [10, 4, 11]);
        // Page 4 is remembered now, so it joins the kept pages. One page is left in the queue, so the oldest kept page
        // is evicted next.
        assert_eq!(trial.victims(&[4, 14]), [12, 0]);
    }
}
