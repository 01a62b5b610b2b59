//! The memory budget of the whole server, and the blocks that are divided into slots.
//!
//! A block that a session gives back stays mapped for a while. The next session that needs a block uses this block. The
//! block keeps its old bytes, so its next owner must never send them to a client. A block that stays free goes back to
//! the system ([`Memory::shrink`]).
//!
//! The operator sets the limit, but the system may have less memory than that. When memory runs out, the system kills a
//! process that writes to its mapped pages. So the server regularly asks the system how much memory is available, and
//! hands out no more than that.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memmap2::MmapMut;

/// Bytes that are left to the system, for other processes and for the server's own tables.
const SYSTEM_MARGIN_BYTES: u64 = 64 << 20;
/// Maximum number of bytes that are handed out between two checks of the available memory.
const LOOK_BYTES: u64 = 64 << 20;
/// Time after which the result of a check of the available memory is out of date.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Size in bytes of an address range that is kept reserved. The range is released when the system refuses memory, so
/// that the server can still allocate memory for its tables.
const RESERVE_BYTES: usize = 32 << 20;

/// What the system says of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemMemory {
    /// Bytes that the system could give without harm.
    pub available_bytes: u64,
    /// Whether processes of this machine wait for memory. The server then takes no more, and gives back what it can.
    pub is_short: bool,
}

/// A function that asks the system for its memory. It returns `None` if the answer is unknown.
pub type Available = Arc<dyn Fn() -> Option<SystemMemory> + Send + Sync>;

/// Size of a block in bytes. The kernel can back a block with one huge page.
pub(crate) const BLOCK_BYTES: usize = 2 << 20;

/// A block of memory. A thread holds the block's lock only while it copies bytes, and never while it waits for a peer.
pub(crate) struct Block {
    bytes: Mutex<MmapMut>,
}

impl Block {
    /// Locks the block's bytes. The caller may hold the lock only while it copies.
    pub(crate) fn lock(&self) -> MutexGuard<'_, MmapMut> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the memory outside the ranges `used` back to the system, so that the bytes outside `used` read as zeroes.
    /// For this, copies the bytes in `used` to a new mapping. Returns false if the system refuses the new mapping.
    pub(crate) fn trim(&self, used: impl Iterator<Item = Range<usize>>) -> bool {
        let Ok(mut fresh) = MmapMut::map_anon(BLOCK_BYTES) else { return false };
        // With huge pages, the first write to the new mapping would allocate all 2 MiB.
        let _ = fresh.advise(memmap2::Advice::NoHugePage);
        let mut bytes = self.lock();
        for range in used {
            fresh[range.clone()].copy_from_slice(&bytes[range]);
        }
        *bytes = fresh;
        true
    }
}

/// A block given to a session, and whether all its bytes are known to be zero.
pub(crate) struct Lease {
    pub(crate) block: Arc<Block>,
    pub(crate) zeroed: bool,
}

/// The result of the last check of how much memory the system could give.
struct System {
    available: Option<Available>,
    bytes: u64,
    is_short: bool,
    /// Bytes that may be handed out before the next check.
    approved: u64,
    looked: Instant,
    reserve: Option<MmapMut>,
}

impl System {
    fn new(available: Option<Available>) -> System {
        let reserve = MmapMut::map_anon(RESERVE_BYTES).ok();
        let mut system =
            System { available, bytes: u64::MAX, is_short: false, approved: 0, looked: Instant::now(), reserve };
        system.look();
        system
    }

    fn look(&mut self) {
        self.looked = Instant::now();
        if self.reserve.is_none() {
            self.reserve = MmapMut::map_anon(RESERVE_BYTES).ok();
        }
        let unknown = SystemMemory { available_bytes: u64::MAX, is_short: false };
        let SystemMemory { available_bytes, is_short } =
            self.available.as_ref().and_then(|available| available()).unwrap_or(unknown);
        self.is_short = is_short;
        let may_take = self.reserve.is_some() && !is_short;
        self.bytes = if may_take { available_bytes.saturating_sub(SYSTEM_MARGIN_BYTES) } else { 0 };
        self.approved = self.bytes.min(LOOK_BYTES);
    }

    /// Counts up to `wanted` bytes as handed out, if the system can give them. Returns how many bytes it counted.
    fn take(&mut self, wanted: u64) -> u64 {
        let is_old = self.looked.elapsed() >= LOOK_EVERY;
        // If the last check found no bytes beyond `approved`, the system is not asked again before [`LOOK_EVERY`] has
        // passed.
        if is_old || self.approved < wanted && self.bytes > self.approved {
            self.look();
        }
        let taken = wanted.min(if wanted > LOOK_BYTES { self.bytes } else { self.approved });
        self.approved = self.approved.saturating_sub(taken);
        self.bytes -= taken;
        taken
    }

    /// Records that the system refused memory. Nothing is handed out before the next check.
    fn refused(&mut self) {
        (self.bytes, self.approved, self.looked, self.reserve) = (0, 0, Instant::now(), None);
    }
}

