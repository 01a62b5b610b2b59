//! `hanare serve`: lends this machine's memory to programs on any machine, or to the processes of one run
//! (`--private`).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::Args;
use hanare::polling::Pollers;
use hanare::stats::Stats;
use hanare_server::{Server, ServerConfig, ServerError, StopHandle, SystemMemory};
use hanare_settings::fits::TooMuch;
use hanare_settings::{human_size, parse_size};
use hanare_store::private;
use hanare_sys::memory::{Memory, MemoryError};
use hanare_wire::{DEFAULT_PORT, Endpoint, Key, KeyError};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use thiserror::Error;

use crate::journal::Writers;
use crate::leftover::{AGE, remove_private};
use crate::message::say;
use crate::metrics::{self, Listening, MetricsError, ServerFigures};
use crate::run::warn_of_memory;

const EXAMPLES: &str = "\
Examples:
  hanare serve --memory 64G                        for this user's programs on this machine
  hanare key new key                               a key, to be copied to the other machines
  hanare serve --memory 64G --listen 0.0.0.0 --key key
                                                   for programs elsewhere that have the key
  hanare serve --memory 8G --spill /scratch        8G in memory, the rest on disk
  hanare serve --memory 64G --client-quota 16G     no client gets more than 16G
  hanare serve --memory 64G --keep /scratch/kept   sessions outlive a restart
  hanare serve --memory 64G --log serve.log        who came and went, with times
  hanare serve --memory 64G --metrics 9464         figures for Prometheus on port 9464 of this machine
  hanare status node7                              who uses it, and how much
On SIGTERM or SIGINT, the server finishes the requests in flight and ends with exit code 0. With --keep, it first writes its \
sessions to disk, which takes time and as much space as the sessions hold.";

/// Lend memory to programs that run under 'hanare run'.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// Memory to lend, at most what this machine has. With --spill: memory to fill before files are used. Default: half
    /// of the memory available.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Address to listen on. May be given several times. Default: 127.0.0.1:7441. An address that other machines can
    /// reach needs --key.
    #[arg(long, value_name = "HOST[:PORT]")]
    listen: Vec<Endpoint>,
    /// Unix socket to listen on, for programs on this machine.
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Serve one run, as the private server of 'hanare run': listen on this Unix socket only, log nothing, and end when
    /// standard input ends.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["listen", "unix"])]
    private: Option<PathBuf>,
    /// With --private: the descriptor of a pipe whose other end the program and its children hold.
    #[arg(long, value_name = "FD", requires = "private", hide = true)]
    tree: Option<i32>,
    /// With --private: the process and the descriptor of a program's shared counters. Idle CPUs poll while that program
    /// has faults.
    #[arg(long, value_name = "PID:FD", requires = "private", hide = true)]
    warm: Option<String>,
    /// Directory for a spill file, used when the memory is full. 1G of its disk always stays free.
    #[arg(long, value_name = "DIR")]
    spill: Option<PathBuf>,
    /// Maximum size of the pages that each client may keep on this server. Default: no quota.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    client_quota: Option<u64>,
    /// Directory in which sessions outlive a restart. The server writes them there when it ends by SIGTERM or SIGINT, and
    /// takes them back when it starts. Programs under 'hanare run --on-loss wait' then go on. Each server needs its own.
    #[arg(long, value_name = "DIR", conflicts_with = "private")]
    keep: Option<PathBuf>,
    /// File to which the log is appended, each line with its time: sessions that begin and end, and what goes wrong.
    #[arg(long, value_name = "FILE", conflicts_with = "private")]
    log: Option<PathBuf>,
    /// Serve the server's figures to a monitoring system at http://127.0.0.1:PORT/metrics. Port 0 is any free
    /// port. Only this machine can reach it.
    #[arg(long, value_name = "PORT", conflicts_with = "private")]
    metrics: Option<metrics::Address>,
    /// File with the key that clients must hold, which only its owner can read. 'hanare key new FILE' makes one.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

