//! `getrlimit`, `setrlimit` and `prlimit`. For address space and data, the program sees the limits that it set,
//! although the kernel's limits differ (`hanare_sys::limits`). Calls on other limits, or on other processes, go to the
//! kernel.
//!
//! A program that this process executes inherits the kernel's limits. So an environment variable carries the limits
//! that this program set. The variable enters the environment when the program first sets a limit. For an exec call
//! with its own environment, [`Carried`] replaces the variable's entry.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use hanare_sys::limits::{self, Kind, Limit, UNLIMITED, VALUE_BYTES, VARIABLE};
use libc::{pid_t, rlimit, rlimit64};

use super::near::{filled, given};
use crate::answer::{errno, kernel, set_errno, status};

/// The size of the entry in bytes: `HANARE_LIMITS=`, the value and the final zero.
const ENTRY_BYTES: usize = VARIABLE.len() + 1 + VALUE_BYTES + 1;

/// The variable's entry in the program's environment (`HANARE_LIMITS=...`). Its bytes are changed in place.
static ENTRY: [AtomicU8; ENTRY_BYTES] = [const { AtomicU8::new(0) }; ENTRY_BYTES];
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// Returns the bytes of `HANARE_LIMITS=` with the program's present limits, and a final zero.
fn text() -> impl Iterator<Item = u8> {
    VARIABLE.bytes().chain([b'=']).chain(limits::value()).chain([0])
}

/// Updates the environment variable after a limit changed. If there is no memory for a larger environment, executed
/// programs see the kernel's limits.
fn show() {
    for (place, byte) in ENTRY.iter().zip(text()) {
        place.store(byte, Ordering::Relaxed);
    }
    if !IS_SHOWN.swap(true, Ordering::Relaxed) {
        let before = errno();
        // SAFETY: `ENTRY` is a terminated text that lives as long as this library, and the library is never unloaded.
        if unsafe { libc::putenv(ENTRY.as_ptr().cast_mut().cast()) } != 0 {
            IS_SHOWN.store(false, Ordering::Relaxed);
        }
        set_errno(before);
    }
}

/// The environment for a program to be executed, with the entry that carries this program's limits.
pub(crate) struct Carried {
    entries: Vec<*const c_char>,
    _own: Vec<u8>,
}

impl Carried {
    /// Copies the environment and replaces the entry. Returns `None` if this program has no limits, so no entry is
    /// needed.
    ///
    /// # Safety
    /// `list` is null, or a list of terminated texts that ends with null and does not change during the value's life.
    pub(crate) unsafe fn new(list: *const *const c_char) -> Option<Carried> {
        if !limits::is_limited() || list.is_null() {
            return None;
        }
        // A child of `vfork` shares its parent's memory until it executes, but has other limits. So the entry is not
        // the shared `ENTRY`.
        let own: Vec<u8> = text().collect();
        let mut entries = Vec::new();
        for at in 0.. {
            // SAFETY: `at` does not pass the final null of the list, which ends this loop.
            let entry = unsafe { list.add(at).read() };
            if entry.is_null() {
                break;
            }
            // SAFETY: `entry` is a terminated text of a valid list.
            let rest = unsafe { CStr::from_ptr(entry) }.to_bytes().strip_prefix(VARIABLE.as_bytes());
            if !rest.is_some_and(|rest| rest.starts_with(b"=")) {
                entries.push(entry);
            }
        }
        entries.extend([own.as_ptr().cast(), std::ptr::null()]);
        Some(Carried { entries, _own: own })
    }

    pub(crate) fn list(&self) -> *const *const c_char {
        self.entries.as_ptr()
    }
}

/// Returns the kind of a limit, if `process` is this one and Hanare keeps limits of that kind.
fn own_kind(process: pid_t, resource: c_int) -> Option<Kind> {
    let is_own = process == 0 || process as u32 == std::process::id();
    Kind::of(resource).filter(|_| is_own && limits::are_kept())
}

