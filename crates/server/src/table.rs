//! Which slot holds which part of a session's far space.
//!
//! Slot number `n` of far space is the bytes from `n * slot_size`. A slot enters the table only when its bytes have
//! arrived, so that nobody can see what a reused slot held before.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::account::Account;
use crate::memory::{BLOCK_BYTES, Block, Lease};
use crate::shared::Store;
use crate::spill::SpillFile;

/// Far slots whose places are kept side by side; an empty group takes no memory.
const GROUP: u64 = 64;
/// A block of the smallest slots has this many, one bit each.
const SLOTS_PER_BLOCK_MAX: usize = BLOCK_BYTES / hanare_wire::limits::SLOT_MIN as usize;
const MASK_WORDS: usize = SLOTS_PER_BLOCK_MAX / 64;

/// Where the bytes of one far slot are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Absent,
    Memory { block: u32, index: u16 },
    Spill { slot: u32 },
}

/// Bytes of far space that lie together.
pub(crate) enum Run {
    /// No slot was ever written for this many bytes.
    Absent { bytes: usize },
    /// In a block.
    Memory { block: Arc<Block>, at: usize, bytes: usize },
    /// In the spill file.
    Spill { file: Arc<File>, at: u64, bytes: usize },
}

/// Why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSlot {
    /// Memory and spill space are used up.
    Full,
    /// The session holds as much as it may.
    OverQuota,
}

/// Slots taken to hold bytes that are about to arrive; in the table only after [`Table::insert`].
pub(crate) struct Taken {
    first: Place,
    /// How many slots, lying side by side.
    pub(crate) count: usize,
    /// Whether the slots may hold old bytes.
    pub(crate) reused: bool,
    /// Where they are.
    pub(crate) run: Run,
}

/// A block of the session and which of its slots are in use.
struct Held {
    block: Arc<Block>,
    zeroed: bool,
    used: [u64; MASK_WORDS],
    used_count: usize,
    /// Slots below this were handed out since the session has the block.
    carved: usize,
    /// When a slot was last freed, until the memory of the free ones went back to the system.
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

    /// The bytes of the slots in use.
    fn used_ranges(&self, slots: usize, slot_size: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..slots).filter(|index| self.is_used(*index)).map(move |index| index * slot_size..(index + 1) * slot_size)
    }

    /// Whether a slot holds old bytes, of this session or an earlier one.
    fn is_reused(&self, index: usize) -> bool {
        !self.zeroed || index < self.carved
    }
}

/// A session's slots.
pub(crate) struct Table {
    store: Arc<Store>,
    account: Arc<Account>,
    slot_size: usize,
    groups: HashMap<u64, Box<[Place; GROUP as usize]>>,
    blocks: Vec<Option<Held>>,
    /// Indices of `blocks` that are empty, and those with a free slot.
    holes: Vec<u32>,
    with_room: BTreeSet<u32>,
    spill: Option<SpillFile>,
}

impl Table {
    pub(crate) fn new(store: Arc<Store>, slot_size: u32, account: Arc<Account>) -> Table {
        Table {
            store,
            account,
            slot_size: slot_size as usize,
            groups: HashMap::new(),
            blocks: Vec::new(),
            holes: Vec::new(),
            with_room: BTreeSet::new(),
            spill: None,
        }
    }

    fn slots_per_block(&self) -> usize {
        BLOCK_BYTES / self.slot_size
    }

    fn place(&self, slot: u64) -> Place {
        self.groups.get(&(slot / GROUP)).map_or(Place::Absent, |group| group[(slot % GROUP) as usize])
    }

    /// Whether every slot that the range touches was written.
    pub(crate) fn holds(&self, offset: u64, bytes: u64) -> bool {
        let size = self.slot_size as u64;
        (offset / size..=(offset + bytes - 1) / size).all(|slot| self.place(slot) != Place::Absent)
    }

    /// The bytes from `offset`, at most `bytes_max` of them, that lie together.
    pub(crate) fn run_at(&self, offset: u64, bytes_max: usize) -> Run {
        let size = self.slot_size as u64;
        let (slot, within) = (offset / size, (offset % size) as usize);
        let first = self.place(slot);
        let mut count = 1;
        while count * self.slot_size - within < bytes_max
            && self.place(slot + count as u64) == self.next_to(first, count)
        {
            count += 1;
        }
        let bytes = bytes_max.min(count * self.slot_size - within);
        self.run(first, within, bytes)
    }

    /// The place `n` slots behind `first`, if they lie together.
    fn next_to(&self, first: Place, n: usize) -> Place {
        match first {
            Place::Absent => Place::Absent,
            // An index behind the block's end is in no table, so it equals nothing.
            Place::Memory { block, index } => Place::Memory { block, index: index.saturating_add(n as u16) },
            Place::Spill { slot } => Place::Spill { slot: slot.saturating_add(n as u32) },
        }
    }

