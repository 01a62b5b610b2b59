//! Rank 0's record of locks: the holder of each lock, the waiting ranks, and the pages written before each release.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::units::{Rank, RankSet};

/// The latest write notices of a page.
#[derive(Clone, Copy, Debug)]
struct Notice {
    at: u64,
    writer: Rank,
    /// Position in the log of the latest notice by another rank than `writer`. 0 if there is no such notice.
    other_at: u64,
}

/// The log of write notices since the last memory barrier. It keeps the latest notice of each page.
#[derive(Debug)]
struct Log {
    now: u64,
    pages: HashMap<u32, Notice>,
    order: BTreeMap<u64, u32>,
    /// For each rank, the position in the log up to which the rank has received the notices.
    seen: Vec<u64>,
}

impl Log {
    fn add(&mut self, writer: Rank, page: u32) {
        self.now += 1;
        let other_at = match self.pages.get(&page) {
            Some(last) if last.writer == writer => last.other_at,
            Some(last) => last.at,
            None => 0,
        };
        let last = self.pages.insert(page, Notice { at: self.now, writer, other_at });
        if let Some(last) = last {
            self.order.remove(&last.at);
        }
        self.order.insert(self.now, page);
    }

    /// Returns the pages of all notices by other ranks that `rank` has not received yet. The notices count as received
    /// from now on.
    fn news(&mut self, rank: Rank) -> Vec<u32> {
        let Some(seen) = self.seen.get_mut(usize::from(rank.0)) else { return Vec::new() };
        let from = std::mem::replace(seen, self.now);
        let others = |page: &&u32| match self.pages.get(page) {
            Some(last) if last.writer == rank => last.other_at > from,
            last => last.is_some(),
        };
        self.order.range(from + 1..).map(|(_, page)| page).filter(others).copied().collect()
    }
}

#[derive(Debug)]
struct Lock {
    holder: Rank,
    waiting: VecDeque<Rank>,
}

/// The held locks, and the log of write notices.
#[derive(Debug)]
pub(super) struct LockKeeper {
    locks: HashMap<u32, Lock>,
    /// The ranks that wait for a lock. Each rank waits for at most one lock.
    waiting: RankSet,
    log: Log,
}

impl LockKeeper {
    pub(super) fn new(ranks: u16) -> Self {
        let log = Log { now: 0, pages: HashMap::new(), order: BTreeMap::new(), seen: vec![0; usize::from(ranks)] };
        Self { locks: HashMap::new(), waiting: RankSet::EMPTY, log }
    }

    /// Processes a request for a lock. Returns true if the lock was free, so that `rank` holds it now. Returns false if
    /// `rank` must wait. Returns `None` if `rank` already holds this lock or waits for a lock.
    pub(super) fn want(&mut self, rank: Rank, lock: u32) -> Option<bool> {
        if self.waiting.contains(rank) {
            return None;
        }
        match self.locks.get_mut(&lock) {
            Some(held) if held.holder == rank => None,
            Some(held) => {
                held.waiting.push_back(rank);
                self.waiting.insert(rank);
                Some(false)
            }
            None => {
                self.locks.insert(lock, Lock { holder: rank, waiting: VecDeque::new() });
                Some(true)
            }
        }
    }

    /// Processes the release of a lock. Returns the lock's next holder, if a rank waits for the lock. The outer `None`
    /// means that `rank` did not hold the lock.
    pub(super) fn give(&mut self, rank: Rank, lock: u32) -> Option<Option<Rank>> {
        let held = self.locks.get_mut(&lock).filter(|held| held.holder == rank)?;
        let next = held.waiting.pop_front();
        match next {
            Some(next) => {
                held.holder = next;
                self.waiting.remove(next);
            }
            None => {
                self.locks.remove(&lock);
            }
        }
        Some(next)
    }

    pub(super) fn wrote(&mut self, rank: Rank, page: u32) {
        self.log.add(rank, page);
    }

    pub(super) fn news(&mut self, rank: Rank) -> Vec<u32> {
        self.log.news(rank)
    }

    pub(super) fn forget_notices(&mut self) {
        self.log.pages.clear();
        self.log.order.clear();
        self.log.seen.fill(self.log.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Rank = Rank(0);
    const B: Rank = Rank(1);
    const C: Rank = Rank(2);

    #[test]
    fn locks_are_granted_in_the_order_asked() {
        let mut keeper = LockKeeper::new(3);
        assert_eq!([keeper.want(A, 7), keeper.want(B, 7), keeper.want(C, 7)], [Some(true), Some(false), Some(false)]);
        assert_eq!((keeper.want(A, 7), keeper.want(B, 8)), (None, None), "held, and waiting");
        assert_eq!(keeper.give(B, 7), None, "not its lock");
        assert_eq!(
            [keeper.give(A, 7), keeper.give(B, 7), keeper.give(C, 7)],
            [Some(Some(B)), Some(Some(C)), Some(None)]
        );
    }

    #[test]
    fn a_rank_is_told_once_of_what_others_wrote() {
        let mut keeper = LockKeeper::new(3);
        keeper.wrote(A, 1);
        keeper.wrote(B, 2);
        assert_eq!((keeper.news(C), keeper.news(C)), (vec![1, 2], vec![]));
        assert_eq!(keeper.news(A), [2]);
        // B's own later notice must not remove A's from the log.
        keeper.wrote(B, 1);
        assert_eq!((keeper.news(B), keeper.news(A)), (vec![1], vec![1]));
        keeper.wrote(A, 5);
        keeper.forget_notices();
        assert!(keeper.news(C).is_empty() && keeper.news(B).is_empty());
    }
}
