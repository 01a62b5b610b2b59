//! Traces: the calls of a policy and its answers, in order, in a compact form. This module opens no file.
//!
//! ```text
//! header: "HANTRACE", version u16, length u32, that many bytes of key=value lines, CRC-32 of all before
//! chunk:  length u32 (top bit: the end), CRC-32 of the length and the payload, payload
//! ```
//!
//! The payloads of all chunks except the last form one stream of records. A record is a LEB128 number. Its low four
//! bits are the record's kind, and the bits above them are the content. A page is written as the distance from the page
//! of the previous record. A record ends with its first byte below 128. A chunk may end after any record. The last
//! chunk holds the number of records of each kind, and says whether recording stopped early. If the last chunk is
//! missing or its numbers do not match, the trace is incomplete.

mod read;
mod record;

use std::fmt;

pub use read::{Reader, TraceError};
pub use record::{Recorder, Sink};

use crate::limits;
use crate::policy::{Cause, Leave, Space};
use crate::units::PageId;

const MAGIC: &[u8; 8] = b"HANTRACE";
const VERSION: u16 = 1;
const HEAD_LEN: usize = 8;
const END_BIT: u32 = 1 << 31;
const KINDS: usize = 16;
const END_PAYLOAD: usize = 1 + 8 * KINDS;
/// Longest record, in bytes.
const RECORD_MAX: usize = 10;
/// Largest payload of a chunk, in bytes. Chunks are small, because a reader can only tell which chunk is damaged.
const CHUNK_MAX: usize = 16 << 10;
const HEADER_TEXT_MAX: usize = 64 << 10;
/// Largest time, in milliseconds. The difference between two such times always fits into a record.
const NUMBER_MAX: u64 = (1 << 56) - 1;

/// Minimum size limit of a trace, in bytes. It leaves room for records.
pub const BYTES_MIN: u64 = 128 << 10;

/// The settings of the run that was recorded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Bytes of one unit.
    pub unit_bytes: u32,
    /// Number of units of one block, or 1 if the page size was fixed.
    pub block_units: u32,
    /// Units of the far space.
    pub units: u32,
    /// The budget at the start, in units.
    pub budget_units: u32,
    /// Seed of the policy.
    pub seed: u64,
    /// Whether the policy could request that resident pages be unmapped to sample references.
    pub hides: bool,
    /// The policy as the user described it.
    pub policy: String,
    /// The prefetcher as the user described it.
    pub prefetch: String,
    /// The trap mode.
    pub mode: String,
    /// The program and its arguments.
    pub program: String,
}

impl Header {
    /// Returns the space that the recorded run built its policy for.
    #[must_use]
    pub fn space(&self) -> Space {
        Space { units: self.units, block_units: self.block_units, seed: self.seed, hides: self.hides }
    }

    /// Returns the header as names and values, in the form in which they are written and shown.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, String); 10] {
        [
            ("unit_bytes", self.unit_bytes.to_string()),
            ("block_units", self.block_units.to_string()),
            ("units", self.units.to_string()),
            ("budget_units", self.budget_units.to_string()),
            ("seed", self.seed.to_string()),
            ("hides", self.hides.to_string()),
            ("policy", one_line(&self.policy)),
            ("prefetch", one_line(&self.prefetch)),
            ("mode", one_line(&self.mode)),
            ("program", one_line(&self.program)),
        ]
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut text = String::new();
        for (name, value) in self.fields() {
            text += &format!("{name}={value}\n");
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    /// Parses a header. Returns `None` if a value is missing, malformed or out of bounds.
    fn from_text(text: &str) -> Option<Self> {
        let find = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once('='));
            lines.find_map(|(key, value)| (key == name).then_some(value))
        };
        let header = Self {
            unit_bytes: find("unit_bytes")?.parse().ok()?,
            block_units: find("block_units")?.parse().ok()?,
            units: find("units")?.parse().ok()?,
            budget_units: find("budget_units")?.parse().ok()?,
            seed: find("seed")?.parse().ok()?,
            // Older recordings lack this value. In their runs, the policy could always request that pages be unmapped.
            hides: find("hides").is_none_or(|value| value == "true"),
            policy: find("policy")?.to_owned(),
            prefetch: find("prefetch")?.to_owned(),
            mode: find("mode")?.to_owned(),
            program: find("program")?.to_owned(),
        };
        let sane = (1..=limits::UNITS_MAX).contains(&header.units)
            && (1..=header.units).contains(&header.block_units)
            && header.block_units.is_power_of_two()
            && header.units.is_multiple_of(header.block_units);
        sane.then_some(header)
    }
}