impl ServeArgs {
    /// Warns of a quota that no client can reach, because the server has no more memory than that.
    fn warn_of_quota(&self) {
        if let (Some(quota), Some(memory), None) = (self.client_quota, self.memory, &self.spill)
            && quota >= memory
        {
            let (quota, memory) = (human_size(quota), human_size(memory));
            say(&format!("--client-quota {quota} has no effect: --memory is {memory}, and there is no --spill"));
        }
    }
}

/// Why memory could not be lent.
#[derive(Debug, Error)]
pub(crate) enum ServeError {
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The server could not be set up.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The machine's memory size is unknown.
    #[error("{0}; give --memory")]
    Memory(#[from] MemoryError),
    /// The directory for a run's socket could not be made.
    #[error("cannot make a directory for the private memory server: {0}; set TMPDIR to a writable directory")]
    Directory(io::Error),
    /// The machine has less memory than asked for.
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
    /// The log file cannot be written.
    #[error("cannot open the log {}: {source}; give a file that you may write, or a pipe that is read", path.display())]
    Log { path: PathBuf, source: io::Error },
    /// Metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Signals or threads could not be set up.
    #[error("cannot set up signals: {0}")]
    Signals(io::Error),
}

/// Runs the memory server until it is stopped.
pub(crate) fn serve(args: ServeArgs) -> Result<u8, ServeError> {
    // Catches SIGXFSZ, so that a file beyond `ulimit -f` causes an error instead of the server's end.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map_err(ServeError::Signals)?;
    if args.private.is_none() {
        let asked: Vec<(&str, u64)> = args.memory.iter().map(|bytes| ("--memory", *bytes)).collect();
        warn_of_memory(&asked)?;
        let mut writers = Writers::default();
        let server = bind(&args, &mut writers)?;
        args.spill.as_deref().iter().for_each(|dir| warn_of_spill(dir));
        stop_on_signals(server.stop_handle()).map_err(ServeError::Signals)?;
        let metrics = args.metrics.as_ref().map(Listening::on).transpose()?;
        announce(&server, &args);
        let figures = ServerFigures(server.status_handle());
        let _metrics = metrics.map(|metrics| metrics.serve(figures)).transpose()?;
        args.warn_of_quota();
        tell_service_manager(NotifyState::Ready);
        let ended = server.run();
        writers.finish();
        return ended.map(|()| 0).map_err(ServeError::from);
    }
    // The starter (the process that started this server) reads one line and reports a failure itself. So the user sees
    // only one message.
    match make_directory(args.private.as_deref()).and_then(|()| bind(&args, &mut Writers::default())) {
        Ok(server) => {
            watch_starter(server.stop_handle(), args.tree.and_then(own_copy)).map_err(ServeError::Signals)?;
            // If the pollers (threads that poll on idle CPUs) cannot start, only speed is lost.
            let _pollers = args.warm.as_deref().and_then(start_polling);
            tell_starter("ready");
            sweep(args.private.as_deref());
            let ended = server.run();
            remove_directory(args.private.as_deref());
            ended?;
            Ok(0)
        }
        Err(error) => {
            remove_directory(args.private.as_deref());
            tell_starter(&format!("failed: {error}"));
            Ok(crate::EXIT_OWN)
        }
    }
}

fn bind(args: &ServeArgs, writers: &mut Writers) -> Result<Server, ServeError> {
    let memory = match args.memory {
        Some(bytes) => bytes,
        None => Memory::now()?.available_bytes / 2,
    };
    let mut listen = args.listen.clone();
    listen.extend(args.unix.iter().chain(&args.private).cloned().map(Endpoint::Unix));
    if listen.is_empty() {
        listen.push(Endpoint::Tcp(format!("127.0.0.1:{DEFAULT_PORT}")));
    }
    let mut config = ServerConfig::new(listen, memory);
    let is_private = args.private.is_some();
    config.available = Some(Arc::new(move || {
        let memory = Memory::now().ok()?;
        // A private server must not refuse its run what the run itself has pushed out.
        Some(SystemMemory { available_bytes: memory.available_bytes, is_short: !is_private && memory.is_short() })
    }));
    config.spill = args.spill.clone();
    config.client_quota = args.client_quota;
    config.keep = args.keep.clone();
    if args.private.is_none() {
        config.log = writers.stderr().map_err(ServeError::Signals)?;
    }
    if let Some(path) = &args.log {
        let journal = writers.file(path).map_err(|source| ServeError::Log { path: path.clone(), source })?;
        let stderr = Arc::clone(&config.log);
        config.journal = Arc::clone(&journal);
        config.log = Arc::new(move |line| {
            stderr(line);
            journal(line);
        });
    }
    config.key = args.key.as_deref().map(read_key).transpose()?;
    Ok(Server::bind(config)?)
}

/// Reads a key. A service manager may give it as a credential (systemd's LoadCredential=): a file in a folder that only
/// the service can enter. Where an access list lets the service read that file, its mode shows the list's mask as the
/// bits of the group, which are those of no user. So these bits are passed over there.
fn read_key(path: &Path) -> Result<Key, KeyError> {
    const GROUP: u32 = 0o070;
    let folder = std::env::var_os("CREDENTIALS_DIRECTORY");
    let is_credential = folder.is_some_and(|folder| path.parent() == Some(Path::new(&folder)));
    match Key::from_file(path) {
        Err(KeyError::Exposed { mode, .. }) if is_credential && mode & 0o077 & !GROUP == 0 => {
            let source = |source| KeyError::Unreadable { path: path.display().to_string(), source };
            let mut text = std::fs::read(path).map_err(source)?;
            let length = text.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
            let key = Key::new(&text[..length]);
            text.fill(0);
            key
        }
        read => read,
    }
}

/// Warns if the disk of `dir` has no room for a spill file now. The server itself checks whether it can make files
/// there.
pub(crate) fn warn_of_spill(dir: &Path) {
    let margin = ServerConfig::new(Vec::new(), 0).spill_margin;
    if let Ok(disk) = rustix::fs::statvfs(dir)
        && disk.f_bavail.saturating_mul(disk.f_frsize) <= margin
    {
        let (dir, margin) = (dir.display(), human_size(margin));
        say(&format!(
            "--spill {dir}: nothing can be spilled, because less is free there than the {margin} that always stays free"
        ));
    }
}

fn announce(server: &Server, args: &ServeArgs) {
    let addresses: Vec<String> = server.local_addrs().iter().map(ToString::to_string).collect();
    let memory = args.memory.map_or(String::new(), |bytes| format!("{} of ", human_size(bytes)));
    say(&format!("serving {memory}memory on {}", addresses.join(", ")));
}

/// Tells the service manager that started this process (systemd's Type=notify), if there is one, how far it is.
fn tell_service_manager(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        say(&format!("cannot tell the service manager that NOTIFY_SOCKET names: {error}; start the server without it"));
    }
}

