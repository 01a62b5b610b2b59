//! The receiving side of a connection: a small buffer in front of the socket.
//!
//! If the page is small, one system call receives a header and its page into the buffer. The bytes of a large page go
//! from the socket straight to their destination. The system call for the end of a large page also receives the next
//! headers, into the buffer.

use crate::error::LinkError;
use crate::frame::{HEADER_BYTES, Header, KIND_AT, Kind};
use crate::limits::{INBOX_BYTES, INBOX_RECEIVE_BYTES, SMALL_PAGE};
use crate::socket::{Direction, Progress, Socket};

/// A buffer of bytes that were received and not yet used.
#[derive(Debug)]
pub struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// The maximum number of bytes to receive into the buffer in one system call. The maximum depends on the size of
    /// the last payload.
    receive_bytes: usize,
}

impl Default for Inbox {
    fn default() -> Inbox {
        Inbox { bytes: vec![0; INBOX_BYTES].into_boxed_slice(), start: 0, end: 0, receive_bytes: INBOX_RECEIVE_BYTES }
    }
}

impl Inbox {
    /// Returns the number of received bytes that are still in the buffer.
    pub fn waiting(&self) -> usize {
        self.end - self.start
    }

    /// Removes the next header from the buffer and returns it. Returns `None` if the buffer does not hold the whole
    /// header.
    pub fn header(&mut self) -> Result<Option<Header>, LinkError> {
        let waiting = &self.bytes[self.start..self.end];
        match waiting.first_chunk::<HEADER_BYTES>() {
            Some(raw) => {
                let header = Header::decode(raw)?;
                self.start += HEADER_BYTES;
                self.receive_bytes =
                    if header.payload_bytes() <= SMALL_PAGE { INBOX_BYTES } else { INBOX_RECEIVE_BYTES };
                Ok(Some(header))
            }
            None => {
                Header::check_beginning(waiting)?;
                Ok(None)
            }
        }
    }

    /// Checks whether the buffer begins with a header of this kind. Does not check the other fields of that header.
    pub fn next_is(&self, kind: Kind) -> bool {
        self.waiting() >= HEADER_BYTES && self.bytes[self.start + KIND_AT] == kind as u8
    }

    /// Moves as many bytes as possible from the buffer into `into`. Returns the number of moved bytes.
    pub fn take(&mut self, into: &mut [u8]) -> usize {
        let n = self.waiting().min(into.len());
        into[..n].copy_from_slice(&self.bytes[self.start..self.start + n]);
        self.start += n;
        n
    }

    /// Receives bytes from the socket into the buffer's free space, without waiting. Returns the number of received
    /// bytes, or `None` if no bytes have arrived.
    pub fn fill(&mut self, socket: &Socket) -> Result<Option<usize>, LinkError> {
        let received = socket.receive(self.room())?;
        self.end += received.unwrap_or(0);
        Ok(received)
    }

    /// Moves bytes from the buffer into `into`. If the buffer was empty, receives from the socket straight into `into`,
    /// without waiting. Any further bytes go into the buffer. Returns how many bytes of `into` were filled, or `None`
    /// if no bytes had arrived.
    pub fn receive(&mut self, socket: &Socket, into: &mut [u8]) -> Result<Option<usize>, LinkError> {
        let taken = self.take(into);
        if taken > 0 || into.is_empty() {
            return Ok(Some(taken));
        }
        let Some(received) = socket.receive_two(into, self.room())? else {
            return Ok(None);
        };
        let direct = received.min(into.len());
        self.end += received - direct;
        Ok(Some(direct))
    }

    /// Fills all of `into`. Fails when the peer sends no bytes for the time that `progress` allows.
    pub fn receive_all(&mut self, socket: &Socket, into: &mut [u8], progress: &mut Progress) -> Result<(), LinkError> {
        let mut done = 0;
        while done < into.len() {
            match self.receive(socket, &mut into[done..])? {
                Some(n) => {
                    done += n;
                    progress.moved();
                }
                None => progress.stalled(socket, Direction::Receive)?,
            }
        }
        Ok(())
    }

    /// Receives a whole frame whose payload fits into `payload`, and returns the payload's length.
    pub fn receive_frame(
        &mut self,
        socket: &Socket,
        payload: &mut [u8],
        progress: &mut Progress,
    ) -> Result<(Header, usize), LinkError> {
        let header = loop {
            if let Some(header) = self.header()? {
                break header;
            }
            match self.fill(socket)? {
                Some(_) => progress.moved(),
                None => progress.stalled(socket, Direction::Receive)?,
            }
        };
        let length = header.payload_bytes();
        let Some(payload) = payload.get_mut(..length) else {
            return Err(LinkError::Garbage { what: "a frame too long for this moment" });
        };
        self.receive_all(socket, payload, progress)?;
        check_payload(&header, payload)?;
        Ok((header, length))
    }

    /// Moves the buffered bytes to the front of the buffer. Returns the free space behind them, at most `receive_bytes`
    /// long.
    fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let end = INBOX_BYTES.min(self.end + self.receive_bytes);
        &mut self.bytes[self.end..end]
    }
}

/// Checks a payload against the checksum in its header, if the header has one.
pub fn check_payload(header: &Header, payload: &[u8]) -> Result<(), LinkError> {
    if header.has_payload_crc() && crc32fast::hash(payload) != header.payload_crc {
        return Err(LinkError::Garbage { what: "a payload does not match its checksum" });
    }
    Ok(())
}
