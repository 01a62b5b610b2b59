//! Tests `hanare top` and `hanare run --progress` on runs that go on.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use hanare_tests::{Outcome, PATIENCE, Place, Running, Served, built, figures, installed, until};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{self, OpenptFlags};
use serde_json::{Value, json};

/// Starts a run of a program that accesses its pages at random until it is ended. `flags` come before the program.
fn start(place: &Place, flags: &[&str]) -> Running {
    let mut command = place.hanare(["run", "--local", "25%", "--stats-json", "json"]);
    command.args(flags).arg("--").arg(built().workload("touch")).args(["64M", "--passes", "100000", "--random"]);
    place.start(&mut command)
}

/// Returns the first output of `hanare top --once --json` in which the run is as `is_wanted` says.
fn look_until(place: &Place, run: &Running, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let pid = run.pid().to_string();
    let mut seen = Value::Null;
    until("the run is as wanted", || {
        let outcome = place.run(&mut place.hanare(["top", "--once", "--json", "--interval", "300ms", "--pid", &pid]));
        // The counters are made some milliseconds after the start.
        if outcome.code == Some(125) && outcome.stderr.contains("belongs to no run") {
            return false;
        }
        outcome.assert_well("top");
        seen = serde_json::from_slice(&outcome.stdout).expect("JSON");
        is_wanted(&seen["runs"][0])
    });
    seen
}

/// Looks at a run that has begun to page.
fn look(place: &Place, run: &Running) -> Value {
    look_until(place, run, |run| number(run, "bytes_out") > 0.0 && number(run, "faults_per_s") > 0.0)
}

/// Returns a figure. One that is not known counts as 0.
#[track_caller]
fn number(run: &Value, name: &str) -> f64 {
    let value = run.get(name).unwrap_or_else(|| panic!("no {name} in {run}"));
    value.as_f64().unwrap_or(0.0)
}

/// Ends the run by SIGTERM to the command alone, which passes it on.
fn end(run: Running) -> Outcome {
    let pid = Pid::from_raw(run.pid() as i32).expect("a process number");
    kill_process(pid, Signal::TERM).expect("a signal");
    run.finish(PATIENCE)
}

#[test]
fn the_figures_agree_with_those_at_the_end_of_the_run() {
    const GROWING: [&str; 3] = ["faults", "bytes_in", "bytes_out"];
    let place = Place::new();
    let run = start(&place, &[]);
    let first = look(&place, &run)["runs"][0].clone();
    let has_grown = |run: &Value| GROWING.iter().all(|name| number(run, name) > number(&first, name));
    let then = look_until(&place, &run, |run| has_grown(run) && number(run, "fault_us_p50") > 0.0)["runs"][0].clone();
    let pid = run.pid();
    assert_eq!(end(run).code, Some(143));
    let last = figures(&place.path("json"));
    for name in GROWING {
        assert!(number(&then, name) <= last.number(name) as f64, "{name}: {then}, then {}", last.number(name));
    }
    assert_eq!((first["supervisor_pid"].as_u64(), first["program"].as_str()), (Some(u64::from(pid)), Some("touch")));
    assert_eq!(first["mode"].as_str(), Some(last.mode()));
    let then_number = |name| number(&then, name);
    let far = f64::from(64 << 20)..=last.number("far_bytes_peak") as f64;
    assert!(far.contains(&then_number("far_bytes")), "{then}");
    let local = then_number("local_bytes");
    assert!(local > 0.0 && local <= last.number("local_bytes_peak") as f64, "{then}");
    assert_eq!(then_number("local_bytes_budget") as u64, last.number("local_bytes_budget"));
    let share = then_number("stall_share");
    assert!(share > 0.0 && share <= 1.0 && then_number("waiting_threads") >= share, "{then}");
    assert!(then_number("fault_us_p50") <= then_number("fault_us_p99"), "{then}");
    assert!(then_number("bytes_in_per_s") + then_number("bytes_out_per_s") > 0.0, "{then}");
    let processes = then["processes"].as_array().expect("processes");
    assert!(processes.len() == 1 && processes[0]["pid"] == then["pid"], "the private server is none of them: {then}");
    let process = &processes[0];
    assert!(number(process, "faults") > 0.0 && number(process, "faults") <= last.number("faults") as f64, "{then}");
    assert!(number(process, "stall_share") > 0.0 && number(process, "swap_s") > 0.0, "{then}");
    // The figures of a process are read a moment after those of its run, so its local memory may be the larger.
    let local = number(process, "local_bytes");
    assert!(local > 0.0 && local <= last.number("local_bytes_peak") as f64, "{then}");
    assert!(far.contains(&number(process, "far_bytes")), "{then}");
    assert!(number(process, "private_bytes") > 0.0 && number(process, "faults_per_s") > 0.0, "{then}");
    place.assert_nothing_left();
}

