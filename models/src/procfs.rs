//! A replacement for `procfs.rs` of the runtime. It says which process the calling thread belongs to, and whether a
//! process runs. Each thread of a model plays one process.

use std::cell::Cell;

/// The process ID of a process that has ended without giving back its share or its lock.
pub(crate) const DEAD: u32 = 99;
/// The stack address of a program that has ended, because its process has executed another program.
pub(crate) const LEFT: u64 = 99;

loom::thread_local! {
    static OWN: Cell<(u32, u64)> = Cell::new((1, 0));
}

/// Makes the calling thread play the process `pid`, which runs the program with the stack `stack`.
pub(crate) fn be(pid: u32, stack: u64) {
    OWN.with(|own| own.set((pid, stack)));
}

pub(crate) fn own_pid() -> u32 {
    OWN.with(Cell::get).0
}

pub(crate) fn own_stack() -> u64 {
    OWN.with(Cell::get).1
}

pub(crate) fn is_running(pid: u32, stack: u64) -> bool {
    pid != DEAD && stack != LEFT
}
