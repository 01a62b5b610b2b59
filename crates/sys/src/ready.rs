//! Waits until one of several descriptors is readable.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::Timespec;

use crate::link;
use crate::raw::Errno;
use crate::refuse::{self, Call};

/// The maximum number of descriptors in one wait.
pub const WAITED_MAX: usize = 16;

/// The length of a nap in place of a wait that the kernel refuses.
const NAP: Duration = Duration::from_micros(200);

/// Sleeps for a moment, or for `limit` if it is shorter. The kernel refuses to wait for more descriptors than the
/// process may open (RLIMIT_NOFILE), although they are open. A program may set this limit to 0. Its waits then are naps.
pub fn nap(limit: Duration) {
    if let Ok(time) = Timespec::try_from(NAP.min(limit)) {
        // Ignored: a signal may end the nap early.
        let _ = rustix::thread::nanosleep(&time);
    }
}

/// Closes both directions of a connection, without closing its descriptor. Threads that wait for the peer wake up.
pub fn hang_up(link: BorrowedFd<'_>) {
    // Ignored: the call fails only if the connection has ended already.
    let _ = rustix::net::shutdown(link, rustix::net::Shutdown::Both);
}

/// Sleeps until one of the first [`WAITED_MAX`] descriptors is readable, or `timeout` has passed. A signal may end the
/// sleep early. Returns immediately if `fds` is empty.
///
/// # Errors
/// `ENOMEM` if the kernel has no memory for the wait.
pub fn wait_readable<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>, timeout: Duration) -> Result<(), Errno> {
    let mut waited = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; WAITED_MAX];
    let count = waited.iter_mut().zip(fds).map(|(place, fd)| place.fd = fd.as_raw_fd()).count();
    if count == 0 {
        return Ok(());
    }
    match refuse::draw(Call::Poll).and_then(|()| link::poll(&mut waited[..count], timeout)) {
        Ok(_) | Err(Errno(libc::EINTR | libc::EAGAIN)) => Ok(()),
        Err(Errno(libc::EINVAL)) => {
            nap(timeout);
            Ok(())
        }
        Err(errno) => Err(errno),
    }
}

/// Checks whether bytes can be received from a connection, or its end can. If the kernel refuses to say, the answer is
/// no.
pub fn is_readable(link: BorrowedFd<'_>) -> bool {
    link::wait(link, link::Ready::ToReceive, Duration::ZERO) == Ok(true)
}

/// Checks whether the peer of a connection has ended its sending, or the connection. Bytes that it sent before do not
/// matter. If the kernel refuses to say, the answer is no.
pub fn has_hung_up(link: BorrowedFd<'_>) -> bool {
    let mut asked = [libc::pollfd { fd: link.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 }];
    link::poll(&mut asked, Duration::ZERO).is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;

    #[test]
    fn any_of_many_ends_the_wait_and_none_lets_it_last() {
        let pairs: Vec<(UnixStream, UnixStream)> = (0..5).map(|_| UnixStream::pair().expect("a pair")).collect();
        let wait = |timeout| {
            let began = Instant::now();
            wait_readable(pairs.iter().map(|(end, _)| end.as_fd()), timeout).expect("a wait");
            began.elapsed()
        };
        assert!(wait(Duration::from_millis(50)) >= Duration::from_millis(50));
        (&pairs[3].1).write_all(b"x").expect("a byte");
        assert!(wait(Duration::from_secs(60)) < Duration::from_secs(30));
        assert!(wait_readable(std::iter::empty(), Duration::from_secs(60)).is_ok());
        assert_eq!([2, 3].map(|index| is_readable(pairs[index].0.as_fd())), [false, true]);
        assert!(!has_hung_up(pairs[3].0.as_fd()));
        pairs[3].1.shutdown(std::net::Shutdown::Write).expect("a connection");
        assert_eq!([2, 3].map(|index| has_hung_up(pairs[index].0.as_fd())), [false, true]);
    }
}
