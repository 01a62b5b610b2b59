//! The signals that the program blocks and Hanare keeps open, because a trap under a blocked signal kills the process.
//!
//! Each thread has a word with the signals that the program has blocked there. If another process or the program itself
//! sends such a signal, the thread's handler stores it here. The thread gets it when the program unblocks the signal. As
//! in the kernel, a signal waits at most once for a thread, and once for the process.
//!
//! The same holds while Hanare's own code blocks a signal that it keeps open ([`super::SignalMask`], the handler of a
//! fault). Otherwise the program's handler would run in the middle of the engine.
//!
//! The code here blocks every signal while it changes what is stored, those of traps too. So it accesses near memory only.

use super::KERNEL_SET_BYTES;
use super::mask::{LIBRARY_SIGNALS, set_kernels_mask};
use crate::flags::{self, Info};
use crate::futex::LockCell;
use crate::raw;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How often a thread of Hanare looks whether a signal was taken that it has passed on, and the pause between, in nanoseconds.
const PASSES: u32 = 40;
const PASS_NS: libc::c_long = 50_000;
const NONE: Info = [0; size_of::<Info>() / 4];
/// The place of the `si_code` in the words of a siginfo.
const CODE: usize = 2;
const SI_TKILL: c_int = -6;

/// The signals that wait for the process. A thread blocks every signal before it locks this cell.
static PROCESS: LockCell<Process> = LockCell::new(Process { infos: [NONE; 2], sent: [0; INFO_WORDS] });
/// The numbers of the signals in [`PROCESS`], as bits.
static WAITING: AtomicU64 = AtomicU64::new(0);

/// Words of the siginfo that the system call rt_tgsigqueueinfo reads.
const INFO_WORDS: usize = 32;

struct Process {
    infos: [Info; 2],
    /// A siginfo for the kernel. The stack of the thread may be far.
    sent: [u32; INFO_WORDS],
}

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Returns the place of a signal among those stored. SIGBUS and SIGSEGV share one, since only one of them is a trap.
fn place(signal: c_int) -> usize {
    usize::from(signal != libc::SIGSYS)
}

/// Runs `work` while the kernel blocks every signal of the thread except the C library's own. `work` accesses near memory
/// only, and makes no call except by [`raw::syscall`], which no trap sees.
fn sealed<T>(work: impl FnOnce() -> T) -> T {
    let mask = |new: u64| {
        let mut old = 0u64;
        let args = [libc::SIG_SETMASK as usize, &raw const new as usize, &raw mut old as usize, KERNEL_SET_BYTES, 0, 0];
        // Ignored: the kernel refuses only bad pointers, sizes and requests.
        // SAFETY: `new` and `old` are local 64-bit signal sets.
        let _ = unsafe { raw::syscall(libc::SYS_rt_sigprocmask, args) };
        old
    };
    let before = mask(!LIBRARY_SIGNALS);
    let result = work();
    mask(before);
    result
}

/// Returns the signals that the program blocks in the calling thread although the kernel does not.
#[inline]
#[must_use]
pub fn blocked() -> u64 {
    // SAFETY: the address is that of the calling thread's own words.
    unsafe { (*flags::held()).blocked }
}

/// Sets the signals that the program blocks in the calling thread although the kernel does not. Signals that have waited,
/// and are no longer blocked, are delivered before this function returns.
pub fn block(signals: u64) {
    // SAFETY: the address is that of the calling thread's own words.
    unsafe { (*flags::held()).blocked = signals };
    deliver();
}

/// Sets the signals that Hanare's own code blocks in the calling thread and keeps open, and returns the previous ones.
/// Delivers as [`block`] does.
pub(super) fn guard(signals: u64) -> u64 {
    // SAFETY: the address is that of the calling thread's own words.
    let before = unsafe { std::mem::replace(&mut (*flags::held()).guarded, signals) };
    if before & !signals != 0 {
        deliver();
    }
    before
}

/// As [`guard`], and delivers nothing.
#[inline(always)]
pub(super) fn begin_guard(signals: u64) -> u64 {
    // SAFETY: the address is that of the calling thread's own words.
    unsafe { std::mem::replace(&mut (*flags::held()).guarded, signals) }
}

/// Sends the calling thread a signal again, unless the program blocks it. Returns whether it did so.
pub(super) fn send_again(signal: c_int, info: *const libc::siginfo_t) -> bool {
    if closed() & bit(signal) != 0 || flags::OWN.get() {
        return false;
    }
    // SAFETY: the handler's siginfo is valid, and longer than its beginning.
    let info = unsafe { info.cast::<Info>().read() };
    // The handler of the signal runs, so the kernel blocks it.
    sealed(|| raise(&info, crate::thread::gettid()))
}

