//! Rows: follows walks whose steps are not a whole number of pages, such as down the rows of a matrix. With rows of
//! 16,000 bytes, the steps between the accessed pages are 4, 4, 4, 3, 4, ... pages. The method extends stride detection
//! (Palacharla and Kessler, ISCA 1994) by strides with a fraction.
//!
//! Each walk is a line: a page number for each step, `position + step * stride`, where the page is the whole part. Each
//! access narrows the position. The stride is the mean of all steps. If a step also needs the page behind its page, the walk
//! learns how near to the end of a page that happens. The next walk down the same matrix takes over what a long walk has
//! learned.

use super::accuracy::{self, FILTER};
use super::{Info, Prefetcher, Proposals, Touch};
use crate::limits;

const WALKS: usize = 32;
/// Number of latest accesses that are remembered to find walks.
const HISTORY: usize = 32;
/// Accesses are counted by groups of this number of units, and groups by this number of buckets.
const GROUP: i64 = 4;
const BUCKETS: usize = 256;
/// Number of latest accesses that are tried as the step before an access.
const TRIED: usize = 8;
/// Bounds of a new walk's stride, in units. With shorter strides, an access would be near to two steps.
const STRIDE_MIN: i64 = 3;
const STRIDE_MAX: i64 = 1 << 16;
/// Number of steps beyond the requested pages that a walk may skip. The pages may already have been in memory.
const SLACK: i64 = 4;
/// Most steps requested ahead.
const WINDOW_MAX: i64 = 16;
/// Number of steps from which on a walk's stride is exact enough to serve another walk.
const EXACT: i64 = 16;
/// Positions and strides are numbers with this many binary places.
const PLACES: u32 = 16;
const ONE: i64 = 1 << PLACES;
/// At each step, a walk's edge moves by 1 / 2^`EDGE_SHIFT` of its distance to the end of the page. So a wrong edge is
/// forgotten.
const EDGE_SHIFT: u32 = 6;
/// Distance by which a position moves up if a step needs an unexpected page.
const NUDGE: i64 = ONE / 16;

const _: () = assert!(WINDOW_MAX as usize <= limits::PROPOSALS_MAX);

pub(super) const INFO: Info = Info {
    name: "rows",
    summary: "strides that are not a whole number of pages, as down the rows of a matrix",
    source: "Hanare, after Palacharla, Kessler, ISCA 1994",
    params: &[FILTER],
    build: |_, values| accuracy::filtered(Box::new(Rows::new()), values),
};

/// The steps of a walk, as far as it has learned them.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// The mean of the steps.
    stride: i64,
    /// Number of steps that it is the mean of.
    exact: i64,
    /// A step that begins at this fraction of a page, or behind it, also needs the next page.
    edge: i64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    start: i64,
    last: i64,
    /// Number of steps from `start` to `last`. It is 0 if the entry holds no walk.
    steps: i64,
    /// The place at the last step. Its whole part is `last`.
    position: i64,
    pace: Pace,
    /// Number of steps after the last one that were requested.
    asked: i64,
    window: i64,
    used: u32,
}

impl Walk {
    /// Makes a walk of three steps from `start` to `last`.
    fn new(start: i64, last: i64, pace: Pace) -> Self {
        Self { start, last, steps: 3, position: last * ONE + ONE / 2, pace, asked: 0, window: 2, used: 0 }
    }

    /// Returns the number of steps to a unit. It is 0 for the page behind the last one. Returns `None` if an access to the
    /// unit does not continue the walk.
    fn reaches(&self, unit: i64) -> Option<i64> {
        if self.steps == 0 {
            return None;
        }
        if unit == self.last + 1 {
            return Some(0);
        }
        let (distance, stride) = (unit * ONE + ONE / 2 - self.position, self.pace.stride);
        // Most accesses are far away, and need no division.
        if distance.abs() > (self.asked + SLACK + 1) * stride.abs() {
            return None;
        }
        let steps = (distance + stride.signum() * stride.abs() / 2) / stride;
        let is_near = (distance - steps * stride).abs() <= ONE;
        (is_near && (1..=self.asked + SLACK).contains(&steps)).then_some(steps)
    }

