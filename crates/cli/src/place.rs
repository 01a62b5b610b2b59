//! `hanare place`: proposes the nodes for a job, from the bytes that each node's memory server holds.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use hanare_settings::human_size;
use hanare_sim::cluster::schedule::propose;
use hanare_wire::{Endpoint, EndpointError, Key, KeyError, LinkError, Status, fetch_status};
use serde::Serialize;
use thiserror::Error;

use crate::socket;

const EXAMPLES: &str = "\
Examples:
  hanare place --servers node7,node8,node9 --ranks 2 --key key
  srun -w \"$(hanare place --servers node7,node8,node9 --ranks 2 --names | paste -sd,)\" ./solve

The choice is that of algo4 of the SSS-CORE paper: the nodes that hold most pages, or any nodes if fewer than --ranks hold \
some. A memory server does not say whose pages it holds, so all its pages count.";

/// Propose the nodes on which a job should run: the nodes whose memory servers hold the most data.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct PlaceArgs {
    /// The nodes' memory servers, separated by commas: HOST[:PORT] or the path of a socket.
    #[arg(long, value_name = "SERVERS", value_delimiter = ',', required = true)]
    servers: Vec<String>,
    /// Number of nodes that the job wants.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    /// File with the servers' key. Default: HANARE_KEY_FILE.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Print only the chosen hosts, one per line, without ports and figures.
    #[arg(long, conflicts_with = "json")]
    names: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Why there is no proposal.
#[derive(Debug, Error)]
pub(crate) enum PlaceError {
    /// An entry of `--servers` is not an address.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A server is named twice.
    #[error("{0} is named twice in --servers; name each node once")]
    Twice(Endpoint),
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// There are too few nodes.
    #[error("--ranks {ranks} is more than the {servers} nodes in --servers; ask for fewer or name more")]
    TooFew {
        /// The number of nodes asked for.
        ranks: u32,
        /// The number of nodes in `--servers`.
        servers: usize,
    },
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
    /// Standard output cannot be written.
    #[error("cannot print: {0}")]
    Print(io::Error),
}

#[derive(Serialize)]
struct Node {
    server: String,
    held_bytes: u64,
    free_bytes: u64,
    chosen: bool,
}

pub(crate) fn place(args: &PlaceArgs) -> Result<u8, PlaceError> {
    let servers = args.servers.iter().map(|text| text.trim().parse()).collect::<Result<Vec<Endpoint>, _>>()?;
    if let Some((_, twice)) = servers.iter().enumerate().find(|(index, server)| servers[..*index].contains(server)) {
        return Err(PlaceError::Twice(twice.clone()));
    }
    let few = || PlaceError::TooFew { ranks: args.ranks, servers: servers.len() };
    if args.ranks as usize > servers.len() {
        return Err(few());
    }
    let key_file = args.key.clone().or_else(|| std::env::var_os("HANARE_KEY_FILE").map(PathBuf::from));
    let key = key_file.as_deref().map(Key::from_file).transpose()?;
    let held = ask(&servers, key.as_ref())?;
    let pages: Vec<u64> = held.iter().map(held_bytes).collect();
    let chosen = propose(&pages, args.ranks).ok_or_else(few)?;
    let text = if args.json { json(&servers, &held, &chosen)? } else { lines(&servers, &held, &chosen, args.names) };
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(PlaceError::Print(error)),
        _ => Ok(0),
    }
}

/// Asks all servers at once. If several fail, returns the error of the first one in the list.
fn ask(servers: &[Endpoint], key: Option<&Key>) -> Result<Vec<Status>, PlaceError> {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let one = |endpoint: &Endpoint| {
        fetch_status(endpoint, key, TIMEOUT).map_err(|error| match error {
            LinkError::Unreachable { .. } => PlaceError::Unreachable(Box::new(error), socket::advice(endpoint)),
            _ => PlaceError::Link { endpoint: endpoint.clone(), source: Box::new(error) },
        })
    };
    std::thread::scope(|scope| {
        let asked: Vec<_> = servers.iter().map(|server| scope.spawn(|| one(server))).collect();
        // A panic of one of these threads is a bug, so it is passed on.
        asked.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

fn held_bytes(status: &Status) -> u64 {
    status.memory_bytes.saturating_sub(status.memory_free_bytes).saturating_add(status.spill_bytes)
}

fn json(servers: &[Endpoint], held: &[Status], chosen: &[u32]) -> Result<String, PlaceError> {
    let node = |(index, (server, status)): (usize, (&Endpoint, &Status))| Node {
        server: server.to_string(),
        held_bytes: held_bytes(status),
        free_bytes: status.memory_limit_bytes.saturating_sub(status.memory_bytes) + status.memory_free_bytes,
        chosen: chosen.contains(&(index as u32)),
    };
    let nodes: Vec<Node> = servers.iter().zip(held).enumerate().map(node).collect();
    let text = serde_json::to_string_pretty(&nodes).map_err(|error| PlaceError::Print(error.into()))?;
    Ok(text + "\n")
}

fn lines(servers: &[Endpoint], held: &[Status], chosen: &[u32], names: bool) -> String {
    let widest = servers.iter().map(|server| server.to_string().len()).max().unwrap_or(0);
    let line = |&index: &u32| {
        let (server, status) = (&servers[index as usize], &held[index as usize]);
        match server {
            Endpoint::Tcp(address) if names => {
                let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
                format!("{}\n", host.trim_start_matches('[').trim_end_matches(']'))
            }
            _ if names => format!("{server}\n"),
            _ => format!("{:widest$}  {} held\n", server.to_string(), human_size(held_bytes(status))),
        }
    };
    chosen.iter().map(line).collect()
}
