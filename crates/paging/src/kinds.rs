//! Page kinds: victims are chosen by the kind of their page first, and by a policy's order second. This is SSS-CORE's
//! method 3 (paper 5, section 3.3).
//!
//! Evicting one of several copies of a page costs less than evicting the only copy. The pages of a program that does
//! not run are needed later than those of the running program. Among pages of one kind and one owner, any
//! [`Policy`](crate::policy::Policy) decides.

use crate::policy::{self, Cause, Leave, Policy};
use crate::spec::{Space, SpecError};
use crate::units::PageId;

/// The kind of a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A shared page of which other computers have copies.
    SharedCopy,
    /// A shared page without other copies ("last-one").
    LastShared,
    /// A page that only one thread or program uses.
    Private,
}

/// Number of kinds.
const KINDS: usize = 3;

/// The kinds in the order in which their pages are evicted (paper 5, section 3.3). The flag says whether the entry is
/// for pages of the running owner.
pub const ORDER: [(Kind, bool); 2 * KINDS] = [
    (Kind::SharedCopy, false),
    (Kind::SharedCopy, true),
    (Kind::LastShared, false),
    (Kind::Private, false),
    (Kind::LastShared, true),
    (Kind::Private, true),
];

/// The criterion that the order of victims uses first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum First {
    /// Orders by [`ORDER`]. Among pages of one kind, those of the least urgent owner are evicted first.
    Kind,
    /// Orders by owner: the least urgent owner first, and the running owner last. Orders the pages of one owner by
    /// kind.
    Owner,
}

/// The urgency of owners at one moment. It decides whose pages are evicted first.
#[derive(Clone, Copy)]
pub struct Urgency<'a> {
    /// The running owner, if there is one.
    pub running: Option<u32>,
    /// Returns the urgency of an owner. The pages of a less urgent owner are evicted first. No two owners have the same
    /// urgency.
    pub of: &'a dyn Fn(u32) -> u32,
    /// The first criterion of the order: the kind or the owner.
    pub first: First,
}

impl std::fmt::Debug for Urgency<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Urgency").field("running", &self.running).field("first", &self.first).finish_non_exhaustive()
    }
}

/// The pages of one owner. A policy is built when the owner first has a page of a kind. The bucket is dropped when the
/// owner has no resident page and no remembered evicted page.
struct Bucket {
    owner: u32,
    policies: [Option<Box<dyn Policy>>; KINDS],
    in_view: [u32; KINDS],
    /// Number of evicted pages that a policy may still remember.
    remembered: u32,
}

/// Pages of several owners and kinds. Each kind of each owner has a separate policy.
///
/// The caller must keep the contract of [`Policy`]. It may reuse the number of an evicted page only after it calls
/// [`forgotten`](Kinds::forgotten) for that page. A page that changes its kind becomes the newest page of its new kind.
///
/// Memory use: one word for each unit, and a policy for each kind of page that an owner has.
pub struct Kinds {
    spec: String,
    space: Space,
    buckets: Vec<Bucket>,
    /// Owner and kind of each page that is resident or remembered.
    places: Vec<(u32, Kind)>,
}

impl std::fmt::Debug for Kinds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kinds").field("spec", &self.spec).field("owners", &self.buckets.len()).finish_non_exhaustive()
    }
}

impl Kinds {
    /// Builds a set without pages. `spec` is the name and the parameters of the policy that orders the pages of each
    /// kind.
    ///
    /// # Errors
    /// `spec` does not describe a policy. The message lists the valid ones.
    pub fn new(spec: &str, space: Space) -> Result<Self, SpecError> {
        policy::build(spec, space)?;
        let places = vec![(0, Kind::Private); space.units as usize];
        Ok(Self { spec: spec.to_owned(), space, buckets: Vec::new(), places })
    }

    /// Notes that a page became resident.
    pub fn inserted(&mut self, page: PageId, owner: u32, kind: Kind, cause: Cause) {
        self.places[page.0 as usize] = (owner, kind);
        let index = self.buckets.iter().position(|bucket| bucket.owner == owner).unwrap_or_else(|| {
            self.buckets.push(Bucket { owner, policies: [const { None }; KINDS], in_view: [0; KINDS], remembered: 0 });
            self.buckets.len() - 1
        });
        let bucket = &mut self.buckets[index];
        bucket.in_view[kind as usize] += 1;
        let policy = &mut bucket.policies[kind as usize];
        if policy.is_none() {
            // `new` has already built a policy from this description, so building another one succeeds.
            *policy = policy::build(&self.spec, self.space).ok();
        }
        if let Some(policy) = policy {
            policy.inserted(page, cause);
        }
        self.drop_hide_requests(index);
    }

