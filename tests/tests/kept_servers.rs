//! Tests of runs that wait for a lost memory server (`--on-loss wait`), and of servers that keep their sessions over a
//! restart (`--keep`). A run must go on with the right words, or end with one line that says why it cannot.

use std::path::Path;
use std::time::Duration;

use hanare_tests::{Outcome, PATIENCE, Place, Running, Served, built, mode_works, status, until};
use rustix::process::Signal;

/// Longest time until a run that cannot go on has ended. An attempt to reach the server may have begun just before.
const SOON: Duration = Duration::from_secs(15);
const MODES: [&str; 3] = ["thread", "sigbus", "sigsegv"];

fn keeping(place: &Place, address: &str, keep: &Path) -> Served {
    let mut command = place.hanare(["serve", "--memory", "512M", "--listen", address, "--keep"]);
    command.arg(keep);
    Served::with(place, command)
}

/// Starts a program that pages, with a budget far below its size.
fn paging(place: &Place, address: &str, on_loss: &str, mode: &str, passes: &str) -> Running {
    let args = ["run", "--local", "4M", "--server", address, "--on-loss", on_loss, "--mode", mode, "--"];
    let mut command = place.hanare(args);
    command.arg(built().workload("touch")).args(["32M", "--random", "--passes", passes]);
    place.start(&mut command)
}

fn until_pages_came_back(address: &str) {
    until("pages have come back", || status(address).read_bytes > 4 << 20);
}

fn until_it_waits(run: &Running, losses: usize) {
    until("the run waits", || run.said_so_far().matches("waits until this server is back").count() == losses);
}

fn assert_stopped(outcome: &Outcome) {
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

/// Asserts that a run has ended well, after it has waited for its server `losses` times.
fn assert_went_on(outcome: &Outcome, losses: usize, address: &str) {
    assert!(outcome.code == Some(0) && outcome.text().contains("ok touch"), "{outcome:?}");
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!(lines.len(), 2 * losses, "{outcome:?}");
    for pair in lines.chunks(2) {
        assert!(pair.iter().all(|line| line.starts_with("hanare: ") && line.contains(address)), "{outcome:?}");
        assert!(pair[0].contains("waits until") && pair[1].contains("is back after"), "{outcome:?}");
    }
}

/// Asserts that a run has ended with 120, after a line that it waits and a line that contains `part`.
fn assert_gave_up(outcome: &Outcome, part: &str, address: &str) {
    assert_eq!(outcome.code, Some(120), "{outcome:?}");
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("waits until"), "{outcome:?}");
    assert!(lines[1].contains(part) && lines[1].contains(address), "{outcome:?}");
}

#[test]
fn a_run_goes_on_after_a_restart_of_its_server() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        let place = Place::new();
        let keep = place.path("kept");
        let mut server = keeping(&place, "127.0.0.1:0", &keep);
        let address = server.address.clone();
        let mut run = paging(&place, &address, "wait", mode, "4");
        for losses in 1..=2 {
            until_pages_came_back(&address);
            let outcome = server.stop();
            assert_stopped(&outcome);
            assert!(outcome.stderr.contains("kept 1 session"), "{outcome:?}");
            until_it_waits(&run, losses);
            std::thread::sleep(Duration::from_millis(1500));
            assert!(run.runs(), "{mode}: {}", run.said_so_far());
            server = keeping(&place, &address, &keep);
        }
        assert_went_on(&run.finish(PATIENCE), 2, &address);
        drop(server);
        place.assert_nothing_left();
    }
}

