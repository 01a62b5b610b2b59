//! Connected nonblocking stream sockets, and limits on how long a transfer waits for its peer.
//!
//! The functions allocate nothing and make only async-signal-safe system calls. [`Socket::new`] and the functions that
//! pass files are exceptions. They run only while a link is set up.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hanare_sys::link::{self, Ready};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sockopt,
};

use crate::descriptors::kept;
use crate::error::LinkError;
use crate::limits::{LOOPBACK_BUFFER_BYTES, PIECES_MAX, POLL_MAX, POLL_MIN, SOCKET_BUFFER_BYTES};
use crate::patience::{LONGER_MAX, note_cpus, patience};
use crate::records::Sealer;

/// The maximum number of pieces sent in one system call.
const SENT_PIECES_MAX: usize = 32;
/// The maximum number of files passed in one message.
const FILES_MAX: usize = 3;
/// The difference between TCP_USER_TIMEOUT and the longest time that a transfer may make no progress. TCP_USER_TIMEOUT
/// is longer, so a stalled transfer fails before TCP ends the connection.
const TCP_GRACE: Duration = Duration::from_secs(1);
/// Idle time after which TCP probes the peer, and the time between probes.
const TCP_PROBE: Duration = Duration::from_secs(1);
/// Unanswered probes after which an idle TCP link counts as dead.
const TCP_PROBES: u32 = 4;

/// How a caller waits for bytes to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Does not wait.
    Now,
    /// Makes further nonblocking attempts.
    Spin {
        /// Attempts after the first one.
        iterations: u32,
    },
    /// Sleeps in poll(2).
    Block {
        /// The longest sleep.
        timeout: Duration,
    },
}

/// The longest single sleep of a transfer that waits without limit.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// What a sleeping thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Bytes to receive, or the end of the stream.
    Receive,
    /// Room to send.
    Send,
}

