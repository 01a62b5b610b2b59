//! Accepts connections, starts one thread for each connection, and stops the server in an orderly way.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hanare_wire::frame::{Kind, REFUSED_FOR_NOW};
use hanare_wire::handshake::{control_header, random, send_control};
use hanare_wire::inbox::Inbox;
use hanare_wire::peer::{self, Ends, Peer};
use hanare_wire::socket::Socket;
use hanare_wire::trust::{self, At, Distrust};
use hanare_wire::{Endpoint, Key, Status};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::blame::what_it_did;
use crate::connection::{ServerState, serve};
use crate::door::Door;
use crate::greeting::{Host, NoGuest, greet};
use crate::keep::Keep;
use crate::memory::{Available, BLOCK_BYTES};
use crate::named::Named;
use crate::polling::Spinners;
use crate::rationed::rationed;
use crate::registry::Registry;
use crate::shared::{Stop, Store};
use crate::spill::SpillDir;
use crate::turns::Turns;
use crate::upkeep;

/// Longest time that a stopping server waits for its connections to end. Then it shuts them down.
const DRAIN: Duration = Duration::from_secs(4);
/// Pause between two checks of whether the connections have ended.
const DRAIN_STEP: Duration = Duration::from_millis(5);
/// Longest time that the server spends on refusing one connection when all connections are in use. Other new
/// connections wait during that time.
const TURNING_AWAY: Duration = Duration::from_millis(20);
/// Minimum age at which a connection without a completed handshake may be closed to make room for a new connection.
const GREETING: Duration = Duration::from_millis(100);
/// Largest number of connections without a completed handshake. A further one takes the place of the oldest.
const STRANGERS_MAX: usize = 64;
/// Largest number of refused connections that stay open.
const REFUSED_MAX: usize = 16;
/// Pause after an accept that failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The advice for other users of a server without a key.
const ADVICE: &str = "start it with --key FILE";

/// The function that receives each line of the server's log.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// The settings of a server.
#[derive(Clone)]
pub struct ServerConfig {
    /// The TCP addresses and AF_UNIX paths on which the server listens. For TCP port 0, the system chooses a free port.
    pub listen: Vec<Endpoint>,
    /// The memory limit for far pages, in bytes. Without a spill directory, the limit must be at least 2 MiB.
    pub memory: u64,
    /// A function that returns how many bytes of memory the system could still give. The server calls the function
    /// regularly, and hands out no more memory than the function returns. With `None`, only `memory` limits the server.
    pub available: Option<Available>,
    /// The directory for pages that do not fit into memory. With `None`, the server stores pages only in memory.
    pub spill: Option<PathBuf>,
    /// Bytes that the server leaves free on the spill directory's disk.
    pub spill_margin: u64,
    /// The key that clients must prove to hold. Without a key, the server listens only on loopback addresses and
    /// AF_UNIX paths.
    pub key: Option<Key>,
    /// The longest time for which a connection's thread polls for the next request before it sleeps.
    pub spin: Duration,
    /// Largest number of open connections.
    pub connections_max: usize,
    /// Maximum number of bytes that each session may hold. `None` means no limit.
    pub client_quota: Option<u64>,
    /// Time for which the server keeps unused memory before it returns the memory to the system.
    pub keep_free: Duration,
    /// The directory in which the server keeps its sessions when it stops, and from which it takes them back when it
    /// starts. With `None`, all sessions end with the server.
    pub keep: Option<PathBuf>,
    /// Receives the lines of the server's log: what goes wrong.
    pub log: Log,
    /// Receives a line at the begin and at the end of each session.
    pub journal: Log,
}

impl ServerConfig {
    /// Returns settings with these addresses, this memory limit, and default values for the rest. The default spill
    /// margin is 1 GiB. By default there is no check of the system's memory, no spill directory, no key, no quota, no
    /// kept session and no log.
    pub fn new(listen: Vec<Endpoint>, memory: u64) -> ServerConfig {
        ServerConfig {
            listen,
            memory,
            available: None,
            spill: None,
            spill_margin: 1 << 30,
            key: None,
            spin: Duration::from_micros(80),
            connections_max: 1024,
            client_quota: None,
            keep_free: Duration::from_secs(10),
            keep: None,
            log: Arc::new(|_| {}),
            journal: Arc::new(|_| {}),
        }
    }
}

