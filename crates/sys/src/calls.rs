//! Traps system calls of the program that the kernel cannot carry out on absent far pages, and hands them to a handler
//! in the calling thread.
//!
//! Two mechanisms raise SIGSYS before the kernel looks at a call:
//!
//! - *The filter* ([`CallTraps::filter`]) traps every call with a pointer into the window, wherever it is made. It needs
//!   CAP_SYS_ADMIN, because Hanare does not take from a program the means to gain privileges.
//! - *Dispatch* (`PR_SET_SYSCALL_USER_DISPATCH`, [`CallTraps::dispatch`]) traps every call that is made outside the C
//!   library's code. The kernel turns it off in each new thread and process, and when a program is executed.
//!
//! SIGSYS must never be blocked from then on: the kernel kills a process whose trap is blocked. This module knows no
//! far memory. It reads and changes the registers of the trapped thread.

use crate::features::CallTraps;
use crate::filter::words::{self, MARK, PASS};
use crate::flags::SUSPENDED;
use crate::raw::{self, Errno, syscall};
use crate::signal::{self, Action, Interrupted, SA_RESTORER, SignalError};
use crate::thread;
use libc::{REG_R8, REG_R9, REG_R10, REG_RAX, REG_RDI, REG_RDX, REG_RIP, REG_RSI, REG_RSP};
use std::ffi::{c_int, c_long, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

pub use crate::filter::words::{WINDOW_BASE, WINDOW_LEN, traps_always};

const SIGNAL: c_int = libc::SIGSYS;
/// `si_code` of a trap by a filter.
const BY_FILTER: c_int = 1;
/// `si_code` of a trap by dispatch.
const BY_DISPATCH: c_int = 2;
/// `PR_SET_SYSCALL_USER_DISPATCH`.
pub const SET_DISPATCH: usize = 59;
const DISPATCH_OFF: usize = 0;
const DISPATCH_ON: usize = 1;
const ARCH_X86_64: u32 = 0xC000_003E;
/// Bytes of the instructions `syscall` and `int 0x80`.
const INSTRUCTION_BYTES: i64 = 2;
/// Maximum number of bytes from the start of a function of the C library to its system call instruction.
const PROLOGUE_BYTES: usize = 24;

/// A function that serves a trapped call. It runs in the calling thread, under that thread's signal mask.
pub type Handler = unsafe extern "C-unwind" fn(&mut Call);

static HANDLER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
/// The code whose calls pass. Its length is 0 if dispatch is not used.
static PASSES: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));
/// Number of calls that a filter trapped.
static FILTERED: AtomicU64 = AtomicU64::new(0);

/// A trapped system call.
#[derive(Debug)]
pub struct Call {
    context: *mut libc::ucontext_t,
    is_dispatched: bool,
}

impl Call {
    fn register(&mut self, index: c_int) -> &mut i64 {
        // SAFETY: `context` is the kernel's, valid until the handler returns, and `index` names a register in it.
        unsafe { &mut (*self.context).uc_mcontext.gregs[index as usize] }
    }

    /// Returns whether dispatch has trapped the call, and not the filter.
    #[must_use]
    pub fn is_dispatched(&self) -> bool {
        self.is_dispatched
    }

    /// Returns the number of the call.
    pub fn number(&mut self) -> c_long {
        *self.register(REG_RAX)
    }

    /// Returns the argument words of the call.
    pub fn arguments(&mut self) -> [usize; 6] {
        [REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9].map(|index| *self.register(index) as usize)
    }

    /// Returns the address after the system call instruction.
    pub fn origin(&mut self) -> usize {
        *self.register(REG_RIP) as usize
    }

    /// Sets the result of the call: a value, or a negated error number.
    pub fn answer(&mut self, value: c_long) {
        *self.register(REG_RAX) = value;
    }

    /// Makes the thread execute the system call instruction again when the handler returns.
    pub fn repeat(&mut self) {
        *self.register(REG_RIP) -= INSTRUCTION_BYTES;
    }

