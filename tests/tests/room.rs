//! Tests that a program learns of a lack of memory in time. If servers, quotas or the spill disk have no free space,
//! malloc and mmap must return ENOMEM, and all allocated memory must keep its bytes. If a program uses memory without a
//! reservation and no space is free, it must end with exit code 121.

use hanare_tests::{Outcome, Place, Served, built, figures, status, until};

/// Runs the workload `fill` with these flags and arguments.
fn fill(place: &Place, flags: &[&str], args: &[&str]) -> Outcome {
    fill_with(place, flags, args, "heuristic")
}

fn fill_with(place: &Place, flags: &[&str], args: &[&str], overcommit: &str) -> Outcome {
    let local = if flags.contains(&"2M") { "8M" } else { "4M" };
    let mut command = place.hanare(["run", "--local", local]);
    command.args(flags).arg("--").arg(built().workload("fill")).args(args).env("HANARE_OVERCOMMIT", overcommit);
    place.run(&mut command)
}

/// Asserts that `fill` ended normally after ENOMEM, with one line that contains `part`. Returns the number of bytes
/// that it filled.
#[track_caller]
fn refused_after(outcome: Outcome, part: &str) -> u64 {
    let text = outcome.text();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(text.ends_with(", then no more\n"), "{outcome:?}");
    assert!(outcome.stderr.starts_with("hanare: ") && outcome.stderr.lines().count() == 1, "{outcome:?}");
    assert!(outcome.stderr.contains("ENOMEM") && outcome.stderr.contains(part), "{part:?} is not in {outcome:?}");
    text.split(' ').nth(2).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{outcome:?}"))
}

const M: u64 = 1 << 20;

#[test]
fn a_program_gets_enomem_when_its_server_has_no_more_room() {
    for page_size in ["auto", "4K", "64K", "2M"] {
        let place = Place::new();
        let server = Served::tcp(&place, "32M");
        let flags = ["--page-size", page_size, "--server", &server.address];
        for args in [&["1M"][..], &["1M", "--mmap"], &["200K"]] {
            println!("{page_size} pages, {args:?}");
            let bytes = refused_after(fill(&place, &flags, args), &server.address);
            // The program must get most of the server's memory, and never more than all of it. Some memory is lost in
            // pages that small blocks do not fill, and in partly used placement extents. A block of 1 MiB shares no
            // page with other blocks.
            let least = match (page_size, args) {
                ("2M", _) => 10 * M,
                (_, ["200K"]) => 16 * M,
                _ => 20 * M,
            };
            assert!((least..=32 * M).contains(&bytes), "{bytes} bytes with {page_size} pages, {args:?}");
            until("its slots are free", || status(&server.address).slots == 0);
        }
        place.assert_nothing_left();
    }
}

#[test]
fn one_that_fills_up_hands_over_to_the_next_and_all_together_are_the_limit() {
    let place = Place::new();
    let (tcp, unix) = (Served::tcp(&place, "16M"), Served::unix(&place, "24M", "second"));
    let flags = ["--server", &tcp.address, "--server", &unix.address];
    let outcome = fill(&place, &flags, &["1M"]);
    assert!(outcome.stderr.contains(&tcp.address) && outcome.stderr.contains(&unix.address), "{outcome:?}");
    let bytes = refused_after(outcome, "no room");
    assert!((30 * M..=40 * M).contains(&bytes), "{bytes} bytes");
    place.assert_nothing_left();
}

#[test]
fn a_private_server_and_its_spill_file_are_the_limit() {
    let place = Place::new();
    let json = place.path("json");
    let json = json.to_str().expect("a plain path");
    for mode in ["auto", "sigsegv"] {
        let flags = ["--memory", "24M", "--spill", "none", "--mode", mode, "--stats-json", json];
        let bytes = refused_after(fill(&place, &flags, &["1M"]), "private memory server");
        assert!((16 * M..=24 * M).contains(&bytes), "{bytes} bytes");
        assert!(figures(json.as_ref()).number("allocations_refused") > 0);
    }
    let outcome = fill(&place, &["--memory", "24M", "--spill", "none"], &["1M", "--most", "20"]);
    outcome.assert_well("a program that fits");
    place.assert_nothing_left();
}

#[test]
fn a_server_that_refuses_by_its_quota_is_named_with_it() {
    let place = Place::new();
    let command =
        |quota: &str| place.hanare(["serve", "--memory", "64M", "--listen", "127.0.0.1:0", "--client-quota", quota]);
    let server = Served::with(&place, command("16M"));
    let bytes = refused_after(
        fill(&place, &["--server", &server.address], &["1M"]),
        &format!("{} allows this client a quota of 16 MiB", server.address),
    );
    assert!((9 * M..=16 * M).contains(&bytes), "{bytes} bytes");

    // With `always`, a program reserves no memory on the server, so it reaches the quota in the middle of its work.
    let outcome = fill_with(&place, &["--server", &server.address], &["1M", "--most", "40"], "always");
    outcome.assert_ended_by_us(121, "quota of 16 MiB");

    // A quota below one slot, the server's unit of memory, is refused before the program runs.
    let tiny = Served::with(&place, command("1M"));
    let outcome = fill(&place, &["--server", &tiny.address], &["1M"]);
    outcome.assert_ended_by_us(125, &tiny.address);
    assert!(outcome.stderr.contains("quota of 1048576 bytes"), "{outcome:?}");
    place.assert_nothing_left();
}

#[test]
fn what_is_allocated_and_not_touched_counts_only_where_that_is_asked_for() {
    let place = Place::new();
    let server = Served::tcp(&place, "32M");
    let flags = ["--server", &server.address];
    // The program allocates twice the server's memory. It accesses none of the memory before the last allocation.
    let at_once = ["1M", "--at-once", "64", "--most", "64"];
    fill_with(&place, &flags, &at_once, "heuristic").assert_ended_by_us(121, "full");
    until("its slots are free", || status(&server.address).slots == 0);
    let bytes = refused_after(fill_with(&place, &flags, &at_once, "never"), &server.address);
    assert!((20 * M..=32 * M).contains(&bytes), "{bytes} bytes");
    // A single allocation that exceeds the server's memory is refused with both settings.
    let outcome = fill(&place, &flags, &["64M"]);
    assert!(outcome.text().starts_with("ok fill 0 bytes, then no more"), "{outcome:?}");
    place.assert_nothing_left();
}

#[test]
fn what_others_take_is_seen_and_what_they_give_back_too() {
    let place = Place::new();
    let server = Served::tcp(&place, "64M");
    // Another program uses most of the server's memory.
    let mut other = place.hanare(["run", "--local", "4M", "--server", &server.address, "--"]);
    let other = place.start(other.arg(built().workload("touch")).args(["40M", "--passes", "100000"]));
    until("it holds 36M", || status(&server.address).slots >= 18);
    let bytes = refused_after(fill(&place, &["--server", &server.address], &["1M"]), &server.address);
    assert!((12 * M..=28 * M).contains(&bytes), "{bytes} bytes beside 40M");
    drop(other);
    until("its slots are free", || status(&server.address).sessions == 0);
    let bytes = refused_after(fill(&place, &["--server", &server.address], &["1M"]), &server.address);
    assert!((54 * M..=64 * M).contains(&bytes), "{bytes} bytes alone");
    place.assert_nothing_left();
}
