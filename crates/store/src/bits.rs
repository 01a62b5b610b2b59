//! A set of numbers below a bound, with one bit for each number.

pub(crate) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    pub(crate) fn new(count: u32) -> Self {
        Self { words: vec![0; count as usize / 64 + 1] }
    }

    /// Checks whether the set contains any number of a range.
    pub(crate) fn any(&self, first: u32, count: u32) -> bool {
        masks(first, count).any(|(word, mask)| self.words[word] & mask != 0)
    }

    pub(crate) fn has(&self, number: u32) -> bool {
        self.any(number, 1)
    }

    /// Inserts the numbers from `first` to before `first + count` into the set.
    pub(crate) fn set(&mut self, first: u32, count: u32) {
        masks(first, count).for_each(|(word, mask)| self.words[word] |= mask);
    }

    /// Removes the numbers of a range. Returns true if the set contained any of them.
    pub(crate) fn clear(&mut self, first: u32, count: u32) -> bool {
        let had = self.any(first, count);
        if had {
            masks(first, count).for_each(|(word, mask)| self.words[word] &= !mask);
        }
        had
    }

    /// Returns the smallest number of the set that is at least `from`.
    pub(crate) fn next(&self, from: u32) -> Option<u32> {
        let first = from as usize / 64;
        let words = self.words.iter().enumerate().skip(first);
        words
            .map(|(word, &bits)| (word, if word == first { bits & u64::MAX << (from % 64) } else { bits }))
            .find(|(_, bits)| *bits != 0)
            .map(|(word, bits)| word as u32 * 64 + bits.trailing_zeros())
    }
}

/// Returns the words that contain bits of a range, each with the mask of these bits.
fn masks(first: u32, count: u32) -> impl Iterator<Item = (usize, u64)> {
    let end = first + count;
    let words = if count == 0 { 0..0 } else { first as usize / 64..(end as usize).div_ceil(64) };
    words.map(move |word| {
        let start = word as u32 * 64;
        let (low, high) = (first.saturating_sub(start), (end - start).min(64));
        (word, u64::MAX << low & u64::MAX >> (64 - high))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_go_over_the_borders_of_words() {
        let mut bits = Bits::new(200);
        bits.set(60, 70);
        let members = |bits: &Bits| (0..200).filter(|&n| bits.has(n)).collect::<Vec<_>>();
        assert_eq!(members(&bits), (60..130).collect::<Vec<_>>());
        assert!(bits.any(0, 61) && !bits.any(0, 60) && !bits.any(130, 70) && bits.any(129, 1) && !bits.any(70, 0));
        assert!(bits.clear(64, 64) && !bits.clear(64, 64));
        assert_eq!(members(&bits), [60, 61, 62, 63, 128, 129]);
        bits.set(128, 64);
        assert_eq!(
            [0, 63, 64, 128, 150, 192].map(|from| bits.next(from)),
            [Some(60), Some(63), Some(128), Some(128), Some(150), None]
        );
        assert!(bits.clear(0, 200));
        assert_eq!(members(&bits), [0; 0]);
    }
}
