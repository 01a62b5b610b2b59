//! The `LD_PRELOAD` shim of `hanare run`: the program's large allocations become far memory, and the calls that manage
//! memory keep their meaning on it.
//!
//! This room only decides *whether* a call concerns far memory and translates it into the words of `hanare::far`. It
//! must not know pages, servers or budgets, and it holds no state of its own but the program's break: what is far is asked
//! of the engine by address.
//!
//! The rules every function here keeps:
//! - An allocation of at least `far::threshold()` is far while the engine is active, and fails with `ENOMEM` rather than
//!   becoming near when far memory is exhausted. On Hanare's own threads, and in a forked child that
//!   cannot share its parent's far memory, every call goes to the C library or the kernel.
//! - What the program is linked with as large arrays is far before anything of it runs (`statics`).
//! - Where the trap is a signal, the kernel never sees a far address (`calls`).
//! - Small sizes are decided before any thread-local is looked at: the dynamic linker allocates (small blocks) while it
//!   sets up thread-locals, and would come back here without end.
//! - The C library's `malloc` family is reached by where it lies in that library (`hanare::near`) and the kernel by number,
//!   so nothing here asks the dynamic linker for a symbol inside `malloc`, or calls itself or the program's allocator.
//! - `errno` is set on failure only.

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
    // SAFETY: the program has not begun, so there is nobody else.
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
    // Threads of Hanare's that start later would have the dynamic linker allocate by the program's `calloc`. The first far
    // allocation may come from within that very allocator, which holds a lock then.
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

/// Whether valgrind runs the program: it loads a library of its own into it.
fn carries_valgrind() -> bool {
    std::env::var_os("LD_PRELOAD").is_some_and(|list| list.to_string_lossy().contains("/vgpreload_"))
}

/// Looks up what a fault must not be resolved with a symbol lookup for, or `malloc` be.
fn look_up() {
    break_::resolve();
    calls::real::resolve();
}

/// Ends the process before the program ran a single line: half-started it would run in near memory, over its budget.
fn refuse(error: &dyn std::fmt::Display) -> ! {
    answer::say(format_args!("hanare: {error}\n"));
    // SAFETY: ends the process at once; 125 is Hanare's own error before the program ran.
    unsafe { libc::_exit(125) }
}
