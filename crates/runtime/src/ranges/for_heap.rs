//! Calls of the heap: it takes address space that counts as far bytes only where it has blocks.

use crate::places;
use crate::process::{active, inside, offset_of, ready};

/// Takes address space for the heap: none of it counts as far bytes until [`heap_uses`] says so.
pub(crate) fn take_for_heap(len: usize, align: usize) -> Option<usize> {
    let state = ready().filter(|_| active())?;
    inside(move || {
        let offset = state.extents.lock().alloc(len as u64, align as u64)?;
        state.idles_more(len as u64);
        state.far_changed();
        Some(places::base() + offset as usize)
    })
}

/// The heap wants to have blocks in `len` more bytes of what it took; false when the memory servers have no
/// room for them (see [`hanare_settings::Overcommit`]).
pub(crate) fn heap_uses(len: usize) -> bool {
    let Some(state) = ready() else { return false };
    if !state.promises_heap(len) {
        return false;
    }
    state.idles_less(len as u64);
    state.idle_changed();
    true
}

/// The heap has no blocks in this range any more, and it is to read as zeroes; false, and nothing was done, when the
/// range is not of whole pages of Hanare's.
///
/// # Safety
/// The caller owns the range and gives it up: nobody uses or borrows it any more.
pub(crate) unsafe fn heap_forgets(addr: usize, len: usize) -> bool {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return false };
    if !offset.is_multiple_of(state.granularity) || !len.is_multiple_of(state.granularity) {
        return false;
    }
    // SAFETY: passed on from the caller.
    unsafe { heap_discards(addr, len) };
    inside(move || {
        state.idles_more(len as u64);
        state.idle_changed();
        true
    })
}

/// The heap does not need what is in this range.
///
/// # Safety
/// The caller owns the range and gives up what it holds: nobody borrows it or relies on its bytes.
pub(crate) unsafe fn heap_discards(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return };
    inside(move || {
        state.discard_whole(offset, len);
    })
}
