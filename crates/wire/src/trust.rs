//! Decides whom this process trusts without a key: its own user, and root.
//!
//! In a user namespace (user_namespaces(7)), the kernel shows every user who has no number there by one number, the
//! overflow user's. This number says nothing, even if this process has the same one.

use std::fs::read_to_string;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, getpeername, getsockname, sockopt};

use crate::error::LinkError;
use crate::peer::{self, Ends, Peer};
use crate::socket::Socket;

/// The rule, for messages.
const ONLY: &str = "without a key only your own servers and root's are used";
/// The overflow user of a kernel that does not name it.
const OVERFLOW_DEFAULT: u32 = 65_534;
/// The number of users that there can be. The last number of 32 bits is no user's.
const USERS_MAX: u64 = u32::MAX as u64;
/// The first pause before the kernel is asked again who has accepted a connection. The pause doubles each time.
const PAUSE_MIN: Duration = Duration::from_micros(20);
/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// Why a user is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distrust {
    /// It is another user than this process's, which is `own`.
    Other {
        /// The number of the user.
        user: u32,
        /// The number of this process's user.
        own: u32,
    },
    /// In this user namespace, several users have this number.
    Overflow {
        /// The number.
        user: u32,
    },
}

/// Where a peer is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// At a TCP port. Every user of the host can take it, and connect to it.
    Port,
    /// At the path of a Unix socket. The modes of the socket and of its folders keep other users away.
    Path,
    /// At the path of a private server's socket. The command that started the run has made it, in a folder of mode 0700. So
    /// it is this user's even where several users have its number.
    Private,
}

/// Checks that a user is the user of this thread or root.
///
/// # Errors
/// [`Distrust`] says why the user is not trusted.
pub fn check(user: u32, at: At) -> Result<(), Distrust> {
    let own = rustix::process::geteuid().as_raw();
    if user != own && user != 0 {
        return Err(Distrust::Other { user, own });
    }
    if is_ambiguous(user, at) { Err(Distrust::Overflow { user }) } else { Ok(()) }
}

/// Checks whether a user is the user of this thread. Root counts as another user.
#[must_use]
pub fn is_own(user: u32, at: At) -> bool {
    user == rustix::process::geteuid().as_raw() && !is_ambiguous(user, at)
}

fn is_ambiguous(user: u32, at: At) -> bool {
    let overflow = read_to_string("/proc/sys/kernel/overflowuid").ok();
    may_be_several(user, at, overflow.as_deref(), || read_to_string("/proc/self/uid_map").ok())
}

/// Checks whether `user` is the overflow user's number, and may be another user than the one with this number in the
/// namespace. At a port, this is so unless all users have a number. At a path, it is so only if nobody has this number, and never
/// at a private one. The texts are those of the kernel's files. `None` stands for a file that cannot be read.
fn may_be_several(user: u32, at: At, overflow: Option<&str>, map: impl FnOnce() -> Option<String>) -> bool {
    let overflow = overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW_DEFAULT);
    if user != overflow {
        return false;
    }
    let map = map().unwrap_or_default();
    let (has_user, users) = ranges(&map).fold((false, 0), |(has_user, users), (first, count)| {
        (has_user || (first..first + count).contains(&user.into()), users + count)
    });
    match at {
        At::Port => users < USERS_MAX,
        At::Path => !has_user,
        At::Private => false,
    }
}

/// Returns the first number and the length of each range of users in a map. The number in between is that outside of the
/// namespace.
fn ranges(map: &str) -> impl Iterator<Item = (u64, u64)> {
    let number = |text: Option<&str>| text?.parse::<u32>().ok().map(u64::from);
    map.lines().filter_map(move |line| {
        let mut fields = line.split_whitespace();
        Some((number(fields.next())?, number(fields.nth(1))?))
    })
}

