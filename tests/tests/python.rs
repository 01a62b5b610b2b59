//! Tests the Python package: makes its wheel of what is built, with the extension in the profile of this test program,
//! installs it into a folder, and runs its own tests there. They are in `python/tests`.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::Duration;

use hanare_tests::{Place, built, python_with};

/// The longest time that the tests of the package may take. Most of it goes to starting interpreters.
const PATIENCE: Duration = Duration::from_secs(600);

/// Whether this python can run the tests. If not, prints what is missing.
fn has_all(python: &OsStr) -> bool {
    let lacks = |module: &&&str| {
        let mut import = Command::new(python);
        import.arg("-c").arg(format!("import {module}")).stdout(Stdio::null()).stderr(Stdio::null());
        !import.status().is_ok_and(|status| status.success())
    };
    let missing = ["pip", "pytest", "numpy"].iter().find(lacks);
    if let Some(module) = missing {
        println!("skipped: {} has maturin but no {module}; run 'make python'", python.to_string_lossy());
    }
    missing.is_none()
}

/// Whether cargo could not get PyO3.
fn no_registry(said: &[u8]) -> bool {
    let said = String::from_utf8_lossy(said);
    ["failed to download", "failed to get", "failed to query"].iter().any(|words| said.contains(words))
}

/// Makes a command of a python that finds the package.
fn with_package(place: &Place, python: &OsStr) -> Command {
    let mut command = place.command(python);
    command.env("PYTHONPATH", place.path("site")).env("PYTHONDONTWRITEBYTECODE", "1");
    // The libhanare.so of a build has more variables of threads than a running process has room for. That of a release
    // wheel is another one: scripts/wheel-library builds it.
    command.env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=4096");
    command
}

/// Types what the tutorial says into a python, and compares what it prints.
fn the_tutorial_holds(place: &Place, python: &OsStr) {
    let page = built().root.join("docs/tutorials/notebook.md");
    let examples = std::fs::read_to_string(&page).expect("the tutorial").matches("    >>> ").count();
    assert!(examples > 10, "only {examples} lines to be typed");
    let outcome = place.run(with_package(place, python).args(["-m", "doctest"]).arg(&page));
    assert!(outcome.code == Some(0) && outcome.stdout.is_empty(), "{}{}", outcome.text(), outcome.stderr);
}

#[test]
fn the_package_passes_its_own_tests() {
    let Some(python) = python_with("maturin").filter(|python| has_all(python)) else { return };
    let (place, built) = (Place::new(), built());
    let mut make = Command::new(built.root.join("scripts/wheel"));
    make.arg(&built.profile_dir).arg(&built.profile_dir).arg(built.profile());
    make.arg(built.target.join("wheels").join(built.profile())).arg(&python);
    let made = make.output().expect("sh runs");
    if !made.status.success() && no_registry(&made.stderr) {
        println!("skipped: PyO3 cannot be had from the registry");
        return;
    }
    assert!(made.status.success(), "no wheel: {made:?}");
    let wheel = String::from_utf8_lossy(&made.stdout).trim().to_owned();

    let mut install = place.command(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]);
    place.run(install.arg("--target").arg(place.path("site")).arg(&wheel)).assert_well("pip install");

    the_tutorial_holds(&place, &python);
    let mut tests = with_package(&place, &python);
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp"]);
    tests.arg(place.path("pytest")).arg(built.root.join("python/tests")).env_remove("HANARE_TIMEOUT");
    let outcome = place.start(&mut tests).finish(PATIENCE);
    let said = outcome.text();
    assert!(outcome.code == Some(0) && said.contains(" passed"), "{said}{}", outcome.stderr);
    for line in said.lines().filter(|line| line.contains("skipped")) {
        println!("{line}");
    }
    place.assert_nothing_left();
}
