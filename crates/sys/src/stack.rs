//! Stacks for Hanare's fault handlers. A program's alternate signal stack may have only a few hundred bytes left.

use crate::futex::LockCell;
use crate::map::{self, MapError, Mapping, Prot};
use crate::raw::again;
use std::ffi::c_void;

/// The size of one stack in bytes, including its guard page.
const STACK_BYTES: usize = 128 << 10;
/// The number of stacks, and so of handlers that can run at the same time. Any further handler waits until a stack is
/// free.
const STACKS: usize = 64;

/// A pool of stacks. Pages of a stack that were never used take no memory.
pub struct Stacks {
    free: LockCell<Free>,
}

struct Free {
    tops: [usize; STACKS],
    count: usize,
}

impl Stacks {
    /// Maps the stacks. Each stack lies above a guard page. Without the guard page, an overflow would change another
    /// stack's bytes.
    ///
    /// # Errors
    /// [`MapError`] if no address space or no mapping is left.
    pub fn new() -> Result<Self, MapError> {
        let base = Mapping::anonymous(STACKS * STACK_BYTES)?.leak();
        let mut tops = [0; STACKS];
        for (index, top) in tops.iter_mut().enumerate() {
            let low = base + index * STACK_BYTES;
            // SAFETY: `low` is the lowest page of a new mapping. No code uses this page, so no reference into it
            // exists.
            again(|| unsafe { map::protect(low, map::page_size(), Prot::NONE) })
                .map_err(|errno| MapError::Reserve { len: STACKS * STACK_BYTES, errno })?;
            *top = low + STACK_BYTES;
        }
        Ok(Self { free: LockCell::new(Free { tops, count: STACKS }) })
    }

    /// Runs `work` on one of the stacks. `work` must not unwind. The calling thread must have blocked its signals.
    /// Otherwise a signal handler could run on this stack too.
    pub fn run<F: FnOnce()>(&self, work: F) {
        let top = self.take();
        let mut work = Some(work);
        // SAFETY: `take` gives the stack to this call only, and the stack is never unmapped. `trampoline` gets the
        // `Option<F>` that it expects, and `work` outlives the call.
        unsafe { call_on(top, trampoline::<F>, (&raw mut work).cast()) };
        self.give(top);
    }

    fn take(&self) -> usize {
        loop {
            {
                let mut free = self.free.lock();
                if free.count > 0 {
                    free.count -= 1;
                    return free.tops[free.count];
                }
            }
            // All stacks are in use. A handler uses a stack only while it resolves one fault, so a stack becomes free
            // soon.
            std::thread::yield_now();
        }
    }

    fn give(&self, top: usize) {
        let mut free = self.free.lock();
        let count = free.count;
        free.tops[count] = top;
        free.count += 1;
    }
}

/// Runs `work` on a new stack that is made for this call.
///
/// # Errors
/// [`MapError`] if no address space is left. In this case, `work` did not run.
pub fn run_on_fresh<F: FnOnce()>(work: F) -> Result<(), MapError> {
    let stack = Mapping::anonymous(STACK_BYTES)?;
    let mut work = Some(work);
    // SAFETY: `stack` is a new mapping that only this call uses, and it lives until the call returns. `trampoline` gets
    // the `Option<F>` that it expects, and `work` outlives the call.
    unsafe { call_on(stack.addr() + stack.len(), trampoline::<F>, (&raw mut work).cast()) };
    Ok(())
}

extern "C" fn trampoline<F: FnOnce()>(work: *mut c_void) {
    // SAFETY: the callers pass a pointer to their live `Option<F>`.
    if let Some(work) = unsafe { (*work.cast::<Option<F>>()).take() } {
        work();
    }
}

/// Calls `function(argument)` with the stack pointer at `top`.
///
/// # Safety
/// `top` is the 16-byte aligned end of a mapped stack that no other code uses. `function` does not unwind.
#[cfg(target_arch = "x86_64")]
unsafe fn call_on(top: usize, function: extern "C" fn(*mut c_void), argument: *mut c_void) {
    // SAFETY: the callee preserves r12, so the old stack pointer is restored after the call. The clobber list names
    // every register that a C call may change.
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {function}",
            "mov rsp, r12",
            top = in(reg) top,
            function = in(reg) function,
            in("rdi") argument,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// Calls `function(argument)` with the stack pointer at `top`.
///
/// # Safety
/// `top` is the 16-byte aligned end of a mapped stack that no other code uses. `function` does not unwind.
#[cfg(target_arch = "aarch64")]
unsafe fn call_on(top: usize, function: extern "C" fn(*mut c_void), argument: *mut c_void) {
    // SAFETY: the callee preserves x20, so the old stack pointer is restored after the call. The clobber list names
    // every register that a C call may change.
    unsafe {
        std::arch::asm!(
            "mov x20, sp",
            "mov sp, {top}",
            "blr {function}",
            "mov sp, x20",
            top = in(reg) top,
            function = in(reg) function,
            in("x0") argument,
            out("x20") _,
            clobber_abi("C"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_another_stack_and_comes_back() {
        let stacks = Stacks::new().expect("address space");
        let here = 0u8;
        let mut there = 0usize;
        for round in 0..3 * STACKS {
            let mut seen = 0;
            stacks.run(|| {
                // This array needs more than one page of stack.
                let block = std::hint::black_box([round as u8; 32 << 10]);
                there = block.as_ptr() as usize;
                seen = block.iter().map(|&byte| byte as usize).sum::<usize>();
            });
            assert_eq!(seen, (round as u8) as usize * (32 << 10));
        }
        assert!(there.abs_diff(&raw const here as usize) > 64 << 10, "it ran on the caller's stack");
    }

    #[test]
    fn more_threads_than_stacks_all_get_their_turn() {
        let stacks = Stacks::new().expect("address space");
        let total = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..STACKS + 8 {
                scope.spawn(|| {
                    (0..50).for_each(|_| stacks.run(|| _ = total.fetch_add(1, std::sync::atomic::Ordering::Relaxed)))
                });
            }
        });
        assert_eq!(total.into_inner(), (STACKS + 8) * 50);
    }
}
