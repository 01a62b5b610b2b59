//! Keeps the trap signal for Hanare. In signal modes (sigbus and sigsegv), a fault on far memory raises this signal.
//! The program's own handler for it is stored, and is called for faults outside far memory (`hanare_sys::signal`). No
//! mask that the program sets ever blocks the trap signal: a fault under a blocked signal kills the process. In thread
//! mode there is no trap signal, and every call is passed on unchanged.

use std::ffi::{c_int, c_ulong, c_void};
use std::mem::{MaybeUninit, transmute, zeroed};
use std::sync::atomic::{AtomicBool, Ordering};

use hanare::far;
use hanare_sys::features::CallTraps;
use hanare_sys::signal;
use libc::{sighandler_t, sigset_t};

use crate::answer::{kernel, set_errno, status};
use crate::calls::near::{filled, given};
use crate::calls::real::{self, Real};
use crate::calls::waiting::sigsuspend;
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

/// Signals that glibc uses itself, to cancel threads and to change their user. glibc never lets a program block them.
const GLIBC_SIGNALS: u64 = bit(32) | bit(33);

/// Size of the kernel's signal set, in bytes.
const MASK_BYTES: usize = 8;

const fn bit(signal: c_int) -> u64 {
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
        if let Some(action) = &mut action {
            // SAFETY: `sa_mask` is a valid set in a local copy.
            unsafe { open_kept(&raw mut action.sa_mask) };
        }
        let new = action.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `new` is null or points to a copy of the caller's action. `old` is the caller's pointer.
        return unsafe { call(signum, new, old) };
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
        Some(call) => unsafe { transmute::<*mut c_void, SignalCall>(call)(signum, handler) },
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

/// Changes the calling thread's signal mask, but never blocks the trap signal or glibc's own signals in the kernel. The
/// program sees a mask as if it had blocked the trap signal, too.
///
/// # Safety
/// `set` and `old` are null or valid, as for sigprocmask(2).
unsafe fn change_mask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> Result<(), c_int> {
    let wanted = (!set.is_null()).then(|| {
        // SAFETY: `set` is not null, so it is valid. It is longer than the kernel's set and begins with it.
        let mask = unsafe { set.cast::<u64>().read_unaligned() };
        if how == libc::SIG_UNBLOCK { mask } else { mask & !GLIBC_SIGNALS }
    });
    let given = wanted.map(|mask| if how == libc::SIG_UNBLOCK { mask } else { mask & !kept() });
    let given = given.as_ref().map_or(0, |mask| std::ptr::from_ref(mask) as usize);
    let mut before = 0u64;
    let args = [how as usize, given, &raw mut before as usize, MASK_BYTES, 0, 0];
    // SAFETY: `given` is null or points to a local mask, and `before` is a local variable. The kernel does not get the
    // caller's variables, which may be far.
    unsafe { kernel(libc::SYS_rt_sigprocmask, args) }?;
    before |= signal::blocked();
    if !old.is_null() {
        // SAFETY: `old` is not null, so it is valid. The C library's set begins with the kernel's mask.
        unsafe { old.cast::<u64>().write_unaligned(before) };
    }
    if let Some(mask) = wanted {
        signal::block(changed(how, before, mask) & kept());
    }
    Ok(())
}

/// Returns the mask that a change makes of the mask `before`.
fn changed(how: c_int, before: u64, mask: u64) -> u64 {
    match how {
        libc::SIG_BLOCK => before | mask,
        libc::SIG_UNBLOCK => before & !mask,
        _ => mask,
    }
}

/// Changes the calling thread's mask like the system call rt_sigprocmask, but never blocks the signals that Hanare
/// keeps. Returns the kernel's mask after that.
///
/// # Safety
/// The arguments are those of the system call.
pub(crate) unsafe fn change_mask_by_number(how: c_int, set: usize, old: usize, len: usize) -> Result<u64, c_int> {
    if len != MASK_BYTES {
        return Err(libc::EINVAL);
    }
    let wanted = if set == 0 { None } else { Some(fetch::<u64>(set)?) };
    let (mut before, mut now) = (0u64, 0u64);
    let given = wanted.map(|mask| if how == libc::SIG_UNBLOCK { mask } else { mask & !kept() });
    let given = given.as_ref().map_or(0, |mask| std::ptr::from_ref(mask) as usize);
    // SAFETY: the kernel gets local sets.
    unsafe {
        kernel(libc::SYS_rt_sigprocmask, [how as usize, given, &raw mut before as usize, MASK_BYTES, 0, 0])?;
        kernel(libc::SYS_rt_sigprocmask, [0, 0, &raw mut now as usize, MASK_BYTES, 0, 0])?;
    }
    before |= signal::blocked();
    if old != 0 {
        give(before, old)?;
    }
    if let Some(mask) = wanted {
        signal::block(changed(how, before, mask) & kept());
    }
    Ok(now)
}

/// Copies a `T` into the program's memory. Returns `EFAULT` if the program may not write it.
fn give<T: Copy>(value: T, to: usize) -> Result<(), c_int> {
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
        wanted.iter_mut().for_each(|action| action.mask &= !kept());
        let given = wanted.as_ref().map_or(0, |action| std::ptr::from_ref(action) as usize);
        let args = [signum as usize, given, told.pointer() as usize, MASK_BYTES, 0, 0];
        // SAFETY: `given` is 0 or a local copy of the program's action, and `told` is as above.
        let answer = unsafe { kernel(libc::SYS_rt_sigaction, args) };
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

/// Makes the C library's set of the kernel's set at `mask`. Returns `None` if `mask` is null, and `EFAULT` if the program
/// may not read it.
pub(crate) fn set_at(mask: usize) -> Result<Option<sigset_t>, c_int> {
    if mask == 0 {
        return Ok(None);
    }
    let bits = fetch::<u64>(mask)?;
    // SAFETY: zeroes are an empty set, which begins with the kernel's.
    unsafe {
        let mut set: sigset_t = zeroed();
        (&raw mut set).cast::<u64>().write(bits);
        Ok(Some(set))
    }
}

/// Notes which signals the program has been started with that it blocks and Hanare may keep. Call it first of all.
pub(crate) fn begin() {
    signal::note_blocked(bit(libc::SIGBUS) | bit(libc::SIGSEGV) | bit(libc::SIGSYS));
}

/// Unblocks the signals that Hanare keeps, now that it is known which these are. The process may have been started with a
/// mask that blocks them.
pub(crate) fn unblock_trap() {
    signal::block(signal::blocked() & kept());
    signal::open(kept());
}

/// Unblocks the signals that Hanare keeps, in a thread that the C library has started with every signal blocked.
pub(crate) fn unblock_trap_of_thread() {
    signal::note_blocked(kept());
    signal::open(kept());
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: the caller keeps the contract of sigprocmask(2).
    status(unsafe { change_mask(how, set, old) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: the caller keeps the contract of pthread_sigmask(3), which returns the error instead of setting `errno`.
    unsafe { change_mask(how, set, old) }.err().unwrap_or(0)
}

/// Changes the signal mask by `mask`, in which each bit stands for one of the first 32 signals. Returns the previous
/// mask of these signals, or -1 with `errno`.
fn change_old_mask(how: c_int, mask: c_int) -> c_int {
    // SAFETY: zeroes are a valid empty set.
    let (mut set, mut before): (sigset_t, sigset_t) = unsafe { (zeroed(), zeroed()) };
    // SAFETY: both sets are local. Each is longer than the kernel's set and begins with it.
    let (changed, before) = unsafe {
        (&raw mut set).cast::<u64>().write(u64::from(mask as u32));
        (change_mask(how, &raw const set, &raw mut before), (&raw const before).cast::<u64>().read())
    };
    if status(changed) == 0 { before as c_int } else { -1 }
}

#[unsafe(no_mangle)]
extern "C" fn sigblock(mask: c_int) -> c_int {
    change_old_mask(libc::SIG_BLOCK, mask)
}

#[unsafe(no_mangle)]
extern "C" fn sigsetmask(mask: c_int) -> c_int {
    change_old_mask(libc::SIG_SETMASK, mask)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigpause(mask: c_int) -> c_int {
    // SAFETY: zeroes are a valid empty set. The local set is longer than the kernel's and begins with it.
    unsafe {
        let mut set: sigset_t = zeroed();
        (&raw mut set).cast::<u64>().write(u64::from(mask as u32));
        sigsuspend(&raw const set)
    }
}

#[unsafe(no_mangle)]
extern "C" fn sighold(signum: c_int) -> c_int {
    if !(1..=64).contains(&signum) {
        return status(Err(libc::EINVAL));
    }
    // SAFETY: zeroes are a valid empty set. The local set is longer than the kernel's and begins with it.
    status(unsafe {
        let mut set: sigset_t = zeroed();
        (&raw mut set).cast::<u64>().write(bit(signum));
        change_mask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_attr_setsigmask_np(attributes: *mut libc::pthread_attr_t, set: *const sigset_t) -> c_int {
    type Call = unsafe extern "C" fn(*mut libc::pthread_attr_t, *const sigset_t) -> c_int;
    let Some(call) = real::pthread_attr_setsigmask_np.get() else { return libc::ENOSYS };
    // SAFETY: `call` is the C library's `pthread_attr_setsigmask_np`, which has the type `Call`. It gets the caller's
    // arguments, with the trap signal removed from the set.
    unsafe {
        if set.is_null() {
            return transmute::<*mut c_void, Call>(call)(attributes, set);
        }
        let mut opened = set.read_unaligned();
        open_kept(&raw mut opened);
        transmute::<*mut c_void, Call>(call)(attributes, &raw const opened)
    }
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
