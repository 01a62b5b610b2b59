//! Finds the user at the other end of a TCP connection within this host. The kernel tells a socket's user by a message
//! (sock_diag(7)), in the same time whatever connections there are. Where it does not know such messages, the user is in
//! `/proc/net/tcp`. Reading that table takes a tenth of a second where many connections have just ended, so strangers
//! could keep others out.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// How often the tables are read. A table that changes while it is read may lack an entry.
const TRIES: usize = 3;

/// The two ends of a TCP connection, as this side sees them.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The address of this side's socket.
    pub own: SocketAddr,
    /// The address of the other side's socket.
    pub peer: SocketAddr,
}

impl Ends {
    fn swapped(self) -> Self {
        Self { own: self.peer, peer: self.own }
    }
}

/// The owner of the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A process of the user with this number.
    User(u32),
    /// No process. The connection is not accepted yet, or its process has closed it.
    Nobody,
    /// The other end is on another host, or in another network namespace.
    Elsewhere,
}

/// Returns whose process made the connection, or accepted it. This side's socket must be open.
///
/// # Errors
/// The kernel knows no such messages, and its tables cannot be read.
pub fn user_of(ends: Ends) -> io::Result<Peer> {
    match user_by_message(ends) {
        Ok(Some(owner)) => Ok(owner.into()),
        // A kernel without such messages gives the same error as for a socket that is not there. This side's socket is
        // there.
        Ok(None) | Err(_) => match user_by_message(ends.swapped()) {
            Ok(Some(_)) => Ok(Peer::Elsewhere),
            Ok(None) | Err(_) => user_in_tables(ends),
        },
    }
}

/// The owner of a socket. Before a connection is accepted, and after its process has closed it, the kernel has a socket
/// whose inode is 0. It may have the number of root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    user: u32,
    inode: u32,
}

impl From<Owner> for Peer {
    fn from(owner: Owner) -> Peer {
        if owner.inode > 0 { Peer::User(owner.user) } else { Peer::Nobody }
    }
}

/// Type of a request for one socket, and of its answer (SOCK_DIAG_BY_FAMILY).
const BY_FAMILY: u16 = 20;
/// Flag of a request (NLM_F_REQUEST).
const REQUEST: u16 = 1;
/// Bytes of a message's header.
const HEAD_BYTES: usize = 16;
/// Place of the socket's state in the answer, after the header and the address family.
const STATE_AT: usize = HEAD_BYTES + 1;
/// State of a socket that waits for connections (TCP_LISTEN).
const LISTENS: u8 = 10;
/// Place of the user in the answer, after the header, four bytes, the ends (48 bytes), a timer and two queues. The inode
/// follows.
const USER_AT: usize = HEAD_BYTES + 4 + 48 + 12;

/// Asks the kernel for the owner of the peer's socket. `None` if there is no such socket.
fn user_by_message(ends: Ends) -> Result<Option<Owner>, Errno> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG))?;
    rustix::net::sendto(&socket, &request(ends), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; 4096];
    // The kernel answers before `sendto` returns.
    let (length, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    Ok(owner_in(&answer[..length.min(answer.len())]))
}

/// Forms the request for the peer's socket (struct inet_diag_req_v2). Its own end comes first.
fn request(ends: Ends) -> Vec<u8> {
    const TCP: u8 = 6;
    let ips = [ends.peer, ends.own].map(|end| end.ip().to_canonical());
    let is_v4 = ips.iter().all(IpAddr::is_ipv4);
    let family = if is_v4 { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut body = vec![family.as_raw() as u8, TCP, 0, 0];
    body.extend(u32::MAX.to_ne_bytes()); // any state
    body.extend([ends.peer.port(), ends.own.port()].into_iter().flat_map(u16::to_be_bytes));
    for ip in ips {
        let mut bytes = [0; 16];
        match ip {
            IpAddr::V4(ip) if is_v4 => bytes[..4].copy_from_slice(&ip.octets()),
            IpAddr::V4(ip) => bytes = ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => bytes = ip.octets(),
        }
        body.extend(bytes);
    }
    body.extend([0, u32::MAX, u32::MAX].into_iter().flat_map(u32::to_ne_bytes)); // any interface, no cookie
    let length = (HEAD_BYTES + body.len()) as u32;
    let mut message = Vec::from(length.to_ne_bytes());
    message.extend([BY_FAMILY, REQUEST].into_iter().flat_map(u16::to_ne_bytes));
    message.extend([0; 8]); // no number, and no sender's address
    message.extend(body);
    message
}

/// Reads the owner from the kernel's answer. `None` if it is not about a socket. If the peer has no socket of its own, the
/// kernel answers with the socket that listens at the peer's address. Nobody has accepted the connection then.
fn owner_in(answer: &[u8]) -> Option<Owner> {
    let word = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let kind = answer.get(4..6)?.try_into().ok().map(u16::from_ne_bytes)?;
    if kind != BY_FAMILY {
        return None;
    }
    let inode = if answer.get(STATE_AT) == Some(&LISTENS) { 0 } else { word(USER_AT + 4)? };
    Some(Owner { user: word(USER_AT)?, inode })
}

/// Finds the user in the kernel's tables of all connections.
fn user_in_tables(ends: Ends) -> io::Result<Peer> {
    for _ in 0..TRIES {
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let text = match std::fs::read_to_string(table) {
                Ok(text) => text,
                // A kernel without IPv6 has one table only.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if let Some(owner) = text.lines().find_map(|line| owner_in_line(line, ends)) {
                return Ok(owner.into());
            }
        }
    }
    Ok(Peer::Elsewhere)
}

