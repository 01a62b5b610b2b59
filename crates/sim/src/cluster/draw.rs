//! Random numbers from a seed. Each number depends only on the seed and its place, and not on the order of requests.

/// Mixes the bits of a 64-bit word with the finisher of SplitMix64.
pub(crate) const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns the random number of this seed at the place (`a`, `b`).
pub(crate) const fn at(seed: u64, a: u64, b: u64) -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    mix(mix(mix(seed.wrapping_add(STEP)) ^ a.wrapping_mul(STEP)).wrapping_add(b.wrapping_mul(STEP)))
}

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    seed: u64,
    stream: u64,
    count: u64,
}

impl Draw {
    /// Starts the stream with number `stream` of the random numbers of `seed`.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        Self { seed, stream, count: 0 }
    }

    /// Draws a number below `bound`, which must not be 0.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.count += 1;
        let x = at(self.seed, self.stream, self.count);
        (((x >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// Shuffles the items at random.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u32 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffles_keep_all_items_and_differ_by_seed() {
        let order = |seed| {
            let mut items: Vec<u32> = (0..20).collect();
            Draw::new(seed, 3).shuffle(&mut items);
            items
        };
        let mut sorted = order(1);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>());
        assert!(order(1) == order(1) && order(1) != order(2));
    }
}
