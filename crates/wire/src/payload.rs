//! The payloads that are neither pages nor texts: hello, welcome, status, grants.
//!
//! Each kind of payload has a fixed size, and a payload of another size does not decode. The payload of a GRANT or
//! RETURN is an exception: it consists of any whole number of runs.

use crate::identity::{IDENTITY_BYTES, Identity};
use crate::limits::{GRANT_RUNS_MAX, slot_size_is_valid};

/// The purpose of a connection, which decides what the client may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// The client sends READ, WRITE, DISCARD and PING for a session's far space (the bytes that the server stores).
    Session = 1,
    /// The client sends STATUS, SESSIONS and PING only. The connection has no session.
    Control = 2,
    /// The connection is a same-host link. The client sends ATTACH, GRANT_REQUEST, RETURN and PING.
    Attach = 3,
}

/// Size of a session's secret token, in bytes.
pub const TOKEN_BYTES: usize = 16;
/// Size of a server's identity, in bytes.
pub const SERVER_ID_BYTES: usize = 16;
/// HELLO flag: payloads carry checksums in both directions.
pub const HELLO_PAYLOAD_CRC: u8 = 1;
/// HELLO flag: the client opens a new session with the current contents of an existing session. The HELLO contains that
/// session's number and token.
pub const HELLO_CLONE: u8 = 2;
/// HELLO flag: the client has lost its connections to the session in the HELLO, and opens new ones in their place.
pub const HELLO_TAKE_OVER: u8 = 4;

/// The payload of a HELLO: the client's identity and its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What the connection is for.
    pub role: Role,
    /// Whether payloads should carry checksums.
    pub payload_crc: bool,
    /// Whether to clone `session` instead of joining it.
    pub clone: bool,
    /// Whether the joined session's earlier connections must end before this connection is welcomed.
    pub takes_over: bool,
    /// The session's slot size, in bytes. Zero for [`Role::Control`].
    pub slot_size: u32,
    /// Number of the session to join or clone. 0 opens a new session.
    pub session: u64,
    /// The token of the session to join or clone. Zeroes for a new session.
    pub token: [u8; TOKEN_BYTES],
    /// The client's description of itself.
    pub client: Identity,
}

/// Size of a HELLO's payload, in bytes.
pub const HELLO_BYTES: usize = 32 + IDENTITY_BYTES;

impl Hello {
    /// Returns the payload's bytes.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[0] = self.role as u8;
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        bytes[1] = flag(self.payload_crc, HELLO_PAYLOAD_CRC)
            | flag(self.clone, HELLO_CLONE)
            | flag(self.takes_over, HELLO_TAKE_OVER);
        bytes[4..8].copy_from_slice(&self.slot_size.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.session.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.token);
        bytes[32..].copy_from_slice(&self.client.encode());
        bytes
    }

    /// Decodes a HELLO. Returns `None` if the bytes are not a valid HELLO.
    pub fn decode(bytes: &[u8]) -> Option<Hello> {
        let bytes: &[u8; HELLO_BYTES] = bytes.try_into().ok()?;
        let role = match bytes[0] {
            1 => Role::Session,
            2 => Role::Control,
            3 => Role::Attach,
            _ => return None,
        };
        let slot_size = u32::from_le_bytes(part(bytes, 4));
        let slot_fits = if role == Role::Control { slot_size == 0 } else { slot_size_is_valid(slot_size) };
        let (clone, session) = (bytes[1] & HELLO_CLONE != 0, u64::from_le_bytes(part(bytes, 8)));
        let clones_something = !clone || role != Role::Control && session != 0;
        let takes_over = bytes[1] & HELLO_TAKE_OVER != 0;
        let takes_something = !takes_over || role == Role::Session && session != 0 && !clone;
        let known = HELLO_PAYLOAD_CRC | HELLO_CLONE | HELLO_TAKE_OVER;
        let is_known = bytes[1] & !known == 0 && bytes[2..4] == [0, 0];
        if !is_known || !slot_fits || !clones_something || !takes_something {
            return None;
        }
        Some(Hello {
            role,
            payload_crc: bytes[1] & HELLO_PAYLOAD_CRC != 0,
            clone,
            takes_over,
            slot_size,
            session,
            token: part(bytes, 16),
            client: Identity::decode(&part(bytes, 32))?,
        })
    }
}

