//! Tests the calls that Hanare must carry out itself on far memory. Each call works as on ordinary memory, or is
//! refused with an errno that programs expect. No call is accepted and then ignored if a program could notice that.

use hanare_sys::features::{Disabled, Features};
use hanare_tests::{Place, built, figures, mode_works, system_calls_work_on_far_pages};

const MODES: [&str; 3] = ["thread", "sigbus", "sigsegv"];

fn works(mode: &str) -> bool {
    match mode {
        "thread" => system_calls_work_on_far_pages(),
        mode => mode_works(mode),
    }
}

/// Checks that the workload prints the same as without Hanare, in every mode and page size, and that its pages are
/// evicted. The program has at most `processes` processes at a time. Each needs four pages.
fn same_everywhere(program: &str, processes: u64, paged_bytes: u64) {
    let place = Place::new();
    place.run(&mut place.command(built().workload(program))).assert_well(&format!("{program} natively"));
    for mode in MODES.into_iter().filter(|mode| works(mode)) {
        for page_size in ["auto", "4K", "64K", "2M"] {
            let json = place.path("json");
            let local = if page_size == "2M" { format!("{}M", 8 * processes) } else { "8M".to_owned() };
            let flags = ["run", "--local", &local, "--mode", mode, "--page-size", page_size, "--stats-json"];
            let mut command = place.hanare(flags);
            command.arg(&json).arg("--").arg(built().workload(program));
            let outcome = place.run(&mut command);
            let what = format!("{program} in {mode} mode with pages of {page_size}");
            outcome.assert_well(&what);
            assert!(outcome.text().starts_with(&format!("ok {program}: ")), "{what}: {outcome:?}");
            figures(&json).assert_paged(paged_bytes, &what);
        }
    }
    place.assert_nothing_left();
}

#[test]
fn advice_does_what_it_says_or_is_refused() {
    same_everywhere("advice", 2, 12 << 20);
}

/// Threads make single pages inaccessible while neighbouring pages are evicted and fetched. A range that lies in
/// several mappings cannot be moved as a whole, and must keep its contents.
#[test]
fn pages_beside_closed_ones_keep_their_words() {
    let place = Place::new();
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for page_size in ["auto", "64K", "2M"] {
            let mut command = place.hanare(["run", "--local", "16M", "--mode", mode, "--page-size", page_size, "--"]);
            let outcome = place.run(command.arg(built().workload("closed")).args(["16M", "3", "2000"]));
            outcome.assert_well(&format!("{mode} mode, pages of {page_size}"));
            assert!(outcome.text().starts_with("ok closed: "), "{outcome:?}");
        }
    }
    place.assert_nothing_left();
}

#[test]
fn pages_given_to_a_pipe_or_a_socket_stay_what_they_were() {
    same_everywhere("splice", 1, 16 << 20);
}

#[test]
fn limits_that_the_program_sets_hold_and_read_back() {
    same_everywhere("limits", 2, 64 << 20);
}

/// Sets limits before the run starts. A soft limit must apply to the program. A hard limit that is too low for Hanare
/// must end the run before the program begins.
#[test]
fn limits_set_before_the_run_hold_or_are_refused() {
    let place = Place::new();
    let run = |ulimit: &str, mode: &str, size: &str| {
        let script = format!("ulimit {ulimit} 1048576 && exec \"$0\" \"$@\"");
        let mut command = place.command("sh");
        command.args(["-c", &script]).arg(built().hanare());
        command.args(["run", "--local", "8M", "--mode", mode, "--"]).arg(built().workload("touch")).arg(size);
        place.run(&mut command)
    };
    for mode in MODES.into_iter().filter(|mode| works(mode)) {
        for kind in ["v", "d"] {
            let what = format!("ulimit -S{kind} in {mode} mode");
            run(&format!("-S{kind}"), mode, "32M").assert_well(&what);
            let beyond = run(&format!("-S{kind}"), mode, "2G");
            assert!(beyond.text().contains("Cannot allocate memory"), "{what}: {beyond:?}");
            // In sigsegv mode, far memory is a shared mapping, which the limit on data does not count.
            if mode != "sigsegv" || kind == "v" {
                run(&format!("-{kind}"), mode, "32M").assert_ended_by_us(125, &format!("ulimit -S{kind}"));
            }
        }
    }
    place.assert_nothing_left();
}

