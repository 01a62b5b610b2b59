//! Tests which trap mode each process gets where none is named (`auto`): sigbus mode where its system calls are served,
//! and thread mode for programs that sigbus mode does not suit.

use hanare_tests::{
    Figures, Outcome, Place, built, figures, installed, mode_works, system_calls_are_trapped,
    system_calls_work_on_far_pages,
};

/// Checks that both modes work here, and that both traps of system calls can be set.
fn auto_has_a_choice() -> bool {
    system_calls_are_trapped() && mode_works("sigbus") && system_calls_work_on_far_pages()
}

/// Runs a workload, and returns the mode of the run and its outcome.
fn run(flags: &[&str], disable: &str, program: &[&str]) -> (String, Outcome) {
    let (figures, outcome) = run_for_figures(flags, disable, program);
    (figures.mode().to_owned(), outcome)
}

fn run_for_figures(flags: &[&str], disable: &str, program: &[&str]) -> (Figures, Outcome) {
    let place = Place::new();
    let json = place.path("json");
    let mut command = place.hanare(["run", "--local", "4M", "--stats-json"]);
    command.arg(&json).args(flags).env("HANARE_DISABLE", disable).arg("--");
    let outcome = place.run(command.arg(built().workload(program[0])).args(&program[1..]));
    outcome.assert_well(&format!("{program:?} with {flags:?}"));
    place.assert_nothing_left();
    (figures(&json), outcome)
}

#[test]
fn a_program_runs_in_sigbus_mode_where_its_calls_are_served() {
    if !auto_has_a_choice() {
        return;
    }
    for (disable, mode) in [("", "sigbus"), ("filter", "thread"), ("dispatch", "thread"), ("kernel_faults", "sigbus")] {
        assert_eq!(run(&[], disable, &["rings", "after"]).0, mode, "without {disable:?}");
    }
}

/// strace stops Hanare's threads too, and reads arguments in absent pages meanwhile. In thread mode it can wait for ever.
#[test]
fn a_program_under_strace_runs_in_sigbus_mode() {
    if !auto_has_a_choice() || !installed("strace", "strace") {
        return;
    }
    let place = Place::new();
    let json = place.path("json");
    let mut tracer = place.command("strace");
    tracer.args(["-f", "-o"]).arg(place.path("trace")).arg(built().hanare());
    tracer.args(["run", "--local", "8M", "--stats-json"]).arg(&json).arg("--").arg(built().workload("streams"));
    place.run(&mut tracer).assert_well("under strace");
    assert_eq!(figures(&json).mode(), "sigbus");
}

#[test]
fn a_program_that_switches_stacks_runs_in_thread_mode() {
    if auto_has_a_choice() {
        assert_eq!(run(&[], "", &["coroutine"]).0, "thread");
        assert_eq!(run(&["--mode", "sigbus"], "", &["coroutine"]).0, "sigbus", "a mode that is named");
    }
}

#[test]
fn a_child_on_a_far_stack_runs_in_thread_mode() {
    if auto_has_a_choice() {
        let (got, outcome) = run(&[], "", &["cloned"]);
        assert_eq!((got.as_str(), outcome.text().as_str()), ("thread", "ok cloned\n"));
    }
}

/// The start is deferred in thread mode too, so the C library's heap is limited.
#[test]
fn small_blocks_become_far_in_a_program_that_switches_stacks() {
    if auto_has_a_choice() {
        let (seen, _) = run_for_figures(&["--near", "4M"], "", &["coroutine", "48"]);
        assert_eq!(seen.mode(), "thread");
        let private = seen.number("private_bytes_peak") >> 20;
        assert!(private < 4 + 24, "{private} MiB that are not far");
    }
}

/// Imports libseccomp, or sets a filter before the first far block. The filter forbids the calls of a start and of a trap.
#[test]
fn a_program_that_confines_itself_pages_on() {
    if !auto_has_a_choice() {
        return;
    }
    for (program, when) in [("sandbox", "filter"), ("sandboxed", "filled")] {
        let (got, outcome) = run(&[], "", &[program, when]);
        assert_eq!((got.as_str(), outcome.text().as_str()), ("thread", "ok sandbox\n"), "{program} {when}");
    }
    if rustix::process::geteuid().is_root() {
        let root = Place::new();
        for mode in ["thread", "sigbus"] {
            let directory = root.path("").display().to_string();
            let (got, outcome) = run(&["--mode", mode], "", &["sandbox", "root", &directory]);
            assert_eq!((got.as_str(), outcome.text().as_str()), (mode, "ok sandbox\n"));
        }
    }
}

#[test]
fn a_program_with_asynchronous_io_runs_in_thread_mode_or_without_it() {
    if !auto_has_a_choice() {
        return;
    }
    let natively = Place::new();
    let natively = natively.run(natively.command(built().workload("rings")).arg("before")).text();
    let refused = "ok rings: Function not implemented\n";
    for (flags, when, mode, answer) in [
        (&[][..], "before", "thread", natively.as_str()),
        (&[], "after", "sigbus", refused),
        (&["--mode", "sigbus"], "after", "sigbus", &natively),
        (&["--mode", "thread"], "after", "thread", &natively),
    ] {
        let (got, outcome) = run(flags, "", &["rings", when]);
        assert_eq!((got.as_str(), outcome.text().as_str()), (mode, answer), "{flags:?}, {when}");
    }
}
