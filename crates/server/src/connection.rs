//! Serves one connection from the end of its handshake until it closes. Answers requests in the order of their arrival.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hanare_wire::frame::{Header, Kind};
use hanare_wire::handshake::control_header;
use hanare_wire::inbox::{Inbox, check_payload};
use hanare_wire::limits::CONTROL_MAX;
use hanare_wire::payload::{GRANT_REQUEST_BYTES, Grant, SERVER_ID_BYTES};
use hanare_wire::socket::{Progress, Socket};
use hanare_wire::{ATTACHED_SPILL, ErrorCode, LinkError, SESSIONS_PER_REPLY, Status, Text};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::account::Account;
use crate::blame::what_it_did;
use crate::greeting::{CLOSING_WAIT, Guest};
use crate::host::{HostSession, ReturnError};
use crate::polling::{Pace, Spinners};
use crate::pool::NoSlot;
use crate::registry::{Membership, Registry};
use crate::session::Session;
use crate::shared::{Stop, Store};
use crate::transfer::{Channel, RangeError};
use crate::turns::Turns;

/// The parts of a server that all its connections use.
pub(crate) struct ServerState {
    pub(crate) store: Arc<Store>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) stop: Arc<Stop>,
    /// The outer end of the door: a socket pair through which clients of this host open further connections. The server
    /// sends this end to each same-host client.
    pub(crate) door: OwnedFd,
    pub(crate) spinners: Spinners,
    pub(crate) turns: Turns,
    /// The longest time for which a connection's thread polls for the next request before it sleeps.
    pub(crate) spin: Duration,
    /// The server's identity.
    pub(crate) server_id: [u8; SERVER_ID_BYTES],
    /// Whether sessions are kept when the server stops.
    pub(crate) keeps: bool,
}

impl ServerState {
    /// Returns the state of the server, as clients get it.
    pub(crate) fn status(&self) -> Status {
        let [a, b, c, d, e, f, g, h, ..] = self.server_id;
        let server_id = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        Status { server_id, ..self.store.status(self.registry.count()) }
    }
}

/// What the server does after it has served one frame.
enum Served {
    /// The request was answered.
    Fine,
    /// The peer broke the protocol. The server sends it this error and closes the connection.
    Broken { tag: u64, code: ErrorCode, text: &'static str },
}

/// Serves a connection after its handshake, until the peer closes it or breaks the protocol, or the server stops. If
/// the server ends the connection because it stops, it keeps the connection's session.
pub(crate) fn serve(state: &ServerState, socket: &Socket, inbox: Inbox, guest: Guest) -> Result<(), LinkError> {
    let (payload_crc, mut role) = match guest {
        Guest::Session { membership, payload_crc } => (payload_crc, Serving::Session(membership)),
        Guest::Control => (false, Serving::Control),
        Guest::Host(session) => (false, Serving::Host(session)),
    };
    let mut channel = Channel::new(socket, inbox, payload_crc, &state.turns, &state.registry);
    let ended = serve_all(state, &mut channel, &mut role);
    if state.stop.severs() {
        role.keep(state);
    }
    ended
}

fn serve_all(state: &ServerState, channel: &mut Channel<'_>, role: &mut Serving) -> Result<(), LinkError> {
    let mut pace = Pace::new(state.spin);
    loop {
        let header = match next_header(state, channel, &mut pace) {
            Ok(Some(header)) => header,
            Ok(None) => {
                role.server_stops();
                channel.socket.finish(CLOSING_WAIT);
                // A client that waits for the server's return leaves its end open.
                if channel.socket.is_open() {
                    role.keep(state);
                }
                return Ok(());
            }
            Err(LinkError::Closed | LinkError::TimedOut) => return Ok(()),
            Err(e @ (LinkError::Garbage { .. } | LinkError::Version { .. })) => {
                farewell(channel, 0, ErrorCode::BadFrame, &format!("this client {}", what_it_did(&e)));
                return Err(e);
            }
            Err(e) => return Err(e),
        };
        if !role.goes_on() {
            return Ok(());
        }
        if let Served::Broken { tag, code, text } = role.serve(state, channel, &header)? {
            farewell(channel, tag, code, text);
            return Err(LinkError::Server { tag, code, text: Text::new(text) });
        }
    }
}

fn farewell(channel: &mut Channel<'_>, tag: u64, code: ErrorCode, text: &str) {
    let text = Text::new(text);
    let said = channel.answer(Kind::Error, tag, code as u32, text.as_str().as_bytes());
    if said.and_then(|()| channel.flush()).is_ok() {
        channel.socket.finish(CLOSING_WAIT);
    }
}

/// Returns the next request, or `None` when the server stops and no further request has arrived.
fn next_header(state: &ServerState, channel: &mut Channel<'_>, pace: &mut Pace) -> Result<Option<Header>, LinkError> {
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
        if state.stop.is_stopping() {
            return Ok(None);
        }
        let since = Instant::now();
        let arrived = state.spinners.poll(pace.time(), || channel.inbox.fill(channel.socket).transpose());
        if arrived.transpose()?.is_none() {
            sleep(state, channel.socket)?;
        }
        pace.note(since.elapsed());
    }
}

