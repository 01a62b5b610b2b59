//! Placeholder.

pub mod hostfile;
pub mod settings;
pub mod stats;
