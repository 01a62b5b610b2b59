//! Replacement policies: which page in view leaves next. One policy a file; `spec` reads what a user writes.

mod arc;
mod auto;
mod classes;
mod clock;
mod fifo;
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
mod wishes;

#[cfg(test)]
mod check;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod trial;

pub use opt::Opt;

use crate::spec;
pub use crate::spec::{Param, Space, SpecError, Values};
use crate::units::PageId;

/// A policy, as a user chooses it.
pub type Info = spec::Info<dyn Policy>;

/// Why a page came into view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A thread read it.
    Read,
    /// A thread wrote to it (or it is open for writing, as far as the pager knows).
    Write,
    /// It was fetched ahead of its use and lies in view all the same.
    Ahead,
}

/// Why a page left the view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leave {
    /// It was replaced: it may come back, and history may be kept of it.
    Evicted,
    /// Its bytes are not needed any more, or it goes on under another name: nothing is to be remembered.
    Forgotten,
}

/// A replacement policy.
///
/// The pager's side of the contract: every page that comes into view is told by [`Policy::inserted`] once and by
/// [`Policy::removed`] once when it leaves for whatever reason; between the two it may be named by `referenced`. The
/// policy's side: `victim` and `next_to_hide` name only pages between the two. `victim` prefers its own order, and passes
/// over pages that the filter refuses, looking at no more than a bounded number of them
/// ([`crate::limits::VICTIM_SCAN_MAX`]); it changes no state that would make the page it names count as gone: only
/// `removed` does, and it may not follow. No call allocates; each is O(1), amortised.
///
/// What a policy can see: a page in view is touched unseen. Seen are the touch that brought it (`inserted`), the first
/// write to a page that came in by a read, and, where the policy [hides](Policy::next_to_hide) pages, the next touch of a
/// hidden page: this is the pseudo reference bit of paper 1. A policy that needs its own capacity takes the number of
/// pages in view when a victim is asked for, since only then the budget is full.
pub trait Policy: Send {
    /// A thread waits for a page that is out of view: asked for a victim next, the policy makes room for this one. A policy
    /// may not need to know, the page may come without being told of, and having been told of it may not come.
    fn coming(&mut self, _page: PageId) {}
    /// A page came into view.
    fn inserted(&mut self, page: PageId, cause: Cause);
    /// A touch of a page in view was seen: the first write since it came, or one that found it hidden.
    fn referenced(&mut self, page: PageId, write: bool);
    /// A page left the view.
    fn removed(&mut self, page: PageId, why: Leave);
    /// A page that is out of view was discarded: history of it means nothing any more.
    fn forgotten(&mut self, _page: PageId) {}
    /// The page to replace next among those the filter accepts.
    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId>;
    /// A page in view whose reference bit the policy has cleared: the pager takes it out of sight, its bytes staying where
    /// they are, so that its next touch is seen. Each page named is taken off the policy's list of wishes; what the pager
    /// cannot hide now is wished for again by the policy's own ways. Asked for after every step, a bounded number of times.
    fn next_to_hide(&mut self) -> Option<PageId> {
        None
    }
    /// Whether the policy can not do without hiding pages: they then move in and out of sight also where it would be cheaper
    /// to copy them. One that can looks at [`Space::hides`].
    fn hides(&self) -> bool {
        false
    }
    /// Time passed: milliseconds since any fixed point, in order, told every few tens of them.
    fn tick(&mut self, _now_ms: u64) {}
    /// What a report should say of the policy's own choices, if it makes any: written to by a policy that tunes itself.
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

/// A policy that runs on a recorded trace only.
#[derive(Clone, Copy, Debug)]
pub struct Offline {
    /// Its name.
    pub name: &'static str,
    /// One line on what it does.
    pub summary: &'static str,
    /// Where it was described.
    pub source: &'static str,
}

/// The policies that run on a recorded trace only: [`build`] does not make them.
pub const OFFLINE: &[&Offline] = &[&opt::ABOUT];

/// The policy that a user described as `name[:param=value,...]`.
///
/// # Errors
/// The name or a parameter is not known, or a value is out of its bounds; the message lists what is valid. Or the policy
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

/// Whether the policy that a user described can not do without hiding pages.
///
/// # Errors
/// As [`build`].
pub fn hides(text: &str) -> Result<bool, SpecError> {
    Ok(build(text, Space { units: 64, block_units: 1, seed: 0, hides: true })?.hides())
}
