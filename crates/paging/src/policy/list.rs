//! Doubly linked lists over page numbers. The links of a page are at its index in an array. Every operation is O(1) and
//! allocates nothing.

use crate::limits;
use crate::units::PageId;

const LINK_BITS: u32 = 28;
const LINK: u32 = (1 << LINK_BITS) - 1;

// A link is a page number plus one, in the low bits of a word. The high bits of the word hold the page's list and a
// mark.
const _: () = assert!(limits::UNITS_MAX <= LINK);

const NEXT: usize = 0;
const PREVIOUS: usize = 1;

/// The links of pages. Each page is in at most one list. A link is a page number plus one, so zeroed memory means empty
/// lists. The links of pages that were never used need no physical memory. Both links of a page are in one cache line.
#[derive(Debug)]
pub(super) struct Links {
    words: Vec<[u32; 2]>,
}

/// The first and the last page of a list. The links between the pages are in [`Links`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ends {
    front: u32,
    back: u32,
    len: u32,
}

impl Ends {
    pub(super) fn is_empty(self) -> bool {
        self.front == 0
    }

    pub(super) fn front(self) -> Option<PageId> {
        self.front.checked_sub(1).map(PageId)
    }
}

impl Links {
    pub(super) fn new(units: u32) -> Self {
        Self { words: vec![[0; 2]; units as usize] }
    }

    fn link(&self, page: PageId, way: usize) -> u32 {
        self.words[page.0 as usize][way] & LINK
    }

    fn set_link(&mut self, page: PageId, way: usize, link: u32) {
        let word = &mut self.words[page.0 as usize][way];
        *word = *word & !LINK | link;
    }

    fn high(&self, page: PageId, way: usize) -> u32 {
        self.words[page.0 as usize][way] >> LINK_BITS
    }

    fn set_high(&mut self, page: PageId, way: usize, value: u32) {
        let word = &mut self.words[page.0 as usize][way];
        *word = *word & LINK | value << LINK_BITS;
    }

    pub(super) fn push_back(&mut self, ends: &mut Ends, page: PageId) {
        let link = page.0 + 1;
        debug_assert!(ends.front != link && self.link(page, PREVIOUS) == 0, "{page:?} is listed already");
        self.set_link(page, PREVIOUS, ends.back);
        self.set_link(page, NEXT, 0);
        match ends.back {
            0 => ends.front = link,
            back => self.set_link(PageId(back - 1), NEXT, link),
        }
        ends.back = link;
        ends.len += 1;
    }

    pub(super) fn remove(&mut self, ends: &mut Ends, page: PageId) {
        let (previous, next) = (self.link(page, PREVIOUS), self.link(page, NEXT));
        debug_assert!(previous != 0 || ends.front == page.0 + 1, "{page:?} is not in this list");
        match previous {
            0 => ends.front = next,
            link => self.set_link(PageId(link - 1), NEXT, next),
        }
        match next {
            0 => ends.back = previous,
            link => self.set_link(PageId(link - 1), PREVIOUS, previous),
        }
        self.set_link(page, PREVIOUS, 0);
        self.set_link(page, NEXT, 0);
        ends.len -= 1;
    }

    /// Returns the page that follows this page in its list.
    pub(super) fn next(&self, page: PageId) -> Option<PageId> {
        self.link(page, NEXT).checked_sub(1).map(PageId)
    }

    /// Searches from the front for the first page that `accept` accepts. Examines at most `left` pages, and subtracts
    /// the number of examined pages from `left`.
    pub(super) fn first(&self, ends: Ends, accept: &dyn Fn(PageId) -> bool, left: &mut usize) -> Option<PageId> {
        let mut at = ends.front();
        while let Some(page) = at {
            if *left == 0 {
                return None;
            }
            *left -= 1;
            if accept(page) {
                return Some(page);
            }
            at = self.next(page);
        }
        None
    }
}

/// One list over all pages.
#[derive(Debug)]
pub(super) struct List {
    links: Links,
    ends: Ends,
}

impl List {
    pub(super) fn new(units: u32) -> Self {
        Self { links: Links::new(units), ends: Ends::default() }
    }

    pub(super) fn push_back(&mut self, page: PageId) {
        self.links.push_back(&mut self.ends, page);
    }

    pub(super) fn remove(&mut self, page: PageId) {
        self.links.remove(&mut self.ends, page);
    }

    /// Returns the first page from the front that `accept` accepts.
    pub(super) fn first(&self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        self.links.first(self.ends, accept, &mut { limits::VICTIM_SCAN_MAX })
    }
}

/// Several lists that share one array of links. A page is in at most one list, and its list can be looked up. Each page
/// in a list has a mark of four bits, which is 0 when the page enters.
#[derive(Debug)]
pub(super) struct Lists<const N: usize> {
    links: Links,
    ends: [Ends; N],
}

impl<const N: usize> Lists<N> {
    const FIT: () = assert!(N < 16, "a page's list is kept in four bits");

    pub(super) fn new(units: u32) -> Self {
        let () = Self::FIT;
        Self { links: Links::new(units), ends: [Ends::default(); N] }
    }

    /// Returns the list that contains a page.
    pub(super) fn of(&self, page: PageId) -> Option<usize> {
        self.links.high(page, NEXT).checked_sub(1).map(|list| list as usize)
    }

