//! The counters of a run over time: samples of bounded number, whatever the run's length.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hanare::stats::Stats;
use serde::ser::{Serialize, SerializeMap, Serializer};

/// Time between two samples at first.
const INTERVAL: Duration = Duration::from_millis(100);
/// Number of samples at which the resolution is halved.
const SAMPLES_MAX: usize = 2000;

/// Defines [`Sample`]. A level is a value at one moment. A sum only grows. Each field is a counter of the same name, or of
/// the name behind `=`.
macro_rules! samples {
    (
        levels: $($level:ident $(= $level_counter:ident)?,)*;
        sums: $($sum:ident $(= $sum_counter:ident)?,)*;
    ) => {
        /// The counters at one moment. After samples were merged, the levels are the highest of the interval that ends
        /// at that moment.
        #[derive(Debug, Clone, Copy, Default, PartialEq)]
        pub(crate) struct Sample {
            /// Seconds since the program started.
            pub(crate) time_s: f64,
            $(pub(crate) $level: u64,)*
            $(pub(crate) $sum: u64,)*
        }

        impl Sample {
            /// Reads the counters, `time` after the program started.
            pub(crate) fn read(stats: &Stats, time: Duration) -> Self {
                Sample {
                    time_s: time.as_secs_f64(),
                    $($level: samples!(@counter stats $level $($level_counter)?),)*
                    $($sum: samples!(@counter stats $sum $($sum_counter)?),)*
                }
            }

            /// Returns one sample for the intervals of this one and the next.
            fn merge(self, next: Sample) -> Sample {
                Sample { $($level: self.$level.max(next.$level),)* ..next }
            }
        }

        impl Serialize for Timeline {
            /// Writes an array for each field. The times are cut to milliseconds.
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let mut map = to.serialize_map(None)?;
                let times: Vec<f64> = self.samples.iter().map(|it| (it.time_s * 1e3).round() / 1e3).collect();
                map.serialize_entry("time_s", &times)?;
                $(map.serialize_entry(stringify!($level), &self.column(|it| it.$level))?;)*
                $(map.serialize_entry(stringify!($sum), &self.column(|it| it.$sum))?;)*
                map.end()
            }
        }
    };
    (@counter $stats:ident $name:ident) => { $stats.$name.load(Relaxed) };
    (@counter $stats:ident $name:ident $counter:ident) => { $stats.$counter.load(Relaxed) };
}

samples! {
    levels: local_bytes, local_bytes_budget = budget_bytes, far_bytes, private_bytes, parts_behind_bytes,;
    sums: faults_read, faults_write, faults_first_write, faults_zero, faults_rescued, faults_waited, swap_ns, set_bit_ns,
        clear_bit_ns, evict_ns, pages_in, bytes_in, pages_out, bytes_out, prefetch_pages, prefetch_used, prefetch_wasted,
        servers_lost,;
}

impl Sample {
    /// Returns the number of faults of all kinds so far.
    pub(crate) fn faults(&self) -> u64 {
        [
            self.faults_read,
            self.faults_write,
            self.faults_first_write,
            self.faults_zero,
            self.faults_rescued,
            self.faults_waited,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }
}

/// Two samples that follow each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interval {
    pub(crate) from: Sample,
    pub(crate) to: Sample,
}

impl Interval {
    /// Returns how much a sum grew in a second. 0 for an interval without length.
    pub(crate) fn rate(&self, sum: impl Fn(&Sample) -> u64) -> f64 {
        let seconds = self.to.time_s - self.from.time_s;
        let growth = sum(&self.to).saturating_sub(sum(&self.from)) as f64;
        if seconds > 0.0 { growth / seconds } else { 0.0 }
    }

    /// Returns how much a sum grew.
    pub(crate) fn growth(&self, sum: impl Fn(&Sample) -> u64) -> u64 {
        sum(&self.to).saturating_sub(sum(&self.from))
    }
}

/// The samples of a run, in order. The first one is that of the start, with all counters 0.
#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    samples: Vec<Sample>,
    interval: Duration,
}

impl Timeline {
    /// Makes a timeline that has the start only.
    pub(crate) fn new() -> Self {
        Timeline { samples: vec![Sample::default()], interval: INTERVAL }
    }

