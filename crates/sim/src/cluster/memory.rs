//! The memory of one cluster: the pages that it holds, and the choice of the page that leaves next.
//!
//! The memory gives each page a number, which the policy uses. The page keeps its number while the memory holds the
//! page, or while the policy may remember the page. So the state of a policy has the size of one memory, not of the
//! whole machine.

use std::collections::{HashMap, VecDeque};

use hanare_paging::kinds::{Kind, Kinds, Urgency};
use hanare_paging::policy::{self, Cause, Leave, Policy, SpecError};
use hanare_paging::{PageId, Space, limits};

/// The replacement method (paper 5, section 3.3).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replacement {
    /// Whether the kinds and owners of pages decide before the policy's order does (method 3). If false, only the
    /// policy's order decides (method 1).
    pub by_kind: bool,
    /// The pager's policy that orders the pages, in the form that a user writes.
    pub policy: String,
}

impl Replacement {
    /// Parses `kind` (method 3 with LRU), `kind+POLICY` (method 3 with another policy), or `POLICY` alone. `lru` alone
    /// is method 1.
    ///
    /// # Errors
    /// There is no such policy. The message lists the valid ones.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (by_kind, policy) = match text.strip_prefix("kind") {
            Some("") => (true, "lru"),
            Some(rest) if rest.starts_with('+') => (true, &rest[1..]),
            _ => (false, text),
        };
        let space = Space { units: 64, block_units: 1, seed: 0, hides: true };
        match policy::build(policy, space) {
            Ok(_) => Ok(Self { by_kind, policy: policy.to_owned() }),
            Err(error) => Err(format!(
                "'{text}' is no replacement method: {error}; give kind (method 3), a policy such as lru (method 1), or \
                 kind+POLICY"
            )),
        }
    }

    /// Returns the method in the form that a user writes.
    #[must_use]
    pub fn name(&self) -> String {
        match (self.by_kind, self.policy.as_str()) {
            (true, "lru") => "kind".to_owned(),
            (true, policy) => format!("kind+{policy}"),
            (false, policy) => policy.to_owned(),
        }
    }
}

#[derive(Debug)]
enum Order {
    Kinds(Kinds),
    Plain(Plain),
}

struct Plain(Box<dyn Policy>);

impl std::fmt::Debug for Plain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Plain")
    }
}

impl Plain {
    /// Drops the policy's requests to unmap pages. The simulation sees every reference, so no page needs to be
    /// unmapped.
    fn drop_unmap_requests(&mut self) {
        let _ = (0..limits::HIDES_MAX).try_for_each(|_| self.0.next_to_hide().map(drop));
    }
}

/// A memory with a fixed number of frames.
#[derive(Debug)]
pub(super) struct Memory {
    frames: u32,
    used: u32,
    /// For each number in use, the page that has the number.
    pages: Vec<u32>,
    free: Vec<u32>,
    order: Order,
    history: u32,
    /// Numbers of the pages that left, oldest first, each with the value of `leavings` when the page left. The entry is
    /// outdated, and is skipped, if the page has come back since.
    left: VecDeque<(u32, u32)>,
    /// For each page that left and is remembered: its number, and the value of `leavings` when the page left.
    remembered: HashMap<u32, (u32, u32)>,
    leavings: u32,
}

impl Memory {
    /// # Errors
    /// The policy cannot be built.
    pub(super) fn new(frames: u32, history: u32, replacement: &Replacement, seed: u64) -> Result<Self, SpecError> {
        // There is one number more than the memory can hold and remember pages. So a number is always free.
        let units = frames + history + 1;
        let space = Space { units, block_units: 1, seed, hides: true };
        let order = if replacement.by_kind {
            Order::Kinds(Kinds::new(&replacement.policy, space)?)
        } else {
            Order::Plain(Plain(policy::build(&replacement.policy, space)?))
        };
        Ok(Self {
            frames,
            used: 0,
            pages: vec![0; units as usize],
            free: (0..units).rev().collect(),
            order,
            history,
            left: VecDeque::new(),
            remembered: HashMap::new(),
            leavings: 0,
        })
    }

    pub(super) fn is_full(&self) -> bool {
        self.used >= self.frames
    }

    /// Returns the page that has the number `id`. The number must be in use.
    pub(super) fn page(&self, id: u32) -> u32 {
        self.pages[id as usize]
    }

    /// Inserts a page. There must be room for it. Returns the page's number.
    pub(super) fn insert(&mut self, page: u32, owner: u32, kind: Kind, write: bool) -> u32 {
        debug_assert!(!self.is_full());
        let cause = if write { Cause::Write } else { Cause::Read };
        let id = self.number(page, kind);
        self.pages[id as usize] = page;
        self.used += 1;
        match &mut self.order {
            Order::Kinds(kinds) => kinds.inserted(PageId(id), owner, kind, cause),
            Order::Plain(plain) => {
                plain.0.inserted(PageId(id), cause);
                plain.drop_unmap_requests();
            }
        }
        id
    }

    fn number(&mut self, page: u32, kind: Kind) -> u32 {
        if let Some((id, _)) = self.remembered.remove(&page) {
            if let Order::Kinds(kinds) = &mut self.order {
                kinds.returns(PageId(id), kind);
            }
            return id;
        }
        // A number is always free, because fewer numbers are in use or remembered than exist.
        self.free.pop().unwrap_or_default()
    }

