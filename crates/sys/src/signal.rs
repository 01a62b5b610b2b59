//! SIGBUS and SIGSEGV handlers for page faults. A fault that is not Hanare's is passed on to the program's own action.
//! This module also blocks signals.
//!
//! This module reads fault signals and does not know the states of pages. An installed [`FaultHandler`] decides about
//! each fault. It runs with every signal blocked, on the alternate stack if the thread has one. A fault that it does
//! not resolve is passed on to the chained action: the program's action from before the installation, or the one that
//! the program set later ([`set_chained`]). The effect is then the same as without our handler.

use crate::futex::LockCell;
use crate::raw::{self, Errno};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

mod executing;
mod held;
mod instruction;
mod mask;

pub use executing::Executing;
pub(crate) use held::deliver_at_return;
pub use held::{block, blocked, forget_waiting, jump, keep_masks, note_blocked, open, take_waiting, waiting};
use mask::set_kernels_mask;
pub use mask::{SignalMask, SignalWatch, Unblocked, Uncancelled, end_by_default};
pub(crate) use mask::{keep_open, kept_open};

/// The reasons why a handler could not be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignalError {
    /// The signal is neither SIGBUS nor SIGSEGV.
    #[error("signal {0} is not a fault signal; only SIGBUS and SIGSEGV can be handled")]
    NotAFaultSignal(i32),
    /// The kernel refused to change the action of the signal.
    #[error("cannot change the action of signal {signal}: {errno}")]
    Action {
        /// The number of the signal.
        signal: i32,
        /// The kernel's error.
        errno: Errno,
    },
}

/// The data of one fault signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultInfo {
    /// The accessed address.
    pub addr: usize,
    /// Whether the access was a write. `None` if the machine does not report it.
    pub write: Option<bool>,
    /// `SIGBUS` or `SIGSEGV`.
    pub signal: i32,
    /// The `si_code`, such as `SEGV_ACCERR`.
    pub code: i32,
    /// The address of the instruction that made the access.
    pub at: usize,
}

/// A handler's decision about a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The page is present now, so the thread repeats the access.
    Handled,
    /// The fault is not in Hanare's memory, so the program's own action applies.
    NotOurs,
}

/// A function that decides about a fault, in the thread that caused the fault. It must be async-signal-safe.
pub type FaultHandler = fn(FaultInfo) -> Verdict;

/// The state of one fault signal.
struct Slot {
    /// The address of the [`FaultHandler`], or null if none is installed.
    handler: AtomicPtr<()>,
    /// The program's action for faults that are not Hanare's. A thread blocks all signals before it locks this cell.
    chained: LockCell<Action>,
}

impl Slot {
    const fn new() -> Self {
        Self { handler: AtomicPtr::new(std::ptr::null_mut()), chained: LockCell::new(Action::DEFAULT) }
    }
}

static BUS: Slot = Slot::new();
static SEGV: Slot = Slot::new();
/// The slot of SIGSYS, whose handler is in [`crate::calls`].
static SYS: Slot = Slot::new();

fn slot(signal: c_int) -> Option<&'static Slot> {
    match signal {
        libc::SIGBUS => Some(&BUS),
        libc::SIGSEGV => Some(&SEGV),
        libc::SIGSYS => Some(&SYS),
        _ => None,
    }
}

/// The kernel's `struct sigaction`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Action {
    pub(crate) handler: usize,
    pub(crate) flags: libc::c_ulong,
    pub(crate) restorer: usize,
    pub(crate) mask: u64,
}

