//! The object file that holds this code: a program, or a shared library.

use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Returns the path of the object file that holds this code. For a program, this may be a name without a directory.
/// Returns `None` if the dynamic linker does not know the file.
#[must_use]
pub fn own_file() -> Option<PathBuf> {
    // SAFETY: `Dl_info` consists of pointers, for which zeroes are valid.
    let mut found: libc::Dl_info = unsafe { core::mem::zeroed() };
    let here = own_file as fn() -> Option<PathBuf> as *const c_void;
    // SAFETY: `dladdr` accepts any address. It writes its results to `found`.
    let known = unsafe { libc::dladdr(here, &raw mut found) };
    if known == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: `dladdr` returned a C string, which stays valid as long as the object is loaded. This code is part of it.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_code_is_in_the_running_program() {
        let own = super::own_file().expect("a file");
        let running = std::env::current_exe().expect("a program");
        assert_eq!(own.file_name(), running.file_name());
    }
}
