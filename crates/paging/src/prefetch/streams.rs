//! Streams: follows several strides at the same time, in both directions and interleaved in any order. The method
//! combines stream buffers with stride detection (Palacharla and Kessler, ISCA 1994) and the kernel's read-ahead. An
//! access that continues a stream fetches pages ahead of the stream. The longer the stream, the more pages are fetched.
//! If an access continues no stream, the prefetcher searches for three accesses at equal distances that end with this
//! access.
//!
//! A stream that starts again near its old start is treated as the next round of the same loop. The stream gets its
//! full window immediately. It requests no more units than its last round covered.

use core::cmp::Ordering;

use super::accuracy::{self, FILTER};
use super::{Info, Prefetcher, Proposals, Touch};
use crate::limits;

const STREAMS: usize = 32;
/// Number of latest accesses that are remembered to find strides.
const HISTORY: usize = 32;
const BUCKETS: usize = 256;
/// Number of steps beyond the requested pages that a stream may skip. The skipped pages may already have been in
/// memory, so that accesses to them were not seen.
const SLACK: i64 = 4;
/// Maximum number of steps that a stream of adjacent pages may skip. The number grows with the window, because other
/// streams may have fetched the pages.
const OVERTAKEN_MAX: i64 = 64;
/// Minimum length of a round that is remembered, in steps.
const ROUND_MIN: i64 = 8;

pub(super) const INFO: Info = Info {
    name: "streams",
    summary: "up to 32 interleaved strides, up and down, with a window that grows while they continue",
    source: "Palacharla, Kessler, ISCA 1994; kernels' read-ahead",
    params: &[FILTER],
    build: |_, values| accuracy::filtered(Box::new(Streams::new()), values),
};

/// One stream. Distances are in units along the stream's direction, measured from `last`.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Unit of the last access.
    last: i64,
    start: i64,
    /// Distance from one access to the next, in units. It is negative for a descending stream, and 0 if the entry holds
    /// no stream.
    stride: i64,
    /// Distance of the stream's next expected fault, behind all requested units. It is at least one stride.
    far: i64,
    /// Number of steps to request ahead, or 0 until the stream is confirmed.
    window: i64,
    /// Length of the stream's last round, in units, or `None` in its first round.
    round: Option<i64>,
    /// Whether the stream's pages are adjacent.
    dense: bool,
    /// Whether an access inside or right behind the requested pages continued the stream.
    proven: bool,
    /// Number of times that an access at `far` continued the stream.
    turn: u8,
    /// Whether the last access of the stream was beyond `far`.
    strayed: bool,
    used: u32,
}

impl Stream {
    fn new(start: i64, last: i64, stride: i64, span: i64, window: i64) -> Self {
        let far = stride.abs();
        Self {
            last,
            start,
            stride,
            far,
            window,
            round: None,
            dense: far == span,
            proven: false,
            turn: 0,
            strayed: false,
            used: 0,
        }
    }

    fn step(&self) -> i64 {
        self.stride.abs()
    }

    /// Returns the distance of a unit along the stream. Returns `None` if an access to the unit does not continue the
    /// stream.
    fn reaches(&self, unit: i64) -> Option<i64> {
        let distance = (unit - self.last) * self.stride.signum();
        // Another stream may have fetched pages of this stream, up to twice this stream's window ahead.
        let slack = match (self.window, self.dense) {
            (0, _) => 0,
            (window, true) => (2 * window).clamp(SLACK, OVERTAKEN_MAX),
            (_, false) => SLACK,
        };
        let within = distance > 0 && distance <= self.far + slack * self.step();
        (within && (self.dense || distance % self.step() == 0)).then_some(distance)
    }

    /// Returns the number of units that the stream has requested up to a distance.
    fn asked(&self, distance: i64, span: i64) -> u32 {
        let ahead = distance.min(self.far) - self.step();
        let units = if self.dense { ahead } else { ahead / self.step().max(1) * span };
        units.clamp(0, i64::from(u32::MAX)) as u32
    }

