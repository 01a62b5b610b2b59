//! The payload of a SESSIONS_REPLY: the states of some of a server's open sessions.

use crate::identity::{IDENTITY_BYTES, Identity};
use crate::limits::CONTROL_MAX;

/// How a session's connections reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Transport {
    /// TCP.
    Tcp = 1,
    /// AF_UNIX.
    Unix = 2,
    /// The same-host link. The client copies pages by itself, so the server does not count transferred bytes.
    SameHost = 3,
}

impl Transport {
    /// Returns the word for people.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Unix => "unix",
            Transport::SameHost => "same-host",
        }
    }
}

/// The state of one open session. Each value is a count, or has the unit with which its name ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionStatus {
    /// The session's number at this server.
    pub session: u64,
    /// The client's description of itself.
    pub client: Identity,
    /// How the client is connected.
    pub transport: Transport,
    /// Number of the session's connections.
    pub connections: u64,
    /// Size of one slot, in bytes.
    pub slot_bytes: u64,
    /// Number of slots in use. For a same-host session: number of granted slots.
    pub slots: u64,
    /// Number of bytes in those of the session's slots that lie in spill files.
    pub spill_bytes: u64,
    /// The maximum number of bytes that the session may hold. `None` means no limit.
    pub quota_bytes: Option<u64>,
    /// Bytes of pages sent to the client.
    pub read_bytes: u64,
    /// Bytes of pages received from the client.
    pub write_bytes: u64,
    /// Bytes of pages sent to the client per second in the recent past.
    pub read_bytes_per_s: u64,
    /// Bytes of pages received from the client per second in the recent past.
    pub write_bytes_per_s: u64,
    /// How long the session has been open, in milliseconds.
    pub age_ms: u64,
}

const WORDS: usize = 12;
/// Size of one session's state in a SESSIONS_REPLY, in bytes.
pub(crate) const SESSION_STATUS_BYTES: usize = WORDS * 8 + IDENTITY_BYTES;
/// The largest number of sessions in one SESSIONS_REPLY. A client that receives a reply with this number of sessions
/// sends another SESSIONS for the next ones.
pub const SESSIONS_PER_REPLY: usize = CONTROL_MAX / SESSION_STATUS_BYTES;

impl SessionStatus {
    /// Returns how many bytes the session holds, in memory and spill files together.
    pub fn bytes(&self) -> u64 {
        self.slots.saturating_mul(self.slot_bytes)
    }

    /// Encodes the session's state for the wire.
    pub fn encode(&self) -> [u8; SESSION_STATUS_BYTES] {
        let words: [u64; WORDS] = [
            self.session,
            self.transport as u64,
            self.connections,
            self.slot_bytes,
            self.slots,
            self.spill_bytes,
            self.quota_bytes.unwrap_or(u64::MAX),
            self.read_bytes,
            self.write_bytes,
            self.read_bytes_per_s,
            self.write_bytes_per_s,
            self.age_ms,
        ];
        let mut bytes = [0; SESSION_STATUS_BYTES];
        for (into, word) in bytes.chunks_exact_mut(8).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes[WORDS * 8..].copy_from_slice(&self.client.encode());
        bytes
    }

    /// Decodes one session's state. Returns `None` if the bytes are not a valid state.
    pub fn decode(bytes: &[u8]) -> Option<SessionStatus> {
        let bytes: &[u8; SESSION_STATUS_BYTES] = bytes.try_into().ok()?;
        let mut words = [0; WORDS];
        for (word, raw) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(raw.try_into().ok()?);
        }
        let transport = match words[1] {
            1 => Transport::Tcp,
            2 => Transport::Unix,
            3 => Transport::SameHost,
            _ => return None,
        };
        Some(SessionStatus {
            session: words[0],
            client: Identity::decode(bytes[WORDS * 8..].try_into().ok()?)?,
            transport,
            connections: words[2],
            slot_bytes: words[3],
            slots: words[4],
            spill_bytes: words[5],
            quota_bytes: Some(words[6]).filter(|quota| *quota != u64::MAX),
            read_bytes: words[7],
            write_bytes: words[8],
            read_bytes_per_s: words[9],
            write_bytes_per_s: words[10],
            age_ms: words[11],
        })
    }

    /// Decodes a SESSIONS_REPLY's payload. Returns `None` if the payload is not a whole number of valid sessions or is
    /// too long. Also returns `None` if the session numbers do not ascend, or if the first is not above `after`.
    pub fn decode_all(bytes: &[u8], after: u64) -> Option<Vec<SessionStatus>> {
        let fits = bytes.len().is_multiple_of(SESSION_STATUS_BYTES) && bytes.len() <= CONTROL_MAX;
        let chunks = fits.then(|| bytes.chunks_exact(SESSION_STATUS_BYTES))?;
        let sessions: Vec<SessionStatus> = chunks.map(SessionStatus::decode).collect::<Option<_>>()?;
        let mut last = after;
        let in_order = sessions.iter().all(|session| session.session > std::mem::replace(&mut last, session.session));
        in_order.then_some(sessions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Text;

    fn session(number: u64) -> SessionStatus {
        SessionStatus {
            session: number,
            client: Identity { pid: 7, program: Text::new("sort"), host: Text::new("node1") },
            transport: Transport::Unix,
            connections: 2,
            slot_bytes: 4096,
            slots: 3,
            spill_bytes: 4096,
            quota_bytes: Some(1 << 20),
            read_bytes: 1,
            write_bytes: 2,
            read_bytes_per_s: 3,
            write_bytes_per_s: 4,
            age_ms: 5,
        }
    }

    #[test]
    fn sessions_go_there_and_back_in_order() {
        let without = SessionStatus { quota_bytes: None, ..session(9) };
        let bytes = [session(8).encode(), without.encode()].concat();
        assert_eq!(SessionStatus::decode_all(&bytes, 7), Some(vec![session(8), without]));
        assert_eq!(SessionStatus::decode_all(&bytes, 8), None, "a session that was told before");
        assert_eq!(SessionStatus::decode_all(&bytes[1..], 0), None, "no whole session");
        assert_eq!(SessionStatus::decode_all(&[], 0), Some(Vec::new()));
        let mut strange = session(1).encode();
        strange[8] = 9;
        assert_eq!(SessionStatus::decode(&strange), None, "a transport that does not exist");
    }
}