/// Sleeps until bytes arrive from the peer or the server stops.
fn sleep(state: &ServerState, socket: &Socket) -> Result<(), LinkError> {
    let mut ready = [PollFd::new(socket, PollFlags::IN), PollFd::new(&*state.stop, PollFlags::IN)];
    match rustix::event::poll(&mut ready, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(LinkError::Io { what: "waiting for requests", source: e.into() }),
    }
}

/// The role of a connection, which decides what its peer may ask for.
enum Serving {
    Session(Membership),
    Control,
    Host(Box<HostSession>),
}

impl Serving {
    /// Prepares for the stop of the server. A same-host session's files keep their bytes, because the client may use
    /// them until it notices the stop.
    fn server_stops(&mut self) {
        if let Serving::Host(session) = self {
            session.leave_files();
        }
    }

    /// Holds the connection's session for the time after this server, if sessions are kept.
    fn keep(&self, state: &ServerState) {
        if let (Serving::Session(member), true) = (self, state.keeps) {
            member.keep();
        }
    }

    /// Checks whether the request that has arrived may be served. It may not if a newer connection has taken the
    /// session over.
    fn goes_on(&self) -> bool {
        let Serving::Session(member) = self else { return true };
        member.note_request();
        member.is_current()
    }

    fn account(&self) -> Option<&Account> {
        match self {
            Serving::Session(member) => Some(member.session().account()),
            Serving::Host(session) => Some(session.account()),
            Serving::Control => None,
        }
    }

    fn serve(&mut self, state: &ServerState, channel: &mut Channel<'_>, header: &Header) -> Result<Served, LinkError> {
        match (self, header.kind) {
            (role, Kind::Ping) => {
                let left = role.account().map_or(0, |account| state.store.capacity_bytes(account));
                done(channel, Kind::Pong, header.tag, left)?;
            }
            (_, Kind::Status) => {
                let status = state.status().encode();
                channel.answer(Kind::StatusReply, header.tag, 0, &status)?;
            }
            (_, Kind::Sessions) => {
                let sessions = state.registry.list(header.offset, SESSIONS_PER_REPLY);
                let bytes: Vec<u8> = sessions.iter().flat_map(|session| session.encode()).collect();
                channel.answer(Kind::SessionsReply, header.tag, 0, &bytes)?;
            }
            (Serving::Session(member), Kind::Read) => return read(state, channel, member.session(), header),
            (Serving::Session(member), Kind::Write) => return write(state, channel, member.session(), header),
            (Serving::Session(member), Kind::Discard) => {
                if !header.names_valid_range() {
                    return answer(channel, header, ErrorCode::BadRange, BAD_RANGE);
                }
                member.session().discard(header.offset, u64::from(header.length));
                done(channel, Kind::Done, header.tag, state.store.capacity_hint(member.session().account()))?;
            }
            (Serving::Host(session), Kind::Attach) => attach(state, channel, session, header.tag)?,
            (Serving::Host(session), Kind::GrantRequest) => return grant(state, channel, session, header),
            (Serving::Host(session), Kind::Return) => return take_back(state, channel, session, header),
            _ => {
                let text = "this frame does not belong on this connection";
                return Ok(Served::Broken { tag: header.tag, code: ErrorCode::NotAllowed, text });
            }
        }
        Ok(Served::Fine)
    }
}

/// Acknowledges a request. The answer says how many more bytes the server could store for the session.
fn done(channel: &mut Channel<'_>, kind: Kind, tag: u64, capacity_left: u64) -> Result<(), LinkError> {
    channel.answer_with(Header { offset: capacity_left, ..Header::bare(kind, tag) }, &[])
}

const BAD_RANGE: &str = "a range is whole units of 512 bytes within the limits";

const FULL: &str = "memory and spill space are used up";
const OVER_QUOTA: &str = "this client holds as much as --client-quota allows";

/// Answers a request with an ERROR that leaves the connection usable.
fn answer(channel: &mut Channel<'_>, header: &Header, code: ErrorCode, text: &str) -> Result<Served, LinkError> {
    channel.answer(Kind::Error, header.tag, code as u32, Text::new(text).as_str().as_bytes())?;
    Ok(Served::Fine)
}

/// Reports the failed transfer of a range. If the connection can go on, sends the client an ERROR. Otherwise returns
/// how the connection ends.
fn answer_range(channel: &mut Channel<'_>, header: &Header, e: RangeError) -> Result<Served, LinkError> {
    match e {
        RangeError::Link(e) => Err(e),
        RangeError::NotHeld => answer(channel, header, ErrorCode::NotHeld, "this session never wrote that range"),
        RangeError::NoSlot(NoSlot::Full) => answer(channel, header, ErrorCode::Full, FULL),
        RangeError::NoSlot(NoSlot::OverQuota) => answer(channel, header, ErrorCode::OverQuota, OVER_QUOTA),
        RangeError::Spill(e) => answer(channel, header, ErrorCode::Spill, &e.to_string()),
        RangeError::Checksum => {
            let text = "a WRITE does not match its checksum";
            Ok(Served::Broken { tag: header.tag, code: ErrorCode::Checksum, text })
        }
    }
}

