//! Checks that what a person reads fits a terminal of 40 columns: no line is longer, and no word is broken.

use hanare_tests::{Place, Served, built, installed, status, until};

/// Runs a line of a shell in a terminal of 40 columns, and returns what it shows.
fn shown(place: &Place, line: &str) -> String {
    let line = format!("stty cols 40 rows 24; {line}");
    let outcome = place.run(place.command("script").args(["-qec", &line, "/dev/null"]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome.text().replace('\r', "")
}

/// Asserts that each line fits, apart from paths.
fn assert_fits(text: &str) {
    for line in text.lines() {
        let is_path = line.split_whitespace().skip(1).all(|word| word.starts_with('/'));
        assert!(line.chars().count() <= 40 || is_path, "{line:?} is too long in\n{text}");
    }
}

#[test]
fn reports_and_tables_fit_forty_columns() {
    if !installed("script", "bsdutils") {
        return;
    }
    let place = Place::new();
    let hanare = built().hanare().display().to_string();
    let touch = built().workload("touch").display().to_string();

    let doctor = shown(&place, &format!("{hanare} doctor"));
    assert!(doctor.contains("\na run will use  "), "{doctor}");
    assert_fits(&doctor);

    let report = shown(&place, &format!("{hanare} run --local 4M --report -- {touch} 16M > out"));
    assert!(report.starts_with("hanare: report for\n") && report.contains("\n  a fault took p50 "), "{report}");
    assert_fits(&report);

    let server = Served::tcp(&place, "128M");
    let mut command = place.hanare(["run", "--local", "4M", "--server", &server.address, "--", &touch]);
    let _run = place.start(command.args(["16M", "--passes", "100000"]));
    until("pages were written", || status(&server.address).write_bytes > 0);
    let sheet = shown(&place, &format!("{hanare} status {}", server.address));
    assert!(sheet.contains("\nsession ") && sheet.contains("\n  client    touch["), "{sheet}");
    assert_fits(&sheet);

    let top = shown(&place, &format!("{hanare} top --once --server {}", server.address));
    assert!(top.contains("STALL") && top.contains(" touch\n") && !top.contains("POLICY"), "{top}");
    assert_fits(&top);
}
