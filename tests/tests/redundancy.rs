//! Guards against a program that loses pages with a memory server although other servers have parts of them. A server is
//! killed or stopped in the middle of a run. The program's words must be right, and its exit code its own.

use std::time::{Duration, Instant};

use hanare_tests::{Hostile, Lie, Outcome, PATIENCE, Place, Running, Served, built, figures, status, until};
use rustix::process::Signal;

/// Starts a program that pages on these servers until `end` is called. It checks every word that it reads.
fn paging(place: &Place, redundancy: &str, servers: &[Served]) -> Running {
    std::fs::write(place.path("paging"), "").unwrap();
    let mut command = place.hanare(["run", "--local", "4M", "--redundancy", redundancy, "--allow-same-host"]);
    for server in servers {
        command.args(["--server", &server.address]);
    }
    command.arg("--stats-json").arg(place.path("json"));
    command.arg("--").arg(built().workload("touch")).args(["32M", "--while"]).arg(place.path("paging"));
    place.start(&mut command)
}

/// Tells the program of `paging` that its current pass is its last, and waits for its end.
fn end(place: &Place, run: Running) -> Outcome {
    std::fs::remove_file(place.path("paging")).unwrap();
    run.finish(PATIENCE)
}

/// Waits until pages have been written to each server and read back.
fn until_all_are_used(servers: &[Served]) {
    for server in servers {
        until("pages have come and gone", || {
            let status = status(&server.address);
            status.read_bytes > 4 << 20 && status.write_bytes > 4 << 20
        });
    }
}

