//! Guards against a program that hangs on its memory or continues with wrong bytes. If a memory server is killed, lies
//! or stops answering, the run must end with a documented exit code and one line that names the server. Several servers
//! share the pages in proportion to their sizes. When one server is full, the next one is used. When all are full, a
//! message must say so.

use std::time::{Duration, Instant};

use hanare_tests::{
    Hostile, Lie, PATIENCE, Place, Running, SILENT, Served, built, figures, mode_works, soon, status, until,
};

/// Starts a program that pages until a signal ends it, with a budget far below its size. `args` name the servers.
fn paging_for_long(place: &Place, args: &[&str]) -> Running {
    let mut command = place.hanare(["run", "--local", "4M"]);
    command.args(args).arg("--").arg(built().workload("touch")).args(["32M", "--passes", "100000"]);
    place.start(&mut command)
}

/// Waits until many pages have been written to the server at `address` and read back.
fn until_pages_came_back(address: &str) {
    until("pages have come back", || status(address).read_bytes > 64 << 20);
}

#[test]
fn a_killed_tcp_server_ends_the_run() {
    let place = Place::new();
    let server = Served::tcp(&place, "128M");
    let address = server.address.clone();
    let run = paging_for_long(&place, &["--server", &address]);
    until_pages_came_back(&address);
    server.kill();
    run.finish(soon()).assert_ended_by_us(120, &address);
    place.assert_nothing_left();
}

#[test]
fn one_killed_server_of_three_is_the_one_named() {
    let place = Place::new();
    let first = Served::tcp(&place, "128M");
    let second = Served::unix(&place, "128M", "second");
    let third = Served::tcp(&place, "128M");
    let run =
        paging_for_long(&place, &["--server", &first.address, "--server", &second.address, "--server", &third.address]);
    until_pages_came_back(&second.address);
    let name = second.address.clone();
    second.kill();
    run.finish(soon()).assert_ended_by_us(120, &name);
    place.assert_nothing_left();
}

#[test]
fn a_killed_private_server_ends_the_run() {
    for mode in ["auto", "sigsegv"] {
        let place = Place::new();
        let run = paging_for_long(&place, &["--mode", mode]);
        until("the private server is there", || place.private_server().is_some());
        // The pause lets the program get into the middle of its paging. Any length of the pause is valid, because the
        // program must end in each case.
        std::thread::sleep(Duration::from_millis(500));
        let server = place.private_server().and_then(rustix::process::Pid::from_raw).expect("the private server");
        rustix::process::kill_process(server, rustix::process::Signal::KILL).expect("a server of this test's");
        run.finish(soon()).assert_ended_by_us(120, "private memory server");
    }
}

/// Runs a program of 32 MiB against a server that misbehaves as `lie` says. Checks its exit code and its line.
/// In a user namespace without users, everyone is the overflow user.
#[test]
fn a_run_works_where_the_kernel_names_no_user() {
    let place = Place::new();
    let unmapped = |args: &[&str]| {
        let mut command = place.command("unshare");
        command.arg("--user").args(args);
        command
    };
    if place.run(&mut unmapped(&["true"])).code != Some(0) {
        println!("skipped: no user namespaces here");
        return;
    }
    let (hanare, touch) = (built().hanare(), built().workload("touch"));
    let (hanare, touch) = (hanare.to_str().expect("a path in UTF-8"), touch.to_str().expect("a path in UTF-8"));
    let outcome = place.run(&mut unmapped(&[hanare, "run", "--local", "4M", "--", touch, "16M"]));
    outcome.assert_well("a run");
    assert_eq!(outcome.text(), "ok touch: 16777216 bytes, 1 passes, sequential\n");
    place.assert_nothing_left();
}

fn meets(lie: Lie, code: i32, part: &str) {
    meets_with(lie, code, part, &[]);
}

fn meets_in(lie: Lie, code: i32, part: &str, mode: &str) {
    meets_with(lie, code, part, &["--mode", mode]);
}