/// As [`guard`], in a handler of Hanare that returns soon. The signals are delivered when it has returned, under the mask of
/// the interrupted code. From then on, the kernel may block the signals of traps.
pub(super) fn end_guard(signals: u64) {
    // SAFETY: the address is that of the calling thread's own words.
    unsafe { (*flags::held()).guarded = signals };
    deliver_at_return();
}

/// Delivers what waits when the calling handler of Hanare has returned. From then on, the kernel may block the signals of
/// traps.
pub(crate) fn deliver_at_return() {
    if waiting() & !closed() != 0 {
        set_kernels_mask(!LIBRARY_SIGNALS);
        deliver();
    }
}

/// Ends what Hanare's own code has blocked that the program leaves by a jump out of a handler. Sets what the program blocks
/// from now on, unless the jump changes no mask.
pub fn jump(signals: Option<u64>) {
    // SAFETY: the address is that of the calling thread's own words. The program's code runs outside Hanare's.
    unsafe { (*flags::held()).guarded = 0 };
    block(signals.unwrap_or_else(blocked));
}

/// Returns the signals that wait if somebody sends them.
fn closed() -> u64 {
    // SAFETY: the address is that of the calling thread's own words.
    unsafe { (*flags::held()).blocked | (*flags::held()).guarded }
}

/// Sends the calling thread the signals that have waited for it.
pub(super) fn deliver() {
    if waiting() & !closed() != 0 {
        sealed(|| {
            while let Some(info) = take(!closed()) {
                raise(&info, crate::thread::gettid());
            }
        });
    }
}

/// True once the program's masks are kept: its calls that set masks, and its jumps, come to this module.
static KEEPS_MASKS: AtomicBool = AtomicBool::new(false);

/// Notes that the program's masks are kept from now on.
pub fn keep_masks() {
    KEEPS_MASKS.store(true, Ordering::Release);
}

/// Blocks `signals` for the program while its handler runs. Returns what it blocked before.
pub(super) fn enter_handler(signals: u64) -> u64 {
    let before = blocked();
    if KEEPS_MASKS.load(Ordering::Acquire) {
        // SAFETY: the address is that of the calling thread's own words.
        unsafe { (*flags::held()).blocked |= signals };
    }
    before
}

/// Returns the signals that wait for the calling thread or for the process.
#[must_use]
pub fn waiting() -> u64 {
    // SAFETY: the address is that of the calling thread's own words, which its own handlers alone change meanwhile.
    let infos = unsafe { (&raw const (*flags::held()).infos).read_volatile() };
    let own = infos.iter().filter(|info| info[0] != 0).fold(0, |mask, info| mask | bit(info[0] as c_int));
    own | WAITING.load(Ordering::Acquire)
}

/// Takes one of `signals` that waits for the calling thread or for the process. Returns the beginning of its siginfo.
#[must_use]
pub fn take_waiting(signals: u64) -> Option<[u32; 12]> {
    if waiting() & signals == 0 { None } else { sealed(|| take(signals)) }
}

/// As [`take_waiting`], with every signal blocked.
fn take(signals: u64) -> Option<Info> {
    let is_wanted = |info: &Info| info[0] != 0 && signals & bit(info[0] as c_int) != 0;
    // SAFETY: the address is that of the calling thread's own words. Its handlers do not run now.
    let own = unsafe { &mut (*flags::held()).infos };
    if let Some(info) = own.iter_mut().find(|info| is_wanted(info)) {
        return Some(std::mem::replace(info, NONE));
    }
    let mut process = PROCESS.lock();
    let info = std::mem::replace(process.infos.iter_mut().find(|info| is_wanted(info))?, NONE);
    WAITING.fetch_and(!bit(info[0] as c_int), Ordering::AcqRel);
    Some(info)
}

/// Sends a signal to a thread of this process. The calling thread blocks it now. Returns whether the kernel has taken it.
fn raise(info: &Info, thread: i32) -> bool {
    let mut memory = PROCESS.lock();
    memory.sent[..info.len()].copy_from_slice(info);
    let sent = memory.sent.as_ptr() as usize;
    let args = [crate::thread::first() as usize, thread as usize, info[0] as usize, sent, 0, 0];
    // The kernel refuses only what another process sends, a thread that has ended, and a queue without room.
    // SAFETY: the kernel reads a siginfo that belongs to the holder of the lock.
    unsafe { raw::syscall(libc::SYS_rt_tgsigqueueinfo, args) }.is_ok()
}

