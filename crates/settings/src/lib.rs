//! The settings of one run: `hanare run` or `dlm_startup` decides them, and `HANARE_*` variables carry them to the
//! program.
//!
//! This crate defines the names, forms and defaults of the settings, but not their effects. It checks every value. So
//! the engine, the preload library, the C API and the command refuse the same values with the same messages.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

pub use hanare_paging::policy::POLICIES;
pub use hanare_paging::prefetch::PREFETCHERS;
pub use hanare_paging::{Info, Space, SpecError, names};
use hanare_paging::{limits, policy, prefetch};
use hanare_sys::features::Disabled;
use hanare_wire::Endpoint;

mod error;
pub mod fits;
pub mod hostfile;
mod paths;
mod redundancy;
mod seal;
pub mod similar;
mod sizes;
mod slowdown;
mod values;
mod variables;

pub use error::SettingsError;
pub use redundancy::{REDUNDANCY_PARTS_MAX, Redundancy};
pub use seal::Seal;
pub use sizes::{HumanSize, human_size};
pub use slowdown::Slowdown;
pub use values::{
    Local, Mode, OnLoss, Overcommit, PAGE_SIZE_MAX, PAGE_SIZE_MIN, PageSize, ServerSpec, TIMEOUT_MAX_S, ValueError,
    format_far, format_near, format_size, parse_far, parse_name, parse_near, parse_servers, parse_size,
};
use values::{parse_number, parse_reserve};
pub use variables::{Brief, Environment, unknown_variables};

/// Size in bytes of the smallest allocation that is placed in far memory under `HANARE_FAR=large`.
pub const FAR_LARGE: usize = 128 << 10;
/// Default of `HANARE_FAR`: size in bytes of the smallest allocation that is placed in far memory.
pub const DEFAULT_FAR: usize = FAR_LARGE;
/// Default of `HANARE_NEAR`: bytes of small blocks that stay near.
pub const DEFAULT_NEAR: u64 = 32 << 20;
/// Default of `HANARE_RESERVE`: address space reserved for far memory, in bytes.
pub const DEFAULT_RESERVE: u64 = 256 << 30;
/// Default of `HANARE_TIMEOUT`: the longest wait for a silent server, in seconds.
pub const DEFAULT_TIMEOUT_S: u32 = 3;
/// The largest number of memory servers of a run. Each server needs a thread and two connections, and the number of a
/// server has 16 bits.
pub const SERVERS_MAX: usize = 1024;
/// Default of `HANARE_TRACE_BYTES`: the largest trace, in bytes.
pub const DEFAULT_TRACE_BYTES: u64 = 256 << 20;
/// Default of `HANARE_POLICY`: the name of the replacement policy.
pub const DEFAULT_POLICY: &str = "auto";
/// Default of `HANARE_PREFETCH`: the name of the prefetcher.
pub const DEFAULT_PREFETCH: &str = "auto";