fn meets_with(lie: Lie, code: i32, part: &str, flags: &[&str]) {
    let place = Place::new();
    let server = Hostile::start(lie);
    let mut command = place.hanare(["run", "--local", "4M", "--server", &server.address]);
    command.args(flags).arg("--").arg(built().workload("touch")).args(["32M", "--passes", "4"]);
    command.env("HANARE_TIMEOUT", "1");
    let began = Instant::now();
    let outcome = place.start(&mut command).finish(PATIENCE);
    println!("{lie:?}: {:.1} s: {}", began.elapsed().as_secs_f64(), outcome.stderr.trim_end());
    assert!(!outcome.text().contains("ok touch"), "{lie:?}: the program went on: {outcome:?}");
    outcome.assert_ended_by_us(code, &server.address);
    assert!(outcome.stderr.contains(part), "{lie:?}: {part:?} is not in {outcome:?}");
    place.assert_nothing_left();
}

#[test]
fn servers_that_are_none_are_refused_before_the_program_runs() {
    meets(Lie::Silence, 125, "");
    meets(Lie::Garbage, 125, "");
    meets(Lie::Version, 125, "version");
    meets(Lie::HangUp, 125, "");
    meets(Lie::NoSessions, 125, "no sessions today");
}

#[test]
fn servers_that_fall_silent_end_the_run() {
    meets(Lie::ReadsStop, 120, SILENT);
    meets(Lie::WritesStop, 120, SILENT);
    meets(Lie::HalfPageSilence, 120, SILENT);
}

#[test]
fn servers_that_lie_end_the_run() {
    meets(Lie::ReadsGarbage, 120, "");
    meets(Lie::VersionLater, 120, "version");
    meets(Lie::HalfPage, 120, "");
    meets(Lie::OtherPage, 120, "not asked for");
    meets(Lie::ShortPage, 120, "garbage");
    meets(Lie::Unasked, 120, "");
    meets(Lie::NotHeld, 120, "");
    meets(Lie::OtherAck, 120, "");
}

/// These servers keep to the protocol, and send wrong bytes. Without a check at the client, the program would go on
/// with them.
#[test]
fn servers_that_send_wrong_bytes_end_the_run() {
    for seal in ["off", "on"] {
        let meets = |lie, page_size| meets_with(lie, 120, "back wrong", &["--seal", seal, "--page-size", page_size]);
        [Lie::FlippedBit, Lie::OlderPage, Lie::SwappedPages].into_iter().for_each(|lie| meets(lie, "64K"));
        meets(Lie::FlippedBit, "auto");
        meets(Lie::SwappedPages, "4K");
    }
}

#[test]
fn a_lie_met_inside_a_signal_handler_ends_the_run() {
    for mode in ["sigbus", "sigsegv"].into_iter().filter(|mode| mode_works(mode)) {
        meets_in(Lie::ReadsStop, 120, SILENT, mode);
        meets_in(Lie::HalfPage, 120, "", mode);
        meets_in(Lie::OtherPage, 120, "not asked for", mode);
        meets_in(Lie::FlippedBit, 120, "back wrong", mode);
        meets_with(Lie::OlderPage, 120, "back wrong", &["--mode", mode, "--seal", "on"]);
    }
}

#[test]
fn a_stopped_server_counts_as_silent() {
    let place = Place::new();
    let server = Served::tcp(&place, "128M");
    let mut command = place.hanare(["run", "--local", "4M", "--server", &server.address, "--"]);
    command.arg(built().workload("touch")).args(["32M", "--passes", "100000"]).env("HANARE_TIMEOUT", "1");
    let run = place.start(&mut command);
    until_pages_came_back(&server.address);
    server.signal(rustix::process::Signal::STOP);
    run.finish(soon()).assert_ended_by_us(120, &server.address);
    place.assert_nothing_left();
}

