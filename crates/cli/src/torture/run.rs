//! The run under test: `hanare run` with the checking program. Its lines come through a channel.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use hanare_settings::format_size;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use super::folder::Folder;
use super::{TortureError, Wish};

/// What the checking program says of itself, as one line of JSON. Counters are those since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Report {
    /// Words that were checked.
    pub(super) words: u64,
    /// The longest time that one page took since the last report, in microseconds. It counts checks that last still.
    pub(super) stall_us: u64,
    /// The longest time by which a sleep of 10 ms was too long since the last report, in microseconds.
    pub(super) late_us: u64,
    /// Bytes of pages that came from servers.
    pub(super) fetched_bytes: u64,
    /// Losses of servers.
    pub(super) servers_lost: u64,
    /// Bytes of pages that lack a part.
    pub(super) behind_bytes: u64,
    /// Bytes of parts that were rebuilt.
    pub(super) rebuilt_bytes: u64,
    /// The time in which pages lacked parts, in milliseconds.
    pub(super) degraded_ms: u64,
    /// The first word that was wrong.
    pub(super) wrong: Option<String>,
    /// Whether all words were checked at the end.
    pub(super) is_done: bool,
}

/// Something that the run said.
#[derive(Debug)]
pub(super) enum Said {
    /// The checking program reports.
    Report(Report),
    /// A line on standard error.
    Line(String),
}

/// The run. Its processes are killed when this value is dropped.
pub(super) struct Run {
    child: Child,
    input: Option<ChildStdin>,
    said: Receiver<Said>,
}

impl Run {
    /// Starts the run with these servers. `is_sealed`: whether pages are sealed before they leave the program.
    pub(super) fn start(
        wish: &Wish,
        folder: &Folder,
        servers: &[String],
        seed: u64,
        is_sealed: bool,
    ) -> Result<Self, TortureError> {
        let failed = |source| TortureError::Start { what: "the run", source };
        let own = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(&own);
        command.args(["run", "--local", &format_size(wish.local_bytes), "--allow-same-host", "--on-loss", "end"]);
        command.args(["--redundancy", &wish.redundancy.to_string(), "--seal", if is_sealed { "on" } else { "off" }]);
        command.arg("--key").arg(folder.key_file());
        servers.iter().for_each(|server| {
            command.args(["--server", server]);
        });
        command.arg("--").arg(&own).args(["torture-program", "--seed", &seed.to_string()]);
        command.args(["--size", &wish.size_bytes.to_string(), "--threads", &wish.threads.to_string()]);
        if wish.flip_word {
            command.arg("--flip-word");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        hanare_sys::signal::kill_with_starter(&mut command);
        let mut child = command.spawn().map_err(failed)?;
        let (input, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (sender, said) = channel();
        let run = Self { child, input, said };
        let as_report = |line: String| match serde_json::from_str(&line) {
            Ok(report) => Said::Report(report),
            Err(_) => Said::Line(line),
        };
        read(stdout, sender.clone(), as_report).map_err(failed)?;
        read(stderr, sender, Said::Line).map_err(failed)?;
        Ok(run)
    }

    /// Asks the checking program to check all words and to end.
    pub(super) fn ask_to_end(&mut self) {
        self.input = None;
    }

    /// Returns what the run says next, within this time. `None` after the run has closed its outputs.
    pub(super) fn next(&self, limit: Duration) -> Option<Option<Said>> {
        use std::sync::mpsc::RecvTimeoutError::*;
        match self.said.recv_timeout(limit) {
            Ok(said) => Some(Some(said)),
            Err(Timeout) => Some(None),
            Err(Disconnected) => None,
        }
    }

    /// Returns the exit code of the run once it has ended: 128 + n for signal n.
    pub(super) fn end(&mut self) -> io::Result<Option<u8>> {
        Ok(self.child.try_wait()?.map(|status| crate::supervise::End::of(status).exit_code()))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Ignored: these fail only if the processes have ended. The child is not waited for before, so no other group
        // has its number.
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Sends each line that comes from a pipe.
fn read(
    pipe: Option<impl Read + Send + 'static>,
    sender: Sender<Said>,
    said: impl Fn(String) -> Said + Send + 'static,
) -> io::Result<()> {
    let pipe = pipe.ok_or(io::ErrorKind::BrokenPipe)?;
    std::thread::Builder::new().name("lines".to_owned()).spawn(move || {
        // An error means that nobody listens any more.
        let _ = BufReader::new(pipe).lines().map_while(Result::ok).try_for_each(|line| sender.send(said(line)));
    })?;
    Ok(())
}
