//! The base of the end-to-end tests: the built command and workloads, a directory for each test, programs with a
//! bounded run time, and memory servers, both honest and hostile.
//!
//! The tests in `tests/` use the built `hanare` as a user does. They judge only what a user sees: exit codes, output,
//! and the figures of `--stats-json`. This crate must not know how the pager works.

mod built;
mod group;
mod hostile;
mod machine;
mod place;
mod running;
mod served;

pub use built::{Built, built};
pub use group::Group;
pub use hostile::{Hostile, Lie};
pub use machine::{
    installed, is_full, mode_works, patience, python_with, python_with_numpy, rounds, system_calls_are_trapped,
    system_calls_work_on_far_pages,
};
pub use place::{Figures, Outcome, Place, figures, processes_of};
pub use running::{Running, until};
pub use served::{Served, status};

use std::time::Duration;

/// Maximum run time of a test program of ordinary size. A program that runs longer is killed, and its test fails.
pub const PATIENCE: Duration = Duration::from_secs(120);
