//! One connection from its welcome to its end: frames in, answers out, in order.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hanare_wire::frame::{Header, Kind};
use hanare_wire::inbox::{Inbox, check_payload};
use hanare_wire::limits::CONTROL_MAX;
use hanare_wire::payload::{GRANT_REQUEST_BYTES, Grant};
use hanare_wire::socket::{Progress, Socket};
use hanare_wire::{ATTACHED_SPILL, ErrorCode, LinkError, Text};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::greeting::{FAREWELL, Guest};
use crate::host::{HostSession, ReturnError};
use crate::registry::{Membership, Registry};
use crate::session::Session;
use crate::shared::{Spinners, Stop, Store};
use crate::transfer::{Channel, RangeError};

/// What every connection of a server uses.
pub(crate) struct House {
    pub(crate) store: Arc<Store>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) spinners: Spinners,
    /// How long a connection looks for the next request before it sleeps.
    pub(crate) spin: Duration,
}

/// How serving went on after one frame.
enum Served {
    /// Answered.
    Fine,
    /// The peer broke the protocol; it is told, and the connection ends.
    Broken { tag: u64, code: ErrorCode, text: &'static str },
}

/// Serves a welcomed connection until its peer goes, breaks the protocol, or the server stops.
pub(crate) fn serve(house: &House, socket: &Socket, inbox: Inbox, guest: Guest) -> Result<(), LinkError> {
    let (payload_crc, mut role) = match guest {
        Guest::Session { membership, payload_crc } => (payload_crc, Serving::Session(membership)),
        Guest::Control => (false, Serving::Control),
        Guest::Host(session) => (false, Serving::Host(session)),
    };
    let mut channel = Channel::new(socket, inbox, payload_crc);
    loop {
        let header = match next_header(house, &mut channel) {
            Ok(Some(header)) => header,
            Ok(None) => {
                socket.finish(FAREWELL);
                return Ok(());
            }
            Err(LinkError::Closed) => return Ok(()),
            Err(e @ (LinkError::Garbage { .. } | LinkError::Version { .. })) => {
                farewell(&mut channel, 0, ErrorCode::BadFrame, &e.to_string());
                return Err(e);
            }
            Err(e) => return Err(e),
        };
        if let Served::Broken { tag, code, text } = role.serve(house, &mut channel, &header)? {
            farewell(&mut channel, tag, code, text);
            return Err(LinkError::Server { tag, code, text: Text::new(text) });
        }
    }
}

fn farewell(channel: &mut Channel<'_>, tag: u64, code: ErrorCode, text: &str) {
    let text = Text::new(text);
    let said = channel.answer(Kind::Error, tag, code as u32, text.as_str().as_bytes());
    if said.and_then(|()| channel.flush()).is_ok() {
        channel.socket.finish(FAREWELL);
    }
}

/// The next request; `None` when the server stops and nothing more has arrived.
fn next_header(house: &House, channel: &mut Channel<'_>) -> Result<Option<Header>, LinkError> {
    loop {
        if let Some(header) = channel.inbox.header()? {
            if channel.inbox.waiting() < header.payload_bytes() {
                channel.flush()?;
            }
            return Ok(Some(header));
        }
        channel.flush()?;
        if channel.inbox.fill(channel.socket)?.is_some() {
            continue;
        }
        if house.stop.is_stopping() {
            return Ok(None);
        }
        if house.spinners.run(|| spin(house.spin, channel)).transpose()?.is_none() {
            sleep(house, channel.socket)?;
        }
    }
}

/// Looks for bytes for a while; something when there were some, or the connection failed.
fn spin(time: Duration, channel: &mut Channel<'_>) -> Option<Result<usize, LinkError>> {
    let start = Instant::now();
    while start.elapsed() < time {
        for _ in 0..8 {
            if let Some(found) = channel.inbox.fill(channel.socket).transpose() {
                return Some(found);
            }
            std::hint::spin_loop();
        }
    }
    None
}

/// Sleeps until the peer sends something or the server is to stop.
fn sleep(house: &House, socket: &Socket) -> Result<(), LinkError> {
    let mut ready = [PollFd::new(socket, PollFlags::IN), PollFd::new(&*house.stop, PollFlags::IN)];
    match rustix::event::poll(&mut ready, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(LinkError::Io { what: "waiting for requests", source: e.into() }),
    }
}

/// What a connection may ask for.
enum Serving {
    Session(Membership),
    Control,
    Host(Box<HostSession>),
}

impl Serving {
    fn serve(&mut self, house: &House, channel: &mut Channel<'_>, header: &Header) -> Result<Served, LinkError> {
        match (self, header.kind) {
            (_, Kind::Ping) => channel.answer(Kind::Pong, header.tag, 0, &[])?,
            (_, Kind::Status) => {
                let status = house.store.status(house.registry.count()).encode();
                channel.answer(Kind::StatusReply, header.tag, 0, &status)?;
            }
            (Serving::Session(member), Kind::Read) => return read(house, channel, member.session(), header),
            (Serving::Session(member), Kind::Write) => return write(house, channel, member.session(), header),
            (Serving::Session(member), Kind::Discard) => {
                if !header.names_valid_range() {
                    return answer(channel, header, ErrorCode::BadRange, BAD_RANGE);
                }
                member.session().discard(header.offset, u64::from(header.length));
                channel.answer(Kind::Done, header.tag, 0, &[])?;
            }
            (Serving::Host(session), Kind::Attach) => attach(channel, session, header.tag)?,
            (Serving::Host(session), Kind::GrantRequest) => return grant(channel, session, header),
            (Serving::Host(session), Kind::Return) => return take_back(channel, session, header),
            _ => {
                let text = "this frame does not belong on this connection";
                return Ok(Served::Broken { tag: header.tag, code: ErrorCode::NotAllowed, text });
            }
        }
        Ok(Served::Fine)
    }
}

const BAD_RANGE: &str = "a range is whole 4 KiB units within the limits";

/// Answers a request with an ERROR that leaves the connection usable.
fn answer(channel: &mut Channel<'_>, header: &Header, code: ErrorCode, text: &str) -> Result<Served, LinkError> {
    channel.answer(Kind::Error, header.tag, code as u32, Text::new(text).as_str().as_bytes())?;
    Ok(Served::Fine)
}

/// Answers a request about a range that could not be moved.
fn answer_range(channel: &mut Channel<'_>, header: &Header, e: RangeError) -> Result<Served, LinkError> {
    match e {
        RangeError::Link(e) => Err(e),
        RangeError::NotHeld => answer(channel, header, ErrorCode::NotHeld, "this session never wrote that range"),
        RangeError::Full => answer(channel, header, ErrorCode::Full, "memory and spill space are used up"),
        RangeError::Spill(e) => answer(channel, header, ErrorCode::Spill, &e.to_string()),
        RangeError::Checksum => {
            let text = "a WRITE does not match its checksum";
            Ok(Served::Broken { tag: header.tag, code: ErrorCode::Checksum, text })
        }
    }
}

fn read(house: &House, channel: &mut Channel<'_>, session: &Session, header: &Header) -> Result<Served, LinkError> {
    if !header.names_valid_range() {
        return answer(channel, header, ErrorCode::BadRange, BAD_RANGE);
    }
    match channel.send_range(session, header) {
        Ok(()) => {
            house.store.stats.read_bytes.fetch_add(u64::from(header.length), Relaxed);
            Ok(Served::Fine)
        }
        Err(e) => answer_range(channel, header, e),
    }
}

fn write(house: &House, channel: &mut Channel<'_>, session: &Session, header: &Header) -> Result<Served, LinkError> {
    if channel.payload_crc && !header.has_payload_crc() {
        let text = "a WRITE without the checksum that was agreed";
        return Ok(Served::Broken { tag: header.tag, code: ErrorCode::BadFrame, text });
    }
    match channel.receive_range(session, header) {
        Ok(()) => {
            house.store.stats.write_bytes.fetch_add(u64::from(header.length), Relaxed);
            channel.answer(Kind::Done, header.tag, 0, &[])?;
            Ok(Served::Fine)
        }
        Err(e) => answer_range(channel, header, e),
    }
}

fn attach(channel: &mut Channel<'_>, session: &HostSession, tag: u64) -> Result<(), LinkError> {
    channel.flush()?;
    let mut files = vec![session.memfd()];
    files.extend(session.spill());
    let code = if files.len() > 1 { ATTACHED_SPILL } else { 0 };
    let frame = Header { code, ..Header::bare(Kind::Attached, tag) };
    channel.socket.send_files(&frame.encode(), &files)
}

/// Receives a request's small payload.
fn payload<'a>(
    channel: &mut Channel<'_>,
    header: &Header,
    into: &'a mut [u8; CONTROL_MAX],
) -> Result<&'a [u8], LinkError> {
    // The codec bounds these kinds' payloads by CONTROL_MAX.
    let into = &mut into[..header.payload_bytes().min(CONTROL_MAX)];
    channel.inbox.receive_all(channel.socket, into, &mut Progress::of(channel.socket))?;
    check_payload(header, into)?;
    Ok(into)
}

