//! The accuracy filter. It sits between a prefetcher and the pager, and fetches proposals only while most of them are
//! useful. So a useless prefetcher causes almost no transfers.
//!
//! The prefetcher is asked at every access. While too few of its proposals are right, or none has been judged yet, none
//! is fetched. The filter measures the share of right proposals in one of four ways:
//!
//! - *Closed*: nothing is fetched, so every access to an absent page is seen. All proposed units that only the server
//!   has become ghosts.
//! - *Open, first uses visible* (fetched pages wait in frames): these units become ghosts, too, because the first use
//!   of a fetched page is seen.
//! - *Open, first uses not visible* (fetched pages are mapped when they arrive): the use of a fetched page is not seen.
//!   So one proposal in [`PROBE_EVERY`] is not fetched, but kept as a probe. A probe is a ghost whose access is seen.
//!   It represents all proposals.
//! - *Open, and the prefetcher measures itself* (a stream knows where its next fault must be): the filter uses the
//!   prefetcher's own count.
//!
//! A ghost is a remembered proposal: right if its unit is accessed soon, otherwise wrong. Only proposals that would cost
//! a transfer count. The proposal of a unit that is in memory costs nothing.

use core::fmt::Write;

use super::ghosts::{Ghosts, Verdict};
use super::{Param, Prefetcher, Proposals, Touch, Values};
use crate::limits;

/// Share of right proposals, in parts of [`ONE`], at or above which the filter opens.
const OPENS: u32 = ONE / 100 * 60;
/// Share of right proposals, in parts of [`ONE`], below which the filter closes.
const CLOSES: u32 = ONE / 100 * 40;
/// A share of 100 %.
const ONE: u32 = 1 << 16;
/// While the filter is closed, one of this number of proposals becomes a probe. A probe is not fetched, but its
/// accesses are seen.
const PROBE_EVERY: u32 = 32;
/// Weight of a verdict. Each verdict moves the estimate by 1 / 2^`VERDICT_SHIFT` of its distance to 0 or to [`ONE`].
const VERDICT_SHIFT: u32 = 5;
/// Like [`VERDICT_SHIFT`], but for a probe. A probe represents many units, so it weighs more.
const PROBE_SHIFT: u32 = 3;
/// Like [`VERDICT_SHIFT`], but for one page of a self-accounting prefetcher. Such a prefetcher reports a whole window
/// of pages together, so one page weighs less.
const ACCOUNT_SHIFT: u32 = 7;

/// The parameter of every filtered prefetcher that turns the filter off.
pub(super) const FILTER: Param = Param {
    name: "gate",
    help: "accuracy filter. 1: fetch only while mostly right; 0: always",
    default: 1,
    min: 0,
    max: 1,
};

/// Puts the filter between a prefetcher and the pager, except if the prefetcher's parameters turn it off.
pub(super) fn filtered(inner: Box<dyn Prefetcher>, values: &Values) -> Box<dyn Prefetcher> {
    if values.get(FILTER.name) == 0 {
        return inner;
    }
    Box::new(Filtered { inner, judge: Judge::new(), offered: Proposals::default() })
}

/// Memory use: 24 KiB for the ghosts (the proposals that wait for a verdict).
struct Filtered {
    inner: Box<dyn Prefetcher>,
    judge: Judge,
    offered: Proposals,
}

impl Prefetcher for Filtered {
    fn touched(&mut self, touch: Touch, away: &dyn Fn(u32) -> bool, proposals: &mut Proposals) {
        let pushing = self.judge.is_open();
        self.judge.watch(touch, pushing, self.inner.accounts());
        self.offered.clear();
        self.inner.touched(touch, away, &mut self.offered);
        self.judge.pass(touch, &self.offered, away, proposals);
    }

    fn describe(&self, out: &mut dyn Write) -> core::fmt::Result {
        self.judge.describe(out)
    }
}

/// How proposals are judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// Nothing is fetched.
    Shadow,
    /// All proposals are fetched, and all become ghosts. The first use of a fetched page is seen.
    Told,
    /// All proposals are fetched except the probes, which become ghosts.
    Probing,
    /// All proposals are fetched, and the prefetcher reports its own results.
    Accounted,
}

/// Measures how many proposals of one prefetcher are right, and decides whether its proposals are fetched.
pub(super) struct Judge {
    ghosts: Ghosts,
    mode: Mode,
    open: bool,
    accuracy: u32,
    touches: u32,
    since_probe: u32,
    rights: u32,
}

