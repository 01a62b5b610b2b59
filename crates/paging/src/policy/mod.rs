//! Replacement policies: they decide which resident page is evicted next. Each policy has a file. `spec` parses a
//! user's choice of policy.

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

/// The reason why a page became resident.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A thread read the page.
    Read,
    /// A thread wrote the page, or the page is mapped writable, so that a write may have happened.
    Write,
    /// The page was prefetched and mapped without an access.
    Ahead,
}

/// The reason why a page is no longer resident.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leave {
    /// The page was evicted. It may come back, and the policy may remember it.
    Evicted,
    /// The page's bytes are not needed any more, or they now belong to a page of another size with another number. The
    /// policy must forget the page.
    Forgotten,
}

/// A replacement policy.
///
/// The pager's side of the contract: it calls [`Policy::inserted`] once when a page becomes resident, and
/// [`Policy::removed`] once when the page stops being resident for any reason. Between the two calls, it may call
/// `referenced`. The policy's side: `victim` and `next_to_hide` return only resident pages. `victim` follows the
/// policy's own order, skips pages that the filter refuses, and examines a bounded number of pages
/// ([`crate::limits::VICTIM_SCAN_MAX`]). The returned page stays resident for the policy until `removed` is called,
/// because the pager may keep the page. No call allocates. The amortised cost of each call is O(1).
///
/// Most references to resident pages are invisible. A policy sees the access that brought a page (`inserted`), and the
/// first write to a page that a read brought in. It also sees the next access to a page that it had
/// [unmapped](Policy::next_to_hide): the pseudo reference bit of paper 1. A policy that needs to know its capacity uses
/// the number of resident pages when a victim is requested. Only then is the budget full.
pub trait Policy: Send {
    /// Notes that a thread waits for an absent page, and that the next victim makes room for this page. The call is
    /// only a hint. A page may arrive without it, and may fail to arrive after it.
    fn coming(&mut self, _page: PageId) {}
    /// Notes that the page that becomes resident next is a huge page of [`Space::block_units`] units. Only a policy that
    /// weighs pages by their size needs this call. [`Policy::inserted`] follows immediately.
    fn wide(&mut self, _page: PageId) {}
    /// Notes that a page became resident.
    fn inserted(&mut self, page: PageId, cause: Cause);
    /// Notes a visible reference to a resident page: the first write since the page arrived, or an access to the page
    /// while it was unmapped.
    fn referenced(&mut self, page: PageId, write: bool);
    /// Notes that a page is no longer resident.
    fn removed(&mut self, page: PageId, why: Leave);
    /// Notes that an absent page was discarded. The policy must forget the page.
    fn forgotten(&mut self, _page: PageId) {}
    /// Returns the page to evict next. Considers only pages that the filter accepts.
    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId>;
    /// Returns a resident page whose reference bit the policy has cleared, and removes the page from the policy's
    /// requests. The pager unmaps the page, so that the page's next access traps (a hint fault). The page's bytes stay
    /// in local memory. If the pager cannot unmap the page now, the policy may request the same page again later. The
    /// pager calls this method a bounded number of times after every step.
    fn next_to_hide(&mut self) -> Option<PageId> {
        None
    }
    /// Whether the policy cannot work unless pages are unmapped to sample references. If so, the engine moves pages in
    /// frames, even if copying them would be cheaper. A policy that works with and without unmapping reads
    /// [`Space::hides`].
    fn hides(&self) -> bool {
        false
    }
    /// Sets the kind of an absent page. Only a policy that ranks kinds needs this call.
    fn kind(&mut self, _page: PageId, _kind: Kind) {}
    /// Protects all pages of a kind from eviction (`true`), or ends this protection (`false`).
    fn hold(&mut self, _kind: Kind, _on: bool) {}
    /// Notes the time, in milliseconds since any fixed point. The calls come in ascending order, every few tens of
    /// milliseconds.
    fn tick(&mut self, _now_ms: u64) {}
    /// Writes the policy's own choices for a report. A policy that does not tune itself writes nothing.
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

/// A policy that can replay a recorded trace, but cannot serve a live program.
#[derive(Clone, Copy, Debug)]
pub struct Offline {
    /// Name of the policy.
    pub name: &'static str,
    /// A one-line description.
    pub summary: &'static str,
    /// The paper that describes the policy.
    pub source: &'static str,
}

/// The policies that can only replay a recorded trace. [`build`] does not build them.
pub const OFFLINE: &[&Offline] = &[&opt::ABOUT];

/// Builds the policy that a user described as `name[:param=value,...]`.
///
/// # Errors
/// The name or a parameter is unknown, or a value is out of bounds. The message lists what is valid. It is also an
/// error if the policy needs a recorded trace.
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

/// Checks whether the policy that `text` describes needs pages to be unmapped ([`Policy::hides`]).
///
/// # Errors
/// The errors are those of [`build`].
pub fn hides(text: &str) -> Result<bool, SpecError> {
    Ok(build(text, Space { units: 64, block_units: 1, seed: 0, hides: true })?.hides())
}
