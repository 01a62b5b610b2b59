//! A filter that traps (SIGSYS) system calls with a pointer into one address range.
//!
//! The filter examines the argument words that are pointers ([`POINTERS`]). It cannot follow a pointer to further
//! pointers. Calls of all other numbers pass, and the kernel caches which numbers those are.
//!
//! A filter is inherited by every program that the process executes. So the range is the same in all processes, and lies
//! where no ordinary mapping of a program does ([`WINDOW_BASE`]). A call whose sixth word holds [`PASS`] in its upper
//! half is not trapped. No system call reads that half, unless its sixth argument is a pointer or a file offset. So the
//! handler of the trap can repeat a call that a filter of this or of an earlier process would trap again.

use super::{
    ARCH_OFFSET, Instruction, JUMP_EQUAL, LOAD_WORD, NR_OFFSET, RET_ALLOW, RETURN, THIS_ARCH, install,
    pointers::POINTERS,
};
use crate::raw::Errno;

/// The first address of the range. It lies above every program (with `vm.mmap_rnd_bits` of 32, at most 0x6555_5555_4000
/// and its heap) and below the mappings that the kernel places (from about 0x6fff_0000_0000 down).
pub const WINDOW_BASE: usize = 0x6800_0000_0000;
/// Bytes of the range.
pub const WINDOW_LEN: usize = 0x0400_0000_0000;
/// The upper half of the sixth word of a call that is not trapped.
pub(crate) const PASS: usize = 0x4861_6e61;
/// The number that the handler of the trap finds in `si_errno`.
pub(crate) const MARK: i32 = 0x4861;

/// Calls whose sixth word is a number of 64 bits.
const LAST_IS_WIDE: [libc::c_long; 5] = [
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_io_uring_enter,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
];

const RET_TRAP: u32 = 0x0003_0000;
const JUMP: u16 = 0x05;
const JUMP_AT_LEAST: u16 = 0x35;
const ARGUMENTS_OFFSET: u32 = 16;
/// Index of the last argument word.
const LAST: u32 = 5;

// The filter compares upper halves of words only.
const _: () = assert!(WINDOW_BASE as u32 == 0 && WINDOW_LEN as u32 == 0);

/// Makes the kernel raise SIGSYS for all later calls of this process, and of the programs that it executes, with a
/// pointer into the range.
///
/// # Errors
/// `EACCES` without CAP_SYS_ADMIN, unless the process can no longer gain privileges. `EINVAL` or `ENOSYS` if the kernel
/// has no seccomp filters. `ESRCH` if another thread has a filter that the calling thread lacks.
pub(crate) fn trap() -> Result<(), Errno> {
    install(&program())
}

/// Returns the indexes of a call's arguments that are pointers, as bits.
fn pointers(number: libc::c_long) -> u32 {
    let indexes = POINTERS.iter().find(|entry| entry.0 == number).map_or(&[][..], |entry| entry.1);
    indexes.iter().fold(0, |mask, index| mask | 1 << index)
}

/// Returns whether a call with these arguments is trapped and cannot be marked.
#[must_use]
pub fn traps_always(number: libc::c_long, args: [usize; 6]) -> bool {
    let is_inside = |index: u32| args[index as usize].wrapping_sub(WINDOW_BASE) < WINDOW_LEN;
    !may_mark(number) && (0..=LAST).any(|index| pointers(number) & 1 << index != 0 && is_inside(index))
}

/// Returns whether the kernel ignores the upper half of the sixth word of a call. A call that the filter never traps
/// needs no mark.
pub(crate) fn may_mark(number: libc::c_long) -> bool {
    let pointers = pointers(number);
    pointers != 0 && pointers & 1 << LAST == 0 && !LAST_IS_WIDE.contains(&number)
}

const fn instruction(code: u16, value: u32) -> Instruction {
    Instruction { code, if_equal: 0, if_not: 0, value }
}

/// A range of numbers, from `first` to the next range, whose calls have pointers at the same places.
#[derive(Clone, Copy)]
struct Numbers {
    first: u32,
    pointers: u32,
}

fn ranges() -> Vec<Numbers> {
    let last = POINTERS.iter().map(|entry| entry.0).max().unwrap_or(0);
    let mut ranges: Vec<Numbers> = Vec::new();
    for number in 0..=last + 1 {
        let pointers = pointers(number);
        if ranges.last().is_none_or(|range| range.pointers != pointers) {
            ranges.push(Numbers { first: number as u32, pointers });
        }
    }
    ranges
}

fn program() -> Vec<Instruction> {
    let ranges = ranges();
    let mut program = vec![
        instruction(LOAD_WORD, ARCH_OFFSET),
        Instruction { code: JUMP_EQUAL, if_equal: 1, if_not: 0, value: THIS_ARCH },
        instruction(RETURN, RET_ALLOW),
        instruction(LOAD_WORD, NR_OFFSET),
    ];
    // Jumps to the checks of a set of pointers, by their place in the program. They are set when all checks have a
    // place.
    let mut jumps = Vec::new();
    search(&ranges, &mut program, &mut jumps);
    let mut checks: Vec<(u32, usize)> = Vec::new();
    for &(_, pointers) in &jumps {
        if checks.iter().all(|check| check.0 != pointers) {
            checks.push((pointers, program.len()));
            check(pointers, &mut program);
        }
    }
    for (at, pointers) in jumps {
        let target = checks.iter().find(|check| check.0 == pointers).map_or(at + 1, |check| check.1);
        program[at].value = (target - at - 1) as u32;
    }
    program
}