/// The memory budget. All bytes counted against the limit are either in sessions or in free blocks.
pub(crate) struct Memory {
    limit_bytes: u64,
    state: Mutex<State>,
    /// Bytes that could still be handed out, as of the last change of `state`.
    room_bytes: AtomicU64,
}

struct State {
    used_bytes: u64,
    system: System,
    /// Free blocks with the time when each became free, the oldest first.
    free: VecDeque<(Arc<Block>, Instant)>,
}

impl Memory {
    pub(crate) fn new(limit_bytes: u64, available: Option<Available>) -> Memory {
        let state = State { used_bytes: 0, system: System::new(available), free: VecDeque::new() };
        let memory = Memory { limit_bytes, room_bytes: AtomicU64::new(0), state: Mutex::new(state) };
        memory.changed(&memory.state());
        memory
    }

    /// Asks the system again how much memory it could give.
    pub(crate) fn look(&self) {
        let mut state = self.state();
        state.system.look();
        self.changed(&state);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates `room_bytes` after a change of `state`. The caller must still hold the lock of `state`.
    fn changed(&self, state: &State) {
        let free = (state.free.len() * BLOCK_BYTES) as u64;
        let more = (self.limit_bytes - state.used_bytes).min(state.system.bytes);
        self.room_bytes.store(more + free, Relaxed);
    }

    /// Returns how many bytes could still be handed out. Does not wait for a lock.
    pub(crate) fn room_bytes(&self) -> u64 {
        self.room_bytes.load(Relaxed)
    }

    /// Checks whether the machine was short of memory when the system was last asked.
    pub(crate) fn is_short(&self) -> bool {
        self.state().system.is_short
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Returns the bytes counted against the limit, and how many of them are in free blocks.
    pub(crate) fn used_and_free_bytes(&self) -> (u64, u64) {
        let state = self.state();
        (state.used_bytes, (state.free.len() * BLOCK_BYTES) as u64)
    }

    /// Returns a free block if there is one. Otherwise returns a new block, or `None` if the limit or the system does
    /// not allow it.
    pub(crate) fn take_block(&self) -> Option<Lease> {
        let mut state = self.state();
        if let Some((block, _)) = state.free.pop_back() {
            self.changed(&state);
            return Some(Lease { block, zeroed: false });
        }
        let used_bytes = state.used_bytes + BLOCK_BYTES as u64;
        if used_bytes > self.limit_bytes || state.system.take(BLOCK_BYTES as u64) < BLOCK_BYTES as u64 {
            self.changed(&state);
            return None;
        }
        let Ok(bytes) = MmapMut::map_anon(BLOCK_BYTES) else {
            state.system.refused();
            self.changed(&state);
            return None;
        };
        // The system's settings may refuse huge pages. This is harmless, because huge pages only make copies faster.
        let _ = bytes.advise(memmap2::Advice::HugePage);
        state.used_bytes = used_bytes;
        self.changed(&state);
        Some(Lease { block: Arc::new(Block { bytes: Mutex::new(bytes) }), zeroed: true })
    }

    /// Takes a block back and keeps it for reuse.
    pub(crate) fn give_block(&self, block: Arc<Block>) {
        let mut state = self.state();
        state.free.push_back((block, Instant::now()));
        self.changed(&state);
    }

    /// Gives blocks that have been free for at least `idle` back to the system, but at most `blocks_max` blocks.
    pub(crate) fn shrink(&self, idle: Duration, blocks_max: usize) {
        for _ in 0..blocks_max {
            let mut state = self.state();
            let Some((_, since)) = state.free.front() else { return };
            if since.elapsed() < idle {
                return;
            }
            let block = state.free.pop_front();
            state.used_bytes -= BLOCK_BYTES as u64;
            self.changed(&state);
            drop(state);
            // The block is unmapped after the lock is released, so that no thread waits for the unmapping.
            drop(block);
        }
    }

    /// Counts bytes of the same-host link against the limit, before the link hands them out. Counts as many whole
    /// `unit`s as fit, up to `wanted_bytes`, and unmaps free blocks to make room. Returns how many bytes it counted.
    pub(crate) fn reserve(&self, wanted_bytes: u64, unit: u64) -> u64 {
        let mut state = self.state();
        while state.used_bytes + wanted_bytes > self.limit_bytes && state.free.pop_front().is_some() {
            state.used_bytes -= BLOCK_BYTES as u64;
        }
        let room = self.limit_bytes.saturating_sub(state.used_bytes).min(wanted_bytes);
        let room = state.system.take(room);
        let granted = room - room % unit;
        state.used_bytes += granted;
        self.changed(&state);
        granted
    }

    /// Stops counting bytes that [`Memory::reserve`] counted, because the system refused to allocate them. Hands out no
    /// memory before the next check.
    pub(crate) fn refused(&self, bytes: u64) {
        self.state().system.refused();
        self.release(bytes);
    }

    /// Stops counting bytes that [`Memory::reserve`] counted.
    pub(crate) fn release(&self, bytes: u64) {
        let mut state = self.state();
        state.used_bytes -= bytes;
        self.changed(&state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = BLOCK_BYTES as u64;

    #[test]
    fn blocks_are_bounded_and_reused_without_being_zeroed() {
        let memory = Memory::new(2 * BLOCK + 5, None);
        let first = memory.take_block().expect("a first block");
        let _second = memory.take_block().expect("a second block");
        assert!(first.zeroed && memory.take_block().is_none());
        first.block.lock()[7] = 7;
        memory.give_block(first.block);
        assert_eq!(memory.used_and_free_bytes(), (2 * BLOCK, BLOCK));
        let again = memory.take_block().expect("the block given back");
        assert!(!again.zeroed && again.block.lock()[7] == 7);
    }

    #[test]
    fn what_stays_free_goes_back_to_the_system() {
        let memory = Memory::new(4 * BLOCK, None);
        let leases: Vec<Lease> = (0..3).map(|_| memory.take_block().expect("a block")).collect();
        leases.into_iter().for_each(|lease| memory.give_block(lease.block));
        memory.shrink(Duration::from_secs(3600), 9);
        assert_eq!(memory.used_and_free_bytes(), (3 * BLOCK, 3 * BLOCK), "not free for long");
        memory.shrink(Duration::ZERO, 2);
        assert_eq!(memory.used_and_free_bytes(), (BLOCK, BLOCK), "two at a time");
        memory.shrink(Duration::ZERO, 2);
        assert_eq!((memory.used_and_free_bytes(), memory.room_bytes()), ((0, 0), 4 * BLOCK));
        assert!(memory.take_block().expect("a new block").zeroed);
    }

    #[test]
    fn a_thinned_block_keeps_what_is_used() {
        let memory = Memory::new(BLOCK, None);
        let lease = memory.take_block().expect("a block");
        lease.block.lock().fill(7);
        assert!(lease.block.trim([4096..8192, 65536..65537].into_iter()));
        let bytes = lease.block.lock();
        let kept = bytes.iter().enumerate().filter(|(_, byte)| **byte == 7).map(|(at, _)| at);
        assert!(kept.eq((4096..8192).chain([65536])) && bytes.len() == BLOCK_BYTES);
    }

    #[test]
    fn grants_and_blocks_share_the_limit() {
        let memory = Memory::new(2 * BLOCK, None);
        let lease = memory.take_block().expect("a block");
        memory.give_block(lease.block);
        assert_eq!(memory.reserve(4096, 4096), 4096, "fits beside the free block");
        assert_eq!(memory.used_and_free_bytes(), (BLOCK + 4096, BLOCK));
        assert_eq!(memory.reserve(3 * BLOCK, 4096), 2 * BLOCK - 4096, "the free block makes room");
        assert!(memory.take_block().is_none());
        assert_eq!(memory.reserve(4096, 4096), 0);
        memory.release(2 * BLOCK);
        assert_eq!(memory.used_and_free_bytes(), (0, 0));
    }

    /// The server must hand out no more memory than the system can give. Otherwise a client's writes would make the
    /// system kill the server.
    #[test]
    fn no_more_is_handed_out_than_the_system_can_give() {
        let left = Arc::new(AtomicU64::new(SYSTEM_MARGIN_BYTES + 3 * BLOCK));
        let there = Arc::clone(&left);
        let memory = Memory::new(
            1000 * BLOCK,
            Some(Arc::new(move || Some(SystemMemory { available_bytes: there.load(Relaxed), is_short: false }))),
        );
        let take = || {
            let lease = memory.take_block();
            left.fetch_sub(if lease.is_some() { BLOCK } else { 0 }, Relaxed);
            lease
        };
        assert_eq!(memory.room_bytes(), 3 * BLOCK, "and no more is promised");
        let lease = take().expect("a block");
        assert_eq!(memory.reserve(4 * BLOCK, BLOCK), 2 * BLOCK);
        left.store(SYSTEM_MARGIN_BYTES, Relaxed);
        assert!(memory.take_block().is_none() && memory.room_bytes() == 0);
        memory.give_block(lease.block);
        assert!(memory.take_block().is_some(), "what it has already can be used again");
        left.store(SYSTEM_MARGIN_BYTES / 2, Relaxed);
        memory.look();
        assert!(memory.take_block().is_none());
        left.store(SYSTEM_MARGIN_BYTES + 200 * BLOCK, Relaxed);
        memory.look();
        assert_eq!(memory.room_bytes(), 200 * BLOCK);
        assert!((0..100).all(|_| take().is_some()), "beyond what one look approves");
        memory.refused(0);
        assert_eq!(memory.room_bytes(), 0);
        memory.look();
        assert_eq!(memory.room_bytes(), 100 * BLOCK);
    }
}
