//! The Hanare memory server as a library: it holds the far pages of programs in memory and, past a limit, in a spill
//! file.
//!
//! The server works with frames (the messages of `hanare-wire`) and slots (fixed-size pieces of storage). It does not
//! know pages, policies or programs. One thread serves each connection. A session owns its slots and ends with its last
//! connection.
//!
//! - `memory`: the budget, and the 2 MiB blocks that are divided into slots; `spill`: the spill files.
//! - `pool`: the slots of a session and its clones; `table`: which slot holds which part of a session's far space;
//!   `session`, `registry`: the sessions, which own the tables.
//! - `connection`, `transfer`: serving READ, WRITE and DISCARD; `host`, `extents`: the same-host link.
//! - `listen`, `greeting`: accepting connections and deciding which clients may connect; `account`: the slots and
//!   transferred bytes of each session, and its quota.
//! - `turns`: fair service; `upkeep`: rates, and returning memory to the system.
#![forbid(unsafe_code)]

mod account;
mod connection;
mod door;
mod extents;
mod greeting;
mod host;
mod listen;
mod memory;
mod named;
mod pool;
mod registry;
mod session;
mod shared;
mod spill;
mod table;
mod transfer;
mod turns;
mod upkeep;

pub use listen::{Log, Server, ServerConfig, ServerError, StopHandle};
pub use memory::Available;
