//! The server's side of the handshake: decides whether a client may connect, and in which role.

use std::sync::Arc;

use hanare_wire::frame::Kind;
use hanare_wire::handshake::send_control;
use hanare_wire::inbox::Inbox;
use hanare_wire::limits::{CONNECT_DEFAULT, CONTROL_MAX, REASON_MAX, SILENT_SAME_HOST};
use hanare_wire::noise::{self, HandshakeError};
use hanare_wire::payload::{Hello, Role, SERVER_ID_BYTES, Welcome};
use hanare_wire::socket::{Progress, Socket};
use hanare_wire::{Key, LinkError, Transport, patience};

use crate::account::SessionOwner;
use crate::blame::what_it_did;
use crate::host::HostSession;
use crate::registry::{Membership, Registry};
use crate::shared::Store;

/// The role of a connection after a successful handshake, with its session.
pub(crate) enum Guest {
    /// The client sends READ, WRITE and DISCARD requests for the far space of a session.
    Session { membership: Membership, payload_crc: bool },
    /// The connection has no session. The client may only request STATUS and SESSIONS, or ping the server.
    Control,
    /// The connection is a session's same-host link, over which the client receives the session's files.
    Host(Box<HostSession>),
}

/// The parts of the server that the handshake of a connection uses.
pub(crate) struct Host<'a> {
    pub(crate) key: Option<&'a Key>,
    pub(crate) store: &'a Arc<Store>,
    pub(crate) registry: &'a Arc<Registry>,
    /// The connection.
    pub(crate) socket: &'a Arc<Socket>,
    /// The server's identity.
    pub(crate) server_id: [u8; SERVER_ID_BYTES],
    /// Whether the connection is an AF_UNIX socket. Only such a socket can pass files to the client.
    pub(crate) is_unix: bool,
}

/// Why the server did not welcome a connection.
pub(crate) enum NoGuest {
    /// The server refused the connection and sent the client the reason.
    Refused(String),
    /// The connection failed.
    Link(LinkError),
}

impl From<LinkError> for NoGuest {
    fn from(e: LinkError) -> NoGuest {
        NoGuest::Link(e)
    }
}

fn no<T>(reason: impl Into<String>) -> Result<T, NoGuest> {
    Err(NoGuest::Refused(reason.into()))
}

/// Does the server's side of the handshake. Returns the role of the connection, or why the server did not welcome it.
/// The client has as much time for its part as it gives the server.
pub(crate) fn greet(inbox: &mut Inbox, host: &Host<'_>) -> Result<Guest, NoGuest> {
    let socket = host.socket;
    let result = try_greet(socket, inbox, host);
    let reason = match &result {
        Ok(_) => return result,
        Err(NoGuest::Refused(reason)) => reason.clone(),
        // The server also answers a client of another wire version. The client finds this server's version in the
        // header of the answer.
        Err(NoGuest::Link(e @ (LinkError::Version { .. } | LinkError::Garbage { .. }))) => {
            format!("not a hello: this client {}", what_it_did(e))
        }
        Err(NoGuest::Link(_)) => return result,
    };
    if send_control(socket, Kind::Refused, 0, cut(&reason, REASON_MAX).as_bytes()).is_ok() {
        socket.finish(CLOSING_WAIT);
    }
    result
}

/// Longest time that the server waits for the client to receive a closing message, before it closes the connection.
pub(crate) const CLOSING_WAIT: std::time::Duration = std::time::Duration::from_millis(500);

