//! Tests of slots, their limits and their reuse.

mod common;

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::time::Duration;

use common::{Client, MIB, SOON, TestServer, page};
use hanare_server::{Server, ServerConfig, ServerError};
use hanare_wire::frame::{Header, Kind};
use hanare_wire::{AckStatus, Endpoint, ErrorCode, LinkError, Session, SessionOptions, Wait};

const PAGE: u64 = 4096;

fn not_held(result: Result<Vec<u8>, LinkError>) {
    let error = result.expect_err("nothing there");
    assert!(matches!(error, LinkError::Server { code: ErrorCode::NotHeld, .. }), "{error:?}");
}

#[test]
fn freed_slots_are_reused_and_counted() {
    let server = TestServer::start(8 * MIB);
    let mut client = Client::open(&server.tcp, 4096);
    for n in 0..100 {
        assert_eq!(client.write(n * PAGE, &page(n, 1)).expect("an answer"), AckStatus::Done);
    }
    let before = server.status();
    assert_eq!((before.slots, before.slots_free, before.slots_reused), (100, 0, 0));
    client.discard(10 * PAGE, 40 * PAGE as u32);
    let freed = server.status();
    assert_eq!((freed.slots, freed.slots_free), (60, 40));
    for n in 1000..1040 {
        client.write(n * PAGE, &page(n, 2)).expect("an answer");
    }
    let after = server.status();
    assert_eq!((after.slots, after.slots_free, after.slots_reused), (100, 0, 40));
    assert_eq!(after.memory_bytes, before.memory_bytes, "no new memory was taken");
    not_held(client.read(10 * PAGE, 4096));
    for (n, version) in (0..10).chain(50..100).map(|n| (n, 1)).chain((1000..1040).map(|n| (n, 2))) {
        assert!(client.read(n * PAGE, 4096).expect("a page") == page(n, version), "page {n}");
    }
}

/// A session writes one page of a 64 KiB slot that an ended session had filled. The rest of the slot must read as
/// zeroes.
#[test]
fn nothing_of_another_session_ever_shows() {
    let secret = vec![0xAB; 65536];
    let server = TestServer::start(2 * MIB);
    let mut first = Client::open(&server.tcp, 65536);
    for n in 0..32 {
        first.write(n * 65536, &secret).expect("an answer");
    }
    drop(first);
    server.status_until(|status| status.sessions == 0 && status.memory_free_bytes == 2 * MIB);
    let mut second = Client::open(&server.unix, 65536);
    for n in 0..32 {
        let at = n * 65536 + (n % 16) * PAGE;
        second.write(at, &page(n, 3)).expect("an answer");
        let bytes = second.read(n * 65536, 65536).expect("the slot");
        let within = ((n % 16) * PAGE) as usize;
        assert!(bytes[within..within + 4096] == page(n, 3));
        assert!(bytes[..within].iter().chain(&bytes[within + 4096..]).all(|byte| *byte == 0), "old bytes show");
    }
    assert!(server.status().slots_reused >= 32);
}

/// A session writes a part of a slot that it has freed before. The rest of the slot must read as zeroes, in memory and
/// in the spill file alike.
#[test]
fn a_slot_written_again_in_part_reads_as_zeroes_elsewhere() {
    let spill = tempfile::tempdir().expect("temporary directory");
    let server = TestServer::start_with(2 * MIB, |config| {
        config.spill = Some(spill.path().to_owned());
        config.spill_margin = 0;
    });
    let mut client = Client::open(&server.tcp, 65536);
    for n in 0..40 {
        client.write(n * 65536, &[0xCD; 65536]).expect("an answer");
    }
    assert_eq!(server.status().spill_bytes, 8 * 65536);
    for n in [3, 35] {
        client.discard(n * 65536, 65536);
        client.write(n * 65536 + PAGE, &page(n, 9)).expect("an answer");
        let bytes = client.read(n * 65536, 65536).expect("the slot");
        assert!(bytes[4096..8192] == page(n, 9));
        assert!(bytes[..4096].iter().chain(&bytes[8192..]).all(|byte| *byte == 0), "old bytes show in slot {n}");
    }
    assert_eq!(server.status().slots_reused, 2);
}