    /// Returns the place of the signal mask that the thread has when the handler returns.
    pub fn mask(&mut self) -> &mut u64 {
        // SAFETY: `context` is the kernel's, valid until the handler returns. Its mask begins with the kernel's 64 bits.
        unsafe { &mut *(&raw mut (*self.context).uc_sigmask).cast::<u64>() }
    }

    /// Returns the place of the alternate signal stack that the thread has when the handler returns.
    pub fn signal_stack(&mut self) -> &mut libc::stack_t {
        // SAFETY: `context` is the kernel's, valid until the handler returns.
        unsafe { &mut (*self.context).uc_stack }
    }

    /// Ends the program's signal handler that made the call `rt_sigreturn`.
    ///
    /// # Safety
    /// The trapped call is `rt_sigreturn`. The code that the signal interrupted may continue at any point of the caller.
    pub unsafe fn return_from_signal(&mut self) -> ! {
        let stack = *self.register(REG_RSP);
        // SAFETY: the stack pointer is the one with which the program called. The kernel finds the program's signal
        // frame there and does not return.
        unsafe {
            std::arch::asm!(
                "mov rsp, {stack}",
                "jmp {gate}",
                stack = in(reg) stack,
                gate = in(reg) raw::gate(),
                in("rax") libc::SYS_rt_sigreturn,
                options(noreturn)
            )
        }
    }
}