/// Returns the longest prefix of `text` that has at most `max` bytes and ends at a character boundary.
fn cut(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

fn try_greet(socket: &Socket, inbox: &mut Inbox, host: &Host<'_>) -> Result<Guest, NoGuest> {
    let limit = if host.is_unix { SILENT_SAME_HOST } else { CONNECT_DEFAULT };
    let mut progress = Progress::until(patience(limit));
    let mut payload = [0; CONTROL_MAX];
    if let Some(key) = host.key {
        agree(socket, inbox, key, &mut progress)?;
    }
    let (header, length) = inbox.receive_frame(socket, &mut payload, &mut progress)?;
    match header.kind {
        Kind::Hello => {}
        Kind::Noise => return no("it has no key; start it with --key FILE, or leave the client's key away"),
        _ => return no("the first frame must be a HELLO"),
    }
    let Some(hello) = Hello::decode(&payload[..length]) else {
        return no("the HELLO makes no sense: check the role, the flags and the slot size (4 KiB to 2 MiB)");
    };
    let guest = admit(&hello, host)?;
    let (session, token, account) = match &guest {
        Guest::Session { membership, .. } => {
            let session = membership.session();
            (session.id, session.token, Some(session.account()))
        }
        Guest::Host(session) => {
            let (id, token) = session.identity();
            (id, token, Some(session.account()))
        }
        Guest::Control => (0, [0; 16], None),
    };
    let welcome = Welcome {
        session,
        token,
        capacity_bytes: account.map_or(0, |account| host.store.capacity_bytes(account)),
        slot_size: hello.slot_size,
        payload_crc: hello.payload_crc,
        quota_bytes: account.map_or(host.store.client_quota_bytes, |account| account.owner().quota_bytes),
        server_id: host.server_id,
    };
    send_control(socket, Kind::Welcome, 0, &welcome.encode())?;
    Ok(guest)
}

/// Makes the client prove that it holds the key, proves it to the client, and encrypts the connection from then on.
fn agree(socket: &Socket, inbox: &mut Inbox, key: &Key, progress: &mut Progress) -> Result<(), NoGuest> {
    let mut payload = [0; CONTROL_MAX];
    let (header, length) = inbox.receive_frame(socket, &mut payload, progress)?;
    if header.kind != Kind::Noise {
        return no("it asks for a key; give --key with a copy of the server's key file");
    }
    match noise::answer(key, &payload[..length]) {
        Ok((ends, message)) => {
            send_control(socket, Kind::Noise, 0, &message)?;
            Ok(ends.take_over(socket, inbox)?)
        }
        Err(HandshakeError::OtherKey) => no("the key is not the server's; give the same --key file on both sides"),
        Err(HandshakeError::Nonsense) => no("the handshake makes no sense; run the same hanare release on both sides"),
    }
}

fn admit(hello: &Hello, host: &Host<'_>) -> Result<Guest, NoGuest> {
    let quota_bytes = host.store.client_quota_bytes;
    if hello.role != Role::Control && quota_bytes < u64::from(hello.slot_size) {
        return no(format!(
            "its quota of {quota_bytes} bytes for a client holds no slot of {} bytes; give it a larger --client-quota, or \
             the program a smaller --page-size",
            hello.slot_size
        ));
    }
    let is_new = hello.role != Role::Control && hello.session == 0;
    if is_new && host.store.spill.is_none() && host.store.memory.is_short() {
        return no("its machine is short of memory, so it takes no new client now; try later, or name another server");
    }
    let transport = match (hello.role, host.is_unix) {
        (Role::Attach, _) => Transport::SameHost,
        (_, true) => Transport::Unix,
        (_, false) => Transport::Tcp,
    };
    let owner = SessionOwner { client: hello.client, transport, slot_size: hello.slot_size, quota_bytes };
    match hello.role {
        Role::Control => Ok(Guest::Control),
        Role::Session if hello.session == 0 => {
            let membership = host.registry.open(owner, host.store, host.socket)?;
            Ok(Guest::Session { membership, payload_crc: hello.payload_crc })
        }
        Role::Session => match join(hello, host, owner)? {
            Some(membership) => Ok(Guest::Session { membership, payload_crc: hello.payload_crc }),
            None if hello.clone => no("there is no such session to clone; it may have ended with its last connection"),
            None if hello.takes_over => no(
                "it does not have this session: it is another server, it was not started with the --keep directory of the \
                 first, or the session has ended there",
            ),
            None => no(
                "there is no such session to join, or it has too many connections; it may have ended with its last connection",
            ),
        },
        Role::Attach if !host.is_unix => no("the same-host link needs an AF_UNIX socket"),
        Role::Attach if hello.clone => {
            match HostSession::open_clone(owner, hello.session, &hello.token, host.registry, host.socket)? {
                Some(session) => Ok(Guest::Host(Box::new(session))),
                None => no("there is no such same-host session to clone; it may have ended"),
            }
        }
        Role::Attach => match HostSession::open(owner, host.store, host.registry, host.socket) {
            Ok(session) => Ok(Guest::Host(Box::new(session))),
            Err(e) => no(format!("the session's files could not be made: {e}")),
        },
    }
}

/// Lets the client clone, take over or join the session that its HELLO names. Returns `None` if there is no such
/// session.
fn join(hello: &Hello, host: &Host<'_>, owner: SessionOwner) -> Result<Option<Membership>, NoGuest> {
    let Host { registry, socket, .. } = host;
    if hello.clone {
        return Ok(registry.open_clone(owner, hello.session, &hello.token, socket)?);
    }
    if !hello.takes_over {
        return Ok(registry.join(hello.session, &hello.token, hello.slot_size, socket));
    }
    // A client that waited for this server may have given the connection up and made another. The session is that
    // connection's.
    if !socket.is_open() {
        return Err(LinkError::Closed.into());
    }
    Ok(registry.take_over(hello.session, &hello.token, hello.slot_size, socket)?)
}
