//! Tests the page of a run (`--report=FILE.html`): it parses, says what the JSON says, needs nothing else, and is there
//! however the run ends. Python's XML parser reads it.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use hanare_tests::{Place, built, installed, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Largest size of a page, in bytes.
const PAGE_MAX: u64 = 5_000_000;
/// Reads a page and prints as JSON what the tests check.
const READER: &str = "\
import json, sys, xml.etree.ElementTree as tree
page = tree.parse(sys.argv[1]).getroot()
rows = [row for row in page.iter('tr') if row.find('td/data') is not None]
print(json.dumps({
    'figures': {row.find('th/code').text: row.find('td/data').get('value') for row in rows},
    'sections': [section.get('id') for section in page.iter('section')],
    'charts': len([svg for svg in page.iter('svg') if svg.get('role') == 'img']),
    'described': len([svg for svg in page.iter('svg') if svg.findtext('title') and svg.findtext('desc')]),
    'behind': [len(details.findall('.//tbody/tr')) for details in page.iter('details')],
    'scripts': len(list(page.iter('script'))),
    'outside': [name for element in page.iter() for name in element.attrib
                if name in ('src', 'href', 'srcset', 'action', 'style') or name.startswith('on')],
    'answer': page.findtext('.//p[@class=\"answer\"]'),
    'next': ''.join(page.find('.//p[@class=\"next\"]').itertext()),
    'command': page.findtext('.//footer//code'),
    'name': page.findtext('.//h1'),
}))";

/// Returns what the page says. `None` if there is no Python.
fn read(page: &Path) -> Option<Value> {
    if !installed("python3", "python3") {
        return None;
    }
    let output = Command::new("python3").args(["-c", READER]).arg(page).output().expect("python3 runs");
    assert!(output.status.success(), "the page does not parse: {}", String::from_utf8_lossy(&output.stderr));
    let size = page.metadata().expect("the page").len();
    assert!(size < PAGE_MAX, "{size} bytes");
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

fn text<'a>(said: &'a Value, name: &str) -> &'a str {
    said[name].as_str().unwrap_or_else(|| panic!("no {name:?} in {said}"))
}

