//! Prefetchers: which units are likely to be touched soon. One prefetcher a file; `gate` stands before them.

mod auto;
mod cluster;
mod gate;
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

/// A prefetcher, as a user chooses it.
pub type Info = spec::Info<dyn Prefetcher>;

/// A touch as a prefetcher sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    /// First unit of the page that was touched.
    pub unit: u32,
    /// Units of that page.
    pub span: u32,
    /// Most units worth having ahead of the program.
    pub window_max: u32,
    /// Whether the page had been fetched ahead and waited: then it is its first use, else it was absent.
    pub staged: bool,
    /// Whether the first use of what is fetched ahead is told. Otherwise it comes straight into view, and a touch of it
    /// is never seen.
    pub told: bool,
}

/// What a prefetcher answers to a touch: ranges of units to fetch, a bounded number of them, and what the touch shows of
/// ranges proposed before.
#[derive(Clone, Debug, Default)]
pub struct Proposals {
    ranges: [(u32, u32); limits::PROPOSALS_MAX],
    count: usize,
    confirmed: u32,
    missed: u32,
}

impl Proposals {
    /// Proposes `count` units from `first` on; what does not fit is left out.
    pub fn push(&mut self, first: u32, count: u32) {
        if count > 0 && self.count < limits::PROPOSALS_MAX {
            self.ranges[self.count] = (first, count);
            self.count += 1;
        }
    }

    /// Says that this touch shows so many units proposed earlier to have been used.
    pub fn confirm(&mut self, units: u32) {
        self.confirmed = self.confirmed.saturating_add(units);
    }

    /// Says that so many units proposed earlier will not be touched after all.
    pub fn miss(&mut self, units: u32) {
        self.missed = self.missed.saturating_add(units);
    }

    /// The proposals, as first unit and count.
    #[must_use]
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.ranges[..self.count]
    }

    /// Units that this touch shows to have been proposed rightly.
    #[must_use]
    pub fn confirmed(&self) -> u32 {
        self.confirmed
    }

    /// Units that this touch shows to have been proposed wrongly.
    #[must_use]
    pub fn missed(&self) -> u32 {
        self.missed
    }

    fn clear(&mut self) {
        (self.count, self.confirmed, self.missed) = (0, 0, 0);
    }
}

/// A prefetcher. It proposes; the pager passes over what is in memory, in flight or untouched, and what has no room. No
/// call allocates.
pub trait Prefetcher: Send {
    /// A page was touched that was absent or waited in a frame. `away` tells of a unit whether only the server has it, so
    /// that proposing it would cost a transfer.
    fn touched(&mut self, touch: Touch, away: &dyn Fn(u32) -> bool, proposals: &mut Proposals);
    /// Whether what it confirms and misses tells sooner or later the fate of most of what it proposes.
    fn accounts(&self) -> bool {
        false
    }
    /// What a report should say of the prefetcher's own choices, if it makes any.
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
    Info { name: "none", summary: "only what is touched", source: "", params: &[], build: |_, _| Box::new(Nothing) };

struct Nothing;

impl Prefetcher for Nothing {
    fn touched(&mut self, _touch: Touch, _away: &dyn Fn(u32) -> bool, _proposals: &mut Proposals) {}
}

/// The prefetcher that a user described as `name[:param=value,...]`.
///
/// # Errors
/// The name or a parameter is not known, or a value is out of its bounds; the message lists what is valid.
pub fn build(text: &str, space: Space) -> Result<Box<dyn Prefetcher>, SpecError> {
    let (info, values) = spec::parse("prefetcher", PREFETCHERS, text)?;
    Ok((info.build)(space, &values))
}
