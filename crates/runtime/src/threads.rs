//! Starts and recognises Hanare's own threads in the program's process. Finds out whether threads of the program can be
//! running.

use std::ffi::{CStr, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

use hanare_sys::flags::OWN;
use hanare_sys::futex::LockCell;
use hanare_sys::signal::SignalMask;
use hanare_sys::thread::{self, EndWatch, MemoryWatch};
use hanare_sys::{futex, limits};

/// Longest time that [`own_thread`] waits until the new thread runs.
const START_MAX: Duration = Duration::from_secs(10);
/// Stack size, in bytes, of each of Hanare's own threads.
const STACK_BYTES: usize = 256 << 10;
/// Largest stack that is tried.
const STACK_BYTES_MAX: usize = 256 << 20;
/// Bytes of address space that the C library reserves for the allocations of a thread, in addition to its stack.
const ARENA_BYTES: usize = 64 << 20;

/// Maximum number of Hanare's threads that ever existed at the same time. The address space of this many threads stays
/// recorded as mapped by Hanare.
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Number of Hanare's threads, without those that have called [`ends`].
static OWN_THREADS: AtomicUsize = AtomicUsize::new(0);
/// Id of the thread of Hanare that began last. 0 if there was none.
static LAST_BEGUN: AtomicI32 = AtomicI32::new(0);
/// Id of the process that runs the engine, which is also the id of that process's first thread.
static HOME: AtomicI32 = AtomicI32::new(0);
/// Shows whether the first thread of the engine's process has ended. `None` if `/proc` cannot be read.
static END: LockCell<Option<EndWatch>> = LockCell::new(None);
/// Shows how much private memory the engine's process has. `None` if `/proc` cannot be read.
static MEMORY: LockCell<Option<MemoryWatch>> = LockCell::new(None);

/// Records that this process runs the engine.
pub(crate) fn are_home() {
    // These calls open files of `/proc` and keep them open. They are called now, because the program may use up all
    // descriptors later.
    let _ = thread::count();
    *END.lock() = EndWatch::open();
    *MEMORY.lock() = MemoryWatch::open();
    HOME.store(thread::first(), Relaxed);
}

/// Returns the bytes of this process that are resident and belong to no file. Returns `None` if `/proc` cannot be read.
pub(crate) fn private_bytes() -> Option<u64> {
    MEMORY.lock().as_ref()?.private_bytes()
}

/// Returns whether the engine belongs to another process than the calling one.
pub(crate) fn are_elsewhere() -> bool {
    HOME.load(Relaxed) != thread::first()
}

/// Returns whether the calling thread is one of Hanare's own. Such a thread allocates only near memory.
pub fn is_own_thread() -> bool {
    OWN.get()
}

/// Returns the id of one of Hanare's threads. Returns `None` if there is none. The thread may have ended.
pub fn an_own_thread() -> Option<i32> {
    let thread = LAST_BEGUN.load(Relaxed);
    (thread != 0 && OWN_THREADS.load(Relaxed) > 0).then_some(thread)
}

/// Returns whether the program has only one thread.
pub fn is_alone() -> bool {
    thread::count() <= OWN_THREADS.load(Relaxed) + 1
}

/// Marks the calling thread as one of Hanare's, until this value is dropped. The C library ends the process without
/// waiting for such threads.
struct Running {
    _uncounted: thread::Uncounted,
}

/// Number of threads that are marked by a [`Running`].
static RUNNING: AtomicUsize = AtomicUsize::new(0);

impl Running {
    /// Marks the calling thread. The thread that started it must have called [`thread::find_counted`] before, and must
    /// wait until this function returns.
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

/// Runs `work` in a forked child, which has none of Hanare's threads. `work` allocates only near memory.
pub(crate) fn forked(work: impl FnOnce()) {
    OWN_THREADS.store(0, Relaxed);
    forget_all();
    let before = OWN.replace(true);
    work();
    OWN.set(before);
}

/// Resets, in a forked child, what is recorded about the parent's threads.
fn forget_all() {
    RUNNING.store(0, Relaxed);
    LEFT_WITH.store(-1, Relaxed);
}

/// The exit code of the last thread that ended by a direct system call. Negative if no thread has ended in this way.
static LEFT_WITH: AtomicI32 = AtomicI32::new(-1);

/// Records the exit code of a thread of the program that is about to end by a direct system call. If it is the last
/// thread of the program, the process later ends with this code.
pub fn leaves(code: i32) {
    LEFT_WITH.store(code & 0xff, Relaxed);
}

/// Returns the exit code of this process if no thread of the program is left, otherwise `None`. If the last thread ends
/// by a direct system call, the C library does not notice. The process would then go on with Hanare's threads alone.
pub(crate) fn left_alone() -> Option<i32> {
    // The program's first thread is still counted after its end, while other threads run. So the count must be one more
    // than the number of Hanare's threads.
    if thread::count() != RUNNING.load(Relaxed) + 1 {
        return None;
    }
    let status = END.lock().as_ref()?.status()?;
    Some(LEFT_WITH.load(Relaxed)).filter(|&code| code >= 0).or(Some(libc::WEXITSTATUS(status)))
}

/// The data passed to a new thread of Hanare.
struct Birth<F> {
    name: &'static CStr,
    is_known: Arc<AtomicU32>,
    life: F,
}

/// Starts a thread of Hanare's own and waits until it has registered itself. From then on, [`is_own_thread`] returns
/// true in the new thread, so it allocates only near memory.
///
/// The thread is not started by the standard library, because a deadlock would be possible. The standard library
/// registers destructors of thread-locals, for which the C library takes the dynamic linker's lock. The thread that
/// starts far memory may hold that lock while it waits here: it may be in the constructor of a library being loaded.
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
        // SAFETY: `birth` comes from `Box::into_raw` above. No thread was started that could use it.
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

/// Starts a detached thread with a small stack. On failure returns the C library's errno. The C library refuses a stack
/// without room for the program's thread-locals (EINVAL). Then a larger stack is tried.
fn spawn(first: extern "C" fn(*mut c_void) -> *mut c_void, birth: *mut c_void) -> Result<(), i32> {
    let mut bytes = STACK_BYTES;
    loop {
        match spawn_with(bytes, first, birth) {
            Err(libc::EINVAL) if bytes < STACK_BYTES_MAX => bytes *= 4,
            ended => return ended,
        }
    }
}

fn spawn_with(
    stack_bytes: usize,
    first: extern "C" fn(*mut c_void) -> *mut c_void,
    birth: *mut c_void,
) -> Result<(), i32> {
    let told = |number: i32| if number == 0 { Ok(()) } else { Err(number) };
    let mut attributes = std::mem::MaybeUninit::uninit();
    let mut thread = 0;
    // SAFETY: `attributes` is initialised before its use and destroyed after it. The new thread takes over `birth`. The
    // thread is detached, so its id in `thread` is not used again.
    unsafe {
        told(libc::pthread_attr_init(attributes.as_mut_ptr()))?;
        let made = told(libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack_bytes))
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
    LAST_BEGUN.store(thread::gettid(), Relaxed);
    let running = Running::new();
    // SAFETY: `birth` is the leaked box that `own_thread` made for this thread alone.
    let Birth { name, is_known, life } = *unsafe { Box::from_raw(birth.cast::<Birth<F>>()) };
    // SAFETY: `name` ends with a null byte, and the thread is the calling one. The name only serves debuggers.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), name.as_ptr()) };
    is_known.store(1, Release);
    futex::wake_all(&is_known);
    drop(is_known);
    life();
    drop(running);
    std::ptr::null_mut()
}

/// Records that the calling thread, one of Hanare's, ends before the process.
pub(crate) fn ends() {
    OWN_THREADS.fetch_sub(1, Relaxed);
}
