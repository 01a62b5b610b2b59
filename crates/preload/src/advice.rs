//! `madvise`, `process_madvise`, `mseal` and `mbind`. On far memory, each call is carried out, accepted as a hint, or
//! refused.
//!
//! - DONTNEED, FREE and DONTNEED_LOCKED discard the contents immediately. Locked memory stays locked. WILLNEED fetches pages while there is room.
//!   POPULATE_READ and POPULATE_WRITE access every page before they return. With a small budget, the first pages may be
//!   evicted by then.
//! - DONTDUMP marks secrets: such memory is locked, up to 16 MiB a call, if the budget permits it.
//! - Hints for the kernel (access order, huge pages, merging, cold pages) and NUMA policies (`mbind`) are
//!   accepted without effect. The kernel does not manage far pages.
//! - Other advice is refused with `EINVAL`, as the kernel refuses it for unsuitable memory: advice on the memory of a
//!   forked child (DONTFORK, WIPEONFORK), guard pages, COLLAPSE, REMOVE, memory failures, and unknown advice.
//! - `mseal` is refused with `ENOSYS`: after a fork, the engine could not register a sealed mapping for the child's
//!   faults.

use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicU8, Ordering};

use hanare::far;
use libc::{iovec, size_t, ssize_t};

use crate::answer::{kernel, set_errno, status};
use crate::locking::locked_runs;
use crate::mapping::{split, with_far};
use crate::range::{PAGE, Range};

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of madvise(2).
    status(unsafe { advise(addr as usize, len, advice) })
}

/// # Safety
/// The caller keeps the contract of madvise(2).
unsafe fn advise(addr: usize, len: usize, advice: c_int) -> Result<(), c_int> {
    let near = |start: usize, len: usize| {
        // SAFETY: the caller keeps the contract of madvise(2), and no page of the range is far. So the call changes no
        // mapping of Hanare's.
        unsafe { kernel(libc::SYS_madvise, [start, len, advice as usize, 0, 0, 0]) }.map(drop)
    };
    let Some(range) = with_far(addr, len) else { return near(addr, len) };
    if !addr.is_multiple_of(PAGE) {
        return Err(libc::EINVAL);
    }
    split(range, |part| near(part.start, part.len()), |part| advise_far(part, advice))
}

/// Applies advice to a range of far memory. Like the kernel, applies the advice to the mapped parts of the range. Then
/// returns `ENOMEM` if a part is not mapped.
fn advise_far(range: Range, advice: c_int) -> Result<(), c_int> {
    match advice {
        // FREE allows the kernel to drop the pages at any time before the next write. Hanare drops the pages
        // immediately.
        libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_DONTNEED_LOCKED => {
            // SAFETY: the program gives up the contents of the range, as madvise(2) says.
            unsafe { discard(range) };
        }
        // Ignored: where the budget has no room, the memory stays as it is.
        libc::MADV_DONTDUMP if range.len() <= SECRET_MAX => _ = far::lock(range.start, range.len()),
        libc::MADV_WILLNEED => far::will_need(range.start, range.len()),
        libc::MADV_POPULATE_READ => return populate(range, false),
        libc::MADV_POPULATE_WRITE => return populate(range, true),
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT
        // DOFORK and KEEPONFORK undo DONTFORK and WIPEONFORK. Hanare refuses those, so there is nothing to undo.
        | libc::MADV_DOFORK
        | libc::MADV_KEEPONFORK => (),
        _ => return Err(libc::EINVAL),
    }
    if far::is_allocated(range.start, range.len()) { Ok(()) } else { Err(libc::ENOMEM) }
}

/// Discards the contents of a range. Locked parts of the range stay locked.
///
/// The kernel refuses to discard memory that mlock has locked. Here it may be locked by MADV_DONTDUMP alone, and the kernel
/// discards that. A program that ignores a refusal would read old bytes for zeroes.
///
/// # Safety
/// The program gives up the contents of the range.
unsafe fn discard(range: Range) {
    let mut at = range.start;
    for run in locked_runs(range) {
        // SAFETY: both parts lie in the range.
        unsafe {
            far::discard(at, run.start - at);
            far::discard(run.start, run.len());
        }
        // A discard ends the lock of the pages.
        far::lock_again(run.start, run.len());
        at = run.end;
    }
    // SAFETY: the rest of the range lies in it.
    unsafe { far::discard(at, range.end - at) };
}

/// Longest range that counts as a secret when the program excludes it from core dumps, in bytes. Programs exclude large
/// caches too.
const SECRET_MAX: usize = 16 << 20;