/// Why a server could not start, or had to end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The settings name no address to listen on.
    #[error("no address to listen on; give --listen ADDRESS")]
    NoAddress,
    /// The server cannot listen on the address.
    #[error("cannot listen on {endpoint}: {source}; {}", listen_advice(source))]
    Listen {
        /// The address.
        endpoint: Endpoint,
        /// The system's error.
        source: io::Error,
    },
    /// The settings contain no key, so anyone on the network could use the server at this address.
    #[error("will not listen on {endpoint} without a key: others on the network could reach it; give --key FILE")]
    NoKey {
        /// The address, which other hosts can reach.
        endpoint: Endpoint,
    },
    /// The memory limit is smaller than one block (2 MiB), and there is no spill directory.
    #[error("a memory limit of {memory} bytes holds nothing; give at least 2 MiB of --memory, or --spill DIR")]
    NoMemory {
        /// The memory limit, in bytes.
        memory: u64,
    },
    /// The spill directory cannot be used.
    #[error("cannot spill to {path}: {source}; give --spill a directory on a disk that can be written")]
    Spill {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The directory for kept sessions cannot be used.
    #[error("cannot use {path} for kept sessions: {source}; give --keep a directory of this server alone")]
    Keep {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Not all sessions could be kept when the server stopped.
    #[error("{lost} of {all} sessions could not be kept in {path}, and their programs end: {source}")]
    NotKept {
        /// The directory.
        path: PathBuf,
        /// The number of sessions that are lost.
        lost: usize,
        /// The number of sessions that were to be kept.
        all: usize,
        /// The first error.
        source: io::Error,
    },
    /// A call of the operating system failed.
    #[error("{what} failed: {source}")]
    Io {
        /// The call that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Returns advice for an address on which the server cannot listen.
fn listen_advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => "choose another address or end what uses it",
        _ => "choose another address",
    }
}

/// Stops a running server, from any thread.
#[derive(Clone)]
pub struct StopHandle {
    stop: Arc<Stop>,
    registry: Arc<Registry>,
}

impl StopHandle {
    /// Stops the server. The server answers the requests that have arrived, closes its connections, and returns from
    /// [`Server::run`] within 5 s.
    pub fn stop(&self) {
        self.stop.stop();
    }

    /// Returns the number of open sessions.
    pub fn sessions(&self) -> u64 {
        self.registry.count()
    }
}

/// Reads the state of a server, from any thread. It does not keep the server's memory.
#[derive(Clone)]
pub struct StatusHandle(Weak<ServerState>);

impl StatusHandle {
    /// Returns the state of the server, as a client gets it. `None` if the server has ended.
    pub fn status(&self) -> Option<Status> {
        self.0.upgrade().map(|state| state.status())
    }
}

impl fmt::Debug for StatusHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StatusHandle")
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(Named),
    Door(Door),
}

impl Listener {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(named) => named.listener.as_fd(),
            Listener::Door(door) => door.as_fd(),
        }
    }

    fn accept(&self) -> io::Result<Accepted> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                let ends = Some(Ends { own: stream.local_addr()?, peer });
                Ok(Accepted { fd: stream.into(), peer: peer.to_string(), ends })
            }
            Listener::Unix(Named { listener, path, .. }) => {
                let (stream, _) = listener.accept()?;
                Ok(Accepted { fd: stream.into(), peer: format!("unix:{}", path.display()), ends: None })
            }
            Listener::Door(door) => {
                Ok(Accepted { fd: door.accept()?, peer: "a client's process".to_owned(), ends: None })
            }
        }
    }
}

/// A connection that was just accepted.
struct Accepted {
    fd: OwnedFd,
    /// The name of the other side in the log.
    peer: String,
    /// The addresses of both ends. `None` if it is an AF_UNIX socket.
    ends: Option<Ends>,
}

/// A memory server that listens but does not serve clients yet. [`Server::run`] serves them.
pub struct Server {
    listeners: Vec<Listener>,
    state: Arc<ServerState>,
    key: Option<Key>,
    connections_max: usize,
    keep_free: Duration,
    keep: Option<Keep>,
    log: Log,
    /// For what connections cause.
    connections_log: Log,
}

