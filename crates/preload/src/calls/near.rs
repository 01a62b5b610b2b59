//! Near copies of what is far, for the length of a call.

use std::ffi::{c_char, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use hanare::far;
use hanare_sys::copy;
use libc::{pollfd, sigset_t};

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

/// What goes back to the program when the call has returned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Back {
    Nothing,
    /// All of it, unless the call failed: the kernel then wrote nothing.
    Whole,
    /// All of it, also when the call failed: the time that is left.
    Always,
    /// As many elements of this size as the call answers. The others may have been changed meanwhile.
    Counted(usize),
    /// What was found of each descriptor that was polled.
    Found,
}

/// What a call is given in place of an argument: the argument itself where that is near (or null), or closed to the
/// kernel's access, which then refuses it; else a copy. Given up, a copy that the kernel may have written to goes back.
pub(crate) struct Near<'a> {
    original: *mut u8,
    len: usize,
    copy: Option<Buffer>,
    back: Back,
    _of_the_call: PhantomData<&'a ()>,
}

impl Near<'_> {
    /// # Safety
    /// `original` is null or valid for reading `len` bytes, and for writing them if they go back.
    unsafe fn new(original: *mut u8, len: usize, back: Back) -> Self {
        let mut near = Near { original, len, copy: None, back, _of_the_call: PhantomData };
        if is_far(original.cast(), len) && is_open(original as usize, len, back != Back::Nothing) {
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

    /// Takes note of what the call answered: how much of the copy goes back.
    pub(crate) fn settle(&mut self, answer: i64) {
        match self.back {
            Back::Whole | Back::Counted(_) | Back::Found if answer < 0 => self.back = Back::Nothing,
            Back::Counted(size) => self.len = self.len.min((answer as usize).saturating_mul(size)),
            _ => {}
        }
    }
}

impl Drop for Near<'_> {
    fn drop(&mut self) {
        let Some(buffer) = &self.copy else { return };
        match self.back {
            Back::Nothing => {}
            // SAFETY: as in `new`; the program's memory is still there after its own call.
            Back::Found => unsafe { give_found(buffer.pointer().cast(), self.original.cast(), self.len) },
            // SAFETY: as above.
            _ => unsafe { copy::copy(buffer.pointer(), self.original, self.len) },
        }
    }
}

/// Copies what was found of each descriptor, and nothing else: other threads may change the rest during the call.
///
/// # Safety
/// Both have `len` bytes, the second the program's.
unsafe fn give_found(from: *const pollfd, to: *mut pollfd, len: usize) {
    for index in 0..len / size_of::<pollfd>() {
        // SAFETY: the caller's promise; fields are written through pointers, for the program's need not be aligned.
        unsafe { (&raw mut (*to.add(index)).revents).write_unaligned((*from.add(index)).revents) };
    }
}

/// An argument of an interposed call, as the kernel gets it.
pub(crate) trait Argument<T> {
    fn given(&self) -> T;
}

impl<T: Copy> Argument<T> for T {
    fn given(&self) -> T {
        *self
    }
}

impl<T> Argument<*mut T> for Near<'_> {
    fn given(&self) -> *mut T {
        self.pointer().cast()
    }
}

impl<T> Argument<*const T> for Near<'_> {
    fn given(&self) -> *const T {
        self.pointer().cast_const().cast()
    }
}

/// Whether the program left itself the access to read (or to write) all of a range, as far as that is far.
pub(crate) fn is_open(addr: usize, len: usize, writes: bool) -> bool {
    addr.checked_add(len).is_some_and(|end| far::open_until(addr, end, writes) == end)
}

/// A structure that the call reads.
///
/// # Safety
/// Null or valid.
pub(crate) unsafe fn given<'a, T>(argument: *const T) -> Near<'a> {
    // SAFETY: passed on from the caller.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), size_of::<T>(), Back::Nothing) }
}

/// A structure that the call writes, and perhaps reads.
///
/// # Safety
/// Null or valid.
pub(crate) unsafe fn filled<'a, T>(argument: *mut T) -> Near<'a> {
    // SAFETY: passed on from the caller.
    unsafe { Near::new(argument.cast(), size_of::<T>(), Back::Whole) }
}

/// A time that the call counts down, also when it is interrupted.
///
/// # Safety
/// Null or valid.
pub(crate) unsafe fn counted_down<'a, T>(argument: *mut T) -> Near<'a> {
    // SAFETY: passed on from the caller.
    unsafe { Near::new(argument.cast(), size_of::<T>(), Back::Always) }
}