impl Action {
    const DEFAULT: Self = Self { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
    const IGNORE: Self = Self { handler: libc::SIG_IGN, ..Self::DEFAULT };

    fn has(self, flag: c_int) -> bool {
        self.flags as c_int & flag != 0
    }

    fn from_libc(action: &libc::sigaction) -> Self {
        Self {
            handler: action.sa_sigaction,
            flags: action.sa_flags as u32 as libc::c_ulong,
            restorer: 0,
            mask: first_word(&action.sa_mask),
        }
    }

    fn to_libc(self) -> libc::sigaction {
        // SAFETY: all zeroes is a valid sigaction: default action, empty mask, no flags.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = self.handler;
        action.sa_flags = self.flags as c_int;
        // SAFETY: `sa_mask` is a sigset_t of the local `action`. Its first 64 bits are the kernel's signal set.
        unsafe { (&raw mut action.sa_mask).cast::<u64>().write(self.mask) };
        action
    }
}

/// Returns the kernel's 64 bits of a C library signal set.
fn first_word(set: &libc::sigset_t) -> u64 {
    // SAFETY: the first 64 bits of a sigset_t are the kernel's signal set.
    unsafe { std::ptr::from_ref(set).cast::<u64>().read() }
}

pub(crate) const SA_RESTORER: libc::c_ulong = 0x0400_0000;
const KERNEL_SET_BYTES: usize = 8;

/// Sets the action of a signal if `new` is given, and returns the old action. It does not use the C library's
/// `sigaction`, because the program or our own preloaded library may have replaced that function.
pub(crate) fn kernel_action(signal: c_int, new: Option<Action>) -> Result<Action, SignalError> {
    let new = new.map(with_restorer);
    let mut old = Action::DEFAULT;
    let new_ptr = new.as_ref().map_or(0, |action| std::ptr::from_ref(action) as usize);
    let args = [signal as usize, new_ptr, &raw mut old as usize, KERNEL_SET_BYTES, 0, 0];
    // SAFETY: `new_ptr` is null or points to a kernel sigaction, which the kernel only reads. The kernel writes the old
    // action to `old`. The callers guarantee that the handler is valid.
    unsafe { raw::syscall(libc::SYS_rt_sigaction, args) }.map_err(|errno| SignalError::Action { signal, errno })?;
    Ok(old)
}

/// The restorer (the code that ends a signal handler) of the handlers installed from now on. 0 stands for the one of
/// this module.
static RESTORER: AtomicUsize = AtomicUsize::new(0);

/// Makes `restorer` the restorer of the handlers that are installed from now on.
///
/// # Safety
/// At `restorer` is code that makes the system call rt_sigreturn, for as long as the process lives.
pub(crate) unsafe fn return_through(restorer: usize) {
    RESTORER.store(restorer, Ordering::Release);
}

/// Adds the restorer to an action. The kernel has no default restorer on x86-64.
#[cfg(target_arch = "x86_64")]
fn with_restorer(action: Action) -> Action {
    let own = hanare_sys_restore_rt as *const () as usize;
    let restorer = Some(RESTORER.load(Ordering::Acquire)).filter(|&restorer| restorer != 0).unwrap_or(own);
    Action { flags: action.flags | SA_RESTORER, restorer, ..action }
}

/// Removes the restorer (the code that ends a signal handler) from an action. On this architecture, the kernel uses the
/// restorer in its vDSO.
#[cfg(not(target_arch = "x86_64"))]
fn with_restorer(action: Action) -> Action {
    Action { flags: action.flags & !SA_RESTORER, restorer: 0, ..action }
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn hanare_sys_restore_rt();
}

// Defines the restorer, which makes the system call rt_sigreturn. Unwinders and debuggers recognise a signal frame by
// exactly these bytes.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".text",
    ".balign 16",
    "nop",
    ".hidden hanare_sys_restore_rt",
    ".globl hanare_sys_restore_rt",
    ".type hanare_sys_restore_rt, @function",
    "hanare_sys_restore_rt:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00",
    ".byte 0x0f, 0x05",
    ".size hanare_sys_restore_rt, .-hanare_sys_restore_rt",
);

/// Installs `handler` for `signal` (SIGBUS or SIGSEGV). The present action becomes the chained action, which gets the
/// faults that `handler` does not resolve. A second call replaces the handler and keeps the chained action.
///
/// # Errors
/// [`SignalError`] if `signal` is neither SIGBUS nor SIGSEGV, or if the kernel refuses.
pub fn install(signal: i32, handler: FaultHandler) -> Result<(), SignalError> {
    let slot = slot(signal).filter(|_| signal != libc::SIGSYS).ok_or(SignalError::NotAFaultSignal(signal))?;
    keep_action(signal, entry as *const () as usize)?;
    // The handler is stored before the kernel installs `entry`. So a fault at any time finds either the old action, or
    // `entry` with its handler.
    slot.handler.store(handler as *mut (), Ordering::Release);
    #[cfg(target_arch = "x86_64")]
    crate::calls::leave_traps_open()?;
    let flags = (libc::SA_SIGINFO | libc::SA_ONSTACK) as libc::c_ulong;
    kernel_action(
        signal,
        Some(Action { handler: entry as *const () as usize, flags, restorer: 0, mask: !kept_open() }),
    )?;
    Ok(())
}

