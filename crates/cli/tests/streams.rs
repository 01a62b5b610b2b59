//! Reports never destroy what the program writes or reads, and never bring control characters to a terminal.

mod common;

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Outcome, Place};

const STDOUT: &str = "stdout belongs to the program; name another file";
const STDIN: &str = "stdin belongs to the program; name another file";
const STDERR: &str = "stderr goes there, and its lines would be lost; name another file";

/// Ways to ask for a result in a file.
const FLAGS: [&[&str]; 6] = [
    &["run", "--report="],
    &["run", "--stats-json="],
    &["fit", "--json="],
    &["launch", "-n", "1", "--report="],
    &["launch", "-n", "1", "--stats-json="],
    &["trace", "record", "--output="],
];

/// Returns a command that asks for a result in `path`, and whose program leaves a file `ran`.
fn asking(place: &Place, flags: &[&str], path: &Path) -> Command {
    let (last, first) = flags.split_last().unwrap();
    let mut flag = OsString::from(last);
    flag.push(path);
    let mut command = place.hanare();
    command.args(first).arg(flag).args(["--", "sh", "-c", "echo result; echo said >&2; echo > \"$0\""]);
    command.arg(place.path("ran"));
    command
}

/// Runs a command whose streams the caller has set.
fn outcome(place: &Place, command: &mut Command, stderr: &str) -> Outcome {
    let status = common::wait(&mut command.spawn().unwrap());
    let read = |name: &str| String::from_utf8_lossy(&std::fs::read(place.path(name)).unwrap()).into_owned();
    Outcome { code: status.code(), stdout: String::new(), stderr: read(stderr) }
}

fn appending(path: &Path) -> File {
    OpenOptions::new().append(true).open(path).unwrap()
}

