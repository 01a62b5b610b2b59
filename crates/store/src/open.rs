//! Opens the store of a process. Several processes, such as the ranks of a shared-memory program, may share a far
//! address space. Each process stores some pages of this address space.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use hanare_paging::limits::RUN_BYTES_MAX;
use hanare_settings::{Redundancy, ServerSpec};
use hanare_wire::limits::CONNECT_DEFAULT;
use hanare_wire::payload::SERVER_ID_BYTES;
use hanare_wire::{Attachment, Key, KeyError, LinkError, Session, SessionInfo, SessionOptions};

use crate::private::{self, PrivateError};
use crate::redundant::{Named, Redundant, slot_bytes};
use crate::remote::passes;
use crate::{EXTENT_BYTES, GuardError, Kind, Opened, Remote, Shape, Slots, SlotsError, Worker};

/// The time in which a server of a redundant store must be reached, if the store can do without it.
const REACH_SOON: Duration = Duration::from_secs(1);

/// The place to which pages are evicted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A private server that the process starts for itself.
    Own,
    /// A private server on this host, named by the path of its socket.
    Private(PathBuf),
    /// Memory servers.
    Servers {
        /// The addresses of the servers, each with the maximum number of bytes that all processes together may use on
        /// it.
        servers: Vec<ServerSpec>,
        /// The file with the key that the servers share with this process. `None` if they use no key.
        key: Option<PathBuf>,
        /// The silence in seconds after which a server counts as lost.
        timeout_s: u32,
        /// The parts of each page, and on which servers they may be.
        copies: Copies,
    },
}

/// How pages are kept on several memory servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Copies {
    /// The parts of each page.
    pub redundancy: Redundancy,
    /// Whether parts of a page may be on the same host.
    pub allow_same_host: bool,
}

