//! Tests of a session's limits and of the reports about sessions: quotas, the capacity in answers, and the list of
//! sessions. Also tests that unused memory returns to the system.

mod common;

use std::collections::HashSet;
use std::io::IoSlice;
use std::time::{Duration, Instant};

use common::{Client, MIB, SOON, TestServer, page};
use hanare_wire::{AckStatus, Attachment, Endpoint, ErrorCode, Identity, LinkError, Transport, Wait, fetch_sessions};
use proptest::prelude::RngCore;
use proptest::test_runner::{RngAlgorithm, TestRng};

const PAGE: u64 = 4096;
const QUOTA_SLOTS: u64 = 40;
/// The quota in bytes. It is no multiple of the slot size, so the server must round it down to whole slots.
const QUOTA: u64 = QUOTA_SLOTS * PAGE + 100;

/// Compares random writes and discards of one client with a set of slots. The server must refuse a write exactly when
/// the quota is used up. Every other answer must say how many more bytes the client could store.
fn keeps_to_its_quota(endpoint: &Endpoint) {
    let mut client = Client::open(endpoint, PAGE as u32);
    assert_eq!((client.info.quota_bytes, client.info.capacity_bytes), (QUOTA, QUOTA_SLOTS * PAGE));
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[5; 32]);
    let mut held = HashSet::new();
    let mut refused = 0;
    for tag in 0..1000 {
        let (slot, discards) = (rng.next_u64() % (2 * QUOTA_SLOTS), rng.next_u64().is_multiple_of(3));
        if discards {
            client.writer.discard(tag, slot * PAGE, PAGE as u32).expect("sent");
        } else {
            client.writer.write(tag, slot * PAGE, &[IoSlice::new(&page(slot, tag))]).expect("sent");
        }
        let ack = client.writer.try_ack(Wait::Block { timeout: SOON }).expect("an answer").expect("in time");
        if discards {
            held.remove(&slot);
        } else if held.len() as u64 == QUOTA_SLOTS && !held.contains(&slot) {
            assert_eq!(ack.status, AckStatus::OverQuota, "at {tag}");
            refused += 1;
            continue;
        } else {
            held.insert(slot);
            assert!(client.read(slot * PAGE, PAGE as u32).expect("a page") == page(slot, tag));
        }
        let left = (QUOTA_SLOTS - held.len() as u64) * PAGE;
        assert_eq!((ack.status, ack.capacity_bytes), (AckStatus::Done, left), "at {tag}");
    }
    assert!(refused > 10, "the quota was met only {refused} times");
}

#[test]
fn no_client_holds_more_than_its_quota_and_each_has_its_own() {
    let server = TestServer::start_with(64 * MIB, |config| config.client_quota = Some(QUOTA));
    std::thread::scope(|scope| {
        for endpoint in [&server.tcp, &server.unix, &server.tcp] {
            scope.spawn(|| keeps_to_its_quota(endpoint));
        }
    });
    server.status_until(|status| status.sessions == 0 && status.slots == 0);
    assert_eq!(server.status().client_quota_bytes, QUOTA);
}

#[test]
fn a_long_write_over_the_quota_is_refused_and_the_connection_goes_on() {
    let server = TestServer::start_with(64 * MIB, |config| config.client_quota = Some(QUOTA));
    let mut client = Client::open(&server.tcp, PAGE as u32);
    let long: Vec<u8> = (0..2 * QUOTA_SLOTS).flat_map(|slot| page(slot, 1)).collect();
    assert_eq!(client.write(0, &long).expect("an answer"), AckStatus::OverQuota);
    client.discard(0, long.len() as u32);
    let fits = &long[..(QUOTA_SLOTS * PAGE) as usize];
    assert_eq!(client.write(0, fits).expect("an answer"), AckStatus::Done);
    assert!(client.read(0, fits.len() as u32).expect("what fits") == fits);
    assert_eq!(server.status().slots, QUOTA_SLOTS);
}

