//! `hanare run` with ordinary programs and a stand-in library: exit codes, stdout, signals, figures, and cleanup.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use common::{Place, processes_naming, send, until, wait};
use rustix::process::Signal;

#[test]
fn exit_codes_are_the_programs() {
    let place = Place::with_library();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("exit 120", 120),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
        ("kill -SEGV $$", 139),
    ] {
        let outcome = place.run(place.hanare().args(["run", "--local", "64M", "--", "sh", "-c", script]));
        assert_eq!((outcome.code, outcome.stdout.as_str(), outcome.stderr.as_str()), (Some(code), "", ""), "{script}");
        place.assert_nothing_left();
    }
}

#[test]
fn stdin_stdout_arguments_and_name_are_the_programs() {
    let place = Place::with_library();
    let input = place.file("input", "a\0b\nlast");
    let mut command = place.hanare();
    command.args(["run", "--report", "cat"]).stdin(std::fs::File::open(&input).unwrap());
    let outcome = place.run(&mut command);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "a\0b\nlast"));
    assert!(outcome.stderr.starts_with("hanare: report for cat"), "{outcome:?}");
    let outcome = place.run(place.hanare().args(["run", "sh", "-c", "echo $0 \"$@\"", "name", "--local", "-x", "a b"]));
    assert_eq!(outcome.stdout, "name --local -x a b\n");
    let outcome =
        place.run(place.hanare().args(["run", "--", "sh", "-c", "tr '\\0' '\\n' < /proc/$$/cmdline | head -1"]));
    assert_eq!(outcome.stdout, "sh\n", "argv[0] is as given, not the resolved path");
}

#[test]
fn the_program_finds_its_settings() {
    let place = Place::with_library();
    let mut command = place.hanare();
    command.args(["run", "--local", "25%", "--page-size", "64K", "--policy", "fifo", "--mode", "sigsegv", "--", "env"]);
    command.env("HANARE_FAR", "1M").env("HANARE_PREFETCH", "none").env("HANARE_POLICY", "lru");
    command.env("HANARE_STATS_FD", "7").env("HANARE_PRIVATE", "/stale").env("LD_PRELOAD", "");
    let outcome = place.run(&mut command);
    let has = |line: &str| assert!(outcome.stdout.lines().any(|seen| seen == line), "{line} is not in {outcome:?}");
    for line in ["HANARE_LOCAL=25%", "HANARE_PAGE_SIZE=64K", "HANARE_POLICY=fifo", "HANARE_MODE=sigsegv"] {
        has(line);
    }
    has("HANARE_FAR=1M");
    has("HANARE_PREFETCH=none");
    has(&format!("LD_PRELOAD={}", place.path("libhanare_preload.so").display()));
    assert!(!outcome.stdout.contains("/stale") && !outcome.stdout.contains("HANARE_STATS_FD=7\n"), "{outcome:?}");
    assert!(outcome.stdout.contains(&format!("HANARE_PRIVATE={}", place.path("tmp").display())), "{outcome:?}");
}

#[test]
fn the_private_server_is_up_while_the_program_runs_and_its_directory_is_private() {
    let place = Place::with_library();
    let script = "test -S $HANARE_PRIVATE && stat -c %a $(dirname $HANARE_PRIVATE)";
    let outcome = place.run(place.hanare().args(["run", "--memory", "64M", "sh", "-c", script]));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "700\n"), "{outcome:?}");
    place.assert_nothing_left();
}

/// The names of the first counters, in the order of their layout. The stand-in library writes to each counter its
/// position, from 1.
const ORDER: [&str; 13] = [
    "started_ns",
    "ended_ns",
    "faults_read",
    "faults_write",
    "faults_first_write",
    "faults_zero",
    "faults_rescued",
    "faults_waited",
    "faults_hidden",
    "pages_hidden",
    "pages_held_back",
    "pages_in",
    "bytes_in",
];

#[test]
fn figures_are_written_even_when_the_program_is_killed() {
    let place = Place::with_library();
    let (json, report) = (place.path("figures.json"), place.path("report"));
    let mut command = place.hanare();
    command.arg("run").arg("--stats-json").arg(&json).arg(format!("--report={}", report.display()));
    command.args(["--", "sh", "-c", "kill -9 $$"]).env("STAND_IN_FILL", "1");
    let outcome = place.run(&mut command);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(137), ""), "{outcome:?}");
    let figures: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    for (index, name) in ORDER.iter().enumerate().skip(2) {
        assert_eq!(figures[name], index + 1, "{name} in {figures}");
    }
    assert_eq!((&figures["signal"], &figures["exit_code"], &figures["processes"]), (&9.into(), &137.into(), &1.into()));
    assert_eq!((figures["policy"].as_str(), figures["prefetch"].as_str()), (Some("p"), Some("f")));
    for name in ["elapsed_s", "calc_s", "swap_s", "set_bit_s", "clear_bit_s", "fault_us_p50", "fault_us_p99"] {
        assert!(figures[name].is_number(), "{name} in {figures}");
    }
    let report = std::fs::read_to_string(&report).unwrap();
    assert!(report.contains("killed by signal 9") && report.contains("read 3"), "{report}");
}

