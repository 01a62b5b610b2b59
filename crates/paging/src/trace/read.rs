//! Reads a trace whose bytes may be damaged or hostile.

use std::fmt;

use super::{
    Base, CHUNK_MAX, Counts, END_BIT, END_PAYLOAD, End, HEAD_LEN, HEADER_TEXT_MAX, Header, MAGIC, RECORD_MAX, Record,
    VERSION, chunk_crc,
};

/// The reason why bytes are not a complete trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TraceError {
    /// There are no bytes.
    Empty,
    /// The bytes do not begin like a trace.
    Foreign,
    /// Another version wrote the bytes.
    Version(u16),
    /// The bytes end at this offset, but the trace is not complete.
    Truncated(usize),
    /// The bytes at this offset are damaged or impossible.
    Damaged(usize, &'static str),
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("is empty: nothing was recorded into it (offset 0)"),
            Self::Foreign => f.write_str("is not a trace of Hanare: it does not begin with HANTRACE (offset 0)"),
            Self::Version(version) => {
                write!(f, "is a trace of version {version}, this is for version {VERSION} (offset 8)")
            }
            Self::Truncated(offset) => write!(
                f,
                "is truncated: it ends at offset {offset} without its end record; its program was killed or it was copied in part"
            ),
            Self::Damaged(offset, what) => write!(f, "is damaged at offset {offset}: {what}"),
        }
    }
}

impl std::error::Error for TraceError {}

/// Reads a trace: first the header, then, as an iterator, the records. The iterator ends after the last record or after
/// the first error. If there was no error, the trace is complete.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    header: Header,
    /// Offset of the next byte.
    at: usize,
    chunk_end: usize,
    base: Base,
    counts: Counts,
    end: Option<End>,
    failed: bool,
}

impl<'a> Reader<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// The bytes are not a trace, the trace has another version, or the header is cut or damaged.
    pub fn new(bytes: &'a [u8]) -> Result<Self, TraceError> {
        if bytes.is_empty() {
            return Err(TraceError::Empty);
        }
        if !bytes.starts_with(&MAGIC[..bytes.len().min(MAGIC.len())]) {
            return Err(TraceError::Foreign);
        }
        let truncated = TraceError::Truncated(bytes.len());
        let (Some(version), Some(length)) = (bytes.get(8..10), u32_at(bytes, 10)) else {
            return Err(truncated);
        };
        let version = u16::from_le_bytes([version[0], version[1]]);
        if version != VERSION {
            return Err(TraceError::Version(version));
        }
        if length as usize > HEADER_TEXT_MAX {
            return Err(TraceError::Damaged(10, "no header is so long"));
        }
        let end = 14 + length as usize;
        let (Some(head), Some(crc)) = (bytes.get(..end), u32_at(bytes, end)) else {
            return Err(truncated);
        };
        if crc32fast::hash(head) != crc {
            return Err(TraceError::Damaged(end, "the header's checksum does not match"));
        }
        let header = std::str::from_utf8(&head[14..]).ok().and_then(Header::from_text);
        let header = header.ok_or(TraceError::Damaged(14, "the header's values make no sense"))?;
        let at = end + 4;
        let (base, counts) = (Base::default(), Counts::default());
        Ok(Self { bytes, header, at, chunk_end: at, base, counts, end: None, failed: false })
    }

    /// Returns the settings of the recorded run.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the content of the last chunk, or `None` until that chunk is read.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Returns the offset of the next byte to be read.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.at
    }

    /// Goes to the next chunk.
    fn open_chunk(&mut self) -> Result<(), TraceError> {
        let start = self.at;
        let (Some(length), Some(crc)) = (u32_at(self.bytes, start), u32_at(self.bytes, start + 4)) else {
            return Err(TraceError::Truncated(self.bytes.len()));
        };
        let (is_end, len) = (length & END_BIT != 0, (length & !END_BIT) as usize);
        let possible = if is_end { len == END_PAYLOAD } else { (1..=CHUNK_MAX).contains(&len) };
        if !possible {
            return Err(TraceError::Damaged(start, "no chunk has such a length"));
        }
        let payload_at = start + HEAD_LEN;
        let Some(payload) = self.bytes.get(payload_at..payload_at + len) else {
            return Err(TraceError::Truncated(self.bytes.len()));
        };
        if chunk_crc(length, payload) != crc {
            return Err(TraceError::Damaged(start, "the chunk's checksum does not match"));
        }
        self.at = payload_at;
        self.chunk_end = payload_at + len;
        if is_end {
            self.finish(payload)?;
        }
        Ok(())
    }

    fn finish(&mut self, payload: &[u8]) -> Result<(), TraceError> {
        let mut counts = Counts::default();
        for (count, bytes) in counts.0.iter_mut().zip(payload[1..].as_chunks::<8>().0) {
            *count = u64::from_le_bytes(*bytes);
        }
        if counts != self.counts {
            return Err(TraceError::Damaged(self.at, "records are missing or too many"));
        }
        if self.chunk_end != self.bytes.len() {
            return Err(TraceError::Damaged(self.chunk_end, "there are bytes behind the end"));
        }
        self.at = self.chunk_end;
        self.end = Some(End { counts, cut: payload[0] != 0 });
        Ok(())
    }

    fn read(&mut self) -> Result<Option<Record>, TraceError> {
        if self.at == self.chunk_end {
            self.open_chunk()?;
        }
        if self.end.is_some() {
            return Ok(None);
        }
        let start = self.at;
        let (mut number, mut shift) = (0_u64, 0);
        loop {
            if self.at == self.chunk_end || self.at - start == RECORD_MAX {
                return Err(TraceError::Damaged(start, "a record does not end"));
            }
            let byte = self.bytes[self.at];
            self.at += 1;
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                // A number has only one valid form. It fits 64 bits, and its last byte is not zero, except if it is the
                // only byte.
                let len = self.at - start;
                if len > 1 && byte == 0 || len == RECORD_MAX && byte > 1 {
                    return Err(TraceError::Damaged(start, "a number is not in its shortest form"));
                }
                break;
            }
        }
        let record = self.base.decode(number, self.header.units);
        let record = record.ok_or(TraceError::Damaged(start, "there is no such record"))?;
        self.counts.0[(number & 15) as usize] += 1;
        Ok(Some(record))
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.end.is_some() {
            return None;
        }
        let read = self.read();
        self.failed = read.is_err();
        read.transpose()
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}
