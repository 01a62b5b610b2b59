//! Where pages of a home are that are not in its memory: in slots of a private memory server that this rank copies itself
//! (`slots`), or on memory servers behind a link (`servers`).
//!
//! This room moves bytes and knows what is held where; which pages leave it does not know. A page that comes back keeps its
//! place, so that one that is not written meanwhile need not go again.

mod servers;
mod slots;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use hanare_sys::map::MapError;
use hanare_wire::{Key, KeyError, LinkError};

use super::elsewhere::Elsewhere;
use crate::coherence::Run;
use servers::Servers;
use slots::Slots;

/// Bytes of a page.
const PAGE: usize = super::region::PAGE;

/// Why a page cannot be had, or put away.
#[derive(Debug, thiserror::Error)]
pub(super) enum AwayError {
    /// A server is lost.
    #[error("{server}: {source}")]
    Lost {
        /// Which.
        server: String,
        /// What went wrong.
        source: LinkError,
    },
    /// There is no room left.
    #[error("the memory servers are full; give more room: 'hanare serve --memory', --spill, or another --server")]
    Full,
    /// The private server is full.
    #[error("the private memory server and its spill space are full; give more --memory or a --spill directory")]
    PrivateFull,
    /// The private server is gone.
    #[error("the private memory server is gone; the shared pages it held went with it")]
    Gone,
    /// Its spill file.
    #[error("the private memory server's spill file cannot be {what}: {source}; check its disk")]
    Spill {
        /// Read or written.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// Slots that cannot be mapped.
    #[error("cannot map the private memory server's slots: {0}; raise the limit on address space")]
    Map(#[from] MapError),
    /// The key is no use.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl AwayError {
    /// The exit code for it: those of `hanare run`.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            AwayError::Full | AwayError::PrivateFull => super::fatal::EXIT_FULL,
            _ => super::fatal::EXIT_SERVER,
        }
    }
}

/// The store of one rank.
pub(super) enum Away {
    Slots(Box<Slots>),
    Servers(Servers),
}

impl Away {
    /// Connects a rank whose region has so many pages. None when there is nowhere to put pages.
    pub(super) fn open(elsewhere: &Elsewhere, pages: u32, ranks: u16) -> Result<Option<Self>, AwayError> {
        match elsewhere {
            Elsewhere::Nowhere => Ok(None),
            Elsewhere::Private(socket) => Slots::open(socket, pages).map(|slots| Some(Away::Slots(Box::new(slots)))),
            Elsewhere::Servers { servers, key, timeout_s } => {
                let key = key.as_deref().map(Key::from_file).transpose()?;
                let silent = Duration::from_secs(u64::from(*timeout_s));
                Servers::open(servers, key, silent, pages, ranks).map(|servers| Some(Away::Servers(servers)))
            }
        }
    }

    /// Whether this page's bytes are held.
    pub(super) fn holds(&self, page: u32) -> bool {
        match self {
            Away::Slots(slots) => slots.holds(page),
            Away::Servers(servers) => servers.holds(page),
        }
    }

    /// Puts a run of pages away, whose bytes lie at an address one behind the other. They may change from then on.
    ///
    /// # Safety
    /// So many bytes are mapped there, and nobody writes to them meanwhile.
    #[allow(unsafe_code, reason = "memory that is only borrowed from the program")]
    pub(super) unsafe fn write(&mut self, run: Run, from: *const u8) -> Result<(), AwayError> {
        match self {
            // SAFETY: the caller's promise.
            Away::Slots(slots) => unsafe { slots.write(run, from) },
            // SAFETY: the caller's promise.
            Away::Servers(servers) => unsafe { servers.write(run, from) },
        }
    }

    /// Brings held pages, ascending, each to the address that `place` gives for it. Neighbours have neighbouring addresses.
    ///
    /// # Safety
    /// A page fits at each address, and nobody else touches it meanwhile.
    #[allow(unsafe_code, reason = "memory that is only borrowed from the program")]
    pub(super) unsafe fn read(&mut self, pages: &[u32], place: impl Fn(u32) -> *mut u8) -> Result<(), AwayError> {
        match self {
            // SAFETY: the caller's promise.
            Away::Slots(slots) => unsafe { slots.read(pages, place) },
            // SAFETY: the caller's promise.
            Away::Servers(servers) => unsafe { servers.read(pages, place) },
        }
    }

    /// What is held of these pages is not needed any more.
    pub(super) fn forget(&mut self, run: Run) -> Result<(), AwayError> {
        match self {
            Away::Slots(slots) => {
                slots.forget(run);
                Ok(())
            }
            Away::Servers(servers) => servers.forget(run),
        }
    }

    /// The links, to be watched for what comes by itself: acknowledgements, and ends.
    pub(super) fn links(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Away::Slots(slots) => vec![slots.link()],
            Away::Servers(servers) => servers.links(),
        }
    }

    /// Takes in what came by itself.
    pub(super) fn look(&mut self) -> Result<(), AwayError> {
        match self {
            Away::Slots(slots) => slots.look(),
            Away::Servers(servers) => servers.look(),
        }
    }
}
