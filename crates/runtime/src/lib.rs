//! The engine that gives a live program far memory, and the C API on it.
//!
//! `far` is the door; `engine` drives the pure pager of `hanare_paging` through `view` (the program's memory), `store`
//! (where pages live) and `handler` (the traps); `plan` and `choose` decide the shapes of a run beforehand; `settings`,
//! `hostfile` and `stats` carry what goes in and comes out.

mod accounts;
pub mod adopt;
pub mod capi;
pub mod choose;
mod clock;
pub mod counters;
mod engine;
pub mod extents;
pub mod far;
mod fatal;
mod fork;
mod gate;
mod handler;
pub mod heap;
mod kernel;
pub mod near;
mod plan;
pub mod polling;
pub mod private;
mod promise;
mod restrictions;
mod span;
pub mod stats;
mod store;
mod together;
mod tracing;
mod tree;
mod view;
mod watchdog;
mod windows;

// A sanitizer has to see what is allocated and freed.
#[cfg_attr(not(hanare_sanitize), global_allocator)]
static NEAR: near::Near = near::Near;
