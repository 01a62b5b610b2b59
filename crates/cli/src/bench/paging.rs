//! `hanare bench paging`: the pager on a pattern of accesses, compared with the floors of this machine.
//!
//! Each run has a memory server and a process of its own, because a process can start far memory only once. The server
//! always ends with this process. A private server notices the end of a pipe, and a TCP server is a thread of this
//! process.

use std::io;
use std::os::fd::AsRawFd;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use hanare::polling::Pollers;
use hanare::stats::{Stats, StatsError};
use hanare_server::{Server, ServerConfig, ServerError, StopHandle};
use hanare_settings::{
    Local, Mode, PageSize, Redundancy, Seal, ServerSpec, Settings, SettingsError, format_size, parse_name, parse_size,
};
use hanare_store::private::{Private, PrivateError, PrivateOptions};
use hanare_wire::Endpoint;
use thiserror::Error;

use super::child::{Access, Run};
use super::floor::{self, FloorError, Floors};
use super::pattern::{OS_PAGE, Pattern};
use super::sheet::Sheet;

/// The valid numbers of runs.
pub(super) fn runs() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..=1000)
}

const HELP: &str = "\
An access reads and checks one 8-byte word of a 4 KiB page and, with rw, rewrites it. Before the timed accesses, every \
page is written. With r, each is then read once; with rw, pages are rewritten until as much is written back as comes in. \
Strided patterns are first run for eight passes, random ones for a quarter of their accesses. At the end every word is \
checked. A wrong word is printed with its address, and the exit code is 1.

fault_us is the time of an access that faulted, in the program (random only). handler_us is the pager's part of it, from \
the trap to the page. ratio_tcp_stream is gb_per_s relative to one polled TCP stream over loopback. ratio_fault_floor is \
fault_us_p50 relative to trap_us + the link's 4 KiB round trip (direct: one cold memcpy) + copy_4k_us. \
ratio_fault_floor_own uses trap_thread_us in thread mode. Floors are measured right before each run.

Examples:
  hanare bench paging --pattern seq
  hanare bench paging --pattern rand --page-size 4K --link tcp --access rw";

/// Measure the pager on a pattern of accesses, and compare it with the floors of this machine.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub(crate) struct PagingArgs {
    /// Page size: auto, or a power of two from 4K to 2M.
    #[arg(long, value_name = "auto|SIZE", default_value = "auto")]
    page_size: PageSize,
    /// Order of the accesses.
    #[arg(long)]
    pattern: Pattern,
    /// Whether accesses only read.
    #[arg(long, default_value = "r")]
    access: Access,
    /// Local memory: a size, or a share of --size.
    #[arg(long, value_name = "SIZE|PERCENT", default_value = "50%")]
    local: Local,
    /// Size of the far memory that is accessed.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Distance between two strided accesses; a multiple of 4K.
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = parse_size)]
    stride: u64,
    /// Number of random accesses.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    touches: u64,
    /// How accesses are trapped: auto, thread, sigbus or sigsegv.
    #[arg(long, value_name = "MODE", default_value = "auto")]
    mode: Mode,
    /// How pages reach the memory server.
    #[arg(long, default_value = "direct")]
    link: LinkKind,
    /// Number of memory servers. Only with --link tcp.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    servers: u8,
    /// Copies or parts of each page on the servers; see 'hanare run --help'.
    #[arg(long, value_name = "SCHEME", default_value_t = Redundancy::NONE)]
    redundancy: Redundancy,
    /// Whether pages are sealed: auto, on or off.
    #[arg(long, value_name = "auto|on|off", default_value_t = Seal::Auto)]
    seal: Seal,
    /// Replacement policy; see 'hanare run --help'.
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    policy: Option<String>,
    /// Prefetcher; see 'hanare run --help'.
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    prefetch: Option<String>,
    /// Number of repetitions. The figures are the median, the minimum and the maximum.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = runs())]
    runs: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// How pages reach the memory server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LinkKind {
    /// The same-host link of 'hanare run': memory shared with a private server.
    Direct,
    /// TCP over loopback.
    Tcp,
    /// A Unix socket.
    Unix,
}

