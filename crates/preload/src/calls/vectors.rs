//! The buffers of a vectored call, treated as one row of bytes.

use hanare::far;
use hanare_sys::copy;
use libc::iovec;

use super::near::is_far;

/// Maximum number of buffers in one call. This is the kernel's limit.
pub(super) const BUFFERS_MAX: usize = 1024;

/// A position in a row of buffers.
pub(crate) struct Vectors {
    next: *const iovec,
    left: usize,
    /// Number of bytes of the buffer at `next` that lie before the position.
    passed: usize,
}

impl Vectors {
    /// # Safety
    /// `vectors` is a table of `count` buffers. The table and its buffers are valid as long as the returned value
    /// lives.
    pub(crate) unsafe fn new(vectors: *const iovec, count: usize) -> Vectors {
        Vectors { next: vectors, left: count, passed: 0 }
    }

    /// Returns the number of bytes in all buffers, if any buffer or the table is far. Returns `None` if all are near
    /// (in ordinary memory), or if the kernel will refuse the call.
    pub(crate) fn far_bytes(&self) -> Option<usize> {
        if self.left > BUFFERS_MAX {
            return None;
        }
        let mut any = is_far(self.next.cast(), self.left * size_of::<iovec>());
        let mut total = 0usize;
        for index in 0..self.left {
            // SAFETY: `index` is below the number of buffers.
            let buffer = unsafe { self.next.add(index).read() };
            any |= is_far(buffer.iov_base, buffer.iov_len);
            total = total.checked_add(buffer.iov_len).filter(|&total| total <= isize::MAX as usize)?;
        }
        any.then_some(total)
    }

    /// Returns how many of the next `len` bytes come before the first byte that the program itself may not read. With
    /// `writes`, counts up to the first byte that the program may not write.
    ///
    /// # Safety
    /// The row has `len` bytes left.
    pub(crate) unsafe fn open_bytes(&self, len: usize, writes: bool) -> usize {
        let (mut next, mut passed, mut open) = (self.next, self.passed, 0);
        while open < len {
            // SAFETY: the row has bytes left, so `next` points to a buffer.
            let buffer = unsafe { next.read() };
            let piece = (buffer.iov_len - passed).min(len - open);
            let start = buffer.iov_base as usize + passed;
            let reached = far::open_until(start, start + piece, writes) - start;
            open += reached;
            if reached < piece {
                break;
            }
            // SAFETY: the result is at most one past the last buffer.
            next = unsafe { next.add(1) };
            passed = 0;
        }
        open
    }

    /// Moves the next `len` bytes to or from near memory. Calls `transfer(bytes of the row, near bytes, count)` for
    /// each piece.
    ///
    /// # Safety
    /// The row and `near` each have `len` bytes left.
    unsafe fn each(&mut self, near: *mut u8, len: usize, transfer: impl Fn(*mut u8, *mut u8, usize)) {
        let mut done = 0;
        while done < len && self.left > 0 {
            // SAFETY: `left` is not 0, so `next` points to a buffer.
            let buffer = unsafe { self.next.read() };
            let piece = (buffer.iov_len - self.passed).min(len - done);
            // SAFETY: the two pointers stay inside the buffer and inside the near memory.
            let (far, near) = unsafe { (buffer.iov_base.cast::<u8>().add(self.passed), near.add(done)) };
            transfer(far, near, piece);
            done += piece;
            self.passed += piece;
            if self.passed == buffer.iov_len {
                // SAFETY: the result is at most one past the last buffer.
                self.next = unsafe { self.next.add(1) };
                self.left -= 1;
                self.passed = 0;
            }
        }
    }

    /// Copies the next `len` bytes out of the row.
    ///
    /// # Safety
    /// The row has `len` bytes left, and `to` has room for them.
    pub(crate) unsafe fn gather(&mut self, to: *mut u8, len: usize) {
        // SAFETY: the caller promises that the row and `to` each have `len` bytes. They do not overlap.
        unsafe { self.each(to, len, |far, near, piece| copy::copy(far, near, piece)) }
    }

    /// Copies `len` bytes into the row.
    ///
    /// # Safety
    /// The row has room for `len` bytes, and `from` has them.
    pub(crate) unsafe fn scatter(&mut self, from: *const u8, len: usize) {
        // SAFETY: the caller promises that the row and `from` each have `len` bytes. They do not overlap.
        unsafe { self.each(from.cast_mut(), len, |far, near, piece| copy::copy(near, far, piece)) }
    }
}
