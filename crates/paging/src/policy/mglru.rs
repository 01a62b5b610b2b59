//! Multi-generational LRU, in the spirit of Linux 6.1 (`mm/vmscan.c`, `lru_gen`).
//!
//! There are four generations. A page enters the youngest generation when it arrives, and again when a reference to it
//! is seen. Pages of the two oldest generations are unmapped one after another. So the next reference to such a page is
//! seen before the page is evicted. Victims come from the oldest generation. A new generation opens when the oldest is
//! empty. It also opens if at least one page was evicted, and a quarter of the pages entered the youngest generation,
//! since the last opening. The two oldest generations then merge.
//!
//! Pages that come back soon after their eviction form a separate tier. While pages of this tier return more often than
//! others, each of them is spared once: it moves from the oldest generation to the next instead of being evicted.

use super::lists::Lists;
use super::{Cause, Info, Leave, Policy};
use crate::limits;
use crate::units::PageId;

pub(super) const INFO: Info = Info {
    name: "mglru",
    summary: "the oldest of four generations; seen references make pages young again; unmaps pages to see references",
    source: "Linux, lru_gen",
    params: &[],
    build: |space, _| Box::new(Mglru::new(space.units)),
};

const GENERATIONS: u32 = 4;

/// Mark of a resident page that was unmapped and not accessed since.
const HIDDEN: u8 = 1 << 7;
/// Mark of a resident page that came back soon after its eviction. The mark stays when the page is evicted again.
const RETURNED: u8 = 1 << 6;
/// Mark of an evicted page. The low bits hold the number of the youngest generation at the time of the eviction.
const REPLACED: u8 = 1 << 5;
const GENERATION: u8 = REPLACED - 1;

/// The numbers of evictions and returns of a tier. Both are halved when a new generation opens.
#[derive(Clone, Copy, Debug, Default)]
struct Tier {
    replaced: u32,
    returned: u32,
}

/// Memory use: two links and a byte per unit.
#[derive(Debug)]
pub(super) struct Mglru {
    lists: Lists,
    notes: Vec<u8>,
    /// The number of the youngest generation. The index of a generation's list is its number modulo four.
    youngest: u32,
    /// The next page to unmap. The walk goes through the oldest generation and then through the second oldest.
    hide: Option<PageId>,
    resident: u32,
    /// Number of pages that entered the youngest generation since it opened.
    came: u32,
    replaced: u32,
    tiers: [Tier; 2],
}

impl Mglru {
    pub(super) fn new(units: u32) -> Self {
        Self {
            lists: Lists::new(units, GENERATIONS),
            notes: vec![0; units as usize],
            youngest: GENERATIONS - 1,
            hide: None,
            resident: 0,
            came: 0,
            replaced: 0,
            tiers: [Tier::default(); 2],
        }
    }

    /// Returns the list of a generation. `age` is 0 for the oldest generation.
    fn list(&self, age: u32) -> u32 {
        self.youngest.wrapping_add(1 + age) % GENERATIONS
    }

    fn tier(&mut self, note: u8) -> &mut Tier {
        &mut self.tiers[usize::from(note & RETURNED != 0)]
    }

    /// Opens a new generation. The pages that are still in the oldest generation move to the front of the second
    /// oldest.
    fn open_generation(&mut self) {
        let (oldest, next) = (self.list(0), self.list(1));
        self.lists.append(oldest, next);
        self.lists.append(next, oldest);
        self.youngest = self.youngest.wrapping_add(1);
        (self.came, self.replaced) = (0, 0);
        for tier in &mut self.tiers {
            *tier = Tier { replaced: tier.replaced / 2, returned: tier.returned / 2 };
        }
        self.hide = self.hide.or(self.lists.front(self.list(1)));
    }

    fn came_to_youngest(&mut self) {
        self.came += 1;
        if self.replaced > 0 && self.came > self.resident / GENERATIONS {
            self.open_generation();
        }
    }

    /// Returns the page that follows this page on the walk of pages to unmap.
    fn walk_on(&self, page: PageId) -> Option<PageId> {
        match self.lists.after(page) {
            Ok(next) => Some(next),
            Err(list) if list == self.list(0) => self.lists.front(self.list(1)),
            Err(_) => None,
        }
    }

    fn leave_place(&mut self, page: PageId) {
        if self.hide == Some(page) {
            self.hide = self.walk_on(page);
        }
    }

    /// Checks whether the tier of returned pages has a higher rate of returns than the other pages.
    fn spares_returned(&self) -> bool {
        let [others, returned] = self.tiers;
        u64::from(returned.returned) * (u64::from(others.replaced) + 1)
            > u64::from(others.returned) * (u64::from(returned.replaced) + 1)
    }
}