#[test]
fn the_same_host_link_keeps_to_the_quota_too() {
    let server = TestServer::start_with(64 * MIB, |config| config.client_quota = Some(QUOTA));
    let mut link = Attachment::open(&server.unix_path(), PAGE as u32).expect("a link");
    let runs = link.grant(1000).expect("what the quota allows");
    assert_eq!(runs.iter().map(|run| u64::from(run.count)).sum::<u64>(), QUOTA_SLOTS);
    assert!(matches!(link.grant(1), Err(LinkError::OverQuota)));
    assert_eq!(link.capacity_left().expect("an answer"), 0);
    link.give_back(runs[0].first_slot, 3, runs[0].place).expect("taken back");
    assert_eq!(link.capacity_left_bytes, 3 * PAGE);
    assert_eq!(link.grant(9).expect("three again").iter().map(|run| run.count).sum::<u32>(), 3);
}

#[test]
fn a_quota_below_one_slot_refuses_the_session() {
    let server = TestServer::start_with(64 * MIB, |config| config.client_quota = Some(MIB));
    for slot_size in [4096, 2 << 20] {
        let options = hanare_wire::SessionOptions::for_endpoint(&server.tcp, slot_size);
        match (Client::open_with(&server.tcp, &options), Attachment::open(&server.unix_path(), slot_size)) {
            (Ok(_), Ok(_)) if slot_size == 4096 => {}
            (Err(LinkError::Refused { reason }), Err(LinkError::Refused { reason: other })) => {
                assert!(reason.contains("1048576") && reason == other, "{reason} / {other}");
            }
            other => panic!("{:?} {:?}", other.0.err(), other.1.err()),
        }
    }
}

#[test]
fn answers_tell_the_room_that_all_clients_leave() {
    let server = TestServer::start(8 * MIB);
    let (mut one, mut two) = (Client::open(&server.tcp, 2 << 20), Client::open(&server.unix, 2 << 20));
    let block = vec![1; 2 << 20];
    assert_eq!((one.info.capacity_bytes, two.info.capacity_bytes), (8 * MIB, 8 * MIB));
    for (offset, left) in [(0, 6 * MIB), (2 * MIB, 4 * MIB)] {
        one.writer.write(1, offset, &[IoSlice::new(&block)]).expect("sent");
        let ack = one.writer.try_ack(Wait::Block { timeout: SOON }).expect("an answer").expect("in time");
        assert_eq!((ack.status, ack.capacity_bytes), (AckStatus::Done, left));
    }
    two.writer.ping(7).expect("sent");
    let pong = two.writer.try_ack(Wait::Block { timeout: SOON }).expect("an answer").expect("in time");
    assert_eq!((pong.tag, pong.capacity_bytes), (7, 4 * MIB));
}

#[test]
fn sessions_are_listed_with_who_they_are_for_and_what_they_hold() {
    let server = TestServer::start(64 * MIB);
    let mut clients: Vec<Client> = (0..40).map(|_| Client::open(&server.tcp, PAGE as u32)).collect();
    let mut link = Attachment::open(&server.unix_path(), 65536).expect("a link");
    link.grant(5).expect("slots");
    let unix = Client::open(&server.unix, 2 << 20);
    clients[3].write(0, &[1; 3 * PAGE as usize]).expect("held");
    clients[3].read(0, PAGE as u32).expect("a page");
    let (status, sessions) = fetch_sessions(&server.tcp, None, SOON).expect("a list");
    // One frame cannot carry the list of all these sessions, so the client must ask several times.
    assert_eq!((status.sessions, sessions.len()), (42, 42));
    assert!(sessions.iter().all(|session| session.client == Identity::of_this_process()), "{sessions:?}");
    let of = |number: u64| sessions.iter().find(|session| session.session == number).expect("listed");
    let busy = of(clients[3].info.session);
    assert_eq!((busy.transport, busy.connections, busy.slots, busy.bytes()), (Transport::Tcp, 2, 3, 3 * PAGE));
    assert_eq!((busy.write_bytes, busy.read_bytes, busy.quota_bytes), (3 * PAGE, PAGE, None));
    let linked = sessions.iter().find(|session| session.transport == Transport::SameHost).expect("the link");
    assert_eq!((linked.slots, linked.slot_bytes, linked.connections), (5, 65536, 1));
    assert_eq!(of(unix.info.session).transport, Transport::Unix);
    drop(clients);
    server.status_until(|status| status.sessions == 2);
    assert_eq!(fetch_sessions(&server.unix, None, SOON).expect("a list").1.len(), 2);
}

