//! Encodes messages between ranks as frames (a header and a payload), and decodes them. `docs/wire-format.md` draws the
//! frames.
//!
//! The bytes of pages and diffs (*bodies*) follow the other fields of a message. The decoder refuses a frame with a
//! count or length beyond its limit. So a wrong frame cannot make the decoder allocate much memory.

use std::ops::Range;

use hanare_wire::frame::{FLAG_PAYLOAD_CRC, HEADER_BYTES, Header, Kind};

use crate::coherence::{Adopt, Failure, Message, Move, Purpose, Rank, RankSet, Run, Together, Violation};
use crate::diff;
use crate::limits::{ADOPTS_MAX, FRAME_BYTES_FULL, MOVES_MAX, RUNS_MAX, VALUES_MAX};

/// The error for a payload that is not a message between ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("bytes that are no message between ranks")]
pub struct BadMessage;

/// The bytes of the pages or diffs of one message, one after another.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Bodies {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Bodies {
    /// Makes an empty list of bodies.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), ends: Vec::new() }
    }

    /// Adds a body with the bytes that `fill` appends. If `fill` appends no bytes, adds no body and returns false.
    pub fn add(&mut self, fill: impl FnOnce(&mut Vec<u8>)) -> bool {
        fill(&mut self.bytes);
        let new = self.bytes.len() > self.ends.last().copied().unwrap_or(0);
        if new {
            self.ends.push(self.bytes.len());
        }
        new
    }

    /// Adds an empty body. It stands for a diff whose words the sender has already written into the home's memory.
    pub fn add_empty(&mut self) {
        self.ends.push(self.bytes.len());
    }

    /// Checks whether the bodies fill a frame. If they do, the caller sends the frame.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.bytes.len() + self.ends.len() * 8 >= FRAME_BYTES_FULL
    }

    /// Removes all bodies. The allocated memory is kept for the next bodies.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Number of bodies.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Checks whether there are no bodies.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }
}

/// A message that arrived: its fields, and the ranges of its bodies in the payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arrived {
    /// The message.
    pub message: Message,
    /// One range of the payload for each page or diff. The list is empty for a [`Message::PageReply`] of a page of
    /// zeroes, and for pages whose bytes do not travel in messages.
    pub bodies: Vec<Range<usize>>,
}

/// Returns the number that identifies the kind of a message in a frame's header.
fn number(message: &Message) -> u32 {
    match message {
        Message::PageRequest { .. } => 1,
        Message::PageReply { .. } => 2,
        Message::HomeRequest { .. } => 3,
        Message::HomeReply { .. } => 4,
        Message::Diffs { .. } => 5,
        Message::DiffsDone => 6,
        Message::Settle { .. } => 7,
        Message::Updates { .. } => 8,
        Message::Leave { .. } => 9,
        Message::Arrive { .. } => 10,
        Message::Go { .. } => 11,
        Message::Acquire { .. } => 12,
        Message::Grant { .. } => 13,
        Message::Wrote { .. } => 14,
        Message::Notice { .. } => 15,
        Message::Release { .. } => 16,
        Message::Failed { .. } => 17,
        Message::Joined { .. } => 18,
    }
}

/// Appends the frame of a message, its header and its payload, to `out`. `sequence` counts the frames of one link.
/// `checksum` says whether a checksum protects the payload.
pub fn encode(message: &Message, bodies: &Bodies, sequence: u64, checksum: bool, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    encode_fields(message, bodies, out);
    let payload = &out[start + HEADER_BYTES..];
    let mut header = Header::bare(Kind::BetweenRanks, sequence);
    header.length = payload.len() as u32;
    header.code = number(message);
    if checksum && !payload.is_empty() {
        header.flags = FLAG_PAYLOAD_CRC;
        header.payload_crc = crc32fast::hash(payload);
    }
    out[start..start + HEADER_BYTES].copy_from_slice(&header.encode());
}