    /// Notes a reference to a resident page.
    pub fn referenced(&mut self, page: PageId, write: bool) {
        let (_, kind) = self.places[page.0 as usize];
        let Some(index) = self.bucket_of(page) else { return };
        if let Some(policy) = &mut self.buckets[index].policies[kind as usize] {
            policy.referenced(page, write);
        }
        self.drop_hide_requests(index);
    }

    /// Notes that a page is no longer resident. The number of an [evicted](Leave::Evicted) page stays in use until the
    /// page is forgotten or comes back.
    pub fn removed(&mut self, page: PageId, why: Leave) {
        let (_, kind) = self.places[page.0 as usize];
        let Some(index) = self.bucket_of(page) else { return };
        let bucket = &mut self.buckets[index];
        bucket.in_view[kind as usize] -= 1;
        bucket.remembered += u32::from(why == Leave::Evicted);
        if let Some(policy) = &mut bucket.policies[kind as usize] {
            policy.removed(page, why);
        }
        self.drop_if_empty(index);
    }

    /// Frees the number of an evicted page.
    pub fn forgotten(&mut self, page: PageId) {
        let (_, kind) = self.places[page.0 as usize];
        let Some(index) = self.bucket_of(page) else { return };
        let bucket = &mut self.buckets[index];
        bucket.remembered = bucket.remembered.saturating_sub(1);
        if let Some(policy) = &mut bucket.policies[kind as usize] {
            policy.forgotten(page);
        }
        self.drop_if_empty(index);
    }

    /// Notes that an evicted page is about to become resident again, as a page of this kind. If the page had the same
    /// kind before, the policy keeps its history of the page. Otherwise the history is dropped.
    pub fn returns(&mut self, page: PageId, kind: Kind) {
        if self.places[page.0 as usize].1 != kind {
            self.forgotten(page);
        } else if let Some(index) = self.bucket_of(page) {
            // The caller of `returns` calls `inserted` next, which counts the page as resident.
            let bucket = &mut self.buckets[index];
            bucket.remembered = bucket.remembered.saturating_sub(1);
        }
    }

    /// Changes the kind of a resident page.
    pub fn changed(&mut self, page: PageId, kind: Kind) {
        let (owner, old) = self.places[page.0 as usize];
        if old != kind {
            self.removed(page, Leave::Forgotten);
            self.inserted(page, owner, kind, Cause::Read);
        }
    }

    /// Returns the page to replace next. Considers only pages that the filter accepts.
    pub fn victim(&mut self, urgency: &Urgency<'_>, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        match urgency.first {
            First::Kind => ORDER.iter().find_map(|&(kind, own)| match urgency.running.filter(|_| own) {
                Some(owner) => self.of(owner, kind, accept),
                None if own => None,
                None => self.of_others(urgency, &[kind], accept),
            }),
            First::Owner => {
                let kinds = [Kind::SharedCopy, Kind::LastShared, Kind::Private];
                let others = self.of_others(urgency, &kinds, accept);
                others.or_else(|| kinds.iter().find_map(|&kind| self.of(urgency.running?, kind, accept)))
            }
        }
    }

    /// Returns a victim of an owner that does not run. Searches the least urgent owner first.
    fn of_others(&mut self, urgency: &Urgency<'_>, kinds: &[Kind], accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let mut least = 0;
        loop {
            let has = |bucket: &&Bucket| kinds.iter().any(|&kind| bucket.in_view[kind as usize] > 0);
            let others = self.buckets.iter().filter(|bucket| Some(bucket.owner) != urgency.running).filter(has);
            let ranked = others.map(|bucket| ((urgency.of)(bucket.owner), bucket.owner));
            let (rank, owner) = ranked.filter(|&(rank, _)| rank >= least).min()?;
            if let Some(page) = kinds.iter().find_map(|&kind| self.of(owner, kind, accept)) {
                return Some(page);
            }
            least = rank.checked_add(1)?;
        }
    }

    fn of(&mut self, owner: u32, kind: Kind, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let bucket = self.buckets.iter_mut().find(|bucket| bucket.owner == owner)?;
        if bucket.in_view[kind as usize] == 0 {
            return None;
        }
        bucket.policies[kind as usize].as_mut()?.victim(accept)
    }

    fn bucket_of(&self, page: PageId) -> Option<usize> {
        let (owner, _) = self.places[page.0 as usize];
        self.buckets.iter().position(|bucket| bucket.owner == owner)
    }

    fn drop_if_empty(&mut self, index: usize) {
        let bucket = &self.buckets[index];
        if bucket.remembered == 0 && bucket.in_view == [0; KINDS] {
            self.buckets.swap_remove(index);
        }
    }

    /// Drops the policy's requests to unmap pages. The caller reports every reference, so no page needs to be unmapped.
    fn drop_hide_requests(&mut self, index: usize) {
        for policy in self.buckets[index].policies.iter_mut().flatten() {
            for _ in 0..crate::limits::HIDES_MAX {
                if policy.next_to_hide().is_none() {
                    break;
                }
            }
        }
    }
}

