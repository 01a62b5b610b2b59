//! Near (ordinary) copies of far data for the duration of a call.

use std::ffi::{c_char, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use hanare::far;
use hanare_sys::{copy, signal};
use libc::{pollfd, sigset_t};

use crate::answer::kernel;
use crate::range::{PAGE, Range};
use crate::signals;

/// Size of a cached buffer in bytes. If a call may be divided into pieces, at most this many bytes are copied at a
/// time.
pub(crate) const PIECE: usize = 256 << 10;

/// The size above which no structure is copied, in bytes. The kernel refuses structures of this size before it reads them.
const STRUCTURE_MAX: usize = 64 << 20;

/// Number of buffers that are cached for later calls. It should exceed the number of threads that use a buffer at the
/// same time.
const KEPT: usize = 16;

/// Maximum length of a path in bytes, including the final NUL. This is the kernel's limit (PATH_MAX).
const PATH_BYTES: usize = 4096;

static FREE: [AtomicUsize; KEPT] = [const { AtomicUsize::new(0) }; KEPT];

/// Checks whether a system call fails with EFAULT at an absent far page, as it does in sigbus and sigsegv mode.
#[inline]
pub(crate) fn kernel_is_blind() -> bool {
    far::trap_signal().is_some()
}

/// Checks whether any byte of a range is far. Always returns false in thread mode, in which the kernel can access
/// absent far pages.
pub(crate) fn is_far(addr: *const c_void, len: usize) -> bool {
    // The kernel refuses a greater length whatever is there.
    (1..=isize::MAX as usize).contains(&len)
        && kernel_is_blind()
        && Range::covering(addr as usize, len).is_some_and(|range| {
            // A range crosses few borders between near and far memory, so `meets_far` takes few steps.
            far::contains(range.start) || range.len() > PAGE && range.meets_far()
        })
}

/// A buffer in near memory, page-aligned, of at least the requested size. Its first contents are arbitrary.
pub(crate) struct Buffer {
    addr: usize,
    len: usize,
}

impl Buffer {
    /// Returns a buffer of at least `len` bytes, or `None` if the kernel has no memory.
    pub(crate) fn new(len: usize) -> Option<Buffer> {
        let len = len.max(PIECE).checked_next_multiple_of(PAGE)?;
        if len == PIECE
            && let Some(addr) = FREE.iter().map(|kept| kept.swap(0, Ordering::AcqRel)).find(|&addr| addr != 0)
        {
            return Some(Buffer { addr, len });
        }
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the kernel maps fresh memory at an address of its choice.
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
            // SAFETY: `new` made this mapping, and nothing uses it after the buffer is dropped.
            let _ = unsafe { kernel(libc::SYS_munmap, [self.addr, self.len, 0, 0, 0, 0]) };
        }
    }
}

/// The part of a copy that is copied back to the program when the call has returned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Back {
    Nothing,
    /// All bytes, if the call succeeded. The kernel writes nothing if the call fails.
    Whole,
    /// All bytes, even if the call failed. An interrupted wait writes the remaining time.
    Always,
    /// As many elements as the call's result says. The value is the size of an element in bytes. Other threads may
    /// change the remaining elements during the call.
    Counted(usize),
    /// The result field (`revents`) of each polled descriptor.
    Found,
}

/// The value that a call gets in place of a pointer argument. It is a near copy if the argument is far and the program
/// has access to it. Otherwise it is the argument itself, and the kernel refuses memory without access. Dropping a
/// `Near` copies back what the kernel may have written.
pub(crate) struct Near<'a> {
    original: *mut u8,
    len: usize,
    copy: Option<Buffer>,
    back: Back,
    _of_the_call: PhantomData<&'a ()>,
}

