//! Tests the server's pages if a program frees memory in any pattern. Freeing must neither block the program nor lose
//! other pages. A budget in percent must work with every page size.

use hanare_tests::{Outcome, Place, Served, built, mode_works, rounds, status, until};

fn run(place: &Place, server: &Served, flags: &[&str], args: &[&str]) -> Outcome {
    let mut command = place.hanare(["run", "--server", &server.address]);
    command.args(flags).arg("--").arg(built().workload(args[0])).args(&args[1..]);
    place.run(&mut command)
}

/// Guards against a deadlock. A thread freed so much memory that the queue of discards was full. It waited for room in
/// the queue while it held locks that the writer needed to make room.
#[test]
fn every_second_page_of_much_memory_is_given_back_without_anyone_waiting() {
    let place = Place::new();
    let server = Served::tcp(&place, "2G");
    let size = if rounds() > 1 { "2G" } else { "1G" };
    let outcome = run(&place, &server, &["--local", "64M", "--page-size", "4K"], &["holes", "gaps", size]);
    outcome.assert_well("every second page");
    until("its slots are free", || status(&server.address).slots == 0);
    place.assert_nothing_left();
}

/// Guards against a lost write. A slot of 2 MiB (the server's unit of memory) was discarded while some of its pages
/// were still in transit to the server.
#[test]
fn a_page_on_its_way_is_not_discarded_with_its_neighbour() {
    for mode in ["thread", "sigbus", "sigsegv"] {
        if !mode_works(mode) {
            continue;
        }
        let place = Place::new();
        let server = Served::tcp(&place, "3G");
        let outcome = run(&place, &server, &["--local", "4M", "--mode", mode], &["holes", "pairs", "2G"]);
        outcome.assert_well(&format!("pairs of pages in {mode} mode"));
        place.assert_nothing_left();
    }
}

#[test]
fn a_share_of_what_is_allocated_works_with_every_page_size_over_tcp() {
    let place = Place::new();
    let server = Served::tcp(&place, "256M");
    for page_size in ["auto", "4K", "8K", "16K", "64K", "2M"] {
        for share in ["50%", "5%"] {
            let json = place.path("json");
            let flags =
                ["--local", share, "--page-size", page_size, "--stats-json", json.to_str().expect("a plain path")];
            let outcome = run(&place, &server, &flags, &["touch", "64M", "--passes", "2"]);
            outcome.assert_well(&format!("{share} of memory in {page_size} pages"));
        }
    }
    place.assert_nothing_left();
}

/// Guards against lost bytes. After the program had unmapped the neighbours of prefetched pages, these pages read as
/// zeroes. The discard of the neighbours had removed a whole slot (the server's unit of memory).
#[test]
fn what_is_fetched_ahead_beside_a_hole_is_whole() {
    for mode in ["thread", "sigbus"].into_iter().filter(|mode| mode_works(mode)) {
        let place = Place::new();
        let server = Served::unix(&place, "256M", "server");
        for [policy, prefetch] in [["lru", "sequential"], ["arc", "sequential"], ["clock", "cluster"]] {
            let flags = ["--mode", mode, "--policy", policy, "--prefetch", prefetch, "--local", "50%"];
            run(&place, &server, &flags, &["mapping", "4M"])
                .assert_well(&format!("{policy} and {prefetch} in {mode} mode"));
        }
    }
}
