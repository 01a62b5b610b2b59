//! `mlock` and its relatives. Pinned far memory would break the budget, so these calls succeed on far pages and pin
//! nothing. Hanare cannot promise that a program never waits for a page. A program may also call `mlock` to keep
//! secrets off the disk. The secrecy of far pages depends on the server's spill file and the link.

use std::ffi::{c_int, c_uint, c_void};

use hanare::far;

use crate::answer::{kernel, status};
use crate::range::Range;

/// Applies the system call `number` to the near (ordinary) parts of the range. Does nothing on the far parts.
///
/// # Safety
/// `number` is the number of mlock, mlock2 or munlock.
unsafe fn near_parts(number: libc::c_long, addr: usize, len: usize, flags: usize) -> Result<(), c_int> {
    let range = if far::active() { Range::covering(addr, len).filter(|range| range.meets_far()) } else { None };
    let Some(range) = range else {
        // SAFETY: these calls change neither the contents nor the place of memory, whatever their arguments are.
        return unsafe { kernel(number, [addr, len, flags, 0, 0, 0]) }.map(drop);
    };
    for (near, _) in range.pieces().filter(|(_, far)| !far) {
        // SAFETY: mlock, mlock2 and munlock change neither the contents nor the place of memory.
        unsafe { kernel(number, [near.start, near.len(), flags, 0, 0, 0]) }?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlock(addr: *const c_void, len: usize) -> c_int {
    // SAFETY: the number is mlock's.
    status(unsafe { near_parts(libc::SYS_mlock, addr as usize, len, 0) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlock2(addr: *const c_void, len: usize, flags: c_uint) -> c_int {
    // SAFETY: the number is mlock2's.
    status(unsafe { near_parts(libc::SYS_mlock2, addr as usize, len, flags as usize) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn munlock(addr: *const c_void, len: usize) -> c_int {
    // SAFETY: the number is munlock's.
    status(unsafe { near_parts(libc::SYS_munlock, addr as usize, len, 0) })
}

/// mlockall(2). Pins nothing while far memory is active. The kernel would otherwise fill the whole far reservation, and
/// pages could not be evicted from locked memory.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mlockall(flags: c_int) -> c_int {
    if far::active() {
        return 0;
    }
    // SAFETY: mlockall changes neither the contents nor the place of memory.
    status(unsafe { kernel(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) }.map(drop))
}