/// The payload of a WELCOME: the properties of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The session's number. Zero for [`Role::Control`].
    pub session: u64,
    /// The session's secret token. Another connection must send it to join the session.
    pub token: [u8; TOKEN_BYTES],
    /// The number of bytes that the server could hold for this session when it sent the WELCOME, in memory and spill
    /// files together. It is at most the session's quota.
    pub capacity_bytes: u64,
    /// The session's slot size, in bytes.
    pub slot_size: u32,
    /// Whether payloads carry checksums on this connection.
    pub payload_crc: bool,
    /// The maximum number of bytes that the session may hold. [`NO_QUOTA`] means no limit.
    pub quota_bytes: u64,
    /// The server's identity: random bytes that a server with a directory for kept sessions has for ever, and any other
    /// server until its end.
    pub server_id: [u8; SERVER_ID_BYTES],
}

/// The value of a quota that means no limit.
pub const NO_QUOTA: u64 = u64::MAX;

/// Size of a WELCOME's payload, in bytes.
pub const WELCOME_BYTES: usize = 64;

impl Welcome {
    /// Returns the payload's bytes.
    pub fn encode(&self) -> [u8; WELCOME_BYTES] {
        let mut bytes = [0; WELCOME_BYTES];
        bytes[0..8].copy_from_slice(&self.session.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.token);
        bytes[24..32].copy_from_slice(&self.capacity_bytes.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.slot_size.to_le_bytes());
        bytes[36] = if self.payload_crc { HELLO_PAYLOAD_CRC } else { 0 };
        bytes[40..48].copy_from_slice(&self.quota_bytes.to_le_bytes());
        bytes[48..64].copy_from_slice(&self.server_id);
        bytes
    }

    /// Decodes a WELCOME. Returns `None` if the bytes are not a valid WELCOME.
    pub fn decode(bytes: &[u8]) -> Option<Welcome> {
        let bytes: &[u8; WELCOME_BYTES] = bytes.try_into().ok()?;
        if bytes[36] & !HELLO_PAYLOAD_CRC != 0 || bytes[37..40] != [0; 3] {
            return None;
        }
        Some(Welcome {
            session: u64::from_le_bytes(part(bytes, 0)),
            token: part(bytes, 8),
            capacity_bytes: u64::from_le_bytes(part(bytes, 24)),
            slot_size: u32::from_le_bytes(part(bytes, 32)),
            payload_crc: bytes[36] & HELLO_PAYLOAD_CRC != 0,
            quota_bytes: u64::from_le_bytes(part(bytes, 40)),
            server_id: part(bytes, 48),
        })
    }
}

/// The state of a server. Each value is a count or a number of bytes, unless its name ends with another unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Number of open sessions, including same-host sessions.
    pub sessions: u64,
    /// Number of slots in use, in memory and in spill files.
    pub slots: u64,
    /// Number of freed slots that are reserved for the session that freed them and for its clones.
    pub slots_free: u64,
    /// How often, since its start, the server has reused a freed slot instead of taking unused space.
    pub slots_reused: u64,
    /// The memory limit, in bytes.
    pub memory_limit_bytes: u64,
    /// Memory that counts against the memory limit, in bytes: memory blocks of sessions, free blocks that are kept for
    /// reuse, and granted slots of same-host sessions.
    pub memory_bytes: u64,
    /// The part of `memory_bytes` in free blocks, in bytes. Any session can use a free block.
    pub memory_free_bytes: u64,
    /// Number of bytes in the slots that lie in spill files.
    pub spill_bytes: u64,
    /// Number of free bytes on the disk of the spill directory.
    pub spill_free_bytes: u64,
    /// Bytes of pages sent since the server's start.
    pub read_bytes: u64,
    /// Bytes of pages received since the server's start.
    pub write_bytes: u64,
    /// Bytes of pages sent per second in the recent past.
    pub read_bytes_per_s: u64,
    /// Bytes of pages received per second in the recent past.
    pub write_bytes_per_s: u64,
    /// The maximum number of bytes that each session may hold. [`NO_QUOTA`] means no limit.
    pub client_quota_bytes: u64,
    /// How long the server has run, in milliseconds.
    pub uptime_ms: u64,
    /// The server's release, packed by [`pack_release`].
    pub release: u64,
    /// 1 if the server's machine is short of memory, else 0. The server then hands out no more.
    pub is_short_of_memory: u64,
    /// The first eight bytes of the server's identity, as a big-endian number.
    pub server_id: u64,
}

const STATUS_WORDS: usize = 18;
/// Size of a STATUS_REPLY's payload, in bytes.
pub const STATUS_BYTES: usize = STATUS_WORDS * 8;

