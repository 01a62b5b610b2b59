//! Tests `hanare park` and `dlm_park` on live programs: near memory while they are parked, and their bytes afterwards.

use std::time::{Duration, Instant};

use hanare_tests::{Outcome, PATIENCE, Place, Running, Served, built, mode_works, until};
use rustix::process::{Pid, Signal, kill_process};

const MIB: u64 = 1 << 20;
/// Largest near memory of a parked program.
const PARKED_MAX: u64 = 20 * MIB;

/// A run of the workload `parked`, which waits for a signal after each of its steps.
struct Waiting {
    run: Running,
    pid: u32,
}

impl Waiting {
    fn start(place: &Place, flags: &[&str], size: &str, more: &[&str]) -> Waiting {
        let mut command = place.hanare(["run"]);
        command.args(flags).arg("--").arg(built().workload("parked")).arg(size).args(more);
        let run = place.start(&mut command);
        let line = said(&run, "step 0 of process ");
        let pid = line.parse().unwrap_or_else(|_| panic!("no number: {line}"));
        Waiting { run, pid }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid as i32).expect("a process number"), signal).expect("a signal");
    }

    /// Lets the program check its memory and change the half of it.
    fn step(&self, number: u32) {
        self.signal(Signal::USR2);
        said(&self.run, &format!("step {number} of process "));
    }

    fn end(self) -> Outcome {
        self.signal(Signal::TERM);
        let outcome = self.run.finish(PATIENCE);
        assert!(outcome.code == Some(0) && outcome.text() == "all words are right\n", "{outcome:?}");
        outcome
    }
}

/// Waits for a line of the run that begins with `start`, and returns the rest of it.
fn said(run: &Running, start: &str) -> String {
    let mut rest = String::new();
    until(start, || {
        let text = run.said_so_far();
        let found = text.lines().find_map(|line| line.strip_prefix(start));
        rest = found.unwrap_or_default().to_owned();
        // A line may be half written.
        found.is_some() && text.ends_with('\n')
    });
    rest
}

/// Returns the resident bytes of a process: anonymous, shared and of files.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("smaps_rollup");
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).expect("Rss");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

fn park(place: &Place, pid: u32) -> Outcome {
    place.run(&mut place.hanare(["park", &pid.to_string()]))
}

#[test]
fn a_parked_program_has_no_near_memory_and_its_bytes_afterwards() {
    let flags: [&[&str]; 3] = [&[], &["--page-size", "4K"], &["--page-size", "2M"]];
    for mode in ["thread", "sigbus", "sigsegv"].into_iter().filter(|mode| mode_works(mode)) {
        for more in &flags[..if mode == "thread" { 3 } else { 1 }] {
            let place = Place::new();
            let flags = [&["--local", "400M", "--mode", mode], *more].concat();
            let program = Waiting::start(&place, &flags, "300M", &[]);
            assert!(resident(program.pid) > 300 * MIB, "{flags:?}: the budget has room for all");
            for step in 1..=2 {
                let outcome = park(&place, program.pid);
                outcome.assert_well("park");
                let text = outcome.text();
                let rest = text.strip_prefix("parked ").unwrap_or_else(|| panic!("{flags:?}: {text}"));
                assert!(rest.ends_with(" stay near\n") && text.lines().count() == 1, "{text}");
                assert!(text.contains(&format!(" of process {}; ", program.pid)), "{text}");
                let near = resident(program.pid);
                assert!(near < PARKED_MAX, "{flags:?}: {near} bytes are near after: {text}");
                program.step(step);
                assert!(resident(program.pid) > 300 * MIB, "{flags:?}: the budget is as it was");
            }
            program.end();
        }
    }
}

#[test]
fn pages_on_a_memory_server_come_back() {
    let place = Place::new();
    let server = Served::tcp(&place, "256M");
    let program = Waiting::start(&place, &["--local", "100M", "--server", &server.address], "64M", &[]);
    park(&place, program.pid).assert_well("park");
    let near = resident(program.pid);
    assert!(near < PARKED_MAX, "{near} bytes are near");
    program.step(1);
    program.end();
}

