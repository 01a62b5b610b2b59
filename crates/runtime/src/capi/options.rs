//! Takes Hanare's options out of the program's arguments for `dlm_startup`, and forms the settings from the options and
//! the environment. A word that is no option of Hanare belongs to the program.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hanare_sys::memory::{Memory, MemoryError};
use thiserror::Error;

use hanare_settings::hostfile::{Hostfile, HostfileError};
use hanare_settings::{Settings, SettingsError, format_size};

/// Each long option, with the environment variable that it overrides.
const LONG: [(&str, &str); 10] = [
    ("--local", "HANARE_LOCAL"),
    ("--server", "HANARE_SERVERS"),
    ("--page-size", "HANARE_PAGE_SIZE"),
    ("--policy", "HANARE_POLICY"),
    ("--prefetch", "HANARE_PREFETCH"),
    ("--mode", "HANARE_MODE"),
    ("--key", "HANARE_KEY_FILE"),
    ("--seal", "HANARE_SEAL"),
    ("--redundancy", "HANARE_REDUNDANCY"),
    ("--on-loss", "HANARE_ON_LOSS"),
];

/// Why the options were refused.
#[derive(Debug, Error)]
pub(crate) enum OptionsError {
    /// An option has no value after it.
    #[error("{0} wants a value after it")]
    NoValue(String),
    /// The count of hosts is not a number.
    #[error("-n {0} is not a number of hosts; give 2 or more (the compute node counts)")]
    NotACount(String),
    /// A count of hosts was given, but no host file.
    #[error("-n counts the hosts of a host file; give one with -f")]
    CountAlone,
    /// Both a host file and the option `--server` name the servers.
    #[error("both -f and --server name the memory servers; give one of them")]
    TwoLists,
    /// The host file is invalid.
    #[error(transparent)]
    Hostfile(#[from] HostfileError),
    /// A value is invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The default budget cannot be determined.
    #[error("cannot tell how much memory is free ({0}); give the budget with --local SIZE")]
    Memory(#[from] MemoryError),
}

/// The options found in the arguments.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    hostfile: Option<OsString>,
    count: Option<OsString>,
    /// Values of long options, by the name of the environment variable that they override.
    variables: BTreeMap<&'static str, OsString>,
}

/// The options of Hanare, and the indices of the words that belong to the program.
pub(crate) type Taken = (Options, Vec<usize>);

impl Options {
    /// Finds the options of Hanare among the arguments. The first word is the program's name. The word `--` and all
    /// words after it belong to the program.
    pub(crate) fn take(words: &[OsString]) -> Result<Taken, OptionsError> {
        let mut options = Options::default();
        let mut kept = Vec::new();
        let mut at = 0;
        while at < words.len() {
            let word = &words[at];
            if at > 0 && word == "--" {
                kept.extend(at..words.len());
                break;
            }
            let (name, attached) = split_value(word);
            let slot = if at == 0 { None } else { Slot::of(name, attached.is_some()) };
            let Some(slot) = slot else {
                kept.push(at);
                at += 1;
                continue;
            };
            let value = match attached {
                Some(value) => value.to_owned(),
                None => {
                    at += 1;
                    let missing = || OptionsError::NoValue(name.to_string_lossy().into_owned());
                    words.get(at).cloned().ok_or_else(missing)?
                }
            };
            options.put(slot, value);
            at += 1;
        }
        Ok((options, kept))
    }

    /// Returns whether no option was given.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Options::default()
    }

    fn put(&mut self, slot: Slot, value: OsString) {
        match slot {
            Slot::Hostfile => self.hostfile = Some(value),
            Slot::Count => self.count = Some(value),
            Slot::Variable("HANARE_SERVERS") => {
                let list = self.variables.entry("HANARE_SERVERS").or_default();
                if !list.is_empty() {
                    list.push(",");
                }
                list.push(value);
            }
            Slot::Variable(name) => {
                self.variables.insert(name, value);
            }
        }
    }

