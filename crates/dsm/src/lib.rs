//! Distributed shared memory: the ranks of one program share a region at one address.
//!
//! Release consistency with multiple writers, after SCASH (Harada et al., "Comparison of page transfer method on
//! software distributed shared memory system", section 2). Every page has a *home* and a directory of *sharers*. A
//! writer keeps a *twin* and sends the *diff* home at a memory barrier or a release.
//!
//! - [`coherence`] decides: a pure state machine per rank, events in, actions out. It never sees a page's bytes.
//! - [`diff`] finds the words that a rank wrote: a page against its twin.
//! - [`codec`] encodes the messages between ranks as frames (`docs/wire-format.md` draws them).
//! - [`live`] carries out the actions in a running program: traps, links, and the thread that answers other ranks.
//! - [`capi`] is `include/dsm.h`.

#![deny(unsafe_code)]

pub mod capi;
pub mod codec;
pub mod coherence;
pub mod diff;
pub mod limits;
pub mod live;

// `models/` compiles some files of `live` as well, with a `crate::sync` of its own.
use hanare_sys::sync;
