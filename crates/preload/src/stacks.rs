//! Thread stacks that a program allocates in far memory. The parts that the kernel accesses become near (ordinary
//! memory) before the thread starts.
//!
//! When a thread ends, the kernel clears the thread's number in memory, and wakes the threads that wait for this. The C
//! library keeps the number in a structure at the top of the stack. If the page with the number is absent, the kernel
//! does not wait for the page. The waiting threads would then wait for ever. So the top of the stack permanently
//! becomes ordinary memory, and keeps its contents. In signal modes (sigbus and sigsegv), the whole stack becomes
//! ordinary memory, because the kernel writes signal frames to it.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, transmute};
use std::sync::atomic::{AtomicBool, Ordering};

use hanare::far;
use hanare_sys::signal;
use libc::{pthread_attr_t, pthread_t};

use crate::answer::keeping_errno;
use crate::calls::near::given;
use crate::calls::real;
use crate::mapping::with_far;
use crate::range::{PAGE, Range};
use crate::{robust, trap_stacks};

/// Size in bytes of the part at the top of a stack that becomes near. It contains the C library's structure and the
/// thread's copies of thread-locals.
const TOP_BYTES: usize = 64 << 10;

/// Maximum number of attempts to make a part of a stack near. An attempt fails if the kernel has no memory.
const TRIES: u32 = 8;

/// A thread's first function. Unwinding may pass through it.
type First = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

type Create = unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, First, *mut c_void) -> c_int;

/// Looks up the C library's `pthread_create` before the program has threads. Later, another thread may hold the dynamic
/// linker's lock while it waits for the thread that is being created. A lookup would then deadlock.
pub(crate) fn find() {
    real::pthread_create.get();
}

