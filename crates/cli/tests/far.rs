//! `hanare run` with the real preload library: programs whose memory is really far.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use common::{Place, until, wait};

/// Returns the directory of the real library. Builds the library if the workspace's other tests have not done so.
fn library_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = Path::new(env!("CARGO_BIN_EXE_hanare")).parent().unwrap();
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "-p", "hanare-preload", "--target-dir"]).arg(dir.parent().unwrap());
        if dir.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
        dir.to_owned()
    })
}

fn hanare(place: &Place) -> Command {
    let mut command = place.hanare();
    command.env("HANARE_LIB", library_dir());
    command
}

fn checker(place: &Place) -> PathBuf {
    let program = place.path("checker");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checker.c");
    place.compile(&["-O2".as_ref(), "-Wall".as_ref()], &source, &program);
    program
}

#[test]
fn small_programs_are_as_without() {
    let place = Place::new();
    for (script, code, output) in [("true", 0, ""), ("echo out; exit 6", 6, "out\n"), ("kill -9 $$", 137, "")] {
        let outcome = place.run(hanare(&place).args(["run", "--local", "8M", "--", "sh", "-c", script]));
        assert_eq!(
            (outcome.code, outcome.stdout.as_str(), outcome.stderr.as_str()),
            (Some(code), output, ""),
            "{script}"
        );
    }
    let input = place.file("input", "some\0thing\n");
    let outcome = place.run(hanare(&place).args(["run", "cat"]).stdin(std::fs::File::open(&input).unwrap()));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "some\0thing\n"));
    place.assert_nothing_left();
}

#[test]
fn a_program_larger_than_its_budget_keeps_its_words_and_the_budget() {
    let place = Place::new();
    let program = checker(&place);
    let json = place.path("figures.json");
    for mode in ["auto", "sigsegv"] {
        let mut command = hanare(&place);
        command.args(["run", "--local", "8M", "--mode", mode, "--stats-json"]).arg(&json).arg("--");
        let outcome = place.run(command.arg(&program).args(["48", "2"]));
        assert_eq!((outcome.code, outcome.stdout.as_str(), outcome.stderr.as_str()), (Some(0), "ok\n", ""), "{mode}");
        let figures: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let number = |name: &str| figures[name].as_u64().unwrap();
        assert_eq!((number("processes"), number("local_bytes_budget")), (1, 8 << 20), "{figures}");
        assert!((1..=8 << 20).contains(&number("local_bytes_peak")), "{figures}");
        assert!(number("far_bytes_peak") >= 48 << 20, "{figures}");
        // Of 48 MiB, 40 MiB cannot be local. Each round writes back and fetches at least 40 MiB.
        assert!(number("bytes_out") >= 40 << 20 && number("bytes_in") >= 40 << 20, "{figures}");
        assert!(number("faults") > 0 && figures["fault_us_p50"].as_f64().unwrap() > 0.0, "{figures}");
        place.assert_nothing_left();
    }
}

#[test]
fn a_mode_that_does_not_work_is_an_error_of_ours() {
    let place = Place::new();
    let mut command = hanare(&place);
    command.args(["run", "--mode", "thread", "--", "sh", "-c", "echo ran"]).env("HANARE_DISABLE", "userfaultfd");
    place.run(&mut command).assert_refused(125, "hanare doctor");
    place.assert_nothing_left();
}

#[test]
fn full_memory_without_a_spill_file_is_121() {
    let place = Place::new();
    let program = checker(&place);
    let mut command = hanare(&place);
    command.args(["run", "--local", "4M", "--memory", "8M", "--spill", "none", "--"]);
    // A single request that cannot fit is refused. The program reports this by exit code 3.
    assert_eq!(place.run(command.arg(&program).args(["64", "1"])).code, Some(3));
    let mut command = hanare(&place);
    command
        .args(["run", "--local", "4M", "--memory", "8M", "--spill", "none", "--"])
        .env("HANARE_OVERCOMMIT", "always");
    place
        .run(command.arg(&program).args(["64", "1"]))
        .assert_refused(121, "server is full: its 8 MiB of memory are used up");
    place.assert_nothing_left();
}

#[test]
fn a_spill_file_takes_what_memory_does_not() {
    let place = Place::new();
    let program = checker(&place);
    let mut command = hanare(&place);
    command.args(["run", "--local", "4M", "--memory", "8M", "--spill"]).arg(place.path("")).arg("--");
    let outcome = place.run(command.arg(&program).args(["64", "1"]));
    assert_eq!((outcome.code, outcome.stdout.as_str(), outcome.stderr.as_str()), (Some(0), "ok\n", ""), "{outcome:?}");
    place.assert_nothing_left();
}

/// A child that is killed at the end of its test, even if the test fails.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Ignored: both calls fail only if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_memory_server_ends_the_run_with_120_and_its_name() {
    let place = Place::new();
    let program = checker(&place);
    let (socket, begun, errors) = (place.path("s"), place.path("begun"), place.path("errors"));
    let mut server = place.hanare();
    server.args(["serve", "--memory", "128M", "--unix"]).arg(&socket).stderr(Stdio::null());
    let mut server = Ended(server.spawn().unwrap());
    until("the server listens", || socket.exists());
    let mut command = hanare(&place);
    command
        .args(["run", "--local", "4M", "--server"])
        .arg(&socket)
        .arg("--")
        .arg(&program)
        .args(["32", "0"])
        .arg(&begun);
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&errors).unwrap());
    let mut run = Ended(command.spawn().unwrap());
    until("the program has gone round once", || begun.exists());
    server.0.kill().unwrap();
    let code = wait(&mut run.0).code();
    let errors = std::fs::read_to_string(&errors).unwrap();
    // The program itself would end with 0. The lost server causes 120.
    assert_eq!(code, Some(120), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.starts_with("hanare: ") && errors.contains(&socket.display().to_string()), "{errors}");
}
