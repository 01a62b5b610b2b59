//! A policy that asks to unmap random pages.

use hanare_paging::{PageId, policy};

use super::random::Random;

/// Unmaps and replaces random pages.
pub(super) struct Hider {
    pub(super) pages: Vec<PageId>,
    pub(super) random: Random,
}

impl policy::Policy for Hider {
    fn inserted(&mut self, page: PageId, _cause: policy::Cause) {
        assert!(!self.pages.contains(&page), "{page:?} came into view twice");
        self.pages.push(page);
    }

    fn referenced(&mut self, page: PageId, _write: bool) {
        assert!(self.pages.contains(&page), "{page:?} was referenced out of view");
    }

    fn removed(&mut self, page: PageId, _why: policy::Leave) {
        let at = self.pages.iter().position(|&other| other == page).expect("a page leaves the view once");
        self.pages.swap_remove(at);
    }

    fn forgotten(&mut self, page: PageId) {
        assert!(!self.pages.contains(&page), "{page:?} is in view");
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let accepted: Vec<PageId> = self.pages.iter().copied().filter(|&page| accept(page)).collect();
        (!accepted.is_empty()).then(|| accepted[self.random.below(accepted.len() as u64) as usize])
    }

    fn next_to_hide(&mut self) -> Option<PageId> {
        let wishes = !self.pages.is_empty() && self.random.chance(300);
        wishes.then(|| self.pages[self.random.below(self.pages.len() as u64) as usize])
    }

    fn hides(&self) -> bool {
        true
    }
}
