//! LRU over visible references: evicts the page whose last visible reference is oldest.

use super::list::List;
use super::{Cause, Info, Leave, Policy};
use crate::units::PageId;

pub(super) const INFO: Info = Info {
    name: "lru",
    summary: "the page whose arrival or last seen reference is oldest",
    source: "classic; what is seen is what traps",
    params: &[],
    build: |space, _| Box::new(Lru::new(space.units)),
};

/// Memory use: two links per unit.
#[derive(Debug)]
pub(super) struct Lru {
    order: List,
}

impl Lru {
    pub(super) fn new(units: u32) -> Self {
        Self { order: List::new(units) }
    }
}

impl Policy for Lru {
    fn inserted(&mut self, page: PageId, _cause: Cause) {
        self.order.push_back(page);
    }

    fn referenced(&mut self, page: PageId, _write: bool) {
        self.order.remove(page);
        self.order.push_back(page);
    }

    fn removed(&mut self, page: PageId, _why: Leave) {
        self.order.remove(page);
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        self.order.first(accept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_moves_a_page_behind_all_others() {
        let mut lru = Lru::new(8);
        for page in [0, 1, 2] {
            lru.inserted(PageId(page), Cause::Read);
        }
        lru.referenced(PageId(0), false);
        assert_eq!(lru.victim(&|_| true), Some(PageId(1)));
        lru.removed(PageId(1), Leave::Evicted);
        assert_eq!(lru.victim(&|_| true), Some(PageId(2)));
        lru.removed(PageId(2), Leave::Evicted);
        assert_eq!(lru.victim(&|_| true), Some(PageId(0)));
    }
}
