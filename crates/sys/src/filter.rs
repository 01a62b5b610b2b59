//! Seccomp filters. One makes some system calls of this process and its children fail. The other (`words`) traps calls
//! with pointers into far memory.
//!
//! See `seccomp(2)`. A filter is permanent and inherited. A filter hardly slows down allowed calls, because the
//! kernel caches which calls a filter always allows.

use crate::raw::{self, Errno};

#[cfg(target_arch = "x86_64")]
mod pointers;
#[cfg(target_arch = "x86_64")]
pub(crate) mod words;

#[cfg(target_arch = "x86_64")]
const THIS_ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const THIS_ARCH: u32 = 0xC000_00B7;

const SET_MODE_FILTER: usize = 1;
const FLAG_TSYNC: usize = 1;
const FLAG_SPECULATES: usize = 4;
const RET_ALLOW: u32 = 0x7fff_0000;
const RET_ERRNO: u32 = 0x0005_0000;
const LOAD_WORD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_ANY: u16 = 0x45;
const RETURN: u16 = 0x06;
const NR_OFFSET: u32 = 0;
const ARCH_OFFSET: u32 = 4;

/// The kernel's `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    if_equal: u8,
    if_not: u8,
    value: u32,
}

/// The kernel's `struct sock_fprog`.
#[repr(C)]
struct Program {
    len: u16,
    instructions: *const Instruction,
}

/// The system calls that the filter refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Transfers: asynchronous I/O, and writes by `process_vm_writev`. `io_uring_setup`, `io_setup` and
    /// `process_vm_writev` fail with `ENOSYS`, as on kernels without these calls.
    Transfers,
    /// Transfers as in `Transfers`, and direct I/O. Opening a file with `O_DIRECT`, or setting this flag later, fails
    /// with `EINVAL`, as on file systems without direct I/O.
    TransfersAndDirectIo,
}

/// A system call that the filter refuses if its arguments meet all conditions.
struct Rule {
    number: libc::c_long,
    errno: i32,
    conditions: [Option<Condition>; 2],
}

#[derive(Clone, Copy)]
enum Condition {
    /// The lower half of the argument with this index (first number) equals this value (second number).
    Is(u32, u32),
    /// The lower half of the argument with this index (first number) has any of these bits (second number).
    Has(u32, u32),
}

impl Condition {
    fn argument(self) -> u32 {
        let (Self::Is(index, _) | Self::Has(index, _)) = self;
        // In `struct seccomp_data`, the arguments are 64 bits wide and little-endian. They follow the call's number,
        // the architecture and the instruction pointer.
        16 + 8 * index
    }
}

const DIRECT: u32 = libc::O_DIRECT as u32;

const TRANSFERS: [Rule; 3] = [
    Rule { number: libc::SYS_io_uring_setup, errno: libc::ENOSYS, conditions: [None; 2] },
    Rule { number: libc::SYS_io_setup, errno: libc::ENOSYS, conditions: [None; 2] },
    Rule { number: libc::SYS_process_vm_writev, errno: libc::ENOSYS, conditions: [None; 2] },
];

const DIRECT_IO: [Rule; 3] = [
    Rule { number: libc::SYS_openat, errno: libc::EINVAL, conditions: [Some(Condition::Has(2, DIRECT)), None] },
    // The flags of openat2 are in memory, which a filter cannot read. So the filter refuses every openat2, and programs
    // fall back to openat.
    Rule { number: libc::SYS_openat2, errno: libc::ENOSYS, conditions: [None; 2] },
    Rule {
        number: libc::SYS_fcntl,
        errno: libc::EINVAL,
        conditions: [Some(Condition::Is(1, libc::F_SETFL as u32)), Some(Condition::Has(2, DIRECT))],
    },
];

#[cfg(target_arch = "x86_64")]
const OPEN: [Rule; 1] =
    [Rule { number: libc::SYS_open, errno: libc::EINVAL, conditions: [Some(Condition::Has(1, DIRECT)), None] }];
#[cfg(not(target_arch = "x86_64"))]
const OPEN: [Rule; 0] = [];

