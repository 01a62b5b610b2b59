//! Keeps the trap signal for Hanare. In signal modes (sigbus and sigsegv), a fault on far memory raises this signal.
//! The program's own handler for it is stored, and is called for faults outside far memory (`hanare_sys::signal`). The
//! masks of other handlers never block the trap signal in the kernel: a fault under a blocked signal kills the process. In
//! thread mode there is no trap signal, and every call is passed on unchanged.

use std::ffi::{c_int, c_ulong, c_void};
use std::mem::{MaybeUninit, transmute, zeroed};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hanare::far;
use hanare_sys::features::CallTraps;
use hanare_sys::signal;
use libc::{sighandler_t, sigset_t};

use crate::answer::{kernel, set_errno, status};
use crate::calls::near::{filled, given};
use crate::calls::real::{self, Real};
use crate::lookups::Linker;

type Action = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

/// Calls the C library's `sigaction`. It is looked up behind this library, because the program may define functions of this
/// name itself (Erlang).
///
/// # Safety
/// The caller keeps the contract of sigaction(2).
unsafe extern "C" fn libc_sigaction(signum: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    match real::sigaction.get() {
        // SAFETY: `call` is the C library's `sigaction`, which has the type `Action`. The arguments are the caller's.
        Some(call) => unsafe { transmute::<*mut c_void, Action>(call)(signum, new, old) },
        None => status(Err(libc::ENOSYS)),
    }
}

/// Size of the kernel's signal set, in bytes.
pub(crate) const MASK_BYTES: usize = 8;

pub(crate) const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

fn is_trap(signum: c_int) -> bool {
    (1..=64).contains(&signum) && kept() & bit(signum) != 0
}

/// Returns the signals that Hanare keeps for itself: the trap signal, and SIGSYS if system calls are trapped.
pub(crate) fn kept() -> u64 {
    let calls = if far::call_traps() == CallTraps::default() { 0 } else { bit(libc::SIGSYS) };
    far::trap_signal().map_or(0, bit) | calls
}

/// Removes the signals that Hanare keeps from a set.
///
/// # Safety
/// `set` is valid for a kernel's set.
pub(crate) unsafe fn open_kept(set: *mut sigset_t) {
    // SAFETY: the caller promises that `set` holds a kernel's set.
    unsafe { set.cast::<u64>().write_unaligned(set.cast::<u64>().read_unaligned() & !kept()) }
}

/// Hanare's signals in the masks of the program's actions, by the number of the action's signal.
static ACTION_MASKS: [AtomicU64; 65] = [const { AtomicU64::new(0) }; 65];

/// Adds Hanare's signals that the action of `signum` has had in its mask to `old`, unless that is null. Then stores those
/// of the mask `new`, if one is given.
///
/// # Safety
/// `old` is null or valid for a kernel's set.
unsafe fn exchange_mask(signum: c_int, new: Option<u64>, old: *mut u64) {
    let place = &ACTION_MASKS[signum as usize];
    let before = match new {
        Some(mask) => place.swap(mask & kept(), Ordering::Relaxed),
        None => place.load(Ordering::Relaxed),
    };
    if before != 0 && !old.is_null() {
        // SAFETY: the caller promises that `old` holds a kernel's set if it is not null.
        unsafe { old.write_unaligned(old.read_unaligned() | before) };
    }
}

/// Returns the kernel's set that a set of the C library begins with.
fn word(set: &sigset_t) -> u64 {
    // SAFETY: the C library's set is longer than the kernel's and begins with it.
    unsafe { std::ptr::from_ref(set).cast::<u64>().read() }
}

/// Returns the code with which the C library ends signal handlers.
#[cfg(target_arch = "x86_64")]
pub(crate) fn restorer() -> Option<usize> {
    // SAFETY: zeroes are a valid action. The C library reads the action of SIGSYS and then sets the same one again.
    let answer = unsafe {
        let mut present: libc::sigaction = zeroed();
        libc_sigaction(libc::SIGSYS, std::ptr::null(), &raw mut present)
            | libc_sigaction(libc::SIGSYS, &raw const present, std::ptr::null_mut())
    };
    hanare_sys::calls::restorer().filter(|_| answer == 0)
}

/// True once the program has set a seccomp filter of its own.
static HAS_FILTER: AtomicBool = AtomicBool::new(false);

/// Notes that the program sets a seccomp filter, and prepares far memory for it.
pub(crate) fn sets_filter() {
    far::will_be_confined(true);
    HAS_FILTER.store(true, Ordering::Relaxed);
}

