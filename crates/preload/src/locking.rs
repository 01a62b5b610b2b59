//! `mlock` and its relatives. Pinning far memory would break the budget, which has priority: on far pages these calls
//! succeed and pin nothing. Hanare cannot promise that a program never waits for a page. `mlock` also keeps secrets off
//! the disk; here, the spill file and the link decide about that.

use std::ffi::{c_int, c_uint, c_void};

use hanare::far;

use crate::answer::{kernel, status};
use crate::range::Range;

/// Applies `number` to the near parts of the range, and nothing to the far parts.
///
/// # Safety
/// `number` is mlock, mlock2 or munlock.
unsafe fn near_parts(number: libc::c_long, addr: usize, len: usize, flags: usize) -> Result<(), c_int> {
    let range = if far::active() { Range::covering(addr, len).filter(|range| range.meets_far()) } else { None };
    let Some(range) = range else {
        // SAFETY: these calls change neither contents nor place of memory, whatever the arguments.
        return unsafe { kernel(number, [addr, len, flags, 0, 0, 0]) }.map(drop);
    };
    for (near, _) in range.pieces().filter(|(_, far)| !far) {
        // SAFETY: as above.
        unsafe { kernel(number, [near.start, near.len(), flags, 0, 0, 0]) }?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlock(addr: *const c_void, len: usize) -> c_int {
    // SAFETY: the number is one of the three.
    status(unsafe { near_parts(libc::SYS_mlock, addr as usize, len, 0) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlock2(addr: *const c_void, len: usize, flags: c_uint) -> c_int {
    // SAFETY: as above.
    status(unsafe { near_parts(libc::SYS_mlock2, addr as usize, len, flags as usize) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn munlock(addr: *const c_void, len: usize) -> c_int {
    // SAFETY: as above.
    status(unsafe { near_parts(libc::SYS_munlock, addr as usize, len, 0) })
}

/// Under Hanare `mlockall` pins nothing: the kernel would fill the whole far reservation, and pages could not be
/// evicted from locked memory.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mlockall(flags: c_int) -> c_int {
    if far::active() {
        return 0;
    }
    // SAFETY: changes neither contents nor place of memory.
    status(unsafe { kernel(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) }.map(drop))
}
