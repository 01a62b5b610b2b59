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
/// The caller owns the range and gives it up: nothing uses or borrows it any more.
pub unsafe fn make_hole(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready().filter(|_| active()), offset_of(addr)) else { return };
    inside(move || {
        state.discard_whole(offset, len);
        state.engine.view().set_access(Span { offset, len }, Prot::READ_WRITE);
        state.engine.view().puncture(Span { offset, len });
        places::look_up_in(state.engine.view().windows());
        // A unit at an edge of the range may lie only partly in it, so it was not discarded. If its page is in transit,
        // the transfer must end before the caller maps something else.
        let unit = state.granularity;
        for unit in [offset / unit, (offset + len - 1) / unit] {
            state.engine.settle(unit as u32);
        }
        state.far_changed();
    });
}

/// Makes page-aligned far memory ordinary memory with the same contents, for good. Needed for executable memory and for
/// the part of a thread's stack that the kernel accesses, which cannot be far.
///
/// # Errors
/// The errno of the kernel's refusal. In that case the range stays far, and is readable and writable.
///
/// # Safety
/// The caller owns the range. No other thread uses it during the call, and nothing borrows it.
pub unsafe fn expel(addr: usize, len: usize) -> Result<(), i32> {
    let aside = Mapping::anonymous(len).map_err(|_| libc::ENOMEM)?;
    // SAFETY: the caller owns the range, and nothing borrows it.
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
            // SAFETY: both ranges are whole mapped pages, `from` in the caller's range and `to` in the copy. Signals
            // are not blocked here, so faults on `from` are resolved.
            unsafe { copy::copy(from, to.add(at - offset), next - at) };
        }
        at = next;
    }
}
