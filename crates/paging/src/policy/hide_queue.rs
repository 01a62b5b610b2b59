//! The queue of pages that a policy wants to be unmapped.

use crate::units::PageId;

const QUEUED: u32 = 1 << 31;
const REQUESTED: u32 = 1 << 30;
const LINK: u32 = REQUESTED - 1;

const _: () = assert!(crate::limits::UNITS_MAX < LINK);

/// A singly linked queue that contains each page at most once. A cancelled request stays in the queue without effect
/// until it reaches the front. If its page is requested again before that, the old entry becomes valid again.
///
/// Memory use: one link per unit.
#[derive(Debug)]
pub(super) struct HideQueue {
    /// For each page: the next page in the queue (its number plus one), and two flags. `QUEUED` says that the page is
    /// in the queue. `REQUESTED` says that its request is valid.
    chain: Vec<u32>,
    first: u32,
    last: u32,
}

impl HideQueue {
    pub(super) fn new(units: u32) -> Self {
        Self { chain: vec![0; units as usize], first: 0, last: 0 }
    }

    pub(super) fn push(&mut self, page: PageId) {
        let word = &mut self.chain[page.0 as usize];
        let queued = *word & QUEUED != 0;
        *word |= QUEUED | REQUESTED;
        if queued {
            return;
        }
        match self.last {
            0 => self.first = page.0 + 1,
            last => self.chain[last as usize - 1] |= page.0 + 1,
        }
        self.last = page.0 + 1;
    }

    pub(super) fn cancel(&mut self, page: PageId) {
        self.chain[page.0 as usize] &= !REQUESTED;
    }

    /// Removes and returns the first valid request. Skips cancelled requests. Each cancelled request was pushed once,
    /// so the amortised cost is O(1).
    pub(super) fn pop(&mut self) -> Option<PageId> {
        while self.first != 0 {
            let page = PageId(self.first - 1);
            let word = core::mem::take(&mut self.chain[page.0 as usize]);
            self.first = word & LINK;
            if self.first == 0 {
                self.last = 0;
            }
            if word & REQUESTED != 0 {
                return Some(page);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_once_each_in_order_and_not_when_taken_back() {
        let mut queue = HideQueue::new(8);
        for page in [7, 0, 3, 0, 5] {
            queue.push(PageId(page));
        }
        queue.cancel(PageId(0));
        queue.cancel(PageId(5));
        queue.push(PageId(5));
        assert_eq!(queue.pop(), Some(PageId(7)));
        queue.push(PageId(7));
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|page| page.0).collect();
        assert_eq!(rest, [3, 5, 7]);
        queue.cancel(PageId(2));
        assert_eq!(queue.pop(), None);
        queue.push(PageId(2));
        assert_eq!(queue.pop(), Some(PageId(2)));
        assert_eq!(queue.pop(), None);
    }
}
