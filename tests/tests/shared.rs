//! Tests shared memory on a live machine. The papers' LAPLACE runs with many ranks and must have exact counts. Outcomes
//! that release consistency forbids must not occur. If one rank cannot continue, every rank must end and say why.

use std::time::Duration;

use hanare_tests::{Outcome, Place, built};

const PROTOCOLS: [&str; 3] = ["invalidate", "update", "adaptive"];
const LIMIT: Duration = Duration::from_secs(120);

/// Runs a workload on `ranks` ranks.
fn launch(place: &Place, ranks: u32, flags: &[&str], program: &[&str]) -> Outcome {
    let mut command = place.command(built().hanare());
    command.arg("launch").args(["-n", &ranks.to_string()]).args(flags).arg("--");
    command.arg(built().workload(program[0])).args(&program[1..]);
    place.start(&mut command).finish(LIMIT)
}

/// Runs LAPLACE and checks its result and its counts. Each row of the grid takes two pages. Each rank reads one row of
/// each of its neighbours. The first and the last rank have one neighbour, and all others have two.
fn check_laplace(place: &Place, ranks: u32, flags: &[&str], protocol: &str, iterations: u64) {
    let laplace = ["laplace", "-i", &iterations.to_string(), "--verify", "--json"];
    let outcome = launch(place, ranks, &[&["--protocol", protocol], flags].concat(), &laplace);
    let case = format!("{ranks} ranks, {protocol}, {flags:?}");
    assert_eq!(outcome.code, Some(0), "{case}: {}", outcome.stderr);
    assert!(outcome.stderr.contains("verified"), "{case}: {}", outcome.stderr);
    let counts: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("one JSON object");
    let count = |name: &str| counts[name].as_u64().expect("a count");
    // The rank that computes a row is the home of the row's pages. No page has rows of two ranks.
    let edges = 4 * (u64::from(ranks) - 1);
    let (shares, updates) = (count("page_shares"), count("page_updates"));
    match protocol {
        "invalidate" => assert_eq!((shares, updates), (edges * iterations, 0), "{case}"),
        "update" => assert_eq!((shares, updates), (2 * edges, edges * (iterations - 1)), "{case}"),
        _ => assert!((edges * iterations..=edges * (iterations + 1)).contains(&(shares + updates)), "{case}"),
    }
    assert_eq!(count("diffs"), 0, "{case}: whoever writes is home");
    place.assert_nothing_left();
}

#[test]
fn laplace_is_right_and_moves_the_edge_rows_only() {
    let place = Place::new();
    for protocol in PROTOCOLS {
        for transfer in ["message", "zero-copy"] {
            for ranks in [1, 2, 3, 4, 8] {
                check_laplace(&place, ranks, &["--transfer", transfer], protocol, 20);
            }
        }
        check_laplace(&place, 32, &[], protocol, 10);
    }
    check_laplace(&place, 100, &[], "invalidate", 3);
}

#[test]
fn rows_that_share_pages_and_homes_in_the_wrong_place_give_the_same_points() {
    let place = Place::new();
    for protocol in PROTOCOLS {
        for transfer in ["message", "zero-copy"] {
            for home in ["static", "migrate"] {
                let flags = ["--protocol", protocol, "--transfer", transfer, "--home", home];
                let outcome = launch(&place, 3, &flags, &["laplace", "-n", "300", "--home", "one", "--verify"]);
                assert_eq!(outcome.code, Some(0), "{flags:?}: {}", outcome.stderr);
            }
        }
    }
}

#[test]
fn no_outcome_is_seen_that_release_consistency_forbids() {
    let place = Place::new();
    for protocol in PROTOCOLS {
        for (transfer, home) in [("message", "migrate"), ("zero-copy", "static"), ("zero-copy", "migrate")] {
            for ranks in [2, 3] {
                let flags = ["--protocol", protocol, "--transfer", transfer, "--home", home];
                let outcome = launch(&place, ranks, &flags, &["litmus", "150"]);
                assert_eq!(outcome.code, Some(0), "{ranks} ranks, {flags:?}: {}", outcome.stderr);
            }
        }
    }
    place.assert_nothing_left();
}

/// When the kernel reclaims memory, it unmaps shared pages without telling the engine. An access must find them again. The
/// advice that the workload gives unmaps only pages that nobody else maps, as those of a single rank.
#[test]
fn pages_that_the_kernel_unmaps_come_back() {
    let place = Place::new();
    for protocol in PROTOCOLS {
        for flags in [&["--transfer", "message"][..], &["--transfer", "zero-copy"], &["--local", "512K"]] {
            let flags = [&["--protocol", protocol], flags].concat();
            for ranks in [1, 2] {
                let outcome = launch(&place, ranks, &flags, &["litmus", "50", "reclaimed"]);
                assert_eq!(outcome.code, Some(0), "{ranks} ranks, {flags:?}: {}", outcome.stderr);
            }
        }
    }
    place.assert_nothing_left();
}

