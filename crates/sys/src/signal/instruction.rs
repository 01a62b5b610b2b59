//! The instruction that a signal has interrupted.

use std::ffi::c_void;

/// Returns the address of the interrupted instruction. `context` is what the kernel passes to an SA_SIGINFO handler.
#[cfg(target_arch = "x86_64")]
pub(super) fn at(context: *mut c_void) -> usize {
    // SAFETY: `context` comes from the kernel, which passes a valid ucontext to an SA_SIGINFO handler.
    unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] as usize }
}

/// Returns the address of the interrupted instruction. `context` is what the kernel passes to an SA_SIGINFO handler.
#[cfg(target_arch = "aarch64")]
pub(super) fn at(context: *mut c_void) -> usize {
    // SAFETY: `context` comes from the kernel, which passes a valid ucontext to an SA_SIGINFO handler.
    unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.pc as usize }
}
