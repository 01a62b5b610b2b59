//! `hanare simulate cluster`: schedulers and replacement methods on a simulated distributed-memory machine.

use std::path::{Path, PathBuf};

use clap::Args;
use hanare_sim::cluster::cells::{Row, run_all};
use hanare_sim::cluster::claims::{Claim, Verdict, claims};
use hanare_sim::cluster::config::{Config, DEFAULT};
use hanare_sim::cluster::run::RunError;
use hanare_sim::cluster::{chart, paper};
use hanare_sim::policies::parse_policies;
use serde::Serialize;

use super::{Interrupt, Output, ProgressLine, SimulateError, check, print, show};
use crate::message::say;

const EXAMPLES: &str = "\
Examples:
  hanare simulate cluster                                     Table 3 of the SSS-CORE paper, beside the paper's figures
  hanare simulate cluster --network 16,4x4,2x2x2x2 --html figure1.html
  hanare simulate cluster --replacement lru,kind,kind+arc --scheduler algo4,settle --json -
  hanare simulate cluster --print-config > mine.toml          every setting with its default and meaning
  hanare simulate cluster mine.toml --set costs.disk_clk=50000";

/// Simulate gang-scheduled parallel processes on a machine with distributed memory (SSS-CORE).
///
/// Each processor has a memory of its own. A network in the form of a tree connects the processors. The effective
/// execution rate is the share of all processors' clocks in which a thread executed, and did not wait for a page or
/// another thread. The measurement ends when the first process has executed for its effective quanta (the setting
/// scheduling.finish_quanta).
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    pub(super) chosen: Chosen,
    /// Write the results to FILE as JSON. With '-', print the JSON instead of the table.
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
    /// Write figures of the rates and the table to FILE as one HTML page.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the shipped settings and the meaning of each, and exit.
    #[arg(long)]
    print_config: bool,
}

/// The settings of a simulation, and the number of parallel runs.
#[derive(Debug, Args)]
pub(super) struct Chosen {
    /// A file of settings that override the shipped ones.
    #[arg(value_name = "CONFIG.toml")]
    config: Option<PathBuf>,
    /// Networks, separated by commas, such as 16,4x4,2x2x2x2. A network is the number of branches at each level of the
    /// tree.
    #[arg(long, value_name = "NETWORKS")]
    network: Option<String>,
    /// Schedulers, separated by commas: algo0 to algo4 of the paper, or Hanare's own 'settle'.
    #[arg(long, value_name = "NAMES")]
    scheduler: Option<String>,
    /// Replacement methods, separated by commas: 'lru' (method 1 of the paper), 'kind' (method 3), any policy of the
    /// pager, or 'kind+POLICY'.
    #[arg(long, value_name = "NAMES")]
    replacement: Option<String>,
    /// Clocks that a remote access takes for each level of the tree that it crosses. Several values are separated by
    /// commas.
    #[arg(long, value_name = "CLOCKS", allow_negative_numbers = true)]
    remote_cost: Option<String>,
    /// Number of runs of each combination of these settings. The runs have the seeds 1 to K.
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    seeds: Option<String>,
    /// Any other setting of the file. May be given several times.
    #[arg(long, value_name = "SECTION.NAME=VALUE")]
    set: Vec<String>,
    /// Number of parallel runs. Default: one for each processor of this machine.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
}

impl Chosen {
    /// Returns the settings. A flag overrides the file, and the file overrides the defaults.
    pub(super) fn config(&self) -> Result<Config, SimulateError> {
        let beside = self.config.as_deref().and_then(Path::parent).unwrap_or(Path::new("")).to_owned();
        let load = |path: &str| {
            let path = beside.join(path);
            std::fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))
        };
        let mut config = match &self.config {
            None => Config::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| SimulateError::Settings(format!("cannot read {}: {error}", path.display())))?;
                Config::read(&text, &path.to_string_lossy(), &load)?
            }
        };
        let here = |path: &str| std::fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"));
        for setting in &self.set {
            let (key, value) = split(setting)?;
            config.set(key, value, &here)?;
        }
        let commas = |text: &String| text.split(',').map(|part| part.trim().to_owned()).collect::<Vec<_>>();
        let quoted = |parts: Vec<String>| format!("{parts:?}");
        for (key, value) in [
            ("cells.networks", self.network.as_ref().map(|text| quoted(commas(text)))),
            ("cells.schedulers", self.scheduler.as_ref().map(|text| quoted(commas(text)))),
            ("cells.replacements", self.replacement.as_ref().map(|text| quoted(parse_policies(text)))),
            ("cells.remote_costs", self.remote_cost.as_ref().map(|text| format!("[{text}]"))),
            ("cells.seeds", self.seeds.clone()),
        ] {
            if let Some(value) = value {
                config.set(key, &value, &here)?;
            }
        }
        Ok(config)
    }

    pub(super) fn jobs(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        self.jobs.map_or_else(all, usize::from)
    }
}

