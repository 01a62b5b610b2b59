//! Every bad input has its exit code and one clear line, prints nothing on stdout, and leaves no process.

mod common;

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use common::Place;

/// A case: arguments, extra variables, the exit code, and a part of the message.
type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], i32, &'a str);

fn check(place: &Place, cases: &[Case<'_>]) {
    for (args, vars, code, part) in cases {
        let outcome = place.run(place.hanare().args(*args).envs(vars.iter().copied()));
        outcome.assert_refused(*code, part);
        place.assert_nothing_left();
    }
}

#[test]
fn flags_and_values_that_make_no_sense() {
    let place = Place::with_library();
    check(
        &place,
        &[
            (&["fly"], &[], 125, "'fly'"),
            (&["--bogus"], &[], 125, "--bogus"),
            (&["run"], &[], 125, "hanare run --help"),
            (&["run", "--"], &[], 125, "PROGRAM"),
            (&["run", "--bogus", "--", "true"], &[], 125, "--bogus"),
            (&["run", "--locl", "1G", "true"], &[], 125, "'--local'"),
            (&["run", "--local", "--", "true"], &[], 125, "--local"),
            (&["run", "--local", "lots", "true"], &[], 125, "'lots' is not a size"),
            (&["run", "--local", "-5", "true"], &[], 125, "-5"),
            (&["run", "--local", "5\n6", "true"], &[], 125, "not a size"),
            (&["run", "--local", "99999999999T", "true"], &[], 125, "64 bits"),
            (&["run", "--local", "101%", "true"], &[], 125, "percentage"),
            (&["run", "--local", "0", "true"], &[], 125, "give at least --local 16K"),
            (&["run", "--local", "4K", "true"], &[], 125, "four pages"),
            (&["run", "--local", "2M", "--page-size", "2M", "true"], &[], 125, "give at least --local 8M"),
            (&["run", "--page-size", "3K", "true"], &[], 125, "power of two"),
            (&["run", "--page-size", "4M", "true"], &[], 125, "power of two"),
            (&["run", "--mode", "magic", "true"], &[], 125, "sigsegv"),
            (&["run", "--policy", "nonsense", "true"], &[], 125, "lru"),
            (&["run", "--prefetch", "psychic", "true"], &[], 125, "sequential"),
            (&["run", "--memory", "much", "true"], &[], 125, "'much' is not a size"),
            (&["run", "--memory", "1K", "--spill", "none", "true"], &[], 125, "2 MiB"),
            (&["run", "--spill", "/no/such/dir", "true"], &[], 125, "/no/such/dir"),
            (&["run", "--local", "900T", "true"], &[], 125, "--local 900 TiB is more than"),
            (&["run", "--memory", "900T", "true"], &[], 125, "--memory 900 TiB is more than"),
            (&["run", "--memory", "900T", "--spill", "/var/tmp", "true"], &[], 125, "--memory 900 TiB is more than"),
            (&["run", "true"], &[("HANARE_LOCAL", "900T")], 125, "HANARE_LOCAL 900 TiB is more than"),
            (&["launch", "-n", "1", "true"], &[("HANARE_PROTOCOL", "magic")], 125, "'magic' for '--protocol"),
            (&["launch", "-n", "1", "true"], &[("HANARE_SHARED_BYTES", "lots")], 125, "'lots'"),
            (
                &["launch", "-n", "1", "--local", "1M", "true"],
                &[("HANARE_SHARED_POLICY", "magic")],
                125,
                "no replacement policy is called 'magic'",
            ),
            (&["launch", "-n", "1", "--local", "900T", "true"], &[], 125, "--local 900 TiB is more than"),
            (
                &["launch", "-n", "1", "--local", "1M", "--memory", "900T", "true"],
                &[],
                125,
                "--memory 900 TiB is more than",
            ),
            (&["run", "--memory", "1G", "--server", "h:1", "true"], &[], 125, "cannot be used with"),
            (&["run", "--server", "a b", "true"], &[], 125, "HOST:PORT"),
            (&["run", "--server", "h:1=none", "true"], &[], 125, "not a size"),
            (&["run", "--server", "h:1", "--server", "H:1=2G", "true"], &[], 125, "named twice"),
            (&["run", "-n", "2", "true"], &[], 125, "HOSTFILE"),
            (&["run", "--report=/no/such/dir/r", "true"], &[], 125, "--report"),
            (&["run", "--stats-json", "/no/such/dir/j", "true"], &[], 125, "--stats-json"),
            (&["run", "true"], &[("HANARE_LOCAL", "few")], 125, "HANARE_LOCAL"),
            (&["run", "true"], &[("HANARE_DISABLE", "mvoe")], 125, "mvoe"),
            (&["run", "true"], &[("HANARE_TIMEOUT", "soon")], 125, "HANARE_TIMEOUT"),
            (&["run", "true"], &[("HANARE_FAR", "little")], 125, "HANARE_FAR"),
            (&["run", "true"], &[("HANARE_NEAR", "1K")], 125, "HANARE_NEAR"),
            (&["run", "--far", "0", "true"], &[], 125, "--far"),
            (&["run", "true"], &[("HANARE_STATIC", "1")], 125, "HANARE_STATIC"),
            (&["run", "true"], &[("HANARE_LIB", "/no/such/lib")], 125, "HANARE_LIB"),
        ],
    );
}

#[test]
fn flags_for_watching_that_make_no_sense() {
    check(
        &Place::with_library(),
        &[
            (&["run", "--metrics", "here", "true"], &[], 125, "'here' is no address"),
            (&["run", "--metrics", "70000", "true"], &[], 125, "give PORT, :PORT or HOST:PORT"),
            (&["run", "--metrics", "203.0.113.1:0", "true"], &[], 125, "figures have no key"),
            (&["serve", "--metrics", ":x"], &[], 125, "':x' is no address"),
            (&["serve", "--private", "s", "--metrics", "1"], &[], 125, "cannot be used with"),
            (&["top", "--json"], &[], 125, "--once"),
            (&["top", "--once", "--interval", "0"], &[], 125, "give 100ms to 1h"),
            (&["top", "--once", "--interval", "soon"], &[], 125, "give 1s, 500ms or 2m"),
            (&["top", "--once", "--pid", "x"], &[], 125, "give a whole number"),
            (&["top", "--once", "--key", "k"], &[], 125, "--server"),
            (&["top", "--once", "--server", "h", "--key", "/no/such/key"], &[], 125, "/no/such/key"),
            (&["top"], &[], 125, "no terminal; add --once"),
        ],
    );
}

#[test]
fn what_was_meant_and_where_to_read_is_told() {
    check(
        &Place::with_library(),
        &[
            (&["trace"], &[], 125, "no command is given; see 'hanare trace --help'"),
            (&["place", "--servers", "a", "--ranks", "0"], &[], 125, "give 1 or more; see 'hanare place --help'"),
            (&["run", "--local", "lots", "true"], &[], 125, "see 'hanare run --help'"),
            (&["slurm", "--nodes", "1", "--mem", "1G", "true"], &[], 125, "give 2 to 1025; see 'hanare slurm --help'"),
            (&["slurm", "--nodes", "2", "--mem", "0", "true"], &[], 125, "a node needs 128 MiB at least"),
            (&["slurm", "--nodes", "2", "--mem", "1G", "--time", "1h", "true"], &[], 125, "write 90 (minutes)"),
            (&["slurm", "--nodes", "2", "--mem", "1G", "--partition", "a b", "true"], &[], 125, "'sinfo' lists"),
            (
                &["slurm", "--nodes", "2", "--mem", "1G", "--local", "2G", "true"],
                &[],
                125,
                "does not fit into --mem 1 GiB",
            ),
            (
                &["slurm", "--nodes", "2", "--mem", "1G", "--redundancy", "mirror", "true"],
                &[],
                125,
                "mirror needs 2 memory servers, and --nodes 2 gives 1; ask for --nodes 3",
            ),
            (&["run", "--policy", "lur", "true"], &[], 125, "did you mean 'lru'?"),
            (&["run", "--mode", "threads", "true"], &[], 125, "did you mean 'thread'?"),
            (&["launch", "-n", "1", "no-such-program"], &[], 127, "program not found in PATH"),
            (
                &["launch", "-n", "1", "--report=ranks.HTML", "true"],
                &[],
                125,
                "ranks have no page with charts; write --report=FILE.txt for a table, or --stats-json FILE",
            ),
        ],
    );
}

#[test]
fn doctors_flags_and_values_that_make_no_sense() {
    check(
        &Place::with_library(),
        &[
            (&["doctor", "--bogus"], &[], 125, "hanare doctor --help"),
            (&["doctor"], &[("HANARE_DISABLE", "mvoe")], 125, "mvoe"),
            (&["doctor"], &[("HANARE_MODE", "magic")], 125, "HANARE_MODE"),
        ],
    );
}

#[test]
fn programs_that_cannot_run() {
    let place = Place::with_library();
    let source = place.file("start.c", "void _start(void) { for (;;) {} }\n");
    let flags = ["-static", "-nostdlib", "-fno-stack-protector"].map(OsStr::new);
    place.compile(&flags, &source, &place.path("static"));
    let setuid = place.path("setuid");
    std::fs::copy("/bin/true", &setuid).unwrap();
    std::fs::set_permissions(&setuid, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let plain = place.file("plain", "#!/bin/sh\n");
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o644)).unwrap();
    let text = place.file("text", "just text\n");
    std::fs::set_permissions(&text, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (program, code, part) in [
        (OsString::from("no-such-program-here"), 127, "no-such-program-here"),
        ("/no/such/program".into(), 127, "/no/such/program"),
        ("".into(), 127, "not found"),
        ("page.html".into(), 127, "not found (a page is asked for with --report=FILE)"),
        (place.path("static").into(), 126, "statically linked"),
        (setuid.into(), 126, "setuid"),
        (plain.into(), 126, "not executable"),
        (text.into(), 126, "neither"),
        ("/tmp".into(), 126, "directory"),
    ] {
        place.run(place.hanare().arg("run").arg(program)).assert_refused(code, part);
        place.assert_nothing_left();
    }
}

#[test]
fn host_files_are_refused_with_their_line() {
    let place = Place::with_library();
    for (text, count, part) in [
        ("a 1\nb x\n", None, "hosts:2: "),
        ("a 1\n# c\nb:1:2 5\n", None, "hosts:3: "),
        ("a\n", None, "hosts:1: "),
        ("", None, "no host"),
        ("a 1\n", None, "no memory server"),
        ("a 1\nb 1\n", Some("1"), "-n 1"),
        ("a 1\nb 1\n", Some("3"), "-n 3"),
        ("a 1\nb 1\n", Some("x"), "'x'"),
    ] {
        let file = place.file("hosts", text);
        let mut command = place.hanare();
        command.args(["run", "--local", "64M", "-f"]).arg(&file);
        command.args(count.iter().flat_map(|count| ["-n", count])).args(["--", "true"]);
        place.run(&mut command).assert_refused(125, part);
    }
    place.run(place.hanare().args(["run", "-f", "/no/such/file", "true"])).assert_refused(125, "/no/such/file");
    let vast = place.file("vast", "here 900000000\nb 1\n");
    let mut command = place.hanare();
    place.run(command.args(["run", "-f"]).arg(vast).arg("true")).assert_refused(125, "the host file's local memory");
    place.assert_nothing_left();
}

/// A TCP server that accepts, sends `greeting`, and then waits for the client to close.
fn odd_server(greeting: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                // Ignored: the client may close the connection at any point, which is the subject of this test.
                let _ = stream.write_all(greeting);
                let _ = stream.read_to_end(&mut Vec::new());
            });
        }
    });
    address
}

