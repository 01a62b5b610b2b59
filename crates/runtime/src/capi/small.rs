//! Small blocks of far memory: which slots of which extents are taken.
//!
//! A page for every 40-byte block would waste most of it, so blocks up to [`SMALL_MAX`] share extents of [`EXTENT`] bytes,
//! one size class an extent. All bookkeeping is near: finding, taking and giving back a slot never touches the far page
//! it lies on. This room deals in addresses only; who provides extents and what they hold it does not know.

use std::collections::{BTreeMap, BTreeSet};

/// Bytes of one extent, and its alignment.
pub(crate) const EXTENT: usize = 64 << 10;

/// The largest size that is a small block; above it the rounding to pages wastes at most a third.
pub(crate) const SMALL_MAX: usize = 8 << 10;

/// Alignment of every block, as malloc's.
const GRAIN: usize = 16;

/// Size classes up to 8 grains in steps of one grain, then four classes a power of two up to [`SMALL_MAX`].
const LINEAR: usize = 8;
const CLASSES: usize = LINEAR + 4 * (SMALL_MAX / (LINEAR * GRAIN)).ilog2() as usize;

/// The block size of every class, ascending.
const SIZES: [usize; CLASSES] = sizes();

const fn sizes() -> [usize; CLASSES] {
    let mut sizes = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        sizes[class] = if class < LINEAR {
            (class + 1) * GRAIN
        } else {
            let (power, quarter) = ((class - LINEAR) / 4, (class - LINEAR) % 4);
            ((LINEAR * GRAIN) << power) / 4 * (5 + quarter)
        };
        class += 1;
    }
    assert!(sizes[CLASSES - 1] == SMALL_MAX);
    sizes
}

/// A taken slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Its address, a multiple of 16.
    pub(crate) addr: usize,
    /// Whether no block was ever there, so that it still reads as zeroes.
    pub(crate) fresh: bool,
}

/// What became of a block given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// The address lies in no extent of small blocks.
    NotSmall,
    /// It lies in one, but no block starts there.
    NotABlock,
    /// The slot is free.
    Slot,
    /// The slot is free and its extent (at this address) was the last of it: the extent is the caller's again.
    Extent(usize),
}

/// One extent.
#[derive(Debug)]
struct Slab {
    class: usize,
    /// A bit for every slot, set when taken.
    taken: Vec<u64>,
    live: usize,
    /// Slots from here on were never taken.
    fresh_from: usize,
}

/// The small blocks of a process.
#[derive(Debug)]
pub(crate) struct SmallBlocks {
    /// Every extent by its address.
    slabs: BTreeMap<usize, Slab>,
    /// For every class the extents with a free slot, by address: low ones fill first, so that high ones empty.
    open: [BTreeSet<usize>; CLASSES],
}

impl SmallBlocks {
    pub(crate) const fn new() -> SmallBlocks {
        SmallBlocks { slabs: BTreeMap::new(), open: [const { BTreeSet::new() }; CLASSES] }
    }

    /// Takes a slot of at least `size` bytes (1 to [`SMALL_MAX`]). `extent` provides a zeroed extent at a multiple of
    /// [`EXTENT`] when no open one is left; `None` from it is passed on.
    pub(crate) fn alloc(&mut self, size: usize, extent: impl FnOnce() -> Option<usize>) -> Option<Block> {
        let class = SIZES.partition_point(|&class_size| class_size < size);
        let open = self.open.get(class)?;
        let base = match open.first() {
            Some(&base) => base,
            None => {
                let base = extent()?;
                self.slabs.insert(base, Slab::new(class));
                self.open[class].insert(base);
                base
            }
        };
        let slab = self.slabs.get_mut(&base)?;
        let (slot, fresh) = slab.take()?;
        if slab.live == slab.slots() {
            self.open[class].remove(&base);
        }
        Some(Block { addr: base + slot * SIZES[class], fresh })
    }

    /// The size a block may use, when one starts at `addr`.
    pub(crate) fn size_of(&self, addr: usize) -> Option<usize> {
        let slab = self.slabs.get(&(addr & !(EXTENT - 1)))?;
        slab.slot_at(addr).map(|_| SIZES[slab.class])
    }

    /// Gives the block at `addr` back. One empty extent a class is kept, so that a block taken and given back in turn
    /// does not cost an extent each time.
    pub(crate) fn free(&mut self, addr: usize) -> Freed {
        let base = addr & !(EXTENT - 1);
        let Some(slab) = self.slabs.get_mut(&base) else {
            return Freed::NotSmall;
        };
        let Some(slot) = slab.slot_at(addr) else {
            return Freed::NotABlock;
        };
        slab.taken[slot / 64] &= !(1 << (slot % 64));
        slab.live -= 1;
        let (class, empty) = (slab.class, slab.live == 0);
        self.open[class].insert(base);
        if !empty || self.open[class].len() == 1 {
            return Freed::Slot;
        }
        self.open[class].remove(&base);
        self.slabs.remove(&base);
        Freed::Extent(base)
    }
}

