//! Whether far memory is available, from which allocation size on, and the deferred start at its first use.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};

use hanare_settings::FAR_LARGE;
use hanare_sys::flags::OWN;
use hanare_sys::signal::SignalMask;

use crate::gate;

static THRESHOLD: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Bytes that stay near before far memory is started. Many short programs allocate a buffer or two of 128 KiB, and
/// starting far memory takes longer than they run.
const NEAR_FIRST: usize = 1 << 20;
/// Whether far memory is being started.
static IS_STARTING: AtomicBool = AtomicBool::new(false);
static NEAR_SO_FAR: AtomicUsize = AtomicUsize::new(0);
/// The function that starts the engine at its first use. `None` after the start, or if there is no deferred start.
static STARTER: Call = Call::none();
/// Whether an engine was started, or is about to be.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// A stored function to be called later, or `None`.
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
        // SAFETY: null, or the plain function that `set` was given.
        (!call.is_null()).then(|| unsafe { std::mem::transmute::<*mut (), fn()>(call) })
    }
}

/// Whether far memory is available: false before the start, and in a forked child that cannot share its parent's.
#[inline]
pub fn active() -> bool {
    THRESHOLD.load(Relaxed) != usize::MAX
}

/// The smallest allocation that becomes far, in bytes. 0 when all are far.
#[inline]
pub fn threshold() -> usize {
    THRESHOLD.load(Relaxed)
}

/// Whether an allocation of `size` bytes, which is large enough to be far, must be far now. With the default threshold,
/// the first [`NEAR_FIRST`] bytes of a process stay near, and far memory is not started for them.
#[inline]
pub fn is_due(size: usize) -> bool {
    !STARTER.is_set() || is_due_by(size)
}

#[cold]
fn is_due_by(size: usize) -> bool {
    // A new thread of Hanare allocates before it is registered, while the start waits for it. These small allocations
    // must be near.
    if IS_STARTING.load(Acquire) && size < FAR_LARGE {
        return false;
    }
    threshold() != FAR_LARGE || NEAR_SO_FAR.fetch_add(size.min(NEAR_FIRST), Relaxed).saturating_add(size) > NEAR_FIRST
}

/// Whether far memory is still to be started at its first use.
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
        // Allocations on the way are near.
        OWN.set(true);
        IS_STARTING.store(true, Release);
        begins();
        // The starter is forgotten only after a complete start: a child that another thread forks meanwhile must start
        // by itself.
        start();
        OWN.set(false);
        STARTER.clear();
        IS_STARTING.store(false, Release);
    }
    gate::open();
}

/// Stores the function that starts the engine at its first use. The function ends the process if that fails.
pub(crate) fn leave_to_first(start: fn()) {
    STARTER.set(start);
}

/// Notes that an engine is about to start.
pub(crate) fn begins() {
    HAS_BEGUN.store(true, Release);
}

/// Whether an engine was started, or is about to be.
pub(crate) fn has_begun() -> bool {
    HAS_BEGUN.load(Acquire)
}

/// Sets the size from which on allocations become far, in bytes.
pub(crate) fn threshold_is(threshold: usize) {
    THRESHOLD.store(threshold, Release);
}

/// Makes far memory available from now on.
pub(super) fn open(threshold: usize) {
    STARTER.clear();
    threshold_is(threshold);
}

/// Makes far memory unavailable from now on.
pub(crate) fn close() {
    STARTER.clear();
    threshold_is(usize::MAX);
}
