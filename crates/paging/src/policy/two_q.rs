//! 2Q, full version: a new page enters a queue of pages on trial. A page that comes back while it is remembered joins
//! the pages kept by LRU (Johnson & Shasha, VLDB'94, section 3.2).
//!
//! Two additions are not in the paper. Pages are weighed by their size. If asked, neighbouring base pages are evicted
//! together.

use super::list::{Capacity, Lists};
use super::simple::Simple;
use super::{Cause, Info, Leave, Param, Policy, Space};
use crate::limits;
use crate::units::PageId;

/// Part of memory for first visits, in percent.
pub(super) const IN_PERCENT: u64 = 25;
/// Remembered pages, in percent of memory.
pub(super) const OUT_PERCENT: u64 = 50;

pub(super) const INFO: Info = Info {
    name: "2q",
    summary: "a queue for first visits, and LRU for pages that come back while the queue remembers them",
    source: "Johnson & Shasha, VLDB'94",
    params: &[
        Param { name: "in_percent", help: "part of memory for first visits, %", default: IN_PERCENT, min: 1, max: 99 },
        Param {
            name: "out_percent",
            help: "pages remembered, % of those in memory",
            default: OUT_PERCENT,
            min: 0,
            max: 1000,
        },
        Param {
            name: "walk",
            help: "1: evict neighbours together: kept pages by address, like simple, other base pages in runs",
            default: 0,
            min: 0,
            max: 1,
        },
    ],
    build: |space, values| {
        let walks = values.get("walk") == 1;
        Box::new(TwoQ::new(space, values.get("in_percent"), values.get("out_percent"), walks))
    },
};

/// A1in: the resident pages on their first visit, oldest first.
const IN: usize = 0;
/// A1out: the pages that were evicted during their first visit and are remembered.
const OUT: usize = 1;
/// Am: the resident pages that came back.
const MAIN: usize = 2;

/// Memory use: two links per unit.
///
/// With mixed page sizes, the parts of memory are counted in units. Suppose that they were counted in pages. A few base
/// pages would then fill the part for first visits, and huge pages that are read once would stay.
#[derive(Debug)]
pub(super) struct TwoQ {
    lists: Lists<3>,
    /// Number of units of the pages in each list.
    units: [u32; 3],
    block_units: u32,
    /// Whether the page that becomes resident next is a huge page.
    is_wide: bool,
    /// The pages of `MAIN`, if neighbours are evicted together. The kernel then flushes fewer ranges from the TLBs of other
    /// CPUs. In a loop over too many pages, some pages also stay. Under LRU none would stay.
    walk: Option<Simple>,
    /// Number of the page after the last victim on its first visit. If neighbours are evicted together, it may be the next
    /// victim.
    next: u32,
    capacity: Capacity,
    in_percent: u64,
    out_percent: u64,
}

/// The mark of a huge page in its list.
const WIDE: u32 = 1;

impl TwoQ {
    pub(super) fn new(space: Space, in_percent: u64, out_percent: u64, walks: bool) -> Self {
        Self {
            lists: Lists::new(space.units),
            units: [0; 3],
            block_units: space.block_units,
            is_wide: false,
            walk: walks.then(|| Simple::new(space.units)),
            next: 0,
            capacity: Capacity::default(),
            in_percent,
            out_percent,
        }
    }

    fn span(&self, wide: bool) -> u32 {
        if wide { self.block_units } else { 1 }
    }

    fn put(&mut self, list: usize, page: PageId, wide: bool) {
        self.lists.push_back(list, page);
        self.lists.set_mark(page, if wide { WIDE } else { 0 });
        self.units[list] += self.span(wide);
        if let Some(walk) = self.walk.as_mut().filter(|_| list == MAIN) {
            walk.inserted(page, Cause::Read);
        }
    }