/// A server that answers in bursts is slow and not dead: each page that leaves is progress.
#[test]
fn pages_leave_however_slow_the_server_is() {
    if !mode_works("thread") {
        return;
    }
    let place = Place::new();
    let server = Served::tcp(&place, "256M");
    let flags = ["--local", "200M", "--mode", "thread", "--page-size", "2M", "--server", &server.address];
    let program = Waiting::start(&place, &flags, "128M", &[]);
    let mut parking = place.start(&mut place.hanare(["park", &program.pid.to_string()]));
    // Between two bursts, no page leaves for longer than a run waits for pages that nobody sends away.
    let (burst, pause) = (Duration::from_millis(100), Duration::from_millis(700));
    let deadline = Instant::now() + PATIENCE;
    while parking.runs() && Instant::now() < deadline {
        std::thread::sleep(burst);
        server.signal(Signal::STOP);
        std::thread::sleep(pause);
        server.signal(Signal::CONT);
    }
    let outcome = parking.finish(PATIENCE);
    let near = resident(program.pid);
    assert!(outcome.code == Some(0) && near < PARKED_MAX, "{near} bytes are near: {outcome:?}");
    program.step(1);
    program.end();
}

#[test]
fn a_program_parks_itself() {
    let place = Place::new();
    let program = Waiting::start(&place, &["--local", "100M"], "64M", &["--self"]);
    let near = resident(program.pid);
    assert!(near < PARKED_MAX, "{near} bytes are near");
    program.step(1);
    let near = resident(program.pid);
    assert!(near < PARKED_MAX, "{near} bytes are near");
    program.end();
}

/// Parking must not end a run that has all it needs near.
#[test]
fn a_program_whose_servers_are_too_small_stays_near() {
    let place = Place::new();
    let server = Served::tcp(&place, "32M");
    let program = Waiting::start(&place, &["--local", "100M", "--server", &server.address], "64M", &[]);
    let outcome = park(&place, program.pid);
    outcome.assert_ended_by_us(121, "no room");
    assert!(resident(program.pid) > 64 * MIB);
    program.step(1);
    program.end();
}

#[test]
fn a_process_that_cannot_be_parked_does_not_keep_the_others_near() {
    let place = Place::new();
    let mut command = place.hanare(["run", "--local", "100M", "--", "sh", "-c", "\"$0\" 32M & \"$0\" 32M & wait"]);
    let run = place.start(command.arg(built().workload("parked")));
    let mut pids: Vec<u32> = Vec::new();
    until("both programs wait", || {
        let text = run.said_so_far();
        pids = text.lines().filter_map(|line| line.strip_prefix("step 0 of process ")?.parse().ok()).collect();
        pids.len() == 2 && text.ends_with('\n')
    });
    pids.sort_unstable();
    let signal =
        |pid: u32, signal| kill_process(Pid::from_raw(pid as i32).expect("a number"), signal).expect("a signal");
    let near = |pid| resident(pid) > 32 * MIB;
    for stopped in 0..2 {
        assert!(pids.iter().all(|pid| near(*pid)));
        signal(pids[stopped], Signal::STOP);
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", pids[stopped])).expect("stat");
        until("it is stopped", || stat().contains(") T "));
        let outcome = place.run(&mut place.hanare(["park", "--tree", &run.pid().to_string()]));
        assert!(outcome.code == Some(125) && outcome.stderr.contains("is stopped and cannot answer"), "{outcome:?}");
        assert!(outcome.text().contains(&format!("of process {}; ", pids[1 - stopped])), "{outcome:?}");
        assert!(near(pids[stopped]) && !near(pids[1 - stopped]), "{outcome:?}");
        signal(pids[stopped], Signal::CONT);
        signal(pids[1 - stopped], Signal::USR2);
        until("it is near again", || near(pids[1 - stopped]));
    }
    pids.iter().for_each(|pid| signal(*pid, Signal::TERM));
    assert_eq!(run.finish(PATIENCE).text().matches("all words are right").count(), 2);
    place.assert_nothing_left();
}

#[test]
fn what_cannot_be_parked_gets_one_clear_line() {
    let place = Place::new();
    let program = Waiting::start(&place, &["--local", "100M"], "32M", &[]);
    park(&place, std::process::id()).assert_ended_by_us(125, "has no far memory; start it with 'hanare run");
    park(&place, u32::MAX).assert_ended_by_us(125, "there is no process");
    let supervisor = program.run.pid();
    park(&place, supervisor).assert_ended_by_us(125, &format!("park {} of its run, or give --tree", program.pid));
    program.signal(Signal::STOP);
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", program.pid)).expect("stat");
    until("it is stopped", || state().contains(") T "));
    park(&place, program.pid).assert_ended_by_us(125, "is stopped and cannot answer");
    program.signal(Signal::CONT);
    let outcome = place.run(&mut place.hanare(["park", "--tree", &supervisor.to_string()]));
    outcome.assert_well("park --tree");
    assert!(outcome.text().contains(&format!("of process {}; ", program.pid)), "{}", outcome.text());
    program.step(1);
    let pid = program.pid;
    program.end();
    park(&place, pid).assert_ended_by_us(125, "there is no process");
    place.assert_nothing_left();
}