    /// Returns the settings. An option overrides its environment variable, which `lookup` reads. `HANARE_LOCAL`
    /// overrides the budget in the host file, and the host file overrides `HANARE_SERVERS`. The settings may name no
    /// server. In that case, the caller can start a private one.
    pub(crate) fn settings(mut self, lookup: impl Fn(&str) -> Option<OsString>) -> Result<Settings, OptionsError> {
        let hosts = self.hosts()?;
        let chosen = |name: &'static str| {
            let given = self.variables.get(name).cloned().or_else(|| lookup(name));
            given.filter(|value| !value.is_empty())
        };
        let servers_named = hosts.is_some() || self.variables.contains_key("HANARE_SERVERS");
        if chosen("HANARE_LOCAL").is_none() {
            let bytes = match &hosts {
                Some(hosts) => hosts.compute_bytes,
                None => Memory::now()?.available_bytes / 2,
            };
            self.variables.insert("HANARE_LOCAL", format_size(bytes).into());
        }
        let chosen = |name: &'static str| self.variables.get(name).cloned().or_else(|| lookup(name));
        let mut settings = Settings::from_lookup(chosen)?;
        if let Some(hosts) = hosts {
            settings.servers = hosts.servers;
        }
        if servers_named {
            // The servers in the options replace a private server inherited from the environment.
            settings.private = None;
        }
        settings.resolve_paths();
        settings.validate_values()?;
        Ok(settings)
    }

    fn hosts(&self) -> Result<Option<Hostfile>, OptionsError> {
        let count = match &self.count {
            None => None,
            Some(text) => {
                let text = text.to_string_lossy();
                let number = text.parse().map_err(|_| OptionsError::NotACount(text.into_owned()))?;
                Some(number)
            }
        };
        match &self.hostfile {
            Some(_) if self.variables.contains_key("HANARE_SERVERS") => Err(OptionsError::TwoLists),
            Some(path) => Ok(Some(Hostfile::read(Path::new(path), count)?)),
            None if count.is_some() => Err(OptionsError::CountAlone),
            None => Ok(None),
        }
    }
}

/// The field of [`Options`] that an option sets.
enum Slot {
    Hostfile,
    Count,
    Variable(&'static str),
}

impl Slot {
    /// Returns the field that option `name` sets. `attached` says whether a value follows in the same word. A short
    /// option must have its value in the next word, as in the DLM paper.
    fn of(name: &OsStr, attached: bool) -> Option<Slot> {
        match name.to_str()? {
            "-f" if !attached => Some(Slot::Hostfile),
            "-n" if !attached => Some(Slot::Count),
            name => {
                let (_, variable) = LONG.iter().find(|(long, _)| *long == name)?;
                Some(Slot::Variable(variable))
            }
        }
    }
}

/// Splits a word of the form `--name=value`. Returns any other word whole and without a value.
fn split_value(word: &OsStr) -> (&OsStr, Option<&OsStr>) {
    let bytes = word.as_bytes();
    match bytes.iter().position(|&byte| byte == b'=') {
        Some(at) if bytes.starts_with(b"--") => {
            (OsStr::from_bytes(&bytes[..at]), Some(OsStr::from_bytes(&bytes[at + 1..])))
        }
        _ => (word, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare_settings::{Local, PageSize};
    use proptest::prelude::*;
    use std::io::Write;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn kept(line: &str) -> String {
        let words = words(line);
        let (_, kept) = Options::take(&words).expect("valid");
        let kept: Vec<_> = kept.iter().map(|&at| words[at].to_str().expect("text")).collect();
        kept.join(" ")
    }

    fn settings(line: &str, env: &[(&str, &str)]) -> Result<Settings, OptionsError> {
        let (options, _) = Options::take(&words(line))?;
        options.settings(|name| env.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value)))
    }

    fn hostfile() -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        write!(file, "calhost 64 // computes\nmemhost1 128\nmemhost2:99 256 # lends\n").expect("written");
        file
    }

