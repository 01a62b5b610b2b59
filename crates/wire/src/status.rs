//! Asking a server what it holds.

use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::error::LinkError;
use crate::frame::Kind;
use crate::handshake::{Welcomed, Wish, connect, send_control};
use crate::key::Key;
use crate::limits::CONTROL_MAX;
use crate::payload::{Role, Status};
use crate::socket::Progress;

/// What the server at `endpoint` holds; connecting and answering may take `timeout` each.
pub fn fetch_status(endpoint: &Endpoint, key: Option<&Key>, timeout: Duration) -> Result<Status, LinkError> {
    let wish = Wish {
        role: Role::Control,
        slot_size: 0,
        payload_crc: false,
        join: None,
        key,
        connect_timeout: timeout,
        silent_timeout: timeout,
    };
    let Welcomed { socket, mut inbox, .. } = connect(endpoint, &wish)?;
    send_control(&socket, Kind::Status, 0, &[])?;
    let mut payload = [0; CONTROL_MAX];
    let (header, length) = inbox.receive_frame(&socket, &mut payload, &mut Progress::until(timeout))?;
    match Status::decode(&payload[..length]) {
        Some(status) if header.kind == Kind::StatusReply => Ok(status),
        _ => Err(LinkError::Garbage { what: "an answer to STATUS that makes no sense" }),
    }
}