/// Stores the present action of the signal as the chained action, unless `own` is its handler.
pub(crate) fn keep_action(signal: c_int, own: usize) -> Result<(), SignalError> {
    let slot = slot(signal).ok_or(SignalError::NotAFaultSignal(signal))?;
    let present = kernel_action(signal, None)?;
    if present.handler != own {
        let _mask = SignalMask::block_all();
        *slot.chained.lock() = present;
    }
    Ok(())
}

/// Restores the chained action of the signal.
///
/// # Errors
/// [`SignalError`] if `signal` is neither SIGBUS nor SIGSEGV, or if the kernel refuses.
pub fn uninstall(signal: i32) -> Result<(), SignalError> {
    let slot = slot(signal).ok_or(SignalError::NotAFaultSignal(signal))?;
    let _mask = SignalMask::block_all();
    let chained = *slot.chained.lock();
    kernel_action(signal, Some(chained))?;
    slot.handler.store(std::ptr::null_mut(), Ordering::Release);
    Ok(())
}

/// Makes the program that `command` starts ignore the given signals. Bit n-1 of `signals` stands for signal n. Without
/// this call, the program would start with the default actions, because this process has handlers for these signals. It
/// would also ignore signals 32 and 33, as programs started by the C library's `posix_spawn` do: a `command` with work
/// before the execution is started by `fork`.
pub fn ignore_in(command: &mut std::process::Command, signals: u64) {
    use std::os::unix::process::CommandExt;
    let ignore = move || {
        let named = (1..=64).filter(|signal| signals & (1 << (signal - 1)) != 0);
        named
            .map(|signal| kernel_action(signal, Some(Action::IGNORE)))
            .find_map(Result::err)
            .map_or(Ok(()), |_| Err(std::io::Error::from_raw_os_error(libc::EINVAL)))
    };
    // SAFETY: `ignore` runs between fork and exec. It only makes system calls, which are async-signal-safe.
    unsafe { command.pre_exec(ignore) };
}

/// Makes the kernel kill the command's process when the thread that starts it ends. The process does not start if that
/// thread's process has ended before.
pub fn kill_with_starter(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let starter = std::process::id();
    let bind = move || {
        // SAFETY: the arguments of this request are numbers. `getppid` takes none.
        let (bound, parent) = unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL), libc::getppid()) };
        match bound {
            0 if parent as u32 == starter => Ok(()),
            0 => Err(std::io::Error::from_raw_os_error(libc::ESRCH)),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: `bind` runs between fork and exec. It only makes system calls, which are async-signal-safe.
    unsafe { command.pre_exec(bind) };
}

/// Checks whether our handler is installed for the signal.
#[must_use]
pub fn is_installed(signal: i32) -> bool {
    kernel_action(signal, None).is_ok_and(|present| present.handler == entry as *const () as usize)
}

/// Replaces the chained action of `signal` by an action that the program wants. Our handler stays installed. Returns
/// the previous chained action. An interposed `sigaction` calls this.
///
/// # Errors
/// [`SignalError::NotAFaultSignal`] if `signal` is neither SIGBUS nor SIGSEGV.
///
/// # Safety
/// The handler in `action` must be valid for sigaction(2).
pub unsafe fn set_chained(signal: i32, action: libc::sigaction) -> Result<libc::sigaction, SignalError> {
    let slot = slot(signal).ok_or(SignalError::NotAFaultSignal(signal))?;
    let _mask = SignalMask::block_all();
    // The C library gives every action a restorer, and programs see its flag when they read the action back.
    let new = with_restorer(Action::from_libc(&action));
    let old = std::mem::replace(&mut *slot.chained.lock(), new);
    Ok(old.to_libc())
}

/// Returns the action that the program wants for `signal`.
///
/// # Errors
/// [`SignalError::NotAFaultSignal`] if `signal` is neither SIGBUS nor SIGSEGV.
pub fn chained(signal: i32) -> Result<libc::sigaction, SignalError> {
    let slot = slot(signal).ok_or(SignalError::NotAFaultSignal(signal))?;
    let _mask = SignalMask::block_all();
    Ok(slot.chained.lock().to_libc())
}

