//! Tests recorded runs. The replay of a run must give the same victims in the same order, for every policy, in every
//! trap mode, with threads that fault at the same time. A size limit may only cut the end of a trace.

use std::path::Path;

use hanare_settings::POLICIES;
use hanare_tests::{Outcome, Place, built, mode_works};

/// Records a run of a workload and returns the path of the trace.
fn record(place: &Place, flags: &[&str], vars: &[(&str, &str)], program: &[&str]) -> std::path::PathBuf {
    let trace = place.path("trace");
    let mut command = place.hanare(["trace", "record", "-o"]);
    command.arg(&trace).args(["--local", "4M"]).args(flags).arg("--").arg(built().workload(program[0]));
    let outcome = place.run(command.args(&program[1..]).envs(vars.iter().copied()));
    outcome.assert_well(&format!("{flags:?}"));
    assert!(outcome.text().starts_with("ok "), "{flags:?}: {outcome:?}");
    place.assert_nothing_left();
    trace
}

fn look(place: &Place, args: &[&str], trace: &Path) -> Outcome {
    let outcome = place.run(place.hanare(args).arg(trace));
    outcome.assert_well(&format!("{args:?}"));
    outcome
}

/// Returns the number in front of `words` in `text`.
fn number_before(text: &str, words: &str) -> u64 {
    let before = text.split(words).next().unwrap_or_default();
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no number before {words:?} in {text:?}"))
}

#[test]
fn every_policy_replays_its_live_victims_in_every_mode() {
    const THREADS: [&str; 7] = ["threads", "--threads", "4", "--size", "16M", "--ops", "400"];
    for mode in ["thread", "sigbus", "sigsegv"].into_iter().filter(|mode| mode_works(mode)) {
        for policy in POLICIES {
            for page_size in ["16K", "64K"] {
                let place = Place::new();
                let flags = ["--mode", mode, "--policy", policy.name, "--page-size", page_size];
                let trace = record(&place, &flags, &[], &[&THREADS[..], &["--share"]].concat());
                let replayed = look(&place, &["trace", "replay"], &trace).text();
                let victims = number_before(&replayed, " victims");
                assert!(victims > 100 && !replayed.contains("as far as"), "{flags:?}: {replayed}");
            }
        }
    }
}

#[test]
fn a_recorded_run_is_told_and_simulated() {
    let place = Place::new();
    let touch = ["touch", "16M", "--random", "--passes", "3"];
    let trace = record(&place, &["--policy", "fifo", "--prefetch", "none", "--page-size", "64K"], &[], &touch);
    let info = look(&place, &["trace", "info"], &trace).text();
    for part in ["policy         fifo", "unit bytes     65536", "touch 16M --random", "whole run      yes"] {
        assert!(info.contains(part), "{part:?} is not in {info}");
    }
    let json = place.path("json");
    let mut simulate = place.hanare(["simulate", "policies", "--policies", "fifo,opt", "--local", "25%", "--trace"]);
    place.run(simulate.arg(&trace).arg("--json").arg(&json)).assert_well("simulate");
    let results: serde_json::Value = serde_json::from_slice(&std::fs::read(json).expect("results")).expect("JSON");
    // The trace contains the array's 16 MiB in pages of 64 KiB, and the pages of the workload's other allocations.
    let pages = results["distinct_pages"].as_u64().expect("pages");
    assert!((256..300).contains(&pages), "{results}");
    let misses = |row: usize| results["rows"][row]["misses"].as_u64().expect("misses");
    // In each of three passes, the workload writes the array's 4,096 base pages and then reads them, both in random
    // order.
    assert!((3 * pages..=25_000).contains(&misses(0)) && misses(1) < misses(0), "{results}");
    assert_eq!(results["recorded_policy"], "fifo");
}

#[test]
fn a_bound_leaves_the_beginning_which_replays() {
    let place = Place::new();
    let touch = ["touch", "32M", "--random", "--passes", "4"];
    let flags = ["--prefetch", "none", "--page-size", "4K"];
    let trace = record(&place, &flags, &[("HANARE_TRACE_BYTES", "128K")], &touch);
    let len = std::fs::metadata(&trace).expect("the trace").len();
    assert!((120 << 10..=128 << 10).contains(&len), "{len}");
    assert!(look(&place, &["trace", "info"], &trace).text().contains("whole run      no"));
    let replayed = look(&place, &["trace", "replay"], &trace).text();
    assert!(number_before(&replayed, " victims") > 1000 && replayed.contains("as far as"), "{replayed}");
}

