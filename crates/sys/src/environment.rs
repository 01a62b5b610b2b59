//! The environment as a process finds it when it starts.

use std::ffi::{CStr, OsString, c_char};
use std::os::unix::ffi::OsStringExt;

/// Copies the variables whose names begin with `prefix`, in one pass, because every program that a run starts does
/// this.
///
/// # Safety
/// No other thread changes the environment meanwhile.
#[must_use]
pub unsafe fn beginning_with(prefix: &str) -> Vec<(OsString, OsString)> {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    let mut found = Vec::new();
    // SAFETY: null, or an array of terminated texts that ends with null. Nobody changes it, as the caller promises.
    unsafe {
        let mut at = environ;
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
