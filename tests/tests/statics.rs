//! Tests static arrays. The large .bss and .data of a program and of its library become far before `main`, keep their
//! contents, and stay within the budget, in every trap mode and page size.

use std::process::Command;

use hanare_tests::{Figures, Outcome, Place, Served, built, figures, mode_works};

const MODES: [&str; 3] = ["thread", "sigbus", "sigsegv"];

/// Returns the size of the arrays that `statics` uses. It is larger with `HANARE_TEST_FULL`.
fn size() -> &'static str {
    if std::env::var_os("HANARE_TEST_FULL").is_some() { "400M" } else { "48M" }
}

fn run(place: &Place, flags: &[&str], program: &str, set: impl Fn(&mut Command)) -> (Outcome, Figures) {
    let json = place.path("json");
    let mut command = place.hanare(["run", "--stats-json"]);
    command.arg(&json).args(flags).arg("--").arg(built().workload(program));
    if program == "statics" {
        command.arg(size());
    }
    set(&mut command);
    let outcome = place.run(&mut command);
    let what = format!("{program} {flags:?}");
    outcome.assert_well(&what);
    assert!(outcome.text().starts_with(&format!("ok {program}: ")), "{what}: {outcome:?}");
    (outcome, figures(&json))
}

#[test]
fn in_every_mode_and_page_size() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for page_size in ["auto", "4K", "64K", "2M"] {
            let place = Place::new();
            let flags = ["--local", "10M", "--mode", mode, "--page-size", page_size];
            let (_, seen) = run(&place, &flags, "statics", |_| ());
            seen.assert_paged(48 << 20, &format!("{flags:?}"));
            // The program's arrays take 400 MiB. They and the library's arrays must all count as far memory.
            assert!(seen.number("far_bytes_peak") >= 400 << 20, "{} bytes were far", seen.number("far_bytes_peak"));
            place.assert_nothing_left();
        }
    }
}

#[test]
fn of_objects_with_constructors() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        let place = Place::new();
        let flags = ["--local", "8M", "--mode", mode];
        let (outcome, seen) = run(&place, &flags, "statics_cxx", |_| ());
        assert!(outcome.text().ends_with("destroyed\n"), "{mode}: {outcome:?}");
        seen.assert_paged(16 << 20, mode);
        place.assert_nothing_left();
    }
}

#[test]
fn over_a_link_and_with_a_share_of_them_local() {
    let place = Place::new();
    let server = Served::tcp(&place, "1G");
    let flags = ["--server", server.address.as_str(), "--local", "25%"];
    let (_, seen) = run(&place, &flags, "statics", |_| ());
    seen.assert_within_budget("a quarter");
    let (peak, far) = (seen.number("local_bytes_budget"), seen.number("far_bytes_peak"));
    // The budget may exceed a quarter of the far bytes, because the engine's own memory is added to it.
    assert!((far / 5..=far / 4 + (1 << 20)).contains(&peak), "the budget is {peak} bytes for {far} far ones");
}

#[test]
fn they_can_be_left_near() {
    let place = Place::new();
    let off = |command: &mut Command| {
        command.env("HANARE_STATIC", "off");
    };
    let (_, seen) = run(&place, &["--local", "8M"], "statics", off);
    assert_eq!(seen.number("far_bytes_peak"), 0);
    let wide = |command: &mut Command| {
        command.env("HANARE_FAR", "1G");
    };
    let (_, seen) = run(&place, &["--local", "8M"], "statics", wide);
    assert_eq!(seen.number("far_bytes_peak"), 0, "below the threshold");
}
