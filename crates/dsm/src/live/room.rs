//! How much memory a rank's shared pages take, and which copies go first when it is too much.
//!
//! Shared copies are the cheapest victims, since their homes have the bytes: they are just dropped, the oldest first. One that
//! is written, on its way, or in a memory barrier is under coherence and never a victim.

use std::collections::VecDeque;

/// Copies that stay in any case, so that one instruction finds all the pages it needs: a quarter of what there is room for,
/// within these bounds.
const COPIES_MIN: [usize; 2] = [16, 64];

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

/// Copies in the order in which they came, for a rank that may keep so many pages.
pub(super) struct Room {
    pages_max: usize,
    copies_min: usize,
    order: VecDeque<u32>,
    /// The pages of `order`, each once.
    queued: PageSet,
}

impl Room {
    pub(super) fn new(pages_max: usize) -> Self {
        let copies_min = (pages_max / 4).clamp(COPIES_MIN[0], COPIES_MIN[1]);
        Self { pages_max, copies_min, order: VecDeque::new(), queued: PageSet::default() }
    }

    /// A copy came.
    pub(super) fn came(&mut self, page: u32) {
        if self.queued.insert(page) {
            self.order.push_back(page);
        }
    }

    /// The oldest copy, when `pages` are more than there is room for. It is forgotten; [`Self::came`] puts back what stays.
    pub(super) fn victim(&mut self, pages: usize) -> Option<u32> {
        if pages <= self.pages_max || self.order.len() <= self.copies_min {
            return None;
        }
        let page = self.order.pop_front()?;
        self.queued.remove(page);
        Some(page)
    }

    /// Copies, the oldest first, some of which may be gone.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.order.iter().copied()
    }

    /// How many copies are queued: no search for victims needs to look at more.
    pub(super) fn count(&self) -> usize {
        self.order.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_copies_go_first_and_the_last_ones_stay() {
        let mut room = Room::new(100);
        (0..200).chain(0..3).for_each(|page| room.came(page));
        assert_eq!((room.count(), room.victim(100)), (200, None));
        let victims: Vec<u32> = std::iter::from_fn(|| room.victim(101)).collect();
        assert_eq!(victims, (0..175).collect::<Vec<_>>());
        room.came(5);
        assert_eq!((room.victim(101), room.count()), (Some(175), 25));
    }

    #[test]
    fn a_set_counts_each_page_once() {
        let mut set = PageSet::default();
        assert_eq!(
            [set.insert(70), set.insert(70), set.insert(3), set.remove(70), set.remove(70)],
            [true, false, true, true, false]
        );
        assert_eq!(set.len(), 1);
    }
}
