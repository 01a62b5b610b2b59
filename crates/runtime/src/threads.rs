//! The threads of a process: starts and recognises Hanare's own, and finds out whether threads of the program can be
//! running.

use std::ffi::{CStr, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

use hanare_sys::flags::OWN;
use hanare_sys::futex::LockCell;
use hanare_sys::signal::SignalMask;
use hanare_sys::thread::{self, Arrivals, RunWatch};
use hanare_sys::{futex, limits};

use crate::view::Still;

/// Longest wait for a new thread to run.
const START_MAX: Duration = Duration::from_secs(10);
const STACK_BYTES: usize = 256 << 10;
/// Bytes of address space that a thread costs in addition to its stack: the C library reserves them for its
/// allocations.
const ARENA_BYTES: usize = 64 << 20;

/// Most threads that existed at once. Their cost stays reserved.
static MOST: AtomicUsize = AtomicUsize::new(0);

static OWN_THREADS: AtomicUsize = AtomicUsize::new(0);
/// The thread whose access the handler thread resolved last.
static LAST_TOUCHED: AtomicI32 = AtomicI32::new(0);
/// Process number of the engine's process. It is also the id of the process's first thread.
static HOME: AtomicI32 = AtomicI32::new(0);
static THREAD_MODE: AtomicBool = AtomicBool::new(false);
/// Shows whether the first thread of the engine's process runs. `None` where `/proc` does not tell.
static WATCH: LockCell<Option<RunWatch>> = LockCell::new(None);

/// Notes that this process has the engine. `thread_mode` says whether a thread reads its traps.
pub(crate) fn are_home(thread_mode: bool) {
    // Both are opened now, because the program may use up all descriptors later.
    let _ = thread::count();
    *WATCH.lock() = RunWatch::open(thread::first());
    THREAD_MODE.store(thread_mode, Relaxed);
    HOME.store(thread::first(), Relaxed);
}

/// Whether this is not the process that has the engine.
pub(crate) fn are_elsewhere() -> bool {
    HOME.load(Relaxed) != thread::first()
}

/// Whether this is one of Hanare's own threads, whose allocations stay near.
pub fn is_own_thread() -> bool {
    OWN.get()
}

/// Records that an access of this thread is about to be resolved.
pub(crate) fn touched_by(tid: i32) {
    LAST_TOUCHED.store(tid, Relaxed);
}

/// Whether a single thread of the program exists.
pub fn is_alone() -> bool {
    thread::count() <= OWN_THREADS.load(Relaxed) + 1
}

/// Evidence that no code of the program runs: its only thread is the first one, which is in the engine or waits for the
/// pager. `None` where other threads may run. A child that shares its parent's memory until it executes another program
/// (vfork) has no thread here, but its accesses trap, and it is another process.
pub(crate) fn still() -> Option<Still> {
    let home = HOME.load(Relaxed);
    if !OWN.get() {
        return (thread::gettid() == home && is_alone()).then_some(Still::Here);
    }
    let waits = !THREAD_MODE.load(Relaxed) || LAST_TOUCHED.load(Relaxed) == home;
    if !waits || !is_alone() {
        return None;
    }
    WATCH.lock().as_ref()?.off_cpu().map(Still::OffCpu)
}

/// How often the first thread has been given a CPU.
pub(crate) fn arrivals() -> Option<Arrivals> {
    WATCH.lock().as_ref()?.arrivals()
}

/// Marks the calling thread as one of Hanare's while it lives. The end of a program does not wait for such threads.
struct Running {
    _uncounted: thread::Uncounted,
}

/// Number of [`Running`] threads.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

impl Running {
    /// Requires that the thread that starts this one has called [`thread::find_counted`] and waits until this returns.
    fn new() -> Self {
        RUNNING.fetch_add(1, Relaxed);
        Self { _uncounted: thread::Uncounted::new() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Relaxed);
    }
}

/// Runs `work` with near allocations, in a forked child that has none of Hanare's threads.
pub(crate) fn forked(work: impl FnOnce()) {
    OWN_THREADS.store(0, Relaxed);
    forget_all();
    let before = OWN.replace(true);
    work();
    OWN.set(before);
}

/// Forgets the parent's threads, in a forked child.
fn forget_all() {
    RUNNING.store(0, Relaxed);
    LEFT_WITH.store(-1, Relaxed);
}

/// The exit code of the last thread that ended by its own system call. Negative if there was none.
static LEFT_WITH: AtomicI32 = AtomicI32::new(-1);

/// Ends the calling thread of the program with this code, and the process if it is the last one.
pub fn leaves(code: i32) {
    LEFT_WITH.store(code & 0xff, Relaxed);
}

/// The exit code of a process without any thread of the program. The C library ends it when the last thread returns. A
/// thread that ends by its own system call leaves Hanare's threads behind.
pub(crate) fn left_alone() -> Option<i32> {
    // The first thread is still counted after it has ended.
    if thread::count() != RUNNING.load(Relaxed) + 1 {
        return None;
    }
    let status = thread::first_ended()?;
    Some(LEFT_WITH.load(Relaxed)).filter(|&code| code >= 0).or(Some(libc::WEXITSTATUS(status)))
}

/// The data that a starting thread of Hanare takes over.
struct Birth<F> {
    name: &'static CStr,
    is_known: Arc<AtomicU32>,
    life: F,
}

/// Starts a thread of Hanare and waits until it is registered. Its allocations are near; once far memory is active,
/// only [`is_own_thread`] ensures that.
///
/// It is not a thread of the standard library. Those register destructors of thread-locals, for which the C library
/// takes the dynamic linker's lock. The thread that starts far memory may hold that lock, in the constructor of a
/// library being loaded.
pub(crate) fn own_thread<F: FnOnce() + Send + 'static>(name: &'static CStr, life: F) -> std::io::Result<()> {
    let threads = OWN_THREADS.fetch_add(1, Relaxed) + 1;
    if MOST.fetch_max(threads, Relaxed) < threads {
        limits::hold(STACK_BYTES, true);
        limits::hold(ARENA_BYTES, false);
    }
    // The new thread inherits the mask, so no signal handler of the program ever runs in it.
    let _mask = SignalMask::block_all();
    thread::find_counted();
    let is_known = Arc::new(AtomicU32::new(0));
    let birth = Box::into_raw(Box::new(Birth { name, is_known: Arc::clone(&is_known), life }));
    if let Err(error) = spawn(live::<F>, birth.cast()) {
        // SAFETY: made above, and no thread took it over.
        drop(unsafe { Box::from_raw(birth) });
        return Err(std::io::Error::from_raw_os_error(error));
    }
    let deadline = Instant::now() + START_MAX;
    while is_known.load(Acquire) == 0 {
        if Instant::now() > deadline {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        futex::wait(&is_known, 0, Some(START_MAX));
    }
    Ok(())
}

/// Starts a detached thread with a small stack. On failure returns the C library's errno.
fn spawn(first: extern "C" fn(*mut c_void) -> *mut c_void, birth: *mut c_void) -> Result<(), i32> {
    let told = |number: i32| if number == 0 { Ok(()) } else { Err(number) };
    let mut attributes = std::mem::MaybeUninit::uninit();
    let mut thread = 0;
    // SAFETY: attributes are initialised, used and destroyed here; `first` takes over `birth`; the thread goes on by
    // itself.
    unsafe {
        told(libc::pthread_attr_init(attributes.as_mut_ptr()))?;
        let made = told(libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK_BYTES))
            .and_then(|()| {
                told(libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED))
            })
            .and_then(|()| told(libc::pthread_create(&raw mut thread, attributes.as_ptr(), first, birth)));
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        made
    }
}

extern "C" fn live<F: FnOnce()>(birth: *mut c_void) -> *mut c_void {
    OWN.set(true);
    let running = Running::new();
    // SAFETY: what `own_thread` made for this thread alone.
    let Birth { name, is_known, life } = *unsafe { Box::from_raw(birth.cast::<Birth<F>>()) };
    // SAFETY: a terminated name for this very thread. Debuggers show it; nothing depends on it.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), name.as_ptr()) };
    is_known.store(1, Release);
    futex::wake_all(&is_known);
    drop(is_known);
    life();
    drop(running);
    std::ptr::null_mut()
}

/// Notes that the calling thread, one of Hanare's, ends before the process does.
pub(crate) fn ends() {
    OWN_THREADS.fetch_sub(1, Relaxed);
}
