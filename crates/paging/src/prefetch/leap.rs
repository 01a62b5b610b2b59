//! Leap: the majority trend of the recent deltas, found by the Boyer-Moore vote. The vote starts with a small window
//! and doubles the window until it finds a majority. The number of pages fetched follows the number of pages used
//! (Maruf and Chowdhury, "Effectively Prefetching Remote Memory with Leap", USENIX ATC 2020, algorithms 1 and 2).

use super::accuracy::{self, FILTER};
use super::{Info, Param, Prefetcher, Proposals, Touch};

/// Number of deltas kept (the paper's H_size).
const HISTORY: usize = 32;
/// Number of deltas in the first window searched (the paper's H_size / N_split).
const FIRST_WINDOW: usize = 4;

pub(super) const INFO: Info = Info {
    name: "leap",
    summary: "the majority trend of the recent deltas",
    source: "Maruf, Chowdhury, USENIX ATC 2020",
    params: &[Param { name: "pages", help: "most pages of one prefetch", default: 8, min: 1, max: 32 }, FILTER],
    build: |_, values| accuracy::filtered(Box::new(Leap::new(values.get("pages") as u32)), values),
};

/// Memory use: 32 deltas.
pub(super) struct Leap {
    deltas: [i64; HISTORY],
    count: usize,
    last: Option<u32>,
    /// The latest trend, in units, or 0 before the first trend is found.
    trend: i64,
    /// Number of pages in the latest proposal.
    window: u32,
    hits: u32,
    window_max: u32,
}

impl Leap {
    pub(super) fn new(window_max: u32) -> Self {
        Self { deltas: [0; HISTORY], count: 0, last: None, trend: 0, window: 0, hits: 0, window_max }
    }

    /// Notes an access. Returns whether the access continues the trend. If prefetched pages are mapped without an
    /// access, the next access that is seen is behind them. This access counts as one step of the trend, and the
    /// skipped pages count as used.
    fn note(&mut self, unit: u32, staged: bool, proposals: &mut Proposals) -> bool {
        let Some(last) = self.last.replace(unit) else {
            return false;
        };
        let mut delta = i64::from(unit) - i64::from(last);
        let steps = if self.trend != 0 && delta % self.trend == 0 { delta / self.trend } else { 0 };
        let follows = steps > 0 && steps <= i64::from(self.window) + 1;
        if follows {
            proposals.confirm(steps as u32 - 1);
            self.hits += steps as u32 - 1;
            delta = self.trend;
        }
        self.hits += u32::from(staged);
        self.deltas[self.count % HISTORY] = delta;
        self.count += 1;
        follows
    }

    /// Returns the delta that more than half of the latest accesses have in common, if there is one (algorithm 1).
    fn find_trend(&self) -> Option<i64> {
        let known = self.count.min(HISTORY);
        let recent = |window: usize| (0..window).map(|back| self.deltas[(self.count - 1 - back) % HISTORY]);
        let mut window = FIRST_WINDOW;
        loop {
            let size = window.min(known);
            let (mut candidate, mut votes) = (0, 0);
            for delta in recent(size) {
                if votes == 0 {
                    candidate = delta;
                }
                votes += if delta == candidate { 1 } else { -1 };
            }
            if size > 0 && candidate != 0 && recent(size).filter(|&delta| delta == candidate).count() > size / 2 {
                return Some(candidate);
            }
            if window >= known {
                return None;
            }
            window *= 2;
        }
    }

    /// Returns the number of pages to fetch (algorithm 2).
    fn choose_window(&mut self, follows: bool) -> u32 {
        let mut window = match self.hits {
            0 => u32::from(follows),
            hits => (hits + 1).next_power_of_two().min(self.window_max),
        };
        // The window shrinks by at most half at a time, so a few accesses off the trend do not close it.
        window = window.max(self.window / 2);
        self.hits = 0;
        self.window = window;
        window
    }
}

impl Prefetcher for Leap {
    fn touched(&mut self, touch: Touch, _away: &dyn Fn(u32) -> bool, proposals: &mut Proposals) {
        let follows = self.note(touch.unit, touch.staged, proposals);
        if touch.staged {
            return;
        }
        // If there is no new trend, the latest trend stays valid.
        if let Some(trend) = self.find_trend() {
            self.trend = trend;
        }
        let span = touch.span.max(1);
        let window = self.choose_window(follows).min(touch.window_max / span);
        let mut unit = i64::from(touch.unit);
        for _ in 0..if self.trend == 0 { 0 } else { window } {
            unit += self.trend;
            match u32::try_from(unit) {
                Ok(unit) => proposals.push(unit, span),
                Err(_) => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::propose;
    use super::*;

    #[test]
    fn a_trend_is_found_among_stray_touches() {
        let mut leap = Leap::new(8);
        let mut last = Vec::new();
        for unit in [0, 3, 6, 900, 9, 12, 15, 18, 21] {
            last = propose(&mut leap, unit, 1, 64);
        }
        assert_eq!(leap.trend, 3);
        assert_eq!(last.first(), Some(&(24, 1)));
    }

    #[test]
    fn the_window_grows_with_what_is_used_and_shrinks_by_half() {
        let mut leap = Leap::new(8);
        let mut unit = 1000;
        let mut windows = Vec::new();
        for _ in 0..6 {
            let window = propose(&mut leap, unit, 1, 64).len() as u32;
            windows.push(window);
            unit -= window + 1;
        }
        assert_eq!(windows, [0, 0, 1, 2, 4, 8], "all of each window was passed");
        let after: Vec<_> = [9_000, 30_000, 77_000].map(|unit| propose(&mut leap, unit, 1, 64).len()).into();
        assert_eq!(after, [4, 2, 1], "off the trend");
    }

    #[test]
    fn no_trend_no_proposal() {
        let mut leap = Leap::new(8);
        for unit in [5, 900, 17, 40_000, 3, 8_888] {
            assert_eq!(propose(&mut leap, unit, 1, 64), []);
        }
    }
}
