//! Near copies of far data for the duration of a call.

use std::ffi::{c_char, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use hanare::far;
use hanare_sys::copy;
use libc::{pollfd, sigset_t};

use crate::answer::kernel;
use crate::range::{PAGE, Range};

/// Bytes of a cached buffer: the most that is copied at a time if a call may be divided into pieces.
pub(crate) const PIECE: usize = 256 << 10;

/// Buffers cached for later calls: more than the number of threads that are in such a call at once.
const KEPT: usize = 16;

/// Longest path including its end, in bytes: the kernel's limit.
const PATH_BYTES: usize = 4096;

static FREE: [AtomicUsize; KEPT] = [const { AtomicUsize::new(0) }; KEPT];

/// Whether a system call fails with EFAULT at an absent far page, as in sigbus and sigsegv mode.
#[inline]
pub(crate) fn kernel_is_blind() -> bool {
    far::trap_signal().is_some()
}

/// Whether any byte of a range is far, in a mode in which the kernel cannot access absent far pages.
pub(crate) fn is_far(addr: *const c_void, len: usize) -> bool {
    len > 0
        && kernel_is_blind()
        && Range::covering(addr as usize, len).is_some_and(|range| {
            // A range crosses few borders between near and far memory, so this takes few steps.
            far::contains(range.start) || range.len() > PAGE && range.meets_far()
        })
}

/// Near memory of at least the requested size, page-aligned, with arbitrary contents.
pub(crate) struct Buffer {
    addr: usize,
    len: usize,
}

impl Buffer {
    /// Returns `None` if the kernel has no memory.
    pub(crate) fn new(len: usize) -> Option<Buffer> {
        let len = len.max(PIECE).checked_next_multiple_of(PAGE)?;
        if len == PIECE
            && let Some(addr) = FREE.iter().map(|kept| kept.swap(0, Ordering::AcqRel)).find(|&addr| addr != 0)
        {
            return Some(Buffer { addr, len });
        }
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel chooses a free address, so the new mapping replaces no other mapping.
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
            // SAFETY: a mapping made by `new` that no code uses any more.
            let _ = unsafe { kernel(libc::SYS_munmap, [self.addr, self.len, 0, 0, 0, 0]) };
        }
    }
}

/// What is copied back to the program when the call has returned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Back {
    Nothing,
    /// All of it, unless the call failed: then the kernel wrote nothing.
    Whole,
    /// All of it, even if the call failed. For the remaining time of a wait.
    Always,
    /// As many bytes as the call's result times this element size. Other threads may have changed the remaining
    /// elements meanwhile.
    Counted(usize),
    /// The result field of each polled descriptor.
    Found,
}

/// The value passed to a call in place of an argument. It is the argument itself if that is near or null, or if the
/// program has no access to it: the kernel then refuses it. Otherwise it is a near copy. Dropping it copies back what
/// the kernel may have written.
pub(crate) struct Near<'a> {
    original: *mut u8,
    len: usize,
    copy: Option<Buffer>,
    back: Back,
    _of_the_call: PhantomData<&'a ()>,
}

impl Near<'_> {
    /// # Safety
    /// `original` is null or valid for reading `len` bytes, and for writing them if they are copied back.
    unsafe fn new(original: *mut u8, len: usize, back: Back) -> Self {
        let mut near = Near { original, len, copy: None, back, _of_the_call: PhantomData };
        if is_far(original.cast(), len) && is_open(original as usize, len, back != Back::Nothing) {
            near.copy = Buffer::new(len);
            if let Some(buffer) = &near.copy {
                // SAFETY: the caller's promise. The buffer has room and does not overlap.
                unsafe { copy::copy(original, buffer.pointer(), len) };
            }
        }
        near
    }

    pub(crate) fn pointer(&self) -> *mut c_void {
        self.copy.as_ref().map_or(self.original, Buffer::pointer).cast()
    }

    /// Records the call's result, which determines how much of the copy is copied back.
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
            // SAFETY: as in `new`. The program's memory still exists after its own call.
            Back::Found => unsafe { give_found(buffer.pointer().cast(), self.original.cast(), self.len) },
            // SAFETY: as above.
            _ => unsafe { copy::copy(buffer.pointer(), self.original, self.len) },
        }
    }
}

/// Copies the result field of each descriptor and nothing else: other threads may change the rest during the call.
///
/// # Safety
/// Both have `len` bytes. The second is the program's.
unsafe fn give_found(from: *const pollfd, to: *mut pollfd, len: usize) {
    for index in 0..len / size_of::<pollfd>() {
        // SAFETY: the caller's promise. Fields are written through pointers, because the program's memory need not be
        // aligned.
        unsafe { (&raw mut (*to.add(index)).revents).write_unaligned((*from.add(index)).revents) };
    }
}