    #[test]
    fn only_our_words_go() {
        for (line, left) in [
            ("prog", "prog"),
            ("prog -f hosts -n 2", "prog"),
            ("prog a -f hosts b -n 2 c", "prog a b c"),
            ("prog --local 1G --localx 2 --server=h:1 -x", "prog --localx 2 -x"),
            ("prog -fast -number --f=3 -n=2", "prog -fast -number --f=3 -n=2"),
            ("prog --mode=thread -- -f hosts --local 1G", "prog -- -f hosts --local 1G"),
            ("-f hosts -n 2", "-f hosts"),
        ] {
            assert_eq!(kept(line), left, "{line}");
        }
    }

    #[test]
    fn a_host_file_names_servers_and_budget() {
        let file = hostfile();
        let line = format!("prog -f {} -n 2", file.path().display());
        let found = settings(&line, &[("HANARE_PRIVATE", "/p")]).expect("valid");
        assert_eq!(found.local, Local::Bytes(64 << 20));
        assert_eq!(found.servers.len(), 1);
        assert_eq!(found.servers[0].capacity, Some(128 << 20));
        assert_eq!(found.private, None, "the host file goes before an inherited private server");
        let line = format!("prog -f {} --local 50% --page-size 64K", file.path().display());
        let found = settings(&line, &[("HANARE_LOCAL", "1G")]).expect("valid");
        assert_eq!((found.local, found.servers.len()), (Local::Percent(50), 2));
        assert_eq!(found.page_size, PageSize::Fixed(64 << 10));
    }

    #[test]
    fn options_go_before_variables() {
        let env = [("HANARE_LOCAL", "1G"), ("HANARE_MODE", "sigsegv"), ("HANARE_SERVERS", "a:1")];
        let found = settings("prog --local 2G --server b:1 --server c:2=4G", &env).expect("valid");
        assert_eq!(found.local, Local::Bytes(2 << 30));
        assert_eq!(found.servers.len(), 2);
        assert_eq!(found.mode, hanare_settings::Mode::Sigsegv);
        let found = settings("prog", &env).expect("valid");
        assert_eq!(found.local, Local::Bytes(1 << 30));
        assert_eq!(found.servers.len(), 1);
        let line = "prog --redundancy=mirror --server b:1 --server c:2";
        let found = settings(line, &[("HANARE_REDUNDANCY", "parity:2+1")]).expect("valid");
        assert_eq!(found.redundancy.to_string(), "mirror");
        let found = settings("prog --on-loss wait --server b:1", &[]).expect("valid");
        assert_eq!(found.on_loss, hanare_settings::OnLoss::Wait);
        let found = settings("prog", &[]).expect("a default budget");
        assert!(found.servers.is_empty() && found.private.is_none());
    }

    #[test]
    fn each_mistake_has_one_line() {
        for (line, part) in [
            ("prog -f", "-f wants a value"),
            ("prog --local", "--local wants a value"),
            ("prog -n 2", "-f"),
            ("prog -n two", "-n two"),
            ("prog -f /nowhere/hosts", "/nowhere/hosts"),
            ("prog -f x --server h:1", "both"),
            ("prog --local much", "'much'"),
            ("prog --local 0 --server h:1", "--local"),
            ("prog --page-size 3K", "'3K'"),
            ("prog --redundancy twice --server h:1", "'twice'"),
            ("prog --redundancy mirror --server h:1", "mirror"),
        ] {
            let error = settings(line, &[]).expect_err(line).to_string();
            assert!(error.contains(part) && !error.contains('\n'), "{line}: {error}");
        }
    }

    proptest! {
        #[test]
        fn every_word_is_kept_or_taken_whatever_it_is(line in prop::collection::vec("(-f|-n|--|--local|--server=)?[ -~]{0,5}", 0..8)) {
            let words: Vec<OsString> = line.iter().map(OsString::from).collect();
            if let Ok((options, kept)) = Options::take(&words) {
                prop_assert!(kept.is_sorted() && kept.iter().all(|&at| at < words.len()));
                prop_assert_eq!(options.is_empty(), kept.len() == words.len());
                let _ = options.settings(|_| None);
            }
        }
    }
}