/// Guards against starvation. With several servers, a waiting thread polled all links without pause. The scheduler
/// sometimes preferred this thread to all others on its CPU, so the servers on the same host did not run.
#[test]
fn who_waits_for_one_of_several_servers_leaves_the_cpu_to_them() {
    use rustix::process::Signal;
    for mode in ["thread", "sigbus"].into_iter().filter(|mode| mode_works(mode)) {
        let place = Place::new();
        let servers = [Served::tcp(&place, "128M"), Served::tcp(&place, "128M")];
        let mut command = place.hanare(["run", "--local", "4M", "--mode", mode]);
        for server in &servers {
            command.args(["--server", &server.address]);
        }
        command.arg("--").arg(built().workload("touch")).args(["32M", "--passes", "20"]).env("HANARE_TIMEOUT", "60");
        let run = place.start(&mut command);
        servers.iter().for_each(|server| until_pages_came_back(&server.address));
        servers.iter().for_each(|server| server.signal(Signal::STOP));
        std::thread::sleep(Duration::from_millis(300));
        let before = run.cpu_time();
        std::thread::sleep(Duration::from_secs(2));
        let used = run.cpu_time() - before;
        servers.iter().for_each(|server| server.signal(Signal::CONT));
        run.finish(PATIENCE).assert_well("a program whose servers stood still");
        assert!(used < Duration::from_millis(500), "{mode}: {used:?} of CPU time went to 2 s of waiting");
        place.assert_nothing_left();
    }
}

#[test]
fn a_pause_of_program_and_server_is_no_silence() {
    use rustix::process::Signal;
    let place = Place::new();
    let server = Served::tcp(&place, "128M");
    let mut command = place.hanare(["run", "--local", "4M", "--server", &server.address, "--"]);
    command.arg(built().workload("touch")).args(["32M", "--passes", "30"]).env("HANARE_TIMEOUT", "1");
    let run = place.start(&mut command);
    until_pages_came_back(&server.address);
    server.signal(Signal::STOP);
    // The program is expected to wait for a page of the stopped server after this pause.
    std::thread::sleep(Duration::from_millis(200));
    run.signal(Signal::STOP);
    // The server is stopped for longer than the time limit for a silent server. This happens in practice if Ctrl-Z
    // stops a whole job that continues later.
    std::thread::sleep(Duration::from_millis(2500));
    run.signal(Signal::CONT);
    std::thread::sleep(Duration::from_millis(300));
    server.signal(Signal::CONT);
    run.finish(PATIENCE).assert_well("a program that was stopped");
    place.assert_nothing_left();
}

/// Writes a host file with these servers and their sizes in megabytes. Returns its path.
fn hosts(place: &Place, local: u32, servers: &[(&Served, u32)]) -> String {
    let mut text = format!("here {local} // computes\n# the others lend memory\n");
    for (server, megabytes) in servers {
        text += &format!("{} {megabytes}\n", server.address);
    }
    place.file("hosts", text).display().to_string()
}

#[test]
fn a_host_file_spreads_pages_by_the_sizes() {
    let place = Place::new();
    let (small, large, unused) = (Served::tcp(&place, "64M"), Served::tcp(&place, "256M"), Served::tcp(&place, "64M"));
    let file = hosts(&place, 8, &[(&small, 32), (&large, 96), (&unused, 64)]);
    let json = place.path("json");
    let mut command = place.hanare(["run", "-f", &file, "-n", "3", "--stats-json"]);
    command.arg(&json).arg("--").arg(built().workload("touch")).args(["64M", "--passes", "1"]);
    place.run(&mut command).assert_well("with a host file");
    let seen = figures(&json);
    seen.assert_paged(48 << 20, "with a host file");
    assert_eq!(seen.number("local_bytes_budget"), 8 << 20, "the budget is the first line's");
    let written = |server: &Served| status(&server.address).write_bytes;
    let (one, three) = (written(&small) as f64, written(&large) as f64);
    // The sizes of 32 and 96 MB should divide the pages one to three.
    assert!((2.0..4.5).contains(&(three / one)), "{one} and {three} bytes were written");
    assert_eq!(written(&unused), 0, "-n 3 leaves the third server out");
    place.assert_nothing_left();
}

