//! Types for ranks, sets of ranks, and runs of pages.

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

/// A set of ranks. Ranks beyond [`limits::RANKS_MAX`] are in no set.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RankSet([u64; SET_WORDS]);

impl RankSet {
    /// The empty set.
    pub const EMPTY: Self = Self([0; SET_WORDS]);

    /// Adds a rank. Returns whether it was missing.
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

    /// Whether the rank is in the set.
    #[must_use]
    pub fn contains(&self, rank: Rank) -> bool {
        self.0.get(usize::from(rank.0) / 64).is_some_and(|word| word >> (rank.0 % 64) & 1 == 1)
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; SET_WORDS]
    }

    /// Number of ranks in the set.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Adds all of another set.
    pub fn extend(&mut self, other: RankSet) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine |= theirs;
        }
    }

    /// Both sets' common members.
    #[must_use]
    pub fn common(mut self, other: RankSet) -> RankSet {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine &= theirs;
        }
        self
    }

    /// The members, in order.
    pub fn iter(self) -> impl Iterator<Item = Rank> {
        (0..limits::RANKS_MAX as u16).map(Rank).filter(move |&rank| {
            // The first test skips whole empty words, which the compiler keeps cheap.
            self.0[usize::from(rank.0) / 64] != 0 && self.contains(rank)
        })
    }

    /// The set's bits, 64 ranks per word.
    #[must_use]
    pub fn to_words(self) -> [u64; SET_WORDS] {
        self.0
    }

    /// The set with these bits.
    #[must_use]
    pub fn from_words(words: [u64; SET_WORDS]) -> Self {
        Self(words)
    }
}

/// Adjacent pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// First page.
    pub first: u32,
    /// Number of pages, at least 1.
    pub count: u32,
}

impl Run {
    /// The pages of the run. Empty when it ends beyond 32 bits, which only a run from a peer can do.
    pub fn pages(self) -> std::ops::Range<u32> {
        self.first..self.first.checked_add(self.count).unwrap_or(self.first)
    }
}

/// Joins pages into the fewest runs. Sorts them and removes duplicates.
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
}
