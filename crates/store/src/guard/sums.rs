//! Checksums of units (base pages). A checksum has 64 bits, and depends on the unit's number, on its bytes and on a
//! random number of this process. So bytes that are damaged, old or another unit's have another checksum, but for one
//! case in 2^64. This is no proof against a forger who can try: [`seal`](super::seal) is.

use std::hash::{BuildHasher, Hasher, RandomState};

use hanare_sys::map::MapError;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use super::table::Table;

/// A factor that spreads the numbers of units over 64 bits: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The checksums of all units that were sent. 0 stands for a unit that was never sent.
pub(super) struct Sums {
    table: Table<1>,
    secrets: RapidSecrets,
}

impl Sums {
    pub(super) fn new(units: u32) -> Result<Self, MapError> {
        // The hash of nothing under the random keys of the standard library is a random number.
        let seed = RandomState::new().build_hasher().finish();
        Ok(Self { table: Table::new(units)?, secrets: RapidSecrets::seed(seed) })
    }

    fn of(&self, unit: u32, bytes: &[u8]) -> u64 {
        let sum = rapidhash_v3_seeded(bytes, &self.secrets) ^ u64::from(unit).wrapping_mul(SPREAD);
        sum.max(1)
    }

    /// Notes the checksum of a unit that is about to be sent.
    pub(super) fn note(&self, unit: u32, bytes: &[u8]) {
        self.table.set(unit, [self.of(unit, bytes)]);
    }

    /// Checks whether these are the bytes of the unit that were sent last.
    pub(super) fn fits(&self, unit: u32, bytes: &[u8]) -> bool {
        self.table.get(unit) == [self.of(unit, bytes)]
    }

    /// Returns a copy, as a fork makes it.
    #[cfg(test)]
    pub(super) fn copied(&self) -> Self {
        Self { table: self.table.copied(), secrets: self.secrets }
    }
}