impl Near<'_> {
    /// # Safety
    /// `original` is null or valid for reading `len` bytes. If `back` copies bytes back, `original` is also valid for
    /// writing them.
    unsafe fn new(original: *mut u8, len: usize, back: Back) -> Self {
        let mut near = Near { original, len, copy: None, back, _of_the_call: PhantomData };
        // The call writes the elements that it counts. The program may say that it has room for any number of them.
        let (brought, most) = match back {
            Back::Counted(_) => (len.min(PIECE), usize::MAX),
            _ => (len, STRUCTURE_MAX),
        };
        if len <= most && is_far(original.cast(), len) && is_open(original as usize, len, back != Back::Nothing) {
            near.copy = Buffer::new(len);
            if let Some(buffer) = &near.copy {
                // SAFETY: the caller promises that `original` is valid for `len` bytes. The buffer has room for them
                // and does not overlap `original`.
                unsafe { copy::copy(original, buffer.pointer(), brought) };
            }
        }
        near
    }

    pub(crate) fn pointer(&self) -> *mut c_void {
        self.copy.as_ref().map_or(self.original, Buffer::pointer).cast()
    }

    /// Returns false: a copy does not end a wait.
    #[inline]
    pub(crate) fn is_interrupted(&self) -> bool {
        false
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
            // SAFETY: the caller of `new` promised that `original` is valid for `len` bytes. The program keeps this
            // memory until its call returns.
            Back::Found => unsafe { give_found(buffer.pointer().cast(), self.original.cast(), self.len) },
            // SAFETY: the caller of `new` promised that `original` is valid for writing `len` bytes. The buffer holds
            // `len` bytes.
            _ => unsafe { copy::copy(buffer.pointer(), self.original, self.len) },
        }
    }
}

/// Copies only the result field (`revents`) of each descriptor, because other threads may change the other fields
/// during the call.
///
/// # Safety
/// `from` and `to` have `len` bytes each. `to` is the program's memory.
unsafe fn give_found(from: *const pollfd, to: *mut pollfd, len: usize) {
    for index in 0..len / size_of::<pollfd>() {
        // SAFETY: both arrays have `len` bytes, so both have this descriptor. The field is written through a pointer,
        // because the program's memory need not be aligned.
        unsafe { (&raw mut (*to.add(index)).revents).write_unaligned((*from.add(index)).revents) };
    }
}

/// An argument of an interposed call. `given` returns the value that the kernel gets.
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

/// Checks whether the program itself may read all far parts of a range, or write them if `writes` is true.
pub(crate) fn is_open(addr: usize, len: usize, writes: bool) -> bool {
    addr.checked_add(len).is_some_and(|end| far::open_until(addr, end, writes) == end)
}

/// Makes a `Near` for a structure that the call reads.
///
/// # Safety
/// `argument` is null or valid for a `T`.
pub(crate) unsafe fn given<'a, T>(argument: *const T) -> Near<'a> {
    // SAFETY: the caller promises that `argument` is null or valid for a `T`.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), size_of::<T>(), Back::Nothing) }
}

/// Makes a `Near` for a structure that the call writes and may also read.
///
/// # Safety
/// `argument` is null or valid for a `T`.
pub(crate) unsafe fn filled<'a, T>(argument: *mut T) -> Near<'a> {
    // SAFETY: the caller promises that `argument` is null or valid for a `T`.
    unsafe { Near::new(argument.cast(), size_of::<T>(), Back::Whole) }
}

/// Makes a `Near` for a remaining time, which the call updates even if a signal interrupts the call.
///
/// # Safety
/// `argument` is null or valid for a `T`.
pub(crate) unsafe fn counted_down<'a, T>(argument: *mut T) -> Near<'a> {
    // SAFETY: the caller promises that `argument` is null or valid for a `T`.
    unsafe { Near::new(argument.cast(), size_of::<T>(), Back::Always) }
}

/// Makes a `Near` for an array in which the call writes as many elements as its result says.
///
/// # Safety
/// `argument` is null or valid for `count` elements.
pub(crate) unsafe fn filled_elements<'a, T>(argument: *mut T, count: usize) -> Near<'a> {
    // SAFETY: the caller promises that `argument` is null or valid for `count` elements.
    unsafe { Near::new(argument.cast(), count.saturating_mul(size_of::<T>()), Back::Counted(size_of::<T>())) }
}

/// Makes a `Near` for `count` descriptors to be polled.
///
/// # Safety
/// `argument` is null or valid for `count` descriptors.
pub(crate) unsafe fn polled<'a>(argument: *mut pollfd, count: usize) -> Near<'a> {
    // SAFETY: the caller promises that `argument` is null or valid for `count` descriptors.
    unsafe { Near::new(argument.cast(), count.saturating_mul(size_of::<pollfd>()), Back::Found) }
}

/// Makes a `Near` for `len` bytes that the call reads.
///
/// # Safety
/// `argument` is null or valid for `len` bytes.
pub(crate) unsafe fn given_bytes<'a, T>(argument: *const T, len: usize) -> Near<'a> {
    // SAFETY: the caller promises that `argument` is null or valid for `len` bytes.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), len, Back::Nothing) }
}

