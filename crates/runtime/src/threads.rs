//! The threads of a process: Hanare's own, which it starts and tells apart, and whether the program's run meanwhile.

use std::ffi::{CStr, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

use hanare_sys::flags::OWN;
use hanare_sys::signal::SignalMask;
use hanare_sys::thread;
use hanare_sys::{futex, limits};

use crate::view::Still;

/// How long a new thread may take to run.
const START_MAX: Duration = Duration::from_secs(10);
const STACK_BYTES: usize = 256 << 10;
/// Address space that a thread costs beside its stack: what the C library reserves for its allocations.
const ARENA_BYTES: usize = 64 << 20;

/// The most threads there were at once; what they cost stays reserved.
static MOST: AtomicUsize = AtomicUsize::new(0);

static OWN_THREADS: AtomicUsize = AtomicUsize::new(0);
/// The thread whose access the handler thread served last.
static LAST_TOUCHED: AtomicI32 = AtomicI32::new(0);
/// The process the engine is in, and so its first thread.
static HOME: AtomicI32 = AtomicI32::new(0);
static THREAD_MODE: AtomicBool = AtomicBool::new(false);

/// The engine is in this process from now on; whether a thread reads its traps.
pub(crate) fn are_home(thread_mode: bool) {
    // Opens the count of threads now: later the program may have used up all descriptors.
    let _ = thread::count();
    THREAD_MODE.store(thread_mode, Relaxed);
    HOME.store(thread::first(), Relaxed);
}

/// Whether this is another process than the one that the engine is in.
pub(crate) fn are_elsewhere() -> bool {
    HOME.load(Relaxed) != thread::first()
}

/// Whether this is one of Hanare's own threads, whose allocations stay near.
pub fn is_own_thread() -> bool {
    OWN.get()
}

/// An access of this thread's is about to be served.
pub(crate) fn touched_by(tid: i32) {
    LAST_TOUCHED.store(tid, Relaxed);
}

/// Whether a single thread of the program exists.
pub fn is_alone() -> bool {
    thread::count() <= OWN_THREADS.load(Relaxed) + 1
}

/// How the program can be seen not to run: its only thread is the first one, which is here or waits for the pager. None where
/// others may run too. A child that shares its parent's memory until it executes something (vfork) has no thread here,
/// but its accesses are seen, and it is another process.
pub(crate) fn still() -> Option<Still> {
    let home = HOME.load(Relaxed);
    if !OWN.get() {
        return (thread::gettid() == home && is_alone()).then_some(Still::Here);
    }
    let waits = !THREAD_MODE.load(Relaxed) || LAST_TOUCHED.load(Relaxed) == home;
    if !waits || !is_alone() {
        return None;
    }
    thread::run_ns(home).map(|ns| Still::Ran { tid: home, ns })
}

/// The calling thread is one of Hanare's while this lives: neither do programs wait for it before they end.
struct Running {
    _uncounted: thread::Uncounted,
}

/// How many of these there are.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

impl Running {
    /// The starter of the thread waits for it, and has called [`thread::find_counted`] before.
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

/// In a forked child, where none of Hanare's threads exist. `work` allocates near memory.
pub(crate) fn forked(work: impl FnOnce()) {
    OWN_THREADS.store(0, Relaxed);
    forget_all();
    let before = OWN.replace(true);
    work();
    OWN.set(before);
}

/// In a forked child, which has none of its parent's threads.
fn forget_all() {
    RUNNING.store(0, Relaxed);
    LEFT_WITH.store(-1, Relaxed);
}

/// The code with which a thread ended by a system call of its own; negative when none has.
static LEFT_WITH: AtomicI32 = AtomicI32::new(-1);

/// The calling thread of the program's ends with this code, and its process with it if it is the last one.
pub fn leaves(code: i32) {
    LEFT_WITH.store(code & 0xff, Relaxed);
}

/// The exit code of a process in which no thread of the program's is left. The C library ends it when the last thread
/// returns; threads that end by a system call of their own leave Hanare's behind.
pub(crate) fn left_alone() -> Option<i32> {
    // The first thread stays among those that are counted when it has ended.
    if thread::count() != RUNNING.load(Relaxed) + 1 {
        return None;
    }
    let status = thread::first_ended()?;
    Some(LEFT_WITH.load(Relaxed)).filter(|&code| code >= 0).or(Some(libc::WEXITSTATUS(status)))
}

/// A thread of Hanare's between its making and its first step.
struct Birth<F> {
    name: &'static CStr,
    is_known: Arc<AtomicU32>,
    life: F,
}

/// Starts a thread of Hanare's and waits until it is known as such: what is allocated in it is near, and once far memory is
/// active only [`is_own_thread`] sees to that.
///
/// It is not made by the standard library, whose threads register destructors of thread-locals: for that the C library
/// takes the dynamic linker's lock, which whoever starts far memory may hold, in the constructor of a library being loaded.
pub(crate) fn own_thread<F: FnOnce() + Send + 'static>(name: &'static CStr, life: F) -> std::io::Result<()> {
    let threads = OWN_THREADS.fetch_add(1, Relaxed) + 1;
    if MOST.fetch_max(threads, Relaxed) < threads {
        limits::hold(STACK_BYTES, true);
        limits::hold(ARENA_BYTES, false);
    }
    // The new thread inherits the mask, so no signal of the program's ever runs its handler there.
    let _mask = SignalMask::block_all();
    thread::find_counted();
    let is_known = Arc::new(AtomicU32::new(0));
    let birth = Box::into_raw(Box::new(Birth { name, is_known: Arc::clone(&is_known), life }));
    if let Err(error) = spawn(live::<F>, birth.cast()) {
        // SAFETY: made above, and no thread was.
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

/// A detached thread with a small stack; or the C library's number.
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
    // SAFETY: a terminated name for this very thread. Debuggers show it; nothing hangs on it.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), name.as_ptr()) };
    is_known.store(1, Release);
    futex::wake_all(&is_known);
    drop(is_known);
    life();
    drop(running);
    std::ptr::null_mut()
}

/// The calling thread, one of Hanare's, ends before the process does.
pub(crate) fn ends() {
    OWN_THREADS.fetch_sub(1, Relaxed);
}