#[test]
fn every_rank_ends_and_says_why_when_one_cannot_go_on() {
    let place = Place::new();
    for (what, code, parts) in [
        ("before", 125, &["before dsm_startup"][..]),
        ("after", 125, &["rank 0: dsm_barrier was called after dsm_shutdown"]),
        ("exit", 7, &["rank 1 ended with exit code 7", "rank 0 lost rank 1", "rank 2 lost rank 1"]),
        ("kill", 137, &["rank 1 was ended by signal 9", "rank 0 lost rank 1", "rank 2 lost rank 1"]),
        ("unlock", 125, &["rank 1: dsm_unlock: lock 3 is not held", "rank 0 lost rank 1"]),
        ("alloc", 122, &["rank 0: rank _ called dsm_alloc while rank _ called dsm_alloc", "rank 2: rank"]),
        ("beyond", 125, &["rank 1: touch of 0x", "is not allocated"]),
    ] {
        let outcome = launch(&place, 3, &[], &["misuse", what]);
        assert!(outcome.stdout.is_empty());
        // If ranks allocate different sizes, the two ranks named in the message depend on chance.
        let any = |said: String, rank: u32| said.replace(&format!("rank {rank} called"), "rank _ called");
        let said = (0..3).fold(outcome.stderr.clone(), any);
        assert!(outcome.code == Some(code), "{what}: {:?} {}", outcome.code, outcome.stderr);
        for part in parts {
            assert!(said.contains(part), "{what}: {part:?} is not in {}", outcome.stderr);
        }
        place.assert_nothing_left();
    }
}

/// Where pages are evicted, a transfer that holds one would be lost. So the calls that begin such transfers are refused.
#[test]
fn transfers_that_hold_shared_pages_are_refused_where_pages_leave() {
    let place = Place::new();
    let outcome = launch(&place, 1, &["--local", "512K"], &["misuse", "transfers"]);
    assert_eq!(outcome.code, Some(13), "{outcome:?}");
    place.assert_nothing_left();
}

#[test]
fn whoever_waits_for_a_late_rank_sleeps() {
    let place = Place::new();
    let outcome = launch(&place, 2, &[], &["misuse", "late"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

/// The handler's page comes from the engine's thread. This thread must wait for no lock of the C library, because the
/// interrupted thread holds some of them.
#[test]
fn handlers_read_shared_pages_while_the_program_is_in_malloc_or_fork() {
    let place = Place::new();
    for what in ["malloc", "fork"] {
        for flags in [&[][..], &["--transfer", "message", "--local", "512K"]] {
            let outcome = launch(&place, 2, flags, &["interrupted", what]);
            assert!(outcome.code == Some(0) && outcome.text() == "ok interrupted\n", "{what} {flags:?}: {outcome:?}");
        }
    }
    place.assert_nothing_left();
}

#[test]
fn copies_that_there_is_no_room_for_are_given_up() {
    let place = Place::new();
    for protocol in PROTOCOLS {
        for transfer in ["message", "zero-copy"] {
            let flags = ["--protocol", protocol, "--transfer", transfer, "--local", "1M"];
            let outcome = launch(&place, 3, &flags, &["lu", "-n", "512", "--verify", "--json"]);
            assert!(outcome.code == Some(0) && outcome.stderr.contains("verified"), "{flags:?}: {outcome:?}");
            let counts: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("one JSON object");
            assert!(counts["pages_dropped"].as_u64() > Some(100), "{flags:?}: {counts}");
        }
    }
    place.assert_nothing_left();
}

#[test]
fn settings_that_make_no_sense_are_one_line() {
    let place = Place::new();
    for (flags, part) in [
        (&["-n", "0", "--", "true"][..], "0"),
        (&["-n", "257", "--", "true"], "257"),
        (&["-n", "2", "--protocol", "magic", "--", "true"], "magic"),
        (&["-n", "2"], "PROGRAM"),
    ] {
        let outcome = place.run(place.command(built().hanare()).arg("launch").args(flags));
        assert_eq!((outcome.code, outcome.stderr.lines().count()), (Some(125), 1), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
    }
    let outcome = place.run(place.command(built().hanare()).args(["launch", "-n", "2", "--", "/no/such/program"]));
    assert_eq!(outcome.code, Some(127), "{}", outcome.stderr);
}

#[test]
fn each_ranks_counts_are_written_when_asked_for() {
    let place = Place::new();
    let file = place.path("counts.json");
    let outcome = launch(&place, 3, &["--report", "--stats-json", &file.display().to_string()], &["litmus", "5"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let sums = outcome.stderr.lines().find(|line| line.trim_start().starts_with("all ")).expect("a table");
    assert_eq!(sums.split_whitespace().nth(1), Some("30"), "{}", outcome.stderr);
    let counts: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).expect("the file")).expect("JSON");
    let ranks = counts.as_array().expect("an array");
    assert_eq!(ranks.len(), 3);
    for (rank, counts) in ranks.iter().enumerate() {
        assert_eq!(counts["rank"], rank);
        assert_eq!(counts["barriers"], 10);
        assert_eq!(counts["locks"], 20);
    }
}
