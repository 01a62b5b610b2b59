//! Memory servers as users run them: `hanare serve` on TCP or on a Unix socket.

use std::io::ErrorKind;
use std::process::Command;
use std::time::Duration;

use hanare_wire::{Endpoint, LinkError, Status, fetch_status};
use rustix::process::Signal;

use crate::{Outcome, PATIENCE, Place, Running, until};

/// A running `hanare serve`. It is killed when this value is dropped.
pub struct Served {
    running: Running,
    /// The address that the server printed.
    pub address: String,
}

impl Served {
    /// Starts a server on a free TCP port of the loopback. `memory` is the size of its memory, such as `64M`.
    pub fn tcp(place: &Place, memory: &str) -> Served {
        Served::with(place, place.hanare(["serve", "--memory", memory, "--listen", "127.0.0.1:0"]))
    }

    /// Starts a server on a Unix socket with the file name `name` in the test's directory.
    pub fn unix(place: &Place, memory: &str, name: &str) -> Served {
        let mut command = place.hanare(["serve", "--memory", memory, "--unix"]);
        command.arg(place.path(name));
        Served::with(place, command)
    }

    /// Starts a server with this command.
    pub fn with(place: &Place, mut command: Command) -> Served {
        let mut running = place.start(&mut command);
        let mut said = String::new();
        until("the server listens", || {
            let runs = running.runs();
            said = running.said_so_far();
            assert!(runs, "the server ended: {said}");
            said.ends_with('\n')
        });
        let address = said.lines().next().and_then(|line| line.rsplit(' ').next()).expect("an address").to_owned();
        Served { running, address }
    }

    /// Sends a signal to the server.
    pub fn signal(&self, signal: Signal) {
        self.running.signal(signal);
    }

    /// Returns the number of the server's process.
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Returns what the server has written to standard error so far.
    pub fn said_so_far(&self) -> String {
        self.running.said_so_far()
    }

    /// Ends the server by SIGTERM, and returns what it has written.
    pub fn stop(self) -> Outcome {
        self.running.signal(Signal::TERM);
        self.running.finish(PATIENCE)
    }

    /// Kills the server with SIGKILL.
    pub fn kill(self) {
        drop(self.running);
    }
}

/// Returns the status of the server at `address`.
pub fn status(address: &str) -> Status {
    let endpoint: Endpoint = address.parse().expect("an address");
    let mut answer = None;
    until("a server that answers", || {
        answer = match fetch_status(&endpoint, None, Duration::from_secs(10)) {
            // The socket exists shortly before the server listens, so a refused connection is tried again.
            Err(LinkError::Unreachable { source, .. }) if source.kind() == ErrorKind::ConnectionRefused => None,
            other => Some(other.expect("a server that answers")),
        };
        answer.is_some()
    });
    answer.expect("a server that answers")
}
