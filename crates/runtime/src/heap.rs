//! The heap: allocates and frees far blocks of any size without accessing them.
//!
//! Blocks below [`DIRECT_MIN`] come from jemalloc, whose arenas lie in far memory and whose metadata does not
//! (`arena`). Larger ones are extents of their own (`ranges`), which start on a boundary of the largest page and are
//! discarded as soon as they are freed. A near map (`blocks`) finds the block of a pointer, so that a bad pointer is
//! reported and never used.
//!
//! This is the allocator of the papers' second open problem (Saito, Midorikawa, Kai: allocation and freeing at malloc's
//! speed). Their bookkeeping is out of band as well, but walks lists for every block.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering::*};

use crate::{fatal, near, places, process, ranges};

mod arena;
mod blocks;
mod classes;

use blocks::{Blocks, Start};
use classes::{GRAIN, SIZES, SMALL_MAX, class_for};

/// Blocks of at least this size, in bytes, are extents of their own.
pub const DIRECT_MIN: usize = 1 << 20;

/// Reused memory of at least this size is discarded to zero it. Smaller memory is zeroed by writing.
const DISCARD_MIN: usize = 64 << 10;

/// Bytes of a piece in which a moved block is copied. Each piece is discarded at the source after its copy, so that a
/// move does not need room for the block twice.
const MOVE_PIECE: usize = 2 << 20;

const PAGE: usize = 4096;

/// Why there is no heap.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum HeapError {
    #[error("this build's jemalloc has other options than Hanare's; build it again without JEMALLOC_OVERRIDE")]
    Options,
    #[error("jemalloc refuses {}: {source}; raise the limit on address space", option.to_string_lossy())]
    Refused { option: &'static CStr, source: std::io::Error },
}

/// Why a freed or resized pointer is bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadPointer {
    /// No block starts at this address.
    Invalid,
    /// The block was freed before.
    Freed,
}

struct Heap {
    base: usize,
    blocks: Blocks,
}

static HEAP: AtomicPtr<Heap> = AtomicPtr::new(std::ptr::null_mut());

#[inline]
fn heap() -> Option<&'static Heap> {
    // SAFETY: set once to a leaked box, or null.
    unsafe { HEAP.load(Acquire).as_ref() }
}

fn with_heap(call: impl FnOnce(&Heap)) {
    if let Some(heap) = heap() {
        call(heap);
    }
}

/// Makes the heap of this process, over far memory of `len` bytes at `base`. Must precede the first [`alloc`].
pub(crate) fn open(base: usize, len: usize) -> Result<(), HeapError> {
    HEAP.store(Box::leak(Box::new(Heap { base, blocks: Blocks::new(len) })), Release);
    arena::open()
}

/// Takes jemalloc's locks for a fork. Call it before `fork::before`, in a library whose fork handlers run before those
/// of jemalloc: a thread that holds such a lock may have to enter the engine before it releases the lock.
pub(crate) fn lock_for_fork() {
    arena::lock_for_fork();
}

/// Whether a child of the fork under way may use the heap. False if the heap was opened after the fork began.
pub(crate) fn can_be_forked() -> bool {
    heap().is_none() || arena::is_locked()
}

/// Allocates `size` bytes of far memory at a multiple of `align` (a power of two; at least 16 is used), zeroed if asked
/// for. Returns null with errno ENOMEM when there is no room. Accesses no page, except to zero a reused block of less
/// than 64 KiB.
#[inline(always)] // as in [`free`]
pub fn alloc(size: usize, align: usize, zeroed: bool) -> *mut u8 {
    let block = match (heap(), class_for(size)) {
        (Some(heap), Some(class)) if align <= GRAIN => heap.alloc_small(class, zeroed),
        (Some(heap), _) => heap.alloc_other(size, align, zeroed),
        (None, _) => alloc_first(size, align, zeroed),
    };
    if block.is_null() {
        // SAFETY: the location of the calling thread's errno is always valid.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
    }
    block
}

/// Starts far memory, if its start was deferred, and allocates the first block.
#[cold]
fn alloc_first(size: usize, align: usize, zeroed: bool) -> *mut u8 {
    process::ensure_started();
    if heap().is_some() { alloc(size, align, zeroed) } else { std::ptr::null_mut() }
}

