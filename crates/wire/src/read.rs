//! The reading connection of a session. One half sends requests, and the other half receives pages.
//!
//! Two threads may use the connection, one thread for each half. Or one fault handler may use both halves. Replies
//! arrive in the order of the requests.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::error::{ErrorCode, LinkError, Text};
use crate::frame::{HEADER_BYTES, Header, Kind};
use crate::inbox::{Inbox, check_payload, check_sum, len_of};
use crate::limits::{PIECES_MAX, RANGE_MAX, TEXT_MAX, range_is_valid};
use crate::socket::{Progress, Socket, Wait, Waiting};

/// The maximum number of requests that are sent in one system call.
const BATCH: usize = 32;

/// The half of a reading connection that sends requests.
#[derive(Debug)]
pub struct ReadRequests {
    socket: Arc<Socket>,
}

/// The half of a reading connection that receives pages.
#[derive(Debug)]
pub struct ReadReplies {
    socket: Arc<Socket>,
    inbox: Inbox,
    payload_crc: bool,
    pending: Option<Pending>,
}

/// A reply whose payload was not yet received, or not all of it.
#[derive(Clone, Copy, Debug)]
struct Pending {
    header: Header,
    /// The number of bytes that are left.
    left: usize,
    /// The checksum of the bytes that were received.
    sum: u32,
}

/// The header of a reply. [`ReadReplies::receive_payload`] receives the reply's payload, the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The request's tag.
    pub tag: u64,
    /// Offset of the range in the session's far space, in bytes.
    pub offset: u64,
    /// Length of the range, in bytes.
    pub len: u32,
}

pub(crate) fn halves(socket: Socket, inbox: Inbox, payload_crc: bool) -> (ReadRequests, ReadReplies) {
    let socket = Arc::new(socket);
    let requests = ReadRequests { socket: Arc::clone(&socket) };
    (requests, ReadReplies { socket, inbox, payload_crc, pending: None })
}

/// A new reading connection that is to take the place of one that is lost.
#[derive(Debug)]
pub(crate) struct Replacement {
    socket: Arc<Socket>,
    /// Another socket on the new connection. It stands in for the old one until the old one has given its number away.
    stand_in: Arc<Socket>,
    inbox: Inbox,
    payload_crc: bool,
}

/// What is left of a reading connection that was replaced. Dropping it frees memory and closes descriptors.
#[derive(Debug)]
pub struct Replaced {
    /// The old socket, with the number that the new connection had before.
    old: Arc<Socket>,
    _stand_in: Arc<Socket>,
    _inbox: Inbox,
}

impl AsFd for Replaced {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.old.as_fd()
    }
}

impl Replacement {
    pub(crate) fn new(socket: Socket, inbox: Inbox, payload_crc: bool) -> Result<Replacement, LinkError> {
        let stand_in = Arc::new(socket.copy()?);
        Ok(Replacement { socket: Arc::new(socket), stand_in, inbox, payload_crc })
    }

    /// Makes both halves those of the new connection. A thread that polls the descriptor's number then polls the new
    /// connection. Allocates and frees nothing.
    pub(crate) fn install(
        self,
        requests: &mut ReadRequests,
        replies: &mut ReadReplies,
    ) -> (Result<(), LinkError>, Replaced) {
        let Replacement { mut socket, stand_in, mut inbox, payload_crc } = self;
        let mut old = std::mem::replace(&mut requests.socket, Arc::clone(&stand_in));
        drop(std::mem::replace(&mut replies.socket, Arc::clone(&stand_in)));
        let result = match (Arc::get_mut(&mut socket), Arc::get_mut(&mut old)) {
            (Some(socket), Some(old)) => socket.swap_numbers(old),
            _ => Err(LinkError::Misuse { what: "the halves belong to different connections" }),
        };
        requests.socket = Arc::clone(&socket);
        replies.socket = socket;
        std::mem::swap(&mut replies.inbox, &mut inbox);
        replies.payload_crc = payload_crc;
        replies.pending = None;
        (result, Replaced { old, _stand_in: stand_in, _inbox: inbox })
    }
}

impl ReadRequests {
    /// Asks for `len` bytes at `offset`. `offset` and `len` must be multiples of 512 bytes, and `len` at most
    /// [`RANGE_MAX`].
    pub fn request(&mut self, tag: u64, offset: u64, len: u32) -> Result<(), LinkError> {
        check_range(offset, len)?;
        let frame = Header::range(Kind::Read, tag, offset, len).encode();
        self.socket.send_all(&[IoSlice::new(&frame)])
    }

    /// Asks for several ranges `(tag, offset, len)`. One system call sends the requests for many ranges. If a range
    /// breaks the rules of [`ReadRequests::request`], returns an error and sends nothing.
    pub fn request_many(&mut self, ranges: &[(u64, u64, u32)]) -> Result<(), LinkError> {
        for (_, offset, len) in ranges {
            check_range(*offset, *len)?;
        }
        for batch in ranges.chunks(BATCH) {
            let mut frames = [0; BATCH * HEADER_BYTES];
            for (into, (tag, offset, len)) in frames.chunks_exact_mut(HEADER_BYTES).zip(batch) {
                into.copy_from_slice(&Header::range(Kind::Read, *tag, *offset, *len).encode());
            }
            self.socket.send_all(&[IoSlice::new(&frames[..batch.len() * HEADER_BYTES])])?;
        }
        Ok(())
    }
}

