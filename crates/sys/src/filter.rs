//! System calls that this process and its children can no longer make: a seccomp filter.
//!
//! See `seccomp(2)`. A filter is for good and inherited; it costs calls that it lets pass next to nothing, since the kernel
//! remembers which these are.

use crate::raw::{self, Errno};

#[cfg(target_arch = "x86_64")]
const THIS_ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const THIS_ARCH: u32 = 0xC000_00B7;

const SET_MODE_FILTER: usize = 1;
const FLAG_TSYNC: usize = 1;
const RET_ALLOW: u32 = 0x7fff_0000;
const RET_ERRNO: u32 = 0x0005_0000;
const LOAD_WORD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const NR_OFFSET: u32 = 0;
const ARCH_OFFSET: u32 = 4;

/// `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    if_equal: u8,
    if_not: u8,
    value: u32,
}

const fn plain(code: u16, value: u32) -> Instruction {
    Instruction { code, if_equal: 0, if_not: 0, value }
}

/// `struct sock_fprog`.
#[repr(C)]
struct Program {
    len: u16,
    instructions: *const Instruction,
}

/// Lets asynchronous I/O (`io_uring_setup`, `io_setup`) fail with `ENOSYS` in this process and its children from now on.
/// Without `CAP_SYS_ADMIN` programs that they execute can no longer gain privileges (`PR_SET_NO_NEW_PRIVS`).
///
/// # Errors
/// `EINVAL` or `ENOSYS` on a kernel without seccomp filters; `ESRCH` when another thread has a filter of its own.
pub fn refuse_async_io() -> Result<(), Errno> {
    let probe = [0, 0, 0, 0, 0, 0];
    // SAFETY: asks for a context for no events, which is refused in any case.
    if unsafe { raw::syscall(libc::SYS_io_setup, probe) } == Err(Errno(libc::ENOSYS)) {
        return Ok(());
    }
    let program = [
        plain(LOAD_WORD, ARCH_OFFSET),
        Instruction { code: JUMP_EQUAL, if_equal: 0, if_not: 4, value: THIS_ARCH },
        plain(LOAD_WORD, NR_OFFSET),
        Instruction { code: JUMP_EQUAL, if_equal: 1, if_not: 0, value: libc::SYS_io_uring_setup as u32 },
        Instruction { code: JUMP_EQUAL, if_equal: 0, if_not: 1, value: libc::SYS_io_setup as u32 },
        plain(RETURN, RET_ERRNO | libc::ENOSYS as u32),
        plain(RETURN, RET_ALLOW),
    ];
    match install(&program) {
        Err(Errno(libc::EACCES)) => {
            // SAFETY: plain integers.
            unsafe { raw::syscall(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0]) }?;
            install(&program)
        }
        answer => answer,
    }
}

fn install(program: &[Instruction]) -> Result<(), Errno> {
    let program = Program { len: program.len() as u16, instructions: program.as_ptr() };
    // SAFETY: a struct sock_fprog whose instructions live until the call returns.
    let answer = unsafe {
        raw::syscall(libc::SYS_seccomp, [SET_MODE_FILTER, FLAG_TSYNC, &raw const program as usize, 0, 0, 0])
    }?;
    // Above zero: the thread that could not follow.
    if answer == 0 { Ok(()) } else { Err(Errno(libc::ESRCH)) }
}
