//! The map of heap blocks, in near memory. It tells which block starts at an offset from the start of far memory. So a
//! bad pointer is recognised before the allocator uses it.
//!
//! The map has a word of two bytes for each page of the heap. The word tells the class of the small blocks that start
//! in the page and the position of the first block. A special word marks a page with which a large block starts. A word
//! is written when a block is allocated, and cleared when the block's pages are freed.
//!
//! A table of fixed size remembers the addresses of recently freed small blocks. It detects a second free of a block,
//! if fewer than some thousand other blocks were freed after the first free. A table of all freed blocks would need 32
//! bytes for each page.
//!
//! This module works on offsets from the start of far memory, and never accesses far memory. All words are accessed in
//! relaxed order. This order suffices, because a block's word is written before the program receives the block's
//! address.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::classes::{GRAIN, modulo_size};

const PAGE: usize = 4096;

/// Bytes of a chunk. The heap allocates address space in chunks.
pub(super) const CHUNK: usize = 2 << 20;

/// The word of a page with which a large block starts. The word of a page with small blocks is
/// `(class + 1) << PHASE_BITS | phase`. The phase is the position of the page's first block in steps of [`GRAIN`].
const LARGE: u16 = u16::MAX;
const PHASE_BITS: u32 = 10;
const PHASE_MASK: u16 = (1 << PHASE_BITS) - 1;

/// Binary logarithm of the number of words that remember freed small blocks.
const FREED_BITS: u32 = 13;

/// The result of a look-up in the map: the kind of block that starts at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// A small block of this class starts here. The block may be freed already if other blocks in its page are not.
    Small(usize),
    /// A large block starts here.
    Large,
    /// The offset lies in a chunk of the heap, and no block starts here.
    Nowhere,
    /// The offset lies outside the chunks of the heap.
    Outside,
}

/// The map of heap blocks.
pub(super) struct Blocks {
    /// The word of each page of far memory. 0 if no block starts in the page.
    pages: Box<[AtomicU16]>,
    /// A bit for each chunk of far memory, set if the chunk belongs to the heap.
    chunks: Box<[AtomicU64]>,
    /// Recently freed small blocks. The number of a block is its offset divided by [`GRAIN`]. The low bits of this
    /// number are the index of the block's entry. The entry holds the other bits plus one, or 0 if it is unused.
    freed: Box<[AtomicU32]>,
}

impl Blocks {
    /// Makes a map for `len` bytes of far memory. Parts of the map that were never written occupy no memory.
    pub(super) fn new(len: usize) -> Blocks {
        Blocks {
            pages: atomics(vec![0u16; len / PAGE]),
            chunks: atomics(vec![0u64; len.div_ceil(64 * CHUNK)]),
            freed: atomics(vec![0u32; 1 << FREED_BITS]),
        }
    }

    /// Adds the chunks of a range to the heap. A chunk belongs to the heap for ever.
    pub(super) fn add_chunks(&self, offset: usize, len: usize) {
        for chunk in offset / CHUNK..(offset + len) / CHUNK {
            if let Some(word) = self.chunks.get(chunk / 64) {
                word.fetch_or(1 << (chunk % 64), Relaxed);
            }
        }
    }

    /// Notes that a small block of this class is about to be allocated.
    #[inline]
    pub(super) fn give_small(&self, offset: usize, class: usize) {
        let phase = (modulo_size(offset % PAGE, class) / GRAIN) as u16;
        let word = (class as u16 + 1) << PHASE_BITS | phase;
        if let Some(page) = self.pages.get(offset / PAGE)
            && page.load(Relaxed) != word
        {
            page.store(word, Relaxed);
        }
        let (freed, tag) = self.freed_word(offset);
        if freed.load(Relaxed) == tag {
            freed.store(0, Relaxed);
        }
    }

    /// Notes that a large block is about to be allocated.
    pub(super) fn give_large(&self, offset: usize, len: usize) {
        self.clear(offset, len);
        if let Some(page) = self.pages.get(offset / PAGE) {
            page.store(LARGE, Relaxed);
        }
    }

    /// Notes that no block starts in the pages of this range.
    pub(super) fn clear(&self, offset: usize, len: usize) {
        for page in self.pages.get(offset / PAGE..(offset + len) / PAGE).unwrap_or_default() {
            page.store(0, Relaxed);
        }
    }

    /// Returns the kind of block that starts at `offset`.
    #[inline]
    pub(super) fn find(&self, offset: usize) -> Start {
        let word = self.pages.get(offset / PAGE).map_or(0, |page| page.load(Relaxed));
        match word {
            0 if self.is_heap(offset) => Start::Nowhere,
            0 => Start::Outside,
            LARGE if offset.is_multiple_of(PAGE) => Start::Large,
            LARGE => Start::Nowhere,
            word => {
                let class = ((word >> PHASE_BITS) - 1) as usize;
                let into = modulo_size(offset % PAGE, class);
                if into == (word & PHASE_MASK) as usize * GRAIN { Start::Small(class) } else { Start::Nowhere }
            }
        }
    }

