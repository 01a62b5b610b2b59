//! Robust mutexes in far memory. If a thread ends while it holds one, the kernel marks the mutex for the other threads.
//! If the mutex is on an absent page, the kernel gives up instead of waiting for the page, and the others would wait
//! for ever. So the thread marks its mutexes itself, at its very end.
//!
//! Only programs that use such mutexes pay for this: from then on, at the end of the thread that asked and of each
//! thread created later.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use hanare::far;
use hanare_sys::thread::gettid;
use libc::{pthread_key_t, pthread_mutexattr_t};

use crate::answer::{keeping_errno, kernel};
use crate::calls::real;

/// Most mutexes of a thread that the kernel examines.
const MUTEXES_MAX: usize = 2048;
/// Most rounds in which destructors of a thread's data run again when they leave new data. Ours works in the last
/// round.
const ROUNDS: usize = 4;
/// Most attempts. A page may be evicted between an access and a call, but not this often.
const TRIES: u32 = 100;

const OWNER_DIED: u32 = 1 << 30;
const WAITERS: u32 = 1 << 31;
const OWNER: u32 = OWNER_DIED - 1;

/// The kernel's `struct robust_list_head`, where the C library keeps its pointer to the first mutex that a thread
/// holds.
#[repr(C)]
struct Head {
    first: usize,
    /// Offset from an entry to its futex.
    offset: isize,
    pending: usize,
}

/// One plus the key of the thread's data that is destroyed when it ends; 0 before there is one.
static KEY: AtomicUsize = AtomicUsize::new(0);

type SetRobust = unsafe extern "C" fn(*mut pthread_mutexattr_t, c_int) -> c_int;

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutexattr_setrobust(attributes: *mut pthread_mutexattr_t, robust: c_int) -> c_int {
    let Some(call) = real::pthread_mutexattr_setrobust.get() else { return libc::ENOSYS };
    if robust != libc::PTHREAD_MUTEX_STALLED && far::active() {
        begin();
        watch_this_thread();
    }
    // SAFETY: `call` is the C library's function of this type. Its arguments are the caller's.
    unsafe { transmute::<*mut c_void, SetRobust>(call)(attributes, robust) }
}

fn begin() {
    let mut key: pthread_key_t = 0;
    // SAFETY: a variable of ours, and a function that stays loaded.
    if KEY.load(Ordering::Acquire) == 0 && unsafe { libc::pthread_key_create(&raw mut key, Some(at_end)) } == 0 {
        // If two threads do this at once, they use two keys, which is harmless.
        KEY.store(key as usize + 1, Ordering::Release);
    }
}

fn key() -> Option<pthread_key_t> {
    KEY.load(Ordering::Acquire).checked_sub(1).map(|key| key as pthread_key_t)
}

/// Whether threads are watched.
pub(crate) fn is_used() -> bool {
    key().is_some()
}

/// Makes this thread mark the mutexes that it holds when it ends.
pub(crate) fn watch_this_thread() {
    set_rounds(1);
}

fn set_rounds(round: usize) {
    if let Some(key) = key() {
        // If this fails for lack of memory, the mutexes are left to the kernel. SAFETY: a key of ours, which is never
        // deleted. The value is a number.
        let _ = unsafe { libc::pthread_setspecific(key, round as *const c_void) };
    }
}

/// Other destructors may still release mutexes, so this waits for the last round.
unsafe extern "C" fn at_end(round: *mut c_void) {
    match round as usize {
        round if round < ROUNDS => set_rounds(round + 1),
        // SAFETY: the thread runs no more code of the program that holds a mutex.
        _ => unsafe { give_up() },
    }
}

/// If any mutex that this thread holds is far, marks all of them as the kernel would, and empties the thread's list.
///
/// # Safety
/// The thread ends, and none of its code releases a mutex any more.
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
    // The lowest bit marks mutexes whose waiters the kernel wakes.
    let is_mutex = |entry: &usize| ![0, end].contains(&(entry & !1));
    // The next entry is read before an entry is released, because another thread may take the released mutex at once.
    let entries = |first: usize| {
        // SAFETY: a list of the C library, of mutexes that this thread holds. Each begins with the address of the next.
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
/// The futex of a mutex.
unsafe fn mark(futex: *const AtomicU32, kernel_wakes: bool) {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    let word = unsafe { &*futex };
    let owner = gettid() as u32;
    let died = |now: u32| (now & OWNER == owner).then_some(now & WAITERS | OWNER_DIED);
    let Ok(before) = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, died) else { return };
    if before & WAITERS == 0 || kernel_wakes {
        return;
    }
    // A wake-up across processes, as the kernel does it.
    let args = [futex as usize, libc::FUTEX_WAKE as usize, 1, 0, 0, 0];
    for _ in 0..TRIES {
        // SAFETY: wakes one thread that waits there.
        if keeping_errno(|| unsafe { kernel(libc::SYS_futex, args) }) != Err(libc::EFAULT) {
            return;
        }
        // Brings the page into view.
        word.load(Ordering::Relaxed);
    }
}
