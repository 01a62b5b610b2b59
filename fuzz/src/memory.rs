//! Measures the memory that a decoder takes, by an allocator that counts for each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    /// Bytes this thread allocated and did not free. Below 0 when it frees what others allocated.
    static HELD: Cell<isize> = const { Cell::new(0) };
    /// The highest value of `HELD`.
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // Ignored: a thread that ends has no counters any more, so its last frees are not counted.
    let (Ok(()) | Err(_)) = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        PEAK.with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call goes to the system's allocator as it is; the counters are plain cells without destructors, and counting
// in them allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Runs `decode`, which may hold `fixed` bytes and `factor` bytes for each of `length` bytes of input at once.
///
/// # Panics
/// It held more.
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
