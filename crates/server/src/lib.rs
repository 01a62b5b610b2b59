//! The Hanare memory server as a library. It stores the far (evicted) pages of programs in memory. Pages beyond a
//! memory limit go to a spill file.
//!
//! The server receives and sends frames (the messages of `hanare-wire`), and stores bytes in slots of a fixed size. It
//! knows no paging policy, and does not know what a program uses a slot for. One thread serves each connection. A
//! session owns its slots, and ends when its last connection ends.
//!
//! - `memory`: the budget, and the 2 MiB blocks that are divided into slots; `spill`: the spill files.
//! - `pool`: the slots of a session and its clones; `table`: which slot holds which part of a session's far space;
//!   `session`, `registry`: the sessions.
//! - `connection`, `transfer`: serving READ, WRITE and DISCARD; `host`, `extents`: the same-host link, over which
//!   clients map files of the server.
//! - `listen`, `greeting`: accepting connections, and their handshake; `account`: what each session holds and
//!   transfers, and its quota.
//! - `keep`: sessions that outlive a planned restart of the server, in files of a directory.
//! - `turns`: fair service; `upkeep`: rates, and returning memory to the system.
#![forbid(unsafe_code)]

mod account;
mod blame;
mod connection;
mod door;
mod extents;
mod greeting;
mod host;
mod keep;
mod listen;
mod memory;
mod named;
mod polling;
mod pool;
mod rationed;
mod registry;
mod session;
mod shared;
mod spill;
mod table;
mod transfer;
mod turns;
mod upkeep;

pub use listen::{Log, Server, ServerConfig, ServerError, StatusHandle, StopHandle};
pub use memory::{Available, SystemMemory};
