//! A rank in a running program: what the machine of [`crate::coherence`] decides, carried out.
//!
//! One engine a process, behind one lock. Its thread answers traps and other ranks; while a thread of the program waits in
//! a call, that thread does so itself, and nobody is woken just to be told that the call is over.

mod away;
mod behind;
mod carry;
mod elsewhere;
mod engine;
mod events;
mod fatal;
mod folder;
mod gates;
mod job;
mod join;
mod limit;
mod links;
mod meet;
mod offers;
mod post;
mod reception;
mod region;
mod room;
mod tcp;

pub use engine::{Counts, Live, StartError};
pub use fatal::{EXIT_LOST, EXIT_OWN, die, say};
pub use job::{Job, JobError, Meet, Transfer};