/// Returns the whole pages of the stack that the attributes name. The `bool` is true if partial pages were cut off.
/// Returns `None` if the attributes name no stack, or a stack without far pages.
///
/// # Safety
/// `attributes` is null or points to valid attributes.
unsafe fn far_stack(attributes: *const pthread_attr_t) -> Option<(Range, bool)> {
    if attributes.is_null() || !far::active() {
        return None;
    }
    let (mut addr, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: `attributes` is not null, so it is valid. The results go to local variables.
    if unsafe { libc::pthread_attr_getstack(attributes, &raw mut addr, &raw mut len) } != 0 {
        return None;
    }
    // For attributes without a stack, glibc returns the negated size as the address. Then `start + len` overflows, and
    // this function returns `None`.
    let start = addr as usize;
    let end = start.checked_add(len)?;
    with_far(start, len.max(1))?;
    let whole = Range { start: start.checked_next_multiple_of(PAGE)?, end: end & !(PAGE - 1) };
    (whole.end > whole.start).then_some((whole, (whole.start, whole.end) != (start, end)))
}

/// Turns the part of a stack that the kernel accesses into near memory. Guard pages keep their protection.
///
/// # Errors
/// The error number of the kernel if it has no memory or no mapping left.
fn make_near(stack: Range) -> Result<(), c_int> {
    let first = match far::trap_signal() {
        Some(_) => stack.start,
        None => stack.start.max(stack.end.saturating_sub(TOP_BYTES)),
    };
    let mut at = first;
    while at < stack.end {
        let (is_far, mut end) = far::run(at, stack.end);
        if is_far {
            let opened = far::is_writable(at);
            end = (at..end).step_by(PAGE).find(|&page| far::is_writable(page) != opened).unwrap_or(end);
            if opened {
                // SAFETY: the program gives the stack to a thread that does not exist yet, so no thread uses it.
                let answer = || unsafe { far::expel(at, end - at) };
                (1..TRIES).find_map(|_| answer().ok()).map_or_else(answer, Ok)?;
            }
        }
        at = end;
    }
    Ok(())
}

/// The program's function and argument, for a thread that begins in this library.
#[derive(Clone, Copy)]
struct Begin {
    first: First,
    argument: *mut c_void,
    /// The signals that the creating thread blocks although the kernel does not.
    blocked: u64,
}

/// Number of threads that can be about to begin without an allocation.
const BEGINNING_MAX: usize = 64;

/// The place of a [`Begin`] until its thread has taken it. A thread that freed an allocation instead would make the C
/// library reserve an arena for it.
struct Place {
    is_taken: AtomicBool,
    begin: UnsafeCell<MaybeUninit<Begin>>,
}

// SAFETY: `begin` belongs to the thread that has set `is_taken`, and then to the thread that it creates.
unsafe impl Sync for Place {}

static PLACES: [Place; BEGINNING_MAX] =
    [const { Place { is_taken: AtomicBool::new(false), begin: UnsafeCell::new(MaybeUninit::uninit()) } };
        BEGINNING_MAX];

/// Stores a `Begin` for [`taken`].
fn stored(begin: Begin) -> *mut c_void {
    match PLACES.iter().find(|place| !place.is_taken.swap(true, Ordering::Acquire)) {
        Some(place) => {
            // SAFETY: this thread has just taken the place.
            unsafe { (*place.begin.get()).write(begin) };
            std::ptr::from_ref(place).cast_mut().cast()
        }
        None => Box::into_raw(Box::new(begin)).cast(),
    }
}

/// Returns a stored `Begin`, and frees its place.
///
/// # Safety
/// `stored` comes from [`stored`], and nobody else takes it.
unsafe fn taken(stored: *mut c_void) -> Begin {
    if PLACES.as_ptr_range().contains(&stored.cast_const().cast()) {
        // SAFETY: the address is that of a place with a `Begin`, which belongs to the caller.
        unsafe {
            let place = &*stored.cast::<Place>();
            let begin = (*place.begin.get()).assume_init();
            place.is_taken.store(false, Ordering::Release);
            begin
        }
    } else {
        // SAFETY: all other values come from `Box::into_raw`.
        *unsafe { Box::from_raw(stored.cast::<Begin>()) }
    }
}

unsafe extern "C-unwind" fn begin(begin: *mut c_void) -> *mut c_void {
    // SAFETY: `create` has stored `begin` for this thread alone.
    let Begin { first, argument, blocked } = unsafe { taken(begin) };
    signal::block(blocked);
    trap_stacks::give();
    #[cfg(target_arch = "x86_64")]
    crate::trapped::watch_this_thread();
    if robust::is_used() {
        robust::watch_this_thread();
    }
    // SAFETY: the program passed `first` and `argument` to pthread_create(3) for this call.
    unsafe { first(argument) }
}

/// # Safety
/// The caller keeps the contract of pthread_create(3), and `call` is that function.
unsafe fn create(
    call: Create,
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    first: First,
    argument: *mut c_void,
) -> c_int {
    // The C library reads the attributes with signals blocked, when no access to far memory can trap. So it gets a near
    // copy.
    // SAFETY: the caller passes null or valid attributes.
    let near = unsafe { given(attributes) };
    let attributes = near.pointer().cast_const().cast();
    let begins_here =
        robust::is_used() || far::call_traps().dispatch || trap_stacks::are_given() || signal::blocked() != 0;
    if !begins_here || far::is_own_thread() {
        // SAFETY: the caller keeps the contract of pthread_create(3).
        return unsafe { call(thread, attributes, first, argument) };
    }
    let given = stored(Begin { first, argument, blocked: signal::blocked() });
    // SAFETY: the caller keeps the contract of pthread_create(3). The new thread takes ownership of `given`.
    let answer = unsafe { call(thread, attributes, begin, given) };
    if answer != 0 {
        // The `Begin` itself needs no end.
        // SAFETY: `given` was stored above, and no thread was created that would take it.
        let _: Begin = unsafe { taken(given) };
    }
    answer
}

/// pthread_create(3). If the stack is far, the thread does not use the partial pages at its ends, which may hold bytes
/// of other objects.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    first: First,
    argument: *mut c_void,
) -> c_int {
    let Some(call) = real::pthread_create.get() else { return libc::EAGAIN };
    // SAFETY: `call` is the C library's `pthread_create`, which has the type `Create`.
    let call = unsafe { transmute::<*mut c_void, Create>(call) };
    // SAFETY: under the contract of pthread_create(3), `attributes` is null or valid.
    let Some((stack, is_cut)) = keeping_errno(|| unsafe { far_stack(attributes) }) else {
        // SAFETY: the caller keeps the contract of pthread_create(3), and `call` is that function.
        return unsafe { create(call, thread, attributes, first, argument) };
    };
    if keeping_errno(|| make_near(stack)).is_err() {
        return libc::EAGAIN;
    }
    if !is_cut {
        // SAFETY: the caller keeps the contract of pthread_create(3), and `call` is that function.
        return unsafe { create(call, thread, attributes, first, argument) };
    }
    let mut copy = MaybeUninit::<pthread_attr_t>::uninit();
    // SAFETY: `copy` is a copy of valid attributes. It is never destroyed, because the memory that it refers to belongs
    // to the caller. The range consists of whole pages of the caller's own stack.
    unsafe {
        copy.as_mut_ptr().copy_from_nonoverlapping(attributes, 1);
        match libc::pthread_attr_setstack(copy.as_mut_ptr(), stack.start as *mut c_void, stack.len()) {
            0 => create(call, thread, copy.as_ptr(), first, argument),
            _ => create(call, thread, attributes, first, argument),
        }
    }
}