/// Sends a signal to the process again, from a thread of Hanare that blocks it now. Returns whether the kernel has taken it.
///
/// The signal is for no thread in particular. If it were, and that thread's system call were trapped at this moment, then the
/// kernel would drop the trap: a signal waits for a thread at most once.
fn pass_on(info: &Info) -> bool {
    let mut memory = PROCESS.lock();
    memory.sent[..info.len()].copy_from_slice(info);
    let sent = memory.sent.as_ptr() as usize;
    let args = [crate::thread::first() as usize, info[0] as usize, sent, 0, 0, 0];
    // SAFETY: the kernel reads a siginfo that belongs to the holder of the lock.
    let is_sent = unsafe { raw::syscall(libc::SYS_rt_sigqueueinfo, args) }.is_ok();
    drop(memory);
    // A thread of the program takes the signal soon. Otherwise, this thread gets it again and tries again.
    for _ in 0..PASSES {
        let mut pending = 0u64;
        let pause = libc::timespec { tv_sec: 0, tv_nsec: PASS_NS };
        // Ignored: the kernel refuses only bad pointers and sizes. A shorter pause does no harm.
        // SAFETY: the kernel writes a local 64-bit signal set, and reads a local timespec.
        let _ =
            unsafe { raw::syscall(libc::SYS_rt_sigpending, [&raw mut pending as usize, KERNEL_SET_BYTES, 0, 0, 0, 0]) };
        if !is_sent || pending & bit(info[0] as c_int) == 0 {
            break;
        }
        // Ignored: as above.
        // SAFETY: as above.
        let _ = unsafe { raw::syscall(libc::SYS_nanosleep, [&raw const pause as usize, 0, 0, 0, 0, 0]) };
    }
    is_sent
}

/// Stores a signal that somebody sent, if the program or Hanare blocks it in the calling thread, or if it `is_early`.
/// Returns whether it did so. A thread of Hanare passes the signal on to the program.
pub(super) fn hold(signal: c_int, info: *const libc::siginfo_t, is_early: bool) -> bool {
    let is_own = flags::OWN.get();
    if closed() & bit(signal) == 0 && !is_own && !is_early {
        return false;
    }
    // SAFETY: the handler's siginfo is valid, and longer than its beginning.
    let info = unsafe { info.cast::<Info>().read() };
    sealed(|| {
        if is_own && crate::thread::first() != crate::thread::gettid() && pass_on(&info) {
            return;
        }
        let at = place(signal);
        if info[CODE] as c_int == SI_TKILL {
            // SAFETY: the address is that of the calling thread's own words. Its handlers do not run now.
            store(unsafe { &mut (*flags::held()).infos[at] }, info);
        } else {
            store(&mut PROCESS.lock().infos[at], info);
            WAITING.fetch_or(bit(signal), Ordering::AcqRel);
        }
    });
    true
}

/// Stores a signal, unless it waits already.
fn store(place: &mut Info, info: Info) {
    if place[0] == 0 {
        *place = info;
    }
}

/// Notes which of `signals` the kernel blocks in the calling thread, since the program has blocked them. Call it before
/// [`open`].
pub fn note_blocked(signals: u64) {
    let mut present = 0u64;
    let args = [libc::SIG_BLOCK as usize, 0, &raw mut present as usize, KERNEL_SET_BYTES, 0, 0];
    // Ignored: the kernel refuses only bad pointers, sizes and requests.
    // SAFETY: the kernel writes a local 64-bit signal set.
    let _ = unsafe { raw::syscall(libc::SYS_rt_sigprocmask, args) };
    // SAFETY: the address is that of the calling thread's own words.
    unsafe { (*flags::held()).blocked |= present & signals };
}

/// Opens `signals`, which Hanare keeps from now on, in the calling thread. Pending ones of them arrive at once.
pub fn open(signals: u64) {
    let args = [libc::SIG_UNBLOCK as usize, &raw const signals as usize, 0, KERNEL_SET_BYTES, 0, 0];
    // Ignored: the kernel refuses only bad pointers, sizes and requests.
    // SAFETY: the kernel reads a local 64-bit signal set.
    let _ = unsafe { raw::syscall(libc::SYS_rt_sigprocmask, args) };
}

/// Forgets the signals that wait, in a forked child: they are its parent's.
pub fn forget_waiting() {
    sealed(|| {
        // SAFETY: the child has one thread, which holds no guard. A half-stored signal is overwritten.
        unsafe { PROCESS.reset() };
        PROCESS.lock().infos = [NONE; 2];
        WAITING.store(0, Ordering::Release);
        // SAFETY: the address is that of the calling thread's own words. Its handlers do not run now.
        unsafe { (*flags::held()).infos = [NONE; 2] };
    });
}
