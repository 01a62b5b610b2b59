//! The reasons why far memory cannot be started.

use hanare_paging::ConfigError;
use hanare_settings::{Mode, SettingsError};
use hanare_store::{OpenError, SlotsError};
use hanare_sys::Errno;
use hanare_sys::features::FeaturesError;
use hanare_sys::map::MapError;
use hanare_sys::pagemap::PagemapError;
use hanare_sys::signal::SignalError;
use hanare_sys::uffd::UffdError;
use hanare_wire::LinkError;

use crate::choose::ChooseError;
use crate::heap::HeapError;
use crate::plan::PlanError;
use crate::stats::StatsError;
use crate::view::ViewError;

/// The reason why far memory cannot be started.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum StartError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Features(#[from] FeaturesError),
    #[error(transparent)]
    Choose(#[from] ChooseError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    View(#[from] ViewError),
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error(transparent)]
    Slots(#[from] SlotsError),
    #[error(transparent)]
    Stats(#[from] StatsError),
    #[error(transparent)]
    Signal(#[from] SignalError),
    #[error("cannot open userfaultfd: {0}; 'hanare doctor' tells what this machine allows")]
    Uffd(#[from] UffdError),
    #[error("cannot set up the engine: {0}; raise the limit on address space")]
    Map(#[from] MapError),
    #[error("the pager refuses its configuration ({0:?}); give a larger --local or a smaller HANARE_RESERVE")]
    Pager(ConfigError),
    #[error(
        "the hard limit on address space or data ('ulimit -H{name}') is {most} bytes, and far memory needs {wanted}; raise it, or \
         set only the soft one ('ulimit -S{name}'), or lower HANARE_RESERVE"
    )]
    Limit { name: &'static str, most: u64, wanted: u64 },
    #[error(
        "allocations below 128K become far (--far all or SIZE) only where system calls work on far pages, and in {mode} mode \
         they do not here; leave --far large, or see 'hanare doctor' for how to get thread mode"
    )]
    Far { mode: Mode },
    #[error("cannot set up the heap: {0}")]
    Heap(#[from] HeapError),
    #[error(
        "cannot refuse asynchronous I/O to the program, which this trap mode cannot follow: {0}; choose another --mode"
    )]
    Filter(Errno),
    #[error(
        "the kernel moved pages when the program began and does not now, so transfers that the program may have begun cannot \
         be followed in {mode} mode; free memory and start it again, or choose --mode sigsegv"
    )]
    Unmoved { mode: Mode },
    #[error("cannot start a thread: {0}; raise the limit on processes")]
    Thread(std::io::Error),
    #[error("cannot see which pages are there: {0}")]
    Pagemap(PagemapError),
    #[error(
        "far memory needs {wanted} file descriptors beside the {used} that the program has open: {in_all} in all, and its limit is \
         lower; raise 'ulimit -Hn'",
        in_all = wanted + used
    )]
    Descriptors { wanted: usize, used: usize },
    #[error("too many processes share this budget; start fewer at a time")]
    Members,
    #[error("far memory was started already in this process; start it once")]
    Again,
}

impl StartError {
    /// Whether this user has no right to reach the private memory server.
    pub(super) fn is_denied(&self) -> bool {
        match self {
            Self::Store(OpenError::Slots(SlotsError::Link(LinkError::Unreachable { source, .. }))) => {
                source.kind() == std::io::ErrorKind::PermissionDenied
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_descriptors_are_told_in_all() {
        assert_eq!(
            StartError::Descriptors { wanted: 19, used: 5 }.to_string(),
            "far memory needs 19 file descriptors beside the 5 that the program has open: 24 in all, and its limit is lower; \
             raise 'ulimit -Hn'"
        );
    }
}
