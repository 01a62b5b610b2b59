//! Prefetchers: which units are likely to be touched soon. One prefetcher a file.

mod sequential;

use crate::limits;

/// A fault as a prefetcher sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    /// First unit of the page that was touched.
    pub unit: u32,
    /// Units of that page.
    pub span: u32,
    /// Most units worth having ahead of the program.
    pub window_max: u32,
}

/// Ranges of units proposed for fetching, a bounded number of them.
#[derive(Clone, Debug, Default)]
pub struct Proposals {
    ranges: [(u32, u32); limits::PROPOSALS_MAX],
    count: usize,
    confirmed: u32,
}

impl Proposals {
    /// Says that so many units proposed earlier were passed by the program.
    pub fn confirm(&mut self, units: u32) {
        self.confirmed += units;
    }

    /// Units proposed earlier that this touch shows to have been right.
    #[must_use]
    pub fn confirmed(&self) -> u32 {
        self.confirmed
    }

    /// Proposes `count` units from `first` on; what does not fit is left out.
    pub fn push(&mut self, first: u32, count: u32) {
        if count > 0 && self.count < limits::PROPOSALS_MAX {
            self.ranges[self.count] = (first, count);
            self.count += 1;
        }
    }

    /// The proposals, as first unit and count.
    #[must_use]
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.ranges[..self.count]
    }
}

/// A prefetcher. It proposes; the pager passes over what is in memory, in flight or untouched, and what has no room.
pub trait Prefetcher: Send {
    /// A page was touched that was absent or waited in a frame.
    fn touched(&mut self, touch: Touch, proposals: &mut Proposals);
}

/// Names of the prefetchers with a line on each, in the order shown to users.
pub const PREFETCHERS: &[(&str, &str)] = &[
    ("sequential", "read-ahead behind up to 32 forward streams, its window doubling while they go on"),
    ("none", "only what is touched"),
];

struct Nothing;

impl Prefetcher for Nothing {
    fn touched(&mut self, _touch: Touch, _proposals: &mut Proposals) {}
}

/// The prefetcher of this name; none when the name is unknown.
#[must_use]
pub fn by_name(name: &str) -> Option<Box<dyn Prefetcher>> {
    match name {
        "none" => Some(Box::new(Nothing)),
        "sequential" => Some(Box::new(sequential::Sequential::default())),
        _ => None,
    }
}
