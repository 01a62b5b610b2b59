//! Accepts the connections of other ranks while the ranks meet.
//!
//! Many callers may connect at the same time, and no caller waits for another. A caller that sends no introduction in
//! time, or sends other bytes, is dropped. All connections here are non-blocking, and sending raises no SIGPIPE.

use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, sockopt};

use hanare_wire::Key;
use hanare_wire::peer::{self, Peer};
use hanare_wire::trust::{self, At};

use super::join::{HELLO_BYTES, Join};
use super::line::{HANDSHAKE_BYTES, Line};

/// Number of bytes that may follow an introduction. They are the port of a rank that connects by TCP.
pub(super) const MORE_BYTES: usize = 2;
/// Longest time that a connection may take to introduce itself.
const HELLO: Duration = Duration::from_secs(3);
/// Maximum number of open connections in addition to one for each rank. A further connection replaces the oldest one.
const CALLERS_SPARE: usize = 64;
/// Maximum number of connections that are accepted in a row, before the existing connections are read.
const TAKES_MAX: usize = 32;

/// A listening socket.
pub(super) trait Door: AsFd {
    /// Accepts a waiting connection and makes it non-blocking. Returns the connection with the caller's address.
    fn open(&self) -> io::Result<(OwnedFd, Option<IpAddr>)>;
}

impl Door for TcpListener {
    fn open(&self) -> io::Result<(OwnedFd, Option<IpAddr>)> {
        let (stream, from) = self.accept()?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok((stream.into(), Some(from.ip())))
    }
}

impl Door for UnixListener {
    fn open(&self) -> io::Result<(OwnedFd, Option<IpAddr>)> {
        let (stream, _) = self.accept()?;
        stream.set_nonblocking(true)?;
        Ok((stream.into(), None))
    }
}

/// The proof by which the other end of a connection may be a rank.
#[derive(Clone, Copy)]
pub(super) enum Guard<'a> {
    /// It must prove that it holds the key.
    Key(&'a Key),
    /// It must belong to this user on this host.
    User,
    /// Nothing: the network is trusted.
    Trust,
}

impl<'a> Guard<'a> {
    pub(super) fn key(self) -> Option<&'a Key> {
        if let Guard::Key(key) = self { Some(key) } else { None }
    }

    /// Checks what can be known of the other end of a connection before it says anything. Root counts as another user,
    /// because ranks reach each other's memory under `/proc`, which works only within one user. The kernel is asked
    /// whatever the addresses are: a connection to loopback may come from any address of this host.
    pub(super) fn may_be_rank(self, stream: &OwnedFd) -> io::Result<bool> {
        if !matches!(self, Guard::User) {
            return Ok(true);
        }
        match inet_ends(stream) {
            Ok(None) => Ok(trust::is_own(sockopt::socket_peercred(stream)?.uid.as_raw(), At::Path)),
            Ok(Some(ends)) => Ok(matches!(peer::user_of(ends)?, Peer::User(user) if trust::is_own(user, At::Port))),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Returns the ends of a TCP connection. `None` if this is a Unix socket.
fn inet_ends(stream: &OwnedFd) -> io::Result<Option<peer::Ends>> {
    let own = rustix::net::getsockname(stream)?;
    if own.address_family() == AddressFamily::UNIX {
        return Ok(None);
    }
    let peer = rustix::net::getpeername(stream)?.ok_or(io::ErrorKind::NotConnected)?;
    Ok(Some(peer::Ends { own: own.try_into()?, peer: peer.try_into()? }))
}

/// A rank's introduction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hello {
    pub(super) join: Join,
    pub(super) more: [u8; MORE_BYTES],
    pub(super) from: Option<IpAddr>,
}

/// A connection whose introduction is not complete yet.
struct Caller {
    line: Line,
    from: Option<IpAddr>,
    since: Instant,
    /// The bytes of the handshake, and after it those of the introduction.
    bytes: [u8; SAID_BYTES],
    len: usize,
}

const SAID_BYTES: usize =
    if HANDSHAKE_BYTES > HELLO_BYTES + MORE_BYTES { HANDSHAKE_BYTES } else { HELLO_BYTES + MORE_BYTES };

/// The result of reading a connection.
enum Heard {
    Waits,
    Stranger,
    Said(Join),
}

/// The callers at a listening socket, until they have introduced themselves.
pub(super) struct Reception<'a, D> {
    door: &'a D,
    guard: Guard<'a>,
    hello_bytes: usize,
    callers_max: usize,
    callers: Vec<Caller>,
}

impl<'a, D: Door> Reception<'a, D> {
    /// Makes a reception for ranks whose introduction has `hello_bytes` bytes. Only callers that `guard` lets in are
    /// heard.
    pub(super) fn new(door: &'a D, guard: Guard<'a>, hello_bytes: usize, ranks: usize) -> Self {
        Self { door, guard, hello_bytes, callers_max: ranks + CALLERS_SPARE, callers: Vec::new() }
    }

