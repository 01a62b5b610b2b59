//! Ranges of far memory: allocates, frees and discards them, and changes the program's access. Whole pages only; the
//! heap handles blocks of any size.

use hanare_settings::Overcommit;
use hanare_sys::map::Prot;

use crate::places;
use crate::process::{active, allocated_offset, inside, offset_of, ready, state};
use crate::promise::Refusal;
use crate::span::{OS_PAGE, Span};
use crate::view::View;

mod for_heap;
mod units;

pub(crate) use for_heap::{heap_discards, heap_forgets, heap_uses, take_for_heap};

/// Allocates zeroed far memory, whole pages. Returns null when no address space is left, or when the memory servers
/// have no room for it (see [`hanare_settings::Overcommit`]). Accesses no page.
pub fn alloc(len: usize, align: usize) -> *mut u8 {
    let overcommit = ready().map_or(Overcommit::Always, |state| state.launch.settings.overcommit);
    alloc_by(len, align, overcommit)
}

/// Allocates zeroed far memory without a reservation of room, as mmap does with MAP_NORESERVE.
pub fn alloc_unpromised(len: usize, align: usize) -> *mut u8 {
    alloc_by(len, align, Overcommit::Always)
}

fn alloc_by(len: usize, align: usize, overcommit: Overcommit) -> *mut u8 {
    let start = take(len, align, overcommit);
    if let Some(state) = state().filter(|_| !start.is_null()) {
        inside(move || state.far_changed());
    }
    start
}

/// Allocates a range without accounting for it; the caller does that.
fn take(len: usize, align: usize, overcommit: Overcommit) -> *mut u8 {
    let Some(state) = ready().filter(|_| active()) else { return std::ptr::null_mut() };
    inside(move || {
        let (len, align) = (len.max(1).next_multiple_of(state.granularity), align.max(state.granularity));
        if !state.promises(len, overcommit, Refusal::Told) {
            return std::ptr::null_mut();
        }
        let Some(offset) = state.extents.lock().alloc(len as u64, align as u64) else { return std::ptr::null_mut() };
        (places::base() + offset as usize) as *mut u8
    })
}

/// Allocates freed addresses of far memory again, as a fixed mapping there does. Ranges that are still allocated stay
/// so.
///
/// # Errors
/// `ENOMEM` when the servers have no room for it.
pub fn claim(addr: usize, len: usize) -> Result<(), i32> {
    let (Some(state), Some(offset)) = (ready(), allocated_offset(addr)) else { return Ok(()) };
    inside(move || {
        let free = state.extents.lock().free_bytes_in(offset as u64, len as u64) as usize;
        if free > 0 {
            if !state.promises(free, state.launch.settings.overcommit, Refusal::Told) {
                return Err(libc::ENOMEM);
            }
            state.extents.lock().claim(offset as u64, len as u64);
            state.far_changed();
        }
        Ok(())
    })
}

/// Frees the far allocation that starts here. Returns false when there is none. Nothing is fetched.
///
/// # Safety
/// The caller owns the allocation, if there is one, and gives it up: nothing uses or borrows it any more.
pub unsafe fn free(addr: usize) -> bool {
    let Some(state) = ready().filter(|_| active() && places::is_reserved(addr)) else { return false };
    // As in `allocation`.
    let offset = addr - places::base();
    inside(move || {
        let Some(len) = state.extents.lock().allocation(offset as u64) else { return false };
        state.forget_whole(offset, len as usize);
        places::empty_holes(addr, len as usize);
        state.give_back(offset, len as usize);
        state.far_changed();
        true
    })
}

/// Frees any page-aligned part of far allocations, as munmap does.
///
/// # Safety
/// The caller owns the range and gives it up: nothing uses or borrows it any more.
pub unsafe fn release(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready().filter(|_| active()), offset_of(addr)) else { return };
    if !places::is_reserved(addr) {
        // A static array only loses its pages; its range stays allocated. SAFETY: passed on from the caller.
        unsafe { discard(addr, len) };
        return inside(move || {
            state.engine.view().set_access(Span { offset, len }, Prot::NONE);
            state.far_changed();
        });
    }
    state.zero_edges(offset, len);
    inside(move || {
        state.forget_whole(offset, len);
        state.extents.lock().release(offset as u64, len as u64);
        state.far_changed();
    })
}

