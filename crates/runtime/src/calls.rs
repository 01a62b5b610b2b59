//! The traps of system calls that the kernel cannot carry out on absent far pages, in sigbus mode. The code that serves
//! the calls is in the preload library. This module remembers its function and which traps it has set.

use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering::*};

use hanare_settings::Mode;
use hanare_sys::features::{CallTraps, Features};

/// The addresses in which the filter looks for pointers. There are none where it is not supported.
#[cfg(target_arch = "x86_64")]
mod window {
    pub(super) use hanare_sys::calls::{WINDOW_BASE as BASE, WINDOW_LEN as LEN};
}
#[cfg(not(target_arch = "x86_64"))]
mod window {
    pub(super) const BASE: usize = 0;
    pub(super) const LEN: usize = 0;
}

/// A function that sets the wanted traps for this process, and returns the traps that it could set.
pub(crate) type Setter = fn(wanted: CallTraps) -> CallTraps;

/// The function that sets the traps. Null if nobody serves system calls.
static SETTER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
/// The traps of this process: bit 0 is the filter, bit 1 is dispatch.
static SET: AtomicU8 = AtomicU8::new(0);

/// Makes `setter` set the traps when far memory starts in sigbus mode.
pub fn trap_calls_by(setter: Setter) {
    SETTER.store(setter as *mut (), Release);
}

/// Returns the traps that work with a reservation of `reserve` bytes.
#[must_use]
pub(crate) fn possible(mode: Mode, features: &Features, reserve: usize) -> CallTraps {
    match mode {
        Mode::Sigbus => CallTraps { filter: features.calls.filter && reserve <= window::LEN, ..features.calls },
        _ => CallTraps::default(),
    }
}

/// Returns the address at which the filter expects the reservation. Returns `None` if no filter will be set.
pub(crate) fn place(mode: Mode, features: &Features, reserve: usize) -> Option<usize> {
    let is_served = !SETTER.load(Acquire).is_null();
    (is_served && possible(mode, features, reserve).filter).then_some(window::BASE)
}

/// Sets the traps for a reservation of `len` bytes at `base`, as far as the kernel allows.
pub(crate) fn trap(mode: Mode, features: &Features, (base, len): (usize, usize)) {
    let setter = SETTER.load(Acquire);
    let mut wanted = possible(mode, features, len);
    wanted.filter &= base == window::BASE;
    if setter.is_null() || wanted == CallTraps::default() {
        return;
    }
    // SAFETY: `trap_calls_by` stores only functions of this type.
    let set = unsafe { std::mem::transmute::<*mut (), Setter>(setter) }(wanted);
    SET.store(u8::from(set.filter) | u8::from(set.dispatch) << 1, Release);
}

/// Returns the traps of this process.
#[must_use]
pub fn call_traps() -> CallTraps {
    let set = SET.load(Acquire);
    CallTraps { filter: set & 1 != 0, dispatch: set & 2 != 0 }
}