fn grant(channel: &mut Channel<'_>, session: &mut HostSession, header: &Header) -> Result<Served, LinkError> {
    let mut space = [0; CONTROL_MAX];
    let wanted = match <[u8; GRANT_REQUEST_BYTES]>::try_from(payload(channel, header, &mut space)?) {
        Ok(wanted) => u32::from_le_bytes(wanted),
        Err(_) => return Ok(no_sense(header)),
    };
    if wanted == 0 {
        return Ok(no_sense(header));
    }
    let runs = session.grant(wanted);
    if runs.is_empty() {
        return answer(channel, header, ErrorCode::Full, "memory and spill space are used up");
    }
    let bytes: Vec<u8> = runs.iter().flat_map(Grant::encode).collect();
    channel.answer(Kind::Grant, header.tag, 0, &bytes)?;
    Ok(Served::Fine)
}

fn take_back(channel: &mut Channel<'_>, session: &mut HostSession, header: &Header) -> Result<Served, LinkError> {
    let mut space = [0; CONTROL_MAX];
    let Some(run) = Grant::decode(payload(channel, header, &mut space)?) else {
        return Ok(no_sense(header));
    };
    match session.take_back(run) {
        Ok(()) => channel.answer(Kind::Done, header.tag, 0, &[])?,
        Err(ReturnError::NotGranted) => {
            return answer(channel, header, ErrorCode::BadRange, "that run of slots was not granted");
        }
        Err(ReturnError::Punch(e)) => return answer(channel, header, ErrorCode::Spill, &e.to_string()),
    }
    Ok(Served::Fine)
}

fn no_sense(header: &Header) -> Served {
    let text = "a request whose payload makes no sense";
    Served::Broken { tag: header.tag, code: ErrorCode::BadFrame, text }
}
