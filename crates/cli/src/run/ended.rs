//! Lines on standard error about an end of the program that it may not have caused itself.

use std::sync::atomic::Ordering::Relaxed;

use hanare::stats::Stats;
use hanare_settings::{Mode, human_size};

use crate::message::say;
use crate::supervise::End;

const SIGBUS: u8 = 7;
const SIGSEGV: u8 = 11;

/// Explains the end of a run.
pub(super) fn explain(end: &End, mode: Mode, stats: &Stats) {
    let far_bytes = stats.far_bytes.load(Relaxed);
    warn_of_core(end, far_bytes);
    explain_fault(end, mode, far_bytes);
    if matches!(end, End::OutOfMemory) {
        let (near, local) = (stats.private_bytes_peak.load(Relaxed), stats.local_bytes_peak.load(Relaxed));
        // Without far memory, nobody has measured it.
        let had = if near + local > 0 {
            format!(" {} of the program were near, and {} were local.", human_size(near), human_size(local))
        } else {
            String::new()
        };
        say(&format!(
            "the program was ended by SIGKILL, and meanwhile the kernel ended a process for want of memory.{had} Try less \
             --local, or a smaller --near"
        ));
    }
}

/// Says that a core file lacks far memory. Debuggers show zeroes in its place, which must not be mistaken for data.
fn warn_of_core(end: &End, far_bytes: u64) {
    if end.dumped_core() && far_bytes > 0 {
        say(&format!(
            "the core file lacks the program's {} of far memory: debuggers show zeroes there, or nothing; \
             see docs/debugging.md",
            human_size(far_bytes)
        ));
    }
}

/// Explains a SIGSEGV or SIGBUS that the program may not have caused. The kernel writes a signal frame to the stack. If
/// that page of the stack is absent far memory, it ends the program by SIGSEGV. If the trap's signal is blocked, as the C
/// library does in some threads of its own, an access to absent far memory ends the program by this signal. Nothing in
/// the program can report either.
fn explain_fault(end: &End, mode: Mode, far_bytes: u64) {
    const ON_STACK: &str = "a signal on a far stack, such as a coroutine's, without an alternate one";
    const BLOCKED: &str = "an access to far memory by a thread that blocks every signal";
    let (name, causes) = match (end.signal(), mode) {
        (Some(SIGSEGV), Mode::Sigbus) => ("SIGSEGV", vec![ON_STACK]),
        (Some(SIGSEGV), Mode::Sigsegv) => ("SIGSEGV", vec![ON_STACK, BLOCKED]),
        (Some(SIGBUS), Mode::Sigbus) => ("SIGBUS", vec![BLOCKED]),
        _ => return,
    };
    if far_bytes > 0 {
        say(&format!(
            "the program was ended by {name}: most likely its own mistake. In {mode} mode, unlike thread mode, it may also be {}. \
             If the program runs well with --mode thread, see docs/modes.md",
            causes.join(", or ")
        ));
    }
}
