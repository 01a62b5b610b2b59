//! The allocation sites of the parts of this process' far memory.

use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicUsize, Ordering::*};

use hanare_sys::map::Mapping;

/// Bytes of far memory for which one site is noted, as a power of two.
const PART_SHIFT: u32 = 16;

/// One number for each part: the index of its site plus 1, or 0. Null if nothing is recorded. A forked child inherits a
/// copy, and its sites are then those of its parent.
static OWNERS: AtomicPtr<AtomicU16> = AtomicPtr::new(std::ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Makes room for far memory of `len` bytes. Without memory, no sites are noted.
pub(super) fn open(len: usize) {
    let count = len >> PART_SHIFT;
    if !OWNERS.load(Relaxed).is_null() || count == 0 {
        return;
    }
    if let Ok(mapping) = Mapping::anonymous(count * size_of::<AtomicU16>()) {
        COUNT.store(count, Relaxed);
        OWNERS.store(mapping.leak() as *mut AtomicU16, Release);
    }
}

fn owners() -> &'static [AtomicU16] {
    let owners = OWNERS.load(Acquire);
    if owners.is_null() {
        return &[];
    }
    // SAFETY: `open` stores a leaked mapping with room for `COUNT` numbers, and stores the count before. Every bit
    // pattern is valid, and atomics may change at any time.
    unsafe { std::slice::from_raw_parts(owners, COUNT.load(Relaxed)) }
}

/// Notes that `site` has a range.
pub(super) fn set(offset: usize, len: usize, site: usize) {
    let number = u16::try_from(site + 1).unwrap_or(0);
    let (first, end) = (offset >> PART_SHIFT, offset.saturating_add(len).div_ceil(1 << PART_SHIFT));
    for owner in owners().get(first..end).unwrap_or_default() {
        owner.store(number, Relaxed);
    }
}

/// Returns the site that has an offset.
pub(super) fn of(offset: usize) -> Option<usize> {
    let owner = owners().get(offset >> PART_SHIFT)?.load(Relaxed);
    usize::from(owner).checked_sub(1)
}
