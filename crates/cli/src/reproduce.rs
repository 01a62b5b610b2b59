//! `hanare reproduce`: the tables, figures and claims of the papers behind Hanare, from runs on this machine.
//!
//! `hanare-reproduce` knows the papers, runs the commands and draws the page. This module checks beforehand what the runs
//! will need, shows how far they are, and writes the results.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use hanare_reproduce::{Cell, Paper, Places, Results, Scale, Setting, Stop, Store, StoreError, Watch};
use hanare_settings::human_size;
use hanare_sys::memory::Memory;
use rustix::fs::statvfs;
use thiserror::Error;

use crate::interrupt::{Interrupt, exit_code};
use crate::message::say;
use crate::progress::ProgressLine;
use crate::{page, version};

const MIB: u64 = 1 << 20;
/// Memory and room on disk that a reproduction needs: quick and full.
const MEMORY: [u64; 2] = [1024 * MIB, 4096 * MIB];
const DISK: [u64; 2] = [64 * MIB, 1024 * MIB];
/// Programs of the system that commands of cells use.
const TOOLS: [&str; 5] = ["awk", "cc", "mktemp", "seq", "sh"];

const EXAMPLES: &str = "\
Examples:
  hanare reproduce                             all papers with small programs: at most a quarter of an hour
  hanare reproduce --paper 1 --out replacement
  hanare reproduce --figure 1.figure7          one figure; --list has their names
  hanare reproduce --full                      the benchmarks' official sizes: hours

DIR gets index.html, cells.json and cells.csv, and a log of each command that failed. After Ctrl-C the same command goes on \
where it stopped. Let nothing else run meanwhile: times are compared.";

/// Reproduce the tables, figures and claims of the papers behind Hanare.
///
/// Each figure is made from runs on this machine and shown beside the numbers that the paper prints. Each claim of the
/// papers is judged by these figures.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ReproduceArgs {
    /// Only this paper, from 1 to 5. 6 is what goes beyond the papers. May be given several times.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=6))]
    paper: Vec<u32>,
    /// Only this table or figure. May be given several times.
    #[arg(long, value_name = "ID")]
    figure: Vec<String>,
    /// Small programs. This is the default.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Programs of the benchmarks' official sizes.
    #[arg(long)]
    full: bool,
    /// The folder for the results.
    #[arg(long, value_name = "DIR", default_value = "reproduced")]
    out: PathBuf,
    /// Replace a reproduction that is in DIR.
    #[arg(long)]
    force: bool,
    /// The folder of the workloads. Default: where 'make workloads' puts them, beside the folder of this command.
    #[arg(long, value_name = "DIR")]
    workloads: Option<PathBuf>,
    /// Print the names of all tables and figures with their titles, and exit.
    #[arg(long)]
    list: bool,
}

/// Why nothing was reproduced.
#[derive(Debug, Error)]
pub(crate) enum ReproduceError {
    /// A name is not that of a table or figure.
    #[error("'{0}' is no table or figure of these papers; see hanare reproduce --list")]
    Unknown(String),
    /// The workloads are not built.
    #[error("{} lacks {missing}; run 'make workloads' in Hanare's sources, or give --workloads", folder.display())]
    Workloads {
        /// The folder.
        folder: PathBuf,
        /// The names of the programs.
        missing: String,
    },
    /// Programs of the system are missing.
    #[error("these programs are needed and not found: {0}; install them")]
    Tools(String),
    /// The machine is too small.
    #[error("{what} is too small: {have} are free, and the runs need {need}; {then}")]
    Room {
        /// The resource that is too small.
        what: &'static str,
        /// What is free.
        have: String,
        /// What is needed.
        need: String,
        /// What to do.
        then: &'static str,
    },
    /// The folder for the results cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The command does not know where it lies, or cannot catch signals.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
    /// Ctrl-C or another terminating signal arrived.
    #[error("interrupted; the same command goes on where it stopped")]
    Interrupted(i32),
}

impl ReproduceError {
    /// The exit code: 128 plus the signal's number after a signal, as in a shell, else 125.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted(signal) => exit_code(*signal),
            _ => crate::EXIT_OWN,
        }
    }
}

