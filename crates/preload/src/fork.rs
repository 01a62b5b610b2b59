//! `fork`, by means of the C library's fork handlers. Hanare registers its handlers before all other libraries. So they
//! run last before a fork and first after it, and the other libraries' handlers can use far memory.
//!
//! Children of `vfork`, `posix_spawn` and `system` share their parent's memory until they execute. The C library runs
//! no fork handlers for them, and they need none.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

type Handler = Option<unsafe extern "C" fn()>;
type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

/// The C library's function behind `pthread_atfork`. Null until it is looked up.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static IS_FIRST: AtomicBool = AtomicBool::new(false);

fn real() -> Option<Register> {
    let mut found = REAL.load(Ordering::Acquire);
    if found.is_null() {
        // SAFETY: `dlsym` only needs a terminated name, and the name is a C string literal.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__register_atfork".as_ptr()) };
        REAL.store(found, Ordering::Release);
    }
    // SAFETY: if the symbol exists, it is the C library's function of this type.
    (!found.is_null()).then(|| unsafe { transmute::<*mut c_void, Register>(found) })
}

/// Registers Hanare's handlers. Only the first call has an effect.
///
/// # Errors
/// Returns the C library's error number.
pub(crate) fn watch() -> Result<(), c_int> {
    if IS_FIRST.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let register = real().ok_or(libc::ENOSYS)?;
    // SAFETY: the handlers are plain functions that live as long as this library, and the library is never unloaded.
    match unsafe { register(Some(before), Some(in_parent), Some(in_child), null_mut()) } {
        0 => Ok(()),
        error => Err(error),
    }
}

unsafe extern "C" fn before() {
    hanare::far::before_fork();
    if hanare::far::is_started() {
        hanare_sys::limits::forking();
    }
}

unsafe extern "C" fn in_parent() {
    hanare::far::after_fork();
}

unsafe extern "C" fn in_child() {
    hanare_sys::limits::forked();
    hanare::far::forked_child();
}

/// Performs fork(2). Fails with EAGAIN if the child could not get the descriptors that it needs for paging.
#[unsafe(no_mangle)]
unsafe extern "C" fn fork() -> libc::pid_t {
    type Call = unsafe extern "C" fn() -> libc::pid_t;
    let call = crate::calls::real::fork.get().filter(|_| crate::answer::keeping_errno(hanare::far::can_fork));
    let Some(call) = call else {
        crate::answer::set_errno(libc::EAGAIN);
        return -1;
    };
    // SAFETY: `call` is the C library's `fork`, which has this type.
    unsafe { transmute::<*mut c_void, Call>(call)() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __register_atfork(
    before: Handler,
    parent: Handler,
    child: Handler,
    library: *mut c_void,
) -> c_int {
    // Hanare's handlers come first. A failure is ignored: the result is only about the caller's handlers.
    let _ = watch();
    match real() {
        // SAFETY: the arguments are the caller's, and `register` is the C library's function of this name.
        Some(register) => unsafe { register(before, parent, child, library) },
        None => libc::ENOSYS,
    }
}
