//! System calls of connections. They are made by [`syscall`], so they are not trapped in a thread whose other calls are
//! (`PR_SET_SYSCALL_USER_DISPATCH`). A trap takes several times the time of such a call.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

use crate::raw::{Errno, syscall};

/// Receives bytes that have arrived, without waiting. Returns their number, which is 0 at the end of the connection.
///
/// # Errors
/// `EAGAIN` if nothing has arrived, `EINTR` after a signal, and those of recv(2).
pub fn receive(link: BorrowedFd<'_>, into: &mut [u8]) -> Result<usize, Errno> {
    let fd = link.as_raw_fd() as usize;
    let args = [fd, into.as_mut_ptr() as usize, into.len(), libc::MSG_DONTWAIT as usize, 0, 0];
    // SAFETY: the kernel writes to `into` only, which is borrowed mutably until the call returns.
    unsafe { syscall(libc::SYS_recvfrom, args) }
}

/// Receives bytes that have arrived into pieces, one after another, by one call. A nonblocking connection does not wait.
///
/// # Errors
/// `EAGAIN` if nothing has arrived, `EINTR` after a signal, and those of readv(2).
pub fn receive_pieces(link: BorrowedFd<'_>, pieces: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
    // SAFETY: `IoSliceMut` has the layout of `iovec`. The kernel writes to the pieces only, which are borrowed mutably until
    // the call returns.
    unsafe {
        syscall(libc::SYS_readv, [link.as_raw_fd() as usize, pieces.as_mut_ptr() as usize, pieces.len(), 0, 0, 0])
    }
}

/// Sends as many bytes of the pieces as fit, by one call and without waiting. Returns their number. `more` says that
/// further bytes follow soon. The process gets no SIGPIPE.
///
/// # Errors
/// `EAGAIN` if nothing fits, `EINTR` after a signal, and those of sendmsg(2).
pub fn send(link: BorrowedFd<'_>, pieces: &[IoSlice<'_>], more: bool) -> Result<usize, Errno> {
    let fd = link.as_raw_fd() as usize;
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | if more { libc::MSG_MORE } else { 0 };
    if let [one] = pieces {
        // SAFETY: the kernel reads the bytes of the piece only, which live until the call returns.
        return unsafe { syscall(libc::SYS_sendto, [fd, one.as_ptr() as usize, one.len(), flags as usize, 0, 0]) };
    }
    let message = libc::msghdr {
        msg_name: ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: pieces.as_ptr() as *mut libc::iovec,
        msg_iovlen: pieces.len() as _,
        msg_control: ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    };
    // SAFETY: `IoSlice` has the layout of `iovec`. The kernel reads the message and the pieces only, which live until the
    // call returns. There is no name and no control data.
    unsafe { syscall(libc::SYS_sendmsg, [fd, &raw const message as usize, flags as usize, 0, 0, 0]) }
}

/// The state of a connection that a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Bytes can be received, or the connection has ended.
    ToReceive,
    /// Bytes can be sent, or the connection has ended.
    ToSend,
}

/// Sleeps until the connection is ready, or `timeout` has passed. Returns whether it is ready.
///
/// # Errors
/// `EINTR` after a signal, `EINVAL` if the process may open no descriptor any more, `ENOMEM`.
pub fn wait(link: BorrowedFd<'_>, ready: Ready, timeout: Duration) -> Result<bool, Errno> {
    let events = if ready == Ready::ToReceive { libc::POLLIN } else { libc::POLLOUT };
    poll(&mut [libc::pollfd { fd: link.as_raw_fd(), events, revents: 0 }], timeout).map(|count| count > 0)
}

/// Calls ppoll(2). Returns the number of descriptors that are ready.
pub(crate) fn poll(waited: &mut [libc::pollfd], timeout: Duration) -> Result<usize, Errno> {
    // A time that does not fit has no end.
    let limit = libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let args = [waited.as_mut_ptr() as usize, waited.len(), &raw const limit as usize, 0, 0, 0];
    // SAFETY: the kernel reads and writes the descriptors in `waited` and reads `limit`, which live until it returns. There
    // is no signal mask.
    unsafe { syscall(libc::SYS_ppoll, args) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    const SOON: Duration = Duration::from_millis(1);
    const LATE: Duration = Duration::from_secs(20);

    #[test]
    fn bytes_go_from_pieces_to_pieces() {
        let (near, far) = UnixStream::pair().expect("a pair");
        far.set_nonblocking(true).expect("a socket");
        let (near, far) = (near.as_fd(), far.as_fd());
        assert_eq!(receive(far, &mut [0; 4]), Err(Errno(libc::EAGAIN)));
        assert_eq!(receive_pieces(far, &mut [IoSliceMut::new(&mut [0; 4])]), Err(Errno(libc::EAGAIN)));
        assert_eq!(wait(far, Ready::ToReceive, SOON), Ok(false));
        assert_eq!(wait(near, Ready::ToSend, LATE), Ok(true));
        assert_eq!(send(near, &[IoSlice::new(b"ab")], true), Ok(2));
        assert_eq!(send(near, &[IoSlice::new(b"cde"), IoSlice::new(b""), IoSlice::new(b"f")], false), Ok(4));
        assert_eq!(wait(far, Ready::ToReceive, LATE), Ok(true));
        let (mut first, mut second, mut rest) = ([0; 1], [0; 3], [0; 9]);
        let mut pieces = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        assert_eq!(receive_pieces(far, &mut pieces), Ok(4));
        assert_eq!(receive(far, &mut rest), Ok(2));
        assert_eq!((&first, &second, &rest[..2]), (b"a", b"bcd", &b"ef"[..]));
    }

    #[test]
    fn the_end_of_a_connection_is_told() {
        let (near, far) = UnixStream::pair().expect("a pair");
        drop(far);
        assert_eq!(receive(near.as_fd(), &mut [0; 4]), Ok(0));
        assert_eq!(wait(near.as_fd(), Ready::ToReceive, LATE), Ok(true));
        // The test would end by SIGPIPE.
        assert_eq!(send(near.as_fd(), &[IoSlice::new(b"x")], false), Err(Errno(libc::EPIPE)));
    }
}
