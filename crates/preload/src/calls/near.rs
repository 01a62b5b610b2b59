//! Near copies of far data for the duration of a call.

use std::ffi::{c_char, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use hanare::far;
use hanare_sys::copy;
use libc::{pollfd, sigset_t};

use crate::answer::kernel;
use crate::range::{PAGE, Range};

/// Bytes of a cached buffer. A call that may be divided into pieces copies at most this many at a time.
pub(crate) const PIECE: usize = 256 << 10;

/// Number of buffers cached for later calls. It is more than the number of threads that usually make such a call at
/// once.
const KEPT: usize = 16;

/// Bytes of the longest path, including its final zero: the kernel's limit.
const PATH_BYTES: usize = 4096;

static FREE: [AtomicUsize; KEPT] = [const { AtomicUsize::new(0) }; KEPT];

/// Checks whether a system call fails with EFAULT at an absent far page, as in sigbus and sigsegv mode.
#[inline]
pub(crate) fn kernel_is_blind() -> bool {
    far::trap_signal().is_some()
}

/// Checks whether any byte of a range is far, if the mode is one in which the kernel cannot access absent far pages.
pub(crate) fn is_far(addr: *const c_void, len: usize) -> bool {
    len > 0
        && kernel_is_blind()
        && Range::covering(addr as usize, len).is_some_and(|range| {
            // A range crosses few borders between near and far memory, so `meets_far` takes few steps.
            far::contains(range.start) || range.len() > PAGE && range.meets_far()
        })
}

/// Near memory of at least the requested size, page-aligned, with arbitrary contents.
pub(crate) struct Buffer {
    addr: usize,
    len: usize,
}

impl Buffer {
    /// Returns `None` if the kernel has no memory for the buffer.
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
            // SAFETY: `new` made this mapping, and no code uses it any more.
            let _ = unsafe { kernel(libc::SYS_munmap, [self.addr, self.len, 0, 0, 0, 0]) };
        }
    }
}

/// Which bytes are copied back to the program when the call has returned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Back {
    Nothing,
    /// All bytes, if the call succeeded. If it failed, the kernel wrote nothing.
    Whole,
    /// All bytes, even if the call failed. This is for the remaining time of a wait.
    Always,
    /// As many bytes as the call's result times this element size. The elements behind that may have been changed by
    /// other threads during the call.
    Counted(usize),
    /// Only the result field (`revents`) of each polled descriptor.
    Found,
}

/// The value passed to a call in place of an argument. If the argument is null or near, the value is the argument
/// itself. If the program may not access the argument, the value is also the argument itself, and the kernel refuses
/// it. Otherwise the value is a near copy. Dropping it copies back what the kernel may have written.
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
                // SAFETY: the caller guarantees that `original` is valid for `len` bytes. The buffer is large enough
                // and separate.
                unsafe { copy::copy(original, buffer.pointer(), len) };
            }
        }
        near
    }

    pub(crate) fn pointer(&self) -> *mut c_void {
        self.copy.as_ref().map_or(self.original, Buffer::pointer).cast()
    }

    /// Records the call's result, which determines how many bytes are copied back.
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
            // SAFETY: the caller of `new` guarantees that `original` is valid. The program keeps its memory until its
            // call returns.
            Back::Found => unsafe { give_found(buffer.pointer().cast(), self.original.cast(), self.len) },
            // SAFETY: the caller of `new` guarantees that `original` is valid for writing `len` bytes, and the buffer
            // is separate.
            _ => unsafe { copy::copy(buffer.pointer(), self.original, self.len) },
        }
    }
}

/// Copies the result field of each descriptor and nothing else, because other threads may change the rest during the
/// call.
///
/// # Safety
/// `from` and `to` each have `len` bytes. `to` is the program's.
unsafe fn give_found(from: *const pollfd, to: *mut pollfd, len: usize) {
    for index in 0..len / size_of::<pollfd>() {
        // SAFETY: the caller guarantees that `index` is inside both arrays. The field is written through a pointer,
        // because the program's memory need not be aligned.
        unsafe { (&raw mut (*to.add(index)).revents).write_unaligned((*from.add(index)).revents) };
    }
}

/// An argument of an interposed call, which can be converted to the form that the kernel gets.
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

/// Checks whether the program may read all far parts of a range, or write them if `writes` is true.
pub(crate) fn is_open(addr: usize, len: usize, writes: bool) -> bool {
    addr.checked_add(len).is_some_and(|end| far::open_until(addr, end, writes) == end)
}

/// Passes a structure that the call reads.
///
/// # Safety
/// `argument` is null or valid.
pub(crate) unsafe fn given<'a, T>(argument: *const T) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), size_of::<T>(), Back::Nothing) }
}

