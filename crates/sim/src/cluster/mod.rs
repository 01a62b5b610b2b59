//! The SSS-CORE cluster simulation: gang-scheduled parallel processes on a machine of processors with a memory each, joined
//! by a tree (paper 5: Nobukuni, Matsumoto and Hiraki).
//!
//! `config` reads what is to be simulated and `model` holds it; `cells` runs all combinations, `run` one of them. `world`
//! says what happens at a fault and between quanta, on `state`, `memory` (one cluster's, replaced by the pager's own kinds
//! and policies), `links` and `references`; `schedule` chooses clusters. `engine` drives it from event to event, `clocked`
//! clock by clock, as the other's oracle. `paper` has the figures to compare with, `claims` what the paper concludes from them, `chart` draws
//! them. No file is opened here.

pub mod cells;
pub mod chart;
pub mod claims;
mod clocked;
pub mod config;
mod draw;
mod engine;
mod links;
pub mod memory;
pub mod model;
pub mod network;
pub mod paper;
mod references;
pub mod run;
pub mod schedule;
mod state;
mod world;

pub use cells::{Cell, Row};
pub use config::Config;
