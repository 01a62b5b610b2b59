//! OPT: evicts the page whose next use is farthest in the future (Belady, IBM Systems Journal 1966). OPT must know the
//! future, so it runs only on recorded reference strings.

use super::{Cause, Leave, Offline, Policy};
use crate::limits;
use crate::units::PageId;

pub(super) const ABOUT: Offline = Offline {
    name: "opt",
    summary: "the page used farthest in the future; no policy has fewer misses",
    source: "Belady, IBM Systems Journal 1966",
};

const NEVER: u32 = u32::MAX;
const ABSENT: u32 = u32::MAX;

/// OPT over one reference string.
///
/// Each [`Policy::inserted`] by a read or a write, and each [`Policy::referenced`], is the next reference of the
/// string. A prefetch is not a reference. No call allocates. The cost of each call is O(log n) for n resident pages.
/// Memory use: three words per unit and one word per reference.
#[derive(Debug)]
pub struct Opt {
    /// For each reference, the index of the next reference to the same page.
    next_use: Vec<u32>,
    /// For each unit, the index of the next reference to the unit.
    upcoming: Vec<u32>,
    /// Number of references of the string that were made so far.
    now: usize,
    /// The resident pages as a binary heap. No page is used later than its parent in the heap.
    heap: Vec<u32>,
    /// The index of each unit in `heap`.
    place: Vec<u32>,
}

impl Opt {
    /// Builds OPT for this string of page numbers, all of which must be below `units`.
    #[must_use]
    pub fn new(units: u32, references: &[u32]) -> Self {
        let mut upcoming = vec![NEVER; units as usize];
        let mut next_use = vec![NEVER; references.len()];
        for (at, &page) in references.iter().enumerate().rev() {
            if let Some(upcoming) = upcoming.get_mut(page as usize) {
                next_use[at] = *upcoming;
                *upcoming = u32::try_from(at).unwrap_or(NEVER);
            }
        }
        let place = vec![ABSENT; units as usize];
        Self { next_use, upcoming, now: 0, heap: Vec::with_capacity(units as usize), place }
    }

    fn pass(&mut self, page: PageId) {
        self.upcoming[page.0 as usize] = self.next_use.get(self.now).copied().unwrap_or(NEVER);
        self.now += 1;
    }

    /// Returns the sort key of the page at an index of the heap. The page with the largest key is evicted first. Among
    /// pages that are never used again, this is the page with the highest number.
    fn key(&self, index: usize) -> (u32, u32) {
        let page = self.heap[index];
        (self.upcoming[page as usize], page)
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.place[self.heap[a] as usize] = a as u32;
        self.place[self.heap[b] as usize] = b as u32;
    }

    /// Moves the page at an index up or down until the first `len` entries are a heap again.
    fn settle(&mut self, mut index: usize, len: usize) {
        while index > 0 && self.key(index) > self.key((index - 1) / 2) {
            self.swap(index, (index - 1) / 2);
            index = (index - 1) / 2;
        }
        loop {
            let mut latest = index;
            for child in [2 * index + 1, 2 * index + 2] {
                if child < len && self.key(child) > self.key(latest) {
                    latest = child;
                }
            }
            if latest == index {
                return;
            }
            self.swap(index, latest);
            index = latest;
        }
    }
}

impl Policy for Opt {
    fn inserted(&mut self, page: PageId, cause: Cause) {
        if cause != Cause::Ahead {
            self.pass(page);
        }
        let index = self.heap.len();
        self.heap.push(page.0);
        self.place[page.0 as usize] = index as u32;
        self.settle(index, index + 1);
    }

    fn referenced(&mut self, page: PageId, _write: bool) {
        self.pass(page);
        self.settle(self.place[page.0 as usize] as usize, self.heap.len());
    }

