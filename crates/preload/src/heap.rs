//! The `malloc` family. Blocks of at least `far::threshold()` bytes are far. glibc allocates smaller blocks, until its
//! heap exceeds a limit (`far::small_blocks_are_far`).
//!
//! A block's address alone shows its allocator: `hanare::heap` allocates all far blocks.
//!
//! Some allocations are never far:
//! - Allocations of the dynamic linker. They contain the tables of thread-locals, which Hanare's own code reads while
//!   it resolves a fault.
//! - The C library's own allocations. They include buffers of streams and directories, which it passes to the kernel by
//!   calls that are not interposed. It resets streams in a forked child before the child can page. It reads a locale's
//!   tables in a new thread before the thread's first function runs. And before far memory has started, it may hold a lock
//!   that the start needs.
//!
//! The return address of a call shows whether the dynamic linker or the C library makes the call. So each entry point
//! that allocates passes on its return address.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hanare::{far, heap, near};
use hanare_settings::HumanSize;

use crate::answer::{errno, keeping_errno, set_errno};
use crate::code::{LIBRARY, LINKER, OWN};
use crate::entry::entry;
use crate::refuse;

const PAGE: usize = 4096;

/// True if the program itself defines the `malloc` family.
static IS_THE_PROGRAMS: AtomicBool = AtomicBool::new(false);

/// Finds out whether the program itself defines the `malloc` family. If so, the dynamic linker uses the program's
/// definitions, too. Definitions in the program's libraries are not used, because they come after this library's.
pub(crate) fn find() {
    // SAFETY: `dlsym` gets a NUL-terminated name.
    let bound = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"calloc".as_ptr()) };
    IS_THE_PROGRAMS.store(!bound.is_null() && !OWN.contains(bound as usize), Ordering::Release);
}

/// Returns whether the program itself defines the `malloc` family.
pub(crate) fn is_the_programs() -> bool {
    IS_THE_PROGRAMS.load(Ordering::Acquire)
}

/// Bytes that the program's own allocator has mapped near.
static LEFT_NEAR: AtomicU64 = AtomicU64::new(0);

/// Checks whether `size` bytes of memory stay near because the program's own allocator asks for them. The C library takes
/// the buffers of streams and directories from this allocator, and passes them to the kernel by calls that are not
/// interposed. Where these calls fail on far pages, streams would lose bytes. Ends the process at the limit that `--near`
/// sets.
pub(crate) fn stays_near(size: usize) -> bool {
    if !is_the_programs() {
        return false;
    }
    let Some((mode, limit)) = far::mode_without_calls() else { return false };
    if LEFT_NEAR.fetch_add(size as u64, Ordering::Relaxed) + size as u64 > limit {
        refuse(&format_args!(
            "this program defines its own malloc, from which the C library takes buffers for system calls; these fail here \
             on far pages in {mode} mode, so its memory stays near, and it wants more than --near gives ({}); see \
             'hanare doctor' for how to get another mode, or raise --near",
            HumanSize(limit)
        ));
    }
    true
}

/// Checks whether a block was far when it was allocated. Its first page may have become ordinary memory since then.
#[inline]
fn is_far_block(block: usize) -> bool {
    far::contains(block) || far::is_hole(block)
}

/// Checks whether a new block of `size` bytes for code at `caller` must be far.
#[inline]
fn wants_far_block(size: usize, caller: usize) -> bool {
    (size >= far::threshold() || far::small_blocks_are_far())
        && far::active()
        && !LINKER.contains(caller)
        && !LIBRARY.contains(caller)
        && !far::is_own_thread()
        && far::is_due(size)
}

/// Checks whether a new mapping of `size` bytes must be far.
pub(crate) fn wants_far(size: usize) -> bool {
    let may_be = size >= far::threshold() && far::active() && !far::is_own_thread() && far::is_due(size);
    may_be && !stays_near(size)
}

