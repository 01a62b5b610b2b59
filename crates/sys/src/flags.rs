//! A few flags and a count of each thread, at a fixed distance from its thread pointer.
//!
//! A shared library finds its `thread_local!` variables through a table of the C library. If the program has its own
//! allocator, that allocator provides the memory of this table. So the table may itself be paged out. A thread that
//! needs a paged-out table cannot resolve a fault.
//!
//! The flags of this module do not need the table. They lie in the thread-local space that the C library reserves for
//! libraries loaded with the program. A few bytes of this space are also available to libraries loaded later.

/// One flag of the calling thread. It is unset when the thread starts.
#[derive(Debug)]
pub struct Flag(u8);

/// Set if the thread belongs to Hanare. Also set while a thread of the program runs Hanare's start or fork code, whose
/// allocations must never be paged out.
pub static OWN: Flag = Flag(0);
/// Set while the calling thread forks.
pub static FORKS: Flag = Flag(1);
/// Set while the calling thread's system calls are not dispatched, because it has begun a thread or a process itself, or
/// has made a 32-bit call.
#[cfg(target_arch = "x86_64")]
pub(crate) static SUSPENDED: Flag = Flag(3);

impl Flag {
    #[inline]
    fn byte(&self) -> *mut u8 {
        flags_of_thread().wrapping_add(usize::from(self.0))
    }

    /// Returns whether the flag is set.
    #[inline]
    #[must_use]
    pub fn get(&self) -> bool {
        // SAFETY: the address is one of the calling thread's flag bytes, which no other thread accesses.
        unsafe { self.byte().read() != 0 }
    }

    /// Sets or clears the flag.
    #[inline]
    pub fn set(&self, value: bool) {
        // SAFETY: the address is one of the calling thread's flag bytes, which no other thread accesses.
        unsafe { self.byte().write(u8::from(value)) };
    }

    /// Sets or clears the flag and returns its previous value.
    #[inline]
    pub fn replace(&self, value: bool) -> bool {
        let before = self.get();
        self.set(value);
        before
    }
}

/// Distance of the calling thread's count from its first flag, in bytes.
const COUNT: usize = 4;

/// Adds to the calling thread's count, which starts at 0. If the count reaches `most`, sets it to 0 again and returns
/// what it was.
#[inline]
pub fn count(add: usize, most: usize) -> Option<usize> {
    let place = flags_of_thread().wrapping_add(COUNT).cast::<u32>();
    // SAFETY: the address is that of the calling thread's count, which no other thread accesses. It is a multiple of 4.
    let sum = unsafe { place.read() } as usize + add.min(u32::MAX as usize >> 1);
    let is_full = sum >= most;
    // SAFETY: as above. A sum below `most` fits: callers pass less than 2^32.
    unsafe { place.write(if is_full { 0 } else { sum as u32 }) };
    is_full.then_some(sum)
}

/// Two words of the calling thread. They are zero when the thread starts.
#[cfg(target_arch = "x86_64")]
#[derive(Debug)]
pub struct Words(());

/// The trapped system call that the calling thread is serving: its number plus one, and one of its arguments.
#[cfg(target_arch = "x86_64")]
pub static SERVED: Words = Words(());

#[cfg(target_arch = "x86_64")]
impl Words {
    /// Sets the words and returns the previous ones.
    #[must_use]
    pub fn replace(&self, words: [usize; 2]) -> [usize; 2] {
        let place = flags_of_thread().wrapping_add(8).cast::<[usize; 2]>();
        // SAFETY: the words of the calling thread follow its flags, with their alignment. No other thread accesses them.
        unsafe { std::ptr::replace(place, words) }
    }
}

/// Distance of the calling thread's [`Held`] from its first flag, in bytes.
const HELD: usize = 24;

/// Bytes of the kernel's siginfo that a sent signal fills.
pub(crate) const INFO_BYTES: usize = 48;

/// The siginfo of a sent signal. All zeroes stand for no signal.
pub(crate) type Info = [u32; INFO_BYTES / 4];

/// The signals that the program blocks in the calling thread and the kernel does not, and those that wait for the thread.
#[repr(C)]
pub(crate) struct Held {
    /// The signals that the program blocks and Hanare keeps open. Bit n-1 stands for signal n.
    pub(crate) blocked: u64,
    /// The signals that Hanare's own code blocks and keeps open. They wait like those that the program blocks.
    pub(crate) guarded: u64,
    /// The signals that were sent to this thread while it blocked them: SIGSYS, and the signal of the trap.
    pub(crate) infos: [Info; 2],
}

const _: () = assert!(size_of::<Held>() == 112);

/// Returns the address of the calling thread's [`Held`], which is zero when the thread starts.
#[inline]
pub(crate) fn held() -> *mut Held {
    flags_of_thread().wrapping_add(HELD).cast()
}

// Defines eight thread-local bytes, two words and a `Held`, which are zero when a thread starts. The symbol is visible
// only within one library.
core::arch::global_asm!(
    ".section .tbss.hanare_flags,\"awT\",@nobits",
    ".globl hanare_flags",
    ".hidden hanare_flags",
    ".type hanare_flags, @object",
    ".size hanare_flags, 136",
    ".balign 8",
    "hanare_flags:",
    ".zero 136",
    ".text",
);

/// Returns the address of the calling thread's flags.
#[cfg(target_arch = "x86_64")]
#[inline]
fn flags_of_thread() -> *mut u8 {
    let flags: *mut u8;
    // SAFETY: the instructions read only two values: the distance from the thread pointer, which the dynamic linker
    // stored, and the thread pointer itself.
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

/// Returns the address of the calling thread's flags.
#[cfg(target_arch = "aarch64")]
#[inline]
fn flags_of_thread() -> *mut u8 {
    let flags: *mut u8;
    // SAFETY: the instructions read only two values: the distance from the thread pointer, which the dynamic linker
    // stored, and the thread pointer itself.
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
        assert!(OWN.get() && !FORKS.get());
        std::thread::spawn(|| {
            assert!(!OWN.get() && !OWN.replace(true) && OWN.get());
            FORKS.set(true);
        })
        .join()
        .expect("a thread that asserts");
        assert!(OWN.replace(false) && !OWN.get() && !FORKS.get());
        assert_eq!([count(6, 10), count(3, 10), count(4, 10), count(2, 10)], [None, None, Some(13), None]);
        assert!(!OWN.get() && !FORKS.get(), "the count is apart from the flags");
    }
}