/// Returns the owner in a line of the table, if the line is about the peer's socket of this connection.
fn owner_in_line(line: &str, ends: Ends) -> Option<Owner> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, remote) = (address(fields.next()?)?, address(fields.next()?)?);
    let canonical = |address: SocketAddr| (address.ip().to_canonical(), address.port());
    let is_it = canonical(local) == canonical(ends.peer) && canonical(remote) == canonical(ends.own);
    if !is_it {
        return None;
    }
    // After the addresses come the state, two queues, a timer and the retransmissions. After the user, a time-out.
    let user = fields.nth(4)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some(Owner { user, inode })
}

/// Decodes an address of the table: groups of 4 bytes, each in hexadecimal as the CPU reads them, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let group = |at: usize| u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(group(0)?).into(),
        32 => {
            let mut bytes = [0; 16];
            for (at, into) in bytes.chunks_exact_mut(4).enumerate() {
                into.copy_from_slice(&group(at)?);
            }
            Ipv6Addr::from(bytes).into()
        }
        _ => return None,
    };
    Some((ip, port).into())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn connection(host: &str) -> io::Result<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind((host, 0))?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        Ok((near, listener.accept()?.0))
    }

    #[test]
    fn this_process_is_found_by_its_connection() {
        for host in ["127.0.0.1", "::1"] {
            let Ok((near, far)) = connection(host) else { continue };
            let ends = Ends { own: far.local_addr().expect("an address"), peer: far.peer_addr().expect("an address") };
            let own = rustix::process::geteuid().as_raw();
            assert_eq!(user_of(ends).expect("an answer"), Peer::User(own), "{host}");
            assert_eq!(user_in_tables(ends).expect("a table"), Peer::User(own), "{host}");
            drop(near);
        }
    }

    /// The kernel gives a socket that was closed to root. Another user must not pass for root by closing it early.
    #[test]
    fn a_connection_that_its_process_has_closed_belongs_to_nobody() {
        let (near, far) = connection("127.0.0.1").expect("a connection");
        let ends = Ends { own: far.local_addr().expect("an address"), peer: far.peer_addr().expect("an address") };
        drop(near);
        assert_eq!(user_of(ends).expect("an answer"), Peer::Nobody);
        assert_eq!(user_in_tables(ends).expect("a table"), Peer::Nobody);
    }

    /// Until a connection is accepted, the kernel gives it to root.
    #[test]
    fn a_connection_that_waits_to_be_accepted_belongs_to_nobody() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let ends = Ends { own: near.local_addr().expect("an address"), peer: near.peer_addr().expect("an address") };
        assert_eq!(user_of(ends).expect("an answer"), Peer::Nobody);
        assert_eq!(user_in_tables(ends).expect("a table"), Peer::Nobody);
        let far = listener.accept().expect("the connection");
        assert_eq!(user_of(ends).expect("an answer"), Peer::User(rustix::process::geteuid().as_raw()));
        drop(far);
    }

    /// The kernel answers with the listening socket if it has none of the connection. Its user has not accepted anything.
    #[test]
    fn a_socket_that_listens_at_the_peers_address_has_no_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let peer = listener.local_addr().expect("an address");
        let ends = Ends { own: "127.0.0.1:1".parse().expect("one"), peer };
        let owner = user_by_message(ends).ok().flatten();
        assert!(owner.is_none_or(|owner| owner.inode == 0), "{owner:?}");
    }

    #[test]
    fn the_kernel_answers_a_message_about_one_socket() {
        let (_near, far) = connection("127.0.0.1").expect("a connection");
        let ends = Ends { own: far.local_addr().expect("an address"), peer: far.peer_addr().expect("an address") };
        // A kernel without such messages has the tables only.
        if let Ok(Some(owner)) = user_by_message(ends) {
            assert_eq!(owner.user, rustix::process::geteuid().as_raw());
            assert!(owner.inode > 0);
        }
        let gone = Ends { own: "127.0.0.1:1".parse().expect("one"), ..ends };
        assert_eq!(user_by_message(gone).ok().flatten(), None);
    }

    #[test]
    fn a_connection_that_nobody_has_is_not_found() {
        let ends = Ends { own: "127.0.0.1:1".parse().expect("one"), peer: "127.0.0.1:2".parse().expect("one") };
        assert_eq!(user_of(ends).expect("a table"), Peer::Elsewhere);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn lines_of_both_tables_are_read() {
        let four =
            "   1: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000  1000        0 12345 1 0";
        let six = "   0: 00000000000000000000000001000000:1F90 00000000000000000000000001000000:D431 01 \
                   00000000:00000000 00:00000000 00000000  1001        0 12345 1 0";
        let ends = |host: &str| {
            let address = |port| format!("{host}:{port}").parse().expect("an address");
            Ends { own: address(0xD431), peer: address(0x1F90) }
        };
        let user_in = |line: &str, ends: Ends| owner_in_line(line, ends).map(|owner| owner.user);
        assert_eq!(user_in(four, ends("127.0.0.1")), Some(1000));
        assert_eq!(user_in(four, ends("[::ffff:127.0.0.1]")), Some(1000));
        assert_eq!(user_in(six, ends("[::1]")), Some(1001));
        assert_eq!(user_in(four, ends("127.0.0.2")), None);
        assert_eq!(user_in("  sl  local_address rem_address   st", ends("127.0.0.1")), None);
    }
}