fn encode_fields(message: &Message, bodies: &Bodies, out: &mut Vec<u8>) {
    match message {
        Message::PageRequest { page, reader } => {
            u32_to(*page, out);
            u16_to(reader.0, out);
        }
        Message::PageReply { page } => {
            u32_to(*page, out);
            bodies.iter().for_each(|body| out.extend_from_slice(body));
        }
        Message::HomeReply { page, home } => {
            u32_to(*page, out);
            u16_to(home.0, out);
        }
        Message::HomeRequest { page: number }
        | Message::Leave { page: number }
        | Message::Joined { page: number }
        | Message::Acquire { lock: number }
        | Message::Grant { lock: number }
        | Message::Release { lock: number } => u32_to(*number, out),
        Message::Diffs { purpose, pages, last } => {
            out.extend_from_slice(&[*purpose as u8, u8::from(*last)]);
            u32_to(pages.len() as u32, out);
            let bodies = bodies.iter().map(Some).chain(std::iter::repeat(None));
            for (&page, body) in pages.iter().zip(bodies) {
                u32_to(page, out);
                // A sender that writes its changed words directly into the home's memory adds no bodies. Its message
                // only names the pages.
                let Some(body) = body else { continue };
                u32_to(body.len() as u32, out);
                out.extend_from_slice(body);
            }
        }
        Message::DiffsDone => {}
        Message::Settle { invalid, moves, adopts, last } => encode_settle(invalid, moves, adopts, *last, out),
        Message::Updates { pages, last } => {
            out.push(u8::from(*last));
            u32_to(pages.len() as u32, out);
            pages.iter().for_each(|&page| u32_to(page, out));
            bodies.iter().for_each(|body| out.extend_from_slice(body));
        }
        Message::Arrive { what, detail, meeting, targets, values } => {
            out.extend_from_slice(&[*what as u8, *meeting]);
            u64_to(*detail, out);
            targets.to_words().into_iter().for_each(|word| u64_to(word, out));
            values_to(values, out);
        }
        Message::Go { what, meeting, expect, values } => {
            out.extend_from_slice(&[*what as u8, *meeting]);
            u16_to(*expect, out);
            values_to(values, out);
        }
        Message::Wrote { runs } | Message::Notice { runs } => {
            u32_to(runs.len() as u32, out);
            runs.iter().for_each(|run| run_to(*run, out));
        }
        Message::Failed { failure } => encode_failure(failure, out),
    }
}

fn encode_settle(invalid: &[Run], moves: &[Move], adopts: &[Adopt], last: bool, out: &mut Vec<u8>) {
    out.push(u8::from(last));
    for length in [invalid.len(), moves.len(), adopts.len()] {
        u32_to(length as u32, out);
    }
    invalid.iter().for_each(|run| run_to(*run, out));
    for moved in moves {
        u32_to(moved.page, out);
        u16_to(moved.home.0, out);
    }
    for adopt in adopts {
        u32_to(adopt.page, out);
        adopt.sharers.to_words().into_iter().for_each(|word| u64_to(word, out));
    }
}

fn encode_failure(failure: &Failure, out: &mut Vec<u8>) {
    match failure {
        Failure::Mismatch { rank, called, other, other_called } => {
            out.push(1);
            u16_to(rank.0, out);
            out.push(*called as u8);
            u16_to(other.0, out);
            out.push(*other_called as u8);
        }
        Failure::Violation { rank, what } => {
            out.push(2);
            u16_to(rank.0, out);
            out.push(*what as u8);
        }
    }
}

