//! Tests freed blocks that keep their pages. The next block of the size must cause no fault, and must not show old bytes
//! where zeroes are due. Kept pages must give way at once when the program needs room, and after a while in any case.

use hanare_tests::{Place, built, figures, mode_works};

fn modes() -> impl Iterator<Item = &'static str> {
    ["thread", "sigbus", "sigsegv"].into_iter().filter(|mode| mode_works(mode))
}

/// Each round of the program once fetched every page of its block anew, which took up to 112 times as long as without
/// Hanare.
#[test]
fn the_next_block_causes_no_fault() {
    let place = Place::new();
    for mode in modes() {
        for size in ["1M", "5M"] {
            let mut command = place.hanare(["run", "--local", "64M", "--mode", mode, "--stats-json", "json", "--"]);
            let outcome = place.run(command.arg(built().workload("kept")).args(["round", size, "50"]));
            outcome.assert_well(mode);
            let faults = figures(&place.path("json")).number("faults");
            assert!(faults <= 3 * 5 * 256, "{mode}, {size}: {faults} faults");
        }
    }
    place.assert_nothing_left();
}

#[test]
fn blocks_of_many_threads_keep_their_bytes_and_calloc_returns_zeroes() {
    let place = Place::new();
    for mode in modes() {
        for (local, page_size) in
            [("8M", "auto"), ("24M", "4K"), ("64M", "2M"), ("1G", "auto"), ("100%", "auto"), ("50%", "64K")]
        {
            let mut command = place.hanare(["run", "--local", local, "--mode", mode, "--page-size", page_size, "--"]);
            let outcome = place.run(command.arg(built().workload("kept")).args(["mix", "40", "11"]));
            outcome.assert_well(&format!("{mode}, {local}, {page_size}"));
            assert_eq!(outcome.text(), "ok mix\n");
        }
    }
    place.assert_nothing_left();
}

#[test]
fn a_fork_after_a_free_leaves_parent_and_child_apart() {
    let place = Place::new();
    for mode in modes() {
        let mut command = place.hanare(["run", "--local", "32M", "--mode", mode, "--"]);
        let outcome = place.run(command.arg(built().workload("kept")).arg("fork"));
        outcome.assert_well(mode);
    }
    place.assert_nothing_left();
}

#[test]
fn kept_pages_give_way_without_a_transfer() {
    let place = Place::new();
    for mode in modes() {
        let mut command = place.hanare(["run", "--local", "56M", "--mode", mode, "--stats-json", "json", "--"]);
        let outcome = place.run(command.arg(built().workload("kept")).args(["grow", "20M"]));
        outcome.assert_well(mode);
        let seen = figures(&place.path("json"));
        assert_eq!(seen.number("bytes_out"), 0, "{mode}: freed pages were sent away");
        seen.assert_within_budget(mode);
    }
    place.assert_nothing_left();
}

#[test]
fn kept_pages_are_given_back_after_a_while() {
    let place = Place::new();
    let mut command = place.hanare(["run", "--local", "1G", "--page-size", "4K", "--stats-json", "json", "--"]);
    let outcome = place.run(command.arg(built().workload("kept")).args(["idle", "64M"]));
    outcome.assert_well("idle");
    place.assert_nothing_left();
}