    /// Advances the walk to an access `steps` ahead, and requests more pages.
    fn advance(&mut self, unit: i64, steps: i64, window_max: i64, proposals: &mut Proposals) {
        let expected = self.position + steps * self.pace.stride;
        let is_behind = steps <= self.asked && unit == (expected >> PLACES) + 1;
        let unit = unit - i64::from(is_behind);
        self.last = unit;
        self.steps += steps;
        if self.steps > self.pace.exact {
            self.pace.stride = (self.last - self.start) * ONE / self.steps;
            self.pace.exact = self.steps;
        }
        if self.pace.stride.abs() <= (STRIDE_MIN - 1) * ONE {
            // Other accesses have led the walk astray, such as a sequence of neighbours. It ends.
            *self = Self::default();
            return;
        }
        self.pace.edge += (ONE - self.pace.edge) >> EDGE_SHIFT;
        let (part, mut position) = (expected & (ONE - 1), expected);
        if is_behind && part < self.pace.edge {
            // The step needs two pages, or the position is too low.
            self.pace.edge = part;
            position += NUDGE;
        }
        self.position = position.clamp(unit * ONE, unit * ONE + ONE - 1);
        if steps > self.asked {
            self.window = (self.window * 2).min(WINDOW_MAX);
        }
        self.asked = (self.asked - steps).max(0);
        self.ask(window_max, proposals);
    }

    /// Requests pages until the window is full. An inexact stride reaches less far.
    fn ask(&mut self, window_max: i64, proposals: &mut Proposals) {
        let end = self.window.min(window_max / 2).min(self.pace.exact);
        for step in self.asked + 1..=end {
            let position = self.position + step * self.pace.stride;
            if let Ok(unit) = u32::try_from(position >> PLACES) {
                proposals.push(unit, 1 + u32::from(position & (ONE - 1) >= self.pace.edge));
            }
        }
        self.asked = self.asked.max(end);
    }
}

/// Memory use: 32 walks and the last 32 accesses.
pub(super) struct Rows {
    walks: [Walk; WALKS],
    history: [u32; HISTORY],
    noted: usize,
    /// For each bucket, the number of accesses of the history in it. Most lookups find empty buckets, and then need not
    /// search the history.
    buckets: [u8; BUCKETS],
    clock: u32,
}

impl Rows {
    pub(super) fn new() -> Self {
        Self { walks: [Walk::default(); WALKS], history: [0; HISTORY], noted: 0, buckets: [0; BUCKETS], clock: 0 }
    }

    fn bucket(unit: i64) -> usize {
        ((unit / GROUP) as u32).wrapping_mul(0x9e37_79b1) as usize >> 24
    }

    fn note(&mut self, unit: u32) {
        let slot = self.noted % HISTORY;
        if self.noted >= HISTORY {
            self.buckets[Self::bucket(i64::from(self.history[slot]))] -= 1;
        }
        self.history[slot] = unit;
        self.buckets[Self::bucket(i64::from(unit))] += 1;
        self.noted += 1;
    }

    /// Returns the unit that was accessed `age` accesses ago.
    fn noted(&self, age: usize) -> i64 {
        i64::from(self.history[(self.noted - 1 - age) % HISTORY])
    }

    /// Finds an access to this unit or a neighbour, before the access of this age. Returns its unit and its age.
    fn find(&self, unit: i64, age: usize) -> Option<(i64, usize)> {
        if unit < 0 || self.buckets[Self::bucket(unit - 1)] == 0 && self.buckets[Self::bucket(unit + 1)] == 0 {
            return None;
        }
        let ages = age + 1..self.noted.min(HISTORY);
        ages.map(|age| (self.noted(age), age)).find(|&(noted, _)| (noted - unit).abs() <= 1)
    }

    /// Finds a walk of four accesses that ends with the access to `unit`. Prefers the shortest stride.
    fn detect(&self, unit: i64) -> Option<Walk> {
        let mut nearest: Option<(i64, i64)> = None;
        for age in 0..self.noted.min(TRIED) {
            let stride = unit - self.noted(age);
            let is_stride = (STRIDE_MIN..=STRIDE_MAX).contains(&stride.abs());
            if !is_stride || nearest.is_some_and(|(nearest, _)| nearest.abs() <= stride.abs()) {
                continue;
            }
            let second = self.find(unit - 2 * stride, age);
            if let Some((first, _)) = second.and_then(|(second, age)| self.find(second - stride, age)) {
                nearest = Some((stride, first));
            }
        }
        let (_, first) = nearest?;
        let seen = Pace { stride: (unit - first) * ONE / 3, exact: 3, edge: ONE };
        Some(Walk::new(first, unit, self.known(seen.stride).unwrap_or(seen)))
    }

    /// Returns the pace of a long walk whose stride is near this one.
    fn known(&self, stride: i64) -> Option<Pace> {
        let paces = self.walks.iter().map(|walk| walk.pace);
        let long = paces.filter(|pace| pace.exact >= EXACT && (pace.stride - stride).abs() < ONE);
        long.max_by_key(|pace| pace.exact)
    }

    /// Replaces the least recently used walk by a new one.
    fn enter(&mut self, walk: Walk, window_max: i64, proposals: &mut Proposals) {
        let clock = self.clock;
        let age = |walk: &Walk| if walk.steps == 0 { u32::MAX } else { clock.wrapping_sub(walk.used) };
        if let Some(place) = self.walks.iter_mut().max_by_key(|walk| age(walk)) {
            *place = Walk { used: clock, ..walk };
            place.ask(window_max, proposals);
        }
    }
}

