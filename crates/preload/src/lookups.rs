//! `dlopen`, `dlsym` and `dlvsym`. A program that looks up a function at run time gets the function that it would be
//! linked with.
//!
//! Without this module, a program could bypass this library in three ways:
//! - A library loaded with `RTLD_DEEPBIND` binds to the C library first. Its `free` would get blocks that the C library
//!   did not allocate. So `dlopen` drops that flag.
//! - A lookup in the C library's own handle finds the C library's function, which does not know far memory. The program
//!   gets this library's function instead, if one exists.
//! - A library that looks up the next definition (`RTLD_NEXT`) of `sigaction` could replace Hanare's handlers. It gets
//!   this library's function instead. The same holds for the other functions that set handlers and masks ([`KEEPING`]).
//!
//! The dynamic linker examines its caller to resolve run paths and `RTLD_NEXT`. If the result may depend on the caller,
//! this library jumps to the linker's function. The linker then sees the program as its caller. This library finds the
//! linker's functions with `hanare_sys::symbols`, because its own `dlsym` replaces the linker's.

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use hanare_sys::symbols::Library;

use crate::code::{self, LIBRARY, OWN};
use crate::{masks, signals};

/// A function of the C library or the dynamic linker, found at its first use. No other library's definition is found.
pub(crate) struct Linker {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Linker {
    pub(crate) const fn new(name: &'static CStr) -> Linker {
        Linker { name, found: AtomicPtr::new(null_mut()) }
    }

    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // In older C libraries, the dynamic linker's functions are in `libdl`.
        let found = [c"libc.so.6", c"libdl.so.2"]
            .into_iter()
            .find_map(|library| Library::loaded(library)?.function(self.name))
            .map_or(nobody as *mut c_void, NonNull::as_ptr);
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Returns null, like a lookup that finds nothing. Is called in place of a function of the dynamic linker that no
/// loaded library defines.
extern "C" fn nobody() -> *mut c_void {
    null_mut()
}

static OPEN: Linker = Linker::new(c"dlopen");
static SYMBOL: Linker = Linker::new(c"dlsym");
static SYMBOL_OF_VERSION: Linker = Linker::new(c"dlvsym");

extern "C" fn linkers_open() -> *mut c_void {
    OPEN.get()
}

/// # Safety
/// The arguments are those of dlsym(3).
unsafe extern "C" fn linkers_symbol(library: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller promises the arguments of dlsym(3).
    unsafe { answering_next(library, name) }.unwrap_or_else(|| SYMBOL.get())
}

/// # Safety
/// The arguments are those of dlvsym(3).
unsafe extern "C" fn linkers_symbol_of_version(library: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller promises the arguments of dlvsym(3).
    unsafe { answering_next(library, name) }.unwrap_or_else(|| SYMBOL_OF_VERSION.get())
}

/// Looks up the definition of `name` after this library's.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    // SAFETY: the linker's `dlsym` has the type `Symbol`. This library makes the call, so `RTLD_NEXT` finds the definition
    // after this library's.
    unsafe { transmute::<*mut c_void, Symbol>(SYMBOL.get())(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Checks whether the program or any library that is loaded defines `name`.
pub(crate) fn is_defined(name: &CStr) -> bool {
    // SAFETY: the linker's `dlsym` has the type `Symbol`.
    let found = unsafe { transmute::<*mut c_void, Symbol>(SYMBOL.get())(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: the text that is returned is not used. The program must not get it from a call of its own.
    unsafe { libc::dlerror() };
    !found.is_null()
}

/// Returns a function that answers a lookup of `name` in place of the linker's. Returns `None` if the linker may answer:
/// the lookup is not for `RTLD_NEXT`, or `name` is not in [`KEEPING`]. Libraries that make such lookups lie after this
/// one, so the linker would find the C library's function.
///
/// # Safety
/// `name` is a NUL-terminated text.
unsafe fn answering_next(library: *mut c_void, name: *const c_char) -> Option<*mut c_void> {
    if library != libc::RTLD_NEXT {
        return None;
    }
    // SAFETY: the caller promises a NUL-terminated text.
    let name = unsafe { CStr::from_ptr(name) };
    let keeping = KEEPING.iter().find(|keeping| keeping.name == name)?;
    // Constructors of other libraries may run before this library's.
    if LIBRARY.range().is_empty() {
        code::find();
    }
    let is_the_librarys = LIBRARY.contains(next(name) as usize);
    let answer = if is_the_librarys { keeping.answer } else { keeping.answer_behind };
    Some(answer as *const () as *mut c_void)
}

/// Assembly that calls `{find}` and preserves the argument registers. `{find}` returns the address of a function. The
/// address is in `rax` (on Arm in `x16`) afterwards, and `$then` jumps to it.
macro_rules! found {
    ($($then:literal),*) => {
        concat!(
            "push rdi\n", "push rsi\n", "push rdx\n", "call {find}\n", "pop rdx\n", "pop rsi\n", "pop rdi\n",
            $($then, "\n"),*
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! found_arm {
    ($($then:literal),*) => {
        concat!(
            "stp x0, x1, [sp, #-32]!\n", "stp x2, x30, [sp, #16]\n", "bl {find}\n", "mov x16, x0\n",
            "ldp x2, x30, [sp, #16]\n", "ldp x0, x1, [sp], #32\n",
            $($then, "\n"),*
        )
    };
}

/// dlopen(3) without the flag `RTLD_DEEPBIND`, which is bit 3.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(_name: *const c_char, _flags: libc::c_int) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(found!("and esi, -9", "jmp rax"), find = sym linkers_open);
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(found_arm!("and w1, w1, #0xfffffff7", "br x16"), find = sym linkers_open);
}

/// Defines a lookup function. For the handles `RTLD_DEFAULT` (0) and `RTLD_NEXT` (-1), it jumps to the function that
/// `$find` returns. That is mostly the linker's, which finds the function that the name is bound to. For any other
/// handle, it jumps to `$instead`.
macro_rules! lookup {
    ($name:ident, $find:ident, $instead:ident, fn($($arg:ident: $type:ty),*)) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> *mut c_void {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(
                found!("lea rcx, [rdi + 1]", "cmp rcx, 1", "ja {instead}", "jmp rax"),
                find = sym $find, instead = sym $instead,
            );
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(
                found_arm!("add x3, x0, #1", "cmp x3, #1", "b.hi {instead}", "br x16"),
                find = sym $find, instead = sym $instead,
            );
        }
    };
}

lookup!(dlsym, linkers_symbol, symbol_of, fn(_library: *mut c_void, _name: *const c_char));
lookup!(
    dlvsym,
    linkers_symbol_of_version,
    symbol_of_version,
    fn(_library: *mut c_void, _name: *const c_char, _version: *const c_char)
);

type Symbol = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type SymbolOfVersion = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// # Safety
/// The caller keeps the contract of dlsym(3).
unsafe extern "C" fn symbol_of(library: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: `symbol` is the linker's `dlsym`, which has the type `Symbol`. The caller keeps the contract of dlsym(3).
    unsafe {
        let symbol = transmute::<*mut c_void, Symbol>(SYMBOL.get());
        instead_of(symbol(library, name), name)
    }
}

/// # Safety
/// The caller keeps the contract of dlvsym(3).
unsafe extern "C" fn symbol_of_version(
    library: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    // SAFETY: `symbol` is the linker's `dlvsym`, which has the type `SymbolOfVersion`. The caller keeps the contract of
    // dlvsym(3).
    unsafe {
        let symbol = transmute::<*mut c_void, SymbolOfVersion>(SYMBOL_OF_VERSION.get());
        instead_of(symbol(library, name, version), name)
    }
}

/// Returns the function that the program gets in place of `found`. If `found` is in the C library and this library
/// defines the same name, returns this library's function. But if a library between this one and the C library also
/// defines the name, returns `found`, because that library may be looking up the function that its own definition
/// calls.
///
/// # Safety
/// `name` is a NUL-terminated text.
unsafe fn instead_of(found: *mut c_void, name: *const c_char) -> *mut c_void {
    if found.is_null() || !LIBRARY.contains(found as usize) {
        return found;
    }
    // SAFETY: `symbol` is the linker's `dlsym`, which has the type `Symbol`, and `name` is NUL-terminated.
    let (bound, name) = unsafe {
        let symbol = transmute::<*mut c_void, Symbol>(SYMBOL.get());
        (symbol(libc::RTLD_DEFAULT, name), CStr::from_ptr(name))
    };
    if OWN.contains(bound as usize) && next(name) == found {
        return bound;
    }
    KEEPING.iter().find(|keeping| keeping.name == name).map_or(found, |keeping| (keeping.answer_behind)())
}

/// A function of this library that keeps Hanare's signals.
struct Keeping {
    name: &'static CStr,
    /// Returns this library's function.
    answer: extern "C" fn() -> *mut c_void,
    /// Returns the function for a library that defines the name itself. It calls no such definition, which may be its
    /// caller.
    answer_behind: extern "C" fn() -> *mut c_void,
}

macro_rules! keeping {
    ($($name:ident: $function:path, $behind:path;)*) => {
        [$({
            extern "C" fn answer() -> *mut c_void {
                $function as *mut c_void
            }
            extern "C" fn answer_behind() -> *mut c_void {
                $behind as *mut c_void
            }
            let name = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name holds no zero"),
            };
            Keeping { name, answer, answer_behind }
        }),*]
    };
}

/// The functions by which a library would take Hanare's signals.
static KEEPING: [Keeping; 9] = keeping! {
    sigaction: signals::sigaction, signals::behind_sigaction;
    __sigaction: signals::__sigaction, signals::behind_sigaction;
    signal: signals::signal, signals::behind_signal;
    bsd_signal: signals::bsd_signal, signals::behind_signal;
    ssignal: signals::ssignal, signals::behind_signal;
    sysv_signal: signals::sysv_signal, signals::behind_sysv_signal;
    __sysv_signal: signals::__sysv_signal, signals::behind_sysv_signal;
    sigprocmask: masks::sigprocmask, masks::sigprocmask;
    pthread_sigmask: masks::pthread_sigmask, masks::pthread_sigmask;
};
