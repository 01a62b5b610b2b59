//! Thread stacks that a program allocates in far memory. The parts that the kernel accesses become near memory before
//! the thread starts.
//!
//! When a thread ends, the kernel clears the thread's number, and other threads wait for this. The number is in a
//! structure that the C library keeps at the top of the stack. If that page is absent, the kernel does not wait for the
//! page and clears nothing. The other threads would then wait for ever. So the top of the stack becomes ordinary memory
//! for good, with its contents. In signal modes the whole stack does, because the kernel writes the signal's frame to
//! it.

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, transmute};

use hanare::far;
use libc::{pthread_attr_t, pthread_t};

use crate::answer::keeping_errno;
use crate::calls::near::given;
use crate::calls::real;
use crate::mapping::with_far;
use crate::range::{PAGE, Range};
use crate::robust;

/// Bytes at the top of a stack that become near. They contain the C library's structure of the thread and the thread's
/// thread-locals.
const TOP_BYTES: usize = 64 << 10;

/// Most attempts to get memory from the kernel for a stack.
const TRIES: u32 = 8;

/// A thread's first function. It may be unwound when the thread is cancelled.
type First = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;

type Create = unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, First, *mut c_void) -> c_int;

/// Looks up the C library's function before the program has threads. During a later lookup, another thread could hold
/// the dynamic linker's lock and wait for the thread that is being created.
pub(crate) fn find() {
    real::pthread_create.get();
}

/// Returns the whole pages of the stack that these attributes name, and whether partial pages at its ends were cut off.
/// Returns `None` if they name no stack, or one without far memory.
///
/// # Safety
/// `attributes` is null or valid.
unsafe fn far_stack(attributes: *const pthread_attr_t) -> Option<(Range, bool)> {
    if attributes.is_null() || !far::active() {
        return None;
    }
    let (mut addr, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: the caller guarantees that the attributes are valid, and both results go to local variables.
    if unsafe { libc::pthread_attr_getstack(attributes, &raw mut addr, &raw mut len) } != 0 {
        return None;
    }
    // If attributes name no stack, the C library returns the negated size as the address. The end then wraps around to
    // 0.
    let start = addr as usize;
    let end = start.checked_add(len)?;
    with_far(start, len.max(1))?;
    let whole = Range { start: start.checked_next_multiple_of(PAGE)?, end: end & !(PAGE - 1) };
    (whole.end > whole.start).then_some((whole, (whole.start, whole.end) != (start, end)))
}

/// Makes the part of a stack near that the kernel accesses. Guard pages keep their protection.
///
/// # Errors
/// Returns the error of the kernel if it has no memory or no mapping left.
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
                // SAFETY: the program gives the stack to a thread that does not exist yet, so no code uses the stack.
                let answer = || unsafe { far::expel(at, end - at) };
                (1..TRIES).find_map(|_| answer().ok()).map_or_else(answer, Ok)?;
            }
        }
        at = end;
    }
    Ok(())
}

/// The program's function and argument for a thread. The thread marks its robust mutexes when it ends.
struct Begin {
    first: First,
    argument: *mut c_void,
}

unsafe extern "C-unwind" fn begin(begin: *mut c_void) -> *mut c_void {
    // SAFETY: `create` made this `Begin` for this thread alone and does not use it afterwards.
    let Begin { first, argument } = *unsafe { Box::from_raw(begin.cast::<Begin>()) };
    robust::watch_this_thread();
    // SAFETY: the function and its argument are those that the program passed to pthread_create(3).
    unsafe { first(argument) }
}

/// # Safety
/// The caller keeps the contract of pthread_create(3). `call` is that function.
unsafe fn create(
    call: Create,
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    first: First,
    argument: *mut c_void,
) -> c_int {
    // The C library reads the attributes with signals blocked, so they must be near: a fault could not be resolved.
    // SAFETY: the caller guarantees that they are null or valid.
    let near = unsafe { given(attributes) };
    let attributes = near.pointer().cast_const().cast();
    if !robust::is_used() || far::is_own_thread() {
        // SAFETY: the caller guarantees what this function's `# Safety` section requires.
        return unsafe { call(thread, attributes, first, argument) };
    }
    let given = Box::into_raw(Box::new(Begin { first, argument }));
    // SAFETY: the caller guarantees valid arguments. The new thread becomes the owner of `given`.
    let answer = unsafe { call(thread, attributes, begin, given.cast()) };
    if answer != 0 {
        // SAFETY: `given` is from `Box::into_raw` above, and no thread was created that could own it.
        drop(unsafe { Box::from_raw(given) });
    }
    answer
}

/// Performs pthread_create(3). If a stack is far and its ends are not page-aligned, the thread does not use the partial
/// pages, because these may hold bytes of other objects.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    first: First,
    argument: *mut c_void,
) -> c_int {
    let Some(call) = real::pthread_create.get() else { return libc::EAGAIN };
    // SAFETY: `call` is the C library's function of this name, which has this type.
    let call = unsafe { transmute::<*mut c_void, Create>(call) };
    // SAFETY: by the contract of pthread_create(3), the attributes are null or valid.
    let Some((stack, is_cut)) = keeping_errno(|| unsafe { far_stack(attributes) }) else {
        // SAFETY: the arguments are the caller's, who keeps the contract of the call.
        return unsafe { create(call, thread, attributes, first, argument) };
    };
    if keeping_errno(|| make_near(stack)).is_err() {
        return libc::EAGAIN;
    }
    if !is_cut {
        // SAFETY: the arguments are the caller's, who keeps the contract of the call.
        return unsafe { create(call, thread, attributes, first, argument) };
    }
    let mut copy = MaybeUninit::<pthread_attr_t>::uninit();
    // SAFETY: `copy` is a copy of valid attributes. It is never destroyed, because it shares pointers with the caller's
    // attributes. The new range consists of whole pages of the caller's own stack.
    unsafe {
        copy.as_mut_ptr().copy_from_nonoverlapping(attributes, 1);
        match libc::pthread_attr_setstack(copy.as_mut_ptr(), stack.start as *mut c_void, stack.len()) {
            0 => create(call, thread, copy.as_ptr(), first, argument),
            _ => create(call, thread, attributes, first, argument),
        }
    }
}
