//! Tests of stopping a server. It must answer the requests that have arrived, end within 5 s, and remove its socket's
//! path.

mod common;

use std::io::IoSlice;
use std::time::{Duration, Instant};

use common::{Client, MIB, SOON, TestServer, page};
use hanare_wire::{AckStatus, Attachment, Endpoint, LinkError, Session, SessionOptions, Wait};

/// Longest time that a server may take to stop: the documented 5 s, and 3 s more for a slow machine.
const END: Duration = Duration::from_secs(8);

#[test]
fn requests_in_flight_are_answered_and_then_the_links_close() {
    let server = TestServer::start(64 * MIB);
    let (tcp, path) = (server.tcp.clone(), server.unix_path());
    let mut client = Client::open(&tcp, 4096);
    let attachment = Attachment::open(&path, 4096).expect("attached");
    for n in 0..200u64 {
        client.write(n * 4096, &page(n, 1)).expect("an answer");
    }
    let ranges: Vec<_> = (0..200u64).map(|n| (n, n * 4096, 4096)).collect();
    client.requests.request_many(&ranges).expect("sent");
    for n in 0..200u64 {
        client.writer.write(n, n * 4096, &[IoSlice::new(&page(n, 2))]).expect("sent");
    }
    let start = Instant::now();
    server.stop.stop();
    // Reads and writes use different connections, so each page may have the old or the new version. It must not be a
    // mixture of both versions.
    for n in 0..200u64 {
        let bytes = client.receive(n * 4096, 4096).expect("a page that was asked for before");
        assert!(bytes == page(n, 1) || bytes == page(n, 2), "page {n}");
    }
    for n in 0..200 {
        assert_eq!(client.ack(n).expect("an ack of what was sent before"), AckStatus::Done);
    }
    let error = client.replies.try_header(Wait::Block { timeout: SOON }).expect_err("the end");
    assert!(matches!(error, LinkError::Closed), "{error:?}");
    server.join();
    assert!(start.elapsed() < END);
    assert!(!attachment.is_alive());
    assert!(!path.exists(), "the socket's path is gone");
    let result = Session::open(&tcp, &SessionOptions::for_endpoint(&tcp, 4096));
    assert!(matches!(result, Err(LinkError::Unreachable { .. })));
}

/// Stops a server with three clients that do not end by themselves. One client never stops sending requests, one reads
/// no answers, and one never sends a HELLO.
#[test]
fn clients_that_will_not_end_are_cut() {
    let server = TestServer::start(64 * MIB);
    let Endpoint::Tcp(address) = server.tcp.clone() else { panic!("a TCP address") };
    let mute = std::net::TcpStream::connect(&address).expect("connected");
    let mut deaf = Client::open(&server.tcp, 4096);
    deaf.write(0, &vec![1; 4 << 20]).expect("an answer");
    for n in 0..64 {
        deaf.requests.request(n, 0, 4 << 20).expect("sent");
    }
    let endpoint = server.unix.clone();
    let busy = std::thread::spawn(move || {
        let mut client = Client::open(&endpoint, 4096);
        let mut n = 0;
        while client.writer.write(n, 0, &[IoSlice::new(&[2; 4096])]).is_ok() {
            while let Ok(Some(_)) = client.writer.try_ack(Wait::Now) {}
            n += 1;
        }
        n
    });
    server.status_until(|status| status.sessions == 2 && status.slots == 1025);
    let start = Instant::now();
    server.stop.stop();
    server.join();
    assert!(start.elapsed() < END, "{:?}", start.elapsed());
    assert!(busy.join().expect("the busy client's end") > 0);
    drop((mute, deaf));
}