fn u16_to(number: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn u32_to(number: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn u64_to(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn run_to(run: Run, out: &mut Vec<u8>) {
    u32_to(run.first, out);
    u32_to(run.count, out);
}

fn values_to(values: &[u64], out: &mut Vec<u8>) {
    out.push(values.len() as u8);
    values.iter().for_each(|&value| u64_to(value, out));
}

/// Reads the fields of a payload one after another. `at` is the offset of the next field.
struct Fields<'a> {
    payload: &'a [u8],
    at: usize,
}

type Field<T> = Result<T, BadMessage>;

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Field<[u8; N]> {
        let bytes = self.payload.get(self.at..self.at + N).ok_or(BadMessage)?;
        self.at += N;
        bytes.try_into().map_err(|_| BadMessage)
    }

    fn u8(&mut self) -> Field<u8> {
        self.take::<1>().map(|bytes| bytes[0])
    }

    fn u16(&mut self) -> Field<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Field<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Field<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn rank(&mut self) -> Field<Rank> {
        self.u16().map(Rank)
    }

    fn set(&mut self) -> Field<RankSet> {
        let mut words = RankSet::EMPTY.to_words();
        for word in &mut words {
            *word = self.u64()?;
        }
        Ok(RankSet::from_words(words))
    }

    fn bool(&mut self) -> Field<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(BadMessage),
        }
    }

    fn together(&mut self) -> Field<Together> {
        Together::from_wire(self.u8()?).ok_or(BadMessage)
    }

    /// Reads the number of entries that follow. The number must be at most `most`, and the rest of the payload must
    /// have room for that many entries of `each` bytes.
    fn count(&mut self, each: usize, most: usize) -> Field<usize> {
        let count = self.u32()? as usize;
        if count <= most && count * each <= self.payload.len() - self.at { Ok(count) } else { Err(BadMessage) }
    }

    fn list<T>(&mut self, count: usize, mut one: impl FnMut(&mut Self) -> Field<T>) -> Field<Vec<T>> {
        (0..count).map(|_| one(self)).collect()
    }

    fn run(&mut self) -> Field<Run> {
        Ok(Run { first: self.u32()?, count: self.u32()? })
    }

    fn runs(&mut self) -> Field<Vec<Run>> {
        let count = self.count(8, RUNS_MAX)?;
        self.list(count, Self::run)
    }

    fn values(&mut self) -> Field<Vec<u64>> {
        let count = usize::from(self.u8()?);
        if count > VALUES_MAX {
            return Err(BadMessage);
        }
        self.list(count, Self::u64)
    }

    fn body(&mut self, bytes: usize) -> Field<Range<usize>> {
        let range = self.at..self.at + bytes;
        self.payload.get(range.clone()).ok_or(BadMessage)?;
        self.at = range.end;
        Ok(range)
    }
}

/// The page sizes, which are the same on all ranks of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Bytes of a page.
    pub page: usize,
    /// Number of bytes of each page in a [`Message::Updates`]. 0 if ranks write directly into each other's memory. In
    /// that case, neither updates nor diffs have bodies.
    pub carried: usize,
}

/// Decodes the payload of a frame. The caller has checked the frame's header and, if the frame has one, the payload's
/// checksum.
///
/// # Errors
/// When the payload is not a message between ranks that share pages of this size.
pub fn decode(header: &Header, payload: &[u8], sizes: Sizes) -> Result<Arrived, BadMessage> {
    if header.kind != Kind::BetweenRanks || header.payload_bytes() != payload.len() {
        return Err(BadMessage);
    }
    let mut fields = Fields { payload, at: 0 };
    let arrived = decode_fields(header.code, &mut fields, sizes)?;
    if fields.at == payload.len() { Ok(arrived) } else { Err(BadMessage) }
}

