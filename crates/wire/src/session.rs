//! Opens sessions on a server. A session has a reading and a writing connection to its far space.

use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::error::LinkError;
use crate::handshake::{ConnectOptions, Welcomed, connect};
use crate::key::Key;
use crate::limits::{CONNECT_DEFAULT, SILENT_DEFAULT, slot_size_is_valid};
use crate::payload::{Role, SERVER_ID_BYTES, TOKEN_BYTES};
use crate::read::{ReadReplies, ReadRequests, Replaced, Replacement, halves};
use crate::write::Writer;

/// The options for opening a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Size of the slots (the units in which the server stores the session's bytes), in bytes. It must be a power of
    /// two from 4 KiB to 2 MiB.
    pub slot_size: u32,
    /// Whether pages carry checksums in both directions. Links with a key have tags instead.
    pub payload_checksum: bool,
    /// The key, if the server has one.
    pub key: Option<Key>,
    /// The maximum time for connecting. The handshake after it may take the same time again.
    pub connect_timeout: Duration,
    /// Time without progress in a transfer after which the server counts as silent.
    pub silent_timeout: Duration,
}

impl SessionOptions {
    /// Returns the default options for a server. With these options, pages carry checksums only if the server is on
    /// another host.
    pub fn for_endpoint(endpoint: &Endpoint, slot_size: u32) -> SessionOptions {
        SessionOptions {
            slot_size,
            payload_checksum: !endpoint.is_local(),
            key: None,
            connect_timeout: CONNECT_DEFAULT,
            silent_timeout: SILENT_DEFAULT,
        }
    }
}

/// What a client knows about its session: the server's address, and the contents of the server's WELCOME.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// The server's address.
    pub endpoint: Endpoint,
    /// The session's number at the server.
    pub session: u64,
    /// The token that a connection needs in order to join or clone the session.
    pub token: [u8; TOKEN_BYTES],
    /// The session's slot size, in bytes.
    pub slot_size: u32,
    /// The number of bytes that the server could hold for the session when the session was opened, in memory and spill
    /// files together. It is at most the quota.
    pub capacity_bytes: u64,
    /// The maximum number of bytes that the session may hold. [`crate::payload::NO_QUOTA`] means no limit.
    pub quota_bytes: u64,
    /// Whether pages carry checksums.
    pub payload_checksum: bool,
    /// The identity of the server that holds the session.
    pub server_id: [u8; SERVER_ID_BYTES],
}

/// A session with one server. The server stores the bytes of the session's far space, whose 64-bit byte offsets begin
/// at 0. When all connections of the session are closed, the session ends and the server discards its contents.
#[derive(Debug)]
pub struct Session {
    requests: ReadRequests,
    replies: ReadReplies,
    writer: Writer,
    info: SessionInfo,
}

impl Session {
    /// Opens a new session.
    pub fn open(endpoint: &Endpoint, options: &SessionOptions) -> Result<Session, LinkError> {
        Session::begin(endpoint, options, None)
    }

    /// Opens a new session with the current contents of the session `of`. Later writes and discards in one session do
    /// not change the other session. The new session is sure to contain a write only if the write was acknowledged
    /// before this call.
    pub fn open_clone(of: &SessionInfo, options: &SessionOptions) -> Result<Session, LinkError> {
        Session::begin(&of.endpoint, options, Some((of.session, of.token)))
    }

    fn begin(
        endpoint: &Endpoint,
        options: &SessionOptions,
        clone_of: Option<(u64, [u8; TOKEN_BYTES])>,
    ) -> Result<Session, LinkError> {
        if !slot_size_is_valid(options.slot_size) {
            return Err(LinkError::Misuse { what: "a slot is a power of two from 4 KiB to 2 MiB" });
        }
        // On a link with a key, each record has a tag, which is stronger than a checksum.
        let payload_crc = options.payload_checksum && options.key.is_none();
        let mut connect_options = ConnectOptions {
            role: Role::Session,
            slot_size: options.slot_size,
            payload_crc,
            join: clone_of,
            clone: clone_of.is_some(),
            takes_over: false,
            key: options.key.as_ref(),
            connect_timeout: options.connect_timeout,
            silent_timeout: options.silent_timeout,
        };
        let Welcomed { socket, inbox, welcome } = connect(endpoint, &connect_options)?;
        connect_options.join = Some((welcome.session, welcome.token));
        connect_options.clone = false;
        let writing = connect(endpoint, &connect_options)?;
        let (requests, replies) = halves(socket, inbox, payload_crc);
        let info = SessionInfo {
            endpoint: endpoint.clone(),
            session: welcome.session,
            token: welcome.token,
            slot_size: welcome.slot_size,
            capacity_bytes: welcome.capacity_bytes,
            quota_bytes: welcome.quota_bytes,
            payload_checksum: payload_crc,
            server_id: welcome.server_id,
        };
        let writer = Writer::new(writing.socket, writing.inbox, payload_crc);
        Ok(Session { requests, replies, writer, info })
    }

    /// Returns the values on which client and server agreed when the session was opened.
    pub fn info(&self) -> &SessionInfo {
        &self.info
    }

    /// Splits the session into parts that different threads may use.
    pub fn split(self) -> (ReadRequests, ReadReplies, Writer, SessionInfo) {
        (self.requests, self.replies, self.writer, self.info)
    }
}

/// New connections of a session whose old connections are lost.
#[derive(Debug)]
pub struct Rejoined {
    reading: Replacement,
    writer: Writer,
}

impl Rejoined {
    /// Joins the session `info` again. The server must be the one that began the session, and must still hold it. The
    /// server first ends the session's earlier connections, so that no request on them is carried out later. Requests
    /// that were not answered on the old connections may have been carried out or not.
    pub fn open(info: &SessionInfo, options: &SessionOptions) -> Result<Rejoined, LinkError> {
        let mut connect_options = ConnectOptions {
            role: Role::Session,
            slot_size: info.slot_size,
            payload_crc: info.payload_checksum,
            join: Some((info.session, info.token)),
            clone: false,
            takes_over: true,
            key: options.key.as_ref(),
            connect_timeout: options.connect_timeout,
            silent_timeout: options.silent_timeout,
        };
        let reading = connect(&info.endpoint, &connect_options)?;
        connect_options.takes_over = false;
        let writing = connect(&info.endpoint, &connect_options)?;
        if [&reading, &writing].iter().any(|welcomed| welcomed.welcome.server_id != info.server_id) {
            return Err(LinkError::AnotherServer);
        }
        let writer = Writer::new(writing.socket, writing.inbox, info.payload_checksum);
        let reading = Replacement::new(reading.socket, reading.inbox, info.payload_checksum)?;
        Ok(Rejoined { reading, writer })
    }

    /// Returns the new writing connection.
    pub fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// Puts the new reading connection in the place of the old one. Its descriptor takes over the number of the old one,
    /// whose connection is closed. Returns the new writing connection, and what the caller must drop later. Allocates and
    /// frees nothing, so the caller may hold locks. If this fails, the reading connection is not usable.
    pub fn install(
        self,
        requests: &mut ReadRequests,
        replies: &mut ReadReplies,
    ) -> (Result<Writer, LinkError>, Replaced) {
        let (installed, replaced) = self.reading.install(requests, replies);
        (installed.map(|()| self.writer), replaced)
    }
}