/// An array of which the call writes as many elements as it answers.
///
/// # Safety
/// Null or valid for `count` elements.
pub(crate) unsafe fn filled_elements<'a, T>(argument: *mut T, count: usize) -> Near<'a> {
    // SAFETY: passed on from the caller.
    unsafe { Near::new(argument.cast(), count.saturating_mul(size_of::<T>()), Back::Counted(size_of::<T>())) }
}

/// `count` descriptors to be polled.
///
/// # Safety
/// Null or valid for so many.
pub(crate) unsafe fn polled<'a>(argument: *mut pollfd, count: usize) -> Near<'a> {
    // SAFETY: passed on from the caller.
    unsafe { Near::new(argument.cast(), count.saturating_mul(size_of::<pollfd>()), Back::Found) }
}

/// `len` bytes that the call reads.
///
/// # Safety
/// Null or valid for so many bytes.
pub(crate) unsafe fn given_bytes<'a, T>(argument: *const T, len: usize) -> Near<'a> {
    // SAFETY: passed on from the caller.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), len, Back::Nothing) }
}

/// `len` bytes that the call writes.
///
/// # Safety
/// Null or valid for so many bytes.
pub(crate) unsafe fn filled_bytes<'a, T>(argument: *mut T, len: usize) -> Near<'a> {
    // SAFETY: passed on from the caller.
    unsafe { Near::new(argument.cast(), len, Back::Whole) }
}

/// A terminated string, such as a path.
///
/// # Safety
/// Null or valid up to its end.
pub(crate) unsafe fn text<'a>(argument: *const c_char) -> Near<'a> {
    // SAFETY: passed on from the caller.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), text_len(argument), Back::Nothing) }
}

/// A terminated string that the call changes in place.
///
/// # Safety
/// Null or valid up to its end.
pub(crate) unsafe fn changed_text<'a>(argument: *mut c_char) -> Near<'a> {
    // SAFETY: passed on from the caller.
    unsafe { Near::new(argument.cast(), text_len(argument), Back::Whole) }
}

/// A terminated string of any length, such as a command.
///
/// # Safety
/// Null or valid up to its end.
pub(crate) unsafe fn long_text<'a>(argument: *const c_char) -> Near<'a> {
    // SAFETY: passed on from the caller.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), bytes_of_text(argument, usize::MAX), Back::Nothing) }
}

/// Bytes of a path and its end. One that is too long is too long by a byte: the kernel refuses it before it looks for the
/// end.
///
/// # Safety
/// Null or valid up to its end.
unsafe fn text_len(text: *const c_char) -> usize {
    // SAFETY: passed on from the caller.
    unsafe { bytes_of_text(text, PATH_BYTES) }
}

/// Bytes of a far string and its end, at most `most` and one. 0 for one that is near, or runs into closed memory: the kernel
/// gets that as it is, and says what is wrong with it.
///
/// # Safety
/// Near, or valid up to its end.
unsafe fn bytes_of_text(text: *const c_char, most: usize) -> usize {
    if !kernel_is_blind() || !far::contains(text as usize) {
        return 0;
    }
    let mut len = 0;
    while len < most {
        let at = text as usize + len;
        let page_end = (at | (PAGE - 1)) + 1;
        if far::open_until(at, at + 1, false) == at {
            return 0;
        }
        let piece = (page_end - at).min(most - len);
        // SAFETY: a page of the program's memory that it may read, or the caller's promise.
        let found = unsafe { libc::strnlen(at as *const c_char, piece) };
        len += found;
        if found < piece {
            break;
        }
    }
    len + 1
}

/// A set of signals to wait with, without the trap: a handler that runs meanwhile accesses far memory.
pub(crate) struct Mask {
    given: *const sigset_t,
    set: sigset_t,
}

impl Mask {
    /// # Safety
    /// Null or valid.
    pub(crate) unsafe fn new(given: *const sigset_t) -> Mask {
        // SAFETY: zeroes are an empty set; a set that is there is valid.
        let mut set = unsafe { if given.is_null() { std::mem::zeroed() } else { given.read_unaligned() } };
        if let Some(trap) = far::trap_signal() {
            // SAFETY: a set of ours, and a signal that there is.
            let removed = unsafe { libc::sigdelset(&raw mut set, trap) };
            debug_assert_eq!(removed, 0);
        }
        Mask { given, set }
    }

    /// Nothing goes back.
    pub(crate) fn settle(&mut self, _answer: i64) {}
}

impl Argument<*const sigset_t> for Mask {
    fn given(&self) -> *const sigset_t {
        if self.given.is_null() { self.given } else { &raw const self.set }
    }
}
