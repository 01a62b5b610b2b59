//! FIFO: the page that arrived first is evicted first (paper 1, table of policies).

use super::list::List;
use super::{Cause, Info, Leave, Policy};
use crate::units::PageId;

pub(super) const INFO: Info = Info {
    name: "fifo",
    summary: "first in, first out",
    source: "paper 1",
    params: &[],
    build: |space, _| Box::new(Fifo::new(space.units)),
};

/// Memory use: two links per unit.
#[derive(Debug)]
pub(super) struct Fifo {
    order: List,
}

impl Fifo {
    pub(super) fn new(units: u32) -> Self {
        Self { order: List::new(units) }
    }
}

impl Policy for Fifo {
    fn inserted(&mut self, page: PageId, _cause: Cause) {
        self.order.push_back(page);
    }

    fn referenced(&mut self, _page: PageId, _write: bool) {}

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
    fn the_oldest_accepted_page_leaves_first_whatever_was_referenced() {
        let mut fifo = Fifo::new(8);
        for page in [3, 1, 2] {
            fifo.inserted(PageId(page), Cause::Read);
        }
        fifo.referenced(PageId(3), true);
        assert_eq!(fifo.victim(&|_| true), Some(PageId(3)));
        assert_eq!(fifo.victim(&|page| page.0 != 3), Some(PageId(1)));
        fifo.removed(PageId(3), Leave::Evicted);
        fifo.removed(PageId(1), Leave::Evicted);
        assert_eq!(fifo.victim(&|_| true), Some(PageId(2)));
        fifo.removed(PageId(2), Leave::Evicted);
        assert_eq!(fifo.victim(&|_| true), None);
    }
}
