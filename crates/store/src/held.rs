//! The set of held units, counted by stretch.

/// Which units are held, and how many of each stretch. A stretch whose last unit is released is free as a whole.
pub(crate) struct Held {
    bits: Vec<u64>,
    per_stretch: Vec<u16>,
    pub(crate) stretch_units: u32,
}

impl Held {
    pub(crate) fn new(units: u32, stretch_units: u32) -> Self {
        let stretches = units.div_ceil(stretch_units) as usize;
        Self { bits: vec![0; units as usize / 64 + 1], per_stretch: vec![0; stretches], stretch_units }
    }

    /// Whether this unit is held.
    pub(crate) fn has(&self, unit: u32) -> bool {
        self.bits[unit as usize / 64] & 1 << (unit % 64) != 0
    }

    /// These units are held now.
    pub(crate) fn mark(&mut self, first: u32, count: u32) {
        for unit in first..first + count {
            let (word, bit) = (unit as usize / 64, 1 << (unit % 64));
            if self.bits[word] & bit == 0 {
                self.bits[word] |= bit;
                self.per_stretch[(unit / self.stretch_units) as usize] += 1;
            }
        }
    }

    /// This unit is no longer held; true when nothing of its stretch is.
    pub(crate) fn release(&mut self, unit: u32) -> bool {
        let (word, bit) = (unit as usize / 64, 1 << (unit % 64));
        if self.bits[word] & bit == 0 {
            return false;
        }
        self.bits[word] &= !bit;
        let left = &mut self.per_stretch[(unit / self.stretch_units) as usize];
        *left -= 1;
        *left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_is_free_when_its_last_unit_is_released_and_only_then() {
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
