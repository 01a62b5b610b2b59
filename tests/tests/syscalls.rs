//! Tests system calls on evicted far memory. In thread mode, the kernel's accesses trap like the program's. In sigbus
//! and sigsegv mode, the wrapped calls copy the data to memory that is never evicted, and pass the copies to the
//! kernel. Every argument of every call is checked.

use hanare_tests::{Place, Served, built, figures, mode_works, system_calls_work_on_far_pages};

fn check(program: &str, args: &[&str], flags: &[&str]) {
    let place = Place::new();
    let json = place.path("json");
    // Some of the programs fork, and each process needs four pages.
    let local = if flags.contains(&"2M") { "16M" } else { "8M" };
    let mut command = place.hanare(["run", "--local", local, "--stats-json"]);
    command.arg(&json).args(flags).arg("--").arg(built().workload(program)).args(args);
    let outcome = place.run(&mut command);
    let what = format!("{program} {flags:?}");
    outcome.assert_well(&what);
    assert!(outcome.text().starts_with(&format!("ok {program}: ")), "{what}: {outcome:?}");
    figures(&json).assert_paged(16 << 20, &what);
    place.assert_nothing_left();
}

fn in_mode(mode: &str) {
    for page_size in ["auto", "4K", "2M"] {
        check("calls", &[], &["--mode", mode, "--page-size", page_size]);
        check("syscalls", &["16M"], &["--mode", mode, "--page-size", page_size]);
        check("waits", &[], &["--mode", mode, "--page-size", page_size]);
        check("lookups", &[], &["--mode", mode, "--page-size", page_size]);
        check("numbers", &[], &["--mode", mode, "--page-size", page_size]);
        check("wrapped", &[], &["--mode", mode, "--page-size", page_size]);
        check("named", &[], &["--mode", mode, "--page-size", page_size]);
        check("counted", &[], &["--mode", mode, "--page-size", page_size]);
        check("locals", &[], &["--mode", mode, "--page-size", page_size]);
        check("blocking", &[], &["--mode", mode, "--page-size", page_size]);
    }
    check("open", &[], &["--mode", mode]);
    check("storm", &[], &["--mode", mode]);
    check("flood", &[], &["--mode", mode]);
    // In sigsegv mode a fault on a huge page takes longer than the interval of the timer.
    if mode != "sigsegv" {
        check("alarms", &[], &["--mode", mode]);
        check("alarms", &[], &["--mode", mode, "--page-size", "2M"]);
    }
    check("hooks", &[], &["--mode", mode]);
    check("hooks_defined", &[], &["--mode", mode]);
    if mode == "thread" {
        check("lookups", &[], &["--mode", mode, "--far", "all"]);
    }
    let place = Place::new();
    let server = Served::tcp(&place, "256M");
    check("calls", &[], &["--mode", mode, "--server", &server.address]);
}

#[test]
fn in_thread_mode() {
    if system_calls_work_on_far_pages() {
        in_mode("thread");
    }
}

#[test]
fn in_sigbus_mode() {
    if mode_works("sigbus") {
        in_mode("sigbus");
        for page_size in ["auto", "64K", "2M"] {
            check("instructions", &[], &["--mode", "sigbus", "--page-size", page_size]);
            check("numbers", &["own"], &["--mode", "sigbus", "--page-size", page_size]);
        }
    }
}

#[test]
fn in_sigsegv_mode() {
    in_mode("sigsegv");
}
