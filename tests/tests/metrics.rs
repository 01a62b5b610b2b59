//! Tests the figures that `hanare run --metrics` and `hanare serve --metrics` serve over HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use hanare_tests::{PATIENCE, Place, Running, Served, built, figures, python_with, status, until};
use rustix::process::{Pid, Signal, kill_process};

const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: application/openmetrics-text\r\n\r\n";
/// The words before the address on standard error.
const MARK: &str = "metrics are at http://";

/// Prints the samples of a page as the reference parser of OpenMetrics reads them: name, labels and value.
const PARSE: &str = "
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
for family in parse(sys.stdin.read()):
    assert family.documentation, family.name
    assert family.type != 'unknown', family.name
    for sample in family.samples:
        print(sample.name, sorted(sample.labels.items()), sample.value)
";

/// Values by names with labels.
type Samples = BTreeMap<String, f64>;

/// Returns the address that the command has written to standard error.
fn address(said: impl Fn() -> String) -> String {
    let mut found = None;
    until("the address of the metrics", || {
        let said = said();
        found = said.split(MARK).nth(1).and_then(|rest| Some(rest.split_once("/metrics\n")?.0.to_owned()));
        found.is_some()
    });
    found.expect("an address")
}

/// Sends a request and returns the answer up to the end of the connection.
fn exchange(address: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    stream.write_all(request).expect("a request is taken");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    String::from_utf8(answer).expect("text")
}

/// Returns the page of figures.
fn page(address: &str) -> String {
    let answer = exchange(address, GET);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"),
        "{head}"
    );
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    body.to_owned()
}

/// Returns the values of a page by the simplest reading: a name with labels, a blank, a value.
fn samples(page: &str) -> Samples {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(' ').expect("a value"))
        .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
        .collect()
}

/// Checks a page with the reference parser, where it is installed. Returns how many samples it has read.
fn check_with_the_reference_parser(place: &Place, page: &str) -> Option<usize> {
    let python = python_with("prometheus_client")?;
    let mut command = place.command(python);
    command.args(["-c", PARSE]).stdin(std::fs::File::open(place.file("page", page)).expect("a page"));
    let outcome = place.run(&mut command);
    outcome.assert_well("the parser");
    Some(outcome.text().lines().count())
}

/// Starts a run of a program that accesses its pages at random until it is ended.
fn start(place: &Place, metrics: &str) -> Running {
    let mut command = place.hanare(["run", "--local", "25%", "--stats-json", "json", "--metrics", metrics, "--"]);
    command.arg(built().workload("touch")).args(["64M", "--passes", "100000", "--random"]);
    place.start(&mut command)
}

/// Returns the sum of all kinds of faults.
fn faults(samples: &Samples) -> f64 {
    samples.iter().filter(|(name, _)| name.starts_with("hanare_run_faults_total{")).map(|(_, value)| value).sum()
}

/// Waits until a run pages in both directions, and returns its page of figures.
fn page_of_a_busy_run(address: &str) -> String {
    let mut text = String::new();
    until("the run pages", || {
        text = page(address);
        let seen = samples(&text);
        seen["hanare_run_written_back_bytes_total"] > 0.0 && seen["hanare_run_fetched_bytes_total"] > 0.0
    });
    text
}

#[test]
fn a_runs_figures_parse_grow_and_end_with_it() {
    let place = Place::new();
    let run = start(&place, "0");
    let address = address(|| run.said_so_far());
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let text = page_of_a_busy_run(&address);
    let first = samples(&text);
    if let Some(count) = check_with_the_reference_parser(&place, &text) {
        assert_eq!(count, first.len(), "{text}");
    }
    let mut then = first.clone();
    until("there are more faults", || {
        then = samples(&page(&address));
        faults(&then) > faults(&first)
    });
    for (name, value) in first.iter().filter(|(name, _)| name.contains("_total") || name.contains("_bucket")) {
        assert!(then[name] >= *value, "{name} fell from {value} to {}", then[name]);
    }
    let buckets: Vec<f64> = text
        .lines()
        .filter(|line| line.contains("fault_seconds_bucket"))
        .map(|line| samples(line).into_values().next().expect("a value"))
        .collect();
    assert!(buckets.len() > 20 && buckets.is_sorted(), "{buckets:?}");
    assert_eq!(buckets.last(), Some(&first["hanare_run_fault_seconds_count"]));
    assert!(text.contains("hanare_run_info{program=\"touch\""), "{text}");
    kill_process(Pid::from_raw(run.pid() as i32).expect("a process number"), Signal::TERM).expect("a signal");
    assert_eq!(run.finish(PATIENCE).code, Some(143));
    let last = figures(&place.path("json"));
    for (name, figure) in [
        ("hanare_run_fetched_bytes_total", "bytes_in"),
        ("hanare_run_written_back_bytes_total", "bytes_out"),
        ("hanare_run_local_peak_bytes", "local_bytes_peak"),
        ("hanare_run_far_peak_bytes", "far_bytes_peak"),
    ] {
        assert!(
            0.0 < then[name] && then[name] <= last.number(figure) as f64,
            "{name}: {} of {}",
            then[name],
            last.number(figure)
        );
    }
    assert!(faults(&then) <= last.number("faults") as f64);
    assert!(TcpStream::connect(&address).is_err(), "the endpoint ends with the run");
    place.assert_nothing_left();
}

