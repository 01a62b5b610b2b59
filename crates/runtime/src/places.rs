//! The location of far memory: the reservation, and the alias and foreign mappings that change it. It needs no engine,
//! so it also answers in a forked child.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

use crate::span::Span;
use crate::windows::Windows;

static BASE: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
/// The alias and foreign mappings. Null until there is one.
static WINDOWS: AtomicPtr<Windows> = AtomicPtr::new(std::ptr::null_mut());
static ADOPTED: AtomicU64 = AtomicU64::new(0);

/// Notes that `len` bytes of far memory are reserved at `base`.
pub(crate) fn are_reserved(base: usize, len: usize) {
    BASE.store(base, Relaxed);
    LEN.store(len, Relaxed);
}

/// Looks far memory up in `windows` from now on.
pub(crate) fn look_up_in(windows: &'static Windows) {
    WINDOWS.store(std::ptr::from_ref(windows).cast_mut(), Release);
}

#[inline]
fn windows() -> Option<&'static Windows> {
    // SAFETY: null, or leaked.
    unsafe { WINDOWS.load(Acquire).as_ref() }
}

/// First address of the reservation.
#[inline]
pub(crate) fn base() -> usize {
    BASE.load(Relaxed)
}

/// Bytes of the reservation.
#[inline]
pub(crate) fn len() -> usize {
    LEN.load(Relaxed)
}

/// Whether far memory was started in this process, or in the parent that forked it.
pub fn is_started() -> bool {
    LEN.load(Relaxed) != 0
}

/// Whether an address is far. In a forked child it may be far without an engine.
#[inline]
pub fn contains(addr: usize) -> bool {
    match windows() {
        None => is_reserved(addr),
        Some(windows) => windows.offset_of(addr).is_some(),
    }
}

/// Whether an address lies in the reservation, which contains all allocations.
pub(crate) fn is_reserved(addr: usize) -> bool {
    addr.wrapping_sub(BASE.load(Relaxed)) < LEN.load(Relaxed)
}

/// Whether an address is far, and the end (at most `end`) of the range around it for which this does not change.
pub fn run(addr: usize, end: usize) -> (bool, usize) {
    let Some(windows) = windows() else {
        let (base, len) = (base(), len());
        let border = if addr < base { base } else { base + len };
        return (is_reserved(addr), if border > addr { border.min(end) } else { end });
    };
    (windows.offset_of(addr).is_some(), windows.border_after(addr, end))
}

/// Whether an address was far and became ordinary memory for good, by a mapping or as part of a stack.
#[inline]
pub fn is_hole(addr: usize) -> bool {
    is_reserved(addr) && windows().is_some_and(|windows| windows.is_hole(addr))
}

/// Whether any part of a range of the reservation became ordinary memory.
pub(crate) fn meets_hole(addr: usize, len: usize) -> bool {
    let mut meets = false;
    visit_holes(addr, len, |_, _| meets = true);
    meets
}

fn visit_holes(addr: usize, len: usize, visit: impl FnMut(usize, usize)) {
    if let Some(windows) = windows().filter(|_| is_reserved(addr)) {
        windows.holes_in(Span { offset: addr - base(), len }, visit);
    }
}

/// Drops the ordinary memory in a block that its owner has freed. The addresses stay excluded from far memory.
pub(crate) fn empty_holes(addr: usize, len: usize) {
    visit_holes(addr, len, |start, len| {
        // Ignored: memory that cannot be returned is kept.
        // SAFETY: a part of the block that nothing uses any more.
        let _ = unsafe { hanare_sys::syscall(libc::SYS_madvise, [start, len, libc::MADV_DONTNEED as usize, 0, 0, 0]) };
    });
}

/// The ranges of addresses that are far.
pub(crate) fn ranges() -> Vec<(usize, usize)> {
    let whole = Span { offset: 0, len: len() };
    let Some(windows) = windows() else { return vec![(base(), whole.len)] };
    let mut ranges = Vec::new();
    windows.runs(whole, |addr, part| ranges.push((addr, part.len)));
    ranges
}

/// Bytes of static arrays that became far.
pub(crate) fn adopted_bytes() -> u64 {
    ADOPTED.load(Relaxed)
}

/// Counts `len` more bytes of static arrays as far.
pub(crate) fn adopted(len: usize) {
    ADOPTED.fetch_add(len as u64, Relaxed);
}
