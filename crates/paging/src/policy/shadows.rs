//! Shadow caches simulate several policies on the same sample of pages.
//!
//! A sample represents all pages. Each policy has a shadow cache: the sampled pages that the policy would hold if there
//! were no other pages and memory were reduced to the sample's share (miniature simulation: Waldspurger et al., ATC
//! 2017). A shadow cache evicts no real page. All policies are judged by the same references, so chance affects them
//! alike. As in a live run, a policy sees only the misses in its shadow cache.

use super::list::Lists;
use super::{Cause, Leave, Policy};
use crate::units::PageId;

/// One policy's shadow cache.
struct Shadow {
    policy: Box<dyn Policy>,
    /// Number of sampled pages that the policy would hold.
    held: u32,
    /// Number of references to known pages that the policy would not hold (returns).
    returns: u32,
    /// Number of references on which this policy and the policy in charge differ: one has a hit, the other a miss.
    differences: u32,
}

/// Memory use: one word, one byte and two links per sampled page, and the memory of the policies.
pub(super) struct Shadows {
    shadows: Vec<Shadow>,
    /// For each sampled page: one bit for each shadow cache, set if the cache would hold the page.
    held: Vec<u8>,
    /// For each sampled page: the number of arrivals before its last visible reference.
    referenced_at: Vec<u32>,
    /// Resident sampled pages that are mapped, so that their next reference would not be seen. The page that is mapped
    /// longest is first.
    unseen: Lists<1>,
    /// Index of the policy in charge, with which the other policies are compared.
    charge: usize,
}

impl Shadows {
    /// Builds one shadow cache for each of these policies, at most eight. The numbers of sampled pages are below
    /// `names`.
    pub(super) fn new(policies: Vec<Box<dyn Policy>>, names: u32, charge: usize) -> Self {
        let shadow = |policy| Shadow { policy, held: 0, returns: 0, differences: 0 };
        Self {
            shadows: policies.into_iter().map(shadow).collect(),
            held: vec![0; names as usize],
            referenced_at: vec![0; names as usize],
            unseen: Lists::new(names),
            charge,
        }
    }

    /// Returns the number of returns that policy `k` would have had. [`Self::halve`] halves the number.
    pub(super) fn returns(&self, k: usize) -> u32 {
        self.shadows[k].returns
    }

    /// Returns the number of references on which policy `k` and the policy in charge differ: one has a hit, the other a
    /// miss. [`Self::halve`] halves the number.
    pub(super) fn differences(&self, k: usize) -> u32 {
        self.shadows[k].differences
    }

    /// Whether policy `k` would hold the page.
    pub(super) fn holds(&self, k: usize, name: PageId) -> bool {
        self.held[name.0 as usize] & (1 << k) != 0
    }

    /// Returns the number of sampled pages that the policy in charge would hold.
    pub(super) fn held(&self) -> u32 {
        self.shadows[self.charge].held
    }

    /// Notes a reference to a sampled page. `now` is the number of arrivals so far. `again` says that the page was
    /// referenced before. `share` returns how many pages a policy may hold.
    pub(super) fn referenced(
        &mut self,
        name: PageId,
        cause: Cause,
        now: u32,
        again: bool,
        share: impl Fn(usize) -> u32,
    ) {
        self.goes_unseen(name, now);
        let held = self.held[name.0 as usize];
        for k in 0..self.shadows.len() {
            let holds = held & (1 << k) != 0;
            let shadow = &mut self.shadows[k];
            if again {
                shadow.returns += u32::from(!holds);
                shadow.differences += u32::from(holds != (held & (1 << self.charge) != 0));
            }
            if !holds {
                shadow.policy.coming(name);
                self.make_room(k, share(k).max(1));
                let shadow = &mut self.shadows[k];
                shadow.policy.inserted(name, cause);
                shadow.held += 1;
                self.held[name.0 as usize] |= 1 << k;
            }
        }
    }

    /// Makes room for one more page in the shadow cache of policy `k`. Each call evicts at most two pages, so a smaller
    /// share is reached only after several references.
    fn make_room(&mut self, k: usize, share: u32) {
        let shadow = &mut self.shadows[k];
        for _ in 0..2 {
            if shadow.held < share {
                return;
            }
            let Some(victim) = shadow.policy.victim(&|_| true) else { return };
            shadow.policy.removed(victim, Leave::Evicted);
            shadow.held -= 1;
            self.held[victim.0 as usize] &= !(1 << k);
        }
    }

    /// Notes that a sampled page is mapped, so that its next reference would not be seen.
    fn goes_unseen(&mut self, name: PageId, now: u32) {
        self.referenced_at[name.0 as usize] = now;
        self.unseen.move_back(0, name);
    }

    /// Notes that a sampled page is no longer resident.
    pub(super) fn left(&mut self, name: PageId) {
        self.unseen.remove(name);
    }

