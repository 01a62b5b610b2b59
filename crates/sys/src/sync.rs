//! The primitives of lock-free code: atomics, sleeping on a word, time.
//!
//! A file that takes them from here can be compiled by `models/` as well. There a module of the same name provides them on
//! loom, which runs every interleaving. So the code that is proved is the code that runs. Here they are re-exports.

use std::time::Duration;

pub use std::sync::atomic;

pub use crate::clock::now_ns;
pub use crate::futex;
pub use crate::lock::LockCell;

/// The first of two sizes. Models use the second, which fills up at once.
#[must_use]
pub const fn sized(size: usize, _in_models: usize) -> usize {
    size
}

/// Sleeps for `time`.
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// `count` words of zero. Words that are never accessed take no memory.
#[must_use]
pub fn zeroed_words(count: usize) -> Box<[atomic::AtomicU64]> {
    let zeroes = Box::leak(vec![0_u64; count].into_boxed_slice());
    // SAFETY: the same memory, owned once; AtomicU64 has the size, alignment and bytes of u64. Allocated as integers,
    // because those come zeroed without an access.
    unsafe { Box::from_raw(std::ptr::from_mut(zeroes) as *mut [atomic::AtomicU64]) }
}
