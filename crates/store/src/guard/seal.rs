//! Seals units (base pages): encrypts each unit under a key that never leaves this process, so that no server and no
//! network sees its bytes, and none can change them unnoticed.
//!
//! The cipher is AES-256-GCM, or ChaCha20-Poly1305 on a CPU without instructions for AES. Sealed bytes are as long as
//! the unit. The note about a unit has three words near: its nonce and the two halves of its tag. The unit's number is
//! authenticated too.
//!
//! ```text
//!   nonce word:   key number, 16 bits | counter, 48 bits      (0: the unit was never sent)
//!   nonce:        the nonce word, little-endian, then four zero bytes
//! ```
//!
//! Since nonce and tag stay near, old sealed bytes and those of other units do not open.

use ring::aead::{Aad, Nonce, Tag};

use super::keys::Keys;
use super::table::Table;
use super::{GuardError, KeySpent};

/// The number of bits of the counter in a nonce word.
pub(super) const COUNTER_BITS: u32 = 48;

pub(super) struct Seal {
    table: Table<3>,
    keys: Keys,
}

impl Seal {
    pub(super) fn new(units: u32) -> Result<Self, GuardError> {
        let mut seal = Self { table: Table::new(units)?, keys: Keys::new()? };
        seal.renew()?;
        Ok(seal)
    }

    /// Makes a new key, with which all units are sealed from now on. Earlier keys still open what they sealed.
    pub(super) fn renew(&mut self) -> Result<(), GuardError> {
        self.keys.add()
    }

    /// Seals a unit in place, and notes its nonce and tag.
    pub(super) fn seal(&self, unit: u32, bytes: &mut [u8]) -> Result<(), KeySpent> {
        let (number, counter, key) = self.keys.take_nonce().ok_or(KeySpent)?;
        let word = u64::from(number) << COUNTER_BITS | counter;
        let tag = key.seal_in_place_separate_tag(nonce(word), Aad::from(unit.to_le_bytes()), bytes);
        // The cipher refuses only bytes that are longer than any unit.
        let [low, high] = tag.ok().and_then(|tag| halves(tag.as_ref())).ok_or(KeySpent)?;
        self.table.set(unit, [word, low, high]);
        Ok(())
    }

    /// Opens a unit in place. Returns false if these are not the bytes of the unit that were sent last. The bytes are
    /// then undefined.
    pub(super) fn open(&self, unit: u32, bytes: &mut [u8]) -> bool {
        let [word, low, high] = self.table.get(unit);
        let key = self.keys.get((word >> COUNTER_BITS) as u16).filter(|_| word != 0);
        let mut tag = [0; 16];
        tag[..8].copy_from_slice(&low.to_le_bytes());
        tag[8..].copy_from_slice(&high.to_le_bytes());
        key.is_some_and(|key| {
            let aad = Aad::from(unit.to_le_bytes());
            key.open_in_place_separate_tag(nonce(word), aad, Tag::from(tag), bytes, 0..).is_ok()
        })
    }
}

fn nonce(word: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&word.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// Divides a tag into two words. `None` if it has not 16 bytes.
fn halves(tag: &[u8]) -> Option<[u64; 2]> {
    let (halves, []) = tag.as_chunks::<8>() else { return None };
    let &[low, high] = halves else { return None };
    Some([low, high].map(u64::from_le_bytes))
}

#[cfg(test)]
impl Seal {
    /// Returns a copy, as a fork makes it.
    pub(super) fn copied(&self) -> Self {
        Self { table: self.table.copied(), keys: self.keys.copied() }
    }

    pub(super) fn keys(&self) -> &Keys {
        &self.keys
    }

    pub(super) fn keys_mut(&mut self) -> &mut Keys {
        &mut self.keys
    }
}
