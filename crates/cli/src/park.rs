//! `hanare park`: sends the far memory of a running process away until the process accesses it again.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use clap::Args;
use hanare::stats::{Parked, Stats};
use hanare_settings::HumanSize;
use hanare_store::EXIT_FULL;
use thiserror::Error;

use crate::EXIT_OWN;
use crate::message::say;
use crate::progress::ProgressLine;
use crate::watch::processes::{self, Process};
use crate::watch::runs::{self, Run};

/// Longest time without progress until the command gives up.
const STALLED: Duration = Duration::from_secs(30);
/// Time between two looks at the process.
const STEP: Duration = Duration::from_millis(20);
/// Most processes that a message names.
const NAMED_MAX: usize = 5;

const NOTES: &str = "\
Examples:
  hanare park 4711                              a notebook's kernel that nobody uses for now
  hanare park 4711 --tree                       its children, too

Each page comes back at its next access, so nothing wakes a process but its work. The budget stays as it is. Locked pages \
stay, and so do pages that the process accesses meanwhile. With a private server, what leaves goes to that server's \
memory, and beyond its --memory to its --spill folder. docs/how-to/park.md says more.";

/// Send the far memory of a running process away until the process accesses it again.
///
/// For a process that does nothing for a while, such as a notebook. Waits until its memory has left, and says how much it
/// was. The process goes on running.
#[derive(Debug, Args)]
#[command(after_long_help = NOTES)]
pub(crate) struct ParkArgs {
    /// The process. It runs under `hanare run`, or has started far memory itself.
    #[arg(value_name = "PID")]
    pid: u32,
    /// Park the processes that descend from it, too.
    #[arg(long)]
    tree: bool,
}

/// Why a process was not parked.
#[derive(Debug, Error)]
pub(crate) enum ParkError {
    /// There is no such process.
    #[error("there is no process {0}; 'hanare top' shows the runs of this user")]
    NoProcess(u32),
    /// The process is of another user.
    #[error("{0}")]
    Refused(String),
    /// The process has no engine.
    #[error("process {0} ({1}) has no far memory; start it with 'hanare run -- PROGRAM'")]
    NotFar(u32, String),
    /// The process of a run has no engine yet.
    #[error("process {0} ({1}) has no far memory yet: its run has made no large allocation")]
    NotYet(u32, String),
    /// Another process of its run has.
    #[error("process {0} ({1}) has no far memory of its own; park {2} of its run, or give --tree")]
    Others(u32, String, String),
    /// The process cannot answer.
    #[error("process {0} ({1}) is stopped and cannot answer; continue it with 'kill -CONT {0}' first")]
    Stopped(u32, String),
    /// The servers are full.
    #[error(
        "the memory servers have no room for all far memory of process {0} ({1}), so it stays near; 'hanare top' shows \
         its size; give the servers more --memory or a --spill folder"
    )]
    NoRoom(u32, String),
    /// The process has ended.
    #[error("process {0} ({1}) has ended meanwhile")]
    Ended(u32, String),
    /// The process does not answer.
    #[error(
        "process {0} ({1}) sent nothing away for {secs} s; it goes on when its memory servers answer, see 'hanare status'",
        secs = STALLED.as_secs()
    )]
    Silent(u32, String),
    /// The result could not be printed.
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
}

impl ParkError {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            ParkError::NoRoom(..) => EXIT_FULL as u8,
            _ => EXIT_OWN,
        }
    }
}

/// Parks a process, or a process and its descendants.
pub(crate) fn park(args: &ParkArgs) -> Result<u8, ParkError> {
    let table = processes::all();
    let root = table.get(&args.pid).ok_or(ParkError::NoProcess(args.pid))?;
    let runs = runs::find(None).runs;
    let mut wanted = vec![args.pid];
    if args.tree {
        wanted.extend(processes::descendants(&table, args.pid));
    }
    let found: Vec<(&Process, &Stats)> = wanted
        .iter()
        .filter_map(|pid| table.get(pid))
        .filter_map(|process| Some((process, far_of(&runs, process.pid)?)))
        .collect();
    if found.is_empty() {
        return Err(why_not_far(root, &runs));
    }
    let (mut failures, mut ended, mut parked) = (Vec::new(), Vec::new(), 0);
    for (process, stats) in found {
        match park_one(process, stats) {
            Err(error @ ParkError::Ended(..)) => ended.push(error),
            Err(error) => failures.push(error),
            Ok(()) => parked += 1,
        }
    }
    // With --tree, some children may end at any time.
    if parked == 0 && failures.is_empty() {
        failures = ended;
    }
    // The other processes are parked. The first failure gives the exit code, and the others have a line each.
    let mut failures = failures.into_iter();
    let first = failures.next();
    failures.for_each(|error| say(&error.to_string()));
    first.map_or(Ok(0), Err)
}