/// A client begins a WRITE of a whole slot but sends only a few bytes. Meanwhile it reads the slot on its other
/// connection. It must not read the old bytes of the slot.
#[test]
fn a_write_cut_short_shows_nothing() {
    let server = TestServer::start(2 * MIB);
    let mut first = Client::open(&server.tcp, 65536);
    for n in 0..32 {
        first.write(n * 65536, &[0xAB; 65536]).expect("an answer");
    }
    drop(first);
    server.status_until(|status| status.sessions == 0);
    let client = Client::open(&server.tcp, 65536);
    let Client { mut requests, mut replies, writer, .. } = client;
    let header = Header::range(Kind::Write, 1, 0, 65536).encode();
    rustix::net::send(writer.as_fd(), &header, rustix::net::SendFlags::empty()).expect("sent");
    rustix::net::send(writer.as_fd(), &[1; 100], rustix::net::SendFlags::empty()).expect("sent");
    for wait in 0..2 {
        requests.request(wait, 0, 65536).expect("sent");
        let error = replies.try_header(Wait::Block { timeout: SOON }).expect_err("nothing held yet");
        assert!(matches!(error, LinkError::Server { code: ErrorCode::NotHeld, .. }), "{error:?}");
        if wait == 0 {
            // When the connection of the write is closed, the server must free the slots of the unfinished write.
            rustix::net::shutdown(writer.as_fd(), rustix::net::Shutdown::Both).expect("shut down");
            server.status_until(|status| status.slots == 0);
        }
    }
}

/// Writes 1 MiB slots until the server is full. Returns the number of slots that the server stored.
fn fill(client: &mut Client) -> u64 {
    let full = |n: &u64| client.write(n * MIB, &vec![*n as u8; 1 << 20]).expect("an answer") == AckStatus::Full;
    (0..1024).find(full).unwrap_or(1024)
}

/// A program may be stopped in the middle of a WRITE, and before it has read all answers. It must find its pages when
/// it continues, so the server must wait without limit.
#[test]
fn a_client_that_pauses_keeps_its_session() {
    let server = TestServer::start(8 * MIB);
    let mut client = Client::open(&server.tcp, 4096);
    client.write(0, &vec![5; 4 << 20]).expect("an answer");
    for n in 0..8 {
        client.requests.request(n, 0, 4 << 20).expect("sent");
    }
    let header = Header::range(Kind::Write, 9, 0, 4096).encode();
    rustix::net::send(client.writer.as_fd(), &header, rustix::net::SendFlags::empty()).expect("sent");
    std::thread::sleep(hanare_wire::limits::SILENT_DEFAULT + Duration::from_millis(1500));
    rustix::net::send(client.writer.as_fd(), &page(0, 6), rustix::net::SendFlags::empty()).expect("sent");
    assert_eq!(client.ack(9).expect("an answer"), AckStatus::Done);
    for _ in 0..8 {
        assert!(client.receive(0, 4 << 20).expect("all of it")[4096..].iter().all(|byte| *byte == 5));
    }
}

#[test]
fn memory_then_spill_then_full() {
    let spill = tempfile::tempdir().expect("temporary directory");
    let free = || {
        let disk = rustix::fs::statvfs(spill.path()).expect("a disk");
        disk.f_bavail * disk.f_frsize
    };
    // The margin leaves 64 MiB of the disk to the server. If other processes change the free space of the disk
    // meanwhile, the test tries again.
    let (server, mut client, held) = (0..20)
        .find_map(|_| {
            let before = free();
            let server = TestServer::start_with(4 * MIB, |config| {
                config.spill = Some(spill.path().to_owned());
                config.spill_margin = before - 64 * MIB;
            });
            let mut client = Client::open(&server.tcp, 1 << 20);
            let held = fill(&mut client);
            let moved = (before - (held - 4) * MIB).abs_diff(free());
            (moved < 16 * MIB).then_some((server, client, held))
        })
        .expect("a quiet moment on the disk");
    assert!((4 + 40..=4 + 80).contains(&held), "{held} slots were granted");
    let status = server.status();
    assert_eq!(status.memory_bytes, 4 * MIB);
    assert_eq!(status.spill_bytes, (held - 4) * MIB);
    assert_eq!(std::fs::read_dir(spill.path()).expect("list").count(), 0, "the spill file has no name");
    for n in 0..held {
        assert!(client.read(n * MIB, 1 << 20).expect("a page").iter().all(|byte| *byte == n as u8), "slot {n}");
    }
    // After the refusal, the connection must still work, and a freed slot must make room again.
    client.discard(0, 1 << 20);
    assert_eq!(client.write(5000 * MIB, &vec![7; 1 << 20]).expect("an answer"), AckStatus::Done);
}

#[test]
fn full_without_a_spill_directory_and_the_rest_goes_on() {
    let server = TestServer::start(2 * MIB);
    let mut client = Client::open(&server.unix, 2 << 20);
    assert_eq!(client.write(0, &vec![1; 2 << 20]).expect("an answer"), AckStatus::Done);
    assert_eq!(client.write(2 * MIB, &vec![2; 2 << 20]).expect("an answer"), AckStatus::Full);
    assert_eq!(client.write(MIB, &page(1, 1)).expect("an answer"), AckStatus::Done, "an old slot can be rewritten");
    let mut other = Client::open(&server.unix, 4096);
    assert_eq!(other.write(0, &page(0, 0)).expect("an answer"), AckStatus::Full, "the limit is the server's");
    assert_eq!(other.info.capacity_bytes, 0);
    not_held(client.read(2 * MIB, 2 << 20));
    client.discard(0, 2 << 20);
    assert_eq!(other.write(0, &page(0, 0)).expect("an answer"), AckStatus::Done);
}