/// A connected stream socket (TCP or AF_UNIX).
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    silent: Option<Duration>,
    /// The time in nanoseconds for which a thread polls in the middle of a transfer before it sleeps, from [`POLL_MIN`]
    /// to [`POLL_MAX`]. It follows the peer's pace: see [`Socket::note_sleep`].
    poll_ns: AtomicU32,
    /// Encrypts all bytes that are sent, on a link with a key. One thread sends at a time, so nobody waits for the lock.
    sealer: OnceLock<Box<Mutex<Sealer>>>,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Socket {
    /// Makes `fd` nonblocking and sets three options: no delay, large buffers, and probes of an idle TCP peer. If the
    /// system refuses no delay or large buffers, the link works without them.
    ///
    /// `silent` is the longest time that a transfer may make no progress. A client sets it to notice a server that
    /// hangs. A server passes `None` and waits for its clients without limit. Otherwise a program that was stopped for
    /// a while would lose its pages. If the program's host dies, the TCP probes detect it.
    pub fn new(fd: OwnedFd, silent: Option<Duration>) -> Result<Socket, LinkError> {
        rustix::io::ioctl_fionbio(&fd, true).map_err(|e| LinkError::io("making a socket nonblocking", e))?;
        set_options(&fd, silent).map_err(|e| LinkError::io("setting a socket's options", e))?;
        let poll_ns = AtomicU32::new(POLL_MAX.as_nanos() as u32);
        Ok(Socket { fd, silent, poll_ns, sealer: OnceLock::new() })
    }

    /// Returns another socket on the same connection, by which nothing is sent. The number of its descriptor is as high,
    /// because the low numbers are the program's.
    pub(crate) fn copy(&self) -> Result<Socket, LinkError> {
        let copied = rustix::io::fcntl_dupfd_cloexec(&self.fd, self.fd.as_raw_fd());
        let fd = copied.map_err(|e| LinkError::io("copying a socket", e))?;
        let poll_ns = AtomicU32::new(POLL_MAX.as_nanos() as u32);
        Ok(Socket { fd, silent: self.silent, poll_ns, sealer: OnceLock::new() })
    }

    /// Gives this connection the number of `old`, whose connection is closed. `old` becomes another socket on this
    /// connection.
    pub(crate) fn swap_numbers(&mut self, old: &mut Socket) -> Result<(), LinkError> {
        rustix::io::dup3(&self.fd, &mut old.fd, rustix::io::DupFlags::CLOEXEC)
            .map_err(|e| LinkError::io("renaming a socket", e))?;
        std::mem::swap(&mut self.fd, &mut old.fd);
        Ok(())
    }

    /// Receives bytes that have arrived, without waiting. Returns the number of received bytes, or `None` if no bytes
    /// have arrived.
    pub fn receive(&self, into: &mut [u8]) -> Result<Option<usize>, LinkError> {
        let wanted = into.len();
        received(link::receive(self.fd.as_fd(), into).map_err(of_rustix), wanted)
    }

    /// Receives bytes that have arrived, without waiting. Fills `pieces` after their first `skip` bytes, one piece after
    /// another, and then `rest`. The bytes of pieces beyond [`PIECES_MAX`] are left to a later call. Returns the number of
    /// received bytes, or `None` if no bytes have arrived.
    pub(crate) fn receive_pieces(
        &self,
        pieces: &mut [IoSliceMut<'_>],
        mut skip: usize,
        rest: &mut [u8],
    ) -> Result<Option<usize>, LinkError> {
        let mut window: [IoSliceMut<'_>; PIECES_MAX + 1] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let (mut count, mut wanted, mut all) = (0, 0, true);
        for piece in pieces {
            if skip >= piece.len() {
                skip -= piece.len();
                continue;
            }
            all = count < PIECES_MAX;
            if !all {
                break;
            }
            window[count] = IoSliceMut::new(&mut piece[skip..]);
            wanted += window[count].len();
            (count, skip) = (count + 1, 0);
        }
        if all {
            wanted += rest.len();
            window[count] = IoSliceMut::new(rest);
            count += 1;
        }
        received(link::receive_pieces(self.fd.as_fd(), &mut window[..count]).map_err(of_rustix), wanted)
    }

    /// Encrypts all bytes that are sent from now on. Returns false if they are encrypted already.
    pub(crate) fn seal_with(&self, sealer: Sealer) -> bool {
        self.sealer.set(Box::new(Mutex::new(sealer))).is_ok()
    }

    fn sealer(&self) -> Option<MutexGuard<'_, Sealer>> {
        self.sealer.get().map(|sealer| sealer.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends as many bytes of the pieces as fit into the socket's buffer, without waiting. Returns the number of sent
    /// bytes, or `None` if no byte fits. `more` tells TCP that the next call follows immediately with the rest of the
    /// frame. On a link with a key, some of the bytes may wait for room in the socket's buffer. The caller must call
    /// [`Socket::send_rest`] after the last one.
    pub fn send(&self, pieces: &[IoSlice<'_>], more: bool) -> Result<Option<usize>, LinkError> {
        let Some(mut sealer) = self.sealer() else { return self.send_plain(pieces, more) };
        if !self.send_sealed(&mut sealer)? {
            return Ok(None);
        }
        let count = sealer.seal(pieces)?;
        self.send_sealed(&mut sealer)?;
        Ok(Some(count))
    }

    /// Sends the waiting records as far as they fit into the socket's buffer. Returns whether none is left.
    fn send_sealed(&self, sealer: &mut Sealer) -> Result<bool, LinkError> {
        while !sealer.waiting().is_empty() {
            match self.send_plain(&[IoSlice::new(sealer.waiting())], false)? {
                Some(count) => sealer.sent(count),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Waits until the bytes that [`Socket::send`] accepted are in the socket's buffer. Fails if the peer accepts no byte
    /// for the time that `progress` allows.
    pub fn send_rest(&self, progress: &mut Progress) -> Result<(), LinkError> {
        loop {
            let Some(mut sealer) = self.sealer() else { return Ok(()) };
            let before = sealer.waiting().len();
            if self.send_sealed(&mut sealer)? {
                return Ok(());
            }
            let has_moved = sealer.waiting().len() < before;
            drop(sealer);
            match has_moved {
                true => progress.moved(),
                false => progress.stalled(self, Direction::Send)?,
            }
        }
    }

    fn send_plain(&self, pieces: &[IoSlice<'_>], more: bool) -> Result<Option<usize>, LinkError> {
        match link::send(self.fd.as_fd(), pieces, more).map_err(of_rustix) {
            Ok(n) => Ok(Some(n)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(e) => Err(LinkError::io("sending", e)),
        }
    }

    /// Sends all pieces, and waits as often as necessary. Fails if the peer accepts no byte for the time `silent` that
    /// was passed to [`Socket::new`].
    pub fn send_all(&self, pieces: &[IoSlice<'_>]) -> Result<(), LinkError> {
        let mut progress = Progress::of(self);
        let total: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut sent = 0;
        while sent < total {
            let mut window = [IoSlice::new(&[]); SENT_PIECES_MAX];
            let count = window_from(pieces, sent, &mut window);
            match self.send(&window[..count], false)? {
                Some(n) => {
                    sent += n;
                    progress.moved();
                }
                None => progress.stalled(self, Direction::Send)?,
            }
        }
        self.send_rest(&mut progress)
    }

    /// Sleeps until the socket is ready for `direction`, or `timeout` has passed. Returns whether the socket is ready.
    /// A signal may end the sleep early.
    pub fn wait(&self, direction: Direction, timeout: Duration) -> Result<bool, LinkError> {
        let ready = match direction {
            Direction::Receive => Ready::ToReceive,
            Direction::Send => Ready::ToSend,
        };
        match link::wait(self.fd.as_fd(), ready, timeout).map_err(of_rustix) {
            Ok(is_ready) => Ok(is_ready),
            Err(Errno::INTR) => Ok(false),
            // The process may open no descriptor any more (RLIMIT_NOFILE of 0). The caller tries again after a nap.
            Err(Errno::INVAL) => {
                std::thread::sleep(NAP.min(timeout));
                Ok(false)
            }
            Err(e) => Err(LinkError::io("waiting for a socket", e)),
        }
    }

    /// Notes that a thread polled and then slept, for `stalled` altogether, until the peer was ready. After a short
    /// stall, the next one is polled longer, because that would have avoided the sleep. After a long stall, the next
    /// one is polled for a shorter time.
    fn note_sleep(&self, stalled: Duration) {
        let (least, most) = (POLL_MIN.as_nanos() as u32, POLL_MAX.as_nanos() as u32);
        let now = self.poll_ns.load(Relaxed);
        let next = if stalled < 2 * POLL_MAX { now.saturating_mul(2) } else { now / 2 };
        self.poll_ns.store(next.clamp(least, most), Relaxed);
    }

    /// Checks whether the peer's end of the connection is still open. Does not wait. Received bytes stay in the socket.
    pub fn is_open(&self) -> bool {
        let mut byte = [0];
        match rustix::net::recv(&self.fd, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((n, _)) => n > 0,
            Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        }
    }

    /// Checks whether the peer has ended its sending, or the connection. Unlike with [`Socket::is_open`], bytes that the
    /// peer sent before do not matter. Does not wait.
    pub fn has_hung_up(&self) -> bool {
        hanare_sys::ready::has_hung_up(self.fd.as_fd())
    }

    /// Ends the sending on this side. Then receives and discards the peer's bytes until the peer closes the connection,
    /// or `patience` has passed. If a socket with unread bytes were closed, the connection would be reset, and the peer
    /// might not receive the last frame.
    pub fn finish(&self, patience: Duration) {
        if rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Write).is_err() {
            // The peer has already ended the connection, so there is nothing to wait for.
            return;
        }
        let mut progress = Progress::until(patience);
        let mut waste = [0; 4096];
        loop {
            match self.receive(&mut waste) {
                Ok(Some(_)) if !progress.is_over() => {}
                Ok(None) if progress.stalled(self, Direction::Receive).is_ok() => {}
                _ => return,
            }
        }
    }

    /// Ends the connection immediately in both directions. Wakes the threads that wait for this socket.
    pub fn sever(&self) {
        // The result is not needed, because `shutdown` fails only if the connection has already ended.
        let (Ok(()) | Err(_)) = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
    }

    /// Sends a small frame and at most three files in one message. The socket must be an AF_UNIX socket.
    pub fn send_files(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), LinkError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if files.len() > FILES_MAX || !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(LinkError::Misuse { what: "at most three files go with one frame" });
        }
        match rustix::net::sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(n) if n == bytes.len() => Ok(()),
            Ok(_) => Err(LinkError::Garbage { what: "a frame with files was cut in two" }),
            Err(e) => Err(LinkError::io("passing files", e)),
        }
    }

    /// Receives a small frame and the files that were passed with it. The frame must have the length of `into`.
    pub fn receive_files(
        &self,
        into: &mut [u8],
        progress: &mut Progress,
    ) -> Result<[Option<OwnedFd>; FILES_MAX], LinkError> {
        let wanted = into.len();
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let result = rustix::net::recvmsg(&self.fd, &mut [IoSliceMut::new(into)], &mut control, flags);
            match received(result.map(|message| message.bytes), wanted)? {
                None => progress.stalled(self, Direction::Receive)?,
                Some(n) if n == wanted => return Ok(take_files(control)),
                Some(_) => {
                    return Err(LinkError::Garbage { what: "a frame with files came in pieces" });
                }
            }
        }
    }
}

fn take_files(mut control: RecvAncillaryBuffer<'_>) -> [Option<OwnedFd>; FILES_MAX] {
    let mut files = [const { None }; FILES_MAX];
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            for (place, file) in files.iter_mut().zip(passed) {
                *place = Some(kept(file));
            }
        }
    }
    files
}

/// Returns an error of `hanare-sys` as the other errors of this crate.
fn of_rustix(errno: hanare_sys::Errno) -> Errno {
    Errno::from_raw_os_error(errno.0)
}

fn received(result: Result<usize, Errno>, wanted: usize) -> Result<Option<usize>, LinkError> {
    match result {
        Ok(0) if wanted > 0 => Err(LinkError::Closed),
        Ok(n) => Ok(Some(n)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(e) => Err(LinkError::io("receiving", e)),
    }
}

/// Fills `window` with the pieces that follow the first `skip` bytes of `pieces`, as far as they fit. Returns the
/// number of pieces in `window`.
fn window_from<'a>(pieces: &'a [IoSlice<'a>], mut skip: usize, window: &mut [IoSlice<'a>]) -> usize {
    let mut count = 0;
    for piece in pieces {
        let bytes: &'a [u8] = piece;
        if skip >= bytes.len() {
            skip -= bytes.len();
            continue;
        }
        window[count] = IoSlice::new(&bytes[skip..]);
        skip = 0;
        count += 1;
        if count == window.len() {
            break;
        }
    }
    count
}

/// Turns off delays, sets large buffers, and sets the TCP probes that detect a dead peer. If the system refuses the
/// buffers, the link is only slower. If it refuses the probes, the function fails. A server waits for a silent client
/// without limit, and only the probes can tell that the client's host is dead.
fn set_options(fd: &OwnedFd, silent: Option<Duration>) -> Result<(), Errno> {
    note_cpus();
    let is_tcp = sockopt::set_tcp_nodelay(fd, true).is_ok();
    // The kernel never enlarges a TCP buffer after its size was set. So the size is set only if the system allows the
    // full size.
    let allowed =
        |file: &str| std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<usize>().ok()).unwrap_or(0);
    let bytes = if is_tcp && is_loopback(fd) { LOOPBACK_BUFFER_BYTES } else { SOCKET_BUFFER_BYTES };
    if !is_tcp || allowed("/proc/sys/net/core/wmem_max") >= bytes {
        let (Ok(()) | Err(_)) = sockopt::set_socket_send_buffer_size(fd, bytes);
    }
    if !is_tcp || allowed("/proc/sys/net/core/rmem_max") >= bytes {
        let (Ok(()) | Err(_)) = sockopt::set_socket_recv_buffer_size(fd, bytes);
    }
    if is_tcp {
        sockopt::set_socket_keepalive(fd, true)?;
        sockopt::set_tcp_keepidle(fd, TCP_PROBE)?;
        sockopt::set_tcp_keepintvl(fd, TCP_PROBE)?;
        sockopt::set_tcp_keepcnt(fd, TCP_PROBES)?;
    }
    match silent {
        Some(silent) if is_tcp => {
            let patience_ms = (silent.mul_f64(LONGER_MAX) + TCP_GRACE).as_millis().min(u128::from(u32::MAX)) as u32;
            sockopt::set_tcp_user_timeout(fd, patience_ms)
        }
        _ => Ok(()),
    }
}

/// Checks whether the peer of a TCP socket is on this host. Returns false if the peer's address is unknown.
fn is_loopback(fd: &OwnedFd) -> bool {
    let peer = rustix::net::getpeername(fd).ok().flatten().and_then(|address| SocketAddr::try_from(address).ok());
    peer.is_some_and(|address| address.ip().to_canonical().is_loopback())
}

/// Limits how long a transfer waits for its peer. The transfer first polls for a short time, then sleeps, and at last
/// fails because the peer is silent. Without a fixed end, the time to wait begins again with each transferred byte.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    patience: Option<Duration>,
    /// When the present stall began. `None` while bytes move.
    since: Option<Instant>,
    end: Option<Instant>,
    fixed: bool,
}

/// The number of pauses between two attempts to transfer bytes. They leave the socket's lock to the peer's packets.
const PAUSES: u32 = 8;
/// The length of a nap in place of a wait that the kernel refuses.
const NAP: Duration = Duration::from_micros(200);

impl Progress {
    /// Returns a limit that begins again with every transferred byte. Its length is the time `silent` that was passed
    /// to [`Socket::new`].
    pub fn of(socket: &Socket) -> Progress {
        Progress { patience: socket.silent, since: None, end: None, fixed: false }
    }

    /// Returns a limit with a fixed end, `timeout` from now. Transferred bytes do not move this end.
    pub fn until(timeout: Duration) -> Progress {
        Progress { patience: Some(timeout), since: None, end: Some(Instant::now() + timeout), fixed: true }
    }

    /// Records that bytes were transferred.
    pub fn moved(&mut self) {
        self.since = None;
        if !self.fixed {
            self.end = None;
        }
    }

    /// Checks whether this limit has a fixed end, and whether this end has passed.
    fn is_over(&self) -> bool {
        self.fixed && self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// Waits after an attempt that transferred no byte: for a moment, or asleep until the socket is ready. Fails with
    /// [`LinkError::Silent`] when the limit has passed.
    pub fn stalled(&mut self, socket: &Socket, direction: Direction) -> Result<(), LinkError> {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since).as_nanos() < u128::from(socket.poll_ns.load(Relaxed)) {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
            return Ok(());
        }
        let left = match self.patience {
            None => WAIT_MAX,
            Some(usual) => {
                let mut end = *self.end.get_or_insert(now + usual);
                // If this process itself was stopped for a long time, bytes may have arrived meanwhile. So the socket
                // is checked once more before the peer counts as silent.
                if now >= end && !socket.wait(direction, Duration::ZERO)? {
                    if !self.fixed {
                        end = since + patience(usual);
                        self.end = Some(end);
                    }
                    if now >= end {
                        return Err(LinkError::Silent { seconds: usual.as_secs().max(1) as u32 });
                    }
                }
                end.saturating_duration_since(now)
            }
        };
        if socket.wait(direction, left)? {
            socket.note_sleep(since.elapsed());
        }
        Ok(())
    }
}

/// The part of a [`Wait`] that is still left: a number of attempts, or the time at which the wait ends.
pub(crate) enum Waiting {
    Attempts(u32),
    Until(Instant),
}

impl Waiting {
    pub(crate) fn new(wait: Wait) -> Waiting {
        match wait {
            Wait::Now => Waiting::Attempts(0),
            Wait::Spin { iterations } => Waiting::Attempts(iterations),
            Wait::Block { timeout } => Waiting::Until(Instant::now() + timeout),
        }
    }

    /// Waits before the next attempt to receive. Returns `false` if no attempts or no time are left.
    pub(crate) fn again(&mut self, socket: &Socket) -> Result<bool, LinkError> {
        match self {
            Waiting::Attempts(0) => Ok(false),
            Waiting::Attempts(left) => {
                *left -= 1;
                std::hint::spin_loop();
                Ok(true)
            }
            Waiting::Until(end) => {
                let now = Instant::now();
                if now >= *end {
                    return Ok(false);
                }
                socket.wait(Direction::Receive, *end - now)?;
                Ok(true)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    fn tcp_pair(host: impl Into<std::net::IpAddr>) -> std::io::Result<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind((host.into(), 0))?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        Ok((near, listener.accept()?.0))
    }

    #[test]
    fn polling_follows_the_pace_of_the_peer() {
        let (near, _far) = UnixStream::pair().expect("a pair");
        let socket = Socket::new(near.into(), None).expect("a socket");
        let poll = || Duration::from_nanos(u64::from(socket.poll_ns.load(Relaxed)));
        assert_eq!(poll(), POLL_MAX);
        socket.note_sleep(2 * POLL_MAX);
        assert_eq!(poll(), POLL_MAX / 2, "the peer was slow");
        (0..10).for_each(|_| socket.note_sleep(Duration::from_secs(1)));
        assert_eq!(poll(), POLL_MIN);
        socket.note_sleep(POLL_MAX);
        assert_eq!(poll(), 2 * POLL_MIN, "a little more polling would have sufficed");
        (0..10).for_each(|_| socket.note_sleep(POLL_MAX));
        assert_eq!(poll(), POLL_MAX);
    }

    #[test]
    fn a_stalled_transfer_polls_then_sleeps_then_gives_up() {
        let (near, _far) = UnixStream::pair().expect("a pair");
        let socket = Socket::new(near.into(), Some(Duration::from_millis(30))).expect("a socket");
        let began = Instant::now();
        let mut progress = Progress::of(&socket);
        let end = loop {
            if let Err(error) = progress.stalled(&socket, Direction::Receive) {
                break error;
            }
            assert!(began.elapsed() < Duration::from_secs(20), "the stall never ends");
        };
        assert!(matches!(end, LinkError::Silent { .. }), "{end}");
        assert!(began.elapsed() >= Duration::from_millis(30));
        progress.moved();
        assert!(progress.stalled(&socket, Direction::Receive).is_ok(), "a byte begins the time anew");
    }

    #[test]
    fn buffers_over_loopback_are_small() {
        let (near, far) = tcp_pair(Ipv4Addr::LOCALHOST).expect("a pair");
        assert!(is_loopback(&near.into()) && is_loopback(&far.into()));
        if let Ok((near, _far)) = tcp_pair(Ipv6Addr::LOCALHOST) {
            assert!(is_loopback(&near.into()));
        }
        let (near, _far) = UnixStream::pair().expect("a pair");
        assert!(!is_loopback(&near.into()));
    }
}
