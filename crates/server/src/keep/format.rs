//! The file of a kept session: a header, a record for each slot in ascending order, and a record at the end.
//!
//! All numbers are little-endian. The header has 224 bytes:
//!
//! ```text
//!   0 magic "HNRKEPT1"      8 version (u32)        12 slot size (u32)   16 session (u64)   24 token (16 bytes)
//!  40 server (16 bytes)    56 family (u64)         64 quota (u64)       72 transport (u32) 76 zero (u32)
//!  80 client (136 bytes)  216 CRC-32 of the bytes before it (u32)      220 zero (u32)
//! ```
//!
//! A record has 24 bytes: a slot's number (u64), a session's number (u64), a CRC-32 (u32) and a kind (u32). After a
//! record of kind 1 with session 0, the slot's bytes follow. With another session, the slot's bytes are in that
//! session's file. The record of kind 2 is the last one. In place of a slot, it has the number of slots. The CRC-32
//! covers the two numbers, the kind and the slot's bytes.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};

use hanare_wire::limits::slot_size_is_valid;
use hanare_wire::payload::{SERVER_ID_BYTES, TOKEN_BYTES};
use hanare_wire::{IDENTITY_BYTES, Identity, Transport};

const MAGIC: [u8; 8] = *b"HNRKEPT1";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 224;
/// The place of the header's checksum.
const HEADER_CRC_AT: usize = 80 + IDENTITY_BYTES;
const RECORD_BYTES: usize = 24;
/// The kind of a record of a slot.
const SLOT: u32 = 1;
/// The kind of the last record.
const END: u32 = 2;
const BUFFER_BYTES: usize = 1 << 20;
const _: () = assert!(HEADER_CRC_AT + 8 == HEADER_BYTES);

/// Makes an error that says what is wrong with a file.
pub(super) fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// What the header says about the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) slot_size: u32,
    pub(super) session: u64,
    pub(super) token: [u8; TOKEN_BYTES],
    pub(super) server_id: [u8; SERVER_ID_BYTES],
    /// The first kept session of the family.
    pub(super) family: u64,
    pub(super) quota_bytes: u64,
    pub(super) transport: Transport,
    pub(super) client: Identity,
}

fn part<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.slot_size.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.session.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.token);
        bytes[40..56].copy_from_slice(&self.server_id);
        bytes[56..64].copy_from_slice(&self.family.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.quota_bytes.to_le_bytes());
        bytes[72..76].copy_from_slice(&(self.transport as u32).to_le_bytes());
        bytes[80..HEADER_CRC_AT].copy_from_slice(&self.client.encode());
        let crc = crc32fast::hash(&bytes[..HEADER_CRC_AT]);
        bytes[HEADER_CRC_AT..HEADER_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> io::Result<Header> {
        if bytes[0..8] != MAGIC {
            return Err(damaged("it is not the file of a session"));
        }
        let version = u32::from_le_bytes(part(bytes, 8));
        if version != VERSION {
            return Err(damaged(&format!("it has version {version}, and this server reads version {VERSION}")));
        }
        if crc32fast::hash(&bytes[..HEADER_CRC_AT]) != u32::from_le_bytes(part(bytes, HEADER_CRC_AT)) {
            return Err(damaged("its header does not match its checksum"));
        }
        let transport = match u32::from_le_bytes(part(bytes, 72)) {
            1 => Some(Transport::Tcp),
            2 => Some(Transport::Unix),
            _ => None,
        };
        let slot_size = u32::from_le_bytes(part(bytes, 12));
        let (session, family) = (u64::from_le_bytes(part(bytes, 16)), u64::from_le_bytes(part(bytes, 56)));
        let fits = slot_size_is_valid(slot_size) && family != 0 && family <= session;
        let (Some(transport), Some(client), true) = (transport, Identity::decode(&part(bytes, 80)), fits) else {
            return Err(damaged("its header has an impossible field"));
        };
        let (token, server_id) = (part(bytes, 24), part(bytes, 40));
        let quota_bytes = u64::from_le_bytes(part(bytes, 64));
        Ok(Header { slot_size, session, token, server_id, family, quota_bytes, transport, client })
    }
}

fn checksum(slot: u64, from: u64, kind: u32, bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&slot.to_le_bytes());
    crc.update(&from.to_le_bytes());
    crc.update(&kind.to_le_bytes());
    crc.update(bytes);
    crc.finalize()
}

/// Writes the file of a session.
pub(super) struct Writer {
    output: BufWriter<File>,
    count: u64,
}

impl Writer {
    pub(super) fn new(file: File, header: &Header) -> io::Result<Writer> {
        let mut output = BufWriter::with_capacity(BUFFER_BYTES, file);
        output.write_all(&header.encode())?;
        Ok(Writer { output, count: 0 })
    }

    /// Writes a slot with its bytes.
    pub(super) fn slot(&mut self, slot: u64, bytes: &[u8]) -> io::Result<()> {
        self.count += 1;
        self.record(slot, 0, SLOT, bytes)
    }

    /// Writes a slot whose bytes are in the file of the session `from`.
    pub(super) fn slot_of(&mut self, slot: u64, from: u64) -> io::Result<()> {
        self.count += 1;
        self.record(slot, from, SLOT, &[])
    }

