//! Asks a server for its status and its sessions.

use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::error::LinkError;
use crate::frame::{Header, Kind};
use crate::handshake::{ConnectOptions, Welcomed, connect};
use crate::inbox::Inbox;
use crate::key::Key;
use crate::limits::CONTROL_MAX;
use crate::payload::{Role, Status};
use crate::sessions::{SESSIONS_PER_REPLY, SessionStatus};
use crate::socket::{Progress, Socket};

/// When [`fetch_sessions`] has received more sessions than this number, it stops and returns them. So a faulty server
/// cannot make the client use unlimited memory.
const SESSIONS_MAX: usize = 1 << 16;

/// Returns the status of the server at `endpoint`. `timeout` limits each of three steps: connecting, the handshake, and
/// the answer.
pub fn fetch_status(endpoint: &Endpoint, key: Option<&Key>, timeout: Duration) -> Result<Status, LinkError> {
    StatusClient::start(endpoint, key, timeout)?.status()
}

/// Returns the status of the server at `endpoint`, and its open sessions in the order of their numbers. `timeout`
/// limits each step: connecting, the handshake, and each answer.
pub fn fetch_sessions(
    endpoint: &Endpoint,
    key: Option<&Key>,
    timeout: Duration,
) -> Result<(Status, Vec<SessionStatus>), LinkError> {
    let mut client = StatusClient::start(endpoint, key, timeout)?;
    let status = client.status()?;
    let mut sessions: Vec<SessionStatus> = Vec::new();
    loop {
        let after = sessions.last().map_or(0, |last| last.session);
        let more = client.sessions(after)?;
        let is_last = more.len() < SESSIONS_PER_REPLY;
        sessions.extend(more);
        if is_last || sessions.len() > SESSIONS_MAX {
            return Ok((status, sessions));
        }
    }
}

/// The client's end of a control connection, which asks a server for its status and its sessions.
struct StatusClient {
    socket: Socket,
    inbox: Inbox,
    timeout: Duration,
}

impl StatusClient {
    fn start(endpoint: &Endpoint, key: Option<&Key>, timeout: Duration) -> Result<StatusClient, LinkError> {
        let options = ConnectOptions {
            role: Role::Control,
            slot_size: 0,
            payload_crc: false,
            join: None,
            clone: false,
            takes_over: false,
            key,
            connect_timeout: timeout,
            silent_timeout: timeout,
        };
        let Welcomed { socket, inbox, .. } = connect(endpoint, &options)?;
        Ok(StatusClient { socket, inbox, timeout })
    }

    fn status(&mut self) -> Result<Status, LinkError> {
        let garbage = LinkError::Garbage { what: "an answer to STATUS that makes no sense" };
        let mut payload = [0; CONTROL_MAX];
        let (kind, length) = self.ask(Header::bare(Kind::Status, 0), &mut payload)?;
        Status::decode(&payload[..length]).filter(|_| kind == Kind::StatusReply).ok_or(garbage)
    }

    fn sessions(&mut self, after: u64) -> Result<Vec<SessionStatus>, LinkError> {
        let garbage = LinkError::Garbage { what: "an answer to SESSIONS that makes no sense" };
        let mut payload = [0; CONTROL_MAX];
        let (kind, length) = self.ask(Header { offset: after, ..Header::bare(Kind::Sessions, 0) }, &mut payload)?;
        SessionStatus::decode_all(&payload[..length], after).filter(|_| kind == Kind::SessionsReply).ok_or(garbage)
    }

    fn ask(&mut self, request: Header, payload: &mut [u8; CONTROL_MAX]) -> Result<(Kind, usize), LinkError> {
        self.socket.send_all(&[std::io::IoSlice::new(&request.encode())])?;
        let (header, length) = self.inbox.receive_frame(&self.socket, payload, &mut Progress::until(self.timeout))?;
        Ok((header.kind, length))
    }
}
