//! `hanare status`: what a memory server holds, in all and for each session.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use hanare_settings::human_size;
use hanare_wire::payload::{NO_QUOTA, release_text};
use hanare_wire::{Endpoint, Key, KeyError, LinkError, SessionStatus, Status, Transport, fetch_sessions};
use serde::Serialize;
use thiserror::Error;

use crate::narrow::{self, fitted};
use crate::socket;

/// Longest time for connecting, and for each answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The columns of the table of sessions.
const HEAD: [&str; 9] = ["session", "client", "link", "age", "slots", "holds", "quota", "reads/s", "writes/s"];
/// Column in which the rest of a line begins in a narrow terminal.
const INDENT: usize = 4;

const EXAMPLES: &str = "\
Examples:
  hanare status node7                      the server on node7, port 7441
  hanare status /run/hanare.sock --json    a server on a Unix socket, for a script
  hanare status node7:7500 --key key       a server that needs a key
Rates are of the last few seconds. A client on the same host copies its pages itself, so its rates are not known.";

/// Say what a memory server holds, in all and for each session.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct StatusArgs {
    /// The server: HOST, HOST:PORT or the path of a Unix socket.
    #[arg(value_name = "HOST[:PORT]")]
    server: Endpoint,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// File with the server's key.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

/// Why a server's state is not known.
#[derive(Debug, Error)]
pub(crate) enum StatusError {
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The server cannot be reached. The message names it.
    #[error("{0}{1}")]
    Unreachable(Box<LinkError>, String),
    /// The server was reached, but gave no valid answer.
    #[error("{endpoint}: {source}")]
    Link {
        /// The server.
        endpoint: Endpoint,
        /// The error.
        source: Box<LinkError>,
    },
    /// The answer could not be printed.
    #[error("cannot print the status: {0}")]
    Print(#[from] io::Error),
}

/// The JSON of `hanare status`. Units are in the names.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sheet {
    server: String,
    hanare_version: String,
    /// The first eight hexadecimal digits of the server's identity.
    identity: String,
    uptime_s: f64,
    memory_limit_bytes: u64,
    /// Memory that pages use now.
    memory_used_bytes: u64,
    /// Memory that is left below the limit.
    memory_free_bytes: u64,
    /// Memory counted against the limit: the memory that pages use, and blocks kept for reuse.
    memory_bytes: u64,
    spill_bytes: u64,
    spill_free_bytes: u64,
    slots: u64,
    slots_free: u64,
    slots_reused: u64,
    client_quota_bytes: Option<u64>,
    read_bytes: u64,
    write_bytes: u64,
    read_bytes_per_s: u64,
    write_bytes_per_s: u64,
    /// Whether the machine is short of memory. The server then hands out no more.
    is_short_of_memory: bool,
    sessions: Vec<Line>,
}

/// One session in the JSON.
#[derive(Debug, Clone, Serialize)]
struct Line {
    session: u64,
    program: String,
    pid: u32,
    host: String,
    link: &'static str,
    connections: u64,
    /// Whether the session was kept over a restart, and its client has not come back.
    waiting: bool,
    age_s: f64,
    slot_bytes: u64,
    slots: u64,
    bytes: u64,
    spill_bytes: u64,
    quota_bytes: Option<u64>,
    /// `None` if the client copies its pages itself.
    read_bytes: Option<u64>,
    write_bytes: Option<u64>,
    read_bytes_per_s: Option<u64>,
    write_bytes_per_s: Option<u64>,
}

/// Asks the server and prints its answer.
pub(crate) fn status(args: &StatusArgs) -> Result<u8, StatusError> {
    let key = args.key.as_deref().map(Key::from_file).transpose()?;
    let (status, sessions) = ask(&args.server, key.as_ref())?;
    let sheet = Sheet::new(&args.server, &status, &sessions);
    let text = match args.json {
        true => serde_json::to_string_pretty(&sheet).map_err(io::Error::from)? + "\n",
        false => sheet.text(narrow::width(&io::stdout())),
    };
    match io::stdout().write_all(text.as_bytes()) {
        // A reader that closes the pipe early is no failure.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        other => other.map(|()| 0).map_err(StatusError::Print),
    }
}

/// Asks a server for its state and its sessions.
pub(crate) fn ask(server: &Endpoint, key: Option<&Key>) -> Result<(Status, Vec<SessionStatus>), StatusError> {
    fetch_sessions(server, key, TIMEOUT).map_err(|error| match error {
        LinkError::Unreachable { .. } => StatusError::Unreachable(Box::new(error), socket::advice(server)),
        error => StatusError::Link { endpoint: server.clone(), source: Box::new(error) },
    })
}

