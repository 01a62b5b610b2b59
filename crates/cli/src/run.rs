//! `hanare run`: from flags to a program with far memory, and from its end to the exit code and the report.

pub(crate) mod choices;
mod ended;
mod outputs;
mod progress;
mod sampling;
pub(crate) mod servers;
mod watching;

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use hanare::far::{self, StartError};
use hanare::polling::Pollers;
use hanare::spare::Watch;
use hanare::stats::{Stats, StatsError};
use hanare_settings::fits::{self, TooMuch};
use hanare_settings::hostfile::{Hostfile, HostfileError};
use hanare_settings::{
    DEFAULT_POLICY, DEFAULT_PREFETCH, Environment, Local, Mode, OnLoss, POLICIES, PREFETCHERS, PageSize, Redundancy,
    Seal, ServerSpec, Settings, SettingsError, Slowdown, human_size, parse_far, parse_name, parse_near, parse_size,
    unknown_variables,
};
use hanare_store::private::{Private, PrivateError, PrivateOptions};
use hanare_sys::limits::{self, Kind};
use hanare_sys::memory::{Memory, MemoryError};
use thiserror::Error;

use crate::fit::Fit;
use crate::library::{self, LibraryError};
use crate::message::say;
use crate::metrics::MetricsError;
use crate::output::OutputError;
use crate::program::{self, ProgramError};
use crate::serve::warn_of_spill;
use crate::signals::Forwarder;
use crate::supervise::{self, SuperviseError};
use outputs::Outputs;
use sampling::Sampler;
use servers::ServersError;
use watching::WatchingArgs;

/// Share of a program's allocations that is local in `hanare fit`.
const FIT_PERCENT: u8 = 25;
/// Smallest number for descriptors that the program inherits, because programs often assume that low numbers are free.
const STATS_FD_MIN: i32 = 100;
/// Open files with which the command, the program's far memory and the private server get by.
const FILES_NEEDED: u32 = 32;
/// Bytes of data below which the threads and tables of the command and of a private server do not fit.
const DATA_MIN: u64 = 16 << 20;
/// Default spill directory of a private server. Large files that need not survive a reboot belong there.
const SPILL_DEFAULT: &str = "/var/tmp";

const EXAMPLES: &str = "\
Examples:
  hanare run --local 256M -- sort -S 1200M big.txt     sort with 1200M, 256M of it local
  hanare run --local 25% --report -- ./simulate        a quarter of its allocations is local
  hanare run --local 25% --report=run.html -- ./fold   and write a page of where its time went
  hanare run --server node7 --server node8 -- ./fold   the rest is on node7 and node8
  hanare run -f hosts -n 3 -- ./solve                  the host file of the DLM papers
  hanare run --slowdown 1.2 -- ./simulate              as little local memory as a fifth more time needs
  hanare run --local 1G --fit -- ./solve               and say what other sizes would bring
  hanare run --redundancy mirror -f hosts -- ./solve   two copies of each page, on two of the hosts

Memory servers are started with 'hanare serve'.
Variables: these give defaults for flags: HANARE_LOCAL, HANARE_SERVERS, HANARE_PAGE_SIZE, HANARE_FAR, HANARE_NEAR, HANARE_POLICY, \
HANARE_PREFETCH, HANARE_MODE, HANARE_KEY_FILE, HANARE_SEAL, HANARE_ON_LOSS, HANARE_REDUNDANCY, \
HANARE_ALLOW_SAME_HOST. These have no flag: HANARE_STATIC (on), HANARE_RESERVE (256G), \
HANARE_TIMEOUT (3 s), HANARE_OVERCOMMIT (heuristic), HANARE_DISABLE.";

