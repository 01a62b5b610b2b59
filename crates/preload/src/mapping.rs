//! `mmap`, `munmap`, `mremap`, `madvise` and `mprotect`.
//!
//! Far becomes what a program uses as plain memory: a private anonymous mapping, readable and writable, of at least the
//! threshold. Everything else is the kernel's: files, shared memory, stacks, huge pages, locked pages, address-space
//! reservations (`PROT_NONE`), and mappings at an address the program insists on.
//!
//! Choices where the meaning of a call and the far reservation meet:
//! - `MAP_FIXED` over far memory: private anonymous memory stays far and reads as zeroes with the new protection. Anything
//!   else (a file, shared memory) is refused with `EINVAL`: a foreign mapping inside the reservation would be moved and
//!   evicted as if it were ours. So is a fixed mapping that is only partly far.
//! - `mremap` with an address (`MREMAP_FIXED`) from or to far memory is refused with `EINVAL`. A mapping moved without one is
//!   copied piece by piece, so the program must be able to read it; it is readable and writable afterwards.
//! - A near mapping grown by `mremap` stays near: what it maps is not known here.
//! - Advice about how the kernel should treat the pages is accepted and ignored: they are not the kernel's to treat.

use std::ffi::{c_int, c_void};

use hanare::{far, heap};

use crate::answer::{MAP_FAILED, address, keeping_errno, kernel, status};
use crate::heap::{far_pages, unpromised_pages, wants_far};
use crate::range::{PAGE, Range};

/// The flags a mapping may carry and still be plain memory.
const PLAIN_FLAGS: c_int = libc::MAP_PRIVATE
    | libc::MAP_ANONYMOUS
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_NONBLOCK
    | libc::MAP_DENYWRITE
    | libc::MAP_EXECUTABLE;

const PLAIN_PROT: c_int = libc::PROT_READ | libc::PROT_WRITE;

const ANONYMOUS_PRIVATE: c_int = libc::MAP_ANONYMOUS | libc::MAP_PRIVATE;

/// Whether this is plain memory. The descriptor and offset of an anonymous mapping mean nothing to the kernel either.
fn is_plain(prot: c_int, flags: c_int) -> bool {
    prot == PLAIN_PROT && flags & ANONYMOUS_PRIVATE == ANONYMOUS_PRIVATE && flags & !PLAIN_FLAGS == 0
}

/// The part of the range that is far, when the engine runs and there is one.
fn far_part(addr: usize, len: usize) -> Option<crate::range::Parts> {
    if !far::active() {
        return None;
    }
    let parts = Range::covering(addr, len)?.cut();
    (!parts.far.is_empty()).then_some(parts)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    off: libc::off_t,
) -> *mut c_void {
    // SAFETY: the contract of mmap(2).
    unsafe { map(addr, len, prot, flags, fd, off) }
}

/// # Safety
/// As mmap(2).
unsafe fn map(addr: *mut c_void, len: usize, prot: c_int, flags: c_int, fd: c_int, off: libc::off_t) -> *mut c_void {
    if is_plain(prot, flags) && wants_far(len) {
        let block = if flags & libc::MAP_NORESERVE == 0 { far_pages(len, PAGE) } else { unpromised_pages(len) };
        return if block.is_null() { MAP_FAILED } else { block };
    }
    if flags & libc::MAP_FIXED != 0
        && let Some(parts) = far_part(addr as usize, len)
    {
        let wholly = parts.before.is_empty() && parts.after.is_empty();
        let aligned = (addr as usize).is_multiple_of(PAGE);
        let anonymous = flags & libc::MAP_TYPE == libc::MAP_PRIVATE && flags & libc::MAP_ANONYMOUS != 0;
        return address(match wholly && aligned && anonymous {
            true => renew(parts.far, prot),
            false => Err(libc::EINVAL),
        });
    }
    let args = [addr as usize, len, prot as usize, flags as usize, fd as usize, off as usize];
    // SAFETY: the contract of mmap(2), on a range that is not far.
    address(unsafe { kernel(libc::SYS_mmap, args) })
}

