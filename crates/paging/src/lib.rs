//! The pager of Hanare as a pure state machine.
//!
//! This crate decides where each page is, and which bytes must move. It moves no bytes itself. It knows no operating
//! system, clock, thread, link or address. It receives events ([`Event`]) and answers with actions ([`Action`]). The
//! same code runs in a live program, in the simulator, in trace replay and in this crate's property tests.
//!
//! Vocabulary: a *unit* is the smallest page of a region, also called a *base page*. A *page* is one unit or, if the
//! page size is chosen automatically, one unit or a whole *block* of units. A page of a whole block is a *huge page*
//! (`wide` in the code). A page is *in view* if it is mapped where the program accesses it. A *frame* is local memory
//! that is not mapped for the program. A page that is *unmapped* for reference sampling (`hidden` in the code) stays
//! local, but its next access traps (a hint fault).

#![forbid(unsafe_code)]

mod config;
mod event;
mod frames;
mod grain;
pub mod kinds;
pub mod limits;
mod pager;
pub mod policy;
pub mod prefetch;
pub mod reuse;
mod spec;
pub mod trace;
mod units;

pub use config::{Class, Config, ConfigError, Counters, Progress, State};
pub use event::{Action, Actions, Bytes, Event, Source};
pub use pager::{COMPLETIONS, Pager, TRANSITIONS, Transition};
pub use spec::{Info, Param, Space, SpecError, Values, names};
pub use units::{FrameId, Geometry, PageId};
