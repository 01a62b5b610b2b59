//! The charts of the page: which values each one has, and the sentence above it.

use hanare::counters::bucket_floor_ns;
use maud::{Markup, html};

use super::Record;
use super::behind::{self, Row};
use super::chart::{Bar, Look, OverTime, Series, Unit, at, bars};
use super::timeline::{Interval, Sample};
use super::words;
use crate::report::Figures;

/// Most intervals that a chart draws.
const DRAWN_MAX: usize = 200;
/// Most rows of the table behind a chart.
const ROWS_MAX: usize = 100;

/// Reads a value of one interval.
type Read = fn(&Interval) -> f64;
/// A column of a table: its head, the unit, and what it reads.
type Column = (&'static str, Unit, Read);

/// The content of a chart over time.
struct Plan {
    id: &'static str,
    title: &'static str,
    /// The sentences above the chart.
    says: String,
    unit: Unit,
    lines: &'static [(&'static str, Look, Read)],
    /// Whether each line stands on those after it.
    stacked: bool,
    /// Columns of the table besides the lines.
    more: &'static [Column],
}

/// Returns the charts over time. A chart of what did not happen is left out.
pub(crate) fn over_time(record: &Record) -> Vec<Markup> {
    let figures = &record.figures;
    let mut plans = vec![memory(figures)];
    if figures.faults > 0 {
        plans.extend([waits(figures), faults(figures)]);
    }
    if figures.pages_in + figures.pages_out > 0 {
        plans.push(traffic(figures));
    }
    if figures.prefetch_pages > 0 {
        plans.push(prefetch(figures));
    }
    if figures.servers_lost > 0 || figures.parts_behind_bytes > 0 {
        plans.push(parts(figures));
    }
    plans.iter().map(|plan| section(plan, record)).collect()
}

fn memory(figures: &Figures) -> Plan {
    let (peak, budget) =
        (words::bytes(figures.local_bytes_peak as f64), words::bytes(figures.local_bytes_budget as f64));
    Plan {
        id: "memory",
        title: "Memory",
        says: format!(
            "Of {} of far memory at most, {peak} were local at a time. The budget was {budget}. Near memory had {} at most.",
            words::bytes(figures.far_bytes_peak as f64),
            words::bytes(figures.private_bytes_peak as f64)
        ),
        unit: Unit::Bytes,
        lines: &[
            ("local", Look::Main, |it| it.to.local_bytes as f64),
            ("far", Look::Line, |it| it.to.far_bytes as f64),
            ("budget", Look::Dashed, |it| it.to.local_bytes_budget as f64),
            ("near", Look::Dotted, |it| it.to.private_bytes as f64),
        ],
        stacked: false,
        more: &[],
    }
}

/// Returns the time that a sum of nanoseconds grew by, in percent of the interval.
fn part_of_time(interval: &Interval, sum: fn(&Sample) -> u64) -> f64 {
    interval.rate(sum) / 1e9 * 100.0
}

fn waits(figures: &Figures) -> Plan {
    let share = |seconds: f64| words::percent(words::share(seconds, figures.elapsed_s).unwrap_or(0.0));
    let threads = match figures.waits_s() > figures.elapsed_s {
        true => " Waits of several threads and processes add up to more than the time.",
        false => "",
    };
    Plan {
        id: "waits",
        title: "Time spent waiting",
        says: format!(
            "Waits for pages took {} of the time, waits to open present pages {}, sampling of references {}. Evicting took \
             {}, partly within the waits.{threads}",
            share(figures.swap_s),
            share(figures.set_bit_s),
            share(figures.clear_bit_s),
            share(figures.evict_s)
        ),
        unit: Unit::Percent,
        lines: &[
            ("pages (swap)", Look::Main, |it| part_of_time(it, |to| to.swap_ns)),
            ("present pages (set bit)", Look::Second, |it| part_of_time(it, |to| to.set_bit_ns)),
            ("sampling (clear bit)", Look::Third, |it| part_of_time(it, |to| to.clear_bit_ns)),
            ("evicting", Look::Thin, |it| part_of_time(it, |to| to.evict_ns)),
        ],
        stacked: true,
        more: &[],
    }
}

fn faults(figures: &Figures) -> Plan {
    Plan {
        id: "faults",
        title: "Faults",
        says: format!(
            "{} faults: {} on evicted pages, {} first accesses, {} first writes of clean pages, {} minor.",
            words::grouped(figures.faults),
            words::grouped(figures.faults_read.saturating_add(figures.faults_write)),
            words::grouped(figures.faults_zero),
            words::grouped(figures.faults_first_write),
            words::grouped(figures.faults_rescued)
        ),
        unit: Unit::PerSecond,
        lines: &[("faults", Look::Main, |it| it.rate(Sample::faults))],
        stacked: false,
        more: &[
            ("read", Unit::PerSecond, |it| it.rate(|to| to.faults_read)),
            ("write", Unit::PerSecond, |it| it.rate(|to| to.faults_write)),
            ("first write", Unit::PerSecond, |it| it.rate(|to| to.faults_first_write)),
            ("zero", Unit::PerSecond, |it| it.rate(|to| to.faults_zero)),
            ("minor", Unit::PerSecond, |it| it.rate(|to| to.faults_rescued)),
            ("waited", Unit::PerSecond, |it| it.rate(|to| to.faults_waited)),
        ],
    }
}