/// Frees a block. Nothing of it is fetched or accessed.
///
/// # Errors
/// Why the pointer is bad; nothing was done. A second free of a block is noticed until its pages are used again; of a
/// small block, only within the next some thousand frees.
///
/// # Safety
/// Nothing uses the block at `addr` afterwards, if there is one.
#[inline(always)] // a tenth of a small block's free would be the call
pub unsafe fn free(addr: usize) -> Result<(), BadPointer> {
    let Some(heap) = heap() else { return Err(BadPointer::Invalid) };
    let offset = addr.wrapping_sub(heap.base);
    match heap.blocks.find(offset) {
        Start::Small(class) if heap.blocks.take_small(offset) => {
            // SAFETY: a block of this class starts here and was not freed, as far as the map knows: the caller's
            // promise.
            unsafe { arena::free_sized(addr as *mut u8, SIZES[class] as usize) };
            Ok(())
        }
        Start::Small(_) => Err(BadPointer::Freed),
        // SAFETY: passed on from the caller.
        start => unsafe { heap.free_other(addr, start) },
    }
}

/// Retires a block if part of it became ordinary memory, like the end of a stack: its addresses are no longer far and
/// do not read as zeroes, so it must not be used again. Returns whether it did.
///
/// # Safety
/// A live large block starts here, which nothing uses any more.
unsafe fn is_retired(addr: usize) -> bool {
    // SAFETY: the caller's promise.
    let len = unsafe { arena::size_of_block(addr as *mut u8) };
    let retired = places::meets_hole(addr, len);
    if retired {
        // SAFETY: as above.
        unsafe { ranges::heap_discards(addr, len) };
        places::empty_holes(addr, len);
    }
    retired
}

/// Bytes of local memory that the heap's and the pager's own data take. Walks their tables, in about a millisecond.
pub(crate) fn near_bytes() -> u64 {
    near::large_resident() + arena::metadata().map(|(addr, len)| near::resident(addr, len)).sum::<u64>()
}

/// Ends the process as the C library does when a program passes `call` a pointer that it never received, or already
/// freed.
pub fn abort_on(call: &str, addr: usize, error: BadPointer) -> ! {
    match error {
        BadPointer::Invalid => fatal::abort(format_args!(
            "{call}: invalid pointer: {addr:#x}; no block starts there, look for who computed it"
        )),
        BadPointer::Freed => fatal::abort(format_args!(
            "{call}: double free: {addr:#x}; the block was freed before, look for its other owner"
        )),
    }
}

/// Usable bytes of the block at `addr`. `None` when none starts there.
pub fn usable_size(addr: usize) -> Option<usize> {
    let heap = heap()?;
    match heap.blocks.find(addr.wrapping_sub(heap.base)) {
        Start::Small(class) => Some(SIZES[class] as usize),
        // SAFETY: a live large block starts here.
        Start::Large => Some(unsafe { arena::size_of_block(addr as *mut u8) }),
        Start::Outside => ranges::allocation(addr),
        Start::Nowhere => None,
    }
}

/// Changes the size of the block at `addr` (not 0), and moves it if necessary. Returns null with errno ENOMEM, and
/// leaves the block as it was, when there is no room. Blocks from [`DIRECT_MIN`] on grow in place if possible.
/// Otherwise their bytes are copied, and the old pages are discarded.
///
/// # Errors
/// Why the pointer is bad.
///
/// # Safety
/// Nobody else uses the block during the call.
pub unsafe fn resize(addr: usize, size: usize) -> Result<*mut u8, BadPointer> {
    let old = usable_size(addr).ok_or(BadPointer::Invalid)?;
    // SAFETY: the caller's promise.
    if unsafe { resize_in_place(addr, old, size) } {
        return Ok(addr as *mut u8);
    }
    let new = alloc(size, GRAIN, false);
    if !new.is_null() {
        // SAFETY: both blocks hold these bytes and are distinct; the old one is given up.
        unsafe {
            move_bytes(addr as *mut u8, new, old.min(size));
            free(addr)?;
        }
    }
    Ok(new)
}