    /// Returns the number of requested units that an access at a distance shows to be right. An access at `far`
    /// confirms all requested units. The first use of a prefetched page that waited in a frame confirms the units up to
    /// that page. Any other access confirms nothing.
    fn shown(&self, distance: i64, touch: Touch) -> u32 {
        let span = i64::from(touch.span.max(1));
        let told = touch.staged && distance <= SLACK * self.step();
        match distance == self.far {
            true => self.asked(distance, span),
            false if told => self.asked(distance + self.step(), span),
            false => 0,
        }
    }

    /// Advances the stream to an access at a distance, and requests more units.
    fn advance(&mut self, distance: i64, touch: Touch, proposals: &mut Proposals) {
        let span = i64::from(touch.span.max(1));
        proposals.confirm(self.shown(distance, touch));
        let from = self.last + self.far * self.stride.signum();
        self.last += distance * self.stride.signum();
        let (asked, old_step) = (self.asked(self.far, span), self.step());
        if self.dense {
            self.stride = self.stride.signum() * span;
        }
        let (step, gap) = (self.step(), distance - self.far);
        self.proven |= self.window > 0 && gap <= 0;
        match gap.cmp(&0) {
            Ordering::Less if touch.staged => self.far = (-gap).max(step),
            // An access before `far` faulted. The requested pages did not arrive or were evicted, or the stream has
            // ended. So the stream requests less from now on.
            Ordering::Less => {
                let part = if distance > old_step { 4 } else { 2 };
                (self.far, self.window) = (step, (self.window / part).max(2));
            }
            Ordering::Equal => {
                self.turn = self.turn.wrapping_add(1);
                (self.far, self.window, self.strayed) = (step, (self.window * 2).max(2), false);
            }
            Ordering::Greater => {
                // Another stream may cause one access beyond `far`. A second one in a row means that the strides are
                // longer than assumed.
                if self.strayed {
                    proposals.miss(asked);
                    self.window = (self.window / 2).max(1);
                }
                (self.far, self.strayed) = (step, true);
            }
        }
        if self.round.is_some_and(|round| (self.last - self.start).abs() > round) {
            (self.round, self.window) = (None, 2);
        }
        let passed_over = if self.dense && gap > 0 { gap.min(i64::from(touch.window_max) / 2) } else { 0 };
        self.ask(Touch { window_max: touch.window_max - passed_over as u32, ..touch }, proposals);
        // The skipped pages were in memory, or will be accessed out of order. So they are requested last.
        match self.stride > 0 {
            true => push(proposals, from.max(0), from + passed_over),
            false => push(proposals, (from + span - passed_over).max(0), from + span),
        }
    }

    /// Requests units until the window is full.
    fn ask(&mut self, touch: Touch, proposals: &mut Proposals) {
        let (span, step) = (i64::from(touch.span.max(1)), self.step());
        let most = i64::from(touch.window_max) / span;
        let most = if self.dense { most } else { most.min(limits::PROPOSALS_MAX as i64) };
        self.window = self.window.min(most.max(1));
        // The program's real strides may be a multiple of the assumed stride. Such a program must not access `far` by
        // accident. So the number of steps to `far` is odd, and alternates between two values.
        let window = if self.window >= 16 { (self.window & !1) - 2 * i64::from(self.turn % 2) } else { self.window };
        let mut target = (window + 1) * step;
        if let Some(round) = self.round {
            target = target.min(round - (self.last - self.start).abs() + step);
        }
        target = target.min(self.far + i64::from(limits::PREFETCH_UNITS_MAX) * step);
        if target <= self.far {
            return;
        }
        let up = self.stride > 0;
        if self.dense {
            let (first, end) = match up {
                true => (self.last + self.far, self.last + target),
                false => (self.last - target + step, self.last - self.far + step),
            };
            push(proposals, first.max(0), end);
        } else {
            for page in 0..(target - self.far) / step {
                let first = self.last + (self.far + page * step) * self.stride.signum();
                push(proposals, first, first + span);
            }
        }
        self.far = target;
    }

