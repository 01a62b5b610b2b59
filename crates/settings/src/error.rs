//! Why settings are refused.

use hanare_paging::policy::OFFLINE;
use hanare_paging::{Info, SpecError, limits};
use hanare_sys::features::FeaturesError;
use hanare_wire::Endpoint;
use thiserror::Error;

use crate::similar::nearest;
use crate::values::format_size;
use crate::{Redundancy, ValueError, human_size};

/// Why the settings as a whole were refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SettingsError {
    /// A required variable is missing.
    #[error("{0} is not set; start the program with 'hanare run', which sets it")]
    Missing(&'static str),
    /// A variable holds bytes that are not text.
    #[error("{0} is not valid UTF-8; set it to plain text")]
    NotText(&'static str),
    /// A variable holds a value that does not parse.
    #[error("{variable}: {source}")]
    Value {
        /// The variable.
        variable: &'static str,
        /// What is wrong with the variable's value.
        source: ValueError,
    },
    /// The budget of local memory cannot hold four pages.
    #[error(
        "the local budget of {given} is below four pages of {page}; give at least --local {least}, better 64M or more",
        given = human_size(*given), page = human_size(*page), least = format_size(u64::from(limits::BUDGET_PAGES_MIN) * *page)
    )]
    Budget {
        /// The budget that the user gave, in bytes.
        given: u64,
        /// Page size in bytes.
        page: u64,
    },
    /// The name of the policy or prefetcher is unknown, and is much like a known one.
    #[error("no {what} is called '{name}'; did you mean '{near}'? 'hanare run --{flag} help' lists all")]
    Mistyped {
        /// The kind of thing that is named: a replacement policy or a prefetcher.
        what: &'static str,
        /// The flag that takes the name, without its dashes.
        flag: &'static str,
        /// The name that the user gave.
        name: String,
        /// The known name.
        near: &'static str,
    },
    /// The name or a parameter of the policy or prefetcher is invalid.
    #[error(transparent)]
    Choice(#[from] SpecError),
    /// `HANARE_DISABLE` names an unknown feature.
    #[error(transparent)]
    Disable(#[from] FeaturesError),
    /// The settings name no memory server, so evicted pages could not be stored.
    #[error("no memory server is named; set HANARE_SERVERS or HANARE_PRIVATE, or start with 'hanare run'")]
    NoServer,
    /// The settings name more servers than a run may use.
    #[error("{given} memory servers are named; a run uses {most} at most: name fewer, with more memory each")]
    Servers {
        /// The number of servers given.
        given: usize,
        /// The largest number of servers allowed.
        most: usize,
    },
    /// The settings name a server twice. The server's capacity would count twice, so the program could allocate more
    /// memory than the servers can store.
    #[error("memory server {0} is named twice; name it once, with =SIZE if it is to hold more than its part")]
    Twice(Endpoint),
    /// The redundancy needs more servers than are named.
    #[error(
        "{redundancy} needs {needed} servers on {needed} hosts, {named} named: name more; with --allow-same-host they may share a host"
    )]
    FewServers {
        /// The redundancy.
        redundancy: Redundancy,
        /// The number of servers needed.
        needed: usize,
        /// The number of servers named.
        named: usize,
    },
    /// The redundancy needs servers on more hosts than are named.
    #[error(
        "{redundancy} needs {needed} servers on {needed} hosts, and the {named} that are named are on {hosts} host(s): \
         name servers on other hosts, or give --allow-same-host"
    )]
    FewHosts {
        /// The redundancy.
        redundancy: Redundancy,
        /// The number of hosts needed.
        needed: usize,
        /// The number of servers named.
        named: usize,
        /// The number of hosts that these servers are on.
        hosts: usize,
    },
    /// A run that has further copies of its pages does not wait for a server.
    #[error("--on-loss wait is for pages with one copy, and {0} has more: leave one of them away")]
    WaitsWithCopies(Redundancy),
    /// A slowdown is to be held by a budget that is a share of the allocations.
    #[error(
        "--slowdown chooses the size of local memory: give --local as a size, which it keeps below, or leave it away"
    )]
    HeldShare,
}

impl SettingsError {
    /// Returns the error for a description `text` of a policy or prefetcher that cannot be built. It names the known
    /// name that the user most likely meant, if there is one.
    pub(crate) fn of_name<T: ?Sized>(
        all: &'static [&'static Info<T>],
        (what, flag): (&'static str, &'static str),
        text: &str,
        error: SpecError,
    ) -> Self {
        let name = text.split(':').next().unwrap_or_default();
        let is_known = all.iter().any(|info| info.name == name) || OFFLINE.iter().any(|policy| policy.name == name);
        match nearest(name, all.iter().map(|info| info.name)) {
            Some(near) if !is_known => Self::Mistyped { what, flag, name: name.to_owned(), near },
            _ => Self::Choice(error),
        }
    }
}
