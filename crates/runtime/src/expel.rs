//! Excludes ranges from far memory for good. This happens if the program maps something else there, or if the range
//! holds memory that cannot be far, such as code.

use hanare_sys::copy;
use hanare_sys::map::{self, Mapping, Prot};

use crate::process::{active, inside, offset_of, ready};
use crate::ranges::protect;
use crate::span::Span;
use crate::{kernel, places};

/// Excludes a page-aligned range from far memory for good, and drops its contents. The caller then maps something else
/// there.
///
/// # Safety
/// The caller owns the range. Nothing uses or borrows the range afterwards.
pub unsafe fn make_hole(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready().filter(|_| active()), offset_of(addr)) else { return };
    inside(move || {
        state.return_kept_in(offset, len);
        // The program may have unmapped a part of the range before. No allocation may get its addresses.
        state.extents.lock().claim(offset as u64, len as u64);
        state.discard_whole(offset, len);
        state.engine.view().set_access(Span { offset, len }, Prot::READ_WRITE);
        state.engine.view().puncture(Span { offset, len });
        places::look_up_in(state.engine.view().windows());
        // A unit (the pager's smallest page) at an edge of the range may lie only partly in the range. Such a unit was
        // not discarded. If it is in transit, the transfer must end before the caller maps something else.
        let unit = state.granularity;
        for unit in [offset / unit, (offset + len - 1) / unit] {
            state.engine.settle(unit as u32);
        }
        state.far_changed();
    });
}

/// Turns page-aligned far memory into ordinary memory for good, and keeps its contents. Two kinds of memory cannot be
/// far: executable memory, and the part of a thread's stack that the kernel accesses.
///
/// # Errors
/// `ENOMEM` if there is no memory for a copy, or the errno with which the kernel refuses to change the access rights.
/// In both cases the range stays far.
///
/// # Safety
/// The caller owns the range. No other thread uses it during the call, and nothing borrows it.
pub unsafe fn expel(addr: usize, len: usize) -> Result<(), i32> {
    let aside = Mapping::anonymous(len).map_err(|_| libc::ENOMEM)?;
    // SAFETY: the caller owns the range. Nothing borrows it, so no reference depends on its access rights.
    unsafe { protect(addr, len, Prot::READ_WRITE.0) }?;
    copy_touched(addr, aside.as_ptr(), len);
    // SAFETY: the caller owns the range, and nothing uses or borrows it. Its contents were copied to `aside`.
    unsafe { make_hole(addr, len) };
    let from = aside.leak();
    kernel::insist("map what is no longer to be far", || {
        // SAFETY: `from` is our own mapping of `len` bytes. The range at `addr` is the caller's, and its contents were
        // copied. The two ranges do not overlap.
        unsafe { map::move_to(from, addr, len) }
    });
    Ok(())
}

/// Copies a range of far memory to `to`, which is zeroed near memory. Leaves out pages that were never accessed.
fn copy_touched(addr: usize, to: *mut u8, len: usize) {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return };
    let end = offset + len;
    let mut at = offset;
    while at < end {
        let next = ((at / state.granularity + 1) * state.granularity).min(end);
        let untouched = inside(move || state.engine.is_untouched((at / state.granularity) as u32));
        if !untouched {
            let from = (addr + (at - offset)) as *const u8;
            // SAFETY: both ranges are whole mapped pages. `from` lies in the caller's range, and the other range lies
            // in the zeroed memory at `to`. Signals are not blocked here, so faults on `from` are resolved.
            unsafe { copy::copy(from, to.add(at - offset), next - at) };
        }
        at = next;
    }
}
