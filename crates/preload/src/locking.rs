//! `mlock` and its relatives. Pinning far memory would exceed the budget, which has priority. So on far pages these
//! calls succeed and pin nothing, and a program may still wait for such a page. Programs also use `mlock` to keep secrets
//! off the disk. For far pages, that depends on the spill file and on the servers.

use std::ffi::{c_int, c_uint, c_void};

use hanare::far;

use crate::answer::{kernel, status};
use crate::range::Range;

/// Applies the call `number` to the near parts of the range. Far parts are not changed.
///
/// # Safety
/// `number` is the number of mlock, mlock2 or munlock.
unsafe fn near_parts(number: libc::c_long, addr: usize, len: usize, flags: usize) -> Result<(), c_int> {
    let range = if far::active() { Range::covering(addr, len).filter(|range| range.meets_far()) } else { None };
    let Some(range) = range else {
        // SAFETY: mlock, mlock2 and munlock change neither contents nor place of memory, whatever the arguments.
        return unsafe { kernel(number, [addr, len, flags, 0, 0, 0]) }.map(drop);
    };
    for (near, _) in range.pieces().filter(|(_, far)| !far) {
        // SAFETY: mlock, mlock2 and munlock change neither contents nor place of memory, whatever the arguments.
        unsafe { kernel(number, [near.start, near.len(), flags, 0, 0, 0]) }?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlock(addr: *const c_void, len: usize) -> c_int {
    // SAFETY: the number is that of mlock.
    status(unsafe { near_parts(libc::SYS_mlock, addr as usize, len, 0) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlock2(addr: *const c_void, len: usize, flags: c_uint) -> c_int {
    // SAFETY: the number is that of mlock2.
    status(unsafe { near_parts(libc::SYS_mlock2, addr as usize, len, flags as usize) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn munlock(addr: *const c_void, len: usize) -> c_int {
    // SAFETY: the number is that of munlock.
    status(unsafe { near_parts(libc::SYS_munlock, addr as usize, len, 0) })
}

/// Pins nothing while the engine is active. The kernel would fill the whole far reservation with pages, and locked
/// pages could not be evicted.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mlockall(flags: c_int) -> c_int {
    if far::active() {
        return 0;
    }
    // SAFETY: mlockall changes neither contents nor place of memory.
    status(unsafe { kernel(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) }.map(drop))
}
