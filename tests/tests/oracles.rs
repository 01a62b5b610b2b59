//! Compares the policies with independent implementations. `oracles/compare.py` runs the PyPI package libcachesim on
//! the same reference strings and compares the hits.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use hanare_tests::{Place, built};

const INSTALLING: Duration = Duration::from_secs(300);
const COMPARING: Duration = Duration::from_secs(600);

fn imports_it(python: &OsString) -> bool {
    let mut import = Command::new(python);
    import.args(["-c", "import libcachesim"]).stdout(Stdio::null()).stderr(Stdio::null());
    import.status().is_ok_and(|status| status.success())
}

/// Returns a python with libcachesim: the python that `HANARE_TEST_PYTHON` names, or one in an environment that this
/// test creates. If neither works, prints a line and returns `None`.
fn python(place: &Place) -> Option<OsString> {
    if let Some(python) = std::env::var_os("HANARE_TEST_PYTHON").filter(imports_it) {
        return Some(python);
    }
    let venv = place.path("venv");
    let install = "python3 -m venv \"$0\" && \"$0/bin/python\" -m pip install --quiet --disable-pip-version-check \
                   'libcachesim>=0.3.3,<0.4'";
    let outcome = place.start(place.command("sh").args(["-c", install]).arg(&venv)).finish(INSTALLING);
    let python = venv.join("bin/python").into_os_string();
    if outcome.code == Some(0) && imports_it(&python) {
        return Some(python);
    }
    let last = outcome.stderr.lines().last().unwrap_or("it cannot be imported").to_owned();
    println!("skipped: libcachesim cannot be installed: {last}");
    None
}

#[test]
fn hits_are_those_of_libcachesim() {
    let place = Place::new();
    let Some(python) = python(&place) else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("oracles/compare.py");
    let mut compare = place.command(python);
    compare.arg(script).arg(built().hanare()).arg(place.path(""));
    let outcome = place.start(&mut compare).finish(COMPARING);
    assert!(outcome.code == Some(0) && outcome.text().ends_with(" compared, 0 different\n"), "{outcome:?}");
    println!("{}", outcome.text().trim_end());
}