/// # Safety
/// A live block of `old` bytes starts at `addr`, and nobody else uses it during the call.
unsafe fn resize_in_place(addr: usize, old: usize, size: usize) -> bool {
    let shrinks_little = size <= old && size > old / 2;
    match heap().map(|heap| (heap, heap.blocks.find(addr.wrapping_sub(heap.base)))) {
        Some((heap, Start::Large))
            if !shrinks_little && (SMALL_MAX + 1..DIRECT_MIN).contains(&size) && !places::meets_hole(addr, old) =>
        {
            // SAFETY: the caller's promise.
            let now = unsafe { arena::resize_in_place(addr as *mut u8, size) };
            heap.blocks.give_large(addr - heap.base, now);
            now >= size && (size >= old || now < old)
        }
        // SAFETY: the caller's promise, for an allocation of its own.
        Some((_, Start::Outside)) if size > DIRECT_MIN / 2 => unsafe { ranges::resize(addr, size) },
        _ => shrinks_little,
    }
}

/// Copies bytes whose source is no longer needed, and discards whole pieces of far memory after their copy.
///
/// # Safety
/// Both are valid for `len` bytes and do not overlap, and nobody reads the source afterwards.
pub unsafe fn move_bytes(from: *mut u8, to: *mut u8, len: usize) {
    let whole = (from as usize).is_multiple_of(PAGE);
    let mut done = 0;
    while done < len {
        let piece = MOVE_PIECE.min(len - done);
        // SAFETY: `done + piece` is at most `len`.
        unsafe { to.add(done).copy_from_nonoverlapping(from.add(done), piece) };
        if piece == MOVE_PIECE && whole {
            // SAFETY: these bytes are copied, and nobody reads the source afterwards.
            unsafe { ranges::discard(from as usize + done, piece) };
        }
        done += piece;
    }
}

impl Heap {
    #[inline]
    fn alloc_small(&self, class: usize, zeroed: bool) -> *mut u8 {
        let size = SIZES[class] as usize;
        let Some(block) = arena::alloc(size) else { return std::ptr::null_mut() };
        self.blocks.give_small(block.addr().get() - self.base, class);
        if zeroed {
            // SAFETY: a block of this size that no other code knows yet.
            unsafe { block.write_bytes(0, size) };
        }
        block.as_ptr()
    }

    /// Frees a block that is not small. A separate function keeps the path of the many small blocks short.
    ///
    /// # Safety
    /// Nothing uses the block at `addr` afterwards, if there is one; the map knows it as `start`.
    #[inline(never)]
    unsafe fn free_other(&self, addr: usize, start: Start) -> Result<(), BadPointer> {
        match start {
            Start::Large if self.blocks.take_large(addr.wrapping_sub(self.base)) => {
                // SAFETY: as below.
                if unsafe { is_retired(addr) } {
                    return Ok(());
                }
                // SAFETY: a live large block starts here, and no other thread took it.
                unsafe { arena::free(addr as *mut u8) };
                Ok(())
            }
            // SAFETY: the caller gives up the block that starts here, if one does.
            Start::Outside if unsafe { ranges::free(addr) } => Ok(()),
            Start::Small(_) | Start::Large => Err(BadPointer::Freed),
            Start::Outside | Start::Nowhere => Err(BadPointer::Invalid),
        }
    }

    /// Allocates a large block, or a small one of unusual alignment.
    fn alloc_other(&self, size: usize, align: usize, zeroed: bool) -> *mut u8 {
        if size >= DIRECT_MIN || align > PAGE {
            return if size > isize::MAX as usize { std::ptr::null_mut() } else { ranges::alloc(size, align) };
        }
        let (size, align) = (size.max(GRAIN), align.max(GRAIN));
        let (usable, block) = (arena::size_for(size, align), arena::alloc_aligned(size, align));
        let Some(block) = block else { return std::ptr::null_mut() };
        let offset = block.addr().get() - self.base;
        match class_for(usable) {
            Some(class) => self.blocks.give_small(offset, class),
            None => self.blocks.give_large(offset, usable),
        }
        if zeroed && usable >= DISCARD_MIN {
            // SAFETY: a block that nobody else has yet.
            unsafe { ranges::discard(block.addr().get(), usable) };
        } else if zeroed {
            // SAFETY: a block of at least `size` bytes that nobody else has yet.
            unsafe { block.write_bytes(0, size) };
        }
        block.as_ptr()
    }
}
