//! Reads the environment of this process.

use std::ffi::{CStr, OsString, c_char};
use std::os::unix::ffi::OsStringExt;

/// Copies the environment variables whose names begin with `prefix`. The function reads the environment only once. This
/// saves time, because every program under Hanare calls the function when it starts.
///
/// # Safety
/// No other thread may change the environment during this call.
#[must_use]
pub unsafe fn beginning_with(prefix: &str) -> Vec<(OsString, OsString)> {
    unsafe extern "C" {
        // The name is not `environ`, because ISO C lets a program define another variable with that name.
        static __environ: *const *const c_char;
    }
    let mut found = Vec::new();
    // SAFETY: `__environ` is null or points to an array of NUL-terminated strings. A null pointer ends the array. The
    // caller guarantees that no thread changes the array.
    unsafe {
        let mut at = __environ;
        while !at.is_null() && !(*at).is_null() {
            let text = CStr::from_ptr(*at).to_bytes();
            if let (true, Some(equals)) =
                (text.starts_with(prefix.as_bytes()), text.iter().position(|&byte| byte == b'='))
            {
                let part = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
                found.push((part(&text[..equals]), part(&text[equals + 1..])));
            }
            at = at.add(1);
        }
    }
    found
}
