//! The errors after which a store cannot go on.

use std::fmt;

use hanare_wire::LinkError;

use crate::Telling;

/// The exit code of a run that lost a memory server. The server's link ended, or it sent invalid data or fell silent.
pub const EXIT_LOST: i32 = 120;
/// The exit code of a run whose memory servers and spill space are full.
pub const EXIT_FULL: i32 = 121;

/// The reasons why a store cannot go on. The error borrows its texts, because nothing may be allocated before the error
/// is printed.
#[derive(Debug)]
pub enum StoreError<'a> {
    /// A server is lost or silent, or it sent invalid data.
    Lost {
        /// The name of the server.
        server: &'a str,
        /// The error of its link.
        source: LinkError,
    },
    /// All servers are full.
    Full(Telling<'a>),
    /// The private server has no slot left.
    NoSlot,
    /// The private server has ended.
    Gone,
    /// The private server's spill file cannot be read.
    SpillRead,
    /// The private server's spill file cannot be written.
    SpillWrite,
}

impl StoreError<'_> {
    /// Returns the exit code of a run that ends with this error.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self {
            StoreError::Full(_) | StoreError::NoSlot | StoreError::SpillWrite => EXIT_FULL,
            StoreError::Lost { .. } | StoreError::Gone | StoreError::SpillRead => EXIT_LOST,
        }
    }
}

impl fmt::Display for StoreError<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Lost { server, source } => write!(out, "{server}: {source}"),
            StoreError::Full(no_room) => write!(out, "all memory servers are full: {no_room}"),
            StoreError::NoSlot => out.write_str(
                "the private memory server and its spill space are full; give more --memory, or a --spill directory \
                 with more space",
            ),
            StoreError::Gone => {
                out.write_str("the private memory server is gone; the program's far memory went with it")
            }
            StoreError::SpillRead => {
                out.write_str("the private memory server's spill file cannot be read; check its disk")
            }
            StoreError::SpillWrite => out.write_str("the spill file cannot be written; check the space on its disk"),
        }
    }
}

impl std::error::Error for StoreError<'_> {}
