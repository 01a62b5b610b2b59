//! Tests of sessions that outlive a restart of their server. A restarted server must give each client its own bytes back,
//! and must rather refuse a client than give it wrong bytes.

mod common;

use std::io::{IoSlice, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Client, MIB, SOON, TestServer, page};
use hanare_server::{Server, ServerConfig, ServerError};
use hanare_wire::frame::{Header, Kind};
use hanare_wire::handshake::control_header;
use hanare_wire::payload::{Hello, Role};
use hanare_wire::{
    AckStatus, Endpoint, ErrorCode, Identity, LinkError, Rejoined, Session, SessionOptions, fetch_sessions,
};
use tempfile::TempDir;

const PAGE: u64 = 4096;

/// The lines of a server's log.
type Lines = Arc<Mutex<Vec<String>>>;

fn start(keep: &TempDir, memory: u64) -> TestServer {
    logged(keep, memory).0
}

fn logged(keep: &TempDir, memory: u64) -> (TestServer, Lines) {
    let lines = Lines::default();
    let log = Arc::clone(&lines);
    let server = TestServer::start_with(memory, |config| {
        config.keep = Some(keep.path().to_owned());
        config.log = Arc::new(move |line| log.lock().expect("no panic").push(line.to_owned()));
    });
    (server, lines)
}

fn stop(server: TestServer) {
    server.stop.stop();
    server.join();
}

/// Joins the client's session again, on a server that was started for the one that has ended.
fn come_back(client: &mut Client, server: &TestServer) -> Result<(), LinkError> {
    client.info.endpoint = server.tcp.clone();
    let options = SessionOptions::for_endpoint(&server.tcp, client.info.slot_size);
    let rejoined = Rejoined::open(&client.info, &options)?;
    let (writer, replaced) = rejoined.install(&mut client.requests, &mut client.replies);
    client.writer = writer?;
    drop(replaced);
    Ok(())
}