/// Reproduces what the flags ask for. The exit code is 0 also if claims do not hold, and 1 if cells failed.
pub(crate) fn reproduce(args: &ReproduceArgs) -> Result<u8, ReproduceError> {
    let scale = if args.full { Scale::Full } else { Scale::Quick };
    let papers = chosen(args, hanare_reproduce::papers(scale))?;
    if args.list {
        return Ok(list(&papers));
    }
    let cells = cells(&papers);
    let hanare = std::env::current_exe()?;
    let beside = || hanare.parent().and_then(Path::parent).unwrap_or(Path::new("")).join("workloads");
    let workloads = args.workloads.clone().unwrap_or_else(beside);
    check_workloads(&cells, &workloads)?;
    check_tools(&cells)?;
    check_room(scale, &args.out)?;
    let watching = Watching { line: ProgressLine::new(), interrupt: Interrupt::install()? };
    let store = Store::open(&args.out, args.force)?;
    let places = Places { hanare, workloads, files: absolute(&store.path("files")) };
    let began = Instant::now();
    let results = hanare_reproduce::run(&cells, &places, &store, &watching).map_err(|stop| match stop {
        Stop::Stopped => ReproduceError::Interrupted(watching.interrupt.signal().unwrap_or_default()),
        Stop::Store(error) => ReproduceError::Store(error),
    })?;
    watching.line.clear();
    store.write("cells.json", &hanare_reproduce::json(&cells, &results))?;
    store.write("cells.csv", &hanare_reproduce::csv(&cells, &results))?;
    store.write("index.html", &hanare_reproduce::page(&papers, &results, &setting(began.elapsed())))?;
    store.finish()?;
    Ok(conclude(&papers, &cells, &results, &args.out))
}

/// Returns the papers with those tables and figures that the flags ask for.
fn chosen(args: &ReproduceArgs, mut papers: Vec<Paper>) -> Result<Vec<Paper>, ReproduceError> {
    let known: BTreeSet<String> =
        papers.iter().flat_map(|paper| &paper.exhibits).map(|exhibit| exhibit.id.clone()).collect();
    if let Some(unknown) = args.figure.iter().find(|id| !known.contains(*id)) {
        return Err(ReproduceError::Unknown(unknown.clone()));
    }
    papers.retain(|paper| args.paper.is_empty() || args.paper.contains(&paper.number));
    for paper in &mut papers {
        paper.exhibits.retain(|exhibit| args.figure.is_empty() || args.figure.contains(&exhibit.id));
    }
    papers.retain(|paper| !paper.exhibits.is_empty());
    Ok(papers)
}

fn list(papers: &[Paper]) -> u8 {
    let mut text = String::new();
    for exhibit in papers.iter().flat_map(|paper| &paper.exhibits) {
        text += &format!("{:<14} {}\n", exhibit.id, exhibit.title);
    }
    // A reader that closes the pipe early is no failure.
    let _ = io::stdout().write_all(text.as_bytes());
    0
}

/// Returns the cells of all exhibits, each once, in the order in which they first appear.
fn cells(papers: &[Paper]) -> Vec<Cell> {
    let mut names = BTreeSet::new();
    let all = papers.iter().flat_map(|paper| &paper.exhibits).flat_map(|exhibit| &exhibit.cells);
    all.filter(|cell| names.insert(cell.name.clone())).cloned().collect()
}

/// Returns the words of all commands.
fn words(cells: &[Cell]) -> impl Iterator<Item = &str> {
    cells.iter().flat_map(|cell| &cell.command).flat_map(|word| word.split_whitespace())
}

fn check_workloads(cells: &[Cell], folder: &Path) -> Result<(), ReproduceError> {
    let needed: BTreeSet<&str> = words(cells).filter_map(|word| word.strip_prefix("{work}/")).collect();
    let missing: Vec<_> = needed.into_iter().filter(|name| !folder.join(name).is_file()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(ReproduceError::Workloads { folder: folder.to_owned(), missing: missing.join(", ") })
}

fn check_tools(cells: &[Cell]) -> Result<(), ReproduceError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |tool: &str| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
    let missing: Vec<_> =
        TOOLS.into_iter().filter(|tool| words(cells).any(|word| word == *tool) && !is_there(tool)).collect();
    if missing.is_empty() { Ok(()) } else { Err(ReproduceError::Tools(missing.join(", "))) }
}

