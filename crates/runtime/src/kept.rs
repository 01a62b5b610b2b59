//! Freed blocks that keep their pages for a while: which ones there are, and which one fits a new allocation.
//!
//! Nothing here accesses a far page or takes a lock. Offsets and lengths are in bytes.

/// Maximum number of kept blocks. The pager can note a few more.
const BLOCKS_MAX: usize = 48;
const _: () = assert!(BLOCKS_MAX < hanare_paging::limits::UNUSED_MAX);
/// Divisor of a block's length: a new block leaves at most 1/5 of a kept block unused.
const WASTE_PART: u64 = 5;

/// A kept block. Offset and length are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Time of the free, in nanoseconds since any fixed point.
    pub(crate) since_ns: u64,
}

/// The kept blocks of this process, in near memory.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The blocks, the oldest first. The capacity never grows.
    blocks: Vec<Block>,
    /// Sum of the lengths of all blocks, in bytes.
    bytes: u64,
}

impl Kept {
    pub(crate) fn new() -> Self {
        Self { blocks: Vec::with_capacity(BLOCKS_MAX), bytes: 0 }
    }

    /// Returns the sum of the lengths of all blocks, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a block as the newest. Returns false, and adds nothing, if there are too many blocks, or if they would have
    /// more than `most` bytes together.
    pub(crate) fn push(&mut self, block: Block, most: u64) -> bool {
        let has_room = self.blocks.len() < BLOCKS_MAX && self.bytes + block.len <= most;
        if has_room {
            self.bytes += block.len;
            self.blocks.push(block);
        }
        has_room
    }

    fn remove(&mut self, index: usize) -> Block {
        let block = self.blocks.remove(index);
        self.bytes -= block.len;
        block
    }

    /// Removes the shortest block that has `len` bytes, wastes little, and starts at an offset that `is_aligned` accepts.
    /// Among equal blocks, removes the newest, because its pages are most likely still in local memory.
    pub(crate) fn take_fit(&mut self, len: u64, is_aligned: impl Fn(u64) -> bool) -> Option<Block> {
        let fits =
            |block: &Block| block.len >= len && is_aligned(block.offset) && block.len - len <= block.len / WASTE_PART;
        let fitting = self.blocks.iter().enumerate().rev().filter(|(_, block)| fits(block));
        let (index, _) = fitting.min_by_key(|(_, block)| block.len)?;
        Some(self.remove(index))
    }

    /// Removes a block that `is_wanted` accepts, the oldest first.
    pub(crate) fn take(&mut self, is_wanted: impl Fn(&Block) -> bool) -> Option<Block> {
        let index = self.blocks.iter().position(is_wanted)?;
        Some(self.remove(index))
    }

    pub(crate) fn starts(&self, offset: u64) -> bool {
        self.blocks.iter().any(|block| block.offset == offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn kept(blocks: &[(u64, u64)]) -> Kept {
        let mut kept = Kept::new();
        for (nth, &(offset, len)) in blocks.iter().enumerate() {
            assert!(kept.push(Block { offset, len, since_ns: nth as u64 }, u64::MAX));
        }
        kept
    }

    #[test]
    fn the_shortest_fit_is_taken_and_little_is_wasted() {
        let mut kept = kept(&[(0, 8 * MIB), (8 * MIB, 4 * MIB), (16 * MIB, 5 * MIB), (32 * MIB, 4 * MIB)]);
        assert_eq!(
            kept.take_fit(4 * MIB, |_| true).map(|block| block.offset),
            Some(32 * MIB),
            "the newest of the shortest"
        );
        assert_eq!(kept.take_fit(4 * MIB, |_| true).map(|block| block.offset), Some(8 * MIB));
        assert_eq!(kept.take_fit(4 * MIB, |_| true).map(|block| block.offset), Some(16 * MIB), "a fifth is wasted");
        assert_eq!(kept.take_fit(4 * MIB, |_| true), None, "half would be wasted");
        assert_eq!(kept.bytes(), 8 * MIB);
    }

    #[test]
    fn an_alignment_is_kept() {
        let mut kept = kept(&[(4096, MIB), (4 * MIB, MIB)]);
        assert_eq!(
            kept.take_fit(MIB, |offset| offset.is_multiple_of(2 * MIB)).map(|block| block.offset),
            Some(4 * MIB)
        );
        assert_eq!(kept.take_fit(MIB, |offset| offset.is_multiple_of(2 * MIB)), None);
        assert!(kept.starts(4096) && !kept.starts(4 * MIB));
    }

    #[test]
    fn number_and_bytes_are_bounded() {
        let mut kept = Kept::new();
        assert!(kept.push(Block { offset: 0, len: MIB, since_ns: 0 }, MIB));
        assert!(!kept.push(Block { offset: MIB, len: 1, since_ns: 0 }, MIB), "too many bytes");
        for nth in 1..BLOCKS_MAX as u64 {
            assert!(kept.push(Block { offset: nth * MIB, len: MIB, since_ns: nth }, u64::MAX));
        }
        assert!(!kept.push(Block { offset: 99 * MIB, len: MIB, since_ns: 99 }, u64::MAX), "too many blocks");
        assert_eq!(kept.take(|_| true).map(|block| block.offset), Some(0), "the oldest goes first");
    }
}
