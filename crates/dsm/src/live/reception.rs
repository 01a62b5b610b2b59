//! The door by which ranks come in while they meet.
//!
//! Many may stand at it at once, and nobody waits for another: whoever does not introduce itself in time, or says what no
//! rank says, is dropped. All connections here are non-blocking, and what is sent raises no SIGPIPE.

use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::net::sockopt;

use super::join::{HELLO_BYTES, Join};

/// Bytes that may follow an introduction: the port of a rank that comes by TCP.
pub(super) const MORE_BYTES: usize = 2;
/// Longest time that a connection may take to introduce itself, in seconds.
const HELLO: Duration = Duration::from_secs(3);
/// Connections that are heard at once beyond one for each rank; with more the oldest is dropped.
const CALLERS_SPARE: usize = 64;
/// Connections that are taken at a time, before those that are here are heard.
const TAKES_MAX: usize = 32;

/// Where connections come in.
pub(super) trait Door: AsFd {
    /// A connection that waits, non-blocking, and from which address. None for one that may not come in.
    fn open(&self) -> io::Result<Option<(OwnedFd, Option<IpAddr>)>>;
}

impl Door for TcpListener {
    fn open(&self) -> io::Result<Option<(OwnedFd, Option<IpAddr>)>> {
        let (stream, from) = self.accept()?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Some((stream.into(), Some(from.ip()))))
    }
}

impl Door for UnixListener {
    fn open(&self) -> io::Result<Option<(OwnedFd, Option<IpAddr>)>> {
        let (stream, _) = self.accept()?;
        stream.set_nonblocking(true)?;
        let stream = OwnedFd::from(stream);
        Ok(is_this_user(&stream)?.then_some((stream, None)))
    }
}

/// Whether this user is at the other end of a Unix socket. Root is another user too: ranks reach each other's memory
/// under /proc, which only works within one user.
pub(super) fn is_this_user(stream: &OwnedFd) -> io::Result<bool> {
    Ok(sockopt::socket_peercred(stream)?.uid == rustix::process::geteuid())
}

/// What a rank said when it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hello {
    pub(super) join: Join,
    pub(super) more: [u8; MORE_BYTES],
    pub(super) from: Option<IpAddr>,
}

/// A connection that has not said all yet.
struct Caller {
    stream: OwnedFd,
    from: Option<IpAddr>,
    since: Instant,
    bytes: [u8; HELLO_BYTES + MORE_BYTES],
    len: usize,
}

/// What became of a connection that was heard.
enum Heard {
    Waits,
    Stranger,
    Said(Join),
}

/// Those who stand at a door.
pub(super) struct Reception<'a, D> {
    door: &'a D,
    hello_bytes: usize,
    callers_max: usize,
    callers: Vec<Caller>,
}

impl<'a, D: Door> Reception<'a, D> {
    /// For ranks that introduce themselves in so many bytes.
    pub(super) fn new(door: &'a D, hello_bytes: usize, ranks: usize) -> Self {
        Self { door, hello_bytes, callers_max: ranks + CALLERS_SPARE, callers: Vec::new() }
    }

    /// The next rank that has introduced itself, within this time.
    ///
    /// # Errors
    /// When nobody can be let in for want of descriptors or memory.
    pub(super) fn next(&mut self, until: Instant) -> io::Result<Option<(Hello, OwnedFd)>> {
        loop {
            self.let_in()?;
            if let Some(said) = self.hear_all() {
                return Ok(Some(said));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            let mut fds = vec![PollFd::new(self.door, PollFlags::IN)];
            fds.extend(self.callers.iter().map(|caller| PollFd::new(&caller.stream, PollFlags::IN)));
            wait(&mut fds, until)?;
        }
    }

    /// Takes those who wait outside, as far as there is room.
    fn let_in(&mut self) -> io::Result<()> {
        for _ in 0..TAKES_MAX {
            match self.door.open() {
                Ok(Some((stream, from))) => {
                    if self.callers.len() >= self.callers_max {
                        self.callers.remove(0);
                    }
                    let (since, bytes) = (Instant::now(), [0; HELLO_BYTES + MORE_BYTES]);
                    self.callers.push(Caller { stream, from, since, bytes, len: 0 });
                }
                Ok(None) => {}
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN) => break,
                    // Without descriptors or memory whoever has waited longest makes room.
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) if !self.callers.is_empty() => {
                        self.callers.remove(0);
                    }
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => return Err(error),
                    // It is gone again; so accept(2) advises for all that a network may say.
                    _ => {}
                },
            }
        }
        Ok(())
    }

    /// Hears everyone who is here, until one has said all.
    fn hear_all(&mut self) -> Option<(Hello, OwnedFd)> {
        let now = Instant::now();
        let mut at = 0;
        while let Some(caller) = self.callers.get_mut(at) {
            match caller.hear(self.hello_bytes) {
                Heard::Waits if now.duration_since(caller.since) < HELLO => at += 1,
                Heard::Waits | Heard::Stranger => drop(self.callers.remove(at)),
                Heard::Said(join) => {
                    let Caller { stream, from, bytes, .. } = self.callers.remove(at);
                    let mut more = [0; MORE_BYTES];
                    more.copy_from_slice(&bytes[HELLO_BYTES..]);
                    return Some((Hello { join, more, from }, stream));
                }
            }
        }
        None
    }
}

impl Caller {
    fn hear(&mut self, hello_bytes: usize) -> Heard {
        match read(&self.stream, &mut self.bytes[self.len..hello_bytes]) {
            Ok(count) => self.len += count,
            Err(_) => return Heard::Stranger,
        }
        if self.len < hello_bytes {
            return Heard::Waits;
        }
        self.bytes.first_chunk().and_then(Join::decode).map_or(Heard::Stranger, Heard::Said)
    }
}

/// Reads what is there now; an error at the end.
fn read(stream: &OwnedFd, into: &mut [u8]) -> io::Result<usize> {
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

/// Reads what comes within this time, as far as there is room; an error at the end of the connection.
pub(super) fn hear(stream: &OwnedFd, into: &mut [u8], until: Instant) -> io::Result<usize> {
    let mut done = 0;
    loop {
        done += read(stream, &mut into[done..])?;
        if done == into.len() || Instant::now() >= until {
            return Ok(done);
        }
        wait(&mut [PollFd::new(stream, PollFlags::IN)], until)?;
    }
}

/// Sends all of it, within this time.
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

/// Waits until something is ready or the time is over; a signal may end it early.
fn wait(fds: &mut [PollFd<'_>], until: Instant) -> io::Result<()> {
    let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).map_err(io::Error::other)?;
    match poll(fds, Some(&left)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