#[test]
fn of_several_processes_the_first_that_pages_is_recorded_and_a_killed_ones_beginning() {
    let place = Place::new();
    let trace = place.path("trace");
    let touch = built().workload("touch").display().to_string();
    let script = format!("{touch} 16M && {touch} 8M && {touch} 16M --passes 2");
    let mut command = place.hanare(["trace", "record", "--local", "4M", "--page-size", "16K", "-o"]);
    place.run(command.arg(&trace).args(["--", "sh", "-c", &script])).assert_well("a shell");
    let info = look(&place, &["trace", "info"], &trace).text();
    assert!(info.contains("touch 16M\n") && info.contains("whole run      yes"), "{info}");
    let script = format!("{touch} 16M --passes 100000 & sleep 1; kill -9 $!");
    let mut command = place.hanare(["trace", "record", "--local", "4M", "--page-size", "16K", "-o"]);
    let outcome = place.run(command.arg(&trace).args(["--", "sh", "-c", &script]));
    assert_eq!((outcome.code, outcome.stderr.lines().count()), (Some(0), 1), "{outcome:?}");
    assert!(outcome.stderr.contains("has the run's beginning only"), "{outcome:?}");
    let info = look(&place, &["trace", "info"], &trace).text();
    assert!(info.contains("passes 100000\n") && info.contains("whole run      no"), "{info}");
    assert!(look(&place, &["trace", "replay"], &trace).text().contains("as far as"));
}

#[test]
fn a_run_that_records_nothing_leaves_the_file_as_it_was_and_says_so() {
    let place = Place::new();
    let trace = place.file("trace", "of another run");
    let far = built().workload("touch").display().to_string();
    let killed = format!("trap '' INT; {far} 8M; kill -9 $$");
    for (flags, program, code, lines) in [
        (&["--far", "large"][..], &["true"][..], 125, 1),
        (&[], &["sh", "-c", "exit 7"], 7, 1),
        (&[], &["sh", "-c", "kill -INT $$"], 130, 1),
        (&[], &["no-such-program"], 127, 1),
        (&["--local", "few"], &["true"], 125, 1),
        (&["--policy", "help"], &["true"], 0, 0),
    ] {
        let mut command = place.hanare(["trace", "record", "-o"]);
        let outcome = place.run(command.arg(&trace).args(flags).arg("--").args(program));
        assert_eq!((outcome.code, outcome.stderr.lines().count()), (Some(code), lines), "{program:?}: {outcome:?}");
        assert_eq!(std::fs::read(&trace).expect("the trace"), b"of another run", "{program:?}");
        place.assert_nothing_left();
    }
    // The recording must be kept whatever the program's exit code is.
    let mut command = place.hanare(["trace", "record", "--local", "4M", "-o"]);
    let outcome = place.run(command.arg(&trace).args(["--", "sh", "-c", &killed]));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(137), ""), "{outcome:?}");
    assert!(look(&place, &["trace", "info"], &trace).text().contains("whole run      yes"));
    let beside = std::fs::read_dir(place.path("")).expect("the folder").filter_map(Result::ok);
    assert_eq!(beside.filter(|entry| entry.file_name().to_string_lossy().contains("hanare-trace")).count(), 0);
}

#[test]
fn places_that_take_no_trace_are_refused_before_the_run() {
    let place = Place::new();
    for output in ["/dev/null", "/no/such/dir/trace", "/proc/trace", "/tmp", "/"] {
        let mut command = place.hanare(["trace", "record", "-o", output, "--", "touch"]);
        place.run(command.arg(place.path("ran"))).assert_ended_by_us(125, "check -o");
        assert!(!place.path("ran").exists(), "{output}: the program ran");
    }
    assert!(std::fs::metadata("/dev/null").is_ok_and(|meta| !meta.is_file()));
}