/// A policy for the pages of one owner that orders the pages by kind first. The pages of each kind have a separate
/// policy. Each page has the kind `usual` until [`Policy::kind`] sets another kind.
///
/// Memory use: one byte for each unit, and a policy for each kind that a page ever had.
pub struct ByKind {
    spec: String,
    space: Space,
    usual: Kind,
    policies: [Option<Box<dyn Policy>>; KINDS],
    holds: [bool; KINDS],
    /// The kind of each page plus one. Zero means the usual kind. Entries of pages that keep the usual kind are never
    /// written, so they need no physical memory.
    kinds: Vec<u8>,
}

impl ByKind {
    /// Builds the policy without pages. `spec` is the name and the parameters of the policy that orders the pages of
    /// each kind.
    ///
    /// # Errors
    /// `spec` does not describe a policy. The message lists the valid ones.
    pub fn new(spec: &str, space: Space, usual: Kind) -> Result<Self, SpecError> {
        let mut policies = [const { None }; KINDS];
        policies[usual as usize] = Some(policy::build(spec, space)?);
        let kinds = vec![0; space.units as usize];
        Ok(Self { spec: spec.to_owned(), space, usual, policies, holds: [false; KINDS], kinds })
    }

    fn of(&mut self, page: PageId) -> &mut Option<Box<dyn Policy>> {
        let usual = self.usual as usize;
        &mut self.policies[usize::from(self.kinds[page.0 as usize]).checked_sub(1).unwrap_or(usual)]
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Box<dyn Policy>> {
        self.policies.iter_mut().flatten()
    }
}

impl std::fmt::Debug for ByKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByKind").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Policy for ByKind {
    fn coming(&mut self, page: PageId) {
        self.of(page).iter_mut().for_each(|policy| policy.coming(page));
    }

    fn wide(&mut self, page: PageId) {
        self.of(page).iter_mut().for_each(|policy| policy.wide(page));
    }

    fn inserted(&mut self, page: PageId, cause: Cause) {
        self.of(page).iter_mut().for_each(|policy| policy.inserted(page, cause));
    }

    fn referenced(&mut self, page: PageId, write: bool) {
        self.of(page).iter_mut().for_each(|policy| policy.referenced(page, write));
    }

    fn removed(&mut self, page: PageId, why: Leave) {
        self.of(page).iter_mut().for_each(|policy| policy.removed(page, why));
    }

    fn forgotten(&mut self, page: PageId) {
        self.of(page).iter_mut().for_each(|policy| policy.forgotten(page));
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let free = self.policies.iter_mut().zip(self.holds).filter(|(_, holds)| !holds);
        free.filter_map(|(policy, _)| policy.as_mut()).find_map(|policy| policy.victim(accept))
    }

    fn next_to_hide(&mut self) -> Option<PageId> {
        self.all().find_map(|policy| policy.next_to_hide())
    }

    fn hides(&self) -> bool {
        self.policies.iter().flatten().any(|policy| policy.hides())
    }

    fn kind(&mut self, page: PageId, kind: Kind) {
        // The policy of the page's old kind may remember the page, so it must forget the page.
        self.forgotten(page);
        self.kinds[page.0 as usize] = if kind == self.usual { 0 } else { kind as u8 + 1 };
        let policy = &mut self.policies[kind as usize];
        if policy.is_none() {
            // `new` has already built a policy from this description, so building another one succeeds.
            *policy = policy::build(&self.spec, self.space).ok();
        }
    }

