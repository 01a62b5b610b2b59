//! `fork`, through the C library's own fork handlers. Hanare registers its handlers first. So they run last before a
//! fork and first after it, and the handlers of all other libraries can use far memory.
//!
//! Children of `vfork`, `posix_spawn` and `system` share their parent's memory until they execute another program. They
//! run no handlers and need none.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use hanare_sys::stack;

use crate::range::PAGE;

type Handler = Option<unsafe extern "C" fn()>;
type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

/// Address of the C library's `__register_atfork`, which every `pthread_atfork` calls. Null before it is looked up.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static IS_FIRST: AtomicBool = AtomicBool::new(false);

fn real() -> Option<Register> {
    let mut found = REAL.load(Ordering::Acquire);
    if found.is_null() {
        // SAFETY: `dlsym` gets a NUL-terminated name.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__register_atfork".as_ptr()) };
        REAL.store(found, Ordering::Release);
    }
    // SAFETY: `found` is not null, so it is the C library's `__register_atfork`, which has the type `Register`.
    (!found.is_null()).then(|| unsafe { transmute::<*mut c_void, Register>(found) })
}

/// Registers Hanare's fork handlers, unless an earlier call has done so.
///
/// # Errors
/// The error number of the C library's `__register_atfork`, or `ENOSYS` if the C library does not have that function.
pub(crate) fn watch() -> Result<(), c_int> {
    if IS_FIRST.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let error = match real() {
        // SAFETY: the handlers are functions of this library, which is never unloaded.
        Some(register) => unsafe { register(Some(before), Some(in_parent), Some(in_child), null_mut()) },
        None => libc::ENOSYS,
    };
    if error == 0 {
        return Ok(());
    }
    // The next call of `watch` tries again. If the engine then needs the handlers, it reports the error.
    IS_FIRST.store(false, Ordering::Release);
    Err(error)
}

unsafe extern "C" {
    /// Calls a function for the places that the C library accesses in its streams, until it returns false (`streams.c`).
    safe fn hanare_visit_streams(visit: extern "C" fn(*const c_void) -> c_int) -> c_int;
}

/// Brings the page of a place in.
extern "C" fn touch(place: *const c_void) -> c_int {
    // SAFETY: the place is in a stream, which the C library keeps while its list is locked.
    let _ = unsafe { place.cast::<u8>().read_volatile() };
    1
}

/// Checks whether the page of a place is present, without an access.
extern "C" fn is_there(place: *const c_void) -> c_int {
    let page = place as usize & !(PAGE - 1);
    c_int::from(hanare::near::resident(page, PAGE) > 0)
}

/// How often a fork is prepared at most, until all streams are present.
const TRIES: usize = 8;

/// Prepares far memory for a fork. The C library resets its streams in the child before the child can page. If the program
/// allocates them in far memory, they must be present. The preparation may evict them, but then leaves room for them.
fn prepare() {
    hanare::far::before_fork();
    if !crate::heap::is_the_programs() || !hanare::far::is_started() {
        return;
    }
    for _ in 1..TRIES {
        if hanare_visit_streams(is_there) != 0 {
            return;
        }
        hanare::far::after_fork();
        hanare_visit_streams(touch);
        hanare::far::before_fork();
    }
}

unsafe extern "C" fn before() {
    prepare();
    if hanare::far::is_started() {
        hanare_sys::limits::forking();
    }
}

unsafe extern "C" fn in_parent() {
    hanare::far::after_fork();
}

unsafe extern "C" fn in_child() {
    hanare_sys::limits::forked();
    hanare_sys::signal::forget_waiting();
    hanare::far::forked_child();
    #[cfg(target_arch = "x86_64")]
    crate::trapped::watch_this_thread();
}

/// fork(2). Fails with `EAGAIN` if the child could not get the descriptors that it needs for paging. A thread whose stack
/// is far forks on a near stack, and returns to its own when the child can page.
#[unsafe(no_mangle)]
unsafe extern "C" fn fork() -> libc::pid_t {
    type Call = unsafe extern "C" fn() -> libc::pid_t;
    let call = crate::calls::real::fork.get().filter(|_| crate::answer::keeping_errno(hanare::far::can_fork));
    let Some(call) = call else {
        crate::answer::set_errno(libc::EAGAIN);
        return -1;
    };
    // SAFETY: `call` is the C library's `fork`, which has the type `Call`.
    let fork = || unsafe { transmute::<*mut c_void, Call>(call)() };
    if !hanare::far::stack_is_far() {
        return fork();
    }
    let mut child = -1;
    if stack::run_on_fresh(|| child = fork()).is_err() {
        crate::answer::set_errno(libc::ENOMEM);
    }
    child
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __register_atfork(
    before: Handler,
    parent: Handler,
    child: Handler,
    library: *mut c_void,
) -> c_int {
    // Ignored: this function reports only errors about the caller's handlers. The start of the engine calls `watch`
    // again.
    let _ = watch();
    match real() {
        // SAFETY: `register` is the C library's `__register_atfork`, and its arguments are the caller's.
        Some(register) => unsafe { register(before, parent, child, library) },
        None => libc::ENOSYS,
    }
}
