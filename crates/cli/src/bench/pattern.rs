//! The pages that a benchmark accesses, and their order. `benches/swap_touch.c` uses the same order.

use clap::ValueEnum;

/// Number of passes of the strided pattern before the timed passes.
const STRIDED_PASSES_WARMING: u64 = 8;
/// Bytes of an OS page. Each access uses one word of an OS page.
pub(super) const OS_PAGE: u64 = 4 << 10;

const SEQUENTIAL_PASSES: u64 = 2;
const STRIDED_TOUCHES_MIN: u64 = 50_000;
const SEED: u64 = 0x4861_6E61_7265;

/// The order of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Pattern {
    /// Every page in ascending order, twice.
    Seq,
    /// Pages chosen uniformly at random.
    Rand,
    /// One page every --stride bytes, in ascending order, again and again.
    Stride,
}

impl Pattern {
    pub(super) fn name(self) -> &'static str {
        match self {
            Pattern::Seq => "seq",
            Pattern::Rand => "rand",
            Pattern::Stride => "stride",
        }
    }
}

/// A pattern over a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    pub(super) pattern: Pattern,
    /// Number of OS pages in the region.
    pub(super) pages: u64,
    /// Number of OS pages from one access to the next, in the strided pattern.
    pub(super) stride_pages: u64,
    /// Number of accesses in the random pattern.
    pub(super) random_touches: u64,
}

impl Walk {
    /// Returns the page numbers of the timed accesses.
    pub(super) fn timed(&self) -> impl Iterator<Item = u64> + use<> {
        let touches = match self.pattern {
            Pattern::Seq => SEQUENTIAL_PASSES * self.pages,
            Pattern::Rand => self.random_touches,
            Pattern::Stride => STRIDED_TOUCHES_MIN.next_multiple_of(self.in_a_pass()),
        };
        self.random(touches, SEED)
    }

    /// Returns the page numbers of the accesses before the timed ones. The pager learns the pattern from these
    /// accesses.
    pub(super) fn warming(&self) -> impl Iterator<Item = u64> + use<> {
        let touches = match self.pattern {
            // The passes that reach the steady state follow this pattern already.
            Pattern::Seq => 0,
            Pattern::Rand => self.random_touches / 4,
            Pattern::Stride => STRIDED_PASSES_WARMING * self.in_a_pass(),
        };
        self.random(touches, !SEED)
    }

    fn in_a_pass(&self) -> u64 {
        self.pages.div_ceil(self.stride_pages)
    }

    fn random(&self, count: u64, seed: u64) -> impl Iterator<Item = u64> + use<> {
        let Walk { pattern, pages, stride_pages, .. } = *self;
        let in_a_pass = self.in_a_pass();
        (0..count).map(move |number| match pattern {
            Pattern::Seq => number % pages,
            Pattern::Rand => mix(seed.wrapping_add(number)) % pages,
            Pattern::Stride => number % in_a_pass * stride_pages,
        })
    }
}

/// Returns a well mixed word for a number (the finalizer of splitmix64).
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(pattern: Pattern) -> Walk {
        Walk { pattern, pages: 1000, stride_pages: 16, random_touches: 5000 }
    }

    #[test]
    fn sequential_walks_every_page_in_order_twice() {
        let pages: Vec<u64> = walk(Pattern::Seq).timed().collect();
        assert!(pages.iter().copied().eq((0..1000).chain(0..1000)));
        assert_eq!(walk(Pattern::Seq).warming().count(), 0);
    }

    #[test]
    fn strided_makes_whole_passes() {
        let pages: Vec<u64> = walk(Pattern::Stride).timed().collect();
        let pass: Vec<u64> = (0..1000).step_by(16).collect();
        assert!(pages.len() >= 50_000 && pages.len().is_multiple_of(pass.len()));
        assert!(pages.chunks(pass.len()).all(|chunk| chunk == pass));
    }

    #[test]
    fn random_is_the_same_each_time_and_meets_nearly_all() {
        let pages: Vec<u64> = walk(Pattern::Rand).timed().collect();
        assert!(walk(Pattern::Rand).timed().eq(pages.iter().copied()));
        let met: std::collections::HashSet<u64> = pages.iter().copied().collect();
        assert!(met.len() > 980 && pages.iter().all(|page| *page < 1000), "{}", met.len());
        assert!(!walk(Pattern::Rand).warming().eq(pages.into_iter().take(1250)));
    }
}