impl Sheet {
    pub(crate) fn new(server: &Endpoint, status: &Status, sessions: &[SessionStatus]) -> Sheet {
        let used = status.memory_bytes.saturating_sub(status.memory_free_bytes);
        Sheet {
            server: server.to_string(),
            hanare_version: release_text(status.release),
            identity: format!("{:08x}", status.server_id >> 32),
            uptime_s: seconds(status.uptime_ms),
            memory_limit_bytes: status.memory_limit_bytes,
            memory_used_bytes: used,
            memory_free_bytes: status.memory_limit_bytes.saturating_sub(used),
            memory_bytes: status.memory_bytes,
            spill_bytes: status.spill_bytes,
            spill_free_bytes: status.spill_free_bytes,
            slots: status.slots,
            slots_free: status.slots_free,
            slots_reused: status.slots_reused,
            client_quota_bytes: Some(status.client_quota_bytes).filter(|quota| *quota != NO_QUOTA),
            read_bytes: status.read_bytes,
            write_bytes: status.write_bytes,
            read_bytes_per_s: status.read_bytes_per_s,
            write_bytes_per_s: status.write_bytes_per_s,
            is_short_of_memory: status.is_short_of_memory != 0,
            sessions: sessions.iter().map(Line::new).collect(),
        }
    }

    /// Returns the state for people. In a terminal that is too narrow for the table of sessions, each session has lines of
    /// its own.
    fn text(&self, width: usize) -> String {
        let mut text = fitted(&self.about_server(), width, INDENT);
        if self.sessions.is_empty() {
            return text + "no session is open\n";
        }
        match self.sessions.iter().filter(|session| session.waiting).count() {
            0 => {}
            1 => text += "1 session waits for its client\n",
            waiting => text += &format!("{waiting} sessions wait for their clients\n"),
        }
        let rows: Vec<_> = self.sessions.iter().map(Line::row).collect();
        let table = table(&rows);
        if table.iter().all(|line| line.chars().count() <= width) {
            text + &table.join("\n") + "\n"
        } else {
            text + &blocks(&rows, width)
        }
    }

    /// Returns the lines about the server as a whole.
    fn about_server(&self) -> String {
        let quota = self.client_quota_bytes.map_or(String::new(), |quota| format!(", {} a client", human_size(quota)));
        let mut text = format!(
            "{}: hanare {}, up {}, identity {}\nmemory {} of {} used{quota}; spill {} used, {} free\nnow {}/s read, {}/s written; \
             since the start {} and {}\n",
            self.server,
            self.hanare_version,
            span(self.uptime_s),
            self.identity,
            human_size(self.memory_used_bytes),
            human_size(self.memory_limit_bytes),
            human_size(self.spill_bytes),
            human_size(self.spill_free_bytes),
            human_size(self.read_bytes_per_s),
            human_size(self.write_bytes_per_s),
            human_size(self.read_bytes),
            human_size(self.write_bytes),
        );
        if self.is_short_of_memory {
            text += "its machine is short of memory: it takes no more pages into memory, and no new clients without --spill\n";
        }
        text
    }
}

/// Returns the lines of a table of sessions, its head first.
fn table(rows: &[[String; 9]]) -> Vec<String> {
    let head = HEAD.map(str::to_owned);
    let rows: Vec<&[String; 9]> = std::iter::once(&head).chain(rows).collect();
    let widths: Vec<usize> =
        (0..HEAD.len()).map(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0)).collect();
    let line = |row: &&[String; 9]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Returns a line for each value of each session.
fn blocks(rows: &[[String; 9]], width: usize) -> String {
    let line = |(name, value): (&&str, &String)| match *name {
        name if name == HEAD[0] => format!("{name} {value}\n"),
        name => fitted(&format!("  {name:<8}  {value}\n"), width, INDENT),
    };
    rows.iter().flat_map(|row| HEAD.iter().zip(row)).map(line).collect()
}

impl Line {
    fn new(session: &SessionStatus) -> Line {
        let seen = |bytes: u64| (session.transport != Transport::SameHost).then_some(bytes);
        Line {
            session: session.session,
            program: session.client.program.to_string(),
            pid: session.client.pid,
            host: session.client.host.to_string(),
            link: session.transport.name(),
            connections: session.connections,
            waiting: session.connections == 0,
            age_s: seconds(session.age_ms),
            slot_bytes: session.slot_bytes,
            slots: session.slots,
            bytes: session.bytes(),
            spill_bytes: session.spill_bytes,
            quota_bytes: session.quota_bytes,
            read_bytes: seen(session.read_bytes),
            write_bytes: seen(session.write_bytes),
            read_bytes_per_s: seen(session.read_bytes_per_s),
            write_bytes_per_s: seen(session.write_bytes_per_s),
        }
    }