impl Judge {
    pub(super) fn new() -> Self {
        Self {
            ghosts: Ghosts::new(),
            mode: Mode::Shadow,
            open: false,
            accuracy: 0,
            touches: 0,
            since_probe: 0,
            rights: 0,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Returns the number of units that were proposed and then accessed. Halves the number for the next call.
    pub(super) fn take_rights(&mut self) -> u32 {
        let rights = self.rights;
        self.rights /= 2;
        rights
    }

    /// Records an access before the prefetcher is asked. `pushing` says whether the prefetcher's proposals will be
    /// fetched.
    pub(super) fn watch(&mut self, touch: Touch, pushing: bool, accounts: bool) {
        let mode = match (pushing, accounts, touch.told) {
            (false, ..) => Mode::Shadow,
            (true, true, _) => Mode::Accounted,
            (true, false, true) => Mode::Told,
            (true, false, false) => Mode::Probing,
        };
        self.touches = self.touches.wrapping_add(1);
        if mode != self.mode {
            // The waiting ghosts were proposed in the old mode. The old and the new mode differ in whether proposals
            // are fetched, or in how they are measured. So verdicts on the old ghosts would mislead.
            self.ghosts.clear();
            self.mode = mode;
        }
        if let Some(probe) = self.ghosts.touch(touch.unit) {
            self.rights = self.rights.saturating_add(if probe { PROBE_EVERY } else { 1 });
        }
        while let Some(verdict) = self.ghosts.settle(self.touches) {
            self.learn(verdict);
        }
    }

    /// Passes those proposals on that the mode allows, and records ghosts to measure the proposals.
    pub(super) fn pass(&mut self, touch: Touch, offered: &Proposals, away: &dyn Fn(u32) -> bool, to: &mut Proposals) {
        if self.mode != Mode::Shadow {
            to.confirm(offered.confirmed());
            to.miss(offered.missed());
        }
        let mut pages_left = limits::PREFETCH_UNITS_MAX;
        for &(first, count) in offered.as_slice() {
            match self.mode {
                Mode::Accounted => to.push(first, count),
                Mode::Probing => self.probe(touch, (first, count), away, &mut pages_left, to),
                Mode::Shadow | Mode::Told => {
                    for unit in units(first, count, touch.span, &mut pages_left).filter(|&unit| away(unit)) {
                        self.remember(unit, false);
                    }
                    if self.mode == Mode::Told {
                        to.push(first, count);
                    }
                }
            }
        }
        if self.mode == Mode::Accounted {
            let span = touch.span.max(1);
            self.count(offered.confirmed() / span, true);
            self.count(offered.missed() / span, false);
        }
    }

    /// Passes a range of proposals on, except for the probes in the range.
    fn probe(
        &mut self,
        touch: Touch,
        (first, count): (u32, u32),
        away: &dyn Fn(u32) -> bool,
        pages_left: &mut u32,
        to: &mut Proposals,
    ) {
        let mut from = first;
        for unit in units(first, count, touch.span, pages_left) {
            if !away(unit) {
                continue;
            }
            if !self.ghosts.waits(unit) {
                self.since_probe += 1;
                if self.since_probe < PROBE_EVERY {
                    continue;
                }
                self.since_probe = 0;
                self.remember(unit, true);
            }
            // If a unit that is already a probe is proposed again, it stays a probe.
            to.push(from, unit - from);
            from = unit.saturating_add(touch.span.max(1));
        }
        to.push(from, first.saturating_add(count).saturating_sub(from));
    }

    fn remember(&mut self, unit: u32, probe: bool) {
        if let Some(verdict) = self.ghosts.add(unit, self.touches, probe) {
            self.learn(verdict);
        }
    }

    /// Counts pages that the prefetcher itself reports as right or wrong.
    fn count(&mut self, pages: u32, right: bool) {
        self.rights = self.rights.saturating_add(if right { pages } else { 0 });
        for _ in 0..pages.min(limits::PREFETCH_UNITS_MAX) {
            self.move_estimate(right, ACCOUNT_SHIFT);
        }
    }

    fn learn(&mut self, Verdict { right, probe }: Verdict) {
        self.move_estimate(right, if probe { PROBE_SHIFT } else { VERDICT_SHIFT });
    }

    fn move_estimate(&mut self, right: bool, shift: u32) {
        match right {
            true => self.accuracy += (ONE - self.accuracy) >> shift,
            false => self.accuracy -= self.accuracy >> shift,
        }
        self.open = if self.open { self.accuracy >= CLOSES } else { self.accuracy >= OPENS };
    }

    pub(super) fn describe(&self, out: &mut dyn Write) -> core::fmt::Result {
        let percent = (u64::from(self.accuracy) * 100 + u64::from(ONE) / 2) / u64::from(ONE);
        let state = if self.open { "open" } else { "closed" };
        write!(out, "{percent} % right, filter {state}")
    }
}

/// Returns the first unit of each page of a range, for at most `pages_left` pages. Subtracts the number of returned
/// units from `pages_left`.
fn units(first: u32, count: u32, span: u32, pages_left: &mut u32) -> impl Iterator<Item = u32> {
    let end = first.saturating_add(count);
    let pages = count.div_ceil(span.max(1)).min(*pages_left);
    *pages_left -= pages;
    (first..end).step_by(span.max(1) as usize).take(pages as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A prefetcher that proposes either the next unit or a unit far away.
    struct Next {
        right: bool,
    }

    impl Prefetcher for Next {
        fn touched(&mut self, touch: Touch, _away: &dyn Fn(u32) -> bool, proposals: &mut Proposals) {
            proposals.push(if self.right { touch.unit + 1 } else { touch.unit + 1_000_000 }, 1);
        }
    }

    fn touch(filter: &mut dyn Prefetcher, unit: u32, told: bool, away: bool) -> Vec<(u32, u32)> {
        let mut proposals = Proposals::default();
        filter.touched(Touch { unit, span: 1, window_max: 64, staged: false, told }, &|_| away, &mut proposals);
        proposals.as_slice().to_vec()
    }

    fn filter(right: bool) -> Filtered {
        Filtered { inner: Box::new(Next { right }), judge: Judge::new(), offered: Proposals::default() }
    }

    fn opens_after(filter: &mut Filtered, units: core::ops::Range<u32>, away: bool) -> Option<usize> {
        units.into_iter().position(|unit| !touch(filter, unit, true, away).is_empty())
    }

    #[test]
    fn it_opens_for_what_is_right_and_stays_shut_for_what_is_wrong() {
        let after = opens_after(&mut filter(true), 0..1000, true);
        assert!(after.is_some_and(|after| (20..40).contains(&after)), "{after:?}");
        assert_eq!(opens_after(&mut filter(false), 0..10_000, true), None);
    }

    #[test]
    fn what_is_in_memory_proves_nothing() {
        assert_eq!(opens_after(&mut filter(true), 0..10_000, false), None);
    }

    #[test]
    fn it_shuts_again_and_says_so() {
        for told in [true, false] {
            let mut filter = filter(true);
            for unit in 0..200 {
                touch(&mut filter, unit, told, true);
            }
            let mut text = String::new();
            filter.describe(&mut text).expect("a string takes all");
            assert!(text.ends_with("filter open"), "{text}");
            filter.inner = Box::new(Next { right: false });
            let pushed = (1000..11_000).filter(|&unit| !touch(&mut filter, unit, told, true).is_empty()).count();
            assert!(pushed < 600, "{pushed} useless transfers");
            text.clear();
            filter.describe(&mut text).expect("a string takes all");
            assert!(text.ends_with("filter closed"), "{text}");
        }
    }

    #[test]
    fn probes_are_held_back_where_first_uses_are_not_told_and_keep_the_filter_open() {
        let mut filter = filter(true);
        let mut unit = 0;
        let (mut pushed, mut held) = (0, 0);
        for _ in 0..10_000 {
            // The program then accesses the fetched page, but the filter does not see this access.
            match touch(&mut filter, unit, false, true)[..] {
                [] => (unit, held) = (unit + 1, held + 1),
                _ => (unit, pushed) = (unit + 2, pushed + 1),
            }
        }
        assert!(pushed > 9_500 && held > pushed / 40, "{pushed} fetched, {held} not");
    }

    #[test]
    fn a_range_is_passed_on_around_its_probe() {
        let mut judge = Judge::new();
        (judge.open, judge.mode) = (true, Mode::Probing);
        let mut offered = Proposals::default();
        offered.push(100, 64);
        let mut passed = Proposals::default();
        let touch = Touch { unit: 99, span: 1, window_max: 64, staged: false, told: false };
        judge.pass(touch, &offered, &|_| true, &mut passed);
        assert_eq!(passed.as_slice(), [(100, 31), (132, 31)]);
        assert!(judge.ghosts.waits(131) && judge.ghosts.waits(163));
    }
}
