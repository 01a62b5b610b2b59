//! Robust mutexes in far memory: when a thread ends that holds one, the kernel tells others so in the mutex. It does not wait
//! for an absent page then and gives up, and the others would wait for ever. So the thread does it itself, last of all.
//!
//! Only programs that ask for such mutexes pay for it, from then on, at the end of each thread that is made later, and of the
//! one that asks.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use hanare::far;
use hanare_sys::thread::gettid;
use libc::{pthread_key_t, pthread_mutexattr_t};

use crate::answer::{keeping_errno, kernel};
use crate::calls::real;

/// The kernel looks at so many mutexes of a thread.
const MUTEXES_MAX: usize = 2048;
/// How often destructors of a thread's data are run again when they leave new data; ours works in the last round.
const ROUNDS: usize = 4;
/// A page may leave again between a touch and a call; so often it does not.
const TRIES: u32 = 100;

const OWNER_DIED: u32 = 1 << 30;
const WAITERS: u32 = 1 << 31;
const OWNER: u32 = OWNER_DIED - 1;

/// Where the C library keeps its pointer to the first mutex that a thread holds: the kernel's `struct robust_list_head`.
#[repr(C)]
struct Head {
    first: usize,
    /// From an entry to its futex.
    offset: isize,
    pending: usize,
}

/// The thread's data that is destroyed when it ends, and one; 0 before there is any.
static KEY: AtomicUsize = AtomicUsize::new(0);

type SetRobust = unsafe extern "C" fn(*mut pthread_mutexattr_t, c_int) -> c_int;

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutexattr_setrobust(attributes: *mut pthread_mutexattr_t, robust: c_int) -> c_int {
    let Some(call) = real::pthread_mutexattr_setrobust.get() else { return libc::ENOSYS };
    if robust != libc::PTHREAD_MUTEX_STALLED && far::active() {
        begin();
        watch_this_thread();
    }
    // SAFETY: the C library's function of this type, with the caller's arguments.
    unsafe { transmute::<*mut c_void, SetRobust>(call)(attributes, robust) }
}

fn begin() {
    let mut key: pthread_key_t = 0;
    // SAFETY: a variable of ours, and a function that stays loaded.
    if KEY.load(Ordering::Acquire) == 0 && unsafe { libc::pthread_key_create(&raw mut key, Some(at_end)) } == 0 {
        // Two threads at once use up two keys, which does no harm.
        KEY.store(key as usize + 1, Ordering::Release);
    }
}

fn key() -> Option<pthread_key_t> {
    KEY.load(Ordering::Acquire).checked_sub(1).map(|key| key as pthread_key_t)
}

/// Whether threads are to be watched.
pub(crate) fn is_used() -> bool {
    key().is_some()
}

/// Sees to the mutexes that this thread holds when it ends.
pub(crate) fn watch_this_thread() {
    set_rounds(1);
}

fn set_rounds(round: usize) {
    if let Some(key) = key() {
        // Refused for want of memory, the mutexes are left to the kernel.
        // SAFETY: a key of ours, which is never deleted; the value is a number.
        let _ = unsafe { libc::pthread_setspecific(key, round as *const c_void) };
    }
}

/// Other destructors may still give mutexes back, so the last round is waited for.
unsafe extern "C" fn at_end(round: *mut c_void) {
    match round as usize {
        round if round < ROUNDS => set_rounds(round + 1),
        // SAFETY: the thread runs no code of the program's any more that holds a mutex.
        _ => unsafe { give_up() },
    }
}

/// Marks the mutexes that this thread holds, if any of them is far, as the kernel would, and leaves it none.
///
/// # Safety
/// The thread ends, and none of its code gives a mutex back any more.
unsafe fn give_up() {
    let (mut head, mut len) = (null_mut::<Head>(), 0_usize);
    let args = [0, &raw mut head as usize, &raw mut len as usize, 0, 0, 0];
    // SAFETY: variables of ours.
    let answer = unsafe { kernel(libc::SYS_get_robust_list, args) };
    if answer.is_err() || head.is_null() || len != size_of::<Head>() {
        return;
    }
    // SAFETY: the C library's head, which only this thread uses.
    let head = unsafe { &mut *head };
    let end = &raw mut *head as usize;
    // The lowest bit tells mutexes whose waiters the kernel wakes.
    let is_mutex = |entry: &usize| ![0, end].contains(&(entry & !1));
    // An entry is given out when the next is known, and may be somebody else's then.
    let entries = |first: usize| {
        // SAFETY: a list of the C library's, of mutexes that this thread holds; each begins with where the next is.
        let next = move |entry: &usize| is_mutex(entry).then(|| unsafe { ((entry & !1) as *const usize).read() });
        std::iter::successors(Some(first), next).take_while(is_mutex).take(MUTEXES_MAX)
    };
    if !entries(head.first).any(|entry| far::contains(entry & !1)) {
        return;
    }
    for entry in entries(std::mem::replace(&mut head.first, end)) {
        // SAFETY: the futex of a mutex that this thread holds.
        unsafe { mark((entry & !1).wrapping_add_signed(head.offset) as *const AtomicU32, entry & 1 != 0) };
    }
}

/// # Safety
/// A futex of a mutex.
unsafe fn mark(futex: *const AtomicU32, kernel_wakes: bool) {
    // SAFETY: the caller's promise.
    let word = unsafe { &*futex };
    let owner = gettid() as u32;
    let died = |now: u32| (now & OWNER == owner).then_some(now & WAITERS | OWNER_DIED);
    let Ok(before) = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, died) else { return };
    if before & WAITERS == 0 || kernel_wakes {
        return;
    }
    // As the kernel does: not private.
    let args = [futex as usize, libc::FUTEX_WAKE as usize, 1, 0, 0, 0];
    for _ in 0..TRIES {
        // SAFETY: wakes one who waits there.
        if keeping_errno(|| unsafe { kernel(libc::SYS_futex, args) }) != Err(libc::EFAULT) {
            return;
        }
        // Brings the page into view.
        word.load(Ordering::Relaxed);
    }
}
