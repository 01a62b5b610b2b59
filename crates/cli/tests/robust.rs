//! The command under rough handling: killed at any moment, odd variables, closed or full outputs. In every case it ends
//! soon, gives one line as the reason, and leaves nothing behind.

mod common;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::{Place, until, wait};
use rustix::process::{Pid, Signal};

/// Longest time that the command may take.
const SOON: Duration = Duration::from_secs(5);

/// Odd values for any variable.
fn odd_values() -> Vec<OsString> {
    let text = [
        "",
        " ",
        "-1",
        "0",
        "1",
        "1e9",
        "nan",
        "1.5.5",
        "99999999999999999999999",
        "-9223372036854775808",
        "1K K",
        "０",
        "a\nb",
        "\u{1b}[31mred",
        "%s%n",
        "../../etc/passwd",
        "/dev/full",
        ",",
        "=",
        ":",
        "a=b,c:d",
        "true",
        "HELP",
        "lru:x=1",
    ];
    let mut values: Vec<OsString> = text.map(OsString::from).into();
    values.push(OsStr::from_bytes(b"\xff\xfe\x80").to_owned());
    values.push("x".repeat(100_000).into());
    values
}

const VARIABLES: [&str; 25] = [
    "HANARE_LOCAL",
    "HANARE_SERVERS",
    "HANARE_FAR",
    "HANARE_NEAR",
    "HANARE_STATIC",
    "HANARE_PAGE_SIZE",
    "HANARE_POLICY",
    "HANARE_PREFETCH",
    "HANARE_SEED",
    "HANARE_MODE",
    "HANARE_KEY_FILE",
    "HANARE_SEAL",
    "HANARE_OVERCOMMIT",
    "HANARE_RESERVE",
    "HANARE_TIMEOUT",
    "HANARE_ON_LOSS",
    "HANARE_FIT",
    "HANARE_SLOWDOWN",
    "HANARE_DISABLE",
    "HANARE_LIB",
    "HANARE_PRIVATE",
    "HANARE_STATS_FD",
    "HANARE_STATS_PID",
    "HANARE_TRACE",
    "HANARE_TRACE_BYTES",
];

#[test]
fn odd_variables_are_taken_or_refused_in_one_line_and_soon() {
    let cases: Vec<(&str, OsString)> =
        VARIABLES.iter().flat_map(|name| odd_values().into_iter().map(move |value| (*name, value))).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let place = Place::with_library();
                while let Some((name, value)) = cases.get(next.fetch_add(1, Relaxed)) {
                    check_variable(&place, name, value);
                }
                place.assert_nothing_left();
            });
        }
    });
}

fn check_variable(place: &Place, name: &str, value: &OsStr) {
    let began = Instant::now();
    let mut command = place.hanare();
    command.args(["run", "true"]).env("HANARE_TIMEOUT", "1").env(name, value);
    let outcome = place.run(&mut command);
    let what = format!("{name}={}", value.to_string_lossy().chars().take(40).collect::<String>());
    assert!(outcome.stderr.len() < 4096, "{what}: a line of {} bytes", outcome.stderr.len());
    match outcome.code {
        Some(0) => assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("", ""), "{what}"),
        code => {
            assert_eq!(code, Some(125), "{what}: {outcome:?}");
            outcome.assert_refused(125, "");
        }
    }
    assert!(!outcome.stderr.contains('\u{1b}'), "{what}: {outcome:?}");
    assert!(began.elapsed() < SOON, "{what} took {:?}", began.elapsed());
}

