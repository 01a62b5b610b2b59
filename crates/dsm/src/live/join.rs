//! The introduction that a rank sends when it meets another, with the settings in which the two must agree.

use hanare_wire::frame::{HEADER_BYTES, Header, Kind};

use super::job::{Job, Transfer};
use crate::coherence::{Protocol, Rank};

/// Frame code of the message by which ranks introduce themselves.
const JOIN: u32 = 32;
const JOIN_BYTES: usize = 40;
/// Size in bytes of an introduction, including its header.
pub(super) const HELLO_BYTES: usize = HEADER_BYTES + JOIN_BYTES;

/// The introduction of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Join {
    pub(super) rank: Rank,
    pub(super) ranks: u16,
    pub(super) settings: [u8; 4],
    pub(super) region_bytes: u64,
    pub(super) program: u64,
    /// Process number of the rank. Peers open its memory through `/proc`.
    pub(super) process: u32,
    pub(super) memory: u32,
    /// Number of the job. It tells apart jobs that meet at one address.
    pub(super) job: u64,
}

impl Join {
    pub(super) fn of(job: &Job, memory: i32) -> Self {
        let protocol = match job.protocol {
            Protocol::Invalidate => 1,
            Protocol::Update => 2,
            Protocol::Adaptive => 3,
        };
        Self {
            rank: job.rank,
            ranks: job.ranks,
            settings: [protocol, u8::from(job.migrate), u8::from(job.transfer == Transfer::ZeroCopy), 0],
            region_bytes: job.region_bytes,
            program: program_number(),
            process: std::process::id(),
            memory: memory as u32,
            job: job.number,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut header = Header::bare(Kind::BetweenRanks, 0);
        (header.length, header.code) = (JOIN_BYTES as u32, JOIN);
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(&self.rank.0.to_le_bytes());
        bytes.extend_from_slice(&self.ranks.to_le_bytes());
        bytes.extend_from_slice(&self.settings);
        bytes.extend_from_slice(&self.region_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.program.to_le_bytes());
        bytes.extend_from_slice(&self.process.to_le_bytes());
        bytes.extend_from_slice(&self.memory.to_le_bytes());
        bytes.extend_from_slice(&self.job.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let (head, body) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let header = Header::decode(head).ok()?;
        if header.kind != Kind::BetweenRanks || header.code != JOIN || header.length as usize != JOIN_BYTES {
            return None;
        }
        let u16_at = |at: usize| u16::from_le_bytes([body[at], body[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        Some(Self {
            rank: Rank(u16_at(0)),
            ranks: u16_at(2),
            settings: [body[4], body[5], body[6], body[7]],
            region_bytes: u64_at(8),
            program: u64_at(16),
            process: u32_at(24),
            memory: u32_at(28),
            job: u64_at(32),
        })
    }

    /// Returns the name of a setting in which `self` and `other` differ although they must agree. `None` if there is no
    /// such setting.
    pub(super) fn difference(&self, other: &Self) -> Option<&'static str> {
        [
            (self.job != other.job, "the job"),
            (self.ranks != other.ranks, "the number of ranks"),
            (self.settings != other.settings, "protocol, home policy or transfer"),
            (self.region_bytes != other.region_bytes, "the size of the shared region"),
            (self.program != other.program, "the program"),
        ]
        .into_iter()
        .find_map(|(differs, what)| differs.then_some(what))
    }
}

/// Returns a number that differs for different programs. It is the FNV-1a hash of the executable's length and its first
/// and last bytes.
fn program_number() -> u64 {
    let bytes = std::fs::read("/proc/self/exe").unwrap_or_default();
    let ends = bytes.iter().take(1 << 16).chain(bytes.iter().rev().take(1 << 16));
    let start = 0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64;
    ends.fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
