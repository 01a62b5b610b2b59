//! A cache of fixed size that tests a policy. The policy sees every reference if `visible` is true.

use super::{Cause, Leave, Policy};
use crate::units::PageId;

pub(super) struct Trial {
    pub(super) policy: Box<dyn Policy>,
    capacity: usize,
    in_view: Vec<bool>,
    count: usize,
    pub(super) hits: u32,
    /// Whether the policy sees hits.
    pub(super) visible: bool,
}

impl Trial {
    pub(super) fn new(policy: Box<dyn Policy>, capacity: usize) -> Self {
        Self { policy, capacity, in_view: Vec::new(), count: 0, hits: 0, visible: true }
    }

    pub(super) fn holds(&self, page: u32) -> bool {
        self.in_view.get(page as usize).is_some_and(|&held| held)
    }

    /// Makes one reference. Returns the page that was evicted, if any.
    pub(super) fn touch(&mut self, page: u32) -> Option<u32> {
        if self.holds(page) {
            self.hits += 1;
            if self.visible {
                self.policy.referenced(PageId(page), false);
            }
            return None;
        }
        self.policy.coming(PageId(page));
        let victim = (self.count == self.capacity).then(|| self.evict());
        if page as usize >= self.in_view.len() {
            self.in_view.resize(page as usize + 1, false);
        }
        self.in_view[page as usize] = true;
        self.count += 1;
        self.policy.inserted(PageId(page), Cause::Read);
        victim
    }

    fn evict(&mut self) -> u32 {
        let victim = self.policy.victim(&|_| true).expect("a full cache has a victim");
        assert!(self.holds(victim.0), "{victim:?} is not in view");
        self.leave(victim.0, Leave::Evicted);
        victim.0
    }

    pub(super) fn leave(&mut self, page: u32, why: Leave) {
        assert!(std::mem::take(&mut self.in_view[page as usize]));
        self.count -= 1;
        self.policy.removed(PageId(page), why);
    }

    pub(super) fn victims(&mut self, pages: &[u32]) -> Vec<u32> {
        pages.iter().filter_map(|&page| self.touch(page)).collect()
    }
}

/// Pseudo-random numbers. The same seed always yields the same numbers (SplitMix64).
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % u64::from(bound)) as u32
    }

    /// Returns a random reference string that distinguishes policies: a hot set, loops longer than memory, and noise.
    pub(super) fn references(&mut self, count: usize, pages: u32) -> Vec<u32> {
        let mut out = Vec::with_capacity(count);
        while out.len() < count {
            let length = 1 + self.below(pages);
            match self.below(3) {
                0 => out.extend((0..length).map(|_| self.below(pages / 8 + 1))),
                1 => {
                    let first = self.below(pages);
                    out.extend((0..length).map(|step| (first + step) % pages));
                }
                _ => out.extend((0..length).map(|_| self.below(pages))),
            }
        }
        out.truncate(count);
        out
    }
}