/// The reasons why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The private server could not be started.
    #[error("{0}; or name servers in HANARE_SERVERS")]
    Start(#[from] PrivateError),
    /// The private server's slots cannot be used.
    #[error(transparent)]
    Slots(#[from] SlotsError),
    /// The key file cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A server cannot be reached, or it refuses the session.
    #[error("{server}: {source}")]
    Server {
        /// The name of the server.
        server: String,
        /// The error of its link.
        source: LinkError,
    },
    /// Two names are of one server. Its memory would count twice, and parts of a page would be lost together.
    #[error("{first} and {second} are one and the same; name each server once")]
    SameServer {
        /// The name of the server.
        first: String,
        /// Its other name.
        second: String,
    },
    /// There is no memory for the buffers and tables, or no key can be made.
    #[error(transparent)]
    Guard(#[from] GuardError),
}

impl OpenError {
    /// Checks whether the error may pass by itself: a server cannot be reached now, or its link broke off.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, OpenError::Server { source, .. } if passes(source))
    }
}

impl Kind {
    /// Opens the store of one of `processes` processes that share a far address space. Returns the store with its
    /// workers, which the caller must run. The limits of servers are divided among the processes. When few free slots
    /// are left, the store increments `upkeep` and wakes the thread that polls with
    /// [`Turn::Upkeep`](crate::Turn::Upkeep).
    ///
    /// # Errors
    /// [`OpenError`] says what failed.
    pub fn open(
        target: &Target,
        shape: Shape,
        processes: u16,
        upkeep: &'static AtomicU32,
    ) -> Result<(Self, Vec<Worker>), OpenError> {
        let link = match target {
            Target::Own => {
                Attachment::open(&private::for_this_process(processes.into(), None)?, shape.slot_bytes as u32)
            }
            Target::Private(socket) => Attachment::open(socket, shape.slot_bytes as u32),
            Target::Servers { servers, key, timeout_s, copies } => {
                let key = key.as_deref().map(Key::from_file).transpose()?;
                let silent = Duration::from_secs((*timeout_s).into());
                return match copies.redundancy.is_none() {
                    true => open_servers(servers, key, silent, shape, processes),
                    false => open_redundant(servers, key, silent, shape, *copies),
                };
            }
        };
        Ok((slots(link, shape, upkeep)?, Vec::new()))
    }

    /// Opens a store through `door`, a connection to a private server that the parent process left open.
    ///
    /// # Errors
    /// [`OpenError`] says what failed.
    pub fn open_through(door: BorrowedFd<'_>, shape: Shape, upkeep: &'static AtomicU32) -> Result<Self, OpenError> {
        slots(Attachment::open_through(door, shape.slot_bytes as u32), shape, upkeep)
    }
}

fn slots(link: Result<Attachment, LinkError>, shape: Shape, upkeep: &'static AtomicU32) -> Result<Kind, OpenError> {
    let slots = Slots::new(link.map_err(SlotsError::Link)?, &shape, upkeep)?;
    Ok(Kind::Slots(Box::new(slots)))
}

/// Opens the links to memory servers. If several processes share a far address space, each slot is a placement extent
/// (a range that one server holds as a whole). A longer extent would reserve room for pages that other processes store.
fn open_servers(
    servers: &[ServerSpec],
    key: Option<Key>,
    silent: Duration,
    shape: Shape,
    processes: u16,
) -> Result<(Kind, Vec<Worker>), OpenError> {
    let opened = servers.iter().map(|server| open_server(server, &shape, processes, key.clone(), silent));
    let opened: Vec<Opened> = opened.collect::<Result<_, _>>()?;
    let mut ids = Ids::default();
    for server in &opened {
        ids.add(&server.name, server.session.info())?;
    }
    let extent_bytes = if processes == 1 { EXTENT_BYTES } else { shape.slot_bytes };
    let bounce_bytes = shape.slot_bytes.max(RUN_BYTES_MAX as usize);
    let (remote, senders) = Remote::with_extents(opened, shape, extent_bytes, bounce_bytes, silent)?;
    Ok((Kind::Remote(Box::new(remote)), Worker::of_remote(senders)))
}

/// The identities of servers. A server can be reached by several names and addresses.
#[derive(Default)]
struct Ids(Vec<([u8; SERVER_ID_BYTES], String)>);

impl Ids {
    fn add(&mut self, name: &str, info: &SessionInfo) -> Result<(), OpenError> {
        if let Some((_, first)) = self.0.iter().find(|(id, _)| *id == info.server_id) {
            return Err(OpenError::SameServer { first: first.clone(), second: name.to_owned() });
        }
        self.0.push((info.server_id, name.to_owned()));
        Ok(())
    }
}

fn open_server(
    server: &ServerSpec,
    shape: &Shape,
    processes: u16,
    key: Option<Key>,
    silent: Duration,
) -> Result<Opened, OpenError> {
    let name = name_of(server);
    let mut options = SessionOptions::for_endpoint(&server.endpoint, shape.slot_bytes as u32);
    (options.key, options.silent_timeout) = (key, silent);
    let session = Session::open(&server.endpoint, &options)
        .map_err(|source| OpenError::Server { server: name.clone(), source })?;
    let capacity_bytes = session.info().capacity_bytes;
    let limit_bytes = server.capacity.map(|bytes| bytes / u64::from(processes));
    Ok(Opened { name, session, options, capacity_bytes, limit_bytes })
}

fn name_of(server: &ServerSpec) -> String {
    format!("memory server {}", server.endpoint)
}

/// Opens the links to memory servers that keep each page in parts. Servers that cannot be reached count as lost. Fails if
/// so few are reached that no page could be kept. The other servers are tried again later.
fn open_redundant(
    servers: &[ServerSpec],
    key: Option<Key>,
    silent: Duration,
    shape: Shape,
    copies: Copies,
) -> Result<(Kind, Vec<Worker>), OpenError> {
    let Copies { redundancy, allow_same_host } = copies;
    let slot_bytes = slot_bytes(&shape, redundancy) as u32;
    let mut hosts: Vec<Option<String>> = Vec::new();
    let mut named = Vec::new();
    for (index, server) in servers.iter().enumerate() {
        let mut options = SessionOptions::for_endpoint(&server.endpoint, slot_bytes);
        (options.key, options.silent_timeout) = (key.clone(), silent);
        let host = server.endpoint.host();
        let known = hosts.iter().position(|known| *known == host).filter(|_| !allow_same_host);
        let host = known.unwrap_or(index) as u16;
        hosts.push(server.endpoint.host());
        let (name, endpoint, limit_bytes) = (name_of(server), server.endpoint.clone(), server.capacity);
        named.push((Named { name, endpoint, options, limit_bytes, host }, None));
    }
    reach(&mut named, redundancy.data)?;
    let (redundant, copyists) = Redundant::new(named, shape, redundancy, silent)?;
    Ok((Kind::Redundant(Box::new(redundant)), Worker::of_redundant(copyists)))
}

/// Opens sessions with servers that are on at least `hosts_min` hosts. If the others suffice, the wait for a silent server is
/// short: each program that a run executes meets a stopped server again.
fn reach(named: &mut [(Named, Option<Session>)], hosts_min: u8) -> Result<(), OpenError> {
    let mut ids = Ids::default();
    let mut failure = None;
    for connect_timeout in [REACH_SOON, CONNECT_DEFAULT] {
        for (named, session) in named.iter_mut().filter(|(_, session)| session.is_none()) {
            let options = SessionOptions { connect_timeout, ..named.options.clone() };
            match Session::open(&named.endpoint, &options) {
                Ok(opened) => {
                    ids.add(&named.name, opened.info())?;
                    *session = Some(opened);
                }
                Err(source) => {
                    failure.get_or_insert(OpenError::Server { server: named.name.clone(), source });
                }
            }
        }
        let reached = named.iter().filter(|(_, session)| session.is_some());
        let hosts: BTreeSet<u16> = reached.map(|(named, _)| named.host).collect();
        if hosts.len() >= usize::from(hosts_min) {
            return Ok(());
        }
    }
    failure.map_or(Ok(()), Err)
}
