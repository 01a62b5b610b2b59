//! Moves ranges between a socket and slots. Slots in memory are sent and filled directly. The bytes of spilled slots go
//! through a buffer.
//!
//! Slots are locked only during single nonblocking system calls. A thread that has to wait for its peer holds no lock
//! during the wait. After the wait, it looks the slot up again.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;

use hanare_wire::LinkError;
use hanare_wire::frame::{FLAG_PAYLOAD_CRC, HEADER_BYTES, Header, Kind};
use hanare_wire::handshake::control_header;
use hanare_wire::inbox::Inbox;
use hanare_wire::limits::{CONTROL_MAX, SMALL_PAGE};
use hanare_wire::socket::{Direction, Progress, Socket};

use crate::pool::{NoSlot, Run, Taken};
use crate::registry::Registry;
use crate::session::{Found, Session};
use crate::turns::{Turn, Turns};

/// Size of the buffer through which spilled bytes pass, in bytes.
const BOUNCE_BYTES: usize = 256 << 10;
/// Maximum number of bytes of answers that are gathered before they are sent.
const OUTBOX_BYTES: usize = 64 << 10;
const _: () = assert!(OUTBOX_BYTES >= HEADER_BYTES + SMALL_PAGE && OUTBOX_BYTES >= HEADER_BYTES + CONTROL_MAX);

/// The connection that a transfer uses, with its buffers.
pub(crate) struct Channel<'a> {
    pub(crate) socket: &'a Socket,
    pub(crate) inbox: Inbox,
    /// Whether the payloads of DATA and WRITE carry checksums.
    pub(crate) payload_crc: bool,
    turns: &'a Turns,
    registry: &'a Registry,
    bounce: Vec<u8>,
    /// Answers that have not been sent yet. One system call sends them all.
    outbox: Vec<u8>,
}

/// Why a range was not transferred. After `Link` and `Checksum`, the connection ends. After the other errors, the
/// connection goes on.
#[derive(Debug)]
pub(crate) enum RangeError {
    /// The connection failed.
    Link(LinkError),
    /// The session never wrote part of the range.
    NotHeld,
    /// No slot is left, on the server or within the session's quota.
    NoSlot(NoSlot),
    /// The spill file could not be read or written.
    Spill(io::Error),
    /// The payload does not match its checksum.
    Checksum,
}

impl From<LinkError> for RangeError {
    fn from(e: LinkError) -> RangeError {
        RangeError::Link(e)
    }
}