/// The program changes its directory before it has far memory. It uses the paths then, in a program that it executes, and
/// at the return of its server.
#[test]
fn relative_paths_are_those_of_the_directory_of_the_run() {
    let place = Place::new();
    let key = place.path("key");
    let made = place.run(place.hanare(["key", "new"]).arg(&key));
    assert_eq!(made.code, Some(0), "{made:?}");
    let args = ["serve", "--memory", "128M", "--listen", "127.0.0.1:0", "--key", "key"];
    let server = Served::with(&place, place.hanare(args));
    let script = "cd / && \"$0\" 16M --passes 2 && exec \"$0\" 16M --passes 2";
    let mut command = place.hanare(["run", "--local", "4M", "--key", "key", "--server", &server.address, "--"]);
    let outcome = place.run(command.args(["sh", "-c", script]).arg(built().workload("touch")));
    assert!(outcome.code == Some(0) && outcome.stderr.is_empty(), "{outcome:?}");
    assert_eq!(outcome.text().matches("ok touch").count(), 2, "{outcome:?}");
    drop(server);

    let serve = || {
        let mut command = place.hanare(["serve", "--memory", "128M", "--keep", "kept", "--unix"]);
        command.arg(place.path("socket"));
        Served::with(&place, command)
    };
    let server = serve();
    let address = server.address.clone();
    let mut command = place.hanare(["run", "--local", "4M", "--server", "./socket", "--on-loss", "wait", "--"]);
    let script = "cd / && exec \"$0\" 32M --random --passes 4";
    let run = place.start(command.args(["sh", "-c", script]).arg(built().workload("touch")));
    until_pages_came_back(&address);
    assert_stopped(&server.stop());
    until_it_waits(&run, 1);
    let _server = serve();
    assert_went_on(&run.finish(PATIENCE), 1, &address);
}

#[test]
fn one_of_several_servers_is_restarted() {
    let place = Place::new();
    let keep = place.path("kept");
    let (server, other) = (keeping(&place, "127.0.0.1:0", &keep), Served::tcp(&place, "128M"));
    let address = server.address.clone();
    let mut command = place.hanare(["run", "--local", "4M", "--on-loss", "wait", "--server", &address, "--server"]);
    command.args([&other.address, "--"]).arg(built().workload("touch")).args(["32M", "--passes", "6"]);
    let run = place.start(&mut command);
    until_pages_came_back(&address);
    assert_stopped(&server.stop());
    until_it_waits(&run, 1);
    let used = run.cpu_time();
    std::thread::sleep(Duration::from_secs(2));
    let used = run.cpu_time() - used;
    let _server = keeping(&place, &address, &keep);
    assert_went_on(&run.finish(PATIENCE), 1, &address);
    assert!(used < Duration::from_millis(700), "{used:?} of CPU time went to 2 s of waiting");
}

#[test]
fn a_server_without_the_session_ends_the_run() {
    let place = Place::new();
    let keep = place.path("kept");
    let start = || keeping(&place, "127.0.0.1:0", &keep);
    let again = |address: &str, keep: &str| keeping(&place, address, &place.path(keep));

    // A server that is killed keeps nothing.
    let server = start();
    let address = server.address.clone();
    let run = paging(&place, &address, "wait", "auto", "100000");
    until_pages_came_back(&address);
    server.kill();
    until_it_waits(&run, 1);
    let server = again(&address, "kept");
    assert_gave_up(&run.finish(SOON), "does not have this session", &address);
    assert_stopped(&server.stop());

    // This server has kept the session, but another one takes its place.
    let server = start();
    let address = server.address.clone();
    let run = paging(&place, &address, "wait", "auto", "100000");
    until_pages_came_back(&address);
    assert_stopped(&server.stop());
    until_it_waits(&run, 1);
    let _other = again(&address, "other");
    assert_gave_up(&run.finish(SOON), "does not have this session", &address);
    place.assert_nothing_left();
}

#[test]
fn without_wait_a_run_ends_as_before() {
    let place = Place::new();
    let server = keeping(&place, "127.0.0.1:0", &place.path("kept"));
    let address = server.address.clone();
    let run = paging(&place, &address, "end", "auto", "100000");
    until_pages_came_back(&address);
    let outcome = server.stop();
    run.finish(Duration::from_secs(5)).assert_ended_by_us(120, &address);
    assert_stopped(&outcome);
    assert!(!outcome.stderr.contains("kept 1 session"), "the session of a run that has ended: {outcome:?}");
    place.assert_nothing_left();
}

