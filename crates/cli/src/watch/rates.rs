//! The changes of a run's counters between two readings.

use std::time::Duration;

use hanare::counters::Snapshot;

use crate::report::faults;

/// Rates and latencies of an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rates {
    pub(crate) faults_per_s: f64,
    pub(crate) bytes_in_per_s: f64,
    pub(crate) bytes_out_per_s: f64,
    /// Median time of the faults that ended in the interval. `None` if there was none.
    pub(crate) fault_us_p50: Option<f64>,
    /// Time that 99 % of these faults did not exceed.
    pub(crate) fault_us_p99: Option<f64>,
    /// Mean number of threads that waited for pages. A wait counts when it ends, so that one interval may get the waits
    /// of several.
    pub(crate) waiting_threads: f64,
}

impl Rates {
    /// Returns what happened between two readings, `elapsed` apart.
    pub(crate) fn between(before: &Snapshot, after: &Snapshot, elapsed: Duration) -> Rates {
        let seconds = elapsed.as_secs_f64().max(1e-6);
        let per_s = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        let mut ended = after.clone();
        ended.fault_hist.iter_mut().zip(&before.fault_hist).for_each(|(now, old)| *now = now.saturating_sub(*old));
        let took_us = |p| (ended.faults_timed() > 0).then(|| ended.percentile(p) as f64 / 1e3);
        Rates {
            faults_per_s: per_s(faults(before), faults(after)),
            bytes_in_per_s: per_s(before.bytes_in, after.bytes_in),
            bytes_out_per_s: per_s(before.bytes_out, after.bytes_out),
            fault_us_p50: took_us(0.5),
            fault_us_p99: took_us(0.99),
            waiting_threads: per_s(before.swap_ns, after.swap_ns) / 1e9,
        }
    }

    /// Returns which share of their time `threads` threads waited for pages: 0 to 1.
    pub(crate) fn stall_share(&self, threads: u32) -> f64 {
        (self.waiting_threads / f64::from(threads.max(1))).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare::counters::add;
    use hanare::stats::Stats;

    #[test]
    fn only_what_the_interval_had_counts() {
        let stats = Stats::attach(None, None).unwrap();
        (0..1000).for_each(|_| stats.fault_took(1_000_000));
        add(&stats.faults_read, 1000);
        add(&stats.bytes_in, 1 << 30);
        let before = stats.snapshot();
        let idle = Rates::between(&before, &before, Duration::from_secs(1));
        assert_eq!((idle.faults_per_s, idle.fault_us_p50, idle.waiting_threads), (0.0, None, 0.0));
        (0..100).for_each(|_| stats.fault_took(10_000));
        add(&stats.faults_write, 60);
        add(&stats.faults_zero, 40);
        add(&stats.bytes_in, 4096);
        add(&stats.bytes_out, 8192);
        add(&stats.swap_ns, 3_000_000_000);
        let rates = Rates::between(&before, &stats.snapshot(), Duration::from_secs(2));
        assert_eq!((rates.faults_per_s, rates.bytes_in_per_s, rates.bytes_out_per_s), (50.0, 2048.0, 4096.0));
        assert!(rates.fault_us_p99.is_some_and(|us| (8.0..=13.0).contains(&us)), "{rates:?}");
        assert_eq!((rates.waiting_threads, rates.stall_share(3), rates.stall_share(0)), (1.5, 0.5, 1.0));
        let reset = Rates::between(&stats.snapshot(), &before, Duration::ZERO);
        assert_eq!((reset.faults_per_s, reset.fault_us_p50), (0.0, None));
    }
}
