//! Computes from a trace what the recorded run would have cost under other policies.
//!
//! The policies are those of `hanare_paging`, the same code as in live runs. Here they run on a memory without bytes.
//! This crate opens no file. `string` reads the reference string. `machine` runs the string under one policy, and `opt`
//! runs it under OPT. `policies` runs any policies in any sizes of memory. `replay` checks a recorded run against its
//! own policy, and `html` draws the results on the axes of `scale`.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod html;
pub mod machine;
pub mod opt;
pub mod policies;
pub mod replay;
pub mod scale;
pub mod string;

pub use machine::{Figures, Visible};
pub use policies::{Cell, Job, Row};
pub use string::{RefString, Step};
