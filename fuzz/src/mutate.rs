//! Seeded mutations of inputs, for `fuzz/tests/corpus.rs`. libFuzzer makes its own mutations.

/// Values around which a length, count or bound often changes its meaning.
const EDGES: [u64; 12] = [0, 1, 2, 7, 8, 0x7f, 0x80, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
/// Maximum length of a mutated input, in bytes.
const LENGTH_MAX: usize = 8192;

/// A source of mutations, which depend only on a seed (xorshift64*).
#[derive(Clone, Debug)]
pub struct Mutator(u64);

impl Mutator {
    /// Makes the source of mutations for `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a random number below `n`, or 0 when `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n.max(1)
    }

    /// Returns `input` after one to four random changes. Some of them take bytes from `other`.
    pub fn mutate(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
        let mut bytes = input.to_vec();
        for _ in 0..=self.below(4) {
            self.change(&mut bytes, other);
        }
        bytes.truncate(LENGTH_MAX);
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(bytes.len());
        let end = (at + 1 + self.below(16)).min(bytes.len());
        match self.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 if at < bytes.len() => bytes[at] = self.next() as u8,
            2 if at < bytes.len() => {
                let edge = EDGES[self.below(EDGES.len())].to_le_bytes();
                let width = (1 << self.below(4)).min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&edge[..width]);
            }
            3 if at < bytes.len() => drop(bytes.drain(at..end)),
            4 if at < bytes.len() => {
                let again = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, again));
            }
            5 => bytes.truncate(at),
            6 => {
                let from = self.below(other.len());
                let to = (from + 1 + self.below(64)).min(other.len());
                drop(bytes.splice(at..at, other[from..to].iter().copied()));
            }
            _ => bytes.insert(at, self.next() as u8),
        }
    }
}
