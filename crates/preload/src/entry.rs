//! Macros that define exported calls. Each exported call passes its return address to a target function, because the
//! address shows which code made the call.

/// Defines an exported call as a jump to `$target`. `$target` gets the call's return address as an additional argument,
/// in the register `$x86` or `$arm`.
macro_rules! entry {
    ($name:ident, $x86:literal, $arm:literal, $target:ident, fn($($arg:ident: $type:ty),*) -> $result:ty) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $result {
            // The code pushes nothing and changes no register of the caller, so `$target` sees the caller's own stack.
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(concat!("mov ", $x86, ", [rsp]"), "jmp {}", sym $target);
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(concat!("mov ", $arm, ", x30"), "b {}", sym $target);
        }
    };
}
pub(crate) use entry;

/// Defines an exported call of six arguments, whose `$target` gets the return address as the seventh argument. On
/// x86-64, six arguments use all argument registers, so the return address is passed on the stack. The unwind table
/// describes it, because the records of a run name the callers of mmap.
macro_rules! entry_of_six {
    ($name:ident, $target:ident, fn($($arg:ident: $type:ty),*) -> $result:ty) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(
                ".cfi_startproc",
                "push qword ptr [rsp]",
                ".cfi_adjust_cfa_offset 8",
                "call {}",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "ret",
                ".cfi_endproc",
                sym $target
            );
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!("mov x6, x30", "b {}", sym $target);
        }
    };
}
pub(crate) use entry_of_six;
