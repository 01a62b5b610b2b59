//! Prefetchers: which units are likely to be accessed soon. Each prefetcher has a file. `accuracy` is the filter
//! before them.

mod accuracy;
mod auto;
mod cluster;
mod ghosts;
mod leap;
mod markov;
mod prepaging;
mod sequential;
mod streams;
#[cfg(test)]
mod tests;

use crate::limits;
use crate::spec;
pub use crate::spec::{Param, Space, SpecError, Values};

/// A prefetcher that a user can choose.
pub type Info = spec::Info<dyn Prefetcher>;

/// An access as a prefetcher sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    /// First unit of the accessed page.
    pub unit: u32,
    /// Units of that page.
    pub span: u32,
    /// Most units to have ahead of the program.
    pub window_max: u32,
    /// Whether the page had been prefetched and waited in a frame, so that this is its first use. Otherwise it was
    /// absent.
    pub staged: bool,
    /// Whether the first use of a prefetched page is seen. Otherwise prefetched pages come straight into view, and no
    /// access to them is seen.
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
    /// Proposes `count` units from `first` on. A range that does not fit is dropped.
    pub fn push(&mut self, first: u32, count: u32) {
        if count > 0 && self.count < limits::PROPOSALS_MAX {
            self.ranges[self.count] = (first, count);
            self.count += 1;
        }
    }

    /// Reports that this access shows `units` earlier proposed units to have been used.
    pub fn confirm(&mut self, units: u32) {
        self.confirmed = self.confirmed.saturating_add(units);
    }

    /// Reports that `units` earlier proposed units will not be accessed after all.
    pub fn miss(&mut self, units: u32) {
        self.missed = self.missed.saturating_add(units);
    }

    /// The proposals, as first unit and count.
    #[must_use]
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.ranges[..self.count]
    }

    /// Units that this access shows to have been proposed rightly.
    #[must_use]
    pub fn confirmed(&self) -> u32 {
        self.confirmed
    }

    /// Units that this access shows to have been proposed wrongly.
    #[must_use]
    pub fn missed(&self) -> u32 {
        self.missed
    }

    fn clear(&mut self) {
        (self.count, self.confirmed, self.missed) = (0, 0, 0);
    }
}

/// A prefetcher. It only proposes: the pager skips what is in memory, in flight or never written, and what has no room.
/// No call allocates.
pub trait Prefetcher: Send {
    /// Handles an access to a page that was absent or waited in a frame. `away` says whether only the server has a
    /// unit, so that proposing it would cost a transfer.
    fn touched(&mut self, touch: Touch, away: &dyn Fn(u32) -> bool, proposals: &mut Proposals);
    /// Whether the prefetcher accounts for itself: its calls of `confirm` and `miss` sooner or later cover most of its
    /// proposals.
    fn accounts(&self) -> bool {
        false
    }
    /// Writes what a report should say about the prefetcher's own choices, if it makes any.
    fn describe(&self, _out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        Ok(())
    }
}

/// All prefetchers, in the order shown to users.
pub const PREFETCHERS: &[&Info] = &[
    &auto::INFO,
    &streams::INFO,
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
