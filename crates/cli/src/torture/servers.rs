//! The memory servers of a test: processes of `hanare serve`, some of them behind a relay.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use hanare_settings::format_size;
use hanare_wire::{Endpoint, Key, fetch_status};
use rustix::process::{Pid, Signal, kill_process};

use super::folder::Folder;
use super::plan::has_relay;
use super::relay::Relay;
use super::{TortureError, Wish};

/// The longest time that a server may take until it listens.
const START: Duration = Duration::from_secs(30);
/// The longest time that a server may take to end by SIGTERM.
const END: Duration = Duration::from_secs(10);
/// The time for which a server's status is waited for.
const STATUS: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_millis(5);

/// A memory server. Its process is killed when this value is dropped.
pub(super) struct Server {
    process: Option<Process>,
    own: SocketAddr,
    pub(super) relay: Option<Relay>,
}

/// A started process of `hanare serve`.
struct Process(Child);

impl Server {
    /// Starts server number `index` at a port that the kernel chooses.
    pub(super) fn start(wish: &Wish, folder: &Folder, index: usize) -> Result<Self, TortureError> {
        let (process, own) = Process::start(wish, folder, "127.0.0.1:0")?;
        let relay = if has_relay(index) { Some(Relay::start(own)) } else { None };
        let relay = relay.transpose().map_err(|source| TortureError::Start { what: "a relay", source })?;
        Ok(Self { process: Some(process), own, relay })
    }

    /// The address that the run is given.
    pub(super) fn address(&self) -> String {
        self.relay.as_ref().map_or(self.own, |relay| relay.address).to_string()
    }

    /// Sends a signal. A server that is gone gets none.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    /// Kills the server, or ends it by SIGTERM. Returns whether it ended as it should.
    pub(super) fn end(&mut self, signal: Signal) -> io::Result<bool> {
        let Some(Process(child)) = &mut self.process else { return Ok(true) };
        let is_kind = signal == Signal::TERM;
        kill_process(Pid::from_child(child), signal)?;
        let began = Instant::now();
        while child.try_wait()?.is_none() {
            if began.elapsed() > END {
                return Ok(false);
            }
            std::thread::sleep(NAP);
        }
        let ended_well = child.wait()?.success();
        self.process = None;
        Ok(ended_well || !is_kind)
    }

    /// Starts the server again at its address.
    pub(super) fn start_again(&mut self, wish: &Wish, folder: &Folder) -> Result<(), TortureError> {
        self.process = Some(Process::start(wish, folder, &self.own.to_string())?.0);
        Ok(())
    }

    /// Checks whether a run has a session at this server. The server is asked directly, not through its relay.
    pub(super) fn has_session(&self, key: &Key) -> bool {
        let status = fetch_status(&Endpoint::Tcp(self.own.to_string()), Some(key), STATUS);
        status.is_ok_and(|status| status.sessions > 0)
    }
}

impl Process {
    /// Starts a server and waits until it listens. Returns it with its address.
    fn start(wish: &Wish, folder: &Folder, listen: &str) -> Result<(Self, SocketAddr), TortureError> {
        let failed = |source| TortureError::Start { what: "a memory server", source };
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["serve", "--memory", &format_size(wish.memory_bytes), "--listen", listen, "--key"]);
        command.arg(folder.key_file());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        hanare_sys::signal::kill_with_starter(&mut command);
        let mut child = command.spawn().map_err(failed)?;
        let stderr = child.stderr.take();
        let process = Self(child);
        let lines = drain(stderr).map_err(failed)?;
        let began = Instant::now();
        let mut said = String::new();
        loop {
            match lines.recv_timeout(START.saturating_sub(began.elapsed())) {
                Ok(line) => said = line,
                Err(RecvTimeoutError::Timeout) => return Err(TortureError::Server(format!("it is silent; {said}"))),
                Err(RecvTimeoutError::Disconnected) => return Err(TortureError::Server(said)),
            }
            let is_listening = said.contains(" memory on ");
            if let (true, Some(Ok(address))) = (is_listening, said.rsplit(' ').next().map(str::parse)) {
                return Ok((process, address));
            }
        }
    }

    fn signal(&self, signal: Signal) {
        // Ignored: the child is not waited for, so its number is its own. It may have ended.
        let _ = kill_process(Pid::from_child(&self.0), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ignored: both calls fail only if the process has already ended. SIGKILL ends a stopped process, too.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads the lines of a server until it ends, so that it never waits for a reader.
fn drain(stderr: Option<ChildStderr>) -> io::Result<Receiver<String>> {
    let (sender, lines) = channel();
    let stderr = stderr.ok_or(io::ErrorKind::BrokenPipe)?;
    std::thread::Builder::new().name("server".to_owned()).spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            // Ignored: nobody reads lines after the start.
            let _ = sender.send(line);
        }
    })?;
    Ok(lines)
}
