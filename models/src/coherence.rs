//! The types that the message rings use, with the same names as in `hanare_dsm::coherence`.

/// A rank: the number of one process of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rank(pub(crate) u16);

/// How soon the receiver needs a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Urgency {
    /// At once.
    Now,
    /// When the receiver makes its next call, or at once if the receiver waits in a call.
    AtNextCall,
    /// When the receiver next checks for messages. The message itself causes no check.
    AtNextLook,
}