/// Returns the error for a system that cannot say whose the server is.
fn unknown(error: io::Error) -> LinkError {
    match Errno::from_io_error(&error) {
        Some(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => {
            LinkError::io("asking for a server's user", errno)
        }
        _ => foreign(format!("{ONLY}, and the system cannot say whose it is ({error})")),
    }
}

/// Checks that the server at the other end of a connection belongs to the user of this thread, or to root. `path` says where
/// a Unix socket is. Waits up to
/// `limit` until the server has accepted the connection, because the kernel does not know its user before. Over TCP, the
/// kernel is asked whatever the addresses are: a process of this host may have any of them. It cannot name the user of a
/// server on another host.
///
/// # Errors
/// [`LinkError::Foreign`] if the server is another user's. [`LinkError::Closed`] if it closed the connection before the
/// kernel could say whose it is.
pub(crate) fn check_server(socket: &Socket, path: At, limit: Duration) -> Result<(), LinkError> {
    let fd = socket.as_fd();
    let failed = |errno| LinkError::io("asking for the addresses of a connection", errno);
    let own = getsockname(fd).map_err(failed)?;
    if own.address_family() == AddressFamily::UNIX {
        let credentials = sockopt::socket_peercred(fd).map_err(|e| LinkError::io("asking for a server's user", e))?;
        return judge(credentials.uid.as_raw(), path);
    }
    let peer = getpeername(fd).map_err(failed)?.ok_or(LinkError::Closed)?;
    let ends = Ends { own: own.try_into().map_err(failed)?, peer: peer.try_into().map_err(failed)? };
    let end = Instant::now() + limit;
    let mut pause = PAUSE_MIN;
    loop {
        let found = peer::user_of(ends).map_err(unknown)?;
        match found {
            Peer::User(user) => return judge(user, At::Port),
            Peer::Elsewhere if !ends.peer.ip().to_canonical().is_loopback() => return Ok(()),
            Peer::Nobody | Peer::Elsewhere if socket.has_hung_up() => return Err(LinkError::Closed),
            Peer::Nobody if Instant::now() >= end => {
                return Err(LinkError::Silent { seconds: limit.as_secs().max(1) as u32 });
            }
            Peer::Elsewhere if Instant::now() >= end => {
                return Err(foreign(format!("{ONLY}, and the system does not show whose it is")));
            }
            Peer::Nobody | Peer::Elsewhere => std::thread::sleep(pause),
        }
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

fn judge(user: u32, at: At) -> Result<(), LinkError> {
    check(user, at).map_err(|why| match why {
        Distrust::Other { user, own } => foreign(format!("it is user {user}'s, and you are user {own}; {ONLY}")),
        Distrust::Overflow { user } => foreign(format!("{ONLY}, and in this user namespace user {user} may be anyone")),
    })
}

fn foreign(reason: String) -> LinkError {
    LinkError::Foreign { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The map of a host, and of a namespace inside that has all users.
    const ALL: &str = "         0          0 4294967295\n";
    /// The map of a container. User 65534 has a number there, as any unknown user seems to have.
    const CONTAINER: &str = "         0     100000      65536\n";
    /// The maps of a namespace of one user, and of one that has no user yet.
    const ONE: &str = "      1000       1000          1\n";
    const NONE: &str = "";

    #[test]
    fn the_overflow_user_is_somebody_only_where_all_users_have_numbers() {
        let is_ambiguous = |user, at, map: &str| may_be_several(user, at, Some("65534\n"), || Some(map.to_owned()));
        for (map, at_port, at_path) in
            [(ALL, false, false), (CONTAINER, true, false), (ONE, true, true), (NONE, true, true), ("?", true, true)]
        {
            assert_eq!(is_ambiguous(65_534, At::Port, map), at_port, "{map:?}");
            assert_eq!(is_ambiguous(65_534, At::Path, map), at_path, "{map:?}");
            assert!(!is_ambiguous(65_534, At::Private, map), "{map:?}");
            assert!([At::Port, At::Path].iter().all(|at| !is_ambiguous(1000, *at, map) && !is_ambiguous(0, *at, map)));
        }
        let split = format!("0 0 1000\n1000 1000 {}\n", u32::MAX - 1000);
        assert!(!is_ambiguous(65_534, At::Port, &split), "all users, in two ranges");
        assert!(may_be_several(65_534, At::Path, None, || None), "nothing can be read");
        assert!(may_be_several(99, At::Port, Some("99\n"), || None) && !may_be_several(99, At::Port, None, || None));
    }

    #[test]
    fn this_user_and_root_are_trusted_and_no_other() {
        let own = rustix::process::geteuid().as_raw();
        assert_eq!((check(own, At::Port), check(0, At::Path)), (Ok(()), Ok(())));
        assert_eq!(check(own + 7, At::Path), Err(Distrust::Other { user: own + 7, own }));
        assert!(is_own(own, At::Port) && !is_own(own + 7, At::Port));
    }
}