/// Run a program whose large allocations live in far memory.
///
/// At most --local bytes of them are in local memory at any moment. The rest is on memory servers. If no server is
/// named, a private server on this machine is started for the run. It keeps pages in memory up to --memory, and further
/// pages in a spill file. The program is not changed: its output, its exit code and its signals are its own.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// Local memory for far pages: a size (256M, 1.5G) or a share of what the program allocates (25%). Default: the
    /// compute node's line of the host file, else half of the memory available.
    #[arg(long, value_name = "SIZE|PERCENT", allow_negative_numbers = true)]
    local: Option<Local>,
    /// Hold this slowdown (1.2: a fifth more time than without waits for pages) with as little local memory as that takes,
    /// and at most --local. Default of --local then: the memory available.
    #[arg(long, value_name = "TIMES", allow_negative_numbers = true, conflicts_with = "fit")]
    slowdown: Option<Slowdown>,
    /// A memory server, and how much of it to use. May be given several times.
    #[arg(long = "server", value_name = "HOST[:PORT][=SIZE]")]
    servers: Vec<ServerSpec>,
    /// A host file: 'HOST MEGABYTES' lines, the compute node first.
    #[arg(short = 'f', value_name = "HOSTFILE")]
    hostfile: Option<PathBuf>,
    /// Use the first N hosts of the host file, including the compute node.
    #[arg(short = 'n', value_name = "N", requires = "hostfile")]
    count: Option<usize>,
    /// Which allocations become far: every one (all), those of 128K and more (large), or those of SIZE and more.
    /// Default: large. Sizes below 128K work in thread mode, and in sigbus mode with the call filter (see hanare doctor).
    #[arg(long, value_name = "all|large|SIZE", value_parser = parse_far, allow_negative_numbers = true)]
    far: Option<usize>,
    /// Page size: auto, or a power of two from 4K to 2M. Default: auto.
    #[arg(long, value_name = "auto|SIZE")]
    page_size: Option<PageSize>,
    #[arg(long, value_name = "NAME", value_parser = parse_name, help = choices::flag_help("Replacement policy", POLICIES, DEFAULT_POLICY))]
    policy: Option<String>,
    #[arg(long, value_name = "NAME", value_parser = parse_name, help = choices::flag_help("Prefetcher", PREFETCHERS, DEFAULT_PREFETCH))]
    prefetch: Option<String>,
    /// How much memory of small blocks stays near, a size of at least 1M. Small blocks beyond it are far, too. 'off': all
    /// stay near. Sigsegv mode does not limit them. Default: 32M.
    #[arg(long, value_name = "SIZE|off", value_parser = parse_near, allow_negative_numbers = true)]
    near: Option<u64>,

    /// How accesses to far pages are trapped: auto, thread, sigbus or sigsegv; see 'hanare doctor'. Default: auto.
    #[arg(long, value_name = "MODE")]
    mode: Option<Mode>,
    /// Memory limit of the private server. Default: half of the available memory that --local leaves.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with_all = ["servers", "hostfile"])]
    memory: Option<u64>,
    /// Directory of the private server's spill file, or 'none'. Default: /var/tmp if it is on a disk.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["servers", "hostfile"])]
    spill: Option<PathBuf>,
    /// Parts of each page on the named servers: none, mirror (two copies) or parity:K+M (K parts and M parity parts). The
    /// run survives the loss of M servers. Default: none.
    #[arg(long, value_name = "none|mirror|parity:K+M")]
    redundancy: Option<Redundancy>,
    /// With --redundancy: let parts of a page be on the same host.
    #[arg(long)]
    allow_same_host: bool,
    /// File with the key shared with the memory servers.
    #[arg(long, value_name = "FILE")]
    key: Option<String>,
    /// Whether pages are encrypted and authenticated before they leave the program: on, off, or auto, which is on with
    /// --key and a server on another host. Default: auto.
    #[arg(long, value_name = "on|off|auto")]
    seal: Option<Seal>,
    /// What the run does when it loses a memory server: end, or wait until the server is back with the run's pages, as
    /// after a restart of 'hanare serve --keep'. Default: end.
    #[arg(long, value_name = "end|wait")]
    on_loss: Option<OnLoss>,
    /// Let idle CPUs sleep. By default, they poll while small pages are faulted in one after another, which makes
    /// faults faster.
    #[arg(long)]
    no_warm: bool,
    /// Report on the run at its end: a summary on stderr, or in FILE. If FILE ends in .html, it is a page with charts,
    /// which is also written every 10 s. May be given twice, for both.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    report: Vec<PathBuf>,
    /// Write the figures of the run, and how they changed over time, to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    stats_json: Option<PathBuf>,
    /// Say at the end how long the program would have taken with more local memory, as 'hanare fit' does.
    #[arg(long)]
    fit: bool,
    /// The file for the figures of `hanare fit`.
    #[arg(skip)]
    fit_json: Option<PathBuf>,
    /// Local memory if nothing else names a size. `hanare fit` sets it.
    #[arg(skip)]
    local_default: Option<Local>,
    #[command(flatten)]
    watching: WatchingArgs,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Why a program was not run, or has no report.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    /// No program is given.
    #[error("no PROGRAM is given; see 'hanare {name} --help'")]
    NoProgram {
        /// The name of the command.
        name: &'static str,
    },
    /// The settings are invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The host file was refused.
    #[error(transparent)]
    Hostfile(#[from] HostfileError),
    /// A key is given, but no server.
    #[error("--key is for named memory servers, and none is named; add --server HOST or leave it away")]
    KeyAlone,
    /// The run is to wait for memory servers, but none is named.
    #[error("--on-loss wait is for named memory servers, and none is named; add --server HOST or leave it away")]
    WaitAlone,
    /// The machine's memory size is unknown.
    #[error("{0}; give --local and --memory")]
    Memory(#[from] MemoryError),
    /// The machine has less memory than asked for.
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
    /// The program cannot be run.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The preload library is missing.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A named server cannot be used.
    #[error(transparent)]
    Servers(#[from] ServersError),
    /// The private server cannot be used.
    #[error(transparent)]
    Private(#[from] PrivateError),
    /// With these settings, no process could have far memory.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The counters could not be created.
    #[error(transparent)]
    Stats(#[from] StatsError),
    /// An output file cannot be written.
    #[error(transparent)]
    Outputs(#[from] OutputError),
    /// Metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Signals cannot be caught.
    #[error("cannot catch signals: {0}")]
    Signals(std::io::Error),
    /// The program could not be started or waited for.
    #[error(transparent)]
    Supervise(#[from] SuperviseError),
    /// The limits cannot be read.
    #[error("cannot read the limits on address space and data: {0}")]
    Limits(std::io::Error),
    /// The command's own threads do not fit below the limit on data.
    #[error(
        "the hard limit on data ('ulimit -Hd') is {}, and the command itself needs {min}; raise it, or set only the \
         soft one ('ulimit -Sd')",
        human_size(*.0), min = human_size(DATA_MIN)
    )]
    LittleData(u64),
    /// The limit on open files is too low for the command.
    #[error(
        "too many open files: raise `ulimit -n` (now {0}). Hanare needs about {FILES_NEEDED}, besides the program's own"
    )]
    FewFiles(String),
    /// The counters' descriptor cannot be passed on.
    #[error("cannot pass the counters on: {0}; check 'ulimit -n'")]
    Descriptor(#[source] std::io::Error),
}

impl RunError {
    /// The exit code of `hanare run` for this error.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            RunError::Program(error) => error.exit_code(),
            RunError::Supervise(SuperviseError::Spawn { .. }) => 126,
            _ => crate::EXIT_OWN,
        }
    }
}

/// The file into which a run is recorded.
#[derive(Debug)]
pub(crate) struct Recording {
    /// The absolute path of the file, which exists and is empty.
    pub(crate) path: PathBuf,
    /// Largest size of the file in bytes. `None` is the default.
    pub(crate) bytes: Option<u64>,
}

impl RunArgs {
    /// Makes the run one of `hanare fit`, which writes its figures to `json`.
    pub(crate) fn into_fit(self, json: Option<PathBuf>) -> Self {
        RunArgs { fit: true, fit_json: json, local_default: Some(Local::Percent(FIT_PERCENT)), ..self }
    }

    /// Whether the user only asks for a list of names, so that nothing is run.
    pub(crate) fn only_asks_for_help(&self) -> bool {
        [&self.policy, &self.prefetch].into_iter().any(|choice| choice.as_deref() == Some(choices::HELP))
    }

    fn print_names(&self) {
        if self.policy.as_deref() == Some(choices::HELP) {
            choices::print(POLICIES, DEFAULT_POLICY);
        } else {
            choices::print(PREFETCHERS, DEFAULT_PREFETCH);
        }
    }
}

/// Runs the program, records it if asked for, and returns the command's exit code.
pub(crate) fn run(args: &RunArgs, recording: Option<Recording>) -> Result<u8, RunError> {
    run_once(args, recording).map_err(|error| if is_out_of_files(&error) { few_files() } else { error })
}

/// Returns whether an error is that of a process that may open no more files.
fn is_out_of_files(error: &(dyn std::error::Error + 'static)) -> bool {
    let is_cause = |cause: &(dyn std::error::Error + 'static)| {
        let code = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        code == Some(rustix::io::Errno::MFILE.raw_os_error())
    };
    std::iter::successors(Some(error), |cause| cause.source()).any(is_cause)
}

fn few_files() -> RunError {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    RunError::FewFiles(limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string()))
}

fn run_once(args: &RunArgs, recording: Option<Recording>) -> Result<u8, RunError> {
    if args.only_asks_for_help() {
        args.print_names();
        return Ok(0);
    }
    if args.program.is_empty() {
        return Err(RunError::NoProgram { name: if args.local_default.is_some() { "fit" } else { "run" } });
    }
    warn_of_variables();
    let carried = lift_limits()?;
    let mut settings = settings(args)?;
    check_memory(args, &settings)?;
    if let Some(Recording { path, bytes }) = recording {
        settings.trace = Some(path);
        settings.trace_bytes = bytes.unwrap_or(settings.trace_bytes);
    }
    let name = args.program.first().map_or(OsStr::new(""), OsString::as_os_str);
    let path = program::find(name, std::env::var_os("PATH"))?;
    let library = library::find()?;
    let fit = settings.fit.then(|| Fit::new(args.fit_json.as_ref(), &args.program)).transpose()?;
    let mut outputs = Outputs::open(&args.report, args.stats_json.as_deref())?;
    let watching = args.watching.prepare()?;
    // A page and its JSON say what other sizes of local memory would bring.
    settings.fit |= outputs.want_record();

    // From here on, cleanup is needed at the end, so a signal must not simply end the command.
    let forwarder = Forwarder::install().map_err(RunError::Signals)?;
    let (tree, tree_end) = pipe_of_tree()?;
    let private = if settings.servers.is_empty() { Some(start_private(args, &settings, tree.as_fd())?) } else { None };
    drop(tree);
    match &private {
        Some(private) => settings.private = Some(private.socket()),
        None => servers::check(&settings)?,
    }
    let mode = far::rehearse(&settings)?;
    // Sigbus mode does not suit every program, so each process chooses for itself.
    settings.mode = if mode == Mode::Sigbus { settings.mode } else { mode };
    if let Some(signal) = forwarder.pending() {
        return Ok(128_u8.saturating_add(signal as u8));
    }
    let counters = if outputs.want_record() { Stats::create_recording() } else { Stats::create() };
    let (stats_fd, stats) = counters.map(|(fd, stats)| (fd, Arc::new(stats)))?;
    let watching = watching.start(name, &stats)?;
    // If the pollers (threads that poll on idle CPUs) cannot start, only speed is lost.
    let pollers = (!args.no_warm).then(|| Pollers::start(stats.clone()));
    let spare = watch_spare(settings.local, &stats);
    let stats_fd = out_of_the_way(stats_fd)?;
    settings.stats_fd = Some(stats_fd.as_raw_fd());
    settings.stats_pid = i32::try_from(std::process::id()).ok();
    let tree_end = out_of_the_way(tree_end)?;
    let mut vars = environment(&settings, &library);
    vars.extend(carried.map(|limits| (limits::VARIABLE.into(), limits.into())));
    let sampler = Sampler::new(&outputs, &name.to_string_lossy(), &settings, &stats);
    let program = supervise::start(&path, &args.program, &Settings::VARIABLES, &vars, &forwarder)?;
    let sampling = sampler.start(program.pid(), program.began);
    let (end, elapsed) = program.wait()?;
    let report = sampling.finish(&end, elapsed);
    drop((pollers, spare, watching, tree_end));
    ended::explain(&end, mode, &stats);
    if let Some(private) = private {
        private.program_ended();
    }
    forwarder.stop();
    let told = fit.map_or(Ok(()), |fit| fit.tell(&stats.snapshot(), &end, elapsed.as_secs_f64()));
    for error in [outputs.write(&report), told].into_iter().filter_map(Result::err) {
        // The program has run, so its exit code counts. A failure to write the figures is only reported.
        say(&error.to_string());
    }
    Ok(end.exit_code())
}

/// Starts to look how much memory the machine can give, if local memory is a share. Without that, a share may be more than
/// there is, which is better than no run.
fn watch_spare(local: Local, stats: &Arc<Stats>) -> Option<Watch> {
    let is_share = matches!(local, Local::Percent(_));
    let started = is_share.then(|| Watch::start(stats.clone()))?;
    started.inspect_err(|error| say(&format!("--local {local} is not cut to what the machine can give: {error}"))).ok()
}

/// Returns a pipe whose second end the program and its children inherit. The private server reads from the first end, which
/// closes when all of them have ended.
fn pipe_of_tree() -> Result<(OwnedFd, OwnedFd), RunError> {
    let (tree, tree_end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|errno| RunError::Descriptor(errno.into()))?;
    rustix::io::fcntl_setfd(&tree, rustix::io::FdFlags::empty()).map_err(|errno| RunError::Descriptor(errno.into()))?;
    let tree_end = rustix::io::fcntl_dupfd_cloexec(&tree_end, STATS_FD_MIN).unwrap_or(tree_end);
    Ok((tree, tree_end))
}

/// Raises the limits on address space and data, because this command and the private server reserve more addresses than
/// they use. Returns the value of the environment variable from which the program gets its own limits again. `None` if
/// no limit is set. Fails if the limit on data cannot be raised far enough for the command itself.
fn lift_limits() -> Result<Option<String>, RunError> {
    let outer = std::env::var(limits::VARIABLE).ok();
    let carried = limits::lift(outer.as_deref()).map_err(|errno| RunError::Limits(errno.into()))?;
    match limits::reach(Kind::Data) {
        most if most < DATA_MIN => Err(RunError::LittleData(most)),
        _ => Ok(carried),
    }
}

/// Reads the settings. A flag overrides a variable, a variable overrides the host file, and the host file overrides the
/// default.
fn settings(args: &RunArgs) -> Result<Settings, RunError> {
    let hosts = args.hostfile.as_deref().map(|path| Hostfile::read(path, args.count)).transpose()?;
    let local = match (args.local, &hosts) {
        (Some(local), _) => local,
        (None, Some(hosts)) => Local::Bytes(hosts.compute_bytes),
        (None, None) => match args.local_default {
            Some(local) => local,
            // The controller takes of it what the slowdown needs.
            None if args.slowdown.is_some() => Local::Bytes(Memory::now()?.available_bytes),
            None => Local::Bytes(Memory::now()?.available_bytes / 2),
        },
    };
    let named = args.hostfile.is_some() || !args.servers.is_empty();
    let wants_private = args.memory.is_some() || args.spill.is_some();
    let mut settings = Settings::from_lookup(|variable| match variable {
        "HANARE_LOCAL" if args.local.is_none() => {
            std::env::var_os(variable).filter(|value| !value.is_empty()).or_else(|| Some(local.to_string().into()))
        }
        "HANARE_LOCAL" => Some(local.to_string().into()),
        // These variables belong to one run. Inherited values would name the counters, the server and the trace of an
        // outer run.
        "HANARE_STATS_FD" | "HANARE_STATS_PID" | "HANARE_PRIVATE" | "HANARE_TRACE" => None,
        "HANARE_SERVERS" if named || wants_private => None,
        _ => std::env::var_os(variable),
    })?;
    if named {
        settings.servers = hosts.map(|hosts| hosts.servers).unwrap_or_default();
        settings.servers.extend(args.servers.iter().cloned());
    }
    settings.page_size = args.page_size.unwrap_or(settings.page_size);
    settings.far = args.far.unwrap_or(settings.far);
    settings.near = args.near.unwrap_or(settings.near);
    settings.mode = args.mode.unwrap_or(settings.mode);
    settings.policy = args.policy.clone().unwrap_or(settings.policy);
    settings.prefetch = args.prefetch.clone().unwrap_or(settings.prefetch);
    settings.on_loss = args.on_loss.unwrap_or(settings.on_loss);
    settings.redundancy = args.redundancy.unwrap_or(settings.redundancy);
    settings.allow_same_host |= args.allow_same_host;
    settings.key_file = args.key.as_ref().map(PathBuf::from).or(settings.key_file);
    settings.seal = args.seal.unwrap_or(settings.seal);
    settings.fit |= args.fit;
    settings.slowdown = args.slowdown.or(settings.slowdown);
    settings.resolve_paths();
    settings.validate_values()?;
    if args.key.is_some() && settings.servers.is_empty() {
        return Err(RunError::KeyAlone);
    }
    if args.on_loss == Some(OnLoss::Wait) && settings.servers.is_empty() {
        return Err(RunError::WaitAlone);
    }
    Ok(settings)
}

/// Warns about variables that nothing reads, because their names are mistyped.
pub(crate) fn warn_of_variables() {
    let environment = Environment::of(std::env::vars_os().collect());
    if let Some(line) = unknown_variables(&environment) {
        say(&line);
    }
}

/// Refuses sizes that this machine can never hold, and warns about sizes that it cannot hold now.
fn check_memory(args: &RunArgs, settings: &Settings) -> Result<(), TooMuch> {
    let from_variable = std::env::var_os("HANARE_LOCAL").is_some_and(|value| !value.is_empty());
    let local_of = match () {
        () if args.local.is_some() => "--local",
        () if from_variable => "HANARE_LOCAL",
        () => "the host file's local memory of",
    };
    let mut asked = Vec::new();
    if let Local::Bytes(bytes) = settings.local {
        asked.push((local_of, bytes));
    }
    asked.extend(args.memory.map(|bytes| ("--memory", bytes)));
    warn_of_memory(&asked)
}

/// Refuses each size that is larger than all memory. Warns if the sizes together exceed the available memory.
pub(crate) fn warn_of_memory(asked: &[(&str, u64)]) -> Result<(), TooMuch> {
    // If the machine's memory size is unknown, nothing can be checked.
    let Ok(memory) = Memory::now() else { return Ok(()) };
    for (what, bytes) in asked {
        fits::check(what, *bytes, &memory)?;
    }
    let names: Vec<&str> = asked.iter().map(|(what, _)| *what).collect();
    let all = asked.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let together = names.join(" and ") + if names.len() > 1 { " together:" } else { "" };
    if let Some(line) = fits::warning(&together, all, &memory) {
        say(&line);
    }
    Ok(())
}

/// Returns the default memory limit of the private server. It is half of the memory that the program's local memory
/// leaves available, but at least 16 MiB.
pub(crate) fn private_memory(available: u64, local: Local) -> u64 {
    const LEAST: u64 = 16 << 20;
    let local = if let Local::Bytes(bytes) = local { bytes } else { 0 };
    (available.saturating_sub(local) / 2).max(LEAST)
}

fn start_private(args: &RunArgs, settings: &Settings, tree: BorrowedFd<'_>) -> Result<Private, RunError> {
    let memory = match args.memory {
        Some(bytes) => bytes,
        // Local memory that a slowdown may take is an upper bound, so nothing of it is set aside.
        None if settings.slowdown.is_some() => private_memory(Memory::now()?.available_bytes, Local::Bytes(0)),
        None => private_memory(Memory::now()?.available_bytes, settings.local),
    };
    let spill = spill_of(args.spill.as_deref());
    let command = std::env::current_exe().unwrap_or_else(|_| "hanare".into());
    let private = Private::start(&PrivateOptions { command: &command, memory, spill, tree: Some(tree), warm: None })?;
    if args.spill.is_some() {
        spill.iter().for_each(|dir| warn_of_spill(dir));
    }
    Ok(private)
}

/// Returns the spill directory of a private server. `None` if it does not spill.
pub(crate) fn spill_of(flag: Option<&Path>) -> Option<&Path> {
    match flag {
        Some(dir) if dir == Path::new("none") => None,
        Some(dir) => Some(dir),
        None => Some(Path::new(SPILL_DEFAULT)).filter(|dir| is_disk(dir)),
    }
}

/// Returns whether files in `dir` are on a writable disk. Spilling to a file system in memory would save no memory.
fn is_disk(dir: &Path) -> bool {
    const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
    let writable = rustix::fs::access(dir, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).is_ok();
    let kind = rustix::fs::statfs(dir).map(|stat| stat.f_type as u64);
    writable && kind.is_ok_and(|kind| !IN_MEMORY.contains(&kind))
}

/// Moves a descriptor to a high number and lets the program inherit it.
fn out_of_the_way(fd: OwnedFd) -> Result<OwnedFd, RunError> {
    let fd = rustix::io::fcntl_dupfd_cloexec(&fd, STATS_FD_MIN).unwrap_or(fd);
    let inherit = rustix::io::FdFlags::empty();
    rustix::io::fcntl_setfd(&fd, inherit).map_err(|errno| RunError::Descriptor(errno.into()))?;
    Ok(fd)
}

fn environment(settings: &Settings, library: &Path) -> Vec<(OsString, OsString)> {
    let mut vars: Vec<(OsString, OsString)> =
        settings.to_env().into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    vars.push(("LD_PRELOAD".into(), library::preload_value(library, std::env::var_os("LD_PRELOAD"))));
    vars
}
