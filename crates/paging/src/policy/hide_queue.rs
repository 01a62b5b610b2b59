//! The pages a policy wishes to have hidden, first wished first.

use crate::units::PageId;

const QUEUED: u32 = 1 << 31;
const WISHED: u32 = 1 << 30;
const LINK: u32 = WISHED - 1;

const _: () = assert!(crate::limits::UNITS_MAX < LINK);

/// A chain of pages, each in it once at most. A wish that was taken back stays in the chain, as nothing, until its turn
/// comes, or becomes a wish again where it stands.
///
/// State: a link a unit.
#[derive(Debug)]
pub(super) struct Wishes {
    /// Page number plus one of the next in the chain, and whether this page is in it and still wished for.
    chain: Vec<u32>,
    first: u32,
    last: u32,
}

impl Wishes {
    pub(super) fn new(units: u32) -> Self {
        Self { chain: vec![0; units as usize], first: 0, last: 0 }
    }

    pub(super) fn push(&mut self, page: PageId) {
        let word = &mut self.chain[page.0 as usize];
        let queued = *word & QUEUED != 0;
        *word |= QUEUED | WISHED;
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
        self.chain[page.0 as usize] &= !WISHED;
    }

    /// Takes the first wish off; what it passes over was pushed and cancelled before, so this is O(1), amortised.
    pub(super) fn pop(&mut self) -> Option<PageId> {
        while self.first != 0 {
            let page = PageId(self.first - 1);
            let word = core::mem::take(&mut self.chain[page.0 as usize]);
            self.first = word & LINK;
            if self.first == 0 {
                self.last = 0;
            }
            if word & WISHED != 0 {
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
    fn wishes_come_once_each_in_order_and_not_when_taken_back() {
        let mut wishes = Wishes::new(8);
        for page in [7, 0, 3, 0, 5] {
            wishes.push(PageId(page));
        }
        wishes.cancel(PageId(0));
        wishes.cancel(PageId(5));
        wishes.push(PageId(5));
        assert_eq!(wishes.pop(), Some(PageId(7)));
        wishes.push(PageId(7));
        let rest: Vec<_> = std::iter::from_fn(|| wishes.pop()).map(|page| page.0).collect();
        assert_eq!(rest, [3, 5, 7]);
        wishes.cancel(PageId(2));
        assert_eq!(wishes.pop(), None);
        wishes.push(PageId(2));
        assert_eq!(wishes.pop(), Some(PageId(2)));
        assert_eq!(wishes.pop(), None);
    }
}
