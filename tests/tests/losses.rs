//! Tests how a job with shared memory survives failures of its ranks. A rank is killed or stopped in any phase.
//! Strangers connect to the sockets of the ranks. A signal handler accesses shared memory in the middle of a call. A
//! limit is too low to start. In each case, every rank must end with a message and the documented exit code, or the job
//! must continue. No rank may wait for ever.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use hanare_tests::{Outcome, Place, built, installed, until};

const LIMIT: Duration = Duration::from_secs(60);
/// Maximum time until all ranks have ended after one rank was killed. It includes the program's time before the kill.
const SOON: Duration = Duration::from_secs(5);
const PHASES: [&str; 7] = ["start", "meet", "barrier", "lock", "wait", "transfer", "shutdown"];
/// The directory of shared memory objects that are created without memfd.
const SHM: &str = "/dev/shm";

fn launch(place: &Place, flags: &[&str], program: &[&str]) -> Outcome {
    let mut command = place.command(built().hanare());
    command.args(["launch", "-n", "3"]).args(flags).arg("--");
    command.arg(built().workload(program[0])).args(&program[1..]);
    place.start(&mut command).finish(LIMIT)
}

fn shm() -> Vec<std::ffi::OsString> {
    let hanare = |name: &std::ffi::OsString| name.to_string_lossy().contains("hanare");
    std::fs::read_dir(SHM).map_or(Vec::new(), |dir| dir.flatten().map(|file| file.file_name()).filter(hanare).collect())
}

#[test]
fn a_rank_that_is_killed_in_any_phase_ends_all_others_with_a_line() {
    let place = Place::new();
    // The workloads are built here, so that building does not count in the measured times.
    built();
    for phase in PHASES {
        for victim in [0, 1, 2] {
            for transfer in ["zero-copy", "message"] {
                let began = Instant::now();
                let outcome =
                    launch(&place, &["--transfer", transfer], &["phases", phase, &victim.to_string(), "kill"]);
                let case = format!("{phase}, rank {victim}, {transfer}, after {:?}: {outcome:?}", began.elapsed());
                assert_eq!(outcome.code, Some(137), "{case}");
                for rank in (0..3).filter(|&rank| rank != victim) {
                    assert!(outcome.stderr.contains(&format!("rank {rank} lost rank ")), "{case}");
                }
                assert!(outcome.stderr.contains(&format!("rank {victim} was ended by signal 9\n")), "{case}");
                // Even on a busy machine, a job reaches each phase within three seconds.
                assert!(began.elapsed() < SOON + Duration::from_secs(3), "{case}");
                place.assert_nothing_left();
            }
        }
    }
    assert_eq!(shm(), Vec::<std::ffi::OsString>::new());
}

#[test]
fn a_rank_that_is_stopped_for_a_while_in_any_phase_delays_the_job_and_nothing_else() {
    let place = Place::new();
    let runs: Vec<_> = PHASES
        .into_iter()
        .enumerate()
        .map(|(index, phase)| {
            let victim = (index % 3).to_string();
            let mut command = place.command(built().hanare());
            command.args(["launch", "-n", "3", "--"]).arg(built().workload("phases"));
            (phase, place.start(command.args([phase, &victim, "stop", "8"])))
        })
        .collect();
    for (phase, run) in runs {
        let outcome = run.finish(LIMIT);
        assert!(outcome.code == Some(0) && outcome.text() == "ok phases\n", "{phase}: {outcome:?}");
    }
    place.assert_nothing_left();
}

#[test]
fn a_signal_handler_touches_shared_memory_in_the_middle_of_any_call() {
    let place = Place::new();
    for protocol in ["invalidate", "update", "adaptive"] {
        for transfer in ["zero-copy", "message"] {
            for more in [&[][..], &["--local", "256K"]] {
                let flags = [&["--protocol", protocol, "--transfer", transfer], more].concat();
                let outcome = launch(&place, &flags, &["handlers", "100"]);
                assert!(outcome.code == Some(0) && outcome.text() == "ok handlers\n", "{flags:?}: {outcome:?}");
            }
        }
    }
    place.assert_nothing_left();
}

/// SIGTERM must end a rank that waits in a call, however long the call would take.
#[test]
fn a_signal_reaches_a_rank_that_waits_in_a_call_at_once() {
    let place = Place::new();
    let mut command = place.command(built().hanare());
    command.args(["launch", "-n", "3", "--"]).arg(built().workload("phases"));
    let run = place.start(command.args(["lock", "1", "stop", "30"]));
    std::thread::sleep(Duration::from_secs(2));
    let began = Instant::now();
    run.signal(rustix::process::Signal::TERM);
    run.signal(rustix::process::Signal::CONT);
    let outcome = run.finish(LIMIT);
    assert!(began.elapsed() < SOON && outcome.code != Some(0), "after {:?}: {outcome:?}", began.elapsed());
}

