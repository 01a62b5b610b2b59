//! `hanare simulate cluster`, `hanare simulate sweep` and `hanare place`: what they print and write, what they refuse,
//! and what an interrupted one leaves.

mod common;

use std::io::{BufRead, BufReader, IoSlice};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use common::{PATIENCE, Place, send, until, wait};
use hanare_wire::{Endpoint, Session, SessionOptions, fetch_status};
use rustix::process::Signal;

/// Settings of a machine whose simulation takes almost no time.
const SMALL: &str = "\
[cells]
networks = [\"4\"]
seeds = 2
[scheduling]
quantum_clk = 2000
finish_quanta = 3
[machine]
memory_pages = 40
[costs]
disk_clk = 300

[[process]]
processors = 2
count = 3
private_pages = 10
shared_pages = 8
";

fn simulate(place: &Place, what: &str, args: &[&str]) -> Command {
    let mut command = place.hanare();
    command.args(["simulate", what]).args(args);
    command
}

#[test]
fn a_table_json_and_a_page_come_of_one_run() {
    let place = Place::new();
    let config = place.file("small.toml", SMALL);
    let (json, html) = (place.path("j"), place.path("h"));
    let mut command = simulate(&place, "cluster", &["--network", "4,2x2", "--scheduler", "algo0,algo4,settle"]);
    command.arg(&config).arg("--json").arg(&json).arg("--html").arg(&html);
    let outcome = place.run(&mut command);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
    assert!(outcome.stdout.contains("network 2x2, remote access 300 clk a level"), "{outcome:?}");
    assert_eq!(outcome.stdout.lines().filter(|line| line.starts_with("kind ")).count(), 4, "{outcome:?}");

    let results: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let cells = results["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 2 * 2 * 2 * 3);
    let cell = &cells[5];
    assert_eq!(
        (&cell["network"], &cell["scheduler"], &cell["replacement"]),
        (&"4".into(), &"settle".into(), &"kind".into())
    );
    assert_eq!((&cell["remote_cost_clk"], &cell["seeds"], &cell["finished"]), (&100.into(), &2.into(), &true.into()));
    let rates: Vec<f64> =
        cell["effective_rate_percent"].as_array().unwrap().iter().map(|rate| rate.as_f64().unwrap()).collect();
    let mean = cell["effective_rate_percent_mean"].as_f64().unwrap();
    assert!(rates.len() == 2 && (mean - (rates[0] + rates[1]) / 2.0).abs() < 1e-9 && mean > 20.0 && mean <= 100.0);
    let sd = cell["effective_rate_percent_sd"].as_f64().unwrap();
    assert!((sd - (rates[0] - rates[1]).abs() / 2.0_f64.sqrt()).abs() < 1e-9);
    assert!(std::fs::read_to_string(&html).unwrap().contains("<svg"));

    // Each claim that this simulation can decide has a line in the table, with the same verdict as in the JSON. The
    // HTML page has the same counts.
    let claims = results["claims"].as_array().unwrap();
    assert_eq!(claims.len(), 4, "{claims:?}");
    for claim in claims {
        let (text, verdict) = (claim["claim"].as_str().unwrap(), claim["verdict"].as_str().unwrap());
        let line = outcome.stdout.lines().find(|line| line.contains(text)).unwrap();
        assert!(line.starts_with(verdict) && ["holds", "tied", "does not hold"].contains(&verdict), "{line}");
        let cases = format!(": {} of {}", claim["held"], claim["cases"]);
        assert!(line.contains(&cases) && std::fs::read_to_string(&html).unwrap().contains(&cases), "{line}");
    }

    // A second run gives the same output bit for bit, although it uses another number of parallel jobs.
    let mut command = simulate(&place, "cluster", &["--network", "4,2x2", "--scheduler", "algo0,algo4,settle"]);
    let again = place.run(command.arg(&config).args(["--jobs", "1", "--json", "-"]));
    assert_eq!(again.stdout, std::fs::read_to_string(&json).unwrap());
    place.assert_nothing_left();
}

#[test]
fn what_is_printed_as_settings_is_read_as_settings() {
    let place = Place::new();
    let printed = place.run(&mut simulate(&place, "cluster", &["--print-config"]));
    assert_eq!(printed.code, Some(0), "{printed:?}");
    let config = place.file("all.toml", &printed.stdout);
    let small = ["--seeds", "1", "--set", "scheduling.quanta_max=1", "--scheduler", "algo1", "--remote-cost", "100"];
    let run = |file: Option<&Path>| {
        let mut command = simulate(&place, "cluster", &small);
        let outcome = place.run(command.args(file));
        assert!(
            outcome.stderr.contains("in 2 of 2 cells no process ended within scheduling.quanta_max"),
            "{outcome:?}"
        );
        outcome.stdout
    };
    assert_eq!(run(Some(&config)), run(None));
}

#[test]
fn a_sweep_runs_every_combination() {
    let place = Place::new();
    let config = place.file("small.toml", SMALL);
    let vary = ["--vary", "machine.memory_pages=15,60", "--vary", "cells.networks=4,2x2", "--scheduler", "algo4"];
    let mut command = simulate(&place, "sweep", &vary);
    let outcome =
        place.run(command.arg(&config).args(["--replacement", "kind", "--remote-cost", "100", "--json", "-"]));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
    let results: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let points = results["points"].as_array().unwrap();
    let seen: Vec<(&str, &str)> = points
        .iter()
        .map(|point| {
            let settings = &point["settings"];
            assert_eq!(point["cells"][0]["network"], settings["cells.networks"]);
            (settings["machine.memory_pages"].as_str().unwrap(), settings["cells.networks"].as_str().unwrap())
        })
        .collect();
    assert_eq!(seen, [("15", "4"), ("15", "2x2"), ("60", "4"), ("60", "2x2")]);
    let evictions = |at: usize| points[at]["cells"][0]["evictions_mean"].as_f64().unwrap();
    assert!(evictions(0) > evictions(2));
    let table = place.run(simulate(&place, "sweep", &vary).arg(&config));
    assert_eq!(table.stdout.lines().count(), 1 + 4 * 2 * 2, "{table:?}");
}

#[test]
fn bad_settings_are_refused_before_anything_runs() {
    let place = Place::new();
    let bad = |text: &str, part: &str| {
        let config = place.file("bad.toml", text);
        let json = place.path("never");
        let mut command = simulate(&place, "cluster", &[]);
        place.run(command.arg(&config).arg("--json").arg(&json)).assert_refused(125, part);
        assert!(!json.exists());
    };
    bad("[costs]\ndisk_clk = -3\n", "bad.toml, line 2: costs.disk_clk cannot be -3; it takes whole clocks from 0 to");
    bad("[costs]\nfloppy_clk = 3\n", "line 2: [costs] has no setting 'floppy_clk'; there are disk_clk");
    bad(
        "[[process]]\nshared_pages = 3\nprocessors = 20\n",
        "line 3: a process asks for 20 processors, and network 16 has 16",
    );
    bad("[[process]]\nprocessors = 2\n", "line 2: a process has no pages");
    bad("[machine]\nmemory_pages = 0\n", "line 2: machine.memory_pages cannot be 0");
    bad("[machine\n", "line 1");
    bad("[references]\nprivate = \"file:absent\"\n", "line 2: references.private: cannot read");
    place.file("weights", "1\n2\nx\n");
    bad("[references]\nprivate = \"file:weights\"\n", "weights, line 3: 'x' is no weight");
    for (args, part) in [
        (&["cluster", "/no/such/file"][..], "cannot read /no/such/file"),
        (&["cluster", "--network", "4x"], "'4x' is no network"),
        (&["cluster", "--network", "4"], "asks for 8 processors, and network 4 has 4"),
        (&["cluster", "--scheduler", "algo9"], "algo0, algo1"),
        (&["cluster", "--replacement", "best"], "kind+POLICY"),
        (&["cluster", "--remote-cost", "1.5"], "cells.remote_costs"),
        (&["cluster", "--remote-cost", "100,-5"], "cells.remote_costs cannot be -5"),
        (&["cluster", "--remote-cost", "-5"], "cells.remote_costs cannot be -5"),
        (&["cluster", "--seeds", "0"], "1 to 10000"),
        (&["cluster", "--jobs", "0"], "--jobs"),
        (&["cluster", "--set", "costs.disk_clk"], "SECTION.NAME=VALUE"),
        (&["cluster", "--json", "/no/such/dir/j"], "--json"),
        (&["cluster", "--html", "/"], "--html"),
        (&["sweep"], "--vary"),
        (&["sweep", "--vary", "costs.disk_clk=1,x"], "costs.disk_clk cannot be \"x\""),
        (&["sweep", "--vary", "cells.networks=16,4"], "network 4 has 4"),
    ] {
        place.run(place.hanare().arg("simulate").args(args)).assert_refused(125, part);
    }
    place.assert_nothing_left();
}

#[test]
fn an_interrupted_run_leaves_no_file_and_the_old_one_as_it_was() {
    let place = Place::new();
    let out = place.path("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("old.json"), "old").unwrap();
    for signal in [Signal::INT, Signal::TERM] {
        let mut command = simulate(&place, "cluster", &["--seeds", "10000"]);
        command.arg("--json").arg(out.join("old.json")).arg("--html").arg(out.join("new.html"));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        // The command catches SIGHUP last. A signal has no effect until its own registration has ended.
        until("signals are caught", || catches(pid, Signal::HUP));
        send(pid, signal);
        let stderr = child.stderr.take().unwrap();
        assert_eq!(wait(&mut child).code(), Some(128 + signal.as_raw()));
        assert_eq!(std::io::read_to_string(stderr).unwrap(), "hanare: interrupted; no file was written\n");
        let left: Vec<_> = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["old.json"]);
        assert_eq!(std::fs::read_to_string(out.join("old.json")).unwrap(), "old");
    }
}

fn catches(pid: u32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal.as_raw() - 1)) != 0
}

