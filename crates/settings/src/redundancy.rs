//! How many servers hold parts of each page.

use std::fmt;
use std::str::FromStr;

use hanare_wire::Endpoint;

use crate::{ServerSpec, SettingsError, ValueError};

/// The maximum number of parts of a page.
pub const REDUNDANCY_PARTS_MAX: u8 = 8;
/// The numbers of data parts into which a page can be cut.
const DATA: [u8; 3] = [1, 2, 4];

/// The parts of each page. Any `data` parts give the page back. The text is `none`, `mirror`, or `parity:K+M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redundancy {
    /// The number of data parts, K.
    pub data: u8,
    /// The number of parity parts, M. With one data part, they are copies. 0 means no redundancy.
    pub parity: u8,
}

impl Redundancy {
    /// Each page has one copy.
    pub const NONE: Self = Self { data: 1, parity: 0 };
    /// Each page has two copies.
    pub const MIRROR: Self = Self { data: 1, parity: 1 };

    /// Returns the number of parts of a page. It is the number of servers that a run needs.
    #[must_use]
    pub const fn parts(self) -> u8 {
        self.data + self.parity
    }

    /// Checks whether each page has one copy.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.parity == 0
    }

    /// Checks that there are enough servers on enough hosts.
    ///
    /// # Errors
    /// Returns an error if there are too few.
    pub fn check(self, servers: &[ServerSpec], allow_same_host: bool) -> Result<(), SettingsError> {
        let (needed, named) = (usize::from(self.parts()), servers.len());
        if self.is_none() {
            return Ok(());
        }
        let hosts = if allow_same_host { named } else { hosts_of(servers) };
        match () {
            () if named < needed => Err(SettingsError::FewServers { redundancy: self, needed, named }),
            () if hosts < needed => Err(SettingsError::FewHosts { redundancy: self, needed, named, hosts }),
            () => Ok(()),
        }
    }
}

fn hosts_of(servers: &[ServerSpec]) -> usize {
    let mut hosts: Vec<Option<String>> = servers.iter().map(|server| Endpoint::host(&server.endpoint)).collect();
    hosts.sort();
    hosts.dedup();
    hosts.len()
}

impl Default for Redundancy {
    fn default() -> Self {
        Self::NONE
    }
}

impl FromStr for Redundancy {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let refused = || ValueError::NotARedundancy(text.to_owned());
        match text {
            "none" => return Ok(Self::NONE),
            "mirror" => return Ok(Self::MIRROR),
            _ => {}
        }
        let (data, parity) = text.strip_prefix("parity:").and_then(|pair| pair.split_once('+')).ok_or_else(refused)?;
        let number = |text: &str| if text.starts_with('+') { None } else { text.parse::<u8>().ok() };
        let (data, parity) = number(data).zip(number(parity)).ok_or_else(refused)?;
        let is_valid = DATA.contains(&data)
            && parity > 0
            && data.checked_add(parity).is_some_and(|sum| sum <= REDUNDANCY_PARTS_MAX);
        if is_valid { Ok(Self { data, parity }) } else { Err(refused()) }
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NONE => f.write_str("none"),
            Self::MIRROR => f.write_str("mirror"),
            Self { data, parity } => write!(f, "parity:{data}+{parity}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_parse_and_print() {
        for (text, data, parity) in
            [("none", 1, 0), ("mirror", 1, 1), ("parity:2+1", 2, 1), ("parity:4+2", 4, 2), ("parity:1+2", 1, 2)]
        {
            let parsed: Redundancy = text.parse().unwrap();
            assert_eq!((parsed, parsed.to_string().as_str()), (Redundancy { data, parity }, text));
        }
        assert_eq!("parity:1+1".parse(), Ok(Redundancy::MIRROR));
        for text in
            ["", "raid", "parity", "parity:", "parity:3+1", "parity:4+5", "parity:2+0", "parity:2++1", "parity:2+300"]
        {
            let error = text.parse::<Redundancy>().unwrap_err().to_string();
            assert!(error.contains("mirror") && error.contains("parity:K+M"), "{error}");
        }
    }

    #[test]
    fn too_few_servers_and_too_few_hosts_are_refused() {
        let servers = |list: &str| crate::parse_servers(list).unwrap();
        let check = |scheme: &str, list: &str, allow| {
            scheme.parse::<Redundancy>().unwrap().check(&servers(list), allow).map_err(|error| error.to_string())
        };
        let error = check("parity:4+1", "a,b,c", false).unwrap_err();
        assert_eq!(
            error,
            "parity:4+1 needs 5 servers on 5 hosts, 3 named: name more; with --allow-same-host they may share a host"
        );
        let error = check("mirror", "a:1,A:2", false).unwrap_err();
        assert!(error.contains("2 servers on 2 hosts") && error.contains("1 host"), "{error}");
        assert!(check("mirror", "unix:/x/y,127.0.0.1:1,localhost:2", false).is_err(), "all of these are this host");
        assert_eq!(check("mirror", "a:1,a:2", true), Ok(()));
        assert!(check("mirror", "a:1", true).is_err());
        assert_eq!(check("parity:2+1", "a,b,c,a:1", false), Ok(()));
        assert_eq!(check("none", "a", false), Ok(()));
    }
}