/// Reads the old limit and sets a new one, each if requested.
///
/// # Safety
/// `new` and `old` are each null or valid.
unsafe fn exchange(kind: Kind, resource: c_int, new: *const rlimit64, old: *mut rlimit64) -> Result<(), c_int> {
    // Both pointers may be equal, and a refused call must not write the old limit. So the old limit is written last.
    if new.is_null() && !old.is_null() {
        // SAFETY: the caller guarantees that `old` is null or valid.
        let near = unsafe { filled(old) };
        // The kernel first writes its own limit to `old`, so an invalid pointer causes EFAULT. SAFETY: `near` points to
        // a local copy, or is the program's own pointer, which the kernel checks.
        unsafe { kernel(libc::SYS_prlimit64, [0, resource as usize, 0, near.pointer() as usize, 0, 0]) }?;
    }
    let before = limits::get(kind).map_err(|errno| errno.0)?;
    if !new.is_null() {
        // SAFETY: the caller guarantees what this function's `# Safety` section requires.
        let rlimit64 { rlim_cur, rlim_max } = unsafe { new.read() };
        limits::set(kind, Limit { soft: rlim_cur, hard: rlim_max }).map_err(|errno| errno.0)?;
        if rlim_cur != UNLIMITED || IS_SHOWN.load(Ordering::Relaxed) {
            show();
        }
    }
    if !old.is_null() {
        // SAFETY: the caller guarantees what this function's `# Safety` section requires.
        unsafe { old.write(rlimit64 { rlim_cur: before.soft, rlim_max: before.hard }) };
    }
    Ok(())
}

/// # Safety
/// The caller keeps the contract of prlimit(2).
unsafe fn limit(process: pid_t, resource: c_int, new: *const rlimit64, old: *mut rlimit64) -> Result<(), c_int> {
    if let Some(kind) = own_kind(process, resource) {
        // SAFETY: the caller guarantees what this function's `# Safety` section requires.
        return unsafe { exchange(kind, resource, new, old) };
    }
    // SAFETY: by the contract of prlimit(2), both pointers are null or valid.
    let (new, old) = unsafe { (given(new), filled(old)) };
    let args = [process as usize, resource as usize, new.pointer() as usize, old.pointer() as usize, 0, 0];
    // SAFETY: the arguments are the caller's, with near copies in place of far structures.
    unsafe { kernel(libc::SYS_prlimit64, args) }.map(drop)
}

/// # Safety
/// The caller keeps the contract of getrlimit(2).
unsafe fn read(resource: c_int, to: *mut rlimit64) -> c_int {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    status(if to.is_null() { Err(libc::EFAULT) } else { unsafe { limit(0, resource, std::ptr::null(), to) } })
}

/// # Safety
/// The caller keeps the contract of setrlimit(2).
unsafe fn write(resource: c_int, from: *const rlimit64) -> c_int {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    status(if from.is_null() { Err(libc::EFAULT) } else { unsafe { limit(0, resource, from, std::ptr::null_mut()) } })
}

// On 64-bit processors, `rlimit` and `rlimit64` have the same layout.
const _: () = assert!(size_of::<rlimit>() == size_of::<rlimit64>());

macro_rules! twice {
    ($($name:ident $name64:ident($($arg:ident: $type:ty => $cast:expr),*) = $target:expr;)*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
            // SAFETY: the caller keeps the contract of the call.
            unsafe { $target($($cast),*) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name64($($arg: $type),*) -> c_int {
            // SAFETY: the caller keeps the contract of the call.
            unsafe { $target($($cast),*) }
        }
    )* };
}

twice! {
    getrlimit getrlimit64(resource: c_int => resource, to: *mut rlimit => to.cast()) = read;
    setrlimit setrlimit64(resource: c_int => resource, from: *const rlimit => from.cast()) = write;
    prlimit prlimit64(
        process: pid_t => process,
        resource: c_int => resource,
        new: *const rlimit => new.cast(),
        old: *mut rlimit => old.cast()
    ) = change;
}

/// # Safety
/// The caller keeps the contract of prlimit(2).
unsafe fn change(process: pid_t, resource: c_int, new: *const rlimit64, old: *mut rlimit64) -> c_int {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    status(unsafe { limit(process, resource, new, old) })
}
