//! Ranges of far memory: allocates, frees and discards ranges of whole pages, and changes the program's access to them.
//! The module `heap` allocates blocks of any size.

use hanare_settings::Overcommit;
use hanare_sys::map::Prot;

use crate::process::{active, allocated_offset, inside, offset_of, ready, state};
use crate::span::{OS_PAGE, Span};
use crate::view::View;
use crate::{places, profile};

mod for_heap;
mod keeping;
mod locking;
mod units;

pub(crate) use for_heap::{heap_discards, heap_forgets, heap_uses, take_for_heap};
pub use locking::{lock, lock_again, lock_moved, locked_run, seals, unlock, unlock_all};

/// Allocates whole pages of zeroed far memory. Returns null if no address space is left, or if the memory servers
/// have no room (see [`hanare_settings::Overcommit`]). Accesses none of the pages.
pub fn alloc(len: usize, align: usize) -> *mut u8 {
    let overcommit = ready().map_or(Overcommit::Always, |state| state.launch.settings.overcommit);
    alloc_by(len, align, overcommit)
}

/// Allocates zeroed far memory without a reservation of room on the servers, as mmap does with MAP_NORESERVE.
pub fn alloc_unpromised(len: usize, align: usize) -> *mut u8 {
    alloc_by(len, align, Overcommit::Always)
}

fn alloc_by(len: usize, align: usize, overcommit: Overcommit) -> *mut u8 {
    let start = take(len, align, overcommit);
    if let Some(state) = state().filter(|_| !start.is_null()) {
        inside(move || state.far_changed());
        profile::allocated(start as usize - places::base(), len);
    }
    start
}

/// Allocates a range. The caller must call `far_changed` afterwards, which updates the counters and the budget.
fn take(len: usize, align: usize, overcommit: Overcommit) -> *mut u8 {
    let Some(state) = ready().filter(|_| active()) else { return std::ptr::null_mut() };
    inside(move || {
        let (Some(len), align) = (state.whole(len), align.max(state.granularity)) else { return std::ptr::null_mut() };
        if !state.grants(len, overcommit) {
            return std::ptr::null_mut();
        }
        let Some(offset) = state.place(len, align) else { return std::ptr::null_mut() };
        state.engine.allocated(state.inner_units_of(offset, len), true);
        (places::base() + offset) as *mut u8
    })
}

/// Allocates the freed parts of a far range again, as mmap with MAP_FIXED does. Parts that are still allocated do not
/// change.
///
/// # Errors
/// `ENOMEM` if the servers have no room for the freed parts.
pub fn claim(addr: usize, len: usize) -> Result<(), i32> {
    let (Some(state), Some(offset)) = (ready(), allocated_offset(addr)) else { return Ok(()) };
    inside(move || {
        state.return_kept_in(offset, len);
        let free = state.extents.lock().free_bytes_in(offset as u64, len as u64) as usize;
        if free > 0 {
            if !state.grants(free, state.launch.settings.overcommit) {
                return Err(libc::ENOMEM);
            }
            state.extents.lock().claim(offset as u64, len as u64);
            state.far_changed();
        }
        Ok(())
    })
}

/// Frees the far allocation that starts at `addr`. Returns false if no allocation starts there. Fetches no page.
///
/// # Safety
/// If an allocation starts at `addr`, the caller owns the allocation, and nothing uses or borrows it from now on.
pub unsafe fn free(addr: usize) -> bool {
    let Some(state) = ready().filter(|_| active() && places::is_reserved(addr)) else { return false };
    // If the first page became ordinary memory, the view knows no offset for `addr`. So the offset is computed here.
    let offset = addr - places::base();
    inside(move || {
        let Some(len) = state.extents.lock().allocation(offset as u64).filter(|_| !state.is_kept(offset)) else {
            return false;
        };
        state.forget_whole(offset, len as usize);
        places::empty_holes(addr, len as usize);
        state.give_back(offset, len as usize);
        state.far_changed();
        true
    })
}

/// The result of freeing a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// The block was freed.
    Now,
    /// The block was freed before.
    Before,
    /// No block starts at the address.
    NoBlock,
}

