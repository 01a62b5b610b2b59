//! The receiving side of a connection: a small buffer in front of the socket.
//!
//! If the page is small, one system call receives a header and its page into the buffer. The bytes of a large page go
//! from the socket straight to their destination. The system call for the end of a large page also receives the next
//! headers, into the buffer.
//!
//! On a link with a key, the bytes come in encrypted [records](crate::records). The buffer then holds their texts.

use std::io::IoSliceMut;

use crate::error::LinkError;
use crate::frame::{HEADER_BYTES, Header, KIND_AT, Kind};
use crate::limits::{INBOX_BYTES, INBOX_RECEIVE_BYTES, SMALL_PAGE};
use crate::records::{Opener, RECORD_MAX};
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
    /// Receives and decrypts, on a link with a key.
    opener: Option<Box<Opener>>,
}

const _: () = assert!(INBOX_BYTES >= HEADER_BYTES + RECORD_MAX);

impl Default for Inbox {
    fn default() -> Inbox {
        let bytes = vec![0; INBOX_BYTES].into_boxed_slice();
        Inbox { bytes, start: 0, end: 0, receive_bytes: INBOX_RECEIVE_BYTES, opener: None }
    }
}

impl Inbox {
    /// Decrypts all bytes that are received from now on.
    pub(crate) fn open_with(&mut self, opener: Opener) {
        self.opener = Some(Box::new(opener));
    }

    /// Returns the number of received bytes that are still in the buffer.
    pub fn waiting(&self) -> usize {
        self.end - self.start
    }

    /// Checks whether the buffer may hold a whole header, or a record that can be opened. If not, the rest of what the
    /// buffer holds has not arrived yet, and makes the socket readable when it arrives.
    pub(crate) fn holds_more(&self) -> bool {
        let holds_record = |opener: &Opener| !matches!(opener.next_length(), Ok(None));
        self.waiting() >= HEADER_BYTES || self.opener.as_deref().is_some_and(holds_record)
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
        self.take_pieces(&mut [IoSliceMut::new(into)], 0)
    }

