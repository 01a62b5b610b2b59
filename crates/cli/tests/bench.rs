//! `hanare bench` measures and prints the figures that its help names. No test asserts a figure's size.

mod common;

use std::sync::{Mutex, PoisonError};

use common::Place;
use serde_json::Value;

/// The lock that a running benchmark holds. Benchmarks poll, so several at once would compete for the CPU.
static ALONE: Mutex<()> = Mutex::new(());

fn json(place: &Place, args: &[&str]) -> Value {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let outcome = place.run(place.hanare().arg("bench").args(args).args(["--runs", "1", "--json"]));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
    serde_json::from_str(&outcome.stdout).unwrap()
}

fn assert_positive(figures: &Value, keys: &[&str]) {
    for key in keys {
        assert!(figures[key].as_f64().is_some_and(|figure| figure > 0.0), "{key} in {figures:#}");
    }
}

fn assert_paged(figures: &Value, size: u64) {
    let number = |name: &str| figures[name].as_f64().unwrap();
    assert_eq!((&figures["verified"], &figures["words_verified"]), (&true.into(), &(size / 8).into()), "{figures:#}");
    assert_eq!(figures["local_bytes_budget"], size / 2, "{figures:#}");
    // The pages that did not fit came in during the timed part, and the budget held.
    assert_positive(figures, &["seconds", "gb_per_s", "us_per_touch", "faults", "bytes_in", "tcp_stream_gb_per_s"]);
    assert!(number("local_bytes_peak") > 0.0 && number("local_bytes_peak") <= (size / 2) as f64, "{figures:#}");
    assert_positive(figures, &["handler_us_p50", "handler_us_p90", "handler_us_p99", "ratio_tcp_stream"]);
}

#[test]
fn floors_of_links_and_copies_are_everywhere() {
    let place = Place::new();
    let figures = json(&place, &["floor"]);
    let links = ["rtt_4k_us", "rtt_64k_us", "rtt_1m_us", "stream_gb_per_s"];
    for link in ["tcp", "unix"] {
        links.iter().for_each(|floor| assert_positive(&figures, &[&format!("{link}_{floor}")]));
    }
    assert_positive(&figures, &["memcpy_4k_us", "memcpy_2m_us", "dontneed_4k_us"]);
    for floor in ["trap_us", "trap_thread_us", "copy_4k_us", "move_in_4k_us", "move_out_4k_us", "move_in_64k_us"] {
        // No figure is 0. A figure is absent if this machine has no userfaultfd or cannot move pages.
        assert!(figures[floor].is_null() || figures[floor].as_f64() > Some(0.0), "{floor} in {figures:#}");
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let table = place.run(place.hanare().args(["bench", "floor", "--runs", "1"]).env("HANARE_DISABLE", "userfaultfd"));
    assert_eq!(table.code, Some(0), "{table:?}");
    let trap = table.stdout.lines().find(|line| line.starts_with("trap_us ")).unwrap();
    assert!(trap.ends_with(" -"), "{trap}");
}

#[test]
fn sequential_read_write_over_the_same_host_link_writes_back_what_it_evicts() {
    let place = Place::new();
    let figures =
        json(&place, &["paging", "--pattern", "seq", "--access", "rw", "--size", "64M", "--page-size", "64K"]);
    assert_paged(&figures, 64 << 20);
    assert_eq!(figures["touches"], 2 * (64 << 20) / 4096, "{figures:#}");
    let (came, went) = (figures["bytes_in"].as_f64().unwrap(), figures["bytes_out"].as_f64().unwrap());
    // Every page was dirty when it was evicted, except for pages in transit at the beginning or end.
    assert!(went >= came * 0.8, "not the steady state: {figures:#}");
    place.assert_nothing_left();
}

#[test]
fn random_reads_over_each_link_write_nothing_back() {
    let place = Place::new();
    for link in ["direct", "tcp", "unix"] {
        let args = ["paging", "--pattern", "rand", "--size", "16M", "--page-size", "4K", "--touches", "4000"];
        // With `lru`, eviction follows the order of last accesses. So reading every page once has written all of them
        // back.
        let args = [&args[..], &["--policy", "lru", "--prefetch", "none"]].concat();
        let figures = json(&place, &[&args[..], &["--link", link]].concat());
        assert_paged(&figures, 16 << 20);
        assert_eq!((&figures["touches"], &figures["link"]), (&4000.into(), &link.into()), "{figures:#}");
        assert_positive(&figures, &["fault_us_p50", "fault_us_p90", "fault_us_p99"]);
        assert_eq!(figures["bytes_out"], 0.0, "clean pages were written back: {figures:#}");
        if !figures["trap_us"].is_null() {
            assert_positive(&figures, &["ratio_fault_floor", "ratio_fault_floor_own"]);
        }
        place.assert_nothing_left();
    }
}

#[test]
fn strided_touches_with_the_weakest_trap() {
    let place = Place::new();
    let pattern = ["paging", "--pattern", "stride", "--stride", "64K", "--page-size", "64K"];
    let figures = json(&place, &[&pattern[..], &["--size", "16M", "--mode", "sigsegv"]].concat());
    assert_paged(&figures, 16 << 20);
    assert_eq!((&figures["mode"], &figures["stride_bytes"]), (&"sigsegv".into(), &(64 << 10).into()), "{figures:#}");
}

#[test]
fn servers_tells_what_a_greedy_client_costs_the_others() {
    let place = Place::new();
    let figures = json(&place, &["servers", "--clients", "2", "--size", "2M", "--touches", "200", "--pause-us", "100"]);
    assert_positive(&figures, &["fault_us_p50_alone", "fault_us_p50_modest", "fault_us_p50_greedy"]);
    assert_positive(&figures, &["fault_us_p99_greedy", "greedy_gb_per_s", "ratio_greedy"]);
    assert_eq!((&figures["clients"], &figures["runs"]), (&2.into(), &1.into()), "{figures:#}");
    place.assert_nothing_left();
}

#[test]
fn bad_flags_are_one_line() {
    let place = Place::new();
    for (args, part) in [
        (&["bench"][..], "see 'hanare"),
        (&["bench", "paging"], "--pattern"),
        (&["bench", "paging", "--pattern", "zigzag"], "zigzag"),
        (&["bench", "paging", "--pattern", "seq", "--size", "5000"], "multiples of 4K"),
        (&["bench", "paging", "--pattern", "stride", "--size", "1M", "--stride", "2M"], "no larger than the size"),
        (&["bench", "paging", "--pattern", "seq", "--size", "1M", "--local", "4K"], "budget"),
        (&["bench", "paging", "--pattern", "seq", "--size", "1M", "--policy", "psychic"], "psychic"),
        (&["bench", "floor", "--runs", "0"], "--runs"),
    ] {
        place.run(place.hanare().args(args)).assert_refused(125, part);
    }
    place.assert_nothing_left();
}