    fn removed(&mut self, page: PageId, _why: Leave) {
        let index = self.place[page.0 as usize] as usize;
        let last = self.heap.len() - 1;
        self.swap(index, last);
        self.heap.pop();
        self.place[page.0 as usize] = ABSENT;
        if index < last {
            self.settle(index, last);
        }
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let all = self.heap.len();
        let mut len = all;
        let mut found = None;
        // The search moves refused pages behind the end of the heap, and puts them back afterwards.
        while len > 0 && all - len < limits::VICTIM_SCAN_MAX {
            let page = PageId(self.heap[0]);
            if accept(page) {
                found = Some(page);
                break;
            }
            len -= 1;
            self.swap(0, len);
            self.settle(0, len);
        }
        for refused in len..all {
            self.settle(refused, refused + 1);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::trial::{Numbers, Trial};
    use crate::policy::{POLICIES, Space, build};

    #[test]
    fn the_page_used_last_leaves_first() {
        let string = [0, 1, 2, 3, 0, 1, 4, 2, 0, 3];
        let mut trial = Trial::new(Box::new(Opt::new(8, &string)), 3);
        // When page 3 arrives, page 2 is used later than 0 and 1. When 4 arrives, 1 is not used again. When 2 arrives,
        // 4 is not used again.
        assert_eq!(trial.victims(&string), [2, 1, 4]);
        assert_eq!(trial.hits, 4);
    }

    #[test]
    fn refused_pages_are_passed_over_in_order_and_stay() {
        let string = [5, 6, 7, 8, 5, 6, 7, 8];
        let mut opt = Opt::new(16, &string);
        string[..4].iter().for_each(|&page| opt.inserted(PageId(page), Cause::Read));
        assert_eq!(opt.victim(&|page| page.0 < 7), Some(PageId(6)));
        assert_eq!(opt.victim(&|_| false), None);
        for page in [8, 7, 6, 5] {
            assert_eq!(opt.victim(&|_| true), Some(PageId(page)));
            opt.removed(PageId(page), Leave::Evicted);
        }
        assert_eq!(opt.victim(&|_| true), None);
        opt.inserted(PageId(3), Cause::Ahead);
        opt.inserted(PageId(9), Cause::Read);
        assert_eq!(opt.now, 5, "a page fetched ahead is no reference");
    }

    /// Counts the hits of Belady's rule directly from its definition: searches the string for the next use of each
    /// resident page.
    fn hits_by_searching(references: &[u32], capacity: usize) -> u32 {
        let (mut in_view, mut hits) = (Vec::new(), 0);
        for (at, page) in references.iter().enumerate() {
            if in_view.contains(page) {
                hits += 1;
                continue;
            }
            if in_view.len() == capacity {
                let ahead = |held: &u32| references[at..].iter().position(|other| other == held).unwrap_or(usize::MAX);
                let last = (0..capacity).max_by_key(|&index| ahead(&in_view[index])).unwrap();
                in_view.swap_remove(last);
            }
            in_view.push(*page);
        }
        hits
    }

    #[test]
    fn it_hits_as_often_as_the_rule_followed_by_searching() {
        for seed in 0..20 {
            let mut numbers = Numbers(seed);
            let references = numbers.references(600, 60);
            let capacity = 1 + numbers.below(50) as usize;
            let mut opt = Trial::new(Box::new(Opt::new(60, &references)), capacity);
            opt.victims(&references);
            assert_eq!(opt.hits, hits_by_searching(&references, capacity), "seed {seed}, capacity {capacity}");
        }
    }

    #[test]
    fn no_policy_has_more_hits() {
        for seed in 0..4 {
            let references = Numbers(seed).references(20_000, 300);
            for capacity in [3, 40, 200] {
                let mut opt = Trial::new(Box::new(Opt::new(300, &references)), capacity);
                opt.victims(&references);
                for info in POLICIES {
                    let policy = build(info.name, Space { units: 300, block_units: 1, seed, hides: true }).unwrap();
                    let mut trial = Trial::new(policy, capacity);
                    trial.victims(&references);
                    let (hits, most) = (trial.hits, opt.hits);
                    assert!(hits <= most, "{}: {hits}, opt {most}, seed {seed}, capacity {capacity}", info.name);
                }
            }
        }
    }
}
