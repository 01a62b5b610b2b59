//! Far memory elsewhere than in the reservation: static arrays become far where they stand, and parts of far memory
//! become the kernel's when the program maps something else over them.

use super::*;
use crate::adopt::{AdoptError, Aside, Piece};
use crate::windows::{MARK, WINDOWS_MAX};
use hanare_sys::map::{self, Mapping};

/// How often [`adopt`] works in a process.
pub const ADOPTED_MAX: usize = WINDOWS_MAX;

static ADOPTED: AtomicU64 = AtomicU64::new(0);

/// Bytes of static arrays that became far.
pub(super) fn adopted_bytes() -> u64 {
    ADOPTED.load(Relaxed)
}

/// Makes memory far where it stands, with what it holds. The pieces are in address order without gaps.
///
/// # Errors
/// See [`AdoptError`]. After [`AdoptError::View`] what the memory held is lost, and the program must not run.
///
/// # Safety
/// The caller owns the pieces, each (part of) one private mapping of the program's, readable and writable. No other thread
/// touches them meanwhile, neither does anything that a fault of this thread is resolved with, and the trap signal is not
/// blocked.
pub unsafe fn adopt(pieces: &[Piece]) -> Result<(), AdoptError> {
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Ok(()) };
    let (addr, len) = (first.addr, last.addr + last.len - first.addr);
    let state = ready().filter(|_| active()).ok_or(AdoptError::Room(len))?;
    // Offset and address are alike up to the largest page, so that such pages can be moved whole.
    let lead = addr % MARK;
    let taken = (lead + len).next_multiple_of(MARK);
    let mask = SignalMask::block_all();
    let inside = gate::enter();
    let start = state.extents.lock().alloc(taken as u64, MARK as u64).ok_or(AdoptError::Room(len))?;
    // SAFETY: passed on from the caller.
    let aside = match unsafe { Aside::take(pieces) } {
        Ok(aside) => aside,
        Err(error) => {
            state.extents.lock().free(start);
            return Err(error);
        }
    };
    let span = Span { offset: start as usize + lead, len };
    // SAFETY: nothing is mapped there: the pieces have just been moved away.
    unsafe { state.engine.view().add_window(addr, span) }?;
    state.look_up_places();
    state.idle.fetch_add((taken - len) as u64, Relaxed);
    ADOPTED.fetch_add(len as u64, Relaxed);
    state.far_changed();
    drop(inside);
    drop(mask);
    aside.refill();
    Ok(())
}

/// Whether an address is far, and up to where (at most `end`) that stays so in one piece.
pub fn run(addr: usize, end: usize) -> (bool, usize) {
    // SAFETY: null, or leaked.
    let Some(windows) = (unsafe { WINDOWS.load(Acquire).as_ref() }) else {
        let (base, len) = (BASE.load(Relaxed), LEN.load(Relaxed));
        let border = if addr < base { base } else { base + len };
        return (is_reserved(addr), if border > addr { border.min(end) } else { end });
    };
    (windows.offset_of(addr).is_some(), windows.border_after(addr, end))
}

/// Makes page-aligned far memory the kernel's for good, its contents lost: the caller maps something else there.
///
/// # Safety
/// The caller owns the range and gives it up: nobody uses or borrows it any more.
pub unsafe fn make_hole(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready().filter(|_| active()), offset_of(addr)) else { return };
    inside(move || {
        state.discard_whole(offset, len);
        state.engine.view().set_access(Span { offset, len }, Prot::READ_WRITE);
        state.engine.view().puncture(Span { offset, len });
        state.look_up_places();
        // Units that are only partly in the hole: what was begun on them before they were so must end.
        let unit = state.granularity;
        for unit in [offset / unit, (offset + len - 1) / unit] {
            state.engine.settle(unit as u32);
        }
        state.far_changed();
    });
}

/// Makes page-aligned far memory plain memory of the kernel's with the same contents, for good: what is to be executed
/// cannot be far, nor what the kernel accesses of a thread's stack.
///
/// # Errors
/// The errno of the refusal; nothing but the access has changed.
///
/// # Safety
/// The caller owns the range; no other thread uses it meanwhile, and nobody borrows it.
pub unsafe fn expel(addr: usize, len: usize) -> Result<(), i32> {
    let aside = Mapping::anonymous(len).map_err(|_| libc::ENOMEM)?;
    // SAFETY: passed on from the caller.
    unsafe { protect(addr, len, Prot::READ_WRITE.0) }?;
    copy_touched(addr, aside.as_ptr(), len);
    // SAFETY: passed on from the caller; its bytes are aside.
    unsafe { make_hole(addr, len) };
    let from = aside.leak();
    crate::kernel::insist("map what is no longer to be far", || {
        // SAFETY: both ranges are ours or the caller's, apart from each other; what the one held is in the other.
        unsafe { map::move_to(from, addr, len) }
    });
    Ok(())
}

/// Copies the caller's far memory to near memory of zeroes. Leaves out pages that were never accessed.
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

/// Whether an address is one of the far ones that became the kernel's for good, by a mapping or as part of a stack.
#[inline]
pub fn is_hole(addr: usize) -> bool {
    // SAFETY: null, or leaked.
    is_reserved(addr) && unsafe { WINDOWS.load(Acquire).as_ref() }.is_some_and(|windows| windows.is_hole(addr))
}

/// Whether any of a range of the reservation became the kernel's.
pub(crate) fn meets_hole(addr: usize, len: usize) -> bool {
    let mut meets = false;
    visit_holes(addr, len, |_, _| meets = true);
    meets
}

fn visit_holes(addr: usize, len: usize, visit: impl FnMut(usize, usize)) {
    // SAFETY: null, or leaked.
    if let Some(windows) = unsafe { WINDOWS.load(Acquire).as_ref() }.filter(|_| is_reserved(addr)) {
        windows.holes_in(Span { offset: addr - BASE.load(Relaxed), len }, visit);
    }
}

/// Gives the memory of the kernel's back that lies in a block, whose owner has given it up. The addresses stay its own.
pub(crate) fn empty_holes(addr: usize, len: usize) {
    visit_holes(addr, len, |start, len| {
        // Ignored: what cannot be given back is kept.
        // SAFETY: a part of the block that nobody uses any more.
        let _ = unsafe { hanare_sys::syscall(libc::SYS_madvise, [start, len, libc::MADV_DONTNEED as usize, 0, 0, 0]) };
    });
}

impl State {
    /// From now on far memory is where the windows say.
    fn look_up_places(&self) {
        WINDOWS.store(std::ptr::from_ref(self.engine.view().windows()).cast_mut(), Release);
    }
}