    /// Notes that a sampled page was discarded.
    pub(super) fn forgotten(&mut self, name: PageId) {
        self.unseen.remove(name);
        let held = std::mem::take(&mut self.held[name.0 as usize]);
        for (k, shadow) in self.shadows.iter_mut().enumerate() {
            if held & (1 << k) != 0 {
                shadow.policy.removed(name, Leave::Forgotten);
                shadow.held -= 1;
            } else {
                shadow.policy.forgotten(name);
            }
        }
    }

    /// Returns the page that is mapped longest, if at least `arrivals` pages arrived since its last reference. The
    /// caller must unmap the page.
    pub(super) fn next_to_hide(&mut self, now: u32, arrivals: u32) -> Option<PageId> {
        let name = self.unseen.front(0)?;
        let since = now.wrapping_sub(self.referenced_at[name.0 as usize]);
        if since >= arrivals { self.unseen.pop_front(0) } else { None }
    }

    /// Halves the counts, so that old results count less.
    pub(super) fn halve(&mut self) {
        for shadow in &mut self.shadows {
            shadow.returns /= 2;
            shadow.differences /= 2;
        }
    }

    /// Puts another policy in charge and sets all differences to 0.
    pub(super) fn charge(&mut self, k: usize) {
        self.charge = k;
        self.shadows.iter_mut().for_each(|shadow| shadow.differences = 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Space;
    use crate::policy::trial::{Numbers, Trial};

    const NAMES: u32 = 100;
    const SHARE: u32 = 40;
    const POLICIES: [&str; 3] = ["fifo", "lirs", "s3-fifo"];

    fn build(name: &str) -> Box<dyn Policy> {
        crate::policy::build(name, Space { units: NAMES, block_units: 1, seed: 1, hides: true }).unwrap()
    }

    #[test]
    fn a_shadow_cache_is_what_the_policy_does_when_it_sees_its_misses_only() {
        let referenced = Numbers(5).references(20_000, NAMES);
        let mut shadows = Shadows::new(POLICIES.iter().map(|name| build(name)).collect(), NAMES, 0);
        referenced.iter().for_each(|&page| shadows.referenced(PageId(page), Cause::Read, 0, true, |_| SHARE));
        for (k, name) in POLICIES.iter().enumerate() {
            let mut trial = Trial::new(build(name), SHARE as usize);
            trial.visible = false;
            trial.victims(&referenced);
            assert_eq!(shadows.returns(k), referenced.len() as u32 - trial.hits, "{name}");
            let held: Vec<u32> = (0..NAMES).filter(|&page| shadows.held[page as usize] & (1 << k) != 0).collect();
            assert_eq!(held, (0..NAMES).filter(|&page| trial.holds(page)).collect::<Vec<_>>(), "{name}");
        }
        assert_eq!(shadows.differences(0), 0);
        assert!(shadows.differences(1) >= shadows.returns(0).abs_diff(shadows.returns(1)));
    }

    #[test]
    fn pages_are_hidden_in_their_order_when_they_have_been_in_sight_for_long_enough() {
        let mut shadows = Shadows::new(vec![build("fifo")], NAMES, 0);
        for (now, name) in [(1, 7), (2, 3), (3, 9), (4, 5)] {
            shadows.referenced(PageId(name), Cause::Read, now, false, |_| SHARE);
        }
        shadows.left(PageId(3));
        shadows.forgotten(PageId(5));
        assert_eq!(shadows.next_to_hide(10, 10), None);
        assert_eq!(shadows.next_to_hide(11, 10), Some(PageId(7)));
        assert_eq!(shadows.next_to_hide(11, 10), None);
        assert_eq!(shadows.next_to_hide(13, 10), Some(PageId(9)));
        assert_eq!(shadows.next_to_hide(100, 10), None);
        // Page 7 was unmapped and is referenced again. Page 5 comes back for the first time.
        shadows.referenced(PageId(7), Cause::Read, 100, true, |_| SHARE);
        shadows.referenced(PageId(5), Cause::Read, 101, false, |_| SHARE);
        assert_eq!((shadows.returns(0), shadows.held()), (0, 4));
        assert_eq!((shadows.next_to_hide(110, 10), shadows.next_to_hide(110, 10)), (Some(PageId(7)), None));
    }

    #[test]
    fn a_share_that_became_less_is_kept_soon() {
        let mut shadows = Shadows::new(vec![build("lirs")], NAMES, 0);
        (0..SHARE).for_each(|page| shadows.referenced(PageId(page), Cause::Read, 0, false, |_| SHARE));
        assert_eq!(shadows.held(), SHARE);
        (SHARE..SHARE + 30).for_each(|page| shadows.referenced(PageId(page), Cause::Read, 0, false, |_| SHARE - 20));
        assert_eq!(shadows.held(), SHARE - 20);
    }
}
