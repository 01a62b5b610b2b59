//! Tests what the page of a run and its JSON say about where the run waited: the function, the allocation and the
//! addresses, in each trap mode, with and without symbols, and for a run that is killed.

use std::path::Path;
use std::process::Command;

use hanare_tests::{Place, built, installed, mode_works, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// Bytes of the program's array. A quarter of it is local.
const SIZE: u64 = 32 * MIB;

fn command(place: &Place, mode: &str, program: &Path, seconds: &str) -> Command {
    let mut command = place.hanare(["run", "--local", "8M", "--mode", mode, "--page-size", "4K"]);
    command.args(["--report=page.html", "--stats-json", "json", "--"]).arg(program).args(["32", seconds]);
    command
}

fn json(place: &Place) -> Value {
    serde_json::from_slice(&std::fs::read(place.path("json")).expect("the JSON")).expect("JSON")
}

fn rows<'a>(json: &'a Value, table: &str) -> &'a [Value] {
    json[table].as_array().unwrap_or_else(|| panic!("no {table} in {json:#}"))
}

/// Returns the seconds of all rows of a table that `is_meant` names.
fn seconds(json: &Value, table: &str, is_meant: impl Fn(&str) -> bool) -> f64 {
    let meant = rows(json, table).iter().filter(|row| is_meant(row["function"].as_str().expect("a name")));
    meant.map(|row| row["seconds"].as_f64().expect("seconds")).sum()
}

fn of<'a>(json: &'a Value, table: &str, function: &str) -> &'a Value {
    rows(json, table)
        .iter()
        .find(|row| row["function"] == function)
        .unwrap_or_else(|| panic!("no {function}: {json:#}"))
}

#[test]
fn the_right_function_and_allocation_are_named_in_every_mode() {
    for mode in ["thread", "sigbus", "sigsegv"].into_iter().filter(|mode| mode_works(mode)) {
        let place = Place::new();
        let program = built().workload("sites");
        place.run(&mut command(&place, mode, &program, "2")).assert_well(mode);
        let json = json(&place);
        let waits = json["swap_s"].as_f64().expect("seconds") + json["set_bit_s"].as_f64().expect("seconds");
        let (much, little) = ("sweep_much", "sweep_little");
        let in_much = seconds(&json, "waited_in", |name| name == much);
        assert!(in_much > 0.5 * waits && in_much <= waits * 1.1, "{mode}: {in_much} of {waits} s: {json:#}");
        assert!(seconds(&json, "waited_in", |name| name == little) < in_much / 20.0, "{mode}: {json:#}");
        let row = of(&json, "waited_in", much);
        assert_eq!(row["file"], "sites.c", "{mode}: {json:#}");
        assert!(row["line"].as_u64() > Some(30), "{mode}: {json:#}");

        let row = of(&json, "waited_for", "allocate_much");
        assert!(row["seconds"].as_f64() > Some(0.8 * waits), "{mode}: {json:#}");
        assert_eq!((&row["file"], &row["allocations"]), (&Value::from("sites.c"), &Value::from(1)), "{mode}: {json:#}");
        let bytes = row["bytes"].as_u64().expect("bytes");
        assert!((SIZE..SIZE + 4 * MIB).contains(&bytes), "{mode}: {json:#}");
        assert!(seconds(&json, "waited_for", |name| name == "allocate_little") < waits / 20.0, "{mode}: {json:#}");
        assert_eq!(json["waits_lost"], 0);

        // Each fault that waited is in the map.
        let map = rows(&json["faults_by_address"], "rows_faults");
        let faults: u64 = map.iter().flat_map(|row| row.as_array().expect("a row")).filter_map(Value::as_u64).sum();
        let timed: u64 = rows(&json["fault_latency"], "faults").iter().filter_map(Value::as_u64).sum();
        assert_eq!(faults, timed, "{mode}: {json:#}");
        assert!(map.len() >= 30 && map.len() <= 64, "{mode}: {json:#}");

        let page = std::fs::read_to_string(place.path("page.html")).expect("the page");
        for part in ["id=\"heat\"", "id=\"waited-in\"", "id=\"waited-for\"", "<code>sweep_much</code>", ">A</text>"] {
            assert!(page.contains(part), "{mode}: {part} is not in the page");
        }
        let listed = page.split("id=\"waited-in\"").nth(1).expect("a section");
        let first = listed.split("<th scope=\"row\"><code>").nth(1).expect("a row");
        assert!(first.starts_with("sweep_much<"), "{mode}: the longest comes first: {first}");
    }
}

/// Reads a page in each round, out of order, so that no prefetcher helps.
const FOLD: &str = "\
import time
block = bytearray(32 << 20)
def much():
    total = 0
    for nth in range(8192):
        total += block[nth * 40503 % 8192 * 4096]
    return total
def little():
    return block[0]
end = time.monotonic() + 3
while time.monotonic() < end:
    much()
    little()
";

