//! A rank in a running program: carries out the decisions of [`crate::coherence`].
//!
//! Each process has one engine behind one lock. The engine's thread answers traps and messages of other ranks. While a
//! thread of the program waits in a call, that thread answers them instead. So no other thread has to wake it at the
//! end of the call.

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
mod line;
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
