//! The primitives of lock-free code: atomics, functions to sleep on a word, and time.
//!
//! The crate in `models/` has a module of the same name with the same functions on loom, which tries every
//! interleaving. A source file that imports its primitives from this module can be compiled in both crates. So the
//! models check the very code that the program runs.

use std::time::Duration;

pub use std::sync::atomic;

pub use crate::clock::now_ns;
pub use crate::futex;
pub use crate::lock::LockCell;

/// Returns the first of two sizes. The models use the second, smaller size. So a table in a model becomes full after a
/// few operations.
#[must_use]
pub const fn sized(size: usize, _in_models: usize) -> usize {
    size
}

/// Sleeps for `time`.
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Returns `count` words of zero. The words take memory only when they are accessed.
#[must_use]
pub fn zeroed_words(count: usize) -> Box<[atomic::AtomicU64]> {
    let zeroes = Box::leak(vec![0_u64; count].into_boxed_slice());
    // The memory is allocated as integers, because the allocator provides zeroed integers without accessing the memory.
    // SAFETY: `zeroes` is the whole memory of a box that was leaked here, so it has no other owner. `AtomicU64` has the
    // size, alignment and bytes of u64.
    unsafe { Box::from_raw(std::ptr::from_mut(zeroes) as *mut [atomic::AtomicU64]) }
}
