//! All unsafe Linux of Hanare: userfaultfd, fault signals, mappings, pagemap, futexes, threads, and
//! what the machine allows.
//!
//! This room knows the kernel and nothing else: no page states, policies, servers or programs. Addresses are `usize`,
//! because the memory behind them belongs to the program and never to a Rust reference. Functions that can change or
//! destroy such memory are `unsafe`. Functions that only observe it, or make accesses to it trap, are safe.
//!
//! Everything that the fault path uses ([`uffd`], [`batch`], [`futex`], [`copy`](mod@copy), the handlers of [`signal`],
//! [`map::protect`], [`thread::cpu_of`]) allocates nothing after construction and is async-signal-safe. System calls
//! are made directly instead of through the C library, so that a preloaded shim that interposes `mmap` or `sigaction`
//! never calls itself.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("hanare-sys needs 64-bit Linux");

pub mod batch;
pub mod clock;
pub mod copy;
pub mod descriptors;
pub mod environment;
pub mod features;
pub mod filter;
pub mod flags;
pub mod futex;
pub mod limits;
mod lock;
pub mod map;
pub mod mark;
pub mod memory;
pub mod pagemap;
mod probe;
mod raw;
pub mod ready;
mod refuse;
pub mod signal;
pub mod stack;
pub mod symbols;
pub mod sync;
pub mod thread;
pub mod uffd;

pub use raw::{Errno, again, syscall};
pub use refuse::arm_from_environment as refuse_on_purpose;
