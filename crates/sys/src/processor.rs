//! The modes in which the processor runs the calling thread: floating-point arithmetic, and checks of alignment.
//!
//! A program may unmask floating-point exceptions. Its computations then end in SIGFPE where they would give a rounded
//! value or an infinity. Hanare computes in threads of the program, too. Its own computations must not trap, and must not
//! leave marks in the program's mode. New threads inherit the mode of the thread that starts them.

#[cfg(target_arch = "x86_64")]
mod machine {
    use std::arch::asm;

    /// MXCSR as the kernel sets it at the start of a program: all exceptions masked, rounding to nearest.
    const USUAL: u32 = 0x1f80;

    /// The value of MXCSR.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct FloatMode(u32);

    impl FloatMode {
        /// Sets the usual mode and returns the mode from before.
        #[inline]
        pub(crate) fn set_usual() -> Self {
            let mut before = 0;
            // SAFETY: `stmxcsr` writes four bytes to `before`.
            unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut before, options(nostack, preserves_flags)) };
            Self(USUAL).set();
            Self(before)
        }

        /// Sets this mode.
        #[inline]
        pub(crate) fn set(self) {
            // SAFETY: `ldmxcsr` reads four bytes of `self`. The value is the usual one, or one that was in the register,
            // so no reserved bit is set. The usual mode is what Rust code expects. Another mode is the program's, and is
            // set only before its code goes on.
            unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const self.0, options(nostack, readonly, preserves_flags)) };
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    /// On this machine nothing is set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct FloatMode;

    impl FloatMode {
        /// Does nothing.
        pub(crate) fn set_usual() -> Self {
            Self
        }

        /// Does nothing.
        pub(crate) fn set(self) {}
    }
}

pub(crate) use machine::FloatMode;

/// Makes unaligned accesses of the calling handler legal. The kernel starts a handler with the program's flag for
/// alignment checks (AC). The return from the handler sets the flag again.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn allow_unaligned() {
    const ALIGNMENT_CHECKS: u64 = 1 << 18;
    let flags: u64;
    // SAFETY: the code reads the flags by way of the stack.
    unsafe { std::arch::asm!("pushfq", "pop {}", out(reg) flags) };
    if flags & ALIGNMENT_CHECKS != 0 {
        // SAFETY: the code sets the flags that it has read, except one. Without this flag, unaligned accesses are legal.
        unsafe { std::arch::asm!("push {}", "popfq", in(reg) flags & !ALIGNMENT_CHECKS) };
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::FloatMode;
    use std::arch::asm;

    /// The mode with an unmasked division by zero and rounding towards zero.
    const ODD: u32 = 0x7d80;

    fn now() -> u32 {
        let mut mode = 0u32;
        // SAFETY: `stmxcsr` writes four bytes to `mode`.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mode, options(nostack)) };
        mode
    }

    #[test]
    fn the_mode_from_before_comes_back() {
        let odd = ODD;
        // SAFETY: `ldmxcsr` reads four bytes of `odd`, which has no reserved bit. No arithmetic follows in this mode.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const odd, options(nostack)) };
        let before = FloatMode::set_usual();
        let between = now();
        before.set();
        let after = now();
        FloatMode::set_usual();
        assert_eq!((between, after), (0x1f80, ODD));
    }
}