    fn hold(&mut self, kind: Kind, on: bool) {
        self.holds[kind as usize] = on;
    }

    fn tick(&mut self, now_ms: u64) {
        self.all().for_each(|policy| policy.tick(now_ms));
    }

    fn describe(&self, out: &mut dyn std::fmt::Write) -> std::fmt::Result {
        self.policies.iter().flatten().try_for_each(|policy| policy.describe(out))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SPACE: Space = Space { units: 32, block_units: 1, seed: 1, hides: true };

    fn urgency(first: First) -> Urgency<'static> {
        // Owner 3 is the least urgent of the owners that do not run.
        Urgency { running: Some(1), of: &|owner| 10 - owner, first }
    }

    /// Makes pages of every kind for the running owner (1) and two other owners. The page number encodes owner and
    /// kind.
    fn full(spec: &str) -> Kinds {
        let mut kinds = Kinds::new(spec, SPACE).unwrap();
        for owner in [2, 1, 3] {
            for kind in [Kind::Private, Kind::SharedCopy, Kind::LastShared] {
                kinds.inserted(PageId(owner * 3 + kind as u32), owner, kind, Cause::Read);
            }
        }
        kinds
    }

    fn leave(kinds: &mut Kinds, first: First) -> Vec<(u32, u32)> {
        let mut left = Vec::new();
        while let Some(page) = kinds.victim(&urgency(first), &|_| true) {
            kinds.removed(page, Leave::Evicted);
            left.push((page.0 / 3, page.0 % 3));
        }
        left
    }

    #[test]
    fn pages_leave_in_the_order_of_the_paper() {
        const COPY: u32 = Kind::SharedCopy as u32;
        const LAST: u32 = Kind::LastShared as u32;
        const PRIVATE: u32 = Kind::Private as u32;
        let by_kind = [
            (3, COPY),
            (2, COPY),
            (1, COPY),
            (3, LAST),
            (2, LAST),
            (3, PRIVATE),
            (2, PRIVATE),
            (1, LAST),
            (1, PRIVATE),
        ];
        assert_eq!(leave(&mut full("lru"), First::Kind), by_kind);
        let by_owner = [3, 2, 1].map(|owner| [COPY, LAST, PRIVATE].map(|kind| (owner, kind))).concat();
        assert_eq!(leave(&mut full("fifo"), First::Owner), by_owner);
    }

    #[test]
    fn what_the_filter_refuses_is_passed_over_whatever_its_kind() {
        let mut kinds = full("lru");
        let not_copies = |page: PageId| page.0 % 3 != Kind::SharedCopy as u32;
        let victim = kinds.victim(&urgency(First::Kind), &not_copies);
        assert_eq!(victim, Some(PageId(9 + Kind::LastShared as u32)));
        assert_eq!(kinds.victim(&urgency(First::Kind), &|_| false), None);
        let nobody = Urgency { running: None, ..urgency(First::Kind) };
        assert_eq!(kinds.victim(&nobody, &|page| page.0 / 3 == 1), Some(PageId(3)));
    }

    #[test]
    fn owners_without_pages_or_history_cost_nothing() {
        let mut kinds = full("2q");
        leave(&mut kinds, First::Kind);
        assert_eq!(kinds.buckets.len(), 3);
        for page in 3..12 {
            kinds.forgotten(PageId(page));
        }
        assert!(kinds.buckets.is_empty());
        // An evicted page may come back without a call of `forgotten` before.
        kinds.inserted(PageId(1), 7, Kind::Private, Cause::Read);
        kinds.removed(PageId(1), Leave::Evicted);
        kinds.returns(PageId(1), Kind::Private);
        kinds.inserted(PageId(1), 7, Kind::Private, Cause::Write);
        assert_eq!((kinds.buckets.len(), kinds.buckets[0].remembered), (1, 0));
        kinds.removed(PageId(1), Leave::Forgotten);
        assert!(kinds.buckets.is_empty());
    }

    #[test]
    fn an_unknown_policy_is_refused() {
        assert!(Kinds::new("best", SPACE).unwrap_err().to_string().contains("fifo"));
    }

