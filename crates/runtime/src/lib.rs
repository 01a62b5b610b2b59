//! The engine that gives a live program far memory, and the C API on it.
//!
//! `far` is the public API. Below it, `start` and `fork` make a process' engine, and `ranges` and `heap` allocate far
//! memory. `process` holds the engine that is running, `places` says where its memory is. `engine` drives the pure pager of
//! `hanare_paging` between `view` (the program's memory), the store (`hanare_store`: where pages are while they are away) and
//! `handler` (the traps). `plan` and `choose` decide the shapes of a run beforehand; `counters` and `stats` say what
//! happened.

mod accounts;
pub mod adopt;
pub mod capi;
pub mod choose;
pub mod counters;
mod engine;
mod expel;
pub mod extents;
pub mod far;
mod fatal;
mod fork;
mod gate;
mod handler;
pub mod heap;
mod keeper;
mod kernel;
pub mod near;
mod places;
mod plan;
pub mod polling;
mod process;
mod promise;
mod ranges;
mod restrictions;
mod span;
mod start;
pub mod stats;
mod threads;
mod together;
mod tracing;
mod tree;
mod view;
mod watchdog;
mod windows;

// A sanitizer has to see what is allocated and freed.
#[cfg_attr(not(hanare_sanitize), global_allocator)]
static NEAR: near::Near = near::Near;
