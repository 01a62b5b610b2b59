//! `hanare simulate`: computes the cost of a recorded run under other policies, or simulates a cluster of processors.

mod cluster;
mod sweep;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use hanare_paging::trace::Header;
use hanare_settings::{DEFAULT_POLICY, parse_size};
use hanare_sim::cluster::config::ConfigError;
use hanare_sim::cluster::run::RunError;
use hanare_sim::policies::{Job, Local, OPT, Row, SimError, all_policies, check_policies, parse_policies};
use hanare_sim::string::StringError;
use hanare_sim::{RefString, Visible, html};
use serde::Serialize;
use thiserror::Error;

use self::cluster::ClusterArgs;
use self::sweep::SweepArgs;
use crate::interrupt::{Interrupt, exit_code};
use crate::message::say;
use crate::output::{Output, OutputError};
use crate::progress::ProgressLine;
use crate::trace::{FileError, read_trace};

/// Simulate a recorded run under other settings, or a cluster of processors.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Policies(PoliciesArgs),
    Cluster(ClusterArgs),
    Sweep(SweepArgs),
}

const EXAMPLES: &str = "\
Examples:
  hanare trace record -o sort.trace --local 25% -- sort -S 1200M big.txt
  hanare simulate policies --trace sort.trace --local 25%,50%,75%
  hanare simulate policies --trace sort.trace --policies 'lru,simple,opt' --json - --html sort.html";

/// Run replacement policies on the references of a recorded run, and compare them with OPT, which knows the future.
///
/// Misses are references to pages that are not in local memory. Transfers in are misses of pages whose bytes had been
/// written back. Protects are pages that were unmapped so that a policy sees the next access.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
struct PoliciesArgs {
    /// A trace that 'hanare trace record' wrote.
    #[arg(long, value_name = "FILE", required_unless_present = "string", conflicts_with = "string")]
    trace: Option<PathBuf>,
    /// A text file instead of a trace, with one reference per line: a decimal page number, followed by 'w' for a write.
    #[arg(long, value_name = "FILE")]
    string: Option<PathBuf>,
    /// Local memory: percentages of the distinct pages referenced, numbers of pages (1000p), or sizes (16M) with --trace.
    #[arg(long, value_name = "SIZES", default_value = "25%,50%,75%")]
    local: String,
    /// Policies as NAME[:PARAM=VALUE,...], separated by commas or semicolons. 'opt' is OPT. Default: all.
    #[arg(long, value_name = "NAMES")]
    policies: Option<String>,
    /// Which references to mapped pages the policies see: 'traps' (the references that trap in a live run) or 'all'.
    #[arg(long, value_enum, value_name = "traps|all", default_value = "traps", hide_possible_values = true)]
    visible: Seen,
    /// Write the results to FILE as JSON. With '-', print the JSON instead of the table.
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
    /// Write a plot of the miss ratios and the table to FILE as one HTML page.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Seen {
    Traps,
    All,
}

/// Why a simulation has no result.
#[derive(Debug, Error)]
pub(crate) enum SimulateError {
    /// The trace cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The reference string is invalid.
    #[error("{path}: {source}", path = path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// The error.
        source: StringError,
    },
    /// The policies or sizes are invalid.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// A result file cannot be written.
    #[error(transparent)]
    Write(#[from] OutputError),
    /// Standard output cannot be written.
    #[error("cannot print: {0}")]
    Print(io::Error),
    /// A setting of the cluster simulation is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The settings file or a flag of the cluster simulation is invalid.
    #[error("{0}")]
    Settings(String),
    /// A run of the cluster simulation failed.
    #[error(transparent)]
    Cell(RunError),
    /// Signals could not be set up.
    #[error("cannot set up signals: {0}")]
    Signals(io::Error),
    /// Ctrl-C or another terminating signal arrived.
    #[error("interrupted; no file was written")]
    Interrupted(i32),
}

impl SimulateError {
    /// The exit code: 128 plus the signal's number after a signal, as in a shell, else 125.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted(signal) => exit_code(*signal),
            _ => crate::EXIT_OWN,
        }
    }
}