    /// Marks the small block at `offset` as freed. Returns false if the block is already marked.
    #[inline]
    pub(super) fn take_small(&self, offset: usize) -> bool {
        let (freed, tag) = self.freed_word(offset);
        if freed.load(Relaxed) == tag {
            return false;
        }
        freed.store(tag, Relaxed);
        true
    }

    /// Marks the large block at `offset` as freed. Returns false if the map shows no large block at `offset`, because
    /// another thread has freed the block.
    pub(super) fn take_large(&self, offset: usize) -> bool {
        self.pages.get(offset / PAGE).is_some_and(|page| page.swap(0, Relaxed) == LARGE)
    }

    fn is_heap(&self, offset: usize) -> bool {
        let chunk = offset / CHUNK;
        self.chunks.get(chunk / 64).is_some_and(|word| word.load(Relaxed) & (1 << (chunk % 64)) != 0)
    }

    fn freed_word(&self, offset: usize) -> (&AtomicU32, u32) {
        let grain = offset / GRAIN;
        (&self.freed[grain % (1 << FREED_BITS)], (grain >> FREED_BITS) as u32 + 1)
    }
}

/// An integer type that has an atomic type of the same size.
trait Atomic {
    type Twin;
}

impl Atomic for u16 {
    type Twin = AtomicU16;
}
impl Atomic for u32 {
    type Twin = AtomicU32;
}
impl Atomic for u64 {
    type Twin = AtomicU64;
}

/// Converts integers to atomics. Callers pass zeroed integers, which use no memory until they are written.
fn atomics<T: Atomic>(numbers: Vec<T>) -> Box<[T::Twin]> {
    let numbers = Box::into_raw(numbers.into_boxed_slice());
    // SAFETY: an atomic type has the size and the bit validity of its integer type. On 64-bit targets it also has the
    // same alignment. `numbers` comes from `Box::into_raw`, so nothing else owns the allocation.
    unsafe { Box::from_raw(numbers as *mut [T::Twin]) }
}

#[cfg(test)]
mod tests {
    use super::super::classes::SIZES;
    use super::*;

    const LEN: usize = 8 * CHUNK;

    #[test]
    fn only_starts_are_found_whatever_the_class() {
        for (class, size) in SIZES.iter().map(|&size| size as usize).enumerate() {
            let blocks = Blocks::new(LEN);
            blocks.add_chunks(CHUNK, CHUNK);
            // A slab (a range of blocks of one class) of 8 pages, filled with adjacent blocks.
            let slab = CHUNK + 3 * PAGE;
            let starts: Vec<usize> = (0..8 * PAGE / size).map(|nth| slab + nth * size).collect();
            for &start in &starts {
                blocks.give_small(start, class);
            }
            for offset in (slab..slab + 8 * PAGE).step_by(8) {
                let inside = starts.last().is_some_and(|last| offset < last + size);
                if inside {
                    let want = if starts.contains(&offset) { Start::Small(class) } else { Start::Nowhere };
                    assert_eq!(blocks.find(offset), want, "offset {} of blocks of {size}", offset - slab);
                }
            }
            assert_eq!(blocks.find(CHUNK), Start::Nowhere);
            assert_eq!(blocks.find(0), Start::Outside);
            assert_eq!(blocks.find(LEN + 5), Start::Outside);
        }
    }

    #[test]
    fn a_second_free_is_found_until_the_block_is_given_out_again() {
        let blocks = Blocks::new(LEN);
        blocks.add_chunks(0, LEN);
        for nth in 0..1000 {
            blocks.give_small(nth * 48, 2);
        }
        for nth in 0..1000 {
            assert!(blocks.take_small(nth * 48));
        }
        for nth in 0..1000 {
            assert!(!blocks.take_small(nth * 48), "block {nth} was freed twice");
        }
        blocks.give_small(480, 2);
        assert!(blocks.take_small(480));
    }

    #[test]
    fn large_blocks_are_freed_once_and_hide_what_was_there() {
        let blocks = Blocks::new(LEN);
        blocks.add_chunks(0, LEN);
        blocks.give_small(5 * PAGE + 64, 3);
        blocks.give_large(4 * PAGE, 4 * PAGE);
        assert_eq!(blocks.find(5 * PAGE + 64), Start::Nowhere);
        assert_eq!(blocks.find(4 * PAGE), Start::Large);
        assert_eq!(blocks.find(4 * PAGE + 16), Start::Nowhere);
        assert!(blocks.take_large(4 * PAGE) && !blocks.take_large(4 * PAGE));
        assert_eq!(blocks.find(4 * PAGE), Start::Nowhere);
    }
}
