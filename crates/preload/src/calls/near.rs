//! Near copies of what is far, for the length of a call.

use std::ffi::{c_char, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use hanare::far;
use hanare_sys::copy;

use crate::answer::kernel;
use crate::range::{PAGE, Range};

/// Bytes of a kept buffer: the most that is copied at a time where a call may be made in pieces.
pub(crate) const PIECE: usize = 256 << 10;

/// Buffers kept for the next call; more than the threads that are in such a call at once.
const KEPT: usize = 16;

/// The kernel's limit on a path, its end included.
const PATH_BYTES: usize = 4096;

static FREE: [AtomicUsize; KEPT] = [const { AtomicUsize::new(0) }; KEPT];

/// Whether the kernel's touches of far memory are answered with EFAULT: in sigbus and sigsegv mode.
#[inline]
pub(crate) fn kernel_is_blind() -> bool {
    far::trap_signal().is_some()
}

/// Whether any of a range is far and the kernel blind.
pub(crate) fn is_far(addr: *const c_void, len: usize) -> bool {
    len > 0
        && kernel_is_blind()
        && Range::covering(addr as usize, len).is_some_and(|range| {
            // What is asked for may be cut by a border at most a few times.
            far::contains(range.start) || range.len() > PAGE && range.meets_far()
        })
}

/// Near memory of at least so many bytes, page-aligned, its contents arbitrary.
pub(crate) struct Buffer {
    addr: usize,
    len: usize,
}

impl Buffer {
    /// `None` when the kernel has no memory.
    pub(crate) fn new(len: usize) -> Option<Buffer> {
        let len = len.max(PIECE).checked_next_multiple_of(PAGE)?;
        if len == PIECE
            && let Some(addr) = FREE.iter().map(|kept| kept.swap(0, Ordering::AcqRel)).find(|&addr| addr != 0)
        {
            return Some(Buffer { addr, len });
        }
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at a place of the kernel's choice.
        let addr = unsafe { kernel(libc::SYS_mmap, [0, len, prot as usize, flags as usize, usize::MAX, 0]) }.ok()?;
        Some(Buffer { addr, len })
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        self.addr as *mut u8
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let keep =
            |kept: &AtomicUsize| kept.compare_exchange(0, self.addr, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if self.len != PIECE || !FREE.iter().any(keep) {
            // SAFETY: a mapping made by `new` that nobody uses any more.
            let _ = unsafe { kernel(libc::SYS_munmap, [self.addr, self.len, 0, 0, 0, 0]) };
        }
    }
}

/// What a call is given in place of an argument: the argument itself where that is near (or null), else a copy. Given up,
/// a copy that the kernel may have written to goes back.
pub(crate) struct Near<'a> {
    original: *mut u8,
    len: usize,
    copy: Option<Buffer>,
    goes_back: bool,
    _of_the_call: PhantomData<&'a ()>,
}

impl Near<'_> {
    /// # Safety
    /// `original` is null or valid for reading `len` bytes, and for writing them if they go back.
    unsafe fn new(original: *mut u8, len: usize, goes_back: bool) -> Self {
        let mut near = Near { original, len, copy: None, goes_back, _of_the_call: PhantomData };
        if is_far(original.cast(), len) {
            near.copy = Buffer::new(len);
            if let Some(buffer) = &near.copy {
                // SAFETY: the caller's promise; the buffer has room and is apart.
                unsafe { copy::copy(original, buffer.pointer(), len) };
            }
        }
        near
    }

    pub(crate) fn pointer(&self) -> *mut c_void {
        self.copy.as_ref().map_or(self.original, Buffer::pointer).cast()
    }
}

impl Drop for Near<'_> {
    fn drop(&mut self) {
        if let (true, Some(buffer)) = (self.goes_back, &self.copy) {
            // SAFETY: as in `new`; the program's memory is still there after its own call.
            unsafe { copy::copy(buffer.pointer(), self.original, self.len) };
        }
    }
}

/// A structure that the call reads.
///
/// # Safety
/// Null or valid.
pub(crate) unsafe fn given<'a, T>(argument: *const T) -> Near<'a> {
    // SAFETY: passed on from the caller.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), size_of::<T>(), false) }
}

/// A structure that the call writes, and perhaps reads.
///
/// # Safety
/// Null or valid.
pub(crate) unsafe fn filled<'a, T>(argument: *mut T) -> Near<'a> {
    // SAFETY: passed on from the caller.
    unsafe { Near::new(argument.cast(), size_of::<T>(), true) }
}

/// `len` bytes that the call reads.
///
/// # Safety
/// Null or valid for so many bytes.
pub(crate) unsafe fn given_bytes<'a, T>(argument: *const T, len: usize) -> Near<'a> {
    // SAFETY: passed on from the caller.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), len, false) }
}

/// `len` bytes that the call writes.
///
/// # Safety
/// Null or valid for so many bytes.
pub(crate) unsafe fn filled_bytes<'a, T>(argument: *mut T, len: usize) -> Near<'a> {
    // SAFETY: passed on from the caller.
    unsafe { Near::new(argument.cast(), len, true) }
}

/// A terminated string, such as a path.
///
/// # Safety
/// Null or valid up to its end.
pub(crate) unsafe fn text<'a>(argument: *const c_char) -> Near<'a> {
    // SAFETY: passed on from the caller.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), text_len(argument), false) }
}

/// A terminated string that the call changes in place.
///
/// # Safety
/// Null or valid up to its end.
pub(crate) unsafe fn changed_text<'a>(argument: *mut c_char) -> Near<'a> {
    // SAFETY: passed on from the caller.
    unsafe { Near::new(argument.cast(), text_len(argument), true) }
}

/// Bytes of a string and its end, 0 for null and for a kernel that sees. A path that is too long is too long by a byte:
/// the kernel refuses it before it looks for the end.
///
/// # Safety
/// Null or valid up to its end.
unsafe fn text_len(text: *const c_char) -> usize {
    if text.is_null() || !kernel_is_blind() {
        return 0;
    }
    // SAFETY: passed on from the caller.
    unsafe { libc::strnlen(text, PATH_BYTES) + 1 }
}
