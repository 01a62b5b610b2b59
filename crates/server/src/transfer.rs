//! Moving ranges between a socket and slots: straight from and into slot memory, by way of a buffer for spilled slots.
//!
//! Slots are locked only for single nonblocking system calls. Whoever has to wait for the peer waits without a lock,
//! and looks the slot up again afterwards.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;

use hanare_wire::LinkError;
use hanare_wire::frame::{FLAG_PAYLOAD_CRC, HEADER_BYTES, Header, Kind};
use hanare_wire::handshake::send_coded;
use hanare_wire::inbox::Inbox;
use hanare_wire::socket::{Direction, Progress, Socket};

use crate::session::{Found, Session};
use crate::table::{Run, Taken};

/// Spilled bytes pass through a buffer of this size.
const BOUNCE_BYTES: usize = 256 << 10;
/// Acknowledgements that wait for each other at most.
const ACKS_BYTES: usize = 64 * HEADER_BYTES;

/// One connection's means of moving bytes.
pub(crate) struct Channel<'a> {
    pub(crate) socket: &'a Socket,
    pub(crate) inbox: Inbox,
    /// Whether ranges carry checksums.
    pub(crate) payload_crc: bool,
    bounce: Vec<u8>,
    /// DONE frames of small WRITEs that came together, to go out together.
    acks: Vec<u8>,
}

/// Why a range was not moved; unless it is `Link`, the connection goes on.
#[derive(Debug)]
pub(crate) enum RangeError {
    /// The connection failed.
    Link(LinkError),
    /// Some of it was never written.
    NotHeld,
    /// No slot is left.
    Full,
    /// The spill file failed.
    Spill(io::Error),
    /// The payload arrived damaged.
    Checksum,
}

impl From<LinkError> for RangeError {
    fn from(e: LinkError) -> RangeError {
        RangeError::Link(e)
    }
}

impl<'a> Channel<'a> {
    pub(crate) fn new(socket: &'a Socket, inbox: Inbox, payload_crc: bool) -> Channel<'a> {
        Channel { socket, inbox, payload_crc, bounce: Vec::new(), acks: Vec::with_capacity(ACKS_BYTES) }
    }

    /// Acknowledges a WRITE, at once or, when there may soon be more to acknowledge, by [`Channel::flush`].
    pub(crate) fn acknowledge(&mut self, tag: u64) -> Result<(), LinkError> {
        self.acks.extend_from_slice(&Header::bare(Kind::Done, tag).encode());
        if self.acks.len() + HEADER_BYTES > ACKS_BYTES { self.flush() } else { Ok(()) }
    }

    /// Sends the acknowledgements that wait.
    pub(crate) fn flush(&mut self) -> Result<(), LinkError> {
        if !self.acks.is_empty() {
            self.socket.send_all(&[IoSlice::new(&self.acks)])?;
            self.acks.clear();
        }
        Ok(())
    }

    /// Sends a small answer, after the acknowledgements of what came before.
    pub(crate) fn answer(&mut self, kind: Kind, tag: u64, code: u32, payload: &[u8]) -> Result<(), LinkError> {
        self.flush()?;
        send_coded(self.socket, kind, tag, code, payload)
    }

    /// Answers a READ with DATA. An error other than `Link` is found before anything is sent.
    pub(crate) fn send_range(&mut self, session: &Session, request: &Header) -> Result<(), RangeError> {
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
            let found = session.with_memory(request.offset + done as u64, left, |bytes| {
                let more = bytes.len() < left;
                match head {
                    [] => socket.send(&[IoSlice::new(bytes)], more),
                    _ => socket.send(&[IoSlice::new(head), IoSlice::new(bytes)], more),
                }
            });
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
        Ok(())
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

    /// Takes a WRITE's payload into slots. On an error other than `Link` the whole payload has been taken off the
    /// connection all the same.
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
        let found = session.with_memory(offset, arrival.left(), |into| arrival.attempt(inbox, socket, into));
        match found {
            Found::Memory(Ok(true)) => Ok(()),
            Found::Memory(Ok(false)) => Ok(arrival.progress.stalled(self.socket, Direction::Receive)?),
            Found::Memory(Err(e)) => Err(e.into()),
            Found::Spill { file, at, bytes } => self.receive_spilled(arrival, &file, at, bytes),
            Found::Absent { bytes } => {
                let size = session.slot_size as usize;
                let within = (offset % size as u64) as usize;
                let taken = session.take((within + bytes).div_ceil(size)).ok_or(RangeError::Full)?;
                let bytes = bytes.min(taken.count * size - within);
                match self.receive_new(arrival, &taken, within, bytes) {
                    Ok(()) => session.insert(offset / size as u64, &taken),
                    Err(e) => {
                        session.give_back(&taken);
                        return Err(e);
                    }
                }
                Ok(())
            }
        }
    }

    /// Fills slots that nobody can see yet: zeroes around the bytes that arrive, where old bytes may lie.
    fn receive_new(
        &mut self,
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
                    let to = slots.start + within + bytes;
                    let got = arrival.attempt(&mut self.inbox, self.socket, &mut block.lock()[from..to])?;
                    if !got {
                        arrival.progress.stalled(self.socket, Direction::Receive)?;
                    }
                }
                Ok(())
            }
            Run::Spill { file, at, bytes: all } => {
                if taken.reused {
                    self.zero(file, *at, within).map_err(RangeError::Spill)?;
                    let tail = within + bytes;
                    self.zero(file, *at + tail as u64, *all - tail).map_err(RangeError::Spill)?;
                }
                self.receive_spilled(arrival, file, *at + within as u64, bytes)
            }
            Run::Absent { .. } => Err(RangeError::Full),
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
            file.write_all_at(into, at + done as u64).map_err(RangeError::Spill)?;
            done += into.len();
        }
        Ok(())
    }

    /// Takes what is left of a payload that nothing can hold.
    fn skip(&mut self, arrival: &mut Arrival<'_>) -> Result<(), LinkError> {
        self.bounce.resize(BOUNCE_BYTES, 0);
        while arrival.left() > 0 {
            let into = &mut self.bounce[..BOUNCE_BYTES.min(arrival.left())];
            self.inbox.receive_all(self.socket, into, &mut arrival.progress)?;
            arrival.arrived(into);
        }
        Ok(())
    }

    /// Reads up to a buffer of spilled bytes.
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

/// A spill file that fails under way can no longer be answered with an ERROR: DATA has begun.
fn spill_failed(sent: usize, e: io::Error) -> RangeError {
    match sent {
        0 => RangeError::Spill(e),
        _ => RangeError::Link(LinkError::Io { what: "reading the spill file", source: e }),
    }
}

/// A payload on its way in.
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

    /// Receives what is there; says whether there was something.
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