#[test]
fn a_full_server_hands_over_to_the_next() {
    // The first two servers together hold only a quarter of the memory that the program needs. They fill up early, so
    // the last server must accept the other pages.
    let place = Place::new();
    let (first, second) = (Served::tcp(&place, "16M"), Served::tcp(&place, "128M"));
    let other = Served::tcp(&place, "8M");
    for page_size in ["4K", "auto"] {
        let args =
            ["run", "--local", "8M", "--page-size", page_size, "--server", &first.address, "--server", &other.address];
        let mut command = place.hanare(args);
        command.args(["--server", &second.address, "--"]).arg(built().workload("touch"));
        let outcome = place.run(command.args(["96M", "--random", "--passes", "2"]));
        outcome.assert_well(page_size);
        assert!(outcome.text().starts_with("ok touch"), "{outcome:?}");
        assert!(status(&first.address).write_bytes > 0 && status(&second.address).write_bytes >= 48 << 20);
    }
    place.assert_nothing_left();
}

#[test]
fn a_server_that_fills_up_for_another_run_hands_over_too() {
    // Two runs share the first server. Each run expects at its start that it can use all of the server's memory.
    let place = Place::new();
    let (first, second) = (Served::tcp(&place, "64M"), Served::tcp(&place, "256M"));
    let start = || {
        let mut command = place.hanare(["run", "--local", "8M", "--server", &first.address, "--server"]);
        command.arg(format!("{}=64M", second.address)).arg("--").arg(built().workload("touch"));
        place.start(command.args(["80M", "--passes", "3"]))
    };
    for run in [start(), start()] {
        let outcome = run.finish(PATIENCE);
        outcome.assert_well("sharing a server");
        assert!(outcome.text().starts_with("ok touch"), "{outcome:?}");
    }
    place.assert_nothing_left();
}

#[test]
fn when_all_servers_are_full_it_is_said() {
    let place = Place::new();
    let (first, second) = (Served::tcp(&place, "8M"), Served::unix(&place, "8M", "second"));
    let mut command =
        place.hanare(["run", "--local", "8M", "--server", &first.address, "--server", &second.address, "--"]);
    // This program does not reserve its memory on the servers. `room.rs` tests programs that do.
    command.env("HANARE_OVERCOMMIT", "always");
    let outcome = place.run(command.arg(built().workload("touch")).arg("64M"));
    outcome.assert_ended_by_us(121, "full");
    place.assert_nothing_left();
}

/// Returns the output of `hanare status --json` for the server at `address`.
fn told(place: &Place, address: &str) -> serde_json::Value {
    let outcome = place.run(&mut place.hanare(["status", address, "--json"]));
    outcome.assert_well("status");
    serde_json::from_slice(&outcome.stdout).expect("JSON")
}

#[test]
fn status_names_who_uses_a_server_and_a_killed_client_is_gone_within_two_seconds() {
    let place = Place::new();
    for server in [Served::tcp(&place, "128M"), Served::unix(&place, "128M", "socket")] {
        let run = paging_for_long(&place, &["--server", &server.address]);
        until_pages_came_back(&server.address);
        until("a rate is told", || told(&place, &server.address)["read_bytes_per_s"].as_u64() > Some(0));
        let sheet = told(&place, &server.address);
        let session = &sheet["sessions"][0];
        assert_eq!((session["program"].as_str(), session["connections"].as_u64()), (Some("touch"), Some(2)), "{sheet}");
        let pid = session["pid"].as_u64().expect("a pid");
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("it runs on this host");
        assert_eq!(name.trim_end(), "touch");
        assert!(session["bytes"].as_u64() >= Some(24 << 20) && session["quota_bytes"].is_null(), "{sheet}");
        assert_eq!(
            (&sheet["slots"], sheet["memory_limit_bytes"].as_u64()),
            (&session["slots"], Some(128 << 20)),
            "{sheet}"
        );
        // The signal kills the program's process, not the command's.
        let program = rustix::process::Pid::from_raw(pid as i32).expect("a pid");
        rustix::process::kill_process(program, rustix::process::Signal::KILL).expect("a program of this test's");
        let killed = Instant::now();
        while told(&place, &server.address)["slots"] != 0 {
            assert!(killed.elapsed() < Duration::from_secs(2), "{}", told(&place, &server.address));
        }
        assert_eq!(told(&place, &server.address)["sessions"], serde_json::json!([]));
        drop(run);
    }
    place.assert_nothing_left();
}

