//! The heap: allocates and frees far blocks of any size. It accesses the pages of a block only to zero them.
//!
//! Blocks below [`DIRECT_MIN`] come from jemalloc (module `arena`). Its arenas are in far memory, and its metadata is
//! in near memory. Each larger block is an extent of its own (module `ranges`). A freed extent keeps its pages for a while.
//! A map in near memory, which is never evicted, tells which block starts at an address (module `blocks`). So a bad
//! pointer is reported and never used.
//!
//! This allocator solves the second open problem of the papers (Saito, Midorikawa, Kai): allocation and freeing at the
//! speed of malloc. The allocator of the papers also keeps its metadata apart from the blocks. But it walks lists for
//! every block.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering::*};

use crate::ranges::Freed;
use crate::{fatal, near, places, process, ranges};

mod arena;
mod blocks;
mod classes;

use blocks::{Blocks, Start};
use classes::{GRAIN, SIZES, SMALL_MAX, class_for};

/// Blocks of at least this size, in bytes, are extents of their own.
pub const DIRECT_MIN: usize = 1 << 20;

/// Minimum size in bytes of reused memory that is zeroed by a discard. A smaller range is zeroed by writing.
const DISCARD_MIN: usize = 64 << 10;

/// Size in bytes of the pieces in which a large block is copied to a new address. After each copy, the piece is
/// discarded at the old address. So the whole block is never in local memory twice.
const MOVE_PIECE: usize = 2 << 20;

const PAGE: usize = 4096;

/// The reason why the heap could not be set up.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum HeapError {
    #[error("this build's jemalloc has other options than Hanare's; build it again without JEMALLOC_OVERRIDE")]
    Options,
    #[error("jemalloc refuses {}: {source}; raise the limit on address space", option.to_string_lossy())]
    Refused { option: &'static CStr, source: std::io::Error },
}

/// The reason why a pointer cannot be freed or resized.
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
    // SAFETY: the pointer is null or comes from `Box::leak`, so the heap is never freed.
    unsafe { HEAP.load(Acquire).as_ref() }
}

/// Makes the heap of this process, over the far memory of `len` bytes at `base`. Must be called before the first
/// [`alloc`].
pub(crate) fn open(base: usize, len: usize) -> Result<(), HeapError> {
    let heap = Box::new(Heap { base, blocks: Blocks::new(len) });
    arena::open()?;
    // The heap becomes visible when each arena has its hooks. Another thread may allocate while the heap is opened, and
    // an arena without hooks would give it near memory.
    HEAP.store(Box::leak(heap), Release);
    Ok(())
}

/// Acquires jemalloc's locks for a fork. The forking thread must call this before `fork::before`, which keeps other
/// threads out of the engine. A thread that holds one of these locks may have to enter the engine before it can release
/// the lock. The caller is a library whose fork handlers run before those of jemalloc.
pub(crate) fn lock_for_fork() {
    arena::lock_for_fork();
}

/// Checks whether the child of the present fork may use the heap. Returns false if the heap was opened after the fork
/// began. In this case the fork must first call [`lock_for_fork`].
pub(crate) fn can_be_forked() -> bool {
    heap().is_none() || arena::is_locked()
}

/// Allocates `size` bytes of far memory at a multiple of `align`, which is a power of two. Zeroes the block if `zeroed`
/// is true. Every block is at least 16-byte aligned. Returns null with errno ENOMEM if there is no room. Accesses a
/// page only to zero a block of less than 64 KiB.
#[inline(always)] // saves a call in the allocation of every small block
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

