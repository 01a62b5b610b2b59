//! `mmap`, `munmap`, `mremap` and `mprotect`.
//!
//! Two kinds of mapping become far if they have at least the threshold's size:
//! - plain memory: private, anonymous, readable and writable;
//! - a reservation: an inaccessible mapping (`PROT_NONE`), of which allocators later open parts by `mprotect` or a
//!   fixed mapping.
//!
//! Everything else goes to the kernel: files, shared memory, stacks, huge pages, locked pages, and mappings at a
//! required address. The kernel also gets reservations of more than a quarter of the far address space.
//!
//! These rules hold for calls that conflict with far memory:
//! - `MAP_FIXED` over far memory: private anonymous memory stays far and reads as zeroes with the new protection. Any
//!   other mapping (a file, shared memory, executable memory) makes the range near (ordinary memory) permanently.
//! - Memory that is made executable becomes near too, and keeps its contents, because Hanare does not page code.
//! - `mremap` with an address (`MREMAP_FIXED`) is refused with `EINVAL` if the old or the new range is far. Without an
//!   address, a far mapping that must move is copied piece by piece. So the program must be able to read the old range.
//!   The new range is readable and writable.
//! - A near mapping that `mremap` grows stays near, because its kind is not known here.
//! - Protection keys (`pkey_mprotect`) are refused with `EINVAL`: the kernel does not guard far pages.

use std::ffi::{c_int, c_void};

use hanare::{far, heap};

use crate::answer::{MAP_FAILED, address, keeping_errno, kernel, status};
use crate::entry::entry_of_six;
use crate::go;
use crate::heap::{far_pages, uncommitted_pages, wants_far};
use crate::locking::locked_runs;
use crate::range::{PAGE, Range};

/// The flags that a mapping of plain memory may have.
const PLAIN_FLAGS: c_int = libc::MAP_PRIVATE
    | libc::MAP_ANONYMOUS
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_NONBLOCK
    | libc::MAP_DENYWRITE
    | libc::MAP_EXECUTABLE;

const PLAIN_PROT: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// The bits of a protection that the kernel knows. The last is PROT_SEM, which has no effect.
const PROT_KNOWN: c_int = PLAIN_PROT | libc::PROT_EXEC | 0x8;

const ANONYMOUS_PRIVATE: c_int = libc::MAP_ANONYMOUS | libc::MAP_PRIVATE;

/// Checks whether a mapping is plain memory. Like the kernel, this ignores the descriptor of an anonymous mapping.
fn is_plain(prot: c_int, flags: c_int) -> bool {
    prot == PLAIN_PROT && flags & ANONYMOUS_PRIVATE == ANONYMOUS_PRIVATE && flags & !PLAIN_FLAGS == 0
}

/// Checks whether a mapping only reserves addresses, as allocators do before they open parts with `mprotect`.
fn is_reservation(prot: c_int, flags: c_int) -> bool {
    prot == libc::PROT_NONE && is_plain(PLAIN_PROT, flags)
}

/// Checks whether a mapping of `len` bytes must be far if its kind allows this. `caller` is an address in the code that
/// asks for the mapping.
fn may_be_far(len: usize, caller: usize) -> bool {
    wants_far(len) && !go::keeps_mapping(caller)
}

/// Checks whether a mapping is of little use elsewhere than at the address that it asks for. A compiler's code must lie
/// near what it calls: LuaJIT asks until it is heard. Far memory has addresses of its own.
fn needs_place(addr: usize, len: usize) -> bool {
    const CODE_MAX: usize = 128 << 10;
    addr != 0 && len < CODE_MAX
}

/// End of the addresses that a program may have. On processors with longer addresses, a program must ask for more.
#[cfg(target_arch = "x86_64")]
const SPACE_END: usize = (1 << 47) - PAGE;
#[cfg(not(target_arch = "x86_64"))]
const SPACE_END: usize = 1 << 48;

/// Returns the pages that overlap the range, if the engine runs and any of them is far.
pub(crate) fn with_far(addr: usize, len: usize) -> Option<Range> {
    if !far::active() {
        return None;
    }
    Range::covering(addr, len).filter(|range| range.meets_far())
}

type Offset = libc::off_t;

entry_of_six!(
    mmap,
    map,
    fn(_addr: *mut c_void, _len: usize, _prot: c_int, _flags: c_int, _fd: c_int, _off: Offset) -> *mut c_void
);
// Offsets have 64 bits, so `mmap` and `mmap64` are the same call.
entry_of_six!(
    mmap64,
    map,
    fn(_addr: *mut c_void, _len: usize, _prot: c_int, _flags: c_int, _fd: c_int, _off: Offset) -> *mut c_void
);