/// Makes the command for one of two ranks that are started without a launcher and connect by TCP.
fn rank(place: &Place, address: &str, rank: u32) -> Command {
    let mut command = place.command(built().workload("litmus"));
    command.arg("20").env("HANARE_RANK", rank.to_string()).env("HANARE_RANKS", "2").env("HANARE_RANK0", address);
    command
}

/// Returns an address of this host with a port that was just free.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").to_string()
}

/// Makes the command for a Python script that another user runs. `None` if this user cannot become another, or the
/// system has no Python of its own.
fn by_another_user(place: &Place, script: &str) -> Option<Command> {
    const PYTHON: &str = "/usr/bin/python3";
    if !rustix::process::geteuid().is_root() || !installed("setpriv", "util-linux") || !Path::new(PYTHON).exists() {
        return None;
    }
    let mut command = place.command("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", PYTHON, "-c", script]);
    command.current_dir("/");
    Some(command)
}

/// Returns an address of this host beside loopback, if it has one.
fn outer_address() -> Option<IpAddr> {
    let probe = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent.
    probe.connect("192.0.2.1:9").ok()?;
    Some(probe.local_addr().ok()?.ip())
}

/// Before the check of users, another user who said what rank 1 says took its place. The connection may come from any
/// address of this host.
#[test]
fn another_user_at_the_port_of_rank_0_is_dropped() {
    let (place, address) = (Place::new(), free_address());
    let script = "import socket,sys\nhost,port=sys.argv[1].split(':')\nfor source in sys.argv[2:]:\n \
                  s=socket.create_connection((host,int(port)),20,(source,0))\n \
                  try:\n  print(len(s.recv(1)))\n except ConnectionError:\n  print(0)\n";
    let Some(mut other) = by_another_user(&place, script) else { return };
    let sources: Vec<IpAddr> = [Some(Ipv4Addr::LOCALHOST.into()), outer_address()].into_iter().flatten().collect();
    let first = place.start(&mut rank(&place, &address, 0));
    until("rank 0 listens", || TcpStream::connect(&address).is_ok());
    let began = Instant::now();
    let outcome = place.run(other.arg(&address).args(sources.iter().map(ToString::to_string)));
    assert!(
        outcome.text() == "0\n".repeat(sources.len()) && began.elapsed() < Duration::from_secs(2),
        "dropped at once: {outcome:?}"
    );
    let second = place.start(&mut rank(&place, &address, 1)).finish(LIMIT);
    let first = first.finish(LIMIT);
    assert!(first.code == Some(0) && second.code == Some(0), "{first:?}, {second:?}");
}

/// Another user listens where rank 0 should be, and answers as rank 0 would.
#[test]
fn another_user_in_the_place_of_rank_0_ends_the_rank() {
    let (place, address) = (Place::new(), free_address());
    let script = "import socket,sys\nhost,port=sys.argv[1].split(':')\ns=socket.socket()\ns.bind((host,int(port)))\n\
                  s.listen()\ns.settimeout(20)\nc=s.accept()[0]\nc.settimeout(20)\n\
                  m=bytearray(c.recv(82,socket.MSG_WAITALL)[:80])\nm[40:42]=b'\\0\\0'\nc.sendall(m)\n\
                  try:\n print(len(c.recv(1)))\nexcept ConnectionError:\n print(0)\n";
    let Some(mut other) = by_another_user(&place, script) else { return };
    let other = place.start(other.arg(&address));
    let outcome = place.start(&mut rank(&place, &address, 1)).finish(SOON);
    outcome.assert_ended_by_us(125, "is no rank of this user");
    assert_eq!(other.finish(SOON).text(), "0\n");
}

#[test]
fn strangers_at_the_port_of_rank_0_are_dropped() {
    let (place, address) = (Place::new(), free_address());
    let mut first = place.start(&mut rank(&place, &address, 0));
    let mut strangers = Vec::new();
    for turn in 0..200 {
        let mut connected = None;
        until("rank 0 listens", || {
            connected = TcpStream::connect(&address).ok();
            connected.is_some()
        });
        let mut stream = connected.expect("connected");
        match turn % 4 {
            0 => {}
            1 => stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("room"),
            2 => stream.write_all(&[0xff; 300]).expect("room"),
            _ => stream.write_all(&[0; 20]).expect("room"),
        }
        strangers.push(stream);
    }
    std::thread::sleep(Duration::from_secs(1));
    assert!(first.runs(), "rank 0 ended: {}", first.said_so_far());
    let began = Instant::now();
    let second = place.start(&mut rank(&place, &address, 1)).finish(LIMIT);
    let first = first.finish(LIMIT);
    assert!(first.code == Some(0) && second.code == Some(0), "{first:?}, {second:?}");
    assert!(began.elapsed() < Duration::from_secs(10), "strangers hold nobody up: {:?}", began.elapsed());
    assert!(first.stderr.is_empty() && second.stderr.is_empty(), "{first:?}, {second:?}");
}