/// Accesses every page as the program would. Fails with `EINVAL` at a page that the program may not access.
pub(crate) fn populate(range: Range, writes: bool) -> Result<(), c_int> {
    if !far::is_allocated(range.start, range.len()) {
        return Err(libc::ENOMEM);
    }
    for page in (range.start..range.end).step_by(PAGE) {
        if !(if writes { far::is_writable(page) } else { far::is_readable(page) }) {
            return Err(libc::EINVAL);
        }
        // SAFETY: `page` is the address of a byte in the program's far memory, and the program asks for this access.
        // Adding 0 is one atomic step, so it cannot undo another thread's write.
        let byte = unsafe { AtomicU8::from_ptr(page as *mut u8) };
        if writes {
            // `black_box` hides the 0 from the compiler, which could otherwise replace the addition with a read.
            byte.fetch_add(std::hint::black_box(0), Ordering::SeqCst);
        } else {
            std::hint::black_box(byte.load(Ordering::SeqCst));
        }
    }
    Ok(())
}

/// Maximum number of rows (buffers) in one call. This is the kernel's limit.
const ROWS_MAX: usize = 1024;

/// process_madvise(2). Only advice to this process can concern far memory. Other advice goes to the kernel.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn process_madvise(
    process: c_int,
    rows: *const iovec,
    count: size_t,
    advice: c_int,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: under the contract of process_madvise(2), `rows` is a table of `count` rows.
    let any = far::active() && count <= ROWS_MAX && (0..count).any(|row| unsafe { far_row(rows.add(row)) }.is_some());
    if !any || flags != 0 || !is_this_process(process) {
        let args = [process as usize, rows as usize, count, advice as usize, flags as usize, 0];
        // SAFETY: the arguments are the caller's, and the kernel checks them.
        return match unsafe { kernel(libc::SYS_process_madvise, args) } {
            Ok(advised) => advised as ssize_t,
            Err(error) => refused(error),
        };
    }
    let mut advised = 0;
    for row in 0..count {
        // SAFETY: `row` is below `count`, so the table has this row.
        let iovec { iov_base, iov_len } = unsafe { rows.add(row).read() };
        // SAFETY: the caller keeps the contract of madvise(2) for each row.
        match unsafe { advise(iov_base as usize, iov_len, advice) } {
            Ok(()) => advised += iov_len,
            Err(error) if advised == 0 => return refused(error),
            Err(_) => break,
        }
    }
    advised as ssize_t
}

fn refused(error: c_int) -> ssize_t {
    set_errno(error);
    -1
}

/// # Safety
/// `row` points to a row of a valid table.
unsafe fn far_row(row: *const iovec) -> Option<Range> {
    // SAFETY: the caller promises that `row` is valid.
    let iovec { iov_base, iov_len } = unsafe { row.read() };
    with_far(iov_base as usize, iov_len)
}

/// Values that name the calling thread or process in place of a process descriptor (PIDFD_SELF). Linux accepts them
/// since 6.14.
const PIDFD_SELF: [c_int; 2] = [-10_000, -20_000];

/// Checks whether a process descriptor refers to this process. Returns false if `/proc` does not say so.
fn is_this_process(process: c_int) -> bool {
    if PIDFD_SELF.contains(&process) {
        return true;
    }
    let before = crate::answer::errno();
    let answer = std::fs::read_to_string(format!("/proc/self/fdinfo/{process}")).is_ok_and(|about| {
        let own = std::process::id().to_string();
        about.lines().filter_map(|line| line.strip_prefix("Pid:")).any(|pid| pid.trim() == own)
    });
    set_errno(before);
    answer
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mseal(addr: *mut c_void, len: size_t, flags: c_ulong) -> c_int {
    if with_far(addr as usize, len).is_some() {
        return status(Err(libc::ENOSYS));
    }
    // SAFETY: the caller keeps the contract of mseal(2), and no page of the range is far. So the call changes no
    // mapping of Hanare's.
    status(unsafe { kernel(SYS_MSEAL, [addr as usize, len, flags as usize, 0, 0, 0]) }.map(drop))
}

/// The number of the system call mseal, which is the same on all processors that Hanare supports.
pub(crate) const SYS_MSEAL: libc::c_long = 462;

/// Sets a NUMA policy. Programs call mbind only by its system call number, because the C library has no such function.
///
/// # Safety
/// `args` keep the contract of mbind(2).
pub(crate) unsafe fn mbind(args: [usize; 6]) -> c_int {
    let [addr, len, policy, nodes, max, flags] = args;
    let near = |start: usize, len: usize| {
        // SAFETY: the caller keeps the contract of mbind(2), and no page of the range is far. So the call changes no
        // mapping of Hanare's.
        unsafe { kernel(libc::SYS_mbind, [start, len, policy, nodes, max, flags]) }.map(drop)
    };
    status(match with_far(addr, len) {
        None => near(addr, len),
        Some(_) if !addr.is_multiple_of(PAGE) => Err(libc::EINVAL),
        Some(range) => split(range, |part| near(part.start, part.len()), |_| Ok(())),
    })
}
