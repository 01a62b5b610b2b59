//! `hanare simulate sweep`: runs the cluster simulation for every combination of values of some settings.

use std::path::{Path, PathBuf};

use clap::Args;
use hanare_sim::cluster::Config;
use hanare_sim::cluster::cells::Row;
use serde::Serialize;

use super::cluster::{Chosen, Line, cells, rows, split, warn_of_unfinished};
use super::{Interrupt, Output, ProgressLine, SimulateError, print, show};

/// Maximum number of combinations of values.
const POINTS_MAX: usize = 10_000;

const EXAMPLES: &str = "\
Examples:
  hanare simulate sweep --vary machine.memory_pages=300,400,600 --vary costs.disk_clk=5000,10000 --scheduler algo4
  hanare simulate sweep --vary cells.networks=16,4x4,2x2x2x2 --vary costs.link_clk=0,100 --replacement kind --json links.json";

/// Simulate a cluster for every combination of values of some settings.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct SweepArgs {
    /// A setting and its values, separated by commas. May be given several times. 'hanare simulate cluster
    /// --print-config' lists all settings.
    #[arg(long, value_name = "SECTION.NAME=V1,V2,...", required = true)]
    vary: Vec<String>,
    #[command(flatten)]
    chosen: Chosen,
    /// Write the results to FILE as JSON. With '-', print the JSON instead of the table.
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
}

/// One combination of values.
struct Point {
    values: Vec<(String, String)>,
    config: Config,
}

fn points(args: &SweepArgs) -> Result<Vec<Point>, SimulateError> {
    let mut points = vec![Point { values: Vec::new(), config: args.chosen.config()? }];
    let load = |path: &str| std::fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"));
    for vary in &args.vary {
        let (key, values) = split(vary)?;
        let mut more = Vec::new();
        for point in &points {
            for value in values.split(',').map(str::trim) {
                let mut config = point.config.clone();
                config.set(key, value, &load)?;
                let mut values = point.values.clone();
                values.push((key.to_owned(), value.to_owned()));
                more.push(Point { values, config });
            }
        }
        if more.len() > POINTS_MAX {
            return Err(SimulateError::Settings(format!(
                "--vary gives {} combinations; at most {POINTS_MAX} are simulated",
                more.len()
            )));
        }
        points = more;
    }
    points.iter().try_for_each(|point| point.config.check())?;
    Ok(points)
}

pub(super) fn sweep(args: &SweepArgs) -> Result<u8, SimulateError> {
    let points = points(args)?;
    let json = args.json.as_deref().filter(|path| *path != Path::new("-"));
    let json = json.map(|path| Output::new("--json", path)).transpose()?;
    let interrupt = Interrupt::install().map_err(SimulateError::Signals)?;
    let progress = ProgressLine::new();
    let results = points.iter().enumerate().map(|(index, point)| {
        let report = |part: f64| show(&progress, (index as f64 + part) / points.len() as f64);
        rows(&point.config, args.chosen.jobs(), &interrupt, &report)
    });
    let results = results.collect::<Result<Vec<Vec<Row>>, SimulateError>>();
    progress.clear();
    let results = results?;
    results.iter().for_each(|rows| warn_of_unfinished(rows));
    let shown = Results { points: points.iter().zip(&results).map(|(point, rows)| Shown::new(point, rows)).collect() };
    let text = serde_json::to_string_pretty(&shown).map_err(|error| SimulateError::Print(error.into()))?;
    if let Some(json) = json {
        json.write(&format!("{text}\n"))?;
    } else if args.json.is_some() {
        return print(&format!("{text}\n"));
    }
    print(&table(&points, &results))
}

#[derive(Serialize)]
struct Results {
    points: Vec<Shown>,
}

#[derive(Serialize)]
struct Shown {
    settings: std::collections::BTreeMap<String, String>,
    cells: Vec<Line>,
}

impl Shown {
    fn new(point: &Point, rows: &[Row]) -> Self {
        Self { settings: point.values.iter().cloned().collect(), cells: cells(rows) }
    }
}

fn table(points: &[Point], results: &[Vec<Row>]) -> String {
    let mut lines: Vec<Vec<String>> = Vec::new();
    let heads = points[0].values.iter().map(|(key, _)| key.as_str());
    let fixed = ["network", "remote clk", "replacement", "scheduler", "rate %", "sd", "quanta", "fairness"];
    lines.push(heads.chain(fixed).map(ToOwned::to_owned).collect());
    for (point, rows) in points.iter().zip(results) {
        for row in rows {
            let mut line: Vec<String> = point.values.iter().map(|(_, value)| value.clone()).collect();
            line.extend([
                row.cell.network.to_string(),
                row.cell.remote_cost_clk.to_string(),
                row.cell.replacement.name(),
                row.cell.scheduler.name.to_owned(),
                format!("{:.2}", row.rate()),
                if row.outcomes.len() > 1 { format!("{:.2}", row.spread()) } else { "-".to_owned() },
                format!("{:.0}", row.mean(|outcome| f64::from(outcome.quanta))),
                format!("{:.3}", row.mean(|outcome| outcome.fairness)),
            ]);
            lines.push(line);
        }
    }
    let widths: Vec<usize> = (0..lines[0].len())
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    let show = |line: &Vec<String>| {
        let parts = line.iter().zip(&widths).map(|(part, width)| format!("{part:>width$}"));
        parts.collect::<Vec<_>>().join("  ") + "\n"
    };
    lines.iter().map(show).collect()
}
