//! Records whether far memory is available and which allocations become far. Carries out a deferred start when far
//! memory is first used.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};

use hanare_settings::FAR_LARGE;
use hanare_sys::flags::OWN;
use hanare_sys::signal::SignalMask;

use crate::gate;

/// Smallest allocation that becomes far, in bytes. `usize::MAX` while far memory is not available.
static THRESHOLD: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Total bytes of large allocations that are made in near memory before far memory is started. Many short programs
/// allocate one or two buffers of 128 KiB. Starting far memory takes longer than such a program runs.
const NEAR_FIRST: usize = 1 << 20;
/// Whether far memory is being started.
static IS_STARTING: AtomicBool = AtomicBool::new(false);
/// Total bytes of large allocations that were made in near memory so far.
static NEAR_SO_FAR: AtomicUsize = AtomicUsize::new(0);
/// The function that starts the engine at its first use. Unset after the start, or if the start is not deferred.
static STARTER: Call = Call::none();
/// Whether an engine was started, or is being started.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// A place for a function that is called later. Null if no function is set.
pub(crate) struct Call(AtomicPtr<()>);

impl Call {
    pub(crate) const fn none() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    pub(crate) fn set(&self, call: fn()) {
        self.0.store(call as *mut (), Release);
    }

    fn clear(&self) {
        self.0.store(std::ptr::null_mut(), Release);
    }

    #[inline]
    fn is_set(&self) -> bool {
        !self.0.load(Acquire).is_null()
    }

    pub(crate) fn get(&self) -> Option<fn()> {
        let call = self.0.load(Acquire);
        // SAFETY: `call` is not null, so it is a pointer that `set` made from a function of this type.
        (!call.is_null()).then(|| unsafe { std::mem::transmute::<*mut (), fn()>(call) })
    }
}

/// Checks whether far memory is available. Far memory is not available before its start, nor in a forked child that
/// cannot share its parent's far memory.
#[inline]
pub fn active() -> bool {
    THRESHOLD.load(Relaxed) != usize::MAX
}

/// Returns the size of the smallest allocation that becomes far, in bytes. Returns 0 if all allocations are far.
#[inline]
pub fn threshold() -> usize {
    THRESHOLD.load(Relaxed)
}

/// Checks whether an allocation of `size` bytes must be far now. The caller has checked that `size` reaches the
/// threshold. With the default threshold, the first MiB of such allocations is near memory and does not start far
/// memory.
#[inline]
pub fn is_due(size: usize) -> bool {
    !STARTER.is_set() || is_due_by(size)
}

#[cold]
fn is_due_by(size: usize) -> bool {
    // The start waits until each new thread of Hanare is registered. A thread that is not yet registered makes small
    // allocations. These allocations must be near, because far memory is not started yet.
    if IS_STARTING.load(Acquire) && size < FAR_LARGE {
        return false;
    }
    threshold() != FAR_LARGE || NEAR_SO_FAR.fetch_add(size.min(NEAR_FIRST), Relaxed).saturating_add(size) > NEAR_FIRST
}

/// Checks whether the start of far memory is deferred to its first use, and has not happened yet.
pub fn is_dormant() -> bool {
    STARTER.is_set()
}

/// Starts far memory now if its start was deferred to the first use.
pub fn ensure_started() {
    bring_up_if_left();
}

#[inline]
pub(super) fn bring_up_if_left() {
    if STARTER.is_set() {
        bring_up();
    }
}

#[cold]
fn bring_up() {
    if OWN.get() {
        return;
    }
    let _mask = SignalMask::block_all();
    gate::close();
    if let Some(start) = STARTER.get() {
        // While `OWN` is set, this thread allocates near memory.
        OWN.set(true);
        IS_STARTING.store(true, Release);
        begins();
        // The function stays set until the start is complete. Another thread may fork meanwhile, and its child must
        // then start far memory by itself.
        start();
        OWN.set(false);
        STARTER.clear();
        IS_STARTING.store(false, Release);
    }
    gate::open();
}

/// Defers the start: stores the function that starts the engine at its first use. The function ends the process if the
/// start fails.
pub(crate) fn leave_to_first(start: fn()) {
    STARTER.set(start);
}

/// Notes that an engine is about to start.
pub(crate) fn begins() {
    HAS_BEGUN.store(true, Release);
}

/// Checks whether an engine was started, or is being started.
pub(crate) fn has_begun() -> bool {
    HAS_BEGUN.load(Acquire)
}

/// Sets the size of the smallest allocation that becomes far, in bytes.
pub(crate) fn threshold_is(threshold: usize) {
    THRESHOLD.store(threshold, Release);
}

/// Makes far memory available from now on, for allocations of at least `threshold` bytes.
pub(super) fn open(threshold: usize) {
    STARTER.clear();
    threshold_is(threshold);
}

/// Makes far memory unavailable from now on.
pub(crate) fn close() {
    STARTER.clear();
    threshold_is(usize::MAX);
}