fn check_room(scale: Scale, out: &Path) -> Result<(), ReproduceError> {
    let nth = usize::from(scale == Scale::Full);
    let room = |what, have: u64, need: u64, then| {
        let (have, need) = (human_size(have), human_size(need));
        ReproduceError::Room { what, have, need, then }
    };
    if let Ok(memory) = Memory::now()
        && memory.available_bytes < MEMORY[nth]
    {
        return Err(room("the memory", memory.available_bytes, MEMORY[nth], "end other programs, or leave out --full"));
    }
    let out = absolute(out);
    let there = out.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    if let Ok(disk) = statvfs(there) {
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free < DISK[nth] {
            return Err(room("the disk of --out", free, DISK[nth], "make room, or give another --out"));
        }
    }
    Ok(())
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn setting(took: Duration) -> Setting {
    let words: Vec<_> = std::env::args().collect();
    Setting {
        command: words.join(" "),
        machine: page::machine(),
        version: version::SHORT.clone(),
        written_at: humantime::format_rfc3339_seconds(SystemTime::now())
            .to_string()
            .replace('T', " ")
            .replace('Z', " UTC"),
        took: minutes(took),
    }
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 { format!("{seconds} s") } else { format!("{} min {} s", seconds / 60, seconds % 60) }
}

/// Says what came out.
fn conclude(papers: &[Paper], cells: &[Cell], results: &Results, out: &Path) -> u8 {
    let claims = papers.iter().flat_map(|paper| &paper.exhibits).flat_map(|exhibit| &exhibit.claims);
    let judged: Vec<_> = claims.map(|claim| claim.judge(results)).collect();
    let held = judged.iter().flatten().filter(|verdict| verdict.holds).count();
    let failed = |cell: &&Cell| results.outcome(&cell.name).is_none_or(|outcome| outcome.failed.is_some());
    let failed: Vec<_> = cells.iter().filter(failed).map(|cell| cell.name.as_str()).collect();
    say(&format!("{held} of {} claims hold here; see {}", judged.len(), out.join("index.html").display()));
    if failed.is_empty() {
        return 0;
    }
    let logs = out.join("logs");
    say(&format!("{} of {} cells failed, {} first; see {}", failed.len(), cells.len(), failed[0], logs.display()));
    1
}

/// Shows how far the runs are, and ends them at a signal.
struct Watching {
    line: ProgressLine,
    interrupt: Interrupt,
}

impl Watch for Watching {
    fn show(&self, done: usize, total: usize, cell: &str, left: Option<Duration>) {
        let left = left.map_or(String::new(), |left| format!(", about {} left", minutes(left)));
        self.line.show(&format!("hanare: run {} of {total}{left}: {cell}", done + 1));
    }

    fn is_stopped(&self) -> bool {
        self.interrupt.signal().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ReproduceArgs,
    }

    fn parse(words: &str) -> ReproduceArgs {
        Line::parse_from(std::iter::once("reproduce").chain(words.split_whitespace())).args
    }

    #[test]
    fn papers_and_figures_are_chosen_by_name() {
        let ids = |words: &str| -> Vec<String> {
            let papers = chosen(&parse(words), hanare_reproduce::papers(Scale::Quick)).unwrap();
            papers.into_iter().flat_map(|paper| paper.exhibits).map(|exhibit| exhibit.id).collect()
        };
        assert_eq!(ids("--figure 1.figure7 --figure 5.table3"), ["1.figure7", "5.table3"]);
        assert_eq!(ids("--paper 5"), ["5.table3", "5.figure1"]);
        assert!(ids("").len() > 25);
        let unknown = chosen(&parse("--figure 1.figure8"), hanare_reproduce::papers(Scale::Quick));
        assert!(unknown.is_err_and(|error| error.to_string().starts_with("'1.figure8' is no table or figure")));
    }

    #[test]
    fn missing_programs_are_named_before_anything_runs() {
        let place = tempfile::tempdir().unwrap();
        let papers = chosen(&parse("--figure 1.figure1"), hanare_reproduce::papers(Scale::Quick)).unwrap();
        let error = check_workloads(&cells(&papers), place.path()).unwrap_err().to_string();
        assert!(error.contains("lacks stencil; run 'make workloads'"), "{error}");
        std::fs::write(place.path().join("stencil"), "").unwrap();
        check_workloads(&cells(&papers), place.path()).unwrap();
    }
}
