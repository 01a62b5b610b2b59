//! Replacement policies: which resident page leaves next. One policy a file.

mod fifo;
mod list;
mod lru;
mod simple;

use crate::units::PageId;

/// A replacement policy.
///
/// The pager's side of the contract: every page that comes into view is told by [`Policy::inserted`] once and by
/// [`Policy::removed`] once when it leaves for whatever reason; between the two it may be named by `referenced`. The
/// policy's side: `victim` names only pages between the two, prefers its own order, and passes over pages that the
/// filter refuses, looking at no more than a bounded number of them. No call allocates.
pub trait Policy: Send {
    /// A page came into view.
    fn inserted(&mut self, page: PageId);
    /// A touch of a page in view was seen (a first write, or a trapped reference).
    fn referenced(&mut self, page: PageId, write: bool);
    /// A page left the view.
    fn removed(&mut self, page: PageId);
    /// The page to replace next among those the filter accepts.
    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId>;
}

/// Names of the policies with a line on each, in the order shown to users.
pub const POLICIES: &[(&str, &str)] = &[
    ("lru", "least recently brought in or seen written"),
    ("fifo", "brought in longest ago"),
    ("simple", "walks the far space from where the last victim stood (DLM)"),
];

/// The policy of this name for so many units; none when the name is unknown.
#[must_use]
pub fn by_name(name: &str, units: u32) -> Option<Box<dyn Policy>> {
    match name {
        "fifo" => Some(Box::new(fifo::Fifo::new(units))),
        "lru" => Some(Box::new(lru::Lru::new(units))),
        "simple" => Some(Box::new(simple::Simple::new(units))),
        _ => None,
    }
}
