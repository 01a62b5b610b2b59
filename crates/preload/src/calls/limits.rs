//! `getrlimit`, `setrlimit` and `prlimit`. For address space and data, the program sees the limits that it set. The
//! kernel's limits differ, because the kernel counts Hanare's mappings and does not count far memory
//! (`hanare_sys::limits`). Calls about all other limits, and about other processes, go to the kernel.
//!
//! A program that this process executes inherits the kernel's limits. So an environment variable passes on the limits
//! that the program set. The first limit that the program sets adds the variable to the program's environment. If an
//! exec call passes another environment, this module sets the variable in a copy of that environment.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use hanare_sys::limits::{self, Kind, Limit, UNLIMITED, VALUE_BYTES, VARIABLE};
use libc::{pid_t, rlimit, rlimit64};

use super::near::{filled, given};
use crate::answer::{errno, kernel, set_errno, status};

/// Size in bytes of the environment entry: `HANARE_LIMITS=`, the value and the final zero.
const ENTRY_BYTES: usize = VARIABLE.len() + 1 + VALUE_BYTES + 1;

/// The variable's entry in the program's environment. Each change of a limit overwrites the bytes of this entry in
/// place.
static ENTRY: [AtomicU8; ENTRY_BYTES] = [const { AtomicU8::new(0) }; ENTRY_BYTES];
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// Returns the text `HANARE_LIMITS=`, the program's present limits and a final zero.
fn text() -> impl Iterator<Item = u8> {
    VARIABLE.bytes().chain([b'=']).chain(limits::value()).chain([0])
}

/// Updates the environment variable `HANARE_LIMITS` after a change of the limits. If there is no memory for a larger
/// environment, executed programs see the kernel's limits.
fn show() {
    for (place, byte) in ENTRY.iter().zip(text()) {
        place.store(byte, Ordering::Relaxed);
    }
    if !IS_SHOWN.swap(true, Ordering::Relaxed) {
        let before = errno();
        // SAFETY: `ENTRY` holds a NUL-terminated text. It lives as long as this library, which is never unloaded.
        if unsafe { libc::putenv(ENTRY.as_ptr().cast_mut().cast()) } != 0 {
            IS_SHOWN.store(false, Ordering::Relaxed);
        }
        set_errno(before);
    }
}

/// An environment for a program to be executed, which contains `HANARE_LIMITS`.
pub(crate) struct Carried {
    entries: Vec<*const c_char>,
    _own: Vec<u8>,
}

impl Carried {
    /// Returns a copy of the environment `list` with the variable's present value. Returns `None` if the program has
    /// set no limits or `list` is null, because the environment then needs no change.
    ///
    /// # Safety
    /// `list` is null, or a list of NUL-terminated texts that ends with null and does not change.
    pub(crate) unsafe fn new(list: *const *const c_char) -> Option<Carried> {
        if !limits::is_limited() || list.is_null() {
            return None;
        }
        // A vfork child shares its parent's memory, but has limits of its own. So the copy contains a new entry, and
        // the parent's entry stays unchanged.
        let own: Vec<u8> = text().collect();
        let mut entries = Vec::new();
        for at in 0.. {
            // SAFETY: `list` is valid up to its final null, and the loop ends there.
            let entry = unsafe { list.add(at).read() };
            if entry.is_null() {
                break;
            }
            // SAFETY: `entry` is a NUL-terminated text of a valid list.
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

/// Returns the kind of a limit if Hanare keeps this limit for the calling process. Otherwise returns `None`.
fn own_kind(process: pid_t, resource: c_int) -> Option<Kind> {
    let is_own = process == 0 || process as u32 == std::process::id();
    Kind::of(resource).filter(|_| is_own && limits::are_kept())
}

/// Sets the limit to `new`, and stores the old limit in `old`. Each pointer may be null.
///
/// # Safety
/// Each pointer is null or valid.
unsafe fn exchange(kind: Kind, resource: c_int, new: *const rlimit64, old: *mut rlimit64) -> Result<(), c_int> {
    // `old` and `new` may be the same pointer, and a refused call must not write to `old`. So the old limit is written
    // last.
    if new.is_null() && !old.is_null() {
        // SAFETY: `old` is not null, so the caller promises that it is valid.
        let near = unsafe { filled(old) };
        // The kernel first writes its own limit to `old`. If `old` is invalid, the call fails here with EFAULT.
        // SAFETY: the pointer is a near copy, or the pointer that the program passed.
        unsafe { kernel(libc::SYS_prlimit64, [0, resource as usize, 0, near.pointer() as usize, 0, 0]) }?;
    }
    let before = limits::get(kind).map_err(|errno| errno.0)?;
    if !new.is_null() {
        // SAFETY: `new` is not null, so the caller promises that it is valid.
        let rlimit64 { rlim_cur, rlim_max } = unsafe { new.read() };
        limits::set(kind, Limit { soft: rlim_cur, hard: rlim_max }).map_err(|errno| errno.0)?;
        if rlim_cur != UNLIMITED || IS_SHOWN.load(Ordering::Relaxed) {
            show();
        }
    }
    if !old.is_null() {
        // SAFETY: `old` is not null, so the caller promises that it is valid.
        unsafe { old.write(rlimit64 { rlim_cur: before.soft, rlim_max: before.hard }) };
    }
    Ok(())
}

/// # Safety
/// The caller keeps the contract of prlimit(2).
unsafe fn limit(process: pid_t, resource: c_int, new: *const rlimit64, old: *mut rlimit64) -> Result<(), c_int> {
    if let Some(kind) = own_kind(process, resource) {
        // SAFETY: the caller keeps the contract of prlimit(2).
        return unsafe { exchange(kind, resource, new, old) };
    }
    // SAFETY: under the contract of prlimit(2), both pointers are null or valid.
    let (new, old) = unsafe { (given(new), filled(old)) };
    let args = [process as usize, resource as usize, new.pointer() as usize, old.pointer() as usize, 0, 0];
    // SAFETY: the arguments are the caller's. Near copies replace far arguments.
    unsafe { kernel(libc::SYS_prlimit64, args) }.map(drop)
}

/// # Safety
/// The caller keeps the contract of getrlimit(2).
unsafe fn read(resource: c_int, to: *mut rlimit64) -> c_int {
    // SAFETY: `to` is not null, so it is valid under the contract of getrlimit(2).
    status(if to.is_null() { Err(libc::EFAULT) } else { unsafe { limit(0, resource, std::ptr::null(), to) } })
}

/// # Safety
/// The caller keeps the contract of setrlimit(2).
unsafe fn write(resource: c_int, from: *const rlimit64) -> c_int {
    // SAFETY: `from` is not null, so it is valid under the contract of setrlimit(2).
    status(if from.is_null() { Err(libc::EFAULT) } else { unsafe { limit(0, resource, from, std::ptr::null_mut()) } })
}

// The fields of `rlimit` have 64 bits, so `rlimit` and `rlimit64` have the same layout.
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
    // SAFETY: the caller keeps the contract of prlimit(2).
    status(unsafe { limit(process, resource, new, old) })
}