impl LinkKind {
    fn name(self) -> &'static str {
        match self {
            LinkKind::Direct => "direct",
            LinkKind::Tcp => "tcp",
            LinkKind::Unix => "unix",
        }
    }

    /// Returns the name of the floor for fetching 4 KiB over this link.
    fn floor_name(self) -> &'static str {
        match self {
            LinkKind::Direct => "memcpy_4k_us",
            LinkKind::Tcp => "tcp_rtt_4k_us",
            LinkKind::Unix => "unix_rtt_4k_us",
        }
    }
}

/// Why the pager was not measured.
#[derive(Debug, Error)]
pub(crate) enum PagingError {
    /// The sizes do not fit together.
    #[error(
        "--size {size} and --stride {stride}: both must be multiples of 4K, and the stride no larger than the size"
    )]
    Shape {
        /// The value of `--size`.
        size: String,
        /// The value of `--stride`.
        stride: String,
    },
    /// Several servers would be reached over a link that leads to one.
    #[error("--servers {servers} and --link {link}: several servers are reached over TCP only; give --link tcp")]
    Links {
        /// The value of `--servers`.
        servers: u8,
        /// The value of `--link`.
        link: &'static str,
    },
    /// The settings are invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The floors could not be measured.
    #[error(transparent)]
    Floor(#[from] FloorError),
    /// The private server could not be started.
    #[error(transparent)]
    Private(#[from] PrivateError),
    /// The TCP server could not be started.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The measured process could not be started.
    #[error("cannot start the measured process: {0}; reinstall hanare")]
    Spawn(io::Error),
    /// The counters could not be read.
    #[error(transparent)]
    Stats(#[from] StatsError),
    /// The measured process was killed.
    #[error("the measured process ended ({0}) and printed no figures; run it again")]
    Ended(ExitStatus),
    /// The figures of the measured process could not be parsed.
    #[error("the measured process printed no figures ({0}); reinstall hanare")]
    Figures(#[from] serde_json::Error),
}

/// Measures and prints. If a measured process fails, it has printed the reason, and its exit code is returned.
pub(super) fn paging(args: &PagingArgs) -> Result<u8, PagingError> {
    let settings = settings(args)?;
    let (mut floors, mut runs) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        floors.push(floor::measure()?);
        match one_run(args, &settings)? {
            Ok(run) => runs.push(run),
            Err(code) => return Ok(code),
        }
    }
    sheet(args, &settings, &floors, &runs).print(args.json);
    Ok(0)
}

fn settings(args: &PagingArgs) -> Result<Settings, PagingError> {
    let whole = |bytes: u64| bytes > 0 && bytes.is_multiple_of(OS_PAGE);
    if !whole(args.size) || !whole(args.stride) || args.stride > args.size {
        return Err(PagingError::Shape { size: format_size(args.size), stride: format_size(args.stride) });
    }
    if args.servers > 1 && args.link != LinkKind::Tcp {
        return Err(PagingError::Links { servers: args.servers, link: args.link.name() });
    }
    let local_bytes = match args.local {
        Local::Bytes(bytes) => bytes,
        Local::Percent(percent) => args.size / 100 * u64::from(percent) + args.size % 100 * u64::from(percent) / 100,
    };
    let mut settings = Settings::new(Local::Bytes(local_bytes));
    settings.page_size = args.page_size;
    settings.mode = args.mode;
    settings.seal = args.seal;
    settings.policy = args.policy.clone().unwrap_or(settings.policy);
    settings.prefetch = args.prefetch.clone().unwrap_or(settings.prefetch);
    // As in a run, HANARE_DISABLE can simulate a weaker kernel.
    settings.disable = std::env::var(hanare_sys::features::DISABLE_VARIABLE).unwrap_or_default();
    settings.validate_values()?;
    Ok(settings)
}

/// A memory server for one run. It ends when this value is dropped.
pub(super) enum Lender {
    /// The server is a process of its own.
    Private(Private),
    /// The server is a thread of this process, which `drop` ends.
    Thread { endpoint: Endpoint, stop: StopHandle, life: Option<JoinHandle<()>> },
}

impl Lender {
    pub(super) fn start(link: LinkKind, bytes: u64) -> Result<Self, PagingError> {
        // The server needs room for whole slots. It needs some more room, because pages are freed a little later than
        // new pages are stored.
        let memory = bytes + bytes / 8 + (64 << 20);
        if link != LinkKind::Tcp {
            let command = std::env::current_exe().map_err(PagingError::Spawn)?;
            let options = PrivateOptions { command: &command, memory, spill: None, tree: None, warm: None };
            return Ok(Lender::Private(Private::start(&options)?));
        }
        let server = Server::bind(ServerConfig::new(vec![Endpoint::Tcp("127.0.0.1:0".to_owned())], memory))?;
        let stop = server.stop_handle();
        let endpoint = server.local_addrs().swap_remove(0);
        // If the server ends early, the measured process reports a lost server.
        let life = std::thread::spawn(move || drop(server.run()));
        Ok(Lender::Thread { endpoint, stop, life: Some(life) })
    }

    /// Returns the server's address. `None` if the server does not listen on TCP.
    pub(super) fn endpoint(&self) -> Option<Endpoint> {
        match self {
            Lender::Private(_) => None,
            Lender::Thread { endpoint, .. } => Some(endpoint.clone()),
        }
    }

    fn configure(&self, link: LinkKind, settings: &mut Settings) {
        match self {
            Lender::Private(private) if link == LinkKind::Direct => settings.private = Some(private.socket()),
            Lender::Private(private) => {
                settings.servers.push(ServerSpec { endpoint: Endpoint::Unix(private.socket()), capacity: None });
            }
            Lender::Thread { endpoint, .. } => {
                settings.servers.push(ServerSpec { endpoint: endpoint.clone(), capacity: None });
            }
        }
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        if let Lender::Thread { stop, life, .. } = self {
            stop.stop();
            // Ignored: if the server panicked, the panic was reported on stderr.
            let _ = life.take().map(JoinHandle::join);
        }
    }
}

/// Makes one run. Returns its figures, or the exit code of a measured process that failed and printed the reason.
fn one_run(args: &PagingArgs, settings: &Settings) -> Result<Result<Run, u8>, PagingError> {
    let start = |_| Lender::start(args.link, args.size);
    let lenders = (0..args.servers).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut settings = settings.clone();
    lenders.iter().for_each(|lender| lender.configure(args.link, &mut settings));
    (settings.redundancy, settings.allow_same_host) = (args.redundancy, true);
    settings.validate()?;
    // The measured process receives the variables that `hanare run` would set for a program.
    let (counters, stats) = Stats::create()?;
    rustix::io::fcntl_setfd(&counters, rustix::io::FdFlags::empty())
        .map_err(|errno| PagingError::Spawn(errno.into()))?;
    settings.stats_fd = Some(counters.as_raw_fd());
    let _pollers = Pollers::start(Arc::new(stats));
    let mut command = Command::new(std::env::current_exe().map_err(PagingError::Spawn)?);
    for name in Settings::VARIABLES.iter().chain(&["LD_PRELOAD"]) {
        command.env_remove(name);
    }
    command.envs(settings.to_env()).stdin(Stdio::null()).stderr(Stdio::inherit());
    command.args(["bench", "paging-child", "--pattern", args.pattern.name(), "--access", args.access.name()]);
    for (flag, number) in
        [("--pages", args.size / OS_PAGE), ("--stride-pages", args.stride / OS_PAGE), ("--touches", args.touches)]
    {
        command.arg(flag).arg(number.to_string());
    }
    let output = command.output().map_err(PagingError::Spawn)?;
    match output.status.code() {
        Some(0) => Ok(Ok(serde_json::from_slice(&output.stdout)?)),
        Some(code) => Ok(Err(code as u8)),
        None => Err(PagingError::Ended(output.status)),
    }
}

fn sheet(args: &PagingArgs, settings: &Settings, floors: &[Floors], runs: &[Run]) -> Sheet {
    let mut sheet = Sheet::default();
    sheet.text("pattern", args.pattern.name());
    sheet.text("access", args.access.name());
    sheet.text("page_size", settings.page_size.to_string());
    sheet.text("link", args.link.name());
    sheet.count("servers", u64::from(args.servers));
    sheet.text("redundancy", args.redundancy.to_string());
    sheet.text("seal", args.seal.to_string());
    if let Some(run) = runs.first() {
        sheet.text("mode", mode_name(run.mode));
        sheet.text("policy", run.policy.clone());
        sheet.text("prefetch", run.prefetch.clone());
        sheet.count("touches", run.touches);
        sheet.count("words_verified", run.words_verified);
    }
    sheet.count("size_bytes", args.size);
    if let Local::Bytes(bytes) = settings.local {
        sheet.count("local_bytes_budget", bytes);
    }
    if args.pattern == Pattern::Stride {
        sheet.count("stride_bytes", args.stride);
    }
    sheet.count("runs", runs.len() as u64);
    sheet.flag("verified", !runs.is_empty());
    let mut put = |name: &str, figure: &dyn Fn(&Run) -> Option<f64>| {
        sheet.spread(name, runs.iter().filter_map(figure).collect());
    };
    put("seconds", &|run| Some(run.seconds));
    put("gb_per_s", &|run| Some(gb_per_s(run)));
    put("us_per_touch", &|run| Some(run.seconds * 1e6 / run.touches as f64));
    for (at, percentile) in ["p50", "p90", "p99"].into_iter().enumerate() {
        put(&format!("fault_us_{percentile}"), &|run| run.fault_us.map(|us| us[at]));
        put(&format!("handler_us_{percentile}"), &|run| run.handler_us.map(|us| us[at]));
    }
    put("faults", &|run| Some(run.faults as f64));
    put("faults_first_write", &|run| Some(run.faults_first_write as f64));
    put("bytes_in", &|run| Some(run.bytes_in as f64));
    put("bytes_out", &|run| Some(run.bytes_out as f64));
    put("local_bytes_peak", &|run| Some(run.local_bytes_peak as f64));
    ratios(args, floors, runs, &mut sheet);
    floor::write(floors, &mut sheet);
    sheet
}

/// Adds the ratios of each run to the floors measured right before it.
fn ratios(args: &PagingArgs, floors: &[Floors], runs: &[Run], sheet: &mut Sheet) {
    let pairs = || runs.iter().zip(floors);
    for (ratio, floor) in
        [("ratio_tcp_stream", "tcp_stream_gb_per_s"), ("ratio_tcp_stream_cold", "tcp_stream_cold_gb_per_s")]
    {
        let stream = pairs().filter_map(|(run, floors)| Some(gb_per_s(run) / floors.get(floor)?));
        sheet.spread(ratio, stream.collect());
    }
    if args.pattern != Pattern::Rand {
        return;
    }
    let above_floor = |trap: &str| {
        let ratio = |(run, floors): (&Run, &Floors)| {
            let floor_us = floors.get(trap)? + floors.get(args.link.floor_name())? + floors.get("copy_4k_us")?;
            Some(run.fault_us?[0] / floor_us)
        };
        pairs().filter_map(ratio).collect()
    };
    sheet.spread("ratio_fault_floor", above_floor("trap_us"));
    let threaded = runs.iter().all(|run| mode_name(run.mode) == "thread");
    sheet.spread("ratio_fault_floor_own", above_floor(if threaded { "trap_thread_us" } else { "trap_us" }));
}

fn gb_per_s(run: &Run) -> f64 {
    (run.touches * OS_PAGE) as f64 / run.seconds / 1e9
}

fn mode_name(mode: u64) -> &'static str {
    match mode {
        2 => "sigbus",
        3 => "sigsegv",
        _ => "thread",
    }
}