/// Returns whole pages of zeroed far memory, or null with `ENOMEM` if there is no room. `align` is a power of two.
pub(crate) fn far_pages(size: usize, align: usize) -> *mut c_void {
    far_pages_by(far::alloc, size, align)
}

/// Like `far_pages`, but reserves no room on the servers, as MAP_NORESERVE asks.
pub(crate) fn uncommitted_pages(size: usize) -> *mut c_void {
    far_pages_by(far::alloc_unpromised, size, PAGE)
}

fn far_pages_by(alloc: impl FnOnce(usize, usize) -> *mut u8, size: usize, align: usize) -> *mut c_void {
    let block = if size > isize::MAX as usize { null_mut() } else { keeping_errno(|| alloc(size, align.max(PAGE))) };
    if block.is_null() {
        set_errno(libc::ENOMEM);
    }
    block.cast()
}

#[inline]
extern "C" fn malloc_for(size: usize, caller: usize) -> *mut c_void {
    if wants_far_block(size, caller) {
        return heap::alloc(size, 1, false).cast();
    }
    far::allocates_near(size);
    near::malloc(size).cast()
}

extern "C" fn calloc_for(count: usize, size: usize, caller: usize) -> *mut c_void {
    match count.checked_mul(size) {
        Some(total) if wants_far_block(total, caller) => heap::alloc(total, 1, true).cast(),
        _ => {
            far::allocates_near(count.saturating_mul(size));
            near::calloc(count, size).cast()
        }
    }
}

extern "C" fn memalign_for(align: usize, size: usize, caller: usize) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) if wants_far_block(size, caller) => heap::alloc(size, align, false).cast(),
        _ => {
            far::allocates_near(size);
            near::memalign(align, size).cast()
        }
    }
}

/// # Safety
/// The caller keeps the contract of realloc(3).
unsafe extern "C" fn realloc_for(old: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    if old.is_null() {
        return malloc_for(size, caller);
    }
    if is_far_block(old as usize) {
        // SAFETY: the caller keeps the contract of realloc(3), and `old` is a far block.
        return unsafe { resize_far(old, size, caller) };
    }
    // A small near block stays where it is if it can.
    // SAFETY: `old` is a live block that is not far, so glibc allocated it.
    let stays = size < far::threshold() && unsafe { near::usable_size(old.cast()) } >= size;
    if stays || !wants_far_block(size, caller) {
        far::allocates_near(size);
        // SAFETY: `old` is a live block that is not far, so glibc allocated it.
        return unsafe { near::realloc(old.cast(), size).cast() };
    }
    if size == 0 {
        // SAFETY: `old` is a live block from glibc that its owner gives up.
        unsafe { near::free(old.cast()) };
        return null_mut();
    }
    let new = heap::alloc(size, 1, false);
    if !new.is_null() {
        // SAFETY: `old` is a live block from glibc that its owner gives up. Both blocks have at least `kept` bytes and
        // do not overlap.
        unsafe {
            let kept = near::usable_size(old.cast()).min(size);
            ptr::copy_nonoverlapping(old.cast::<u8>(), new, kept);
            near::free(old.cast());
        }
    }
    new.cast()
}

/// # Safety
/// The caller keeps the contract of reallocarray(3).
unsafe extern "C" fn reallocarray_for(old: *mut c_void, count: usize, size: usize, caller: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller keeps the contract of reallocarray(3).
        Some(total) => unsafe { realloc_for(old, total, caller) },
        None => {
            set_errno(libc::ENOMEM);
            null_mut()
        }
    }
}

/// # Safety
/// The caller keeps the contract of posix_memalign(3).
unsafe extern "C" fn posix_memalign_for(out: *mut *mut c_void, align: usize, size: usize, caller: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_char>()) {
        return libc::EINVAL;
    }
    let before = errno();
    let block = memalign_for(align, size, caller);
    set_errno(before);
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: under the contract of posix_memalign(3), `out` is valid for the result.
    unsafe { out.write(block) };
    0
}