    fn run(&self, first: Place, within: usize, bytes: usize) -> Run {
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

    /// Takes up to `count` free slots that lie side by side, within the quota: in memory, else in the spill file. Slots
    /// freed before come first.
    pub(crate) fn take(&mut self, count: usize) -> Result<Taken, NoSlot> {
        let count = count.min(usize::try_from(self.account.slots_allowed()).unwrap_or(usize::MAX));
        if count == 0 {
            return Err(NoSlot::OverQuota);
        }
        let taken = match self.take_in_memory(count) {
            Some(taken) => taken,
            None => self.take_in_spill(count).ok_or(NoSlot::Full)?,
        };
        let is_spilled = matches!(taken.first, Place::Spill { .. });
        self.account.took(taken.count as u64, if is_spilled { (taken.count * self.slot_size) as u64 } else { 0 });
        let stats = &self.store.stats;
        stats.slots.fetch_add(taken.count as u64, Relaxed);
        if taken.reused {
            stats.slots_reused.fetch_add(taken.count as u64, Relaxed);
        }
        Ok(taken)
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
        self.account.spare_less((end - first) as u64);
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
        self.account.spare_more(self.slots_per_block() as u64);
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
            self.account.spare_less(1);
        }
        let first = Place::Spill { slot: run.first };
        Some(Taken { first, count: run.count as usize, reused: run.reused, run: self.run(first, 0, bytes) })
    }

    /// Enters slots whose bytes have arrived as the far slots from number `slot`; what was there is freed.
    pub(crate) fn insert(&mut self, slot: u64, taken: &Taken) {
        for n in 0..taken.count {
            let place = self.next_to(taken.first, n);
            self.replace(slot + n as u64, place);
        }
    }

    /// Frees slots that were taken and not inserted.
    pub(crate) fn give_back(&mut self, taken: &Taken) {
        for n in 0..taken.count {
            self.free(self.next_to(taken.first, n));
        }
    }

    /// Frees the slots that lie wholly within the range, group by group from `offset`; says where to go on, so that
    /// the caller can let others in between groups.
    pub(crate) fn discard_group(&mut self, offset: u64, end: u64) -> u64 {
        let size = self.slot_size as u64;
        let (from, to) = (offset.div_ceil(size), end / size);
        let group_end = ((from / GROUP + 1) * GROUP).min(to);
        if self.groups.contains_key(&(from / GROUP)) {
            for slot in from..group_end {
                self.replace(slot, Place::Absent);
            }
            self.drop_if_empty(from / GROUP);
        }
        if group_end >= to { end } else { group_end * size }
    }

    fn replace(&mut self, slot: u64, place: Place) {
        let group = self.groups.entry(slot / GROUP).or_insert_with(|| Box::new([Place::Absent; GROUP as usize]));
        let old = std::mem::replace(&mut group[(slot % GROUP) as usize], place);
        self.free(old);
    }

    fn drop_if_empty(&mut self, group: u64) {
        if self.groups.get(&group).is_some_and(|places| places.iter().all(|place| *place == Place::Absent)) {
            self.groups.remove(&group);
        }
    }

    /// Puts a slot on its block's or file's free list; a block without any used slot goes back to the server.
    fn free(&mut self, place: Place) {
        let stats = &self.store.stats;
        match place {
            Place::Absent => return,
            Place::Memory { block, index } => {
                let Some(held) = self.blocks[block as usize].as_mut() else { return };
                held.used[usize::from(index) / 64] &= !(1 << (index % 64));
                held.used_count -= 1;
                held.freed = Some(Instant::now());
                self.account.gave(1, 0);
                self.account.spare_more(1);
                stats.slots_free.fetch_add(1, Relaxed);
                self.with_room.insert(block);
                if held.used_count == 0 {
                    self.remove_block(block);
                }
            }
            Place::Spill { slot } => {
                let Some(spill) = self.spill.as_mut() else { return };
                spill.give(slot);
                self.account.gave(1, self.slot_size as u64);
                self.account.spare_more(1);
                stats.slots_free.fetch_add(1, Relaxed);
                stats.spill_bytes.fetch_sub(self.slot_size as u64, Relaxed);
            }
        }
        self.store.stats.slots.fetch_sub(1, Relaxed);
    }

    /// Gives the system back the memory of one block's free slots, if there is a block of which at least half has been free
    /// for as long as `idle`. The slots stay the session's; false when there is no such block.
    pub(crate) fn thin_one(&mut self, idle: Duration) -> bool {
        let (slots, slot_size) = (self.slots_per_block(), self.slot_size);
        let is_thin =
            |held: &&mut Held| held.used_count * 2 <= slots && held.freed.is_some_and(|freed| freed.elapsed() >= idle);
        let Some(held) = self.blocks.iter_mut().flatten().find(is_thin) else { return false };
        held.freed = None;
        held.block.thin(held.used_ranges(slots, slot_size))
    }

    fn remove_block(&mut self, block: u32) {
        self.with_room.remove(&block);
        self.holes.push(block);
        if let Some(held) = self.blocks[block as usize].take() {
            self.account.spare_less((self.slots_per_block() - held.used_count) as u64);
            self.store.stats.slots_free.fetch_sub((held.carved - held.used_count) as u64, Relaxed);
            self.store.memory.give_block(held.block);
        }
    }
}

impl Drop for Table {
    /// The session is over: its blocks are for others, and its spill file vanishes with its last descriptor.
    fn drop(&mut self) {
        let groups = std::mem::take(&mut self.groups);
        for place in groups.into_values().flat_map(|group| *group) {
            self.free(place);
        }
        for block in 0..self.blocks.len() as u32 {
            self.remove_block(block);
        }
        let free = self.spill.as_ref().map_or(0, SpillFile::free_slots);
        self.store.stats.slots_free.fetch_sub(free, Relaxed);
    }
}
