//! The types that the message rings take as arguments, as in `hanare_dsm::coherence`.

/// A rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rank(pub(crate) u16);

/// How soon a message's receiver needs the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Urgency {
    /// At once.
    Now,
    /// When its receiver makes its next call; at once if the receiver waits in a call.
    AtNextCall,
    /// When its receiver next checks for messages, for any reason.
    AtNextLook,
}