/// A connection's thread, and its socket. The thread ends when the socket is shut down.
struct Running {
    socket: Arc<Socket>,
    thread: JoinHandle<()>,
    /// Whether the connection's handshake has succeeded.
    is_welcome: Arc<AtomicBool>,
    since: Instant,
}

impl Server {
    /// Makes a server that listens on every address of `config`. The server allocates memory only when clients need it.
    pub fn bind(config: ServerConfig) -> Result<Server, ServerError> {
        if config.listen.is_empty() {
            return Err(ServerError::NoAddress);
        }
        if config.memory < BLOCK_BYTES as u64 && config.spill.is_none() {
            return Err(ServerError::NoMemory { memory: config.memory });
        }
        let spill = match config.spill {
            Some(path) => Some(
                SpillDir::new(&path, config.spill_margin)
                    .map_err(|source| ServerError::Spill { path: path.clone(), source })?,
            ),
            None => None,
        };
        let keep = match config.keep {
            Some(path) => Some(Keep::open(&path).map_err(|source| ServerError::Keep { path, source })?),
            None => None,
        };
        let server_id = match &keep {
            Some(keep) => keep.server_id(),
            None => {
                random().map_err(|e| ServerError::Io { what: "getting random bytes", source: io::Error::other(e) })?
            }
        };
        let mut listeners = Vec::new();
        for endpoint in &config.listen {
            listeners.push(listen(endpoint, config.key.is_some())?);
        }
        let (door, outer) =
            Door::new().map_err(|e| ServerError::Io { what: "making a socket pair", source: e.into() })?;
        listeners.push(Listener::Door(door));
        let stop = Stop::new().map_err(|e| ServerError::Io { what: "making an eventfd", source: e.into() })?;
        let state = ServerState {
            store: Store::new(config.memory, config.available, spill, config.client_quota),
            registry: Arc::new(Registry::new(config.journal)),
            stop: Arc::new(stop),
            door: outer,
            spinners: Spinners::new(),
            turns: Turns::new(),
            spin: config.spin,
            server_id,
            keeps: keep.is_some(),
        };
        Ok(Server {
            listeners,
            state: Arc::new(state),
            key: config.key,
            connections_max: config.connections_max,
            keep_free: config.keep_free,
            keep,
            connections_log: rationed(&config.log),
            log: config.log,
        })
    }

    /// Returns the addresses on which the server listens, with the ports that the system chose.
    pub fn local_addrs(&self) -> Vec<Endpoint> {
        let address = |listener: &Listener| match listener {
            Listener::Tcp(listener) => listener.local_addr().ok().map(|address| Endpoint::Tcp(address.to_string())),
            Listener::Unix(named) => Some(Endpoint::Unix(named.path.clone())),
            Listener::Door(_) => None,
        };
        self.listeners.iter().filter_map(address).collect()
    }

