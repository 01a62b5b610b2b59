//! `hanare torture` itself: it does harm and says how much, it finds a wrong word, and it leaves nothing behind.

use std::process::Command;
use std::time::Duration;

use hanare_tests::{Outcome, PATIENCE, Place, processes_of, until};
use rustix::process::Signal;

/// A small test. Six harms are one of each kind.
fn torture(place: &Place, redundancy: &str, servers: &str, harms: &str) -> Command {
    let mut command = place.hanare(["torture", "--minutes", "2", "--harms", harms, "--seed", "3"]);
    command.args(["--redundancy", redundancy, "--servers", servers, "--size", "32M", "--local", "8M"]);
    command.args(["--threads", "2", "--pause-ms", "100"]);
    command
}

/// Returns a figure that the command printed.
#[track_caller]
fn figure(outcome: &Outcome, name: &str) -> f64 {
    let text = outcome.text();
    let line = text.lines().find(|line| line.starts_with(name) && line[name.len()..].starts_with(' '));
    let value = line.and_then(|line| line[name.len()..].split_whitespace().next());
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no figure {name:?}: {outcome:?}"))
}

fn harms_and_finds_all_words_right(redundancy: &str, servers: &str) {
    let place = Place::new();
    let outcome = place.run(&mut torture(&place, redundancy, servers, "6"));
    assert!(outcome.code == Some(0) && outcome.stderr.is_empty(), "{outcome:?}");
    for name in ["kills", "stops", "restarts", "partitions", "cuts", "runs", "servers lost by the runs"] {
        assert!(figure(&outcome, name) >= 1.0, "{name}: {outcome:?}");
    }
    for name in ["words checked", "bytes of pages fetched", "bytes of parts rebuilt"] {
        assert!(figure(&outcome, name) >= 1e6, "{name}: {outcome:?}");
    }
    for name in ["longest stall after a kill", "longest stall after a stop", "time with pages that lacked parts"] {
        assert!(figure(&outcome, name) > 0.0, "{name}: {outcome:?}");
    }
    place.assert_nothing_left();
}

#[test]
fn copies_outlive_each_kind_of_harm() {
    harms_and_finds_all_words_right("mirror", "3");
}

#[test]
fn parity_outlives_each_kind_of_harm() {
    harms_and_finds_all_words_right("parity:2+1", "4");
}

#[test]
fn a_wrong_word_is_found() {
    let place = Place::new();
    let outcome = place.run(torture(&place, "mirror", "2", "6").arg("--flip-word"));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let said = &outcome.stderr;
    assert!(said.lines().count() == 1 && said.contains("should be 0x") && said.contains("seed 3"), "{outcome:?}");
    assert!(figure(&outcome, "words checked") > 0.0, "{outcome:?}");
    place.assert_nothing_left();
}

#[test]
fn a_signal_ends_the_test_with_all_its_processes() {
    for (signal, code) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        let place = Place::new();
        let mut test = place.start(&mut torture(&place, "mirror", "3", "1000000"));
        let programs = || processes_of(&place, "torture-program").len();
        until("the program runs", || programs() > 0);
        assert!(test.runs());
        let servers = processes_of(&place, "serve\0");
        assert_eq!(servers.len(), 3);
        test.signal(signal);
        let outcome = test.finish(PATIENCE);
        assert_eq!(outcome.code, code, "{outcome:?}");
        until("all processes have ended", || programs() == 0 && processes_of(&place, "serve\0").is_empty());
        // Only a killed command leaves its folder. The next command removes it.
        if signal == Signal::KILL {
            let short = place.run(&mut torture(&place, "mirror", "2", "1"));
            assert_eq!(short.code, Some(0), "{short:?}");
        }
        place.assert_nothing_left();
    }
}

#[test]
fn what_cannot_be_tested_is_refused_in_one_line() {
    let place = Place::new();
    for (args, part) in [
        (&["--servers", "0"][..], "give 2 to 255"),
        (&["--servers", "256"], "give 2 to 255"),
        (&["--minutes", "0"], "a number of minutes above 0"),
        (&["--minutes", "nan"], "a number of minutes above 0"),
        (&["--redundancy", "none"], "loses pages with each lost server"),
        (&["--redundancy", "parity:3+1"], "is not a redundancy"),
        (&["--redundancy", "parity:4+1"], "parity:4+1 needs 5 servers, and --servers is 4"),
        (&["--memory", "8M"], "--memory 8M is too little"),
        (&["--memory", "900T"], "--memory 900 TiB is more than"),
        (&["--local", "64M"], "--local 64M holds all of --size 64M"),
        (&["--size", "1M"], "--size 1M is too small"),
        (&["--size", "1E"], "not a size"),
        (&["--threads", "0"], "give 1 to 64"),
    ] {
        let mut command = place.hanare(["torture"]);
        let outcome = place.start(command.args(args)).finish(Duration::from_secs(20));
        outcome.assert_ended_by_us(125, part);
        assert!(outcome.stdout.is_empty(), "{outcome:?}");
    }
    place.assert_nothing_left();
}