#[test]
fn a_page_parses_and_says_what_the_json_says() {
    let place = Place::new();
    let mut command =
        place.hanare(["run", "--local", "25%", "--report", "--report=page.html", "--stats-json", "json", "--"]);
    let outcome = place.run(command.arg(built().workload("touch")).args(["64M", "--passes", "4"]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stderr.starts_with("hanare: report for"), "the text is wanted, too: {outcome:?}");
    let json: Value = serde_json::from_slice(&std::fs::read(place.path("json")).expect("the JSON")).expect("JSON");

    let raw = std::fs::read_to_string(place.path("page.html")).expect("the page");
    for part in ["http", "url(", "@import", "NaN", "innerHTML"] {
        assert!(!raw.contains(part), "{part} is in the page");
    }
    let Some(said) = read(&place.path("page.html")) else { return };
    let figures = said["figures"].as_object().expect("figures");
    assert!(figures.len() > 50, "{said}");
    for (name, value) in figures {
        let value = value.as_str().expect("a value");
        let parsed = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        assert_eq!(parsed, json[name], "{name}");
    }
    assert!(json["pages_in"].as_u64() > Some(0), "{json:#}");
    let sections = ["memory", "waits", "faults", "traffic", "latency", "choices", "servers", "processes", "figures"];
    let found: Vec<&str> = said["sections"].as_array().expect("sections").iter().filter_map(Value::as_str).collect();
    for section in sections {
        assert!(found.contains(&section), "{section} is not in {found:?}");
    }
    assert!(said["charts"].as_u64() >= Some(5) && said["charts"] == said["described"], "{said}");
    let tables = said["behind"].as_array().expect("tables");
    assert_eq!(Some(tables.len() as u64), said["charts"].as_u64());
    assert!(tables.iter().all(|rows| (1..=130).contains(&rows.as_u64().expect("a number"))), "{said}");
    assert_eq!((said["scripts"].as_u64(), &said["outside"]), (Some(1), &Value::from(Vec::<Value>::new())));
    assert!(text(&said, "answer").starts_with("Your program ran ") && text(&said, "answer").contains("64"), "{said}");

    let timeline = json["timeline"].as_object().expect("a timeline");
    let times = timeline["time_s"].as_array().expect("times");
    assert!((2..=2001).contains(&times.len()), "{timeline:?}");
    for (name, values) in timeline {
        let values = values.as_array().expect("an array");
        assert_eq!(values.len(), times.len(), "{name}");
        if let Some(total) = json.get(name).filter(|_| name.starts_with("pages_") || name.starts_with("faults_")) {
            assert_eq!(values.last(), Some(total), "{name}");
        }
    }
    let timed: u64 = json["fault_latency"]["faults"].as_array().expect("counts").iter().filter_map(Value::as_u64).sum();
    assert!(timed > 0 && timed <= json["faults"].as_u64().expect("faults"), "{json:#}");
    place.assert_nothing_left();
}

#[test]
fn hostile_names_and_arguments_are_text() {
    let place = Place::new();
    let name = "<img src=x onerror=alert(1)>&\"'\u{1b}\u{202e}&#0;";
    std::fs::copy(built().workload("touch"), place.path(name)).expect("a copy");
    let mut command = place.hanare(["run", "--local", "8M", "--report=a.html", "--"]);
    place.run(command.arg(place.path(name)).arg("32M")).assert_well("a program with a hostile name");
    let argument = "</script></title><script>alert(1)</script>]]><!--";
    let mut command = place.hanare(["run", "--report=b.html", "--", "sh", "-c", "exit 3", argument]);
    assert_eq!(place.run(&mut command).code, Some(3));
    let (Some(named), Some(argued)) = (read(&place.path("a.html")), read(&place.path("b.html"))) else { return };
    assert!(text(&named, "name").contains("<img src=x onerror=alert(1)>&\"'\\u{1b}\\u{202e}&#0;"), "{named}");
    assert!(text(&argued, "command").ends_with(argument), "{argued}");
    assert!(
        text(&argued, "answer").contains("(exit code 3)") && text(&argued, "next").contains("--far all"),
        "{argued}"
    );
    for said in [named, argued] {
        assert_eq!((said["scripts"].as_u64(), &said["outside"]), (Some(1), &Value::from(Vec::<Value>::new())));
    }
}

/// Starts a run that does not end by itself, with its page in `page.html`.
fn endless(place: &Place) -> hanare_tests::Running {
    let mut command = place.hanare(["run", "--local", "8M", "--report=page.html", "--"]);
    place.start(command.arg(built().workload("touch")).args(["32M", "--passes", "100000000"]))
}

#[test]
fn a_killed_command_leaves_the_page_of_its_last_checkpoint() {
    let place = Place::new();
    let run = endless(&place);
    until("there is a page", || place.path("page.html").exists());
    let pid = Pid::from_raw(run.pid() as i32).expect("a process number");
    kill_process(pid, Signal::KILL).expect("the command runs");
    if let Some(said) = read(&place.path("page.html")) {
        assert!(text(&said, "answer").starts_with("Your program has run "), "{said}");
        assert_eq!(said["figures"]["exit_code"], "null");
        assert!(said["charts"].as_u64() >= Some(4), "{said}");
    }
}

#[test]
fn a_run_that_ends_half_way_has_its_page() {
    let place = Place::new();
    for (signal, end) in [(Some(Signal::INT), "(killed by signal 2)"), (None, "(exit code 120)")] {
        let run = endless(&place);
        until("there is a page", || place.path("page.html").exists());
        match signal {
            Some(signal) => run.signal(signal),
            None => {
                let server = place.private_server().and_then(Pid::from_raw).expect("a private server");
                kill_process(server, Signal::KILL).expect("the server runs");
            }
        }
        run.finish(hanare_tests::PATIENCE);
        if let Some(said) = read(&place.path("page.html")) {
            assert!(text(&said, "answer").contains(end), "{end} is not in {said}");
        }
        std::fs::remove_file(place.path("page.html")).expect("the page");
    }
}

#[test]
fn a_page_that_cannot_be_written_is_reported_and_changes_no_exit_code() {
    let place = Place::new();
    let started = place.path("started");
    let mut command = place.hanare(["run", "--report=no/such/folder.html", "--", "sh", "-c", "touch started"]);
    place.run(&mut command).assert_ended_by_us(125, "no/such/folder.html");
    assert!(!started.exists(), "the program ran");
    // A named pipe is written at the end, and its reader is not ended before.
    let made = Command::new("mkfifo").arg(place.path("pipe.html")).status().expect("mkfifo runs");
    assert!(made.success());
    let reader = place.start(place.command("cat").arg("pipe.html"));
    place.run(&mut place.hanare(["run", "--report=pipe.html", "--", "true"])).assert_well("a page into a pipe");
    let piped = reader.finish(hanare_tests::PATIENCE).text();
    assert!(piped.starts_with("<!DOCTYPE html>") && piped.ends_with("</html>\n"), "{piped}");
    symlink("/dev/full", place.path("full.html")).expect("a link");
    let mut command = place.hanare(["run", "--report=full.html", "--", "sh", "-c", "exit 7"]);
    place.run(&mut command).assert_ended_by_us(7, "cannot write full.html: No space left");
}