/// Returns the counters of the run in which this process has far memory.
fn far_of(runs: &[Run], pid: u32) -> Option<&Stats> {
    let has = |run: &&Run| run.stats.processes().iter().any(|figures| figures.pid == pid);
    runs.iter().find(has).map(|run| &run.stats)
}

fn why_not_far(process: &Process, runs: &[Run]) -> ParkError {
    let (pid, name) = (process.pid, process.name());
    if let Some(line) = runs::obstacle(process) {
        return ParkError::Refused(line);
    }
    let own: Vec<&Run> = runs.iter().filter(|run| run.has(pid)).collect();
    let others = own.iter().flat_map(|run| run.stats.processes());
    let others: Vec<String> = others.take(NAMED_MAX).map(|figures| figures.pid.to_string()).collect();
    match (own.is_empty(), others.is_empty()) {
        (true, _) => ParkError::NotFar(pid, name),
        (_, true) => ParkError::NotYet(pid, name),
        (_, false) => ParkError::Others(pid, name, others.join(" or ")),
    }
}

/// Parks one process, and prints what has left.
fn park_one(process: &Process, stats: &Stats) -> Result<(), ParkError> {
    let (pid, name) = (process.pid, process.name());
    let ended = || ParkError::Ended(pid, name.clone());
    check_runs(process)?;
    let request = stats.ask_to_park(pid).ok_or_else(ended)?;
    let mut progress = Progress::new();
    let left = loop {
        check_runs(process)?;
        match stats.parked(pid, request).ok_or_else(ended)? {
            Parked::Left(bytes) => break bytes,
            Parked::NoRoom => return Err(ParkError::NoRoom(pid, name)),
            Parked::Waits => {}
        }
        let figures = stats.processes().into_iter().find(|figures| figures.pid == pid).ok_or_else(ended)?;
        if !progress.goes_on(figures.local_bytes) {
            return Err(ParkError::Silent(pid, name));
        }
        std::thread::sleep(STEP);
    };
    drop(progress);
    let near = Process::read(pid).ok_or_else(ended)?.resident_bytes;
    writeln!(io::stdout(), "parked {} of process {pid}; {} stay near", HumanSize(left), HumanSize(near))?;
    Ok(())
}

/// Checks that it is still the same process, and that it runs.
fn check_runs(process: &Process) -> Result<(), ParkError> {
    let (pid, name) = (process.pid, process.name());
    match Process::read(pid) {
        Some(now) if now.started_ticks != process.started_ticks || matches!(now.state, 'Z' | 'X') => {
            Err(ParkError::Ended(pid, process.comm.clone()))
        }
        Some(now) if matches!(now.state, 'T' | 't') => Err(ParkError::Stopped(pid, name)),
        Some(_) => Ok(()),
        None => Err(ParkError::Ended(pid, process.comm.clone())),
    }
}

/// How much is still near, and whether it becomes less.
struct Progress {
    least: u64,
    since: Instant,
    line: ProgressLine,
}

impl Progress {
    fn new() -> Progress {
        Progress { least: u64::MAX, since: Instant::now(), line: ProgressLine::new() }
    }

    /// Takes the far bytes that are near now. Returns false if they have not become less for too long.
    fn goes_on(&mut self, near: u64) -> bool {
        if near < self.least {
            (self.least, self.since) = (near, Instant::now());
            self.line.update(|| format!("hanare: {} left", HumanSize(near)));
        }
        self.since.elapsed() < STALLED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_with_far_memory_can_be_parked() {
        let own = std::process::id();
        let error = park(&ParkArgs { pid: own, tree: false }).unwrap_err();
        assert!(matches!(error, ParkError::NotFar(..)) && error.exit_code() == EXIT_OWN, "{error}");
        let error = park(&ParkArgs { pid: u32::MAX, tree: true }).unwrap_err();
        assert!(matches!(error, ParkError::NoProcess(_)), "{error}");
        assert_eq!(ParkError::NoRoom(1, String::new()).exit_code(), 121);
    }

    #[test]
    fn a_stopped_process_and_one_that_has_ended_are_named() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::read(child.id()).unwrap();
        assert!(check_runs(&process).is_ok());
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while !matches!(check_runs(&process), Err(ParkError::Stopped(..))) {
            assert!(Instant::now() < end, "it does not stop");
            std::thread::sleep(STEP);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(check_runs(&process), Err(ParkError::Ended(..))));
    }

    #[test]
    fn what_becomes_less_is_progress() {
        let mut progress = Progress::new();
        assert!(progress.goes_on(100) && progress.goes_on(100) && progress.goes_on(50));
        progress.since -= STALLED;
        assert!(progress.goes_on(49) && progress.goes_on(49));
        progress.since -= STALLED;
        assert!(!progress.goes_on(49) && !progress.goes_on(60));
    }
}
