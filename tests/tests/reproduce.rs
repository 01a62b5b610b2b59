//! `hanare reproduce`: figures from real runs, failures that are shown, and interruptions.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hanare_tests::{Outcome, Place, built, soon, until};
use rustix::process::Signal;

/// A figure with one cell for each of three programs, beside those that measure their memory.
const FIGURE: &str = "1.figure2";
const PROGRAMS: [&str; 3] = ["stencil", "fft", "clustering"];
/// Megabytes of a program.
const SMALL: u32 = 4;

/// Returns a script that runs a workload with `megabytes` megabytes and ignores its own arguments.
fn sized(name: &str, megabytes: u32) -> String {
    format!("exec {} {megabytes}", built().workload(name).display())
}

/// Makes a folder with the workloads of [`FIGURE`] as shell scripts. All are small but those in `replaced`.
fn workloads(place: &Place, folder: &str, replaced: &[(&str, String)]) {
    std::fs::create_dir(place.path(folder)).expect("a folder");
    for name in PROGRAMS {
        let script = replaced.iter().find(|(other, _)| *other == name).map(|(_, script)| script.clone());
        let script = script.unwrap_or_else(|| sized(name, SMALL));
        let file = place.file(&format!("{folder}/{name}"), format!("#!/bin/sh\n{script}\n"));
        std::fs::set_permissions(file, Permissions::from_mode(0o755)).expect("permissions");
    }
}

fn reproduce(place: &Place, folder: &str, out: &str, more: &[&str]) -> Outcome {
    let mut command = place.hanare(["reproduce", "--figure", FIGURE, "--workloads", folder, "--out", out]);
    place.run(command.args(more))
}

/// Returns the median of a figure from the CSV.
fn figure(out: &Path, cell: &str, name: &str) -> f64 {
    let text = std::fs::read_to_string(out.join("cells.csv")).expect("figures");
    let head = format!("{cell},\"{name}\",");
    let line = text.lines().find_map(|line| line.strip_prefix(&head)).unwrap_or_else(|| panic!("{head} in {text}"));
    line.split(',').next().and_then(|median| median.parse().ok()).expect("a number")
}

/// The report must follow the programs: with a program of twice the memory, the figures are other ones.
#[test]
fn figures_are_those_of_the_programs_that_ran() {
    let place = Place::new();
    workloads(&place, "as-they-are", &[]);
    workloads(&place, "changed", &[("stencil", sized("stencil", 2 * SMALL))]);
    for folder in ["as-they-are", "changed"] {
        let outcome = reproduce(&place, folder, &format!("{folder}.out"), &[]);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert!(outcome.stderr.contains("of 1 claims hold here; see"), "{outcome:?}");
    }
    let bytes = |folder: &str| figure(&place.path(&format!("{folder}.out")), "whole.himeno", "far_bytes_peak");
    let (before, after) = (bytes("as-they-are"), bytes("changed"));
    assert!(after > 1.8 * before, "{before} and {after} bytes");
    let page = std::fs::read_to_string(place.path("changed.out/index.html")).expect("a page");
    for part in ["Figure 2: Parts of the run time by program", "policy.ft.60.nru-timer-ms-50", "<svg class=\"plot\""] {
        assert!(page.contains(part), "{part} is not in the page");
    }
    assert!(!page.contains("NaN") && !page.contains("Failed:"));
    // The reproduction has ended. It is replaced only if asked.
    reproduce(&place, "changed", "changed.out", &[]).assert_ended_by_us(125, "give --force to replace it");
    let again = reproduce(&place, "as-they-are", "changed.out", &["--force"]);
    assert_eq!((again.code, bytes("changed")), (Some(0), before), "{again:?}");
    place.assert_nothing_left();
}

#[test]
fn a_cell_that_fails_is_shown_with_its_reason_and_the_rest_goes_on() {
    let place = Place::new();
    workloads(&place, "workloads", &[("fft", "echo 'no transform today' >&2; exit 9".to_owned())]);
    let outcome = reproduce(&place, "workloads", "out", &[]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("2 of 6 cells failed, whole.ft first; see"), "{outcome:?}");
    let page = std::fs::read_to_string(place.path("out/index.html")).expect("a page");
    for part in ["exit code 9: no transform today", "Not judged: a cell failed", "whole.ft has no figures"] {
        assert!(page.contains(part), "{part} is not in the page");
    }
    assert!(figure(&place.path("out"), "whole.cluster", "far_bytes_peak") > 1e6);
    place.assert_nothing_left();
}

#[test]
fn an_interrupted_reproduction_goes_on_where_it_stopped() {
    let place = Place::new();
    let counted = format!("echo x >>{}; {}", place.path("count").display(), sized("stencil", SMALL));
    // The second program waits until it is ended, in the first reproduction only.
    let waited = place.path("waited");
    let waits = format!("[ -e {0} ] || {{ : >{0}; exec sleep 600; }}; {1}", waited.display(), sized("fft", SMALL));
    workloads(&place, "workloads", &[("stencil", counted), ("fft", waits)]);
    let mut command = place.hanare(["reproduce", "--figure", FIGURE, "--workloads", "workloads", "--out", "out"]);
    let mut running = place.start(&mut command);
    until("the second program runs", || waited.exists() && running.runs());
    running.signal(Signal::INT);
    let outcome = running.finish(soon());
    outcome.assert_ended_by_us(130, "the same command goes on where it stopped");
    place.assert_nothing_left();
    let before = std::fs::read_to_string(place.path("count")).expect("a count").lines().count();
    let again = reproduce(&place, "workloads", "out", &[]);
    assert_eq!(again.code, Some(0), "{again:?}");
    let after = std::fs::read_to_string(place.path("count")).expect("a count").lines().count();
    // Each of its two cells runs three times in all, one of them before the interruption.
    assert_eq!((before, after), (1, 6), "runs of the first program");
    place.assert_nothing_left();
}

#[test]
fn what_is_missing_is_named_before_anything_runs() {
    let place = Place::new();
    std::fs::create_dir(place.path("empty")).expect("a folder");
    reproduce(&place, "empty", "out", &[])
        .assert_ended_by_us(125, "lacks clustering, fft, stencil; run 'make workloads'");
    workloads(&place, "workloads", &[]);
    std::fs::create_dir(place.path("thesis")).expect("a folder");
    place.file("thesis/chapter.tex", "words");
    reproduce(&place, "workloads", "thesis", &["--force"]).assert_ended_by_us(125, "thesis is there already");
    let mut command = place.hanare(["reproduce", "--figure", "1.figure8"]);
    place.run(&mut command).assert_ended_by_us(125, "'1.figure8' is no table or figure of these papers");
    assert!(!place.path("out").exists());
}