#[test]
fn an_address_in_use_ends_the_command_before_the_program_starts() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let mark = place.path("mark");
    let mut command = place.hanare(["run", "--metrics", &address, "--", "touch"]);
    place.run(command.arg(&mark)).assert_ended_by_us(125, &format!("cannot serve metrics on {address}: "));
    assert!(!mark.exists(), "the program has started");
    let mut command = place.hanare(["serve", "--memory", "64M", "--listen", "127.0.0.1:0", "--metrics", &address]);
    place.run(&mut command).assert_ended_by_us(125, &format!("cannot serve metrics on {address}: "));
    place.assert_nothing_left();
}

#[test]
fn a_servers_figures_are_those_of_its_status() {
    let place = Place::new();
    let flags = ["serve", "--memory", "128M", "--listen", "127.0.0.1:0", "--metrics", ":0"];
    let server = Served::with(&place, place.hanare(flags));
    let address = address(|| server.said_so_far());
    let mut command = place.hanare(["run", "--local", "8M", "--server", &server.address, "--"]);
    let outcome = place.run(command.arg(built().workload("touch")).arg("32M"));
    outcome.assert_well("touch");
    let text = page(&address);
    if let Some(count) = check_with_the_reference_parser(&place, &text) {
        assert_eq!(count, samples(&text).len(), "{text}");
    }
    let (seen, told) = (samples(&text), status(&server.address));
    for (name, value) in [
        ("hanare_server_memory_limit_bytes", told.memory_limit_bytes),
        ("hanare_server_received_bytes_total", told.write_bytes),
        ("hanare_server_sent_bytes_total", told.read_bytes),
    ] {
        assert_eq!(seen[name] as u64, value, "{name} in {text}");
    }
    assert!(seen["hanare_server_uptime_seconds"] > 0.0);
    let stopped = server.stop();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
}

/// Returns the resident bytes of a process.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("a process");
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}

/// Whether this process, and so every program that it starts, ignores SIGINT.
fn ignores_ctrl_c() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask");
    u64::from_str_radix(mask.trim(), 16).expect("a mask") & 2 != 0
}

#[test]
fn hostile_peers_do_no_harm() {
    let place = Place::new();
    let mut run = start(&place, "127.0.0.1:0");
    let address = address(|| run.said_so_far());
    page_of_a_busy_run(&address);
    let before = resident(run.pid());
    // Each of these sends a part of a request, and then nothing.
    let mut slow: Vec<TcpStream> = Vec::new();
    for round in 0..200 {
        let mut stream = TcpStream::connect(&address).expect("a connection");
        stream.write_all(b"GET /metrics HT").expect("a part of a request");
        slow.push(stream);
        if round % 50 == 0 {
            page(&address);
        }
    }
    let long = [b"GET /".as_slice(), &vec![b'a'; 1 << 20], b" HTTP/1.1\r\n\r\n"].concat();
    let answer = exchange(&address, &long);
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    for (request, code) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405"),
        (b"\x16\x03\x01\x02\x00\x01\x00\n\n", "400"),
    ] {
        let answer = exchange(&address, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{request:?}: {answer}");
    }
    // A peer that never reads its answer.
    let mut deaf = TcpStream::connect(&address).expect("a connection");
    deaf.write_all(GET).expect("a request");
    page(&address);
    let grown = resident(run.pid()).saturating_sub(before);
    assert!(grown < 16 << 20, "the command grew by {grown} bytes");
    assert!(run.runs());
    // A slow peer loses its connection after some seconds, or as soon as too many others have come.
    slow[0].set_read_timeout(Some(Duration::from_secs(30))).expect("a limit");
    let mut rest = Vec::new();
    // Ignored: whether it ends by a reset or by its end does not matter.
    let _ = slow[0].read_to_end(&mut rest);
    assert!(rest.is_empty(), "{rest:?}");
    // A script that runs the tests in the background makes them ignore Ctrl-C, and with them the program.
    let (signal, code) = if ignores_ctrl_c() { (Signal::TERM, 143) } else { (Signal::INT, 130) };
    run.signal(signal);
    let outcome = run.finish(PATIENCE);
    assert_eq!(outcome.code, Some(code), "{outcome:?}");
    place.assert_nothing_left();
}

/// Returns the names of Hanare's metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| word.starts_with("hanare_run_") || word.starts_with("hanare_server_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_dashboard_and_the_documents_name_only_figures_that_exist() {
    let place = Place::new();
    let run = start(&place, "0");
    let flags = ["serve", "--memory", "64M", "--client-quota", "16M", "--listen", "127.0.0.1:0", "--metrics", "0"];
    let server = Served::with(&place, place.hanare(flags));
    let mut exported = BTreeSet::new();
    for address in [address(|| run.said_so_far()), address(|| server.said_so_far())] {
        exported
            .extend(samples(&page(&address)).into_keys().map(|name| name.split('{').next().unwrap_or("").to_owned()));
    }
    drop(run);
    let read = |path: &str| std::fs::read_to_string(built().root.join(path)).expect(path);
    let dashboard = read("packaging/grafana/hanare.json");
    serde_json::from_str::<serde_json::Value>(&dashboard).expect("the dashboard is JSON");
    let used = names(&dashboard);
    assert!(used.len() > 20, "{used:?}");
    let missing: Vec<_> = used.difference(&exported).collect();
    assert!(missing.is_empty(), "the dashboard wants {missing:?}");
    // The document has every name, a histogram's without its suffixes.
    let plain = |name: &String| {
        ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name).to_owned()
    };
    let exported: BTreeSet<String> = exported.iter().map(plain).collect();
    let told = names(&read("docs/watching.md"));
    assert_eq!(told, exported, "docs/watching.md and the endpoints");
}