impl Status {
    fn words(&mut self) -> [&mut u64; STATUS_WORDS] {
        [
            &mut self.sessions,
            &mut self.slots,
            &mut self.slots_free,
            &mut self.slots_reused,
            &mut self.memory_limit_bytes,
            &mut self.memory_bytes,
            &mut self.memory_free_bytes,
            &mut self.spill_bytes,
            &mut self.spill_free_bytes,
            &mut self.read_bytes,
            &mut self.write_bytes,
            &mut self.read_bytes_per_s,
            &mut self.write_bytes_per_s,
            &mut self.client_quota_bytes,
            &mut self.uptime_ms,
            &mut self.release,
            &mut self.is_short_of_memory,
            &mut self.server_id,
        ]
    }

    /// Returns the payload's bytes.
    pub fn encode(mut self) -> [u8; STATUS_BYTES] {
        let mut bytes = [0; STATUS_BYTES];
        for (into, word) in bytes.chunks_exact_mut(8).zip(self.words()) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a STATUS_REPLY. Returns `None` if the payload has another size.
    pub fn decode(bytes: &[u8]) -> Option<Status> {
        let bytes: &[u8; STATUS_BYTES] = bytes.try_into().ok()?;
        let mut status = Status::default();
        for (at, word) in status.words().into_iter().enumerate() {
            *word = u64::from_le_bytes(part(bytes, at * 8));
        }
        Some(status)
    }
}

/// Packs the three parts of a release (such as `1.22.3`) into one number, with 16 bits for each part. The first part is
/// in the highest of these bits. A part that is not a number counts as 0.
pub fn pack_release(text: &str) -> u64 {
    let mut numbers = text.split(['.', '-', '+']).map(|part| part.parse::<u16>().map_or(0, u64::from));
    (0..3).fold(0, |packed, _| packed << 16 | numbers.next().unwrap_or(0))
}

/// Returns the text of a release that [`pack_release`] packed.
pub fn release_text(packed: u64) -> String {
    format!("{}.{}.{}", packed >> 32 & 0xffff, packed >> 16 & 0xffff, packed & 0xffff)
}

/// The file in which a slot of a same-host session lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Place {
    /// The memfd.
    Memory = 0,
    /// The spill file.
    Spill = 1,
}

/// A run of adjacent slots of a same-host session. Slot `n` begins at byte `n * slot_size` of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The file in which the slots lie.
    pub place: Place,
    /// The run's first slot.
    pub first_slot: u32,
    /// Number of slots in the run, at least one.
    pub count: u32,
}

/// Size of one run in a GRANT or RETURN, in bytes.
pub const GRANT_BYTES: usize = 12;

impl Grant {
    /// Returns the run's bytes on the wire.
    pub fn encode(&self) -> [u8; GRANT_BYTES] {
        let mut bytes = [0; GRANT_BYTES];
        bytes[0..4].copy_from_slice(&(self.place as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.first_slot.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// Decodes one run. Returns `None` if the run is empty or a field is invalid.
    pub fn decode(bytes: &[u8]) -> Option<Grant> {
        let bytes: &[u8; GRANT_BYTES] = bytes.try_into().ok()?;
        let place = match u32::from_le_bytes(part(bytes, 0)) {
            0 => Place::Memory,
            1 => Place::Spill,
            _ => return None,
        };
        let first_slot = u32::from_le_bytes(part(bytes, 4));
        let count = u32::from_le_bytes(part(bytes, 8));
        first_slot.checked_add(count)?;
        if count == 0 { None } else { Some(Grant { place, first_slot, count }) }
    }

    /// Decodes the payload of a GRANT or RETURN. Returns an iterator over the runs, in which `None` is an invalid run.
    /// Returns `None` if the payload's size is not a whole number of runs, or if it has no runs or more than
    /// [`GRANT_RUNS_MAX`].
    pub fn decode_runs(bytes: &[u8]) -> Option<impl Iterator<Item = Option<Grant>> + '_> {
        let fits =
            !bytes.is_empty() && bytes.len().is_multiple_of(GRANT_BYTES) && bytes.len() / GRANT_BYTES <= GRANT_RUNS_MAX;
        fits.then(|| bytes.chunks_exact(GRANT_BYTES).map(Grant::decode))
    }
}

/// Size of a GRANT_REQUEST's payload, in bytes: the count of slots as a little-endian u32.
pub const GRANT_REQUEST_BYTES: usize = 4;

/// Copies `N` bytes of `bytes` from offset `at`. Panics if these bytes are not all inside the array. Callers pass only
/// constant offsets, which are small enough.
fn part<const N: usize, const M: usize>(bytes: &[u8; M], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}
