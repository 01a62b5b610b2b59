//! Types for ranks, sets of ranks, runs of pages, and sets of pages.

use crate::limits;

/// A rank: one process of the program, numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rank(pub u16);

impl std::fmt::Display for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

const SET_WORDS: usize = limits::RANKS_MAX / 64;

/// A set of ranks. A rank of [`limits::RANKS_MAX`] or more is never a member.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RankSet([u64; SET_WORDS]);

impl RankSet {
    /// The empty set.
    pub const EMPTY: Self = Self([0; SET_WORDS]);

    /// Adds a rank. Returns true if the rank is new to the set.
    pub fn insert(&mut self, rank: Rank) -> bool {
        let new = !self.contains(rank);
        if let Some(word) = self.0.get_mut(usize::from(rank.0) / 64) {
            *word |= 1 << (rank.0 % 64);
        }
        new
    }

    /// Removes a rank.
    pub fn remove(&mut self, rank: Rank) {
        if let Some(word) = self.0.get_mut(usize::from(rank.0) / 64) {
            *word &= !(1 << (rank.0 % 64));
        }
    }

    /// Checks whether a rank is in the set.
    #[must_use]
    pub fn contains(&self, rank: Rank) -> bool {
        self.0.get(usize::from(rank.0) / 64).is_some_and(|word| word >> (rank.0 % 64) & 1 == 1)
    }

    /// Checks whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; SET_WORDS]
    }

    /// Returns the number of ranks in the set.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Adds all members of another set.
    pub fn extend(&mut self, other: RankSet) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine |= theirs;
        }
    }

    /// Returns the ranks that are in both sets.
    #[must_use]
    pub fn common(mut self, other: RankSet) -> RankSet {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine &= theirs;
        }
        self
    }

    /// Returns the members in ascending order.
    pub fn iter(self) -> impl Iterator<Item = Rank> {
        (0..limits::RANKS_MAX as u16).map(Rank).filter(move |&rank| {
            // The first test is cheap, and excludes all ranks of an empty word.
            self.0[usize::from(rank.0) / 64] != 0 && self.contains(rank)
        })
    }

    /// Returns the set as bits, 64 ranks per word. Rank 0 is the lowest bit of the first word.
    #[must_use]
    pub fn to_words(self) -> [u64; SET_WORDS] {
        self.0
    }

    /// Returns the set with these bits, 64 ranks per word.
    #[must_use]
    pub fn from_words(words: [u64; SET_WORDS]) -> Self {
        Self(words)
    }
}

/// A run of adjacent pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// First page.
    pub first: u32,
    /// Number of pages, at least 1.
    pub count: u32,
}

impl Run {
    /// Returns the pages of the run. The range is empty if the run's end exceeds 32 bits, which happens only if a peer
    /// has sent a wrong run.
    pub fn pages(self) -> std::ops::Range<u32> {
        self.first..self.first.checked_add(self.count).unwrap_or(self.first)
    }
}

/// A set of pages that counts its members.
#[derive(Default)]
pub(crate) struct PageSet {
    bits: Vec<u64>,
    count: usize,
}

impl PageSet {
    /// Adds a page. Returns true if the page is new to the set.
    pub(crate) fn insert(&mut self, page: u32) -> bool {
        let (at, bit) = (page as usize / 64, 1 << (page % 64));
        if at >= self.bits.len() {
            self.bits.resize(at + 1, 0);
        }
        let is_new = self.bits[at] & bit == 0;
        self.bits[at] |= bit;
        self.count += usize::from(is_new);
        is_new
    }

    /// Removes a page. Returns whether the page was in the set.
    pub(crate) fn remove(&mut self, page: u32) -> bool {
        let Some(bits) = self.bits.get_mut(page as usize / 64) else { return false };
        let was_there = *bits & 1 << (page % 64) != 0;
        *bits &= !(1 << (page % 64));
        self.count -= usize::from(was_there);
        was_there
    }

    pub(crate) fn contains(&self, page: u32) -> bool {
        self.bits.get(page as usize / 64).is_some_and(|bits| bits & 1 << (page % 64) != 0)
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }
}

/// Returns the fewest runs that contain the pages. Also sorts `pages` and removes duplicates from it.
pub(crate) fn runs_of(pages: &mut Vec<u32>) -> Vec<Run> {
    pages.sort_unstable();
    pages.dedup();
    let mut runs: Vec<Run> = Vec::new();
    for &page in pages.iter() {
        match runs.last_mut() {
            Some(run) if run.first + run.count == page => run.count += 1,
            _ => runs.push(Run { first: page, count: 1 }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_put_in() {
        let mut set = RankSet::EMPTY;
        for rank in [0, 63, 64, 255] {
            assert!(set.insert(Rank(rank)) && !set.insert(Rank(rank)));
        }
        set.insert(Rank(256));
        set.remove(Rank(63));
        assert_eq!(set.iter().collect::<Vec<_>>(), [Rank(0), Rank(64), Rank(255)]);
        assert_eq!((set.len(), set.is_empty(), set.contains(Rank(256))), (3, false, false));
        assert_eq!(RankSet::from_words(set.to_words()), set);
    }

    #[test]
    fn neighbours_join_to_runs() {
        let runs = runs_of(&mut vec![9, 3, 4, 4, 5, 11]);
        assert_eq!(runs, [Run { first: 3, count: 3 }, Run { first: 9, count: 1 }, Run { first: 11, count: 1 }]);
        assert_eq!(Run { first: u32::MAX, count: 2 }.pages().len(), 0);
    }

    #[test]
    fn a_set_counts_each_page_once() {
        let mut set = PageSet::default();
        assert_eq!(
            [set.insert(70), set.insert(70), set.insert(3), set.remove(70), set.remove(70)],
            [true, false, true, true, false]
        );
        assert_eq!((set.len(), set.contains(3), set.contains(70)), (1, true, false));
    }
}