    /// Returns a handle that stops this server.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle { stop: Arc::clone(&self.state.stop), registry: Arc::clone(&self.state.registry) }
    }

    /// Returns a handle that reads the state of this server.
    pub fn status_handle(&self) -> StatusHandle {
        StatusHandle(Arc::downgrade(&self.state))
    }

    /// Serves until the server is stopped. Takes kept sessions back before it accepts clients, and keeps its sessions at
    /// its end.
    ///
    /// # Errors
    /// [`ServerError`] says what failed. If not all sessions could be kept, the other sessions are kept.
    pub fn run(mut self) -> Result<(), ServerError> {
        let restored = self.keep.as_ref().map_or(Ok(true), |keep| {
            let failed = |source| ServerError::Keep { path: keep.path().to_owned(), source };
            keep.restore(&self.state, &self.log).map_err(failed)
        });
        let served = match restored {
            Ok(true) => self.serve(),
            // All files stay.
            Ok(false) => return Ok(()),
            Err(error) => Err(error),
        };
        // Sessions whose files were removed are written again, whatever has failed.
        let kept = self.keep.map_or(Ok(()), |keep| keep.save(&self.state.registry.take_held(), &self.log));
        served.and(kept)
    }

    /// Serves clients until the server is stopped, and waits for the end of their connections.
    fn serve(&mut self) -> Result<(), ServerError> {
        let mut running: Vec<Running> = Vec::new();
        let (state, keep_free, log) = (Arc::clone(&self.state), self.keep_free, Arc::clone(&self.log));
        let upkeep = std::thread::Builder::new()
            .name("hanare-upkeep".into())
            .spawn(move || upkeep::run(&state, keep_free, &log));
        let upkeep = upkeep.map_err(|source| ServerError::Io { what: "starting a thread", source })?;
        let result = self.accept_until_stopped(&mut running);
        self.listeners.clear();
        // The connections must also end if the accept loop ended with an error.
        self.state.stop.stop();
        drain(running, &self.state.stop);
        // `join` fails only if the upkeep thread panicked. The panic has been reported on stderr.
        let _ = upkeep.join();
        result
    }

    fn accept_until_stopped(&self, running: &mut Vec<Running>) -> Result<(), ServerError> {
        let mut refused = Refused::default();
        while !self.state.stop.is_stopping() {
            let mut ready: Vec<PollFd<'_>> =
                self.listeners.iter().map(|listener| PollFd::from_borrowed_fd(listener.fd(), PollFlags::IN)).collect();
            ready.push(PollFd::from_borrowed_fd(self.state.stop.as_fd(), PollFlags::IN));
            match rustix::event::poll(&mut ready, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(ServerError::Io { what: "waiting for connections", source: e.into() }),
            }
            running.retain(|connection| !connection.thread.is_finished());
            for listener in &self.listeners {
                match listener.accept() {
                    Ok(accepted) => self.admit(accepted, running, &mut refused),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(e) if e.kind() == io::ErrorKind::InvalidData => (self.connections_log)(&e.to_string()),
                    Err(e) => {
                        (self.connections_log)(&format!("a connection could not be accepted: {e}"));
                        std::thread::sleep(ACCEPT_PAUSE);
                    }
                }
            }
        }
        Ok(())
    }

    fn admit(&self, accepted: Accepted, running: &mut Vec<Running>, refused: &mut Refused) {
        let Accepted { fd, peer, ends } = accepted;
        let socket = match Socket::new(fd, None) {
            Ok(socket) => Arc::new(socket),
            Err(e) => return (self.connections_log)(&format!("{peer}: {e}")),
        };
        if let (Some(ends), None) = (ends, &self.key)
            && let Err(reason) = check_user(ends)
        {
            (self.connections_log)(&format!("{peer}: refused: {reason}"));
            return refused.add(socket, &reason);
        }
        let strangers = running.iter().filter(|running| !running.is_welcome.load(Acquire)).count();
        if strangers >= STRANGERS_MAX {
            drop_a_stranger(running);
        }
        if running.len() >= self.connections_max && !drop_a_stranger(running) {
            (self.connections_log)(&format!("{peer}: turned away, {} connections are open", running.len()));
            let most = self.connections_max;
            let reason = format!("all of its {most} connections are in use; try again when a client has ended");
            return turn_away(&socket, &reason);
        }
        let (state, key, log) = (Arc::clone(&self.state), self.key.clone(), Arc::clone(&self.connections_log));
        let is_unix = ends.is_none();
        let is_welcome = Arc::new(AtomicBool::new(false));
        let (theirs, welcome) = (Arc::clone(&socket), Arc::clone(&is_welcome));
        let life = move || {
            if let Err(e) = connection_life(&state, key.as_ref(), &theirs, is_unix, &welcome) {
                log(&format!("{peer}: {e}"));
            }
            // The accepting thread holds another reference to the socket. Without this call, the peer would see no end
            // of the connection until the accepting thread drops that reference.
            theirs.sever();
        };
        match std::thread::Builder::new().name("hanare-serve".into()).spawn(life) {
            Ok(thread) => running.push(Running { socket, thread, is_welcome, since: Instant::now() }),
            Err(e) => {
                (self.connections_log)(&format!("no thread for a connection: {e}"));
                turn_away(&socket, &format!("the system has no thread for it ({e}); try again later"));
            }
        }
    }
}

/// Connections of other users, which were refused. They have no thread and take no place of a client's connection. The
/// last ones stay open, so that the other side can read the reason.
#[derive(Default)]
struct Refused(VecDeque<Arc<Socket>>);

impl Refused {
    fn add(&mut self, socket: Arc<Socket>, reason: &str) {
        // This does not wait: the first bytes of a connection always fit into its buffer.
        if send_control(&socket, Kind::Refused, 0, reason.as_bytes()).is_ok() {
            socket.finish(Duration::ZERO);
            self.0.push_back(socket);
        }
        if self.0.len() > REFUSED_MAX {
            self.0.pop_front();
        }
    }
}

