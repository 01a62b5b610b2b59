//! A doubly linked list over page numbers, its links kept beside the pages: every operation is O(1), none allocates.

use crate::limits;
use crate::units::PageId;

/// Links are page numbers plus one, so that zeroed memory is an empty list and untouched pages cost no memory.
#[derive(Debug)]
pub(super) struct List {
    next: Vec<u32>,
    previous: Vec<u32>,
    head: u32,
    tail: u32,
}

impl List {
    pub(super) fn new(units: u32) -> Self {
        Self { next: vec![0; units as usize], previous: vec![0; units as usize], head: 0, tail: 0 }
    }

    pub(super) fn push_back(&mut self, page: PageId) {
        let link = page.0 + 1;
        debug_assert!(self.head != link && self.previous[page.0 as usize] == 0, "{page:?} is listed already");
        self.previous[page.0 as usize] = self.tail;
        self.next[page.0 as usize] = 0;
        match self.tail {
            0 => self.head = link,
            tail => self.next[tail as usize - 1] = link,
        }
        self.tail = link;
    }

    pub(super) fn remove(&mut self, page: PageId) {
        let (previous, next) = (self.previous[page.0 as usize], self.next[page.0 as usize]);
        match previous {
            0 => self.head = next,
            link => self.next[link as usize - 1] = next,
        }
        match next {
            0 => self.tail = previous,
            link => self.previous[link as usize - 1] = previous,
        }
        self.previous[page.0 as usize] = 0;
        self.next[page.0 as usize] = 0;
    }

    /// The first page from the front that is accepted.
    pub(super) fn first(&self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let mut link = self.head;
        for _ in 0..limits::VICTIM_SCAN_MAX {
            if link == 0 {
                return None;
            }
            let page = PageId(link - 1);
            if accept(page) {
                return Some(page);
            }
            link = self.next[page.0 as usize];
        }
        None
    }
}
