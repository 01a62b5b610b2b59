//! The format of a frame: a little-endian header of 40 bytes, then the payload that the frame's kind allows.
//!
//! `docs/wire-format.md` describes the format. If the length of the payload exceeds the limit of the frame's kind, the
//! header does not decode. So the receiver never allocates too much space for a payload.

use crate::error::LinkError;
use crate::limits::{BETWEEN_RANKS_MAX, CONTROL_MAX, DISCARD_MAX, RANGE_MAX, REASON_MAX, TEXT_MAX, range_is_valid};

/// The first four bytes of every frame: the text "HNRE".
pub const MAGIC: [u8; 4] = *b"HNRE";
/// Version of the wire protocol that this crate speaks.
pub const VERSION: u16 = 2;
/// Size of a header, in bytes.
pub const HEADER_BYTES: usize = 40;
/// Offset of the kind in a header, in bytes.
pub(crate) const KIND_AT: usize = 6;
/// Flag: `payload_crc` is the CRC-32 of the payload.
pub const FLAG_PAYLOAD_CRC: u8 = 1;
const FLAGS_KNOWN: u8 = FLAG_PAYLOAD_CRC;
/// The code of a REFUSED whose reason passes: the server has no connection or no thread left at the moment.
pub const REFUSED_FOR_NOW: u32 = 1;

/// The kind of a frame. Each comment says which side sends the frame, and what the frame means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// From the client: the first frame of every connection, or the first after the handshake of a link with a key.
    Hello = 1,
    /// From both sides, on a link with a key: the message of the handshake ([`crate::noise`]). The client's is the first
    /// frame of the connection.
    Noise = 2,
    /// From the server: accepts the connection.
    Welcome = 4,
    /// From the server: refuses the connection and says why. The server then closes the connection. `code` is
    /// [`REFUSED_FOR_NOW`] if the same request may succeed later, otherwise 0.
    Refused = 5,
    /// From the client: asks for the bytes of a range.
    Read = 16,
    /// From the server: the bytes of the range that a READ asked for.
    Data = 17,
    /// From the client: the bytes of a range, which the server stores.
    Write = 18,
    /// From the server: a WRITE, DISCARD or RETURN has succeeded.
    Done = 19,
    /// From the client: the server may forget the bytes of a range.
    Discard = 20,
    /// From the server: the request with this tag has failed.
    Error = 21,
    /// From the client: asks for the server's status.
    Status = 32,
    /// From the server: the answer to a STATUS.
    StatusReply = 33,
    /// From the client: asks for a PONG.
    Ping = 34,
    /// From the server: the answer to a PING.
    Pong = 35,
    /// From the client: asks for the open sessions whose numbers are above `offset`.
    Sessions = 36,
    /// From the server: some of the open sessions, as the answer to a SESSIONS.
    SessionsReply = 37,
    /// From a client on the same host: asks for the session's files.
    Attach = 48,
    /// From the server: the session's files, passed as SCM_RIGHTS.
    Attached = 49,
    /// From a client on the same host: asks for more slots. The payload is the number of slots.
    GrantRequest = 50,
    /// From the server: the runs of slots that the server grants.
    Grant = 51,
    /// From a client on the same host: returns runs of slots to the server.
    Return = 52,
    /// From one rank (process) of shared memory to another: a message. `code` is the number of its type.
    BetweenRanks = 64,
}

/// Whether a frame of some kind has a payload, and what the header's `length` and `offset` mean.
enum Shape {
    /// No payload, and `length` is zero.
    Bare,
    /// A payload of `length` bytes, at most the given number.
    Payload(usize),
    /// A payload of `length` bytes: the contents of the range at `offset`.
    Range,
    /// No payload. The frame is about the range of `length` bytes at `offset`. The range has at most the given number
    /// of bytes.
    Names(u32),
}

impl Kind {
    const ALL: [Kind; 22] = [
        Kind::Hello,
        Kind::Noise,
        Kind::Welcome,
        Kind::Refused,
        Kind::Read,
        Kind::Data,
        Kind::Write,
        Kind::Done,
        Kind::Discard,
        Kind::Error,
        Kind::Status,
        Kind::StatusReply,
        Kind::Ping,
        Kind::Pong,
        Kind::Sessions,
        Kind::SessionsReply,
        Kind::Attach,
        Kind::Attached,
        Kind::GrantRequest,
        Kind::Grant,
        Kind::Return,
        Kind::BetweenRanks,
    ];

    /// Returns the kind with this number, or `None` if no kind has this number.
    pub fn from_wire(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    fn shape(self) -> Shape {
        match self {
            Kind::Read => Shape::Names(RANGE_MAX),
            Kind::Discard => Shape::Names(DISCARD_MAX),
            Kind::Data | Kind::Write => Shape::Range,
            Kind::BetweenRanks => Shape::Payload(BETWEEN_RANKS_MAX),
            Kind::Error => Shape::Payload(TEXT_MAX),
            Kind::Refused => Shape::Payload(REASON_MAX),
            Kind::Done | Kind::Status | Kind::Ping | Kind::Pong | Kind::Sessions | Kind::Attach | Kind::Attached => {
                Shape::Bare
            }
            Kind::Hello
            | Kind::Noise
            | Kind::Welcome
            | Kind::StatusReply
            | Kind::SessionsReply
            | Kind::GrantRequest
            | Kind::Grant
            | Kind::Return => Shape::Payload(CONTROL_MAX),
        }
    }
}

/// A frame's header. The struct lacks the magic, the version and the header's own checksum: [`Header::encode`] adds
/// them, and [`Header::decode`] checks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the frame.
    pub kind: Kind,
    /// [`FLAG_PAYLOAD_CRC`], or 0.
    pub flags: u8,
    /// The number that the client chose for this request. The answer repeats it.
    pub tag: u64,
    /// For kinds about a range: the offset of the range in the session's far space (the bytes that the server stores),
    /// in bytes. In DONE, PONG and GRANT: how many more bytes the server could hold for this session. In SESSIONS: the
    /// number of the last session that the client knows. Zero in all other kinds.
    pub offset: u64,
    /// Bytes of the range for READ and DISCARD, bytes of payload for all other kinds.
    pub length: u32,
    /// CRC-32 of the payload if [`FLAG_PAYLOAD_CRC`] is set, else zero.
    pub payload_crc: u32,
    /// The [`crate::ErrorCode`] of an ERROR, the file flags of an ATTACHED, or the type of a message between ranks.
    /// Zero in all other kinds.
    pub code: u32,
}