fn assert_refused(client: &mut Client, server: &TestServer) {
    let error = come_back(client, server).expect_err("no session");
    assert!(matches!(&error, LinkError::Refused { reason } if reason.contains("this session")), "{error:?}");
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("a directory");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn session_file(keep: &TempDir, client: &Client) -> PathBuf {
    keep.path().join(format!("session-{}.hanare", client.info.session))
}

#[test]
fn contents_are_the_same_after_a_restart() {
    let (keep, spill) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let start = || {
        TestServer::start_with(2 * MIB, |config| {
            (config.keep, config.spill) = (Some(keep.path().to_owned()), Some(spill.path().to_owned()));
            config.spill_margin = 0;
        })
    };
    let server = start();
    let mut small = Client::open(&server.tcp, 4096);
    let mut large = Client::open(&server.tcp, 65536);
    // More than the memory, so that a part is in the spill files.
    for n in (0..1000).step_by(3) {
        assert_eq!(small.write(n * PAGE, &page(n, 1)).expect("an answer"), AckStatus::Done);
    }
    let far = (1 << 40) + 65536 * 5;
    for n in 0..30 {
        assert_eq!(large.write(far + n * 65536, &page(n, 2)).expect("an answer"), AckStatus::Done);
    }
    small.discard(30 * PAGE, 4096);
    let slots = server.status().slots;
    stop(server);
    assert_eq!(names(keep.path()), ["identity.hanare", "session-1.hanare", "session-2.hanare"]);
    for name in names(keep.path()) {
        let mode = std::fs::metadata(keep.path().join(name)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    for _ in 0..2 {
        let server = start();
        come_back(&mut small, &server).expect("the session");
        come_back(&mut large, &server).expect("the session");
        assert_eq!(names(keep.path()), ["identity.hanare"], "read files are removed");
        let status = server.status();
        assert_eq!((status.slots, status.sessions), (slots, 2));
        for n in (0..1000).step_by(3).filter(|n| *n != 30) {
            assert!(small.read(n * PAGE, 4096).expect("held") == page(n, 1), "page {n}");
        }
        for n in [30, 1, 1000] {
            let error = small.read(n * PAGE, 4096).expect_err("not held");
            assert!(matches!(error, LinkError::Server { code: ErrorCode::NotHeld, .. }), "{error:?}");
        }
        for n in 0..30 {
            assert!(large.read(far + n * 65536, 4096).expect("held") == page(n, 2), "page {n}");
            assert!(large.read(far + n * 65536 + 4096, 4096).expect("held") == [0; 4096], "the rest of slot {n}");
        }
        let new = Client::open(&server.tcp, 4096);
        assert!(new.info.session > 2, "a number is never used again");
        drop(new);
        server.status_until(|status| status.sessions == 2);
        stop(server);
    }
}

#[test]
fn clones_share_again() {
    let keep = tempfile::tempdir().expect("a directory");
    let server = start(&keep, 64 * MIB);
    let mut parent = Client::open(&server.tcp, 4096);
    for n in 0..300 {
        parent.write(n * PAGE, &page(n, 1)).expect("written");
    }
    let options = SessionOptions::for_endpoint(&server.tcp, 4096);
    let mut child = parent.cloned(&options);
    let mut grandchild = child.cloned(&options);
    child.write(5 * PAGE, &page(5, 2)).expect("written");
    parent.write(6 * PAGE, &page(6, 3)).expect("written");
    grandchild.write(400 * PAGE, &page(400, 4)).expect("written");
    parent.discard(7 * PAGE, 4096);
    let slots = server.status().slots;
    assert_eq!(slots, 303);
    stop(server);
    let size = |client: &Client| std::fs::metadata(session_file(&keep, client)).expect("a file").len();
    assert!(size(&parent) > 299 * PAGE && size(&child) < 20 * PAGE && size(&grandchild) < 20 * PAGE);

    let server = start(&keep, 64 * MIB);
    assert_eq!(server.status().slots, slots, "they share their slots");
    let family = [&mut parent, &mut child, &mut grandchild];
    family.into_iter().for_each(|client| come_back(client, &server).expect("the session"));
    let check = |client: &mut Client, n: u64, version| {
        assert!(client.read(n * PAGE, 4096).expect("held") == page(n, version), "page {n}");
    };
    for n in [0, 100, 299] {
        check(&mut parent, n, 1);
        check(&mut child, n, 1);
        check(&mut grandchild, n, 1);
    }
    check(&mut child, 5, 2);
    check(&mut parent, 5, 1);
    check(&mut parent, 6, 3);
    check(&mut child, 6, 1);
    check(&mut child, 7, 1);
    check(&mut grandchild, 400, 4);
    // Shared slots are still copied when one side writes.
    child.write(100 * PAGE, &page(100, 9)).expect("written");
    check(&mut parent, 100, 1);
    check(&mut grandchild, 100, 1);
    assert_eq!(server.status().slots, slots + 1);
    drop(parent);
    server.status_until(|status| status.sessions == 2);
    check(&mut grandchild, 0, 1);
}

/// Sessions that share everything must not need more room after a restart than before, in memory and on disk.
#[test]
fn what_clones_share_is_written_once_and_held_once() {
    let keep = tempfile::tempdir().expect("a directory");
    let mut server = start(&keep, 8 * MIB);
    let mut family = vec![Client::open(&server.tcp, 4096)];
    for n in 0..1024 {
        assert_eq!(family[0].write(n * PAGE, &page(n, 1)).expect("an answer"), AckStatus::Done);
    }
    let options = SessionOptions::for_endpoint(&server.tcp, 4096);
    for parent in 0..4 {
        let child = family[parent].cloned(&options);
        family.push(child);
    }
    for restart in 1..=3 {
        stop(server);
        let size = |client: &Client| std::fs::metadata(session_file(&keep, client)).expect("a file").len();
        let bytes: u64 = family.iter().map(size).sum();
        assert!(bytes < 5 * MIB, "restart {restart}: {bytes} bytes in the files");
        server = start(&keep, 8 * MIB);
        for client in &mut family {
            come_back(client, &server).expect("the session");
            (0..1024).for_each(|n| assert!(client.read(n * PAGE, 4096).expect("held") == page(n, 1), "page {n}"));
        }
        assert_eq!(server.status().slots, 1024, "restart {restart}");
        // The eldest ends in the middle, and the others still have its pages.
        if restart == 2 {
            drop(family.remove(0));
            server.status_until(|status| status.sessions == 4);
        }
    }
}

#[test]
fn damaged_and_foreign_files_stay_and_others_are_read() {
    let keep = tempfile::tempdir().expect("a directory");
    let server = start(&keep, 64 * MIB);
    let mut clients: Vec<Client> = (0..4).map(|_| Client::open(&server.tcp, 4096)).collect();
    for client in &mut clients {
        (0..50).for_each(|n| _ = client.write(n * PAGE, &page(n, client.info.session)).expect("written"));
    }
    let mut clone = clients[0].cloned(&SessionOptions::for_endpoint(&server.tcp, 4096));
    stop(server);
    let files: Vec<PathBuf> = clients.iter().map(|client| session_file(&keep, client)).collect();
    let cut = |path: &Path, len: u64| {
        let file = std::fs::OpenOptions::new().write(true).open(path).expect("a file");
        file.set_len(file.metadata().expect("its length").len() - len).expect("cut");
    };
    cut(&files[0], 1);
    cut(&files[1], 24);
    let mut bytes = std::fs::read(&files[2]).expect("a file");
    bytes[100_000] ^= 1;
    std::fs::write(&files[2], bytes).expect("a damaged file");
    for foreign in ["notes", "session-07.hanare", "session-x.hanare", "session-5.hanare.old"] {
        std::fs::write(keep.path().join(foreign), "mine").expect("a file");
    }
    std::fs::write(keep.path().join("session-99.hanare.part"), "left by a killed server").expect("a file");
    let before: Vec<String> = names(keep.path());

    let (server, lines) = logged(&keep, 64 * MIB);
    clients[..3].iter_mut().for_each(|client| assert_refused(client, &server));
    assert_refused(&mut clone, &server);
    come_back(&mut clients[3], &server).expect("the session");
    let session = clients[3].info.session;
    assert!(clients[3].read(49 * PAGE, 4096).expect("held") == page(49, session));
    let lines = lines.lock().expect("no panic").clone();
    for (path, word) in files.iter().zip(["cut", "cut", "checksum"]) {
        let named = lines.iter().filter(|line| line.contains(&path.display().to_string()));
        assert!(named.map(|line| line.contains(word)).eq([true]), "{lines:#?}");
    }
    assert!(lines.iter().any(|line| line.contains("shares slots with session 1")), "{lines:#?}");
    let gone = ["session-4.hanare", "session-99.hanare.part"];
    let stays: Vec<&String> = before.iter().filter(|name| !gone.contains(&name.as_str())).collect();
    assert!(names(keep.path()).iter().eq(stays), "{:?}", names(keep.path()));
}

/// A user's pipe, link or directory may have the name of a session's file. Opening a pipe would wait for its writer.
#[test]
fn what_is_no_file_of_a_server_is_never_waited_for_nor_removed() {
    let keep = tempfile::tempdir().expect("a directory");
    stop(start(&keep, 8 * MIB));
    let pipe = |name: &str| {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let path = keep.path().join(name);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
    };
    pipe("session-3.hanare");
    pipe("session-4.hanare.part");
    std::fs::create_dir(keep.path().join("session-5.hanare")).expect("a directory");
    std::fs::create_dir(keep.path().join("session-6.hanare.part")).expect("a directory");
    std::os::unix::fs::symlink("identity.hanare", keep.path().join("session-7.hanare")).expect("a link");
    std::fs::write(keep.path().join("session-18446744073709551615.hanare"), "mine").expect("a file");
    std::fs::write(keep.path().join("session-8.hanare"), "").expect("a file");
    let before = names(keep.path());

    let (server, lines) = logged(&keep, 8 * MIB);
    let client = Client::open(&server.tcp, 4096);
    assert!(client.info.session > 8, "a name that is taken is never used again: {}", client.info.session);
    drop(client);
    server.status_until(|status| status.sessions == 0);
    stop(server);
    assert_eq!(names(keep.path()), before);
    let lines = lines.lock().expect("no panic").clone();
    for number in [3, 5, 7, 8] {
        let path = keep.path().join(format!("session-{number}.hanare")).display().to_string();
        assert_eq!(lines.iter().filter(|line| line.contains(&path)).count(), 1, "{path}: {lines:#?}");
    }
    std::fs::remove_file(keep.path().join("identity.hanare")).expect("removed");
    pipe("identity.hanare");
    let mut config = ServerConfig::new(vec!["127.0.0.1:0".parse().expect("an address")], 8 * MIB);
    config.keep = Some(keep.path().to_owned());
    let error = Server::bind(config).err().expect("no identity").to_string();
    assert!(error.contains("is not a file"), "{error}");
}

#[test]
fn a_stop_while_sessions_are_read_back_loses_nothing() {
    let keep = tempfile::tempdir().expect("a directory");
    let server = start(&keep, 64 * MIB);
    let mut clients: Vec<Client> = (0..3).map(|_| Client::open(&server.tcp, 4096)).collect();
    for client in &mut clients {
        (0..2000).for_each(|n| _ = client.write(n * PAGE, &page(n, 7)).expect("written"));
    }
    stop(server);
    let all = names(keep.path());
    assert_eq!(all.len(), 4);
    // A stop at once, and stops in the middle. The server may also have read everything before it stops.
    for pause_ms in [0, 1, 3, 10, 30] {
        let mut config = ServerConfig::new(vec!["127.0.0.1:0".parse().expect("an address")], 64 * MIB);
        config.keep = Some(keep.path().to_owned());
        let server = Server::bind(config).expect("a server");
        let handle = server.stop_handle();
        if pause_ms == 0 {
            handle.stop();
        }
        let running = std::thread::spawn(move || server.run());
        std::thread::sleep(Duration::from_millis(pause_ms));
        handle.stop();
        running.join().expect("no panic").expect("a good end");
        assert_eq!(names(keep.path()), all, "after {pause_ms} ms");
    }
    let server = start(&keep, 64 * MIB);
    for client in &mut clients {
        come_back(client, &server).expect("the session");
        (0..2000).for_each(|n| assert!(client.read(n * PAGE, 4096).expect("held") == page(n, 7), "page {n}"));
    }
}

#[test]
fn clients_that_end_are_not_kept() {
    let keep = tempfile::tempdir().expect("a directory");
    let server = start(&keep, 64 * MIB);
    let mut gone = Client::open(&server.tcp, 4096);
    gone.write(0, &page(0, 1)).expect("written");
    drop(gone);
    let mut ends = Client::open(&server.unix, 4096);
    ends.write(0, &page(0, 1)).expect("written");
    server.status_until(|status| status.sessions == 1);
    // As a run does that does not wait for its server.
    let ending = std::thread::spawn(move || ends.receive(0, 4096).expect_err("the end"));
    stop(server);
    let error = ending.join().expect("no panic");
    assert!(matches!(error, LinkError::Closed), "{error:?}");
    assert_eq!(names(keep.path()), ["identity.hanare"]);
}

#[test]
fn a_session_waits_for_its_client_and_shows_so() {
    let keep = tempfile::tempdir().expect("a directory");
    let server = start(&keep, 64 * MIB);
    let mut client = Client::open(&server.unix, 4096);
    client.write(0, &page(0, 1)).expect("written");
    let id = server.status().server_id;
    stop(server);
    // The client stays away for a whole life of the server.
    for _ in 0..2 {
        let server = start(&keep, 64 * MIB);
        let (status, sessions) = fetch_sessions(&server.tcp, None, SOON).expect("a list");
        assert_eq!((status.server_id, status.slots), (id, 1));
        assert_eq!((sessions.len(), sessions[0].connections, sessions[0].session), (1, 0, client.info.session));
        assert_eq!(sessions[0].client, Identity::of_this_process());
        stop(server);
    }
    let server = start(&keep, 64 * MIB);
    come_back(&mut client, &server).expect("the session");
    assert!(client.read(0, 4096).expect("held") == page(0, 1));
    drop(client);
    server.status_until(|status| status.sessions == 0);
}

#[test]
fn a_connection_takes_a_session_over_from_those_that_hang() {
    let server = TestServer::start(64 * MIB);
    let mut client = Client::open(&server.tcp, 4096);
    client.write(0, &page(0, 1)).expect("written");
    let mut again = Client::open(&server.tcp, 4096);
    again.info = client.info.clone();
    // Writes that are still on their way are carried out before the new connection is welcomed, or never.
    for n in 0..500 {
        client.writer.write(n, 0, &[IoSlice::new(&page(0, 1))]).expect("sent");
    }
    come_back(&mut again, &server).expect("the session");
    assert_eq!(again.write(0, &page(0, 2)).expect("an answer"), AckStatus::Done);
    std::thread::sleep(Duration::from_millis(100));
    assert!(again.read(0, 4096).expect("held") == page(0, 2), "an older write came later");
    assert!(matches!(client.read(0, 4096), Err(LinkError::Closed)));
    assert_eq!(again.write(0, &page(0, 3)).expect("an answer"), AckStatus::Done);
    assert!(again.read(0, 4096).expect("held") == page(0, 3));
    drop(again);
    server.status_until(|status| status.sessions == 0);
}

/// A client that waits for its server leaves attempts behind. The server meets them when it is back, perhaps after the
/// attempt that succeeds.
#[test]
fn an_attempt_that_was_given_up_takes_nothing_over() {
    let server = TestServer::start(64 * MIB);
    let mut client = Client::open(&server.tcp, 4096);
    client.write(0, &page(0, 1)).expect("written");
    let Endpoint::Tcp(address) = &server.tcp else { panic!("a TCP address") };
    for _ in 0..50 {
        let hello = Hello {
            role: Role::Session,
            payload_crc: false,
            clone: false,
            takes_over: true,
            slot_size: 4096,
            session: client.info.session,
            token: client.info.token,
            client: Identity::unknown(),
        }
        .encode();
        let header: Header = control_header(Kind::Hello, 0, 0, &hello);
        let mut stream = TcpStream::connect(address).expect("connected");
        stream.write_all(&[&header.encode()[..], &hello].concat()).expect("sent");
        drop(stream);
    }
    // Some may have been met before their end. Then the client comes back, as it does after every loss.
    let is_back = (0..10).any(|_| match client.read(0, 4096) {
        Ok(bytes) => bytes == page(0, 1),
        Err(_) => {
            come_back(&mut client, &server).expect("the session");
            false
        }
    });
    assert!(is_back);
}

#[test]
fn another_server_is_refused_and_so_is_a_second_one_for_the_directory() {
    let (keep, other) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let server = start(&keep, 64 * MIB);
    let mut client = Client::open(&server.tcp, 4096);
    client.write(0, &page(0, 1)).expect("written");
    let mut config = ServerConfig::new(vec!["127.0.0.1:0".parse().expect("an address")], 64 * MIB);
    config.keep = Some(keep.path().to_owned());
    let error = Server::bind(config.clone()).err().expect("no second server");
    assert!(matches!(&error, ServerError::Keep { .. }) && error.to_string().contains("another server"), "{error}");
    stop(server);
    assert_refused(&mut client, &start(&other, 64 * MIB));
    // Nor may a file of another server be read.
    std::fs::copy(session_file(&keep, &client), session_file(&other, &client)).expect("a copy");
    let (stranger, lines) = logged(&other, 64 * MIB);
    assert_refused(&mut client, &stranger);
    assert!(lines.lock().expect("no panic")[0].contains("another server has written it"));
    let server = start(&keep, 64 * MIB);
    come_back(&mut client, &server).expect("the session");
    let mut wrong = client.info.clone();
    wrong.server_id[0] ^= 1;
    let options = SessionOptions::for_endpoint(&server.tcp, 4096);
    let error = Rejoined::open(&wrong, &options).expect_err("another identity");
    assert!(matches!(error, LinkError::AnotherServer), "{error:?}");
    drop(Session::open(&server.tcp, &options).expect("a new session"));
}

/// A small file system in memory. It is unmounted when this value is dropped.
struct Disk(TempDir);

impl Disk {
    /// Returns `None` if this process may not mount a file system.
    fn mount(size: &str) -> Option<Disk> {
        let dir = tempfile::tempdir().expect("a directory");
        let options = format!("size={size}");
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &options, "none"]).arg(dir.path());
        command.output().is_ok_and(|output| output.status.success()).then(|| Disk(dir))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.0.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

#[test]
fn a_full_disk_is_an_error_and_leaves_no_part_of_a_file() {
    let Some(disk) = Disk::mount("1m") else { return };
    let mut config = ServerConfig::new(vec!["127.0.0.1:0".parse().expect("an address")], 64 * MIB);
    config.keep = Some(disk.0.path().to_owned());
    let server = Server::bind(config).expect("a server");
    let (endpoint, handle) = (server.local_addrs()[0].clone(), server.stop_handle());
    let running = std::thread::spawn(move || server.run());
    let mut clients: Vec<Client> = (0..3).map(|_| Client::open(&endpoint, 4096)).collect();
    for (client, pages) in clients.iter_mut().zip([50, 500, 50]) {
        (0..pages).for_each(|n| _ = client.write(n * PAGE, &page(n, 1)).expect("written"));
    }
    handle.stop();
    let error = running.join().expect("no panic").expect_err("a full disk");
    assert!(matches!(error, ServerError::NotKept { lost: 1, all: 3, .. }), "{error}");
    assert!(error.to_string().contains("1 of 3 sessions"), "{error}");
    assert_eq!(names(disk.0.path()), ["identity.hanare", "session-1.hanare", "session-3.hanare"]);
}
