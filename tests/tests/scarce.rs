//! Tests shared memory that is larger than the memory of its ranks. Home pages are written to memory servers and read
//! again. Results must stay right, and the limit must never be exceeded. If a server is lost or missing, every rank
//! must end.

use std::time::{Duration, Instant};

use hanare_tests::{Outcome, Place, SILENT, Served, built, soon, until};
use serde_json::Value;

const PROTOCOLS: [&str; 3] = ["invalidate", "update", "adaptive"];
const TRANSFERS: [&str; 2] = ["message", "zero-copy"];
const LIMIT: Duration = Duration::from_secs(120);
/// The lowest limit that the command allows for a rank, in bytes.
const LEAST: u64 = 256 << 10;
/// Number of bytes by which pages in transit may exceed the limit.
const SLACK: u64 = 128 << 10;

/// Runs a workload with its verification. Returns its counts as sums over the ranks, and the counts of each rank.
fn launch(place: &Place, ranks: u32, flags: &[&str], program: &[&str]) -> (Value, Vec<Value>) {
    let file = place.path("counts.json");
    let mut command = place.command(built().hanare());
    command.arg("launch").args(["-n", &ranks.to_string(), "--stats-json"]).arg(&file).args(flags).arg("--");
    command.arg(built().workload(program[0])).args(&program[1..]).args(["--verify", "--json"]);
    let outcome = place.start(&mut command).finish(LIMIT);
    let case = format!("{ranks} ranks, {flags:?}, {program:?}");
    assert!(outcome.code == Some(0) && outcome.stderr.contains(": verified\n"), "{case}: {outcome:?}");
    let of_ranks: Value = serde_json::from_slice(&std::fs::read(&file).expect("the file")).expect("JSON");
    let of_ranks = of_ranks.as_array().expect("an array").clone();
    assert_eq!(of_ranks.len(), ranks as usize, "{case}");
    (serde_json::from_slice(&outcome.stdout).expect("one JSON object"), of_ranks)
}

fn count(counts: &Value, name: &str) -> u64 {
    counts[name].as_u64().unwrap_or_else(|| panic!("no {name} in {counts}"))
}

fn assert_within(ranks: &[Value], local: u64, case: &str) {
    for counts in ranks {
        let peak = count(counts, "local_bytes_peak");
        assert!(
            (1..=local + SLACK).contains(&peak),
            "{case}: {peak} bytes at the peak, {local} were allowed: {counts}"
        );
    }
}

/// Each rank has several times more home pages than it may keep in memory, and accesses all of them between two
/// barriers.
#[test]
fn workloads_that_do_not_fit_give_their_serial_results() {
    let place = Place::new();
    let programs: [&[&str]; 6] = [
        &["laplace", "-n", "510", "-i", "4"],
        &["laplace", "-n", "300", "-i", "3", "--home", "one"],
        &["lu", "-n", "320"],
        &["matmul", "-n", "160"],
        &["histogram", "-n", "20000"],
        &["hash", "-n", "1500"],
    ];
    for program in programs {
        for protocol in PROTOCOLS {
            for transfer in TRANSFERS {
                for ranks in [2, 3, 4, 8] {
                    let flags = ["--protocol", protocol, "--transfer", transfer, "--local", "256K"];
                    let (_, of_ranks) = launch(&place, ranks, &flags, program);
                    assert_within(&of_ranks, LEAST, &format!("{ranks} ranks, {flags:?}, {program:?}"));
                }
            }
        }
    }
    place.assert_nothing_left();
}

/// The limit is below the command's minimum. It is so low that diffs are often sent to the home before the next
/// release.
#[test]
fn no_outcome_is_seen_that_release_consistency_forbids() {
    let place = Place::new();
    let served = Served::tcp(&place, "32M");
    for protocol in PROTOCOLS {
        for transfer in TRANSFERS {
            for home in ["static", "migrate"] {
                let mut command = place.command(built().hanare());
                command.args([
                    "launch",
                    "-n",
                    "3",
                    "--protocol",
                    protocol,
                    "--transfer",
                    transfer,
                    "--home",
                    home,
                    "--",
                ]);
                command.arg(built().workload("litmus")).arg("40");
                command.env("HANARE_SERVERS", &served.address).env("HANARE_SHARED_LOCAL_BYTES", "32768");
                let outcome = place.start(&mut command).finish(LIMIT);
                assert_eq!(outcome.code, Some(0), "{protocol}, {transfer}, {home}: {outcome:?}");
            }
        }
    }
}

