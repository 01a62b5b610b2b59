//! The target for settings that users write: sizes, servers, names, environment variables and the host file.

use std::ffi::OsString;
use std::fmt::{Debug, Display};
use std::str::FromStr;

use hanare_settings::hostfile::Hostfile;
use hanare_settings::{
    Local, Mode, Overcommit, PageSize, ServerSpec, Settings, format_far, format_size, parse_far, parse_name,
    parse_servers, parse_size,
};
use hanare_sys::features::Disabled;
use hanare_wire::Endpoint;

use crate::first;
use crate::memory::within;

pub(crate) fn run(data: &[u8]) {
    let Some((how, rest)) = first(data) else { return };
    let text = String::from_utf8_lossy(rest);
    // Any input may take 1 MiB of memory, because a policy is built to check its name and its values.
    within(text.len(), 64, 1 << 20, || match how % 3 {
        0 => values(&text),
        1 => variables(&text),
        _ => hosts(&text, usize::from(how / 3)),
    });
}

/// Checks that a parsed value prints as text that parses to the same value.
fn there_and_back<T: FromStr + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let shown = value.to_string();
        assert!(shown.parse::<T>().is_ok_and(|again| again == value), "{text:?} is {value:?}, shown as {shown:?}");
    }
}

fn values(text: &str) {
    there_and_back::<Local>(text);
    there_and_back::<PageSize>(text);
    there_and_back::<Mode>(text);
    there_and_back::<Overcommit>(text);
    there_and_back::<ServerSpec>(text);
    there_and_back::<Endpoint>(text);
    if let Ok(bytes) = parse_size(text) {
        assert_eq!(parse_size(&format_size(bytes)), Ok(bytes), "{text:?}");
    }
    if let Ok(far) = parse_far(text) {
        assert_eq!(parse_far(&format_far(far)), Ok(far), "{text:?}");
    }
    if let Ok(servers) = parse_servers(text) {
        let list: Vec<String> = servers.iter().map(ToString::to_string).collect();
        assert_eq!(parse_servers(&list.join(",")), Ok(servers), "{text:?}");
    }
    if let Ok(name) = parse_name(text) {
        assert!(name == text && name.len() <= 63);
    }
    drop(Disabled::parse(text));
}

/// Reads lines `NAME=VALUE` as the variables of a run. The names may be written without `HANARE_`.
fn variables(text: &str) {
    let pairs: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let lookup = |name: &'static str| {
        let is_it = |key: &str| key == name || name.strip_prefix("HANARE_") == Some(key);
        pairs.iter().find(|(key, _)| is_it(key)).map(|(_, value)| OsString::from(value))
    };
    let Ok(settings) = Settings::from_lookup(lookup) else { return };
    let variables = settings.to_env();
    let again = Settings::from_lookup(|name| {
        variables.iter().find(|(key, _)| key == name).map(|(_, value)| OsString::from(value))
    });
    assert_eq!(again.expect("what was carried over"), settings);
    assert!(variables.iter().all(|(name, _)| Settings::VARIABLES.contains(&name.as_str())));
    drop(settings.validate());
}

fn hosts(text: &str, count: usize) {
    let count = Some(count).filter(|count| *count > 0);
    match Hostfile::parse(text, "hosts", count) {
        Ok(hosts) => {
            assert!(!hosts.servers.is_empty() && count.is_none_or(|count| hosts.servers.len() < count));
            let shown: String = hosts
                .servers
                .iter()
                .filter_map(|server| server.capacity.map(|bytes| format!("{} {}\n", server.endpoint, bytes >> 20)))
                .collect();
            let text = format!("{} {}\n{shown}", hosts.compute, hosts.compute_bytes >> 20);
            let again = Hostfile::parse(&text, "hosts", None);
            assert!(again.is_ok_and(|again| again == hosts), "shown as {text:?}");
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}
