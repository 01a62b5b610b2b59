//! Calls after which the kernel keeps references to the program's pages. A pipe refers to pages given by `vmsplice`,
//! and a socket refers to pages sent with `MSG_ZEROCOPY`. Hanare reuses the memory of an evicted far page, so such
//! references would show other bytes. Therefore a pipe gets copies of far pages in every mode. Zero-copy sends are
//! refused, as the kernel refuses them for sockets without this feature.
//!
//! `splice`, `sendfile` and `copy_file_range` access the program's memory only for file offsets, so near copies of the
//! offsets suffice.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::transmute;

use hanare::far;
use hanare_sys::copy;
use libc::{iovec, off_t, off64_t, size_t, ssize_t};

use super::near::{filled, given_bytes, kernel_is_blind};
use super::vectors::BUFFERS_MAX;
use super::{real, wrap};
use crate::answer::{errno, kernel, set_errno};
use crate::range::{PAGE, Range};

wrap! {
    splice(from: c_int, from_at: *mut off64_t, to: c_int, to_at: *mut off64_t, len: size_t, flags: c_uint) -> ssize_t {
        from_at = filled(from_at), to_at = filled(to_at)
    }
    sendfile(to: c_int, from: c_int, at: *mut off_t, len: size_t) -> ssize_t { at = filled(at) }
    sendfile64(to: c_int, from: c_int, at: *mut off64_t, len: size_t) -> ssize_t { at = filled(at) }
    copy_file_range(
        from: c_int,
        from_at: *mut off64_t,
        to: c_int,
        to_at: *mut off64_t,
        len: size_t,
        flags: c_uint
    ) -> ssize_t {
        from_at = filled(from_at), to_at = filled(to_at)
    }
}

fn refused(error: c_int) -> ssize_t {
    set_errno(error);
    -1
}

// ---- pipes ----------------------------------------------------------------------------------------------------------

/// A far piece of the program's buffers, and the near memory that replaces it in a call. Both begin at the same offset
/// in a page. The near memory is never reused, because a pipe may keep references to it for a long time.
struct Stand {
    far: *mut u8,
    near: *mut u8,
    len: usize,
}

impl Stand {
    fn new(far: *mut u8, len: usize) -> Result<Stand, c_int> {
        let lead = far as usize % PAGE;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let args = [0, lead + len, prot as usize, flags as usize, usize::MAX, 0];
        // SAFETY: the kernel maps fresh memory at an address of its choice.
        let start = unsafe { kernel(libc::SYS_mmap, args) }?;
        Ok(Stand { far, near: (start + lead) as *mut u8, len })
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        let start = self.near as usize & !(PAGE - 1);
        let len = self.near as usize + self.len - start;
        // SAFETY: `new` made this mapping. The kernel keeps the pages that a pipe refers to. If the call fails because
        // there are no mappings left, the memory stays mapped.
        let _ = unsafe { kernel(libc::SYS_munmap, [start, len, 0, 0, 0, 0]) };
    }
}

/// A row of buffers in which near memory replaces the far pieces.
pub(super) struct Row {
    buffers: Vec<iovec>,
    stands: Vec<Stand>,
}

impl Row {
    /// Makes a row of at most `most` bytes of these buffers. The row ends before the first far byte that the program
    /// may not read. With `writes`, it ends before the first far byte that the program may not write.
    pub(super) fn new(buffers: &[iovec], most: usize, writes: bool) -> Result<Row, c_int> {
        let mut row = Row { buffers: Vec::new(), stands: Vec::new() };
        let mut left = most;
        for buffer in buffers {
            let (mut at, len) = (buffer.iov_base as usize, buffer.iov_len.min(left));
            let end = at.checked_add(len).ok_or(libc::EFAULT)?;
            while at < end && row.buffers.len() < BUFFERS_MAX {
                let (is_far, to) = far::run(at, end);
                let open = if is_far { far::open_until(at, to, writes) } else { to };
                let base = match is_far && open > at {
                    true => row.stand_for(at, open - at, writes)?,
                    false => at as *mut u8,
                };
                if open > at {
                    row.buffers.push(iovec { iov_base: base.cast(), iov_len: open - at });
                    left -= open - at;
                }
                if open < to {
                    return if row.buffers.is_empty() { Err(libc::EFAULT) } else { Ok(row) };
                }
                at = to;
            }
        }
        Ok(row)
    }

    /// Makes a row of these buffers, without near memory in the place of far pieces.
    pub(super) fn of(buffers: &[iovec]) -> Row {
        Row { buffers: buffers.to_vec(), stands: Vec::new() }
    }

    pub(super) fn buffers(&self) -> &[iovec] {
        &self.buffers
    }

    fn stand_for(&mut self, far: usize, len: usize, writes: bool) -> Result<*mut u8, c_int> {
        let stand = Stand::new(far as *mut u8, len)?;
        if !writes {
            // SAFETY: the program may read the far memory. The near memory is fresh and does not overlap it.
            unsafe { copy::copy(stand.far, stand.near, len) };
        }
        let near = stand.near;
        self.stands.push(stand);
        Ok(near)
    }

