//! The slots of a family of sessions. A family is a session that is not a clone, its clones, and the clones of its
//! clones.
//!
//! A place says where a slot's bytes are stored, and a [`Group`] holds the places of 64 adjacent slots. A clone begins
//! with references to the groups of its original, so that cloning costs one reference for every 64 slots. A session
//! that changes a shared group copies the group first. Both copies then name the same slots, and the pool counts the
//! owners of each of these slots. A slot becomes free when its last owner releases it.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::account::Spare;
use crate::memory::{BLOCK_BYTES, Block, Lease};
use crate::shared::Store;
use crate::spill::SpillFile;

/// Number of slots of far space in a [`Group`]. A session stores no group whose slots are all absent.
pub(crate) const GROUP: u64 = 64;
/// Number of slots in a block if the slots have the smallest size. `Held::used` has one bit for each of them.
const SLOTS_PER_BLOCK_MAX: usize = BLOCK_BYTES / hanare_wire::limits::SLOT_MIN as usize;
const MASK_WORDS: usize = SLOTS_PER_BLOCK_MAX / 64;

/// Where the bytes of one slot of far space are stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Absent,
    Memory { block: u32, index: u16 },
    Spill { slot: u32 },
}

/// The places of [`GROUP`] adjacent slots of far space.
pub(crate) type Group = [Place; GROUP as usize];

/// A range of far space whose bytes are adjacent in one block or in the spill file.
pub(crate) enum Run {
    /// No slot holds these bytes.
    Absent { bytes: usize },
    /// The bytes are in a block, from offset `at` on.
    Memory { block: Arc<Block>, at: usize, bytes: usize },
    /// The bytes are in the spill file, from offset `at` on.
    Spill { file: Arc<File>, at: u64, bytes: usize },
}

/// Why no slot could be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSlot {
    /// Memory and spill space are used up.
    Full,
    /// The session has used up its quota.
    OverQuota,
}

/// Adjacent slots that were allocated for bytes of a client. No session's table names the slots before the bytes have
/// arrived.
pub(crate) struct Taken {
    pub(crate) first: Place,
    /// Number of slots.
    pub(crate) count: usize,
    /// Whether the slots may still hold bytes of an earlier use.
    pub(crate) reused: bool,
    /// Where the bytes of the slots lie.
    pub(crate) run: Run,
}

/// A block that the family holds, with a record of the slots in use.
struct Held {
    block: Arc<Block>,
    zeroed: bool,
    used: [u64; MASK_WORDS],
    used_count: usize,
    /// Index of the first slot that has not been handed out since the family took the block.
    carved: usize,
    /// Time when a slot of the block was last freed. `None` if no slot was freed since `trim_one` last trimmed the
    /// block.
    freed: Option<Instant>,
}

impl Held {
    fn is_used(&self, index: usize) -> bool {
        self.used[index / 64] & (1 << (index % 64)) != 0
    }

    fn first_free(&self, slots: usize) -> Option<usize> {
        let word = self.used.iter().position(|word| *word != u64::MAX)?;
        Some(word * 64 + self.used[word].trailing_ones() as usize).filter(|index| *index < slots)
    }

    /// Returns the byte ranges of the slots in use.
    fn used_ranges(&self, slots: usize, slot_size: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..slots).filter(|index| self.is_used(*index)).map(move |index| index * slot_size..(index + 1) * slot_size)
    }

    /// Checks whether a slot may still hold old bytes of this family or of an earlier owner of the block.
    fn is_reused(&self, index: usize) -> bool {
        !self.zeroed || index < self.carved
    }
}

/// The slots of a family of sessions.
pub(crate) struct Pool {
    store: Arc<Store>,
    spare: Spare,
    slot_size: usize,
    blocks: Vec<Option<Held>>,
    /// Indices of the entries of `blocks` that are `None`.
    holes: Vec<u32>,
    /// Indices of the blocks that have a free slot.
    with_room: BTreeSet<u32>,
    spill: Option<SpillFile>,
    /// For each place with several owners, the number of its owners minus one.
    more_owners: HashMap<Place, u32>,
}