fn traffic(figures: &Figures) -> Plan {
    Plan {
        id: "traffic",
        title: "Pages in and out",
        says: format!(
            "{} came in ({} pages), and {} went out ({} pages). {} clean pages were dropped without a write-back.",
            words::bytes(figures.bytes_in as f64),
            words::grouped(figures.pages_in),
            words::bytes(figures.bytes_out as f64),
            words::grouped(figures.pages_out),
            words::grouped(figures.pages_dropped_clean)
        ),
        unit: Unit::BytesPerSecond,
        lines: &[
            ("in", Look::Main, |it| it.rate(|to| to.bytes_in)),
            ("out", Look::Line, |it| it.rate(|to| to.bytes_out)),
        ],
        stacked: false,
        more: &[
            ("pages in", Unit::PerSecond, |it| it.rate(|to| to.pages_in)),
            ("pages out", Unit::PerSecond, |it| it.rate(|to| to.pages_out)),
        ],
    }
}

fn prefetch(figures: &Figures) -> Plan {
    let judged = match figures.prefetch_accuracy {
        Some(accuracy) => format!("Of those with a known fate, {} were accessed.", words::percent(accuracy)),
        None => "The fate of none is known.".to_owned(),
    };
    Plan {
        id: "prefetch",
        title: "Prefetched pages",
        says: format!("{} pages were fetched ahead of an access. {judged}", words::grouped(figures.prefetch_pages)),
        unit: Unit::PerSecond,
        lines: &[
            ("used", Look::Main, |it| it.rate(|to| to.prefetch_used)),
            ("wasted", Look::Line, |it| it.rate(|to| to.prefetch_wasted)),
        ],
        stacked: false,
        more: &[("fetched", Unit::PerSecond, |it| it.rate(|to| to.prefetch_pages))],
    }
}

fn parts(figures: &Figures) -> Plan {
    Plan {
        id: "parts",
        title: "Pages that lack a part",
        says: format!(
            "{} of parts were rebuilt. At most {} of pages lacked a part at the end.",
            words::bytes(figures.parts_rebuilt_bytes as f64),
            words::bytes(figures.parts_behind_bytes as f64)
        ),
        unit: Unit::Bytes,
        lines: &[("lack a part", Look::Main, |it| it.to.parts_behind_bytes as f64)],
        stacked: false,
        more: &[("losses of servers", Unit::Faults, |it| it.growth(|to| to.servers_lost) as f64)],
    }
}

/// Draws a chart over time with its sentences and the table behind it.
fn section(plan: &Plan, record: &Record) -> Markup {
    let intervals = record.samples.timeline.intervals(DRAWN_MAX);
    let bounds_s: Vec<f64> = intervals.iter().map(|it| it.to.time_s).collect();
    let mut series: Vec<Series> = Vec::new();
    let mut below = vec![0.0; intervals.len()];
    for (_, look, read) in plan.lines {
        let mut values: Vec<f64> = intervals.iter().map(read).collect();
        if plan.stacked && look.is_area() {
            for (value, below) in values.iter_mut().zip(&mut below) {
                *value += *below;
                *below = *value;
            }
            // The highest area is drawn first, so that the others cover its lower part.
            series.insert(0, Series { look: *look, values });
        } else {
            series.push(Series { look: *look, values });
        }
    }
    let key: Vec<(&str, Look)> = plan.lines.iter().map(|(name, look, _)| (*name, *look)).collect();
    let chart = OverTime {
        id: plan.id,
        title: plan.title,
        says: &plan.says,
        unit: plan.unit,
        bounds_s: &bounds_s,
        key: &key,
        series: &series,
    };
    let lines = plan.lines.iter().map(|(name, _, read)| (*name, plan.unit, *read));
    let columns: Vec<Column> = lines.chain(plan.more.iter().copied()).collect();
    html! {
        section.chart id=(plan.id) {
            h2 { (plan.title) }
            p { (words::unbroken(&plan.says)) }
            (chart.draw())
            (table(plan.title, &columns, &record.samples.timeline.intervals(ROWS_MAX)))
        }
    }
}

/// Returns the table behind a chart over time.
fn table(title: &str, columns: &[Column], rows: &[Interval]) -> Markup {
    let end_s = rows.last().map_or(0.0, |row| row.to.time_s);
    let heads: Vec<&str> = std::iter::once("until").chain(columns.iter().map(|(head, ..)| *head)).collect();
    let row = |row: &Interval| {
        let figures = columns.iter().map(|(_, unit, read)| unit.text(read(row)));
        let cells = std::iter::once(words::moment(row.to.time_s)).chain(figures).collect();
        Row { from: None, to: at(row.to.time_s, end_s), cells }
    };
    behind::table(title, &heads, rows.iter().map(row))
}