    fn take_pieces(&mut self, pieces: &mut [IoSliceMut<'_>], done: usize) -> usize {
        let taken = scatter(&self.bytes[self.start..self.end], pieces, done);
        self.start += taken;
        taken
    }

    /// Receives bytes from the socket into the buffer's free space, without waiting. Returns the number of received
    /// bytes, or `None` if no bytes have arrived. On a link with a key, 0 means that bytes of a record have arrived, but
    /// not the whole record.
    pub fn fill(&mut self, socket: &Socket) -> Result<Option<usize>, LinkError> {
        if self.opener.is_some() {
            return self.fill_opened(socket);
        }
        let received = socket.receive(self.room())?;
        self.end += received.unwrap_or(0);
        Ok(received)
    }

    /// Moves bytes from the buffer into `into`. If the buffer was empty, receives from the socket straight into `into`,
    /// without waiting. Any further bytes go into the buffer. Returns how many bytes of `into` were filled, or `None`
    /// if no bytes had arrived.
    pub fn receive(&mut self, socket: &Socket, into: &mut [u8]) -> Result<Option<usize>, LinkError> {
        self.receive_pieces(socket, &mut [IoSliceMut::new(into)], 0)
    }

    /// Like [`Inbox::receive`], into `pieces`, one after another. Their first `done` bytes are filled.
    fn receive_pieces(
        &mut self,
        socket: &Socket,
        pieces: &mut [IoSliceMut<'_>],
        done: usize,
    ) -> Result<Option<usize>, LinkError> {
        let left = len_of(pieces) - done;
        let taken = self.take_pieces(pieces, done);
        if taken > 0 || left == 0 {
            return Ok(Some(taken));
        }
        if let Some(opener) = &mut self.opener {
            return match next_record(opener, socket)? {
                Some(length) if (1..=left).contains(&length) => Ok(Some(scatter(opener.open(length)?, pieces, done))),
                // The record holds more than the pieces.
                Some(1..) => Ok(self.fill_opened(socket)?.map(|_| self.take_pieces(pieces, done))),
                nothing => Ok(nothing),
            };
        }
        let Some(received) = socket.receive_pieces(pieces, done, self.room())? else {
            return Ok(None);
        };
        let direct = received.min(left);
        self.end += received - direct;
        Ok(Some(direct))
    }

    /// Opens records into the buffer's free space, and receives some if none is here.
    fn fill_opened(&mut self, socket: &Socket) -> Result<Option<usize>, LinkError> {
        self.move_to_front();
        let Some(opener) = &mut self.opener else { return Ok(None) };
        if next_record(opener, socket)?.is_none() {
            return Ok(None);
        }
        let before = self.end;
        while let Some(length) = opener.next_length()?.filter(|length| *length <= INBOX_BYTES - self.end) {
            self.bytes[self.end..self.end + length].copy_from_slice(opener.open(length)?);
            self.end += length;
        }
        Ok(Some(self.end - before))
    }

    /// Fills all of `into`. Fails when the peer sends no bytes for the time that `progress` allows.
    pub fn receive_all(&mut self, socket: &Socket, into: &mut [u8], progress: &mut Progress) -> Result<(), LinkError> {
        self.receive_all_pieces(socket, &mut [IoSliceMut::new(into)], progress)
    }

    /// Fills all pieces, one after another. Fails like [`Inbox::receive_all`].
    pub(crate) fn receive_all_pieces(
        &mut self,
        socket: &Socket,
        pieces: &mut [IoSliceMut<'_>],
        progress: &mut Progress,
    ) -> Result<(), LinkError> {
        let (mut done, len) = (0, len_of(pieces));
        while done < len {
            match self.receive_pieces(socket, pieces, done)? {
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

    fn move_to_front(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// Moves the buffered bytes to the front of the buffer. Returns the free space behind them, at most `receive_bytes`
    /// long.
    fn room(&mut self) -> &mut [u8] {
        self.move_to_front();
        let end = INBOX_BYTES.min(self.end + self.receive_bytes);
        &mut self.bytes[self.end..end]
    }
}

pub(crate) fn len_of(pieces: &[IoSliceMut<'_>]) -> usize {
    pieces.iter().map(|piece| piece.len()).sum()
}

/// Copies bytes of `from` into the pieces after their first `skip` bytes, one piece after another, until one of them ends.
/// Returns the number of copied bytes.
fn scatter(from: &[u8], pieces: &mut [IoSliceMut<'_>], mut skip: usize) -> usize {
    let mut done = 0;
    for piece in pieces {
        let skipped = skip.min(piece.len());
        skip -= skipped;
        let count = (piece.len() - skipped).min(from.len() - done);
        piece[skipped..skipped + count].copy_from_slice(&from[done..done + count]);
        done += count;
    }
    done
}

/// Receives bytes of records if no whole record is here. Returns the length of the next record, 0 if bytes have arrived
/// but the record is not whole, or `None` if nothing has arrived.
fn next_record(opener: &mut Opener, socket: &Socket) -> Result<Option<usize>, LinkError> {
    if let Some(length) = opener.next_length()? {
        return Ok(Some(length));
    }
    Ok(match opener.receive(socket)? {
        Some(_) => Some(opener.next_length()?.unwrap_or(0)),
        None => None,
    })
}

/// Checks a payload against the checksum in its header, if the header has one.
pub fn check_payload(header: &Header, payload: &[u8]) -> Result<(), LinkError> {
    let sum = if header.has_payload_crc() { crc32fast::hash(payload) } else { 0 };
    check_sum(header, sum)
}

/// Checks the checksum of a payload against that in its header, if the header has one.
pub(crate) fn check_sum(header: &Header, sum: u32) -> Result<(), LinkError> {
    match header.has_payload_crc() && sum != header.payload_crc {
        true => Err(LinkError::Garbage { what: "a payload does not match its checksum" }),
        false => Ok(()),
    }
}