    /// Writes the last record, and returns the file.
    pub(super) fn end(mut self) -> io::Result<File> {
        self.record(self.count, 0, END, &[])?;
        self.output.into_inner().map_err(io::IntoInnerError::into_error)
    }

    fn record(&mut self, slot: u64, from: u64, kind: u32, bytes: &[u8]) -> io::Result<()> {
        let mut record = [0; RECORD_BYTES];
        record[0..8].copy_from_slice(&slot.to_le_bytes());
        record[8..16].copy_from_slice(&from.to_le_bytes());
        record[16..20].copy_from_slice(&checksum(slot, from, kind, bytes).to_le_bytes());
        record[20..24].copy_from_slice(&kind.to_le_bytes());
        self.output.write_all(&record)?;
        self.output.write_all(bytes)
    }
}

/// Reads the file of a session.
pub(super) struct Reader<R> {
    input: R,
    header: Header,
    count: u64,
    /// The lowest number that the next slot may have.
    least: u64,
}

impl<R: Read> Reader<R> {
    pub(super) fn new(mut input: R) -> io::Result<Reader<R>> {
        let mut raw = [0; HEADER_BYTES];
        input.read_exact(&mut raw)?;
        Ok(Reader { input, header: Header::decode(&raw)?, count: 0, least: 0 })
    }

    pub(super) fn header(&self) -> Header {
        self.header
    }

    /// Reads the next slot, with its bytes into `bytes`, which has the size of a slot. Returns the slot's number. If the
    /// bytes are in the file of another session, also returns that session's number, and leaves `bytes` as they are.
    /// Returns `None` after the last slot.
    pub(super) fn next_slot(&mut self, bytes: &mut [u8]) -> io::Result<Option<(u64, Option<u64>)>> {
        let mut record = [0; RECORD_BYTES];
        self.input.read_exact(&mut record)?;
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&record[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (slot, from) = (number(0), number(8));
        let (crc, kind) = (number(16) as u32, (number(16) >> 32) as u32);
        let has_bytes = kind == SLOT && from == 0;
        if has_bytes {
            self.input.read_exact(bytes)?;
        }
        let covered: &[u8] = if has_bytes { bytes } else { &[] };
        if checksum(slot, from, kind, covered) != crc {
            return Err(damaged("a slot does not match its checksum"));
        }
        if kind == END {
            let is_whole = slot == self.count && from == 0 && self.input.read(&mut [0])? == 0;
            return if is_whole { Ok(None) } else { Err(damaged("it has another number of slots than it says")) };
        }
        let fits = slot.checked_add(1).and_then(|next| next.checked_mul(u64::from(self.header.slot_size))).is_some();
        if kind != SLOT || slot < self.least || !fits {
            return Err(damaged("it has an impossible slot"));
        }
        (self.least, self.count) = (slot + 1, self.count + 1);
        Ok(Some((slot, Some(from).filter(|from| *from != 0))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            slot_size: 4096,
            session: 9,
            token: [3; TOKEN_BYTES],
            server_id: [4; SERVER_ID_BYTES],
            family: 5,
            quota_bytes: 1 << 30,
            transport: Transport::Unix,
            client: Identity::of_this_process(),
        }
    }

    /// Returns a file with slots 2 and 7 of the session's own, and slot 3 of session 5.
    fn written() -> Vec<u8> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let mut writer = Writer::new(File::create(&path).expect("a file"), &header()).expect("written");
        writer.slot(2, &[2; 4096]).expect("written");
        writer.slot_of(3, 5).expect("written");
        writer.slot(7, &[7; 4096]).expect("written");
        drop(writer.end().expect("written"));
        std::fs::read(&path).expect("the file")
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<(u64, Option<u64>, u8)>> {
        let mut reader = Reader::new(bytes)?;
        assert_eq!(reader.header(), header());
        let mut slots = Vec::new();
        let mut page = [0; 4096];
        while let Some((slot, from)) = reader.next_slot(&mut page)? {
            assert!(from.is_some() || page.iter().all(|byte| *byte == page[0]));
            slots.push((slot, from, page[0]));
        }
        Ok(slots)
    }

    #[test]
    fn what_was_written_is_read() {
        assert_eq!(read(&written()).expect("a file"), [(2, None, 2), (3, Some(5), 2), (7, None, 7)]);
    }

    #[test]
    fn a_file_that_is_cut_anywhere_is_refused() {
        let whole = written();
        for len in (0..whole.len()).step_by(97).chain([HEADER_BYTES, whole.len() - RECORD_BYTES, whole.len() - 1]) {
            let error = read(&whole[..len]).expect_err("a cut file");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{len}: {error}");
        }
        let longer = [&whole[..], &[0]].concat();
        assert_eq!(read(&longer).expect_err("a longer file").kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let whole = written();
        for at in (0..whole.len()).step_by(61).filter(|at| !(HEADER_CRC_AT + 4..HEADER_BYTES).contains(at)) {
            let mut bad = whole.clone();
            bad[at] ^= 16;
            assert!(read(&bad).is_err(), "byte {at}");
        }
    }
}
