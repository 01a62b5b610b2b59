//! The callers of the present code, by the unwind tables that the compiler writes.

use std::ffi::{CStr, c_int, c_void};

use crate::signal;
use crate::symbols::Library;

/// The unwinder's "no error": go on with the next frame.
const GO_ON: c_int = 0;
/// The unwinder's "end of stack": stop here.
const STOP: c_int = 5;
/// Most frames that are looked at.
const FRAMES_MAX: usize = 32;

/// The functions that libgcc_s calls while it unwinds.
const CALLED: [&CStr; 3] = [c"memcpy", c"memset", c"strlen"];

unsafe extern "C" {
    fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, *mut c_void) -> c_int, to: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// The frames that were seen so far.
struct Seen<'a> {
    frames: &'a mut [u64],
    len: usize,
    looked_at: usize,
}

/// Checks whether the unwinder would call only functions of the C library, and none with which the program replaces them.
/// Such a function may access far memory, or count its calls.
///
/// This takes the dynamic linker's lock, so it is not for the fault path.
#[must_use]
pub fn calls_no_program() -> bool {
    let Some(library) = Library::loaded(c"libc.so.6") else { return false };
    CALLED.iter().all(|name| {
        // SAFETY: the name ends with a zero. The first definition in the order of the program's libraries is returned.
        let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        library.holds(first as usize)
    })
}

/// Writes the return addresses of the present code's callers to `frames`, the nearest one first, and returns their
/// number. Leaves out Hanare's own code if it is known ([`signal::own_code`]).
///
/// The unwinder allocates nothing, but may take the dynamic linker's lock and reads the thread's stack. So this is not
/// for the fault path.
pub fn callers(frames: &mut [u64]) -> usize {
    let mut seen = Seen { frames, len: 0, looked_at: 0 };
    // SAFETY: `note` gets the pointer to `seen` back, which lives during the call. The unwinder only reads the stack.
    // Ignored: the unwinder's answer says that `note` stopped it, or that it knows no further caller.
    let _ = unsafe { _Unwind_Backtrace(note, (&raw mut seen).cast()) };
    seen.len
}

extern "C" fn note(context: *mut c_void, to: *mut c_void) -> c_int {
    // SAFETY: `to` is the pointer that `callers` gave, and nothing else uses its value meanwhile. `context` is the
    // unwinder's own.
    let (seen, at) = unsafe { (&mut *to.cast::<Seen<'_>>(), _Unwind_GetIP(context)) };
    seen.looked_at += 1;
    if !signal::is_own_code(at) {
        match seen.frames.get_mut(seen.len) {
            Some(frame) if at != 0 => *frame = at as u64,
            _ => return STOP,
        }
        seen.len += 1;
    }
    if seen.len == seen.frames.len() || seen.looked_at == FRAMES_MAX { STOP } else { GO_ON }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_functions_of_its_own_is_unwound() {
        assert!(calls_no_program());
    }

    #[inline(never)]
    fn inner(frames: &mut [u64]) -> usize {
        std::hint::black_box(callers(frames))
    }

    #[test]
    fn the_callers_are_told_apart_and_bounded() {
        let (mut one, mut other) = ([0; 6], [0; 6]);
        let len = std::hint::black_box(inner(&mut one));
        assert!(len > 3 && one[..len].iter().all(|&frame| frame != 0), "{one:x?}");
        assert_eq!(std::hint::black_box(inner(&mut other)), len);
        assert_ne!(one, other, "two calls return to two addresses");
        assert_eq!((inner(&mut one[..2]), inner(&mut [])), (2, 0));
    }
}