    /// Whether a list contains the page with this number. There may be no such page.
    pub(super) fn has(&self, list: usize, page: PageId) -> bool {
        (page.0 as usize) < self.links.words.len() && self.of(page) == Some(list)
    }

    pub(super) fn len(&self, list: usize) -> u32 {
        self.ends[list].len
    }

    pub(super) fn front(&self, list: usize) -> Option<PageId> {
        self.ends[list].front()
    }

    pub(super) fn next(&self, page: PageId) -> Option<PageId> {
        self.links.next(page)
    }

    /// Puts a page that is in no list at the back of a list.
    pub(super) fn push_back(&mut self, list: usize, page: PageId) {
        debug_assert!(self.of(page).is_none(), "{page:?} is listed already");
        self.links.push_back(&mut self.ends[list], page);
        self.links.set_high(page, NEXT, list as u32 + 1);
        self.links.set_high(page, PREVIOUS, 0);
    }

    /// Removes a page from its list and returns that list.
    pub(super) fn remove(&mut self, page: PageId) -> Option<usize> {
        let list = self.of(page)?;
        self.links.remove(&mut self.ends[list], page);
        self.links.set_high(page, NEXT, 0);
        Some(list)
    }

    /// Moves a page to the back of a list. The page may be in any list, or in none.
    pub(super) fn move_back(&mut self, list: usize, page: PageId) {
        self.remove(page);
        self.push_back(list, page);
    }

    pub(super) fn pop_front(&mut self, list: usize) -> Option<PageId> {
        let page = self.front(list)?;
        self.remove(page);
        Some(page)
    }

    pub(super) fn mark(&self, page: PageId) -> u32 {
        self.links.high(page, PREVIOUS)
    }

    pub(super) fn set_mark(&mut self, page: PageId, mark: u32) {
        self.links.set_high(page, PREVIOUS, mark & 15);
    }

    /// Searches these lists in this order, and returns the first accepted page. Each list gets an equal part of the
    /// search limit. So a list full of refused pages does not prevent the search of the next list.
    pub(super) fn first_of(&self, lists: &[usize], accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let share = limits::VICTIM_SCAN_MAX / lists.len().max(1);
        lists.iter().find_map(|&list| self.first_within(list, accept, share))
    }

    /// Returns the first accepted page among the first `most` pages of a list.
    pub(super) fn first_within(&self, list: usize, accept: &dyn Fn(PageId) -> bool, most: usize) -> Option<PageId> {
        self.links.first(self.ends[list], accept, &mut { most })
    }
}

/// A policy's own estimate of its capacity: the number of resident pages when a victim is requested. Victims are
/// requested in batches, during which this number shrinks. So only the first request after an arrival shows how many
/// pages the full budget holds. A policy that distinguishes page sizes counts units instead of pages.
#[derive(Debug, Default)]
pub(super) struct Capacity {
    in_view: u32,
    full: u32,
    grown: bool,
}

impl Capacity {
    pub(super) fn came(&mut self, count: u32) {
        self.in_view += count;
        self.grown = true;
    }

    pub(super) fn left(&mut self, count: u32) {
        self.in_view = self.in_view.saturating_sub(count);
    }

    /// Notes that the pager requests a victim.
    pub(super) fn asked(&mut self) {
        if self.grown {
            self.full = self.in_view;
            self.grown = false;
        }
    }

    /// Returns the capacity, or 0 before the first request for a victim.
    pub(super) fn full(&self) -> u32 {
        self.full
    }

    /// Returns `percent` percent of the capacity, rounded down.
    pub(super) fn percent(&self, percent: u64) -> u32 {
        (u64::from(self.full) * percent / 100).min(u64::from(u32::MAX)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_move_between_lists_that_share_links_and_lose_their_marks() {
        let mut lists = Lists::<2>::new(8);
        for page in [5, 0, 7] {
            lists.push_back(0, PageId(page));
        }
        lists.set_mark(PageId(0), 9);
        assert_eq!((lists.mark(PageId(0)), lists.mark(PageId(5))), (9, 0));
        lists.move_back(1, PageId(0));
        assert_eq!((lists.of(PageId(0)), lists.mark(PageId(0))), (Some(1), 0));
        assert_eq!((lists.len(0), lists.len(1)), (2, 1));
        assert_eq!(lists.next(PageId(5)), Some(PageId(7)));
        assert_eq!(lists.first_of(&[0, 1], &|page| page.0 < 5), Some(PageId(0)));
        assert_eq!(
            [lists.pop_front(0), lists.pop_front(0), lists.pop_front(0)],
            [Some(PageId(5)), Some(PageId(7)), None]
        );
        assert_eq!((lists.of(PageId(7)), lists.remove(PageId(7)), lists.len(0)), (None, None, 0));
    }

    #[test]
    fn the_capacity_is_what_was_in_view_at_the_first_question_since_a_page_came() {
        let mut capacity = Capacity::default();
        (0..10).for_each(|_| capacity.came(1));
        assert_eq!(capacity.full(), 0);
        for _ in 0..3 {
            capacity.asked();
            capacity.left(1);
        }
        assert_eq!((capacity.full(), capacity.percent(25)), (10, 2));
        capacity.came(512);
        capacity.asked();
        assert_eq!(capacity.full(), 7 + 512);
    }
}