    /// Returns the next rank that introduces itself before `until`. `None` if no rank does so.
    ///
    /// # Errors
    /// No connection can be accepted, because descriptors or memory are short.
    pub(super) fn next(&mut self, until: Instant) -> io::Result<Option<(Hello, Line)>> {
        loop {
            self.let_in()?;
            if let Some(said) = self.hear_all() {
                return Ok(Some(said));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            let mut fds = vec![PollFd::new(self.door, PollFlags::IN)];
            fds.extend(self.callers.iter().map(|caller| PollFd::new(&caller.line.stream, PollFlags::IN)));
            wait(&mut fds, until)?;
        }
    }

    /// Accepts the waiting connections. If there are too many callers, drops the oldest caller.
    fn let_in(&mut self) -> io::Result<()> {
        for _ in 0..TAKES_MAX {
            match self.door.open().and_then(|(stream, from)| Ok((self.guard.may_be_rank(&stream)?, stream, from))) {
                Ok((true, stream, from)) => {
                    if self.callers.len() >= self.callers_max {
                        self.callers.remove(0);
                    }
                    let (line, since) = (Line::plain(stream), Instant::now());
                    self.callers.push(Caller { line, from, since, bytes: [0; SAID_BYTES], len: 0 });
                }
                Ok((false, ..)) => {}
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN) => break,
                    // If descriptors or memory are short, the oldest caller is dropped to free some.
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) if !self.callers.is_empty() => {
                        self.callers.remove(0);
                    }
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => return Err(error),
                    // The caller is gone. accept(2) advises to continue after any network error.
                    _ => {}
                },
            }
        }
        Ok(())
    }

    /// Reads from all callers, until one introduction is complete.
    fn hear_all(&mut self) -> Option<(Hello, Line)> {
        let now = Instant::now();
        let mut at = 0;
        while let Some(caller) = self.callers.get_mut(at) {
            match caller.hear(self.guard.key(), self.hello_bytes) {
                Heard::Waits if now.duration_since(caller.since) < HELLO => at += 1,
                Heard::Waits | Heard::Stranger => drop(self.callers.remove(at)),
                Heard::Said(join) => {
                    let Caller { line, from, bytes, .. } = self.callers.remove(at);
                    let mut more = [0; MORE_BYTES];
                    more.copy_from_slice(&bytes[HELLO_BYTES..][..MORE_BYTES]);
                    return Some((Hello { join, more, from }, line));
                }
            }
        }
        None
    }
}

impl Caller {
    fn hear(&mut self, key: Option<&Key>, hello_bytes: usize) -> Heard {
        if let (Some(key), None) = (key, &self.line.ends) {
            match self.take(HANDSHAKE_BYTES) {
                Ok(true) => {}
                Ok(false) => return Heard::Waits,
                Err(_) => return Heard::Stranger,
            }
            let is_answered = self.bytes.first_chunk().is_some_and(|frame| self.line.answer(key, frame).is_ok());
            if !is_answered {
                return Heard::Stranger;
            }
            self.len = 0;
        }
        match self.take(hello_bytes) {
            Ok(true) => {}
            Ok(false) => return Heard::Waits,
            Err(_) => return Heard::Stranger,
        }
        self.bytes.first_chunk().and_then(Join::decode).map_or(Heard::Stranger, Heard::Said)
    }

    /// Reads what has arrived. Returns whether `count` bytes are there.
    fn take(&mut self, count: usize) -> io::Result<bool> {
        self.len += self.line.read(&mut self.bytes[self.len..count])?;
        Ok(self.len == count)
    }
}

/// Reads the bytes that have arrived. Fails at the end of the connection.
pub(super) fn read(stream: &OwnedFd, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match rustix::io::read(stream, &mut into[done..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(done)
}

/// Reads until `into` is full or `until` has passed. Returns the number of bytes. Fails at the end of the connection.
pub(super) fn hear(stream: &OwnedFd, into: &mut [u8], until: Instant) -> io::Result<usize> {
    let mut done = 0;
    loop {
        done += read(stream, &mut into[done..])?;
        if done == into.len() || Instant::now() >= until {
            return Ok(done);
        }
        wait_readable(stream, until)?;
    }
}

/// Sends all bytes before `until`.
pub(super) fn say(stream: &OwnedFd, bytes: &[u8], until: Instant) -> io::Result<()> {
    let mut left = bytes;
    while !left.is_empty() {
        match rustix::net::send(stream, left, SendFlags::NOSIGNAL) {
            Ok(count) => left = &left[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() < until => wait(&mut [PollFd::new(stream, PollFlags::OUT)], until)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Waits until the connection is readable or `until` has passed.
pub(super) fn wait_readable(stream: &OwnedFd, until: Instant) -> io::Result<()> {
    wait(&mut [PollFd::new(stream, PollFlags::IN)], until)
}

/// Waits until a descriptor is ready or `until` has passed. A signal may end the wait early.
fn wait(fds: &mut [PollFd<'_>], until: Instant) -> io::Result<()> {
    let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).map_err(io::Error::other)?;
    match poll(fds, Some(&left)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