#[test]
fn a_result_does_not_replace_the_programs_output() {
    let place = Place::with_library();
    let out = place.file("out.html", "before\n");
    std::os::unix::fs::symlink("out.html", place.path("link")).unwrap();
    std::fs::hard_link(&out, place.path("hard")).unwrap();
    let names = [place.path("link"), place.path("hard"), place.path("tmp/../out.html")];
    let names =
        names.iter().map(|path| path.as_path()).chain(["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].map(Path::new));
    for name in names {
        for flags in FLAGS {
            if flags[0] == "launch" && name.extension() == Some(OsStr::new("html")) {
                continue;
            }
            let mut command = asking(&place, flags, name);
            command.stdout(appending(&out)).stderr(File::create(place.path("err")).unwrap());
            outcome(&place, &mut command, "err").assert_refused(125, STDOUT);
            assert_eq!(std::fs::read_to_string(&out).unwrap(), "before\n", "{flags:?} {name:?}");
            assert!(!place.path("ran").exists(), "{flags:?} {name:?}: the program ran");
        }
    }
    place.assert_nothing_left();
}

#[test]
fn a_result_does_not_mix_with_output_to_a_pipe() {
    let place = Place::with_library();
    for flags in FLAGS {
        let mut command = asking(&place, flags, Path::new("/dev/stdout"));
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let outcome = Outcome { code: piped.status.code(), stdout: text(piped.stdout), stderr: text(piped.stderr) };
        outcome.assert_refused(125, STDOUT);
        assert!(!place.path("ran").exists(), "{flags:?}: the program ran");
    }
}

#[test]
fn a_result_does_not_replace_the_programs_input() {
    let place = Place::with_library();
    let input = place.file("input", "input\n");
    for name in [input.as_path(), Path::new("/dev/stdin")] {
        for flags in FLAGS {
            let mut command = asking(&place, flags, name);
            place.run(command.stdin(File::open(&input).unwrap())).assert_refused(125, STDIN);
            assert_eq!(std::fs::read_to_string(&input).unwrap(), "input\n", "{flags:?} {name:?}");
        }
    }
}

#[test]
fn no_file_is_emptied_if_another_one_is_refused() {
    let place = Place::with_library();
    let report = place.file("report", "old\n");
    let flag = format!("--report={}", report.display());
    for other in [&["--stats-json", "/dev/stdout"][..], &["--stats-json", "-"]] {
        place
            .run(place.hanare().args(["run", &flag]).args(other).args(["--", "true"]))
            .assert_refused(125, "stdout belongs");
        assert_eq!(std::fs::read_to_string(&report).unwrap(), "old\n");
    }
}

#[test]
fn what_is_on_stderr_already_stays_before_a_result() {
    let place = Place::with_library();
    let path = place.path("err");
    for (flags, head) in [(FLAGS[0], "hanare: report for sh"), (FLAGS[1], "{\n"), (FLAGS[3], " rank"), (FLAGS[4], "[")]
    {
        for (name, appends) in [(path.as_path(), true), (&path, false), (Path::new("/dev/stderr"), true)] {
            let stderr = if appends {
                std::fs::write(&path, "before\n").unwrap();
                appending(&path)
            } else {
                let mut file = File::create(&path).unwrap();
                std::io::Write::write_all(&mut file, b"before\n").unwrap();
                file
            };
            let mut command = asking(&place, flags, name);
            command.stdout(Stdio::null()).stderr(stderr);
            let outcome = outcome(&place, &mut command, "err");
            assert_eq!(outcome.code, Some(0), "{outcome:?}");
            let rest = outcome.stderr.strip_prefix("before\nsaid\n").unwrap_or_else(|| panic!("{name:?} {outcome:?}"));
            let said =
                rest.lines().skip_while(|line| line.starts_with("hanare: no rank")).collect::<Vec<_>>().join("\n");
            assert!(format!("{said}\n").starts_with(head), "{flags:?} {name:?} {appends} {outcome:?}");
        }
    }
}

#[test]
fn a_file_that_is_replaced_at_the_end_is_not_stderr() {
    let place = Place::with_library();
    let path = place.file("err.html", "before\n");
    for flags in [FLAGS[0], FLAGS[2], FLAGS[5]] {
        std::fs::write(&path, "before\n").unwrap();
        let mut command = asking(&place, flags, &path);
        command.stdout(Stdio::null()).stderr(appending(&path));
        let outcome = outcome(&place, &mut command, "err.html");
        assert_eq!(outcome.code, Some(125), "{outcome:?}");
        let lines: Vec<&str> = outcome.stderr.lines().collect();
        assert!(lines.len() == 2 && lines[0] == "before" && lines[1].contains(STDERR), "{flags:?} {outcome:?}");
    }
}

#[test]
fn the_null_device_may_be_stdout_and_the_result() {
    let place = Place::with_library();
    for flags in &FLAGS[..5] {
        let mut command = asking(&place, flags, Path::new("/dev/null"));
        command.stdout(Stdio::null()).stderr(File::create(place.path("err")).unwrap());
        let outcome = outcome(&place, &mut command, "err");
        assert_eq!(outcome.code, Some(0), "{flags:?} {outcome:?}");
        assert!(outcome.stderr.contains("said\n"), "{outcome:?}");
    }
}

#[test]
fn control_characters_of_names_do_not_reach_a_terminal() {
    let place = Place::with_library();
    let name = OsString::from_vec(b"na me\"\x01\x1b[31m<b>\xff".to_vec());
    let program = place.path("tmp/..").join(&name);
    std::fs::write(&program, "#!/bin/sh\nexit 0\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let shown = "na me\"\\u{1}\\u{1b}[31m<b>\u{fffd}";
    let file = place.path("report");
    let flag = format!("--report={}", file.display());
    let outcome = place.run(place.hanare().args(["run", "--report", &flag, "--"]).arg(&program));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    for text in [outcome.stderr, std::fs::read_to_string(&file).unwrap()] {
        assert!(text.contains(shown) && !text.contains(['\u{1}', '\u{1b}']), "{text:?}");
    }
    let missing = OsStr::from_bytes(b"no\x1b[31m\xc2\x9bprog\xff");
    let shown = "hanare: no\\u{1b}[31m\\u{9b}prog\u{fffd}: program not found";
    for command in [&["run", "--"][..], &["launch", "-n", "1", "--"]] {
        place.run(place.hanare().args(command).arg(missing)).assert_refused(127, shown);
    }
    let folder = OsStr::from_bytes(b"--report=/no\x1b[31m/r\xff");
    place.run(place.hanare().arg("run").arg(folder).arg("true")).assert_refused(125, "/no\\u{1b}[31m/r\u{fffd}: ");
}