#[test]
fn a_report_that_cannot_be_written_does_not_change_the_exit_code() {
    let place = Place::with_library();
    let outcome = place.run(place.hanare().args(["run", "--report=/dev/full", "--", "sh", "-c", "exit 5"]));
    outcome.assert_refused(5, "/dev/full");
}

/// Returns a script that runs `prepare`, writes its process number to a file, and then waits at most half a minute for
/// a signal to end it.
fn waiting_script(place: &Place, prepare: &str) -> String {
    let pid = place.path("pid");
    let pid = pid.display();
    format!("{prepare}; echo $$ > {pid}.new; mv {pid}.new {pid}; n=0; {WAIT}; exit 99")
}

const WAIT: &str = "while [ $n -lt 600 ]; do sleep 0.05; n=$((n + 1)); done";

/// Starts a run whose program has run `prepare` and now waits.
fn begun(place: &Place, prepare: &str, adjust: impl FnOnce(&mut Command)) -> Begun {
    // `env` restores the default action of these signals. They may be ignored where the tests run: in the background of
    // a script, or under nohup. A shell cannot catch a signal that was ignored at its start.
    let hanare = place.hanare();
    let mut command = Command::new("env");
    command.arg("--default-signal=INT,QUIT,HUP").arg(hanare.get_program()).stdin(Stdio::null());
    command.args(["run", "--local", "64M", "--", "sh", "-c", &waiting_script(place, prepare)]);
    for (name, value) in hanare.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdout(Stdio::null()).stderr(Stdio::null());
    adjust(&mut command);
    let run = Begun(command.spawn().unwrap());
    until("the program has begun", || place.path("pid").exists());
    run
}

/// A command that is killed at the end of its test, even if the test fails.
struct Begun(Child);

impl Drop for Begun {
    fn drop(&mut self) {
        // Ignored: both calls fail only if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn program_pid(place: &Place) -> u32 {
    std::fs::read_to_string(place.path("pid")).unwrap().trim().parse().unwrap()
}

fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

#[test]
fn signals_sent_to_the_command_reach_the_program_once() {
    for (signal, number) in
        [(Signal::TERM, 15), (Signal::INT, 2), (Signal::HUP, 1), (Signal::QUIT, 3), (Signal::USR1, 10)]
    {
        let place = Place::with_library();
        let count = place.path("count");
        // Each arriving signal adds a line. A second arrival within 0.2 s would add a second line.
        let prepare = format!("trap 'echo x >> {}; sleep 0.2; exit 40' {number}", count.display());
        let mut run = begun(&place, &prepare, |_| {});
        send(run.0.id(), signal);
        assert_eq!(wait(&mut run.0).code(), Some(40), "{signal:?}");
        assert_eq!(std::fs::read_to_string(&count).unwrap(), "x\n", "{signal:?}");
        place.assert_nothing_left();
    }
}

#[test]
fn an_ignored_hang_up_stays_ignored() {
    let place = Place::with_library();
    let mut run = begun(&place, "trap 'exit 9' TERM", |command| {
        // As with nohup, the shell ignores the signal and then becomes the command. `env` is not used here, because it
        // would restore the signal's default action.
        let hanare: Vec<_> = command.get_args().skip(1).map(ToOwned::to_owned).collect();
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).args(hanare);
        shell.env("TMPDIR", place.path("tmp")).env("HANARE_LIB", place.path("")).stdin(Stdio::null());
        *command = shell;
    });
    send(run.0.id(), Signal::HUP);
    send(program_pid(&place), Signal::HUP);
    send(run.0.id(), Signal::TERM);
    assert_eq!(wait(&mut run.0).code(), Some(9));
    place.assert_nothing_left();
}

/// A script's background job ignores Ctrl-C, and so does the command. A program that catches the signal itself still
/// receives it, as it does without the command.
#[test]
fn a_signal_that_was_ignored_at_the_start_reaches_a_program_that_catches_it() {
    let place = Place::with_library();
    let ready = place.path("ready");
    let program = format!(
        "import signal, sys, time\nassert signal.getsignal(2) == signal.SIG_IGN\n\
         signal.signal(2, lambda *_: sys.exit(7))\nopen('{}', 'w').close()\ntime.sleep(20)",
        ready.display()
    );
    let hanare = place.hanare();
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' INT; exec \"$@\"", "sh"]).arg(hanare.get_program());
    shell.args(["run", "--local", "64M", "--", "python3", "-c", &program]).stdin(Stdio::null());
    for (name, value) in hanare.get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    let mut run = Begun(shell.spawn().unwrap());
    until("the program is ready", || ready.exists());
    send(run.0.id(), Signal::INT);
    assert_eq!(wait(&mut run.0).code(), Some(7));
    place.assert_nothing_left();
}