/// Fresh zeroes with a new protection, where far memory already is. The protection first: it fails when part of the range
/// is not allocated, and then nothing must be lost.
fn renew(range: Range, prot: c_int) -> Result<usize, c_int> {
    keeping_errno(|| {
        far::protect(range.start, range.len(), prot)?;
        far::discard(range.start, range.len());
        Ok(range.start)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    off: libc::off_t,
) -> *mut c_void {
    // SAFETY: the two are one call where offsets have 64 bits.
    unsafe { map(addr, len, prot, flags, fd, off) }
}

/// Hands the near parts of a range to `near`, the far part to `far`; stops at the first error.
fn split(
    parts: crate::range::Parts,
    near: impl Fn(Range) -> Result<(), c_int>,
    far: impl FnOnce(Range) -> Result<(), c_int>,
) -> Result<(), c_int> {
    if !parts.before.is_empty() {
        near(parts.before)?;
    }
    keeping_errno(|| far(parts.far))?;
    if parts.after.is_empty() { Ok(()) } else { near(parts.after) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(addr: *mut c_void, len: usize) -> c_int {
    let unmap = |start: usize, len: usize| {
        // SAFETY: the contract of munmap(2), on a range that is not far.
        unsafe { kernel(libc::SYS_munmap, [start, len, 0, 0, 0, 0]) }.map(drop)
    };
    let whole = (addr as usize).is_multiple_of(PAGE) && len > 0;
    status(match far_part(addr as usize, len).filter(|_| whole) {
        None if whole || !far::active() || !far::contains(addr as usize) => unmap(addr as usize, len),
        None => Err(libc::EINVAL),
        Some(parts) => split(
            parts,
            |near| unmap(near.start, near.len()),
            |range| {
                far::release(range.start, range.len());
                Ok(())
            },
        ),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(addr: *mut c_void, len: usize, prot: c_int) -> c_int {
    let protect = |start: usize, len: usize| {
        // SAFETY: the contract of mprotect(2), on a range that is not far.
        unsafe { kernel(libc::SYS_mprotect, [start, len, prot as usize, 0, 0, 0]) }.map(drop)
    };
    status(match far_part(addr as usize, len) {
        None => protect(addr as usize, len),
        Some(_) if !(addr as usize).is_multiple_of(PAGE) => Err(libc::EINVAL),
        Some(parts) => {
            split(parts, |near| protect(near.start, near.len()), |range| far::protect(range.start, range.len(), prot))
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    let advise = |start: usize, len: usize| {
        // SAFETY: the contract of madvise(2); what reaches the kernel on a far range leaves its pages alone.
        unsafe { kernel(libc::SYS_madvise, [start, len, advice as usize, 0, 0, 0]) }.map(drop)
    };
    status(match far_part(addr as usize, len) {
        None => advise(addr as usize, len),
        Some(_) if !(addr as usize).is_multiple_of(PAGE) => Err(libc::EINVAL),
        Some(parts) => split(
            parts,
            |near| advise(near.start, near.len()),
            |range| advise_far(range, advice).unwrap_or_else(|| advise(range.start, range.len())),
        ),
    })
}

/// The answer to advice on far memory; `None` for advice not known here, which is the kernel's to judge.
fn advise_far(range: Range, advice: c_int) -> Option<Result<(), c_int>> {
    match advice {
        // FREE allows the pages to be dropped at any time before the next write, so at once.
        libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_DONTNEED_LOCKED => {
            far::discard(range.start, range.len())
        }
        libc::MADV_WILLNEED | libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
            far::will_need(range.start, range.len());
        }
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_COLLAPSE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT
        // A child never has its parent's far memory, whatever the program asked for.
        | libc::MADV_DONTFORK
        | libc::MADV_DOFORK
        | libc::MADV_KEEPONFORK => (),
        // As the kernel answers for private memory; and no child can be given zeroes in place of far memory.
        libc::MADV_REMOVE | libc::MADV_WIPEONFORK => return Some(Err(libc::EINVAL)),
        _ => return None,
    }
    Some(Ok(()))
}

/// The C prototype is variadic; the fifth argument is read only with `MREMAP_FIXED`, and comes in the same register.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let fixed = flags & libc::MREMAP_FIXED != 0;
    if fixed && far_part(new as usize, new_len).is_some() {
        return address(Err(libc::EINVAL));
    }
    let Some(parts) = far_part(old as usize, old_len.max(1)) else {
        let args = [old as usize, old_len, new_len, flags as usize, new as usize, 0];
        // SAFETY: the contract of mremap(2), between ranges that are not far.
        return address(unsafe { kernel(libc::SYS_mremap, args) });
    };
    let wholly = parts.before.is_empty() && parts.after.is_empty();
    let valid = wholly && (old as usize).is_multiple_of(PAGE) && old_len > 0 && new_len > 0;
    let known = flags & !(libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP) == 0;
    if !valid || !known {
        return address(Err(libc::EINVAL));
    }
    let Some(wanted) = new_len.checked_next_multiple_of(PAGE).filter(|&len| len <= isize::MAX as usize) else {
        return address(Err(libc::ENOMEM));
    };
    // SAFETY: the range is far and page-aligned, and the program gives it up as mremap(2) says.
    address(unsafe { remap_far(parts.far, wanted, flags) })
}

/// # Safety
/// Nobody uses `old` during the call; `new_len` is a positive multiple of the page.
unsafe fn remap_far(old: Range, new_len: usize, flags: c_int) -> Result<usize, c_int> {
    let may_move = flags & libc::MREMAP_MAYMOVE != 0;
    let keep_old = flags & libc::MREMAP_DONTUNMAP != 0;
    if keep_old && (!may_move || new_len != old.len()) {
        return Err(libc::EINVAL);
    }
    if !keep_old && new_len <= old.len() {
        keeping_errno(|| far::release(old.start + new_len, old.len() - new_len));
        return Ok(old.start);
    }
    let whole = far::allocation(old.start) == Some(old.len());
    if !keep_old && whole && keeping_errno(|| far::resize(old.start, new_len)) {
        return Ok(old.start);
    }
    if !may_move {
        return Err(libc::ENOMEM);
    }
    let new = far_pages(new_len, PAGE).cast::<u8>();
    if new.is_null() {
        return Err(libc::ENOMEM);
    }
    // SAFETY: the new block holds at least the old range and is distinct from it.
    unsafe { keeping_errno(|| heap::move_bytes(old.start as *mut u8, new, old.len())) };
    keeping_errno(|| match keep_old {
        true => far::discard(old.start, old.len()),
        false => far::release(old.start, old.len()),
    });
    Ok(new as usize)
}