/// All settings of a run. `Settings::new` returns the defaults. `from_env` reads the variables that `to_env` returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `HANARE_LOCAL`: how much far memory may be in this machine's memory at once.
    pub local: Local,
    /// `HANARE_PRIVATE`: path of the AF_UNIX socket of the run's private server on this host. `None` if there is no
    /// such server.
    pub private: Option<PathBuf>,
    /// `HANARE_SERVERS`: the memory servers that the user named, in the user's order.
    pub servers: Vec<ServerSpec>,
    /// `HANARE_PAGE_SIZE`: the page size.
    pub page_size: PageSize,
    /// `HANARE_POLICY`: name of the replacement policy, with its parameters.
    pub policy: String,
    /// `HANARE_PREFETCH`: name of the prefetcher, with its parameters.
    pub prefetch: String,
    /// `HANARE_SEED`: seed of the random numbers that policies draw.
    pub seed: u64,
    /// `HANARE_MODE`: how accesses to absent far pages are trapped.
    pub mode: Mode,
    /// `HANARE_DISABLE`: kernel features that Hanare must not use, by the names of [`Disabled::WORDS`]. Empty means
    /// none.
    pub disable: String,
    /// `HANARE_FAR`: size in bytes of the smallest allocation that is placed in far memory. The word `all` is 0, and
    /// `large` is [`FAR_LARGE`].
    pub far: usize,
    /// `HANARE_NEAR`: bytes of small blocks that stay near. When the C library's heap holds more, small blocks that are
    /// allocated later are far. 0 means no limit. Applies only in thread mode.
    pub near: u64,
    /// `HANARE_STATIC`: whether large static arrays are placed in far memory.
    pub statics: bool,
    /// `HANARE_OVERCOMMIT`: when an allocation is refused for lack of room on the servers.
    pub overcommit: Overcommit,
    /// `HANARE_RESERVE`: address space for far memory, in bytes.
    pub reserve: u64,
    /// `HANARE_STATS_FD`: descriptor of the memfd that holds the run's shared counters.
    pub stats_fd: Option<i32>,
    /// `HANARE_STATS_PID`: a process that has the descriptor `stats_fd` open. A program that has closed its own copy
    /// opens the memfd through this process' `/proc` directory.
    pub stats_pid: Option<i32>,
    /// `HANARE_KEY_FILE`: path of the file with the key that this run and its servers share.
    pub key_file: Option<PathBuf>,
    /// `HANARE_SEAL`: whether pages are sealed (encrypted and authenticated) before they leave the process.
    pub seal: Seal,
    /// `HANARE_TIMEOUT`: the longest wait for a silent server, in seconds.
    pub timeout_s: u32,
    /// `HANARE_ON_LOSS`: what a run does that has lost a memory server.
    pub on_loss: OnLoss,
    /// `HANARE_REDUNDANCY`: the parts of each page on the named servers.
    pub redundancy: Redundancy,
    /// `HANARE_ALLOW_SAME_HOST`: whether parts of a page may be on the same host.
    pub allow_same_host: bool,
    /// `HANARE_TRACE`: absolute path of the file into which the run is recorded. The file exists and is empty.
    pub trace: Option<PathBuf>,
    /// `HANARE_TRACE_BYTES`: largest size of the file `trace`, in bytes.
    pub trace_bytes: u64,
    /// `HANARE_FIT`: whether the run counts what more local memory would have saved.
    pub fit: bool,
    /// `HANARE_SLOWDOWN`: the slowdown to hold. `local` is then the largest budget.
    pub slowdown: Option<Slowdown>,
}

impl Settings {
    /// Returns the default settings for a budget. They name no server.
    #[must_use]
    pub fn new(local: Local) -> Self {
        Settings {
            local,
            private: None,
            servers: Vec::new(),
            page_size: PageSize::Auto,
            policy: DEFAULT_POLICY.to_owned(),
            prefetch: DEFAULT_PREFETCH.to_owned(),
            seed: 1,
            mode: Mode::Auto,
            disable: String::new(),
            far: DEFAULT_FAR,
            near: DEFAULT_NEAR,
            statics: true,
            overcommit: Overcommit::Heuristic,
            reserve: DEFAULT_RESERVE,
            stats_fd: None,
            stats_pid: None,
            key_file: None,
            seal: Seal::Auto,
            timeout_s: DEFAULT_TIMEOUT_S,
            on_loss: OnLoss::End,
            redundancy: Redundancy::NONE,
            allow_same_host: false,
            trace: None,
            trace_bytes: DEFAULT_TRACE_BYTES,
            fit: false,
            slowdown: None,
        }
    }

    /// Reads and checks the settings in this process' environment.
    ///
    /// # Errors
    /// Returns the errors of [`Settings::from_environment`].
    pub fn from_env() -> Result<Self, SettingsError> {
        let mut settings = Self::from_lookup(std::env::var_os)?;
        settings.resolve_paths();
        settings.validate()?;
        Ok(settings)
    }

    /// Reads and checks the settings in a process' environment.
    ///
    /// # Errors
    /// Returns an error for the first variable that is missing or malformed, or if [`Settings::validate`] fails.
    pub fn from_environment(environment: &Environment) -> Result<Self, SettingsError> {
        let settings = Self::from_lookup(|name| environment.get(name))?;
        settings.validate()?;
        Ok(settings)
    }

