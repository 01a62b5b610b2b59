//! A few flags of each thread, at a fixed distance from its thread pointer.
//!
//! The `thread_local!` variables of a shared library are found through a table of the C library. That table comes from
//! the program's own allocator if it has one, so it may be far. A thread that must read it first could not resolve a
//! fault. These flags use the space that is reserved for libraries loaded with the program. A few bytes of it are also
//! available to libraries loaded later.

/// One flag of the calling thread, unset at its start.
#[derive(Debug)]
pub struct Flag(u8);

/// Whether the thread is one of Hanare's, or acts as one.
pub static OWN: Flag = Flag(0);
/// Whether the calling thread is in a fork.
pub static FORKS: Flag = Flag(1);
/// Whether the C library's allocations in this thread belong to a locale.
pub static SETS_LOCALE: Flag = Flag(2);

impl Flag {
    #[inline]
    fn byte(&self) -> *mut u8 {
        flags_of_thread().wrapping_add(usize::from(self.0))
    }

    /// Whether it is set.
    #[inline]
    #[must_use]
    pub fn get(&self) -> bool {
        // SAFETY: one of the calling thread's bytes, which no other code accesses.
        unsafe { self.byte().read() != 0 }
    }

    /// Sets or clears it.
    #[inline]
    pub fn set(&self, value: bool) {
        // SAFETY: as above.
        unsafe { self.byte().write(u8::from(value)) };
    }

    /// The same. Returns the previous value.
    #[inline]
    pub fn replace(&self, value: bool) -> bool {
        let before = self.get();
        self.set(value);
        before
    }
}

// Eight zero bytes for each thread, visible within one library only.
core::arch::global_asm!(
    ".section .tbss.hanare_flags,\"awT\",@nobits",
    ".globl hanare_flags",
    ".hidden hanare_flags",
    ".type hanare_flags, @object",
    ".size hanare_flags, 8",
    ".balign 8",
    "hanare_flags:",
    ".zero 8",
    ".text",
);

/// The address of the calling thread's flags.
#[cfg(target_arch = "x86_64")]
#[inline]
fn flags_of_thread() -> *mut u8 {
    let flags: *mut u8;
    // SAFETY: reads the distance that the dynamic linker stored, and the thread's own address.
    unsafe {
        core::arch::asm!(
            "mov {flags}, qword ptr [rip + hanare_flags@GOTTPOFF]",
            "add {flags}, qword ptr fs:[0]",
            flags = out(reg) flags,
            options(nostack, readonly),
        );
    }
    flags
}

/// The address of the calling thread's flags.
#[cfg(target_arch = "aarch64")]
#[inline]
fn flags_of_thread() -> *mut u8 {
    let flags: *mut u8;
    // SAFETY: reads the distance that the dynamic linker stored, and the thread's own address.
    unsafe {
        core::arch::asm!(
            "mrs {flags}, tpidr_el0",
            "adrp {distance}, :gottprel:hanare_flags",
            "ldr {distance}, [{distance}, :gottprel_lo12:hanare_flags]",
            "add {flags}, {flags}, {distance}",
            flags = out(reg) flags,
            distance = out(reg) _,
            options(nostack, readonly),
        );
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own() {
        OWN.set(true);
        assert!(OWN.get() && !FORKS.get() && !SETS_LOCALE.get());
        std::thread::spawn(|| {
            assert!(!OWN.get() && !OWN.replace(true) && OWN.get());
            FORKS.set(true);
        })
        .join()
        .expect("a thread that asserts");
        assert!(OWN.replace(false) && !OWN.get() && !FORKS.get());
    }
}
