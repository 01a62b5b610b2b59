//! Where a rank puts pages that it has no room for, as its environment says: the variables of `hanare run`.

use std::path::PathBuf;

use hanare_wire::Endpoint;

use super::job::{JobError, number};

/// How long a silent server is waited for when nothing else is set, in seconds.
const TIMEOUT_S: u32 = 3;
/// Most memory servers of one rank.
const SERVERS_MAX: usize = 254;

/// A memory server, and how much of it all ranks together may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerSpec {
    /// Where it is.
    pub endpoint: Endpoint,
    /// Bytes; none without a bound.
    pub capacity_bytes: Option<u64>,
}

/// Where pages go that there is no room for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Elsewhere {
    /// Nothing is named: a private server of the rank's own.
    Own,
    /// A private server of this host, by its socket.
    Private(PathBuf),
    /// Memory servers.
    Servers {
        /// Which.
        servers: Vec<ServerSpec>,
        /// File with the key that they share with this rank.
        key: Option<PathBuf>,
        /// How long a silent one is waited for, in seconds.
        timeout_s: u32,
    },
}

impl Elsewhere {
    /// Reads `HANARE_SERVERS` (`HOST:PORT[=SIZE],…`), `HANARE_KEY_FILE`, `HANARE_TIMEOUT` and `HANARE_PRIVATE`.
    pub(super) fn from_env(get: &impl Fn(&str) -> Option<String>) -> Result<Self, JobError> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let Some(list) = get("HANARE_SERVERS") else {
            return Ok(get("HANARE_PRIVATE").map_or(Elsewhere::Own, |path| Elsewhere::Private(path.into())));
        };
        let servers: Option<Vec<ServerSpec>> = list.split(',').map(server).collect();
        let refused = || JobError::Value {
            name: "HANARE_SERVERS",
            value: list.clone(),
            wanted: "a list of 1 to 254 memory servers, HOST:PORT or HOST:PORT=SIZE",
        };
        let servers = servers.filter(|servers| servers.len() <= SERVERS_MAX).ok_or_else(refused)?;
        let key = get("HANARE_KEY_FILE").map(PathBuf::from);
        let timeout_s = number(&get, "HANARE_TIMEOUT", "a number of seconds")?.unwrap_or(TIMEOUT_S);
        Ok(Elsewhere::Servers { servers, key, timeout_s })
    }
}

fn server(text: &str) -> Option<ServerSpec> {
    let (address, capacity_bytes) = match text.rsplit_once('=') {
        Some((address, size)) => (address, Some(bytes(size)?)),
        None => (text, None),
    };
    Some(ServerSpec { endpoint: address.parse().ok()?, capacity_bytes })
}

/// A whole number with K, M, G or T behind it, or none of them: as `hanare launch` writes sizes.
fn bytes(text: &str) -> Option<u64> {
    let unit = text.chars().last().and_then(|last| "KMGT".find(last.to_ascii_uppercase()));
    let digits = &text[..text.len() - usize::from(unit.is_some())];
    let shift = unit.map_or(0, |unit| 10 * (unit as u32 + 1));
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(vars: &[(&str, &str)]) -> Result<Elsewhere, JobError> {
        Elsewhere::from_env(&|name: &str| {
            vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn named_servers_come_before_a_private_one() {
        assert_eq!(of(&[]), Ok(Elsewhere::Own));
        assert_eq!(of(&[("HANARE_PRIVATE", "/p")]), Ok(Elsewhere::Private("/p".into())));
        let vars = [("HANARE_SERVERS", "a:1=3M,b:2"), ("HANARE_PRIVATE", "/p"), ("HANARE_TIMEOUT", "7")];
        let server = |endpoint: &str, capacity_bytes| ServerSpec {
            endpoint: endpoint.parse().expect("an address"),
            capacity_bytes,
        };
        let servers = vec![server("a:1", Some(3 << 20)), server("b:2", None)];
        assert_eq!(of(&vars), Ok(Elsewhere::Servers { servers, key: None, timeout_s: 7 }));
    }

    #[test]
    fn what_names_no_server_is_refused() {
        let many = vec!["a:1"; SERVERS_MAX + 1].join(",");
        for value in ["a:1,,b:2", "a:1=x", "a:1=", "a:1=99999999999T", &many] {
            let error = of(&[("HANARE_SERVERS", value)]).expect_err(value).to_string();
            assert!(error.starts_with("HANARE_SERVERS="), "{error}");
        }
        let error = of(&[("HANARE_SERVERS", "a:1"), ("HANARE_TIMEOUT", "soon")]).expect_err("no number").to_string();
        assert!(error.starts_with("HANARE_TIMEOUT=soon"), "{error}");
    }
}
