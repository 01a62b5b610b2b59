//! The program's signal masks. In signal modes (sigbus and sigsegv), no mask that the program sets ever blocks a signal
//! that Hanare keeps in the kernel: a trap under a blocked signal kills the process. Masks must read back as they were
//! set, so what the program blocks is stored (`hanare_sys::signal::block`).

use std::ffi::{c_int, c_void};
use std::mem::{transmute, zeroed};

use hanare_sys::signal;
use libc::sigset_t;

use crate::answer::{kernel, status};
use crate::calls::real;
use crate::calls::waiting::sigsuspend;
use crate::signals::{MASK_BYTES, bit, fetch, give, kept, open_kept};

/// Signals that glibc uses itself, to cancel threads and to change their user. glibc never lets a program block them.
const GLIBC_SIGNALS: u64 = bit(32) | bit(33);

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
    // Jumps are interposed on this architecture only.
    if cfg!(target_arch = "x86_64") {
        signal::keep_masks();
    }
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
