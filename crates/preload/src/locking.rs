//! `mlock` and its relatives. Far pages are locked in the pager: they come at once, and stay until they are unlocked,
//! discarded or freed. At most a quarter of the budget may be locked. Beyond it, `mlock` fails with `ENOMEM`, as at the
//! limit RLIMIT_MEMLOCK. If pages are sealed before they leave the process, it succeeds and locks nothing: a program locks
//! memory to keep secrets, and what leaves cannot be read.

use std::ffi::{c_int, c_uint, c_void};

use hanare::far;

use crate::advice::populate;
use crate::answer::{keeping_errno, kernel, status};
use crate::mapping::{split, with_far};
use crate::range::Range;

/// Flag of mlock2: pages are locked when they are accessed.
const MLOCK_ONFAULT: c_uint = 1;

/// Returns the locked parts of a far range, in order.
pub(crate) fn locked_runs(range: Range) -> impl Iterator<Item = Range> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let (start, end) = far::locked_run(at, range.end - at)?;
        at = end;
        Some(Range { start, end })
    })
}

/// Locks a range, and brings its pages if `brings` is true. The kernel locks the near parts.
fn lock(addr: usize, len: usize, number: libc::c_long, flags: usize, brings: bool) -> Result<(), c_int> {
    let near = |start: usize, len: usize| {
        // SAFETY: mlock and mlock2 change neither the contents nor the place of memory, whatever their arguments are.
        unsafe { kernel(number, [start, len, flags, 0, 0, 0]) }.map(drop)
    };
    let Some(range) = with_far(addr, len) else { return near(addr, len) };
    split(range, |part| near(part.start, part.len()), |part| lock_far(part, brings))
}

fn lock_far(range: Range, brings: bool) -> Result<(), c_int> {
    let is_locked = far::lock(range.start, range.len())?;
    // mlock(2) has ENOMEM for pages that cannot be brought.
    if is_locked && brings { populate(range, false).map_err(|_| libc::ENOMEM) } else { Ok(()) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlock(addr: *const c_void, len: usize) -> c_int {
    status(lock(addr as usize, len, libc::SYS_mlock, 0, true))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlock2(addr: *const c_void, len: usize, flags: c_uint) -> c_int {
    if flags & !MLOCK_ONFAULT != 0 {
        return status(Err(libc::EINVAL));
    }
    status(lock(addr as usize, len, libc::SYS_mlock2, flags as usize, flags == 0))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn munlock(addr: *const c_void, len: usize) -> c_int {
    let near = |start: usize, len: usize| {
        // SAFETY: munlock changes neither the contents nor the place of memory, whatever its arguments are.
        unsafe { kernel(libc::SYS_munlock, [start, len, 0, 0, 0, 0]) }.map(drop)
    };
    let far = |part: Range| {
        far::unlock(part.start, part.len());
        if far::is_allocated(part.start, part.len()) { Ok(()) } else { Err(libc::ENOMEM) }
    };
    status(match with_far(addr as usize, len) {
        None => near(addr as usize, len),
        Some(range) => split(range, |part| near(part.start, part.len()), far),
    })
}

/// mlockall(2). Fails with `ENOMEM` while far memory is active, because not all of it can be local. If pages are sealed,
/// it succeeds and locks nothing.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mlockall(flags: c_int) -> c_int {
    let is_valid = flags & !(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) == 0;
    if far::active() && is_valid && flags & (libc::MCL_CURRENT | libc::MCL_FUTURE) != 0 {
        return status(if keeping_errno(far::seals) { Ok(()) } else { Err(libc::ENOMEM) });
    }
    // SAFETY: mlockall changes neither the contents nor the place of memory.
    status(unsafe { kernel(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) }.map(drop))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn munlockall() -> c_int {
    if far::active() {
        keeping_errno(far::unlock_all);
    }
    // SAFETY: munlockall changes neither the contents nor the place of memory.
    status(unsafe { kernel(libc::SYS_munlockall, [0; 6]) }.map(drop))
}
