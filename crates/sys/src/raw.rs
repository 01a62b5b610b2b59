//! The system call instruction and the kernel's error numbers. This module knows no particular system call.

use std::arch::asm;
use std::fmt;
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicPtr, Ordering};

/// An error number of the kernel, as in `errno(3)`. It is plain data, so no use of it allocates.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({self})")
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

/// Makes a call, and repeats it up to 8 times if the error may be temporary. Used for calls during the set-up, where
/// one temporary error must not end a run.
///
/// # Errors
/// The error of the last attempt.
pub fn again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    const AGAIN_MAX: u32 = 8;
    for _ in 0..AGAIN_MAX {
        match call() {
            Err(Errno(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ENOMEM)) => {}
            answer => return answer,
        }
    }
    call()
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn hanare_sys_gate();
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".text",
    ".balign 16",
    ".hidden hanare_sys_gate",
    ".globl hanare_sys_gate",
    ".type hanare_sys_gate, @function",
    "hanare_sys_gate:",
    "syscall",
    "ret",
    ".size hanare_sys_gate, .-hanare_sys_gate",
);

/// Address of the code that makes Hanare's system calls: a system call instruction and a return.
#[cfg(target_arch = "x86_64")]
static GATE: AtomicPtr<()> = AtomicPtr::new(hanare_sys_gate as *const () as *mut ());

/// Makes all later calls of [`syscall`] by the two instructions at `gate`.
///
/// # Safety
/// At `gate` are the instructions `syscall` and `ret`, for as long as the process lives.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn call_through(gate: usize) {
    GATE.store(std::ptr::with_exposed_provenance_mut(gate), Ordering::Release);
}

/// Returns the address of the code that makes Hanare's system calls.
#[cfg(target_arch = "x86_64")]
pub(crate) fn gate() -> *const () {
    GATE.load(Ordering::Relaxed)
}

/// Makes system call `number`. Unused arguments are zero. The C library's `errno` does not change.
///
/// # Errors
/// The kernel's error.
///
/// # Safety
/// The system call must be sound with these arguments. Every pointer in `args` must be valid for the kernel's reads and
/// writes.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn syscall(number: libc::c_long, args: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: this is the x86-64 Linux convention: the number in rax, the arguments in these registers, rcx and r11
    // destroyed. The code behind the gate makes the call and returns. The caller guarantees that the call's effect on
    // memory is sound.
    unsafe {
        asm!(
            "call {gate}",
            gate = in(reg) gate(),
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(preserves_flags)
        );
    }
    decode(result)
}

/// Makes system call `number`. Unused arguments are zero. The C library's `errno` does not change.
///
/// # Errors
/// The kernel's error.
///
/// # Safety
/// The system call must be sound with these arguments. Every pointer in `args` must be valid for the kernel's reads and
/// writes.
#[cfg(target_arch = "aarch64")]
#[inline]
pub unsafe fn syscall(number: libc::c_long, args: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: this is the AArch64 Linux convention: the number in x8, the arguments in x0 to x5, and only x0 changes.
    // The caller guarantees that the call's effect on memory is sound.
    unsafe {
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") args[0] as isize => result,
            in("x1") args[1],
            in("x2") args[2],
            in("x3") args[3],
            in("x4") args[4],
            in("x5") args[5],
            options(nostack, preserves_flags)
        );
    }
    decode(result)
}

/// Converts the kernel's result into a `Result`. The kernel returns an error as a number from -4095 to -1.
#[inline]
fn decode(result: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&result) { Err(Errno(-result as i32)) } else { Ok(result as usize) }
}

/// Calls `ioctl(fd, request, argument)`.
///
/// # Safety
/// `argument` must be a number or a valid pointer, as `request` expects. The effect of the request must be sound.
#[inline]
pub(crate) unsafe fn ioctl(fd: libc::c_int, request: u32, argument: usize) -> Result<usize, Errno> {
    // SAFETY: the caller guarantees that `argument` fits `request` and that the effect of `request` is sound.
    unsafe { syscall(libc::SYS_ioctl, [fd as usize, request as usize, argument, 0, 0, 0]) }
}
