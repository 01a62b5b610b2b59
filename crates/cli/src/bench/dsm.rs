//! `hanare bench dsm`: the cost of faults, flushes, page transfers and memory barriers of shared memory.
//!
//! Every figure comes from ranks that `hanare launch` starts. The floors of traps and links are measured right before.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Args;
use hanare_sys::features::{Disabled, Features, FeaturesError};
use thiserror::Error;

use super::dsm_rank::Figures;
use super::floor::Floors;
use super::paging::runs;
use super::sheet::Sheet;
use super::{links, traps};

const HELP: &str = "\
There are two ranks on this host. A share is a page fetched at a read fault, without the trap. An update is a page sent to \
a sharer at a memory barrier: update_1_us is one page alone with the rest of its barrier, update_us each of 64 pages, \
transfer_us the part of sending and receiving one. A flush sends a page with 1 or 256 dirty words home at a memory barrier; \
the figure is for each of 64. fault_floor_us is a trap by a handler thread and a 4 KiB round trip on a local socket. \
barrier_N_us is an empty memory barrier of N ranks. Ratios are those of the medians of one run.

Examples:
  hanare bench dsm
  hanare bench dsm --runs 9 --json=dsm.json";

/// Measure what shared memory (hanare launch, dsm.h) costs on this host.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub(crate) struct DsmArgs {
    /// Number of repetitions. The figures are the median, the minimum and the maximum.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = runs())]
    runs: u32,
    /// Maximum number of ranks in a barrier. Barriers are measured with 2, 4, 8 ... ranks.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(2..=256))]
    ranks_max: u16,
    /// Print JSON. With FILE, print the table and write the JSON to FILE.
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    json: Option<Option<PathBuf>>,
}

