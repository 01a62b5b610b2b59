//! The address ranges of the code of the dynamic linker, the C library and this library. They show which of the three a
//! caller or a function belongs to.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use hanare::near;
use hanare_sys::signal;

use crate::lookups::Linker;

/// The executable segment of a library. `len` is 0 until the library is found.
pub(crate) struct Code {
    start: AtomicUsize,
    len: AtomicUsize,
}

impl Code {
    const fn nowhere() -> Code {
        Code { start: AtomicUsize::new(0), len: AtomicUsize::new(0) }
    }

    /// Returns the addresses of the code, or an empty range if it was not found.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        let start = self.start.load(Ordering::Relaxed);
        start..start + self.len.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn contains(&self, addr: usize) -> bool {
        addr.wrapping_sub(self.start.load(Ordering::Relaxed)) < self.len.load(Ordering::Relaxed)
    }
}

/// The code of the dynamic linker.
pub(crate) static LINKER: Code = Code::nowhere();
/// The code of the C library.
pub(crate) static LIBRARY: Code = Code::nowhere();
/// The code of this library.
pub(crate) static OWN: Code = Code::nowhere();

type Iterate = unsafe extern "C" fn(
    Option<unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int>,
    *mut c_void,
) -> c_int;

/// The thread sanitizer defines this function, too. Its own does not work before the sanitizer has begun.
static ITERATE: Linker = Linker::new(c"dl_iterate_phdr");

/// Finds the code of the dynamic linker, the C library and this library.
pub(crate) fn find() {
    // SAFETY: the C library's function has this type. The callback `note` ignores its data pointer, which is null.
    unsafe { transmute::<*mut c_void, Iterate>(ITERATE.get())(Some(note), null_mut()) };
    signal::own_code(OWN.range());
}

/// # Safety
/// `info` is valid during the call, as `dl_iterate_phdr` passes it.
unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: `getauxval` only reads a number that the kernel gave this process.
    let linker = unsafe { libc::getauxval(libc::AT_BASE) };
    // SAFETY: the caller passes an `info` that is valid during the call.
    let info = unsafe { &*info };
    for nth in 0..info.dlpi_phnum {
        // SAFETY: the object has `dlpi_phnum` headers, which are mapped as long as the object is loaded.
        let header = unsafe { &*info.dlpi_phdr.add(usize::from(nth)) };
        if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_X == 0 {
            continue;
        }
        let (start, len) = ((info.dlpi_addr + header.p_vaddr) as usize, header.p_memsz as usize);
        let has = |addr: usize| addr.wrapping_sub(start) < len;
        let whose = [
            (&LINKER, linker != 0 && info.dlpi_addr == linker),
            (&LIBRARY, has(near::code())),
            (&OWN, has(note as *const () as usize)),
        ];
        for (code, _) in whose.into_iter().filter(|&(_, is_it)| is_it) {
            code.start.store(start, Ordering::Relaxed);
            code.len.store(len, Ordering::Relaxed);
        }
    }
    0
}