/// Runs the chosen subcommand.
pub(crate) fn simulate(args: &SimulateArgs) -> Result<u8, SimulateError> {
    match &args.what {
        What::Policies(args) => policies(args),
        What::Cluster(args) => cluster::cluster(args),
        What::Sweep(args) => sweep::sweep(args),
    }
}

/// Shows the fraction of the work that is finished.
fn show(progress: &ProgressLine, part: f64) {
    progress.update(|| format!("hanare: simulated {:.0} %", (100.0 * part).floor()));
}

/// Fails if a signal has arrived.
fn check(interrupt: &Interrupt) -> Result<(), SimulateError> {
    interrupt.signal().map_or(Ok(()), |signal| Err(SimulateError::Interrupted(signal)))
}

fn policies(args: &PoliciesArgs) -> Result<u8, SimulateError> {
    let chosen = args.policies.as_deref().map_or_else(all_policies, parse_policies);
    check_policies(&chosen)?;
    let (header, string) = source(args)?;
    let locals = Local::parse_list(&in_pages(&args.local, header.as_ref()))?;
    // The paths are checked before the simulation, so that a bad path wastes no time.
    let json = args.json.as_deref().filter(|path| *path != Path::new("-"));
    let json = json.map(|path| Output::new("--json", path)).transpose()?;
    let page = args.html.as_deref().map(|path| Output::new("--html", path)).transpose()?;
    let job = Job {
        policies: chosen,
        locals,
        visible: if let Seen::All = args.visible { Visible::All } else { Visible::Traps },
        seed: header.as_ref().map_or(1, |header| header.seed),
        block_units: header.as_ref().map_or(1, |header| header.block_units),
    };
    if job.block_units > 1 {
        say(
            "pages of two sizes were recorded and count alike; record with --page-size for figures in pages of one size",
        );
    }
    let progress = ProgressLine::new();
    let report = |done, total: u64| show(&progress, done as f64 / total.max(1) as f64);
    let rows = hanare_sim::policies::simulate(&string, &job, &report);
    progress.clear();
    let rows = rows?;
    let results = Results::new(args, header.as_ref(), &string, &rows);
    if let Some(page) = page {
        let note = format!("{} references to {} pages.", string.references(), string.distinct());
        page.write(&html::page(&results.title(), &note, &rows, string.references()))?;
    }
    let text = serde_json::to_string_pretty(&results).map_err(|error| SimulateError::Print(error.into()))?;
    match json {
        Some(json) => json.write(&format!("{text}\n"))?,
        None if args.json.is_some() => return print(&format!("{text}\n")),
        None => {}
    }
    print(&table(&rows, &args.local.split(',').map(str::trim).collect::<Vec<_>>()))
}

fn source(args: &PoliciesArgs) -> Result<(Option<Header>, RefString), SimulateError> {
    if let Some(path) = &args.trace {
        let bytes = read_trace(path)?;
        let read = RefString::from_trace(&bytes);
        let (header, string) = read.map_err(|source| FileError::Trace { path: path.clone(), source })?;
        return Ok((Some(header), string));
    }
    let path = args.string.clone().unwrap_or_default();
    let bytes = std::fs::read(&path).map_err(|source| FileError::Read { path: path.clone(), source })?;
    let string = RefString::from_text(&bytes).map_err(|source| SimulateError::Text { path, source })?;
    Ok((None, string))
}

fn print(text: &str) -> Result<u8, SimulateError> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(SimulateError::Print(error)),
        _ => Ok(0),
    }
}

/// The results as they are written to JSON.
#[derive(Serialize)]
struct Results {
    source: String,
    program: Option<String>,
    recorded_policy: Option<String>,
    unit_bytes: Option<u32>,
    visible: Seen,
    touches: u64,
    distinct_pages: u32,
    rows: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    policy: String,
    local_percent: f64,
    local_pages: u32,
    hits: u64,
    misses: u64,
    transfers_in: u64,
    write_backs: u64,
    protects: u64,
    ratio_to_simple: f64,
    ratio_to_opt: f64,
}