    /// Estimates how many requested units are wasted if the stream ends now. If the stream was never right, all of them
    /// are wasted. Otherwise half are wasted, because a stream ends at a random position in its last window.
    fn lost(&self, span: i64) -> u32 {
        let asked = self.asked(self.far, span);
        if self.proven { asked / 2 } else { asked }
    }

    /// Starts the stream's next round at this unit.
    fn restart(&mut self, unit: i64, touch: Touch, proposals: &mut Proposals) {
        let span = i64::from(touch.span.max(1));
        proposals.miss(self.lost(span));
        self.round = Some((self.last - self.start).abs());
        (self.start, self.last, self.far) = (unit, unit, self.step());
        self.ask(touch, proposals);
    }
}

fn push(proposals: &mut Proposals, first: i64, end: i64) {
    if let (Ok(first), Ok(end)) = (u32::try_from(first), u32::try_from(end)) {
        proposals.push(first, end.saturating_sub(first));
    }
}

/// Memory use: 32 streams and the last 32 accesses.
pub(super) struct Streams {
    streams: [Stream; STREAMS],
    history: [u32; HISTORY],
    noted: usize,
    /// For each hash bucket, the number of accesses of the history in the bucket. Most lookups find an empty bucket,
    /// and then need not search the history.
    buckets: [u8; BUCKETS],
    clock: u32,
}

impl Streams {
    pub(super) fn new() -> Self {
        Self { streams: [Stream::default(); STREAMS], history: [0; HISTORY], noted: 0, buckets: [0; BUCKETS], clock: 0 }
    }

    fn bucket(unit: u32) -> usize {
        (unit.wrapping_mul(0x9e37_79b1) >> 24) as usize
    }

    fn note(&mut self, unit: u32) {
        let slot = self.noted % HISTORY;
        if self.noted >= HISTORY {
            self.buckets[Self::bucket(self.history[slot])] -= 1;
        }
        self.history[slot] = unit;
        self.buckets[Self::bucket(unit)] += 1;
        self.noted += 1;
    }

    /// Returns the number of accesses since the last access to a unit. Returns `None` if the history does not hold the
    /// unit.
    fn age(&self, unit: i64) -> Option<usize> {
        let unit = u32::try_from(unit).ok()?;
        if self.buckets[Self::bucket(unit)] == 0 {
            return None;
        }
        (0..self.noted.min(HISTORY)).find(|age| self.history[(self.noted - 1 - age) % HISTORY] == unit)
    }

    /// Finds the stream that an access continues. If there are several, prefers streams that were right before, and
    /// among them the nearest.
    fn find(&self, unit: i64) -> Option<(usize, i64)> {
        let reached = |(index, stream): (usize, &Stream)| stream.reaches(unit).map(|distance| (index, distance));
        let streams = self.streams.iter().enumerate().filter(|(_, stream)| stream.stride != 0);
        streams.filter_map(reached).min_by_key(|&(index, distance)| (!self.streams[index].proven, distance))
    }

    /// Finds a stream that started near this unit and is at least `ROUND_MIN` steps long.
    fn find_start(&self, unit: i64) -> Option<usize> {
        self.streams.iter().position(|stream| {
            let near = (unit - stream.start).abs() <= if stream.dense { stream.step() } else { 1 };
            near && stream.stride != 0 && (stream.last - stream.start).abs() >= ROUND_MIN * stream.step()
        })
    }

    /// If the page before this page was accessed recently, returns a new ascending stream of these two pages.
    fn detect_dense(&self, unit: i64, span: i64) -> Option<Stream> {
        self.age(unit - span).map(|_| Stream::new(unit - span, unit, span, span, 2))
    }

