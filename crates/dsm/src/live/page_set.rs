//! A set of pages that knows how many they are.

/// A set of pages, and how many they are.
#[derive(Default)]
pub(super) struct PageSet {
    bits: Vec<u64>,
    count: usize,
}

impl PageSet {
    /// Adds a page; says whether it is new.
    pub(super) fn insert(&mut self, page: u32) -> bool {
        let (at, bit) = (page as usize / 64, 1 << (page % 64));
        if at >= self.bits.len() {
            self.bits.resize(at + 1, 0);
        }
        let is_new = self.bits[at] & bit == 0;
        self.bits[at] |= bit;
        self.count += usize::from(is_new);
        is_new
    }

    /// Takes a page out; says whether it was there.
    pub(super) fn remove(&mut self, page: u32) -> bool {
        let Some(bits) = self.bits.get_mut(page as usize / 64) else { return false };
        let was_there = *bits & 1 << (page % 64) != 0;
        *bits &= !(1 << (page % 64));
        self.count -= usize::from(was_there);
        was_there
    }

    pub(super) fn contains(&self, page: u32) -> bool {
        self.bits.get(page as usize / 64).is_some_and(|bits| bits & 1 << (page % 64) != 0)
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