#[test]
fn a_folder_of_somebody_elses_is_refused() {
    let place = Place::new();
    let path = place.path("ranks");
    std::fs::create_dir(&path).expect("a folder");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).expect("its mode");
    let run = || {
        let mut command = place.command(built().workload("litmus"));
        command.env("HANARE_RANK", "0").env("HANARE_RANKS", "2").env("HANARE_MEET", &path);
        place.run(&mut command)
    };
    run().assert_ended_by_us(125, "has mode 0777");
    if rustix::process::geteuid().is_root() {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).expect("its mode");
        std::os::unix::fs::chown(&path, Some(65_534), Some(65_534)).expect("root gives it away");
        run().assert_ended_by_us(125, "belongs to user 65534");
    }
}

/// A program with CAP_DAC_OVERRIDE plays another user that may enter any directory. It connects to the sockets of the
/// ranks, and must be disconnected.
#[test]
fn another_user_at_the_socket_of_a_rank_is_dropped() {
    if !rustix::process::geteuid().is_root() || !installed("setpriv", "util-linux") || !installed("python3", "python3")
    {
        return;
    }
    let place = Place::new();
    let path = place.path("ranks");
    let start = |rank: u32| {
        let mut command = place.command(built().workload("litmus"));
        command.arg("20").env("HANARE_RANK", rank.to_string()).env("HANARE_RANKS", "2").env("HANARE_MEET", &path);
        place.start(&mut command)
    };
    let first = start(0);
    let socket = path.join("0");
    until("rank 0 listens", || socket.exists());
    let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.settimeout(20)\ns.connect(sys.argv[1])\n\
                  try:\n print(len(s.recv(1)))\nexcept ConnectionError:\n print(0)\n";
    let mut other = place.command("setpriv");
    other.args(["--reuid", "65534", "--inh-caps", "+dac_override", "--ambient-caps", "+dac_override", "python3", "-c"]);
    let began = Instant::now();
    let outcome = place.run(other.arg(script).arg(&socket));
    assert!(outcome.text() == "0\n" && began.elapsed() < Duration::from_secs(2), "dropped at once: {outcome:?}");
    let second = start(1).finish(LIMIT);
    let first = first.finish(LIMIT);
    assert!(first.code == Some(0) && second.code == Some(0), "{first:?}, {second:?}");
}

/// `ulimit` sets each limit in the shell that starts a rank. The test starts one rank alone, and two ranks with one
/// limit each.
#[test]
fn limits_too_low_to_start_are_one_line() {
    let place = Place::new();
    let litmus = built().workload("litmus");
    let run = |limit: &str, ranks: u32| {
        let script = format!("ulimit {limit}; exec {} 3", litmus.display());
        let mut command = place.command("sh");
        if ranks > 1 {
            command = place.command(built().hanare());
            command.args(["launch", "-n", &ranks.to_string(), "--", "sh"]);
        }
        place.start(command.args(["-c", &script])).finish(LIMIT)
    };
    let limits: Vec<String> = (3..24).map(|files| format!("-n {files}")).collect();
    let of_memory = ["-v 200000", "-v 70000000", "-v 140000000", "-v 210000000", "-f 1000", "-u 1"].map(str::to_owned);
    for limit in limits.iter().chain(&of_memory) {
        for ranks in [1, 2] {
            let outcome = run(limit, ranks);
            let case = format!("ulimit {limit}, {ranks} ranks: {outcome:?}");
            if outcome.code == Some(0) {
                continue;
            }
            // If the dynamic linker or the shell fails, it prints its own reason and returns its own exit code.
            let is_loaded = !outcome.stderr.contains("shared librar") && !outcome.stderr.contains("sh: ");
            assert!(!outcome.stderr.contains("panicked") && (!is_loaded || outcome.code == Some(125)), "{case}");
            if is_loaded && ranks == 1 {
                outcome.assert_ended_by_us(125, "");
            }
        }
    }
    place.assert_nothing_left();
}

/// The thread-local variables of a library that is loaded late are allocated at their first use. Guards against a call
/// of malloc for them in the middle of a fault.
#[test]
fn a_library_opened_late_allocates_nothing_while_memory_is_touched() {
    let place = Place::new();
    for (library, mode) in
        [("libhanare_dsm.so", ""), ("libhanare.so", "thread"), ("libhanare.so", "sigbus"), ("libhanare.so", "sigsegv")]
    {
        let mut command = place.command(built().workload("late"));
        command.arg(built().profile_dir.join(library)).env("HANARE_BIN", built().hanare()).env("HANARE_LOCAL", "16M");
        // libhanare.so has thread-local variables that need space reserved at the program's start. Without this
        // setting, the dynamic linker refuses to load the library.
        command.env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=8192");
        if !mode.is_empty() {
            command.env("HANARE_MODE", mode);
        }
        let outcome = place.run(&mut command);
        assert!(outcome.code == Some(0) && outcome.text() == "0 allocations\n", "{library}, {mode}: {outcome:?}");
    }
}
