//! Why settings are refused.

use hanare_paging::SpecError;
use hanare_sys::features::FeaturesError;
use hanare_wire::Endpoint;
use thiserror::Error;

use crate::ValueError;
use crate::values::format_size;

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
    /// The budget of local memory cannot hold two pages.
    #[error(
        "the local budget of {given} is below two pages of {page}; give at least --local {least}, better 64M or more",
        given = format_size(*given), page = format_size(*page), least = format_size(2 * *page)
    )]
    Budget {
        /// The budget that the user gave, in bytes.
        given: u64,
        /// Page size in bytes.
        page: u64,
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
}
