//! The library that `hanare run` preloads (`LD_PRELOAD`) into a program. It makes the program's large allocations far,
//! and makes the calls that manage memory also work on far memory.
//!
//! This library only decides whether a call concerns far memory, and translates such a call into calls of
//! `hanare::far`. It does not know pages, servers or budgets. It keeps no table of
//! far addresses: it asks the engine which addresses are far.
//!
//! All functions here keep these rules:
//! - An allocation of at least `far::threshold()` bytes is far while the engine is active. If far memory is exhausted,
//!   the allocation fails with `ENOMEM` instead of becoming near.
//! - On Hanare's own threads, and in a forked child that cannot share its parent's far memory, every call goes to the C
//!   library or the kernel.
//! - Large arrays that the program is linked with are far before any of its code runs (`statics`).
//! - In signal modes, the kernel never sees a far address (`calls`).
//! - Small sizes are checked before any thread-local is read. The dynamic linker allocates small blocks while it sets
//!   up thread-locals, so reading one would call this library in an endless loop.
//! - The C library's `malloc` family is called by its address in the C library (`hanare::near`), and the kernel is
//!   called by number. So no function here looks up a symbol inside `malloc`, or calls itself or the program's own
//!   allocator.
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
    // SAFETY: the program has not started yet, so no other code changes the environment.
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
    // If the program has its own allocator, far memory starts now. A later start could deadlock: it creates Hanare's
    // threads, and for each of them the dynamic linker calls the program's `calloc`. The program's allocator may hold a
    // lock at that moment, because its own allocation may be the one that starts far memory.
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

/// Checks whether valgrind runs the program. Valgrind preloads a library of its own (`vgpreload_*`) into the program.
fn carries_valgrind() -> bool {
    std::env::var_os("LD_PRELOAD").is_some_and(|list| list.to_string_lossy().contains("/vgpreload_"))
}

/// Looks up the symbols that are used during a fault or inside `malloc`, where a lookup could wait for ever or recurse.
fn look_up() {
    break_::resolve();
    calls::real::resolve();
}

/// Ends the process before any code of the program runs. Without a working engine, the program would run in near memory
/// and exceed its budget.
fn refuse(error: &dyn std::fmt::Display) -> ! {
    answer::say(format_args!("hanare: {error}\n"));
    // SAFETY: `_exit` ends the process at once. 125 is the exit code of Hanare's own errors before the program runs.
    unsafe { libc::_exit(125) }
}