fn read(
    state: &ServerState,
    channel: &mut Channel<'_>,
    session: &Session,
    header: &Header,
) -> Result<Served, LinkError> {
    state.turns.note(session.id);
    if !header.names_valid_range() {
        return answer(channel, header, ErrorCode::BadRange, BAD_RANGE);
    }
    match channel.send_range(session, header) {
        Ok(()) => {
            state.store.stats.read.add(u64::from(header.length));
            session.account().read.add(u64::from(header.length));
            Ok(Served::Fine)
        }
        Err(e) => answer_range(channel, header, e),
    }
}

fn write(
    state: &ServerState,
    channel: &mut Channel<'_>,
    session: &Session,
    header: &Header,
) -> Result<Served, LinkError> {
    state.turns.note(session.id);
    if channel.payload_crc && !header.has_payload_crc() {
        let text = "a WRITE without the checksum that was agreed";
        return Ok(Served::Broken { tag: header.tag, code: ErrorCode::BadFrame, text });
    }
    match channel.receive_range(session, header) {
        Ok(()) => {
            state.store.stats.write.add(u64::from(header.length));
            session.account().write.add(u64::from(header.length));
            done(channel, Kind::Done, header.tag, state.store.capacity_hint(session.account()))?;
            Ok(Served::Fine)
        }
        Err(e) => answer_range(channel, header, e),
    }
}

fn attach(state: &ServerState, channel: &mut Channel<'_>, session: &HostSession, tag: u64) -> Result<(), LinkError> {
    channel.flush()?;
    let mut files = vec![session.memfd(), state.door.as_fd()];
    files.extend(session.spill());
    let code = if session.spill().is_some() { ATTACHED_SPILL } else { 0 };
    let frame = Header { code, ..Header::bare(Kind::Attached, tag) };
    channel.socket.send_files(&frame.encode(), &files)
}

/// Receives a request's payload, of at most [`CONTROL_MAX`] bytes, and checks its checksum.
fn payload<'a>(
    channel: &mut Channel<'_>,
    header: &Header,
    into: &'a mut [u8; CONTROL_MAX],
) -> Result<&'a [u8], LinkError> {
    // The codec refuses a control frame with a payload of more than CONTROL_MAX bytes, so `min` cuts nothing off.
    let into = &mut into[..header.payload_bytes().min(CONTROL_MAX)];
    channel.inbox.receive_all(channel.socket, into, &mut Progress::of(channel.socket))?;
    check_payload(header, into)?;
    Ok(into)
}

fn grant(
    state: &ServerState,
    channel: &mut Channel<'_>,
    session: &mut HostSession,
    header: &Header,
) -> Result<Served, LinkError> {
    let mut space = [0; CONTROL_MAX];
    let wanted = match <[u8; GRANT_REQUEST_BYTES]>::try_from(payload(channel, header, &mut space)?) {
        Ok(wanted) => u32::from_le_bytes(wanted),
        Err(_) => return Ok(no_sense(header)),
    };
    if wanted == 0 {
        return Ok(no_sense(header));
    }
    if session.account().slots_allowed() == 0 {
        return answer(channel, header, ErrorCode::OverQuota, OVER_QUOTA);
    }
    let mut runs = session.grant(wanted);
    if runs.is_empty() && state.registry.await_ending() {
        runs = session.grant(wanted);
    }
    if runs.is_empty() {
        return answer(channel, header, ErrorCode::Full, FULL);
    }
    let bytes: Vec<u8> = runs.iter().flat_map(Grant::encode).collect();
    let offset = state.store.capacity_hint(session.account());
    channel.answer_with(Header { offset, ..control_header(Kind::Grant, header.tag, 0, &bytes) }, &bytes)?;
    Ok(Served::Fine)
}

fn take_back(
    state: &ServerState,
    channel: &mut Channel<'_>,
    session: &mut HostSession,
    header: &Header,
) -> Result<Served, LinkError> {
    let mut space = [0; CONTROL_MAX];
    let runs: Option<Vec<Grant>> =
        Grant::decode_runs(payload(channel, header, &mut space)?).and_then(Iterator::collect);
    let Some(runs) = runs else { return Ok(no_sense(header)) };
    for run in runs {
        match session.take_back(run) {
            Ok(()) => {}
            Err(ReturnError::NotGranted) => {
                return answer(channel, header, ErrorCode::BadRange, "that run of slots was not granted");
            }
            Err(ReturnError::Punch(e)) => return answer(channel, header, ErrorCode::Spill, &e.to_string()),
        }
    }
    done(channel, Kind::Done, header.tag, state.store.capacity_hint(session.account()))?;
    Ok(Served::Fine)
}

fn no_sense(header: &Header) -> Served {
    let text = "a request whose payload makes no sense";
    Served::Broken { tag: header.tag, code: ErrorCode::BadFrame, text }
}
