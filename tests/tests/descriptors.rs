//! Tests programs that act on all descriptors and all threads of their process, including Hanare's own. They close or
//! use up all descriptors, change user and groups, or cancel threads. No word may be wrong, and no program may hang.

use std::time::Duration;

use hanare_sys::features::{Disabled, Features};
use hanare_tests::{
    Outcome, Place, Served, built, figures, installed, mode_works, python_with, system_calls_are_trapped,
};

const MODES: [&str; 3] = ["thread", "sigbus", "sigsegv"];
/// Time limit of a run. A run that hangs never ends by itself.
const LIMIT: Duration = Duration::from_secs(60);
const WAYS: [&str; 7] = ["range", "from", "loop", "dup2", "dup3", "number", "proc"];

fn run(place: &Place, mode: &str, program: &[&str]) -> Outcome {
    let json = place.path("json");
    let mut command = place.hanare(["run", "--local", "4M", "--mode", mode, "--stats-json"]);
    command.arg(&json).arg("--").args(program);
    place.start(&mut command).finish(LIMIT)
}

/// Runs `descriptors` with each of `ways` in all modes, and asserts that every word was right.
fn all_right(ways: &[&str]) {
    let program = built().workload("descriptors");
    let program = program.to_str().expect("a path of text");
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for way in ways {
            let place = Place::new();
            let outcome = run(&place, mode, &[program, "8M", way]);
            let what = format!("{mode}, {way}");
            outcome.assert_well(&what);
            assert_eq!(outcome.text(), format!("ok descriptors: {way}\n"), "{what}");
            figures(&place.path("json")).assert_paged(8 << 20, &what);
            place.assert_nothing_left();
        }
    }
}

#[test]
fn a_program_that_closes_all_descriptors_keeps_its_memory() {
    all_right(&WAYS);
}

/// A program may count on getting the lowest free number for its next descriptor. So Hanare's threads open no files
/// while the program runs.
#[test]
fn a_program_gets_the_lowest_free_descriptors() {
    all_right(&["lowest"]);
}

#[test]
fn children_that_close_all_descriptors_keep_their_memory() {
    all_right(&["child", "daemon", "exec"]);
}

#[test]
fn a_program_without_descriptors_keeps_its_memory() {
    all_right(&["full", "full-fork", "lower", "soft-first"]);
}

/// With a limit of 0, the kernel refuses every wait for a descriptor, also for an open one.
#[test]
fn a_program_that_may_have_no_descriptor_keeps_its_memory() {
    all_right(&["zero"]);
    let program = built().workload("descriptors");
    let program = program.to_str().expect("a path of text");
    let place = Place::new();
    let server = Served::tcp(&place, "64M");
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        let mut command = place.hanare(["run", "--local", "4M", "--mode", mode, "--server", &server.address, "--"]);
        let outcome = place.run(command.args([program, "8M", "zero"]));
        outcome.assert_well(mode);
        assert_eq!(outcome.text(), "ok descriptors: zero\n", "{mode}");
    }
}

/// Far memory starts with the first large allocation in thread mode, and in sigbus mode if both traps of system calls
/// work. Otherwise it starts before the program's `main`.
#[test]
fn far_memory_that_cannot_start_for_want_of_descriptors_says_so() {
    let program = built().workload("descriptors");
    let program = program.to_str().expect("a path of text");
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        let outcome = run(&Place::new(), mode, &[program, "8M", "full-first"]);
        match mode == "thread" || mode == "sigbus" && system_calls_are_trapped() {
            true => outcome.assert_ended_by_us(125, "file descriptors beside the 256 that the program has open"),
            false => outcome.assert_well(mode),
        }
    }
}

#[test]
fn a_descriptor_that_is_lost_all_the_same_ends_the_run() {
    let program = built().workload("descriptors");
    let program = program.to_str().expect("a path of text");
    let is_dispatched = Features::probe(&Disabled::default()).calls.dispatch;
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        if mode == "sigbus" && is_dispatched {
            // Dispatch traps the program's own calls, and Hanare's descriptors appear closed to them.
            for how in ["raw", "raw-trap"] {
                run(&Place::new(), mode, &[program, "8M", how]).assert_well(how);
            }
            continue;
        }
        let outcome = run(&Place::new(), mode, &[program, "8M", "raw"]);
        // The exit code depends on which lost descriptor Hanare notices first.
        let code = if outcome.code == Some(120) { 120 } else { 123 };
        outcome.assert_ended_by_us(code, "");
        if mode != "sigsegv" {
            let outcome = run(&Place::new(), mode, &[program, "8M", "raw-trap"]);
            // The message depends on which thread notices the loss first: the thread that waits for faults, or a thread
            // that resolves them.
            outcome.assert_ended_by_us(123, "");
            let told = ["userfaultfd is lost", "the program closed a descriptor of Hanare's"];
            assert!(told.iter().any(|part| outcome.stderr.contains(part)), "{outcome:?}");
        }
    }
}

#[test]
fn user_and_groups_change_and_threads_are_cancelled_while_far_memory_is_busy() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root may change its groups");
        return;
    }
    let program = built().workload("identity");
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for (far, stack) in [("large", None), ("large", Some("--stack")), ("all", None), ("all", Some("--stack"))] {
            // Only thread mode supports far small blocks and far stacks from malloc.
            if mode != "thread" && (far, stack) != ("large", None) {
                continue;
            }
            let place = Place::new();
            let mut command = place.hanare(["run", "--local", "8M", "--mode", mode, "--far", far, "--"]);
            command.arg(&program).args(stack);
            let outcome = place.start(&mut command).finish(LIMIT);
            outcome.assert_well(&format!("{mode}, {far}, {stack:?}"));
            assert!(outcome.text().starts_with("ok identity: "), "{outcome:?}");
            place.assert_nothing_left();
        }
    }
}

/// Checks that programs can still start other programs and close the descriptors that those must not inherit.
#[test]
fn shells_and_python_start_programs_as_ever() {
    let python = "import subprocess, os, sys\n\
        big = bytearray(b'x' * (8 << 20))\n\
        for n in range(4):\n\
        \tout = subprocess.run(['cat'], input=bytes(big), stdout=subprocess.PIPE, close_fds=True).stdout\n\
        \tassert out == bytes(big)\n\
        pid = os.fork()\n\
        os.closerange(3, 1 << 16)\n\
        assert big == b'x' * (8 << 20)\n\
        if pid == 0: os._exit(7)\n\
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n\
        print('well')";
    let shell = "exec 3>&1 9</dev/null; x=$(head -c 3000000 /dev/zero | tr '\\0' y); \
        for n in 1 2 3; do (exec 3>&- 9<&-; echo ${#x}) | cat; done; exec 200</dev/null 200<&-; echo well >&3";
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        if installed("bash", "bash") {
            let outcome = run(&Place::new(), mode, &["bash", "-c", shell]);
            outcome.assert_well(mode);
            assert_eq!(outcome.text(), "3000000\n3000000\n3000000\nwell\n", "{mode}");
        }
        if let Some(program) = python_with("subprocess") {
            let outcome = run(&Place::new(), mode, &[program.to_str().expect("text"), "-c", python]);
            outcome.assert_well(mode);
            assert_eq!(outcome.text(), "well\n", "{mode}");
        }
    }
}