impl Pool {
    pub(crate) fn new(store: Arc<Store>, slot_size: u32, spare: Spare) -> Pool {
        Pool {
            store,
            spare,
            slot_size: slot_size as usize,
            blocks: Vec::new(),
            holes: Vec::new(),
            with_room: BTreeSet::new(),
            spill: None,
            more_owners: HashMap::new(),
        }
    }

    fn slots_per_block(&self) -> usize {
        BLOCK_BYTES / self.slot_size
    }

    /// Returns the place `n` slots after `first`. The place may lie beyond the end of the block or file.
    pub(crate) fn next_to(first: Place, n: usize) -> Place {
        match first {
            Place::Absent => Place::Absent,
            // The index may lie beyond the block's end. No table contains such a place, so it equals no place of a
            // slot.
            Place::Memory { block, index } => Place::Memory { block, index: index.saturating_add(n as u16) },
            Place::Spill { slot } => Place::Spill { slot: slot.saturating_add(n as u32) },
        }
    }

    pub(crate) fn run(&self, first: Place, within: usize, bytes: usize) -> Run {
        match first {
            Place::Absent => Run::Absent { bytes },
            Place::Memory { block, index } => match &self.blocks[block as usize] {
                Some(held) => {
                    let at = usize::from(index) * self.slot_size + within;
                    Run::Memory { block: Arc::clone(&held.block), at, bytes }
                }
                None => Run::Absent { bytes },
            },
            Place::Spill { slot } => match &self.spill {
                Some(spill) => {
                    let at = u64::from(slot) * self.slot_size as u64 + within as u64;
                    Run::Spill { file: Arc::clone(spill.file()), at, bytes }
                }
                None => Run::Absent { bytes },
            },
        }
    }

    /// Allocates up to `count` adjacent slots in memory or, when memory is used up, in the spill file. Prefers freed
    /// slots to slots that were never used. Returns `None` when memory and spill space are used up.
    pub(crate) fn take(&mut self, count: usize) -> Option<Taken> {
        let taken = match self.take_in_memory(count) {
            Some(taken) => taken,
            None => self.take_in_spill(count)?,
        };
        let stats = &self.store.stats;
        stats.slots.fetch_add(taken.count as u64, Relaxed);
        if taken.reused {
            stats.slots_reused.fetch_add(taken.count as u64, Relaxed);
        }
        Some(taken)
    }

    fn take_in_memory(&mut self, count: usize) -> Option<Taken> {
        let slots = self.slots_per_block();
        let block = match self.with_room.first() {
            Some(block) => *block,
            None => self.add_block()?,
        };
        let held = self.blocks[block as usize].as_mut()?;
        let first = held.first_free(slots)?;
        let (reused, freed) = (held.is_reused(first), first < held.carved);
        let same = |held: &Held, index: usize| !held.is_used(index) && held.is_reused(index) == reused;
        let mut end = first;
        while end < slots && end - first < count && same(held, end) {
            held.used[end / 64] |= 1 << (end % 64);
            end += 1;
        }
        if freed {
            self.store.stats.slots_free.fetch_sub((end.min(held.carved) - first) as u64, Relaxed);
        }
        held.carved = held.carved.max(end);
        held.used_count += end - first;
        self.spare.less((end - first) as u64);
        if held.used_count == slots {
            self.with_room.remove(&block);
        }
        let place = Place::Memory { block, index: first as u16 };
        let run = self.run(place, 0, (end - first) * self.slot_size);
        Some(Taken { first: place, count: end - first, reused, run })
    }

    fn add_block(&mut self) -> Option<u32> {
        let Lease { block, zeroed } = self.store.memory.take_block()?;
        let held = Held { block, zeroed, used: [0; MASK_WORDS], used_count: 0, carved: 0, freed: None };
        self.spare.more(self.slots_per_block() as u64);
        let at = match self.holes.pop() {
            Some(hole) => hole,
            None => {
                self.blocks.push(None);
                (self.blocks.len() - 1) as u32
            }
        };
        self.blocks[at as usize] = Some(held);
        self.with_room.insert(at);
        Some(at)
    }

