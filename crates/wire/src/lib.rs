//! Bytes on a link between a program and its memory servers: frames, codec, and the client's ends of the links.
//!
//! This room knows how bytes travel (`docs/wire-format.md` draws them) and nothing of pages, policies or slots'
//! storage. Both sides use the codec ([`frame`], [`payload`]) and the socket helpers ([`socket`], [`inbox`]); the
//! client's ends are:
//!
//! - [`Session`]: far space on a server over TCP or AF_UNIX, one connection for reads ([`ReadRequests`] and
//!   [`ReadReplies`], usable from two threads) and one for writes and discards ([`Writer`]);
//! - [`Attachment`]: the same-host link, where the server hands over files and the client copies by itself;
//! - [`fetch_status`], [`fetch_sessions`]: what a server holds, and for whom.
//!
//! After construction, the calls of `ReadRequests`, `ReadReplies` and `Writer` allocate nothing, take no lock, log
//! nothing and only make async-signal-safe system calls, so that a fault handler may use them.
#![forbid(unsafe_code)]

mod attach;
mod descriptors;
mod endpoint;
mod error;
pub mod frame;
pub mod handshake;
mod identity;
pub mod inbox;
mod key;
pub mod limits;
pub mod payload;
mod read;
mod session;
mod sessions;
pub mod socket;
mod status;
mod write;

pub use attach::{ATTACHED_SPILL, Attachment};
pub use descriptors::keep_descriptors_by;
pub use endpoint::{DEFAULT_PORT, Endpoint, EndpointError};
pub use error::{ErrorCode, LinkError, Text};
pub use identity::Identity;
pub use key::{Key, KeyError};
pub use payload::{Grant, Place, Status};
pub use read::{ReadReplies, ReadRequests, ReplyHeader};
pub use session::{Session, SessionInfo, SessionOptions};
pub use sessions::{SESSIONS_PER_REPLY, SessionStatus, Transport};
pub use socket::Wait;
pub use status::{fetch_sessions, fetch_status};
pub use write::{Ack, AckStatus, Writer};
