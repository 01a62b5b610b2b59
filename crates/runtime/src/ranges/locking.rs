//! Locked ranges: far memory that stays in this process, as mlock asks.
//!
//! Whole units are locked, so bytes beside the range may be locked with it. At most a quarter of the budget may be locked.
//! A lock ends when the units are unlocked, discarded or freed. A forked child has no locks.

use crate::process::{State, inside, offset_of, ready, state};

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
        if is_locked || is_allocated && state.launch.settings.seals() { Ok(is_locked) } else { Err(libc::ENOMEM) }
    })
}

/// Locks a range that was locked until it was discarded.
pub fn lock_again(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return };
    inside(move || state.engine.lock_again(state.outer_units_of(offset, len)));
}

/// Returns whether pages are sealed before they leave the process.
pub fn seals() -> bool {
    ready().is_some_and(|state| state.launch.settings.seals())
}

/// Ends [`lock`] for all far memory.
pub fn unlock_all() {
    if let Some(state) = state() {
        inside(move || state.engine.unlock((0, u32::MAX)));
    }
}

/// Ends [`lock`] for all units that overlap a far range.
pub fn unlock(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return };
    inside(move || state.engine.unlock(state.outer_units_of(offset, len)));
}

/// Returns the first run of locked bytes in a far range, as the addresses of its start and its end.
pub fn locked_run(addr: usize, len: usize) -> Option<(usize, usize)> {
    let (state, offset) = (ready()?, offset_of(addr)?);
    let (first, end) = inside(move || state.engine.locked_run(state.outer_units_of(offset, len)))?;
    let at = |unit: u32| addr - offset + unit as usize * state.granularity;
    Some((at(first).max(addr), at(end).min(addr + len)))
}

impl State {
    /// Returns the first unit that overlaps a byte range, and the one past the last.
    pub(super) fn outer_units_of(&self, offset: usize, len: usize) -> (u32, u32) {
        ((offset / self.granularity) as u32, (offset + len).div_ceil(self.granularity) as u32)
    }
}