/// Passes a structure that the call writes and may also read.
///
/// # Safety
/// `argument` is null or valid.
pub(crate) unsafe fn filled<'a, T>(argument: *mut T) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast(), size_of::<T>(), Back::Whole) }
}

/// Passes a time that the call counts down, even if a signal interrupts the call.
///
/// # Safety
/// `argument` is null or valid.
pub(crate) unsafe fn counted_down<'a, T>(argument: *mut T) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast(), size_of::<T>(), Back::Always) }
}

/// Passes an array in which the call writes as many elements as its result says.
///
/// # Safety
/// `argument` is null or valid for `count` elements.
pub(crate) unsafe fn filled_elements<'a, T>(argument: *mut T, count: usize) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast(), count.saturating_mul(size_of::<T>()), Back::Counted(size_of::<T>())) }
}

/// Passes `count` descriptors to be polled.
///
/// # Safety
/// `argument` is null or valid for `count` descriptors.
pub(crate) unsafe fn polled<'a>(argument: *mut pollfd, count: usize) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast(), count.saturating_mul(size_of::<pollfd>()), Back::Found) }
}

/// Passes `len` bytes that the call reads.
///
/// # Safety
/// `argument` is null or valid for `len` bytes.
pub(crate) unsafe fn given_bytes<'a, T>(argument: *const T, len: usize) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), len, Back::Nothing) }
}

/// Passes `len` bytes that the call writes.
///
/// # Safety
/// `argument` is null or valid for `len` bytes.
pub(crate) unsafe fn filled_bytes<'a, T>(argument: *mut T, len: usize) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast(), len, Back::Whole) }
}

/// Passes a terminated string, such as a path.
///
/// # Safety
/// `argument` is null or a valid string up to its final zero.
pub(crate) unsafe fn text<'a>(argument: *const c_char) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), text_len(argument), Back::Nothing) }
}

/// Passes a terminated string that the call changes in place.
///
/// # Safety
/// `argument` is null or a valid string up to its final zero.
pub(crate) unsafe fn changed_text<'a>(argument: *mut c_char) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast(), text_len(argument), Back::Whole) }
}

/// Passes a terminated string of any length, such as a command.
///
/// # Safety
/// `argument` is null or a valid string up to its final zero.
pub(crate) unsafe fn long_text<'a>(argument: *const c_char) -> Near<'a> {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), bytes_of_text(argument, usize::MAX), Back::Nothing) }
}

/// Returns the bytes of a path, including its final zero. If the path is too long, returns one byte more than the
/// kernel allows: the kernel then refuses the path.
///
/// # Safety
/// `text` is null or a valid string up to its final zero.
unsafe fn text_len(text: *const c_char) -> usize {
    // SAFETY: the caller guarantees what this function's `# Safety` section requires.
    unsafe { bytes_of_text(text, PATH_BYTES) }
}

/// Returns the bytes of a far string including its final zero, but at most `most` plus one. Returns 0 for a near
/// string. Also returns 0 if the string runs into memory that the program may not read: the kernel then gets the string
/// itself and returns the error.
///
/// # Safety
/// `text` is near, or a valid string up to its final zero.
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
        // SAFETY: the program may read this page from `at` on, and the search ends at the end of the page.
        let found = unsafe { libc::strnlen(at as *const c_char, piece) };
        len += found;
        if found < piece {
            break;
        }
    }
    len + 1
}

/// A signal mask for a wait, without the trap's signal. A handler that runs during the wait may access far memory, and
/// a fault under a blocked signal kills the process.
pub(crate) struct Mask {
    given: *const sigset_t,
    set: sigset_t,
}

impl Mask {
    /// # Safety
    /// `given` is null or valid.
    pub(crate) unsafe fn new(given: *const sigset_t) -> Mask {
        // SAFETY: a set of zeroes is the empty set, and `given` is valid if it is not null.
        let mut set = unsafe { if given.is_null() { std::mem::zeroed() } else { given.read_unaligned() } };
        if let Some(trap) = far::trap_signal() {
            // SAFETY: `set` is a local variable, and the signal number is valid.
            let removed = unsafe { libc::sigdelset(&raw mut set, trap) };
            debug_assert_eq!(removed, 0);
        }
        Mask { given, set }
    }

    /// Does nothing, because the kernel does not change the mask.
    pub(crate) fn settle(&mut self, _answer: i64) {}
}

impl Argument<*const sigset_t> for Mask {
    fn given(&self) -> *const sigset_t {
        if self.given.is_null() { self.given } else { &raw const self.set }
    }
}
