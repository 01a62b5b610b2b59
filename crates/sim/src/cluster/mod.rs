//! The SSS-CORE cluster simulation (paper 5: Nobukuni, Matsumoto and Hiraki). Gang-scheduled parallel processes run on
//! a machine of processors. Each processor has a memory, and a tree joins the processors.
//!
//! `config` reads the settings, and `model` holds them. `cells` runs all combinations, and `run` runs one combination.
//! `world` defines the effects of a fault and the steps between quanta. `world` uses `state`, `memory`, `links` and
//! `references`. `memory` is the memory of one cluster. It replaces pages by the kinds and policies of the pager.
//! `schedule` chooses clusters. `engine` drives the world from event to event. `clocked` drives the world clock by
//! clock, to check `engine`. `paper` has the figures to compare with, `claims` checks the paper's conclusions, and
//! `chart` draws the results. This module opens no file.

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