/// A memory server that ends with the test.
struct Served(Child, String);

impl Drop for Served {
    fn drop(&mut self) {
        // Ignored: both calls fail only if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(place: &Place) -> Served {
    let mut command = place.hanare();
    command.args(["serve", "--memory", "64M", "--listen", "127.0.0.1:0"]).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut served = Served(child, String::new());
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        // The server's later output is read and dropped, so that it does not block the server.
        if stderr.read_line(&mut line).is_ok() && sender.send(line).is_ok() {
            let _ = std::io::copy(&mut stderr, &mut std::io::sink());
        }
    });
    let line = receiver.recv_timeout(PATIENCE).unwrap();
    served.1 = line.trim_end().rsplit(' ').next().unwrap().to_owned();
    served
}

/// Opens a session and writes a page. The server keeps the page while the returned value lives.
fn hold_some(endpoint: &Endpoint) -> impl Sized + use<> {
    let session = Session::open(endpoint, &SessionOptions::for_endpoint(endpoint, 4096)).unwrap();
    let (requests, replies, mut writer, info) = session.split();
    writer.write(1, 0, &[IoSlice::new(&[7; 4096])]).unwrap();
    (requests, replies, writer, info)
}

#[test]
fn a_job_is_sent_to_the_nodes_that_hold_pages() {
    let place = Place::new();
    let servers = [serve(&place), serve(&place), serve(&place)];
    let named = servers.iter().map(|served| served.1.clone()).collect::<Vec<_>>().join(",");
    let propose = |args: &[&str]| {
        let mut command = place.hanare();
        command.args(["place", "--servers", &named]).args(args);
        place.run(&mut command)
    };
    // No server holds a page, so the first server is chosen.
    let outcome = propose(&["--ranks", "1"]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
    assert!(outcome.stdout.starts_with(&servers[0].1) && outcome.stdout.contains("0 B held"), "{outcome:?}");

    // A session writes a page to the last server.
    let endpoint: Endpoint = servers[2].1.parse().unwrap();
    let session = hold_some(&endpoint);
    until("the server counts what it holds", || {
        fetch_status(&endpoint, None, Duration::from_secs(5)).is_ok_and(|status| status.memory_bytes > 0)
    });
    let outcome = propose(&["--ranks", "1"]);
    assert!(outcome.stdout.starts_with(&servers[2].1), "{outcome:?}");
    let outcome = propose(&["--ranks", "2", "--names"]);
    assert_eq!(outcome.stdout, "127.0.0.1\n127.0.0.1\n");
    let outcome = propose(&["--ranks", "2", "--json"]);
    let nodes: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let chosen: Vec<bool> = nodes.as_array().unwrap().iter().map(|node| node["chosen"].as_bool().unwrap()).collect();
    assert_eq!(chosen, [true, false, true], "{nodes}");
    assert!(nodes[2]["held_bytes"].as_u64() > Some(0) && nodes[0]["held_bytes"] == 0);
    drop(session);

    propose(&["--ranks", "4"]).assert_refused(125, "--ranks 4 is more than the 3 nodes");
    propose(&["--ranks", "0"]).assert_refused(125, "--ranks");
    let gone = |args: &[&str], part: &str| place.run(place.hanare().arg("place").args(args)).assert_refused(125, part);
    gone(&["--servers", "127.0.0.1:1", "--ranks", "1"], "127.0.0.1:1");
    gone(&["--servers", "a b", "--ranks", "1"], "HOST:PORT");
    gone(&["--servers", "x,x", "--ranks", "1"], "named twice");
    gone(&["--servers", "x", "--ranks", "1", "--key", "/no/such"], "/no/such");
    gone(&["--ranks", "1"], "--servers");
    place.assert_nothing_left();
}
