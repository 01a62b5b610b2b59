//! The writing connection of a session. It sends pages and discards, and receives their acknowledgements in the same
//! order.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};

use crate::error::{ErrorCode, LinkError};
use crate::frame::{FLAG_PAYLOAD_CRC, HEADER_BYTES, Header, Kind};
use crate::inbox::Inbox;
use crate::limits::{DISCARD_MAX, PARTS_MAX, RANGE_MAX, range_is_valid};
use crate::read::server_error;
use crate::socket::{Socket, Wait, Waiting};

/// The maximum number of pieces that are passed to the socket in one call, including the header.
const PARTS_AT_ONCE: usize = 32;

/// Sends pages and discards, and receives their acknowledgements.
#[derive(Debug)]
pub struct Writer {
    socket: Socket,
    inbox: Inbox,
    payload_crc: bool,
}

/// The server's answer to one WRITE, DISCARD or PING.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The request's tag.
    pub tag: u64,
    /// The result of the request.
    pub status: AckStatus,
    /// The number of further bytes that the server could hold for this session when it sent this answer.
    pub capacity_bytes: u64,
}

/// The result of a write, discard or ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckStatus {
    /// The request succeeded. After a write, the server holds the page. After a discard, it has freed the slots inside
    /// the range.
    Done,
    /// The server has no room for the page. The server may have changed its bytes of the range, so the caller must keep
    /// the page.
    Full,
    /// The session's quota is used up. As with `Full`, the caller must keep the page.
    OverQuota,
}

impl AsFd for Writer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Writer {
    pub(crate) fn new(socket: Socket, inbox: Inbox, payload_crc: bool) -> Writer {
        Writer { socket, inbox, payload_crc }
    }

    /// Sends the bytes of `parts`, one part after the other, as the new contents of the range at `offset`. The range
    /// must consist of whole units of 512 bytes and have at most [`RANGE_MAX`] bytes. Returns when the kernel has accepted the
    /// last byte. Later, [`Writer::try_ack`] returns the server's acknowledgement that it has stored the range.
    ///
    /// The caller must receive acknowledgements regularly. If they fill the connection, the server cannot send more of
    /// them, and then accepts no more pages.
    pub fn write(&mut self, tag: u64, offset: u64, parts: &[IoSlice<'_>]) -> Result<(), LinkError> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        if !range_is_valid(offset, length, RANGE_MAX) || parts.len() > PARTS_MAX {
            return Err(LinkError::Misuse {
                what: "a WRITE takes whole units of 512 bytes, at most 4 MiB in 256 parts",
            });
        }
        let header = self.header(tag, offset, length, parts);
        let (first, rest) = parts.split_at(parts.len().min(PARTS_AT_ONCE - 1));
        let mut pieces = [IoSlice::new(&[]); PARTS_AT_ONCE];
        pieces[0] = IoSlice::new(&header);
        for (piece, part) in pieces[1..].iter_mut().zip(first) {
            *piece = IoSlice::new(part);
        }
        self.socket.send_all(&pieces[..=first.len()])?;
        self.socket.send_all(rest)
    }

    /// Sends several pages `(tag, offset, bytes)`. One system call sends many small pages. Each page follows the rules
    /// of [`Writer::write`] and has its own acknowledgement. If a page breaks these rules, returns an error and sends
    /// nothing.
    pub fn write_many(&mut self, pages: &[(u64, u64, &[u8])]) -> Result<(), LinkError> {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        if !pages.iter().all(|(_, offset, bytes)| range_is_valid(*offset, length(bytes), RANGE_MAX)) {
            return Err(LinkError::Misuse { what: "a WRITE takes whole units of 512 bytes, at most 4 MiB" });
        }
        for batch in pages.chunks(PARTS_AT_ONCE / 2) {
            let mut headers = [[0; HEADER_BYTES]; PARTS_AT_ONCE / 2];
            for (header, (tag, offset, bytes)) in headers.iter_mut().zip(batch) {
                *header = self.header(*tag, *offset, bytes.len() as u32, &[IoSlice::new(bytes)]);
            }
            let mut pieces = [IoSlice::new(&[]); PARTS_AT_ONCE];
            for (pair, (header, (_, _, bytes))) in pieces.chunks_exact_mut(2).zip(headers.iter().zip(batch)) {
                pair[0] = IoSlice::new(header);
                pair[1] = IoSlice::new(bytes);
            }
            self.socket.send_all(&pieces[..batch.len() * 2])?;
        }
        Ok(())
    }