/// Draws the distribution of fault latencies, with the table behind it.
pub(crate) fn latency(record: &Record) -> Markup {
    let figures = &record.figures;
    let latency = &record.fault_latency;
    let Some(scale) = LogScale::over(latency.edges_ns()) else { return html! {} };
    let rows: Vec<(f64, f64, u64)> = latency.rows().collect();
    let all: Vec<Bar> = rows
        .iter()
        .map(|(from_us, below_us, count)| Bar {
            from: scale.at(from_us * 1e3),
            to: scale.at(below_us * 1e3),
            count: *count,
        })
        .collect();
    let says = format!(
        "Half of the faults took at most {}, 90 % at most {}, and 99 % at most {}. All took less than {}.",
        words::micros(figures.fault_us_p50),
        words::micros(figures.fault_us_p90),
        words::micros(figures.fault_us_p99),
        words::micros_up(figures.fault_us_max)
    );
    let table = rows.iter().zip(&all).map(|((from_us, below_us, count), bar)| Row {
        from: Some(bar.from),
        to: bar.to,
        cells: vec![words::micros(*from_us), words::micros(*below_us), words::grouped(*count)],
    });
    html! {
        section.chart #latency {
            h2 { "How long a fault took" }
            p {
                (words::unbroken(&says))
                " Each bar counts the faults of one bucket: four buckets share a doubling of the time. The time axis is \
                 logarithmic."
            }
            (bars("latency", "How long a fault took", &says, &all, scale.ticks()))
            (behind::table("How long a fault took", &["from", "below", "faults"], table))
        }
    }
}

/// A logarithmic axis of times, from one bucket's edge to another's.
struct LogScale {
    from: f64,
    to: f64,
}

impl LogScale {
    /// Returns the axis between two times. `None` if there is nothing between them.
    fn over((from_ns, below_ns): (f64, f64)) -> Option<Self> {
        let (from, to) = (from_ns.max(1.0).log2(), below_ns.max(1.0).log2());
        (to > from).then_some(LogScale { from, to })
    }

    fn at(&self, ns: f64) -> f64 {
        at(ns.max(1.0).log2() - self.from, self.to - self.from)
    }

    /// Returns labels at powers of ten, or at 1, 2 and 5 times them if the axis is short.
    fn ticks(&self) -> Vec<(f64, String)> {
        let factors: &[f64] = if self.to - self.from > 10.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all = (0..11).flat_map(|power| factors.iter().map(move |factor| factor * 10_f64.powi(power)));
        let inside = all.filter(|ns| (self.from..=self.to).contains(&ns.log2()));
        inside.map(|ns| (self.at(ns), words::seconds(ns / 1e9))).collect()
    }
}

/// The latencies of faults, by the buckets of the counters. Buckets without a fault are left out.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub(crate) struct Latency {
    from_us: Vec<f64>,
    below_us: Vec<f64>,
    faults: Vec<u64>,
}

impl Latency {
    /// Takes the buckets of the counters' histogram.
    pub(crate) fn of(histogram: &[u64]) -> Self {
        let mut latency = Latency::default();
        for (bucket, count) in histogram.iter().copied().enumerate().filter(|(_, count)| *count > 0) {
            latency.from_us.push(bucket_floor_ns(bucket) as f64 / 1e3);
            latency.below_us.push(bucket_floor_ns(bucket + 1) as f64 / 1e3);
            latency.faults.push(count);
        }
        latency
    }

    fn rows(&self) -> impl Iterator<Item = (f64, f64, u64)> {
        self.from_us.iter().zip(&self.below_us).zip(&self.faults).map(|((from, below), count)| (*from, *below, *count))
    }

    /// Returns the lower edge of the fastest bucket and the upper edge of the slowest, in nanoseconds.
    fn edges_ns(&self) -> (f64, f64) {
        let edge = |us: Option<&f64>| us.map_or(0.0, |us| us * 1e3);
        (edge(self.from_us.first()), edge(self.below_us.last()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_keep_their_buckets_and_leave_out_empty_ones() {
        let mut histogram = [0; hanare::counters::BUCKETS];
        histogram[hanare::counters::bucket_of(5_000)] = 3;
        histogram[hanare::counters::bucket_of((1 << 30) - 1)] = 1;
        let latency = Latency::of(&histogram);
        assert_eq!(latency.faults, [3, 1]);
        assert_eq!((latency.from_us[0], latency.below_us[0]), (4.096, 5.12));
        assert_eq!(latency.below_us[1], 1_073_741.824);
        assert_eq!(Latency::of(&[0; 8]), Latency::default());
    }

    #[test]
    fn the_axis_of_latencies_has_powers_of_ten_or_more_on_a_short_one() {
        let labels = |from, to| -> Vec<String> {
            LogScale::over((from, to)).unwrap().ticks().into_iter().map(|(_, label)| label).collect()
        };
        assert_eq!(labels(4096.0, 1073741824.0), ["10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s"]);
        assert_eq!(labels(900.0, 12_000.0), ["1 µs", "2 µs", "5 µs", "10 µs"]);
        assert!(LogScale::over((0.0, 0.0)).is_none());
    }
}