/// Splits `KEY=VALUE` into a setting and its value.
pub(super) fn split(text: &str) -> Result<(&str, &str), SimulateError> {
    text.split_once('=').ok_or_else(|| {
        SimulateError::Settings(format!(
            "'{text}' is no setting; give SECTION.NAME=VALUE, such as costs.disk_clk=50000"
        ))
    })
}

/// Runs all cells of these settings. Calls `report` with the fraction of the work that is finished.
pub(super) fn rows(
    config: &Config,
    jobs: usize,
    interrupt: &Interrupt,
    report: &(dyn Fn(f64) + Sync),
) -> Result<Vec<Row>, SimulateError> {
    let pulse = |part: f64| {
        report(part);
        check(interrupt).is_ok()
    };
    run_all(config, jobs, &pulse).map_err(|error| match (check(interrupt), error) {
        (Err(interrupted), RunError::Stopped) => interrupted,
        (_, error) => SimulateError::Cell(error),
    })
}

pub(super) fn cluster(args: &ClusterArgs) -> Result<u8, SimulateError> {
    if args.print_config {
        return print(DEFAULT);
    }
    let config = args.chosen.config()?;
    config.check()?;
    let json = args.json.as_deref().filter(|path| *path != Path::new("-"));
    let json = json.map(|path| Output::new("--json", path)).transpose()?;
    let page = args.html.as_deref().map(|path| Output::new("--html", path)).transpose()?;
    let interrupt = Interrupt::install().map_err(SimulateError::Signals)?;
    let progress = ProgressLine::new();
    let rows = rows(&config, args.chosen.jobs(), &interrupt, &|part| show(&progress, part));
    progress.clear();
    let rows = rows?;
    warn_of_unfinished(&rows);
    let judged = claims(&rows);
    // The paper's figures are for its own machine. Beside those of another one, the difference is no error.
    let is_paper = config.model == Config::default().model;
    let results = Results {
        paper_error_points_mean: paper::error(&rows).filter(|_| is_paper).map(|(error, _)| error),
        claims: judged.iter().map(Judged::new).collect(),
        cells: cells(&rows),
    };
    let text = serde_json::to_string_pretty(&results).map_err(|error| SimulateError::Print(error.into()))?;
    if let Some(page) = page {
        page.write(&chart::page(
            "Effective execution rate on a simulated cluster",
            &note(&config, &rows, is_paper),
            &rows,
        ))?;
    }
    if let Some(json) = json {
        json.write(&format!("{text}\n"))?;
    } else if args.json.is_some() {
        return print(&format!("{text}\n"));
    }
    print(&(table(&rows, is_paper) + &verdicts(&judged)))
}

/// Warns of cells with a run in which no process ended within `scheduling.quanta_max` quanta.
pub(super) fn warn_of_unfinished(rows: &[Row]) {
    let unfinished = rows.iter().filter(|row| row.outcomes.iter().any(|outcome| !outcome.finished)).count();
    if unfinished > 0 {
        say(&format!(
            "in {unfinished} of {} cells no process ended within scheduling.quanta_max quanta; their rates are up to then",
            rows.len()
        ));
    }
}

fn note(config: &Config, rows: &[Row], is_paper: bool) -> String {
    let mut note = format!("Mean over {} seeds; bars are one standard deviation.", config.seeds);
    if let Some((error, count)) = paper::error(rows).filter(|_| is_paper) {
        note += &format!(" Mean absolute error against the paper's Table 3: {error:.2} points over {count} cells.");
    }
    note
}

#[derive(Serialize)]
struct Results {
    /// Mean absolute error against the paper's Table 3, in points. `None` if the table has no figures for these cells.
    paper_error_points_mean: Option<f64>,
    /// The conclusions of the paper that these cells can test, with a verdict on each.
    claims: Vec<Judged>,
    cells: Vec<Line>,
}

/// A claim as it is written to JSON.
#[derive(Serialize)]
struct Judged {
    claim: &'static str,
    verdict: &'static str,
    cases: usize,
    held: usize,
    tied: usize,
    least_margin_points: Option<f64>,
    least_margin_points_standard_error: Option<f64>,
    least_margin_place: Option<String>,
}

impl Judged {
    fn new(claim: &Claim) -> Self {
        let least = claim.least();
        Self {
            claim: claim.text,
            verdict: claim.verdict().word(),
            cases: claim.cases.len(),
            held: claim.count(Verdict::Holds),
            tied: claim.count(Verdict::Tied),
            least_margin_points: least.map(|case| case.margin_points),
            least_margin_points_standard_error: least.map(|case| case.error_points),
            least_margin_place: least.map(|case| case.place.clone()),
        }
    }
}

/// A cell as it is written to JSON.
#[derive(Serialize)]
pub(super) struct Line {
    network: String,
    scheduler: &'static str,
    replacement: String,
    remote_cost_clk: u32,
    effective_rate_percent_mean: f64,
    effective_rate_percent_sd: f64,
    seeds: usize,
    effective_rate_percent: Vec<f64>,
    paper_percent: Option<f64>,
    finished: bool,
    quanta_mean: f64,
    fairness_mean: f64,
    placed_percent_mean: f64,
    first_touches_mean: f64,
    copies_mean: f64,
    migrations_mean: f64,
    disk_reads_mean: f64,
    evictions_mean: f64,
    link_wait_clk_mean: f64,
}

