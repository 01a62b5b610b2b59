//! `getrlimit`, `setrlimit` and `prlimit`: of address space and data the program finds what it set, whatever the kernel is
//! told on its behalf (`hanare_sys::limits`). All other limits, and those of other processes, are the kernel's.
//!
//! What the program executes inherits the kernel's limits: so a variable tells it the program's own. It is put into the
//! environment with the first limit, and in place of what a call of the exec family is given.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use hanare_sys::limits::{self, Kind, Limit, UNLIMITED, VALUE_BYTES, VARIABLE};
use libc::{pid_t, rlimit, rlimit64};

use super::near::{filled, given};
use crate::answer::{errno, kernel, set_errno, status};

/// `HANARE_LIMITS=`, the value and the end of the text.
const ENTRY_BYTES: usize = VARIABLE.len() + 1 + VALUE_BYTES + 1;

/// The entry of the program's environment. It changes in place.
static ENTRY: [AtomicU8; ENTRY_BYTES] = [const { AtomicU8::new(0) }; ENTRY_BYTES];
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// `HANARE_LIMITS=` and what the program's limits are now, terminated.
fn text() -> impl Iterator<Item = u8> {
    VARIABLE.bytes().chain([b'=']).chain(limits::value()).chain([0])
}

/// After a change: what the program executes is to know. Without memory for the table the kernel's limit is what it knows.
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

/// An environment for a program to be executed, with the entry in it.
pub(crate) struct Carried {
    entries: Vec<*const c_char>,
    _own: Vec<u8>,
}

impl Carried {
    /// `None` where the environment stays as it is: the program has no limits.
    ///
    /// # Safety
    /// Null or a list of terminated texts that ends with null, which stays as it is.
    pub(crate) unsafe fn new(list: *const *const c_char) -> Option<Carried> {
        if !limits::is_limited() || list.is_null() {
            return None;
        }
        // A child that shares its parent's memory until it executes has limits of its own, so the entry is too.
        let own: Vec<u8> = text().collect();
        let mut entries = Vec::new();
        for at in 0.. {
            // SAFETY: up to its end the list is valid.
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

/// The kind, where the limit is the calling process'.
fn own_kind(process: pid_t, resource: c_int) -> Option<Kind> {
    let is_own = process == 0 || process as u32 == std::process::id();
    Kind::of(resource).filter(|_| is_own && limits::are_kept())
}

/// Reads the old limit and sets a new one, each if it is asked for.
///
/// # Safety
/// Null or valid places.
unsafe fn exchange(kind: Kind, resource: c_int, new: *const rlimit64, old: *mut rlimit64) -> Result<(), c_int> {
    // Both may be one place, and a refusal leaves the old limit untold: so it is written last where a new one is set.
    if new.is_null() && !old.is_null() {
        // SAFETY: the contract of the call.
        let near = unsafe { filled(old) };
        // The kernel writes its own limit there first, since it answers EFAULT where there is no memory.
        // SAFETY: a place for the limit, or what the program gave for one.
        unsafe { kernel(libc::SYS_prlimit64, [0, resource as usize, 0, near.pointer() as usize, 0, 0]) }?;
    }
    let before = limits::get(kind).map_err(|errno| errno.0)?;
    if !new.is_null() {
        // SAFETY: passed on from the caller.
        let rlimit64 { rlim_cur, rlim_max } = unsafe { new.read() };
        limits::set(kind, Limit { soft: rlim_cur, hard: rlim_max }).map_err(|errno| errno.0)?;
        if rlim_cur != UNLIMITED || IS_SHOWN.load(Ordering::Relaxed) {
            show();
        }
    }
    if !old.is_null() {
        // SAFETY: passed on from the caller.
        unsafe { old.write(rlimit64 { rlim_cur: before.soft, rlim_max: before.hard }) };
    }
    Ok(())
}

/// # Safety
/// The contract of prlimit(2).
unsafe fn limit(process: pid_t, resource: c_int, new: *const rlimit64, old: *mut rlimit64) -> Result<(), c_int> {
    if let Some(kind) = own_kind(process, resource) {
        // SAFETY: passed on from the caller.
        return unsafe { exchange(kind, resource, new, old) };
    }
    // SAFETY: the contract of the call: null or valid places.
    let (new, old) = unsafe { (given(new), filled(old)) };
    let args = [process as usize, resource as usize, new.pointer() as usize, old.pointer() as usize, 0, 0];
    // SAFETY: the caller's arguments, with near copies in place of what is far.
    unsafe { kernel(libc::SYS_prlimit64, args) }.map(drop)
}

/// # Safety
/// The contract of getrlimit(2).
unsafe fn read(resource: c_int, to: *mut rlimit64) -> c_int {
    // SAFETY: passed on from the caller.
    status(if to.is_null() { Err(libc::EFAULT) } else { unsafe { limit(0, resource, std::ptr::null(), to) } })
}

/// # Safety
/// The contract of setrlimit(2).
unsafe fn write(resource: c_int, from: *const rlimit64) -> c_int {
    // SAFETY: passed on from the caller.
    status(if from.is_null() { Err(libc::EFAULT) } else { unsafe { limit(0, resource, from, std::ptr::null_mut()) } })
}

// The two structures are the same where numbers have 64 bits.
const _: () = assert!(size_of::<rlimit>() == size_of::<rlimit64>());

macro_rules! twice {
    ($($name:ident $name64:ident($($arg:ident: $type:ty => $cast:expr),*) = $target:expr;)*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
            // SAFETY: passed on from the caller.
            unsafe { $target($($cast),*) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name64($($arg: $type),*) -> c_int {
            // SAFETY: passed on from the caller.
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
/// The contract of prlimit(2).
unsafe fn change(process: pid_t, resource: c_int, new: *const rlimit64, old: *mut rlimit64) -> c_int {
    // SAFETY: passed on from the caller.
    status(unsafe { limit(process, resource, new, old) })
}
