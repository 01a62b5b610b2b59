//! The plain values that the message rings are called with, as in `hanare_dsm::coherence`.

/// A rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rank(pub(crate) u16);

/// How soon a message is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Urgency {
    /// At once.
    Now,
    /// When its receiver makes a call by itself.
    AtNextCall,
    /// When its receiver looks for whatever reason.
    AtNextLook,
}
