//! `hanare bench floor`: the minimum costs of trapping, moving and fetching a page on this machine.

use std::time::{Duration, Instant};

use clap::Args;
use hanare_sys::features::{Disabled, Features, FeaturesError};
use thiserror::Error;

use super::sheet::Sheet;
use super::traps::{self, TrapError};
use super::{links, paging};

/// The names of all floors, in the order of the report.
const NAMES: [&str; 21] = [
    "trap_us",
    "trap_thread_us",
    "copy_4k_us",
    "move_in_4k_us",
    "move_out_4k_us",
    "move_in_64k_us",
    "move_out_64k_us",
    "move_in_2m_us",
    "move_out_2m_us",
    "dontneed_4k_us",
    "tcp_rtt_4k_us",
    "tcp_rtt_64k_us",
    "tcp_rtt_1m_us",
    "tcp_stream_gb_per_s",
    "tcp_stream_cold_gb_per_s",
    "unix_rtt_4k_us",
    "unix_rtt_64k_us",
    "unix_rtt_1m_us",
    "unix_stream_gb_per_s",
    "memcpy_4k_us",
    "memcpy_2m_us",
];

const HELP: &str = "\
trap_us is the time of an access that the faulting thread resolves by a COPY (userfaultfd, SIGBUS), without that COPY. \
trap_thread_us is the same with a handler thread on the same CPU. Links are loopback sockets, polled on both sides. They \
carry requests of 64 bytes with their replies, or one stream of 1 MiB chunks. A stream sends the same chunk again and again \
or, if cold, goes through 128 MiB. memcpy copies bytes that no cache holds. A figure that this machine does not have is \
'-' (null in JSON).

Examples:
  hanare bench floor
  hanare bench floor --runs 9 --json > floor.json";

/// Measure the minimum costs of trapping, moving and fetching a page on this machine.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub(crate) struct FloorArgs {
    /// Number of repetitions. The figures are the median, the minimum and the maximum.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = paging::runs())]
    runs: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Why the floors could not be measured.
#[derive(Debug, Error)]
pub(crate) enum FloorError {
    /// HANARE_DISABLE is invalid.
    #[error(transparent)]
    Features(#[from] FeaturesError),
    /// A socket failed.
    #[error("cannot measure sockets of loopback: {0}; see that 127.0.0.1 is up")]
    Link(#[from] std::io::Error),
    /// A trap or move failed although the machine reports the feature.
    #[error(transparent)]
    Trap(#[from] TrapError),
}

/// The floors of one run, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Floors(Vec<(&'static str, f64)>);

impl Floors {
    pub(super) fn put(&mut self, name: &'static str, figure: f64) {
        self.0.push((name, figure));
    }

    /// Returns a floor. `None` if this machine lacks the feature.
    pub(super) fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, figure)| *figure)
    }
}

/// Measures every floor once.
pub(super) fn measure() -> Result<Floors, FloorError> {
    let features = Features::probe(&Disabled::from_env()?);
    let mut floors = Floors::default();
    traps::measure(&features, &mut floors)?;
    links::measure(&mut floors)?;
    Ok(floors)
}

/// Writes the median and extremes of every floor.
pub(super) fn write(runs: &[Floors], sheet: &mut Sheet) {
    for name in NAMES {
        sheet.spread(name, runs.iter().filter_map(|floors| floors.get(name)).collect());
    }
}

pub(super) fn floor(args: &FloorArgs) -> Result<u8, FloorError> {
    let mut runs = Vec::new();
    for _ in 0..args.runs {
        runs.push(measure()?);
    }
    let mut sheet = Sheet::default();
    sheet.count("runs", u64::from(args.runs));
    write(&runs, &mut sheet);
    sheet.print(args.json);
    Ok(0)
}

/// Returns the median time of `count` operations, in microseconds. Each operation is timed by itself, so that rare
/// interruptions do not change the median. The cost of reading the clock is subtracted.
pub(super) fn median_us<E>(count: usize, operation: impl FnMut(usize) -> Result<(), E>) -> Result<f64, E> {
    median_within_us(Duration::MAX, count, operation)
}

/// Like [`median_us`], but stops after `time_max`.
pub(super) fn median_within_us<E>(
    time_max: Duration,
    count: usize,
    mut operation: impl FnMut(usize) -> Result<(), E>,
) -> Result<f64, E> {
    let mut timed_ns = Vec::with_capacity(count);
    let started = Instant::now();
    for round in 0..count {
        let began = Instant::now();
        if began - started > time_max {
            break;
        }
        operation(round)?;
        timed_ns.push(began.elapsed().as_nanos());
    }
    let clock_ns = median((0..101).map(|_| Instant::now().elapsed().as_nanos()).collect());
    Ok(median(timed_ns).saturating_sub(clock_ns) as f64 / 1e3)
}

fn median(mut times_ns: Vec<u128>) -> u128 {
    times_ns.sort_unstable();
    times_ns.get(times_ns.len() / 2).copied().unwrap_or(0)
}
