//! The types that the message rings use, with the same names as in `hanare_dsm::coherence`.

/// A rank: the number of one process of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rank(pub(crate) u16);

/// How soon the receiver needs a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Urgency {
    /// The receiver needs the message immediately.
    Now,
    /// The receiver needs the message when it makes its next call, or immediately if it waits in a call.
    AtNextCall,
    /// The receiver needs the message when it next checks for messages. The message itself causes no check.
    AtNextLook,
}