/// Why a measurement failed.
#[derive(Debug, Error)]
pub(crate) enum DsmError {
    /// HANARE_DISABLE is invalid.
    #[error(transparent)]
    Features(#[from] FeaturesError),
    /// A floor could not be measured.
    #[error(transparent)]
    Trap(#[from] traps::TrapError),
    /// Starting ranks, or using a socket or a file, failed.
    #[error("cannot measure shared memory: {0}; see that processes and local sockets can be made")]
    System(#[from] std::io::Error),
    /// The ranks failed, and have printed the reason.
    #[error("the ranks of '{0}' failed; see what they said above")]
    Ranks(String),
    /// The ranks' figures could not be parsed.
    #[error("a rank of the benchmark printed no figures ({0}); reinstall hanare")]
    Figures(#[from] serde_json::Error),
}

/// All figures by name, with one value for each run.
type Columns = BTreeMap<String, Vec<f64>>;

/// Measures and prints.
pub(super) fn dsm(args: &DsmArgs) -> Result<u8, DsmError> {
    let mut columns = Columns::new();
    for _ in 0..args.runs {
        let run = once(args)?;
        for (name, figure) in run {
            columns.entry(name).or_default().push(figure);
        }
    }
    let mut sheet = Sheet::default();
    sheet.count("runs", u64::from(args.runs));
    for name in names(args.ranks_max) {
        sheet.spread(&name, columns.remove(&name).unwrap_or_default());
    }
    match &args.json {
        Some(None) => sheet.print(true),
        Some(Some(path)) => {
            std::fs::write(path, serde_json::to_string_pretty(&sheet)? + "\n")?;
            sheet.print(false);
        }
        None => sheet.print(false),
    }
    Ok(0)
}

fn rank_counts(ranks_max: u16) -> impl Iterator<Item = u16> {
    (1..=8).map(|power| 1 << power).take_while(move |ranks| *ranks <= ranks_max)
}

/// Returns the names of the figures, in the order of the report.
fn names(ranks_max: u16) -> Vec<String> {
    let mut names: Vec<String> =
        ["trap_thread_us", "unix_rtt_4k_us", "memcpy_4k_us", "fault_floor_us"].map(String::from).into();
    for transfer in TRANSFERS {
        for figure in [
            "read_fault_us",
            "write_fault_us",
            "write_miss_us",
            "share_us",
            "transfer_us",
            "update_us",
            "update_1_us",
            "flush_1_us",
            "flush_256_us",
        ] {
            names.push(format!("{transfer}_{figure}"));
        }
    }
    names.extend(
        ["share_ratio", "transfer_ratio", "update_ratio", "update_1_ratio", "read_fault_floors", "flush_ratio"]
            .map(String::from),
    );
    for ranks in rank_counts(ranks_max) {
        names.extend(PROTOCOLS.map(|protocol| format!("{protocol}_barrier_{ranks}_us")));
        names.push(format!("barrier_{ranks}_ratio"));
    }
    names
}

const TRANSFERS: [&str; 2] = ["message", "zero_copy"];
const PROTOCOLS: [&str; 2] = ["invalidate", "update"];

/// Makes one run: measures the floors and then every figure, and adds the ratios.
fn once(args: &DsmArgs) -> Result<Figures, DsmError> {
    let mut run = Figures::new();
    let mut floors = Floors::default();
    traps::measure(&Features::probe(&Disabled::from_env()?), &mut floors)?;
    links::measure(&mut floors)?;
    for name in ["trap_thread_us", "unix_rtt_4k_us", "memcpy_4k_us"] {
        run.extend(floors.get(name).map(|figure| (name.to_owned(), figure)));
    }
    for transfer in TRANSFERS {
        let figures = launch(2, "invalidate", transfer, "faults")?.into_iter();
        let figures = figures.chain(launch(2, "update", transfer, "updates")?).filter(|(name, _)| name != "empty_us");
        run.extend(figures.map(|(name, figure)| (format!("{transfer}_{name}"), figure)));
    }
    for ranks in rank_counts(args.ranks_max) {
        for protocol in PROTOCOLS {
            for (name, figure) in launch(ranks, protocol, "zero_copy", "barriers")? {
                debug_assert_eq!(name, "barrier_us");
                run.insert(format!("{protocol}_barrier_{ranks}_us"), figure);
            }
        }
    }
    compare(&mut run, args.ranks_max);
    Ok(run)
}

/// Adds the ratios between figures.
fn compare(run: &mut Figures, ranks_max: u16) {
    let floor = run.get("trap_thread_us").zip(run.get("unix_rtt_4k_us")).map(|(trap, link)| trap + link);
    run.extend(floor.map(|floor| ("fault_floor_us".to_owned(), floor)));
    let mut ratio = |name: String, of: String, to: String| {
        let ratio = run.get(&of).zip(run.get(&to)).map(|(of, to)| of / to);
        run.extend(ratio.map(|ratio| (name, ratio)));
    };
    for figure in ["share", "transfer", "update", "update_1"] {
        ratio(format!("{figure}_ratio"), format!("message_{figure}_us"), format!("zero_copy_{figure}_us"));
    }
    let mut named = |name: &str, of: &str, to: &str| ratio(name.to_owned(), of.to_owned(), to.to_owned());
    named("read_fault_floors", "zero_copy_read_fault_us", "fault_floor_us");
    named("flush_ratio", "zero_copy_flush_256_us", "zero_copy_flush_1_us");
    for ranks in rank_counts(ranks_max) {
        ratio(
            format!("barrier_{ranks}_ratio"),
            format!("update_barrier_{ranks}_us"),
            format!("invalidate_barrier_{ranks}_us"),
        );
    }
}

/// Runs one part on `ranks` ranks. Returns its figures.
fn launch(ranks: u16, protocol: &str, transfer: &str, part: &str) -> Result<Figures, DsmError> {
    let this = std::env::current_exe()?;
    let mut command = Command::new(&this);
    command.args(["launch", "-n", &ranks.to_string(), "--protocol", protocol]);
    command.args(["--transfer", &transfer.replace('_', "-"), "--shared", "64M", "--"]).arg(&this);
    command.args(["bench", "dsm-rank", "--part", part]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(DsmError::Ranks(format!("hanare launch -n {ranks} --protocol {protocol} --transfer {transfer}")));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ratio_is_of_figures_that_are_reported() {
        let names = names(4);
        let mut run: Figures =
            names.iter().filter(|name| name.ends_with("_us")).map(|name| (name.clone(), 2.0)).collect();
        let figures = [("trap_thread_us", 3.0), ("unix_rtt_4k_us", 5.0), ("message_share_us", 6.0)];
        run.extend(figures.map(|(name, figure)| (name.to_owned(), figure)));
        compare(&mut run, 4);
        assert!(names.iter().all(|name| run.contains_key(name)), "{names:?} {run:?}");
        assert_eq!((run["fault_floor_us"], run["share_ratio"], run["read_fault_floors"]), (8.0, 3.0, 0.25));
        assert_eq!((run["barrier_4_ratio"], run["flush_ratio"]), (1.0, 1.0));
    }
}
