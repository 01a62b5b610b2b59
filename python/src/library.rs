//! The calls of `include/dlmm.h`, taken from the library that holds this process's far memory. Under `hanare run` that
//! is the preload library, whose engine runs already. A second engine beside it would have a budget of its own, so the
//! process is searched first.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::OnceLock;

/// Number of counters in `struct dlm_stats`. Each has 64 bits.
pub(crate) const COUNTERS: usize = 13;

/// Advice about a range, by its number in the header.
#[derive(Clone, Copy)]
pub(crate) enum Advice {
    /// `DLM_WILLNEED`.
    WillNeed = 1,
    /// `DLM_DISCARD`.
    Discard = 2,
}

type Startup = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char) -> c_int;
type Alloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Calloc = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);
type Advise = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
type Park = extern "C" fn() -> c_int;
type Stats = unsafe extern "C" fn(*mut [u64; COUNTERS]) -> c_int;

/// The functions of the chosen library. They stay valid, because it is never unloaded.
pub(crate) struct Library {
    startup: Startup,
    pub(crate) alloc: Alloc,
    pub(crate) calloc: Calloc,
    pub(crate) realloc: Realloc,
    pub(crate) free: Free,
    advise: Advise,
    park: Park,
    stats: Stats,
}

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// Returns the library that [`find`] or [`load`] chose. The first choice holds.
pub(crate) fn chosen() -> Option<&'static Library> {
    LIBRARY.get()
}

/// Chooses the library that is in this process already. Returns whether there is one.
pub(crate) fn find() -> bool {
    Library::with(libc::RTLD_DEFAULT).map(|library| LIBRARY.get_or_init(|| library)).is_some()
}

/// Loads the library at `path` and chooses it, unless one is chosen.
///
/// # Errors
/// The reason why there is no such library.
pub(crate) fn load(path: &Path) -> Result<(), String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: `name` is a C string. The initializers of the library at this path are Hanare's own.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: after a failure, `dlerror` returns a C string of this thread, or null.
        let reason = unsafe { libc::dlerror().as_ref().map(|reason| CStr::from_ptr(reason)) };
        let reason = reason.map_or_else(|| path.display().to_string(), |reason| reason.to_string_lossy().into_owned());
        return Err(reason);
    }
    let library =
        Library::with(handle).ok_or_else(|| format!("{}: a call of far memory is missing", path.display()))?;
    LIBRARY.get_or_init(|| library);
    Ok(())
}

fn symbol(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: `handle` is RTLD_DEFAULT or of a library that stays loaded, and `name` is a C string.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Returns the function `name` of a library.
macro_rules! function {
    ($handle:expr, $type:ty, $name:literal) => {{
        let found = symbol($handle, $name)?;
        // SAFETY: `include/dlmm.h` declares a function of this name with this type.
        unsafe { std::mem::transmute::<*mut c_void, $type>(found) }
    }};
}

impl Library {
    /// Returns the functions of a loaded library, or of the whole process. Returns `None` if one is missing.
    fn with(handle: *mut c_void) -> Option<Library> {
        Some(Library {
            startup: function!(handle, Startup, c"dlm_startup"),
            alloc: function!(handle, Alloc, c"dlm_alloc"),
            calloc: function!(handle, Calloc, c"dlm_calloc"),
            realloc: function!(handle, Realloc, c"dlm_realloc"),
            free: function!(handle, Free, c"dlm_free"),
            advise: function!(handle, Advise, c"dlm_advise"),
            park: function!(handle, Park, c"dlm_park"),
            stats: function!(handle, Stats, c"dlm_stats"),
        })
    }

    /// Starts far memory, with `words` as the options of a program.
    pub(crate) fn start(&self, words: Vec<CString>) {
        // The words are never freed, because the header lets the library keep them.
        let mut argv: Vec<*mut c_char> = vec![c"python".as_ptr().cast_mut()];
        argv.extend(words.into_iter().map(CString::into_raw));
        let mut argc = c_int::try_from(argv.len()).unwrap_or(c_int::MAX);
        argv.push(null_mut());
        let mut first: *mut *mut c_char = argv.leak().as_mut_ptr();
        // SAFETY: `first` points to `argc` strings and a null pointer. Neither the array nor the strings are ever
        // freed. The call does not return if it fails, so its result says nothing.
        unsafe { (self.startup)(&mut argc, &mut first) };
    }

    /// Returns the counters, or `None` if far memory does not run.
    pub(crate) fn stats(&self) -> Option<[u64; COUNTERS]> {
        let mut counters = [0; COUNTERS];
        // SAFETY: `struct dlm_stats` is `COUNTERS` integers of 64 bits, and `counters` has room for them.
        let result = unsafe { (self.stats)(&mut counters) };
        (result == 0).then_some(counters)
    }

    /// Sends all far memory away until it is accessed again.
    ///
    /// # Errors
    /// `EINVAL` if far memory does not run, `ENOSPC` if the servers have no room.
    pub(crate) fn park(&self) -> Result<(), std::io::Error> {
        if (self.park)() == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Gives advice about a range of bytes. Returns whether the range lies in far memory.
    ///
    /// # Safety
    /// With [`Advice::Discard`], the caller owns the range and agrees to lose its contents.
    pub(crate) unsafe fn advise(&self, start: usize, length: usize, advice: Advice) -> bool {
        // SAFETY: the library checks that the range is its own. The caller owns its contents.
        unsafe { (self.advise)(start as *mut c_void, length, advice as c_int) == 0 }
    }

    /// Returns whether a byte lies in far memory.
    pub(crate) fn contains(&self, address: usize) -> bool {
        // SAFETY: only whole pages of a range are discarded, and one byte has none: nothing is lost.
        unsafe { self.advise(address, 1, Advice::Discard) }
    }
}