#[test]
fn homes_that_move_take_their_pages_along() {
    let place = Place::new();
    for protocol in PROTOCOLS {
        for transfer in TRANSFERS {
            let flags = ["--protocol", protocol, "--transfer", transfer, "--home", "migrate", "--local", "512K"];
            let program = ["laplace", "-n", "510", "-i", "8", "--home", "one"];
            let (counts, of_ranks) = launch(&place, 3, &flags, &program);
            assert!(count(&counts, "homes_moved") > 0, "{flags:?}: {counts}");
            assert_within(&of_ranks, 512 << 10, &format!("{flags:?}"));
        }
    }
    place.assert_nothing_left();
}

/// LAPLACE's two grids of 1024 x 1024 doubles take 16 MiB, and the ranks keep 3 MiB in memory. So in every iteration,
/// all pages of the grids are evicted and fetched.
#[test]
fn a_region_several_times_the_ranks_memory_is_paged_and_clean_pages_are_not_written() {
    let place = Place::new();
    for transfer in TRANSFERS {
        let (counts, of_ranks) = launch(&place, 3, &["--transfer", transfer, "--local", "1M"], &["laplace", "-i", "6"]);
        let (out, written, back) =
            (count(&counts, "pages_out"), count(&counts, "pages_out_written"), count(&counts, "pages_back"));
        // Each iteration makes two sweeps over a grid. One of the two sweeps writes.
        let grid = 1024 * 1024 * 8 / 4096;
        assert!(back > 6 * grid && out > back, "{counts}");
        assert!(written > 3 * grid && written < out * 3 / 4, "{counts}");
        assert_within(&of_ranks, 1 << 20, transfer);
        assert!(of_ranks.iter().all(|rank| count(rank, "bytes_back") == 4096 * count(rank, "pages_back")));
    }
    place.assert_nothing_left();
}

#[test]
fn a_rank_with_room_for_all_puts_nothing_away() {
    let place = Place::new();
    let (counts, of_ranks) = launch(&place, 2, &["--local", "64M"], &["laplace", "-i", "4"]);
    assert_eq!((count(&counts, "pages_out"), count(&counts, "pages_back")), (0, 0), "{counts}");
    assert!(of_ranks.iter().all(|rank| count(rank, "local_bytes_peak") > 8 << 20));
    let (_, of_ranks) = launch(&place, 2, &[], &["laplace", "-i", "4"]);
    assert!(of_ranks.iter().all(|rank| count(rank, "local_bytes_peak") == 0), "nothing is counted without --local");
}

#[test]
fn pages_go_to_named_servers_and_every_policy_keeps_them() {
    let place = Place::new();
    let servers = [Served::tcp(&place, "32M"), Served::tcp(&place, "32M")];
    let hosts = servers.iter().fold("here 1\n".to_owned(), |hosts, server| hosts + &server.address + " 16\n");
    let hosts = place.file("hosts", hosts).display().to_string();
    let named = ["--server", &servers[0].address, "--server", &servers[1].address];
    for (elsewhere, policy) in [(&named[..], "lirs"), (&["-f", &hosts], "fifo"), (&named, "clock"), (&named, "random")]
    {
        for transfer in TRANSFERS {
            let flags = [&["--transfer", transfer, "--local", "256K", "--policy", policy], elsewhere].concat();
            let (counts, of_ranks) = launch(&place, 3, &flags, &["laplace", "-n", "510", "-i", "3"]);
            assert!(count(&counts, "pages_back") > 500, "{flags:?}: {counts}");
            assert_within(&of_ranks, LEAST, &format!("{flags:?}"));
        }
    }
}

/// One rank loops over four times as many pages as it may keep in memory. FIFO evicts each page before its next access.
/// LIRS keeps a part of the loop.
#[test]
fn the_policy_says_which_shared_pages_leave() {
    let place = Place::new();
    let back = |policy: &str| {
        let flags = ["--local", "1M", "--prefetch", "none", "--policy", policy];
        let (counts, of_ranks) = launch(&place, 1, &flags, &["laplace", "-n", "510", "-i", "6"]);
        assert_within(&of_ranks, 1 << 20, policy);
        count(&counts, "pages_back")
    };
    let (fifo, lirs) = (back("fifo"), back("lirs"));
    assert!(lirs > 1000 && lirs * 10 < fifo * 9, "{lirs} pages come back with lirs, {fifo} with fifo");
    place.assert_nothing_left();
}