/// Makes the `refused` calls fail in this process and its children from now on. Does nothing if these calls already
/// fail, for example under an inherited filter. If the process lacks `CAP_SYS_ADMIN`, this function also sets
/// `PR_SET_NO_NEW_PRIVS`. After that, programs executed by the process or its children cannot gain privileges.
///
/// # Errors
/// `EINVAL` or `ENOSYS` if the kernel has no seccomp filters. `ESRCH` if another thread has installed a filter that the
/// calling thread lacks.
pub fn refuse(refused: Refused) -> Result<(), Errno> {
    if is_refused(refused) {
        return Ok(());
    }
    let direct: &[Rule] = if refused == Refused::TransfersAndDirectIo { &DIRECT_IO } else { &[] };
    let open: &[Rule] = if refused == Refused::TransfersAndDirectIo { &OPEN } else { &[] };
    let mut program = vec![
        Instruction { code: LOAD_WORD, if_equal: 0, if_not: 0, value: ARCH_OFFSET },
        Instruction { code: JUMP_EQUAL, if_equal: 1, if_not: 0, value: THIS_ARCH },
        Instruction { code: RETURN, if_equal: 0, if_not: 0, value: RET_ALLOW },
    ];
    TRANSFERS.iter().chain(direct).chain(open).for_each(|rule| compile(rule, &mut program));
    program.push(Instruction { code: RETURN, if_equal: 0, if_not: 0, value: RET_ALLOW });
    match install(&program) {
        Err(Errno(libc::EACCES)) => {
            // SAFETY: this `prctl` takes only integers, and no pointer.
            unsafe { raw::syscall(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0]) }?;
            install(&program)
        }
        answer => answer,
    }
}

/// Checks whether the kernel or an inherited filter already refuses these calls. Tries each call with arguments for which
/// it does nothing. Without a filter, it returns another answer.
fn is_refused(refused: Refused) -> bool {
    let refuses = |number, args, errno| {
        // SAFETY: all calls below have no events, no buffers, or a null pointer as arguments. So the kernel reads and writes
        // no memory of this process, and opens nothing.
        let answer = unsafe { raw::syscall(number, args) };
        answer == Err(Errno(errno))
    };
    let direct = [libc::AT_FDCWD as usize, 0, libc::O_DIRECT as usize, 0, 0, 0];
    refuses(libc::SYS_io_setup, [0; 6], libc::ENOSYS)
        && refuses(libc::SYS_io_uring_setup, [0; 6], libc::ENOSYS)
        && refuses(libc::SYS_process_vm_writev, [0; 6], libc::ENOSYS)
        && (refused == Refused::Transfers || refuses(libc::SYS_openat, direct, libc::EINVAL))
}

/// Adds the instructions of a rule to the program. If a test fails, it jumps behind the last of these instructions, to
/// the next rule.
fn compile(rule: &Rule, program: &mut Vec<Instruction>) {
    let conditions = rule.conditions.iter().flatten();
    let number = (NR_OFFSET, JUMP_EQUAL, rule.number as u32);
    let tests: Vec<(u32, u16, u32)> = std::iter::once(number)
        .chain(conditions.map(|&condition| match condition {
            Condition::Is(_, value) => (condition.argument(), JUMP_EQUAL, value),
            Condition::Has(_, bits) => (condition.argument(), JUMP_ANY, bits),
        }))
        .collect();
    for (index, &(offset, code, value)) in tests.iter().enumerate() {
        // The number of instructions to jump over: two for each remaining test, and one that returns the errno.
        let behind = 2 * (tests.len() - index - 1) as u8 + 1;
        program.push(Instruction { code: LOAD_WORD, if_equal: 0, if_not: 0, value: offset });
        program.push(Instruction { code, if_equal: 0, if_not: behind, value });
    }
    program.push(Instruction { code: RETURN, if_equal: 0, if_not: 0, value: RET_ERRNO | rule.errno as u32 });
}

/// Installs a filter in all threads of the process. The kernel does not restrict speculation because of the filter,
/// which would slow down the whole program. Kernels before 4.17 lack this flag.
fn install(program: &[Instruction]) -> Result<(), Errno> {
    match install_with(program, FLAG_TSYNC | FLAG_SPECULATES) {
        Err(Errno(libc::EINVAL)) => install_with(program, FLAG_TSYNC),
        answer => answer,
    }
}

fn install_with(program: &[Instruction], flags: usize) -> Result<(), Errno> {
    let program = Program { len: program.len() as u16, instructions: program.as_ptr() };
    // SAFETY: `program` is a struct sock_fprog whose instructions live until the call returns.
    let answer =
        unsafe { raw::syscall(libc::SYS_seccomp, [SET_MODE_FILTER, flags, &raw const program as usize, 0, 0, 0]) }?;
    // A positive result is the id of a thread that could not adopt the filter.
    if answer == 0 { Ok(()) } else { Err(Errno(libc::ESRCH)) }
}
