//! A rank in a running program: carries out the decisions of [`crate::coherence`].
//!
//! One engine per process, behind one lock. Its thread answers traps and other ranks. While a thread of the program
//! waits in a call, that thread answers them itself. So no thread must be woken when the call is over.

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

mod tcp;
mod words;

pub use engine::{Counts, Live, StartError};
pub use fatal::{EXIT_LOST, EXIT_OWN, die, say};
pub use job::{Job, JobError, Meet, Transfer};
