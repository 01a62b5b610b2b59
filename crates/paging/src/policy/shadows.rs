//! Shadows: what each of several policies would do with the same sample of pages.
//!
//! A sample stands for all pages: each policy keeps an account of which sampled pages it would hold, had it these alone and
//! their share of local memory (miniature simulation: Waldspurger et al., ATC 2017). No page is replaced by it, and all
//! policies are judged by the same touches, so that chance hits them alike. A policy sees in its account what it would see
//! at work: what it misses.

use super::list::Lists;
use super::{Cause, Leave, Policy};
use crate::units::PageId;

/// One policy's account.
struct Shadow {
    policy: Box<dyn Policy>,
    /// Sampled pages it would hold.
    held: u32,
    /// Pages it would have had to bring back.
    returns: u32,
    /// Touches that it and the policy in charge do not fare alike with.
    differences: u32,
}

/// State: a word, a byte and two links a sampled page, and the policies' own.
pub(super) struct Shadows {
    shadows: Vec<Shadow>,
    /// By name of a sampled page: a bit for each shadow that would hold it.
    held: Vec<u8>,
    /// By name: the arrivals there had been when it was last touched, as far as was seen.
    touched_at: Vec<u32>,
    /// Pages in view whose next touch would not be seen, the one longest so first.
    in_sight: Lists<1>,
    /// The policy that the others are compared with.
    charge: usize,
}

impl Shadows {
    /// Accounts for these policies, eight at most, of pages with names below a bound.
    pub(super) fn new(policies: Vec<Box<dyn Policy>>, names: u32, charge: usize) -> Self {
        let shadow = |policy| Shadow { policy, held: 0, returns: 0, differences: 0 };
        Self {
            shadows: policies.into_iter().map(shadow).collect(),
            held: vec![0; names as usize],
            touched_at: vec![0; names as usize],
            in_sight: Lists::new(names),
            charge,
        }
    }

    /// How often this policy would have had to bring a page back, halved now and then.
    pub(super) fn returns(&self, k: usize) -> u32 {
        self.shadows[k].returns
    }

    /// With how many touches it fared otherwise than the policy in charge, halved as often.
    pub(super) fn differences(&self, k: usize) -> u32 {
        self.shadows[k].differences
    }

    /// Sampled pages the policy in charge would hold.
    pub(super) fn held(&self) -> u32 {
        self.shadows[self.charge].held
    }

    /// A sampled page was touched at this time, in arrivals of pages; `again` if not for the first time. A policy may hold
    /// so many as `share` says.
    pub(super) fn touched(&mut self, name: PageId, cause: Cause, now: u32, again: bool, share: impl Fn(usize) -> u32) {
        self.comes_into_sight(name, now);
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

    /// Room for one more page; the share may have become less, and is reached again within a few touches.
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

    /// A sampled page is in view, and a touch of it would not be seen.
    fn comes_into_sight(&mut self, name: PageId, now: u32) {
        self.touched_at[name.0 as usize] = now;
        self.in_sight.move_back(0, name);
    }

    /// A sampled page left the view.
    pub(super) fn left(&mut self, name: PageId) {
        self.in_sight.remove(name);
    }

    /// A sampled page was discarded.
    pub(super) fn forgotten(&mut self, name: PageId) {
        self.in_sight.remove(name);
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

    /// The page longest in sight, if that is so many arrivals: it is to be hidden.
    pub(super) fn next_to_hide(&mut self, now: u32, arrivals: u32) -> Option<PageId> {
        let name = self.in_sight.front(0)?;
        let since = now.wrapping_sub(self.touched_at[name.0 as usize]);
        if since >= arrivals { self.in_sight.pop_front(0) } else { None }
    }

    /// What is long ago counts less.
    pub(super) fn halve(&mut self) {
        for shadow in &mut self.shadows {
            shadow.returns /= 2;
            shadow.differences /= 2;
        }
    }

    /// Another policy is in charge.
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
    fn an_account_is_what_the_policy_does_when_it_sees_its_misses_only() {
        let touched = Numbers(5).references(20_000, NAMES);
        let mut shadows = Shadows::new(POLICIES.iter().map(|name| build(name)).collect(), NAMES, 0);
        touched.iter().for_each(|&page| shadows.touched(PageId(page), Cause::Read, 0, true, |_| SHARE));
        for (k, name) in POLICIES.iter().enumerate() {
            let mut trial = Trial::new(build(name), SHARE as usize);
            trial.visible = false;
            trial.victims(&touched);
            assert_eq!(shadows.returns(k), touched.len() as u32 - trial.hits, "{name}");
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
            shadows.touched(PageId(name), Cause::Read, now, false, |_| SHARE);
        }
        shadows.left(PageId(3));
        shadows.forgotten(PageId(5));
        assert_eq!(shadows.next_to_hide(10, 10), None);
        assert_eq!(shadows.next_to_hide(11, 10), Some(PageId(7)));
        assert_eq!(shadows.next_to_hide(11, 10), None);
        assert_eq!(shadows.next_to_hide(13, 10), Some(PageId(9)));
        assert_eq!(shadows.next_to_hide(100, 10), None);
        // 7 was hidden and touched again, 5 comes for the first time again.
        shadows.touched(PageId(7), Cause::Read, 100, true, |_| SHARE);
        shadows.touched(PageId(5), Cause::Read, 101, false, |_| SHARE);
        assert_eq!((shadows.returns(0), shadows.held()), (0, 4));
        assert_eq!((shadows.next_to_hide(110, 10), shadows.next_to_hide(110, 10)), (Some(PageId(7)), None));
    }

    #[test]
    fn a_share_that_became_less_is_kept_soon() {
        let mut shadows = Shadows::new(vec![build("lirs")], NAMES, 0);
        (0..SHARE).for_each(|page| shadows.touched(PageId(page), Cause::Read, 0, false, |_| SHARE));
        assert_eq!(shadows.held(), SHARE);
        (SHARE..SHARE + 30).for_each(|page| shadows.touched(PageId(page), Cause::Read, 0, false, |_| SHARE - 20));
        assert_eq!(shadows.held(), SHARE - 20);
    }
}
