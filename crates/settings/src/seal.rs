//! Whether pages are sealed before they leave the process.

use std::fmt;
use std::str::FromStr;

use crate::{ServerSpec, Settings, ValueError};

/// Whether pages are sealed (encrypted and authenticated) before they leave the process. The key is made by the process
/// and never leaves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seal {
    /// Pages are sealed if there is a key for the servers and a server is on another host.
    Auto,
    /// Pages are sealed, also for a private server.
    On,
    /// Pages are sent as they are, each with a checksum that stays in the process.
    Off,
}

impl Seal {
    /// Decides whether a process seals its pages. `has_key` says whether it shares a key with `servers`.
    #[must_use]
    pub fn is_on(self, has_key: bool, servers: &[ServerSpec]) -> bool {
        match self {
            Seal::On => true,
            Seal::Off => false,
            Seal::Auto => has_key && servers.iter().any(|server| !server.endpoint.is_local()),
        }
    }
}

impl Settings {
    /// Decides whether a process with these settings seals its pages.
    #[must_use]
    pub fn seals(&self) -> bool {
        self.seal.is_on(self.key_file.is_some(), &self.servers)
    }
}

impl FromStr for Seal {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "auto" => Ok(Seal::Auto),
            "on" => Ok(Seal::On),
            "off" => Ok(Seal::Off),
            _ => Err(ValueError::NotASeal(text.to_owned())),
        }
    }
}

impl fmt::Display for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Seal::Auto => "auto",
            Seal::On => "on",
            Seal::Off => "off",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_sealed_by_themselves_where_a_key_guards_a_link_to_another_host() {
        let servers = |list: &str| crate::parse_servers(list).expect("servers");
        let (here, there) = (servers("127.0.0.1:1,/run/s"), servers("127.0.0.1:1,192.0.2.1:1"));
        for (seal, has_key, servers, wanted) in [
            (Seal::Auto, true, &there, true),
            (Seal::Auto, false, &there, false),
            (Seal::Auto, true, &here, false),
            (Seal::On, false, &here, true),
            (Seal::On, false, &Vec::new(), true),
            (Seal::Off, true, &there, false),
        ] {
            assert_eq!(seal.is_on(has_key, servers), wanted, "{seal}, key: {has_key}, {servers:?}");
            assert_eq!(seal.to_string().parse(), Ok(seal));
        }
        assert!("yes".parse::<Seal>().is_err_and(|error| error.to_string().contains("auto, on or off")));
    }
}
