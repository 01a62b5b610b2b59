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
    hides: bool,
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
        let hides = policy::hides(spec)?;
        let places = vec![(0, Kind::Private); space.units as usize];
        Ok(Self { spec: spec.to_owned(), space, buckets: Vec::new(), places, hides })
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
    fn of_others(
        &mut self,
        urgency: &Urgency<'_>,
        kinds: &[Kind],
        accept: &dyn Fn(PageId) -> bool,
    ) -> Option<PageId> {
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
        if !self.hides {
            return;
        }
        for policy in self.buckets[index].policies.iter_mut().flatten() {
            for _ in 0..crate::limits::HIDES_MAX {
                if policy.next_to_hide().is_none() {
                    break;
                }
            }
        }
    }
}
