//! Small blocks: those below the threshold from which an allocation is far. They are near while they are few. When the
//! C library's heap exceeds a limit, small blocks that are allocated later are far. So local memory and this limit
//! together bound the memory of a program of small blocks.
//!
//! The C library's heap is measured only now and then. Each thread counts the bytes of the near blocks that it
//! allocates, and looks at the heap after some hundred KiB.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::Relaxed};

use hanare_sys::flags;
use hanare_sys::symbols::Library;

/// Bytes of near blocks that a thread allocates before it adds them to the common count.
const COUNTED_MIN: usize = 256 << 10;
/// Smallest distance between two measurements of the heap, in bytes of near blocks that are allocated in between.
const STEP_MIN: u64 = 4 << 20;

/// The limit of the C library's heap, in bytes. 0 if there is none.
static LIMIT: AtomicU64 = AtomicU64::new(0);
/// Whether small blocks are far from now on.
static ARE_FAR: AtomicBool = AtomicBool::new(false);
/// Bytes of all near blocks that were allocated since the start, also of those that are freed.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);
/// Value of `ALLOCATED` at which the heap is measured next.
static MEASURED_AT: AtomicU64 = AtomicU64::new(0);
/// The C library's `mallinfo2`. Null if the library has none.
static MALLINFO: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Returns whether small blocks that are allocated now are far.
#[inline]
pub fn are_far() -> bool {
    ARE_FAR.load(Relaxed)
}

/// Counts a near block of `size` bytes that the calling thread is about to allocate. Takes locks of the C library's
/// allocator now and then.
#[inline]
pub fn allocates_near(size: usize) {
    if LIMIT.load(Relaxed) != 0
        && let Some(bytes) = flags::count(size, COUNTED_MIN)
    {
        look(bytes as u64);
    }
}

/// Limits the C library's heap to `bytes`. Does nothing if the library cannot tell the size of its heap.
pub(crate) fn limit(bytes: u64) {
    let Some(mallinfo) = Library::loaded(c"libc.so.6").and_then(|library| library.function(c"mallinfo2")) else {
        return;
    };
    MALLINFO.store(mallinfo.as_ptr(), Relaxed);
    MEASURED_AT.store(next(bytes, 0), Relaxed);
    LIMIT.store(bytes, Relaxed);
}

/// Makes small blocks near for good.
pub(crate) fn no_limit() {
    LIMIT.store(0, Relaxed);
}

/// Returns how many bytes of near blocks may be allocated before the next measurement, if the heap holds `held` bytes.
fn next(limit: u64, held: u64) -> u64 {
    (limit.saturating_sub(held) / 2).max(STEP_MIN.min(limit))
}

#[cold]
fn look(bytes: u64) {
    let allocated = ALLOCATED.fetch_add(bytes, Relaxed) + bytes;
    if allocated < MEASURED_AT.load(Relaxed) {
        return;
    }
    let limit = LIMIT.load(Relaxed);
    match held() {
        held if held >= limit => {
            ARE_FAR.store(true, Relaxed);
            LIMIT.store(0, Relaxed);
        }
        held => MEASURED_AT.store(allocated + next(limit, held), Relaxed),
    }
}

/// Returns how many bytes the C library's heap holds.
fn held() -> u64 {
    let mallinfo = MALLINFO.load(Relaxed);
    // SAFETY: `limit` stored the C library's `mallinfo2`, which has this type, before it set a limit. The caller holds
    // no lock of the allocator: it is about to call it.
    let info = unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> libc::mallinfo2>(mallinfo)() };
    info.arena as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_is_measured_more_often_near_the_limit() {
        let mib = 1 << 20;
        assert_eq!(next(32 * mib, 0), 16 * mib);
        assert_eq!(next(32 * mib, 20 * mib), 6 * mib);
        assert_eq!(next(32 * mib, 31 * mib), STEP_MIN);
        assert_eq!(next(mib, 0), mib, "a small limit");
    }

    #[test]
    fn small_blocks_become_far_once_the_heap_holds_too_much() {
        limit(1 << 20);
        let mut blocks = Vec::new();
        while LIMIT.load(Relaxed) != 0 {
            assert!(!are_far() && blocks.len() < 100, "{} blocks of 64 KiB", blocks.len());
            allocates_near(64 << 10);
            blocks.push(vec![1_u8; 64 << 10]);
        }
        assert!(are_far() && held() > 0);
        ARE_FAR.store(false, Relaxed);
    }
}