/// Runs a program on servers, one of which is killed in the middle.
fn outlives_a_kill(redundancy: &str, count: usize) {
    let place = Place::new();
    let mut servers: Vec<Served> = (0..count).map(|_| Served::tcp(&place, "128M")).collect();
    let mut run = paging(&place, redundancy, &servers);
    until_all_are_used(&servers);
    let killed = servers.remove(1);
    let address = killed.address.clone();
    killed.kill();
    until_rebuilt(&mut run, 1);
    let outcome = end(&place, run);
    assert!(outcome.code == Some(0) && outcome.text().starts_with("ok touch"), "{redundancy}: {outcome:?}");
    assert!(outcome.stderr.contains(&format!("hanare: lost memory server {address}")), "{redundancy}: {outcome:?}");
    assert!(outcome.stderr.contains("every page has all its parts again"), "{redundancy}: {outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 2, "{redundancy}: {outcome:?}");
    let seen = figures(&place.path("json"));
    assert_eq!((seen.number("servers_lost"), seen.number("parts_behind_bytes")), (1, 0), "{redundancy}");
    assert!(seen.number("parts_rebuilt_bytes") > 0, "{redundancy}");
    place.assert_nothing_left();
}

#[test]
fn a_mirror_outlives_a_killed_server() {
    outlives_a_kill("mirror", 3);
}

#[test]
fn parity_outlives_a_killed_server() {
    outlives_a_kill("parity:2+1", 4);
}

#[test]
fn a_stopped_server_delays_the_program_for_a_moment() {
    let place = Place::new();
    let servers: Vec<Served> = (0..3).map(|_| Served::tcp(&place, "128M")).collect();
    let mut run = paging(&place, "mirror", &servers);
    until_all_are_used(&servers);
    servers[0].signal(Signal::STOP);
    // The other servers go on serving soon.
    let read = || servers[1..].iter().map(|server| status(&server.address).read_bytes).sum::<u64>();
    let (began, before) = (Instant::now(), read());
    until("pages come from the other servers", || read() > before + (16 << 20) || !run.runs());
    assert!(began.elapsed() < Duration::from_secs(10), "after {:?}", began.elapsed());
    let outcome = end(&place, run);
    servers[0].signal(Signal::CONT);
    assert!(outcome.code == Some(0) && outcome.text().starts_with("ok touch"), "{outcome:?}");
    assert!(outcome.stderr.contains("it fell silent"), "{outcome:?}");
    place.assert_nothing_left();
}

/// Makes the path `link` lead to another server's socket.
fn lead(place: &Place, link: &str, to: &str) {
    let beside = place.path("beside");
    std::os::unix::fs::symlink(place.path(to), &beside).expect("a link");
    std::fs::rename(beside, place.path(link)).expect("a link in the other's place");
}

/// Two parts of a page on one server would be lost together.
#[test]
fn a_lost_server_is_not_taken_in_as_another_one_of_the_run() {
    let place = Place::new();
    let first = Served::unix(&place, "128M", "first");
    let mut serve = place.hanare(["serve", "--memory", "128M", "--unix"]);
    serve.arg(place.path("second")).arg("--log").arg(place.path("log"));
    let second = Served::with(&place, serve);
    lead(&place, "link", "first");
    std::fs::write(place.path("paging"), "").unwrap();
    let mut command = place.hanare(["run", "--local", "4M", "--redundancy", "mirror", "--allow-same-host"]);
    for name in ["link", "second"] {
        command.arg("--server").arg(place.path(name));
    }
    let touch = built().workload("touch");
    let mut run = place.start(command.arg("--").arg(touch).args(["32M", "--while"]).arg(place.path("paging")));
    until("pages have come and gone", || status(&second.address).write_bytes > 4 << 20);

    first.kill();
    lead(&place, "link", "second");
    until("the server is lost", || run.said_so_far().contains("lost memory server") || !run.runs());
    // The run's own session goes on. Those that end were tries to take the lost server in.
    let tries = || std::fs::read_to_string(place.path("log")).unwrap_or_default().matches(" ended after ").count();
    until("the lost server was tried twice", || tries() >= 2 || !run.runs());
    assert!(!run.said_so_far().contains("every page has all its parts again"), "{}", run.said_so_far());

    let _third = Served::unix(&place, "128M", "third");
    lead(&place, "link", "third");
    until_rebuilt(&mut run, 1);
    second.kill();
    until("the second server is lost", || run.said_so_far().matches("lost memory server").count() == 2 || !run.runs());
    let outcome = end(&place, run);
    assert!(outcome.code == Some(0) && outcome.text().starts_with("ok touch"), "{outcome:?}");
    place.assert_nothing_left();
}

/// Runs a program on servers of which one misbehaves as `lie` says. The program must not notice.
fn bears(lie: Lie, redundancy: &str, honest: usize, flags: &[&str]) {
    let place = Place::new();
    let servers: Vec<Served> = (0..honest).map(|_| Served::tcp(&place, "128M")).collect();
    let liar = Hostile::start(lie);
    let mut command = place.hanare(["run", "--local", "4M", "--redundancy", redundancy, "--allow-same-host"]);
    for address in std::iter::once(&liar.address).chain(servers.iter().map(|server| &server.address)) {
        command.args(["--server", address]);
    }
    command.args(flags).arg("--stats-json").arg(place.path("json"));
    std::fs::write(place.path("paging"), "").unwrap();
    command.arg("--").arg(built().workload("touch")).args(["16M", "--while"]).arg(place.path("paging"));
    let began = Instant::now();
    let mut run = place.start(command.env("HANARE_TIMEOUT", "2"));
    until("the liar is left out", || run.said_so_far().contains(&liar.address) || !run.runs());
    until_rebuilt(&mut run, 1);
    let outcome = end(&place, run);
    println!("{redundancy}, {lie:?}: {:.1} s: {}", began.elapsed().as_secs_f64(), outcome.stderr.trim_end());
    assert!(outcome.code == Some(0) && outcome.text().starts_with("ok touch"), "{redundancy}, {lie:?}: {outcome:?}");
    assert!(outcome.stderr.contains(&liar.address), "{redundancy}, {lie:?}: {outcome:?}");
    assert_eq!(figures(&place.path("json")).number("parts_behind_bytes"), 0, "{redundancy}, {lie:?}");
    place.assert_nothing_left();
}

#[test]
fn a_server_that_lies_is_left_out() {
    for (redundancy, honest) in [("mirror", 2), ("parity:2+1", 3)] {
        for lie in [Lie::ReadsGarbage, Lie::VersionLater, Lie::HalfPage, Lie::OtherPage, Lie::ShortPage, Lie::OtherAck]
        {
            bears(lie, redundancy, honest, &[]);
        }
    }
}

#[test]
fn a_server_that_sends_wrong_bytes_is_left_out() {
    for (redundancy, honest) in [("mirror", 2), ("parity:2+1", 3)] {
        for lie in [Lie::FlippedBit, Lie::OlderPage, Lie::SwappedPages, Lie::NotHeld] {
            bears(lie, redundancy, honest, &[]);
        }
        bears(Lie::FlippedBit, redundancy, honest, &["--seal", "on"]);
        bears(Lie::OlderPage, redundancy, honest, &["--page-size", "64K"]);
    }
}

#[test]
fn forked_children_have_their_pages() {
    let place = Place::new();
    let servers: Vec<Served> = (0..3).map(|_| Served::tcp(&place, "128M")).collect();
    let mut command = place.hanare(["run", "--local", "4M", "--redundancy", "mirror", "--allow-same-host"]);
    for server in &servers {
        command.args(["--server", &server.address]);
    }
    let outcome = place.run(command.arg("--").arg(built().workload("forked")).arg("parted"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    place.assert_nothing_left();
}

/// Starts a program that forks all the time, until there is a file `end`.
fn forking(place: &Place, servers: &[Served]) -> Running {
    let mut command = place.hanare(["run", "--local", "8M", "--redundancy", "mirror", "--allow-same-host"]);
    for server in servers {
        command.args(["--server", &server.address]);
    }
    let run = place.start(command.arg("--").arg(built().workload("forked")).arg("often").arg(place.path("end")));
    for server in servers {
        until("pages have gone to each server", || status(&server.address).write_bytes > 4 << 20);
    }
    run
}

fn until_rebuilt(run: &mut Running, count: usize) {
    until("the parts are rebuilt", || {
        run.said_so_far().matches("hanare: every page has all its parts again").count() >= count || !run.runs()
    });
}

fn ends_well(place: &Place, run: Running) {
    std::fs::write(place.path("end"), "").expect("a file");
    let outcome = run.finish(PATIENCE);
    assert!(outcome.code == Some(0) && outcome.text() == "ok forked: often\n", "{outcome:?}");
    place.assert_nothing_left();
}

/// A fork asks each server to clone its session. One that does not answer must count as lost.
#[test]
fn a_program_that_forks_loses_a_stopped_server() {
    let place = Place::new();
    let servers: Vec<Served> = (0..3).map(|_| Served::tcp(&place, "512M")).collect();
    let mut run = forking(&place, &servers);
    servers[1].signal(Signal::STOP);
    until_rebuilt(&mut run, 1);
    servers[1].signal(Signal::CONT);
    ends_well(&place, run);
}

/// A program forks all the time while its servers are killed one after the other, each when what the one before it held
/// has been rebuilt. A fork waits until nothing is under way, so it must not keep anybody from noting a loss.
#[test]
fn forks_and_lost_servers_do_not_wait_for_each_other() {
    let place = Place::new();
    let mut servers: Vec<Served> = (0..4).map(|_| Served::tcp(&place, "512M")).collect();
    let mut run = forking(&place, &servers);
    for count in 1..=2 {
        servers.remove(0).kill();
        until_rebuilt(&mut run, count);
    }
    ends_well(&place, run);
}

#[test]
fn news_of_executed_programs_name_the_process() {
    let place = Place::new();
    let mut servers: Vec<Served> = (0..3).map(|_| Served::tcp(&place, "128M")).collect();
    let mut command = place.hanare(["run", "--local", "4M", "--redundancy", "mirror", "--allow-same-host"]);
    for server in &servers {
        command.args(["--server", &server.address]);
    }
    let paging = place.path("paging");
    std::fs::write(&paging, "").unwrap();
    let touch = format!("{} 16M --while {}", built().workload("touch").display(), paging.display());
    command.args(["--", "sh", "-c"]).arg(format!("{touch} & {touch}; wait"));
    let mut run = place.start(&mut command);
    until_all_are_used(&servers);
    servers.remove(1).kill();
    until("both processes have lost it", || {
        run.said_so_far().matches("lost memory server").count() == 2 || !run.runs()
    });
    let outcome = end(&place, run);
    assert!(outcome.code == Some(0) && outcome.text().matches("ok touch").count() == 2, "{outcome:?}");
    let lost: Vec<_> = outcome.stderr.lines().filter(|line| line.contains(": lost memory server ")).collect();
    assert!(lost.len() == 2 && lost[0] != lost[1], "{outcome:?}");
    assert!(outcome.stderr.lines().all(|line| line.starts_with("hanare: process ")), "{outcome:?}");
    place.assert_nothing_left();
}

#[test]
fn too_few_servers_or_hosts_are_refused_before_the_program_runs() {
    let place = Place::new();
    let run = |args: &[&str]| {
        let mut command = place.hanare(["run", "--local", "4M"]);
        place.run(command.args(args).args(["--", "sh", "-c", "echo ran"]))
    };
    let named = ["--server", "a.invalid", "--server", "b.invalid", "--server", "c.invalid"];
    run(&[&["--redundancy", "parity:4+1"], &named[..]].concat()).assert_ended_by_us(
        125,
        "parity:4+1 needs 5 servers on 5 hosts, 3 named: name more; with --allow-same-host they may share a host",
    );
    let one_host = ["--server", "127.0.0.1:1", "--server", "localhost:2", "--redundancy", "mirror"];
    run(&one_host).assert_ended_by_us(125, "--allow-same-host");
    run(&["--redundancy", "mirror"]).assert_ended_by_us(125, "2 servers on 2 hosts, 0 named: name more");
    run(&["--redundancy", "parity:3+1"]).assert_ended_by_us(125, "is not a redundancy");
    let server = Served::tcp(&place, "16M");
    let port = server.address.rsplit_once(':').expect("a port").1;
    for other in [format!("127.1:{port}"), format!("localhost:{port}")] {
        for flags in [&["--redundancy", "mirror", "--allow-same-host"][..], &[]] {
            let mut command = place.hanare(["run", "--local", "4M"]);
            command.args(flags).args(["--server", &server.address, "--server", &other, "--"]);
            place
                .run(command.arg(built().workload("touch")).arg("8M"))
                .assert_ended_by_us(125, "are one and the same; name each server once");
        }
    }
}
