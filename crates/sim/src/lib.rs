//! What a recorded run would have cost under other policies, computed from its trace.
//!
//! The policies are those of `hanare_paging`, the same code as in live runs; this room gives them a memory that is only
//! counted. It opens no file. `string` reads the reference string, `machine` and `opt` run it once, `policies` runs any
//! policies over any sizes, `replay` checks a recorded run against its own policy, `html` draws.

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