/// A shell has no far memory of its own. Each of its two programs has its own figures, and together they are the run's.
#[test]
fn each_process_of_a_tree_has_its_own_figures() {
    let place = Place::new();
    let touch = built().workload("touch");
    let script = "\"$0\" 48M --passes 100000 --random & \"$0\" 24M --passes 100000 --random & wait";
    let mut command = place.hanare(["run", "--local", "16M", "--", "/bin/sh", "-c", script]);
    let run = place.start(command.arg(&touch));
    let pages = |run: &Value| {
        let processes = run["processes"].as_array().expect("processes");
        processes.iter().filter(|process| number(process, "faults_per_s") > 0.0).count() == 2
    };
    let seen = look_until(&place, &run, pages)["runs"][0].clone();
    let processes = seen["processes"].as_array().expect("processes");
    let (own, shells): (Vec<&Value>, Vec<&Value>) = processes.iter().partition(|it| it["program"] == "touch");
    assert!(own.len() == 2 && !shells.is_empty(), "{seen}");
    assert!(shells.iter().all(|shell| shell["far_bytes"].is_null() && shell["faults_per_s"].is_null()), "{seen}");
    let mut far: Vec<u64> = own.iter().map(|it| number(it, "far_bytes") as u64 >> 20).collect();
    far.sort_unstable();
    assert!((24..40).contains(&far[0]) && (48..64).contains(&far[1]), "{seen}");
    assert!(own.iter().all(|it| number(it, "local_bytes") <= number(&seen, "local_bytes_budget")), "{seen}");
    let text =
        place.run(&mut place.hanare(["top", "--once", "--interval", "100ms", "--pid", &run.pid().to_string()])).text();
    assert_eq!(text.lines().filter(|line| line.ends_with(" touch")).count(), 2, "{text}");
    run.signal(Signal::TERM);
    run.finish(PATIENCE);
}

#[test]
fn a_table_names_the_program_and_the_servers() {
    let place = Place::new();
    let server = Served::tcp(&place, "128M");
    let run = start(&place, &["--server", &server.address]);
    look(&place, &run);
    let outcome = place.run(&mut place.hanare(["top", "--once", "--interval", "200ms", "--server", &server.address]));
    outcome.assert_well("top");
    let text = outcome.text();
    assert!(text.contains("FAULT/s") && text.lines().any(|line| line.ends_with("touch")), "{text}");
    let row = text.lines().find(|line| line.ends_with(&server.address)).expect("the server's row");
    let free = row.split_whitespace().nth(1).expect("FREE");
    assert!(free.ends_with('M') && row.split_whitespace().nth(5) == Some("1"), "{text}");
    server.kill();
    let mut lost = place.hanare(["top", "--once", "--json", "--interval", "100ms", "--server", "127.0.0.1:1"]);
    let seen: Value = serde_json::from_slice(&place.run(&mut lost).stdout).expect("JSON");
    assert!(seen["servers"][0]["error"].as_str().is_some_and(|error| error.contains("127.0.0.1:1")), "{seen}");
    drop(run);
}

#[test]
fn what_cannot_be_shown_is_said_in_one_line() {
    let place = Place::new();
    place.run(&mut place.hanare(["top"])).assert_ended_by_us(125, "no terminal; add --once");
    let own = std::process::id().to_string();
    place.run(&mut place.hanare(["top", "--once", "--pid", &own])).assert_ended_by_us(125, "belongs to no run");
    place.run(&mut place.hanare(["top", "--once", "--pid", "4194999"])).assert_ended_by_us(125, "there is no process");
}

/// Another user may not look at a run. That user gets a line that says so, and no figures.
#[test]
fn the_runs_of_others_are_named_and_not_shown() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can become another user");
    }
    let place = Place::new();
    let run = start(&place, &[]);
    look(&place, &run);
    let copy = place.path("hanare");
    std::fs::copy(built().hanare(), &copy).expect("a copy");
    std::fs::set_permissions(place.path(""), PermissionsExt::from_mode(0o755)).expect("a mode");
    let pid = run.pid().to_string();
    let as_nobody = |args: &[&str]| {
        let mut command = place.command(&copy);
        command.args(["top", "--once", "--interval", "100ms"]).args(args).uid(NOBODY).gid(NOBODY);
        place.run(&mut command)
    };
    as_nobody(&["--pid", &pid]).assert_ended_by_us(125, "of user 0: Permission denied");
    let outcome = as_nobody(&[]);
    outcome.assert_well("top of nobody");
    let text = outcome.text();
    let note = format!("cannot look at process {pid} (hanare) of user 0: ");
    assert!(text.lines().filter(|line| line.starts_with(&note)).count() == 1, "{text}");
    assert!(!text.contains("touch") && text.ends_with("starts one\n"), "{text}");
    drop(run);
}

