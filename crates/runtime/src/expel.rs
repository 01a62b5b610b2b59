//! Excludes ranges from far memory for good: the program maps something else there, or they hold what cannot be far,
//! such as code.

use hanare_sys::copy;
use hanare_sys::map::{self, Mapping, Prot};

use crate::process::{active, inside, offset_of, ready};
use crate::ranges::protect;
use crate::span::Span;
use crate::{kernel, places};

/// Makes page-aligned far memory ordinary memory for good, and drops its contents. The caller maps something else
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
        // A unit at the edge lies only partly in the range. If its page is in transit, the transit must end first.
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
/// The errno of the refusal. The range stays far then, readable and writable.
///
/// # Safety
/// The caller owns the range. No other thread uses it meanwhile, and nothing borrows it.
pub unsafe fn expel(addr: usize, len: usize) -> Result<(), i32> {
    let aside = Mapping::anonymous(len).map_err(|_| libc::ENOMEM)?;
    // SAFETY: passed on from the caller.
    unsafe { protect(addr, len, Prot::READ_WRITE.0) }?;
    copy_touched(addr, aside.as_ptr(), len);
    // SAFETY: passed on from the caller; its bytes are aside.
    unsafe { make_hole(addr, len) };
    let from = aside.leak();
    kernel::insist("map what is no longer to be far", || {
        // SAFETY: both ranges are ours or the caller's and do not overlap; the contents were copied.
        unsafe { map::move_to(from, addr, len) }
    });
    Ok(())
}

/// Copies the caller's far memory to zeroed near memory. Leaves out pages that were never accessed.
fn copy_touched(addr: usize, to: *mut u8, len: usize) {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return };
    let end = offset + len;
    let mut at = offset;
    while at < end {
        let next = ((at / state.granularity + 1) * state.granularity).min(end);
        let untouched = inside(move || state.engine.is_untouched((at / state.granularity) as u32));
        if !untouched {
            let from = (addr + (at - offset)) as *const u8;
            // SAFETY: both are mapped whole pages, the far ones the caller's; signals are not blocked, so faults are
            // resolved.
            unsafe { copy::copy(from, to.add(at - offset), next - at) };
        }
        at = next;
    }
}