/// Makes a range read as zeroes, as MADV_DONTNEED does, and frees its pages locally and on servers.
///
/// # Safety
/// The caller owns the range and gives up its contents: nothing borrows it or relies on its bytes.
pub unsafe fn discard(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready().filter(|_| active()), offset_of(addr)) else { return };
    state.zero_edges(offset, len);
    inside(move || {
        state.discard_whole(offset, len);
    })
}

/// Grows or shrinks a far allocation in place. Returns false when it cannot grow.
///
/// # Safety
/// The caller owns the allocation, and nothing uses or borrows the part beyond the new length.
pub unsafe fn resize(addr: usize, new_len: usize) -> bool {
    let (Some(state), Some(offset)) = (ready().filter(|_| active()), allocated_offset(addr)) else { return false };
    inside(move || {
        let new_len = new_len.max(1).next_multiple_of(state.granularity);
        let Some(len) = state.extents.lock().allocation(offset as u64) else { return false };
        let len = len as usize;
        if new_len < len {
            state.forget_whole(offset + new_len, len - new_len);
            state.give_back(offset + new_len, len - new_len);
        } else if new_len > len {
            let grown = state.promises(new_len - len, state.launch.settings.overcommit, Refusal::Told)
                && state.extents.lock().grow_in_place(offset as u64, new_len as u64);
            if !grown {
                return false;
            }
        }
        state.far_changed();
        true
    })
}

/// Changes the program's access to a range, as mprotect does.
///
/// # Errors
/// The errno of the refusal; `ENOMEM` when part of the range is not allocated.
///
/// # Safety
/// The caller owns the range, and nothing borrows from it what the new access forbids.
pub unsafe fn protect(addr: usize, len: usize, prot: i32) -> Result<(), i32> {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return Err(libc::ENOMEM) };
    inside(move || {
        if !state.extents.lock().covers(offset as u64, len as u64) {
            return Err(libc::ENOMEM);
        }
        let answer = state.engine.view().restrict(Span { offset, len }, prot);
        state.far_changed();
        answer
    })
}

/// Allocates like [`alloc`], without access until [`protect`] grants it. Until then it costs nothing of the budget.
/// Also returns null for more than a quarter of the free address space.
pub fn reserve(len: usize, align: usize) -> *mut u8 {
    let left = ready()
        .map_or(0, |state| inside(move || places::len().saturating_sub(state.extents.lock().taken_bytes() as usize)));
    let start = if len <= left / 4 { take(len, align, Overcommit::Always) } else { std::ptr::null_mut() };
    // SAFETY: an allocation that nothing else uses yet.
    if start.is_null() || unsafe { protect(start as usize, len, libc::PROT_NONE) }.is_ok() {
        return start;
    }
    // SAFETY: as above.
    unsafe { free(start as usize) };
    std::ptr::null_mut()
}

/// Length of the far allocation that starts here, even if its first page became ordinary memory.
pub fn allocation(addr: usize) -> Option<usize> {
    let state = ready().filter(|_| places::is_reserved(addr))?;
    inside(move || state.extents.lock().allocation((addr - places::base()) as u64).map(|len| len as usize))
}

/// Whether all of a far range is allocated.
pub fn is_allocated(addr: usize, len: usize) -> bool {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return false };
    inside(move || state.extents.lock().covers(offset as u64, len as u64))
}

/// Whether the program left write access to a far address.
pub fn is_writable(addr: usize) -> bool {
    permits(addr, true)
}

/// Whether the program left read access to a far address.
pub fn is_readable(addr: usize) -> bool {
    permits(addr, false)
}

fn permits(addr: usize, write: bool) -> bool {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return false };
    inside(move || state.engine.view().permits(offset, write))
}

/// The end of the range from `at` in which the program left read (or write) access to its far memory. Near memory
/// counts as accessible: the kernel checks it.
pub fn open_until(at: usize, end: usize, write: bool) -> usize {
    let Some(state) = ready().filter(|state| state.engine.view().has_restrictions()) else { return end };
    inside(move || {
        let view = state.engine.view();
        let mut next = at;
        while next < end {
            if view.offset_of(next).is_some_and(|offset| !view.permits(offset, write)) {
                return next;
            }
            next = (next | (OS_PAGE - 1)).saturating_add(1);
        }
        end
    })
}

/// Prefetches as much of a range as there is room for.
pub fn will_need(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready().filter(|_| active()), offset_of(addr)) else { return };
    inside(move || {
        state.engine.will_need(offset, len);
    })
}