/// Makes a `Near` for `len` bytes that the call writes.
///
/// # Safety
/// `argument` is null or valid for `len` bytes.
pub(crate) unsafe fn filled_bytes<'a, T>(argument: *mut T, len: usize) -> Near<'a> {
    // SAFETY: the caller promises that `argument` is null or valid for `len` bytes.
    unsafe { Near::new(argument.cast(), len, Back::Whole) }
}

/// Makes a `Near` for a NUL-terminated string, such as a path.
///
/// # Safety
/// `argument` is null or a NUL-terminated string.
pub(crate) unsafe fn text<'a>(argument: *const c_char) -> Near<'a> {
    // SAFETY: the caller promises that `argument` is null or a NUL-terminated string.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), text_len(argument), Back::Nothing) }
}

/// Makes a `Near` for a NUL-terminated string that the call changes in place.
///
/// # Safety
/// `argument` is null or a NUL-terminated string.
pub(crate) unsafe fn changed_text<'a>(argument: *mut c_char) -> Near<'a> {
    // SAFETY: the caller promises that `argument` is null or a NUL-terminated string.
    unsafe { Near::new(argument.cast(), text_len(argument), Back::Whole) }
}

/// Makes a `Near` for a NUL-terminated string of any length, such as a command.
///
/// # Safety
/// `argument` is null or a NUL-terminated string.
pub(crate) unsafe fn long_text<'a>(argument: *const c_char) -> Near<'a> {
    // SAFETY: the caller promises that `argument` is null or a NUL-terminated string.
    unsafe { Near::new(argument.cast::<u8>().cast_mut(), bytes_of_text(argument, usize::MAX), Back::Nothing) }
}

/// Returns the length of a far path in bytes, including the final NUL, and 0 for a near path. For a path that is too
/// long, returns the kernel's maximum plus one, because the kernel refuses such a path before it reads the end.
///
/// # Safety
/// `text` is null or a NUL-terminated string.
unsafe fn text_len(text: *const c_char) -> usize {
    // SAFETY: the caller promises that `text` is null or a NUL-terminated string.
    unsafe { bytes_of_text(text, PATH_BYTES) }
}

/// Returns the length of a far string in bytes, including the final NUL, but at most `most` plus one. Returns 0 for a
/// near string. Also returns 0 if a part of the string is in memory that the program may not read. The kernel then gets
/// the far string itself and returns the error.
///
/// # Safety
/// `text` is near, or a NUL-terminated string.
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
        // SAFETY: the caller promises that the string ends with NUL, and the program may read this page.
        let found = unsafe { libc::strnlen(at as *const c_char, piece) };
        len += found;
        if found < piece {
            break;
        }
    }
    len + 1
}

/// A signal mask for a wait, without the signals that Hanare keeps. A handler that runs during the wait may access far
/// memory, and such an access must trap. Until the `Mask` is dropped, the program blocks these signals as the mask says.
pub(crate) struct Mask {
    given: *const sigset_t,
    set: sigset_t,
    before: u64,
    is_interrupted: bool,
}

impl Mask {
    /// # Safety
    /// `given` is null or valid.
    pub(crate) unsafe fn new(given: *const sigset_t) -> Mask {
        // SAFETY: zeroes are an empty set, and `given` is null or valid.
        let mut set = unsafe { if given.is_null() { std::mem::zeroed() } else { given.read_unaligned() } };
        let before = signal::blocked();
        let mut is_interrupted = false;
        if !given.is_null() {
            // SAFETY: `set` is a local set, which begins with the kernel's.
            let blocked = unsafe { (&raw const set).cast::<u64>().read() } & signals::kept();
            is_interrupted = signal::waiting() & before & !blocked != 0;
            signal::block(blocked);
        }
        // SAFETY: `set` is a local set.
        unsafe { signals::open_kept(&raw mut set) };
        Mask { given, set, before, is_interrupted }
    }

    /// Does nothing, because no part of a mask is copied back.
    pub(crate) fn settle(&mut self, _answer: i64) {}

    /// Returns whether a signal that had waited has been delivered, so that the wait ends with EINTR.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        if !self.given.is_null() {
            signal::block(self.before);
        }
    }
}

impl Argument<*const sigset_t> for Mask {
    fn given(&self) -> *const sigset_t {
        if self.given.is_null() { self.given } else { &raw const self.set }
    }
}
