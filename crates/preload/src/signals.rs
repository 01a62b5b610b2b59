//! The trap signal stays Hanare's. The program's own handler for it is remembered and called for faults that are not
//! far (`hanare_sys::signal`), and no mask the program sets ever blocks it: a fault under a blocked signal kills the
//! process. In thread mode there is no trap signal and every call goes through unchanged.

use std::ffi::{c_int, c_void};
use std::mem::{transmute, zeroed};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use hanare::far;
use hanare_sys::signal;
use libc::{sighandler_t, sigset_t};

use crate::answer::{kernel, set_errno, status};

unsafe extern "C" {
    #[link_name = "__sigaction"]
    fn libc_sigaction(signum: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}

/// Signals glibc uses itself (to cancel threads and to change their user), which it never lets a program block.
const GLIBC_SIGNALS: u64 = bit(32) | bit(33);

/// The kernel's signal set, in bytes.
const MASK_BYTES: usize = 8;

/// The C library's `signal`, which knows about `siginterrupt`.
static REAL_SIGNAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

type SignalCall = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;

fn real_signal() -> Option<SignalCall> {
    let mut found = REAL_SIGNAL.load(Ordering::Acquire);
    if found.is_null() {
        // SAFETY: a plain symbol lookup with a terminated name.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"signal".as_ptr()) };
        REAL_SIGNAL.store(found, Ordering::Release);
    }
    // SAFETY: the symbol, when there is one, is the C library's function of this type.
    (!found.is_null()).then(|| unsafe { transmute::<*mut c_void, SignalCall>(found) })
}

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

fn is_trap(signum: c_int) -> bool {
    far::trap_signal() == Some(signum)
}

/// Replaces what is chained behind the trap and returns what was.
fn chain(signum: c_int, new: Option<libc::sigaction>) -> Result<libc::sigaction, c_int> {
    match new {
        // SAFETY: what the program gives sigaction(2) or signal(2).
        Some(action) => unsafe { signal::set_chained(signum, action) },
        None => signal::chained(signum),
    }
    .map_err(|_| libc::EINVAL)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(signum: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: the contract of sigaction(2): null or a valid action.
    let mut action = unsafe { new.as_ref() }.copied();
    if !is_trap(signum) {
        if let (Some(action), Some(trap)) = (&mut action, far::trap_signal()) {
            // SAFETY: a valid set of the program's.
            unsafe { libc::sigdelset(&mut action.sa_mask, trap) };
        }
        let new = action.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `new` is null or a copy of the caller's action, `old` the caller's.
        return unsafe { libc_sigaction(signum, new, old) };
    }
    status(chain(signum, action).map(|before| {
        if !old.is_null() {
            // SAFETY: the contract of sigaction(2): null or a valid place.
            unsafe { old.write(before) };
        }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn signal(signum: c_int, handler: sighandler_t) -> sighandler_t {
    if is_trap(signum) {
        // SAFETY: an action of zeroes is valid: the default, an empty mask, no flags.
        let mut action: libc::sigaction = unsafe { zeroed() };
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_RESTART;
        return match chain(signum, Some(action)) {
            Ok(before) => before.sa_sigaction,
            Err(error) => {
                set_errno(error);
                libc::SIG_ERR
            }
        };
    }
    match real_signal() {
        // SAFETY: the contract of signal(2).
        Some(call) => unsafe { call(signum, handler) },
        None => {
            set_errno(libc::ENOSYS);
            libc::SIG_ERR
        }
    }
}

/// The mask change of the calling thread, without the trap signal and glibc's own.
///
/// # Safety
/// `set` and `old` are null or valid, as for sigprocmask(2).
unsafe fn change_mask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> Result<(), c_int> {
    let wanted = (!set.is_null()).then(|| {
        // SAFETY: a valid set is longer than the kernel's and starts with it.
        let mask = unsafe { set.cast::<u64>().read_unaligned() };
        match how {
            libc::SIG_UNBLOCK => mask,
            _ => mask & !(GLIBC_SIGNALS | far::trap_signal().map_or(0, bit)),
        }
    });
    let given = wanted.as_ref().map_or(0, |mask| &raw const *mask as usize);
    let mut before = 0u64;
    let args = [how as usize, given, &raw mut before as usize, MASK_BYTES, 0, 0];
    // SAFETY: null or a mask of our own, and a place of our own: the caller's may be far, where the kernel cannot write.
    unsafe { kernel(libc::SYS_rt_sigprocmask, args) }?;
    if !old.is_null() {
        // SAFETY: a place of the caller's that holds at least the kernel's mask, which lies first.
        unsafe { old.cast::<u64>().write_unaligned(before) };
    }
    Ok(())
}

/// Lets the trap come through a mask that the process was started with.
pub(crate) fn unblock_trap() {
    if let Some(trap) = far::trap_signal() {
        let set = bit(trap);
        let args = [libc::SIG_UNBLOCK as usize, &raw const set as usize, 0, MASK_BYTES, 0, 0];
        // SAFETY: a mask of our own.
        let _ = unsafe { kernel(libc::SYS_rt_sigprocmask, args) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: the contract of sigprocmask(2).
    status(unsafe { change_mask(how, set, old) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: the contract of pthread_sigmask(3), which returns the error itself.
    unsafe { change_mask(how, set, old) }.err().unwrap_or(0)
}
