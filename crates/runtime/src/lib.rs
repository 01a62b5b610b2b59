//! The engine that gives a live program far memory, and the C API on it.
//!
//! `far` is the public API. Below it, `start` and `fork` make a process' engine, and `ranges` and `heap` allocate far
//! memory. `process` holds the running engine, `places` knows the addresses of far memory. `engine` drives the pure
//! pager of `hanare_paging` between `view` (the program's memory), the store (`hanare_store`, which holds evicted
//! pages) and `handler` (the traps). `plan` and `choose` decide the shape of a run beforehand; `counters` and `stats`
//! report on it.

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
mod procfs;
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

// `models/` compiles some of these files as well, with a `crate::sync` of its own.
use hanare_sys::sync;

// A sanitizer must see all allocations and frees.
#[cfg_attr(not(hanare_sanitize), global_allocator)]
static NEAR: near::Near = near::Near;
