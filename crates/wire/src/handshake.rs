//! The client's side of opening a connection: it connects, checks whose the server is, sends the HELLO, and checks the
//! WELCOME. With a key, the server proves that it holds the key. Without one, its user must be trusted.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sockopt,
};

use crate::descriptors::kept;
use crate::endpoint::Endpoint;
use crate::error::LinkError;
use crate::frame::{FLAG_PAYLOAD_CRC, Header, Kind, REFUSED_FOR_NOW};
use crate::identity::Identity;
use crate::inbox::Inbox;
use crate::key::Key;
use crate::limits::CONTROL_MAX;
use crate::noise::{self, HandshakeError};
use crate::patience::patience;
use crate::payload::{Hello, Role, TOKEN_BYTES, Welcome};
use crate::socket::{Progress, Socket};
use crate::trust::{self, At};

/// A connection that the server has welcomed.
#[derive(Debug)]
pub(crate) struct Welcomed {
    pub(crate) socket: Socket,
    pub(crate) inbox: Inbox,
    pub(crate) welcome: Welcome,
}

/// The options of a connection: the requests in the client's HELLO, the key, and two timeouts.
pub(crate) struct ConnectOptions<'a> {
    pub(crate) role: Role,
    pub(crate) slot_size: u32,
    pub(crate) payload_crc: bool,
    /// Number and token of the session to join or clone. `None` opens a new session.
    pub(crate) join: Option<(u64, [u8; TOKEN_BYTES])>,
    /// Whether to clone the session in `join` instead of joining it.
    pub(crate) clone: bool,
    /// Whether the joined session's earlier connections must end first.
    pub(crate) takes_over: bool,
    pub(crate) key: Option<&'a Key>,
    pub(crate) connect_timeout: Duration,
    pub(crate) silent_timeout: Duration,
}

/// Returns random bytes from the system.
pub fn random<const N: usize>() -> Result<[u8; N], LinkError> {
    let mut bytes = [0; N];
    // `getrandom` waits until the kernel's random number generator is ready. It then returns all requested bytes, if at
    // most 256 are requested.
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(n) if n == N => Ok(bytes),
        Ok(_) => Err(LinkError::Misuse { what: "too many random bytes asked for at once" }),
        Err(e) => Err(LinkError::io("getting random bytes", e)),
    }
}

/// Connects to `endpoint` and completes the handshake.
pub(crate) fn connect(endpoint: &Endpoint, options: &ConnectOptions<'_>) -> Result<Welcomed, LinkError> {
    let unreachable = |source| LinkError::Unreachable { endpoint: endpoint.to_string(), source };
    let fd = match endpoint {
        Endpoint::Tcp(address) => connect_tcp(address, options.connect_timeout).map_err(unreachable)?,
        Endpoint::Unix(path) => connect_unix(path, options.connect_timeout).map_err(unreachable)?,
    };
    let socket = Socket::new(kept(fd), Some(options.silent_timeout))?;
    let mut inbox = Inbox::default();
    let limit = patience(options.connect_timeout);
    let mut progress = Progress::until(limit);
    let at_path = if options.role == Role::Attach { At::Private } else { At::Path };
    match options.key {
        Some(key) => agree(&socket, &mut inbox, key, &mut progress)?,
        None => trust::check_server(&socket, at_path, limit).map_err(|error| match error {
            LinkError::Closed => closed_early(&socket, &mut inbox, &mut progress),
            error => error,
        })?,
    }
    welcomed(socket, inbox, options, &mut progress)
}

/// Connects through the door of a same-host server, and completes the handshake. A door is a socket of the server that
/// a client can use without the server's path. Its user is not asked for: this process or its parent received the door
/// from a server that it trusts, and may have changed its own user since.
pub(crate) fn connect_through(door: BorrowedFd<'_>, options: &ConnectOptions<'_>) -> Result<Welcomed, LinkError> {
    let fd =
        knock(door, options.connect_timeout).map_err(|e| LinkError::io("asking the memory server for a link", e))?;
    let socket = Socket::new(kept(fd), Some(options.silent_timeout))?;
    welcomed(socket, Inbox::default(), options, &mut Progress::until(patience(options.connect_timeout)))
}

fn welcomed(
    socket: Socket,
    mut inbox: Inbox,
    options: &ConnectOptions<'_>,
    progress: &mut Progress,
) -> Result<Welcomed, LinkError> {
    let welcome = greet(&socket, &mut inbox, options, progress)?;
    Ok(Welcomed { socket, inbox, welcome })
}

/// Returns the error for a connection that the server has closed before it was asked for anything. It may have said why.
fn closed_early(socket: &Socket, inbox: &mut Inbox, progress: &mut Progress) -> LinkError {
    let mut payload = [0; CONTROL_MAX];
    match inbox.receive_frame(socket, &mut payload, progress) {
        Ok((header, length)) if header.kind == Kind::Refused => refused_by_peer(&header, &payload[..length]),
        Ok(_) => LinkError::Closed,
        Err(error) => error,
    }
}

/// Makes a socket pair, which is the new connection. Sends one end to the server through its door, and returns the
/// other end.
fn knock(door: BorrowedFd<'_>, timeout: Duration) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_timeout(door, sockopt::Timeout::Send, Some(timeout))?;
    let rights = [theirs.as_fd()];
    retry_on_intr(|| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        // `push` cannot fail, because the control buffer is as large as the message needs.
        let pushed = control.push(SendAncillaryMessage::ScmRights(&rights));
        debug_assert!(pushed);
        rustix::net::sendmsg(door, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)
    })?;
    Ok(ours)
}

