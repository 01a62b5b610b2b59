//! `setlocale`: a locale's tables are near (in ordinary memory).
//!
//! The C library reads the tables in every new thread before the thread's first function runs. In a forked child,
//! Hanare's own threads start before far memory is available, so they could not read far tables.

use std::ffi::{c_char, c_int};
use std::mem::transmute;

use hanare_sys::flags::SETS_LOCALE;

use crate::calls::real;

/// Checks whether the C library's allocations in this thread belong to a locale.
pub(crate) fn is_being_set() -> bool {
    SETS_LOCALE.get()
}

type SetLocale = unsafe extern "C" fn(c_int, *const c_char) -> *mut c_char;

#[unsafe(no_mangle)]
unsafe extern "C" fn setlocale(category: c_int, locale: *const c_char) -> *mut c_char {
    let Some(real) = real::setlocale.get() else { return std::ptr::null_mut() };
    SETS_LOCALE.set(true);
    // SAFETY: `real` is the C library's `setlocale`, which has the type `SetLocale`. The arguments are the caller's.
    let name = unsafe { transmute::<*mut std::ffi::c_void, SetLocale>(real)(category, locale) };
    SETS_LOCALE.set(false);
    name
}
