//! The `LD_PRELOAD` shim of `hanare run`. It makes the program's large allocations far memory (memory whose evicted
//! pages are on memory servers). It also interposes the calls that manage memory, so that they keep their meaning on
//! far memory.
//!
//! This library only decides whether a call concerns far memory, and translates such a call into calls of
//! `hanare::far`. It does not know pages, servers or budgets. It asks the engine (`hanare::far`) which addresses are
//! far.
//!
//! Every function here keeps these rules:
//! - While the engine is active, an allocation of at least `far::threshold()` bytes is far (`heap` lists the
//!   exceptions). If far memory is exhausted, the allocation fails with `ENOMEM` instead of becoming near (ordinary
//!   memory).
//! - Calls from Hanare's own threads go to the C library or the kernel. So do calls in a forked child that cannot share
//!   its parent's far memory.
//! - Large static arrays become far before any code of the program runs (`statics`).
//! - In signal modes (sigbus and sigsegv), the kernel gets near copies of far data (`calls`).
//! - Small sizes are served before any thread-local is read. The dynamic linker allocates small blocks while it sets up
//!   thread-locals. Reading a thread-local during that time would call this library in an endless loop.
//! - The C library's `malloc` family is called at its address in that library (`hanare::near`), and the kernel is
//!   called by number. So no code here asks the dynamic linker for a symbol inside `malloc`, or calls the program's
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
#[cfg(target_arch = "x86_64")]
mod jumps;
mod locking;
mod lookups;
mod mapping;
mod masks;
mod numbers;
mod range;
mod robust;
mod signals;
mod stacks;
mod statics;
mod suited;
mod trap_stacks;
#[cfg(target_arch = "x86_64")]
mod trapped;

use hanare::far;
use hanare_settings::{Environment, Settings};
use hanare_sys::{environment, limits};

/// `start` runs before the program's `main` and before the constructors of its libraries.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

unsafe extern "C" {
    /// Returns the error that kept `binding.c` from binding this library's calls to the C library, or 0.
    safe fn hanare_binding_error() -> std::ffi::c_int;
}

extern "C" fn start() {
    code::find();
    // SAFETY: the program has not begun, so no other thread changes the environment.
    let environment = Environment::of(unsafe { environment::beginning_with("HANARE_") });
    if environment.get("HANARE_LOCAL").is_none() {
        return;
    }
    if let Some(why) = suited::sanitizer() {
        refuse(&why);
    }
    let unbound = hanare_binding_error();
    if unbound != 0 {
        let error = std::io::Error::from_raw_os_error(unbound);
        refuse(&format_args!("cannot bind the library's calls to the C library: {error}"));
    }
    let carried = environment.get(limits::VARIABLE);
    if let Err(error) = limits::begin(carried.as_deref().and_then(|text| text.to_str())) {
        refuse(&error);
    }
    masks::begin();
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
    #[cfg(target_arch = "x86_64")]
    far::trap_calls_by(trapped::begin);
    let imports = suited::Imports::find();
    if imports.has_rings {
        far::has_rings();
    }
    if Settings::chooses_mode(&environment) && !imports.suit_signals() {
        far::needs_thread_mode();
    }
    let statics = Settings::statics_are_far(&environment);
    if let Err(error) = far::start_later(environment) {
        refuse(&error);
    }
    // If the program defines its own allocator, far memory starts now. The start creates threads, for which the dynamic
    // linker calls the program's `calloc`. A later start could happen inside that allocator while it holds a lock, and
    // would deadlock.
    heap::find();
    if heap::is_the_programs() {
        far::ensure_started();
    }
    masks::unblock_trap();
    trap_stacks::begin();
    if statics
        && !go::keeps_statics()
        && let Err(error) = statics::adopt()
    {
        refuse(&error);
    }
}

/// Checks whether valgrind runs the program. Valgrind adds a library of its own to `LD_PRELOAD`.
fn carries_valgrind() -> bool {
    std::env::var_os("LD_PRELOAD").is_some_and(|list| list.to_string_lossy().contains("/vgpreload_"))
}

/// Looks up symbols in advance. Code that resolves a fault or runs inside `malloc` needs them, and must not look them
/// up.
fn look_up() {
    break_::resolve();
    calls::real::resolve();
}

/// Ends the process before any code of the program runs. Without a working engine, the program would run in near memory
/// and exceed its budget.
fn refuse(error: &dyn std::fmt::Display) -> ! {
    answer::say(format_args!("hanare: {error}\n"));
    // SAFETY: `_exit` ends the process immediately. 125 is the exit code of Hanare's own errors before the program
    // runs.
    unsafe { libc::_exit(125) }
}