/// Adds a binary search for the number of the call, which is loaded. It ends in a jump to the checks of the range that
/// the number is in.
fn search(ranges: &[Numbers], program: &mut Vec<Instruction>, jumps: &mut Vec<(usize, u32)>) {
    if let [range] = ranges {
        if range.pointers == 0 {
            program.push(instruction(RETURN, RET_ALLOW));
        } else {
            jumps.push((program.len(), range.pointers));
            program.push(instruction(JUMP, 0));
        }
        return;
    }
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    // A number in the upper half takes the jump that follows; one in the lower half passes over it.
    program.push(Instruction { code: JUMP_AT_LEAST, if_equal: 0, if_not: 1, value: upper[0].first });
    let jump = program.len();
    program.push(instruction(JUMP, 0));
    search(lower, program, jumps);
    program[jump].value = (program.len() - jump - 1) as u32;
    search(upper, program, jumps);
}

/// Adds the checks of a call with these pointers.
fn check(pointers: u32, program: &mut Vec<Instruction>) {
    const FIRST: u32 = (WINDOW_BASE >> 32) as u32;
    const END: u32 = ((WINDOW_BASE + WINDOW_LEN) >> 32) as u32;
    /// Instructions of the check of one word.
    const EACH: u32 = 3;
    let upper_half = |index| instruction(LOAD_WORD, ARGUMENTS_OFFSET + 8 * index + 4);
    let mut left = pointers.count_ones();
    for index in (0..=LAST).filter(|index| pointers & 1 << index != 0) {
        left -= 1;
        program.push(upper_half(index));
        program.push(Instruction { code: JUMP_AT_LEAST, if_equal: 0, if_not: 1, value: FIRST });
        // A word in the range jumps over the checks of the other words and over the answer after them.
        program.push(Instruction { code: JUMP_AT_LEAST, if_equal: 0, if_not: (EACH * left + 1) as u8, value: END });
    }
    program.push(instruction(RETURN, RET_ALLOW));
    if pointers & 1 << LAST == 0 {
        program.push(upper_half(LAST));
        program.push(Instruction { code: JUMP_EQUAL, if_equal: 0, if_not: 1, value: PASS as u32 });
        program.push(instruction(RETURN, RET_ALLOW));
    }
    program.push(instruction(RETURN, RET_TRAP | MARK as u32));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter on a call, as the kernel does.
    fn answer(program: &[Instruction], number: u32, args: [usize; 6]) -> u32 {
        let mut data = [0u32; 16];
        (data[0], data[1]) = (number, THIS_ARCH);
        for (index, word) in args.into_iter().enumerate() {
            (data[4 + 2 * index], data[5 + 2 * index]) = (word as u32, (word >> 32) as u32);
        }
        let (mut at, mut loaded) = (0, 0);
        for _ in 0..program.len() {
            let Instruction { code, if_equal, if_not, value } = program[at];
            at += 1;
            let chosen = |is: bool| usize::from(if is { if_equal } else { if_not });
            match code {
                LOAD_WORD => loaded = data[value as usize / 4],
                JUMP => at += value as usize,
                JUMP_EQUAL => at += chosen(loaded == value),
                JUMP_AT_LEAST => at += chosen(loaded >= value),
                RETURN => return value,
                _ => panic!("instruction {code:#x}"),
            }
        }
        panic!("the filter has no end")
    }

    #[test]
    fn exactly_the_pointers_into_the_range_are_trapped() {
        let program = program();
        assert!(program.len() < 4096, "{} instructions", program.len());
        let borders = [WINDOW_BASE, WINDOW_BASE + WINDOW_LEN - 1];
        let outside = [0, 1, 0x7fff_ffff_f000, WINDOW_BASE - 1, WINDOW_BASE + WINDOW_LEN, usize::MAX];
        for number in 0..600u32 {
            for index in 0..6 {
                let call = |word| {
                    let mut args = [0x1234; 6];
                    args[index] = word;
                    answer(&program, number, args)
                };
                let is_pointer = pointers(number.into()) & 1 << index != 0;
                let expected = if is_pointer { RET_TRAP | MARK as u32 } else { RET_ALLOW };
                assert!(borders.iter().all(|&word| call(word) == expected), "call {number}, word {index}");
                assert!(outside.iter().all(|&word| call(word) == RET_ALLOW), "call {number}, word {index}");
            }
        }
    }

    #[test]
    fn a_marked_call_passes() {
        let program = program();
        for &(number, _) in POINTERS {
            let mut args = [WINDOW_BASE; 6];
            args[LAST as usize] = PASS << 32;
            assert_eq!(may_mark(number), !traps_always(number, args), "call {number}");
            assert!(!may_mark(number) || answer(&program, number as u32, args) == RET_ALLOW, "call {number}");
        }
    }

    #[test]
    fn other_architectures_pass() {
        let program = program();
        assert_eq!((program[0].value, program[1].value), (ARCH_OFFSET, THIS_ARCH));
        assert_eq!(program[2].value, RET_ALLOW);
    }
}