/// A limit on the size of files also applies to shared memory. If the engine's memory exceeds it, the run must end with
/// a message before the program begins, and not by a signal.
#[test]
fn a_limit_on_files_ends_the_run_before_it_begins() {
    let place = Place::new();
    for mode in MODES.into_iter().filter(|mode| works(mode)) {
        let mut command = place.command("sh");
        command.args(["-c", "ulimit -f 2000 && exec \"$0\" \"$@\""]).arg(built().hanare());
        command.args(["run", "--local", "8M", "--mode", mode, "--"]).arg(built().workload("touch")).arg("32M");
        place.run(&mut command).assert_ended_by_us(125, "File too large");
    }
    place.assert_nothing_left();
}

#[test]
fn what_the_c_library_allocates_for_itself_can_be_given_to_the_kernel() {
    same_everywhere("streams", 1, 12 << 20);
}

/// The C library may wait in the kernel on data in a small block. So small blocks can be far only in thread mode, and in
/// sigbus mode if a filter traps such a wait.
#[test]
fn small_far_blocks_are_refused_where_the_kernel_cannot_access_them() {
    let place = Place::new();
    let run = |mode: &str, far: &str, disable: &str, workload: &str| {
        let mut command = place.hanare(["run", "--local", "8M", "--mode", mode, "--far", far, "--"]);
        command.env("HANARE_DISABLE", disable).arg(built().workload(workload));
        place.run(&mut command)
    };
    for mode in ["sigbus", "sigsegv"].into_iter().filter(|mode| works(mode)) {
        for far in ["all", "4K", "131071"] {
            run(mode, far, "filter", "streams").assert_ended_by_us(125, "leave --far large");
        }
        run(mode, "128K", "filter", "streams").assert_well(mode);
    }
    if works("thread") {
        run("thread", "all", "filter", "streams").assert_well("thread");
    }
    let calls = Features::probe(&Disabled::default()).calls;
    if works("sigbus") && calls.filter && calls.dispatch {
        for workload in ["streams", "calls", "robust", "lookups", "instructions", "numbers"] {
            for far in ["all", "4K"] {
                run("sigbus", far, "", workload).assert_well(&format!("{workload}, far {far}, in sigbus mode"));
            }
        }
    }
    place.assert_nothing_left();
}

#[test]
fn the_programs_own_memory_is_read_by_the_kernel_or_refused() {
    same_everywhere("own", 1, 16 << 20);
}

/// A call to an address in far memory is the program's own mistake, and must end the program. Guards against a call
/// that repeats for ever in modes in which accesses trap by protection.
#[test]
fn a_jump_into_far_memory_ends_as_it_does_without() {
    let place = Place::new();
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for page_size in ["4K", "2M"] {
            let mut command = place.hanare(["run", "--local", "16M", "--mode", mode, "--page-size", page_size, "--"]);
            let outcome = place.run(command.arg(built().workload("jump")));
            assert_eq!((outcome.code, outcome.text()), (Some(139), "ok jump: heard\n".into()), "{mode}, {page_size}");
        }
    }
    place.assert_nothing_left();
}

/// A program may have exceptions of floating-point arithmetic end it, forbid unaligned accesses, or forbid the time stamp
/// counter. Hanare's own code computes, accesses unaligned words and reads the clock.
#[test]
fn unusual_modes_of_the_processor_are_the_programs_alone() {
    let place = Place::new();
    for what in ["floats", "alignment", "clock"] {
        for mode in MODES.into_iter().filter(|mode| works(mode)) {
            let mut command = place.hanare(["run", "--local", "8M", "--mode", mode, "--"]);
            let outcome = place.run(command.arg(built().workload("processor")).arg(what));
            let is_skipped = outcome.code == Some(77) && outcome.text().starts_with("skipped: ");
            if !is_skipped {
                outcome.assert_well(&format!("{what} in {mode} mode"));
                assert_eq!(outcome.text(), format!("ok processor: {what}\n"));
            }
        }
    }
    place.assert_nothing_left();
}

/// Guards against threads that never go on. One instruction needs four pages at the same time, and local memory holds four
/// or a few more. So each thread evicts the pages of the others.
#[test]
fn threads_go_on_where_their_pages_do_not_fit_together() {
    let place = Place::new();
    for mode in MODES.into_iter().filter(|mode| works(mode)) {
        for (page_size, local) in [("4K", "20K"), ("64K", "512K"), ("2M", "10M")] {
            for threads in ["1", "8"] {
                let flags = ["--mode", mode, "--page-size", page_size, "--local", local];
                let mut command = place.hanare(["run"]);
                let outcome =
                    place.run(command.args(flags).arg("--").arg(built().workload("straddle")).args([threads, "10"]));
                outcome.assert_well(&format!("{threads} threads, {flags:?}"));
                assert_eq!(outcome.text(), "ok straddle\n");
            }
        }
    }
    place.assert_nothing_left();
}