    fn header(&self, tag: u64, offset: u64, length: u32, parts: &[IoSlice<'_>]) -> [u8; HEADER_BYTES] {
        let mut header = Header::range(Kind::Write, tag, offset, length);
        if self.payload_crc {
            let mut crc = crc32fast::Hasher::new();
            parts.iter().for_each(|part| crc.update(part));
            header.flags = FLAG_PAYLOAD_CRC;
            header.payload_crc = crc.finalize();
        }
        header.encode()
    }

    /// Tells the server that it may forget `len` bytes at `offset`. `offset` and `len` must be multiples of 512 bytes, and
    /// `len` at most [`DISCARD_MAX`]. The server frees the slots that lie wholly within the range.
    pub fn discard(&mut self, tag: u64, offset: u64, len: u32) -> Result<(), LinkError> {
        if !range_is_valid(offset, len, DISCARD_MAX) {
            return Err(LinkError::Misuse { what: "a DISCARD takes whole units of 512 bytes, at most 1 GiB" });
        }
        let frame = Header::range(Kind::Discard, tag, offset, len).encode();
        self.socket.send_all(&[IoSlice::new(&frame)])
    }

    /// Sends several discards `(tag, offset, len)`. One system call sends many discards. Each discard follows the rules
    /// of [`Writer::discard`] and has its own acknowledgement. If a range breaks these rules, returns an error and
    /// sends nothing.
    pub fn discard_many(&mut self, ranges: &[(u64, u64, u32)]) -> Result<(), LinkError> {
        if !ranges.iter().all(|(_, offset, len)| range_is_valid(*offset, *len, DISCARD_MAX)) {
            return Err(LinkError::Misuse { what: "a DISCARD takes whole units of 512 bytes, at most 1 GiB" });
        }
        for batch in ranges.chunks(PARTS_AT_ONCE) {
            let mut frames = [0; PARTS_AT_ONCE * HEADER_BYTES];
            for (into, (tag, offset, len)) in frames.chunks_exact_mut(HEADER_BYTES).zip(batch) {
                into.copy_from_slice(&Header::range(Kind::Discard, *tag, *offset, *len).encode());
            }
            self.socket.send_all(&[IoSlice::new(&frames[..batch.len() * HEADER_BYTES])])?;
        }
        Ok(())
    }

    /// Sends a PING. The answer is an [`Ack`] that arrives after the acknowledgements of all earlier requests.
    pub fn ping(&mut self, tag: u64) -> Result<(), LinkError> {
        self.socket.send_all(&[IoSlice::new(&Header::bare(Kind::Ping, tag).encode())])
    }

    /// Returns the next acknowledgement, or `None` if no acknowledgement arrived within `wait`.
    pub fn try_ack(&mut self, wait: Wait) -> Result<Option<Ack>, LinkError> {
        let mut waiting = Waiting::new(wait);
        loop {
            if let Some(header) = self.inbox.header()? {
                return self.accept(&header).map(Some);
            }
            if self.inbox.fill(&self.socket)?.is_none() && !waiting.again(&self.socket)? {
                return Ok(None);
            }
        }
    }

    fn accept(&mut self, header: &Header) -> Result<Ack, LinkError> {
        match header.kind {
            Kind::Done | Kind::Pong => {
                Ok(Ack { tag: header.tag, status: AckStatus::Done, capacity_bytes: header.offset })
            }
            Kind::Error => match server_error(header, &mut self.inbox, &self.socket) {
                LinkError::Server { tag, code: ErrorCode::Full, .. } => {
                    Ok(Ack { tag, status: AckStatus::Full, capacity_bytes: 0 })
                }
                LinkError::Server { tag, code: ErrorCode::OverQuota, .. } => {
                    Ok(Ack { tag, status: AckStatus::OverQuota, capacity_bytes: 0 })
                }
                error => Err(error),
            },
            _ => Err(LinkError::Garbage { what: "a frame that acknowledges nothing" }),
        }
    }
}
