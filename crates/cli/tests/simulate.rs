//! `hanare simulate` and `hanare trace` on files: what they print and write, and every file that they refuse.

mod common;

use common::Place;
use hanare_paging::PageId;
use hanare_paging::policy::{Cause, Leave};
use hanare_paging::trace::{Header, Record, write};

fn header(policy: &str) -> Header {
    let (policy, program) = (policy.to_owned(), "sweep <1>".to_owned());
    Header {
        unit_bytes: 4096,
        block_units: 1,
        units: 10_000,
        budget_units: 2,
        seed: 1,
        policy,
        program,
        ..Header::default()
    }
}

/// Returns a trace of FIFO with local memory for two pages, in which `pages` pages are referenced in turn.
fn sweep(pages: u32) -> Vec<Record> {
    let mut records = Vec::new();
    for page in 0..pages {
        if let Some(oldest) = page.checked_sub(2) {
            records.push(Record::Victim(PageId(oldest)));
            records.push(Record::Removed(PageId(oldest), Leave::Evicted));
        }
        records.push(Record::Inserted(PageId(page), Cause::Write));
    }
    records
}

#[test]
fn a_reference_string_becomes_a_table_and_json_and_a_page() {
    let place = Place::with_library();
    let text: String = (0..30).map(|i| format!("{} {}\n", i % 3, if i % 2 == 0 { "w" } else { "" })).collect();
    let string = place.file("string", text);
    let page = place.path("page.html");
    let mut command = place.hanare();
    command.args(["simulate", "policies", "--visible", "all", "--local", "2p,100%", "--policies", "lru;opt"]);
    command.arg("--string").arg(&string).arg("--html").arg(&page);
    let outcome = place.run(&mut command);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
    // The trace loops over three pages, with memory for two. LRU always misses. OPT misses every other time once the
    // memory is full.
    let lines: Vec<Vec<&str>> = outcome.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[1][..4], ["opt", "2p", "2", "16"], "{outcome:?}");
    assert_eq!(lines[2][..4], ["lru", "2p", "2", "30"], "{outcome:?}");
    assert_eq!(lines[4][..4], ["lru", "100%", "3", "3"], "{outcome:?}");
    assert_eq!(lines.len(), 6, "one policy is no choice: {outcome:?}");
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("<svg") && html.contains("<td>30</td>") && !html.contains("http"), "{html}");
    let outcome = place.run(command.args(["--json", "-"]));
    let json: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&json["touches"], &json["distinct_pages"]), (&30.into(), &3.into()));
    assert_eq!((&json["rows"][1]["policy"], &json["rows"][1]["hits"]), (&"opt".into(), &14.into()));
    assert_eq!(json["rows"].as_array().unwrap().len(), 4);
}

#[test]
fn a_trace_is_told_and_replayed_and_another_policys_is_told_apart() {
    let place = Place::with_library();
    let trace = place.file("trace", write(&header("fifo"), sweep(40)));
    let outcome = place.run(place.hanare().args(["trace", "info"]).arg(&trace));
    for part in ["sweep <1>", "inserted by a write                  40", "records        116", "whole run      yes"] {
        assert!(outcome.stdout.contains(part), "{part:?} is not in {outcome:?}");
    }
    let mut command = place.hanare();
    command.args(["simulate", "policies", "--local", "16K,50%", "--policies", "auto,fifo,opt", "--trace"]).arg(&trace);
    let outcome = place.run(&mut command);
    let lines: Vec<Vec<&str>> = outcome.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[1][1..4], ["16K", "4", "40"], "{outcome:?}");
    assert_eq!(lines[5][1..4], ["50%", "20", "40"], "{outcome:?}");
    assert!(
        outcome.stdout.contains("16K: of 2 policies, auto misses least, 1.000 x OPT, auto (the default) is number 1")
    );
    let outcome = place.run(place.hanare().args(["trace", "replay"]).arg(&trace));
    assert!(outcome.code == Some(0) && outcome.stdout.contains("the same 38 victims"), "{outcome:?}");
    let mut records = sweep(40);
    records[60] = Record::Victim(PageId(9999));
    let trace = place.file("other", write(&header("fifo"), records));
    place.run(place.hanare().args(["trace", "replay"]).arg(&trace)).assert_refused(1, "page 9999, replayed page");
}

#[test]
fn files_that_are_no_traces_are_refused_by_name_with_the_offset() {
    let place = Place::with_library();
    let whole = write(&header("fifo"), sweep(5000));
    let mut damaged = whole.clone();
    damaged[1000] ^= 1;
    let nothing = write(&header("fifo"), [Record::NoVictim]);
    place.file("truncated", &whole[..whole.len() - 5]);
    place.file("short", &whole[..5]);
    place.file("damaged", damaged);
    place.file("empty", "");
    place.file("foreign", "7f ELF");
    place.file("nothing", nothing);
    place.file("string", "1\n2 w\nthree\n");
    std::fs::create_dir(place.path("directory")).unwrap();
    let end = format!("truncated is truncated: it ends at offset {}", whole.len() - 5);
    let cases = [
        ("truncated", end.as_str()),
        ("short", "ends at offset 5"),
        ("damaged", "damaged is damaged at offset "),
        ("empty", "empty is empty"),
        ("foreign", "foreign is not a trace of Hanare"),
        ("directory", "cannot read"),
        ("absent", "absent: No such file"),
    ];
    for (name, part) in cases {
        for args in [&["trace", "info"][..], &["trace", "replay"], &["simulate", "policies", "--trace"]] {
            let outcome = place.run(place.hanare().args(args).arg(place.path(name)));
            outcome.assert_refused(125, part);
        }
    }
    let simulate = |flag: &str, name: &str| {
        let mut command = place.hanare();
        command.args(["simulate", "policies", flag]).arg(place.path(name));
        command
    };
    place.run(&mut simulate("--trace", "nothing")).assert_refused(125, "no page is referenced");
    place.run(&mut simulate("--string", "empty")).assert_refused(125, "no page is referenced");
    place.run(&mut simulate("--string", "string")).assert_refused(125, "string: line 3 (offset 6): 'three'");
    place.run(&mut simulate("--string", "absent")).assert_refused(125, "absent");
    let string = place.file("good", "1\n2\n1\n");
    for (args, part) in [
        (["--policies", "best"], " fifo, "),
        (["--policies", "fifo:depth=1"], "it takes none"),
        (["--local", "1.5"], "'1.5' is no size"),
        (["--local", "0%"], "25%,50%,1000p"),
        (["--visible", "some"], "some"),
        (["--json", "/no/such/dir/j"], "--json"),
        (["--html", "/no/such/dir/h"], "--html"),
        (["--trace", "x"], "cannot be used with"),
    ] {
        let mut command = place.hanare();
        command.args(["simulate", "policies", "--string"]).arg(&string).args(args);
        place.run(&mut command).assert_refused(125, part);
    }
    for (args, part) in [
        (&["simulate", "policies"][..], "--trace"),
        (&["trace", "record", "-o", "/no/such/dir/t", "true"], "/no/such/dir/t"),
        (&["trace", "record", "true"], "--output"),
        (&["trace", "record", "-o", "/dev/null", "--trace-bytes", "1K", "true"], "too little"),
    ] {
        place.run(place.hanare().args(args)).assert_refused(125, part);
    }
    place.assert_nothing_left();
}
