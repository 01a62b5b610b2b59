//! Tells which addresses are far. The addresses of the reservation are far, with two exceptions. A foreign mapping is a
//! range over which the program has mapped something else: it is not far. An alias mapping shows a part of far memory
//! at an address outside the reservation. Only the outside address is then far, and the part's address in the
//! reservation is not. This module needs no engine, so it also works in a forked child.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

use crate::span::Span;
use crate::windows::Windows;

/// First address of the reservation. 0 before far memory is started.
static BASE: AtomicUsize = AtomicUsize::new(0);
/// Bytes of the reservation. 0 before far memory is started.
static LEN: AtomicUsize = AtomicUsize::new(0);
/// The table of alias and foreign mappings. Null until there is such a mapping.
static WINDOWS: AtomicPtr<Windows> = AtomicPtr::new(std::ptr::null_mut());
/// Bytes of static arrays that became far.
static ADOPTED: AtomicU64 = AtomicU64::new(0);

/// Notes that `len` bytes of far memory are reserved at `base`.
pub(crate) fn are_reserved(base: usize, len: usize) {
    BASE.store(base, Relaxed);
    LEN.store(len, Relaxed);
}

/// Makes `windows` the table of alias and foreign mappings from now on.
pub(crate) fn look_up_in(windows: &'static Windows) {
    WINDOWS.store(std::ptr::from_ref(windows).cast_mut(), Release);
}

#[inline]
fn windows() -> Option<&'static Windows> {
    // SAFETY: `WINDOWS` is null or points to a table that is never freed.
    unsafe { WINDOWS.load(Acquire).as_ref() }
}

/// Returns the first address of the reservation.
#[inline]
pub(crate) fn base() -> usize {
    BASE.load(Relaxed)
}

/// Returns the length of the reservation in bytes.
#[inline]
pub(crate) fn len() -> usize {
    LEN.load(Relaxed)
}

/// Returns whether far memory was started in this process, or in the parent that forked it.
pub fn is_started() -> bool {
    LEN.load(Relaxed) != 0
}

/// Returns whether an address is far. In a forked child, an address may be far although no engine runs.
#[inline]
pub fn contains(addr: usize) -> bool {
    match windows() {
        None => is_reserved(addr),
        Some(windows) => windows.offset_of(addr).is_some(),
    }
}

/// Returns whether an address lies in the reservation, which contains all allocations.
pub(crate) fn is_reserved(addr: usize) -> bool {
    addr.wrapping_sub(BASE.load(Relaxed)) < LEN.load(Relaxed)
}

/// Returns whether `addr` is far, and the end of a range that starts at `addr` and in which every address has the same
/// answer. This end is at most `end`.
pub fn run(addr: usize, end: usize) -> (bool, usize) {
    let Some(windows) = windows() else {
        let (base, len) = (base(), len());
        let border = if addr < base { base } else { base + len };
        return (is_reserved(addr), if border > addr { border.min(end) } else { end });
    };
    (windows.offset_of(addr).is_some(), windows.border_after(addr, end))
}

/// Returns whether an address was far and is ordinary memory now: the program has mapped something else there, or the
/// memory there could not be far.
#[inline]
pub fn is_hole(addr: usize) -> bool {
    is_reserved(addr) && windows().is_some_and(|windows| windows.is_hole(addr))
}

/// Returns whether any part of a range of the reservation became ordinary memory.
pub(crate) fn meets_hole(addr: usize, len: usize) -> bool {
    let mut meets = false;
    visit_holes(addr, len, |_, _| meets = true);
    meets
}

/// Calls `visit` with the address and length of each part of a range that became ordinary memory.
fn visit_holes(addr: usize, len: usize, visit: impl FnMut(usize, usize)) {
    if let Some(windows) = windows().filter(|_| is_reserved(addr)) {
        windows.holes_in(Span { offset: addr - base(), len }, visit);
    }
}

/// Drops the contents of those parts of a freed block that became ordinary memory. These parts never become far again.
pub(crate) fn empty_holes(addr: usize, len: usize) {
    visit_holes(addr, len, |start, len| {
        // Ignored: if the call fails, the memory only stays in use.
        // SAFETY: the range is a part of a freed block, and nothing uses its contents afterwards.
        let _ = unsafe { hanare_sys::syscall(libc::SYS_madvise, [start, len, libc::MADV_DONTNEED as usize, 0, 0, 0]) };
    });
}

/// Calls `visit` with the address and length of each far range. Allocates nothing.
pub(crate) fn each_range(mut visit: impl FnMut(usize, usize)) {
    let whole = Span { offset: 0, len: len() };
    match windows() {
        Some(windows) => windows.runs(whole, |addr, part| visit(addr, part.len)),
        None => visit(base(), whole.len),
    }
}

/// Returns the number of bytes of static arrays that became far.
pub(crate) fn adopted_bytes() -> u64 {
    ADOPTED.load(Relaxed)
}

/// Counts `len` more bytes of static arrays as far.
pub(crate) fn adopted(len: usize) {
    ADOPTED.fetch_add(len as u64, Relaxed);
}
