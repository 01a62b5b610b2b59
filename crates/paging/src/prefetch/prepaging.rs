//! Prepaging: proposes the k-1 pages behind the accessed page (paper 4).

use super::accuracy::{self, FILTER};
use super::{Info, Param, Prefetcher, Proposals, Touch};

pub(super) const INFO: Info = Info {
    name: "prepaging",
    summary: "the accessed page and those directly behind it",
    source: "paper 4, prepaging",
    params: &[
        Param { name: "pages", help: "pages of one load, including the accessed one", default: 4, min: 1, max: 64 },
        FILTER,
    ],
    build: |_, values| accuracy::filtered(Box::new(Prepaging { pages: values.get("pages") as u32 }), values),
};

/// This prefetcher has no state.
struct Prepaging {
    pages: u32,
}

impl Prefetcher for Prepaging {
    fn touched(&mut self, touch: Touch, _away: &dyn Fn(u32) -> bool, proposals: &mut Proposals) {
        if touch.staged {
            return;
        }
        let span = touch.span.max(1);
        let count = (self.pages - 1).saturating_mul(span).min(touch.window_max);
        proposals.push(touch.unit.saturating_add(span), count);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::propose;
    use super::*;

    #[test]
    fn the_pages_behind_come_with_the_touched_one_within_the_window() {
        let mut four = Prepaging { pages: 4 };
        assert_eq!(propose(&mut four, 10, 1, 64), [(11, 3)]);
        assert_eq!(propose(&mut four, 16, 8, 64), [(24, 24)]);
        assert_eq!(propose(&mut four, 10, 1, 2), [(11, 2)]);
        assert_eq!(propose(&mut Prepaging { pages: 1 }, 10, 1, 64), []);
    }
}