/// The grids are scanned in order, so most pages can be fetched before they are accessed.
#[test]
fn a_prefetcher_reads_shared_pages_ahead() {
    let place = Place::new();
    let faults = |prefetch: &str| {
        let flags = ["--local", "1M", "--policy", "fifo", "--prefetch", prefetch];
        let (counts, of_ranks) = launch(&place, 1, &flags, &["laplace", "-n", "510", "-i", "6"]);
        assert_within(&of_ranks, 1 << 20, prefetch);
        count(&counts, "read_faults")
    };
    let (none, streams) = (faults("none"), faults("streams"));
    assert!(none > 1000 && streams * 2 < none, "{streams} faults with streams, {none} with none");
    place.assert_nothing_left();
}

/// Every rank writes to pages of all other ranks, and has memory for half of the pages that it uses. A rank must
/// reserve some of it for copies such as twins (copies of pages before a write). Without this reservation, it would
/// soon fail.
#[test]
fn a_hash_table_stays_right_and_within_the_budget() {
    const LOCAL: u64 = 48 << 10;
    let place = Place::new();
    let served = Served::tcp(&place, "32M");
    for (transfer, policy) in [("message", "lirs"), ("zero-copy", "clock")] {
        let file = place.path("counts.json");
        let mut command = place.command(built().hanare());
        command.args(["launch", "-n", "3", "--transfer", transfer, "--stats-json"]).arg(&file).arg("--");
        command.arg(built().workload("hash")).args(["-n", "3000", "--verify"]);
        command.env("HANARE_SERVERS", &served.address).env("HANARE_SHARED_LOCAL_BYTES", LOCAL.to_string());
        let outcome = place.start(command.env("HANARE_SHARED_POLICY", policy)).finish(LIMIT);
        assert!(outcome.code == Some(0) && outcome.stderr.contains(": verified\n"), "{transfer}: {outcome:?}");
        let ranks: Value = serde_json::from_slice(&std::fs::read(&file).expect("the file")).expect("JSON");
        for rank in ranks.as_array().expect("an array") {
            let (back, dropped) = (count(rank, "pages_back"), count(rank, "pages_dropped"));
            assert!(back > 100 && dropped > 100, "{transfer}: {rank}");
            assert!(count(rank, "local_bytes_peak") <= LOCAL + (16 << 10), "{transfer}: {rank}");
        }
    }
    place.assert_nothing_left();
}

#[test]
fn a_rank_that_no_launcher_gave_a_server_has_one_of_its_own() {
    let place = Place::new();
    let mut command = place.command(built().workload("laplace"));
    command.args(["-n", "510", "-i", "3", "--verify", "--json"]);
    command.env("HANARE_SHARED_LOCAL_BYTES", LEAST.to_string()).env("HANARE_BIN", built().hanare());
    let outcome = place.start(&mut command).finish(LIMIT);
    assert!(outcome.code == Some(0) && outcome.stderr.contains(": verified\n"), "{outcome:?}");
    let counts: Value = serde_json::from_slice(&outcome.stdout).expect("one JSON object");
    assert!(count(&counts, "pages_back") > 500, "{counts}");
    place.assert_nothing_left();
    let outcome = place.start(command.env("HANARE_BIN", "/no/such/command")).finish(LIMIT);
    outcome.assert_ended_by_us(125, "cannot start the private memory server /no/such/command: No such file");
    place.assert_nothing_left();
}

#[test]
fn what_the_private_server_has_no_memory_for_is_spilled() {
    let place = Place::new();
    let spill = place.path("").display().to_string();
    let flags = ["--local", "256K", "--memory", "1M", "--spill", &spill];
    let (counts, _) = launch(&place, 2, &flags, &["laplace", "-n", "510", "-i", "3"]);
    assert!(count(&counts, "pages_back") > 500, "{counts}");
    place.assert_nothing_left();
}