/// An argument of an interposed call, in the form that the kernel gets.
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

/// Whether the program itself may read (or write) all far parts of a range.
pub(crate) fn is_open(addr: usize, len: usize, writes: bool) -> bool {
    addr.checked_add(len).is_some_and(|end| far::open_until(addr, end, writes) == end)
}

/// A structure that the call reads.
///
/// # Safety
/// Null or valid.
pub(crate) unsafe fn given<'a, T>(argument: *const T) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), size_of::<T>(), Back::Nothing) }
}

/// A structure that the call writes and may also read.
///
/// # Safety
/// Null or valid.
pub(crate) unsafe fn filled<'a, T>(argument: *mut T) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast(), size_of::<T>(), Back::Whole) }
}

/// A time that the call counts down, even if it is interrupted.
///
/// # Safety
/// Null or valid.
pub(crate) unsafe fn counted_down<'a, T>(argument: *mut T) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast(), size_of::<T>(), Back::Always) }
}

/// An array in which the call writes as many elements as its result says.
///
/// # Safety
/// Null or valid for `count` elements.
pub(crate) unsafe fn filled_elements<'a, T>(argument: *mut T, count: usize) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast(), count.saturating_mul(size_of::<T>()), Back::Counted(size_of::<T>())) }
}

/// `count` descriptors to be polled.
///
/// # Safety
/// Null or valid for `count` descriptors.
pub(crate) unsafe fn polled<'a>(argument: *mut pollfd, count: usize) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast(), count.saturating_mul(size_of::<pollfd>()), Back::Found) }
}

/// `len` bytes that the call reads.
///
/// # Safety
/// Null or valid for `len` bytes.
pub(crate) unsafe fn given_bytes<'a, T>(argument: *const T, len: usize) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), len, Back::Nothing) }
}

/// `len` bytes that the call writes.
///
/// # Safety
/// Null or valid for `len` bytes.
pub(crate) unsafe fn filled_bytes<'a, T>(argument: *mut T, len: usize) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast(), len, Back::Whole) }
}

/// A terminated string, such as a path.
///
/// # Safety
/// Null or valid up to its end.
pub(crate) unsafe fn text<'a>(argument: *const c_char) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), text_len(argument), Back::Nothing) }
}

/// A terminated string that the call changes in place.
///
/// # Safety
/// Null or valid up to its end.
pub(crate) unsafe fn changed_text<'a>(argument: *mut c_char) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast(), text_len(argument), Back::Whole) }
}

/// A terminated string of any length, such as a command.
///
/// # Safety
/// Null or valid up to its end.
pub(crate) unsafe fn long_text<'a>(argument: *const c_char) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), bytes_of_text(argument, usize::MAX), Back::Nothing) }
}

/// Bytes of a path including its end. For a path that is too long, one byte more than allowed: the kernel refuses it
/// before it reads the end.
///
/// # Safety
/// Null or valid up to its end.
unsafe fn text_len(text: *const c_char) -> usize {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { bytes_of_text(text, PATH_BYTES) }
}

/// Bytes of a far string including its end, at most `most` plus one. Returns 0 for a near string, or for one that runs
/// into memory that the program may not read: the kernel gets that one unchanged and returns the error.
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
        // SAFETY: a page that the program may read, or the caller's promise.
        let found = unsafe { libc::strnlen(at as *const c_char, piece) };
        len += found;
        if found < piece {
            break;
        }
    }
    len + 1
}

/// A signal mask for a wait, without the trap's signal: a handler that runs during the wait may access far memory.
pub(crate) struct Mask {
    given: *const sigset_t,
    set: sigset_t,
}

impl Mask {
    /// # Safety
    /// Null or valid.
    pub(crate) unsafe fn new(given: *const sigset_t) -> Mask {
        // SAFETY: zeroes are an empty set, and a given set is valid.
        let mut set = unsafe { if given.is_null() { std::mem::zeroed() } else { given.read_unaligned() } };
        if let Some(trap) = far::trap_signal() {
            // SAFETY: a set of ours, and a valid signal number.
            let removed = unsafe { libc::sigdelset(&raw mut set, trap) };
            debug_assert_eq!(removed, 0);
        }
        Mask { given, set }
    }

    /// Nothing is copied back.
    pub(crate) fn settle(&mut self, _answer: i64) {}
}

impl Argument<*const sigset_t> for Mask {
    fn given(&self) -> *const sigset_t {
        if self.given.is_null() { self.given } else { &raw const self.set }
    }
}