/// # Safety
/// The caller keeps the contract of mmap(2). `caller` is an address in the calling code.
pub(crate) unsafe extern "C" fn map(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    off: Offset,
    caller: usize,
) -> *mut c_void {
    let is_valid = (off as usize).is_multiple_of(PAGE);
    let may_be_far = is_valid && may_be_far(len, caller) && !needs_place(addr as usize, len);
    if may_be_far && is_plain(prot, flags) {
        let block = if flags & libc::MAP_NORESERVE == 0 { far_pages(len, PAGE) } else { uncommitted_pages(len) };
        return if block.is_null() { MAP_FAILED } else { block };
    }
    if may_be_far && is_reservation(prot, flags) {
        let block = keeping_errno(|| far::reserve(len, PAGE));
        if !block.is_null() {
            return block.cast();
        }
    }
    let args = [addr as usize, len, prot as usize, flags as usize, fd as usize, off as usize];
    if flags & libc::MAP_FIXED != 0
        && let Some(range) = with_far(addr as usize, len).filter(|_| (addr as usize).is_multiple_of(PAGE))
    {
        // SAFETY: the caller keeps the contract of mmap(2), and `args` are that call's arguments.
        return address(unsafe { map_over_far(range, prot, flags, args) });
    }
    // SAFETY: the caller keeps the contract of mmap(2), and the call does not replace far memory.
    address(unsafe { kernel(libc::SYS_mmap, args) })
}

/// Makes a fixed mapping over far memory. Private anonymous memory stays far if it is not executable. Any other mapping
/// makes the range near (ordinary memory), after a trial has shown that the kernel can make the mapping.
///
/// # Safety
/// The arguments are those of a call of mmap(2) at the start of `range`.
unsafe fn map_over_far(range: Range, prot: c_int, flags: c_int, args: [usize; 6]) -> Result<usize, c_int> {
    let [_, len, _, _, fd, off] = args;
    let anonymous = flags & libc::MAP_TYPE == libc::MAP_PRIVATE && flags & libc::MAP_ANONYMOUS != 0;
    if anonymous && prot & libc::PROT_EXEC == 0 {
        let near = |part: Range| {
            let args = [part.start, part.len(), prot as usize, flags as usize, fd, off];
            // SAFETY: the caller keeps the contract of mmap(2), and `part` is not far.
            unsafe { kernel(libc::SYS_mmap, args) }.map(drop)
        };
        split(range, near, |part| renew(part, prot))?;
        return Ok(range.start);
    }
    let elsewhere = (flags & !(libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE)) as usize;
    // SAFETY: the kernel chooses the address of the trial mapping, and only that mapping is unmapped.
    unsafe {
        let trial = kernel(libc::SYS_mmap, [0, len, prot as usize, elsewhere, fd, off])?;
        kernel(libc::SYS_munmap, [trial, len, 0, 0, 0, 0])?;
    }
    for (part, _) in range.pieces().filter(|(_, far)| *far) {
        // SAFETY: under the contract of mmap(2), the new mapping replaces this part, so the program gives the part up.
        keeping_errno(|| unsafe { far::make_hole(part.start, part.len()) });
    }
    // SAFETY: the caller keeps the contract of mmap(2). The loop above excluded all far parts of the range from far
    // memory.
    unsafe { kernel(libc::SYS_mmap, args) }
}

/// Makes a range read as zeroes, with a new protection. The range is far, or was far until the program unmapped it. The
/// protection changes before the contents are discarded, because a failed change of the protection must not lose the
/// contents.
fn renew(range: Range, prot: c_int) -> Result<(), c_int> {
    far::claim(range.start, range.len())?;
    // SAFETY: under the contract of mmap(2), the new mapping replaces this range, so the program gives up its contents.
    unsafe {
        far::protect(range.start, range.len(), prot)?;
        far::discard(range.start, range.len());
    }
    Ok(())
}