/// Makes room for a new connection by closing the oldest connection that has not completed its handshake. Waits until
/// that connection is [`GREETING`] old, and keeps other new connections waiting meanwhile. Returns false when every
/// connection has completed its handshake.
fn drop_a_stranger(running: &mut Vec<Running>) -> bool {
    let is_stranger = |running: &Running| !running.is_welcome.load(Acquire);
    while let Some(at) = running.iter().position(is_stranger) {
        std::thread::sleep(GREETING.saturating_sub(running[at].since.elapsed()));
        if is_stranger(&running[at]) {
            // The connection's thread ends by itself, because its next call on the socket fails.
            running.remove(at).socket.sever();
            return true;
        }
    }
    false
}

/// Refuses a connection for lack of room, and sends the client `reason`. Runs in the accepting thread.
fn turn_away(socket: &Socket, reason: &str) {
    let header = control_header(Kind::Refused, 0, REFUSED_FOR_NOW, reason.as_bytes()).encode();
    if socket.send_all(&[IoSlice::new(&header), IoSlice::new(reason.as_bytes())]).is_ok() {
        socket.finish(TURNING_AWAY);
    }
}

/// Runs a connection from its handshake to its end. Returns an error as a text for the log.
fn connection_life(
    state: &ServerState,
    key: Option<&Key>,
    socket: &Arc<Socket>,
    is_unix: bool,
    is_welcome: &AtomicBool,
) -> Result<(), String> {
    let mut inbox = Inbox::default();
    let (store, registry, server_id) = (&state.store, &state.registry, state.server_id);
    let host = Host { key, store, registry, socket, server_id, is_unix };
    match greet(&mut inbox, &host) {
        Ok(guest) => {
            is_welcome.store(true, Release);
            serve(state, socket, inbox, guest).map_err(|e| format!("it {}", what_it_did(&e)))
        }
        Err(NoGuest::Refused(reason)) => Err(format!("refused: {reason}")),
        Err(NoGuest::Link(e)) => Err(format!("not welcomed: it {}", what_it_did(&e))),
    }
}

/// Checks that a connection within this host comes from the server's user, or from root. Returns the reason if it does
/// not. Other hosts do not reach a server without a key.
fn check_user(ends: Ends) -> Result<(), String> {
    let why = match peer::user_of(ends) {
        Ok(Peer::User(user)) => match trust::check(user, At::Port) {
            Ok(()) => return Ok(()),
            Err(Distrust::Other { user, own }) => {
                return Err(format!("without a key it serves its own user ({own}) only, not user {user}; {ADVICE}"));
            }
            Err(Distrust::Overflow { user }) => format!("and in its user namespace user {user} may be anyone"),
        },
        Ok(Peer::Nobody | Peer::Elsewhere) => "and cannot see whose this is".to_owned(),
        Err(error) => format!("and cannot read whose this is ({error})"),
    };
    Err(format!("without a key it serves its own user only, {why}; {ADVICE}"))
}

/// Waits up to [`DRAIN`] until all connections have ended. Then shuts the remaining connections down.
fn drain(mut running: Vec<Running>, stop: &Stop) {
    let end = Instant::now() + DRAIN;
    while !running.is_empty() && Instant::now() < end {
        running.retain(|connection| !connection.thread.is_finished());
        std::thread::sleep(DRAIN_STEP);
    }
    stop.sever();
    for connection in running {
        connection.socket.sever();
        // `join` fails only if the connection's thread panicked. The panic has been reported on stderr.
        let _ = connection.thread.join();
    }
}

fn listen(endpoint: &Endpoint, has_key: bool) -> Result<Listener, ServerError> {
    let failed = |source| ServerError::Listen { endpoint: endpoint.clone(), source };
    match endpoint {
        Endpoint::Unix(path) => Named::listen(path).map(Listener::Unix).map_err(failed),
        Endpoint::Tcp(address) => {
            let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(failed)?.collect();
            if !has_key && !addresses.iter().all(|address| address.ip().to_canonical().is_loopback()) {
                return Err(ServerError::NoKey { endpoint: endpoint.clone() });
            }
            let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            Ok(Listener::Tcp(listener))
        }
    }
}
