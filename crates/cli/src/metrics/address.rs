//! The value of `--metrics`: a port of this machine, or one of its loopback addresses with a port.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::str::FromStr;

/// Where metrics are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// Listens on the first address of the host's name that can be used. All must be loopback addresses, because figures
    /// are served without a key.
    pub(super) fn listen(&self) -> io::Result<TcpListener> {
        let addresses: Vec<SocketAddr> = (self.host.as_str(), self.port).to_socket_addrs()?.collect();
        if !addresses.iter().all(|address| address.ip().is_loopback()) {
            let reason = "other machines could reach it, and figures have no key";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        TcpListener::bind(&addresses[..])
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let wrong = || format!("'{}' is no address; give PORT, :PORT or HOST:PORT, such as 9464", text.escape_debug());
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        // The standard library also takes a sign.
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_number).ok_or_else(wrong)?;
        let host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(inner) => inner,
            None if host.contains([':', '[', ']']) => return Err(wrong()),
            None => host,
        };
        if host.chars().any(|c| c.is_whitespace() || c.is_control() || c == '/') {
            return Err(wrong());
        }
        let host = if host.is_empty() { "127.0.0.1" } else { host };
        Ok(Address { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_of_this_machine() {
        for (text, shown) in [
            ("9464", "127.0.0.1:9464"),
            (":0", "127.0.0.1:0"),
            ("node7:9464", "node7:9464"),
            ("[::1]:9464", "[::1]:9464"),
            ("0.0.0.0:80", "0.0.0.0:80"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown);
        }
        for text in ["", ":", "x", "-1", "+1", "65536", "::1:9464", "a b:1", "http://a:1", "[::1]", "a:", "a\n:1"] {
            assert!(text.parse::<Address>().is_err_and(|why| why.contains("HOST:PORT")), "{text:?}");
        }
    }

    #[test]
    fn only_loopback_addresses_are_listened_on() {
        let listen = |text: &str| text.parse::<Address>().unwrap().listen().map_err(|error| error.kind());
        assert!(listen("127.0.0.2:0").is_ok());
        for text in ["0.0.0.0:0", "[::]:0", "203.0.113.1:0"] {
            assert_eq!(listen(text).err(), Some(io::ErrorKind::PermissionDenied), "{text}");
        }
    }
}
