//! `hanare trace`: records what the pager of a run saw and did, and examines recordings.

mod aside;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use hanare_paging::trace::{BYTES_MIN, Reader, TraceError};
use hanare_settings::{format_size, human_size, parse_size};
use hanare_sim::replay::{ReplayError, replay};
use thiserror::Error;

use crate::message::say;
use crate::run::{self, Recording, RunArgs, RunError};
use crate::streams;
use aside::{Aside, Outcome};

/// Record what the pager of a run sees and does, for 'hanare simulate', and examine recordings.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Record(Box<RecordArgs>),
    /// Print the settings of a recorded run and the counts of its records.
    Info(FileArgs),
    /// Check that the policy of a recorded run chooses the same victims again, in the same order.
    Replay(FileArgs),
}

#[derive(Debug, Args)]
struct FileArgs {
    /// A file that 'hanare trace record' wrote.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

const EXAMPLES: &str = "\
Example:
  hanare trace record -o sort.trace --local 25% --prefetch none --page-size 64K -- sort -S 1200M big.txt
  hanare simulate policies --trace sort.trace --local 25%,50%,75%

References to pages in view are not recorded, so a smaller --local shows more of a program. If the program starts other \
programs, the first process that accesses far pages is recorded.
The trace is written beside FILE and replaces FILE at the end. A run that records nothing says so and leaves FILE as it \
was. Its exit code is then 125 if the program's is 0.";

/// Run a program as 'hanare run' does, and record what its pager sees and does.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
struct RecordArgs {
    /// The file to record into.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Maximum size of the recording. Beyond it, the run goes on unrecorded, and the trace says so. Default:
    /// HANARE_TRACE_BYTES or 256M.
    #[arg(long, value_name = "SIZE", value_parser = parse_bound)]
    trace_bytes: Option<u64>,
    #[command(flatten)]
    run: RunArgs,
}

fn parse_bound(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    if bytes < BYTES_MIN {
        Err(format!("'{text}' is too little; give at least {}", format_size(BYTES_MIN)))
    } else {
        Ok(bytes)
    }
}

/// Why a trace could not be recorded or read.
#[derive(Debug, Error)]
pub(crate) enum TraceCommandError {
    /// The recording cannot be written.
    #[error("cannot write {path}: {source}; check -o", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The recorded file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The replay failed.
    #[error("{path} {source}", path = path.display())]
    Replay {
        /// The file.
        path: PathBuf,
        /// The error.
        source: ReplayError,
    },
    /// Standard output cannot be written.
    #[error("cannot print: {0}")]
    Print(io::Error),
}

impl TraceCommandError {
    /// The exit code: 1 if a replayed policy chooses other victims than the recorded ones, the code of `hanare run` if
    /// the run failed, else 125.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Run(error) => error.exit_code(),
            Self::Replay { source: ReplayError::Differs { .. }, .. } => 1,
            _ => crate::EXIT_OWN,
        }
    }
}

/// Why a file is not a trace.
#[derive(Debug, Error)]
pub(crate) enum FileError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a complete trace.
    #[error("{path} {source}", path = path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// The error in its contents.
        source: TraceError,
    },
}

/// Reads a file that should be a trace. Stops early if the beginning is not that of a trace.
pub(crate) fn read_trace(path: &Path) -> Result<Vec<u8>, FileError> {
    const BEGIN: u64 = 10;
    let failed = |source| FileError::Read { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    (&file).take(BEGIN).read_to_end(&mut bytes).map_err(failed)?;
    match Reader::new(&bytes) {
        Ok(_) | Err(TraceError::Truncated(_)) => file.read_to_end(&mut bytes).map_err(failed)?,
        Err(source) => return Err(FileError::Trace { path: path.to_owned(), source }),
    };
    Ok(bytes)
}

/// Runs the chosen subcommand.
pub(crate) fn trace(args: &TraceArgs) -> Result<u8, TraceCommandError> {
    match &args.what {
        What::Record(args) => record(args),
        What::Info(args) => info(&args.file),
        What::Replay(args) => check(&args.file),
    }
}

fn record(args: &RecordArgs) -> Result<u8, TraceCommandError> {
    if args.run.only_asks_for_help() {
        return Ok(run::run(&args.run, None)?);
    }
    let failed = |source| TraceCommandError::Write { path: args.output.clone(), source };
    if streams::is_stderr(&args.output).map_err(failed)? {
        return Err(failed(io::Error::other("stderr goes there, and its lines would be lost; name another file")));
    }
    let aside = Aside::open(&args.output).map_err(failed)?;
    let recording = Recording { path: aside.path().to_owned(), bytes: args.trace_bytes };
    let code = run::run(&args.run, Some(recording))?;
    let output = args.output.display();
    match aside.settle() {
        Ok(Outcome::Whole) => Ok(code),
        Ok(Outcome::Cut) => {
            say(&format!("{output} has the run's beginning only: the program ended before it wrote the rest"));
            Ok(code)
        }
        Ok(Outcome::Growing) => {
            say(&format!(
                "{output} is not whole yet: it grows until a process that the program left running has ended"
            ));
            Ok(code)
        }
        Ok(Outcome::Nothing) => {
            say(&format!("nothing was recorded, {output} is as it was: no far page was accessed; try a lower --far"));
            Ok(own_failure(code))
        }
        Err(source) => {
            say(&failed(source).to_string());
            Ok(own_failure(code))
        }
    }
}

/// Returns the exit code for a missing trace: the program's own code if the program failed, else 125.
fn own_failure(code: u8) -> u8 {
    if code == 0 { crate::EXIT_OWN } else { code }
}

fn info(path: &Path) -> Result<u8, TraceCommandError> {
    let failed = |source| FileError::Trace { path: path.to_owned(), source };
    let bytes = read_trace(path)?;
    let mut reader = Reader::new(&bytes).map_err(failed)?;
    for record in reader.by_ref() {
        record.map_err(failed)?;
    }
    let mut text = String::new();
    for (name, value) in reader.header().fields() {
        text += &format!("{:14} {value}\n", name.replace('_', " "));
    }
    if let Some(end) = reader.end() {
        text += &format!("{:14} {}\n{}", "records", end.counts.total(), end.counts);
        text += &format!("{:14} {}\n", "size", human_size(bytes.len() as u64));
        let whole = if end.cut { "no: its bound was reached, or its program was killed" } else { "yes" };
        text += &format!("{:14} {whole}\n", "whole run");
    }
    print(&text)
}

fn check(path: &Path) -> Result<u8, TraceCommandError> {
    let replayed = replay(&read_trace(path)?);
    let replayed = replayed.map_err(|source| TraceCommandError::Replay { path: path.to_owned(), source })?;
    let cut = if replayed.cut { ", as far as the run was recorded" } else { "" };
    print(&format!(
        "the same {} victims in the same order, {} times none, {} pages hidden{cut}\n",
        replayed.victims, replayed.none, replayed.hidden
    ))
}

fn print(text: &str) -> Result<u8, TraceCommandError> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(TraceCommandError::Print(error)),
        _ => Ok(0),
    }
}
