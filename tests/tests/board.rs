//! Tests the scoreboard, `benches/programs.py`, with small programs: the shape of its output, the comparison of what
//! programs print, and that an interrupt leaves nothing behind.

use std::process::Command;

use hanare_tests::{Place, built, installed, patience, until};
use rustix::process::Signal;
use serde_json::Value;

/// Makes the command of a quick board without peers. It builds in the test's directory.
fn board(place: &Place, hanare: &std::path::Path, flags: &[&str]) -> Command {
    let mut board = place.command("python3");
    board.arg(built().root.join("benches/programs.py")).args(["--peers", "none", "--python", "python3"]);
    board.arg("--hanare").arg(hanare).args(["--target", "."]).args(flags);
    board
}

/// Returns the names that begin with "board-" in the test's directory: folders that boards work in.
fn folders_of_boards(place: &Place) -> Vec<String> {
    let entries = std::fs::read_dir(place.path("")).expect("the test's directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("board-")).collect()
}

fn cells(row: &Value) -> &Vec<Value> {
    row["cells"].as_array().expect("cells")
}

#[test]
fn a_quick_board_has_a_table_figures_and_medians() {
    if !installed("python3", "python3") {
        return;
    }
    let place = Place::new();
    let mut quick =
        board(&place, &built().hanare(), &["--quick", "--percent", "50", "--only", "is,dict,churn", "--over", "2000"]);
    quick.args(["--settings", "default;--mode sigsegv", "--json", "board.json"]);
    let outcome = place.run(&mut quick);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
    assert_eq!(folders_of_boards(&place), [""; 0]);

    let text = outcome.text();
    let lines: Vec<&str> = text.lines().collect();
    let columns = "130 % default | 130 % --mode sigsegv | 50 % default | 50 % --mode sigsegv";
    assert_eq!(lines[0], format!("| program | what is run | far MiB | near MiB | plain s | {columns} |"), "{text}");
    for (line, name) in lines[2..5].iter().zip(["is", "dict", "churn"]) {
        assert!(line.starts_with(&format!("| {name} | ")) && line.matches('|').count() == 10, "{text}");
    }
    assert!(lines[4].ends_with(" | - | - |"), "{text}");
    let against = "time against the best other setting, median and worst: 130 %: ";
    assert!(lines.iter().any(|line| line.starts_with(against) && line.contains("; 50 %: ")), "{text}");
    let last = lines.last().expect("a last line");
    let fixed = "blocks that come and go, 130 % default: ";
    assert!(last.starts_with("median, worst: 130 % default: ") && last.contains(fixed), "{text}");

    let again = place.run(&mut board(&place, &built().hanare(), &["--table", "board.json"]));
    assert_eq!((again.code, again.text().as_str()), (Some(0), text.as_str()));

    let whole: Value =
        serde_json::from_slice(&std::fs::read(place.path("board.json")).expect("the JSON")).expect("JSON");
    let rows = whole["programs"].as_array().expect("programs");
    assert_eq!(rows.iter().map(|row| cells(row).len()).collect::<Vec<_>>(), [4, 4, 2], "{whole:#}");
    for cell in rows.iter().flat_map(cells) {
        assert!(cell["outcome"] == "right" && cell["seconds_median"].as_f64() > Some(0.0), "{cell:#}");
    }
    // The floor is null on a machine without userfaultfd.
    if !whole["floor"].is_null() {
        let against = "time against the floor, median and worst: 130 %: ";
        assert!(lines.iter().any(|line| line.starts_with(against)), "{text}");
        for cell in rows.iter().flat_map(cells) {
            assert!(cell["floor_seconds"].as_f64() >= cell["plain_seconds_median"].as_f64(), "{cell:#}");
        }
    }
    for row in &rows[..2] {
        let peak = row["far_bytes_peak"].as_u64().expect("a peak");
        for cell in &cells(row)[2..] {
            let number = |name: &str| cell[name].as_u64().expect("a number");
            assert!(peak > 4 << 20 && number("bytes_out") > peak / 8, "{row:#}");
            // Each setting with a mode has a first run of its own, whose peak is a little different.
            assert!(number("local_bytes_budget") < peak * 6 / 10, "{row:#}");
            assert!(number("near_bytes_peak") > 1 << 18 && number("near_bytes_peak") < peak, "{row:#}");
        }
    }
}

#[test]
fn another_output_or_exit_code_is_an_error_of_the_board() {
    if !installed("python3", "python3") {
        return;
    }
    let place = Place::new();
    for (line, word) in [("echo more", "wrong"), ("exit 3", "failed")] {
        let skip_flags = "while [ \"$1\" != -- ]; do shift; done; shift";
        let only_is = "case $1 in */is) ;; *) exit 0 ;; esac";
        let script = format!("#!/bin/sh\n[ \"$1\" = bench ] && exit\n{skip_flags}\n\"$@\"\n{only_is}\n{line}\n");
        let hanare = place.file("other", script);
        rustix::fs::chmod(&hanare, rustix::fs::Mode::RWXU).expect("an executable file");
        let outcome = place.run(&mut board(&place, &hanare, &["--quick", "--percent", "50", "--only", "is"]));
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        assert!(outcome.stderr.starts_with(&format!("is, 130 %: {word}: the first run")), "{outcome:?}");
        assert!(outcome.text().contains(&format!(" | {word} | {word} |\n")), "{outcome:?}");
    }
}

#[test]
fn an_interrupted_board_leaves_nothing_behind() {
    if !installed("python3", "python3") || !installed("pgrep", "procps") {
        return;
    }
    let place = Place::new();
    let mut running = place.start(&mut board(&place, &built().hanare(), &["--runs", "50", "--only", "is"]));
    let program = place.path("workloads/is").display().to_string();
    let processes = |pattern: &str| place.run(place.command("pgrep").args(["-f", pattern])).text().lines().count();
    until("a program runs", || {
        assert!(running.runs(), "the board ended: {}", running.said_so_far());
        processes(&format!("{program} 256")) > 0
    });
    running.signal(Signal::INT);
    let outcome = running.finish(patience());
    assert_eq!((outcome.code, processes(&program)), (Some(130), 0), "{outcome:?}");
    assert_eq!(folders_of_boards(&place), [""; 0]);
}
