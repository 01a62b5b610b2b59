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
mod slurm;

pub use built::{Built, built};
pub use group::Group;
pub use hostile::{Hostile, Lie};
pub use machine::{
    free_ports, installed, is_full, mode_works, patience, python_with, python_with_numpy, rounds,
    system_calls_are_trapped, system_calls_work_on_far_pages,
};
pub use place::{Figures, Outcome, Place, figures, processes_of};
pub use running::{Running, until};
pub use served::{Served, status};
pub use slurm::{Ended, Slurm};

use std::time::Duration;

/// Maximum run time of a test program of ordinary size. A program that runs longer is killed, and its test fails.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The end of the line that a run prints when a memory server is silent. On a loaded machine, TCP may give the connection
/// up before the transfer's own limit, and then the line begins with other words.
pub const SILENT: &str = "still runs and the network to it";

/// Returns the maximum time between the loss of a memory server and the end of its program: 5 s on a machine at rest, up to
/// four times as long on a loaded one, where a silent server is waited for longer.
pub fn soon() -> Duration {
    let loads = std::fs::read_to_string("/proc/loadavg").expect("the machine's load");
    let load: f64 = loads.split(' ').next().and_then(|load| load.parse().ok()).expect("a number");
    let cpus = std::thread::available_parallelism().expect("the number of CPUs").get();
    // The load may rise until the server counts as lost.
    Duration::from_secs(5).mul_f64(((load + 1.0) / cpus as f64).clamp(1.0, 4.0))
}
