//! The rules that determine the first home of each page of an allocation.

use super::units::Rank;

/// The rule that determines the first homes of an allocation's pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Each rank gets one block of adjacent pages. The pages are divided evenly; the first ranks get one page more if
    /// there is a remainder.
    Block,
    /// The ranks get blocks of this many pages in turn. With 1, they get single pages in turn.
    Cyclic(u32),
    /// This rank gets all pages.
    One(Rank),
    /// Each page goes to the rank that accesses it first.
    FirstTouch,
    /// Each block of `pages` pages goes to a rank from a list.
    Owners {
        /// Number of pages of a block.
        pages: u32,
        /// Whether an access to a page of a block also fetches the block's next pages.
        whole: bool,
        /// The homes of the blocks, in the order of the blocks. Further blocks have the last home of the list.
        owners: Vec<Rank>,
    },
}

impl Placement {
    /// Checks whether the placement is valid for a program of `ranks` ranks.
    #[must_use]
    pub fn is_valid(&self, ranks: u16) -> bool {
        match self {
            Placement::Block | Placement::FirstTouch => true,
            Placement::Cyclic(pages) => *pages > 0,
            Placement::One(rank) => rank.0 < ranks,
            Placement::Owners { pages, owners, .. } => {
                *pages > 0 && !owners.is_empty() && owners.iter().all(|rank| rank.0 < ranks)
            }
        }
    }

    /// Returns the home of the page with this index in an allocation of `count` pages. `None` if the first access
    /// determines the home.
    #[must_use]
    pub fn home(&self, index: u32, count: u32, ranks: u16) -> Option<Rank> {
        let n = u32::from(ranks);
        match self {
            Placement::Block => {
                let (each, more) = (count / n, count % n);
                // The first `more` ranks have `each + 1` pages, the others `each`.
                let edge = more * (each + 1);
                let rank = if index < edge { index / (each + 1) } else { more + (index - edge) / each.max(1) };
                Some(Rank(rank as u16))
            }
            Placement::Cyclic(pages) => Some(Rank((index / pages % n) as u16)),
            Placement::One(rank) => Some(*rank),
            Placement::FirstTouch => None,
            Placement::Owners { pages, owners, .. } => owners.get((index / pages) as usize).or(owners.last()).copied(),
        }
    }

    /// Returns the number of pages in a block that is read whole. It is 1 if blocks are not read whole.
    #[must_use]
    pub fn pages_together(&self) -> u32 {
        match self {
            Placement::Owners { pages, whole: true, .. } => *pages,
            _ => 1,
        }
    }

    /// Calls `take` with numbers that describe the placement. Ranks compare these numbers to check that their
    /// placements are equal.
    pub(crate) fn describe(&self, take: &mut impl FnMut(u64)) {
        match self {
            Placement::Block => take(1),
            Placement::Cyclic(pages) => {
                take(2);
                take(u64::from(*pages));
            }
            Placement::One(rank) => {
                take(3);
                take(u64::from(rank.0));
            }
            Placement::FirstTouch => take(4),
            Placement::Owners { pages, whole, owners } => {
                take(if *whole { 6 } else { 5 });
                take(u64::from(*pages));
                owners.iter().for_each(|rank| take(u64::from(rank.0)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn homes(placement: &Placement, count: u32, ranks: u16) -> Vec<u16> {
        (0..count).map(|index| placement.home(index, count, ranks).expect("a home").0).collect()
    }

    #[test]
    fn each_placement_gives_the_homes_it_says() {
        assert_eq!(homes(&Placement::Block, 7, 3), [0, 0, 0, 1, 1, 2, 2]);
        assert_eq!(homes(&Placement::Block, 2, 3), [0, 1]);
        assert_eq!(homes(&Placement::Cyclic(1), 5, 2), [0, 1, 0, 1, 0]);
        assert_eq!(homes(&Placement::Cyclic(2), 7, 3), [0, 0, 1, 1, 2, 2, 0]);
        assert_eq!(homes(&Placement::One(Rank(2)), 3, 3), [2, 2, 2]);
        let owners = Placement::Owners { pages: 2, whole: false, owners: vec![Rank(1), Rank(0)] };
        assert_eq!(homes(&owners, 6, 2), [1, 1, 0, 0, 0, 0]);
        assert_eq!(Placement::FirstTouch.home(0, 1, 2), None);
    }

    #[test]
    fn placements_that_name_nobody_are_not_valid() {
        assert!(!Placement::One(Rank(2)).is_valid(2) && !Placement::Cyclic(0).is_valid(2));
        assert!(!Placement::Owners { pages: 1, whole: false, owners: vec![] }.is_valid(2));
        assert!(!Placement::Owners { pages: 1, whole: false, owners: vec![Rank(5)] }.is_valid(2));
        assert!(Placement::Block.is_valid(1));
    }
}
