//! The links between a program and its memory servers: the frames, the codec of the frames, and the client's ends of
//! the links.
//!
//! `docs/wire-format.md` describes the frames. This crate transfers bytes only. It has no paging policy and stores no
//! slots. Both sides use the codec ([`frame`], [`payload`]) and the socket helpers ([`socket`], [`inbox`]). The
//! client's ends are:
//!
//! - [`Session`]: a session with a server over TCP or AF_UNIX. The server stores the bytes of the session's far space.
//!   One connection is for reads ([`ReadRequests`] and [`ReadReplies`], usable from two threads), another for writes
//!   and discards ([`Writer`]).
//! - [`Attachment`]: the same-host link, over which the server passes files to the client. The client copies pages to
//!   and from these files by itself.
//! - [`fetch_status`] and [`fetch_sessions`]: functions that ask a server what it holds, in total and for each session.
//!
//! After construction, the calls of `ReadRequests`, `ReadReplies` and `Writer` allocate nothing, take no lock, log
//! nothing and make only async-signal-safe system calls. A fault handler may therefore use them.
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
mod key_file;
pub mod limits;
pub mod noise;
mod patience;
pub mod payload;
pub mod peer;
mod read;
mod records;
mod session;
mod sessions;
pub mod socket;
mod status;
pub mod trust;
mod write;

pub use attach::{ATTACHED_SPILL, Attachment};
pub use descriptors::keep_descriptors_by;
pub use endpoint::{DEFAULT_PORT, Endpoint, EndpointError};
pub use error::{ErrorCode, LinkError, Text};
pub use identity::{IDENTITY_BYTES, Identity};
pub use key::{Key, KeyError};
pub use patience::patience;
pub use payload::{Grant, Place, Status};
pub use read::{ReadReplies, ReadRequests, Replaced, ReplyHeader};
pub use records::{Opener, Sealer};
pub use session::{Rejoined, Session, SessionInfo, SessionOptions};
pub use sessions::{SESSIONS_PER_REPLY, SessionStatus, Transport};
pub use socket::Wait;
pub use status::{fetch_sessions, fetch_status};
pub use write::{Ack, AckStatus, Writer};