/// Makes SIGTERM and SIGINT end the server after the requests in flight.
fn stop_on_signals(stop: StopHandle) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for _ in signals.forever() {
            tell_service_manager(NotifyState::Stopping);
            stop.stop();
        }
    })?;
    Ok(())
}

/// Ends the server on SIGTERM, and when standard input ends because the starter has ended. If the starter sends
/// [`private::ENDED`], the server first waits for the program's other processes. Catches the terminal's signals without
/// effect, because the program needs its memory until it has handled them.
fn watch_starter(stop: StopHandle, tree: Option<File>) -> io::Result<()> {
    for signal in [SIGINT, SIGQUIT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let on_end = stop.clone();
    std::thread::Builder::new().name("starter".to_owned()).spawn(move || {
        let mut line = [0; 64];
        loop {
            match io::stdin().read(&mut line) {
                Ok(len @ 1..) if line[..len] == *private::ENDED => return outlast(&on_end, tree.as_ref()),
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return on_end.stop(),
            }
        }
    })?;
    let mut signals = Signals::new([SIGTERM])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for _ in signals.forever() {
            stop.stop();
        }
    })?;
    Ok(())
}

/// Starts threads that poll on idle CPUs for the program with these counters. `None` if they cannot be started.
fn start_polling(counters: &str) -> Option<Pollers> {
    let (pid, fd) = counters.split_once(':')?;
    let stats = Stats::attach(Some(fd.parse().ok()?), Some(pid.parse().ok()?)).ok()?;
    Pollers::start(Arc::new(stats)).ok()
}

