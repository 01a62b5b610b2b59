//! The NAS Parallel Benchmarks of `workloads/npb`. Each compares its results with the official reference values.

use std::path::PathBuf;

use hanare_tests::{Place, built, figures, is_full, mode_works};

const PROGRAMS: [&str; 5] = ["is", "cg", "mg", "ft", "sp"];
const POLICIES: [&str; 5] = ["auto", "lru", "nru-timer", "s3-fifo", "lirs"];

fn program(name: &str, class: char) -> PathBuf {
    built().workload(&format!("npb_{name}.{class}"))
}

#[test]
fn results_are_the_official_ones() {
    let place = Place::new();
    let threaded = ("cg", built().workload("npb_cg.S.omp"));
    for (name, program) in PROGRAMS.map(|name| (name, program(name, 'S'))).into_iter().chain([threaded]) {
        let mut command = place.command(program);
        let outcome = place.run(command.args(["--verify", "--json"]).env("OMP_NUM_THREADS", "4"));
        assert_eq!(outcome.code, Some(0), "{name}: {outcome:?}");
        let said: serde_json::Value = serde_json::from_str(&outcome.text()).expect("one object");
        assert_eq!((said["class"].as_str(), said["verified"].as_bool()), (Some("S"), Some(true)), "{name}: {said}");
    }
}

/// The static arrays of these two are large enough to be far.
#[test]
fn results_are_the_same_with_a_quarter_of_the_memory() {
    let place = Place::new();
    for mode in ["thread", "sigbus", "sigsegv"].into_iter().filter(|mode| mode_works(mode)) {
        for name in ["mg", "ft"] {
            let mut command = place.hanare(["run", "--mode", mode, "--local", "25%", "--stats-json", "json", "--"]);
            let outcome = place.run(command.arg(program(name, 'S')).arg("--verify"));
            assert!(outcome.code == Some(0) && outcome.text().starts_with("ok npb_"), "{mode}, {name}: {outcome:?}");
            assert!(outcome.text().ends_with(", as the reference\n"), "{mode}, {name}: {outcome:?}");
            figures(&place.path("json")).assert_paged(1 << 20, name);
        }
    }
    place.assert_nothing_left();
}

/// All programs in classes S, W and A need hours, and run with `HANARE_TEST_FULL=1` only.
#[test]
fn results_are_the_official_ones_under_each_policy() {
    let (names, classes, percents): (&[&str], _, &[u32]) =
        if is_full() { (&PROGRAMS, "SWA", &[75, 50, 25]) } else { (&["mg", "ft"], "W", &[50]) };
    let place = Place::new();
    for (name, class) in names.iter().flat_map(|name| classes.chars().map(move |class| (*name, class))) {
        for (percent, policy) in percents.iter().flat_map(|percent| POLICIES.map(|policy| (percent, policy))) {
            let what = format!("{name}, class {class}, {policy}, {percent} %");
            let mut command = place.hanare(["run", "--policy", policy, "--local", &format!("{percent}%")]);
            command.args(["--stats-json", "json", "--"]).arg(program(name, class)).args(["--verify", "--json"]);
            let outcome = place.run(&mut command);
            outcome.assert_well(&what);
            let said: serde_json::Value = serde_json::from_str(&outcome.text()).expect("one object");
            assert_eq!(said["verified"].as_bool(), Some(true), "{what}: {said}");
            let figures = figures(&place.path("json"));
            println!("{what}: {} bytes in, {} bytes out", figures.number("bytes_in"), figures.number("bytes_out"));
        }
    }
    place.assert_nothing_left();
}

/// The check must see a difference: with another start of the random numbers, no result is the official one.
#[test]
fn a_changed_constant_is_noticed() {
    let place = Place::new();
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads");
    std::fs::create_dir(place.path("npb")).expect("a folder");
    std::fs::copy(sources.join("check.h"), place.path("check.h")).expect("a copy");
    let common = std::fs::read_to_string(sources.join("npb/npb.h")).expect("a source");
    let changed = common.replace("#define RANDOM_SEED 314159265u", "#define RANDOM_SEED 314159267u");
    assert_ne!(common, changed);
    place.file("npb/npb.h", changed);
    // SP draws no random numbers.
    for name in ["is", "cg", "mg", "ft"] {
        let source = format!("npb/{name}.c");
        std::fs::copy(sources.join(&source), place.path(&source)).expect("a copy");
        let compiled = place.run(place.command("cc").args(["-O1", "-o", name, &source, "-lm"]));
        assert_eq!(compiled.code, Some(0), "{compiled:?}");
        let outcome = place.run(place.command(place.path(name)).arg("--verify"));
        assert!(outcome.code == Some(1) && outcome.text().starts_with("wrong npb_"), "{name}: {outcome:?}");
    }
}