/// Returns whether the program has set a seccomp filter of its own.
pub(crate) fn has_filter() -> bool {
    HAS_FILTER.load(Ordering::Relaxed)
}

/// If `new` is given, stores it as the program's action for the trap signal `signum`. Returns the action that was
/// stored before.
fn chain(signum: c_int, new: Option<libc::sigaction>) -> Result<libc::sigaction, c_int> {
    match new {
        // SAFETY: the program passes `action` to sigaction(2) or signal(2), which require a valid handler.
        Some(action) => unsafe { signal::set_chained(signum, action) },
        None => signal::chained(signum),
    }
    .map_err(|_| libc::EINVAL)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sigaction(
    signum: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller keeps the contract of sigaction(2).
    unsafe { act(signum, new, old, libc_sigaction) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __sigaction(
    signum: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller keeps the contract of sigaction(2).
    unsafe { act(signum, new, old, libc_sigaction) }
}

/// `sigaction` for a library after this one that defines the name itself, and looks up the next definition.
///
/// # Safety
/// The caller keeps the contract of sigaction(2).
pub(crate) unsafe extern "C" fn behind_sigaction(
    signum: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    static LAST: Linker = Linker::new(c"sigaction");
    // SAFETY: the caller keeps the contract of sigaction(2). The C library's `sigaction` has the type `Action`.
    unsafe { act(signum, new, old, transmute::<*mut c_void, Action>(LAST.get())) }
}

/// Does the work of `sigaction`, by `call` if the signal is not one of Hanare's. Only the functions above have its names:
/// the program may define the same names.
///
/// # Safety
/// The caller keeps the contract of sigaction(2), and `call` is such a function.
unsafe fn act(signum: c_int, new: *const libc::sigaction, old: *mut libc::sigaction, call: Action) -> c_int {
    // SAFETY: under the contract of sigaction(2), `new` is null or points to a valid action.
    let mut action = unsafe { new.as_ref() }.copied();
    if !is_trap(signum) {
        let mask = action.map(|action| word(&action.sa_mask));
        if let Some(action) = &mut action {
            // SAFETY: `sa_mask` is a valid set in a local copy.
            unsafe { open_kept(&raw mut action.sa_mask) };
        }
        let new = action.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `new` is null or points to a copy of the caller's action. `old` is the caller's pointer, which is valid
        // if it is not null.
        unsafe {
            let answer = call(signum, new, old);
            if answer == 0 && kept() != 0 {
                exchange_mask(signum, mask, if old.is_null() { null_mut() } else { (&raw mut (*old).sa_mask).cast() });
            }
            return answer;
        }
    }
    status(chain(signum, action).map(|before| {
        if !old.is_null() {
            // SAFETY: `old` is not null, so it is valid under the contract of sigaction(2).
            unsafe { old.write(before) };
        }
    }))
}

type SignalCall = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;

/// Sets a handler, as `signal` and its variants do. If `signum` is the trap signal, the stored action gets `flags`.
///
/// # Safety
/// `handler` is valid for signal(2). `real` is the address of a function of the same type as `signal`.
unsafe fn set_handler(real: Option<*mut c_void>, signum: c_int, handler: sighandler_t, flags: c_int) -> sighandler_t {
    if is_trap(signum) {
        // SAFETY: zeroes are a valid action: the default handler, an empty mask and no flags.
        let mut action: libc::sigaction = unsafe { zeroed() };
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        return match chain(signum, Some(action)) {
            Ok(before) => before.sa_sigaction,
            Err(error) => {
                set_errno(error);
                libc::SIG_ERR
            }
        };
    }
    match real {
        // SAFETY: `call` is the C library's function, which has the type `SignalCall`. Its arguments are the
        // caller's.
        Some(call) => unsafe {
            let before = transmute::<*mut c_void, SignalCall>(call)(signum, handler);
            if before != libc::SIG_ERR && kept() != 0 {
                exchange_mask(signum, Some(0), null_mut());
            }
            before
        },
        None => {
            set_errno(libc::ENOSYS);
            libc::SIG_ERR
        }
    }
}

macro_rules! setting_handlers {
    ($($name:ident($flags:expr))*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(signum: c_int, handler: sighandler_t) -> sighandler_t {
            // SAFETY: the caller keeps the contract of signal(2). The C library's `$name` has the type of `signal`.
            unsafe { set_handler(real::$name.get(), signum, handler, $flags) }
        }
    )* };
}

// Headers map `signal` to one of these names, depending on the standard that a program asks for. The System V variants
// reset the handler when it runs.
setting_handlers! {
    signal(libc::SA_RESTART)
    bsd_signal(libc::SA_RESTART)
    ssignal(libc::SA_RESTART)
    sysv_signal(libc::SA_RESETHAND | libc::SA_NODEFER)
    __sysv_signal(libc::SA_RESETHAND | libc::SA_NODEFER)
}

/// `signal` for a library after this one that defines the name itself, and looks up the next definition.
///
/// # Safety
/// The caller keeps the contract of signal(2).
pub(crate) unsafe extern "C" fn behind_signal(signum: c_int, handler: sighandler_t) -> sighandler_t {
    static LAST: Linker = Linker::new(c"signal");
    // SAFETY: the caller keeps the contract of signal(2). The address is that of the C library's `signal`.
    unsafe { set_handler(Some(LAST.get()), signum, handler, libc::SA_RESTART) }
}

/// `sysv_signal` for a library after this one that defines the name itself, and looks up the next definition.
///
/// # Safety
/// The caller keeps the contract of sysv_signal(3).
pub(crate) unsafe extern "C" fn behind_sysv_signal(signum: c_int, handler: sighandler_t) -> sighandler_t {
    static LAST: Linker = Linker::new(c"sysv_signal");
    // SAFETY: the caller keeps the contract of sysv_signal(3). The address is that of the C library's function.
    unsafe { set_handler(Some(LAST.get()), signum, handler, libc::SA_RESETHAND | libc::SA_NODEFER) }
}

/// The handler value with which `sigset` blocks a signal.
const SIG_HOLD: sighandler_t = 2;

#[unsafe(no_mangle)]
unsafe extern "C" fn sigset(signum: c_int, handler: sighandler_t) -> sighandler_t {
    if is_trap(signum) && handler == SIG_HOLD {
        // The trap signal is never blocked, so only the stored action is returned.
        return chain(signum, None).map_or(libc::SIG_ERR, |before| before.sa_sigaction);
    }
    // SAFETY: the caller keeps the contract of sigset(3). The C library's `sigset` has the type of `signal`.
    unsafe { set_handler(real::sigset.get(), signum, handler, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigignore(signum: c_int) -> c_int {
    // SAFETY: `SIG_IGN` is valid as the handler of any signal.
    let before = unsafe { set_handler(real::signal.get(), signum, libc::SIG_IGN, 0) };
    if before == libc::SIG_ERR { -1 } else { 0 }
}

/// Copies a `T` into the program's memory. Returns `EFAULT` if the program may not write it.
pub(crate) fn give<T: Copy>(value: T, to: usize) -> Result<(), c_int> {
    // SAFETY: a far `T` is replaced by a near copy, if the program may write it. The kernel checks all other pointers.
    unsafe {
        let mut near = filled(to as *mut T);
        let here = libc::iovec { iov_base: (&raw const value).cast_mut().cast(), iov_len: size_of::<T>() };
        let there = libc::iovec { iov_base: near.pointer(), iov_len: size_of::<T>() };
        let process = std::process::id() as usize;
        // A read from this process, with exchanged sides: a filter may refuse writes.
        let args = [process, &raw const there as usize, 1, &raw const here as usize, 1, 0];
        let answer = kernel(libc::SYS_process_vm_readv, args);
        let is_whole = answer == Ok(size_of::<T>());
        near.settle(if is_whole { 0 } else { -1 });
        if is_whole { Ok(()) } else { Err(answer.err().unwrap_or(libc::EFAULT)) }
    }
}

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelAction {
    handler: sighandler_t,
    flags: c_ulong,
    restorer: usize,
    mask: u64,
}

/// Copies a `T` out of the program's memory. Returns `EFAULT` if the program may not read it.
pub(crate) fn fetch<T: Copy>(from: usize) -> Result<T, c_int> {
    let mut copy = MaybeUninit::<T>::uninit();
    // SAFETY: a far `T` is replaced by a near copy, if the program may read it. The kernel checks all other pointers.
    // The result is complete if the kernel has copied all bytes.
    unsafe {
        let near = given(from as *const T);
        let there = libc::iovec { iov_base: near.pointer(), iov_len: size_of::<T>() };
        let here = libc::iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: size_of::<T>() };
        let process = std::process::id() as usize;
        let args = [process, &raw const here as usize, 1, &raw const there as usize, 1, 0];
        match kernel(libc::SYS_process_vm_readv, args)? == size_of::<T>() {
            true => Ok(copy.assume_init()),
            false => Err(libc::EFAULT),
        }
    }
}

/// Serves the system call rt_sigaction. Keeps the signals of Hanare, as [`sigaction`] does.
///
/// # Safety
/// The arguments are those of the system call.
pub(crate) unsafe fn set_action_by_number(signum: c_int, new: usize, old: usize, len: usize) -> Result<(), c_int> {
    if len != MASK_BYTES {
        return Err(libc::EINVAL);
    }
    let mut wanted = if new == 0 { None } else { Some(fetch::<KernelAction>(new)?) };
    // SAFETY: a near copy replaces a far structure. The kernel checks the pointer otherwise.
    let mut told = unsafe { filled(old as *mut KernelAction) };
    if !is_trap(signum) {
        let mask = wanted.map(|action| action.mask);
        wanted.iter_mut().for_each(|action| action.mask &= !kept());
        let given = wanted.as_ref().map_or(0, |action| std::ptr::from_ref(action) as usize);
        let args = [signum as usize, given, told.pointer() as usize, MASK_BYTES, 0, 0];
        // SAFETY: `given` is 0 or a local copy of the program's action, and `told` is as above.
        let answer = unsafe { kernel(libc::SYS_rt_sigaction, args) };
        if answer.is_ok() && kept() != 0 {
            let told = told.pointer().cast::<KernelAction>();
            // SAFETY: the kernel has just written the action, unless the pointer is null.
            unsafe { exchange_mask(signum, mask, if old == 0 { null_mut() } else { &raw mut (*told).mask }) };
        }
        told.settle(if answer.is_ok() { 0 } else { -1 });
        return answer.map(drop);
    }
    let before = chain(
        signum,
        wanted.map(|action| {
            // SAFETY: zeroes are a valid action. Its set begins with the kernel's mask.
            unsafe {
                let mut same: libc::sigaction = zeroed();
                (same.sa_sigaction, same.sa_flags) = (action.handler, action.flags as c_int);
                (&raw mut same.sa_mask).cast::<u64>().write(action.mask);
                same
            }
        }),
    )?;
    if old != 0 {
        // SAFETY: the set begins with the kernel's mask. The program passed a structure for the result.
        unsafe {
            let mask = (&raw const before.sa_mask).cast::<u64>().read();
            let flags = before.sa_flags as c_ulong;
            let action = KernelAction { handler: before.sa_sigaction, flags, restorer: 0, mask };
            told.pointer().cast::<KernelAction>().write_unaligned(action);
        }
    }
    Ok(())
}

// ---- contexts -------------------------------------------------------------------------------------------------------

/// Removes the trap signal from the mask of a context. Returns the address of the C library's function `real`.
///
/// # Safety
/// `context` is valid for setcontext(3).
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn opened_context(real: &Real, context: *mut libc::ucontext_t) -> usize {
    // SAFETY: `context` is valid, and its signal mask begins with the kernel's mask.
    unsafe {
        let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
        if *mask & kept() != 0 {
            *mask &= !kept();
        }
    }
    real.get().map_or(no_contexts as *const () as usize, |call| call as usize)
}

#[cfg(target_arch = "x86_64")]
extern "C" fn no_contexts() -> c_int {
    status(Err(libc::ENOSYS))
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn opened_for_set(context: *mut libc::ucontext_t) -> usize {
    // SAFETY: the caller passes a context that is valid for setcontext(3).
    unsafe { opened_context(&real::setcontext, context) }
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn opened_for_swap(context: *mut libc::ucontext_t) -> usize {
    // SAFETY: the caller passes a context that is valid for swapcontext(3).
    unsafe { opened_context(&real::swapcontext, context) }
}

/// setcontext(3), with the trap signal unblocked in the context. Ends with a jump to the C library's function.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn setcontext(context: *const libc::ucontext_t) -> c_int {
    std::arch::naked_asm!(
        "push rdi",
        "call {opened}",
        "pop rdi",
        "jmp rax",
        opened = sym opened_for_set,
    )
}

/// swapcontext(3), with the trap signal unblocked in the new context. The C library's function saves its return address
/// in the old context. This code jumps to that function, so the saved address is in the program.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn swapcontext(old: *mut libc::ucontext_t, new: *const libc::ucontext_t) -> c_int {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "mov rdi, rsi",
        "call {opened}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        opened = sym opened_for_swap,
    )
}
