//! Alternate signal stacks. The kernel writes a signal frame to such a stack before any handler runs, so the stack must
//! not be far. In signal modes (sigbus and sigsegv), near (ordinary) memory of the same size permanently replaces a far
//! stack. The program still sees the stack that it passed. While it has none, the thread has one of Hanare's
//! (`trap_stacks`), which the program does not see.

use std::ffi::c_int;
use std::mem::transmute;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::stack_t;

use super::near::{filled, is_far, kernel_is_blind};
use super::real;
use crate::answer::{kernel, set_errno, status, unfiltered};
use crate::trap_stacks;

/// Maximum number of far stacks that can be replaced. For further far stacks, `sigaltstack` fails with `ENOMEM`.
const STACKS_MAX: usize = 256;

struct Replaced {
    /// The address of the far stack that the program passed; 0 for a free entry.
    far: AtomicUsize,
    near: AtomicUsize,
    len: AtomicUsize,
}

static REPLACED: [Replaced; STACKS_MAX] =
    [const { Replaced { far: AtomicUsize::new(0), near: AtomicUsize::new(0), len: AtomicUsize::new(0) } }; STACKS_MAX];

/// Returns the near memory that replaces a far stack, or `None` if there is no memory or no free entry. The same stack
/// always gets the same memory. A stack belongs to one thread, so two threads never call this with the same stack.
fn near_stack(far: usize, len: usize) -> Option<usize> {
    let known =
        |entry: &&Replaced| entry.far.load(Ordering::Acquire) == far && entry.len.load(Ordering::Acquire) == len;
    if let Some(entry) = REPLACED.iter().find(known) {
        return Some(entry.near.load(Ordering::Acquire)).filter(|&near| near != 0);
    }
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK);
    // SAFETY: the kernel maps fresh memory at an address of its choice.
    let near = unsafe { kernel(libc::SYS_mmap, [0, len, prot as usize, flags as usize, usize::MAX, 0]) }.ok()?;
    let free = |entry: &&Replaced| entry.far.compare_exchange(0, far, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let Some(entry) = REPLACED.iter().find(free) else {
        // SAFETY: this function made the mapping, and nothing uses it yet.
        let _ = unsafe { kernel(libc::SYS_munmap, [near, len, 0, 0, 0, 0]) };
        return None;
    };
    entry.near.store(near, Ordering::Release);
    entry.len.store(len, Ordering::Release);
    Some(near)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sigaltstack(new: *const stack_t, old: *mut stack_t) -> c_int {
    type Call = unsafe extern "C-unwind" fn(*const stack_t, *mut stack_t) -> c_int;
    let Some(call) = real::sigaltstack.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: `call` is the C library's `sigaltstack`, which has the type `Call`.
    let call = unsafe { transmute::<*mut std::ffi::c_void, Call>(call) };
    if !kernel_is_blind() {
        // SAFETY: the arguments are the caller's, and `call` is sigaltstack(2).
        return unsafe { call(new, old) };
    }
    // SAFETY: under the contract of sigaltstack(2), both pointers are null or valid.
    let (mut wanted, told) = unsafe { (new.as_ref().copied(), filled(old)) };
    if let Some(stack) = wanted.as_mut().filter(|stack| is_far(stack.ss_sp, stack.ss_size)) {
        let Some(near) = near_stack(stack.ss_sp as usize, stack.ss_size) else {
            set_errno(libc::ENOMEM);
            return -1;
        };
        stack.ss_sp = near as *mut _;
    }
    let own = trap_stacks::own();
    let is_given_up = wanted.is_some_and(|stack| stack.ss_flags & libc::SS_DISABLE != 0);
    let new = wanted.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let told = told.pointer().cast::<stack_t>();
    // The thread's stack may be one that was far, so the C library's function could trap.
    // SAFETY: `new` and `told` are each null or point to near memory.
    let answer =
        status(unsafe { unfiltered(libc::SYS_sigaltstack, [new as usize, told as usize, 0, 0, 0, 0]) }.map(drop));
    if answer == 0 && is_given_up && own.is_some() {
        // Ignored: the thread is on no alternate stack, and the kernel has just accepted another change.
        // SAFETY: the stack is the thread's own, and the thread is not on it.
        let _ = unsafe { trap_stacks::set(own) };
    }
    if answer == 0 && !told.is_null() {
        // SAFETY: `told` is not null, and the call filled it.
        let stack = unsafe { &mut *told };
        if own.is_some_and(|own| stack.ss_sp as usize == own) {
            *stack = stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        }
        let same = |entry: &&Replaced| entry.near.load(Ordering::Acquire) == stack.ss_sp as usize;
        if let Some(entry) = REPLACED.iter().find(same).filter(|_| !stack.ss_sp.is_null()) {
            stack.ss_sp = entry.far.load(Ordering::Acquire) as *mut _;
        }
    }
    answer
}
