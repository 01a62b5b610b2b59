//! Starts the private memory server of one run. A run uses a private server when the user names no server. The server
//! ends with the run.
//!
//! The server is `hanare serve --private SOCKET` in a process group of its own. So Ctrl-C reaches the program but not
//! the server that holds its memory. The server's standard input is a pipe whose other end only this process holds. If
//! this process is killed, the server reads the end of the pipe and ends too. On standard output the server prints one
//! line: `ready`, or `failed: REASON`.
//!
//! After the program has ended in good order, its children may go on. Each child holds the writing end of a second
//! pipe, the *tree*. When the program has ended, this process sends [`ENDED`] to the server. The server ends when the
//! last child and the last session have ended. If a child or session is left, the server prints [`STAYS`] and goes on
//! without this process.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hanare_sys::object::own_file;
use thiserror::Error;

/// The beginning of the name of each directory that holds a private server's socket.
pub const DIR_PREFIX: &str = "hanare-";
/// The time in which the server must become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// The time in which the server must end in good order. After this time it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(6);
const STOP_POLL: Duration = Duration::from_millis(2);
/// The maximum length in bytes of output that is not a complete line.
const LINE_LEN_MAX: usize = 4096;
/// The maximum length in bytes of the directory's parent path. With the socket's name, its AF_UNIX address must fit
/// into the kernel's 108 bytes.
const DIR_LEN_MAX: usize = 80;

/// The reasons why there is no private server.
#[derive(Debug, Error)]
pub enum PrivateError {
    /// No name for the socket's directory could be chosen.
    #[error("cannot name a directory for the private memory server: {0}")]
    Directory(std::io::Error),
    /// The server could not be started.
    #[error("cannot start the private memory server {command}: {source}; {advice}", command = command.display(), advice = start_advice(source))]
    Spawn {
        /// The path of the `hanare` command.
        command: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The server printed a reason why it cannot serve.
    #[error("{0}")]
    Failed(String),
    /// The server ended or fell silent before it became ready.
    #[error("the private memory server {what}; run 'hanare serve' by hand to see why, or name one with --server")]
    NotReady {
        /// A description of what happened.
        what: String,
    },
}

fn start_advice(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::NotFound => "put 'hanare' into a folder of PATH, or name it by HANARE_BIN",
        _ => "check `ulimit -u`, `ulimit -n` and the memory that is left",
    }
}

/// The command and the resources of a private server.
#[derive(Debug)]
pub struct PrivateOptions<'a> {
    /// The path of the `hanare` command.
    pub command: &'a Path,
    /// The maximum number of bytes of memory that the server may hold.
    pub memory: u64,
    /// The directory of the server's spill file. `None` for no spill file.
    pub spill: Option<&'a Path>,
    /// The reading end of the pipe whose other end the program and its children hold. `None` without such a pipe.
    pub tree: Option<BorrowedFd<'a>>,
    /// The descriptor of this process's shared counters. With it, the server polls on idle CPUs while the program has
    /// faults.
    pub warm: Option<BorrowedFd<'a>>,
}

/// The line that is sent to the server when the program has ended.
pub const ENDED: &[u8] = b"ended\n";
/// The line that the server prints if it goes on for the program's children.
pub const STAYS: &str = "stays";

/// A running private server and the directory of its socket.
#[derive(Debug)]
pub struct Private {
    child: Child,
    lines: Lines,
    /// The directory of the socket. The server makes and removes it, because the server may live longer than this
    /// process.
    dir: PathBuf,
}

impl Private {
    /// Starts the server and waits until it is ready.
    ///
    /// # Errors
    /// [`PrivateError`] says what failed. No server process is left running.
    pub fn start(options: &PrivateOptions<'_>) -> Result<Self, PrivateError> {
        let dir = socket_dir().map_err(PrivateError::Directory)?;
        let command = options.command;
        let mut serve = Command::new(command);
        serve.arg("serve").arg("--private").arg(dir.join(SOCKET));
        serve.arg("--memory").arg(options.memory.to_string());
        if let Some(spill) = options.spill {
            serve.arg("--spill").arg(spill);
        }
        // The server must not inherit the environment variables of a run. Otherwise it would page its own memory, or
        // act as a rank of a shared-memory program.
        let ours = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b"HANARE_") || name == "LD_PRELOAD";
        for (name, _) in std::env::vars_os().filter(|(name, _)| ours(name)) {
            serve.env_remove(name);
        }
        if let Some(tree) = options.tree {
            serve.arg("--tree").arg(tree.as_raw_fd().to_string());
        }
        if let Some(counters) = options.warm {
            serve.arg("--warm").arg(format!("{}:{}", std::process::id(), counters.as_raw_fd()));
        }
        let failed = |source| PrivateError::Spawn { command: command.to_owned(), source };
        let (stream, output) = UnixStream::pair().map_err(failed)?;
        serve.stdin(Stdio::piped()).stdout(OwnedFd::from(output)).process_group(0);
        let child = serve.spawn().map_err(failed)?;
        // From here on, only the server holds the other end of `stream`. So this process notices when the server ends.
        drop(serve);
        let mut server = Private { child, lines: Lines { stream, said: Vec::new() }, dir };
        match server.lines.next(READY_TIMEOUT) {
            Said::Line(line) if line == "ready" => Ok(server),
            Said::End => {
                let what = match server.ended_within(STOP_TIMEOUT) {
                    Some(status) => format!("ended at once ({status})"),
                    None => "closed its output".to_owned(),
                };
                Err(PrivateError::NotReady { what })
            }
            Said::Line(line) => Err(PrivateError::Failed(line.strip_prefix("failed: ").unwrap_or(&line).to_owned())),
            Said::Nothing => {
                Err(PrivateError::NotReady { what: format!("was not ready in {} s", READY_TIMEOUT.as_secs()) })
            }
        }
    }

    /// Returns the path of the socket that the program's engine connects to.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.join(SOCKET)
    }

    /// Reports to the server that the program has ended in good order. The server then ends too. If processes that the
    /// program left behind still need the server, it goes on by itself.
    pub fn program_ended(mut self) {
        let told = self.child.stdin.as_mut().is_some_and(|stdin| stdin.write_all(ENDED).is_ok());
        // A server that goes on prints `STAYS`. A server that ends prints nothing more.
        if told && matches!(self.lines.next(STOP_TIMEOUT), Said::Line(line) if line == STAYS) {
            // `self` is forgotten, so that its `drop` does not end the server. The server's standard input closes when
            // this process ends.
            std::mem::forget(self);
        }
    }

    fn ended_within(&mut self, timeout: Duration) -> Option<std::process::ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(STOP_POLL),
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

