//! Finds the user at the other end of a TCP connection within this host. The kernel tells a socket's user in
//! `/proc/net/tcp`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// How often the tables are read. A table that changes while it is read may lack an entry.
const TRIES: usize = 3;

/// The two ends of a TCP connection, as this side sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) own: SocketAddr,
    pub(crate) peer: SocketAddr,
}

/// Returns the number of the user whose process made the connection. `None` if no process of this host has its other
/// end, or if the process is in another network namespace.
pub(crate) fn user_of(ends: Ends) -> io::Result<Option<u32>> {
    for _ in 0..TRIES {
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let text = match std::fs::read_to_string(table) {
                Ok(text) => text,
                // A kernel without IPv6 has one table only.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if let Some(user) = text.lines().find_map(|line| user_in(line, ends)) {
                return Ok(Some(user));
            }
        }
    }
    Ok(None)
}

/// Returns the user in a line of the table, if the line is about the peer's socket of this connection.
fn user_in(line: &str, ends: Ends) -> Option<u32> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, remote) = (address(fields.next()?)?, address(fields.next()?)?);
    let canonical = |address: SocketAddr| (address.ip().to_canonical(), address.port());
    let is_it = canonical(local) == canonical(ends.peer) && canonical(remote) == canonical(ends.own);
    // After the addresses come the state, two queues, a timer and the retransmissions.
    if is_it { fields.nth(4)?.parse().ok() } else { None }
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
            assert_eq!(user_of(ends).expect("a table"), Some(rustix::process::geteuid().as_raw()), "{host}");
            drop(near);
        }
    }

    #[test]
    fn a_connection_that_nobody_has_is_not_found() {
        let ends = Ends { own: "127.0.0.1:1".parse().expect("one"), peer: "127.0.0.1:2".parse().expect("one") };
        assert_eq!(user_of(ends).expect("a table"), None);
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
        assert_eq!(user_in(four, ends("127.0.0.1")), Some(1000));
        assert_eq!(user_in(four, ends("[::ffff:127.0.0.1]")), Some(1000));
        assert_eq!(user_in(six, ends("[::1]")), Some(1001));
        assert_eq!(user_in(four, ends("127.0.0.2")), None);
        assert_eq!(user_in("  sl  local_address rem_address   st", ends("127.0.0.1")), None);
    }
}