    /// Returns the settings that a process needs before all others.
    ///
    /// # Errors
    /// Returns an error if one of these variables is malformed.
    pub fn brief(environment: &Environment) -> Result<Brief, SettingsError> {
        let vars = Variables(|name| environment.get(name));
        let mode = vars.value("HANARE_MODE", Mode::from_str)?;
        let far = vars.value("HANARE_FAR", parse_far)?.unwrap_or(DEFAULT_FAR);
        let disabled = Disabled::parse(&vars.text("HANARE_DISABLE")?.unwrap_or_default())?;
        let near = vars.value("HANARE_NEAR", parse_near)?.unwrap_or(DEFAULT_NEAR);
        Ok(Brief { mode, far, near, disabled })
    }

    /// Checks whether this process chooses its trap mode. Returns false for an invalid value, which is reported when far
    /// memory starts.
    #[must_use]
    pub fn chooses_mode(environment: &Environment) -> bool {
        let vars = Variables(|name| environment.get(name));
        vars.value("HANARE_MODE", Mode::from_str).is_ok_and(|mode| mode == Some(Mode::Auto))
    }

    /// Checks whether large static arrays should be placed in far memory. Returns false for an invalid value, which is
    /// reported when far memory starts.
    #[must_use]
    pub fn statics_are_far(environment: &Environment) -> bool {
        let vars = Variables(|name| environment.get(name));
        vars.value("HANARE_STATIC", values::parse_switch).is_ok_and(|value| value.unwrap_or(true))
    }

