//! All unsafe Linux code of Hanare: userfaultfd, fault signals, mappings, pagemap, futexes and threads. The crate also
//! finds out what the machine allows.
//!
//! This crate knows the kernel and nothing else: no page states, policies, servers or programs. Addresses are `usize`,
//! because the memory behind them belongs to the program and never to a Rust reference. Functions that can change or
//! destroy such memory are `unsafe`. Functions that only observe the memory, or make accesses to it trap, are safe.
//!
//! The fault path uses [`uffd`], [`batch`], [`futex`], [`copy`](mod@copy), the handlers of [`signal`], [`map::protect`]
//! and [`thread::cpu_of`]. These allocate nothing after construction and are async-signal-safe. They make system calls
//! directly and not through the C library. Otherwise a preloaded library that interposes `mmap` or `sigaction` would
//! call itself.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("hanare-sys needs 64-bit Linux");

pub mod batch;
#[cfg(target_arch = "x86_64")]
pub mod calls;
pub mod clock;
pub mod copy;
pub mod descriptors;
pub mod environment;
pub mod features;
pub mod filter;
pub mod flags;
pub mod futex;
pub mod limits;
pub mod link;
mod lock;
pub mod map;
pub mod mark;
pub mod memory;
pub mod object;
pub mod pagemap;
mod probe;
mod processor;
mod raw;
pub mod ready;
mod refuse;
pub mod signal;
pub mod stack;
pub mod symbols;
pub mod sync;
pub mod thread;
pub mod uffd;
pub mod unwind;

pub use raw::{Errno, again, syscall};
pub use refuse::arm_from_environment as refuse_on_purpose;
