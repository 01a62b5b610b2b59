//! `hanare top`: the runs of this machine while they go on, and memory servers.

mod columns;
mod lines;
mod members;
mod screen;
mod servers;
mod terminal;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use hanare_wire::{Endpoint, Key, KeyError};
use serde::Serialize;
use thiserror::Error;

use crate::narrow::{self, fitted};
use crate::watch::processes;
use crate::watch::runs::obstacle;
use lines::{RunLine, Watcher};
use servers::ServerLine;

/// Shortest interval between two readings.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Longest such interval.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// Column in which the rest of a long line begins.
const INDENT: usize = 4;

const NOTES: &str = "\
Examples:
  hanare top                                    the runs of this user, until q
  hanare top --pid 4711                         the run to which process 4711 belongs
  hanare top --server node7 --server node8      two memory servers, too
  hanare top --once --json --interval 5s        rates of 5 seconds, for a script

FAULT/s, IN/s, OUT/s, P50 and P99 are of the last interval: faults, bytes fetched and written back, and the median \
and the 99th percentile of a fault's time. FAR is the far memory that is allocated, LOCAL the part in local memory, \
BUDGET its limit. NEAR is the private memory that is not far. STALL is the share of their time that the program's \
threads waited for pages: the waits that ended in the interval, divided by the interval and the number of threads. \
Threads that sleep for other reasons lower it. docs/watching.md says more.";

/// Show the runs of this machine while they go on: faults, traffic, memory, and how long threads wait.
///
/// Shows the runs of this user, and to root those of all users. Keys: arrows select a run, < and > choose the column by
/// which runs are sorted, I reverses the order, h explains, q ends.
#[derive(Debug, Args)]
#[command(after_long_help = NOTES)]
pub(crate) struct TopArgs {
    /// Show only the run to which this process belongs.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// A memory server to show. May be given several times.
    #[arg(long = "server", value_name = "HOST[:PORT]")]
    servers: Vec<Endpoint>,
    /// File with the key of these servers.
    #[arg(long, value_name = "FILE", requires = "servers")]
    key: Option<PathBuf>,
    /// Print one table after one interval, and end.
    #[arg(long)]
    once: bool,
    /// With --once: print JSON.
    #[arg(long, requires = "once")]
    json: bool,
    /// Time between two readings: 100ms to 1h.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,
}

/// Why nothing can be shown.
#[derive(Debug, Error)]
pub(crate) enum TopError {
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The output is a file or a pipe.
    #[error("standard output is no terminal; add --once, or --once --json for a script")]
    NoTerminal,
    /// There is no such process.
    #[error("there is no process {0}; 'hanare top' without --pid shows all runs")]
    NoProcess(u32),
    /// The process cannot be looked at.
    #[error("{0}")]
    Refused(String),
    /// The process has no far memory by `hanare run`.
    #[error("process {0} ({1}) belongs to no run; start it with 'hanare run -- PROGRAM'")]
    NoRun(u32, String),
    /// The terminal cannot be used.
    #[error("cannot use the terminal: {0}; add --once")]
    Terminal(io::Error),
    /// The figures could not be printed.
    #[error("cannot print: {0}")]
    Print(io::Error),
}

/// Everything that is shown at one moment. The JSON has this structure. Units are in the names.
#[derive(Debug, Default, Serialize)]
pub(crate) struct View {
    hanare_version: &'static str,
    interval_s: f64,
    runs: Vec<RunLine>,
    servers: Vec<ServerLine>,
    /// Processes that could not be looked at, and why.
    notes: Vec<String>,
}

/// Shows runs until the user ends it, or once.
pub(crate) fn top(args: &TopArgs) -> Result<u8, TopError> {
    let key = args.key.as_deref().map(Key::from_file).transpose()?;
    if !args.once && !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal);
    }
    let mut watcher = Watcher::new(args.pid);
    let runs = watcher.look().0;
    if let (Some(pid), true) = (args.pid, runs.is_empty()) {
        return Err(why_nothing(pid));
    }
    if !args.once {
        return terminal::show(
            watcher,
            servers::Asked::start(&args.servers, key.as_ref(), args.interval),
            args.interval,
        );
    }
    std::thread::sleep(args.interval);
    let (runs, notes) = watcher.look();
    let servers = servers::ask_once(&args.servers, key.as_ref());
    let view = View::new(args.interval, runs, servers, notes);
    let text = match args.json {
        true => serde_json::to_string_pretty(&view).map_err(|error| TopError::Print(error.into()))? + "\n",
        false => view.text(narrow::width(&io::stdout())),
    };
    match io::stdout().write_all(text.as_bytes()) {
        // A reader that closes the pipe early is no failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        other => other.map(|()| 0).map_err(TopError::Print),
    }
}

/// Returns why no run has this process.
fn why_nothing(pid: u32) -> TopError {
    match processes::all().get(&pid) {
        None => TopError::NoProcess(pid),
        Some(process) => match obstacle(process) {
            Some(line) => TopError::Refused(line),
            None => TopError::NoRun(pid, process.name()),
        },
    }
}

impl View {
    fn new(interval: Duration, runs: Vec<RunLine>, servers: Vec<ServerLine>, notes: Vec<String>) -> View {
        View { hanare_version: env!("CARGO_PKG_VERSION"), interval_s: interval.as_secs_f64(), runs, servers, notes }
    }

    /// Returns the tables, with the columns that fit into `width`.
    fn text(&self, width: usize) -> String {
        let mut lines = self.notes.clone();
        if self.runs.is_empty() {
            lines.push(nothing());
        } else {
            lines.extend(columns::table(lines::COLUMNS, &self.runs, width));
        }
        if let [run] = self.runs.as_slice() {
            lines.push(String::new());
            lines.extend(columns::table(members::MEMBERS, &run.processes, width));
        }
        if !self.servers.is_empty() {
            lines.push(String::new());
            lines.extend(columns::table(servers::COLUMNS, &self.servers, width));
        }
        lines.iter().map(|line| fitted(&format!("{}\n", line.trim_end()), width, INDENT)).collect()
    }
}

/// Returns the line for a machine without runs.
fn nothing() -> String {
    let whose = if rustix::process::geteuid().is_root() { "" } else { " of this user" };
    format!("no run{whose} goes on; 'hanare run -- PROGRAM' starts one")
}

/// Reads an interval: a time with its unit, or a number of seconds.
fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let interval = seconds.or_else(|| humantime::parse_duration(text).ok());
    match interval {
        Some(interval) if (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) => Ok(interval),
        Some(_) => Err("give 100ms to 1h".to_owned()),
        None => Err("this is no time; give 1s, 500ms or 2m".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_a_unit_or_is_in_seconds() {
        for (text, ms) in [("1s", 1000), ("500ms", 500), ("2", 2000), ("0.5", 500), ("1m", 60_000), ("1h", 3_600_000)] {
            assert_eq!(parse_interval(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "x", "0", "-1", "99ms", "2h", "1e300", "nan", "inf", "1 parsec"] {
            assert!(parse_interval(text).is_err_and(|why| why.contains("give ")), "{text}");
        }
    }

    #[test]
    fn a_machine_without_runs_says_how_to_start_one() {
        let text =
            View::new(Duration::from_secs(1), Vec::new(), Vec::new(), vec!["a note".to_owned()]).text(usize::MAX);
        assert!(text.starts_with("a note\nno run") && text.ends_with("starts one\n"), "{text}");
    }
}