impl Slab {
    fn new(class: usize) -> Slab {
        let words = (EXTENT / SIZES[class]).div_ceil(64);
        Slab { class, taken: vec![0; words], live: 0, fresh_from: 0 }
    }

    fn slots(&self) -> usize {
        EXTENT / SIZES[self.class]
    }

    /// The lowest free slot, and whether it was never taken before.
    fn take(&mut self) -> Option<(usize, bool)> {
        let word = self.taken.iter().position(|&bits| bits != u64::MAX)?;
        let slot = word * 64 + self.taken[word].trailing_ones() as usize;
        if slot >= self.slots() {
            return None;
        }
        self.taken[word] |= 1 << (slot % 64);
        self.live += 1;
        let fresh = slot >= self.fresh_from;
        self.fresh_from = self.fresh_from.max(slot + 1);
        Some((slot, fresh))
    }

    /// The taken slot that starts at `addr`, an address in this extent.
    fn slot_at(&self, addr: usize) -> Option<usize> {
        let (slot, inside) = ((addr % EXTENT) / SIZES[self.class], (addr % EXTENT) % SIZES[self.class]);
        let taken = slot < self.slots() && self.taken[slot / 64] & (1 << (slot % 64)) != 0;
        (inside == 0 && taken).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;

    #[derive(Clone, Debug)]
    enum Op {
        Alloc(usize),
        Free(usize),
    }

    fn ops() -> impl Strategy<Value = Op> {
        let size = prop_oneof![1usize..=64, 1..=SMALL_MAX, SMALL_MAX - 200..=SMALL_MAX];
        prop_oneof![3 => size.prop_map(Op::Alloc), 2 => any::<usize>().prop_map(Op::Free)]
    }

    #[test]
    fn classes_ascend_and_waste_at_most_a_fifth_beyond_the_grain() {
        for size in 1..=SMALL_MAX {
            let class = SIZES[SIZES.partition_point(|&class_size| class_size < size)];
            assert!(class >= size && class.is_multiple_of(GRAIN), "{size} in {class}");
            assert!(class - size < GRAIN || (class - size) * 5 <= class, "{size} in {class}");
        }
        assert!(SIZES.is_sorted());
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_empty_extents_go(ops in prop::collection::vec(ops(), 1..400)) {
            let mut small = SmallBlocks::new();
            let next = Cell::new(EXTENT);
            let mut live: Vec<(usize, usize)> = Vec::new();
            let mut ever: BTreeSet<usize> = BTreeSet::new();
            let mut extents: BTreeSet<usize> = BTreeSet::new();
            for op in ops {
                match op {
                    Op::Alloc(size) => {
                        let got = small.alloc(size, || {
                            extents.insert(next.get());
                            Some(next.replace(next.get() + EXTENT))
                        });
                        let block = got.expect("extents never run out");
                        let len = small.size_of(block.addr).expect("live");
                        prop_assert!(len >= size && block.addr.is_multiple_of(GRAIN));
                        prop_assert!(extents.contains(&(block.addr & !(EXTENT - 1))));
                        prop_assert_eq!(block.addr & !(EXTENT - 1), (block.addr + len - 1) & !(EXTENT - 1));
                        for &(addr, other) in &live {
                            prop_assert!(block.addr + len <= addr || addr + other <= block.addr);
                        }
                        let bytes = block.addr..block.addr + len;
                        prop_assert_eq!(block.fresh, ever.range(bytes).next().is_none());
                        ever.insert(block.addr);
                        live.push((block.addr, len));
                    }
                    Op::Free(nth) if !live.is_empty() => {
                        let (addr, _) = live.swap_remove(nth % live.len());
                        prop_assert_eq!(small.free(addr + 8), Freed::NotABlock);
                        match small.free(addr) {
                            Freed::Extent(base) => {
                                prop_assert!(extents.remove(&base));
                                prop_assert!(live.iter().all(|&(addr, _)| addr & !(EXTENT - 1) != base));
                                prop_assert_eq!(small.free(addr), Freed::NotSmall);
                            }
                            freed => {
                                prop_assert_eq!(freed, Freed::Slot);
                                prop_assert_eq!(small.free(addr), Freed::NotABlock, "freed twice");
                            }
                        }
                    }
                    Op::Free(_) => prop_assert_eq!(small.free(5 * EXTENT), if small.slabs.contains_key(&(5 * EXTENT)) { Freed::NotABlock } else { Freed::NotSmall }),
                }
            }
            for (addr, _) in live {
                if let Freed::Extent(base) = small.free(addr) {
                    extents.remove(&base);
                }
            }
            prop_assert!(extents.len() <= CLASSES, "{} extents are kept for no block", extents.len());
        }
    }

    #[test]
    fn no_extent_no_block() {
        let mut small = SmallBlocks::new();
        assert_eq!(small.alloc(100, || None), None);
        assert_eq!(small.alloc(SMALL_MAX + 1, || Some(EXTENT)), None);
        assert!(small.slabs.is_empty());
    }
}
