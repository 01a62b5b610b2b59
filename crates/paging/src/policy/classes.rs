//! Pages in a few classes. A random page of each class can be drawn.

use crate::units::PageId;

/// A set of pages in `N` classes. One dense array has one segment for each class, and another array has the position of
/// each page. Adding a page, removing it or changing its class moves at most one page of each segment.
///
/// Memory use: one page number and one position per unit.
#[derive(Debug)]
pub(super) struct Classes<const N: usize> {
    pages: Vec<u32>,
    position: Vec<u32>,
    /// The index at which each class ends, exclusive. A class starts where the previous class ends.
    ends: [u32; N],
}

impl<const N: usize> Classes<N> {
    pub(super) fn new(units: u32) -> Self {
        Self { pages: vec![0; units as usize], position: vec![0; units as usize], ends: [0; N] }
    }

    fn start(&self, class: usize) -> u32 {
        if class == 0 { 0 } else { self.ends[class - 1] }
    }

    fn put(&mut self, position: u32, page: u32) {
        self.pages[position as usize] = page;
        self.position[page as usize] = position;
    }

    /// Moves the page at index `from` to index `hole`. Does nothing if both are equal, as happens if a class is empty.
    fn fill(&mut self, hole: u32, from: u32) {
        if hole != from {
            self.put(hole, self.pages[from as usize]);
        }
    }

    pub(super) fn len(&self, class: usize) -> u32 {
        self.ends[class] - self.start(class)
    }

    /// Returns the page at an index of a class. The index must be below [`Classes::len`].
    pub(super) fn get(&self, class: usize, index: u32) -> PageId {
        PageId(self.pages[(self.start(class) + index) as usize])
    }

    pub(super) fn last(&self, class: usize) -> Option<PageId> {
        let len = self.len(class);
        (len > 0).then(|| self.get(class, len - 1))
    }

    /// Returns the class of a page. The page must have a class.
    pub(super) fn class_of(&self, page: PageId) -> usize {
        let position = self.position[page.0 as usize];
        self.ends.iter().filter(|&&end| end <= position).count()
    }

    pub(super) fn insert(&mut self, page: PageId, class: usize) {
        for above in (class + 1..N).rev() {
            let (first, hole) = (self.ends[above - 1], self.ends[above]);
            self.fill(hole, first);
            self.ends[above] += 1;
        }
        self.put(self.ends[class], page.0);
        self.ends[class] += 1;
    }

    pub(super) fn remove(&mut self, page: PageId) {
        let mut hole = self.position[page.0 as usize];
        for class in self.class_of(page)..N {
            let last = self.ends[class] - 1;
            self.fill(hole, last);
            hole = last;
            self.ends[class] = last;
        }
    }

    pub(super) fn change(&mut self, page: PageId, class: usize) {
        let (from, mut hole) = (self.class_of(page), self.position[page.0 as usize]);
        for below in from..class {
            let last = self.ends[below] - 1;
            self.fill(hole, last);
            hole = last;
            self.ends[below] = last;
        }
        for above in (class + 1..=from).rev() {
            let first = self.ends[above - 1];
            self.fill(hole, first);
            hole = first;
            self.ends[above - 1] += 1;
        }
        self.put(hole, page.0);
    }

    /// Moves all pages of the classes `to + 2` and `to + 3` to the classes `to` and `to + 1`, which must be empty.
    pub(super) fn hand_down(&mut self, to: usize) {
        debug_assert!(self.len(to) == 0 && self.len(to + 1) == 0);
        self.ends[to] = self.ends[to + 2];
        self.ends[to + 1] = self.ends[to + 3];
        self.ends[to + 2] = self.ends[to + 3];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn all<const N: usize>(classes: &Classes<N>) -> BTreeMap<u32, usize> {
        let of = |class| (0..classes.len(class)).map(move |index| (classes.get(class, index).0, class));
        let pages: Vec<_> = (0..N).flat_map(of).collect();
        let map: BTreeMap<_, _> = pages.iter().copied().collect();
        assert_eq!(map.len(), pages.len(), "a page is in one class only");
        map
    }

    #[test]
    fn every_page_is_in_the_class_it_was_put_in() {
        let mut classes = Classes::<4>::new(40);
        let mut model = BTreeMap::new();
        let mut draw = super::super::random::Draw::new(7);
        for _ in 0..4000 {
            let (page, class) = (draw.below(40), draw.below(4) as usize);
            match (model.contains_key(&page), draw.below(3)) {
                (true, 0) => {
                    classes.remove(PageId(page));
                    model.remove(&page);
                    continue;
                }
                (true, _) => classes.change(PageId(page), class),
                (false, _) => classes.insert(PageId(page), class),
            }
            model.insert(page, class);
            assert_eq!(all(&classes), model);
            assert_eq!(classes.class_of(PageId(page)), class);
        }
    }

    #[test]
    fn two_classes_are_handed_down_as_they_are() {
        let mut classes = Classes::<6>::new(8);
        for (page, class) in [(0, 0), (1, 1), (2, 4), (3, 5), (4, 4)] {
            classes.insert(PageId(page), class);
        }
        classes.hand_down(2);
        assert_eq!(all(&classes), BTreeMap::from([(0, 0), (1, 1), (2, 2), (4, 2), (3, 3)]));
        classes.insert(PageId(5), 4);
        classes.remove(PageId(2));
        assert_eq!(all(&classes), BTreeMap::from([(0, 0), (1, 1), (4, 2), (3, 3), (5, 4)]));
    }
}
