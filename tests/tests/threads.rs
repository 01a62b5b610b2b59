//! Tests the ways in which threads end. They are cancelled in a wrapped call, end by pthread_exit as the last thread,
//! run on stacks that the program provides, or own mutexes for which others wait. Each program must print the same as
//! without Hanare, in every mode.

use hanare_tests::{Place, built, figures, installed, mode_works, system_calls_work_on_far_pages};

const MODES: [&str; 3] = ["thread", "sigbus", "sigsegv"];

fn works(mode: &str) -> bool {
    match mode {
        "thread" => system_calls_work_on_far_pages(),
        mode => mode_works(mode),
    }
}

/// Checks that the workload prints the same as without Hanare and has the same exit code. At least `paged_bytes` bytes
/// must be evicted and fetched.
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

/// A thread that may be cancelled at any instruction must end as natively, also while an access of it to far memory is
/// resolved.
#[test]
fn threads_are_cancelled_at_any_instruction() {
    same_everywhere("asynchronous", &[], 12 << 20);
}

/// The handlers of faults that are not Hanare's may throw exceptions.
#[test]
fn handlers_of_faults_throw_exceptions() {
    same_everywhere("thrown", &[], 12 << 20);
}

/// A process must end when the last thread of the program ends, although Hanare's own threads still run.
#[test]
fn processes_end_with_the_last_thread_of_the_program() {
    for how in ["main", "worker", "child", "raw", "behind"] {
        same_everywhere("ending", &[how], 12 << 20);
    }
}

/// The kernel accesses some data at the end of a thread. This data must never be evicted. In modes in which accesses
/// trap by a signal, no part of a thread's stack may ever be evicted.
#[test]
fn threads_on_far_stacks_are_joined() {
    same_everywhere("stacks", &[], 12 << 20);
}

/// A robust mutex must report to its next owner that its last owner has ended, even if the mutex's page was evicted at
/// that time.
#[test]
fn robust_mutexes_outlive_their_owners() {
    same_everywhere("robust", &[], 12 << 20);
}

/// A program of one thread gives up root and keeps the right to change its groups. Capabilities belong to a thread, so
/// Hanare's threads do not have this right, and the C library would end the process.
#[test]
fn a_program_that_keeps_capabilities_changes_its_groups() {
    if rustix::process::geteuid().is_root() {
        same_everywhere("identity", &["--keep-rights"], 12 << 20);
    }
}

/// A program that is executed by another user than the run's may not reach the private server. Without far memory
/// the program must run as usual.
#[test]
fn programs_executed_without_root_run_until_they_need_far_memory() {
    if !rustix::process::geteuid().is_root() || !installed("setpriv", "util-linux") || !installed("perl", "perl") {
        return;
    }
    let place = Place::new();
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        let run = |program: &[&str]| {
            let mut command = place.hanare(["run", "--local", "8M", "--mode", mode, "--"]);
            place.run(command.args(["setpriv", "--reuid", "65534", "--clear-groups", "--"]).args(program))
        };
        let small = run(&["id", "-u"]);
        assert_eq!(
            (small.code, small.text(), small.stderr.as_str()),
            (Some(0), "65534\n".into(), ""),
            "{mode}: {small:?}"
        );
        run(&["perl", "-e", "$x = 'a' x 9000000; print length $x"]).assert_ended_by_us(125, "hanare");
    }
    place.assert_nothing_left();
}