    /// Finds a stream of three accesses at equal distances that ends with the access to `unit`. Prefers the shortest
    /// distance.
    fn detect(&self, unit: i64, span: i64) -> Option<Stream> {
        let mut nearest: Option<i64> = None;
        for age in 0..self.noted.min(HISTORY) {
            let stride = unit - i64::from(self.history[(self.noted - 1 - age) % HISTORY]);
            if stride == 0 || nearest.is_some_and(|nearest| nearest.abs() <= stride.abs()) {
                continue;
            }
            if self.age(unit - 2 * stride).is_some_and(|older| older > age) {
                nearest = Some(stride);
            }
        }
        let stride = nearest?;
        // If the stride is shorter than the page, the accessed pages would overlap, so this is no stream.
        let window = if stride.abs() == span { 2 } else { 0 };
        (stride.abs() >= span).then(|| Stream::new(unit - 2 * stride, unit, stride, span, window))
    }

    /// Returns a new stream that explains an access better than the stream at `index`. Otherwise the stream of an
    /// accidental stride could take the accesses of a stream of adjacent pages.
    fn detect_other(&self, index: usize, touch: Touch) -> Option<Stream> {
        let stream = &self.streams[index];
        let (unit, span) = (i64::from(touch.unit), i64::from(touch.span.max(1)));
        if touch.staged || stream.dense || stream.proven { None } else { self.detect_dense(unit, span) }
    }

    /// Replaces the least recently used stream by a new one.
    fn enter(&mut self, stream: Stream, touch: Touch, proposals: &mut Proposals) {
        let clock = self.clock;
        let Some(place) =
            self.streams.iter_mut().max_by_key(|s| if s.stride == 0 { u32::MAX } else { clock.wrapping_sub(s.used) })
        else {
            return;
        };
        if place.stride != 0 {
            proposals.miss(place.lost(i64::from(touch.span.max(1))));
        }
        *place = Stream { used: clock, ..stream };
        if place.window > 0 {
            place.ask(touch, proposals);
        }
    }
}

impl Prefetcher for Streams {
    fn touched(&mut self, touch: Touch, _away: &dyn Fn(u32) -> bool, proposals: &mut Proposals) {
        self.clock = self.clock.wrapping_add(1);
        let (unit, span) = (i64::from(touch.unit), i64::from(touch.span.max(1)));
        if let Some((index, distance)) = self.find(unit) {
            match self.detect_other(index, touch) {
                Some(stream) => self.enter(stream, touch, proposals),
                None => {
                    self.streams[index].used = self.clock;
                    self.streams[index].advance(distance, touch, proposals);
                }
            }
        } else if let Some(index) = self.find_start(unit) {
            self.streams[index].used = self.clock;
            self.streams[index].restart(unit, touch, proposals);
        } else if let Some(stream) = self.detect_dense(unit, span).or_else(|| self.detect(unit, span)) {
            self.enter(stream, touch, proposals);
        }
        self.note(touch.unit);
    }

