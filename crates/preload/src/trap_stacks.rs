//! A near stack in each thread for the handler of the trap, in signal modes (sigbus and sigsegv). Without it, the kernel
//! would write the signal frame to the stack on which the thread is. A coroutine's stack may be far, and its page absent:
//! the kernel then ends the program. Or it may be so small that the frame would overwrite what lies below it.
//!
//! It is the thread's alternate signal stack while the program has set none of its own. The program does not see it
//! (`calls::stack`). A handler of the program that asks for an alternate stack without setting one runs on it, too. So it
//! is large, but its pages take memory only once they are used.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use hanare::far;
use libc::{pthread_key_t, stack_t};

use crate::answer::{keeping_errno, kernel, unfiltered};
use crate::go;
use crate::range::PAGE;

/// Bytes of a stack, without the guard page below it.
const BYTES: usize = 256 << 10;

/// One plus the key of the thread-specific data that holds the address of the thread's stack; 0 before the key exists.
static KEY: AtomicUsize = AtomicUsize::new(0);

/// Gives the calling thread, which is the program's first one, a stack. Threads that are created later get theirs by
/// [`give`]. Does nothing in thread mode. Go sets alternate stacks in all of its threads.
pub(crate) fn begin() {
    if far::trap_signal().is_none() || go::is_there() {
        return;
    }
    let mut key: pthread_key_t = 0;
    // SAFETY: `key` is a local variable. `take_back` is a function of this library, which is never unloaded.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(take_back)) } == 0 {
        KEY.store(key as usize + 1, Ordering::Release);
        give();
    }
}

/// Returns whether threads get stacks.
pub(crate) fn are_given() -> bool {
    key().is_some()
}

fn key() -> Option<pthread_key_t> {
    KEY.load(Ordering::Acquire).checked_sub(1).map(|key| key as pthread_key_t)
}

/// Gives the calling thread a stack, unless it has an alternate one. Without memory, the thread goes on without.
pub(crate) fn give() {
    let Some(key) = key() else { return };
    keeping_errno(|| {
        let len = PAGE + BYTES;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        // SAFETY: the kernel maps fresh memory at an address of its choice.
        let made = unsafe { kernel(libc::SYS_mmap, [0, len, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0]) };
        let Ok(guard) = made else { return };
        let (base, open) = (guard + PAGE, (libc::PROT_READ | libc::PROT_WRITE) as usize);
        // SAFETY: the range is the mapping above without its lowest page, which stays closed. Nothing uses it yet. The
        // thread's data has the address until `take_back` unmaps it.
        let is_set = unsafe {
            kernel(libc::SYS_mprotect, [base, BYTES, open, 0, 0, 0]).is_ok()
                && has_none()
                && libc::pthread_setspecific(key, base as *const c_void) == 0
                && set(Some(base)).is_ok()
        };
        if !is_set {
            // SAFETY: the thread's data no longer has the address, and the kernel does not use the mapping.
            unsafe { unmap(key, base) };
        }
    });
}

/// Returns the address of the calling thread's stack.
pub(crate) fn own() -> Option<usize> {
    // SAFETY: the key is never deleted.
    key().map(|key| unsafe { libc::pthread_getspecific(key) } as usize).filter(|&base| base != 0)
}

/// Makes the stack at `base` the calling thread's alternate one, or makes it have none.
///
/// # Errors
/// The kernel's error number: `EPERM` if the thread is on its alternate stack.
///
/// # Safety
/// `base` comes from [`own`], or is the address of a mapping of `BYTES` that nothing else uses.
pub(crate) unsafe fn set(base: Option<usize>) -> Result<(), i32> {
    let stack = match base {
        Some(base) => stack_t { ss_sp: base as *mut c_void, ss_flags: 0, ss_size: BYTES },
        None => stack_t { ss_sp: null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 },
    };
    // SAFETY: the kernel reads `stack`. The caller promises that the stack is free.
    unsafe { unfiltered(libc::SYS_sigaltstack, [&raw const stack as usize, 0, 0, 0, 0, 0]) }.map(drop)
}

/// Returns the calling thread's alternate stack as the kernel knows it.
fn present() -> Option<stack_t> {
    let mut stack = stack_t { ss_sp: null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: the kernel writes to `stack`.
    unsafe { unfiltered(libc::SYS_sigaltstack, [null::<u8>() as usize, &raw mut stack as usize, 0, 0, 0, 0]) }.ok()?;
    Some(stack)
}

fn has_none() -> bool {
    present().is_some_and(|stack| stack.ss_flags & libc::SS_DISABLE != 0)
}

/// Takes the stack of a thread that ends. The thread's own stack, on which its last destructors run, is near.
unsafe extern "C" fn take_back(base: *mut c_void) {
    let base = base as usize;
    keeping_errno(|| {
        let is_used = present().is_none_or(|stack| stack.ss_sp as usize == base);
        // SAFETY: `base` is the thread's own stack, and the thread is not on it. If it cannot be given up, it stays mapped.
        unsafe {
            if let Some(key) = key().filter(|_| !is_used || set(None).is_ok()) {
                unmap(key, base);
            }
        }
    });
}

/// # Safety
/// `base` is the stack that [`give`] mapped in this thread, and the kernel does not use it.
unsafe fn unmap(key: pthread_key_t, base: usize) {
    // SAFETY: the key is never deleted. The mapping is the one that `give` made, and nothing uses it.
    let answers = unsafe {
        (libc::pthread_setspecific(key, null()), kernel(libc::SYS_munmap, [base - PAGE, PAGE + BYTES, 0, 0, 0, 0]))
    };
    debug_assert!(answers.1.is_ok(), "the stack's mapping is whole");
}
