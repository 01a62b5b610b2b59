//! Robust mutexes in far memory. If a thread ends while it holds a robust mutex, the kernel marks the mutex and wakes a
//! waiting thread. If the mutex is on an absent page, the kernel does not wait for the page. The waiting threads would
//! then wait for ever. So each thread marks its own mutexes when it ends.
//!
//! Only programs that use robust mutexes pay for this. From the first use on, the calling thread and each thread
//! created later do this work when they end.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use hanare::far;
use hanare_sys::thread::gettid;
use libc::{pthread_key_t, pthread_mutexattr_t};

use crate::answer::{keeping_errno, kernel};
use crate::calls::real;

/// Maximum number of a thread's robust mutexes that are marked when the thread ends. The kernel has the same limit.
const MUTEXES_MAX: usize = 2048;
/// Maximum number of rounds in which the C library runs the destructors of a thread's data
/// (PTHREAD_DESTRUCTOR_ITERATIONS). Another round follows if a destructor stores new data. Hanare's destructor marks
/// the mutexes in the last round.
const ROUNDS: usize = 4;
/// Maximum number of attempts to wake a waiting thread. A page may be evicted between an access and the system call,
/// but not this often.
const TRIES: u32 = 100;

const OWNER_DIED: u32 = 1 << 30;
const WAITERS: u32 = 1 << 31;
const OWNER: u32 = OWNER_DIED - 1;

/// The kernel's `struct robust_list_head`. The C library keeps one for each thread. It points to the first robust mutex
/// that the thread holds.
#[repr(C)]
struct Head {
    first: usize,
    /// Offset in bytes from a list entry to its futex.
    offset: isize,
    pending: usize,
}

/// One plus the key of Hanare's thread-specific data; 0 before the key exists. The data's destructor marks the mutexes.
static KEY: AtomicUsize = AtomicUsize::new(0);

type SetRobust = unsafe extern "C" fn(*mut pthread_mutexattr_t, c_int) -> c_int;

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutexattr_setrobust(attributes: *mut pthread_mutexattr_t, robust: c_int) -> c_int {
    let Some(call) = real::pthread_mutexattr_setrobust.get() else { return libc::ENOSYS };
    if robust != libc::PTHREAD_MUTEX_STALLED && far::active() {
        begin();
        watch_this_thread();
    }
    // SAFETY: `call` is the C library's `pthread_mutexattr_setrobust`, which has the type `SetRobust`. Its arguments
    // are the caller's.
    unsafe { transmute::<*mut c_void, SetRobust>(call)(attributes, robust) }
}

fn begin() {
    let mut key: pthread_key_t = 0;
    // SAFETY: `key` is a local variable. `at_end` is a function of this library, which is never unloaded.
    if KEY.load(Ordering::Acquire) == 0 && unsafe { libc::pthread_key_create(&raw mut key, Some(at_end)) } == 0 {
        // If two threads run `begin` at the same time, they create two keys. This is harmless, because both keys have
        // the same destructor.
        KEY.store(key as usize + 1, Ordering::Release);
    }
}

fn key() -> Option<pthread_key_t> {
    KEY.load(Ordering::Acquire).checked_sub(1).map(|key| key as pthread_key_t)
}

/// Checks whether threads mark their own mutexes when they end.
pub(crate) fn is_used() -> bool {
    key().is_some()
}

/// Makes this thread mark the robust mutexes that it holds when it ends.
pub(crate) fn watch_this_thread() {
    set_rounds(1);
}

fn set_rounds(round: usize) {
    if let Some(key) = key() {
        // If this call fails for lack of memory, only the kernel marks the thread's mutexes.
        // SAFETY: `key` is never deleted, and the value is a plain number.
        let _ = unsafe { libc::pthread_setspecific(key, round as *const c_void) };
    }
}

/// The destructor of the thread's data. It acts only in the last round, because other destructors may still release
/// mutexes.
unsafe extern "C" fn at_end(round: *mut c_void) {
    match round as usize {
        round if round < ROUNDS => set_rounds(round + 1),
        // SAFETY: the thread is ending. In the last round, no other code of the thread releases a mutex.
        _ => unsafe { give_up() },
    }
}

/// Marks all robust mutexes that this thread holds, as the kernel would, and empties the thread's list. Does nothing if
/// none of these mutexes is far.
///
/// # Safety
/// The thread is ending, and no other code of the thread releases a mutex.
unsafe fn give_up() {
    let (mut head, mut len) = (null_mut::<Head>(), 0_usize);
    let args = [0, &raw mut head as usize, &raw mut len as usize, 0, 0, 0];
    // SAFETY: the kernel writes its results to `head` and `len`.
    let answer = unsafe { kernel(libc::SYS_get_robust_list, args) };
    if answer.is_err() || head.is_null() || len != size_of::<Head>() {
        return;
    }
    // SAFETY: `head` is the C library's list head of this thread, and only this thread uses it.
    let head = unsafe { &mut *head };
    let end = &raw mut *head as usize;
    // The lowest bit of an entry is 1 if the kernel wakes the waiters of its mutex.
    let is_mutex = |entry: &usize| ![0, end].contains(&(entry & !1));
    // The next entry is read before an entry's mutex is released. Once the mutex is released, another thread may take
    // the mutex and change the entry.
    let entries = |first: usize| {
        // SAFETY: the C library's list contains the mutexes that this thread holds. Each entry begins with the address
        // of the next.
        let next = move |entry: &usize| is_mutex(entry).then(|| unsafe { ((entry & !1) as *const usize).read() });
        std::iter::successors(Some(first), next).take_while(is_mutex).take(MUTEXES_MAX)
    };
    if !entries(head.first).any(|entry| far::contains(entry & !1)) {
        return;
    }
    for entry in entries(std::mem::replace(&mut head.first, end)) {
        // SAFETY: `head.offset` leads from the entry of a mutex that this thread holds to its futex.
        unsafe { mark((entry & !1).wrapping_add_signed(head.offset) as *const AtomicU32, entry & 1 != 0) };
    }
}

/// # Safety
/// `futex` is the futex of a mutex that this thread holds.
unsafe fn mark(futex: *const AtomicU32, kernel_wakes: bool) {
    // SAFETY: the caller promises that `futex` is valid.
    let word = unsafe { &*futex };
    let owner = gettid() as u32;
    let died = |now: u32| (now & OWNER == owner).then_some(now & WAITERS | OWNER_DIED);
    let Ok(before) = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, died) else { return };
    if before & WAITERS == 0 || kernel_wakes {
        return;
    }
    // The waiter may be in another process, so this is not the private variant of FUTEX_WAKE.
    let args = [futex as usize, libc::FUTEX_WAKE as usize, 1, 0, 0, 0];
    for _ in 0..TRIES {
        // SAFETY: FUTEX_WAKE only wakes one thread that waits at this address.
        if keeping_errno(|| unsafe { kernel(libc::SYS_futex, args) }) != Err(libc::EFAULT) {
            return;
        }
        // This access makes the page present.
        word.load(Ordering::Relaxed);
    }
}
