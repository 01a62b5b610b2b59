//! `fork`, by the C library's own fork handlers. Hanare's are registered first. So they run last before a fork and
//! first after it, and the handlers of all libraries find far memory working.
//!
//! Children of `vfork`, `posix_spawn` and `system` share their parent's memory until they execute. They run no handlers
//! and need none.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

type Handler = Option<unsafe extern "C" fn()>;
type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

/// The C library's function that every `pthread_atfork` calls.
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

/// Registers Hanare's handlers, once.
///
/// # Errors
/// The C library's error number.
pub(crate) fn watch() -> Result<(), c_int> {
    if IS_FIRST.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let register = real().ok_or(libc::ENOSYS)?;
    // SAFETY: plain functions that live as long as this library, which is never unloaded.
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

/// fork(2). Fails if the child could not get the descriptors that it needs for paging.
#[unsafe(no_mangle)]
unsafe extern "C" fn fork() -> libc::pid_t {
    type Call = unsafe extern "C" fn() -> libc::pid_t;
    let call = crate::calls::real::fork.get().filter(|_| crate::answer::keeping_errno(hanare::far::can_fork));
    let Some(call) = call else {
        crate::answer::set_errno(libc::EAGAIN);
        return -1;
    };
    // SAFETY: `call` is the C library's function of this name, which has this type.
    unsafe { transmute::<*mut c_void, Call>(call)() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __register_atfork(
    before: Handler,
    parent: Handler,
    child: Handler,
    library: *mut c_void,
) -> c_int {
    // Ignored here: a failure shows again when the engine starts.
    let _ = watch();
    match real() {
        // SAFETY: the caller's own arguments.
        Some(register) => unsafe { register(before, parent, child, library) },
        None => libc::ENOSYS,
    }
}
