//! The backing store of a rank whose memory is limited. It is named by the same environment variables as for `hanare
//! run`.

use std::path::PathBuf;

use hanare_settings::{DEFAULT_TIMEOUT_S, Seal, parse_servers};
use hanare_store::{Copies, Target};

use super::job::{JobError, number};

/// Maximum number of memory servers of one rank.
const SERVERS_MAX: usize = 254;

/// Reads the backing store from `HANARE_SERVERS` (`HOST:PORT[=SIZE],…`), `HANARE_KEY_FILE`, `HANARE_TIMEOUT` and
/// `HANARE_PRIVATE`.
pub(super) fn from_env(get: &impl Fn(&str) -> Option<String>) -> Result<Target, JobError> {
    let get = |name: &str| get(name).filter(|value| !value.is_empty());
    let Some(list) = get("HANARE_SERVERS") else {
        return Ok(get("HANARE_PRIVATE").map_or(Target::Own, |path| Target::Private(path.into())));
    };
    let refused = || JobError::Value {
        name: "HANARE_SERVERS",
        value: list.clone(),
        wanted: "a list of 1 to 254 memory servers, HOST:PORT or HOST:PORT=SIZE",
    };
    let servers = parse_servers(&list).ok().filter(|servers| servers.len() <= SERVERS_MAX).ok_or_else(refused)?;
    let key = get("HANARE_KEY_FILE").map(PathBuf::from);
    if let Some(value) = get("HANARE_ON_LOSS").filter(|value| value != "end") {
        return Err(JobError::Value {
            name: "HANARE_ON_LOSS",
            value,
            wanted: "end: ranks cannot wait for a lost server",
        });
    }
    let timeout_s = number(&get, "HANARE_TIMEOUT", "a number of seconds")?.unwrap_or(DEFAULT_TIMEOUT_S);
    Ok(Target::Servers { servers, key, timeout_s, copies: Copies::default() })
}

/// Reads from `HANARE_SEAL` whether evicted pages are sealed.
pub(super) fn seal_from_env(get: &impl Fn(&str) -> Option<String>) -> Result<Seal, JobError> {
    let Some(value) = get("HANARE_SEAL").filter(|value| !value.is_empty()) else { return Ok(Seal::Auto) };
    value.parse().map_err(|_| JobError::Value { name: "HANARE_SEAL", value, wanted: "auto, on or off" })
}

#[cfg(test)]
mod tests {
    use hanare_settings::ServerSpec;

    use super::*;

    fn of(vars: &[(&str, &str)]) -> Result<Target, JobError> {
        from_env(&|name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn named_servers_come_before_a_private_one() {
        assert_eq!(of(&[]), Ok(Target::Own));
        assert_eq!(of(&[("HANARE_PRIVATE", "/p")]), Ok(Target::Private("/p".into())));
        let vars = [("HANARE_SERVERS", "a:1=3M,b:2"), ("HANARE_PRIVATE", "/p"), ("HANARE_TIMEOUT", "7")];
        let server =
            |endpoint: &str, capacity| ServerSpec { endpoint: endpoint.parse().expect("an address"), capacity };
        let servers = vec![server("a:1", Some(3 << 20)), server("b:2", None)];
        assert_eq!(of(&vars), Ok(Target::Servers { servers, key: None, timeout_s: 7, copies: Copies::default() }));
    }

    #[test]
    fn what_names_no_server_is_refused() {
        let many = vec!["a:1"; SERVERS_MAX + 1].join(",");
        for value in ["a:1,,b:2", "a:1=x", "a:1=", "a:1=99999999999T", &many] {
            let error = of(&[("HANARE_SERVERS", value)]).expect_err(value).to_string();
            assert!(error.starts_with("HANARE_SERVERS="), "{error}");
        }
        assert!(of(&[("HANARE_SERVERS", "a:1"), ("HANARE_ON_LOSS", "end")]).is_ok());
        let error =
            of(&[("HANARE_SERVERS", "a:1"), ("HANARE_ON_LOSS", "wait")]).expect_err("ranks do not wait").to_string();
        assert!(error.starts_with("HANARE_ON_LOSS=wait"), "{error}");
        let error = of(&[("HANARE_SERVERS", "a:1"), ("HANARE_TIMEOUT", "soon")]).expect_err("no number").to_string();
        assert!(error.starts_with("HANARE_TIMEOUT=soon"), "{error}");
    }

    #[test]
    fn pages_are_sealed_as_the_variable_says() {
        let of = |value: Option<&str>| seal_from_env(&|_| value.map(str::to_owned));
        assert_eq!([of(None), of(Some("")), of(Some("on"))], [Ok(Seal::Auto), Ok(Seal::Auto), Ok(Seal::On)]);
        let error = of(Some("yes")).expect_err("no such word").to_string();
        assert!(error.starts_with("HANARE_SEAL=yes"), "{error}");
    }
}