    /// Removes a page. `why` says whether the policy may remember the page.
    pub(super) fn remove(&mut self, id: u32, why: Leave) {
        self.used -= 1;
        match &mut self.order {
            Order::Kinds(kinds) => kinds.removed(PageId(id), why),
            Order::Plain(plain) => {
                plain.0.removed(PageId(id), why);
                plain.drop_unmap_requests();
            }
        }
        if why == Leave::Forgotten {
            self.free.push(id);
            return;
        }
        self.leavings = self.leavings.wrapping_add(1);
        self.left.push_back((id, self.leavings));
        self.remembered.insert(self.page(id), (id, self.leavings));
        while self.remembered.len() > self.history as usize {
            self.forget_oldest();
        }
        // Removes the outdated entries of pages that came back, so that the queue stays bounded.
        if self.left.len() > 2 * self.pages.len() {
            let (remembered, pages) = (&self.remembered, &self.pages);
            self.left.retain(|(id, count)| remembered.get(&pages[*id as usize]) == Some(&(*id, *count)));
        }
    }

    fn forget_oldest(&mut self) {
        let Some((id, count)) = self.left.pop_front() else { return };
        let page = self.page(id);
        if self.remembered.get(&page) == Some(&(id, count)) {
            self.remembered.remove(&page);
            match &mut self.order {
                Order::Kinds(kinds) => kinds.forgotten(PageId(id)),
                Order::Plain(plain) => plain.0.forgotten(PageId(id)),
            }
            self.free.push(id);
        }
    }

    /// Notes that a page has changed its kind.
    pub(super) fn changed(&mut self, id: u32, kind: Kind) {
        if let Order::Kinds(kinds) = &mut self.order {
            kinds.changed(PageId(id), kind);
        }
    }

    /// Notes a reference to a page.
    pub(super) fn referenced(&mut self, id: u32, write: bool) {
        match &mut self.order {
            Order::Kinds(kinds) => kinds.referenced(PageId(id), write),
            Order::Plain(plain) => {
                plain.0.referenced(PageId(id), write);
                plain.drop_unmap_requests();
            }
        }
    }

    /// Returns the number of the page that leaves next. `accept` gets a number and its page, and accepts or refuses the
    /// page.
    pub(super) fn victim(&mut self, urgency: &Urgency<'_>, accept: &dyn Fn(u32, u32) -> bool) -> Option<u32> {
        let pages = &self.pages;
        let accept = |id: PageId| accept(id.0, pages[id.0 as usize]);
        let victim = match &mut self.order {
            Order::Kinds(kinds) => kinds.victim(urgency, &accept),
            Order::Plain(plain) => plain.0.victim(&accept),
        };
        victim.map(|page| page.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare_paging::kinds::First;

    fn memory(replacement: &str, frames: u32, history: u32) -> Memory {
        Memory::new(frames, history, &Replacement::parse(replacement).unwrap(), 1).unwrap()
    }

    fn evict(memory: &mut Memory) -> u32 {
        let urgency = Urgency { running: Some(0), of: &|owner| owner, first: First::Kind };
        let id = memory.victim(&urgency, &|_, _| true).unwrap();
        let page = memory.page(id);
        memory.remove(id, Leave::Evicted);
        page
    }

    #[test]
    fn a_page_that_comes_back_is_known_for_as_long_as_history_goes() {
        for replacement in ["lru", "kind", "kind+2q", "arc"] {
            let mut memory = memory(replacement, 2, 2);
            let first = memory.insert(100, 0, Kind::Private, false);
            memory.insert(101, 0, Kind::Private, false);
            assert!(memory.is_full());
            memory.remove(first, Leave::Evicted);
            assert_eq!(memory.insert(100, 0, Kind::Private, true), first, "{replacement}");
            // Ten other pages come and go. Only the last two that left are remembered, and there is always a free
            // number.
            for page in 200..210 {
                evict(&mut memory);
                let id = memory.insert(page, 0, Kind::LastShared, false);
                assert_eq!(memory.page(id), page);
                assert!(memory.remembered.len() <= 2 && memory.left.len() <= 10);
            }
            assert!(!memory.remembered.contains_key(&100));
        }
    }

    #[test]
    fn without_history_a_number_is_free_at_once() {
        let mut memory = memory("kind+arc", 3, 0);
        for page in 0..50 {
            if memory.is_full() {
                evict(&mut memory);
            }
            memory.insert(page, page % 3, Kind::SharedCopy, false);
            assert!(memory.remembered.is_empty());
        }
        assert_eq!(memory.free.len(), 1);
    }

    #[test]
    fn methods_are_named_as_they_are_read() {
        for name in ["lru", "kind", "kind+arc", "2q:in_percent=30", "kind+2q:in_percent=30"] {
            assert_eq!(Replacement::parse(name).unwrap().name(), name);
        }
        assert_eq!(Replacement::parse("kind+lru").unwrap().name(), "kind");
        for name in ["", "kind+", "kinds", "best", "kind+opt", "lru:x=1"] {
            let error = Replacement::parse(name).unwrap_err();
            assert!(error.contains("kind+POLICY"), "{error}");
        }
    }
}