/// The reasons why bytes are not a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The bytes belong to another protocol.
    #[error("no frame begins with these bytes")]
    Magic,
    /// The header has another version. The fields after the version were not read.
    #[error("version {0} is not {VERSION}")]
    Version(u16),
    /// The header's checksum is wrong.
    #[error("the header does not match its checksum")]
    Checksum,
    /// No kind has this number.
    #[error("kind {0} is unknown")]
    Kind(u8),
    /// A field has a value that is impossible for the frame's kind.
    #[error("{0}")]
    Field(&'static str),
}

impl From<FrameError> for LinkError {
    fn from(e: FrameError) -> LinkError {
        match e {
            FrameError::Version(theirs) => LinkError::Version { theirs, ours: VERSION },
            FrameError::Magic => LinkError::Garbage { what: "no frame begins with its bytes" },
            FrameError::Checksum => LinkError::Garbage { what: "a header does not match its checksum" },
            FrameError::Kind(_) => LinkError::Garbage { what: "a frame of an unknown kind" },
            FrameError::Field(what) => LinkError::Garbage { what },
        }
    }
}

impl Header {
    /// Returns the header of a frame that has no payload, no range and no code.
    pub fn bare(kind: Kind, tag: u64) -> Header {
        Header { kind, flags: 0, tag, offset: 0, length: 0, payload_crc: 0, code: 0 }
    }

    /// Returns the header of a frame about the range of `length` bytes at `offset`.
    pub fn range(kind: Kind, tag: u64, offset: u64, length: u32) -> Header {
        Header { offset, length, ..Header::bare(kind, tag) }
    }

    /// Returns how many bytes of payload follow this header.
    pub fn payload_bytes(&self) -> usize {
        match self.kind.shape() {
            Shape::Bare | Shape::Names(_) => 0,
            Shape::Payload(_) | Shape::Range => self.length as usize,
        }
    }

    /// Checks whether [`FLAG_PAYLOAD_CRC`] is set.
    pub fn has_payload_crc(&self) -> bool {
        self.flags & FLAG_PAYLOAD_CRC != 0
    }

    /// Encodes the header. The caller must set only fields that [`Header::decode`] accepts.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[KIND_AT] = self.kind as u8;
        bytes[7] = self.flags;
        bytes[8..16].copy_from_slice(&self.tag.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.payload_crc.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.code.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..36]);
        bytes[36..40].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a header. Checks the magic, the version, the checksum, the kind, the flags and the length. The range of
    /// a READ or DISCARD is not checked here.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
        Header::check_beginning(bytes)?;
        if crc32fast::hash(&bytes[..36]) != u32_at(bytes, 36) {
            return Err(FrameError::Checksum);
        }
        let header = Header {
            kind: Kind::from_wire(bytes[KIND_AT]).ok_or(FrameError::Kind(bytes[KIND_AT]))?,
            flags: bytes[7],
            tag: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            length: u32_at(bytes, 24),
            payload_crc: u32_at(bytes, 28),
            code: u32_at(bytes, 32),
        };
        header.check()?;
        Ok(header)
    }

    /// Checks the magic and the version at the beginning of a header. If `bytes` is shorter, checks only the part that
    /// is there. So a peer that speaks another protocol is recognised before a whole header arrives.
    pub fn check_beginning(bytes: &[u8]) -> Result<(), FrameError> {
        let n = bytes.len().min(4);
        if bytes[..n] != MAGIC[..n] {
            return Err(FrameError::Magic);
        }
        match bytes.get(4..6) {
            Some(version) if *version != VERSION.to_le_bytes() => {
                Err(FrameError::Version(u16::from_le_bytes([version[0], version[1]])))
            }
            _ => Ok(()),
        }
    }

    fn check(&self) -> Result<(), FrameError> {
        if self.flags & !FLAGS_KNOWN != 0 {
            return Err(FrameError::Field("a frame with unknown flags"));
        }
        let fits = match self.kind.shape() {
            Shape::Bare => self.length == 0,
            Shape::Payload(max) => self.length as usize <= max,
            Shape::Range => range_is_valid(self.offset, self.length, RANGE_MAX),
            // The server checks the range of a READ or DISCARD later. If the range is invalid, the server answers with
            // an ERROR and keeps the connection.
            Shape::Names(_) => true,
        };
        if fits { Ok(()) } else { Err(FrameError::Field("a frame with an impossible length or offset")) }
    }

    /// Checks whether this is a READ or DISCARD whose range is within the limits.
    pub fn names_valid_range(&self) -> bool {
        match self.kind.shape() {
            Shape::Names(max) => range_is_valid(self.offset, self.length, max),
            _ => false,
        }
    }
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