/// Frees a heap block that is a far allocation of its own. Keeps its pages for a new block while there is room.
///
/// # Safety
/// If a block starts at `addr`, the caller owns the block, and nothing uses or borrows it from now on.
pub(crate) unsafe fn free_block(addr: usize) -> Freed {
    let Some(state) = ready().filter(|_| active() && places::is_reserved(addr)) else { return Freed::NoBlock };
    let offset = addr - places::base();
    let kept = inside(move || {
        let len = state.extents.lock().allocation(offset as u64)?;
        Some(if state.is_kept(offset) { Freed::Before } else { state.keep(offset, len as usize)? })
    });
    // SAFETY: the caller promises that it owns the block, and that nothing uses or borrows the block from now on.
    kept.unwrap_or_else(|| if unsafe { free(addr) } { Freed::Now } else { Freed::NoBlock })
}

/// Allocates a heap block of whole pages, like [`alloc`]. The block may have been freed before. Its bytes are zeroes
/// only if `zeroed` is true.
pub(crate) fn alloc_block(size: usize, align: usize, zeroed: bool) -> *mut u8 {
    let Some(state) = ready().filter(|_| active()) else { return std::ptr::null_mut() };
    let overcommit = state.launch.settings.overcommit;
    let kept = inside(move || {
        let (len, align) = (state.whole(size)?, align.max(state.granularity));
        let (offset, len) = state.take_kept(len, align, overcommit)?;
        // If all pages are still local, zeroing them costs less than a fault for each of them.
        let is_to_be_zeroed = zeroed && state.are_local(offset, len);
        if zeroed && !is_to_be_zeroed {
            state.discard_whole(offset, len);
        }
        Some(((places::base() + offset) as *mut u8, len, is_to_be_zeroed))
    });
    let Some((block, len, is_to_be_zeroed)) = kept else { return alloc_by(size, align, overcommit) };
    profile::allocated(block as usize - places::base(), len);
    if is_to_be_zeroed {
        // SAFETY: the block has `len` bytes, and no other code knows it.
        unsafe { block.write_bytes(0, len) };
    }
    block
}

/// Frees a page-aligned range of far memory, as munmap does. The range may be a part of one or more allocations.
///
/// # Safety
/// The caller owns the range, and nothing uses or borrows the range from now on.
pub unsafe fn release(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready().filter(|_| active()), offset_of(addr)) else { return };
    if !places::is_reserved(addr) {
        // The range is a part of a static array. It loses its pages and becomes inaccessible, but stays allocated.
        // SAFETY: the caller promises that it owns the range, and that nothing uses or borrows the range from now on.
        unsafe { discard(addr, len) };
        return inside(move || {
            state.engine.view().set_access(Span { offset, len }, Prot::NONE);
            state.far_changed();
        });
    }
    let (offset, len) = inside(move || {
        state.return_kept_in(offset, len);
        state.with_free_rests(offset, len)
    });
    state.zero_edges(offset, len);
    inside(move || {
        state.forget_whole(offset, len);
        state.extents.lock().release(offset as u64, len as u64);
        state.far_changed();
    })
}

/// Makes a range read as zeroes, as MADV_DONTNEED does. Frees its pages in local memory and on the servers.
///
/// # Safety
/// The caller owns the range, and nothing borrows it or relies on its bytes.
pub unsafe fn discard(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready().filter(|_| active()), offset_of(addr)) else { return };
    state.zero_edges(offset, len);
    inside(move || {
        state.discard_whole(offset, len);
    })
}

/// Grows or shrinks the far allocation that starts at `addr`, in place. Returns false, and changes nothing, if the
/// allocation cannot grow or no allocation starts there.
///
/// # Safety
/// The caller owns the allocation, and nothing uses or borrows the part beyond the new length.
pub unsafe fn resize(addr: usize, new_len: usize) -> bool {
    let (Some(state), Some(offset)) = (ready().filter(|_| active()), allocated_offset(addr)) else { return false };
    inside(move || {
        let Some(new_len) = state.whole(new_len) else { return false };
        let Some(len) = state.extents.lock().allocation(offset as u64) else { return false };
        let len = len as usize;
        if new_len < len {
            state.forget_whole(offset + new_len, len - new_len);
            state.give_back(offset + new_len, len - new_len);
        } else if new_len > len {
            state.return_kept_in(offset + len, new_len - len);
            let grown = state.grants(new_len - len, state.launch.settings.overcommit)
                && state.extents.lock().grow_in_place(offset as u64, new_len as u64);
            if !grown {
                return false;
            }
            state.engine.allocated(state.inner_units_of(offset + len, new_len - len), true);
            profile::grown_to(offset, new_len);
        }
        state.far_changed();
        true
    })
}