#[test]
fn servers_that_are_not_there_or_not_servers_are_named() {
    let place = Place::with_library();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let silent = odd_server(b"");
    let garbage = odd_server(&[b'x'; 4096]);
    for address in [&free, &silent, &garbage] {
        let mut command = place.hanare();
        command.args(["run", "--server", address, "--", "touch"]).arg(place.path("ran")).env("HANARE_TIMEOUT", "1");
        place.run(&mut command).assert_refused(125, address);
        assert!(!place.path("ran").exists(), "the program ran without its server");
    }
    let socket = place.path("no.socket");
    let mut command = place.hanare();
    place.run(command.arg("run").arg("--server").arg(&socket).arg("true")).assert_refused(125, "no.socket");
    let hosts = place.file("hosts", format!("here 64\n{free} 64\n"));
    let mut command = place.hanare();
    place.run(command.arg("run").arg("-f").arg(&hosts).args(["-n", "2", "true"])).assert_refused(125, &free);
    place.assert_nothing_left();
}

#[test]
fn what_cannot_be_served() {
    let place = Place::new();
    let short = place.key("short.key", "abc\n");
    let exposed = place.file("exposed.key", "0123456789abcdef");
    std::fs::set_permissions(&exposed, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (short, exposed) = (short.to_str().unwrap(), exposed.to_str().unwrap());
    let remedy = format!("chmod 600 {exposed}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken_address = taken.local_addr().unwrap().to_string();
    check(
        &place,
        &[
            (&["serve", "--bogus"], &[], 125, "hanare serve --help"),
            (&["serve", "--memory", "much"], &[], 125, "not a size"),
            (&["serve", "--memory", "0", "--listen", "127.0.0.1:0"], &[], 125, "--memory"),
            (&["serve", "--memory", "900T", "--listen", "127.0.0.1:0"], &[], 125, "--memory 900 TiB is more than"),
            (&["serve", "--memory", "900T", "--spill", "/var/tmp"], &[], 125, "--memory 900 TiB is more than"),
            (&["serve", "--listen", "0.0.0.0:0"], &[], 125, "--key"),
            (&["serve", "--listen", "[::]:0"], &[], 125, "[::]:0"),
            (&["serve", "--listen", "a b"], &[], 125, "HOST:PORT"),
            (&["serve", "--listen", &taken_address], &[], 125, &taken_address),
            (&["serve", "--listen", "127.0.0.1:0", "--spill", "/no/such/dir"], &[], 125, "/no/such/dir"),
            (&["serve", "--listen", "127.0.0.1:0", "--keep", "/dev/null/kept"], &[], 125, "/dev/null/kept"),
            (&["serve", "--listen", "127.0.0.1:0", "--key", "/no/such/key"], &[], 125, "/no/such/key"),
            (&["serve", "--listen", "127.0.0.1:0", "--key", short], &[], 125, "bytes"),
            (&["serve", "--listen", "127.0.0.1:0", "--key", exposed], &[], 125, &remedy),
            (&["serve", "--listen", "127.0.0.1:0", "--key", "/dev/zero"], &[], 125, "regular file"),
            (&["key", "new", short], &[], 125, short),
            (&["key", "new", "/no/such/dir/key"], &[], 125, "/no/such/dir/key"),
            (&["key"], &[], 125, "hanare key --help"),
            (&["key", "new"], &[], 125, "hanare key new --help"),
            (&["run", "--seal", "perhaps", "--", "true"], &[], 125, "auto, on or off"),
            (&["serve", "--unix", "/no/such/dir/socket"], &[], 125, "/no/such/dir/socket"),
            (&["serve", "--private", "/x", "--listen", "127.0.0.1:0"], &[], 125, "cannot be used with"),
        ],
    );
}

#[test]
fn more_memory_than_is_left_is_told_and_run() {
    let place = Place::with_library();
    let memory = hanare_sys::memory::Memory::now().unwrap();
    let half = (memory.total_bytes / 2 + memory.available_bytes / 2).to_string();
    if memory.available_bytes + (64 << 20) > memory.total_bytes {
        return;
    }
    let outcome = place.run(place.hanare().args(["run", "--local", &half, "--memory", &half, "true"]));
    assert_eq!((outcome.code, outcome.stderr.lines().count()), (Some(0), 1), "{outcome:?}");
    assert!(outcome.stderr.starts_with("hanare: --local and --memory together: "), "{outcome:?}");
    place.assert_nothing_left();
}

#[test]
fn refusals_name_what_is_wrong() {
    let place = Place::with_library();
    let refused = |args: &[&str], code: i32, part: &str| {
        place.run(place.hanare().current_dir(place.path(".")).args(args)).assert_refused(code, part);
    };
    refused(&["run", "--key", "/nowhere", "--", "true"], 125, "--key is for named memory servers");
    refused(&["run", "--on-loss", "wait", "--", "true"], 125, "--on-loss wait is for named memory servers");
    refused(&["run", "--on-loss", "cry", "--", "true"], 125, "give end or wait");
    std::os::unix::fs::symlink("loop", place.path("loop")).unwrap();
    refused(&["run", "--", "./loop"], 126, "loop of symbolic links");
    let long = format!("/tmp/{}", "x".repeat(120));
    refused(&["run", "--server", &long, "--", "true"], 125, "at most 107 bytes");
    for flag in ["--far", "--local"] {
        let outcome = place.run(place.hanare().args(["run", flag, "-1", "--", "true"]));
        assert_eq!(outcome.code, Some(125), "{outcome:?}");
        assert!(!outcome.stderr.contains("unexpected argument"), "{outcome:?}");
    }
    let outcome = place.run(place.hanare().args(["run", "--", "true"]).env("HANARE_LIB", "/etc/passwd"));
    outcome.assert_refused(125, "HANARE_LIB: /etc/passwd is not libhanare_preload.so");
}

#[test]
fn refused_sizes_say_what_the_flag_takes() {
    let place = Place::with_library();
    check(
        &place,
        &[
            (&["run", "--near", "1K", "true"], &[], 125, "'1K' is not a size from 1M to 64T"),
            (&["run", "--near", "abc", "true"], &[], 125, "neither a size nor off"),
            (&["run", "--far", "abc", "true"], &[], 125, "neither a size nor all or large"),
            (
                &["run", "--slowdown", "0.9", "true"],
                &[],
                125,
                "'0.9' is not a slowdown; give a number from 1.05 to 100",
            ),
            (&["run", "--slowdown", "-2", "true"], &[], 125, "is not a slowdown"),
            (&["run", "--slowdown", "1.2", "--local", "25%", "true"], &[], 125, "give --local as a size"),
            (&["fit", "--json", "/nowhere/fit.json", "true"], &[], 125, "check --json"),
            (&["fit"], &[], 125, "no PROGRAM is given"),
        ],
    );
}

#[test]
fn a_hard_limit_on_data_is_named() {
    const SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    if u64::from_str_radix(capabilities, 16).unwrap() & 1 << SYS_RESOURCE != 0 {
        println!("skipped: with CAP_SYS_RESOURCE, a run raises hard limits");
        return;
    }
    let place = Place::with_library();
    for kilobytes in [4000, 8000, 16000] {
        let mut shell = std::process::Command::new("sh");
        let script = format!("ulimit -d {kilobytes}; exec \"$0\" run --local 8M -- true");
        let outcome = place.run(shell.args(["-c", &script, env!("CARGO_BIN_EXE_hanare")]));
        outcome.assert_refused(125, "'ulimit -Hd'");
        place.assert_nothing_left();
    }
}