impl<'a> Channel<'a> {
    pub(crate) fn new(
        socket: &'a Socket,
        inbox: Inbox,
        payload_crc: bool,
        turns: &'a Turns,
        registry: &'a Registry,
    ) -> Channel<'a> {
        let outbox = Vec::with_capacity(OUTBOX_BYTES);
        Channel { socket, inbox, payload_crc, turns, registry, bounce: Vec::new(), outbox }
    }

    /// Adds a small answer to the outbox, which the next [`Channel::flush`] sends.
    pub(crate) fn answer(&mut self, kind: Kind, tag: u64, code: u32, payload: &[u8]) -> Result<(), LinkError> {
        self.answer_with(control_header(kind, tag, code, payload), payload)
    }

    /// Like [`Channel::answer`], with a header that the caller made.
    pub(crate) fn answer_with(&mut self, header: Header, payload: &[u8]) -> Result<(), LinkError> {
        self.make_room(HEADER_BYTES + payload.len())?;
        self.outbox.extend_from_slice(&header.encode());
        self.outbox.extend_from_slice(payload);
        Ok(())
    }

    /// Sends the answers in the outbox. The caller must do this before it waits for the peer's next request.
    pub(crate) fn flush(&mut self) -> Result<(), LinkError> {
        if !self.outbox.is_empty() {
            self.socket.send_all(&[IoSlice::new(&self.outbox)])?;
            self.outbox.clear();
        }
        Ok(())
    }

    fn make_room(&mut self, bytes: usize) -> Result<(), LinkError> {
        if self.outbox.len() + bytes > OUTBOX_BYTES { self.flush() } else { Ok(()) }
    }

    /// Answers a READ with DATA. Returns an error other than `Link` only if no part of the answer was sent.
    ///
    /// If the outbox holds answers or another READ has arrived, copies a small page to the outbox. The copy costs less
    /// than a system call for each page. Otherwise sends the page directly from its slot.
    pub(crate) fn send_range(&mut self, session: &Session, request: &Header) -> Result<(), RangeError> {
        let has_company = !self.outbox.is_empty() || self.inbox.next_is(Kind::Read);
        if has_company && request.length as usize <= SMALL_PAGE {
            return self.gather_range(session, request);
        }
        self.flush()?;
        self.send_from_slots(session, request)
    }

    fn gather_range(&mut self, session: &Session, request: &Header) -> Result<(), RangeError> {
        let length = request.length as usize;
        self.make_room(HEADER_BYTES + length)?;
        let start = self.outbox.len();
        let page = start + HEADER_BYTES;
        self.outbox.resize(page, 0);
        if let Err(e) = self.copy_range(session, request) {
            self.outbox.truncate(start);
            return Err(e);
        }
        let mut data = Header { kind: Kind::Data, flags: 0, payload_crc: 0, code: 0, ..*request };
        if self.payload_crc {
            data.flags = FLAG_PAYLOAD_CRC;
            data.payload_crc = crc32fast::hash(&self.outbox[page..]);
        }
        self.outbox[start..page].copy_from_slice(&data.encode());
        Ok(())
    }

    /// Appends the bytes of a small range to the outbox.
    fn copy_range(&mut self, session: &Session, request: &Header) -> Result<(), RangeError> {
        let length = request.length as usize;
        let mut done = 0;
        while done < length {
            let outbox = &mut self.outbox;
            let found = session.with_memory(request.offset + done as u64, length - done, |bytes| {
                outbox.extend_from_slice(bytes);
                bytes.len()
            });
            done += match found {
                Found::Memory(n) => n,
                Found::Spill { file, at, bytes } => {
                    let end = self.outbox.len();
                    self.outbox.resize(end + bytes, 0);
                    file.read_exact_at(&mut self.outbox[end..], at).map_err(RangeError::Spill)?;
                    bytes
                }
                Found::Absent { .. } => return Err(RangeError::NotHeld),
            };
        }
        Ok(())
    }

    fn send_from_slots(&mut self, session: &Session, request: &Header) -> Result<(), RangeError> {
        if !session.holds(request.offset, u64::from(request.length)) {
            return Err(RangeError::NotHeld);
        }
        let mut data = Header::range(Kind::Data, request.tag, request.offset, request.length);
        if self.payload_crc {
            data.flags = FLAG_PAYLOAD_CRC;
            data.payload_crc = self.checksum(session, request)?;
        }
        let head = data.encode();
        let total = HEADER_BYTES + request.length as usize;
        let mut progress = Progress::of(self.socket);
        let mut sent = 0;
        while sent < total {
            let done = sent.saturating_sub(HEADER_BYTES);
            let head = &head[sent.min(HEADER_BYTES)..];
            let left = request.length as usize - done;
            let socket = self.socket;
            // The slot is locked only during a nonblocking call, never while waiting for the peer.
            let (piece, turn) = self.turns.take(session.id, left);
            let found = session.with_memory(request.offset + done as u64, piece, |bytes| {
                let more = bytes.len() < left;
                match head {
                    [] => socket.send(&[IoSlice::new(bytes)], more),
                    _ => socket.send(&[IoSlice::new(head), IoSlice::new(bytes)], more),
                }
            });
            Turn::end(turn, if let Found::Memory(Ok(Some(n))) = &found { *n } else { 0 });
            match found {
                Found::Memory(Ok(Some(n))) => {
                    sent += n;
                    progress.moved();
                }
                Found::Memory(Ok(None)) => progress.stalled(self.socket, Direction::Send)?,
                Found::Memory(Err(e)) => return Err(e.into()),
                Found::Spill { file, at, bytes } => {
                    let bytes = self.load(&file, at, bytes).map_err(|e| spill_failed(sent, e))?;
                    socket.send_all(&[IoSlice::new(head), IoSlice::new(bytes)])?;
                    sent += head.len() + bytes.len();
                }
                Found::Absent { .. } if sent == 0 => return Err(RangeError::NotHeld),
                Found::Absent { .. } => {
                    return Err(LinkError::Garbage { what: "a discard of a range being read" }.into());
                }
            }
        }
        Ok(self.socket.send_rest(&mut progress)?)
    }

    fn checksum(&mut self, session: &Session, request: &Header) -> Result<u32, RangeError> {
        let mut crc = crc32fast::Hasher::new();
        let length = request.length as usize;
        let mut done = 0;
        while done < length {
            let found = session.with_memory(request.offset + done as u64, length - done, |bytes| {
                crc.update(bytes);
                bytes.len()
            });
            done += match found {
                Found::Memory(n) => n,
                Found::Spill { file, at, bytes } => {
                    let bytes = self.load(&file, at, bytes).map_err(RangeError::Spill)?;
                    crc.update(bytes);
                    bytes.len()
                }
                Found::Absent { .. } => return Err(RangeError::NotHeld),
            };
        }
        Ok(crc.finalize())
    }

    /// Receives a WRITE's payload into slots. On an error other than `Link`, receives and drops the rest of the
    /// payload, so that the next request can be read.
    pub(crate) fn receive_range(&mut self, session: &Session, request: &Header) -> Result<(), RangeError> {
        let mut arrival = Arrival {
            request,
            done: 0,
            crc: request.has_payload_crc().then(crc32fast::Hasher::new),
            progress: Progress::of(self.socket),
        };
        while arrival.left() > 0 {
            let step = self.receive_step(session, &mut arrival);
            if let Err(e) = step {
                if !matches!(e, RangeError::Link(_)) {
                    self.skip(&mut arrival)?;
                }
                return Err(e);
            }
        }
        match arrival.crc.map(crc32fast::Hasher::finalize) {
            Some(crc) if crc != request.payload_crc => Err(RangeError::Checksum),
            _ => Ok(()),
        }
    }

    fn receive_step(&mut self, session: &Session, arrival: &mut Arrival<'_>) -> Result<(), RangeError> {
        let offset = arrival.offset();
        let (socket, inbox) = (self.socket, &mut self.inbox);
        let (piece, turn) = self.turns.take(session.id, arrival.left());
        let before = arrival.done;
        let found = session.with_own_memory(offset, piece, |into| arrival.attempt(inbox, socket, into));
        Turn::end(turn, arrival.done - before);
        let found = match found {
            Ok(found) => found,
            Err(_) => return self.receive_shared(session, arrival),
        };
        match found {
            Found::Memory(Ok(true)) => Ok(()),
            Found::Memory(Ok(false)) => Ok(arrival.progress.stalled(self.socket, Direction::Receive)?),
            Found::Memory(Err(e)) => Err(e.into()),
            Found::Spill { file, at, bytes } => self.receive_spilled(arrival, &file, at, bytes),
            Found::Absent { .. } => {
                // The piece may end within a slot, but a new slot enters the table only with all its bytes. So the
                // range is looked up again, without the limit of the piece.
                let Found::Absent { bytes } = session.with_memory(offset, arrival.left(), |_| ()) else {
                    return Ok(());
                };
                self.receive_into_new(session, arrival, bytes)
            }
        }
    }

    /// Receives bytes for slots that a clone of the session also holds. Puts new slots in the place of slots that the
    /// bytes cover wholly. Copies a slot that the bytes cover in part, so that the next step can write to the copy.
    fn receive_shared(&mut self, session: &Session, arrival: &mut Arrival<'_>) -> Result<(), RangeError> {
        let (offset, size) = (arrival.offset(), session.slot_size as usize);
        let Err(bytes) = session.with_own_memory(offset, arrival.left(), |_| ()) else { return Ok(()) };
        if offset.is_multiple_of(size as u64) && bytes >= size {
            return self.receive_into_new(session, arrival, bytes - bytes % size);
        }
        let slot = offset / size as u64;
        let taken = self.take(session, 1)?;
        match self.copy_slot(session, slot * size as u64, &taken) {
            Ok(()) => session.insert(slot, &taken),
            Err(e) => {
                session.give_back(&taken);
                return Err(not_written(e));
            }
        }
        Ok(())
    }

    /// Allocates up to `count` adjacent slots for the session. If the server is full, waits first for the end of sessions
    /// whose clients have hung up.
    fn take(&self, session: &Session, count: usize) -> Result<Taken, RangeError> {
        let taken = match session.take(count) {
            Err(NoSlot::Full) if self.registry.await_ending() => session.take(count),
            taken => taken,
        };
        taken.map_err(RangeError::NoSlot)
    }

    /// Copies the session's slot at `offset` into the new slot `to`, which no table names yet.
    fn copy_slot(&mut self, session: &Session, offset: u64, to: &Taken) -> io::Result<()> {
        let size = session.slot_size as usize;
        self.bounce.resize(BOUNCE_BYTES, 0);
        let mut done = 0;
        while done < size {
            let piece = &mut self.bounce[..BOUNCE_BYTES.min(size - done)];
            match session.with_memory(offset + done as u64, piece.len(), |bytes| piece.copy_from_slice(bytes)) {
                Found::Memory(()) => {}
                Found::Spill { file, at, .. } => file.read_exact_at(piece, at)?,
                // Another connection of the session has discarded the slot in the meantime, so the copy reads as
                // zeroes.
                Found::Absent { .. } => piece.fill(0),
            }
            match &to.run {
                Run::Memory { block, at, .. } => block.lock()[at + done..][..piece.len()].copy_from_slice(piece),
                Run::Spill { file, at, .. } => file.write_all_at(piece, at + done as u64)?,
                Run::Absent { .. } => {}
            }
            done += piece.len();
        }
        Ok(())
    }

    /// Receives up to `bytes` bytes into new slots. The new slots enter the table in the place of absent slots, or of
    /// slots that a clone also holds.
    fn receive_into_new(
        &mut self,
        session: &Session,
        arrival: &mut Arrival<'_>,
        bytes: usize,
    ) -> Result<(), RangeError> {
        let (offset, size) = (arrival.offset(), session.slot_size as usize);
        let within = (offset % size as u64) as usize;
        let taken = self.take(session, (within + bytes).div_ceil(size))?;
        let bytes = bytes.min(taken.count * size - within);
        match self.receive_new(session.id, arrival, &taken, within, bytes) {
            Ok(()) => session.insert(offset / size as u64, &taken),
            Err(e) => {
                session.give_back(&taken);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Receives `bytes` bytes into the slots `taken`, from offset `within` on. No table names these slots yet. If the
    /// slots may hold old bytes, sets the bytes before and after the received ones to zero.
    fn receive_new(
        &mut self,
        session: u64,
        arrival: &mut Arrival<'_>,
        taken: &Taken,
        within: usize,
        bytes: usize,
    ) -> Result<(), RangeError> {
        match &taken.run {
            Run::Memory { block, at, bytes: all } => {
                let slots = *at..*at + *all;
                if taken.reused {
                    let mut block = block.lock();
                    block[slots.clone()][..within].fill(0);
                    block[slots.clone()][within + bytes..].fill(0);
                }
                let end = arrival.done + bytes;
                while arrival.done < end {
                    let from = slots.start + within + bytes - (end - arrival.done);
                    let (piece, turn) = self.turns.take(session, end - arrival.done);
                    let before = arrival.done;
                    let got = arrival.attempt(&mut self.inbox, self.socket, &mut block.lock()[from..from + piece]);
                    Turn::end(turn, arrival.done - before);
                    if !got? {
                        arrival.progress.stalled(self.socket, Direction::Receive)?;
                    }
                }
                Ok(())
            }
            Run::Spill { file, at, bytes: all } => {
                if taken.reused {
                    self.zero(file, *at, within).map_err(not_written)?;
                    let tail = within + bytes;
                    self.zero(file, *at + tail as u64, *all - tail).map_err(not_written)?;
                }
                self.receive_spilled(arrival, file, *at + within as u64, bytes)
            }
            Run::Absent { .. } => Err(RangeError::NoSlot(NoSlot::Full)),
        }
    }

    fn receive_spilled(
        &mut self,
        arrival: &mut Arrival<'_>,
        file: &File,
        at: u64,
        bytes: usize,
    ) -> Result<(), RangeError> {
        self.bounce.resize(BOUNCE_BYTES, 0);
        let mut done = 0;
        while done < bytes {
            let into = &mut self.bounce[..BOUNCE_BYTES.min(bytes - done)];
            self.inbox.receive_all(self.socket, into, &mut arrival.progress)?;
            arrival.arrived(into);
            file.write_all_at(into, at + done as u64).map_err(not_written)?;
            done += into.len();
        }
        Ok(())
    }

    /// Receives the rest of a payload that could not be stored, and drops it.
    fn skip(&mut self, arrival: &mut Arrival<'_>) -> Result<(), LinkError> {
        self.bounce.resize(BOUNCE_BYTES, 0);
        while arrival.left() > 0 {
            let into = &mut self.bounce[..BOUNCE_BYTES.min(arrival.left())];
            self.inbox.receive_all(self.socket, into, &mut arrival.progress)?;
            arrival.arrived(into);
        }
        Ok(())
    }

    /// Reads `bytes` bytes of a spill file at offset `at` into the buffer, but at most [`BOUNCE_BYTES`]. Returns the
    /// bytes.
    fn load(&mut self, file: &File, at: u64, bytes: usize) -> io::Result<&[u8]> {
        self.bounce.resize(BOUNCE_BYTES, 0);
        let into = &mut self.bounce[..BOUNCE_BYTES.min(bytes)];
        file.read_exact_at(into, at)?;
        Ok(into)
    }

    fn zero(&mut self, file: &File, at: u64, bytes: usize) -> io::Result<()> {
        self.bounce.resize(BOUNCE_BYTES, 0);
        self.bounce.fill(0);
        let mut done = 0;
        while done < bytes {
            let piece = &self.bounce[..BOUNCE_BYTES.min(bytes - done)];
            file.write_all_at(piece, at + done as u64)?;
            done += piece.len();
        }
        Ok(())
    }
}

/// Converts an error of writing the spill file. A full disk becomes `NoSlot::Full`, so that the client keeps the page
/// and may send it to another server. On a file system that cannot claim space in advance, the disk may be full
/// although the slot was granted.
fn not_written(e: io::Error) -> RangeError {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    match e.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => RangeError::NoSlot(NoSlot::Full),
        _ => RangeError::Spill(e),
    }
}

/// Converts an error of reading the spill file after `sent` bytes of a DATA answer. Once part of the answer is sent, no
/// ERROR can follow, so the connection must end.
fn spill_failed(sent: usize, e: io::Error) -> RangeError {
    match sent {
        0 => RangeError::Spill(e),
        _ => RangeError::Link(LinkError::Io { what: "reading the spill file", source: e }),
    }
}

/// The payload of a WRITE while it arrives.
struct Arrival<'a> {
    request: &'a Header,
    done: usize,
    crc: Option<crc32fast::Hasher>,
    progress: Progress,
}

impl Arrival<'_> {
    fn left(&self) -> usize {
        self.request.length as usize - self.done
    }

    fn offset(&self) -> u64 {
        self.request.offset + self.done as u64
    }

    /// Receives into `into` without waiting. Returns whether any bytes had arrived.
    fn attempt(&mut self, inbox: &mut Inbox, socket: &Socket, into: &mut [u8]) -> Result<bool, LinkError> {
        match inbox.receive(socket, into)? {
            Some(n) => {
                self.arrived(&into[..n]);
                self.progress.moved();
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn arrived(&mut self, bytes: &[u8]) {
        self.done += bytes.len();
        if let Some(crc) = &mut self.crc {
            crc.update(bytes);
        }
    }
}
