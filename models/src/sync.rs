//! A replacement for `sync.rs` of `hanare-sys`: the primitives that the files under test use, with the same names. loom
//! implements them here.

use std::cell::Cell;
use std::time::Duration;

pub(crate) use crate::futex;
pub(crate) use crate::lock::LockCell;

/// Returns the second of two sizes; the first is used in production. The second is so small that a model soon uses all
/// of an array of this size.
pub(crate) const fn sized(_in_production: usize, size: usize) -> usize {
    size
}

/// Lets another thread run. It does not wait for the given time.
pub(crate) fn pause(_: Duration) {
    loom::thread::yield_now();
}

thread_local! {
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
}

/// Returns the time in nanoseconds. The time changes only when a model sets it.
pub(crate) fn now_ns() -> u64 {
    NOW_NS.get()
}

/// Sets the time, in nanoseconds, for all threads of the model.
pub(crate) fn set_now_ns(now_ns: u64) {
    NOW_NS.set(now_ns);
}

/// Makes `count` words of zero.
pub(crate) fn zeroed_words(count: usize) -> Box<[atomic::AtomicU64]> {
    (0..count).map(|_| atomic::AtomicU64::new(0)).collect()
}

pub(crate) mod atomic {
    //! The atomics that the files under test use.
    //!
    //! `new` must be called in the thread that sets up the model. In loom, creating an atomic is an access, which must
    //! happen before the accesses of all other threads. So `new` is not a `const` function here.
    //!
    //! In loom, a sequentially consistent load only acquires, and a sequentially consistent store only releases. Only a
    //! fence orders a store before a load of another word. The standard and every processor also order a sequentially
    //! consistent store before a later sequentially consistent load. So this module puts a fence before the first such
    //! load after such a store. Accesses with a weaker order get no fence. But the fence also strengthens a weaker
    //! store between the two accesses, so a model should end its setup with a fence.

    use std::cell::Cell;
    pub(crate) use std::sync::atomic::Ordering;

    loom::thread_local! {
        /// Whether the calling thread has made a sequentially consistent store since its last fence.
        static HAS_STORED: Cell<bool> = Cell::new(false);
    }

    /// Makes a fence, and records the fence if it is sequentially consistent.
    pub(crate) fn fence(order: Ordering) {
        if order == Ordering::SeqCst {
            HAS_STORED.with(|has| has.set(false));
        }
        loom::sync::atomic::fence(order);
    }

    fn before_load(order: Ordering) {
        if order == Ordering::SeqCst && HAS_STORED.with(Cell::get) {
            fence(order);
        }
    }

    fn after_store(order: Ordering) {
        if order == Ordering::SeqCst {
            HAS_STORED.with(|has| has.set(true));
        }
    }

    macro_rules! change {
        ($int:ty: $($name:ident)*) => {$(
            pub(crate) fn $name(&self, value: $int, order: Ordering) -> $int {
                before_load(order);
                let before = self.0.$name(value, order);
                after_store(order);
                before
            }
        )*};
    }

    macro_rules! atomics {
        ($($name:ident $int:ty),*) => {$(
            #[derive(Debug, Default)]
            pub(crate) struct $name(loom::sync::atomic::$name);

            #[allow(dead_code, reason = "no file uses every call of every atomic")]
            impl $name {
                pub(crate) fn new(value: $int) -> Self {
                    Self(loom::sync::atomic::$name::new(value))
                }

                pub(crate) fn load(&self, order: Ordering) -> $int {
                    before_load(order);
                    self.0.load(if order == Ordering::SeqCst { Ordering::Acquire } else { order })
                }

                pub(crate) fn store(&self, value: $int, order: Ordering) {
                    self.0.store(value, if order == Ordering::SeqCst { Ordering::Release } else { order });
                    after_store(order);
                }

                pub(crate) fn compare_exchange(
                    &self,
                    old: $int,
                    new: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    before_load(success);
                    let result = self.0.compare_exchange(old, new, success, failure);
                    if result.is_ok() {
                        after_store(success);
                    }
                    result
                }

                pub(crate) fn compare_exchange_weak(
                    &self,
                    old: $int,
                    new: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    self.compare_exchange(old, new, success, failure)
                }

                change!($int: swap fetch_add fetch_sub fetch_or fetch_and fetch_max);
            }
        )*};
    }

    atomics!(AtomicU8 u8, AtomicU32 u32, AtomicU64 u64, AtomicUsize usize);
}