    /// Removes a page from its list. Returns the list, and whether the page was a huge page when it entered.
    fn take(&mut self, page: PageId) -> Option<(usize, bool)> {
        let wide = self.lists.mark(page) == WIDE;
        let list = self.lists.remove(page)?;
        self.units[list] -= self.span(wide);
        if let Some(walk) = self.walk.as_mut().filter(|_| list == MAIN) {
            walk.removed(page, Leave::Forgotten);
        }
        Some((list, wide))
    }

    /// Returns the base page after the last victim if the program has probably read past it: the page behind it is in
    /// memory. A program that reads several arrays in lockstep stands in one page of each. Without this condition, these
    /// pages would leave while they are in use, come back at once, and fill the part for pages that came back. A huge page
    /// gains nothing by leaving beside another, because each is one range of its own.
    fn passed_neighbour(&self) -> Option<PageId> {
        let (neighbour, behind) = (PageId(self.next), PageId(self.next.saturating_add(1)));
        let is_in_memory = |page| self.lists.has(IN, page) || self.lists.has(MAIN, page);
        let is_passed = self.lists.has(IN, neighbour) && self.lists.mark(neighbour) != WIDE && is_in_memory(behind);
        is_passed.then_some(neighbour)
    }
}

impl Policy for TwoQ {
    fn wide(&mut self, _page: PageId) {
        self.is_wide = true;
    }

    fn inserted(&mut self, page: PageId, _cause: Cause) {
        let wide = std::mem::take(&mut self.is_wide);
        self.capacity.came(self.span(wide));
        let list = if self.take(page) == Some((OUT, wide)) { MAIN } else { IN };
        self.put(list, page, wide);
        // The list of remembered pages is trimmed after the arrival. Before the arrival, the arriving page may still be
        // in the list while its victim is already in it. Trimming would then drop one page too many.
        while self.units[OUT] > self.capacity.percent(self.out_percent)
            && let Some(oldest) = self.lists.front(OUT)
        {
            self.take(oldest);
        }
    }

    fn referenced(&mut self, page: PageId, _write: bool) {
        if self.walk.is_none()
            && self.lists.of(page) == Some(MAIN)
            && let Some((list, wide)) = self.take(page)
        {
            self.put(list, page, wide);
        }
    }

    fn removed(&mut self, page: PageId, why: Leave) {
        let Some((list, wide)) = self.take(page) else { return };
        self.capacity.left(self.span(wide));
        if list == IN && why == Leave::Evicted {
            self.next = page.0 + self.span(wide);
            self.put(OUT, page, wide);
        }
    }

