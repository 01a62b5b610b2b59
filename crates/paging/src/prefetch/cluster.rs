//! Clustering: proposes the aligned block of k pages around the accessed page (paper 4).

use super::accuracy::{self, FILTER};
use super::{Info, Param, Prefetcher, Proposals, Touch};

pub(super) const INFO: Info = Info {
    name: "cluster",
    summary: "the aligned block of pages around the accessed one",
    source: "paper 4, clustering",
    params: &[
        Param { name: "pages", help: "pages of a block, rounded up to a power of two", default: 8, min: 2, max: 64 },
        FILTER,
    ],
    build: |_, values| accuracy::filtered(Box::new(Cluster::new(values.get("pages") as u32)), values),
};

/// This prefetcher has no state.
pub(super) struct Cluster {
    pages: u32,
}

impl Cluster {
    pub(super) fn new(pages: u32) -> Self {
        Self { pages: pages.next_power_of_two() }
    }
}

impl Prefetcher for Cluster {
    fn touched(&mut self, touch: Touch, _away: &dyn Fn(u32) -> bool, proposals: &mut Proposals) {
        let span = touch.span.max(1);
        let Some(block) = self.pages.checked_mul(span).filter(|_| !touch.staged) else {
            return;
        };
        let first = touch.unit - touch.unit % block;
        let (end, behind) = (first.saturating_add(block), touch.unit.saturating_add(span));
        // The units behind the page are proposed first, because they can be fetched together with the page in one
        // request.
        let count = end.saturating_sub(behind).min(touch.window_max);
        proposals.push(behind, count);
        let before = (touch.unit - first).min(touch.window_max - count);
        proposals.push(touch.unit - before, before);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::propose;
    use super::*;

    #[test]
    fn the_block_around_the_touched_page_is_proposed_without_it() {
        let mut eight = Cluster::new(8);
        assert_eq!(propose(&mut eight, 10, 1, 64), [(11, 5), (8, 2)]);
        assert_eq!(propose(&mut eight, 8, 1, 64), [(9, 7)]);
        assert_eq!(propose(&mut eight, 15, 1, 64), [(8, 7)]);
        assert_eq!(propose(&mut Cluster::new(2), 6, 2, 64), [(4, 2)]);
        assert_eq!(propose(&mut eight, 12, 1, 4), [(13, 3), (11, 1)], "never more than the window");
    }

    #[test]
    fn sizes_are_powers_of_two() {
        assert_eq!(propose(&mut Cluster::new(5), 0, 1, 64), [(1, 7)]);
    }
}
