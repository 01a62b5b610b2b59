//! What a page is to the machine ranks before the order of a policy: SSS-CORE's method 3 (paper 5, section 3.3).
//!
//! A page that others have copies of costs less to lose than one that nobody else has, and a page of a program that is
//! not running is missed later. Within one kind of one owner any [`Policy`](crate::policy::Policy) decides.

use crate::policy::{self, Cause, Leave, Policy};
use crate::spec::{Space, SpecError};
use crate::units::PageId;

/// What a page is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A shared page of which there are copies elsewhere.
    SharedCopy,
    /// A shared page of which this is the only copy ("last-one").
    LastShared,
    /// A page that one thread or program uses.
    Private,
}

/// Number of kinds.
const KINDS: usize = 3;

/// Which kinds leave first, and whether they are the running owner's: paper 5, the list in section 3.3.
pub const ORDER: [(Kind, bool); 2 * KINDS] = [
    (Kind::SharedCopy, false),
    (Kind::SharedCopy, true),
    (Kind::LastShared, false),
    (Kind::Private, false),
    (Kind::LastShared, true),
    (Kind::Private, true),
];

/// Which of kind and owner ranks first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum First {
    /// [`ORDER`], and among the others' pages of one kind those of the least urgent owner.
    Kind,
    /// The pages of the least urgent of the other owners, by kinds, and the running owner's last.
    Owner,
}

/// Whose pages leave before whose, at one moment.
#[derive(Clone, Copy)]
pub struct Urgency<'a> {
    /// The owner that is running, if any is.
    pub running: Option<u32>,
    /// How urgent each owner is: of two, the pages of the lower leave first. Different owners have different ones.
    pub of: &'a dyn Fn(u32) -> u32,
    /// Which of kind and owner ranks first.
    pub first: First,
}

impl std::fmt::Debug for Urgency<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Urgency").field("running", &self.running).field("first", &self.first).finish_non_exhaustive()
    }
}

/// The pages of one owner. Its policies are built when it first has a page of the kind, and are dropped once it has no
/// page and no history.
struct Bucket {
    owner: u32,
    policies: [Option<Box<dyn Policy>>; KINDS],
    in_view: [u32; KINDS],
    /// Pages that left and may be remembered.
    remembered: u32,
}

/// Pages of several owners and kinds, each kind of each owner replaced by a policy of its own.
///
/// The caller's side of the contract is that of [`Policy`], and that an evicted page is [`forgotten`](Kinds::forgotten)
/// or comes back before its number is given to another page. A page that changes its kind is the newest of its new one.
///
/// State: a word a unit, and a policy for each kind that an owner has pages of.
pub struct Kinds {
    spec: String,
    space: Space,
    buckets: Vec<Bucket>,
    /// Owner and kind of each page that is in view or remembered.
    places: Vec<(u32, Kind)>,
}

impl std::fmt::Debug for Kinds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kinds").field("spec", &self.spec).field("owners", &self.buckets.len()).finish_non_exhaustive()
    }
}

impl Kinds {
    /// No pages yet; within a kind the policy that `spec` describes decides.
    ///
    /// # Errors
    /// `spec` describes no policy; the message lists what is valid.
    pub fn new(spec: &str, space: Space) -> Result<Self, SpecError> {
        policy::build(spec, space)?;
        let places = vec![(0, Kind::Private); space.units as usize];
        Ok(Self { spec: spec.to_owned(), space, buckets: Vec::new(), places })
    }

    /// A page came into view.
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
            // `new` has built one of this description before.
            *policy = policy::build(&self.spec, self.space).ok();
        }
        if let Some(policy) = policy {
            policy.inserted(page, cause);
        }
        self.drop_wishes(index);
    }

    /// A touch of a page in view was seen.
    pub fn referenced(&mut self, page: PageId, write: bool) {
        let (_, kind) = self.places[page.0 as usize];
        let Some(index) = self.bucket_of(page) else { return };
        if let Some(policy) = &mut self.buckets[index].policies[kind as usize] {
            policy.referenced(page, write);
        }
        self.drop_wishes(index);
    }

    /// A page left the view. If it was [evicted](Leave::Evicted), its number stays taken until it is forgotten or comes
    /// back.
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

    /// An evicted page's number is free again.
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

    /// An evicted page is about to come back, of this kind: what its policy remembers of it serves where the kind is the
    /// same, and is forgotten where it is another.
    pub fn returns(&mut self, page: PageId, kind: Kind) {
        if self.places[page.0 as usize].1 != kind {
            self.forgotten(page);
        } else if let Some(index) = self.bucket_of(page) {
            // The page is counted as in view by `inserted`, which follows.
            let bucket = &mut self.buckets[index];
            bucket.remembered = bucket.remembered.saturating_sub(1);
        }
    }

    /// A page in view is of another kind from now on.
    pub fn changed(&mut self, page: PageId, kind: Kind) {
        let (owner, old) = self.places[page.0 as usize];
        if old != kind {
            self.removed(page, Leave::Forgotten);
            self.inserted(page, owner, kind, Cause::Read);
        }
    }

    /// The page to replace next among those the filter accepts.
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

    /// Of owners that do not run, the least urgent first.
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

    /// Where references are told without pages being hidden, a policy's wishes to hide some are heard and dropped.
    fn drop_wishes(&mut self, index: usize) {
        for policy in self.buckets[index].policies.iter_mut().flatten() {
            for _ in 0..crate::limits::HIDES_MAX {
                if policy.next_to_hide().is_none() {
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SPACE: Space = Space { units: 32, block_units: 1, seed: 1, hides: true };

    fn urgency(first: First) -> Urgency<'static> {
        // Of the others, owner 3 is the least urgent.
        Urgency { running: Some(1), of: &|owner| 10 - owner, first }
    }

    /// Every kind of a running owner, 1, and two others; the number tells owner and kind.
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
        // One that comes back is not forgotten on the way.
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

    /// A page in view: owner, kind, and when it was last touched or changed.
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
