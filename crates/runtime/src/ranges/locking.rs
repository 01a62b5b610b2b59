//! Locked ranges: far memory that stays in this process, as mlock asks.
//!
//! Whole units are locked, so bytes beside the range may be locked with it. If units are larger than the kernel's pages, a
//! unit stays locked until the last of its bytes is unlocked. At most a quarter of the budget may be locked. A lock ends when the
//! units are unlocked, discarded or freed. A forked child has no locks.

use crate::process::{State, inside, offset_of, ready, state};
use crate::span::OS_PAGE;

/// Keeps a far range in this process from its first access on. Returns true if it is locked. If pages are sealed before
/// they leave the process, a range that is too large is not locked, and the answer is false.
///
/// # Errors
/// `ENOMEM` if a part of the range is not allocated, or if too much of the budget would be locked.
pub fn lock(addr: usize, len: usize) -> Result<bool, i32> {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return Err(libc::ENOMEM) };
    inside(move || {
        let is_allocated = state.extents.lock().covers(offset as u64, len as u64);
        let is_locked = is_allocated && state.engine.lock(state.outer_units_of(offset, len));
        if is_locked {
            state.note_lock(offset, len);
        }
        if is_locked || is_allocated && state.launch.settings.seals() { Ok(is_locked) } else { Err(libc::ENOMEM) }
    })
}

/// Locks a range that was locked until it was discarded.
pub fn lock_again(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return };
    inside(move || state.engine.lock_again(state.outer_units_of(offset, len)));
}

/// Locks a range to which locked memory is about to move.
pub fn lock_moved(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return };
    inside(move || {
        state.engine.lock_again(state.outer_units_of(offset, len));
        state.note_lock(offset, len);
    });
}

/// Returns whether pages are sealed before they leave the process.
pub fn seals() -> bool {
    ready().is_some_and(|state| state.launch.settings.seals())
}

/// Ends [`lock`] for all far memory.
pub fn unlock_all() {
    if let Some(state) = state() {
        inside(move || {
            state.engine.unlock((0, u32::MAX));
            state.forget_locks(0, state.launch.plan.reserve);
        });
    }
}

/// Ends [`lock`] for a far range.
pub fn unlock(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return };
    inside(move || {
        state.forget_locks(offset, len);
        let (first, end) = state.outer_units_of(offset, len);
        // Only the first and the last unit have bytes beside the range.
        let first = first + u32::from(state.has_lock(first));
        let end = end - u32::from(end > first && state.has_lock(end - 1));
        state.engine.unlock((first, end));
    });
}

/// Returns the first run of locked bytes in a far range, as the addresses of its start and its end.
pub fn locked_run(addr: usize, len: usize) -> Option<(usize, usize)> {
    let (state, offset) = (ready().filter(|_| len > 0)?, offset_of(addr)?);
    let (first, end) = inside(move || state.engine.locked_run(state.outer_units_of(offset, len)))?;
    let at = |unit: u32| addr - offset + unit as usize * state.granularity;
    Some((at(first).max(addr), at(end).min(addr + len)))
}

impl State {
    fn note_lock(&self, offset: usize, len: usize) {
        if self.granularity > OS_PAGE {
            self.locks.lock().claim(offset as u64, len as u64);
        }
    }

    pub(super) fn forget_locks(&self, offset: usize, len: usize) {
        if self.granularity > OS_PAGE {
            self.locks.lock().release(offset as u64, len as u64);
        }
    }

    /// Checks whether any byte of a unit is locked, where the locked ranges are known.
    fn has_lock(&self, unit: u32) -> bool {
        let (offset, len) = (u64::from(unit) * self.granularity as u64, self.granularity as u64);
        self.granularity > OS_PAGE && self.locks.lock().free_bytes_in(offset, len) < len
    }

    /// Returns the first unit that overlaps a byte range, and the one past the last.
    pub(super) fn outer_units_of(&self, offset: usize, len: usize) -> (u32, u32) {
        ((offset / self.granularity) as u32, (offset + len).div_ceil(self.granularity) as u32)
    }
}
