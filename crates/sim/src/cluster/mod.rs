//! The SSS-CORE cluster simulation (paper 5: Nobukuni, Matsumoto and Hiraki): gang-scheduled parallel processes on a
//! machine whose processors each have a memory and are joined by a tree.
//!
//! `config` reads the settings and `model` holds them. `cells` runs all combinations, `run` one of them. `world`
//! defines what happens at a fault and between quanta. It uses `state`, `memory` (of one cluster, replaced by the
//! pager's own kinds and policies), `links` and `references`. `schedule` chooses clusters. `engine` drives the world
//! from event to event; `clocked` drives it clock by clock, to check `engine`. `paper` has the figures to compare with,
//! `claims` the paper's conclusions, `chart` draws the results. This room opens no file.

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