    /// Returns the time between two samples from now on.
    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    /// Adds a sample. Halves the resolution if there are too many.
    pub(crate) fn push(&mut self, sample: Sample) {
        self.samples.push(sample);
        if self.samples.len() > SAMPLES_MAX {
            self.samples = merged(&self.samples, 2);
            self.interval = self.interval.saturating_mul(2);
        }
    }

    /// Adds the sample of the end. A short rest of an interval becomes part of the last one: rates over a few
    /// microseconds mean nothing.
    pub(crate) fn finish(&mut self, last: Sample) {
        let before = self.samples.last().copied().unwrap_or_default();
        let is_rest = last.time_s - before.time_s < self.interval.as_secs_f64() / 2.0;
        if is_rest && self.samples.len() > 1 {
            self.samples.pop();
            self.samples.push(before.merge(last));
        } else {
            self.samples.push(last);
        }
    }

    /// Returns the intervals, merged to at most `count`.
    pub(crate) fn intervals(&self, count: usize) -> Vec<Interval> {
        let size = self.samples.len().saturating_sub(1).div_ceil(count.max(1)).max(1);
        let samples = merged(&self.samples, size);
        samples.windows(2).map(|pair| Interval { from: pair[0], to: pair[1] }).collect()
    }

    fn column(&self, of: impl Fn(&Sample) -> u64) -> Vec<u64> {
        self.samples.iter().map(of).collect()
    }
}

/// Returns the samples with each `size` intervals merged into one. The first sample stays.
fn merged(samples: &[Sample], size: usize) -> Vec<Sample> {
    let Some((first, rest)) = samples.split_first() else { return Vec::new() };
    let groups = rest.chunks(size).filter_map(|group| group.iter().copied().reduce(Sample::merge));
    std::iter::once(*first).chain(groups).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(tenths: u64) -> Sample {
        Sample {
            time_s: tenths as f64 / 10.0,
            local_bytes: if tenths == 7 { 99 } else { 10 },
            pages_in: tenths * 3,
            ..Sample::default()
        }
    }

    #[test]
    fn a_run_of_days_has_few_samples_and_the_right_sums_and_peaks() {
        let mut timeline = Timeline::new();
        let mut tenths = 0;
        while tenths < 100_000 {
            tenths += (timeline.interval().as_millis() / 100) as u64;
            timeline.push(sample(tenths));
            assert!(timeline.samples.len() <= SAMPLES_MAX);
        }
        timeline.finish(sample(tenths + 1));
        assert!(timeline.samples.len() > SAMPLES_MAX / 2 - 2, "{}", timeline.samples.len());
        assert_eq!(timeline.interval(), INTERVAL * 64);
        for count in [1, 7, 400, usize::MAX] {
            let intervals = timeline.intervals(count);
            assert!(intervals.len() <= count);
            assert_eq!(intervals.iter().map(|it| it.growth(|to| to.pages_in)).sum::<u64>(), (tenths + 1) * 3);
            assert_eq!(intervals.iter().map(|it| it.to.local_bytes).max(), Some(99));
            assert!(intervals.iter().all(|it| (it.rate(|to| to.pages_in) - 30.0).abs() < 1e-6));
            assert!(intervals.windows(2).all(|pair| pair[0].to == pair[1].from));
        }
    }

    #[test]
    fn a_short_run_has_its_end_and_no_rate_of_no_time() {
        let mut timeline = Timeline::new();
        assert!(timeline.intervals(10).is_empty());
        timeline.finish(Sample { pages_in: 5, ..Sample::default() });
        let intervals = timeline.intervals(10);
        assert_eq!((intervals.len(), intervals[0].rate(|to| to.pages_in)), (1, 0.0));
        timeline.push(sample(1));
        timeline.finish(Sample { time_s: 0.101, ..sample(2) });
        assert_eq!(timeline.intervals(10).len(), 2, "the rest of an interval stands alone");
    }

    #[test]
    fn the_json_has_an_array_a_counter() {
        let mut timeline = Timeline::new();
        timeline.push(sample(1));
        timeline.finish(sample(2));
        let json = serde_json::to_value(&timeline).unwrap();
        assert_eq!(json["time_s"], serde_json::json!([0.0, 0.1, 0.2]));
        assert_eq!(json["pages_in"], serde_json::json!([0, 3, 6]));
        let arrays = json.as_object().unwrap();
        assert!(arrays.len() > 20 && arrays.values().all(|it| it.as_array().unwrap().len() == 3), "{json}");
    }
}
