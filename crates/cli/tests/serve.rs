//! `hanare serve` and `hanare run --server`: starting, serving, stopping.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use common::{PATIENCE, Place, send, wait};
use hanare_wire::{Endpoint, Key, fetch_status};
use rustix::process::Signal;

/// A server that has printed its first line.
struct Served {
    child: Child,
    line: String,
    rest: BufReader<ChildStderr>,
}

fn serve(place: &Place, args: &[&str]) -> Served {
    start(place.hanare().arg("serve").args(args))
}

fn start(command: &mut Command) -> Served {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut rest = BufReader::new(child.stderr.take().unwrap());
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        rest.read_line(&mut line).unwrap();
        sender.send((line, rest)).unwrap();
    });
    let Ok((line, rest)) = receiver.recv_timeout(PATIENCE) else {
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("the server said nothing");
    };
    Served { child, line, rest }
}

impl Served {
    fn address(&self) -> &str {
        self.line.trim_end().rsplit(' ').next().unwrap()
    }

    fn stop(mut self, signal: Signal) {
        send(self.child.id(), signal);
        assert_eq!(wait(&mut self.child).code(), Some(0), "after {signal:?}");
        let mut rest = String::new();
        self.rest.read_to_string(&mut rest).unwrap();
        assert!(rest.lines().all(|line| line.starts_with("hanare: ")), "{rest}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Ignored: both calls fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_says_where_it_listens_and_stops_in_good_order() {
    let place = Place::new();
    for signal in [Signal::TERM, Signal::INT] {
        let served = serve(&place, &["--memory", "64M", "--listen", "127.0.0.1:0"]);
        assert!(served.line.starts_with("hanare: serving 64 MiB of memory on 127.0.0.1:"), "{}", served.line);
        let endpoint: Endpoint = served.address().parse().unwrap();
        let status = fetch_status(&endpoint, None, Duration::from_secs(5)).unwrap();
        assert_eq!(status.memory_limit_bytes, 64 << 20);
        served.stop(signal);
        assert!(fetch_status(&endpoint, None, Duration::from_secs(5)).is_err(), "it still answers");
    }
}

#[test]
fn a_service_manager_is_told_of_the_beginning_and_the_end() {
    let place = Place::new();
    let manager = UnixDatagram::bind(place.path("manager")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = || {
        let mut text = [0; 64];
        let length = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let mut command = place.hanare();
    command.env("NOTIFY_SOCKET", place.path("manager"));
    let served = start(command.args(["serve", "--memory", "64M", "--listen", "127.0.0.1:0"]));
    assert_eq!(told(), "READY=1\n");
    let endpoint: Endpoint = served.address().parse().unwrap();
    assert!(fetch_status(&endpoint, None, Duration::from_secs(5)).is_ok(), "it is ready, and does not answer");
    served.stop(Signal::TERM);
    assert_eq!(told(), "STOPPING=1\n");

    // A manager that has gone is no reason not to serve.
    let mut command = place.hanare();
    command.env("NOTIFY_SOCKET", place.path("nobody"));
    let served = start(command.args(["serve", "--memory", "64M", "--listen", "127.0.0.1:0"]));
    let endpoint: Endpoint = served.address().parse().unwrap();
    assert!(fetch_status(&endpoint, None, Duration::from_secs(5)).is_ok(), "it does not serve");
    served.stop(Signal::TERM);
}

#[test]
fn a_key_may_be_a_credential_of_a_service_manager() {
    let place = Place::new();
    let folder = place.path("credentials");
    std::fs::create_dir(&folder).unwrap();
    let key = place.key("credentials/key", "0123456789abcdef0123456789abcdef\n");
    let args = ["serve", "--memory", "64M", "--listen", "0.0.0.0:0", "--key", key.to_str().unwrap()];
    let chmod = |mode| std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
    // This is how systemd shows a file that an access list lets a service read.
    chmod(0o440);
    let served = start(place.hanare().args(args).env("CREDENTIALS_DIRECTORY", &folder));
    let endpoint: Endpoint = served.address().replace("0.0.0.0", "127.0.0.1").parse().unwrap();
    let right = Key::new(b"0123456789abcdef0123456789abcdef").unwrap();
    assert!(fetch_status(&endpoint, Some(&right), Duration::from_secs(5)).is_ok(), "another key");
    assert!(fetch_status(&endpoint, None, Duration::from_secs(5)).is_err(), "no key");
    served.stop(Signal::TERM);
    // It is a credential in that folder only.
    place.run(place.hanare().args(args)).assert_refused(125, "has mode 440");
    place
        .run(place.hanare().args(args).env("CREDENTIALS_DIRECTORY", place.path("")))
        .assert_refused(125, "has mode 440");
    chmod(0o444);
    place.run(place.hanare().args(args).env("CREDENTIALS_DIRECTORY", &folder)).assert_refused(125, "has mode 444");
}

#[test]
fn a_unix_socket_is_served_and_removed() {
    let place = Place::new();
    let socket = place.path("s");
    let served = serve(&place, &["--memory", "64M", "--unix", socket.to_str().unwrap()]);
    assert!(fetch_status(&Endpoint::Unix(socket.clone()), None, Duration::from_secs(5)).is_ok());
    served.stop(Signal::TERM);
    assert!(!socket.exists());
}

#[test]
fn what_is_no_socket_stays_where_a_server_wants_to_listen() {
    let place = Place::new();
    let file = place.file("file", "precious");
    let fifo = place.path("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    let stale = place.path("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let (link, dangling) = (place.path("link"), place.path("dangling"));
    std::os::unix::fs::symlink(&stale, &link).unwrap();
    std::os::unix::fs::symlink(place.path("nowhere"), &dangling).unwrap();
    for (path, what) in [(&file, "a file"), (&fifo, "a FIFO"), (&link, "a symbolic link"), (&dangling, "a symbolic")] {
        let before = std::fs::symlink_metadata(path).unwrap();
        let outcome = place.run(place.hanare().args(["serve", "--memory", "64M", "--unix"]).arg(path));
        outcome.assert_refused(125, &format!("cannot listen on unix:{}: {what}", path.display()));
        let after = std::fs::symlink_metadata(path).unwrap();
        assert_eq!((before.ino(), before.file_type()), (after.ino(), after.file_type()), "{}", path.display());
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    let served = serve(&place, &["--memory", "64M", "--unix", stale.to_str().unwrap()]);
    assert!(fetch_status(&Endpoint::Unix(stale.clone()), None, Duration::from_secs(5)).is_ok(), "{}", served.line);
    served.stop(Signal::TERM);
    assert!(!stale.exists(), "a socket that nobody listens on is replaced");
}

#[test]
fn a_server_removes_only_the_very_socket_that_it_made() {
    let place = Place::new();
    let socket = place.path("s");
    for is_socket in [false, true] {
        let served = serve(&place, &["--memory", "64M", "--unix", socket.to_str().unwrap()]);
        std::fs::remove_file(&socket).unwrap();
        let other = is_socket.then(|| std::os::unix::net::UnixListener::bind(&socket).unwrap());
        if !is_socket {
            std::fs::write(&socket, "precious").unwrap();
        }
        served.stop(Signal::TERM);
        assert!(socket.exists(), "another's was removed");
        drop(other);
        std::fs::remove_file(&socket).unwrap();
    }
}

#[test]
fn a_socket_path_that_is_too_long_is_named_so() {
    let place = Place::new();
    let long = place.path(&"x".repeat(120));
    let outcome = place.run(place.hanare().args(["serve", "--memory", "64M", "--unix"]).arg(&long));
    outcome.assert_refused(125, "107");
    assert!(!outcome.stderr.contains("SUN_LEN") && !outcome.stderr.contains("what uses it"), "{outcome:?}");
}

#[test]
fn a_program_runs_with_named_servers_and_starts_no_private_one() {
    let place = Place::with_library();
    let one = serve(&place, &["--memory", "64M", "--listen", "127.0.0.1:0"]);
    let two = serve(&place, &["--memory", "64M", "--listen", "127.0.0.1:0"]);
    let mut command = place.hanare();
    command.args(["run", "--server", one.address(), "--server"]).arg(format!("{}=32M", two.address())).arg("env");
    let outcome = place.run(&mut command);
    let servers = format!("HANARE_SERVERS={},{}=32M\n", one.address(), two.address());
    assert!(outcome.stdout.contains(&servers), "{outcome:?}");
    assert!(!outcome.stdout.contains("HANARE_PRIVATE"), "{outcome:?}");

    let hosts = place.file("hosts", format!("here 48 // us\n{} 64\n{} 64\n", one.address(), two.address()));
    let outcome = place.run(place.hanare().args(["run", "-n", "2", "-f"]).arg(&hosts).args(["--", "env"]));
    let servers = format!("HANARE_SERVERS={}=64M\n", one.address());
    assert!(outcome.stdout.contains(&servers) && outcome.stdout.contains("HANARE_LOCAL=48M\n"), "{outcome:?}");
    one.stop(Signal::TERM);
    two.stop(Signal::TERM);
}

#[test]
fn a_new_key_is_made_once_and_says_how_to_use_it() {
    let place = Place::new();
    let key = place.path("key");
    let make = || place.run(place.hanare().args(["key", "new"]).arg(&key));
    let outcome = make();
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
    assert!(outcome.stdout.contains(&format!("--key {}", key.display())), "{outcome:?}");
    let text = std::fs::read_to_string(&key).unwrap();
    assert!(Key::from_file(&key).is_ok() && !outcome.stdout.contains(text.trim_end()), "the key itself is not shown");
    make().assert_refused(125, "does not exist yet");
    assert_eq!(std::fs::read_to_string(&key).unwrap(), text);
}

#[test]
fn a_key_opens_and_nothing_else_does() {
    let place = Place::with_library();
    let key = place.key("key", "0123456789abcdef0123456789abcdef");
    let wrong = place.key("wrong", "0123456789abcdef0123456789abcdeF");
    let served = serve(&place, &["--memory", "64M", "--listen", "0.0.0.0:0", "--key", key.to_str().unwrap()]);
    let port = served.address().rsplit(':').next().unwrap();
    let address = format!("127.0.0.1:{port}");
    let with_key = Key::from_file(&key).unwrap();
    assert!(fetch_status(&address.parse().unwrap(), Some(&with_key), Duration::from_secs(5)).is_ok());
    let run = |key: Option<&std::path::Path>| {
        let mut command = place.hanare();
        command.args(["run", "--server", &address]);
        if let Some(key) = key {
            command.arg("--key").arg(key);
        }
        place.run(command.args(["--", "true"]))
    };
    assert_eq!(run(Some(&key)).code, Some(0));
    run(Some(&wrong)).assert_refused(125, &address);
    run(None).assert_refused(125, &address);
    served.stop(Signal::TERM);
}

#[test]
fn status_tells_what_a_server_holds_or_why_it_does_not_know() {
    let place = Place::with_library();
    let key = place.key("key", "0123456789abcdef0123456789abcdef");
    let wrong = place.key("wrong", "0123456789abcdef0123456789abcdeF");
    let socket = place.path("s");
    let args = ["--memory", "64M", "--client-quota", "16M", "--listen", "127.0.0.1:0", "--key", key.to_str().unwrap()];
    let served = serve(&place, &[&args[..], &["--unix", socket.to_str().unwrap()]].concat());
    let tcp =
        served.line.split(' ').find(|word| word.starts_with("127.0.0.1:")).unwrap().trim_end_matches(',').to_owned();
    let status =
        |address: &str, args: &[&std::ffi::OsStr]| place.run(place.hanare().args(["status", address]).args(args));
    let with = |key: &std::path::Path| ["--key".into(), key.as_os_str().to_owned()];
    for address in [tcp.as_str(), socket.to_str().unwrap()] {
        let flags = with(&key);
        let flags: Vec<&std::ffi::OsStr> = flags.iter().map(AsRef::as_ref).collect();
        let outcome = status(address, &flags);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
        assert!(outcome.stdout.contains("0 B of 64 MiB used, 16 MiB a client"), "{outcome:?}");
        assert!(outcome.stdout.ends_with("no session is open\n"), "{outcome:?}");
        let outcome = status(address, &[&flags[..], &["--json".as_ref()]].concat());
        let json: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!((json["client_quota_bytes"].as_u64(), json["slots"].as_u64()), (Some(16 << 20), Some(0)), "{json}");
        assert_eq!(json["hanare_version"], env!("CARGO_PKG_VERSION"));
        for flags in [vec![], with(&wrong).to_vec()] {
            let flags: Vec<&std::ffi::OsStr> = flags.iter().map(AsRef::as_ref).collect();
            status(address, &flags).assert_refused(125, "key");
        }
    }
    // A socket's name without a '/' is taken for a host. The message says how to write it.
    let outcome = place.run(place.hanare().args(["status", "s"]).current_dir(place.path("")));
    outcome.assert_refused(125, "or name the socket s in this directory by ./s");
    let outcome = place.run(place.hanare().args(["run", "--server", "s", "true"]).current_dir(place.path("")));
    outcome.assert_refused(125, "or name the socket s in this directory by ./s");
    served.stop(Signal::TERM);
    status(&tcp, &[]).assert_refused(125, &tcp);
    status("host:port", &[]).assert_refused(125, "port");

    // This port belongs to another program.
    let foreign = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = foreign.local_addr().unwrap().to_string();
    let answers = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = foreign.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        // Reads until the other side has closed.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    status(&address, &[]).assert_refused(125, &address);
    answers.join().unwrap();
}
