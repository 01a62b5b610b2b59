//! The benchmarks of `workloads`: himeno, genes, keyvalue and stream. Each checks its result with `--verify`.

use std::path::Path;

use hanare_tests::{
    Outcome, Place, built, figures, mode_works, system_calls_are_trapped, system_calls_work_on_far_pages,
};

/// The programs with flags for a small size.
const PROGRAMS: [(&str, &[&str]); 5] = [
    ("himeno", &["--size", "S", "--iterations", "2"]),
    ("genes", &["--genes", "400"]),
    ("genes", &["--genes", "400", "--linkage", "centroid"]),
    ("keyvalue", &["--megabytes", "8", "--operations", "20000"]),
    ("stream", &["--megabytes", "12", "--iterations", "3"]),
];

fn plain(place: &Place, name: &str, flags: &[&str]) -> Outcome {
    let outcome = place.run(place.command(built().workload(name)).args(flags));
    outcome.assert_well(name);
    outcome
}

fn object(outcome: &Outcome) -> serde_json::Value {
    serde_json::from_str(&outcome.text()).expect("one object")
}

#[test]
fn results_are_verified() {
    let place = Place::new();
    for (name, flags) in PROGRAMS {
        let said = object(&plain(&place, name, &[flags, &["--verify", "--json"]].concat()));
        assert_eq!((said["name"].as_str(), said["verified"].as_bool()), (Some(name), Some(true)), "{said}");
        assert!(said["bytes"].as_u64() > Some(1_000_000) && said["seconds"].as_f64() > Some(0.0), "{said}");
    }
}

/// Whether small blocks of malloc can be far in this mode.
fn all_can_be_far(mode: &str) -> bool {
    match mode {
        "thread" => system_calls_work_on_far_pages(),
        "sigbus" => system_calls_are_trapped(),
        _ => false,
    }
}

#[test]
fn results_are_the_same_with_half_of_the_memory() {
    let place = Place::new();
    for mode in ["thread", "sigbus", "sigsegv"].into_iter().filter(|mode| mode_works(mode)) {
        let all = all_can_be_far(mode);
        for (name, flags) in PROGRAMS {
            let what = format!("{mode}, {name}");
            let expected = plain(&place, name, flags).text();
            assert!(expected.starts_with(&format!("ok {name}: ")), "{expected}");
            let mut command = place.hanare(["run", "--mode", mode, "--local", "50%", "--stats-json", "json"]);
            command.args(["--far", if name == "keyvalue" && all { "all" } else { "large" }]).arg("--");
            command.arg(built().workload(name)).args(flags).arg("--verify");
            if name == "genes" {
                command.args(["--allocator", "dlm"]);
            }
            let outcome = place.run(&mut command);
            outcome.assert_well(&what);
            assert_eq!(outcome.text(), expected, "{what}");
            if name != "keyvalue" || all {
                figures(&place.path("json")).assert_paged(1 << 20, &what);
            }
        }
    }
    place.assert_nothing_left();
}

/// The threads of OpenMP wait for one another at every loop, and so for pages of one another.
#[test]
fn results_are_the_same_with_threads() {
    let place = Place::new();
    for mode in ["thread", "sigbus", "sigsegv"].into_iter().filter(|mode| mode_works(mode)) {
        for (name, flags) in [PROGRAMS[0], PROGRAMS[4]] {
            let what = format!("{mode}, {name}");
            let mut command = place.hanare(["run", "--mode", mode, "--local", "25%", "--stats-json", "json", "--"]);
            command.arg(built().workload(&format!("{name}.omp"))).args(flags).arg("--verify");
            let outcome = place.run(command.env("OMP_NUM_THREADS", "4"));
            outcome.assert_well(&what);
            assert_eq!(outcome.text(), plain(&place, name, flags).text(), "{what}");
            figures(&place.path("json")).assert_paged(1 << 20, &what);
        }
    }
    place.assert_nothing_left();
}

