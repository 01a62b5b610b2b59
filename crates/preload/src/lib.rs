//! The `LD_PRELOAD` shim of `hanare run`: the program's large allocations become far memory, and the calls that manage
//! memory keep their meaning on it.
//!
//! This room only decides *whether* a call concerns far memory and translates it into calls of `hanare::far`. It does
//! not know pages, servers or budgets. It has no state of its own except the program's break: it asks the engine which
//! addresses are far.
//!
//! The rules that every function here keeps:
//! - An allocation of at least `far::threshold()` is far while the engine is active. If far memory is exhausted, it
//!   fails with `ENOMEM` instead of becoming near. On Hanare's own threads, and in a forked child that cannot share its
//!   parent's far memory, every call goes to the C library or the kernel.
//! - Large arrays that the program is linked with are far before any of its code runs (`statics`).
//! - In signal modes, the kernel never sees a far address (`calls`).
//! - Small sizes are handled before any thread-local is read: the dynamic linker allocates small blocks while it sets
//!   up thread-locals, and would otherwise call this library in an endless loop.
//! - The C library's `malloc` family is called at its address in that library (`hanare::near`), and the kernel is
//!   called by number. So nothing here asks the dynamic linker for a symbol inside `malloc`, or calls itself or the
//!   program's allocator.
//! - `errno` is set only on failure.

mod advice;
mod answer;
mod break_;
mod calls;
mod code;
mod entry;
mod fork;
mod go;
mod heap;
mod locale;
mod locking;
mod lookups;
mod mapping;
mod numbers;
mod range;
mod robust;
mod signals;
mod stacks;
mod statics;

use hanare::far;
use hanare_settings::{Environment, Settings};
use hanare_sys::{environment, limits};

/// Runs before the program's `main` and before the constructors of its libraries.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    code::find();
    // SAFETY: the program has not begun, so no other code runs.
    let environment = Environment::of(unsafe { environment::beginning_with("HANARE_") });
    if environment.get("HANARE_LOCAL").is_none() {
        return;
    }
    let carried = environment.get(limits::VARIABLE);
    if let Err(error) = limits::begin(carried.as_deref().and_then(|text| text.to_str())) {
        refuse(&error);
    }
    far::before_start(look_up);
    if let Err(error) = fork::watch() {
        refuse(&std::io::Error::from_raw_os_error(error));
    }
    if carries_valgrind() {
        refuse(
            &"valgrind runs one thread at a time, so nobody could serve this program's faults; run it without hanare",
        );
    }
    stacks::find();
    go::find();
    let statics = Settings::statics_are_far(&environment);
    if let Err(error) = far::start_later(environment) {
        refuse(&error);
    }
    // If the program has an allocator of its own, far memory starts now. For threads of Hanare that start later, the
    // dynamic linker would allocate by the program's `calloc`, and the first far allocation may come from that very
    // allocator while it holds a lock.
    if heap::is_the_programs() {
        far::ensure_started();
    }
    signals::unblock_trap();
    if statics
        && !go::keeps_statics()
        && let Err(error) = statics::adopt()
    {
        refuse(&error);
    }
}

/// Whether valgrind runs the program. Valgrind loads a library of its own into the program.
fn carries_valgrind() -> bool {
    std::env::var_os("LD_PRELOAD").is_some_and(|list| list.to_string_lossy().contains("/vgpreload_"))
}

/// Looks up the symbols that are needed while a fault is resolved or inside `malloc`, where a lookup is not allowed.
fn look_up() {
    break_::resolve();
    calls::real::resolve();
}

/// Ends the process before any code of the program runs: without a working engine, the program would run in near memory
/// and exceed its budget.
fn refuse(error: &dyn std::fmt::Display) -> ! {
    answer::say(format_args!("hanare: {error}\n"));
    // SAFETY: ends the process at once. 125 is the code of Hanare's own errors before the program ran.
    unsafe { libc::_exit(125) }
}