#[test]
fn a_server_that_hangs_is_waited_for_too() {
    let place = Place::new();
    let server = Served::tcp(&place, "128M");
    let address = server.address.clone();
    let args = ["run", "--local", "4M", "--server", &address, "--on-loss", "wait", "--"];
    let mut command = place.hanare(args);
    command.arg(built().workload("touch")).args(["32M", "--passes", "6"]).env("HANARE_TIMEOUT", "1");
    let run = place.start(&mut command);
    until_pages_came_back(&address);
    server.signal(Signal::STOP);
    until_it_waits(&run, 1);
    // Long enough for attempts that the server meets when it goes on.
    std::thread::sleep(Duration::from_secs(8));
    server.signal(Signal::CONT);
    assert_went_on(&run.finish(PATIENCE), 1, &address);
    place.assert_nothing_left();
}

#[test]
fn a_signal_ends_a_run_that_waits() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
            let place = Place::new();
            let server = keeping(&place, "127.0.0.1:0", &place.path("kept"));
            let run = paging(&place, &server.address, "wait", mode, "100000");
            until_pages_came_back(&server.address);
            assert_stopped(&server.stop());
            until_it_waits(&run, 1);
            std::thread::sleep(Duration::from_millis(300));
            run.signal(signal);
            let outcome = run.finish(Duration::from_secs(5));
            assert_eq!(outcome.code, Some(code), "{mode}, {signal:?}: {outcome:?}");
            place.assert_nothing_left();
        }
    }
}

#[test]
fn status_shows_a_session_that_waits_for_its_client() {
    let place = Place::new();
    let keep = place.path("kept");
    let server = keeping(&place, "127.0.0.1:0", &keep);
    let address = server.address.clone();
    let shown = || {
        let outcome = place.run(&mut place.hanare(["status", &address]));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        outcome.text()
    };
    let identity = |text: &str| text.lines().next().and_then(|line| line.rsplit(' ').next()).map(str::to_owned);
    let run = paging(&place, &address, "wait", "auto", "4");
    until_pages_came_back(&address);
    let before = shown();
    assert!(!before.contains("waits for its client"), "{before}");
    assert_stopped(&server.stop());
    until_it_waits(&run, 1);
    run.signal(Signal::STOP);
    let server = keeping(&place, &address, &keep);
    let after = shown();
    assert!(after.contains("1 session waits for its client") && after.contains("  waiting  "), "{after}");
    assert_eq!(identity(&before), identity(&after));
    assert_eq!(identity(&after).map(|digits| digits.len()), Some(8), "{after}");
    run.signal(Signal::CONT);
    assert_went_on(&run.finish(PATIENCE), 1, &address);
    drop(server);
}

/// The program forks all the time, so a part of its forks meets the loss. Each of its processes has a session, and waits
/// for itself.
#[test]
fn forks_and_children_wait_for_the_server() {
    let place = Place::new();
    let keep = place.path("kept");
    let mut server = keeping(&place, "127.0.0.1:0", &keep);
    let address = server.address.clone();
    let mut command = place.hanare(["run", "--local", "8M", "--server", &address, "--on-loss", "wait", "--"]);
    command.arg(built().workload("forks")).args(["16M"]);
    let mut run = place.start(&mut command);
    for _ in 0..3 {
        until_pages_came_back(&address);
        assert_stopped(&server.stop());
        std::thread::sleep(Duration::from_millis(1200));
        server = keeping(&place, &address, &keep);
        if !run.runs() {
            break;
        }
    }
    let outcome = run.finish(PATIENCE);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let is_notice = |line: &str| line.contains("waits until this server is back") || line.contains("is back after");
    assert!(outcome.stderr.lines().all(is_notice), "{outcome:?}");
    assert!(outcome.stderr.contains("is back after"), "{outcome:?}");
    drop(server);
    place.assert_nothing_left();
}
