//! U-pLRU: an active and an inactive list, and a pseudo reference bit (paper 1, section 2.3, after Linux 2.6.11).

use super::lists::Lists;
use super::{Cause, Info, Leave, Policy};
use crate::limits;
use crate::units::PageId;

pub(super) const INFO: Info = Info {
    name: "plru",
    summary: "the head of an inactive list; referenced pages go to an active list; unmaps pages to see references",
    source: "paper 1, U-pLRU",
    params: &[],
    build: |space, _| Box::new(Plru::new(space.units)),
};

const INACTIVE: u32 = 0;
const ACTIVE: u32 = 1;

/// Memory use: two links and one byte per unit.
///
/// A new page enters the end of the inactive list. If its bit is set when it reaches the front, it moves to the active
/// list. A prefetched page without a seen use is evicted first (paper 4).
#[derive(Debug)]
pub(super) struct Plru {
    lists: Lists,
    /// The number of the round in which a page's bit was last set. The bit counts as set only during this round, so one
    /// increment of the round clears all bits. Round numbers repeat after 255 rounds, so an old bit may count as set
    /// again. This happens only to a page that was refused as a victim in all these rounds.
    bit: Vec<u8>,
    round: u8,
    /// The next page of the inactive list to unmap, if any. The walk skips pages whose bit is set.
    hide: Option<PageId>,
}

impl Plru {
    pub(super) fn new(units: u32) -> Self {
        Self { lists: Lists::new(units, 2), bit: vec![0; units as usize], round: 1, hide: None }
    }

    fn is_referenced(&self, page: PageId) -> bool {
        self.bit[page.0 as usize] == self.round
    }

    /// Moves all active pages to the inactive list, and clears the bits of all pages. The caller has found no inactive
    /// page with its bit set. Returns the first moved page.
    fn turn_over(&mut self) -> Option<PageId> {
        let first = self.lists.front(ACTIVE)?;
        self.lists.append(INACTIVE, ACTIVE);
        self.round = self.round.checked_add(1).unwrap_or(1);
        self.hide = self.hide.or(Some(first));
        Some(first)
    }

    /// If this page is the next one to unmap, advances to the page after it. The page is about to leave the inactive
    /// list.
    fn leave_place(&mut self, page: PageId) {
        if self.hide == Some(page) {
            self.hide = self.lists.after(page).ok();
        }
    }
}

impl Policy for Plru {
    fn inserted(&mut self, page: PageId, cause: Cause) {
        self.lists.push_back(INACTIVE, page);
        self.bit[page.0 as usize] = if cause == Cause::Ahead { 0 } else { self.round };
    }

    fn referenced(&mut self, page: PageId, _write: bool) {
        self.bit[page.0 as usize] = self.round;
    }

    fn removed(&mut self, page: PageId, _why: Leave) {
        self.leave_place(page);
        self.lists.remove(page);
    }

    /// Returns the first accepted inactive page whose bit is clear. If the bounded search finds only set bits, returns
    /// the first accepted page.
    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let mut passed = None;
        let mut turned = false;
        let mut at = self.lists.front(INACTIVE);
        for _ in 0..limits::VICTIM_SCAN_MAX {
            if at.is_none() && !turned {
                (at, turned) = (self.turn_over(), true);
            }
            let Some(page) = at else {
                break;
            };
            at = self.lists.after(page).ok();
            let accepted = accept(page).then_some(page);
            if self.is_referenced(page) {
                passed = passed.or(accepted);
                self.leave_place(page);
                self.lists.move_back(ACTIVE, page);
            } else if accepted.is_some() {
                return accepted;
            }
        }
        passed
    }

    fn next_to_hide(&mut self) -> Option<PageId> {
        for _ in 0..limits::VICTIM_SCAN_MAX {
            let page = self.hide?;
            self.hide = self.lists.after(page).ok();
            if !self.is_referenced(page) {
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

    fn evict(plru: &mut Plru) -> Option<u32> {
        let victim = plru.victim(&|_| true)?;
        plru.removed(victim, Leave::Evicted);
        Some(victim.0)
    }

    fn hidden(plru: &mut Plru) -> Vec<u32> {
        std::iter::from_fn(|| plru.next_to_hide()).map(|page| page.0).collect()
    }

    #[test]
    fn referenced_pages_become_active_and_come_back_cleared_when_no_other_is_left() {
        let mut plru = Plru::new(16);
        (0..4).for_each(|page| plru.inserted(PageId(page), Cause::Read));
        (4..6).for_each(|page| plru.inserted(PageId(page), Cause::Ahead));
        // The search moves pages 0 to 3 to the active list.
        assert_eq!(evict(&mut plru), Some(4));
        plru.inserted(PageId(6), Cause::Write);
        plru.referenced(PageId(5), false);
        assert_eq!(hidden(&mut plru), []);
        // Pages 5 and 6 become active, too. Then all pages become inactive again.
        assert_eq!(evict(&mut plru), Some(0));
        assert_eq!(hidden(&mut plru), [1, 2, 3, 5, 6]);
        plru.referenced(PageId(1), false);
        plru.referenced(PageId(3), true);
        assert_eq!(evict(&mut plru), Some(2));
        assert_eq!(evict(&mut plru), Some(5));
        assert_eq!(evict(&mut plru), Some(6));
        assert_eq!(evict(&mut plru), Some(1));
        assert_eq!(hidden(&mut plru), [3]);
        assert_eq!(evict(&mut plru), Some(3));
        assert_eq!(evict(&mut plru), None);
    }

    #[test]
    fn pages_that_moved_or_left_are_not_hidden_and_the_others_still_are() {
        let mut plru = Plru::new(16);
        (0..6).for_each(|page| plru.inserted(PageId(page), Cause::Read));
        assert_eq!(plru.victim(&|page| page.0 == 5), Some(PageId(5)), "the others keep their places");
        assert_eq!(plru.next_to_hide(), Some(PageId(0)));
        plru.removed(PageId(1), Leave::Forgotten);
        plru.referenced(PageId(2), false);
        plru.removed(PageId(0), Leave::Evicted);
        // The search moves page 2 to the active list before it finds page 3.
        assert_eq!(plru.victim(&|_| true), Some(PageId(3)));
        plru.inserted(PageId(7), Cause::Read);
        assert_eq!(hidden(&mut plru), [3, 4, 5], "7 was touched as it came");
    }

    #[test]
    fn with_no_reference_ever_it_is_fifo() {
        let mut plru = Plru::new(8192);
        (0..8192).for_each(|page| plru.inserted(PageId(page), Cause::Ahead));
        for page in 0..8192 {
            assert_eq!(evict(&mut plru), Some(page));
        }
    }

    #[test]
    fn of_more_referenced_pages_than_one_search_meets_one_is_found() {
        let mut plru = Plru::new(8192);
        (0..8192).for_each(|page| plru.inserted(PageId(page), Cause::Read));
        let reach = limits::VICTIM_SCAN_MAX as u32;
        for round in 0..8 {
            assert_eq!(evict(&mut plru), Some(round * reach));
        }
        // All pages are active now, in order. Then all become inactive again.
        assert_eq!(evict(&mut plru), Some(1));
        assert_eq!(evict(&mut plru), Some(2));
    }
}
