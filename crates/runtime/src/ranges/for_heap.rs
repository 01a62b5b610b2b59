//! Functions that the heap calls. The heap allocates address space before it needs the space. Only the parts with
//! blocks count as far bytes.

use crate::process::{active, inside, offset_of, ready};
use crate::profile::SiteKind;
use crate::{places, profile};

/// Allocates address space for the heap. Returns `None` if no address space is left. The address space counts as far
/// bytes only after [`heap_uses`].
pub(crate) fn take_for_heap(len: usize, align: usize) -> Option<usize> {
    let state = ready().filter(|_| active())?;
    inside(move || {
        let offset = state.place(len, align)?;
        // Nobody else uses these pages, so they can be filled before the heap uses them.
        state.engine.allocated(state.inner_units_of(offset, len), true);
        state.idles_more(len as u64);
        state.far_changed();
        profile::kept_for(SiteKind::Small, offset, len);
        Some(places::base() + offset)
    })
}

/// Smallest range of the heap, in bytes, whose pages are filled in runs.
const FILLED_MIN: usize = 64 << 10;

/// Counts a range of the heap's address space as far bytes. Returns false if the memory servers have no room for them
/// (see [`hanare_settings::Overcommit`]).
pub(crate) fn heap_uses(addr: usize, len: usize) -> bool {
    let Some(state) = ready() else { return false };
    if !state.promises_heap(len) {
        return false;
    }
    state.idles_less(len as u64);
    state.idle_changed();
    if len >= FILLED_MIN
        && let Some(offset) = offset_of(addr)
    {
        inside(move || state.engine.allocated(state.inner_units_of(offset, len), true));
    }
    true
}

/// Discards a range of the heap and stops counting it as far bytes. Returns false, and does nothing, if the range does
/// not consist of whole units.
///
/// # Safety
/// The caller owns the range, and nothing uses or borrows the range from now on.
pub(crate) unsafe fn heap_forgets(addr: usize, len: usize) -> bool {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return false };
    if !offset.is_multiple_of(state.granularity) || !len.is_multiple_of(state.granularity) {
        return false;
    }
    // SAFETY: the caller promises that it owns the range, and that nothing uses or borrows the range from now on.
    unsafe { heap_discards(addr, len) };
    inside(move || {
        state.idles_more(len as u64);
        state.idle_changed();
        true
    })
}

/// Discards the whole units inside a range of the heap. These units read as zeroes afterwards.
///
/// # Safety
/// The caller owns the range, and nothing borrows it or relies on its bytes.
pub(crate) unsafe fn heap_discards(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return };
    inside(move || {
        state.discard_whole(offset, len);
    })
}
