//! Replacement policies: which page in view leaves next. Each policy has a file. `spec` parses a user's choice.

mod arc;
mod auto;
mod classes;
mod clock;
mod fifo;
mod hide_queue;
mod lecar;
mod lirs;
mod list;
mod lists;
mod lru;
mod mglru;
mod nru;
mod opt;
mod plru;
mod random;
mod s3_fifo;
mod sample;
mod shadows;
mod simple;
mod sketch;
mod swap_in_history;
mod two_q;
mod w_tinylfu;

#[cfg(test)]
mod check;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod trial;

pub use opt::Opt;

use crate::kinds::Kind;
use crate::spec;
pub use crate::spec::{Param, Space, SpecError, Values};
use crate::units::PageId;

/// A policy that a user can choose.
pub type Info = spec::Info<dyn Policy>;

/// Why a page came into view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A thread read it.
    Read,
    /// A thread wrote it, or it is open for writing as far as the pager knows.
    Write,
    /// It was prefetched and came straight into view.
    Ahead,
}

/// Why a page left the view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leave {
    /// It was replaced. It may come back, and the policy may remember it.
    Evicted,
    /// Its bytes are not needed any more, or they now belong to a page of another number (another page size). The
    /// policy must forget it.
    Forgotten,
}

/// A replacement policy.
///
/// The pager's side of the contract: it reports every page that comes into view by [`Policy::inserted`] once, and by
/// [`Policy::removed`] once when the page leaves for any reason. In between, it may report `referenced`. The policy's
/// side: `victim` and `next_to_hide` return only pages between the two. `victim` prefers the policy's own order, skips
/// pages that the filter refuses, and examines a bounded number of pages ([`crate::limits::VICTIM_SCAN_MAX`]). It does
/// not count the returned page as gone: only `removed` does that, and the pager may keep the page. No call allocates;
/// each is O(1), amortised.
///
/// References to pages in view are mostly invisible. A policy sees the access that brought a page (`inserted`), the
/// first write to a page that a read brought in, and the next access to a page that it had
/// [unmapped](Policy::next_to_hide). The last is the pseudo reference bit of paper 1. A policy that needs to know its
/// capacity takes the number of pages in view at the moment when a victim is asked for: only then is the budget full.
pub trait Policy: Send {
    /// A thread waits for a page that is out of view, and the next victim makes room for this page. The call is a hint:
    /// a page may come without such a call, or may not come after it.
    fn coming(&mut self, _page: PageId) {}
    /// A page came into view.
    fn inserted(&mut self, page: PageId, cause: Cause);
    /// A reference to a page in view was seen: the first write since it came, or an access to it while unmapped.
    fn referenced(&mut self, page: PageId, write: bool);
    /// A page left the view.
    fn removed(&mut self, page: PageId, why: Leave);
    /// A page that is out of view was discarded. Its history is void.
    fn forgotten(&mut self, _page: PageId) {}
    /// Returns the page to replace next, among those that the filter accepts.
    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId>;
    /// Returns a page in view whose reference bit the policy has cleared. The pager unmaps it (a hint fault), so that
    /// its next access is seen; its bytes stay local. The policy removes the page from its requests. If the pager
    /// cannot unmap it now, the policy may ask again in its own way. Called a bounded number of times after every step.
    fn next_to_hide(&mut self) -> Option<PageId> {
        None
    }
    /// Whether the policy cannot work without unmapping pages. Pages are then moved in and out even where copying them
    /// would be cheaper. A policy for which this is optional reads [`Space::hides`].
    fn hides(&self) -> bool {
        false
    }
    /// The kind of a page that is out of view. Only a policy that ranks kinds cares.
    fn kind(&mut self, _page: PageId, _kind: Kind) {}
    /// Whether pages of a kind are no victims for now.
    fn hold(&mut self, _kind: Kind, _on: bool) {}
    /// Time passed: milliseconds since any fixed point, in ascending order, every few tens of milliseconds.
    fn tick(&mut self, _now_ms: u64) {}
    /// Writes what a report should say about the policy's own choices. For a policy that tunes itself.
    fn describe(&self, _out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        Ok(())
    }
}

/// All policies, in the order shown to users.
pub const POLICIES: &[&Info] = &[
    &auto::INFO,
    &simple::INFO,
    &swap_in_history::INFO,
    &random::INFO,
    &fifo::INFO,
    &clock::INFO,
    &nru::BY_SWAPS,
    &nru::BY_TIMER,
    &plru::INFO,
    &lru::INFO,
    &two_q::INFO,
    &arc::INFO,
    &lirs::INFO,
    &s3_fifo::INFO,
    &w_tinylfu::INFO,
    &lecar::INFO,
    &mglru::INFO,
];

/// A policy that runs only on a recorded trace.
#[derive(Clone, Copy, Debug)]
pub struct Offline {
    /// Its name.
    pub name: &'static str,
    /// A one-line description.
    pub summary: &'static str,
    /// The paper that describes it.
    pub source: &'static str,
}

/// The policies that run only on a recorded trace. [`build`] does not make them.
pub const OFFLINE: &[&Offline] = &[&opt::ABOUT];

/// Builds the policy that a user described as `name[:param=value,...]`.
///
/// # Errors
/// The name or a parameter is unknown, or a value is out of bounds; the message lists what is valid. Or the policy
/// needs a recorded trace.
pub fn build(text: &str, space: Space) -> Result<Box<dyn Policy>, SpecError> {
    let name = text.split_once(':').map_or(text, |(name, _)| name);
    if OFFLINE.iter().any(|offline| offline.name == name) {
        return Err(SpecError::new(format!(
            "{name} looks into the future and needs a recorded trace: hanare simulate policies"
        )));
    }
    let (info, values) = spec::parse("replacement policy", POLICIES, text)?;
    Ok((info.build)(space, &values))
}

/// Whether the policy that a user described cannot work without unmapping pages.
///
/// # Errors
/// As [`build`].
pub fn hides(text: &str) -> Result<bool, SpecError> {
    Ok(build(text, Space { units: 64, block_units: 1, seed: 0, hides: true })?.hides())
}
