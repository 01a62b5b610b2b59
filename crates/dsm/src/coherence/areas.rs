//! The allocated pages of the region. They are the same on every rank, since every rank makes the same calls.

use super::units::Run;

/// An allocator of pages by first fit. `taken` holds the allocations in ascending order.
#[derive(Debug)]
pub(crate) struct Areas {
    pages: u32,
    taken: Vec<Run>,
}

impl Areas {
    pub(crate) fn new(pages: u32) -> Self {
        Self { pages, taken: Vec::new() }
    }

    /// Allocates `count` pages in the first gap that is large enough. Returns the first page, or `None` if no gap is
    /// large enough.
    pub(crate) fn take(&mut self, count: u32) -> Option<u32> {
        let mut first = 0;
        let mut at = self.taken.len();
        for (index, run) in self.taken.iter().enumerate() {
            if run.first - first >= count {
                at = index;
                break;
            }
            first = run.first + run.count;
        }
        if self.pages - first < count {
            return None;
        }
        self.taken.insert(at, Run { first, count });
        Some(first)
    }

    /// Returns the number of allocated pages.
    pub(crate) fn pages_taken(&self) -> u32 {
        self.taken.iter().map(|run| run.count).sum()
    }

    /// Returns the index of the allocation that begins at page `first`.
    pub(crate) fn find(&self, first: u32) -> Option<usize> {
        self.taken.binary_search_by_key(&first, |run| run.first).ok()
    }

    /// Returns the pages of the allocation that begins at page `first`.
    pub(crate) fn pages_of(&self, first: u32) -> Option<Run> {
        self.find(first).map(|index| self.taken[index])
    }

    /// Frees the allocation that begins at page `first`. Returns its pages, or `None` if there is no such allocation.
    pub(crate) fn give(&mut self, first: u32) -> Option<Run> {
        self.find(first).map(|index| self.taken.remove(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_found_again_and_never_given_twice() {
        let mut areas = Areas::new(10);
        assert_eq!([areas.take(4), areas.take(3), areas.take(4)], [Some(0), Some(4), None]);
        assert_eq!(areas.take(3), Some(7));
        assert_eq!(areas.give(4), Some(Run { first: 4, count: 3 }));
        assert_eq!(areas.give(4), None);
        assert_eq!([areas.take(2), areas.take(2), areas.take(1)], [Some(4), None, Some(6)]);
    }
}
