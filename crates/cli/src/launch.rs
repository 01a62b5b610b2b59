//! `hanare launch`: starts the ranks of a program that shares memory on this host, and waits for them.

mod elsewhere;
mod table;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use hanare_settings::parse_size;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use thiserror::Error;

use crate::leftover::{LAUNCH_PREFIX, locked, remove_ended};
use crate::message::say;
use crate::program::ProgramError;
use crate::run::warn_of_variables;
use crate::streams;
use crate::supervise::End;
use elsewhere::{Elsewhere, ElsewhereError};

const EXAMPLES: &str = "\
Examples:
  hanare launch -n 4 -- ./laplace
  hanare launch -n 2 --protocol update --stats-json counts.json -- ./lu -n 2048
  hanare launch -n 4 --local 1G -- ./lu -n 30016       each rank keeps 1G of shared pages
  hanare launch -n 4 --local 1G --server node7 --server node8 -- ./lu -n 30016
Exit codes: 0 when every rank ended with 0; otherwise that of the first rank that failed by itself (128+n for signal n), or \
122 if ranks only lost one another. 120: a memory server was lost. 121: all memory servers are full. 125: the ranks could \
not be started.";

/// Time that the other ranks have to end by themselves after one rank has failed.
const GRACE: Duration = Duration::from_secs(4);
/// Exit code of a rank that lost another rank.
const EXIT_LOST: u8 = 122;

/// Maximum number of names tried for the directory through which the ranks find each other.
const PLACES_MAX: u32 = 100;