impl Policy for Mglru {
    fn inserted(&mut self, page: PageId, cause: Cause) {
        let note = self.notes[page.0 as usize];
        let age = (self.youngest as u8).wrapping_sub(note) & GENERATION;
        let returned = note & REPLACED != 0 && u32::from(age) < GENERATIONS;
        if returned {
            self.tier(note).returned += 1;
        }
        self.notes[page.0 as usize] = if returned { RETURNED } else { 0 };
        self.resident += 1;
        // A prefetched page has not proved useful, so it does not enter the youngest generation. It enters the second
        // oldest, so that it is not evicted before its first use.
        if cause == Cause::Ahead {
            return self.lists.push_back(self.list(1), page);
        }
        self.lists.push_back(self.list(GENERATIONS - 1), page);
        self.came_to_youngest();
    }

    fn referenced(&mut self, page: PageId, _write: bool) {
        self.notes[page.0 as usize] &= !HIDDEN;
        self.leave_place(page);
        self.lists.move_back(self.list(GENERATIONS - 1), page);
        self.came_to_youngest();
    }

    fn removed(&mut self, page: PageId, why: Leave) {
        self.leave_place(page);
        self.lists.remove(page);
        self.resident -= 1;
        let note = self.notes[page.0 as usize];
        self.notes[page.0 as usize] = 0;
        if why == Leave::Evicted {
            self.notes[page.0 as usize] = REPLACED | note & RETURNED | self.youngest as u8 & GENERATION;
            self.tier(note).replaced += 1;
            self.replaced += 1;
        }
    }

    fn forgotten(&mut self, page: PageId) {
        self.notes[page.0 as usize] = 0;
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        for _ in 1..GENERATIONS {
            if self.resident > 0 && self.lists.front(self.list(0)).is_none() {
                self.open_generation();
            }
        }
        let spares = self.spares_returned();
        let mut spared = None;
        let mut left = limits::VICTIM_SCAN_MAX;
        for age in 0..GENERATIONS {
            let mut at = self.lists.front(self.list(age));
            while let Some(page) = at.filter(|_| left > 0) {
                left -= 1;
                at = self.lists.after(page).ok();
                if !accept(page) {
                    continue;
                }
                let note = self.notes[page.0 as usize];
                if !(spares && age == 0 && note & RETURNED != 0) {
                    return Some(page);
                }
                spared = spared.or(Some(page));
                self.tier(note).replaced += 1;
                self.notes[page.0 as usize] &= !RETURNED;
                self.leave_place(page);
                self.lists.move_back(self.list(1), page);
            }
        }
        spared
    }

    fn next_to_hide(&mut self) -> Option<PageId> {
        for _ in 0..limits::VICTIM_SCAN_MAX {
            let page = self.hide?;
            self.hide = self.walk_on(page);
            if self.notes[page.0 as usize] & HIDDEN == 0 {
                self.notes[page.0 as usize] |= HIDDEN;
                return Some(page);
            }
        }
        None
    }