    fn forgotten(&mut self, page: PageId) {
        self.take(page);
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        self.capacity.asked();
        let over = self.units[IN] > self.capacity.percent(self.in_percent);
        let next = self.walk.is_some().then(|| self.passed_neighbour()).flatten().filter(|&page| accept(page));
        let Some(walk) = &mut self.walk else {
            return self.lists.first_of(if over { &[IN, MAIN] } else { &[MAIN, IN] }, accept);
        };
        let first_visits = || next.or_else(|| self.lists.first_within(IN, accept, limits::VICTIM_SCAN_MAX / 2));
        match over {
            true => first_visits().or_else(|| walk.victim(accept)),
            false => walk.victim(accept).or_else(first_visits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::trial::Trial;

    fn space(block_units: u32) -> Space {
        Space { units: 64, block_units, seed: 0, hides: true }
    }

    #[test]
    fn a_page_that_comes_back_while_remembered_outlives_a_scan() {
        let mut trial = Trial::new(Box::new(TwoQ::new(space(1), 25, 50, false)), 4);
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

    /// Pages of one and of eight units come into a memory of 16 units. Pages 0 to 7 come back, so they are kept. Then huge
    /// pages are read once each. Each of them takes more than the part for first visits, although it is one page of nine.
    #[test]
    fn huge_pages_weigh_as_much_as_their_base_pages() {
        let mut policy = TwoQ::new(space(8), 25, 100, false);
        let mut come = |page, span: u32| {
            if span > 1 {
                policy.wide(PageId(page));
            }
            policy.inserted(PageId(page), Cause::Read);
            let mut left = Vec::new();
            while policy.units[IN] + policy.units[MAIN] > 16 {
                let victim = policy.victim(&|_| true).expect("pages are there");
                policy.removed(victim, Leave::Evicted);
                left.push(victim.0);
            }
            (left, [policy.units[IN], policy.units[MAIN]])
        };
        (0..8).for_each(|page| assert!(come(page, 1).0.is_empty()));
        assert_eq!(come(16, 8).0, []);
        assert_eq!(come(24, 8).0, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(come(0, 1).0, [16]);
        (1..8).for_each(|page| assert!(come(page, 1).0.is_empty()));
        assert_eq!([come(32, 8).0, come(40, 8).0, come(48, 8).0], [[24], [32], [40]]);
        // Huge page 40 is remembered. The base page with its number is another page, so it is new.
        assert_eq!(come(40, 1), (vec![48], [1, 8]));
        assert_eq!(come(48, 8), (vec![0], [1, 15]), "huge page 48 came back, so it is kept");
    }

    /// Evicts `count` pages and returns their numbers.
    fn leave(policy: &mut TwoQ, count: usize) -> Vec<u32> {
        let victims = (0..count).map(|_| {
            let page = policy.victim(&|_| true).expect("pages are there");
            policy.removed(page, Leave::Evicted);
            page.0
        });
        victims.collect()
    }

    #[test]
    fn passed_neighbours_leave_together_if_asked() {
        let mut policy = TwoQ::new(space(1), 25, 100, true);
        let come = |policy: &mut TwoQ, pages: &[u32]| {
            pages.iter().for_each(|&page| policy.inserted(PageId(page), Cause::Read));
        };
        come(&mut policy, &[30, 10, 20, 11, 31, 12, 32, 63, 40]);
        assert_eq!(leave(&mut policy, 4), [30, 31, 10, 11], "the oldest, and a neighbour behind which a page is");
        assert_eq!(leave(&mut policy, 4), [20, 12, 32, 63], "no page is behind the neighbours of these");
        // These come back while they are remembered. They leave by address, whatever their order.
        come(&mut policy, &[32, 10, 31, 11, 30]);
        assert_eq!(leave(&mut policy, 3), [10, 11, 30]);
        come(&mut policy, &[20, 63]);
        assert_eq!(leave(&mut policy, 5), [31, 32, 63, 20, 40]);
    }

    #[test]
    fn huge_pages_leave_alone() {
        let mut policy = TwoQ::new(space(8), 25, 100, true);
        for page in [16, 40, 24, 32] {
            policy.wide(PageId(page));
            policy.inserted(PageId(page), Cause::Read);
        }
        assert_eq!(leave(&mut policy, 4), [16, 40, 24, 32], "in the order in which they came");
    }

    /// A program reads seven arrays in lockstep, three times. Memory has room for eight pages of each.
    #[test]
    fn arrays_read_in_lockstep_lose_no_page_in_use() {
        const ARRAYS: u32 = 7;
        const LEN: u32 = 72;
        const ROUNDS: u32 = 3;
        let pages = ARRAYS * LEN;
        let mut policy = TwoQ::new(Space { units: pages, block_units: 1, seed: 0, hides: true }, 25, 100, true);
        let mut came = 0;
        let mut access = |page: u32| {
            let page = PageId(page);
            if policy.lists.has(IN, page) || policy.lists.has(MAIN, page) {
                return;
            }
            if policy.units[IN] + policy.units[MAIN] == 8 * ARRAYS {
                leave(&mut policy, 1);
            }
            policy.inserted(page, Cause::Read);
            came += 1;
        };
        for _ in 0..ROUNDS {
            for page in 0..LEN {
                // Each page is used several times before the program goes on to the next page of each array.
                (0..4).for_each(|_| (0..ARRAYS).for_each(|array| access(array * LEN + page)));
            }
        }
        let must = ROUNDS * pages;
        assert!(came <= must, "{came} pages came, and each of {must} was wanted once");
    }
}