fn check_range(offset: u64, len: u32) -> Result<(), LinkError> {
    match range_is_valid(offset, len, RANGE_MAX) {
        true => Ok(()),
        false => Err(LinkError::Misuse { what: "a READ takes whole units of 512 bytes, at most 4 MiB" }),
    }
}

impl AsFd for ReadRequests {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsFd for ReadReplies {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl ReadReplies {
    /// Returns the header of the next reply, or `None` if no header arrived within `wait`. If the reply is an ERROR,
    /// returns [`LinkError::Server`], and the connection stays usable. After any other error, the connection is not
    /// usable.
    ///
    /// The buffer may hold received bytes, which poll(2) cannot see. So the caller may poll the descriptor only after
    /// this function has returned `None`.
    pub fn try_header(&mut self, wait: Wait) -> Result<Option<ReplyHeader>, LinkError> {
        if self.pending.is_some() {
            return Err(LinkError::Misuse { what: "the last reply's payload was not taken" });
        }
        let mut waiting = Waiting::new(wait);
        loop {
            if let Some(header) = self.inbox.header()? {
                return self.accept(header).map(Some);
            }
            if self.inbox.fill(&self.socket)?.is_none() && !waiting.again(&self.socket)? {
                return Ok(None);
            }
        }
    }

    /// Receives the payload of the last reply into `into`, which must have the payload's length.
    pub fn receive_payload(&mut self, into: &mut [u8]) -> Result<(), LinkError> {
        let whole = |pending: &Pending| pending.left == into.len() && pending.left == pending.header.payload_bytes();
        if !self.pending.as_ref().is_some_and(whole) {
            return Err(LinkError::Misuse { what: "a payload is taken once, into a buffer of its length" });
        }
        self.receive_pieces(&mut [IoSliceMut::new(into)])
    }

    /// Receives the next bytes of the last reply's payload into `pieces`, one after another, and fills all of them. There
    /// may be [`PIECES_MAX`] pieces. Bytes that have not arrived before go straight to their pieces, with one system call
    /// for all of them.
    ///
    /// The call that receives the last byte of the payload checks the checksum. Before it has succeeded, the bytes are not
    /// to be used.
    pub fn receive_pieces(&mut self, pieces: &mut [IoSliceMut<'_>]) -> Result<(), LinkError> {
        let len = len_of(pieces);
        let Some(pending) = self.pending.as_mut().filter(|pending| len <= pending.left && pieces.len() <= PIECES_MAX)
        else {
            return Err(LinkError::Misuse { what: "at most 64 pieces take what is left of a payload" });
        };
        self.inbox.receive_all_pieces(&self.socket, pieces, &mut Progress::of(&self.socket))?;
        if pending.header.has_payload_crc() {
            let mut hasher = crc32fast::Hasher::new_with_initial(pending.sum);
            pieces.iter().for_each(|piece| hasher.update(piece));
            pending.sum = hasher.finalize();
        }
        pending.left -= len;
        if pending.left > 0 {
            return Ok(());
        }
        let Pending { header, sum, .. } = *pending;
        self.pending = None;
        check_sum(&header, sum)
    }

    /// Checks whether the next header, or a part of it, has arrived together with earlier bytes. Poll(2) cannot see it
    /// then. If not, the descriptor becomes readable when the next header is here.
    pub fn holds_more(&self) -> bool {
        self.inbox.holds_more()
    }

    fn accept(&mut self, header: Header) -> Result<ReplyHeader, LinkError> {
        match header.kind {
            Kind::Data if self.payload_crc && !header.has_payload_crc() => {
                Err(LinkError::Garbage { what: "a page without the checksum that was agreed" })
            }
            Kind::Data => {
                self.pending = Some(Pending { header, left: header.payload_bytes(), sum: 0 });
                Ok(ReplyHeader { tag: header.tag, offset: header.offset, len: header.length })
            }
            Kind::Error => Err(server_error(&header, &mut self.inbox, &self.socket)),
            _ => Err(LinkError::Garbage { what: "a frame that answers no READ" }),
        }
    }
}

/// Receives the text of an ERROR frame. Returns the matching error, or the error that occurred while receiving the
/// text.
pub(crate) fn server_error(header: &Header, inbox: &mut Inbox, socket: &Socket) -> LinkError {
    let mut raw = [0; TEXT_MAX];
    let text = &mut raw[..header.payload_bytes().min(TEXT_MAX)];
    let taken = inbox.receive_all(socket, text, &mut Progress::of(socket)).and_then(|()| check_payload(header, text));
    match (taken, ErrorCode::from_wire(header.code)) {
        (Err(e), _) => e,
        (Ok(()), Some(code)) => LinkError::Server { tag: header.tag, code, text: Text::from_peer(text) },
        (Ok(()), None) => LinkError::Garbage { what: "an error code that does not exist" },
    }
}

#[cfg(test)]
mod tests;
