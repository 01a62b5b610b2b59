//! The set of held units (base pages), with a count for each placement extent.

/// The held units, and their number in each extent. An extent is free as a whole after its last unit was released.
pub(crate) struct Held {
    bits: Vec<u64>,
    per_extent: Vec<u16>,
    pub(crate) extent_units: u32,
}

impl Held {
    pub(crate) fn new(units: u32, extent_units: u32) -> Self {
        let extents = units.div_ceil(extent_units) as usize;
        Self { bits: vec![0; units as usize / 64 + 1], per_extent: vec![0; extents], extent_units }
    }

    /// Checks whether this unit is held.
    pub(crate) fn has(&self, unit: u32) -> bool {
        self.bits[unit as usize / 64] & 1 << (unit % 64) != 0
    }

    /// Adds units to the set.
    pub(crate) fn mark(&mut self, first: u32, count: u32) {
        for unit in first..first + count {
            let (word, bit) = (unit as usize / 64, 1 << (unit % 64));
            if self.bits[word] & bit == 0 {
                self.bits[word] |= bit;
                self.per_extent[(unit / self.extent_units) as usize] += 1;
            }
        }
    }

    /// Removes a unit from the set. Returns true if the unit was the last one of its extent.
    pub(crate) fn release(&mut self, unit: u32) -> bool {
        let (word, bit) = (unit as usize / 64, 1 << (unit % 64));
        if self.bits[word] & bit == 0 {
            return false;
        }
        self.bits[word] &= !bit;
        let left = &mut self.per_extent[(unit / self.extent_units) as usize];
        *left -= 1;
        *left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_is_free_when_its_last_unit_is_released_and_only_then() {
        let mut held = Held::new(16, 4);
        held.mark(4, 3);
        held.mark(5, 1);
        assert!(!held.release(4) && !held.release(4) && !held.release(6));
        assert!(held.release(5));
        assert!(!held.release(5));
        held.mark(5, 1);
        assert!(held.release(5));
    }
}