    fn take_in_spill(&mut self, count: usize) -> Option<Taken> {
        if self.spill.is_none() {
            let dir = self.store.spill.as_ref()?;
            self.spill = Some(SpillFile::open(dir, self.slot_size as u32).ok()?);
        }
        let run = self.spill.as_mut()?.take(count as u32)?;
        let bytes = run.count as usize * self.slot_size;
        let stats = &self.store.stats;
        stats.spill_bytes.fetch_add(bytes as u64, Relaxed);
        if run.reused {
            stats.slots_free.fetch_sub(1, Relaxed);
            self.spare.less(1);
        }
        let first = Place::Spill { slot: run.first };
        Some(Taken { first, count: run.count as usize, reused: run.reused, run: self.run(first, 0, bytes) })
    }

    /// Checks whether the place has several owners.
    pub(crate) fn is_shared(&self, place: Place) -> bool {
        !self.more_owners.is_empty() && self.more_owners.contains_key(&place)
    }

    /// Adds an owner to a place.
    pub(crate) fn share(&mut self, place: Place) {
        if place != Place::Absent {
            *self.more_owners.entry(place).or_default() += 1;
        }
    }

    /// Removes an owner from a place. When the last owner is removed, the slot becomes free. A block whose slots are
    /// all free goes back to the server.
    pub(crate) fn free(&mut self, place: Place) {
        if self.is_shared(place) {
            let more = self.more_owners.entry(place).or_default();
            *more -= 1;
            if *more == 0 {
                self.more_owners.remove(&place);
            }
            return;
        }
        let stats = &self.store.stats;
        match place {
            Place::Absent => return,
            Place::Memory { block, index } => {
                let Some(held) = self.blocks[block as usize].as_mut() else { return };
                held.used[usize::from(index) / 64] &= !(1 << (index % 64));
                held.used_count -= 1;
                held.freed = Some(Instant::now());
                self.spare.more(1);
                stats.slots_free.fetch_add(1, Relaxed);
                self.with_room.insert(block);
                if held.used_count == 0 {
                    self.remove_block(block);
                }
            }
            Place::Spill { slot } => {
                let Some(spill) = self.spill.as_mut() else { return };
                spill.give(slot);
                self.spare.more(1);
                stats.slots_free.fetch_add(1, Relaxed);
                stats.spill_bytes.fetch_sub(self.slot_size as u64, Relaxed);
            }
        }
        self.store.stats.slots.fetch_sub(1, Relaxed);
    }

    /// Gives the memory of one block's free slots back to the system. Picks a block that is at least half free and in
    /// which no slot was freed for `idle`. The family can still allocate the block's free slots. Returns false if no
    /// block qualifies, or if the system has no memory for the copy of the used slots.
    pub(crate) fn trim_one(&mut self, idle: Duration) -> bool {
        let (slots, slot_size) = (self.slots_per_block(), self.slot_size);
        let is_thin =
            |held: &&mut Held| held.used_count * 2 <= slots && held.freed.is_some_and(|freed| freed.elapsed() >= idle);
        let Some(held) = self.blocks.iter_mut().flatten().find(is_thin) else { return false };
        held.freed = None;
        held.block.trim(held.used_ranges(slots, slot_size))
    }

    fn remove_block(&mut self, block: u32) {
        self.with_room.remove(&block);
        self.holes.push(block);
        if let Some(held) = self.blocks[block as usize].take() {
            self.spare.less((self.slots_per_block() - held.used_count) as u64);
            self.store.stats.slots_free.fetch_sub((held.carved - held.used_count) as u64, Relaxed);
            self.store.memory.give_block(held.block);
        }
    }
}

impl Drop for Pool {
    /// Gives the family's blocks back to the server, because the last session of the family has ended. The spill file
    /// has no name, so the kernel deletes it when its last descriptor is closed.
    fn drop(&mut self) {
        for block in 0..self.blocks.len() as u32 {
            self.remove_block(block);
        }
        let free = self.spill.as_ref().map_or(0, SpillFile::free_slots);
        self.store.stats.slots_free.fetch_sub(free, Relaxed);
    }
}
