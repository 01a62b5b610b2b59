//! Checks the tables of SPECIFICATION.md. Every measured figure in a table must be the figure in benches/results.tsv.

use std::process::Command;

#[test]
fn the_specification_has_the_figures_that_were_measured() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/specification");
    let output = Command::new(script).arg("--check").output().expect("the script runs");
    assert!(
        output.status.success(),
        "run scripts/specification:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