/// The handler of SIGSYS. It keeps `errno`, and passes on what is no trap of Hanare's.
unsafe extern "C-unwind" fn entry(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo. `si_errno` is one of the fields of every signal.
    let (code, errno) = unsafe { ((*info).si_code, (*info).si_errno) };
    // SAFETY: SIGSYS by the kernel has the fields of `Trap` after the common ones.
    let trap = unsafe { &*info.cast::<Trap>() };
    let is_filtered = code == BY_FILTER && errno == MARK && trap.arch == ARCH_X86_64;
    let handler = HANDLER.load(Ordering::Acquire);
    if !(is_filtered || code == BY_DISPATCH) || handler.is_null() {
        let interrupted = signal::interrupted(context);
        if interrupted == Interrupted::End && signal::postpone(signal, info, context) {
            return;
        }
        signal::chain(signal, info, context, interrupted == Interrupted::Beginning);
        // A handler that has just begun delivers at its end what waits.
        if interrupted != Interrupted::Beginning {
            signal::deliver_at_return();
        }
        return;
    }
    // Until here, the kernel blocks all signals except those of traps. Handlers of the program run from here on. Calls of theirs
    // may be trapped, and so may calls of the handler below.
    signal::return_to_mask_of(context);
    let mut call = Call { context: context.cast(), is_dispatched: !is_filtered };
    if trap.arch != ARCH_X86_64 {
        // A call of the 32-bit table (`int 0x80`) has other numbers. It takes 32 bits of each argument, so none is far.
        suspend();
        return call.repeat();
    }
    if is_filtered {
        FILTERED.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the location of the thread's `errno` is always valid.
    let saved = unsafe { *libc::__errno_location() };
    // SAFETY: `trap_into` stores only handlers. The context is the kernel's.
    unsafe {
        let serve = std::mem::transmute::<*mut (), Handler>(handler);
        serve(&mut call);
        *libc::__errno_location() = saved;
    }
}

/// The siginfo of SIGSYS.
#[repr(C)]
struct Trap {
    common: [c_int; 4],
    address: usize,
    number: c_int,
    arch: u32,
}

/// Returns which mechanisms work in this process. Changes nothing.
#[must_use]
pub(crate) fn available() -> CallTraps {
    const GET_ACTION_AVAILABLE: usize = 2;
    const RET_TRAP: u32 = 0x0003_0000;
    let trap = RET_TRAP;
    // A thread that is dispatched must stay so.
    let is_dispatching = PASSES.1.load(Ordering::Acquire) != 0;
    // SAFETY: the calls ask only, apart from one that turns dispatch off in a thread in which it is off. `trap` is a
    // local word.
    let (has_filters, is_bound, dispatch) = unsafe {
        (
            syscall(libc::SYS_seccomp, [GET_ACTION_AVAILABLE, 0, &raw const trap as usize, 0, 0, 0]).is_ok(),
            syscall(libc::SYS_prctl, [libc::PR_GET_NO_NEW_PRIVS as usize, 0, 0, 0, 0, 0]) == Ok(1),
            is_dispatching || syscall(libc::SYS_prctl, [SET_DISPATCH, DISPATCH_OFF, 0, 0, 0, 0]).is_ok(),
        )
    };
    CallTraps { filter: has_filters && (is_bound || is_administrator()), dispatch }
}

/// Returns whether the process has CAP_SYS_ADMIN.
fn is_administrator() -> bool {
    const SYS_ADMIN: u32 = 21;
    thread::capabilities(0).is_some_and(|capabilities| capabilities & 1 << SYS_ADMIN != 0)
}

/// Makes `handler` serve the calls that are trapped from now on, and installs the handler of SIGSYS. Its stack is the
/// alternate one if `on_stack`. `returns` is the C library's code that ends signal handlers.
///
/// # Errors
/// [`SignalError`] if the kernel refuses.
///
/// # Safety
/// At `returns` is code that makes the system call rt_sigreturn, for as long as the process lives.
pub unsafe fn trap_into(handler: Handler, on_stack: bool, returns: usize) -> Result<(), SignalError> {
    // SAFETY: the caller promises what `returns` is.
    unsafe { signal::return_through(returns) };
    signal::keep_action(SIGNAL, entry as *const () as usize)?;
    HANDLER.store(handler as *mut (), Ordering::Release);
    set_action(if on_stack { libc::SA_ONSTACK } else { 0 })?;
    signal::keep_open(1 << (SIGNAL - 1));
    // The process may have been started with a mask that blocks the signal. A pending one finds the handler.
    signal::open(1 << (SIGNAL - 1));
    Ok(())
}

fn set_action(stack: c_int) -> Result<(), SignalError> {
    let flags = (libc::SA_SIGINFO | stack) as libc::c_ulong;
    // The kernel itself blocks the signal while its handler begins. Meanwhile no handler of the program may run: the
    // kernel would kill the process at a trapped call of that handler. An absent page of the stack must still trap.
    let mask = !signal::traps();
    signal::kernel_action(SIGNAL, Some(Action { handler: entry as *const () as usize, flags, restorer: 0, mask }))?;
    Ok(())
}

/// Leaves the signals of new traps open while the handler of SIGSYS begins.
///
/// # Errors
/// [`SignalError`] if the kernel refuses.
pub(crate) fn leave_traps_open() -> Result<(), SignalError> {
    let present = signal::kernel_action(SIGNAL, None)?;
    match present.handler == entry as *const () as usize {
        true => set_action(present.flags as c_int & libc::SA_ONSTACK),
        false => Ok(()),
    }
}

/// Returns whether calls may be trapped in this process.
#[inline]
#[must_use]
pub fn are_served() -> bool {
    !HANDLER.load(Ordering::Acquire).is_null()
}

/// Returns the code that ends the handlers of an action which the C library has just set for SIGSYS.
#[must_use]
pub fn restorer() -> Option<usize> {
    let action = signal::kernel_action(SIGNAL, None).ok()?;
    Some(action.restorer).filter(|_| action.flags & SA_RESTORER != 0)
}

/// Traps calls with a pointer into the window, unless an inherited filter does so already. Call it after
/// [`trap_into`].
///
/// # Errors
/// The kernel's error ([`words::trap`]).
pub fn filter() -> Result<(), Errno> {
    if is_filtering() { Ok(()) } else { words::trap() }
}

/// Checks whether a filter traps calls with a pointer into the window, by a call that the kernel refuses.
fn is_filtering() -> bool {
    let before = FILTERED.load(Ordering::Relaxed);
    // Ignored: the kernel refuses the size of the set before it reads the pointer.
    // SAFETY: the kernel accesses no memory.
    let _ = unsafe { syscall(libc::SYS_rt_sigpending, [WINDOW_BASE, usize::MAX, 0, 0, 0, 0]) };
    FILTERED.load(Ordering::Relaxed) != before
}

/// Makes a call that the filter does not trap, although it may have pointers into the window.
///
/// # Errors
/// The kernel's error, or `EFAULT` if the filter would trap this call in any case.
///
/// # Safety
/// As for [`syscall`].
pub unsafe fn pass(number: c_long, mut args: [usize; 6]) -> Result<usize, Errno> {
    if traps_always(number, args) {
        return Err(Errno(libc::EFAULT));
    }
    if words::may_mark(number) {
        args[5] = args[5] & u32::MAX as usize | PASS << 32;
    }
    // SAFETY: the caller promises that the call is sound. The kernel does not read the upper half of a sixth word that
    // is neither a pointer nor an offset.
    unsafe { syscall(number, args) }
}

/// Lets calls from `code`, the C library's, pass in threads that call [`dispatch`]. Hanare's own calls are made there
/// from now on, by the instructions `syscall` and `ret` in the function at `function`.
///
/// # Errors
/// `ENOSYS` if `function` does not hold these instructions within a few bytes, or lies outside `code`.
///
/// # Safety
/// `code` is readable for as long as the process lives.
pub unsafe fn pass_from(code: Range<usize>, function: usize) -> Result<(), Errno> {
    const GATE: [u8; 3] = [0x0f, 0x05, 0xc3];
    let places = function..function + PROLOGUE_BYTES;
    if !code.contains(&places.start) || !code.contains(&(places.end + GATE.len())) {
        return Err(Errno(libc::ENOSYS));
    }
    // SAFETY: the bytes lie in `code`, which is readable.
    let is_gate = |place: &usize| unsafe { (*place as *const [u8; 3]).read() } == GATE;
    let gate = places.into_iter().find(is_gate).ok_or(Errno(libc::ENOSYS))?;
    // SAFETY: the instructions `syscall` and `ret` are at `gate`.
    unsafe { raw::call_through(gate) };
    PASSES.0.store(code.start, Ordering::Relaxed);
    PASSES.1.store(code.len(), Ordering::Release);
    Ok(())
}

/// Traps the calling thread's calls from outside the C library from now on. Does nothing if [`pass_from`] has not
/// succeeded.
///
/// # Errors
/// `EINVAL` if the kernel does not have dispatch.
pub fn dispatch() -> Result<(), Errno> {
    let len = PASSES.1.load(Ordering::Acquire);
    if len == 0 {
        return Ok(());
    }
    let args = [SET_DISPATCH, DISPATCH_ON, PASSES.0.load(Ordering::Relaxed), len, 0, 0];
    // SAFETY: the call takes only integers. From now on, traps of this thread find the handler of `trap_into`.
    unsafe { syscall(libc::SYS_prctl, args) }.map(drop)
}

/// Makes [`dispatch`] do nothing from now on.
pub fn never_dispatch() {
    PASSES.1.store(0, Ordering::Release);
}

/// Returns whether [`dispatch`] does nothing.
#[must_use]
pub fn is_never_dispatched() -> bool {
    PASSES.1.load(Ordering::Acquire) == 0
}

/// Ends the traps of [`dispatch`] in the calling thread, until [`resume`].
pub fn suspend() {
    SUSPENDED.set(true);
    // Ignored: turning dispatch off fails only on a kernel that never turned it on.
    // SAFETY: the call takes only integers.
    let _ = unsafe { syscall(libc::SYS_prctl, [SET_DISPATCH, DISPATCH_OFF, 0, 0, 0, 0]) };
}

/// Begins the traps of [`dispatch`] again if [`suspend`] has ended them in the calling thread.
#[inline]
pub(crate) fn resume() {
    if SUSPENDED.replace(false) {
        // Ignored: without dispatch, a call on an absent page fails with EFAULT.
        let _ = dispatch();
    }
}
