//! Guards the bytes of units (base pages) while they are away. The guard keeps a note about each unit near, when the
//! unit is sent, and judges by this note what comes back. So the program never gets bytes that are damaged, old, or
//! another unit's, whatever the server and the network do.
//!
//! A guard that only checks keeps a checksum ([`sums`]). A guard that seals encrypts each unit before it leaves this
//! process ([`seal`]), and keeps the nonce, the tag and a checksum. By the checksums, a store also sees that a page is as
//! the servers have it, and need not be sent.
//!
//! **A note is never read while it changes.** The thread that sends a unit writes its note. While the unit's write is
//! queued or in flight, the pager reads the unit from its frame and not from the store. Reads of the unit begin after
//! the write has ended, and end before its next write begins. The pager's lock orders the threads, so relaxed accesses
//! suffice.
//!
//! A fork copies the notes, because they are in private memory. A child reads its parent's units with them.

use hanare_sys::map::MapError;
use hanare_wire::LinkError;

mod keys;
mod seal;
mod sums;
mod table;

use crate::Guarding;
use seal::Seal;
use sums::Sums;

/// The reasons why pages cannot be guarded.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// There is no address space for the buffers and tables of a store, or for its keys.
    #[error("cannot have room for pages that arrive and for their checksums: {0}; raise the limit on address space")]
    Map(#[from] MapError),
    /// The system gives no random bytes for a key.
    #[error("cannot make a key that seals pages: {0}")]
    Random(LinkError),
    /// The cipher refuses its key.
    #[error("cannot make a key that seals pages: the cipher refuses it; run with --seal off, and report this as a bug")]
    Cipher,
    /// This process has the keys of too many ancestors.
    #[error(
        "this process descends from {most} forks, and pages cannot be sealed through more; run with --seal off",
        most = keys::KEYS_MAX
    )]
    Keys,
}

/// A key has sealed so many units that no nonce is left for another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeySpent;

/// The note about a unit does not fit the bytes that came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Damaged {
    /// The first unit whose bytes are wrong.
    pub(crate) unit: u32,
}

/// The guard of one store.
pub(crate) struct Guard {
    unit_bytes: usize,
    kind: Kind,
}

enum Kind {
    Nothing,
    Sums(Sums),
    /// The seals, and the checksums of the bytes before they were sealed. The checksums never leave this process.
    Seals(Seal, Sums),
}

impl Guard {
    /// Makes a guard for `units` units of `unit_bytes` each, which were never sent. A guard that seals gets a key.
    pub(crate) fn new(units: u32, unit_bytes: usize, guarding: Guarding) -> Result<Self, GuardError> {
        let kind = match guarding {
            Guarding::Nothing => Kind::Nothing,
            Guarding::Sums => Kind::Sums(Sums::new(units)?),
            Guarding::Seals => Kind::Seals(Seal::new(units)?, Sums::new(units)?),
        };
        Ok(Self { unit_bytes, kind })
    }

    /// Makes the guard of a forked child from the copy of its parent's guard. A guard that seals gets a new key,
    /// because parent and child must not use a nonce twice with one key.
    pub(crate) fn again(mut self) -> Result<Self, GuardError> {
        if let Kind::Seals(seal, _) = &mut self.kind {
            seal.renew()?;
        }
        Ok(self)
    }

    /// Checks whether units must be sealed before they are sent.
    pub(crate) fn seals(&self) -> bool {
        matches!(self.kind, Kind::Seals(..))
    }

    /// Notes the bytes of adjacent units that are about to be sent as they are. Only for a guard that does not seal.
    pub(crate) fn note(&self, first: u32, bytes: &[u8]) {
        debug_assert!(!self.seals(), "units would be sent unsealed");
        if let Kind::Sums(sums) = &self.kind {
            units(first, bytes.chunks(self.unit_bytes)).for_each(|(unit, bytes)| sums.note(unit, bytes));
        }
    }

    /// Checks whether these are the bytes of adjacent units that were sent last, before they were sealed. A guard
    /// without notes cannot tell, and returns false.
    pub(crate) fn fits(&self, first: u32, bytes: &[u8]) -> bool {
        let (Kind::Sums(sums) | Kind::Seals(_, sums)) = &self.kind else { return false };
        units(first, bytes.chunks(self.unit_bytes)).all(|(unit, bytes)| sums.fits(unit, bytes))
    }

    /// Seals adjacent units in place, and notes them. The caller sends the sealed bytes. Only for a guard that seals.
    pub(crate) fn seal(&self, first: u32, bytes: &mut [u8]) -> Result<(), KeySpent> {
        debug_assert!(self.seals(), "there is no key");
        let Kind::Seals(seal, sums) = &self.kind else { return Err(KeySpent) };
        units(first, bytes.chunks_mut(self.unit_bytes)).try_for_each(|(unit, bytes)| {
            sums.note(unit, bytes);
            seal.seal(unit, bytes)
        })
    }

    /// Checks the bytes of adjacent units that came back, and opens them in place if they are sealed. After an error,
    /// the bytes must not be used.
    pub(crate) fn open(&self, first: u32, bytes: &mut [u8]) -> Result<(), Damaged> {
        units(first, bytes.chunks_mut(self.unit_bytes)).try_for_each(|(unit, bytes)| {
            let is_right = match &self.kind {
                Kind::Nothing => true,
                Kind::Sums(sums) => sums.fits(unit, bytes),
                Kind::Seals(seal, _) => seal.open(unit, bytes),
            };
            if is_right { Ok(()) } else { Err(Damaged { unit }) }
        })
    }
}

/// Numbers the parts of a range from `first` on.
fn units<T>(first: u32, parts: impl Iterator<Item = T>) -> impl Iterator<Item = (u32, T)> {
    (first..=u32::MAX).zip(parts)
}

#[cfg(test)]
mod tests;