/// Returns a value as one line of the header, cut to 1,000 characters. This is enough for the name of any program.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(1000).collect()
}

/// A call of a policy, or the policy's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {
    /// The page that becomes resident next is a huge page.
    Wide(PageId),
    /// A page became resident.
    Inserted(PageId, Cause),
    /// A reference to a resident page was seen. The flag is true for a write.
    Referenced(PageId, bool),
    /// A page is no longer resident.
    Removed(PageId, Leave),
    /// An absent page was discarded.
    Forgotten(PageId),
    /// The filter refused this page during the search for the next victim.
    Refused(PageId),
    /// The policy named this victim.
    Victim(PageId),
    /// The policy named no victim.
    NoVictim,
    /// The policy asked to unmap this page.
    Hide(PageId),
    /// The policy was asked this number of times in a row for a page to unmap, and named none.
    NoHide(u32),
    /// The time that a tick told the policy, in milliseconds.
    Tick(u64),
    /// A thread waits for an absent page.
    Coming(PageId),
}

/// Names of the kinds of records.
const KIND_NAMES: [&str; KINDS] = [
    "huge page announced",
    "inserted by a read",
    "inserted by a write",
    "inserted ahead of use",
    "referenced by a read",
    "referenced by a write",
    "evicted",
    "removed and forgotten",
    "forgotten out of view",
    "refused as a victim",
    "named as a victim",
    "no victim named",
    "unmap requested",
    "no unmap requested",
    "time passed",
    "fault announced",
];

/// Number of records of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts([u64; KINDS]);

impl Counts {
    /// Returns the number of records of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// Returns the name of each kind, with its number of records.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        KIND_NAMES.into_iter().zip(self.0)
    }
}

/// The content of the end of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// Number of records of each kind.
    pub counts: Counts,
    /// Whether recording stopped before the run ended, because a limit was reached.
    pub cut: bool,
}

/// The page and the time of the previous records. Each record holds only the difference from them.
#[derive(Clone, Copy, Debug, Default)]
struct Base {
    page: u32,
    ms: u64,
}