    fn row(&self) -> [String; 9] {
        let rate = |bytes: Option<u64>| bytes.map_or("-".to_owned(), human_size);
        [
            self.session.to_string(),
            format!("{}[{}]@{}", self.program, self.pid, self.host),
            if self.waiting { "waiting" } else { self.link }.to_owned(),
            span(self.age_s),
            self.slots.to_string(),
            human_size(self.bytes),
            self.quota_bytes.map_or("none".to_owned(), human_size),
            rate(self.read_bytes_per_s),
            rate(self.write_bytes_per_s),
        ]
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

/// Formats a time: `12s`, `5m`, `3h` or `2d`.
fn span(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        0..=119 => format!("{whole}s"),
        120..=7199 => format!("{}m", whole / 60),
        7200..=172_799 => format!("{}h", whole / 3600),
        _ => format!("{}d", whole / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare_wire::{Identity, Text};

    fn session(transport: Transport) -> SessionStatus {
        SessionStatus {
            session: 3,
            client: Identity { pid: 42, program: Text::new("sort"), host: Text::new("node1") },
            transport,
            connections: 2,
            slot_bytes: 2 << 20,
            slots: 5,
            spill_bytes: 0,
            quota_bytes: Some(16 << 20),
            read_bytes: 100,
            write_bytes: 200,
            read_bytes_per_s: 1536,
            write_bytes_per_s: 0,
            age_ms: 150_000,
        }
    }

    #[test]
    fn a_table_names_each_client() {
        let (memory_limit_bytes, server_id) = (64 << 20, 0xab12_cd34_0000_0001);
        let status = Status { memory_limit_bytes, client_quota_bytes: 16 << 20, server_id, ..Status::default() };
        let endpoint: Endpoint = "node7".parse().unwrap();
        let text =
            Sheet::new(&endpoint, &status, &[session(Transport::Tcp), session(Transport::SameHost)]).text(usize::MAX);
        assert!(
            text.starts_with("node7:7441: hanare 0.0.0, up 0s, identity ab12cd34\n")
                && text.contains("of 64 MiB used, 16 MiB a client"),
            "{text}"
        );
        assert!(
            text.contains("3        sort[42]@node1  tcp        2m   5      10 MiB  16 MiB  1.5 KiB  0 B"),
            "{text}"
        );
        assert!(text.contains("same-host  2m   5      10 MiB  16 MiB  -        -"), "{text}");
        assert!(!text.contains("wait"), "{text}");
        let narrow = Sheet::new(&endpoint, &status, &[session(Transport::Tcp), session(Transport::Unix)]).text(40);
        assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
        assert!(narrow.contains("\nsession 3\n  client    sort[42]@node1\n  link      tcp\n"), "{narrow}");
        let alone = SessionStatus { connections: 0, ..session(Transport::Tcp) };
        let text = Sheet::new(&endpoint, &status, &[alone, session(Transport::Unix)]).text(usize::MAX);
        assert!(text.contains("\n1 session waits for its client\n") && text.contains("  waiting  2m"), "{text}");
        let none = Sheet::new(&endpoint, &Status { client_quota_bytes: NO_QUOTA, ..status }, &[]).text(usize::MAX);
        assert!(none.ends_with("no session is open\n") && !none.contains("a client"), "{none}");
    }

    #[test]
    fn the_json_says_none_where_nothing_is_known() {
        let endpoint: Endpoint = "/s".parse().unwrap();
        let (memory_bytes, memory_free_bytes) = (64 << 20, 48 << 20);
        let limits = Status { memory_limit_bytes: 1 << 30, memory_bytes, memory_free_bytes, ..Status::default() };
        let status = Status { client_quota_bytes: NO_QUOTA, ..limits };
        let sheet = Sheet::new(&endpoint, &status, &[session(Transport::SameHost), session(Transport::Unix)]);
        let json = serde_json::to_value(&sheet).unwrap();
        assert!(json["client_quota_bytes"].is_null() && json["sessions"][0]["read_bytes"].is_null(), "{json}");
        assert_eq!(
            (&json["memory_used_bytes"], &json["memory_free_bytes"]),
            (&(16 << 20).into(), &(1008 << 20).into())
        );
        assert_eq!(json["sessions"][1]["read_bytes_per_s"], 1536);
        assert_eq!((json["sessions"][1]["bytes"].as_u64(), json["server"].as_str()), (Some(10 << 20), Some("unix:/s")));
    }

    #[test]
    fn times_are_short() {
        assert_eq!([0.9, 119.0, 120.0, 7200.0, 1e6].map(span), ["0s", "119s", "2m", "2h", "11d"]);
    }
}