#[test]
fn a_server_serves_the_next_run_after_one_that_was_killed() {
    let place = Place::new();
    let server = Served::tcp(&place, "64M");
    for _ in 0..3 {
        // Each run needs nearly all of the server's memory. So the server must free the memory of a killed run before
        // the next run.
        let run = paging_for_long(&place, &["--server", &server.address]);
        until_pages_came_back(&server.address);
        drop(run);
        until("its session is closed", || status(&server.address).sessions == 0);
    }
    let mut command = place.hanare(["run", "--local", "4M", "--server", &server.address, "--"]);
    place.run(command.arg(built().workload("touch")).arg("60M")).assert_well("after killed runs");
}

#[test]
fn a_log_file_says_who_came_and_went() {
    let place = Place::new();
    let log = place.path("serve.log");
    std::fs::write(&log, "an earlier line\n").expect("a log");
    let mut command = place.hanare(["serve", "--memory", "64M", "--listen", "127.0.0.1:0", "--log"]);
    command.arg(&log);
    let server = Served::with(&place, command);
    let mut command = place.hanare(["run", "--local", "4M", "--server", &server.address, "--"]);
    place.run(command.arg(built().workload("touch")).arg("32M")).assert_well("beside a log");
    until("its session is closed", || status(&server.address).sessions == 0);
    let garbage = send_garbage(&server.address);
    until("the log names the stranger", || {
        std::fs::read_to_string(&log).expect("a log").contains(&garbage.local_addr().expect("an address").to_string())
    });
    assert_eq!(server.stop().code, Some(0));
    let text = std::fs::read_to_string(&log).expect("a log");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "an earlier line", "{text}");
    let of_touch: Vec<_> = lines.iter().filter(|line| line.contains("touch[")).collect();
    assert_eq!(of_touch.len(), 2, "{text}");
    assert!(of_touch[0].contains(" began by tcp") && of_touch[1].contains(" ended after "), "{text}");
    for line in &lines[1..] {
        let time = line.split(' ').next().expect("a time");
        assert!(time.len() == 20 && time.starts_with("20") && time.ends_with('Z'), "{line}");
    }
    place.assert_nothing_left();
}

/// Connects to a server and sends bytes that no client sends.
fn send_garbage(address: &str) -> std::net::TcpStream {
    let mut garbage = std::net::TcpStream::connect(address).expect("it listens");
    std::io::Write::write_all(&mut garbage, &[b'x'; 4096]).expect("room");
    garbage
}

#[test]
fn a_reader_of_the_log_that_stands_still_delays_no_program() {
    let place = Place::new();
    let pipe = place.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    let mut command = place.hanare(["serve", "--memory", "64M", "--listen", "127.0.0.1:0", "--log"]);
    let outcome = place.start(command.arg(&pipe)).finish(PATIENCE);
    outcome.assert_ended_by_us(125, "cannot open the log");

    let reader = std::fs::File::options().read(true).write(true).open(&pipe).expect("a reader");
    rustix::pipe::fcntl_setpipe_size(&reader, 4096).expect("a small pipe");
    let server = Served::with(&place, command);
    let refused: Vec<_> = (0..100).map(|_| send_garbage(&server.address)).collect();
    until("all are refused", || {
        refused.iter().all(|garbage| matches!(std::io::Read::read(&mut &*garbage, &mut [0; 1]), Ok(0) | Err(_)))
    });
    let mut command = place.hanare(["run", "--local", "4M", "--server", &server.address, "--"]);
    place.run(command.arg(built().workload("touch")).arg("32M")).assert_well("beside a pipe that is full");
    assert_eq!(server.stop().code, Some(0));
    drop(reader);
    place.assert_nothing_left();
}
