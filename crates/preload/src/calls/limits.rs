//! `getrlimit`, `setrlimit` and `prlimit`. For address space and data, the program sees the limits that it set,
//! although the kernel's differ (`hanare_sys::limits`). All other limits, and those of other processes, are left to the
//! kernel.
//!
//! A program that this one executes inherits the kernel's limits, so a variable carries the program's own. The variable
//! enters the environment with the first limit. It replaces the entry in the environment that an exec call passes.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use hanare_sys::limits::{self, Kind, Limit, UNLIMITED, VALUE_BYTES, VARIABLE};
use libc::{pid_t, rlimit, rlimit64};

use super::near::{filled, given};
use crate::answer::{errno, kernel, set_errno, status};

/// Bytes of `HANARE_LIMITS=`, the value and the final zero.
const ENTRY_BYTES: usize = VARIABLE.len() + 1 + VALUE_BYTES + 1;

/// The entry of the program's environment. It changes in place.
static ENTRY: [AtomicU8; ENTRY_BYTES] = [const { AtomicU8::new(0) }; ENTRY_BYTES];
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// `HANARE_LIMITS=` with the program's present limits, terminated.
fn text() -> impl Iterator<Item = u8> {
    VARIABLE.bytes().chain([b'=']).chain(limits::value()).chain([0])
}

/// After a change: updates the variable for programs that this one executes. If there is no memory for a larger
/// environment, those programs see the kernel's limit.
fn show() {
    for (place, byte) in ENTRY.iter().zip(text()) {
        place.store(byte, Ordering::Relaxed);
    }
    if !IS_SHOWN.swap(true, Ordering::Relaxed) {
        let before = errno();
        // SAFETY: a terminated text that lives as long as this library, which is never unloaded.
        if unsafe { libc::putenv(ENTRY.as_ptr().cast_mut().cast()) } != 0 {
            IS_SHOWN.store(false, Ordering::Relaxed);
        }
        set_errno(before);
    }
}

/// An environment for a program to be executed, which contains the entry.
pub(crate) struct Carried {
    entries: Vec<*const c_char>,
    _own: Vec<u8>,
}

impl Carried {
    /// Returns `None` if the environment needs no change because the program has no limits.
    ///
    /// # Safety
    /// Null, or a list of terminated texts that ends with null and does not change.
    pub(crate) unsafe fn new(list: *const *const c_char) -> Option<Carried> {
        if !limits::is_limited() || list.is_null() {
            return None;
        }
        // A child that shares its parent's memory until it executes has its own limits, so it needs its own entry.
        let own: Vec<u8> = text().collect();
        let mut entries = Vec::new();
        for at in 0.. {
            // SAFETY: the list is valid up to its end.
            let entry = unsafe { list.add(at).read() };
            if entry.is_null() {
                break;
            }
            // SAFETY: a text of a valid list.
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

/// The kind of a limit of the calling process.
fn own_kind(process: pid_t, resource: c_int) -> Option<Kind> {
    let is_own = process == 0 || process as u32 == std::process::id();
    Kind::of(resource).filter(|_| is_own && limits::are_kept())
}

/// Reads the old limit and sets a new one, each if requested.
///
/// # Safety
/// Null or valid pointers.
unsafe fn exchange(kind: Kind, resource: c_int, new: *const rlimit64, old: *mut rlimit64) -> Result<(), c_int> {
    // Both pointers may be equal, and a refused call must not write the old limit. So the old limit is written last.
    if new.is_null() && !old.is_null() {
        // SAFETY: the contract of the call.
        let near = unsafe { filled(old) };
        // The kernel writes its own limit there first, so that an invalid pointer causes EFAULT. SAFETY: a variable of
        // ours, or the pointer that the program gave.
        unsafe { kernel(libc::SYS_prlimit64, [0, resource as usize, 0, near.pointer() as usize, 0, 0]) }?;
    }
    let before = limits::get(kind).map_err(|errno| errno.0)?;
    if !new.is_null() {
        // SAFETY: the caller keeps the same promise.
        let rlimit64 { rlim_cur, rlim_max } = unsafe { new.read() };
        limits::set(kind, Limit { soft: rlim_cur, hard: rlim_max }).map_err(|errno| errno.0)?;
        if rlim_cur != UNLIMITED || IS_SHOWN.load(Ordering::Relaxed) {
            show();
        }
    }
    if !old.is_null() {
        // SAFETY: the caller keeps the same promise.
        unsafe { old.write(rlimit64 { rlim_cur: before.soft, rlim_max: before.hard }) };
    }
    Ok(())
}

/// # Safety
/// The caller keeps the contract of prlimit(2).
unsafe fn limit(process: pid_t, resource: c_int, new: *const rlimit64, old: *mut rlimit64) -> Result<(), c_int> {
    if let Some(kind) = own_kind(process, resource) {
        // SAFETY: the caller keeps the same promise.
        return unsafe { exchange(kind, resource, new, old) };
    }
    // SAFETY: the contract of the call: null or valid pointers.
    let (new, old) = unsafe { (given(new), filled(old)) };
    let args = [process as usize, resource as usize, new.pointer() as usize, old.pointer() as usize, 0, 0];
    // SAFETY: the caller's arguments, with near copies of far ones.
    unsafe { kernel(libc::SYS_prlimit64, args) }.map(drop)
}

/// # Safety
/// The caller keeps the contract of getrlimit(2).
unsafe fn read(resource: c_int, to: *mut rlimit64) -> c_int {
    // SAFETY: the caller keeps the same promise.
    status(if to.is_null() { Err(libc::EFAULT) } else { unsafe { limit(0, resource, std::ptr::null(), to) } })
}

/// # Safety
/// The caller keeps the contract of setrlimit(2).
unsafe fn write(resource: c_int, from: *const rlimit64) -> c_int {
    // SAFETY: the caller keeps the same promise.
    status(if from.is_null() { Err(libc::EFAULT) } else { unsafe { limit(0, resource, from, std::ptr::null_mut()) } })
}

// The two structures are the same where numbers have 64 bits.
const _: () = assert!(size_of::<rlimit>() == size_of::<rlimit64>());

macro_rules! twice {
    ($($name:ident $name64:ident($($arg:ident: $type:ty => $cast:expr),*) = $target:expr;)*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
            // SAFETY: the caller keeps the same promise.
            unsafe { $target($($cast),*) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name64($($arg: $type),*) -> c_int {
            // SAFETY: the caller keeps the same promise.
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
    // SAFETY: the caller keeps the same promise.
    status(unsafe { limit(process, resource, new, old) })
}
