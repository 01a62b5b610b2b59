//! Swap-in history: like the policy Simple, but skips pages that are expected to be needed next, according to the order
//! of past swap-ins (paper 1, section 2.1).
//!
//! Each page remembers the page that was swapped in right after it. When a page is swapped in, the next `depth` pages
//! of this chain are protected. Depth 1 protects only the page that followed the last time. The paper can also be read
//! so that the depth is half of the number of resident pages.

use std::cell::Cell;

use super::simple::Simple;
use super::{Cause, Info, Leave, Param, Policy};
use crate::limits;
use crate::units::PageId;

pub(super) const INFO: Info = Info {
    name: "swap-in-history",
    summary: "like simple, but skips pages that followed the last one before",
    source: "paper 1",
    params: &[Param {
        name: "depth",
        help: "pages of the chain of followers that are protected; 0: half of the pages in view",
        default: 1,
        min: 0,
        max: limits::UNITS_MAX as u64,
    }],
    build: |space, values| Box::new(SwapInHistory::new(space.units, values.get("depth") as u32)),
};

/// Maximum number of links of the chain followed at one swap-in. If the predictions come true, a few swap-ins suffice
/// to protect a deep chain fully.
const STEPS_MAX: u32 = 8;

/// Memory use: one follower per unit, and the bits of the policy Simple. With a depth above 1, also one mark per unit.
#[derive(Debug)]
pub(super) struct SwapInHistory {
    walk: Simple,
    chain: Chain,
    resident: u32,
    depth: u32,
}

#[derive(Debug)]
struct Chain {
    /// For each page: the number plus one of the page swapped in right after it, or 0 if unknown.
    follower: Vec<u32>,
    /// For each page: its number in the chain. The chain numbers its pages consecutively. Pages with numbers above
    /// `passed`, up to `reached`, are protected. With depth 1, only the page `tip` is protected, and this list is
    /// empty.
    mark: Vec<u32>,
    passed: u32,
    reached: u32,
    /// Number plus one of the last page of the chain, whose mark is `reached`. The chain continues from this page.
    tip: u32,
    /// Number plus one of the last page swapped in.
    last: u32,
}

impl SwapInHistory {
    pub(super) fn new(units: u32, depth: u32) -> Self {
        let units_len = units as usize;
        let (follower, mark) = (vec![0; units_len], vec![0; if depth == 1 { 0 } else { units_len }]);
        let chain = Chain { follower, mark, passed: 0, reached: 0, tip: 0, last: 0 };
        Self { walk: Simple::new(units), chain, resident: 0, depth }
    }
}

impl Chain {
    fn protects(&self, page: PageId) -> bool {
        let Some(mark) = self.mark.get(page.0 as usize) else {
            return self.reached != self.passed && self.tip == page.0 + 1;
        };
        mark.wrapping_sub(self.passed).wrapping_sub(1) < self.reached.wrapping_sub(self.passed)
    }

    fn remember(&mut self, page: PageId) {
        if self.last != 0 && self.last != page.0 + 1 {
            self.follower[self.last as usize - 1] = page.0 + 1;
        }
        self.last = page.0 + 1;
    }

    /// Protects the pages that are expected after the page just swapped in. If the present chain predicted the page,
    /// the rest of this chain stays protected. Otherwise a new chain starts at the page.
    fn follow(&mut self, page: PageId, depth: u32) {
        if self.protects(page) {
            self.passed = self.mark.get(page.0 as usize).copied().unwrap_or(self.reached);
        } else {
            (self.passed, self.tip) = (self.reached, page.0 + 1);
        }
        for _ in 0..STEPS_MAX {
            if self.reached.wrapping_sub(self.passed) >= depth {
                break;
            }
            let next = self.follower[self.tip as usize - 1];
            // The chain ends at a page without a follower, or at a page that is already in the chain.
            if next == 0 || next == page.0 + 1 || self.protects(PageId(next - 1)) {
                break;
            }
            self.reached = self.reached.wrapping_add(1);
            if let Some(mark) = self.mark.get_mut(next as usize - 1) {
                *mark = self.reached;
            }
            self.tip = next;
        }
    }

    fn forget(&mut self, page: PageId) {
        // If no page was ever swapped in, the page's entry need not be read. Reading it would cost a cache miss.
        if self.tip == 0 {
            return;
        }
        self.follower[page.0 as usize] = 0;
        match self.mark.get_mut(page.0 as usize) {
            Some(mark) => *mark = self.passed,
            None if self.tip == page.0 + 1 => self.passed = self.reached,
            None => {}
        }
        if self.last == page.0 + 1 {
            self.last = 0;
        }
    }
}

impl Policy for SwapInHistory {
    fn inserted(&mut self, page: PageId, cause: Cause) {
        self.walk.inserted(page, cause);
        self.resident += 1;
        self.chain.remember(page);
        self.chain.follow(page, if self.depth == 0 { self.resident / 2 } else { self.depth });
    }

    fn referenced(&mut self, _page: PageId, _write: bool) {}

