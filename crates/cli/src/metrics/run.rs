//! The figures of a run: `hanare_run_...`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use hanare::counters::{BUCKETS, Snapshot, bucket_floor_ns};
use hanare::stats::Stats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Unit;

use super::sheet::Sheet;
use crate::report::mode_name;

/// No fault is shown as an example of its bucket.
const NO_EXEMPLARS: Option<&HashMap<usize, Exemplar<NoLabelSet, f64>>> = None;
/// Buckets of the counters' histogram that make one bucket here. Each power of two has four.
const MERGED: usize = 4;
/// The first bucket of the counters that begins a bucket here: 1.024 microseconds. Faster faults are in one bucket.
const FIRST: usize = 36;

/// The counters of a run, read anew for each answer.
pub(crate) struct RunFigures {
    pub(crate) stats: Arc<Stats>,
    pub(crate) program: String,
}

impl fmt::Debug for RunFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunFigures").field("program", &self.program).finish_non_exhaustive()
    }
}

impl Collector for RunFigures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (seen, mut sheet) = (self.stats.snapshot(), Sheet(encoder));
        let labels = [
            ("program", self.program.as_str()),
            ("version", env!("CARGO_PKG_VERSION")),
            ("mode", mode_name(seen.mode)),
            ("policy", &seen.policy),
            ("prefetch", &seen.prefetch),
        ];
        sheet.info("hanare_run", "The program, and how its far memory is set up.", &labels)?;
        faults(&mut sheet, &seen)?;
        traffic(&mut sheet, &seen)?;
        memory(&mut sheet, &seen)?;
        rest(&mut sheet, &seen)
    }
}

fn faults(sheet: &mut Sheet<'_>, seen: &Snapshot) -> fmt::Result {
    let kinds = [
        ("read", seen.faults_read),
        ("write", seen.faults_write),
        ("first_write", seen.faults_first_write),
        ("zero", seen.faults_zero),
        ("minor", seen.faults_rescued),
        ("waited", seen.faults_waited),
    ];
    let help = "Faults by kind. 'read' and 'write' fetch a page.";
    sheet.entry("hanare_run_faults", None, help, MetricType::Counter, |mut entry| {
        kinds
            .iter()
            .try_for_each(|(kind, count)| ConstCounter::new(*count).encode(entry.encode_family(&[("kind", *kind)])?))
    })?;
    let (buckets, count) = histogram(seen);
    let sum = seen.swap_ns.saturating_add(seen.set_bit_ns) as f64 / 1e9;
    let (unit, help) = (Some(Unit::Seconds), "Time that a thread of the program waited in a fault.");
    sheet.entry("hanare_run_fault", unit, help, MetricType::Histogram, |mut entry| {
        entry.encode_histogram(sum, count, &buckets, NO_EXEMPLARS)
    })?;
    sheet.time_total("hanare_run_page_wait", "Time that threads of the program waited for pages.", seen.swap_ns)?;
    let help = "Time that threads of the program waited for present pages to become accessible.";
    sheet.time_total("hanare_run_access_wait", help, seen.set_bit_ns)?;
    sheet.time_total("hanare_run_evict", "Time spent choosing and evicting pages.", seen.evict_ns)
}

fn traffic(sheet: &mut Sheet<'_>, seen: &Snapshot) -> fmt::Result {
    sheet.count("hanare_run_fetched_pages", "Pages fetched.", seen.pages_in)?;
    sheet.bytes_total("hanare_run_fetched", "Bytes of pages fetched.", seen.bytes_in)?;
    sheet.count("hanare_run_written_back_pages", "Pages written back.", seen.pages_out)?;
    sheet.bytes_total("hanare_run_written_back", "Bytes of pages written back.", seen.bytes_out)?;
    let help = "Pages evicted without a write-back, because the server held their bytes.";
    sheet.count("hanare_run_dropped_clean_pages", help, seen.pages_dropped_clean)?;
    sheet.count("hanare_run_requests", "Requests sent to memory servers.", seen.requests)?;
    sheet.count("hanare_run_prefetched_pages", "Pages prefetched.", seen.prefetch_pages)?;
    sheet.count("hanare_run_prefetched_used_pages", "Prefetched pages that were accessed.", seen.prefetch_used)?;
    let help = "Prefetched pages that were evicted without an access.";
    sheet.count("hanare_run_prefetched_wasted_pages", help, seen.prefetch_wasted)
}