/// Frees the block at `addr`. Fetches and accesses none of its pages.
///
/// # Errors
/// The reason why the pointer is bad. A call with a bad pointer changes nothing. A second free of a large block is
/// detected until the block's pages are used again. A second free of a small block is detected until some thousand
/// other blocks are freed.
///
/// # Safety
/// If a block starts at `addr`, nothing uses the block afterwards.
#[inline(always)] // the call alone would be a tenth of the time of a small block's free
pub unsafe fn free(addr: usize) -> Result<(), BadPointer> {
    let Some(heap) = heap() else { return Err(BadPointer::Invalid) };
    let offset = addr.wrapping_sub(heap.base);
    match heap.blocks.find(offset) {
        Start::Small(class) if heap.blocks.take_small(offset) => {
            // SAFETY: a block of this class starts at `addr`, and the map shows no free of the block since its
            // allocation. The caller promises that nothing uses the block afterwards.
            unsafe { arena::free_sized(addr as *mut u8, SIZES[class] as usize) };
            Ok(())
        }
        Start::Small(_) => Err(BadPointer::Freed),
        // SAFETY: the caller promises that nothing uses the block afterwards. `start` comes from the map.
        start => unsafe { heap.free_other(addr, start) },
    }
}

/// Retires a freed block if a part of it became ordinary memory, such as the end of a stack. This part is no longer far
/// memory and does not read as zeroes after a discard. So no later allocation may use a retired block. Returns whether
/// the block was retired.
///
/// # Safety
/// A live large block starts at `addr`, and nothing uses the block from now on.
unsafe fn is_retired(addr: usize) -> bool {
    // SAFETY: the caller promises that a live large block starts at `addr`.
    let len = unsafe { arena::size_of_block(addr as *mut u8) };
    let retired = places::meets_hole(addr, len);
    if retired {
        // SAFETY: the block has `len` bytes at `addr`, and the caller promises that nothing uses the block.
        unsafe { ranges::heap_discards(addr, len) };
        places::empty_holes(addr, len);
    }
    retired
}

/// Returns how many bytes of local memory the heap and the pager use for their own data. The call takes about a
/// millisecond, because it asks the kernel about every mapping with such data.
pub(crate) fn near_bytes() -> u64 {
    near::large_resident() + arena::metadata().map(|(addr, len)| near::resident(addr, len)).sum::<u64>()
}

/// Ends the process because the program passed a bad pointer to the function `call`. The C library ends a process in
/// the same case.
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

/// Returns the usable size of the block at `addr`, in bytes. Returns `None` if no block starts there.
pub fn usable_size(addr: usize) -> Option<usize> {
    let heap = heap()?;
    match heap.blocks.find(addr.wrapping_sub(heap.base)) {
        Start::Small(class) => Some(SIZES[class] as usize),
        // SAFETY: the map shows that a live large block starts at `addr`.
        Start::Large => Some(unsafe { arena::size_of_block(addr as *mut u8) }),
        Start::Outside => ranges::allocation(addr),
        Start::Nowhere => None,
    }
}

/// Changes the size of the block at `addr` to `size` bytes, and returns the block's new address. Resizes the block in
/// place if possible. Otherwise copies its bytes to a new block and frees the old block. If there is no room, returns
/// null with errno ENOMEM and does not change the block. `addr` is not 0.
///
/// # Errors
/// The reason why the pointer is bad.
///
/// # Safety
/// No other code uses the block during the call.
pub unsafe fn resize(addr: usize, size: usize) -> Result<*mut u8, BadPointer> {
    let old = usable_size(addr).ok_or(BadPointer::Invalid)?;
    // SAFETY: a block of `old` bytes starts at `addr`. The caller promises that no other code uses it meanwhile.
    if unsafe { resize_in_place(addr, old, size) } {
        return Ok(addr as *mut u8);
    }
    let new = alloc(size, GRAIN, false);
    if !new.is_null() {
        // SAFETY: `old.min(size)` bytes lie in both blocks, and the blocks do not overlap. Nothing uses the old block
        // after the copy.
        unsafe {
            move_bytes(addr as *mut u8, new, old.min(size));
            free(addr)?;
        }
    }
    Ok(new)
}

