//! `hanare bench`: what trapping, moving and fetching a page cost on this machine at least, and how near the pager comes.
//!
//! Every figure of the pager is given as a ratio to floors taken right before it in the same process, since machines are
//! shared and differ. This room measures and reports; it judges nothing (the scripts in `benches/` hold the bounds).

mod child;
mod dsm;
mod dsm_rank;
mod floor;
mod links;
mod paging;
mod pattern;
mod servers;
mod sheet;
mod traps;
mod words;

use clap::{Args, Subcommand};

/// Measure this machine's floors, or the pager against them.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Floor(floor::FloorArgs),
    Paging(Box<paging::PagingArgs>),
    Servers(servers::ServersArgs),
    Dsm(dsm::DsmArgs),
    #[command(hide = true)]
    PagingChild(child::ChildArgs),
    #[command(hide = true)]
    DsmRank(dsm_rank::RankArgs),
    #[command(hide = true)]
    GreedyChild(servers::GreedyArgs),
}

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The floors.
    #[error(transparent)]
    Floor(#[from] floor::FloorError),
    /// The pager.
    #[error(transparent)]
    Paging(#[from] paging::PagingError),
    /// The process that is paged.
    #[error(transparent)]
    Child(#[from] child::ChildError),
    /// The clients of one server.
    #[error(transparent)]
    Servers(#[from] servers::ServersError),
    /// Shared memory.
    #[error(transparent)]
    Dsm(#[from] dsm::DsmError),
    /// A rank of it.
    #[error(transparent)]
    Rank(#[from] dsm_rank::RankError),
}

impl BenchError {
    /// The exit code: 1 for wrong words in far memory, and 125 for all that kept us from measuring.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            BenchError::Child(child::ChildError::Mismatch(_)) => 1,
            _ => crate::EXIT_OWN,
        }
    }
}

/// Measures what was asked for and prints it on stdout.
pub(crate) fn bench(args: &BenchArgs) -> Result<u8, BenchError> {
    Ok(match &args.what {
        What::Floor(args) => floor::floor(args)?,
        What::Paging(args) => paging::paging(args)?,
        What::Servers(args) => servers::servers(args)?,
        What::GreedyChild(args) => servers::greedy(args)?,
        What::PagingChild(args) => child::child(args)?,
        What::Dsm(args) => dsm::dsm(args)?,
        What::DsmRank(args) => dsm_rank::rank(args)?,
    })
}