impl Prefetcher for Rows {
    fn touched(&mut self, touch: Touch, _away: &dyn Fn(u32) -> bool, proposals: &mut Proposals) {
        if touch.span > 1 {
            return;
        }
        self.clock = self.clock.wrapping_add(1);
        let (unit, window_max) = (i64::from(touch.unit), i64::from(touch.window_max));
        let reached = self.walks.iter().enumerate().filter_map(|(at, walk)| Some((walk.reaches(unit)?, at)));
        match reached.min() {
            Some((steps, at)) => {
                self.walks[at].used = self.clock;
                self.walks[at].advance(unit, steps, window_max, proposals);
            }
            None => {
                if let Some(walk) = self.detect(unit) {
                    self.enter(walk, window_max, proposals);
                }
            }
        }
        self.note(touch.unit);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::propose;
    use super::*;

    /// Returns the page of the row with this number. The rows begin at `start` bytes and have `row` bytes.
    fn page(start: u64, row: u64, number: u64) -> u32 {
        ((start + row * number) / 4096) as u32
    }

    #[test]
    fn rows_of_any_size_are_proposed_from_the_fourth_on() {
        let mut rows = Rows::new();
        let asked: Vec<_> = (0..4).map(|number| propose(&mut rows, page(0, 16_384, number), 1, 63)).collect();
        assert_eq!(asked, [vec![], vec![], vec![], vec![(16, 1), (20, 1)]]);
        assert_eq!(propose(&mut rows, 24, 1, 63), [(28, 1), (32, 1), (36, 1), (40, 1)]);
    }

    /// Walks that fault at each row that was not proposed. Returns the share of the rows that faulted.
    fn faults_of(walks: &[(u64, u64)], rows_of_each: u64) -> f64 {
        let mut rows = Rows::new();
        let (mut proposed, mut faults) = (std::collections::HashSet::new(), 0);
        for number in 0..rows_of_each {
            for &(start, row) in walks {
                let page = page(start, row, number);
                if !proposed.contains(&page) {
                    faults += 1;
                    proposed.extend(propose(&mut rows, page, 1, 63).into_iter().map(|(unit, _)| unit));
                }
            }
        }
        f64::from(faults) / (rows_of_each * walks.len() as u64) as f64
    }

    #[test]
    fn interleaved_walks_with_fractions_fault_rarely() {
        for walks in [&[(5_000, 16_000)][..], &[(0, 32_008), (400 << 20, 32_008), (800 << 20, 13_000)]] {
            let share = faults_of(walks, 4_000);
            assert!(share < 0.2, "{walks:?}: {share:.3}");
        }
    }

    #[test]
    fn a_walk_upwards_through_the_rows_is_followed_too() {
        let mut rows = Rows::new();
        let asked: Vec<_> = [100, 90, 81, 71, 52].map(|unit| propose(&mut rows, unit, 1, 63)).into();
        assert_eq!(asked[3].len(), 2);
        assert!(asked[3][0].0.abs_diff(61) <= 1 && asked[3][1].0.abs_diff(52) <= 1, "{:?}", asked[3]);
    }

    proptest! {
        /// Walks are disturbed by accesses near to them.
        #[test]
        fn a_walk_stays_on_its_pages_and_within_the_bounds(
            moves in proptest::collection::vec((0usize..3, -6i64..=6, any::<bool>()), 200..2_000),
        ) {
            let mut rows = Rows::new();
            let mut at = [1_000_i64, 1_000_000, 2_000_000];
            for (walk, step, usual) in moves {
                at[walk] += if usual { [3, 4, -3][walk] } else { step };
                propose(&mut rows, at[walk] as u32, 1, 63);
                for walk in rows.walks.iter().filter(|walk| walk.steps > 0) {
                    prop_assert_eq!(walk.position >> PLACES, walk.last);
                    prop_assert!(walk.pace.stride.abs() > (STRIDE_MIN - 1) * ONE, "{:?}", walk);
                }
            }
        }
    }

    #[test]
    fn the_next_walk_knows_the_stride() {
        let mut rows = Rows::new();
        for number in 0..200 {
            propose(&mut rows, page(0, 16_000, number), 1, 0);
        }
        let asked: Vec<_> = (0..4).map(|number| propose(&mut rows, page(900 << 20, 16_000, number), 1, 63)).collect();
        assert_eq!(asked[3].len(), 2);
        assert!(
            rows.walks.iter().any(|walk| walk.steps == 3 && walk.pace.exact > 100),
            "a new walk with a known stride"
        );
    }
}