/// Resizes a block in place. Returns false if the block must be moved.
///
/// # Safety
/// A live block of `old` bytes starts at `addr`, and no other code uses it during the call.
unsafe fn resize_in_place(addr: usize, old: usize, size: usize) -> bool {
    let shrinks_little = size <= old && size > old / 2;
    match heap().map(|heap| (heap, heap.blocks.find(addr.wrapping_sub(heap.base)))) {
        Some((heap, Start::Large))
            if !shrinks_little && (SMALL_MAX + 1..DIRECT_MIN).contains(&size) && !places::meets_hole(addr, old) =>
        {
            // SAFETY: a live large block starts at `addr`. The caller promises that no other code uses it meanwhile.
            let now = unsafe { arena::resize_in_place(addr as *mut u8, size) };
            heap.blocks.give_large(addr - heap.base, now);
            now >= size && (size >= old || now < old)
        }
        // SAFETY: the block is an extent of its own. The caller promises that no other code uses it meanwhile.
        Some((_, Start::Outside)) if size > DIRECT_MIN / 2 => unsafe { ranges::resize(addr, size) },
        _ => shrinks_little,
    }
}

/// Copies `len` bytes from `from` to `to`. If `from` starts a page, discards each whole piece of far memory at `from`
/// after its copy.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes. The two ranges do not overlap. Nothing reads the bytes
/// at `from` afterwards.
pub unsafe fn move_bytes(from: *mut u8, to: *mut u8, len: usize) {
    let whole = (from as usize).is_multiple_of(PAGE);
    let mut done = 0;
    while done < len {
        let piece = MOVE_PIECE.min(len - done);
        // SAFETY: `done + piece` is at most `len`. The caller promises valid ranges of `len` bytes without overlap.
        unsafe { to.add(done).copy_from_nonoverlapping(from.add(done), piece) };
        if piece == MOVE_PIECE && whole {
            // SAFETY: the piece was copied, and the caller promises that nothing reads it at `from` afterwards.
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
            // SAFETY: `block` was allocated just now with `size` bytes, and no other code knows it.
            unsafe { block.write_bytes(0, size) };
        }
        block.as_ptr()
    }

    /// Frees a block that is not small. This code is in a separate function, so that the free of a small block stays
    /// fast.
    ///
    /// # Safety
    /// `start` is the map's entry for `addr`. If a block starts at `addr`, nothing uses the block afterwards.
    #[inline(never)]
    unsafe fn free_other(&self, addr: usize, start: Start) -> Result<(), BadPointer> {
        match start {
            Start::Large if self.blocks.take_large(addr.wrapping_sub(self.base)) => {
                // SAFETY: a live large block starts at `addr`. `take_large` succeeds for one thread only, so no other
                // thread frees it.
                if unsafe { is_retired(addr) } {
                    return Ok(());
                }
                // SAFETY: a live large block starts at `addr`. `take_large` succeeds for one thread only, so no other
                // thread frees it.
                unsafe { arena::free(addr as *mut u8) };
                Ok(())
            }
            // SAFETY: if an extent starts at `addr`, the caller promises that nothing uses it afterwards.
            Start::Outside => match unsafe { ranges::free_block(addr) } {
                Freed::Now => Ok(()),
                Freed::Before => Err(BadPointer::Freed),
                Freed::NoBlock => Err(BadPointer::Invalid),
            },
            Start::Small(_) | Start::Large => Err(BadPointer::Freed),
            Start::Nowhere => Err(BadPointer::Invalid),
        }
    }

    /// Allocates a block that is large or has an alignment above 16 bytes.
    fn alloc_other(&self, size: usize, align: usize, zeroed: bool) -> *mut u8 {
        if size >= DIRECT_MIN || align > PAGE {
            return if size > isize::MAX as usize {
                std::ptr::null_mut()
            } else {
                ranges::alloc_block(size, align, zeroed)
            };
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
            // SAFETY: `block` was allocated just now with `usable` bytes, and no other code knows it.
            unsafe { ranges::discard(block.addr().get(), usable) };
        } else if zeroed {
            // SAFETY: `block` was allocated just now with at least `size` bytes, and no other code knows it.
            unsafe { block.write_bytes(0, size) };
        }
        block.as_ptr()
    }
}