/// Stops the server when the last process of the program and the last session have ended.
fn outlast(server: &StopHandle, tree: Option<&File>) {
    /// Time after which the server reports that it stays. Within this time, most sessions and processes of an ended
    /// program end.
    const GRACE: Duration = Duration::from_millis(300);
    const LOOK_EVERY: Duration = Duration::from_millis(20);
    let began = Instant::now();
    let mut said = false;
    while server.sessions() > 0 || tree.is_some_and(is_held) {
        if !said && began.elapsed() > GRACE {
            tell_starter(private::STAYS);
            said = true;
        }
        std::thread::sleep(if said { 5 * LOOK_EVERY } else { LOOK_EVERY });
    }
    server.stop();
}

/// Opens the pipe that the starter passed to this process as descriptor `fd`.
fn own_copy(fd: i32) -> Option<File> {
    File::options()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(format!("/proc/self/fd/{fd}"))
        .ok()
}

/// Whether any process holds the other end of a pipe.
fn is_held(pipe: &File) -> bool {
    let mut ready = [rustix::event::PollFd::new(pipe, rustix::event::PollFlags::empty())];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    // If the pipe cannot be polled, it counts as closed, so that the server does not stay for ever.
    rustix::event::poll(&mut ready, Some(&now)).is_ok_and(|count| count == 0)
}

/// Returns the directory of a socket, if the directory's name shows that it belongs to one run.
fn run_directory(socket: Option<&Path>) -> Option<&Path> {
    let dir = socket.and_then(Path::parent)?;
    dir.file_name()?.to_string_lossy().starts_with(private::DIR_PREFIX).then_some(dir)
}

/// Makes the directory of a run's socket, which only this user may enter. The server makes it, not the starter, because
/// the server outlives a killed starter and can remove it. An existing directory must be accessible to this user only.
fn make_directory(socket: Option<&Path>) -> Result<(), ServeError> {
    let Some(dir) = run_directory(socket) else { return Ok(()) };
    let made = std::fs::DirBuilder::new().mode(0o700).create(dir);
    let is_ours = || {
        let meta = std::fs::symlink_metadata(dir);
        meta.is_ok_and(|meta| {
            meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o77 == 0
        })
    };
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_ours() => Ok(()),
        made => made.map_err(ServeError::Directory),
    }
}

/// Removes folders of other runs whose servers were killed. This runs in a thread, so that this server need not wait.
fn sweep(socket: Option<&Path>) {
    let Some(tmp) = run_directory(socket).and_then(Path::parent).map(Path::to_owned) else { return };
    // Ignored: if no thread can be started, the next server removes the folders.
    let _ = std::thread::Builder::new().name("sweep".to_owned()).spawn(move || remove_private(&tmp, AGE));
}

/// Removes the directory of a run's socket, if it is empty.
fn remove_directory(socket: Option<&Path>) {
    if let Some(dir) = run_directory(socket) {
        // Ignored: the starter may have removed the directory already.
        let _ = std::fs::remove_dir(dir);
    }
}

fn tell_starter(line: &str) {
    let one_line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    // Ignored: a starter that no longer reads has ended, and then standard input ends too.
    let _ = writeln!(io::stdout(), "{one_line}");
}
