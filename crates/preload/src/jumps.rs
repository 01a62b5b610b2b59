//! `sigsetjmp` and `siglongjmp`. The C library saves and restores the kernel's mask by calls of its own. In signal modes
//! (sigbus and sigsegv) that mask lacks the signals that Hanare keeps. So this library saves those that the program blocks
//! (`hanare_sys::signal::blocked`) beside it, in the last word of the C library's set, which is longer than the kernel's.
//!
//! Each function ends with a jump to the C library's, which finds the registers and the stack of its caller.

use std::ffi::{c_int, c_void};

use hanare_sys::signal;

use crate::calls::real::{self, Real};
use crate::signals::kept;

/// The C library's `sigjmp_buf`.
#[repr(C)]
struct Place {
    registers: [usize; 8],
    has_mask: c_int,
    mask: [u64; 16],
}

const _: () = assert!(size_of::<Place>() == 200);

/// Marks the last word of a set. The upper half of the word holds the mark, the lower half the saved signals.
const SAVED: u64 = 0x4861_6e61 << 32;

extern "C" fn nowhere() -> ! {
    std::process::abort()
}

fn address(real: &Real) -> *mut c_void {
    real.get().unwrap_or(nowhere as *const () as *mut c_void)
}

/// # Safety
/// The arguments are those of sigsetjmp(3).
unsafe extern "C" fn saving(place: *mut Place, has_mask: c_int) -> *mut c_void {
    if has_mask != 0 && kept() != 0 {
        // SAFETY: a place that saves a mask is a whole `sigjmp_buf`. The C library writes the beginning of the set only.
        unsafe { (&raw mut (*place).mask[15]).write_unaligned(SAVED | signal::blocked()) };
    }
    address(&real::__sigsetjmp)
}

/// # Safety
/// `place` was filled by sigsetjmp(3) or setjmp(3).
unsafe fn restore(place: *const Place) {
    if kept() == 0 {
        return;
    }
    // SAFETY: the caller promises a filled place. If it has a mask, it is a whole `sigjmp_buf`.
    let saved = unsafe {
        match (&raw const (*place).has_mask).read_unaligned() {
            0 => 0,
            _ => (&raw const (*place).mask[15]).read_unaligned(),
        }
    };
    signal::jump((saved & !u64::from(u32::MAX) == SAVED).then_some(saved & kept()));
}

/// sigsetjmp(3), by the name that its macro has.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn __sigsetjmp(_place: *mut c_void, _has_mask: c_int) -> c_int {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {saving}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        saving = sym saving,
    )
}

macro_rules! jumping {
    ($($name:ident $restoring:ident)*) => { $(
        /// # Safety
        /// The argument is that of siglongjmp(3).
        unsafe extern "C" fn $restoring(place: *const Place) -> *mut c_void {
            // SAFETY: the caller passes a filled place.
            unsafe { restore(place) };
            address(&real::$name)
        }

        /// siglongjmp(3) or one of its other names.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(_place: *const c_void, _value: c_int) -> ! {
            std::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "sub rsp, 8",
                "call {restoring}",
                "add rsp, 8",
                "pop rsi",
                "pop rdi",
                "jmp rax",
                restoring = sym $restoring,
            )
        }
    )* };
}

jumping! {
    siglongjmp restoring_siglongjmp
    longjmp restoring_longjmp
    _longjmp restoring_plain_longjmp
    __longjmp_chk restoring_longjmp_chk
}