fn memory(sheet: &mut Sheet<'_>, seen: &Snapshot) -> fmt::Result {
    let help = "Local memory that far pages use now.";
    sheet.bytes_now("hanare_run_local", help, seen.local_bytes)?;
    sheet.bytes_now("hanare_run_local_peak", "Most local memory that far pages used.", seen.local_bytes_peak)?;
    sheet.bytes_now("hanare_run_budget", "Budget for far pages in local memory.", seen.budget_bytes)?;
    sheet.bytes_now("hanare_run_far", "Far memory allocated now.", seen.far_bytes)?;
    sheet.bytes_now("hanare_run_far_peak", "Most far memory allocated.", seen.far_bytes_peak)?;
    let help = "Private memory that is not far: the program's near memory and Hanare's own data.";
    sheet.bytes_now("hanare_run_private", help, seen.private_bytes)?;
    sheet.bytes_now("hanare_run_private_peak", "Most private memory that was not far.", seen.private_bytes_peak)
}

fn rest(sheet: &mut Sheet<'_>, seen: &Snapshot) -> fmt::Result {
    sheet.count("hanare_run_processes", "Processes and executed programs that had far memory.", seen.processes)?;
    let help = "Allocations refused because the servers had no room.";
    sheet.count("hanare_run_allocations_refused", help, seen.allocations_refused)?;
    sheet.count("hanare_run_servers_lost", "Losses of memory servers that the run survived.", seen.servers_lost)?;
    let help = "Pages of which a part is missing now. An upper bound.";
    sheet.bytes_now("hanare_run_parts_behind", help, seen.parts_behind_bytes)?;
    let help = "Missing parts of pages that were rebuilt.";
    sheet.bytes_total("hanare_run_parts_rebuilt", help, seen.parts_rebuilt_bytes)?;
    sheet.time_total("hanare_run_degraded", "Time in which pages lacked parts.", seen.degraded_ns)
}

/// Returns the buckets as upper bounds in seconds with counts, and the number of all faults.
fn histogram(seen: &Snapshot) -> (Vec<(f64, u64)>, u64) {
    let mut buckets = vec![(bucket_floor_ns(FIRST) as f64 / 1e9, seen.fault_hist[..FIRST].iter().sum())];
    for first in (FIRST..BUCKETS).step_by(MERGED) {
        let end = first + MERGED;
        // The counters' last bucket has no upper bound.
        let bound = if end >= BUCKETS { f64::INFINITY } else { bucket_floor_ns(end) as f64 / 1e9 };
        buckets.push((bound, seen.fault_hist[first..end.min(BUCKETS)].iter().sum()));
    }
    (buckets, seen.faults_timed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare::counters::add;
    use prometheus_client::registry::Registry;

    fn page_of(stats: &Arc<Stats>) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(RunFigures { stats: Arc::clone(stats), program: "a\"b\n".to_owned() }));
        super::super::page(&registry)
    }

    #[test]
    fn every_figure_has_its_unit_and_help() {
        let stats = Arc::new(Stats::attach(None, None).unwrap());
        add(&stats.faults_read, 3);
        add(&stats.swap_ns, 1_500_000_000);
        add(&stats.local_bytes, 4096);
        [500, 2_000, 2_047, 5_000_000_000, u64::MAX].iter().for_each(|ns| stats.fault_took(*ns));
        let page = page_of(&stats);
        for line in [
            "hanare_run_info{program=\"a\\\"b\\n\",version=\"0.1.0\",mode=\"none\",policy=\"\",prefetch=\"\"} 1",
            "# TYPE hanare_run_faults counter",
            "hanare_run_faults_total{kind=\"read\"} 3",
            "# UNIT hanare_run_local_bytes bytes",
            "hanare_run_local_bytes 4096",
            "hanare_run_page_wait_seconds_total 1.5",
            "hanare_run_fault_seconds_count 5",
            "hanare_run_fault_seconds_sum 1.5",
            "hanare_run_fault_seconds_bucket{le=\"0.000001024\"} 1",
            "hanare_run_fault_seconds_bucket{le=\"0.000002048\"} 3",
            "hanare_run_fault_seconds_bucket{le=\"+Inf\"} 5",
        ] {
            assert!(page.lines().any(|shown| shown == line), "{line} is not in\n{page}");
        }
        assert!(page.ends_with("# EOF\n"));
        let of = |word: &str| page.lines().filter(|line| line.starts_with(word)).count();
        assert_eq!(of("# HELP "), of("# TYPE "));
    }
}
