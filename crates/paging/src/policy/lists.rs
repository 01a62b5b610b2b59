//! Several doubly linked lists over page numbers that share one array of links. A page is in at most one list. Every
//! operation is O(1) and allocates nothing.

use crate::units::PageId;

const NEXT: usize = 0;
const PREVIOUS: usize = 1;

/// Circular lists. Each list also has one extra node, numbered after the pages. So a page can be removed without
/// knowing its list. If both links of a page are 0, the page is in no list. No page in a list has both links 0, because
/// page 0 cannot be both of its neighbours.
///
/// Memory use: two links per unit.
#[derive(Debug)]
pub(super) struct Lists {
    /// The next and the previous node of each node. Both links are in one cache line.
    links: Vec<[u32; 2]>,
    units: u32,
}

impl Lists {
    pub(super) fn new(units: u32, lists: u32) -> Self {
        let mut new = Self { links: vec![[0; 2]; (units + lists) as usize], units };
        for end in units..units + lists {
            new.join(end, end);
        }
        new
    }

    fn join(&mut self, node: u32, next: u32) {
        self.links[node as usize][NEXT] = next;
        self.links[next as usize][PREVIOUS] = node;
    }

    /// Returns the page of a node. If the node is a list's extra node, returns the list as the `Err`.
    fn at(&self, node: u32) -> Result<PageId, u32> {
        if node < self.units { Ok(PageId(node)) } else { Err(node - self.units) }
    }

    pub(super) fn front(&self, list: u32) -> Option<PageId> {
        self.at(self.links[(self.units + list) as usize][NEXT]).ok()
    }

    /// Returns the page after `page` in its list. If `page` is the last page, returns the list as the `Err`.
    pub(super) fn after(&self, page: PageId) -> Result<PageId, u32> {
        self.at(self.links[page.0 as usize][NEXT])
    }

    pub(super) fn push_back(&mut self, list: u32, page: PageId) {
        debug_assert!(!self.is_listed(page), "{page:?} is listed already");
        let end = self.units + list;
        self.join(self.links[end as usize][PREVIOUS], page.0);
        self.join(page.0, end);
    }

    pub(super) fn remove(&mut self, page: PageId) {
        debug_assert!(self.is_listed(page), "{page:?} is in no list");
        let [next, previous] = std::mem::take(&mut self.links[page.0 as usize]);
        self.join(previous, next);
    }

    pub(super) fn move_back(&mut self, list: u32, page: PageId) {
        self.remove(page);
        self.push_back(list, page);
    }

    /// Appends all pages of one list to another.
    pub(super) fn append(&mut self, list: u32, from: u32) {
        let (end, from_end) = (self.units + list, self.units + from);
        if self.front(from).is_none() || list == from {
            return;
        }
        let [first, last] = self.links[from_end as usize];
        self.join(self.links[end as usize][PREVIOUS], first);
        self.join(last, end);
        self.join(from_end, from_end);
    }

    fn is_listed(&self, page: PageId) -> bool {
        self.links[page.0 as usize] != [0; 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(lists: &Lists, list: u32) -> Vec<u32> {
        let mut pages = Vec::new();
        let mut at = lists.front(list).ok_or(list);
        while let Ok(page) = at {
            pages.push(page.0);
            at = lists.after(page);
        }
        assert_eq!(at, Err(list), "a list ends in its own end");
        pages
    }

    #[test]
    fn pages_move_between_lists_in_order() {
        let mut lists = Lists::new(8, 2);
        for page in 0..4 {
            lists.push_back(0, PageId(page));
        }
        for page in 4..6 {
            lists.push_back(1, PageId(page));
        }
        lists.move_back(1, PageId(0));
        lists.remove(PageId(2));
        assert_eq!((pages(&lists, 0), pages(&lists, 1)), (vec![1, 3], vec![4, 5, 0]));
        lists.append(0, 1);
        assert_eq!((pages(&lists, 0), pages(&lists, 1)), (vec![1, 3, 4, 5, 0], vec![]));
        lists.append(0, 1);
        lists.append(1, 0);
        lists.push_back(0, PageId(2));
        assert_eq!((pages(&lists, 0), pages(&lists, 1)), (vec![2], vec![1, 3, 4, 5, 0]));
    }

    #[test]
    fn one_page_of_one_unit_comes_and_goes() {
        let mut lists = Lists::new(1, 1);
        for _ in 0..2 {
            assert_eq!(pages(&lists, 0), []);
            lists.push_back(0, PageId(0));
            assert_eq!(pages(&lists, 0), [0]);
            lists.remove(PageId(0));
        }
    }
}