#[test]
fn the_right_line_of_python_is_named_in_every_mode() {
    if !installed("python3", "python3") {
        return;
    }
    for mode in ["thread", "sigbus", "sigsegv"].into_iter().filter(|mode| mode_works(mode)) {
        let place = Place::new();
        std::fs::write(place.path("fold.py"), FOLD).expect("a file");
        let mut command = place.hanare(["run", "--local", "8M", "--mode", mode, "--page-size", "4K"]);
        command.args(["--report=page.html", "--stats-json", "json", "--", "python3"]).arg(place.path("fold.py"));
        place.run(&mut command).assert_well(mode);
        let json = json(&place);
        let waits = json["swap_s"].as_f64().expect("seconds");
        let unknown = json["waited_in_python_unknown_s"].as_f64().expect("seconds");
        let all = seconds(&json, "waited_in_python", |_| true) + unknown;
        assert!(all > 0.5 * waits && all <= waits * 1.01, "{mode}: {all} of {waits} s: {json:#}");
        // In the other modes, Python's own objects cannot be read while they are evicted, nor can the table of lines.
        let much = rows(&json, "waited_in_python").iter().find(|row| row["function"] == "much");
        let is_line = |row: &Value| row["line"] == 6 || mode != "thread" && row["line"].is_null();
        assert!(much.map_or(mode != "thread", is_line), "{mode}: {json:#}");
        if mode == "thread" {
            let in_much = seconds(&json, "waited_in_python", |name| name == "much");
            assert!(in_much > 0.5 * waits, "{in_much} of {waits} s: {json:#}");
            assert!(of(&json, "waited_in_python", "much")["file"].as_str().expect("a file").ends_with("fold.py"));
            assert!(seconds(&json, "waited_in_python", |name| name == "little") < in_much / 10.0, "{json:#}");
            let page = std::fs::read_to_string(place.path("page.html")).expect("the page");
            let listed = page.split("id=\"waited-python\"").nth(1).expect("a section");
            let first = listed.split("<th scope=\"row\"><code>").nth(1).expect("a row");
            assert!(first.starts_with("much<"), "the longest comes first: {first}");
        }
    }
    let place = Place::new();
    place.run(&mut command(&place, "thread", &built().workload("sites"), "1")).assert_well("a program in C");
    assert!(rows(&json(&place), "waited_in_python").is_empty());
    assert!(!std::fs::read_to_string(place.path("page.html")).expect("the page").contains("waited-python"));
}

#[test]
fn code_without_symbols_has_its_place_in_the_file() {
    if !installed("strip", "binutils") {
        return;
    }
    let place = Place::new();
    let program = place.path("bare");
    let stripped = Command::new("strip").arg("-s").arg("-o").arg(&program).arg(built().workload("sites")).status();
    assert!(stripped.expect("strip runs").success());
    place.run(&mut command(&place, "thread", &program, "2")).assert_well("without symbols");
    let json = json(&place);
    let is_own = |name: &str| name.starts_with("bare+0x");
    let all: f64 = seconds(&json, "waited_in", |_| true);
    assert!(seconds(&json, "waited_in", is_own) > 0.8 * all && all > 0.0, "{json:#}");
    assert!(seconds(&json, "waited_for", is_own) > 0.8 * all, "{json:#}");
    let first = &rows(&json, "waited_in")[0];
    assert_eq!((&first["file"], &first["module"]), (&Value::Null, &Value::from("bare")));
}

#[test]
fn a_run_that_is_killed_has_named_its_waits() {
    let place = Place::new();
    let run = place.start(&mut command(&place, "thread", &built().workload("sites"), "1000"));
    let read = || std::fs::read_to_string(place.path("page.html")).unwrap_or_default();
    until("the page names the function", || read().contains("<code>sweep_much</code>"));
    kill_process(Pid::from_raw(run.pid() as i32).expect("a process number"), Signal::KILL).expect("the command runs");
    let page = read();
    assert!(page.contains("Your program has run ") && page.contains("id=\"heat\""), "{page}");
    assert!(page.contains("<code>allocate_much</code>"), "{page}");
}

/// Returns the size of the counters of a run with these flags.
fn counters_bytes(place: &Place, flags: &[&str]) -> u64 {
    let mut command = place.hanare(["run", "--local", "8M"]);
    let run = place.start(command.args(flags).arg("--").arg(built().workload("sites")).args(["32", "1000"]));
    let size = || -> Option<u64> {
        let folder = std::fs::read_dir(format!("/proc/{}/fd", run.pid())).ok()?;
        let is_counters = |to: &Path| to.to_string_lossy().contains("hanare-stats");
        let mut links = folder.flatten().map(|fd| fd.path());
        links.find(|fd| std::fs::read_link(fd).is_ok_and(|to| is_counters(&to)))?.metadata().ok().map(|meta| meta.len())
    };
    let mut bytes = None;
    until("the command has counters", || {
        bytes = size();
        bytes.is_some()
    });
    bytes.unwrap_or(0)
}

#[test]
fn a_run_without_a_page_has_no_room_for_records() {
    let place = Place::new();
    let (plain, page) = (counters_bytes(&place, &["--report"]), counters_bytes(&place, &["--report=page.html"]));
    assert!(plain > 0 && plain * 5 < page, "{plain} and {page} bytes");
}