/// Passes the near parts of a range to `near` and the far parts to `far`. Stops at the first error.
pub(crate) fn split(
    range: Range,
    near: impl Fn(Range) -> Result<(), c_int>,
    far: impl Fn(Range) -> Result<(), c_int>,
) -> Result<(), c_int> {
    for (part, is_far) in range.pieces() {
        if is_far { keeping_errno(|| far(part)) } else { near(part) }?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn munmap(addr: *mut c_void, len: usize) -> c_int {
    let unmap = |start: usize, len: usize| {
        if far::is_hole(start) {
            // Addresses that were far stay reserved for Hanare. Otherwise another allocator could get such an address,
            // and its block would be taken for a far block.
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
            // SAFETY: under the contract of munmap(2), the program gives up what is mapped in this range.
            return unsafe {
                kernel(libc::SYS_mmap, [start, len, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0])
            }
            .map(drop);
        }
        // SAFETY: the caller keeps the contract of munmap(2), and no page of the range is far. So the call changes no
        // mapping of Hanare's.
        unsafe { kernel(libc::SYS_munmap, [start, len, 0, 0, 0, 0]) }.map(drop)
    };
    let whole = (addr as usize).is_multiple_of(PAGE) && len > 0;
    status(match with_far(addr as usize, len.max(1)) {
        None => unmap(addr as usize, len),
        // As in the kernel, a range that ends beyond the address space changes nothing.
        Some(range) if !whole || range.start + range.len() > SPACE_END => Err(libc::EINVAL),
        Some(range) => split(
            range,
            |near| unmap(near.start, near.len()),
            |part| {
                // SAFETY: under the contract of munmap(2), the program gives up this part.
                unsafe { far::release(part.start, part.len()) };
                Ok(())
            },
        ),
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mprotect(addr: *mut c_void, len: usize, prot: c_int) -> c_int {
    let protect = |start: usize, len: usize| {
        // SAFETY: the caller keeps the contract of mprotect(2), and no page of the range is far. So the call changes no
        // mapping of Hanare's.
        unsafe { kernel(libc::SYS_mprotect, [start, len, prot as usize, 0, 0, 0]) }.map(drop)
    };
    status(match with_far(addr as usize, len) {
        None => protect(addr as usize, len),
        Some(_) if !(addr as usize).is_multiple_of(PAGE) || prot & !PROT_KNOWN != 0 => Err(libc::EINVAL),
        Some(range) => split(
            range,
            |near| protect(near.start, near.len()),
            |part| {
                // SAFETY: the caller keeps the contract of mprotect(2). `expel` copies the memory, and the program does
                // not write to memory while it makes the memory executable.
                unsafe {
                    if prot & libc::PROT_EXEC == 0 {
                        return far::protect(part.start, part.len(), prot);
                    }
                    far::expel(part.start, part.len())?;
                }
                protect(part.start, part.len())
            },
        ),
    })
}

/// pkey_mprotect(2). A call without a key (-1) is the same as `mprotect`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pkey_mprotect(addr: *mut c_void, len: usize, prot: c_int, key: c_int) -> c_int {
    if key == -1 {
        // SAFETY: the caller keeps the contract of mprotect(2).
        return unsafe { mprotect(addr, len, prot) };
    }
    if with_far(addr as usize, len).is_some() {
        return status(Err(libc::EINVAL));
    }
    let args = [addr as usize, len, prot as usize, key as usize, 0, 0];
    // SAFETY: the caller keeps the contract of pkey_mprotect(2), and no page of the range is far. So the call changes
    // no mapping of Hanare's.
    status(unsafe { kernel(libc::SYS_pkey_mprotect, args) }.map(drop))
}

/// mremap(2). The C prototype is variadic, but a variadic fifth argument is in the same register as this fixed one. The
/// argument is used only with `MREMAP_FIXED`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let fixed = flags & libc::MREMAP_FIXED != 0;
    if fixed && with_far(new as usize, new_len).is_some() {
        return address(Err(libc::EINVAL));
    }
    let Some(range) = with_far(old as usize, old_len.max(1)) else {
        let args = [old as usize, old_len, new_len, flags as usize, new as usize, 0];
        // SAFETY: the caller keeps the contract of mremap(2), and neither the old nor the new range is far.
        return address(unsafe { kernel(libc::SYS_mremap, args) });
    };
    let valid = range.is_far() && (old as usize).is_multiple_of(PAGE) && old_len > 0 && new_len > 0;
    let known = flags & !(libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP) == 0;
    if !valid || !known {
        return address(Err(libc::EINVAL));
    }
    let Some(wanted) = new_len.checked_next_multiple_of(PAGE).filter(|&len| len <= isize::MAX as usize) else {
        return address(Err(libc::EINVAL));
    };
    // SAFETY: the range is far and page-aligned. The program gives it up, as mremap(2) says.
    address(unsafe { remap_far(range, wanted, flags) })
}

/// Returns the protection of a far range. The error is EFAULT if pages differ in it: in the kernel, such a range consists
/// of several mappings, and cannot be moved.
fn protection_of(range: Range) -> Result<c_int, c_int> {
    let end = range.start + range.len();
    if far::open_until(range.start, end, true) == end {
        return Ok(libc::PROT_READ | libc::PROT_WRITE);
    }
    let of = |page: usize| match (far::is_readable(page), far::is_writable(page)) {
        (true, true) => libc::PROT_READ | libc::PROT_WRITE,
        (true, false) => libc::PROT_READ,
        (false, _) => libc::PROT_NONE,
    };
    let first = of(range.start);
    let is_uniform = (range.start..end).step_by(PAGE).all(|page| of(page) == first);
    if is_uniform { Ok(first) } else { Err(libc::EFAULT) }
}

/// Locks the bytes that memory is about to move to, where it is locked now.
fn move_locks(old: Range, new: usize) {
    for run in locked_runs(old) {
        far::lock_moved(new + (run.start - old.start), run.len());
    }
}

/// Locks what a mapping grows by, if its end is locked. Fails with `EAGAIN`, as mremap does at RLIMIT_MEMLOCK, if too much
/// of the budget would be locked.
fn lock_added(old: Range, added: Range) -> Result<(), c_int> {
    let is_locked = far::locked_run(old.end - PAGE, PAGE).is_some();
    if !is_locked || added.len() == 0 {
        return Ok(());
    }
    far::lock(added.start, added.len()).map(drop).map_err(|_| libc::EAGAIN)
}

/// # Safety
/// No other code uses `old` during the call. `new_len` is a positive multiple of the page size.
unsafe fn remap_far(old: Range, new_len: usize, flags: c_int) -> Result<usize, c_int> {
    let may_move = flags & libc::MREMAP_MAYMOVE != 0;
    let keep_old = flags & libc::MREMAP_DONTUNMAP != 0;
    if keep_old && (!may_move || new_len != old.len()) {
        return Err(libc::EINVAL);
    }
    if !keep_old && new_len == old.len() {
        return Ok(old.start);
    }
    if !keep_old && new_len < old.len() {
        // SAFETY: the program gives up the part beyond the new length, as mremap(2) says.
        keeping_errno(|| unsafe { far::release(old.start + new_len, old.len() - new_len) });
        return Ok(old.start);
    }
    let prot = keeping_errno(|| protection_of(old))?;
    let whole = far::allocation(old.start) == Some(old.len());
    // SAFETY: the program owns the allocation, and the new length is larger, so no part of it is cut off.
    if !keep_old && whole && keeping_errno(|| unsafe { far::resize(old.start, new_len) }) {
        let added = Range { start: old.end, end: old.start + new_len };
        // SAFETY: `added` was allocated just now, and no other code knows it.
        keeping_errno(|| unsafe { protect_new(added, prot) })?;
        if let Err(error) = keeping_errno(|| lock_added(old, added)) {
            // SAFETY: as above.
            keeping_errno(|| unsafe { far::release(added.start, added.len()) });
            return Err(error);
        }
        return Ok(old.start);
    }
    // Memory that the program may not read cannot be copied.
    if !may_move || !far::is_readable(old.start) {
        return Err(libc::ENOMEM);
    }
    // SAFETY: the program gives up the old range, as mremap(2) says.
    unsafe { move_far(old, new_len, prot, keep_old) }
}

/// Sets the protection of memory that is usual so far.
///
/// # Safety
/// No other code knows the range.
unsafe fn protect_new(range: Range, prot: c_int) -> Result<(), c_int> {
    if prot == libc::PROT_READ | libc::PROT_WRITE {
        return Ok(());
    }
    // SAFETY: the caller promises that no other code knows the range.
    unsafe { far::protect(range.start, range.len(), prot) }
}

/// Moves a far mapping to new addresses.
///
/// # Safety
/// No other code uses `old`, which is readable. The program gives it up.
unsafe fn move_far(old: Range, new_len: usize, prot: c_int, keep_old: bool) -> Result<usize, c_int> {
    let start = far_pages(new_len, PAGE).cast::<u8>();
    if start.is_null() {
        return Err(libc::ENOMEM);
    }
    let new = Range { start: start as usize, end: start as usize + new_len };
    if let Err(error) = keeping_errno(|| lock_added(old, Range { start: new.start + old.len(), ..new })) {
        // SAFETY: the new range was allocated just now, and no other code knows it.
        keeping_errno(|| unsafe { far::release(new.start, new.len()) });
        return Err(error);
    }
    keeping_errno(|| move_locks(old, new.start));
    // SAFETY: `new` has at least `old.len()` bytes and does not overlap the old range.
    unsafe { keeping_errno(|| heap::move_bytes(old.start as *mut u8, start, old.len())) };
    // SAFETY: the new range was allocated just now, and no other code knows it.
    keeping_errno(|| unsafe { protect_new(new, prot) })?;
    // SAFETY: the bytes have moved. The program gives up the old range.
    keeping_errno(|| unsafe {
        match keep_old {
            true => far::discard(old.start, old.len()),
            false => far::release(old.start, old.len()),
        }
    });
    Ok(new.start)
}
