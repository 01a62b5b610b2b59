//! Tests programs of small blocks only. Without `--far all`, these blocks are near while they are few, and far once the
//! C library's heap has reached the limit of `--near`. So `--local` and `--near` bound the memory of such a program.

use std::time::Duration;

use hanare_tests::{
    Group, Outcome, Place, Served, built, figures, mode_works, python_with, system_calls_are_trapped,
    system_calls_work_on_far_pages,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Memory of a program beside its far memory and its near blocks, in bytes: code, stacks, and Hanare's own tables.
const REST: u64 = 16 * MIB;

fn peak_kib(outcome: &Outcome) -> u64 {
    let text = outcome.text();
    let number = text.trim().trim_end_matches(" KiB").rsplit(' ').next().and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("{outcome:?}"))
}

/// Returns the modes in which small blocks become far: those in which system calls work on them.
fn modes() -> Vec<&'static str> {
    let works = |mode: &&str| match *mode {
        "thread" => system_calls_work_on_far_pages(),
        _ => mode_works("sigbus") && system_calls_are_trapped(),
    };
    ["thread", "sigbus"].into_iter().filter(works).collect()
}

#[test]
fn a_map_stays_within_local_and_near_memory() {
    let place = Place::new();
    for mode in modes() {
        let run = ["run", "--local", "24M", "--near", "8M", "--mode", mode, "--stats-json", "json", "--"];
        let outcome = place.run(place.hanare(run).arg(built().workload("map")).arg("500000"));
        outcome.assert_well(mode);
        let seen = figures(&place.path("json"));
        seen.assert_paged(24 * MIB, mode);
        seen.assert_within_budget(mode);
        let private = seen.number("private_bytes_peak");
        assert!((4 * MIB..8 * MIB + REST).contains(&private), "{mode}: {} MiB that are not far", private / MIB);
        let peak = peak_kib(&outcome) * KIB;
        assert!(peak < 24 * MIB + 8 * MIB + REST, "{mode}: {} MiB at the peak", peak / MIB);
    }
    place.assert_nothing_left();
}

/// The whole of a program of small blocks stays within a cgroup that has room for local and near memory. Without
/// Hanare the kernel would kill it there.
#[test]
fn a_map_lives_in_a_memory_cgroup_that_is_smaller_than_itself() {
    let limit = 12 * MIB + 4 * MIB + REST;
    let Some(group) = Group::with_limit(limit).filter(|_| system_calls_work_on_far_pages()) else { return };
    let place = Place::new();
    let alone = place.run(place.command(built().workload("map")).arg("300000"));
    assert!(peak_kib(&alone) * KIB > limit + limit / 4, "{alone:?}");
    // A server of the run's own would count in the group.
    let server = Served::unix(&place, "256M", "server");
    let mut command = place.hanare(["run", "--local", "12M", "--near", "4M", "--server", &server.address, "--"]);
    group.holds(command.arg(built().workload("map")).arg("300000"));
    // It accesses its far pages at random, a million times. That takes a minute of a CPU, and more on a busy machine.
    let outcome = place.start(&mut command).finish(Duration::from_secs(1200));
    outcome.assert_well("map");
    assert!(outcome.text().starts_with("ok map"), "{outcome:?}");
    drop(server);
    place.assert_nothing_left();
}

/// The user must learn that the kernel sent signal 9, and which size was too large.
#[test]
fn a_program_that_is_killed_for_want_of_memory_is_told_so() {
    let Some(group) = Group::with_limit(48 * MIB) else { return };
    let place = Place::new();
    let mut command = place.hanare(["run", "--local", "8M", "--near", "off", "--report=page.html", "--"]);
    group.holds(command.arg(built().workload("map")).arg("2000000"));
    let outcome = place.start(&mut command).finish(Duration::from_secs(300));
    assert_eq!(outcome.code, Some(128 + 9), "{outcome:?}");
    let line = "the program was ended by SIGKILL, and meanwhile the kernel ended a process for want of memory";
    assert!(outcome.stderr.contains(line) && outcome.stderr.contains("or a smaller --near"), "{outcome:?}");
    let page = std::fs::read_to_string(place.path("page.html")).expect("the page");
    assert!(page.contains("The kernel ended a process for want of memory"), "{page}");
    place.assert_nothing_left();
}

/// A share of what a program allocates may be more than there is. Then the group's limit bounds local memory.
#[test]
fn a_share_that_does_not_fit_into_a_memory_cgroup_is_bounded_by_it() {
    let Some(group) = Group::with_limit(256 * MIB) else { return };
    let place = Place::new();
    for share in ["50%", "100%"] {
        let mut command = place.hanare(["run", "--local", share, "--stats-json", "json", "--"]);
        group.holds(command.arg(built().workload("touch")).arg("512M"));
        let outcome = place.start(&mut command).finish(Duration::from_secs(300));
        outcome.assert_well(share);
        assert!(outcome.text().starts_with("ok touch"), "{share}: {outcome:?}");
        figures(&place.path("json")).assert_paged(100 * MIB, share);
    }
    place.assert_nothing_left();
}

#[test]
fn few_small_blocks_stay_near_and_all_of_them_without_a_limit() {
    let place = Place::new();
    for (near, count) in [("32M", "50000"), ("off", "400000")] {
        let mut command = place.hanare(["run", "--local", "16M", "--near", near, "--stats-json", "json", "--"]);
        let outcome = place.run(command.arg(built().workload("map")).arg(count));
        outcome.assert_well("map");
        assert_eq!(figures(&place.path("json")).number("far_bytes_peak"), 0, "{near}");
    }
    place.assert_nothing_left();
}

/// Programs whose small blocks become far in the middle of their work must print what they print without Hanare.
#[test]
fn programs_print_the_same_when_their_small_blocks_become_far() {
    let place = Place::new();
    let sum = "create table t as with recursive c(x) as (select 1 union all select x + 1 from c where x < 100000) \
               select x, x * 7919 % 100003 as y, 'row ' || x as name from c; create index i on t(y); \
               select count(*), sum(x), max(name) from t where y between 100 and 60000 group by y % 3;";
    let script = "import json, sys\nd = {str(i): [i, str(i * i), {'n': i}] for i in range(60000)}\n\
                  t = json.dumps(d); e = json.loads(t); print(len(t), d == e, sum(v[0] for v in e.values()))";
    let mut programs: Vec<Vec<std::ffi::OsString>> = vec![
        vec!["sqlite3".into(), ":memory:".into(), sum.into()],
        vec!["perl".into(), "-e".into(), "$h{$_ * 7 % 100003}[$_ % 5] .= \"x$_\" for 1..150000; $s += length join '', map { $_ // '' } @{$h{$_}} for sort keys %h; print \"$s\\n\"".into()],
    ];
    if let Some(python) = python_with("json") {
        programs.push(vec![python, "-c".into(), script.into()]);
    }
    for words in programs {
        let native = place.run(place.command(&words[0]).args(&words[1..]));
        native.assert_well("native");
        for mode in modes() {
            let run = ["run", "--near", "1M", "--local", "4M", "--mode", mode, "--stats-json", "json", "--"];
            let far = place.run(place.hanare(run).args(&words));
            far.assert_well(mode);
            assert_eq!(far.text(), native.text(), "{mode}: {words:?}");
            figures(&place.path("json")).assert_paged(MIB, mode);
        }
    }
    place.assert_nothing_left();
}