pub(super) fn cells(rows: &[Row]) -> Vec<Line> {
    let line = |row: &Row| Line {
        network: row.cell.network.to_string(),
        scheduler: row.cell.scheduler.name,
        replacement: row.cell.replacement.name(),
        remote_cost_clk: row.cell.remote_cost_clk,
        effective_rate_percent_mean: row.rate(),
        effective_rate_percent_sd: row.spread(),
        seeds: row.outcomes.len(),
        effective_rate_percent: row.outcomes.iter().map(|outcome| outcome.effective_percent).collect(),
        paper_percent: paper::rate(&row.cell),
        finished: row.outcomes.iter().all(|outcome| outcome.finished),
        quanta_mean: row.mean(|outcome| f64::from(outcome.quanta)),
        fairness_mean: row.mean(|outcome| outcome.fairness),
        placed_percent_mean: row.mean(|outcome| outcome.placed_percent),
        first_touches_mean: row.mean(|outcome| outcome.counts.first_touches as f64),
        copies_mean: row.mean(|outcome| outcome.counts.copies as f64),
        migrations_mean: row.mean(|outcome| outcome.counts.migrations as f64),
        disk_reads_mean: row.mean(|outcome| outcome.counts.disk_reads as f64),
        evictions_mean: row.mean(|outcome| outcome.counts.evictions as f64),
        link_wait_clk_mean: row.mean(|outcome| outcome.counts.link_wait_clk as f64),
    };
    rows.iter().map(line).collect()
}

/// Returns a table: a block for each network and remote cost, with a row for each replacement method and a column for
/// each scheduler.
fn table(rows: &[Row], is_paper: bool) -> String {
    let mut text = String::new();
    let same_block =
        |a: &Row, b: &Row| (&a.cell.network, a.cell.remote_cost_clk) == (&b.cell.network, b.cell.remote_cost_clk);
    let widest = rows.iter().map(|row| shown_name(&row.cell.replacement.name()).len()).max().unwrap_or(0).max(11);
    for block in rows.chunk_by(same_block) {
        let cell = &block[0].cell;
        if !text.is_empty() {
            text.push('\n');
        }
        text += &format!("network {}, remote access {} clk a level\n", cell.network, cell.remote_cost_clk);
        for (index, line) in block.chunk_by(|a, b| a.cell.replacement == b.cell.replacement).enumerate() {
            if index == 0 {
                text += &line_of(widest, "rate %", line.iter().map(|row| row.cell.scheduler.name.to_owned()));
            }
            let rates = line.iter().map(|row| format!("{:.2} {}", row.rate(), spread(row)));
            text += &line_of(widest, &shown_name(&line[0].cell.replacement.name()), rates);
            let paper = |row: &Row| if is_paper { paper::rate(&row.cell) } else { None };
            let papers: Vec<Option<f64>> = line.iter().map(paper).collect();
            if papers.iter().any(Option::is_some) {
                let shown = papers.iter().map(|paper| paper.map_or(String::new(), |paper| format!("{paper:.2}      ")));
                text += &line_of(widest, "  the paper", shown);
                let errors = line.iter().zip(&papers);
                let shown = errors.map(|(row, paper)| match paper {
                    Some(paper) => format!("{:+.2}      ", row.rate() - paper),
                    None => String::new(),
                });
                text += &line_of(widest, "  error", shown);
            }
        }
    }
    if let Some((error, count)) = paper::error(rows).filter(|_| is_paper) {
        text += &format!("\nmean absolute error against the paper's Table 3: {error:.2} points over {count} cells\n");
    }
    text
}

/// Returns the name of a replacement method, with its name in the paper. The claims call the methods by these.
fn shown_name(name: &str) -> String {
    match name {
        "lru" => "lru (method 1)".to_owned(),
        "kind" => "kind (method 3)".to_owned(),
        other => other.to_owned(),
    }
}

/// Returns the standard deviation of a row's rates as text. One run has none.
fn spread(row: &Row) -> String {
    if row.outcomes.len() > 1 { format!("±{:.2}", row.spread()) } else { "    -".to_owned() }
}

/// Returns one line for each claim, with its verdict.
fn verdicts(claims: &[Claim]) -> String {
    if claims.is_empty() {
        return String::new();
    }
    let line = |claim: &Claim| format!("{:13} {}\n", claim.verdict().word(), claim.line());
    let lines: String = claims.iter().map(line).collect();
    format!("\nclaims; means over the seeds in points, ± their standard error; tied: within one of 0\n{lines}")
}

fn line_of(widest: usize, head: &str, parts: impl Iterator<Item = String>) -> String {
    let mut line = format!("{head:widest$}");
    parts.for_each(|part| line += &format!(" {part:>13}"));
    line.trim_end().to_owned() + "\n"
}
