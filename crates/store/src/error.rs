//! The errors after which a store cannot go on.

use std::fmt;

use hanare_settings::HumanSize;
use hanare_wire::LinkError;

use crate::{Read, Telling};

/// The exit code of a run that lost a memory server. The server's link ended, it sent invalid data or wrong pages, or it
/// fell silent.
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
    /// A page came back wrong: damaged, old, or another page's. Its bytes were received and are not used. The link is
    /// usable, and the read is no longer in progress. So a caller that has another copy can read that one and go on.
    Damaged {
        /// The name of the server.
        server: &'a str,
        /// The number of the first unit (base page) that is wrong.
        page: u32,
        /// The read that this unit belongs to. None of its bytes were passed on.
        read: Read,
    },
    /// The key of this process has sealed all the pages that one key may seal.
    SealSpent,
    /// Too few parts of a page are left, because servers were lost.
    TooFewParts {
        /// The name of a lost server.
        server: &'a str,
        /// Whether further servers are lost.
        has_others: bool,
        /// The number of parts that a page needs.
        needed: u8,
    },
    /// All servers are full.
    Full(Telling<'a>),
    /// The private server has no slot left.
    NoSlot {
        /// The size of the server's memory in bytes.
        memory_bytes: u64,
        /// Whether the server has a spill file.
        has_spill: bool,
        /// The number of bytes that this process has in slots there.
        own_bytes: u64,
    },
    /// The private server has ended.
    Gone,
    /// The private server's spill file cannot be read.
    SpillRead,
    /// The private server's spill file cannot be written.
    SpillWrite,
    /// A worker was given to another kind of store than its own. This is a mistake of Hanare's.
    OtherWorker,
}

impl StoreError<'_> {
    /// Returns the exit code of a run that ends with this error.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self {
            StoreError::Full(_) | StoreError::NoSlot { .. } | StoreError::SpillWrite => EXIT_FULL,
            StoreError::Lost { .. }
            | StoreError::Damaged { .. }
            | StoreError::SealSpent
            | StoreError::TooFewParts { .. }
            | StoreError::Gone
            | StoreError::SpillRead
            | StoreError::OtherWorker => EXIT_LOST,
        }
    }
}

impl fmt::Display for StoreError<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Lost { server, source } => write!(out, "{server}: {source}"),
            StoreError::Damaged { server, page, .. } => write!(
                out,
                "{server} gave page {page} back wrong (damaged, old or another page's); the run ends rather than go on \
                 with wrong bytes; check that server's memory and the network to it"
            ),
            StoreError::SealSpent => out.write_str(
                "the key of this process has sealed as many pages as one key may seal; start the program again",
            ),
            StoreError::TooFewParts { server, has_others, needed } => {
                let lost = if *has_others { "and others are lost" } else { "is lost" };
                write!(out, "{server} {lost}, and ")?;
                match needed {
                    1 => out.write_str("no copy of a page is left")?,
                    _ => write!(out, "a page has fewer than the {needed} parts that it needs")?,
                }
                out.write_str(
                    "; give a --redundancy with more parity parts, servers that fail apart, or more room on them",
                )
            }
            StoreError::Full(no_room) => write!(out, "all memory servers are full: {no_room}"),
            StoreError::NoSlot { memory_bytes, has_spill, own_bytes } => {
                let used_up =
                    if *has_spill { "and its spill space are used up" } else { "are used up, without a spill file" };
                write!(
                    out,
                    "the private memory server is full: its {} of memory {used_up} (this process has {} there); give more \
                     --memory, or a --spill directory with more space",
                    HumanSize(*memory_bytes),
                    HumanSize(*own_bytes)
                )
            }
            StoreError::Gone => out.write_str(
                "the private memory server is gone, as when 'hanare run' is killed; the program's far memory went with it",
            ),
            StoreError::SpillRead => {
                out.write_str("the private memory server's spill file cannot be read; check its disk")
            }
            StoreError::OtherWorker => out.write_str(
                "a thread works for another store than its own, so pages stay behind; please report this line",
            ),
            StoreError::SpillWrite => out.write_str("the spill file cannot be written; check the space on its disk"),
        }
    }
}

impl std::error::Error for StoreError<'_> {}
