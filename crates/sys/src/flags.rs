//! A few flags of each thread, at a fixed distance from where the processor finds the thread.
//!
//! What `thread_local!` declares in a shared library is found by a table of the C library's. That table comes from the
//! program's own allocator where it has one, so it may be far: no fault could be resolved by a thread that first has to read
//! it. These flags take a part of what is set aside for libraries that are loaded with the program. A few bytes of it are there for
//! those that come later, too.

/// One flag of the calling thread, unset at its start.
#[derive(Debug)]
pub struct Flag(u8);

/// Whether the thread is one of Hanare's, or acts as one.
pub static OWN: Flag = Flag(0);
/// Whether the fork that is under way is the calling thread's.
pub static FORKS: Flag = Flag(1);
/// Whether what the C library allocates in this thread belongs to a locale.
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
        // SAFETY: one of the calling thread's bytes, which nobody else touches.
        unsafe { self.byte().read() != 0 }
    }

    /// Sets it or takes it back.
    #[inline]
    pub fn set(&self, value: bool) {
        // SAFETY: as above.
        unsafe { self.byte().write(u8::from(value)) };
    }

    /// The same; answers what it was.
    #[inline]
    pub fn replace(&self, value: bool) -> bool {
        let before = self.get();
        self.set(value);
        before
    }
}

// Eight bytes of zeroes for each thread, known within one library only.
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

/// Where the calling thread's flags are.
#[cfg(target_arch = "x86_64")]
#[inline]
fn flags_of_thread() -> *mut u8 {
    let flags: *mut u8;
    // SAFETY: reads the distance that the dynamic linker noted, and the thread's own address.
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

/// Where the calling thread's flags are.
#[cfg(target_arch = "aarch64")]
#[inline]
fn flags_of_thread() -> *mut u8 {
    let flags: *mut u8;
    // SAFETY: reads the distance that the dynamic linker noted, and the thread's own address.
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
