//! Signal masks and cancellation of the calling thread.

use super::held::guard;
use super::{KERNEL_SET_BYTES, kernel_action};
use crate::processor::FloatMode;
use crate::raw::{self, Errno};
use std::ffi::c_int;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// The signals that no mask of this crate blocks, apart from the C library's own.
static KEPT_OPEN: AtomicU64 = AtomicU64::new(0);

/// Makes all masks of this crate leave these signals unblocked from now on.
pub(crate) fn keep_open(signals: u64) {
    KEPT_OPEN.fetch_or(signals, Ordering::AcqRel);
}

/// Returns the signals that no mask of this crate blocks.
pub(crate) fn kept_open() -> u64 {
    KEPT_OPEN.load(Ordering::Acquire)
}

/// Sets the calling thread's signal mask and returns the old one. Signals of the mask that are kept open wait in this
/// process if somebody sends them.
pub(super) fn set_mask(mask: u64) -> u64 {
    let kept = kept_open();
    let is_guarded = mask & kept;
    // The signals wait as soon as the other signals are blocked, and until these are open again.
    let before = if is_guarded == 0 { None } else { Some(guard(is_guarded)) };
    let old = set_kernels_mask(mask & !kept);
    old | before.unwrap_or_else(|| if kept == 0 { 0 } else { guard(0) })
}

/// Sets the calling thread's signal mask in the kernel and returns the old one.
pub(super) fn set_kernels_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    let args = [libc::SIG_SETMASK as usize, &raw const mask as usize, &raw mut old as usize, KERNEL_SET_BYTES, 0, 0];
    // Ignored: the kernel refuses only bad pointers, sizes and requests.
    // SAFETY: `mask` and `old` are local 64-bit signal sets. The kernel reads `mask` and writes `old`.
    let _ = unsafe { raw::syscall(libc::SYS_rt_sigprocmask, args) };
    old
}

/// The signals that the C library uses itself. Signal 32 cancels a thread. Signal 33 makes each thread adopt a change
/// of user or groups.
///
/// [`SignalMask`] must not block signal 33. A call such as setuid signals every thread and waits for an answer from
/// each. If a thread blocked signal 33 while it waits for a lock that the caller of setuid holds, both threads would
/// wait for ever.
///
/// The handler of signal 33 may therefore interrupt the engine's code at any point. The handler makes one system call,
/// increments a counter and takes no lock. It reads only the thread's own data and the stack of the thread that called
/// setuid. That stack is never paged out ([`crate::stack::run_on_fresh`]).
///
/// The handler of signal 32 may end the thread. [`Uncancelled`] delays that.
pub(super) const LIBRARY_SIGNALS: u64 = 1 << 31 | 1 << 32;

// The functions may end the calling thread: if it was cancelled before, and if it may be cancelled at any instruction
// from now on. The C library then unwinds the stack.
unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
}

/// A guard that prevents the cancellation of the calling thread until it is dropped. A cancelled thread ends inside a
/// read or wait function of the C library. The engine calls these functions while it holds locks, which would then stay
/// locked.
#[derive(Debug)]
#[must_use = "the thread can be cancelled as soon as the guard is dropped"]
pub struct Uncancelled {
    old: c_int,
    _not_send: PhantomData<*const ()>,
}

impl Uncancelled {
    /// Prevents cancellation until the returned guard is dropped.
    pub fn begin() -> Self {
        Self { old: set_cancel_state(CANCEL_DISABLE), _not_send: PhantomData }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        set_cancel_state(self.old);
    }
}

/// The C library's PTHREAD_CANCEL_DISABLE.
const CANCEL_DISABLE: c_int = 1;
/// The C library's PTHREAD_CANCEL_DEFERRED.
const CANCEL_DEFERRED: c_int = 0;

/// Prevents the cancellation of the calling thread. Returns the state for [`allow_cancellation`].
pub(super) fn forbid_cancellation() -> c_int {
    set_cancel_state(CANCEL_DISABLE)
}

/// Allows in a signal's handler what [`forbid_cancellation`] has prevented. `interrupted` is the signal mask of the
/// interrupted code. If this code may be cancelled at any instruction, and was cancelled meanwhile, the C library unwinds
/// the thread here. Its cleanups then run under that mask.
pub(super) fn allow_cancellation(before: c_int, interrupted: u64) {
    if before == CANCEL_DISABLE {
        return;
    }
    let kind = set_cancel_type(CANCEL_DEFERRED);
    if kind == CANCEL_DEFERRED {
        set_cancel_state(before);
        return;
    }
    set_mask(interrupted);
    set_cancel_state(before);
    set_cancel_type(kind);
}

fn set_cancel_type(kind: c_int) -> c_int {
    let mut old = 0;
    // SAFETY: the call writes to `old`. `kind` is the constant or a type that the C library returned, so the call cannot
    // fail.
    unsafe { pthread_setcanceltype(kind, &raw mut old) };
    old
}

fn set_cancel_state(state: c_int) -> c_int {
    let mut old = 0;
    // SAFETY: the call writes to `old`. `state` is the constant or a state that the C library returned, so the call
    // cannot fail.
    unsafe { pthread_setcancelstate(state, &raw mut old) };
    old
}

