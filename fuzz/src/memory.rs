//! Measures the memory that a decoder takes, with an allocator that counts the bytes of each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    /// Bytes that this thread has allocated and not freed. The number is below 0 when the thread frees what others
    /// allocated.
    static HELD: Cell<isize> = const { Cell::new(0) };
    /// The highest value of `HELD` since the last reset.
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // An error is ignored. The counters of a thread that is ending may already be gone, so its last frees are not
    // counted.
    let (Ok(()) | Err(_)) = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        PEAK.with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: `alloc` and `dealloc` pass their arguments unchanged to the system's allocator, which keeps the contract of
// `GlobalAlloc`. Counting allocates nothing, because the counters are plain cells without destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, and `layout` is passed on unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`, so `block` came from `System.alloc` with
        // this `layout`.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Runs `decode` on an input of `length` bytes. `decode` may hold at most `fixed + factor * length` bytes at once.
///
/// # Panics
/// Panics when `decode` has held more bytes than this bound.
pub(crate) fn within<T>(length: usize, factor: usize, fixed: usize, decode: impl FnOnce() -> T) -> T {
    let before = HELD.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    let result = decode();
    let held = (PEAK.with(Cell::get) - before) as usize;
    let bound = fixed + factor * length;
    assert!(held <= bound, "{held} bytes were held for an input of {length}; the bound is {bound}");
    result
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn what_is_held_at_once_counts() {
        within(10, 1, 90, || (0..5).for_each(|_| drop(Vec::<u8>::with_capacity(100))));
        let too_much = std::panic::catch_unwind(|| within(10, 1, 89, || drop(Vec::<u8>::with_capacity(100))));
        assert!(too_much.is_err());
    }
}