#[test]
fn a_full_disk_is_noticed_before_anything_is_promised() {
    let spill = tempfile::tempdir().expect("temporary directory");
    let server = TestServer::start_with(0, |config| {
        config.spill = Some(spill.path().to_owned());
        config.spill_margin = u64::MAX;
    });
    let mut client = Client::open(&server.tcp, 4096);
    assert_eq!(client.info.capacity_bytes, 0);
    assert_eq!(client.write(0, &page(0, 0)).expect("an answer"), AckStatus::Full);
    assert_eq!(server.status().spill_bytes, 0);
}

#[test]
fn a_dead_client_frees_its_slots_and_a_living_one_keeps_its_own() {
    let server = TestServer::start(64 * MIB);
    let mut living = Client::open(&server.tcp, 4096);
    living.write(0, &page(0, 1)).expect("an answer");
    let mut dying = Client::open(&server.tcp, 4096);
    dying.write(0, &vec![1; 4 << 20]).expect("an answer");
    assert_eq!(server.status().slots, 1025);
    // Closes one of the session's two connections. The session must stay open.
    let Client { requests, replies, writer, .. } = dying;
    drop(writer);
    let status = server.status_until(|status| status.sessions == 2);
    assert_eq!(status.slots, 1025);
    drop((requests, replies));
    let status = server.status_until(|status| status.sessions == 1);
    assert_eq!(status.slots, 1);
    assert!(status.memory_free_bytes >= 4 * MIB, "{status:?}");
    assert!(living.read(0, 4096).expect("a page") == page(0, 1));
}

#[test]
fn many_requests_in_flight_are_answered_in_order() {
    let server = TestServer::start(64 * MIB);
    let mut client = Client::open(&server.tcp, 4096);
    let pages: Vec<Vec<u8>> = (0..500).map(|n| page(n, 4)).collect();
    for n in 0..100u64 {
        client.writer.write(n, n * PAGE, &[IoSlice::new(&pages[n as usize])]).expect("sent");
    }
    let rest: Vec<_> = (100..500u64).map(|n| (n, n * PAGE, &pages[n as usize][..])).collect();
    client.writer.write_many(&rest).expect("sent");
    let short = client.writer.write_many(&[(0, 0, &pages[0]), (1, 0, &pages[0][..100])]);
    assert!(matches!(short, Err(LinkError::Misuse { .. })));
    for n in 0..500 {
        assert_eq!(client.ack(n).expect("an answer"), AckStatus::Done);
    }
    client.writer.ping(77).expect("sent");
    assert_eq!(client.ack(77).expect("an answer"), AckStatus::Done);
    let ranges: Vec<_> = (0..500u64).rev().map(|n| (n, n * PAGE, 4096)).collect();
    client.requests.request_many(&ranges).expect("sent");
    // This request is for a range that was never written. Only this request may fail.
    client.requests.request(1000, 1000 * PAGE, 4096).expect("sent");
    client.requests.request(0, 0, 500 * PAGE as u32).expect("sent");
    for n in (0..500).rev() {
        assert!(client.receive(n * PAGE, 4096).expect("a page") == page(n, 4), "page {n}");
    }
    not_held(client.receive(1000 * PAGE, 4096));
    let all = client.receive(0, 500 * PAGE as u32).expect("the whole range");
    assert!(all == (0..500).flat_map(|n| page(n, 4)).collect::<Vec<_>>());
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    let bind = |listen: &[&str], memory, spill: Option<&str>| {
        let listen = listen.iter().map(|text| text.parse().expect("an address")).collect();
        let mut config = ServerConfig::new(listen, memory);
        config.spill = spill.map(Into::into);
        match Server::bind(config) {
            Ok(_) => panic!("it was accepted"),
            Err(e) => e,
        }
    };
    assert!(matches!(bind(&[], 4 * MIB, None), ServerError::NoAddress));
    assert!(matches!(bind(&["127.0.0.1:0"], 4096, None), ServerError::NoMemory { .. }));
    assert!(matches!(bind(&["127.0.0.1:0"], 4 * MIB, Some("/nonexistent/x")), ServerError::Spill { .. }));
    assert!(matches!(
        bind(&["127.0.0.1:1", "0.0.0.0:0"], 4 * MIB, None),
        ServerError::Listen { .. } | ServerError::NoKey { .. }
    ));
    let error = bind(&["0.0.0.0:0"], 4 * MIB, None);
    assert!(matches!(error, ServerError::NoKey { .. }) && error.to_string().contains("--key"), "{error}");
    assert!(matches!(bind(&["[::]:0"], 4 * MIB, None), ServerError::NoKey { .. }));

    // A new server must not replace the socket of a listening server. It must replace the socket of a server that has
    // ended.
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("socket");
    let endpoint = Endpoint::Unix(path.clone());
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a listener");
    assert!(matches!(bind(&[&endpoint.to_string()], 4 * MIB, None), ServerError::Listen { .. }));
    drop(listener);
    let server = Server::bind(ServerConfig::new(vec![endpoint], 4 * MIB)).expect("a server");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).expect("the socket").permissions());
    assert_eq!(mode & 0o777, 0o600, "the socket is for this user alone");
    drop(server);
    assert!(!path.exists());
}