    /// Reads the settings from any source of variables. `lookup` returns the value of a variable. The caller must then
    /// call [`Settings::validate`].
    ///
    /// # Errors
    /// Returns an error for the first variable that is missing or malformed.
    pub fn from_lookup(lookup: impl Fn(&'static str) -> Option<OsString>) -> Result<Self, SettingsError> {
        let vars = Variables(lookup);
        let local = vars.value("HANARE_LOCAL", Local::from_str)?.ok_or(SettingsError::Missing("HANARE_LOCAL"))?;
        let mut settings = Settings::new(local);
        settings.private = vars.path("HANARE_PRIVATE");
        settings.key_file = vars.path("HANARE_KEY_FILE");
        settings.trace = vars.path("HANARE_TRACE");
        set(&mut settings.trace_bytes, vars.value("HANARE_TRACE_BYTES", values::parse_trace_bytes)?);
        settings.servers = vars.value("HANARE_SERVERS", parse_servers)?.unwrap_or_default();
        set(&mut settings.page_size, vars.value("HANARE_PAGE_SIZE", PageSize::from_str)?);
        set(&mut settings.policy, vars.value("HANARE_POLICY", parse_name)?);
        set(&mut settings.prefetch, vars.value("HANARE_PREFETCH", parse_name)?);
        set(&mut settings.seed, vars.value("HANARE_SEED", |text| values::parse_number(text, 0, u64::MAX))?);
        set(&mut settings.mode, vars.value("HANARE_MODE", Mode::from_str)?);
        set(&mut settings.disable, vars.text("HANARE_DISABLE")?);
        set(&mut settings.far, vars.value("HANARE_FAR", parse_far)?);
        set(&mut settings.near, vars.value("HANARE_NEAR", parse_near)?);
        set(&mut settings.statics, vars.value("HANARE_STATIC", values::parse_switch)?);
        set(&mut settings.overcommit, vars.value("HANARE_OVERCOMMIT", Overcommit::from_str)?);
        set(&mut settings.seal, vars.value("HANARE_SEAL", Seal::from_str)?);
        set(&mut settings.reserve, vars.value("HANARE_RESERVE", parse_reserve)?);
        set(&mut settings.on_loss, vars.value("HANARE_ON_LOSS", OnLoss::from_str)?);
        set(&mut settings.redundancy, vars.value("HANARE_REDUNDANCY", Redundancy::from_str)?);
        set(&mut settings.allow_same_host, vars.value("HANARE_ALLOW_SAME_HOST", values::parse_switch)?);
        set(&mut settings.fit, vars.value("HANARE_FIT", values::parse_switch)?);
        settings.slowdown = vars.value("HANARE_SLOWDOWN", Slowdown::from_str)?;
        settings.stats_fd =
            vars.value("HANARE_STATS_FD", |text| parse_number(text, 0, i32::MAX as u64))?.map(|n| n as i32);
        settings.stats_pid =
            vars.value("HANARE_STATS_PID", |text| parse_number(text, 1, i32::MAX as u64))?.map(|n| n as i32);
        set(
            &mut settings.timeout_s,
            vars.value("HANARE_TIMEOUT", |text| parse_number(text, 1, u64::from(TIMEOUT_MAX_S)))?.map(|n| n as u32),
        );
        Ok(settings)
    }

    /// Checks the settings together. The budget must hold four pages, and the settings must name a server.
    ///
    /// # Errors
    /// Returns the errors of [`Settings::validate_values`], or an error if the settings name no server.
    pub fn validate(&self) -> Result<(), SettingsError> {
        self.validate_values()?;
        if self.private.is_none() && self.servers.is_empty() {
            return Err(SettingsError::NoServer);
        }
        Ok(())
    }

    /// Does the checks of [`Settings::validate`] that are possible before a private server is started.
    ///
    /// # Errors
    /// Returns an error for a budget below four pages, and for an unknown policy, prefetcher or feature to disable. Also
    /// returns an error for too many servers, or for a server that is named twice.
    pub fn validate_values(&self) -> Result<(), SettingsError> {
        self.disabled()?;
        let space = Space { units: 64, block_units: 1, seed: self.seed, hides: true };
        let refused = |error| SettingsError::of_name(POLICIES, ("replacement policy", "policy"), &self.policy, error);
        policy::build(&self.policy, space).map_err(refused)?;
        let refused = |error| SettingsError::of_name(PREFETCHERS, ("prefetcher", "prefetch"), &self.prefetch, error);
        prefetch::build(&self.prefetch, space).map_err(refused)?;
        self.validate_servers()?;
        let page = u64::from(self.page_size.smallest());
        match self.local {
            Local::Bytes(given) if given < u64::from(limits::BUDGET_PAGES_MIN) * page => {
                Err(SettingsError::Budget { given, page })
            }
            Local::Percent(_) if self.slowdown.is_some() => Err(SettingsError::HeldShare),
            Local::Bytes(_) | Local::Percent(_) => Ok(()),
        }
    }

    fn validate_servers(&self) -> Result<(), SettingsError> {
        let given = self.servers.len();
        if given > SERVERS_MAX {
            return Err(SettingsError::Servers { given, most: SERVERS_MAX });
        }
        let same = |endpoint: &Endpoint| match endpoint {
            Endpoint::Tcp(address) => Endpoint::Tcp(address.to_ascii_lowercase()),
            path @ Endpoint::Unix(_) => path.clone(),
        };
        let mut seen = HashSet::new();
        match self.servers.iter().find(|server| !seen.insert(same(&server.endpoint))) {
            Some(twice) => Err(SettingsError::Twice(twice.endpoint.clone())),
            None if self.on_loss == OnLoss::Wait && self.redundancy != Redundancy::NONE => {
                Err(SettingsError::WaitsWithCopies(self.redundancy))
            }
            None => self.redundancy.check(&self.servers, self.allow_same_host),
        }
    }

    /// Returns the kernel features that Hanare must not use.
    ///
    /// # Errors
    /// Returns an error if `disable` names an unknown feature.
    pub fn disabled(&self) -> Result<Disabled, SettingsError> {
        Ok(Disabled::parse(&self.disable)?)
    }

    /// Returns the names and values of the variables that carry these settings to the program. A variable that is
    /// absent has its default.
    #[must_use]
    pub fn to_env(&self) -> Vec<(String, String)> {
        let mut vars = vec![
            ("HANARE_LOCAL", self.local.to_string()),
            ("HANARE_PAGE_SIZE", self.page_size.to_string()),
            ("HANARE_POLICY", self.policy.clone()),
            ("HANARE_PREFETCH", self.prefetch.clone()),
            ("HANARE_SEED", self.seed.to_string()),
            ("HANARE_MODE", self.mode.to_string()),
            ("HANARE_FAR", format_far(self.far)),
            ("HANARE_NEAR", format_near(self.near)),
            ("HANARE_STATIC", if self.statics { "on" } else { "off" }.to_owned()),
            ("HANARE_SEAL", self.seal.to_string()),
            ("HANARE_OVERCOMMIT", self.overcommit.to_string()),
            ("HANARE_RESERVE", format_size(self.reserve)),
            ("HANARE_TIMEOUT", self.timeout_s.to_string()),
            ("HANARE_ON_LOSS", self.on_loss.to_string()),
            ("HANARE_TRACE_BYTES", format_size(self.trace_bytes)),
            ("HANARE_REDUNDANCY", self.redundancy.to_string()),
            ("HANARE_ALLOW_SAME_HOST", if self.allow_same_host { "on" } else { "off" }.to_owned()),
        ];
        if !self.servers.is_empty() {
            let list: Vec<String> = self.servers.iter().map(ToString::to_string).collect();
            vars.push(("HANARE_SERVERS", list.join(",")));
        }
        if !self.disable.is_empty() {
            vars.push(("HANARE_DISABLE", self.disable.clone()));
        }
        if self.fit {
            vars.push(("HANARE_FIT", "on".to_owned()));
        }
        vars.extend(self.slowdown.map(|slowdown| ("HANARE_SLOWDOWN", slowdown.to_string())));
        if let Some(fd) = self.stats_fd {
            vars.push(("HANARE_STATS_FD", fd.to_string()));
        }
        if let Some(pid) = self.stats_pid {
            vars.push(("HANARE_STATS_PID", pid.to_string()));
        }
        let paths =
            [("HANARE_PRIVATE", &self.private), ("HANARE_KEY_FILE", &self.key_file), ("HANARE_TRACE", &self.trace)];
        for (name, path) in paths {
            if let Some(path) = path {
                vars.push((name, path.to_string_lossy().into_owned()));
            }
        }
        vars.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Every variable that [`Settings::from_env`] reads. A program that starts a run can clear inherited values of
    /// these variables.
    pub const VARIABLES: [&'static str; 26] = [
        "HANARE_LOCAL",
        "HANARE_PRIVATE",
        "HANARE_SERVERS",
        "HANARE_PAGE_SIZE",
        "HANARE_POLICY",
        "HANARE_PREFETCH",
        "HANARE_MODE",
        "HANARE_DISABLE",
        "HANARE_FAR",
        "HANARE_NEAR",
        "HANARE_STATIC",
        "HANARE_OVERCOMMIT",
        "HANARE_RESERVE",
        "HANARE_STATS_FD",
        "HANARE_STATS_PID",
        "HANARE_KEY_FILE",
        "HANARE_SEAL",
        "HANARE_TIMEOUT",
        "HANARE_ON_LOSS",
        "HANARE_SEED",
        "HANARE_TRACE",
        "HANARE_TRACE_BYTES",
        "HANARE_REDUNDANCY",
        "HANARE_ALLOW_SAME_HOST",
        "HANARE_FIT",
        "HANARE_SLOWDOWN",
    ];
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

/// Looks variables up and adds the variable's name to every error. An empty variable counts as absent.
struct Variables<F>(F);

impl<F: Fn(&'static str) -> Option<OsString>> Variables<F> {
    fn path(&self, name: &'static str) -> Option<PathBuf> {
        (self.0)(name).filter(|value| !value.is_empty()).map(PathBuf::from)
    }

    fn text(&self, name: &'static str) -> Result<Option<String>, SettingsError> {
        let Some(value) = (self.0)(name).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        value.into_string().map(Some).map_err(|_| SettingsError::NotText(name))
    }

    fn value<T>(
        &self,
        variable: &'static str,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Result<Option<T>, SettingsError> {
        let Some(text) = self.text(variable)? else {
            return Ok(None);
        };
        parse(&text).map(Some).map_err(|source| SettingsError::Value { variable, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare_wire::Endpoint;
    use proptest::prelude::*;

    fn checked(pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        let settings = Settings::from_lookup(lookup(pairs))?;
        settings.validate()?;
        Ok(settings)
    }

    fn lookup<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&'static str) -> Option<OsString> + 'a {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
    }

    #[test]
    fn a_malformed_variable_is_named() {
        let base = ("HANARE_LOCAL", "64M");
        let overlong = "x".repeat(64);
        for (name, value) in [
            ("HANARE_PAGE_SIZE", "3K"),
            ("HANARE_MODE", "magic"),
            ("HANARE_POLICY", "Not A Name"),
            ("HANARE_PREFETCH", overlong.as_str()),
            ("HANARE_SERVERS", "a:1,,b:2"),
            ("HANARE_FAR", "little"),
            ("HANARE_OVERCOMMIT", "2"),
            ("HANARE_RESERVE", "1M"),
            ("HANARE_STATIC", "perhaps"),
            ("HANARE_FIT", "perhaps"),
            ("HANARE_SLOWDOWN", "0.9"),
            ("HANARE_SEAL", "perhaps"),
            ("HANARE_STATS_FD", "-1"),
            ("HANARE_STATS_PID", "0"),
            ("HANARE_TIMEOUT", "0"),
            ("HANARE_TRACE_BYTES", "1K"),
            ("HANARE_DISABLE", "mvoe"),
            ("HANARE_REDUNDANCY", "parity:3+1"),
            ("HANARE_ALLOW_SAME_HOST", "yes"),
        ] {
            let error = checked(&[base, ("HANARE_PRIVATE", "/s"), (name, value)]).unwrap_err();
            assert!(error.to_string().starts_with(name), "{error}");
            assert!(!error.to_string().contains('\n'));
        }
        assert_eq!(checked(&[]), Err(SettingsError::Missing("HANARE_LOCAL")));
        assert_eq!(checked(&[base]), Err(SettingsError::NoServer));
    }

    #[test]
    fn an_unknown_policy_or_prefetcher_is_named_with_the_known_ones() {
        for (variable, name) in [("HANARE_POLICY", "nonsense"), ("HANARE_PREFETCH", "psychic")] {
            let error = checked(&[("HANARE_LOCAL", "64M"), ("HANARE_PRIVATE", "/s"), (variable, name)]).unwrap_err();
            let message = error.to_string();
            assert!(message.contains(name), "{message}");
            assert!(message.contains("lru") || message.contains("sequential"), "{message}");
        }
        for (variable, name, near) in [
            ("HANARE_POLICY", "lur", "did you mean 'lru'?"),
            ("HANARE_PREFETCH", "stream:depth=2", "did you mean 'streams'?"),
            ("HANARE_POLICY", "opt", "recorded trace"),
            ("HANARE_MODE", "threads", "did you mean 'thread'?"),
            ("HANARE_MODE", "SIGBUS", "did you mean 'sigbus'?"),
        ] {
            let error = checked(&[("HANARE_LOCAL", "64M"), ("HANARE_PRIVATE", "/s"), (variable, name)]).unwrap_err();
            assert!(error.to_string().contains(near), "{error}");
        }
        let defaults = Settings::new(Local::Bytes(1 << 20));
        assert_eq!(defaults.validate_values(), Ok(()), "the defaults must exist");
    }

    #[test]
    fn too_many_servers_and_one_named_twice_are_refused() {
        let named = |servers: &[String]| checked(&[("HANARE_LOCAL", "64M"), ("HANARE_SERVERS", &servers.join(","))]);
        let mut servers: Vec<String> = (0..SERVERS_MAX).map(|port| format!("host:{}", port + 1)).collect();
        assert!(named(&servers).is_ok());
        servers.push("other:1".to_owned());
        let error = named(&servers).unwrap_err();
        assert_eq!(error, SettingsError::Servers { given: SERVERS_MAX + 1, most: SERVERS_MAX });
        assert!(error.to_string().contains("1024 at most"), "{error}");
        for twice in ["a:1,b:1,A:1=2G", "a,a:7441", "/x/y,unix:/x/y"] {
            let error = named(&[twice.to_owned()]).unwrap_err();
            assert!(matches!(&error, SettingsError::Twice(_)) && error.to_string().contains("twice"), "{error}");
        }
        assert!(named(&["a:1,a:2,/x/y,/x/Y".to_owned()]).is_ok());
    }

    #[test]
    fn a_budget_below_four_pages_is_refused() {
        let budget = |local: &str, page: &str| {
            checked(&[("HANARE_LOCAL", local), ("HANARE_PAGE_SIZE", page), ("HANARE_PRIVATE", "/s")])
        };
        assert_eq!(budget("0", "auto"), Err(SettingsError::Budget { given: 0, page: 4096 }));
        assert_eq!(budget("16383", "auto"), Err(SettingsError::Budget { given: 16383, page: 4096 }));
        assert!(budget("16K", "auto").is_ok());
        assert!(budget("6M", "2M").is_err());
        assert!(budget("8M", "2M").is_ok());
        assert!(budget("1%", "2M").is_ok());
    }

    #[test]
    fn variables_lists_what_to_env_writes() {
        let mut settings = Settings::new(Local::Percent(50));
        settings.private = Some("/tmp/p".into());
        settings.key_file = Some("/tmp/k".into());
        settings.trace = Some("/tmp/t".into());
        settings.servers = vec!["a:1=1G".parse().unwrap()];
        settings.disable = "move".to_owned();
        settings.stats_fd = Some(100);
        settings.stats_pid = Some(4242);
        settings.fit = true;
        settings.slowdown = Some("1.2".parse().unwrap());
        let mut written: Vec<String> = settings.to_env().into_iter().map(|(name, _)| name).collect();
        let mut listed: Vec<String> = Settings::VARIABLES.iter().map(ToString::to_string).collect();
        written.sort();
        listed.sort();
        assert_eq!(written, listed);
    }

    proptest! {
        #[test]
        fn settings_survive_the_environment(
            local in prop_oneof![(2_u64 << 21..1 << 50).prop_map(Local::Bytes), (1_u8..=100).prop_map(Local::Percent)],
            page in prop_oneof![Just(PageSize::Auto), (12_u32..=21).prop_map(|s| PageSize::Fixed(1 << s))],
            mode in prop_oneof![Just(Mode::Auto), Just(Mode::Thread), Just(Mode::Sigbus), Just(Mode::Sigsegv)],
            overcommit in prop_oneof![
                Just(Overcommit::Heuristic),
                Just(Overcommit::Always),
                Just(Overcommit::Never)
            ],
            capacity in proptest::option::of(1_u64..1 << 50),
            far in prop_oneof![Just(0), Just(FAR_LARGE), 1_usize..1 << 30],
            near in prop_oneof![Just(0), Just(DEFAULT_NEAR), 1_u64 << 20..1 << 40],
            statics: bool,
            waits: bool,
            stats_fd in proptest::option::of(0_i32..1000),
            timeout_s in 1_u32..=3600,
        ) {
            let mut settings = Settings::new(local);
            settings.page_size = page;
            settings.mode = mode;
            settings.far = far;
            settings.near = near;
            settings.overcommit = overcommit;
            settings.statics = statics;
            settings.stats_fd = stats_fd;
            settings.stats_pid = stats_fd.map(|fd| fd + 1);
            settings.timeout_s = timeout_s;
            settings.on_loss = if waits { OnLoss::Wait } else { OnLoss::End };
            settings.allow_same_host = statics;
            settings.redundancy = if statics && !waits { Redundancy::MIRROR } else { Redundancy::NONE };
            settings.private = Some("/tmp/dir/socket".into());
            settings.servers = vec![
                ServerSpec { endpoint: Endpoint::Tcp("h:1".to_owned()), capacity },
                ServerSpec { endpoint: Endpoint::Unix("/run/x=y.socket".into()), capacity: Some(1 << 30) },
            ];
            let vars = settings.to_env();
            let pairs: Vec<(&str, &str)> = vars.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            prop_assert_eq!(checked(&pairs), Ok(settings));
        }
    }
}
