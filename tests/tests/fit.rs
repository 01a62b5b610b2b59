//! Guards against `hanare fit` that counts wrongly, disturbs the program or fails without a reason, and against a held
//! slowdown that loses bytes or exceeds `--local`. The workload checks every word that it reads.

use hanare_tests::{Place, built, figures};
use serde_json::Value;

/// Runs `touch` over 24 MiB with a command of Hanare and its flags. Returns what it wrote on standard error.
fn touch(place: &Place, flags: &[&str], passes: &str) -> String {
    let mut command = place.hanare(flags);
    command.arg("--").arg(built().workload("touch")).args(["24M", "--passes", passes]);
    let outcome = place.run(&mut command);
    assert!(outcome.code == Some(0) && outcome.text().starts_with("ok touch: "), "{flags:?}: {outcome:?}");
    outcome.stderr
}

#[test]
fn a_loop_is_fitted_and_the_program_is_undisturbed() {
    let place = Place::new();
    let json = place.path("fit.json");
    let flags = ["fit", "--local", "4M", "--prefetch", "none", "--json", json.to_str().unwrap()];
    let said = touch(&place, &flags, "6");
    assert!(said.contains("   local memory   of peak   run time   slowdown\n"), "{said}");
    assert!(said.contains("  ask for ") && said.contains("  Slurm: --mem="), "{said}");
    let fit: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let rows: Vec<(f64, f64)> = fit["rows"].as_array().unwrap().iter().map(of_row).collect();
    assert!(rows.len() >= 6, "{fit}");
    assert!(rows.is_sorted_by(|one, other| one.0 < other.0 && one.1 >= other.1), "{fit}");
    // All passes access all pages. So memory saves in proportion, and the last of it saves the last waits.
    let (first, last) = (rows[0].1, rows[rows.len() - 1].1);
    assert!(last < 1.01 && first > 1.2, "{fit}");
    for &(percent, slowdown) in &rows {
        let straight = last + (first - last) * (100.0 - percent) / (100.0 - rows[0].0);
        assert!((slowdown - straight).abs() < 0.35 * (first - last), "{percent} %: {slowdown}, not {straight}: {fit}");
    }
    place.assert_nothing_left();
}

fn of_row(row: &Value) -> (f64, f64) {
    (row["percent_of_peak"].as_f64().unwrap(), row["slowdown"].as_f64().unwrap())
}

#[test]
fn runs_that_show_nothing_say_so_in_one_line() {
    let place = Place::new();
    let said = touch(&place, &["run", "--fit", "--local", "64M"], "1");
    assert!(said.contains("no fit: the local memory of 64 MiB sufficed"), "{said}");
    let outcome = place.run(place.hanare(["fit", "--"]).arg("true"));
    assert_eq!(outcome.code, Some(0));
    let said = outcome.stderr;
    assert!(said.contains("no fit: the program had no far memory") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_killed_program_is_fitted_up_to_its_end() {
    let place = Place::new();
    let mut command = place.hanare(["fit", "--local", "4M", "--"]);
    command.arg(built().workload("touch")).args(["24M", "--passes", "3", "--killed"]);
    let outcome = place.run(&mut command);
    let said = outcome.stderr;
    assert!(said.contains("signal 9 ended the program: the fit is of the part before it"), "{said}");
    assert!(said.contains("slowdown\n"), "{said}");
}

#[test]
fn a_held_slowdown_gives_memory_back_and_keeps_below_local() {
    let place = Place::new();
    let json = place.path("json");
    let file = json.to_str().unwrap();
    let said = touch(&place, &["run", "--slowdown", "3", "--local", "20M", "--report", "--stats-json", file], "60");
    assert!(said.contains("  slowdown ") && said.contains("3 x asked for"), "{said}");
    let seen = figures(&json);
    seen.assert_within_budget("held");
    seen.assert_paged(1 << 20, "held");
    assert!(seen.number("local_bytes_budget") <= 20 << 20, "{said}");
    assert!(seen.number("held_bytes") >= 16 << 20, "{said}");
}
