//! The tables, figures and claims of the five papers behind Hanare, from runs on this machine.
//!
//! A *cell* is one command whose figures are kept. An *exhibit* is a table or a figure of a paper: it names its cells, and
//! draws their figures beside the numbers that the paper prints. A *claim* is a sentence of a paper that code judges by
//! the figures. Exhibits share cells: a cell runs once, however many of them need it.
//!
//! This crate knows commands and their results only. It must not know the engine, the pager or the simulators: it runs
//! the `hanare` command as a person would. Of `hanare-sim` it takes the ticks of an axis.
#![forbid(unsafe_code)]

mod cell;
mod chart;
mod exhibit;
mod figures;
mod page;
mod papers;
mod results;
mod runner;
mod store;

pub use cell::{Cell, Places};
pub use exhibit::{Bars, Claim, Exhibit, Lines, Points, Shown, Table, Verdict};
pub use figures::Figures;
pub use page::{Setting, page};
pub use papers::{Paper, Scale, papers};
pub use results::{Outcome, Results};
pub use runner::{Stop, Watch, run};
pub use store::{Store, StoreError, csv, json};
