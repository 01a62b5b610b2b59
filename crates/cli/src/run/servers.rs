//! Checks that every named memory server answers, before the program depends on it.

use std::path::PathBuf;
use std::time::Duration;

use hanare_settings::Settings;
use hanare_wire::{Endpoint, Key, KeyError, LinkError, fetch_status};
use thiserror::Error;

use crate::socket;

/// Why the named servers cannot be used.
#[derive(Debug, Error)]
pub(crate) enum ServersError {
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A server was reached, but gave no valid answer.
    #[error("{endpoint}: {source}")]
    Link {
        /// The server.
        endpoint: Endpoint,
        /// The error.
        source: Box<LinkError>,
    },
    /// A server cannot be reached. The message names it.
    #[error("{0}{1}")]
    Unreachable(Box<LinkError>, String),
    /// The key file's name is not valid UTF-8.
    #[error("the key file's name {} is not valid UTF-8; rename it", .0.display())]
    KeyName(PathBuf),
}

/// Completes a handshake with all named servers at once. If several fail, returns the error of the first one in the
/// list.
pub(crate) fn check(settings: &Settings) -> Result<(), ServersError> {
    let key = match &settings.key_file {
        Some(path) if path.to_str().is_none() => return Err(ServersError::KeyName(path.clone())),
        Some(path) => Some(Key::from_file(path)?),
        None => None,
    };
    let timeout = Duration::from_secs(u64::from(settings.timeout_s));
    let ask = |endpoint: &Endpoint| {
        let failed = |error: LinkError| match error {
            LinkError::Unreachable { .. } => ServersError::Unreachable(Box::new(error), socket::advice(endpoint)),
            _ => ServersError::Link { endpoint: endpoint.clone(), source: Box::new(error) },
        };
        fetch_status(endpoint, key.as_ref(), timeout).map(drop).map_err(failed)
    };
    std::thread::scope(|scope| {
        // If no thread can be started, this thread asks the server itself.
        let asked: Vec<_> = settings
            .servers
            .iter()
            .map(|server| {
                let asker = std::thread::Builder::new().spawn_scoped(scope, || ask(&server.endpoint));
                asker.map_err(|_| &server.endpoint)
            })
            .collect();
        asked.into_iter().try_for_each(|asker| match asker {
            // A panic of one of these threads is a bug, so it is passed on.
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(endpoint) => ask(endpoint),
        })
    })
}