extern "C" fn valloc_for(size: usize, caller: usize) -> *mut c_void {
    memalign_for(PAGE, size, caller)
}

extern "C" fn pvalloc_for(size: usize, caller: usize) -> *mut c_void {
    match size.checked_next_multiple_of(PAGE) {
        Some(size) => memalign_for(PAGE, size, caller),
        None => {
            set_errno(libc::ENOMEM);
            null_mut()
        }
    }
}

/// # Safety
/// `block` is null or a live block that its owner gives up.
#[inline]
unsafe fn give_back(block: *mut c_void) {
    if !is_far_block(block as usize) {
        // SAFETY: a block that is not far comes from glibc, and the caller gives it up.
        unsafe { near::free(block.cast()) };
    } else if far::active() {
        // SAFETY: `block` is a live far block, and the caller gives it up.
        if let Err(error) = unsafe { heap::free(block as usize) } {
            heap::abort_on("free()", block as usize, error);
        }
    }
    // If the engine is not active, this is a forked child that does not own its parent's far memory. It has nothing to
    // free.
}

/// # Safety
/// `old` is a live block in far memory that no other thread uses during the call.
unsafe fn resize_far(old: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    if size == 0 {
        // SAFETY: the caller gives the block up.
        unsafe { give_back(old) };
        return null_mut();
    }
    if !far::active() {
        // A forked child without its parent's far memory cannot read the block, so the block cannot be moved.
        set_errno(libc::ENOMEM);
        return null_mut();
    }
    let addr = old as usize;
    if wants_far_block(size, caller) {
        // SAFETY: the caller passes a live far block that no other thread uses.
        return match unsafe { heap::resize(addr, size) } {
            Ok(block) => block.cast(),
            Err(error) => heap::abort_on("realloc()", addr, error),
        };
    }
    let Some(old_len) = heap::usable_size(addr) else {
        heap::abort_on("realloc()", addr, heap::BadPointer::Invalid);
    };
    let new = near::malloc(size);
    if !new.is_null() {
        // SAFETY: both blocks hold the moved bytes and do not overlap. No other thread uses `old`, which the caller
        // gives up.
        unsafe {
            keeping_errno(|| heap::move_bytes(old.cast(), new, old_len.min(size)));
            give_back(old);
        }
    }
    new.cast()
}

entry!(malloc, "rsi", "x1", malloc_for, fn(_size: usize) -> *mut c_void);
entry!(calloc, "rdx", "x2", calloc_for, fn(_count: usize, _size: usize) -> *mut c_void);
entry!(realloc, "rdx", "x2", realloc_for, fn(_old: *mut c_void, _size: usize) -> *mut c_void);
entry!(reallocarray, "rcx", "x3", reallocarray_for, fn(_old: *mut c_void, _count: usize, _size: usize) -> *mut c_void);
entry!(memalign, "rdx", "x2", memalign_for, fn(_align: usize, _size: usize) -> *mut c_void);
entry!(aligned_alloc, "rdx", "x2", memalign_for, fn(_align: usize, _size: usize) -> *mut c_void);
entry!(
    posix_memalign,
    "rcx",
    "x3",
    posix_memalign_for,
    fn(_out: *mut *mut c_void, _align: usize, _size: usize) -> c_int
);
entry!(valloc, "rsi", "x1", valloc_for, fn(_size: usize) -> *mut c_void);
entry!(pvalloc, "rsi", "x1", pvalloc_for, fn(_size: usize) -> *mut c_void);

#[unsafe(no_mangle)]
unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: under the contract of free(3), `block` is null or a live block that its owner gives up.
    unsafe { give_back(block) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    if is_far_block(block as usize) {
        return heap::usable_size(block as usize).unwrap_or(0);
    }
    // SAFETY: the caller keeps the contract of malloc_usable_size(3). A block that is not far comes from glibc.
    unsafe { near::usable_size(block.cast()) }
}
