//! The memory budget of the whole server, and the blocks that slots are carved from.
//!
//! A block given back is kept mapped for a while, for the next session that needs one. Its old bytes stay in it: whoever
//! takes it is told so, and must never show them. What nobody takes goes back to the system ([`Memory::shrink`]).
//!
//! The limit is what the operator allows; what the system has may be less by now. A system without memory kills who touches
//! what it was promised, so it is asked now and then what it could give, and no more than that is handed out.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memmap2::MmapMut;

/// Bytes the system is left with for others, and for the server's own books.
const SYSTEM_MARGIN_BYTES: u64 = 64 << 20;
/// Handed out at most between two looks at what the system could give.
const LOOK_BYTES: u64 = 64 << 20;
/// What a look found is believed for so long.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Address space kept aside: when there is no more for blocks, the server's own small needs are met from it.
const RESERVE_BYTES: usize = 32 << 20;

/// Says how many bytes the system could give without harm; `None` when it is not known.
pub type Available = Arc<dyn Fn() -> Option<u64> + Send + Sync>;

/// The bytes of a block: what the kernel can back with one huge page.
pub(crate) const BLOCK_BYTES: usize = 2 << 20;

/// 2 MiB of memory. The lock is held only while bytes are copied, never while waiting for a peer.
pub(crate) struct Block {
    bytes: Mutex<MmapMut>,
}

impl Block {
    /// The block's bytes, for as long as it takes to copy.
    pub(crate) fn lock(&self) -> MutexGuard<'_, MmapMut> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the system back what lies outside `used`, whose bytes stay; the rest reads as zeroes. False when the system
    /// has no memory to do it with.
    pub(crate) fn thin(&self, used: impl Iterator<Item = Range<usize>>) -> bool {
        let Ok(mut fresh) = MmapMut::map_anon(BLOCK_BYTES) else { return false };
        // A huge page would be filled as a whole by the first byte.
        let _ = fresh.advise(memmap2::Advice::NoHugePage);
        let mut bytes = self.lock();
        for range in used {
            fresh[range.clone()].copy_from_slice(&bytes[range]);
        }
        *bytes = fresh;
        true
    }
}

/// A block handed to a session, and whether all its bytes are known to be zero.
pub(crate) struct Lease {
    pub(crate) block: Arc<Block>,
    pub(crate) zeroed: bool,
}

/// What the system could give, as of the last look at it.
struct System {
    available: Option<Available>,
    bytes: u64,
    /// What may be handed out before the next look.
    approved: u64,
    looked: Instant,
    reserve: Option<MmapMut>,
}

impl System {
    fn new(available: Option<Available>) -> System {
        let reserve = MmapMut::map_anon(RESERVE_BYTES).ok();
        let mut system = System { available, bytes: u64::MAX, approved: 0, looked: Instant::now(), reserve };
        system.look();
        system
    }

    fn look(&mut self) {
        self.looked = Instant::now();
        if self.reserve.is_none() {
            self.reserve = MmapMut::map_anon(RESERVE_BYTES).ok();
        }
        let available = self.available.as_ref().and_then(|available| available()).unwrap_or(u64::MAX);
        self.bytes = if self.reserve.is_some() { available.saturating_sub(SYSTEM_MARGIN_BYTES) } else { 0 };
        self.approved = self.bytes.min(LOOK_BYTES);
    }

    /// How many of these bytes the system can give; they count as given.
    fn take(&mut self, wanted: u64) -> u64 {
        let is_old = self.looked.elapsed() >= LOOK_EVERY;
        // A system that has nothing is not asked at every request.
        if is_old || self.approved < wanted && self.bytes > self.approved {
            self.look();
        }
        let taken = wanted.min(if wanted > LOOK_BYTES { self.bytes } else { self.approved });
        self.approved = self.approved.saturating_sub(taken);
        self.bytes -= taken;
        taken
    }

    /// The system refused: it is not asked again before the next look.
    fn refused(&mut self) {
        (self.bytes, self.approved, self.looked, self.reserve) = (0, 0, Instant::now(), None);
    }
}

/// The budget. Everything counted against it is either in a session or in the list of free blocks.
pub(crate) struct Memory {
    limit_bytes: u64,
    state: Mutex<State>,
    /// What could still be handed out, as of the last change.
    room_bytes: AtomicU64,
}

struct State {
    used_bytes: u64,
    system: System,
    /// Free blocks and since when; the longest free one first.
    free: VecDeque<(Arc<Block>, Instant)>,
}

impl Memory {
    pub(crate) fn new(limit_bytes: u64, available: Option<Available>) -> Memory {
        let state = State { used_bytes: 0, system: System::new(available), free: VecDeque::new() };
        let memory = Memory { limit_bytes, room_bytes: AtomicU64::new(0), state: Mutex::new(state) };
        memory.changed(&memory.state());
        memory
    }

    /// Asks the system anew what it could give.
    pub(crate) fn look(&self) {
        let mut state = self.state();
        state.system.look();
        self.changed(&state);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the room that a change leaves, the state still locked.
    fn changed(&self, state: &State) {
        let free = (state.free.len() * BLOCK_BYTES) as u64;
        let more = (self.limit_bytes - state.used_bytes).min(state.system.bytes);
        self.room_bytes.store(more + free, Relaxed);
    }

    /// Bytes that could still be handed out, without waiting for anyone.
    pub(crate) fn room_bytes(&self) -> u64 {
        self.room_bytes.load(Relaxed)
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes counted against the limit, and those of them in free blocks.
    pub(crate) fn used_and_free_bytes(&self) -> (u64, u64) {
        let state = self.state();
        (state.used_bytes, (state.free.len() * BLOCK_BYTES) as u64)
    }

    /// A free block if there is one, else a new one within the limit and what the system can give.
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
        // Huge pages make copies faster; without them (an old kernel, a policy) everything works the same.
        let _ = bytes.advise(memmap2::Advice::HugePage);
        state.used_bytes = used_bytes;
        self.changed(&state);
        Some(Lease { block: Arc::new(Block { bytes: Mutex::new(bytes) }), zeroed: true })
    }

    /// Takes a block back, to be kept for reuse.
    pub(crate) fn give_block(&self, block: Arc<Block>) {
        let mut state = self.state();
        state.free.push_back((block, Instant::now()));
        self.changed(&state);
    }

    /// Gives the system back up to `blocks_max` blocks that nobody wanted for as long as `idle`.
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
            // Unmapped here, while nobody waits for the lock.
            drop(block);
        }
    }

    /// Counts bytes that the same-host link hands out, as many whole `unit`s as fit, up to `wanted_bytes`; unmaps free
    /// blocks to make room. Says how many bytes it counted.
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

    /// Uncounts bytes that [`Memory::reserve`] counted and the system would not give.
    pub(crate) fn refused(&self, bytes: u64) {
        self.state().system.refused();
        self.release(bytes);
    }

    /// Uncounts bytes that [`Memory::reserve`] counted.
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
        assert!(lease.block.thin([4096..8192, 65536..65537].into_iter()));
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

    /// A server that hands out what the system does not have is killed when a client writes to it.
    #[test]
    fn no_more_is_handed_out_than_the_system_can_give() {
        let left = Arc::new(AtomicU64::new(SYSTEM_MARGIN_BYTES + 3 * BLOCK));
        let there = Arc::clone(&left);
        let memory = Memory::new(1000 * BLOCK, Some(Arc::new(move || Some(there.load(Relaxed)))));
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