    /// After the kernel has written `came` bytes to the row, copies these bytes from near memory to far memory.
    pub(super) fn take_back(&self, came: usize) {
        let mut left = came;
        for buffer in &self.buffers {
            let len = buffer.iov_len.min(left);
            if let Some(stand) = self.stands.iter().find(|stand| stand.near.cast() == buffer.iov_base) {
                // SAFETY: the program may write the far memory, and the near memory has at least `len` bytes.
                unsafe { copy::copy(stand.near, stand.far, len) };
            }
            left -= len;
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn vmsplice(
    fd: c_int,
    buffers: *const iovec,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    type Call = unsafe extern "C-unwind" fn(c_int, *const iovec, size_t, c_uint) -> ssize_t;
    let Some(call) = real::vmsplice.get() else { return refused(libc::ENOSYS) };
    // SAFETY: `call` is the C library's `vmsplice`, which has the type `Call`.
    let call = unsafe { transmute::<*mut c_void, Call>(call) };
    // SAFETY: the caller keeps the contract of vmsplice(2).
    let through = || unsafe { call(fd, buffers, count, flags) };
    if !far::active() || count == 0 || count > BUFFERS_MAX {
        return through();
    }
    // SAFETY: under the contract of vmsplice(2), `buffers` is a table of `count` buffers.
    let table = unsafe { std::slice::from_raw_parts(buffers, count) }.to_vec();
    let Some(gives) = gives(fd) else { return through() };
    let is_far = |buffer: &iovec| {
        let range = Range::covering(buffer.iov_base as usize, buffer.iov_len);
        buffer.iov_len > 0 && range.is_some_and(Range::meets_far)
    };
    let table_is_far = kernel_is_blind() && far::contains(buffers as usize);
    if !table.iter().any(is_far) && !table_is_far || !gives && !kernel_is_blind() {
        return through();
    }
    match Row::new(&table, pipe_bytes(fd), !gives) {
        Err(error) => refused(error),
        Ok(row) => {
            // SAFETY: each buffer of the row is near memory, or a buffer that the program passed.
            let answer = unsafe { call(fd, row.buffers.as_ptr(), row.buffers.len(), flags) };
            if !gives && answer > 0 {
                row.take_back(answer as usize);
            }
            answer
        }
    }
}

/// Checks whether a descriptor is open for writing. Returns `None` if it is open neither for reading nor for writing.
fn gives(fd: c_int) -> Option<bool> {
    // SAFETY: F_GETFL only returns the flags of a descriptor.
    let flags = unsafe { kernel(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) }.ok()? as c_int;
    (flags & libc::O_PATH == 0).then_some(flags & libc::O_ACCMODE != libc::O_RDONLY)
}

/// Returns the capacity of a pipe in bytes, or 1 if it is unknown. One call moves at most this many bytes.
fn pipe_bytes(fd: c_int) -> usize {
    // SAFETY: F_GETPIPE_SZ only returns the capacity of a pipe.
    unsafe { kernel(libc::SYS_fcntl, [fd as usize, libc::F_GETPIPE_SZ as usize, 0, 0, 0, 0]) }.unwrap_or(1)
}

// ---- sockets --------------------------------------------------------------------------------------------------------

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    type Call = unsafe extern "C-unwind" fn(c_int, c_int, c_int, *const c_void, libc::socklen_t) -> c_int;
    let Some(call) = real::setsockopt.get() else { return refused(libc::ENOSYS) as c_int };
    if far::active() && level == libc::SOL_SOCKET && name == libc::SO_ZEROCOPY && len as usize >= size_of::<c_int>() {
        // SAFETY: under the contract of setsockopt(2), `value` is valid for `len` bytes.
        if unsafe { value.cast::<c_int>().read_unaligned() } != 0 {
            return refused(libc::EOPNOTSUPP) as c_int;
        }
    }
    // SAFETY: `call` is the C library's `setsockopt`, which has the type `Call`. It gets the caller's arguments, with a
    // near copy of a far value.
    unsafe {
        let value = given_bytes(value, len as usize);
        transmute::<*mut c_void, Call>(call)(fd, level, name, value.pointer(), len)
    }
}

/// Checks whether a send would make the kernel keep references to the program's pages. Hanare refuses to set
/// SO_ZEROCOPY, but a process outside the run may have set it on the socket. The callers refuse such a send with
/// ENOBUFS, and programs then send without the flag.
#[inline]
pub(crate) fn keeps_pages(fd: c_int, flags: c_int) -> bool {
    flags & libc::MSG_ZEROCOPY != 0 && far::active() && has_zero_copy(fd)
}

#[cold]
fn has_zero_copy(fd: c_int) -> bool {
    let (mut on, mut len) = (0 as c_int, size_of::<c_int>() as libc::socklen_t);
    let before = errno();
    let (level, name) = (libc::SOL_SOCKET as usize, libc::SO_ZEROCOPY as usize);
    let args = [fd as usize, level, name, &raw mut on as usize, &raw mut len as usize, 0];
    // SAFETY: the kernel writes its results to `on` and `len`.
    let answer = unsafe { kernel(libc::SYS_getsockopt, args) };
    set_errno(before);
    answer.is_ok() && on != 0
}