/// Smallest value of `--local`, in bytes.
const LOCAL_MIN: u64 = 256 << 10;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Protocol {
    Invalidate,
    Update,
    Adaptive,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Transfer {
    ZeroCopy,
    Message,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Home {
    Static,
    Migrate,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Bind {
    Yes,
    No,
}

/// Start the ranks (processes) of a program that shares memory by dsm.h.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct LaunchArgs {
    /// Number of ranks, 1 to 256.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    ranks: u16,
    /// What happens to a copy of a page that another rank wrote: it is invalidated, it is updated, or the better of the
    /// two is chosen for each page (adaptive).
    #[arg(long, value_enum, default_value = "adaptive", env = "HANARE_PROTOCOL", hide_env_values = true)]
    protocol: Protocol,
    /// How pages travel: ranks read and write each other's memory, or send messages.
    #[arg(long, value_enum, default_value = "zero-copy", env = "HANARE_TRANSFER", hide_env_values = true)]
    transfer: Transfer,
    /// Whether a page's home moves to the rank that writes it.
    #[arg(long, value_enum, default_value = "static", env = "HANARE_HOME_POLICY", hide_env_values = true)]
    home: Home,
    /// Whether each rank stays on its share of the CPUs. Needs at least as many CPUs as ranks.
    #[arg(long, value_enum, default_value = "yes", env = "HANARE_BIND", hide_env_values = true)]
    bind: Bind,
    /// Size of the shared region. It takes no memory before it is used.
    #[arg(long, value_name = "SIZE", default_value = "64G", value_parser = parse_size, env = "HANARE_SHARED_BYTES", hide_env_values = true)]
    shared: u64,
    /// Local memory of each rank for shared pages. A rank that needs more first drops copies of other ranks' pages.
    /// Then it evicts its own pages to memory servers. If no server is named, a private server is started for the
    /// ranks. Default: a rank keeps all pages.
    #[arg(long, value_name = "SIZE", value_parser = parse_local)]
    local: Option<u64>,
    #[command(flatten)]
    elsewhere: elsewhere::ElsewhereArgs,
    /// Print the counters of each rank as a table of text at the end, on stderr or to FILE.
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "-",
        value_parser = PathBufValueParser::new().try_map(parse_report)
    )]
    report: Option<PathBuf>,
    /// Write the counters of each rank to this file, as a JSON array.
    #[arg(long, value_name = "FILE")]
    stats_json: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Why the ranks did not run to their end.
#[derive(Debug, Error)]
pub(crate) enum LaunchError {
    /// The program does not exist or cannot be run.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The directory through which the ranks find each other could not be made.
    #[error("cannot make a directory for the ranks to meet in: {0}; check TMPDIR")]
    Place(io::Error),
    /// Signals could not be set up.
    #[error("cannot set up signals: {0}")]
    Signals(io::Error),
    /// There is no backing store for evicted pages.
    #[error(transparent)]
    Elsewhere(#[from] ElsewhereError),
    /// The counters could not be written.
    #[error("cannot write {path}: {source}", path = path.display())]
    Counts {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl LaunchError {
    /// The exit code for this error.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            LaunchError::Program(error) => error.exit_code(),
            _ => crate::EXIT_OWN,
        }
    }
}

/// An event that the launcher waits for.
enum News {
    Ended(u16, io::Result<ExitStatus>),
    Signal(i32),
}

/// Starts the ranks and waits for them all.
pub(crate) fn launch(args: &LaunchArgs) -> Result<u8, LaunchError> {
    // Signals are caught before the ranks' directory is made. Otherwise a signal could end the launcher and leave the
    // directory behind.
    let (sender, news) = channel();
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(LaunchError::Signals)?;
    let heard = sender.clone();
    let of_signals = move || signals.forever().try_for_each(|signal| heard.send(News::Signal(signal)));
    std::thread::Builder::new().spawn(of_signals).map_err(LaunchError::Signals)?;
    warn_of_variables();
    args.check_outputs()?;
    let place = Place::new()?;
    let elsewhere = Elsewhere::open(&args.elsewhere, args.local, args.ranks)?;
    let mut ranks = Ranks { pidfds: Vec::new() };
    for rank in 0..args.ranks {
        let (child, pidfd) = match start(args, rank, &place.0, &elsewhere) {
            Ok(started) => started,
            Err(source) => {
                ranks.send(Signal::KILL);
                return Err(ProgramError::of_start(&args.program[0], &source).into());
            }
        };
        ranks.pidfds.push(Some(pidfd));
        let sender = sender.clone();
        let waits = move || {
            let mut child = child;
            let status = child.wait();
            sender.send(News::Ended(rank, status))
        };
        if let Err(error) = std::thread::Builder::new().spawn(waits) {
            ranks.send(Signal::KILL);
            return Err(LaunchError::Signals(error));
        }
    }
    let code = ranks.wait(&news, &place);
    elsewhere.close();
    let counts = place.counts(args.ranks);
    if code == 0 && !place.has_counts(args.ranks) {
        let alone = "each of its processes ran alone";
        say(&format!(
            "no rank of {} shared memory: it never called dsm_startup and dsm_shutdown, so {alone}",
            name(args)
        ));
    }
    args.write_outputs(&counts)?;
    Ok(code)
}

impl LaunchArgs {
    /// Refuses files for the counters that are the ranks' stdin or stdout.
    fn check_outputs(&self) -> Result<(), LaunchError> {
        let report = self.report.iter().filter(|path| path.as_os_str() != "-");
        for path in report.chain(&self.stats_json) {
            streams::is_stderr(path).map_err(|source| LaunchError::Counts { path: path.clone(), source })?;
        }
        Ok(())
    }

    /// Writes the counters of the ranks to the places that were asked for.
    fn write_outputs(&self, counts: &str) -> Result<(), LaunchError> {
        let write = |path: &PathBuf, text: &str| {
            let written = match streams::is_stderr(path) {
                Ok(true) => io::stderr().write_all(text.as_bytes()),
                Ok(false) => std::fs::write(path, text),
                Err(error) => Err(error),
            };
            written.map_err(|source| LaunchError::Counts { path: path.clone(), source })
        };
        match &self.report {
            Some(path) if path.as_os_str() == "-" => {
                // Ignored: if standard error is closed, nobody can read the table.
                let _ = io::stderr().write_all(table::table(counts, self.ranks).as_bytes());
            }
            Some(path) => write(path, &table::table(counts, self.ranks))?,
            None => {}
        }
        self.stats_json.as_ref().map_or(Ok(()), |path| write(path, counts))
    }
}

fn name(args: &LaunchArgs) -> String {
    args.program.first().map_or(String::new(), |name| name.to_string_lossy().into_owned())
}

/// Parses a size of at least `LOCAL_MIN`. Memory of that size holds all pages that one instruction may access.
fn parse_local(text: &str) -> Result<u64, String> {
    match parse_size(text).map_err(|error| error.to_string())? {
        size if size >= LOCAL_MIN => Ok(size),
        _ => Err("a rank keeps 256K of shared pages at least".to_owned()),
    }
}

/// Parses the name of the report's file. Refuses the name of a page, because ranks have only a table.
fn parse_report(path: PathBuf) -> Result<PathBuf, String> {
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("html")) {
        let instead = "write --report=FILE.txt for a table, or --stats-json FILE for all counters";
        return Err(format!("ranks have no page with charts; {instead}"));
    }
    Ok(path)
}

/// Starts a rank. Returns its process and a pidfd.
fn start(args: &LaunchArgs, rank: u16, place: &Path, elsewhere: &Elsewhere) -> io::Result<(Child, OwnedFd)> {
    let name = |value: Option<clap::builder::PossibleValue>| value.map(|v| v.get_name().to_owned()).unwrap_or_default();
    let mut command = Command::new(&args.program[0]);
    elsewhere.set_variables(&mut command);
    hanare_sys::signal::ignore_in(&mut command, 0);
    let mut child = command
        .args(&args.program[1..])
        .env("HANARE_RANK", rank.to_string())
        .env("HANARE_RANKS", args.ranks.to_string())
        .env("HANARE_MEET", place)
        .env("HANARE_COUNTS", place)
        .env("HANARE_LAUNCHER", std::process::id().to_string())
        .env("HANARE_PROTOCOL", name(args.protocol.to_possible_value()))
        .env("HANARE_TRANSFER", name(args.transfer.to_possible_value()))
        .env("HANARE_BIND", name(args.bind.to_possible_value()))
        .env("HANARE_HOME_POLICY", name(args.home.to_possible_value()))
        .env("HANARE_SHARED_BYTES", args.shared.to_string())
        .envs(args.local.map(|bytes| ("HANARE_SHARED_LOCAL_BYTES", bytes.to_string())))
        .spawn()?;
    match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(pidfd) => Ok((child, pidfd)),
        Err(error) => {
            child.kill()?;
            child.wait()?;
            Err(error.into())
        }
    }
}