    #[test]
    fn one_owners_pages_leave_by_kind_and_held_kinds_stay() {
        let mut kinds = ByKind::new("fifo", SPACE, Kind::LastShared).unwrap();
        for page in [4, 5] {
            kinds.kind(PageId(page), Kind::SharedCopy);
        }
        kinds.kind(PageId(6), Kind::Private);
        [6, 0, 4, 1, 5].into_iter().for_each(|page| kinds.inserted(PageId(page), Cause::Read));
        let leave = |kinds: &mut ByKind| {
            let page = kinds.victim(&|_| true).unwrap();
            kinds.removed(page, Leave::Evicted);
            page.0
        };
        kinds.hold(Kind::SharedCopy, true);
        assert_eq!(leave(&mut kinds), 0, "copies stay");
        kinds.hold(Kind::SharedCopy, false);
        assert_eq!([(); 4].map(|()| leave(&mut kinds)), [4, 5, 1, 6]);
        assert_eq!(kinds.victim(&|_| true), None);
        // A page that changes its kind belongs to the new kind only.
        kinds.kind(PageId(4), Kind::LastShared);
        [4, 5, 1].into_iter().for_each(|page| kinds.inserted(PageId(page), Cause::Read));
        assert_eq!([(); 3].map(|()| leave(&mut kinds)), [5, 4, 1]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u32, u32, Kind),
        Reference(u32),
        Change(u32, Kind),
        Remove(u32, bool),
        Evict(u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let kind = || prop_oneof![Just(Kind::SharedCopy), Just(Kind::LastShared), Just(Kind::Private)];
        let step = prop_oneof![
            4 => (0u32..32, 0u32..4, kind()).prop_map(|(page, owner, kind)| Step::Insert(page, owner, kind)),
            2 => (0u32..32).prop_map(Step::Reference),
            2 => (0u32..32, kind()).prop_map(|(page, kind)| Step::Change(page, kind)),
            1 => (0u32..32, any::<bool>()).prop_map(|(page, evicted)| Step::Remove(page, evicted)),
            3 => (0u32..32).prop_map(Step::Evict),
        ];
        prop::collection::vec(step, 1..200)
    }

    /// For each resident page: its owner, its kind, and the time of its last reference or change.
    type Model = std::collections::BTreeMap<u32, (u32, Kind, usize)>;

    fn expected(model: &Model, refused: u32) -> Option<PageId> {
        let rank = |&(owner, kind, when): &(u32, Kind, usize)| {
            let class = ORDER.iter().position(|&class| class == (kind, owner == 1));
            (class, 10 - owner, when)
        };
        let accepted = model.iter().filter(|(page, _)| **page != refused);
        accepted.min_by_key(|(_, found)| rank(found)).map(|(page, _)| PageId(*page))
    }

    proptest! {
        #[test]
        fn with_lru_the_victim_is_the_first_by_kind_urgency_and_time(steps in steps()) {
            let mut kinds = Kinds::new("lru", SPACE).unwrap();
            let mut model = Model::new();
            let mut remembered = std::collections::BTreeSet::new();
            for (now, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(page, owner, kind) if !model.contains_key(&page) => {
                        if remembered.remove(&page) {
                            kinds.forgotten(PageId(page));
                        }
                        kinds.inserted(PageId(page), owner, kind, Cause::Read);
                        model.insert(page, (owner, kind, now));
                    }
                    Step::Reference(page) => if let Some(found) = model.get_mut(&page) {
                        kinds.referenced(PageId(page), false);
                        found.2 = now;
                    },
                    Step::Change(page, kind) => if let Some(found) = model.get_mut(&page) && found.1 != kind {
                        kinds.changed(PageId(page), kind);
                        (found.1, found.2) = (kind, now);
                    },
                    Step::Remove(page, evicted) => if model.remove(&page).is_some() {
                        kinds.removed(PageId(page), if evicted { Leave::Evicted } else { Leave::Forgotten });
                        if evicted {
                            remembered.insert(page);
                        }
                    },
                    Step::Evict(refused) => {
                        let victim = kinds.victim(&urgency(First::Kind), &|page| page.0 != refused);
                        prop_assert_eq!(victim, expected(&model, refused));
                        if let Some(page) = victim {
                            kinds.removed(page, Leave::Evicted);
                            model.remove(&page.0);
                            remembered.insert(page.0);
                        }
                    }
                    Step::Insert(..) => {}
                }
            }
        }
    }
}
