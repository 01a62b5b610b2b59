//! Random: evicts any resident page (paper 1, table of policies).

use super::classes::Classes;
use super::{Cause, Info, Leave, Policy};
use crate::limits;
use crate::units::PageId;

pub(super) const INFO: Info = Info {
    name: "random",
    summary: "a random page",
    source: "paper 1",
    params: &[],
    build: |space, _| Box::new(Random::new(space.units, space.seed)),
};

/// Seeded random numbers (SplitMix64).
#[derive(Debug)]
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Draws a number below `bound`, which must not be 0.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
        (((x >> 32) * u64::from(bound)) >> 32) as u32
    }
}

/// Memory use: one page number and one position per unit.
#[derive(Debug)]
pub(super) struct Random {
    pages: Classes<1>,
    draw: Draw,
}

impl Random {
    pub(super) fn new(units: u32, seed: u64) -> Self {
        Self { pages: Classes::new(units), draw: Draw::new(seed) }
    }
}

impl Policy for Random {
    fn inserted(&mut self, page: PageId, _cause: Cause) {
        self.pages.insert(page, 0);
    }

    fn referenced(&mut self, _page: PageId, _write: bool) {}

    fn removed(&mut self, page: PageId, _why: Leave) {
        self.pages.remove(page);
    }

    /// Searches from a random page on, and returns the first accepted page.
    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let len = self.pages.len(0);
        if len == 0 {
            return None;
        }
        let start = self.draw.below(len);
        let count = len.min(limits::VICTIM_SCAN_MAX as u32);
        (0..count).map(|step| self.pages.get(0, (start + step) % len)).find(|&page| accept(page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn victims(seed: u64) -> Vec<u32> {
        let mut random = Random::new(64, seed);
        (0..64).for_each(|page| random.inserted(PageId(page), Cause::Read));
        let mut out = Vec::new();
        while let Some(page) = random.victim(&|_| true) {
            random.removed(page, Leave::Evicted);
            out.push(page.0);
        }
        out
    }

    #[test]
    fn a_seed_gives_one_order_of_all_pages_and_another_seed_another() {
        let order = victims(1);
        assert_eq!(order, victims(1));
        assert_ne!(order, victims(2));
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..64).collect::<Vec<_>>());
        assert_ne!(order, sorted);
    }

    #[test]
    fn every_page_is_drawn_about_as_often() {
        let mut random = Random::new(16, 3);
        (0..16).for_each(|page| random.inserted(PageId(page), Cause::Read));
        let mut seen = [0; 16];
        for _ in 0..16_000 {
            seen[random.victim(&|_| true).expect("pages are there").0 as usize] += 1;
        }
        assert!(seen.iter().all(|count| (850..1150).contains(count)), "{seen:?}");
        assert_eq!(random.victim(&|page| page.0 == 9), Some(PageId(9)));
        assert_eq!(random.victim(&|_| false), None);
    }
}
