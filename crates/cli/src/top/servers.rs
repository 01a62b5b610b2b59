//! The memory servers that are shown. Each is asked by a thread of its own, so that a silent one holds up nothing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hanare_wire::{Endpoint, Key, Status};
use serde::Serialize;

use super::columns::{Column, size};
use crate::status::{Sheet, ask};

/// The state of one server, or why it is not known.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ServerLine {
    server: String,
    error: Option<String>,
    /// The same as `hanare status --json` prints.
    status: Option<Sheet>,
    #[serde(skip)]
    totals: Option<Status>,
}

/// The columns for servers.
pub(super) const COLUMNS: &[Column<ServerLine>] = &[
    Column { title: "USED", width: 5, rank: 0, cell: |it| it.size(used), key: |_| 0.0 },
    Column {
        title: "FREE",
        width: 5,
        rank: 1,
        cell: |it| it.size(|s| s.memory_limit_bytes.saturating_sub(used(s))),
        key: |_| 0.0,
    },
    Column { title: "SPILL", width: 5, rank: 4, cell: |it| it.size(|s| s.spill_bytes), key: |_| 0.0 },
    Column { title: "READ/s", width: 6, rank: 2, cell: |it| it.size(|s| s.read_bytes_per_s), key: |_| 0.0 },
    Column { title: "WRITE/s", width: 7, rank: 3, cell: |it| it.size(|s| s.write_bytes_per_s), key: |_| 0.0 },
    Column {
        title: "SESSIONS",
        width: 8,
        rank: 5,
        cell: |it| it.totals.map_or("-".to_owned(), |s| s.sessions.to_string()),
        key: |_| 0.0,
    },
    Column { title: "SERVER", width: 16, rank: 0, cell: ServerLine::name, key: |_| 0.0 },
];

/// Returns the bytes of memory that pages use.
fn used(status: &Status) -> u64 {
    status.memory_bytes.saturating_sub(status.memory_free_bytes)
}

impl ServerLine {
    fn unknown(server: &Endpoint, error: &str) -> ServerLine {
        ServerLine { server: server.to_string(), error: Some(error.to_owned()), status: None, totals: None }
    }

    fn ask(server: &Endpoint, key: Option<&Key>) -> ServerLine {
        match ask(server, key) {
            Ok((totals, sessions)) => ServerLine {
                server: server.to_string(),
                error: None,
                status: Some(Sheet::new(server, &totals, &sessions)),
                totals: Some(totals),
            },
            Err(error) => ServerLine::unknown(server, &error.to_string()),
        }
    }

    fn size(&self, of: fn(&Status) -> u64) -> String {
        self.totals.as_ref().map_or("-".to_owned(), |status| size(of(status) as f64))
    }

    fn name(&self) -> String {
        match (&self.error, self.totals) {
            (Some(error), _) if error.contains(&self.server) => error.clone(),
            (Some(error), _) => format!("{}: {error}", self.server),
            (None, Some(status)) if status.is_short_of_memory != 0 => format!("{} (short of memory)", self.server),
            (None, _) => self.server.clone(),
        }
    }
}

/// Asks all servers once, at the same time.
pub(super) fn ask_once(servers: &[Endpoint], key: Option<&Key>) -> Vec<ServerLine> {
    std::thread::scope(|scope| {
        let asked: Vec<_> = servers
            .iter()
            .map(|server| {
                (server, std::thread::Builder::new().spawn_scoped(scope, move || ServerLine::ask(server, key)))
            })
            .collect();
        let answer = |(server, asker): (&Endpoint, std::io::Result<std::thread::ScopedJoinHandle<'_, ServerLine>>)| {
            match asker.map(std::thread::ScopedJoinHandle::join) {
                Ok(Ok(line)) => line,
                // A panic of one of these threads is a bug, so it is passed on.
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                // If no thread can be started, this thread asks the server itself.
                Err(_) => ServerLine::ask(server, key),
            }
        };
        asked.into_iter().map(answer).collect()
    })
}

/// Servers that are asked in each interval, until this process ends.
pub(super) struct Asked(Vec<Arc<Mutex<ServerLine>>>);

impl Asked {
    /// Starts a thread for each server.
    pub(super) fn start(servers: &[Endpoint], key: Option<&Key>, interval: Duration) -> Asked {
        let start = |server: &Endpoint| {
            let line = Arc::new(Mutex::new(ServerLine::unknown(server, "not asked yet")));
            let (theirs, endpoint, key) = (Arc::clone(&line), server.clone(), key.cloned());
            let asker = move || {
                loop {
                    let answer = ServerLine::ask(&endpoint, key.as_ref());
                    *theirs.lock().unwrap_or_else(PoisonError::into_inner) = answer;
                    std::thread::sleep(interval);
                }
            };
            if let Err(error) = std::thread::Builder::new().spawn(asker) {
                let reason = format!("no thread to ask it: {error}");
                *line.lock().unwrap_or_else(PoisonError::into_inner) = ServerLine::unknown(server, &reason);
            }
            line
        };
        Asked(servers.iter().map(start).collect())
    }

    /// Returns the last answers.
    pub(super) fn lines(&self) -> Vec<ServerLine> {
        self.0.iter().map(|line| line.lock().unwrap_or_else(PoisonError::into_inner).clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::columns::table;
    use super::*;

    #[test]
    fn a_server_that_cannot_be_reached_is_named_once() {
        let server: Endpoint = "127.0.0.1:1".parse().unwrap();
        let lines = ask_once(&[server.clone(), server], None);
        let shown = table(COLUMNS, &lines, usize::MAX);
        assert_eq!(shown.len(), 3);
        assert_eq!(shown[1].matches("127.0.0.1:1").count(), 1, "{shown:?}");
        let json = serde_json::to_value(&lines[0]).unwrap();
        assert!(json["status"].is_null() && json["error"].is_string(), "{json}");
    }
}
