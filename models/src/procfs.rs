//! Processes, as in `procfs.rs` of the runtime: each is a thread of the model.

use std::cell::Cell;

/// The number of a process that has ended. What it held stays behind.
pub(crate) const DEAD: u32 = 99;
/// The stack of a program that its process has left by executing another.
pub(crate) const LEFT: u64 = 99;

loom::thread_local! {
    static OWN: Cell<(u32, u64)> = Cell::new((1, 0));
}

/// Makes the calling thread this process, which runs the program with this stack.
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