/// The signal handler that the kernel calls. It runs with every signal blocked, even the C library's own, because it
/// may run on a small stack. So no other signal adds a second frame to this stack. The wait of the blocked signals is
/// limited, because the resolution of a fault always ends.
///
/// The C library may end a cancelled thread here, in [`mask::allow_cancellation`]. It then unwinds this frame, so no
/// value that needs to be dropped may be alive.
extern "C-unwind" fn entry(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    #[cfg(target_arch = "x86_64")]
    crate::processor::allow_unaligned();
    // A sent signal that is kept open must not run the program's handler in the middle of the engine.
    let guarded = held::begin_guard(kept_open());
    // The interrupted code must find `errno` unchanged.
    // SAFETY: `__errno_location` only returns the address of this thread's `errno`.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `errno` points to this thread's `errno`, which is always readable.
    let saved = unsafe { *errno };
    // The trap may have interrupted the beginning of Hanare's handler of SIGSYS, at an absent page of the stack. If
    // somebody sent the signal, it waits until that handler has set the program's mask.
    let is_early = interrupted_mask(context) & kept_open() != 0;
    if is_early {
        held::open(kept_open());
    }
    let cancellation = mask::forbid_cancellation();
    let verdict = decide(signal, info, context);
    #[cfg(target_arch = "x86_64")]
    crate::calls::resume();
    // SAFETY: `errno` points to this thread's `errno`, which is always writable.
    unsafe { *errno = saved };
    mask::allow_cancellation(cancellation, interrupted_mask(context) & !traps());
    if is_early {
        held::begin_guard(guarded);
    } else {
        held::end_guard(guarded);
    }
    if verdict == Verdict::NotOurs {
        chain(signal, info, context, is_early);
    }
}

fn decide(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) -> Verdict {
    let Some(slot) = slot(signal) else {
        return Verdict::NotOurs;
    };
    let handler = slot.handler.load(Ordering::Acquire);
    // SAFETY: `info` comes from the kernel, which passes a valid siginfo to an SA_SIGINFO handler.
    let (addr, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    // If a process sent the signal, its code is not positive. Such a signal is not a fault, even if its siginfo
    // contains an address.
    if handler.is_null() || code <= 0 {
        return Verdict::NotOurs;
    }
    // SAFETY: `handler` is not null, and `install` stores only addresses of `FaultHandler` functions.
    let handler: FaultHandler = unsafe { std::mem::transmute::<*mut (), FaultHandler>(handler) };
    // Memory that Hanare pages is never executable. So an instruction fetch from it is the program's own mistake.
    if signal == libc::SIGSEGV && is_fetch(context) {
        return Verdict::NotOurs;
    }
    handler(FaultInfo { addr, write: is_write(context), signal, code, at: instruction::at(context) })
}

/// Applies the program's own action for this signal. If somebody sent it, and it `is_early`, it waits instead: it has
/// interrupted the beginning of another handler of Hanare, under a mask that is not the program's.
pub(crate) fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, is_early: bool) {
    let Some(slot) = slot(signal) else { return };
    // SAFETY: `info` comes from the kernel, which passes a valid siginfo to an SA_SIGINFO handler.
    let sent = unsafe { (*info).si_code } <= 0;
    if sent && held::hold(signal, info, is_early) {
        return;
    }
    // SIGSYS may be open here. Its handler must not run while this thread holds the lock.
    let guarded = held::guard(kept_open());
    let action = {
        let mut chained = slot.chained.lock();
        let action = *chained;
        if action.has(libc::SA_RESETHAND) {
            *chained = Action::DEFAULT;
        }
        action
    };
    held::end_guard(guarded);
    match action.handler {
        libc::SIG_IGN if sent => {}
        // A fault cannot be ignored, so SIG_IGN also kills the process. The kernel does the same without our handler.
        // A trapped system call is not repeated, so SIGSYS is always sent again.
        libc::SIG_DFL | libc::SIG_IGN => die_by_default(signal, sent || signal == libc::SIGSYS),
        handler => call_chained(action, handler, signal, info, context),
    }
}

/// Restores the default action, so that the process dies. After a fault, the thread repeats its access, and the same
/// fault then kills the process. If a process sent the signal (`sent`), this function sends the signal again.
fn die_by_default(signal: c_int, sent: bool) {
    // Ignored: the call cannot fail for a valid signal. If it failed, the same fault would call our handler again.
    let _ = kernel_action(signal, Some(Action::DEFAULT));
    if sent {
        let process = rustix::process::getpid().as_raw_nonzero().get() as usize;
        let thread = crate::thread::gettid() as usize;
        // Ignored: if the call fails, the process goes on as if nobody had sent the signal.
        // SAFETY: the call takes only integers. The signal is blocked until our handler returns, so the call does not
        // interrupt this code.
        let _ = unsafe { raw::syscall(libc::SYS_tgkill, [process, thread, signal as usize, 0, 0, 0]) };
    }
}