/// Starts a long LAPLACE. Waits until `pages` returns true, which means that its pages are on a server.
fn run_until_it_pages(place: &Place, flags: &[&str], pages: impl Fn() -> bool) -> hanare_tests::Running {
    let mut command = place.command(built().hanare());
    command.args(["launch", "-n", "3", "--local", "1M"]).args(flags).arg("--");
    command.arg(built().workload("laplace")).args(["-i", "100000"]).env_remove("HANARE_TIMEOUT");
    let running = place.start(&mut command);
    until("pages are on the server", pages);
    running
}

/// Returns the path of the socket of a job's private server, if the job in this directory has one.
fn socket_of_private_server(place: &Place) -> Option<String> {
    let dirs = std::fs::read_dir(place.path("tmp")).expect("TMPDIR");
    let sockets = dirs.filter_map(|dir| Some(dir.ok()?.path().join("memory.socket")));
    sockets.filter(|socket| socket.exists()).find_map(|socket| Some(socket.to_str()?.to_owned()))
}

fn assert_ended(outcome: &Outcome, code: i32, part: &str) {
    assert_eq!(outcome.code, Some(code), "{outcome:?}");
    assert!(outcome.stderr.lines().all(|line| line.starts_with("hanare: ")), "{outcome:?}");
    assert!(outcome.stderr.contains(part) && outcome.stdout.is_empty(), "{part:?} is not in {outcome:?}");
}

#[test]
fn a_lost_server_ends_every_rank() {
    let place = Place::new();
    let served = Served::tcp(&place, "64M");
    let address = served.address.clone();
    let holds = || hanare_tests::status(&address).write_bytes > 4 << 20;
    let running = run_until_it_pages(&place, &["--server", &address], holds);
    let since = Instant::now();
    served.kill();
    let outcome = running.finish(LIMIT);
    assert!(since.elapsed() < soon(), "{outcome:?}");
    assert_ended(&outcome, 120, &format!("memory server {address}: "));

    let served = Served::tcp(&place, "64M");
    let address = served.address.clone();
    let holds = || hanare_tests::status(&address).write_bytes > 4 << 20;
    let running = run_until_it_pages(&place, &["--server", &address], holds);
    let since = Instant::now();
    served.signal(rustix::process::Signal::STOP);
    let outcome = running.finish(LIMIT);
    assert!(since.elapsed() < soon(), "{outcome:?}");
    assert_ended(&outcome, 120, SILENT);

    let running = run_until_it_pages(&place, &[], || {
        let socket = socket_of_private_server(&place);
        socket.is_some_and(|socket| hanare_tests::status(&socket).memory_bytes > 4 << 20)
    });
    let pid = place.private_server().and_then(rustix::process::Pid::from_raw).expect("a private server");
    let since = Instant::now();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
    let outcome = running.finish(LIMIT);
    assert!(since.elapsed() < soon(), "{outcome:?}");
    assert_ended(&outcome, 120, "private memory server");
}

#[test]
fn full_servers_end_every_rank_and_say_what_to_give() {
    let place = Place::new();
    let served = Served::tcp(&place, "2M");
    for (flags, part) in [
        (&["--server", &served.address][..], "all memory servers are full: memory server "),
        (&["--memory", "2M", "--spill", "none"], "give more --memory, or a --spill directory"),
    ] {
        let mut command = place.command(built().hanare());
        command.args(["launch", "-n", "3", "--local", "256K"]).args(flags).arg("--");
        command.arg(built().workload("laplace")).args(["-i", "50"]);
        assert_ended(&place.start(&mut command).finish(LIMIT), 121, part);
    }
    place.assert_nothing_left();
}

#[test]
fn settings_that_make_no_sense_are_one_line() {
    let place = Place::new();
    for (flags, part) in [
        (&["--server", "127.0.0.1:1"][..], "--local"),
        (&["--local", "100K"], "256K"),
        (&["--local", "1M", "--server", "127.0.0.1:1"], "cannot reach the memory server 127.0.0.1:1"),
        (&["--local", "1M", "--policy", "magic"], "magic"),
        (&["--local", "1M", "--prefetch", "magic"], "magic"),
        (&["--prefetch", "none"], "--local"),
        (&["--local", "1M", "--server", "127.0.0.1:1", "--memory", "1G"], "--memory"),
        (&["--local", "1M", "-f", "/no/such/file"], "/no/such/file"),
    ] {
        let outcome =
            place.run(place.command(built().hanare()).args(["launch", "-n", "2"]).args(flags).args(["--", "true"]));
        outcome.assert_ended_by_us(125, part);
    }
    place.assert_nothing_left();
}