#[test]
fn rates_are_those_of_late() {
    let server = TestServer::start_with(64 * MIB, |config| config.keep_free = Duration::from_millis(40));
    let mut client = Client::open(&server.tcp, 2 << 20);
    let begun = Instant::now();
    while server.status().write_bytes_per_s == 0 {
        client.write(0, &[1; 1 << 20]).expect("held");
        assert!(begun.elapsed() < SOON, "no rate is told");
    }
    let (_, sessions) = fetch_sessions(&server.tcp, None, SOON).expect("a list");
    assert!(sessions[0].write_bytes_per_s > 0 && sessions[0].read_bytes_per_s == 0, "{sessions:?}");
    server.status_until(|status| status.write_bytes_per_s == 0);
}

#[test]
fn memory_that_stays_free_goes_back_and_what_is_held_stays() {
    let server = TestServer::start_with(64 * MIB, |config| config.keep_free = Duration::from_millis(100));
    let mut client = Client::open(&server.tcp, PAGE as u32);
    let pages = 3 * 512;
    for first in (0..pages).step_by(256) {
        let bytes: Vec<u8> = (first..first + 256).flat_map(|slot| page(slot, 1)).collect();
        assert_eq!(client.write(first * PAGE, &bytes).expect("an answer"), AckStatus::Done);
    }
    assert_eq!(server.status().memory_bytes, 6 * MIB);
    // Discards all pages of two blocks, and most pages of the third block. The third block keeps a few pages that are
    // spread over the block.
    client.discard(0, 2 << 21);
    for slot in (1024..pages).filter(|slot| slot % 50 != 0) {
        client.discard(slot * PAGE, PAGE as u32);
    }
    server.status_until(|status| (status.memory_bytes, status.memory_free_bytes) == (2 * MIB, 0));
    // The server's periodic work also trims the third block. This must not change the pages in it.
    std::thread::sleep(Duration::from_millis(300));
    for slot in (1024..pages).filter(|slot| slot % 50 == 0) {
        assert!(client.read(slot * PAGE, PAGE as u32).expect("a page") == page(slot, 1), "page {slot}");
    }
    assert!(matches!(client.read(0, 4096), Err(LinkError::Server { code: ErrorCode::NotHeld, .. })));
    // The free slots of the trimmed block are allocated again, and must not show old bytes.
    let again: Vec<u8> = (0..400).flat_map(|slot| page(slot, 2)).collect();
    assert_eq!(client.write(0, &again).expect("an answer"), AckStatus::Done);
    assert!(client.read(0, again.len() as u32).expect("pages") == again);
    assert_eq!(server.status().memory_bytes, 2 * MIB);
}

#[test]
fn long_ranges_of_many_sessions_move_at_once_and_arrive_whole() {
    let server = TestServer::start(256 * MIB);
    std::thread::scope(|scope| {
        for client in 0..6 {
            let server = &server;
            scope.spawn(move || {
                let endpoint = if client % 2 == 0 { &server.tcp } else { &server.unix };
                let mut session = Client::open(endpoint, [PAGE as u32, 2 << 20][client % 2]);
                for round in 0..6 {
                    let bytes: Vec<u8> = (0..1024).flat_map(|slot| page(slot, round * 10 + client as u64)).collect();
                    assert_eq!(session.write(0, &bytes).expect("an answer"), AckStatus::Done);
                    assert!(session.read(0, bytes.len() as u32).expect("the range") == bytes, "{client} {round}");
                }
            });
        }
    });
}

/// The room of a client that has hung up is another client's at once, however late the threads of its session run.
#[test]
fn a_client_has_the_room_of_one_that_has_just_gone() {
    let server = TestServer::start(64 * MIB);
    let bytes = vec![7; 4 << 20];
    for endpoint in [&server.tcp, &server.unix] {
        let mut last = Client::open(endpoint, PAGE as u32);
        for round in 0..20 {
            let mut fills = |n: u64| last.write(n * 4 * MIB, &bytes).expect("an answer") == AckStatus::Done;
            assert_eq!((0..).take_while(|n| fills(*n)).count(), 16, "round {round}");
            let mut next = Client::open(endpoint, PAGE as u32);
            assert_eq!(next.write(0, &bytes).expect("an answer"), AckStatus::Full);
            last = next;
        }
    }
}