#[test]
fn a_signal_to_the_group_does_not_take_the_memory_away() {
    let place = Place::with_library();
    let answer = place.path("answer");
    // After Ctrl-C the program cleans up. Its memory server must still run meanwhile.
    let prepare = format!("trap 'sleep 0.3; test -S $HANARE_PRIVATE && echo there > {}; exit 8' INT", answer.display());
    let mut run = begun(&place, &prepare, |command| {
        command.process_group(0);
    });
    let group = rustix::process::Pid::from_raw(run.0.id() as i32).unwrap();
    rustix::process::kill_process_group(group, Signal::INT).unwrap();
    assert_eq!(wait(&mut run.0).code(), Some(8));
    assert_eq!(std::fs::read_to_string(&answer).unwrap(), "there\n");
    place.assert_nothing_left();
}

#[test]
fn the_private_server_ends_when_the_command_is_killed() {
    let place = Place::with_library();
    let mut run = begun(&place, ":", |_| {});
    assert_eq!(processes_naming(&place.path("tmp")).len(), 1, "the private server");
    run.0.kill().unwrap();
    wait(&mut run.0);
    place.assert_nothing_left();
    let orphan = program_pid(&place);
    if is_running(orphan) {
        send(orphan, Signal::KILL);
    }
}

#[test]
fn a_script_runs_and_the_programs_own_preload_stays() {
    let place = Place::with_library();
    let script = place.file("script", "#!/bin/sh\necho $1 $LD_PRELOAD\n");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let other = place.path("other.so");
    std::fs::copy(place.path("libhanare_preload.so"), &other).unwrap();
    let outcome = place.run(place.hanare().arg("run").arg(&script).arg("word").env("LD_PRELOAD", &other));
    let ours = place.path("libhanare_preload.so");
    assert_eq!(outcome.stdout, format!("word {}:{}\n", ours.display(), other.display()), "{outcome:?}");
}

#[test]
fn a_mistyped_variable_is_told_and_the_program_runs() {
    let place = Place::with_library();
    let outcome = place.run(place.hanare().args(["run", "echo", "ran"]).env("HANARE_LOCALL", "64M"));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "ran\n"), "{outcome:?}");
    assert!(outcome.stderr.contains("HANARE_LOCALL (did you mean HANARE_LOCAL?) is ignored"), "{outcome:?}");
    place.assert_nothing_left();
}

#[test]
fn too_few_open_files_are_told_with_the_limit() {
    let place = Place::with_library();
    let hanare = place.hanare();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 10; exec \"$0\" run true"]).arg(hanare.get_program());
    shell.env("TMPDIR", place.path("tmp")).env("HANARE_LIB", place.path(""));
    place.run(&mut shell).assert_refused(125, "raise `ulimit -n` (now 10). Hanare needs about 32");
    place.assert_nothing_left();
}

#[test]
fn ranks_that_share_nothing_are_told() {
    let place = Place::new();
    let outcome = place.run(place.hanare().args(["launch", "-n", "2", "true"]));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""), "{outcome:?}");
    assert!(outcome.stderr.starts_with("hanare: no rank of true shared memory"), "{outcome:?}");
}

/// Checks that `shown` is the name, the version, and a commit, if these sources are in a repository. It is the commit of
/// the build, which need not be the present one.
fn check_version(shown: &str) {
    let git = |args: &[&str]| {
        let output = std::process::Command::new("git").args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output();
        output.is_ok_and(|output| output.status.success())
    };
    let rest = shown.strip_prefix(concat!("hanare ", env!("CARGO_PKG_VERSION"))).expect(shown);
    if git(&["ls-files", "--error-unmatch", "build.rs"]) {
        let commit = rest.strip_prefix(" (").and_then(|rest| rest.strip_suffix(')')).expect(shown);
        assert!(commit.len() == 12 && git(&["cat-file", "-e", &format!("{commit}^{{commit}}")]), "{shown}");
    } else {
        assert_eq!(rest, "");
    }
}

#[test]
fn the_version_and_the_help_are_where_they_are_looked_for() {
    let place = Place::new();
    let version = place.run(place.hanare().arg("-V")).stdout.trim_end().to_owned();
    check_version(&version);
    for args in [&["-V"][..], &["run", "-V"], &["trace", "record", "-V"]] {
        let outcome = place.run(place.hanare().args(args));
        assert_eq!((outcome.code, outcome.stdout), (Some(0), format!("{version}\n")), "{args:?}");
    }
    for args in [&["--version"][..], &["version"], &["run", "--version"], &["trace", "record", "--version"]] {
        let outcome = place.run(place.hanare().args(args));
        let lines: Vec<&str> = outcome.stdout.lines().collect();
        assert!(outcome.code == Some(0) && lines.len() == 4 && lines[0] == version, "{args:?}: {outcome:?}");
        assert!(lines[1].contains("built     ") && lines[1].contains(std::env::consts::ARCH), "{outcome:?}");
        assert!(lines[2].contains("features  thread mode, ") && lines[3].starts_with("protocol  "), "{outcome:?}");
        assert_eq!(lines[2].contains("assertions"), cfg!(debug_assertions), "{outcome:?}");
    }
    let outcome = place.run(&mut place.hanare());
    assert!(
        outcome.code == Some(0) && outcome.stdout.contains("Usage: hanare") && outcome.stderr.is_empty(),
        "{outcome:?}"
    );
}