    fn removed(&mut self, page: PageId, why: Leave) {
        self.walk.removed(page, why);
        self.resident -= 1;
        if why == Leave::Forgotten {
            self.chain.forget(page);
        }
    }

    fn forgotten(&mut self, page: PageId) {
        self.chain.forget(page);
    }

    /// Returns the next page of the walk that is not protected. A protected page is evicted only if the walk finds no
    /// other page.
    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let Self { walk, chain, .. } = self;
        let protected = Cell::new(None);
        let found = walk.victim(&|page| {
            let accepted = accept(page);
            if accepted && chain.protects(page) {
                protected.set(protected.get().or(Some(page)));
                return false;
            }
            accepted
        });
        found.or(protected.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Swaps a page in. If more than `room` pages are then resident, evicts a victim and returns it.
    fn swap_in(policy: &mut SwapInHistory, page: u32, room: u32) -> Option<u32> {
        policy.inserted(PageId(page), Cause::Read);
        if policy.resident <= room {
            return None;
        }
        let victim = policy.victim(&|other| other.0 != page)?;
        policy.removed(victim, Leave::Evicted);
        Some(victim.0)
    }

    #[test]
    fn the_page_that_followed_the_last_time_is_passed_over() {
        let mut history = SwapInHistory::new(64, 1);
        for page in [10, 2, 3, 4] {
            assert_eq!(swap_in(&mut history, page, 4), None);
        }
        assert_eq!(swap_in(&mut history, 20, 4), Some(2));
        assert_eq!(swap_in(&mut history, 2, 4), Some(4), "not 3, which followed 2");
        assert_eq!(swap_in(&mut history, 5, 4), Some(10));
        assert_eq!(swap_in(&mut history, 10, 4), Some(20));
        // The next page of the walk is 2. Page 2 followed page 10 at an earlier swap-in, so it is protected and
        // skipped.
        for page in [3, 5, 10] {
            assert_eq!(history.victim(&|_| true), Some(PageId(page)));
            history.removed(PageId(page), Leave::Evicted);
        }
        assert_eq!(history.victim(&|_| true), Some(PageId(2)), "there is no other");
    }

    #[test]
    fn a_deeper_chain_protects_as_many_pages_and_slides_while_it_comes_true() {
        let mut history = SwapInHistory::new(64, 3);
        let come_and_go = |history: &mut SwapInHistory, page| {
            history.inserted(PageId(page), Cause::Read);
            history.removed(PageId(page), Leave::Evicted);
        };
        for page in [5, 9, 1, 30, 31, 40] {
            come_and_go(&mut history, page);
        }
        let protected =
            |history: &SwapInHistory| (0..64).filter(|&page| history.chain.protects(PageId(page))).collect::<Vec<_>>();
        assert_eq!(protected(&history), []);
        // In the second round, each swap-in protects the pages that came next in the first round.
        come_and_go(&mut history, 5);
        assert_eq!(protected(&history), [1, 9, 30]);
        come_and_go(&mut history, 9);
        assert_eq!(protected(&history), [1, 30, 31]);
        // In the second round, page 1 was not swapped in, so the follower recorded for page 1 is still valid.
        come_and_go(&mut history, 30);
        assert_eq!(protected(&history), [5, 31, 40]);
        come_and_go(&mut history, 50);
        assert_eq!(protected(&history), [], "nothing is known of 50");
        history.inserted(PageId(31), Cause::Read);
        assert_eq!(protected(&history), [5, 9, 40]);
        history.removed(PageId(31), Leave::Forgotten);
        history.forgotten(PageId(40));
        assert_eq!(protected(&history), [5, 9], "the history of a discarded page means nothing");
        come_and_go(&mut history, 31);
        assert_eq!(protected(&history), [], "nor what followed it");
    }

    #[test]
    fn depth_zero_protects_half_of_what_is_in_view_within_a_few_swap_ins() {
        let mut history = SwapInHistory::new(256, 0);
        for _ in 0..2 {
            for page in 0..128 {
                history.inserted(PageId(page), Cause::Read);
            }
            for page in 0..128 {
                history.removed(PageId(page), Leave::Evicted);
            }
        }
        (128..228).for_each(|page| history.inserted(PageId(page), Cause::Read));
        (0..20).for_each(|page| history.inserted(PageId(page), Cause::Read));
        let protected: Vec<_> = (0..256).filter(|&page| history.chain.protects(PageId(page))).collect();
        assert_eq!(protected, (20..80).collect::<Vec<_>>());
    }

    #[test]
    fn without_history_it_is_simple() {
        let (mut history, mut simple) = (SwapInHistory::new(400, 1), Simple::new(400));
        for page in 0..400_u32 {
            let page = PageId(page * 7 % 400);
            history.inserted(page, Cause::Read);
            simple.inserted(page, Cause::Read);
            if history.resident > 100 {
                let victim = history.victim(&|_| true).expect("pages are there");
                assert_eq!(simple.victim(&|_| true), Some(victim));
                history.removed(victim, Leave::Evicted);
                simple.removed(victim, Leave::Evicted);
            }
        }
    }
}
