//! Tests the calls that manage memory, as programs and their allocators use them: mappings, reservations that are made
//! accessible in parts, fixed and foreign mappings, and the break. The allocators are jemalloc and mimalloc as
//! libraries, and the allocator built into DuckDB.

use hanare_tests::{
    Figures, Outcome, Place, built, figures, installed, mode_works, python_with, system_calls_work_on_far_pages,
};

const MODES: [&str; 3] = ["thread", "sigbus", "sigsegv"];

fn run(place: &Place, flags: &[&str], program: &std::ffi::OsStr, args: &[&str]) -> (Outcome, Figures) {
    let json = place.path("json");
    let mut command = place.hanare(["run", "--stats-json"]);
    command.arg(&json).args(flags).arg("--").arg(program).args(args);
    // jemalloc needs static space for thread-local variables. By default, only libraries loaded at the start get enough
    // of it.
    command.env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=16384");
    (place.run(&mut command), figures(&json))
}

fn workload(flags: &[&str], program: &str, args: &[&str], paged_bytes: u64) {
    workload_saying(program, flags, program, args, paged_bytes);
}

/// Does the work of [`workload`] for a program that prints the name `name` instead of its file name.
fn workload_saying(name: &str, flags: &[&str], program: &str, args: &[&str], paged_bytes: u64) {
    let place = Place::new();
    let (outcome, seen) = run(&place, flags, built().workload(program).as_os_str(), args);
    let what = format!("{program} {args:?} {flags:?}");
    outcome.assert_well(&what);
    assert!(outcome.text().starts_with(&format!("ok {name}: ")), "{what}: {outcome:?}");
    seen.assert_paged(paged_bytes, &what);
    place.assert_nothing_left();
}

#[test]
fn memory_calls_keep_their_meaning() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for page_size in ["auto", "4K", "64K", "2M"] {
            let flags = ["--local", "12M", "--mode", mode, "--page-size", page_size];
            workload(&flags, "mapping", &["32M"], 32 << 20);
            workload(&flags, "reserving", &["32M"], 32 << 20);
        }
    }
    if mode_works("thread") {
        let flags = ["--local", "12M", "--mode", "thread", "--far", "all"];
        workload(&flags, "mapping", &["32M"], 32 << 20);
    }
}

#[test]
fn reservations_take_no_share_of_the_budget() {
    let place = Place::new();
    let (outcome, seen) = run(&place, &["--local", "50%"], built().workload("reserving").as_os_str(), &["32M"]);
    outcome.assert_well("reserving");
    // The program's heap reserves several GiB of addresses for the break. The reservation must not count as far memory.
    let far = seen.number("far_bytes_peak");
    assert!(far < 128 << 20, "{far} bytes count as far");
    seen.assert_within_budget("reserving");
}

#[test]
fn allocators_that_are_libraries() {
    for library in ["libjemalloc.so.2", "libmimalloc.so.2"] {
        let place = Place::new();
        let mut native = place.command(built().workload("allocator"));
        native.args([library, "1M"]).env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=16384");
        if place.run(&mut native).code == Some(3) {
            println!("skipped: {library} cannot be loaded; apt-get install libjemalloc2 libmimalloc2.0");
            continue;
        }
        for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
            workload(&["--local", "8M", "--mode", mode], "allocator", &[library, "24M"], 16 << 20);
        }
    }
}

#[test]
fn an_allocator_that_defines_the_c_librarys_internal_names() {
    for program in ["linked", "linked_in"] {
        let place = Place::new();
        place.run(&mut place.command(built().workload(program))).assert_well("natively");
        for mode in MODES.into_iter().filter(|mode| mode_works(mode) && (*mode != "sigsegv" || program == "linked")) {
            workload_saying("linked", &["--local", "8M", "--mode", mode], program, &["32M"], 16 << 20);
        }
    }
}

