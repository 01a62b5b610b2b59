//! Placeholder.

pub mod choose;
pub mod hostfile;
pub mod settings;
pub mod stats;
