//! Guards the ways in which threads end: cancelled in a wrapped call, by pthread_exit of the last one, on stacks of the
//! program, and with mutexes on which others wait. Each prints the same as natively, in every mode.

use hanare_tests::{Place, built, figures, mode_works, system_calls_work_on_far_pages};

const MODES: [&str; 3] = ["thread", "sigbus", "sigsegv"];

fn works(mode: &str) -> bool {
    match mode {
        "thread" => system_calls_work_on_far_pages(),
        mode => mode_works(mode),
    }
}

/// Checks that the workload prints the same as natively, with the same exit code, while at least `paged_bytes` leave
/// and come back.
fn same_everywhere(program: &str, args: &[&str], paged_bytes: u64) {
    let place = Place::new();
    let native = place.run(place.command(built().workload(program)).args(args));
    assert!(native.text().starts_with("ok ") && native.stderr.is_empty(), "{program} {args:?} natively: {native:?}");
    for mode in MODES.into_iter().filter(|mode| works(mode)) {
        for page_size in ["auto", "4K"] {
            let json = place.path("json");
            let mut command =
                place.hanare(["run", "--local", "8M", "--mode", mode, "--page-size", page_size, "--stats-json"]);
            command.arg(&json).arg("--").arg(built().workload(program)).args(args);
            let outcome = place.run(&mut command);
            let what = format!("{program} {args:?} in {mode} mode with pages of {page_size}");
            assert_eq!(
                (outcome.code, outcome.text(), outcome.stderr.as_str()),
                (native.code, native.text(), ""),
                "{what}: {outcome:?}"
            );
            figures(&json).assert_paged(paged_bytes, &what);
        }
    }
    place.assert_nothing_left();
}

#[test]
fn threads_are_cancelled_in_wrapped_calls() {
    same_everywhere("cancelled", &[], 12 << 20);
}

/// The last thread of the program ends the process, although Hanare's own threads still exist.
#[test]
fn processes_end_with_the_last_thread_of_the_program() {
    for how in ["main", "worker", "child", "raw", "behind"] {
        same_everywhere("ending", &[how], 12 << 20);
    }
}

/// Data that the kernel accesses at the end of a thread is never evicted. Where the trap is a signal, no part of the
/// stack is.
#[test]
fn threads_on_far_stacks_are_joined() {
    same_everywhere("stacks", &[], 12 << 20);
}

/// A mutex reports to its next owner that its last one has ended, even if its page was evicted at that time.
#[test]
fn robust_mutexes_outlive_their_owners() {
    same_everywhere("robust", &[], 12 << 20);
}