/// Runs the command on a terminal and presses keys. Returns what was written, and checks the exit code and that the
/// terminal is as before.
#[track_caller]
fn on_a_terminal(place: &Place, size: [u32; 2], steps: &Value, args: &[&str], code: i64) -> String {
    let hanare = place.hanare(args);
    let mut command: Command = place.command("python3");
    command.arg(built().root.join("tests/harness/terminal.py")).args(size.map(|number| number.to_string()));
    command.arg(steps.to_string()).arg(hanare.get_program()).args(hanare.get_args()).env("TERM", "xterm");
    let outcome = place.run(&mut command);
    outcome.assert_well("terminal.py");
    let seen: Value = serde_json::from_slice(&outcome.stdout).expect("JSON");
    let written = seen["written"].as_str().expect("text").to_owned();
    assert_eq!((seen["code"].as_i64(), seen["left"].as_u64()), (Some(code), Some(0)), "{written:?}");
    assert_eq!(seen["restored"], true, "{written:?}");
    written
}

#[test]
fn every_way_out_gives_the_terminal_back() {
    if !installed("python3", "python3") {
        return;
    }
    let place = Place::new();
    let run = start(&place, &[]);
    look(&place, &run);
    let pid = run.pid().to_string();
    let args = ["top", "--pid", &pid, "--interval", "200ms"];
    for (size, end, code) in
        [([24, 80], "q", 0), ([10, 40], "\u{3}", 0), ([50, 200], "\u{1b}[21~", 0), ([24, 80], "SIGNAL 15", 143)]
    {
        let steps = json!([["touch", "h"], ["Ctrl-C", "h"], ["touch", end]]);
        let written = on_a_terminal(&place, size, &steps, &args, code);
        let (enter, leave) = ("\u{1b}[?1049h", "\u{1b}[?1049l");
        assert!(written.contains(enter) && written.rfind(leave) > written.rfind(enter), "{written:?}");
        assert!(written.contains("FAULT/s") && written.contains("STALL"), "{written:?}");
        let (gone, back) = ("\u{1b}[?25l", "\u{1b}[?25h");
        assert!(written.rfind(back) > written.rfind(gone), "the cursor is shown again: {written:?}");
    }
    drop(run);
}

#[test]
fn progress_is_for_terminals_and_cleared_at_the_end() {
    let place = Place::new();
    let run = start(&place, &["--progress"]);
    // A terminal would have had its second line by now.
    look_until(&place, &run, |run| number(run, "elapsed_s") > 4.5);
    let outcome = end(run);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(143), ""));
    if !installed("python3", "python3") {
        return;
    }
    let touch = built().workload("touch");
    let touch = touch.to_str().expect("a path");
    let args = ["run", "--progress", "--local", "25%", "--", touch, "64M", "--passes", "100000", "--random"];
    let steps = json!([["faults/s", ""], ["faults/s", "SIGNAL 15"]]);
    let written = on_a_terminal(&place, [24, 120], &steps, &args, 143);
    assert!(written.contains("\rhanare: ") && written.contains(" far, "), "{written:?}");
    assert!(written.ends_with("\r\u{1b}[K") && !written.contains('\n'), "{written:?}");
    place.assert_nothing_left();
}

/// The terminal of `hanare top` goes away without a signal, as behind `nohup` or in a session that was given up.
#[test]
fn it_ends_with_its_terminal() {
    let place = Place::new();
    let control = pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    pty::unlockpt(&control).expect("a terminal");
    let terminal = pty::ptsname(&control, Vec::new()).expect("a name").into_string().expect("a name in ASCII");
    let mut command = place.command("sh");
    command.args(["-c", r#"exec "$1" top --interval 300ms <"$0" >"$0""#, &terminal]).arg(built().hanare());
    let top = place.start(&mut command);
    until("top has drawn", || {
        let waiting = rustix::io::ioctl_fionread(&control).unwrap_or(0);
        let mut drawn = vec![0; waiting as usize];
        waiting > 0 && rustix::io::read(&control, &mut drawn).is_ok_and(|count| count > 0)
    });
    drop(control);
    let outcome = top.finish(PATIENCE);
    assert_eq!(outcome.code, Some(129), "{outcome:?}");
}