impl Results {
    fn new(args: &PoliciesArgs, header: Option<&Header>, string: &RefString, rows: &[Row]) -> Self {
        let path = args.trace.as_ref().or(args.string.as_ref());
        let line = |row: &Row| Line {
            policy: row.policy.clone(),
            local_percent: row.local_percent,
            local_pages: row.local_pages,
            hits: string.references().saturating_sub(row.figures.misses),
            misses: row.figures.misses,
            transfers_in: row.figures.transfers_in,
            write_backs: row.figures.write_backs,
            protects: row.figures.protects,
            ratio_to_simple: row.ratio_to_simple,
            ratio_to_opt: row.ratio_to_opt,
        };
        Results {
            source: path.map_or_else(String::new, |path| path.to_string_lossy().into_owned()),
            program: header.map(|header| header.program.clone()),
            recorded_policy: header.map(|header| header.policy.clone()),
            unit_bytes: header.map(|header| header.unit_bytes),
            visible: args.visible,
            touches: string.references(),
            distinct_pages: string.distinct(),
            rows: rows.iter().map(line).collect(),
        }
    }

    fn title(&self) -> String {
        format!("Replacement policies on {}", self.program.as_ref().unwrap_or(&self.source))
    }
}

/// Turns the sizes in bytes of a list into numbers of pages, because the simulation counts pages. Percentages and
/// numbers of pages stay as they are. A string has no page size, so its sizes are refused by [`Local::parse_list`].
fn in_pages(list: &str, header: Option<&Header>) -> String {
    let unit_bytes = header.map_or(0, |header| u64::from(header.unit_bytes));
    let part = |text: &str| match parse_size(text).ok().and_then(|bytes| bytes.checked_div(unit_bytes)) {
        Some(pages) => format!("{pages}p"),
        None => text.to_owned(),
    };
    list.split(',').map(|text| part(text.trim())).collect::<Vec<_>>().join(",")
}

/// Returns a table with a block for each size. `asked` are the sizes as the user gave them. Policies with few misses
/// come first.
fn table(rows: &[Row], asked: &[&str]) -> String {
    let widest = rows.iter().map(|row| row.policy.len()).max().unwrap_or(0).max(6);
    let mut text = format!(
        "{:widest$} {:>7} {:>10} {:>12} {:>12} {:>12} {:>12} {:>9} {:>7}\n",
        "policy", "local", "pages", "misses", "transfers in", "write-backs", "protects", "x Simple", "x OPT"
    );
    let blocks = rows.chunks(rows.len().div_ceil(asked.len().max(1)).max(1));
    let mut words = String::new();
    for (index, (block, asked)) in blocks.zip(asked).enumerate() {
        let mut block: Vec<&Row> = block.iter().collect();
        block.sort_by_key(|row| row.figures.misses);
        text += if index > 0 { "\n" } else { "" };
        for row in &block {
            let figures = row.figures;
            text += &format!(
                "{:widest$} {:>7} {:>10} {:>12} {:>12} {:>12} {:>12} {:>9.3} {:>7.3}\n",
                row.policy,
                asked,
                row.local_pages,
                figures.misses,
                figures.transfers_in,
                figures.write_backs,
                figures.protects,
                row.ratio_to_simple,
                row.ratio_to_opt
            );
        }
        words += &verdict(&block, asked);
    }
    if words.is_empty() { text } else { format!("{text}\n{words}") }
}

/// Returns a sentence on the best policy of a block whose rows are sorted, and on the default policy. Empty if fewer
/// than two policies can be chosen.
fn verdict(block: &[&Row], asked: &str) -> String {
    let live: Vec<&&Row> = block.iter().filter(|row| row.policy != OPT).collect();
    let (Some(best), true) = (live.first(), live.len() > 1) else { return String::new() };
    let default = live.iter().position(|row| row.policy == DEFAULT_POLICY);
    let default = default.map_or(String::new(), |at| {
        format!(", {DEFAULT_POLICY} (the default) is number {} with {:.3} x OPT", at + 1, live[at].ratio_to_opt)
    });
    format!(
        "{asked}: of {} policies, {} misses least, {:.3} x OPT{default}\n",
        live.len(),
        best.policy,
        best.ratio_to_opt
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_become_pages_of_the_trace() {
        let header = Header { unit_bytes: 65_536, ..Header::default() };
        assert_eq!(in_pages("25%, 16M,1000p,x", Some(&header)), "25%,256p,1000p,x");
        assert_eq!(in_pages("16M", None), "16M");
    }
}
