//! `hanare bench`: measures the *floors* of this machine (the minimum costs of trapping, moving and fetching a page),
//! the pager, memory servers and shared memory.
//!
//! The pager's throughput and fault time are also reported as ratios to floors. The floors are measured right before
//! each run of the pager, because machines differ and other programs slow them down. This module only measures and
//! reports. The scripts in `benches/` compare the figures with bounds.

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

pub(crate) use pattern::mix;

/// Measure the minimum costs of paging on this machine (floors), the pager, memory servers or shared memory.
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
    GreedyChild(servers::CompanyArgs),
    #[command(hide = true)]
    StrangersChild(servers::CompanyArgs),
}

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// Measuring the floors failed.
    #[error(transparent)]
    Floor(#[from] floor::FloorError),
    /// Measuring the pager failed.
    #[error(transparent)]
    Paging(#[from] paging::PagingError),
    /// The measured process failed.
    #[error(transparent)]
    Child(#[from] child::ChildError),
    /// Measuring the clients of one server failed.
    #[error(transparent)]
    Servers(#[from] servers::ServersError),
    /// Measuring shared memory failed.
    #[error(transparent)]
    Dsm(#[from] dsm::DsmError),
    /// A rank of the shared-memory benchmark failed.
    #[error(transparent)]
    Rank(#[from] dsm_rank::RankError),
}

impl BenchError {
    /// The exit code: 1 for wrong words in far memory, 125 for anything that prevented the measurement.
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
        What::StrangersChild(args) => servers::strangers(args)?,
        What::PagingChild(args) => child::child(args)?,
        What::Dsm(args) => dsm::dsm(args)?,
        What::DsmRank(args) => dsm_rank::rank(args)?,
    })
}
