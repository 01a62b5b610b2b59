//! Sequential read-ahead: each fault that continues a stream doubles the stream's read-ahead. There are several
//! streams. A new stream replaces the least recently used stream.

use super::{Info, Prefetcher, Proposals, Touch};

const STREAMS: usize = 32;

pub(super) const INFO: Info = Info {
    name: "sequential",
    summary: "read-ahead for up to 32 forward streams, with a window that doubles while they continue",
    source: "as kernels read files ahead",
    params: &[],
    build: |_, _| Box::new(Sequential::default()),
};

/// Memory use: 32 streams of four words.
#[derive(Debug, Default)]
pub(super) struct Sequential {
    streams: [Stream; STREAMS],
    clock: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The unit of the stream's last access.
    last: u32,
    /// The first unit behind those already requested.
    next: u32,
    /// Number of units to request ahead, or 0 until the stream is confirmed.
    window: u32,
    /// Number of units of the page of the last access.
    span: u32,
    used: u64,
}

impl Prefetcher for Sequential {
    fn touched(&mut self, touch: Touch, _away: &dyn Fn(u32) -> bool, proposals: &mut Proposals) {
        self.clock += 1;
        let end = touch.unit.saturating_add(touch.span);
        let found = self.streams.iter_mut().find(|s| s.used > 0 && touch.unit > s.last && touch.unit <= s.next);
        let Some(stream) = found else {
            let oldest = self.streams.iter_mut().min_by_key(|s| s.used);
            if let Some(stream) = oldest {
                *stream = Stream { last: touch.unit, next: end, window: 0, span: touch.span, used: self.clock };
            }
            return;
        };
        // An access right behind the requested pages suggests that the program used all of them. So the window doubles.
        if touch.unit == stream.next {
            stream.window =
                stream.window.saturating_mul(2).max(touch.span.saturating_mul(2)).min(touch.window_max.max(touch.span));
            let passed = stream.last.saturating_add(stream.span);
            proposals.confirm(touch.unit.saturating_sub(passed));
        }
        let target = end.saturating_add(stream.window);
        // A fault inside the window shows that the pages from the fault on are not in memory. So they are requested
        // again.
        let from = if touch.staged { stream.next.max(end) } else { end };
        proposals.push(from, target.saturating_sub(from));
        *stream = Stream {
            last: touch.unit,
            next: target.max(stream.next),
            window: stream.window,
            span: touch.span,
            used: self.clock,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(prefetcher: &mut Sequential, unit: u32) -> Vec<(u32, u32)> {
        touch_as(prefetcher, unit, false)
    }

    fn touch_staged(prefetcher: &mut Sequential, unit: u32) -> Vec<(u32, u32)> {
        touch_as(prefetcher, unit, true)
    }

    fn touch_as(prefetcher: &mut Sequential, unit: u32, staged: bool) -> Vec<(u32, u32)> {
        let mut proposals = Proposals::default();
        let touch = Touch { unit, span: 1, window_max: 16, staged, told: false };
        prefetcher.touched(touch, &|_| true, &mut proposals);
        proposals.as_slice().to_vec()
    }

    #[test]
    fn a_stream_doubles_its_window_up_to_the_bound() {
        let mut s = Sequential::default();
        assert_eq!(touch(&mut s, 10), []);
        assert_eq!(touch(&mut s, 11), [(12, 2)]);
        assert_eq!(touch(&mut s, 14), [(15, 4)]);
        assert_eq!(touch(&mut s, 19), [(20, 8)]);
        assert_eq!(touch(&mut s, 28), [(29, 16)]);
        assert_eq!(touch(&mut s, 45), [(46, 16)]);
    }

    #[test]
    fn a_touch_inside_the_window_keeps_the_distance() {
        let mut s = Sequential::default();
        touch(&mut s, 0);
        assert_eq!(touch(&mut s, 1), [(2, 2)]);
        assert_eq!(touch_staged(&mut s, 2), [(4, 1)]);
        assert_eq!(touch_staged(&mut s, 3), [(5, 1)]);
        assert_eq!(touch(&mut s, 4), [(5, 2)], "nothing of it has come");
    }

    #[test]
    fn streams_do_not_disturb_each_other_and_random_touches_ask_for_nothing() {
        let mut s = Sequential::default();
        for i in 0..3 {
            let a = touch(&mut s, 1000 + i);
            let b = touch(&mut s, 5000 + i);
            assert_eq!(a.is_empty(), i == 0);
            assert_eq!(b.is_empty(), i == 0);
        }
        for unit in [70, 900_000, 33, 120_000] {
            assert_eq!(touch(&mut s, unit), []);
        }
    }
}
