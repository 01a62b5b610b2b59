//! Simple: walks the far space from the last victim on, and evicts the first resident page that it finds (paper 1, the
//! policy that DLM shipped with).

use super::{Cause, Info, Leave, Policy};
use crate::limits;
use crate::units::PageId;

pub(super) const INFO: Info = Info {
    name: "simple",
    summary: "the first page in view after the last victim, by address",
    source: "paper 1; what DLM shipped with",
    params: &[],
    build: |space, _| Box::new(Simple::new(space.units)),
};

/// Memory use: one bit per unit, and one more bit for each word of these bits. One step of the walk skips up to 4,096
/// absent units.
#[derive(Debug)]
pub(super) struct Simple {
    resident: Vec<u64>,
    occupied: Vec<u64>,
    hand: u32,
    units: u32,
}

impl Simple {
    pub(super) fn new(units: u32) -> Self {
        let words = (units as usize).div_ceil(64);
        Self { resident: vec![0; words], occupied: vec![0; words.div_ceil(64)], hand: 0, units }
    }

    /// Returns the first resident page at or after `from`.
    fn next_resident(&self, from: u32) -> Option<u32> {
        if from >= self.units {
            return None;
        }
        let word = from as usize / 64;
        let bits = self.resident[word] & (!0 << (from % 64));
        if bits != 0 {
            return Some(word as u32 * 64 + bits.trailing_zeros());
        }
        let word = self.next_occupied(word + 1)?;
        Some(word as u32 * 64 + self.resident[word].trailing_zeros())
    }

    fn next_occupied(&self, from: usize) -> Option<usize> {
        let mut index = from / 64;
        let mut bits = self.occupied.get(index)? & (!0 << (from % 64));
        while bits == 0 {
            index += 1;
            bits = *self.occupied.get(index)?;
        }
        Some(index * 64 + bits.trailing_zeros() as usize)
    }
}

impl Policy for Simple {
    fn inserted(&mut self, page: PageId, _cause: Cause) {
        let word = page.0 as usize / 64;
        self.resident[word] |= 1 << (page.0 % 64);
        self.occupied[word / 64] |= 1 << (word % 64);
    }

    fn referenced(&mut self, _page: PageId, _write: bool) {}

    fn removed(&mut self, page: PageId, _why: Leave) {
        let word = page.0 as usize / 64;
        self.resident[word] &= !(1 << (page.0 % 64));
        if self.resident[word] == 0 {
            self.occupied[word / 64] &= !(1 << (word % 64));
        }
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let mut from = self.hand;
        let mut wrapped = false;
        for _ in 0..limits::VICTIM_SCAN_MAX {
            match self.next_resident(from) {
                Some(page) if wrapped && page >= self.hand => return None,
                Some(page) if accept(PageId(page)) => {
                    self.hand = page + 1;
                    return Some(PageId(page));
                }
                Some(page) => from = page + 1,
                None if wrapped => return None,
                None => (from, wrapped) = (0, true),
            }
        }
        // The next search starts behind the refused pages, so that it does not examine them again.
        self.hand = from;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_goes_on_from_the_last_victim_and_wraps() {
        let mut simple = Simple::new(100_000);
        for page in [5, 70, 99_999] {
            simple.inserted(PageId(page), Cause::Read);
        }
        assert_eq!(simple.victim(&|_| true), Some(PageId(5)));
        assert_eq!(simple.victim(&|_| true), Some(PageId(70)));
        simple.removed(PageId(70), Leave::Evicted);
        assert_eq!(simple.victim(&|_| true), Some(PageId(99_999)));
        assert_eq!(simple.victim(&|page| page.0 != 5), Some(PageId(99_999)));
        simple.removed(PageId(5), Leave::Evicted);
        simple.removed(PageId(99_999), Leave::Evicted);
        assert_eq!(simple.victim(&|_| true), None);
    }

    #[test]
    fn a_refused_stretch_longer_than_one_search_is_passed_by_the_next() {
        let long = limits::VICTIM_SCAN_MAX as u32 * 3 / 2;
        let mut simple = Simple::new(long + 1);
        (0..=long).for_each(|page| simple.inserted(PageId(page), Cause::Read));
        assert_eq!(simple.victim(&|page| page.0 == long), None);
        assert_eq!(simple.victim(&|page| page.0 == long), Some(PageId(long)));
    }
}
