//! The target for texts of several parts by which users choose policies, prefetchers, networks, settings of the cluster
//! simulation, and reference strings.

use hanare_paging::{Space, policy, prefetch};
use hanare_sim::cluster::Config;
use hanare_sim::cluster::memory::Replacement;
use hanare_sim::cluster::network::{Network, PROCESSORS_MAX};
use hanare_sim::cluster::schedule::Info;
use hanare_sim::policies::{Local, check_policies, parse_policies};
use hanare_sim::string::{RefString, Step};

use crate::first;
use crate::memory::within;

/// The space for which policies are built.
const SPACE: Space = Space { units: 64, block_units: 2, seed: 1, hides: true };
/// Most bytes of a bitmap with one bit for each possible page. The bitmap is a vector that doubles its capacity when it
/// grows.
const SEEN_BYTES_MAX: usize = 32 << 20;

pub(crate) fn run(data: &[u8]) {
    let Some((how, rest)) = first(data) else { return };
    let text = String::from_utf8_lossy(rest);
    // Any input may take this much memory: for a policy with 64 units, the shipped settings, or a bitmap of all pages.
    let fixed = if how % 5 == 4 { SEEN_BYTES_MAX } else { 4 << 20 };
    within(text.len(), 512, fixed, || match how % 5 {
        0 => built(&text),
        1 => chosen(&text),
        2 => file(&text),
        3 => single(&text),
        _ => string(rest),
    });
}

fn built(text: &str) {
    let policy = policy::build(text, SPACE).map(drop);
    assert_eq!(policy.is_ok(), policy::hides(text).is_ok());
    let prefetcher = prefetch::build(text, SPACE).map(drop);
    for refused in [policy, prefetcher].into_iter().filter_map(Result::err) {
        assert!(!refused.to_string().is_empty());
    }
}

fn chosen(text: &str) {
    let policies = parse_policies(text);
    if check_policies(&policies).is_ok() {
        assert_eq!(parse_policies(&policies.join(";")), policies, "{text:?}");
    }
    if let Ok(locals) = Local::parse_list(text) {
        assert!(locals.iter().all(|local| local.pages(u32::MAX) >= 2));
    }
    if let Ok(network) = text.parse::<Network>() {
        let clusters = network.clusters();
        assert!((2..=PROCESSORS_MAX).contains(&clusters), "{text:?}");
        assert_eq!(network.to_string().parse(), Ok(network.clone()));
        assert!(network.levels(0, clusters - 1) == network.height());
    }
    if let Ok(replacement) = Replacement::parse(text) {
        assert_eq!(Replacement::parse(&replacement.name()), Ok(replacement), "{text:?}");
    }
    drop(Info::find(text));
}

fn load(file: &str) -> Result<String, String> {
    match file {
        "three" => Ok("3\n0\n1.5\n".to_owned()),
        "bad" => Ok("3\nmany\n".to_owned()),
        _ => Err("no such file".to_owned()),
    }
}

/// Reads the text as a settings file. If the file is accepted, checks the settings.
fn file(text: &str) {
    if let Ok(config) = Config::read(text, "a.toml", &load) {
        drop(config.check());
    }
}

/// Sets one setting from each line `KEY=VALUE`, and checks the settings.
fn single(text: &str) {
    let mut config = Config::default();
    for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
        drop(config.set(key, value, &load));
    }
    drop(config.check());
}

fn string(bytes: &[u8]) {
    let Ok(string) = RefString::from_text(bytes) else { return };
    assert!(u64::from(string.distinct()) <= string.references() && string.references() == string.len() as u64);
    assert!(string.distinct() <= string.pages());
    let shown: String = string
        .steps()
        .map(|step| match step {
            Step::Read(page) => format!("{page}\n"),
            Step::Write(page) => format!("{page} w\n"),
            other => unreachable!("{other:?} of a text"),
        })
        .collect();
    let again = RefString::from_text(shown.as_bytes()).expect("what was shown");
    assert!(again.steps().eq(string.steps()));
}
