//! The `malloc` family: blocks of at least the threshold are far, smaller ones are glibc's.
//!
//! A far block is a whole far allocation, so its address alone tells whose it is. `calloc` relies on far allocations
//! being zero as they come and never touches them.

use std::ffi::{c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use hanare::{far, near};

use crate::answer::{abort_on_bad_pointer, errno, keeping_errno, set_errno};

const PAGE: usize = 4096;

/// A moved block is copied in pieces of this size, each given up behind the copy, so that the move holds a piece of
/// both blocks in local memory and not the whole of either.
const MOVE_PIECE: usize = 2 << 20;

/// glibc's `malloc_usable_size`, the one call of the family that has no second name.
static USABLE_SIZE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Looks the remaining symbol up while nothing else runs.
pub(crate) fn resolve() {
    usable_size_of_near(null_mut());
}

/// Whether a new block of `size` is to be far.
pub(crate) fn wants_far(size: usize) -> bool {
    size >= far::threshold() && far::active() && !far::is_own_thread()
}

/// A far block, zeroed; null with `ENOMEM` when there is no room. `align` is a power of two.
pub(crate) fn far_block(size: usize, align: usize) -> *mut c_void {
    let block =
        if size > isize::MAX as usize { null_mut() } else { keeping_errno(|| far::alloc(size, align.max(PAGE))) };
    if block.is_null() {
        set_errno(libc::ENOMEM);
    }
    block.cast()
}

fn block(size: usize) -> *mut c_void {
    if wants_far(size) { far_block(size, PAGE) } else { near::malloc(size).cast() }
}

fn aligned_block(align: usize, size: usize) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) if wants_far(size) => far_block(size, align),
        _ => near::memalign(align, size).cast(),
    }
}

fn zeroed_block(count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        Some(total) if wants_far(total) => far_block(total, PAGE),
        _ => near::calloc(count, size).cast(),
    }
}

/// # Safety
/// `block` is null or a live block, given up by its owner.
unsafe fn give_back(block: *mut c_void) {
    if !far::contains(block as usize) {
        // SAFETY: a block that is not far is glibc's, and the caller gives it up.
        unsafe { near::free(block.cast()) };
    } else if far::active() && !keeping_errno(|| far::free(block as usize)) {
        abort_on_bad_pointer("free()", block);
    }
    // A forked child does not own its parent's far memory: giving it back there is nothing to do.
}

/// # Safety
/// `block` is null or a live block that nobody else uses during the call.
unsafe fn resize(old: *mut c_void, size: usize) -> *mut c_void {
    if old.is_null() {
        return block(size);
    }
    if far::contains(old as usize) {
        // SAFETY: the caller's promise, for a far block.
        return unsafe { resize_far(old, size) };
    }
    if !wants_far(size) {
        // SAFETY: a block that is not far is glibc's.
        return unsafe { near::realloc(old.cast(), size).cast() };
    }
    let new = far_block(size, PAGE);
    if !new.is_null() {
        let kept = usable_size_of_near(old).min(size);
        // SAFETY: both blocks hold `kept` bytes and are distinct; the old one is given up.
        unsafe {
            ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast(), kept);
            near::free(old.cast());
        }
    }
    new
}

/// # Safety
/// `old` lies in far memory and is a live block that nobody else uses during the call.
unsafe fn resize_far(old: *mut c_void, size: usize) -> *mut c_void {
    if size == 0 {
        // SAFETY: the caller gives the block up.
        unsafe { give_back(old) };
        return null_mut();
    }
    if !far::active() {
        // A forked child cannot read the block, so it cannot be moved.
        set_errno(libc::ENOMEM);
        return null_mut();
    }
    let Some(old_len) = far::allocation(old as usize) else {
        abort_on_bad_pointer("realloc()", old);
    };
    let stays_far = wants_far(size);
    if stays_far && keeping_errno(|| far::resize(old as usize, size)) {
        return old;
    }
    let new = if stays_far { far_block(size, PAGE) } else { near::malloc(size).cast() };
    if !new.is_null() {
        // SAFETY: both hold the bytes copied and are distinct; nobody else uses the old one, which is given up.
        unsafe { move_from_far(old.cast(), new.cast(), old_len.min(size)) };
        keeping_errno(|| far::free(old as usize));
    }
    new
}

/// Copies out of far memory, discarding the source behind the copy.
///
/// # Safety
/// Both are valid for `len` bytes and do not overlap; `from` is page-aligned far memory nobody reads afterwards.
pub(crate) unsafe fn move_from_far(from: *mut u8, to: *mut u8, len: usize) {
    let mut done = 0;
    while done < len {
        let piece = MOVE_PIECE.min(len - done);
        // SAFETY: `done + piece` is at most `len`.
        unsafe { ptr::copy_nonoverlapping(from.add(done), to.add(done), piece) };
        if piece == MOVE_PIECE {
            keeping_errno(|| far::discard(from as usize + done, piece));
        }
        done += piece;
    }
}

fn usable_size_of_near(block: *mut c_void) -> usize {
    let mut found = USABLE_SIZE.load(Ordering::Acquire);
    if found.is_null() {
        // SAFETY: a plain symbol lookup with a terminated name.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"malloc_usable_size".as_ptr()) };
        USABLE_SIZE.store(found, Ordering::Release);
    }
    if found.is_null() || block.is_null() {
        return 0;
    }
    // SAFETY: the symbol is the C library's function of this type; the block is a live one of its heap.
    unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> usize>(found)(block) }
}

#[unsafe(no_mangle)]
extern "C" fn malloc(size: usize) -> *mut c_void {
    block(size)
}

#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    zeroed_block(count, size)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: the contract of free(3).
    unsafe { give_back(block) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the contract of realloc(3).
    unsafe { resize(block, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the contract of reallocarray(3).
        Some(total) => unsafe { resize(block, total) },
        None => {
            set_errno(libc::ENOMEM);
            null_mut()
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    aligned_block(align, size)
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    aligned_block(align, size)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_char>()) {
        return libc::EINVAL;
    }
    let before = errno();
    let block = aligned_block(align, size);
    set_errno(before);
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller of posix_memalign(3) gives a valid place for the result.
    unsafe { out.write(block) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn valloc(size: usize) -> *mut c_void {
    aligned_block(PAGE, size)
}

#[unsafe(no_mangle)]
extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(PAGE) {
        Some(size) => aligned_block(PAGE, size),
        None => {
            set_errno(libc::ENOMEM);
            null_mut()
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    if far::contains(block as usize) {
        return far::allocation(block as usize).unwrap_or(0);
    }
    usable_size_of_near(block)
}
