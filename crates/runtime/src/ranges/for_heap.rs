//! Calls for the heap. The heap allocates address space ahead; only the parts that hold blocks count as far bytes.

use crate::places;
use crate::process::{active, inside, offset_of, ready};

/// Allocates address space for the heap. None of it counts as far bytes until [`heap_uses`] says so.
pub(crate) fn take_for_heap(len: usize, align: usize) -> Option<usize> {
    let state = ready().filter(|_| active())?;
    inside(move || {
        let offset = state.extents.lock().alloc(len as u64, align as u64)?;
        state.idles_more(len as u64);
        state.far_changed();
        Some(places::base() + offset as usize)
    })
}

/// Counts `len` more bytes of the heap's address space as used by blocks. Returns false when the memory servers have no
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

/// Stops counting a range without blocks, and makes it read as zeroes. Returns false, and does nothing, when the range
/// does not consist of whole pages of Hanare.
///
/// # Safety
/// The caller owns the range and gives it up: nothing uses or borrows it any more.
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

/// Discards the contents of a range of the heap.
///
/// # Safety
/// The caller owns the range and gives up its contents: nothing borrows it or relies on its bytes.
pub(crate) unsafe fn heap_discards(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return };
    inside(move || {
        state.discard_whole(offset, len);
    })
}