/// The C library takes the buffers of streams from the program's allocator and passes them to the kernel itself. Where
/// that fails on far pages, such a program must not get any. It must not lose what it prints.
#[test]
fn an_allocator_of_the_programs_serves_streams_and_directories() {
    let place = Place::new();
    let bump = |disabled: &str, flags: &[&str], size: &str| {
        let mut command = place.hanare(["run", "--local", "8M"]);
        command.args(flags).arg("--").arg(built().workload("bump")).arg(size).env("HANARE_DISABLE", disabled);
        place.run(&mut command)
    };
    let is_right = |outcome: Outcome, what: &str| {
        outcome.assert_well(what);
        assert_eq!(outcome.text(), "ok bump: 5120 blocks\n", "{what}");
    };
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for disabled in ["", "filter,dispatch"] {
            let flags = ["--mode", mode];
            let serves_calls = mode == "thread" || mode == "sigbus" && disabled.is_empty();
            match bump(disabled, &flags, "40") {
                outcome if serves_calls => is_right(outcome, mode),
                outcome => outcome.assert_ended_by_us(125, "defines its own malloc"),
            }
            is_right(bump(disabled, &[&flags[..], &["--near", "off"]].concat(), "40"), mode);
            let small = bump(disabled, &flags, "10");
            small.assert_well(mode);
            assert_eq!(small.text(), "ok bump: 1280 blocks\n", "{mode}");
        }
    }
    place.assert_nothing_left();
}

#[test]
fn what_the_c_library_allocates_with_a_lock_held_starts_nothing() {
    let far: &[&str] = if system_calls_work_on_far_pages() { &["all", "4K", "large"] } else { &["large"] };
    for far in far {
        let place = Place::new();
        let mut command = place.hanare(["run", "--local", "2M", "--far", far]);
        let outcome = place.run(command.arg("--").arg(built().workload("exits")));
        outcome.assert_well(far);
        assert_eq!(outcome.text(), "ok exits\n", "{far}: {outcome:?}");
        place.assert_nothing_left();
    }
}

#[test]
fn prolog_which_is_linked_with_tcmalloc() {
    if !installed("swipl", "swi-prolog-nox") {
        return;
    }
    let goal = "X is 2**100, numlist(1, 200000, L), sum_list(L, S), print(X-S), nl";
    let place = Place::new();
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for statics in ["on", "off"] {
            let mut command = place.hanare(["run", "--local", "25%", "--mode", mode, "--", "swipl", "-q", "-g", goal]);
            let outcome = place.run(command.args(["-t", "halt"]).env("HANARE_STATIC", statics));
            outcome.assert_well(mode);
            assert_eq!(outcome.text(), "1267650600228229401496703205376-20000100000\n", "{mode}, statics {statics}");
        }
    }
}

const QUERIES: &str = "
import duckdb
db = duckdb.connect()
db.execute('set threads = 2')
db.execute('create table t as select (i * 7919) % 1000003 as k, hash(i) as h, (i % 1000)::varchar as s from range(400000) r(i)')
print(db.execute('select count(*), sum(k), max(h) from t').fetchall())
print(db.execute('select s, count(*), sum(k) from t group by s order by 3 desc, 1 limit 5').fetchall())
print(db.execute(\"select md5(string_agg(k::varchar, ',')) from (select k from t order by h limit 50000)\").fetchall())
";

#[test]
fn duckdb_groups_and_sorts() {
    let Some(python) = python_with("duckdb") else { return };
    if !system_calls_work_on_far_pages() {
        return;
    }
    let place = Place::new();
    let script = place.file("queries.py", QUERIES).display().to_string();
    let native = place.run(place.command(&python).arg(&script));
    native.assert_well("natively");
    let (far, seen) = run(&place, &["--local", "16M"], &python, &[&script]);
    far.assert_well("duckdb");
    assert_eq!(far.text(), native.text());
    seen.assert_paged(8 << 20, "duckdb");
    place.assert_nothing_left();
}