/// Starts a run in a process group of its own, so that the processes that it leaves behind can be ended.
fn begun(place: &Place) -> Child {
    let mut command = place.hanare();
    command.args(["run", "--local", "64M", "--", "sleep", "3"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.process_group(0);
    command.spawn().unwrap()
}

#[test]
fn a_signal_at_any_moment_ends_the_run_and_leaves_nothing() {
    let place = Place::with_library();
    for (signal, number) in [(Signal::TERM, 15), (Signal::INT, 2), (Signal::KILL, 9)] {
        for delay_ms in [0, 1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 30, 40, 50, 70, 100] {
            let mut run = begun(&place);
            let group = Pid::from_child(&run);
            std::thread::sleep(Duration::from_millis(delay_ms));
            common::send(run.id(), signal);
            let began = Instant::now();
            let status = wait(&mut run);
            let what = format!("{signal:?} after {delay_ms} ms: {status}");
            // A signal ends a command that does not yet catch signals. Later, the end of the program decides the exit
            // code.
            let by_signal = status.signal() == Some(number);
            assert!(by_signal || status.code() == Some(128 + number) && signal != Signal::KILL, "{what}");
            assert!(began.elapsed() < SOON, "{what} took {:?}", began.elapsed());
            // As documented, the program goes on if the command is killed. The test kills it through the command's
            // process group.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
            until(&format!("nothing is left after {what}"), || {
                common::processes_naming(&place.path("tmp")).is_empty()
                    && std::fs::read_dir(place.path("tmp")).unwrap().count() == 0
            });
        }
    }
}

#[test]
fn a_command_killed_while_its_server_starts_leaves_no_directory() {
    let place = Place::with_library();
    for round in 0..120_u32 {
        let mut run = begun(&place);
        let group = Pid::from_child(&run);
        // The directory is made some milliseconds after the start, or later on a busy machine.
        std::thread::sleep(Duration::from_micros(u64::from(round) * 100));
        run.kill().unwrap();
        wait(&mut run);
        // Ignored: the program may not have started yet.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
    place.assert_nothing_left();
}

#[test]
fn a_directory_of_the_sockets_name_that_others_may_enter_is_refused() {
    let place = Place::new();
    let dir = place.path("tmp/hanare-there");
    let socket = dir.join("memory.socket");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let outcome = place.run(place.hanare().args(["serve", "--memory", "64M", "--private"]).arg(&socket));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(125), ""), "{outcome:?}");
    assert!(outcome.stdout.starts_with("failed: cannot make a directory"), "{outcome:?}");
}

#[test]
fn closed_standard_streams_are_no_obstacle() {
    let place = Place::with_library();
    let hanare = place.hanare();
    for (redirect, code) in [("<&-", 6), (">&-", 6), ("2>&-", 6), ("<&- >&- 2>&-", 6)] {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("\"$0\" run -- sh -c 'exit 6' {redirect}")).arg(hanare.get_program());
        shell.env("TMPDIR", place.path("tmp")).env("HANARE_LIB", place.path(""));
        let outcome = place.run(&mut shell);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(code), ""), "{redirect}");
        place.assert_nothing_left();
    }
}

#[test]
fn a_temporary_folder_that_takes_nothing_is_named() {
    let place = Place::with_library();
    for dir in ["/proc", "/no/such/dir", "/dev/null"] {
        let outcome = place.run(place.hanare().args(["run", "true"]).env("TMPDIR", dir));
        outcome.assert_refused(125, "set TMPDIR to a writable directory");
    }
}

#[test]
fn a_command_line_that_fits_the_command_and_not_the_program_is_told() {
    let place = Place::with_library();
    // Finds by bisection the most arguments that the command can receive. With the variables that the command adds,
    // they are too many for the program.
    let with = |count: usize| {
        let mut command = place.hanare();
        command.args(["run", "true"]).args(vec!["x".repeat(91); count]);
        command
    };
    let (mut fits, mut too_many) = (1, 30_000);
    while too_many - fits > 1 {
        let count = (fits + too_many) / 2;
        match with(count).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Err(error) if error.raw_os_error() == Some(7) => too_many = count,
            Err(error) => panic!("{error}"),
            Ok(mut child) => {
                wait(&mut child);
                fits = count;
            }
        }
    }
    let outcome = place.run(&mut with(fits));
    outcome.assert_refused(126, "Argument list too long");
    place.assert_nothing_left();
}

#[test]
fn scripts_without_an_interpreter_and_folders_without_read_permission() {
    let place = Place::with_library();
    let script = place.file("script", "exit 3\n");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    place.run(place.hanare().arg("run").arg(&script)).assert_refused(126, "begin it with '#!'");
    let folder = place.path("folder");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy("/bin/true", folder.join("program")).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o311)).unwrap();
    let outcome = place.run(place.hanare().arg("run").arg(folder.join("program")));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
    place.assert_nothing_left();
}