fn decode_fields(number: u32, fields: &mut Fields<'_>, sizes: Sizes) -> Field<Arrived> {
    let mut bodies = Vec::new();
    let message = match number {
        1 => Message::PageRequest { page: fields.u32()?, reader: fields.rank()? },
        2 => {
            let page = fields.u32()?;
            if fields.at < fields.payload.len() {
                bodies.push(fields.body(sizes.page)?);
            }
            Message::PageReply { page }
        }
        3 => Message::HomeRequest { page: fields.u32()? },
        4 => Message::HomeReply { page: fields.u32()?, home: fields.rank()? },
        5 => decode_diffs(fields, sizes, &mut bodies)?,
        6 => Message::DiffsDone,
        7 => decode_settle(fields)?,
        8 => {
            let last = fields.bool()?;
            let count = fields.count(4 + sizes.carried, usize::MAX)?;
            let pages = fields.list(count, Fields::u32)?;
            bodies = fields.list(count, |fields| fields.body(sizes.carried))?;
            Message::Updates { pages, last }
        }
        9 => Message::Leave { page: fields.u32()? },
        10 => {
            let (what, meeting) = (fields.together()?, fields.u8()?);
            let (detail, targets) = (fields.u64()?, fields.set()?);
            Message::Arrive { what, detail, meeting, targets, values: fields.values()? }
        }
        11 => {
            let (what, meeting) = (fields.together()?, fields.u8()?);
            Message::Go { what, meeting, expect: fields.u16()?, values: fields.values()? }
        }
        12 => Message::Acquire { lock: fields.u32()? },
        13 => Message::Grant { lock: fields.u32()? },
        14 => Message::Wrote { runs: fields.runs()? },
        15 => Message::Notice { runs: fields.runs()? },
        16 => Message::Release { lock: fields.u32()? },
        17 => Message::Failed { failure: decode_failure(fields)? },
        18 => Message::Joined { page: fields.u32()? },
        _ => return Err(BadMessage),
    };
    Ok(Arrived { message, bodies })
}

fn decode_diffs(fields: &mut Fields<'_>, sizes: Sizes, bodies: &mut Vec<Range<usize>>) -> Field<Message> {
    let purpose = match fields.u8()? {
        1 => Purpose::Barrier,
        2 => Purpose::Lock,
        3 => Purpose::Early,
        _ => return Err(BadMessage),
    };
    let last = fields.bool()?;
    if sizes.carried == 0 {
        let count = fields.count(4, usize::MAX)?;
        return Ok(Message::Diffs { purpose, pages: fields.list(count, Fields::u32)?, last });
    }
    let page_bytes = sizes.page;
    let count = fields.count(8, usize::MAX)?;
    let mut pages = Vec::with_capacity(count);
    for _ in 0..count {
        pages.push(fields.u32()?);
        let bytes = fields.u32()? as usize;
        if bytes > diff::bytes_max(page_bytes) {
            return Err(BadMessage);
        }
        let body = fields.body(bytes)?;
        // The diff is checked here, so that applying it cannot fail. An empty body needs no check, because the sender
        // has already written the words into the page.
        if !body.is_empty() {
            diff::check(&fields.payload[body.clone()], page_bytes).map_err(|_| BadMessage)?;
        }
        bodies.push(body);
    }
    Ok(Message::Diffs { purpose, pages, last })
}

fn decode_settle(fields: &mut Fields<'_>) -> Field<Message> {
    let last = fields.bool()?;
    let counts = [fields.u32()? as usize, fields.u32()? as usize, fields.u32()? as usize];
    if counts[0] > RUNS_MAX || counts[1] > MOVES_MAX || counts[2] > ADOPTS_MAX {
        return Err(BadMessage);
    }
    let invalid = fields.list(counts[0], Fields::run)?;
    let moves = fields.list(counts[1], |fields| Ok(Move { page: fields.u32()?, home: fields.rank()? }))?;
    let adopts = fields.list(counts[2], |fields| Ok(Adopt { page: fields.u32()?, sharers: fields.set()? }))?;
    Ok(Message::Settle { invalid, moves, adopts, last })
}

fn decode_failure(fields: &mut Fields<'_>) -> Field<Failure> {
    match fields.u8()? {
        1 => Ok(Failure::Mismatch {
            rank: fields.rank()?,
            called: fields.together()?,
            other: fields.rank()?,
            other_called: fields.together()?,
        }),
        2 => {
            Ok(Failure::Violation { rank: fields.rank()?, what: Violation::from_wire(fields.u8()?).ok_or(BadMessage)? })
        }
        _ => Err(BadMessage),
    }
}