/// A clone must use no slots of its own at first. Each slot that one of the two sessions then writes must use one more
/// slot.
#[test]
fn a_clone_shares_slots_until_one_side_writes() {
    let server = TestServer::start(64 * MIB);
    let mut parent = Client::open(&server.tcp, 4096);
    for n in 0..100 {
        assert_eq!(parent.write(n * 4096, &page(n, 1)).expect("written"), AckStatus::Done);
    }
    assert_eq!(server.status().slots, 100);
    let options = SessionOptions::for_endpoint(&server.tcp, 4096);
    let mut child = parent.cloned(&options);
    assert_eq!((server.status().slots, server.status().sessions), (100, 2), "shared");
    assert_eq!(child.write(5 * 4096, &page(5, 2)).expect("written"), AckStatus::Done);
    assert_eq!(parent.write(6 * 4096, &page(6, 3)).expect("written"), AckStatus::Done);
    assert_eq!(server.status().slots, 102, "one for either's own");
    assert_eq!(child.write(5 * 4096, &page(5, 4)).expect("written"), AckStatus::Done);
    assert_eq!(server.status().slots, 102, "written in place from then on");
    parent.discard(0, 5 * 4096);
    assert_eq!(server.status().slots, 102, "the child has them still");
    child.discard(0, 5 * 4096);
    assert_eq!(server.status().slots, 97, "nobody has them");
    assert!(parent.read(5 * 4096, 4096).expect("held") == page(5, 1));
    assert!(child.read(5 * 4096, 4096).expect("held") == page(5, 4));
    assert!(child.read(6 * 4096, 4096).expect("held") == page(6, 1));
    drop(parent);
    // The end of the parent frees the parent's versions of pages 5 and 6. The child keeps its 95 slots.
    server.status_until(|status| status.sessions == 1 && status.slots == 95);
    assert!(child.read(99 * 4096, 4096).expect("held") == page(99, 1));
}

/// If the server has no room for the copy of a shared slot, it must answer a write with FULL. Both sessions must keep
/// their contents.
#[test]
fn a_full_server_says_so_when_a_shared_slot_is_written() {
    let server = TestServer::start(2 * MIB);
    let mut parent = Client::open(&server.tcp, 65536);
    for n in 0..32 {
        assert_eq!(parent.write(n * 65536, &page(n, 1)).expect("written"), AckStatus::Done);
    }
    let mut child = parent.cloned(&SessionOptions::for_endpoint(&server.tcp, 65536));
    assert_eq!(child.write(3 * 65536, &page(3, 2)).expect("an answer"), AckStatus::Full);
    assert!(child.read(3 * 65536, 4096).expect("held") == page(3, 1));
    parent.discard(0, 65536);
    child.discard(0, 65536);
    assert_eq!(child.write(3 * 65536 + 4096, &page(3, 2)).expect("an answer"), AckStatus::Done);
    assert!(child.read(3 * 65536, 4096).expect("held") == page(3, 1), "the rest of the slot came along");
    assert!(parent.read(3 * 65536 + 4096, 4096).expect("held") == vec![0; 4096]);
}

#[test]
fn only_who_knows_the_token_clones_a_session() {
    let server = TestServer::start(8 * MIB);
    let client = Client::open(&server.tcp, 4096);
    let options = SessionOptions::for_endpoint(&server.tcp, 4096);
    let mut info = client.info.clone();
    info.token[3] ^= 1;
    let error = Session::open_clone(&info, &options).expect_err("a wrong token");
    assert!(matches!(error, LinkError::Refused { .. }), "{error:?}");
    let wrong_size = SessionOptions::for_endpoint(&server.tcp, 65536);
    assert!(Session::open_clone(&client.info, &wrong_size).is_err());
    drop(client.requests);
    assert_eq!(server.status().sessions, 1);
}
