//! The engine that provides far memory to a running program, and its C API.
//!
//! `far` is the public API. Below it, `start` and `fork` build a process' engine, and `ranges` and `heap` allocate far
//! memory. `process` holds the running engine, and `places` knows the addresses of far memory. `engine` connects the
//! pager of `hanare_paging`, which makes no system calls, with three parts: `view` (the program's memory), the store
//! (`hanare_store`, which holds evicted pages) and `handler` (the traps). `plan` and `choose` determine page sizes,
//! budgets and the trap mode before a run. `counters` and `stats` report on the run.

mod accounts;
pub mod adopt;
mod calls;
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
mod hold;
mod keeper;
mod kept;
mod kernel;
pub mod load;
pub mod near;
mod park;
mod places;
mod plan;
pub mod polling;
mod process;
mod procfs;
pub mod profile;
mod promise;
mod ranges;
mod restrictions;
mod small;
mod span;
pub mod spare;
mod start;
pub mod stats;
mod steer;
mod threads;
mod together;
mod tracing;
mod tree;
mod turns;
mod view;
mod watchdog;
mod windows;

// The loom models in `models/` compile some of these files too. They define a `crate::sync` of their own.
use hanare_sys::sync;

// A build with a sanitizer uses the default allocator, because the sanitizer must see all allocations and frees.
#[cfg_attr(not(hanare_sanitize), global_allocator)]
static NEAR: near::Near = near::Near;
