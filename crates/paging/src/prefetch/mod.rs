//! Prefetchers: they predict which units are accessed soon. Each prefetcher has a file. `accuracy` filters the
//! proposals of each prefetcher.

mod accuracy;
mod auto;
mod cluster;
mod ghosts;
mod leap;
mod markov;
mod prepaging;
mod rows;
mod sequential;
mod streams;
#[cfg(test)]
mod tests;

use crate::limits;
use crate::spec;
pub use crate::spec::{Param, Space, SpecError, Values};

/// A prefetcher that a user can choose.
pub type Info = spec::Info<dyn Prefetcher>;

/// An access to a page, as the pager reports it to a prefetcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    /// First unit of the accessed page.
    pub unit: u32,
    /// Units of the accessed page.
    pub span: u32,
    /// Largest number of units to fetch ahead of the program.
    pub window_max: u32,
    /// Whether this access is the first use of a prefetched page that waited in a frame. If false, the page was not in
    /// memory.
    pub staged: bool,
    /// Whether the first use of a prefetched page is seen. If false, prefetched pages are mapped when they arrive, so
    /// accesses to them do not trap.
    pub told: bool,
}

/// A prefetcher's answer to an access: a bounded number of ranges to fetch, and what the access shows about earlier
/// proposals.
#[derive(Clone, Debug, Default)]
pub struct Proposals {
    ranges: [(u32, u32); limits::PROPOSALS_MAX],
    count: usize,
    confirmed: u32,
    missed: u32,
}

impl Proposals {
    /// Proposes `count` units from `first` on. If the list of ranges is full, drops the range.
    pub fn push(&mut self, first: u32, count: u32) {
        if count > 0 && self.count < limits::PROPOSALS_MAX {
            self.ranges[self.count] = (first, count);
            self.count += 1;
        }
    }

    /// Reports that `units` units proposed earlier were used, as this access shows.
    pub fn confirm(&mut self, units: u32) {
        self.confirmed = self.confirmed.saturating_add(units);
    }

    /// Reports that `units` units proposed earlier will probably not be accessed.
    pub fn miss(&mut self, units: u32) {
        self.missed = self.missed.saturating_add(units);
    }

    /// Returns the proposed ranges, each as first unit and count.
    #[must_use]
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.ranges[..self.count]
    }

    /// Returns the number of units that this access shows to have been proposed rightly.
    #[must_use]
    pub fn confirmed(&self) -> u32 {
        self.confirmed
    }

    /// Returns the number of units that this access shows to have been proposed wrongly.
    #[must_use]
    pub fn missed(&self) -> u32 {
        self.missed
    }

    fn clear(&mut self) {
        (self.count, self.confirmed, self.missed) = (0, 0, 0);
    }
}

/// A prefetcher. It only proposes units. The pager skips units that are in memory, in flight or never written, and
/// units for which there is no free memory. No call allocates.
pub trait Prefetcher: Send {
    /// Answers an access to a page that was absent or waited in a frame. `away` returns true if only the server has a
    /// unit. Fetching the unit would then cost a transfer.
    fn touched(&mut self, touch: Touch, away: &dyn Fn(u32) -> bool, proposals: &mut Proposals);
    /// Whether the prefetcher measures itself. If so, its calls of `confirm` and `miss` eventually cover most of its
    /// proposals.
    fn accounts(&self) -> bool {
        false
    }
    /// Whether the prefetcher must see every access, although no proposal is wanted.
    fn remembers(&self) -> bool {
        false
    }
    /// Writes the prefetcher's own choices for a report. A prefetcher that makes no choices writes nothing.
    fn describe(&self, _out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        Ok(())
    }
}

/// All prefetchers, in the order shown to users.
pub const PREFETCHERS: &[&Info] = &[
    &auto::INFO,
    &streams::INFO,
    &rows::INFO,
    &sequential::INFO,
    &prepaging::INFO,
    &cluster::INFO,
    &leap::INFO,
    &markov::INFO,
    &NONE,
];

const NONE: Info =
    Info { name: "none", summary: "no prefetching", source: "", params: &[], build: |_, _| Box::new(Nothing) };

struct Nothing;

impl Prefetcher for Nothing {
    fn touched(&mut self, _touch: Touch, _away: &dyn Fn(u32) -> bool, _proposals: &mut Proposals) {}
}

/// Builds the prefetcher that a user described as `name[:param=value,...]`.
///
/// # Errors
/// The name or a parameter is unknown, or a value is out of bounds. The message lists what is valid.
pub fn build(text: &str, space: Space) -> Result<Box<dyn Prefetcher>, SpecError> {
    let (info, values) = spec::parse("prefetcher", PREFETCHERS, text)?;
    Ok((info.build)(space, &values))
}