/// Changes the program's access to a far range, as mprotect does.
///
/// # Errors
/// `ENOMEM` if a part of the range is not allocated, or the errno with which the kernel refuses the change.
///
/// # Safety
/// The caller owns the range. No reference to a part of it needs an access that `prot` forbids.
pub unsafe fn protect(addr: usize, len: usize, prot: i32) -> Result<(), i32> {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return Err(libc::ENOMEM) };
    // On x86-64 and aarch64, memory that may be written may be read.
    let prot = if prot & libc::PROT_WRITE != 0 { prot | libc::PROT_READ } else { prot };
    inside(move || {
        state.return_kept_in(offset, len);
        // A unit that the program cannot access must not be filled. The units at the edges count, too.
        state.engine.allocated(state.outer_units_of(offset, len), false);
        if !state.extents.lock().covers(offset as u64, len as u64) {
            return Err(libc::ENOMEM);
        }
        let answer = state.engine.view().restrict(Span { offset, len }, prot);
        if answer.is_ok() && prot == Prot::READ_WRITE.0 {
            state.engine.allocated(state.inner_units_of(offset, len), true);
        }
        state.far_changed();
        answer
    })
}

/// Allocates whole pages of far memory that are inaccessible until [`protect`] allows an access. Inaccessible memory
/// does not count towards the budget. Returns null if `len` exceeds a quarter of the free address space, or if the
/// allocation fails.
pub fn reserve(len: usize, align: usize) -> *mut u8 {
    let left = ready()
        .map_or(0, |state| inside(move || places::len().saturating_sub(state.extents.lock().taken_bytes() as usize)));
    let start = if len <= left / 4 { take(len, align, Overcommit::Always) } else { std::ptr::null_mut() };
    if !start.is_null() {
        profile::allocated(start as usize - places::base(), len);
    }
    // SAFETY: the range was allocated just now, and no other code knows its address.
    if start.is_null() || unsafe { protect(start as usize, len, libc::PROT_NONE) }.is_ok() {
        return start;
    }
    // SAFETY: the allocation was made just now, and no other code knows its address.
    unsafe { free(start as usize) };
    std::ptr::null_mut()
}

/// Returns the length in bytes of the far allocation that starts at `addr`, even if its first page became ordinary
/// memory. Returns `None` if no allocation starts there.
pub fn allocation(addr: usize) -> Option<usize> {
    let state = ready().filter(|_| places::is_reserved(addr))?;
    let offset = addr - places::base();
    inside(move || {
        let len = state.extents.lock().allocation(offset as u64).filter(|_| !state.is_kept(offset));
        len.map(|len| len as usize)
    })
}

/// Checks whether every page of a far range is allocated.
pub fn is_allocated(addr: usize, len: usize) -> bool {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return false };
    inside(move || state.extents.lock().covers(offset as u64, len as u64))
}

/// Checks whether `addr` is in far memory and the program allows writes there (mprotect).
pub fn is_writable(addr: usize) -> bool {
    permits(addr, true)
}

/// Checks whether `addr` is in far memory and the program allows reads there (mprotect).
pub fn is_readable(addr: usize) -> bool {
    permits(addr, false)
}

fn permits(addr: usize, write: bool) -> bool {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return false };
    inside(move || state.engine.view().permits(offset, write))
}

/// Returns the end of the accessible range that starts at `at`. In this range the program allows reads, or writes if
/// `write` is true. The result is at most `end`. Memory that is not far counts as accessible, because the kernel itself
/// checks it.
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

/// Prefetches as many pages of a range as local memory has room for.
pub fn will_need(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready().filter(|_| active()), offset_of(addr)) else { return };
    inside(move || {
        state.engine.will_need(offset, len);
    })
}
