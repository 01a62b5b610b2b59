//! Distributed shared memory: the ranks (the processes of one program) share a region of memory at the same address.
//!
//! This crate implements release consistency with multiple writers, after SCASH (Harada et al., "Comparison of page
//! transfer method on software distributed shared memory system", section 2). Every page has a *home*, the rank with
//! its master copy. The home keeps a directory of *sharers*, the ranks with other copies. A writer keeps a *twin*, a
//! copy of the page from before its writes. At a memory barrier or a release, the writer sends the *diff* home. The
//! diff contains the words that differ from the twin.
//!
//! - [`coherence`] decides what a rank does. It is a pure state machine: it receives events and returns actions. It
//!   never sees the bytes of a page.
//! - [`diff`] finds the words that a rank wrote. It compares a page with the page's twin.
//! - [`codec`] encodes the messages between ranks as frames (`docs/wire-format.md` draws them).
//! - [`live`] carries out the actions in a running program: traps, links, and the thread that answers other ranks.
//! - [`capi`] implements the C functions that `include/dsm.h` declares.

#![deny(unsafe_code)]

pub mod capi;
pub mod codec;
pub mod coherence;
pub mod diff;
pub mod limits;
pub mod live;

// The crate in `models/` also compiles some files of `live`, with another `crate::sync`. So these files use the name
// `crate::sync`, which stands for `hanare_sys::sync` here.
use hanare_sys::sync;