    fn accounts(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::propose;
    use super::*;

    fn all(streams: &mut Streams, units: &[u32]) -> Vec<Vec<(u32, u32)>> {
        units.iter().map(|&unit| propose(streams, unit, 1, 16)).collect()
    }

    #[test]
    fn a_sequence_doubles_its_window_up_to_the_bound() {
        let asked = all(&mut Streams::new(), &[10, 11, 14, 19, 28, 43]);
        let expected: [&[(u32, u32)]; 6] = [&[], &[(12, 2)], &[(15, 4)], &[(20, 8)], &[(29, 14)], &[(44, 16)]];
        assert_eq!(asked, expected);
    }

    #[test]
    fn a_sequence_downwards_is_found_at_its_third_page() {
        let asked = all(&mut Streams::new(), &[100, 99, 98, 95, 90]);
        let expected: [&[(u32, u32)]; 5] = [&[], &[], &[(96, 2)], &[(91, 4)], &[(82, 8)]];
        assert_eq!(asked, expected);
    }

    #[test]
    fn a_stride_is_fetched_page_by_page_once_it_was_kept_three_times() {
        let asked = all(&mut Streams::new(), &[0, 100, 200, 300, 600]);
        assert_eq!(asked[2], []);
        assert_eq!(asked[3], [(400, 1), (500, 1)]);
        assert_eq!(asked[4], [(700, 1), (800, 1), (900, 1), (1000, 1)]);
    }

    #[test]
    fn interleaved_strides_do_not_disturb_each_other() {
        let mut streams = Streams::new();
        let mut last = Vec::new();
        for step in 0..4u32 {
            for (start, stride) in [(1_000, 64i64), (900_000, -7), (5_000, 1), (70_000, 512), (200_000, -1)] {
                last = propose(&mut streams, (start + i64::from(step) * stride) as u32, 1, 16);
                let known = step == 3 || step > 0 && stride == 1 || step == 2 && stride == -1;
                assert_eq!(!last.is_empty(), known, "stride {stride}, step {step}");
            }
        }
        assert!(!last.is_empty());
    }

    #[test]
    fn wide_pages_are_streams_of_their_own_size() {
        let mut streams = Streams::new();
        assert_eq!(propose(&mut streams, 0, 512, 2048), []);
        assert_eq!(propose(&mut streams, 512, 512, 2048), [(1024, 1024)]);
        assert_eq!(propose(&mut streams, 2048, 512, 2048), [(2560, 2048)]);
        // The sweep reaches the end of the huge pages and continues in base pages.
        assert_eq!(propose(&mut streams, 4608, 1, 2048), [(4609, 8)]);
    }

    #[test]
    fn the_next_round_has_its_window_at_once_and_ends_where_the_last_one_did() {
        let mut streams = Streams::new();
        for unit in [0, 1, 4, 9, 18] {
            propose(&mut streams, unit, 1, 16);
        }
        let mut proposals = Proposals::default();
        let touch = Touch { unit: 0, span: 1, window_max: 64, staged: false, told: false };
        streams.touched(touch, &|_| true, &mut proposals);
        assert_eq!(proposals.as_slice(), [(1, 14)]);
        assert_eq!(proposals.missed(), 7, "half of what the last round had ahead");
        assert_eq!(propose(&mut streams, 15, 1, 16), [(16, 3)], "no further than 18");
        assert_eq!(propose(&mut streams, 19, 1, 16), [(20, 2)], "further, but carefully");
    }

    #[test]
    fn what_was_passed_is_confirmed_and_what_was_given_up_is_missed() {
        let mut streams = Streams::new();
        all(&mut streams, &[10, 11]);
        let mut proposals = Proposals::default();
        streams.touched(
            Touch { unit: 14, span: 1, window_max: 16, staged: false, told: false },
            &|_| true,
            &mut proposals,
        );
        assert_eq!((proposals.confirmed(), proposals.missed()), (2, 0));
        let mut missed = 0;
        for stream in 1..=STREAMS as u32 {
            for unit in [100_000 * stream.pow(3), 100_000 * stream.pow(3) + 1] {
                let mut proposals = Proposals::default();
                streams.touched(Touch { unit, ..touch_at(unit) }, &|_| true, &mut proposals);
                missed += proposals.missed();
            }
        }
        assert_eq!(missed, 2, "of the oldest stream's four, half");
    }

    fn touch_at(unit: u32) -> Touch {
        Touch { unit, span: 1, window_max: 16, staged: false, told: false }
    }

    #[test]
    fn a_touch_inside_the_window_asks_again_from_there() {
        let mut streams = Streams::new();
        all(&mut streams, &[10, 11, 14, 19, 28]);
        assert_eq!(propose(&mut streams, 31, 1, 16), [(32, 4)], "what should be there is not: less");
        let staged = Touch { staged: true, told: true, ..touch_at(32) };
        let mut proposals = Proposals::default();
        streams.touched(staged, &|_| true, &mut proposals);
        assert_eq!(proposals.as_slice(), [(36, 1)], "one more behind the rest");
    }
}
