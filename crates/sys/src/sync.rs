//! The primitives of lock-free code: atomics, sleeping on a word, time.
//!
//! The crate in `models/` has a module of the same name with the same functions on loom, which tries every
//! interleaving. A source file that imports its primitives from this module can be compiled in both crates. So the
//! models check the code that runs.

use std::time::Duration;

pub use std::sync::atomic;

pub use crate::clock::now_ns;
pub use crate::futex;
pub use crate::lock::LockCell;

/// Returns the first of two sizes. The models use the second size, so that a table fills up at once.
#[must_use]
pub const fn sized(size: usize, _in_models: usize) -> usize {
    size
}

/// Sleeps for `time`.
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Returns `count` words of zero. Words that are never accessed take no memory.
#[must_use]
pub fn zeroed_words(count: usize) -> Box<[atomic::AtomicU64]> {
    let zeroes = Box::leak(vec![0_u64; count].into_boxed_slice());
    // SAFETY: `zeroes` is the whole memory of the leaked box, and nothing else owns it. `AtomicU64` has the size,
    // alignment and bytes of u64. The memory is allocated as integers, because the allocator zeroes these without an
    // access.
    unsafe { Box::from_raw(std::ptr::from_mut(zeroes) as *mut [atomic::AtomicU64]) }
}