/// The counts are those of DLM's paper on memory management, table 3, within a tenth of a percent.
#[test]
fn genes_allocates_as_the_paper_counts() {
    let place = Place::new();
    let said = object(&plain(&place, "genes", &["--json"]));
    let counts = [("mallocs", 24_773), ("reallocs", 4937), ("callocs", 1), ("frees", 24_774), ("live_max", 12_433)];
    for (name, count) in counts {
        let found = said[name].as_u64().expect("a count");
        assert!(found.abs_diff(count) * 1000 <= count, "{name}: {found}, not {count}");
    }
    assert_eq!(said["largest"].as_u64(), Some(39_456), "{said}");
}

/// Each check must see a wrong result: of another relaxation, of unweighted means, of a value that changes beside its
/// version, and of another factor.
#[test]
fn a_changed_line_is_noticed() {
    let place = Place::new();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads");
    let read = |name: &str| std::fs::read_to_string(sources.join(name)).expect("a source");
    for name in ["check.h", "kernel.h", "benchmark.h", "genes_blocks.h", "genes_check.h", "genes_text.h"] {
        place.file(name, read(name).replace("../include/dlmm.h", "dlmm.h"));
    }
    std::fs::copy(sources.join("../include/dlmm.h"), place.path("dlmm.h")).expect("a copy");
    let changes = [
        ("himeno", "#define OMEGA 0.8f", "#define OMEGA 0.9f"),
        ("genes", "sizes[b] += sizes[a];", ""),
        ("genes", "if (row[j] < least) {", "if (row[j] < least && j != 7) {"),
        ("keyvalue", "    *place = new;", "    *place = new; new->value[40] ^= 1;"),
        ("keyvalue", "new->next = old->next;", "new->next = NULL;"),
        ("stream", "b[i] = SCALAR * c[i];", "b[i] = 3.001 * c[i];"),
    ];
    for (name, line, changed) in changes {
        let source = read(&format!("{name}.c"));
        assert_eq!(source.matches(line).count(), 1, "{name}: {line}");
        place.file("changed.c", source.replace(line, changed));
        let compiled = place.run(place.command("cc").args(["-O1", "-o", "changed", "changed.c", "-lm"]));
        assert_eq!(compiled.code, Some(0), "{compiled:?}");
        let small: &[&str] = match name {
            "genes" => &["--genes", "80"],
            "keyvalue" => &["--megabytes", "1", "--operations", "20000"],
            "stream" => &["--megabytes", "3"],
            _ => &["--size", "S"],
        };
        let outcome = place.run(place.command(place.path("changed")).args(small).arg("--verify"));
        assert!(outcome.code == Some(1), "{name}, {changed}: {outcome:?}");
        assert!(outcome.text().starts_with(&format!("wrong: {name}: ")), "{name}, {changed}: {outcome:?}");
    }
}

#[test]
fn bad_flags_are_refused() {
    let place = Place::new();
    for (name, flags, part) in [
        ("himeno", &["--size", "XXL"][..], "not a size: XXL"),
        ("himeno", &["--json", "--fast"], "usage: "),
        ("genes", &["--linkage", "single"], "usage: "),
        ("genes", &["--genes", "1"], "less than 2: 1"),
        ("keyvalue", &["--zipf", "-1"], "not an exponent"),
        ("keyvalue", &["8"], "usage: "),
        ("stream", &["--iterations", "1"], "less than 2: 1"),
        ("stream", &["--megabytes"], "--megabytes wants a value"),
    ] {
        let outcome = place.run(place.command(built().workload(name)).args(flags));
        assert!(outcome.code == Some(2) && outcome.stdout.is_empty(), "{name} {flags:?}: {outcome:?}");
        assert!(outcome.stderr.contains(part) && outcome.stderr.lines().count() == 1, "{name} {flags:?}: {outcome:?}");
    }
}