/// A guard that blocks every signal of the calling thread except the C library's own, until it is dropped. It also
/// prevents cancellation, and keeps the program's mode of floating-point arithmetic away. Guards may be nested.
///
/// Fault signals are blocked too. If a fault's signal is blocked, the fault kills the process. So the thread must not
/// access memory that may be paged out.
#[derive(Debug)]
#[must_use = "signals are unblocked as soon as the guard is dropped"]
pub struct SignalMask {
    before: Unblocked,
    _not_send: PhantomData<*const ()>,
}

/// A thread's signal mask, cancellation state and floating-point mode from before a [`SignalMask`].
#[derive(Debug, Clone, Copy)]
pub struct Unblocked {
    mask: u64,
    cancel_state: c_int,
    float: FloatMode,
}

impl SignalMask {
    /// Blocks every signal except the C library's own.
    pub fn block_all() -> Self {
        let cancel_state = set_cancel_state(CANCEL_DISABLE);
        let mask = set_mask(!LIBRARY_SIGNALS);
        Self { before: Unblocked { mask, cancel_state, float: FloatMode::set_usual() }, _not_send: PhantomData }
    }

    /// Consumes the guard but leaves the signals blocked. Returns the state from before the guard, for
    /// [`SignalMask::restore`].
    #[must_use]
    pub fn keep(self) -> Unblocked {
        let before = self.before;
        std::mem::forget(self);
        before
    }

    /// Checks whether a signal is pending that was not blocked before this guard. Makes one short system call.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        let mut waiting = 0u64;
        let args = [&raw mut waiting as usize, KERNEL_SET_BYTES, 0, 0, 0, 0];
        // Ignored: the kernel refuses only a bad pointer or size.
        // SAFETY: the kernel writes a 64-bit signal set to `waiting`.
        let _ = unsafe { raw::syscall(libc::SYS_rt_sigpending, args) };
        waiting & !self.before.mask != 0
    }

    /// Restores what was before [`SignalMask::block_all`].
    pub fn restore(before: Unblocked) {
        before.float.set();
        set_mask(before.mask);
        set_cancel_state(before.cancel_state);
    }
}

/// Ends the process by one of `signals` that waits for it, if the signal has its default action. The caller has blocked
/// these signals. Threads that wait inside a handler have blocked them too, so the kernel cannot deliver them.
pub fn end_by_default(signals: &[c_int]) {
    let bit = |signal: c_int| 1u64 << (signal - 1);
    let mut waiting = 0u64;
    let args = [&raw mut waiting as usize, KERNEL_SET_BYTES, 0, 0, 0, 0];
    // Ignored: the kernel refuses only a bad pointer or size.
    // SAFETY: the kernel writes a 64-bit signal set to `waiting`.
    let _ = unsafe { raw::syscall(libc::SYS_rt_sigpending, args) };
    let has_default = |signal: c_int| kernel_action(signal, None).is_ok_and(|action| action.handler == libc::SIG_DFL);
    let ends = |signal: &c_int| waiting & bit(*signal) != 0 && has_default(*signal);
    if let Some(&signal) = signals.iter().find(|signal| ends(signal)) {
        // The kernel delivers the signal here, unless another thread has taken it meanwhile.
        change_mask(libc::SIG_UNBLOCK, bit(signal));
        change_mask(libc::SIG_BLOCK, bit(signal));
    }
}

/// Blocks or unblocks signals of the calling thread in the kernel.
fn change_mask(how: c_int, signals: u64) {
    let args = [how as usize, &raw const signals as usize, 0, KERNEL_SET_BYTES, 0, 0];
    // Ignored: the kernel refuses only bad pointers, sizes and requests.
    // SAFETY: the kernel reads a local 64-bit signal set.
    let _ = unsafe { raw::syscall(libc::SYS_rt_sigprocmask, args) };
}

/// A descriptor that wakes a thread that sleeps under a [`SignalMask`]. It is readable while a signal is pending that
/// was not blocked before the mask. No code reads from the descriptor, so the signal stays pending. The kernel delivers
/// the signal when the mask is dropped.
#[derive(Debug)]
pub struct SignalWatch {
    fd: OwnedFd,
    watched: AtomicU64,
}

impl SignalWatch {
    /// Creates a watch that watches for no signal yet.
    ///
    /// # Errors
    /// The kernel's error if there are no descriptors or no memory.
    pub fn new() -> Result<Self, Errno> {
        let fd = Self::set(-1, 0)?;
        // SAFETY: `fd` is a new descriptor with no other owner.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, watched: AtomicU64::new(0) })
    }

    /// Makes the descriptor watch for the signals that were not blocked before `mask`.
    ///
    /// # Errors
    /// The kernel's error, such as `EBADF` if the program closed the descriptor.
    pub fn watch(&self, mask: &SignalMask) -> Result<(), Errno> {
        if self.watched.load(Ordering::Relaxed) != !mask.before.mask {
            Self::set(self.fd.as_raw_fd(), !mask.before.mask)?;
            self.watched.store(!mask.before.mask, Ordering::Relaxed);
        }
        Ok(())
    }

    fn set(fd: RawFd, signals: u64) -> Result<RawFd, Errno> {
        let flags = (libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) as usize;
        let args = [fd as usize, &raw const signals as usize, KERNEL_SET_BYTES, flags, 0, 0];
        // SAFETY: the kernel only reads `signals`, a 64-bit signal set. `fd` is a signalfd that this module created, or
        // -1 to create a new one.
        unsafe { raw::syscall(libc::SYS_signalfd4, args) }.map(|fd| fd as RawFd)
    }
}

impl AsFd for SignalWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SignalMask {
    fn drop(&mut self) {
        Self::restore(self.before);
    }
}