fn connect_tcp(address: &str, timeout: Duration) -> io::Result<OwnedFd> {
    let end = Instant::now() + timeout;
    let mut error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs().map_err(without_call)? {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream.into()),
            Err(e) => error = e,
        }
    }
    Err(error)
}

/// Leaves the words of the standard library about its call out of an error of looking up a name. People need only the
/// resolver's reason.
fn without_call(error: io::Error) -> io::Error {
    match error.to_string().strip_prefix("failed to lookup address information: ") {
        Some(reason) => io::Error::new(error.kind(), reason),
        None => error,
    }
}

/// Connects to an AF_UNIX socket within `timeout`. Without a timeout, connect(2) would block while the queue of the
/// listening socket is full.
fn connect_unix(path: &Path, timeout: Duration) -> io::Result<OwnedFd> {
    let long = |e| match e {
        Errno::NAMETOOLONG => io::Error::new(io::ErrorKind::InvalidInput, "a socket's path has at most 107 bytes"),
        e => e.into(),
    };
    let address = SocketAddrUnix::new(path).map_err(long)?;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, Some(timeout))?;
    match retry_on_intr(|| rustix::net::connect(&fd, &address)) {
        Ok(()) => Ok(fd),
        Err(Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
        Err(e) => Err(e.into()),
    }
}

/// Proves the key to the server, checks the server's proof, and encrypts the connection from then on.
fn agree(socket: &Socket, inbox: &mut Inbox, key: &Key, progress: &mut Progress) -> Result<(), LinkError> {
    let (waiting, message) = noise::begin(key)?;
    send_control(socket, Kind::Noise, 0, &message)?;
    let mut payload = [0; CONTROL_MAX];
    let (header, length) = inbox.receive_frame(socket, &mut payload, progress)?;
    let answer = &payload[..length];
    match header.kind {
        Kind::Noise => match waiting.finish(answer) {
            Ok(ends) => ends.take_over(socket, inbox),
            Err(HandshakeError::OtherKey) => {
                Err(refused("it could not prove that it holds the key; check that both sides use the same file"))
            }
            Err(HandshakeError::Nonsense) => Err(LinkError::Garbage { what: "a handshake that makes no sense" }),
        },
        Kind::Refused => Err(refused_by_peer(&header, answer)),
        Kind::Welcome => {
            Err(refused("it asks for no key, so it may not be yours; start it with --key or leave the key away"))
        }
        _ => Err(LinkError::Garbage { what: "a frame that answers no handshake" }),
    }
}

/// Sends the HELLO and receives the WELCOME.
fn greet(
    socket: &Socket,
    inbox: &mut Inbox,
    options: &ConnectOptions<'_>,
    progress: &mut Progress,
) -> Result<Welcome, LinkError> {
    let (session, token) = options.join.unwrap_or_default();
    let hello = Hello {
        role: options.role,
        payload_crc: options.payload_crc,
        clone: options.clone,
        takes_over: options.takes_over,
        slot_size: options.slot_size,
        session,
        token,
        client: Identity::of_this_process(),
    };
    send_control(socket, Kind::Hello, 0, &hello.encode())?;
    let mut payload = [0; CONTROL_MAX];
    let (header, length) = inbox.receive_frame(socket, &mut payload, progress)?;
    let payload = &payload[..length];
    match header.kind {
        Kind::Welcome => {
            let welcome =
                Welcome::decode(payload).ok_or(LinkError::Garbage { what: "a welcome that makes no sense" })?;
            judge(options, welcome)
        }
        Kind::Refused => Err(refused_by_peer(&header, payload)),
        _ => Err(LinkError::Garbage { what: "a frame that answers no HELLO" }),
    }
}

fn refused(reason: &str) -> LinkError {
    LinkError::Refused { reason: reason.to_owned() }
}

/// Returns the error for a REFUSED with this reason.
fn refused_by_peer(header: &Header, reason: &[u8]) -> LinkError {
    let reason = String::from_utf8_lossy(reason).replace(|c: char| c.is_control(), "?");
    if header.code == REFUSED_FOR_NOW { LinkError::Busy { reason } } else { LinkError::Refused { reason } }
}

/// Checks that the WELCOME grants what the client asked for.
fn judge(options: &ConnectOptions<'_>, welcome: Welcome) -> Result<Welcome, LinkError> {
    let is_as_asked = welcome.slot_size == options.slot_size
        && welcome.payload_crc == options.payload_crc
        && options.join.is_none_or(|(session, _)| (session == welcome.session) != options.clone);
    if is_as_asked { Ok(welcome) } else { Err(LinkError::Garbage { what: "a welcome to another session" }) }
}

/// Sends a control frame: a frame whose payload is empty or is not a page.
pub fn send_control(socket: &Socket, kind: Kind, tag: u64, payload: &[u8]) -> Result<(), LinkError> {
    let header = control_header(kind, tag, 0, payload).encode();
    socket.send_all(&[IoSlice::new(&header), IoSlice::new(payload)])
}

/// Returns the header of a control frame: a frame whose payload is empty or is not a page. A payload of a control frame
/// always has a checksum, even on a connection whose pages have no checksums.
pub fn control_header(kind: Kind, tag: u64, code: u32, payload: &[u8]) -> Header {
    let header = Header { length: payload.len() as u32, code, ..Header::bare(kind, tag) };
    match payload {
        [] => header,
        _ => Header { flags: FLAG_PAYLOAD_CRC, payload_crc: crc32fast::hash(payload), ..header },
    }
}