/// The name of the socket in its directory.
pub const SOCKET: &str = "memory.socket";

impl Drop for Private {
    /// Ends the server by closing its standard input. If that is not enough, kills it.
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if self.ended_within(STOP_TIMEOUT).is_none() {
            // Ignored: the kill fails only if the server has ended, and then the wait returns at once.
            let _ = self.child.kill();
            // Ignored: the exit status is not needed.
            let _ = self.child.wait();
        }
        // Ignored: a server that ended in good order has already removed the directory. A killed server has not.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Chooses the path of a directory that does not exist yet.
fn socket_dir() -> std::io::Result<PathBuf> {
    let temporary = std::env::temp_dir();
    // The path must be valid text, because environment variables contain it. It must be short enough for a socket's
    // address.
    let fits = temporary.as_os_str().len() <= DIR_LEN_MAX && temporary.to_str().is_some();
    let base = if fits { temporary } else { PathBuf::from("/tmp") };
    let random = hanare_wire::handshake::random::<8>().map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(base.join(format!("{DIR_PREFIX}{:016x}", u64::from_le_bytes(random))))
}

/// One result of reading a server's output.
enum Said {
    Line(String),
    /// The server printed no complete line in time.
    Nothing,
    /// The server closed its output, or its output is invalid.
    End,
}

/// The lines that a server prints.
#[derive(Debug)]
struct Lines {
    stream: UnixStream,
    /// The received bytes that are not yet returned as lines.
    said: Vec<u8>,
}

impl Lines {
    fn next(&mut self, timeout: Duration) -> Said {
        let end = Instant::now() + timeout;
        loop {
            if let Some(at) = self.said.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.said.drain(..=at).collect();
                return Said::Line(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Said::Nothing;
            }
            let mut bytes = [0; 256];
            // Setting the timeout cannot fail, because the kernel refuses only a timeout of zero.
            let received = self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.read(&mut bytes));
            match received {
                Ok(0) => return Said::End,
                Ok(count) if self.said.len() < LINE_LEN_MAX => self.said.extend_from_slice(&bytes[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                // The line is too long, or the link is broken.
                Ok(_) | Err(_) => return Said::End,
            }
        }
    }
}

/// Returns the `hanare` command that was installed with a library: in the library's directory, as in a build, or in the
/// directory `bin` beside it.
fn installed_with(library: &Path) -> Option<PathBuf> {
    let dir = library.parent().filter(|dir| dir.is_absolute())?;
    ["hanare", "../bin/hanare"].iter().map(|name| dir.join(name)).find(|command| command.is_file())
}

/// Starts a private server for this process only. The server ends with this process. Returns the path of its socket.
/// The server gets half of the available memory, divided by the number of `processes`. The command is `HANARE_BIN`, or
/// the `hanare` that was installed with this library, or `hanare` from PATH. With `counters`, the server polls on idle
/// CPUs while this process has faults.
///
/// # Errors
/// [`PrivateError`] says what failed.
pub fn for_this_process(processes: u64, counters: Option<BorrowedFd<'_>>) -> Result<PathBuf, PrivateError> {
    let command = std::env::var_os("HANARE_BIN")
        .map(PathBuf::from)
        .or_else(|| own_file().as_deref().and_then(installed_with))
        .unwrap_or_else(|| PathBuf::from("hanare"));
    let memory =
        hanare_sys::memory::Memory::now().map_or(1 << 30, |memory| memory.available_bytes / 2) / processes.max(1);
    let options = PrivateOptions { command: &command, memory, spill: None, tree: None, warm: counters };
    let server = Private::start(&options)?;
    let socket = server.socket();
    // `server` is never dropped, because its `drop` would end the server. The server ends when this process ends.
    std::mem::forget(server);
    Ok(socket)
}