/// Returns the fault signals that have a [`FaultHandler`]. SIGSYS is among the signals that masks keep open.
pub(crate) fn traps() -> u64 {
    let is_trap = |slot: &Slot| !slot.handler.load(Ordering::Acquire).is_null();
    let traps = [(&BUS, libc::SIGBUS), (&SEGV, libc::SIGSEGV)].into_iter().filter(|(slot, _)| is_trap(slot));
    traps.fold(0, |mask, (_, signal)| mask | 1 << (signal - 1))
}

/// Sets the mask that the kernel sets when the handler of a signal returns. The signals that are kept open are open.
/// Signals that came too early are delivered.
#[cfg(target_arch = "x86_64")]
pub(crate) fn return_to_mask_of(context: *mut c_void) {
    set_kernels_mask(interrupted_mask(context) & !kept_open());
    held::deliver();
}

/// The code of the library that installs the handlers: its first address and its length.
static OWN_CODE: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));

/// Notes which code has Hanare's handlers.
pub fn own_code(code: std::ops::Range<usize>) {
    OWN_CODE.0.store(code.start, Ordering::Relaxed);
    OWN_CODE.1.store(code.len(), Ordering::Release);
}

/// Checks whether `at` is in the code that [`own_code`] has noted.
pub(crate) fn is_own_code(at: usize) -> bool {
    at.wrapping_sub(OWN_CODE.0.load(Ordering::Relaxed)) < OWN_CODE.1.load(Ordering::Acquire)
}

/// The code that a sent SIGSYS has interrupted.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// Code of the program, or of Hanare in a section that is guarded against sent signals.
    Any,
    /// The first instructions of the handler of faults, which is not guarded yet.
    Beginning,
    /// The last instructions of the handler of faults, which is not guarded any more.
    End,
}

/// Returns what a signal has interrupted. While Hanare's handler of faults runs, the mask is not the program's.
#[cfg(target_arch = "x86_64")]
pub(crate) fn interrupted(context: *mut c_void) -> Interrupted {
    /// Less than the length of the handler.
    const FIRST_BYTES: usize = 64;
    const RESTORER_BYTES: usize = 16;
    const NEVER_BLOCKED: u64 = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
    if interrupted_mask(context) | NEVER_BLOCKED != !kept_open() {
        return Interrupted::Any;
    }
    let at = instruction::at(context);
    let is_in = |start: usize, len: usize| at.wrapping_sub(start) < len;
    if is_in(entry as *const () as usize, FIRST_BYTES) {
        return Interrupted::Beginning;
    }
    if is_own_code(at) || is_in(RESTORER.load(Ordering::Acquire), RESTORER_BYTES) {
        Interrupted::End
    } else {
        Interrupted::Any
    }
}

/// Lets a signal that somebody sent wait until the interrupted handler has returned. Returns false if the program blocks it,
/// or nobody sent it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn postpone(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) -> bool {
    // SAFETY: `info` comes from the kernel, which passes a valid siginfo to an SA_SIGINFO handler.
    let is_sent = unsafe { (*info).si_code } <= 0;
    if !is_sent || !held::send_again(signal, info) {
        return false;
    }
    // SAFETY: `context` comes from the kernel, which passes a valid ucontext to an SA_SIGINFO handler. Its mask begins with the
    // kernel's 64 bits.
    unsafe { *(&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>() |= 1 << (signal - 1) };
    true
}

/// Returns the signal mask of the code that the signal interrupted.
fn interrupted_mask(context: *mut c_void) -> u64 {
    // SAFETY: `context` comes from the kernel, which passes a valid ucontext to an SA_SIGINFO handler.
    unsafe { first_word(&(*context.cast::<libc::ucontext_t>()).uc_sigmask) }
}

