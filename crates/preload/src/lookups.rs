//! `dlopen`, `dlsym` and `dlvsym`: a program that looks up a function gets the same function that it would be linked
//! with.
//!
//! Without this module, a program could get the C library's functions, which do not know far memory, in two ways:
//! - A library loaded with `RTLD_DEEPBIND` binds to the C library first, so its `free` would get blocks that the C
//!   library did not allocate. So `dlopen` drops that flag.
//! - A lookup in the C library's own handle finds the C library's function. So the program gets this library's function
//!   instead, if there is one.
//!
//! For run paths and `RTLD_NEXT`, the dynamic linker examines the return address to find the caller. So if the result
//! may depend on the caller, the call continues as a jump, which keeps the return address. `dlopen`, `dlsym` and
//! `dlvsym` themselves are found in the table of symbols of their library, not by a lookup.

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use hanare_sys::symbols::Library;

use crate::code::{LIBRARY, OWN};

/// One of the dynamic linker's functions.
struct Linker {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Linker {
    const fn new(name: &'static CStr) -> Linker {
        Linker { name, found: AtomicPtr::new(null_mut()) }
    }

    fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // In older C libraries, these functions are in `libdl`.
        let found = [c"libc.so.6", c"libdl.so.2"]
            .into_iter()
            .find_map(|library| Library::loaded(library)?.function(self.name))
            .map_or(nobody as *mut c_void, NonNull::as_ptr);
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Replaces a function that no loaded library has. Returns null, like a lookup that finds nothing.
extern "C" fn nobody() -> *mut c_void {
    null_mut()
}

static OPEN: Linker = Linker::new(c"dlopen");
static SYMBOL: Linker = Linker::new(c"dlsym");
static SYMBOL_OF_VERSION: Linker = Linker::new(c"dlvsym");

extern "C" fn linkers_open() -> *mut c_void {
    OPEN.get()
}

extern "C" fn linkers_symbol() -> *mut c_void {
    SYMBOL.get()
}

extern "C" fn linkers_symbol_of_version() -> *mut c_void {
    SYMBOL_OF_VERSION.get()
}

/// Assembly that calls `$find` for the address of a function and keeps the argument registers. Afterwards the address
/// is in `rax` (x86-64) or `x16` (AArch64). The instructions `$then` follow and jump to it.
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

/// Opens a library with the flags of the caller, except `RTLD_DEEPBIND` (bit 3).
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(_name: *const c_char, _flags: libc::c_int) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(found!("and esi, -9", "jmp rax"), find = sym linkers_open);
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(found_arm!("and w1, w1, #0xfffffff7", "br x16"), find = sym linkers_open);
}

/// Defines a lookup. The handles `RTLD_DEFAULT` (0) and `RTLD_NEXT` (-1) ask for the binding of a name: those calls
/// jump to the dynamic linker's function. Calls with any other handle go to `$instead`.
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
    // SAFETY: the linker's function has this type, and the caller keeps the contract of dlsym(3).
    unsafe {
        let symbol = transmute::<*mut c_void, Symbol>(linkers_symbol());
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
    // SAFETY: the linker's function has this type, and the caller keeps the contract of dlvsym(3).
    unsafe {
        let symbol = transmute::<*mut c_void, SymbolOfVersion>(linkers_symbol_of_version());
        instead_of(symbol(library, name, version), name)
    }
}

/// Returns the function for a program that has found the function `found`. If `found` is the C library's and this
/// library has a function of that name, returns this library's. If a third library defines the name between the two,
/// returns `found`: that library may be asking for the function that its own one calls.
///
/// # Safety
/// `name` is a terminated text.
unsafe fn instead_of(found: *mut c_void, name: *const c_char) -> *mut c_void {
    if found.is_null() || !LIBRARY.contains(found as usize) {
        return found;
    }
    // SAFETY: the linker's function has this type, and `name` is terminated. This library makes the call, so
    // `RTLD_NEXT` means the next definition after this library's.
    let [bound, next] = unsafe {
        let symbol = transmute::<*mut c_void, Symbol>(linkers_symbol());
        [symbol(libc::RTLD_DEFAULT, name), symbol(libc::RTLD_NEXT, name)]
    };
    if OWN.contains(bound as usize) && next == found { bound } else { found }
}