/// The running ranks.
struct Ranks {
    /// One pidfd per rank. It is opened before the rank's process can be reaped, so it never refers to another process.
    /// `None` once the rank has ended.
    pidfds: Vec<Option<OwnedFd>>,
}

impl Ranks {
    fn send(&self, signal: Signal) {
        for pidfd in self.pidfds.iter().flatten() {
            // Ignored: it fails only for a rank that has ended, which needs no signal.
            let _ = pidfd_send_signal(pidfd, signal);
        }
    }

    /// Waits for all ranks. If one fails, the other ranks end by themselves, or are killed after [`GRACE`]. Returns the
    /// exit code.
    fn wait(&mut self, news: &Receiver<News>, place: &Place) -> u8 {
        let mut code = 0;
        let mut failed_at: Option<Instant> = None;
        while self.pidfds.iter().any(Option::is_some) {
            let left = failed_at.map_or(GRACE, |at: Instant| GRACE.saturating_sub(at.elapsed()));
            match news.recv_timeout(left) {
                Ok(News::Ended(rank, status)) => {
                    self.pidfds[usize::from(rank)] = None;
                    place.note_end(rank);
                    let ended = status.map_or(crate::EXIT_OWN, |status| End::of(status).exit_code());
                    if ended != 0 {
                        failed_at.get_or_insert_with(Instant::now);
                        report(rank, ended);
                        code = if code == 0 || code == EXIT_LOST { ended } else { code };
                    }
                }
                Ok(News::Signal(signal)) => {
                    let signal = [(SIGINT, Signal::INT), (SIGHUP, Signal::HUP)]
                        .into_iter()
                        .find_map(|(number, named)| (number == signal).then_some(named))
                        .unwrap_or(Signal::TERM);
                    failed_at.get_or_insert_with(Instant::now);
                    self.send(signal);
                }
                Err(RecvTimeoutError::Timeout) if failed_at.is_some() => {
                    self.send(Signal::KILL);
                    failed_at = Some(Instant::now());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        code
    }
}

fn report(rank: u16, code: u8) {
    match code {
        EXIT_LOST => {}
        code if code > 128 => say(&format!("rank {rank} was ended by signal {}", code - 128)),
        code => say(&format!("rank {rank} ended with exit code {code}")),
    }
}

/// The directory through which the ranks find each other, and its lock. The directory is removed when this value is
/// dropped.
struct Place(PathBuf, #[expect(dead_code, reason = "held as long as the folder")] Option<File>);

impl Place {
    fn new() -> Result<Self, LaunchError> {
        use std::os::unix::fs::DirBuilderExt;
        remove_ended(&std::env::temp_dir(), LAUNCH_PREFIX);
        let name = format!("{LAUNCH_PREFIX}{}", std::process::id());
        for attempt in 0..PLACES_MAX {
            let path = std::env::temp_dir().join(if attempt == 0 { name.clone() } else { format!("{name}-{attempt}") });
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                // If the lock cannot be taken, the process number in the name still shows that the folder is in use.
                Ok(()) => {
                    let lock = locked(&path).ok();
                    return Ok(Self(path, lock));
                }
                // The name is taken. An earlier process with this number left the folder, or another user made it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(LaunchError::Place(error)),
            }
        }
        Err(LaunchError::Place(io::ErrorKind::AlreadyExists.into()))
    }

    /// Writes the number of a rank that has ended to a file. Ranks that still wait for this rank to connect read that
    /// file.
    fn note_end(&self, rank: u16) {
        // Ignored: without the note, the ranks wait until the launcher ends them.
        let _ = std::fs::write(self.0.join("ended"), format!("{rank}\n"));
    }

    /// Returns whether any rank wrote its counters. `dsm_shutdown` writes them.
    fn has_counts(&self, ranks: u16) -> bool {
        (0..ranks).any(|rank| self.0.join(format!("{rank}.json")).exists())
    }

    /// Returns the counters that the ranks wrote at their end, as one JSON array.
    fn counts(&self, ranks: u16) -> String {
        let of = |rank: u16| std::fs::read_to_string(self.0.join(format!("{rank}.json"))).ok();
        let counts: Vec<String> = (0..ranks).filter_map(of).collect();
        format!("[{}]\n", counts.join(",\n "))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