fn zigzag(distance: i64) -> u64 {
    ((distance << 1) ^ (distance >> 63)) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

impl Base {
    /// Returns the number that encodes a record.
    fn encode(&mut self, record: Record) -> u64 {
        let (kind, page) = match record {
            Record::Wide(page) => (0, page),
            Record::Inserted(page, Cause::Read) => (1, page),
            Record::Inserted(page, Cause::Write) => (2, page),
            Record::Inserted(page, Cause::Ahead) => (3, page),
            Record::Referenced(page, write) => (4 + u64::from(write), page),
            Record::Removed(page, Leave::Evicted) => (6, page),
            Record::Removed(page, Leave::Forgotten) => (7, page),
            Record::Forgotten(page) => (8, page),
            Record::Refused(page) => (9, page),
            Record::Victim(page) => (10, page),
            Record::NoVictim => return 11,
            Record::Hide(page) => (12, page),
            Record::Coming(page) => (15, page),
            Record::NoHide(times) => return u64::from(times) << 4 | 13,
            Record::Tick(ms) => {
                let ms = ms.min(NUMBER_MAX);
                let distance = zigzag(ms as i64 - self.ms as i64);
                self.ms = ms;
                return distance << 4 | 14;
            }
        };
        let distance = zigzag(i64::from(page.0) - i64::from(self.page));
        self.page = page.0;
        distance << 4 | kind
    }

    /// Returns the record that a number encodes, or `None` if the number encodes no record.
    fn decode(&mut self, number: u64, units: u32) -> Option<Record> {
        let carried = number >> 4;
        let kind = number & 15;
        match kind {
            11 => return (carried == 0).then_some(Record::NoVictim),
            13 => return u32::try_from(carried).ok().map(Record::NoHide),
            14 => {
                let ms = (self.ms as i64).checked_add(unzigzag(carried))?;
                self.ms = u64::try_from(ms).ok().filter(|&ms| ms <= NUMBER_MAX)?;
                return Some(Record::Tick(self.ms));
            }
            _ => {}
        }
        let page = i64::from(self.page).checked_add(unzigzag(carried))?;
        let page = PageId(u32::try_from(page).ok().filter(|&page| page < units)?);
        self.page = page.0;
        Some(match kind {
            0 => Record::Wide(page),
            1 => Record::Inserted(page, Cause::Read),
            2 => Record::Inserted(page, Cause::Write),
            3 => Record::Inserted(page, Cause::Ahead),
            4 | 5 => Record::Referenced(page, kind == 5),
            6 => Record::Removed(page, Leave::Evicted),
            7 => Record::Removed(page, Leave::Forgotten),
            8 => Record::Forgotten(page),
            9 => Record::Refused(page),
            10 => Record::Victim(page),
            12 => Record::Hide(page),
            15 => Record::Coming(page),
            _ => return None,
        })
    }
}

/// Writes a number. Returns its length.
fn write_number(mut number: u64, to: &mut [u8; RECORD_MAX]) -> usize {
    let mut len = 0;
    while number >= 0x80 {
        to[len] = number as u8 | 0x80;
        number >>= 7;
        len += 1;
    }
    to[len] = number as u8;
    len + 1
}

/// Checks whether a record that a [`Recorder`] pushed names a page. The records of a process without pages hold only
/// times.
#[must_use]
pub fn names_page(record: &[u8]) -> bool {
    record.first().is_some_and(|byte| !matches!(byte & 15, 11 | 13 | 14))
}

/// Divides the records that a [`Recorder`] pushed into chunks, and keeps the trace below a size limit.
#[derive(Debug)]
pub struct Framer {
    counts: Counts,
    /// Number of bytes that may still be written. The size of the last chunk is already subtracted.
    left: u64,
    cut: bool,
}

impl Framer {
    /// Begins a trace of at most `bytes_max` bytes. Also returns the bytes of the header, which the caller must write
    /// first.
    #[must_use]
    pub fn start(header: &Header, bytes_max: u64) -> (Self, Vec<u8>) {
        let bytes = header.to_bytes();
        let left = bytes_max.saturating_sub((bytes.len() + HEAD_LEN + END_PAYLOAD) as u64);
        (Self { counts: Counts::default(), left, cut: false }, bytes)
    }

    /// Makes a chunk from whole records at the front of a stream. Returns the chunk's head, and the number of bytes of
    /// the stream that the caller must write after the head. This number is 0 if the stream is empty or the limit is
    /// reached.
    pub fn chunk(&mut self, stream: &[u8]) -> ([u8; HEAD_LEN], usize) {
        let room = usize::try_from(self.left).unwrap_or(usize::MAX).saturating_sub(HEAD_LEN);
        let most = stream.len().min(CHUNK_MAX).min(room);
        let len = stream[..most].iter().rposition(|&byte| byte < 0x80).map_or(0, |last| last + 1);
        self.cut |= len == 0 && !stream.is_empty();
        let payload = &stream[..len];
        let mut starts = true;
        for &byte in payload {
            self.counts.0[usize::from(byte & 15)] += u64::from(starts);
            starts = byte < 0x80;
        }
        self.left -= if len > 0 { (HEAD_LEN + len) as u64 } else { 0 };
        (chunk_head(len as u32, payload), len)
    }

    /// Whether the limit was reached and records were dropped.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Returns the bytes of the last chunk. `cut` says that records were lost before they reached this framer.
    #[must_use]
    pub fn end(self, cut: bool) -> Vec<u8> {
        let mut payload = vec![u8::from(cut || self.cut)];
        for count in self.counts.0 {
            payload.extend(count.to_le_bytes());
        }
        let mut bytes = chunk_head(END_PAYLOAD as u32 | END_BIT, &payload).to_vec();
        bytes.extend(payload);
        bytes
    }
}

fn chunk_head(length: u32, payload: &[u8]) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[4..].copy_from_slice(&chunk_crc(length, payload).to_le_bytes());
    head
}

fn chunk_crc(length: u32, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length.to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

/// Makes a whole trace in memory from the given records.
#[must_use]
pub fn write(header: &Header, records: impl IntoIterator<Item = Record>) -> Vec<u8> {
    let (mut framer, mut bytes) = Framer::start(header, u64::MAX);
    let (mut base, mut stream, mut number) = (Base::default(), Vec::new(), [0; RECORD_MAX]);
    for record in records {
        let len = write_number(base.encode(record), &mut number);
        stream.extend(&number[..len]);
    }
    let mut stream = &stream[..];
    while !stream.is_empty() {
        let (head, len) = framer.chunk(stream);
        bytes.extend(head);
        bytes.extend(&stream[..len]);
        stream = &stream[len..];
    }
    bytes.extend(framer.end(false));
    bytes
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in self.named() {
            writeln!(f, "  {name:24} {count:>14}")?;
        }
        Ok(())
    }
}
