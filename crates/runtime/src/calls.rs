//! The traps of system calls that the kernel cannot carry out on absent far pages, in sigbus mode. The code that serves
//! the calls is in the preload library. This module remembers its function and which traps it has set.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering::*};

use hanare_settings::Mode;
use hanare_sys::features::{CallTraps, Features};

use crate::process;

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
/// True if mode `auto` takes thread mode in this process, although sigbus mode works.
static NEEDS_THREAD_MODE: AtomicBool = AtomicBool::new(false);

/// Makes `setter` set the traps when far memory starts in sigbus mode.
pub fn trap_calls_by(setter: Setter) {
    SETTER.store(setter as *mut (), Release);
}

/// Makes mode `auto` take thread mode in this process if far memory has not started.
pub fn needs_thread_mode() {
    NEEDS_THREAD_MODE.store(true, Release);
}

/// Checks whether the program may set up asynchronous I/O by the kernel (io_uring, AIO), whose transfers fail on absent
/// pages in sigbus mode. If far memory has not started, mode `auto` takes thread mode from now on. If it has chosen sigbus
/// mode, the program gets no asynchronous I/O.
pub fn may_do_async_io() -> bool {
    match process::state() {
        Some(state) => state.launch.settings.mode != Mode::Auto || state.launch.mode != Mode::Sigbus,
        None => {
            needs_thread_mode();
            true
        }
    }
}

/// Starts far memory, if this was deferred, because the program is about to confine itself. Later, the start could fail:
/// it opens files and sockets and starts threads. With `filter`, the program sets a system call filter, which also holds
/// for what a trap does in the program's own threads. So mode `auto` takes thread mode, whose threads have no such filter.
pub fn will_be_confined(filter: bool) {
    if filter && process::state().is_none() {
        needs_thread_mode();
    }
    process::ensure_started();
}

/// Checks whether mode `auto` may take sigbus mode in this process.
pub(crate) fn suit_signals() -> bool {
    !NEEDS_THREAD_MODE.load(Acquire)
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
    let mut wanted = possible(mode, features, len);
    wanted.filter &= base == window::BASE;
    set(wanted);
}

/// Sets the trap that each thread needs from its beginning on, before far memory starts. Returns whether it is set. The
/// other one can be set for all threads later ([`trap`]).
pub(crate) fn trap_early() -> bool {
    set(CallTraps { dispatch: true, filter: false });
    call_traps().dispatch
}

fn set(wanted: CallTraps) {
    let setter = SETTER.load(Acquire);
    if setter.is_null() || wanted == CallTraps::default() {
        return;
    }
    // SAFETY: `trap_calls_by` stores only functions of this type.
    let set = unsafe { std::mem::transmute::<*mut (), Setter>(setter) }(wanted);
    SET.store(u8::from(set.filter) | u8::from(set.dispatch) << 1, Release);
}

/// If system calls that nobody interposes fail on absent far pages in this process, returns its trap mode and how many
/// bytes may stay near for them.
#[must_use]
pub fn mode_without_calls() -> Option<(Mode, u64)> {
    let launch = &process::state()?.launch;
    let works = launch.mode == Mode::Thread || call_traps().filter;
    let limit = Some(launch.settings.near).filter(|&near| near != 0).unwrap_or(u64::MAX);
    (!works).then_some((launch.mode, limit))
}

/// Returns the traps of this process.
#[must_use]
pub fn call_traps() -> CallTraps {
    let set = SET.load(Acquire);
    CallTraps { filter: set & 1 != 0, dispatch: set & 2 != 0 }
}