    fn hides(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evict(mglru: &mut Mglru) -> Option<u32> {
        let victim = mglru.victim(&|_| true)?;
        mglru.removed(victim, Leave::Evicted);
        Some(victim.0)
    }

    fn hidden(mglru: &mut Mglru) -> Vec<u32> {
        std::iter::from_fn(|| mglru.next_to_hide()).map(|page| page.0).collect()
    }

    fn generations(mglru: &Mglru) -> [Vec<u32>; 4] {
        [0, 1, 2, 3].map(|age| {
            let mut pages = Vec::new();
            let mut at = mglru.lists.front(mglru.list(age));
            while let Some(page) = at {
                pages.push(page.0);
                at = mglru.lists.after(page).ok();
            }
            pages
        })
    }

    fn insert(mglru: &mut Mglru, pages: std::ops::Range<u32>) {
        pages.for_each(|page| mglru.inserted(PageId(page), Cause::Read));
    }

    #[test]
    fn generations_open_while_pages_are_replaced_and_the_two_oldest_are_hidden() {
        let mut mglru = Mglru::new(64);
        insert(&mut mglru, 0..12);
        assert_eq!(generations(&mglru), [vec![], vec![], vec![], (0..12).collect()]);
        assert_eq!(hidden(&mut mglru), [], "nothing is replaced yet");
        assert_eq!(evict(&mut mglru), Some(0));
        assert_eq!(mglru.next_to_hide(), Some(PageId(1)));
        // A visible reference makes a page young again, even if the page was not unmapped.
        mglru.referenced(PageId(1), false);
        mglru.referenced(PageId(2), true);
        assert_eq!(hidden(&mut mglru), (3..12).collect::<Vec<_>>());
        mglru.inserted(PageId(20), Cause::Read);
        mglru.inserted(PageId(30), Cause::Ahead);
        mglru.inserted(PageId(21), Cause::Write);
        let old: Vec<_> = (3..12).chain([30]).collect();
        assert_eq!(generations(&mglru), [old, vec![], vec![1, 2, 20, 21], vec![]]);
        // No generation opens before a page is evicted.
        insert(&mut mglru, 22..30);
        assert_eq!(generations(&mglru)[3], (22..30).collect::<Vec<_>>());
        assert_eq!(evict(&mut mglru), Some(3));
        assert_eq!(hidden(&mut mglru), []);
        mglru.inserted(PageId(31), Cause::Read);
        let old: Vec<_> = (4..12).chain([30]).collect();
        assert_eq!(generations(&mglru), [old, vec![1, 2, 20, 21], (22..30).chain([31]).collect(), vec![]]);
        assert_eq!(hidden(&mut mglru), [1, 2, 20, 21]);
    }

    #[test]
    fn victims_come_oldest_first_and_past_refused_ones() {
        let mut mglru = Mglru::new(64);
        insert(&mut mglru, 0..8);
        assert_eq!(evict(&mut mglru), Some(0));
        (1..4).for_each(|page| mglru.referenced(PageId(page), false));
        assert_eq!(mglru.victim(&|page| page.0 == 2), Some(PageId(2)), "even of the youngest");
        let order: Vec<_> = std::iter::from_fn(|| evict(&mut mglru)).collect();
        assert_eq!(order, [4, 5, 6, 7, 1, 2, 3]);
    }

    #[test]
    fn pages_that_came_back_are_spared_while_they_do_so_more_often() {
        let mut mglru = Mglru::new(64);
        insert(&mut mglru, 0..40);
        assert_eq!(evict(&mut mglru), Some(0));
        assert_eq!(evict(&mut mglru), Some(1));
        insert(&mut mglru, 0..1);
        assert_eq!((mglru.tiers[0].replaced, mglru.tiers[0].returned), (2, 1));
        assert!(!mglru.spares_returned(), "none of those that came back was replaced again");
        mglru.removed(PageId(0), Leave::Evicted);
        insert(&mut mglru, 0..1);
        assert_eq!((mglru.tiers[1].replaced, mglru.tiers[1].returned), (1, 1));
        assert!(mglru.spares_returned());
        // Page 0 and the pages that arrived after it age together.
        insert(&mut mglru, 50..53);
        (2..40).for_each(|page| mglru.removed(PageId(page), Leave::Forgotten));
        (0..3).for_each(|_| mglru.open_generation());
        assert_eq!(generations(&mglru), [vec![0, 50, 51, 52], vec![], vec![], vec![]]);
        mglru.tiers = [Tier { replaced: 80, returned: 8 }, Tier { replaced: 8, returned: 4 }];
        assert_eq!(evict(&mut mglru), Some(50));
        assert_eq!(generations(&mglru), [vec![51, 52], vec![0], vec![], vec![]]);
        assert_eq!(mglru.tiers[1].replaced, 9, "it was as good as replaced");
        assert_eq!(std::iter::from_fn(|| evict(&mut mglru)).collect::<Vec<_>>(), [51, 52, 0]);
    }

    #[test]
    fn a_spared_page_leaves_where_there_is_no_other() {
        let mut mglru = Mglru::new(8);
        mglru.inserted(PageId(3), Cause::Read);
        mglru.notes[3] = RETURNED;
        mglru.tiers[1] = Tier { replaced: 8, returned: 4 };
        (0..3).for_each(|_| mglru.open_generation());
        mglru.tiers[1] = Tier { replaced: 8, returned: 4 };
        mglru.inserted(PageId(4), Cause::Read);
        assert_eq!(mglru.victim(&|page| page.0 == 3), Some(PageId(3)));
    }

    #[test]
    fn what_was_replaced_long_ago_or_discarded_has_not_come_back() {
        for (turns, forgotten, returned) in [(0, false, RETURNED), (3, false, RETURNED), (4, false, 0), (0, true, 0)] {
            let mut mglru = Mglru::new(64);
            insert(&mut mglru, 0..40);
            mglru.removed(PageId(0), Leave::Evicted);
            (0..turns).for_each(|_| mglru.open_generation());
            if forgotten {
                mglru.forgotten(PageId(0));
            }
            insert(&mut mglru, 0..1);
            assert_eq!(mglru.notes[0], returned, "{turns} generations later, forgotten: {forgotten}");
        }
    }

    #[test]
    fn with_no_reference_seen_and_no_page_coming_back_it_is_fifo() {
        let mut mglru = Mglru::new(10_000);
        for page in 0..10_000 {
            mglru.inserted(PageId(page), Cause::Read);
            if page >= 3000 {
                assert_eq!(evict(&mut mglru), Some(page - 3000));
            }
        }
    }
}
