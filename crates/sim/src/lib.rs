//! What became of a run under other policies, told from its trace.
//!
//! The policies are those of `hanare_paging`, the very code that runs live; this room gives them a memory that is only
//! counted. It opens no file: `string` reads what to run, `machine` and `opt` run it once, `policies` runs any set of
//! policies over any set of sizes, `replay` checks a recorded run against its own policy, `html` draws.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod html;
pub mod machine;
pub mod opt;
pub mod policies;
pub mod replay;
pub mod string;

pub use machine::{Figures, Visible};
pub use policies::{Cell, Job, Row};
pub use string::{RefString, Step};
