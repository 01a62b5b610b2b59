//! The address on which a memory server listens.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// The TCP port that is used if an address contains no port.
pub const DEFAULT_PORT: u16 = 7441;

/// An address of a memory server: `host:port`, `host`, `[v6]:port`, or the path of an AF_UNIX socket. A path is written
/// as `unix:PATH` or contains a `/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `host:port`. The port is always present.
    Tcp(String),
    /// The path of an AF_UNIX stream socket.
    Unix(PathBuf),
}

/// The error for a text that is not a valid server address.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("\"{text}\" is not a server address ({why}); write HOST:PORT, HOST, [IPV6]:PORT or a socket's path")]
pub struct EndpointError {
    text: String,
    why: &'static str,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Endpoint, EndpointError> {
        let refuse = |why| Err(EndpointError { text: text.to_owned(), why });
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { refuse("the path is empty") } else { Ok(Endpoint::Unix(path.into())) };
        }
        if text.contains('/') {
            return Ok(Endpoint::Unix(text.into()));
        }
        if text.is_empty() || text.contains(char::is_whitespace) {
            return refuse("it is empty or has blanks");
        }
        let (host, port) = match split_port(text) {
            Ok(parts) => parts,
            Err(why) => return refuse(why),
        };
        if host == "unix" {
            // A host named `unix` is refused. Its printed address `unix:PORT` would later be parsed as the path of a
            // socket.
            return refuse("'unix:' begins the path of a socket");
        }
        match port.map(u16::from_str) {
            _ if host.is_empty() || host == "[]" => refuse("the host is empty"),
            None => Ok(Endpoint::Tcp(format!("{host}:{DEFAULT_PORT}"))),
            Some(Ok(port)) => Ok(Endpoint::Tcp(format!("{host}:{port}"))),
            Some(Err(_)) => refuse("the port is not a number up to 65535"),
        }
    }
}

/// Splits `host:port`, `[v6]:port`, `host` and `[v6]`. Refuses an IPv6 address without brackets, because its port is
/// ambiguous.
fn split_port(text: &str) -> Result<(&str, Option<&str>), &'static str> {
    if text.starts_with('[') {
        let Some(end) = text.find(']') else {
            return Err("the bracket is not closed");
        };
        let (host, rest) = text.split_at(end + 1);
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err("something other than a port follows the bracket"),
        };
    }
    match text.matches(':').count() {
        0 => Ok((text, None)),
        1 => Ok(text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)))),
        _ => Err("an IPv6 address needs brackets"),
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => f.write_str(address),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Endpoint {
    /// Returns the name or address of the host, in lower case. Returns `None` for this host: an AF_UNIX path, `localhost`
    /// or a loopback address. Looks no names up. So two names of one host count as two hosts.
    pub fn host(&self) -> Option<String> {
        let Endpoint::Tcp(address) = self else { return None };
        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host).to_ascii_lowercase();
        let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
        let is_loopback = ip.is_ok_and(|ip| ip.to_canonical().is_loopback());
        if is_loopback || host == "localhost" { None } else { Some(host) }
    }

    /// Checks whether bytes sent to this endpoint stay on this host. This is so for an AF_UNIX path, and for a host
    /// that resolves only to loopback addresses.
    pub fn is_local(&self) -> bool {
        match self {
            Endpoint::Unix(_) => true,
            Endpoint::Tcp(address) => address.to_socket_addrs().is_ok_and(|mut addresses| {
                let mut any = false;
                addresses.all(|a: SocketAddr| {
                    any = true;
                    a.ip().to_canonical().is_loopback()
                }) && any
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_print() {
        for (text, printed) in [
            ("node1:9000", "node1:9000"),
            ("node1", "node1:7441"),
            ("[::1]:80", "[::1]:80"),
            ("[fe80::1]", "[fe80::1]:7441"),
            ("/run/hanare.sock", "unix:/run/hanare.sock"),
            ("unix:here.sock", "unix:here.sock"),
            ("./here.sock", "unix:./here.sock"),
        ] {
            let endpoint: Endpoint = text.parse().expect(text);
            assert_eq!(endpoint.to_string(), printed);
            assert_eq!(printed.parse::<Endpoint>().expect(printed), endpoint);
        }
    }

    #[test]
    fn bad_addresses_are_refused_with_the_reason() {
        for text in
            ["", " ", "a b", ":80", "host:", "host:99999", "host:x", "::1", "[::1", "[::1]x", "unix:", "unix", "[]:1"]
        {
            let error = text.parse::<Endpoint>().expect_err(text).to_string();
            assert!(error.contains("HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn hosts_are_told_apart_without_their_ports() {
        let host = |text: &str| text.parse::<Endpoint>().expect(text).host();
        assert_eq!((host("Node1:9"), host("[FE80::1]:2")), (Some("node1".to_owned()), Some("[fe80::1]".to_owned())));
        for text in ["localhost:1", "127.0.0.1", "127.9.9.9:3", "[::1]:1", "/run/x", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(host(text), None, "{text}");
        }
    }

    #[test]
    fn only_this_host_is_local() {
        let local = |text: &str| text.parse::<Endpoint>().expect(text).is_local();
        assert!(local("127.0.0.1") && local("[::1]:1") && local("/x") && local("[::ffff:127.0.0.1]:1"));
        assert!(!local("0.0.0.0") && !local("192.0.2.1:1") && !local("[::]:1"));
    }
}