/// Calls the program's handler under the signal mask that the kernel would set for this handler. The signal of the trap
/// stays open even so, because the handler may access far memory. The handler may leave by `siglongjmp` or an exception.
fn call_chained(action: Action, handler: usize, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let itself = if action.has(libc::SA_NODEFER) { 0 } else { 1 << (signal - 1) };
    let kept = traps() | kept_open();
    // The signal must wait from the moment at which the kernel opens it.
    let before = held::enter_handler((action.mask | itself) & kept);
    set_kernels_mask((interrupted_mask(context) | action.mask | itself) & !kept);
    if action.has(libc::SA_SIGINFO) {
        type Full = extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        // SAFETY: the program set `handler` with SA_SIGINFO, so it has the signature `Full`.
        let handler = unsafe { std::mem::transmute::<usize, Full>(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: the program set `handler` without SA_SIGINFO, so it has the signature of a plain handler.
        let handler = unsafe { std::mem::transmute::<usize, extern "C-unwind" fn(c_int)>(handler) };
        handler(signal);
    }
    // A signal that has waited for the handler's end is delivered when this handler has returned. Otherwise the handlers of
    // a fast sender would pile up on the stack.
    set_kernels_mask(!mask::LIBRARY_SIGNALS);
    block(before);
}

/// Returns the error code of a page fault. Returns `None` if the trap was not a page fault.
#[cfg(target_arch = "x86_64")]
fn error_code(context: *mut c_void) -> Option<i64> {
    const TRAP_PAGE_FAULT: i64 = 14;
    // SAFETY: `context` comes from the kernel, which passes a valid ucontext to an SA_SIGINFO handler.
    let registers = unsafe { &raw const (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    // SAFETY: `registers` points into the valid ucontext, and both indexes are inside the array.
    let (trap, error) = unsafe { ((*registers)[libc::REG_TRAPNO as usize], (*registers)[libc::REG_ERR as usize]) };
    (trap == TRAP_PAGE_FAULT).then_some(error)
}

/// Checks whether the fault was a write. Returns `None` if the trap was not a page fault.
#[cfg(target_arch = "x86_64")]
fn is_write(context: *mut c_void) -> Option<bool> {
    const WRITE: i64 = 1 << 1;
    error_code(context).map(|error| error & WRITE != 0)
}

/// Checks whether the fault was an instruction fetch.
#[cfg(target_arch = "x86_64")]
fn is_fetch(context: *mut c_void) -> bool {
    const FETCH: i64 = 1 << 4;
    error_code(context).is_some_and(|error| error & FETCH != 0)
}

/// Checks whether the fault was a write. Returns `None` if the kernel does not report it.
#[cfg(target_arch = "aarch64")]
fn is_write(context: *mut c_void) -> Option<bool> {
    const WRITE_NOT_READ: u64 = 1 << 6;
    const CLASS_DATA_ABORT_USER: u64 = 0x24;
    let syndrome = syndrome(context).filter(|syndrome| syndrome >> 26 == CLASS_DATA_ABORT_USER)?;
    Some(syndrome & WRITE_NOT_READ != 0)
}

/// Checks whether the fault was an instruction fetch.
#[cfg(target_arch = "aarch64")]
fn is_fetch(context: *mut c_void) -> bool {
    const CLASS_INSTRUCTION_ABORT_USER: u64 = 0x20;
    syndrome(context).is_some_and(|syndrome| syndrome >> 26 == CLASS_INSTRUCTION_ABORT_USER)
}

/// Returns the value of the syndrome register for the fault. The kernel stores the value in a record after the saved
/// registers.
#[cfg(target_arch = "aarch64")]
fn syndrome(context: *mut c_void) -> Option<u64> {
    const ESR_MAGIC: u32 = 0x4553_5201;
    const RECORDS_BYTES: usize = 4096;
    // The records are the last field of mcontext_t. They begin after `pstate`, at the next multiple of 16.
    // SAFETY: `context` comes from the kernel, which passes a valid ucontext to an SA_SIGINFO handler. The computed
    // address lies inside that ucontext.
    let records = unsafe {
        let machine = &raw const (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        ((&raw const (*machine).pstate).add(1) as usize).next_multiple_of(16)
    };
    let mut offset = 0;
    while offset + 16 <= RECORDS_BYTES {
        let record: *const u32 = std::ptr::with_exposed_provenance(records + offset);
        // SAFETY: `record` lies inside the 4096 bytes of records, with at least 16 bytes left. Every record is aligned
        // to 16 bytes.
        let (magic, size) = unsafe { (*record, *record.add(1)) };
        if magic == ESR_MAGIC {
            // SAFETY: `record` is a syndrome record. The 8 bytes after its magic and its size are the syndrome.
            return Some(unsafe { *record.add(2).cast::<u64>() });
        }
        if magic == 0 || size == 0 {
            return None;
        }
        offset += size as usize;
    }
    None
}
