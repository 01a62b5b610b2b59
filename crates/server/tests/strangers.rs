//! Those who may not, or do not know how: keys, tokens, garbage, lies. Each is told why and turned away, and the
//! others go on undisturbed.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{Client, MIB, SOON, TestServer, page};
use hanare_wire::frame::{HEADER_BYTES, Header, Kind};
use hanare_wire::payload::{Hello, Role, Welcome};
use hanare_wire::{Attachment, Endpoint, ErrorCode, Identity, Key, LinkError, SessionOptions, fetch_status};
use proptest::prelude::*;

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).expect("a key")
}

#[test]
fn only_those_with_the_key_are_served() {
    let server = TestServer::start_with(8 * MIB, |config| config.key = Some(key("the right key 123")));
    let with = |key| SessionOptions { key, ..SessionOptions::for_endpoint(&server.tcp, 4096) };
    let mut client = Client::open_with(&server.tcp, &with(Some(key("the right key 123")))).expect("welcome");
    client.write(0, &page(0, 1)).expect("an answer");
    assert!(client.read(0, 4096).expect("a page") == page(0, 1));

    for (wrong, word) in [(Some(key("the wrong key 123")), "not the server's"), (None, "asks for a key")] {
        let result = Client::open_with(&server.tcp, &with(wrong.clone()));
        let error = result.err().expect("refused");
        assert!(matches!(&error, LinkError::Refused { reason } if reason.contains(word)), "{error:?}");
        let error = fetch_status(&server.unix, wrong.as_ref(), SOON).expect_err("refused");
        assert!(matches!(&error, LinkError::Refused { .. }), "{error:?}");
    }
    assert!(matches!(Attachment::open(&server.unix_path(), 4096), Err(LinkError::Refused { .. })));
    assert!(client.read(0, 4096).expect("a page") == page(0, 1));
}

#[test]
fn a_key_allows_listening_beyond_loopback() {
    let server = TestServer::start_with(8 * MIB, |config| {
        config.key = Some(key("the right key 123"));
        config.listen = vec!["0.0.0.0:0".parse().expect("an address")];
    });
    let Endpoint::Tcp(address) = &server.tcp else { panic!("a TCP address") };
    let port = address.rsplit(':').next().expect("a port");
    let endpoint: Endpoint = format!("127.0.0.1:{port}").parse().expect("an address");
    fetch_status(&endpoint, Some(&key("the right key 123")), SOON).expect("a status");
}

#[test]
fn the_same_host_link_needs_a_path() {
    let server = TestServer::start(8 * MIB);
    let mut stream = connect(&server);
    hello(&mut stream, Role::Attach, 0, [0; 16]);
    let (header, reason) = frame(&mut stream);
    assert_eq!(header.kind, Kind::Refused);
    assert!(String::from_utf8_lossy(&reason).contains("AF_UNIX"));
}

fn connect(server: &TestServer) -> TcpStream {
    let Endpoint::Tcp(address) = &server.tcp else { panic!("a TCP address") };
    let stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    stream
}

fn hello(stream: &mut TcpStream, role: Role, session: u64, token: [u8; 16]) {
    let slot_size = if role == Role::Control { 0 } else { 4096 };
    let payload = Hello {
        role,
        payload_crc: false,
        clone: false,
        slot_size,
        session,
        token,
        nonce: [0; 32],
        client: Identity::unknown(),
    }
    .encode();
    send(stream, Header { length: payload.len() as u32, ..Header::bare(Kind::Hello, 0) }, &payload);
}

fn send(stream: &mut TcpStream, header: Header, payload: &[u8]) {
    stream.write_all(&header.encode()).expect("header");
    stream.write_all(payload).expect("payload");
}

fn frame(stream: &mut TcpStream) -> (Header, Vec<u8>) {
    let mut raw = [0; HEADER_BYTES];
    stream.read_exact(&mut raw).expect("a frame");
    let header = Header::decode(&raw).expect("a header");
    let mut payload = vec![0; header.payload_bytes()];
    stream.read_exact(&mut payload).expect("a payload");
    (header, payload)
}

/// A connection that was welcomed to a new session.
fn welcomed(server: &TestServer) -> (TcpStream, Welcome) {
    let mut stream = connect(server);
    hello(&mut stream, Role::Session, 0, [0; 16]);
    let (header, payload) = frame(&mut stream);
    assert_eq!(header.kind, Kind::Welcome);
    (stream, Welcome::decode(&payload).expect("a welcome"))
}

/// Reads on to the ERROR that ends the connection.
fn last_words(stream: &mut TcpStream) -> ErrorCode {
    let (header, text) = frame(stream);
    assert_eq!(header.kind, Kind::Error);
    assert!(!text.is_empty());
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the end, and no reset before it");
    assert_eq!(rest, []);
    ErrorCode::from_wire(header.code).expect("a code")
}

#[test]
fn a_session_is_joined_by_its_token_only() {
    let server = TestServer::start(8 * MIB);
    let (_first, welcome) = welcomed(&server);
    let mut wrong = welcome.token;
    wrong[15] ^= 1;
    for (session, token) in [(welcome.session, wrong), (welcome.session + 1, welcome.token)] {
        let mut stream = connect(&server);
        hello(&mut stream, Role::Session, session, token);
        assert_eq!(frame(&mut stream).0.kind, Kind::Refused);
    }
    let mut stream = connect(&server);
    hello(&mut stream, Role::Session, welcome.session, welcome.token);
    assert_eq!(frame(&mut stream).0.kind, Kind::Welcome);
}

#[test]
fn lies_after_the_welcome_end_the_connection_with_the_reason() {
    let server = TestServer::start(8 * MIB);
    let mut honest = Client::open(&server.tcp, 4096);
    honest.write(0, &page(0, 1)).expect("an answer");
    let say = |bytes: &[u8]| {
        let (mut stream, _) = welcomed(&server);
        stream.write_all(bytes).expect("sent");
        last_words(&mut stream)
    };
    assert_eq!(say(b"GET / HTTP/1.1\r\n\r\n"), ErrorCode::BadFrame);
    let mut flipped = Header::range(Kind::Read, 1, 0, 4096).encode();
    flipped[20] ^= 1;
    assert_eq!(say(&flipped), ErrorCode::BadFrame);
    assert_eq!(say(&Header::range(Kind::Write, 1, 0, u32::MAX).encode()), ErrorCode::BadFrame, "a huge payload");
    assert_eq!(say(&Header::range(Kind::Write, 1, u64::MAX - 4095, 8192).encode()), ErrorCode::BadFrame);
    assert_eq!(say(&Header::bare(Kind::Welcome, 1).encode()), ErrorCode::NotAllowed);
    assert_eq!(say(&Header::bare(Kind::Attach, 1).encode()), ErrorCode::NotAllowed);
    let mut version = Header::bare(Kind::Ping, 1).encode();
    version[4] = 2;
    assert_eq!(say(&version), ErrorCode::BadFrame);
    let mut damaged = Header::range(Kind::Write, 1, 0, 4096);
    damaged.flags = 1;
    let frame = [&damaged.encode()[..], &[1; 4096]].concat();
    assert_eq!(say(&frame), ErrorCode::Checksum);
    assert!(honest.read(0, 4096).expect("a page") == page(0, 1));
    server.status_until(|status| status.sessions == 1 && status.slots == 1);
}

#[test]
fn a_range_that_breaks_the_limits_fails_alone() {
    let server = TestServer::start(8 * MIB);
    let (mut stream, _) = welcomed(&server);
    for header in [
        Header::range(Kind::Read, 1, 1, 4096),
        Header::range(Kind::Read, 1, 0, 0),
        Header::range(Kind::Read, 1, 0, 8 << 20),
        Header::range(Kind::Discard, 1, u64::MAX - 4095, 8192),
    ] {
        send(&mut stream, header, &[]);
        let (answer, _) = frame(&mut stream);
        assert_eq!((answer.kind, answer.code, answer.tag), (Kind::Error, ErrorCode::BadRange as u32, 1));
    }
    send(&mut stream, Header::range(Kind::Discard, 2, 0, 1 << 30), &[]);
    let (done, _) = frame(&mut stream);
    assert_eq!(done, Header { offset: 8 * MIB, ..Header::bare(Kind::Done, 2) }, "with the room that is left");
    send(&mut stream, Header::range(Kind::Write, 3, u64::MAX - 8191, 4096), &[6; 4096]);
    let (done, _) = frame(&mut stream);
    assert_eq!((done.kind, done.tag), (Kind::Done, 3), "the far end of far space can be used");
    send(&mut stream, Header::range(Kind::Read, 4, u64::MAX - 8191, 4096), &[]);
    assert_eq!(frame(&mut stream).1, [6; 4096]);
    send(&mut stream, Header::bare(Kind::Ping, 5), &[]);
    let (pong, _) = frame(&mut stream);
    assert_eq!((pong.kind, pong.tag), (Kind::Pong, 5));
}

#[test]
fn strangers_before_the_welcome_are_told_why() {
    let server = TestServer::start(8 * MIB);
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &Header::bare(Kind::Ping, 0).encode()] {
        let mut stream = connect(&server);
        stream.write_all(bytes).expect("sent");
        let (header, reason) = frame(&mut stream);
        assert_eq!(header.kind, Kind::Refused);
        assert!(!reason.is_empty());
        assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
    }
    let mut stream = connect(&server);
    let mut future = Header { length: 64, ..Header::bare(Kind::Hello, 0) }.encode();
    future[4] = 2;
    stream.write_all(&future).expect("sent");
    let (header, reason) = frame(&mut stream);
    assert_eq!(header.kind, Kind::Refused);
    assert!(String::from_utf8_lossy(&reason).contains("version 2"), "{}", String::from_utf8_lossy(&reason));
}

#[test]
fn more_connections_than_allowed_are_turned_away() {
    let server = TestServer::start_with(8 * MIB, |config| config.connections_max = 2);
    let mut client = Client::open(&server.tcp, 4096);
    let error = fetch_status(&server.tcp, None, SOON).expect_err("no room");
    assert!(matches!(&error, LinkError::Refused { reason } if reason.contains("in use")), "{error:?}");
    client.write(0, &page(0, 0)).expect("an answer");
    drop(client);
    let end = Instant::now() + SOON;
    while fetch_status(&server.tcp, None, SOON).is_err() {
        assert!(Instant::now() < end, "the room of an ended client is never given to another");
        std::thread::sleep(Duration::from_millis(5));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// Whatever a welcomed peer sends, the server lives on and holds nothing for it afterwards.
    #[test]
    fn any_frames_at_all_leave_the_server_in_order(
        frames in prop::collection::vec((any::<u8>(), any::<[u8; 29]>(), any::<bool>(), 0usize..5000), 1..12),
    ) {
        static SERVER: std::sync::OnceLock<TestServer> = std::sync::OnceLock::new();
        let server = SERVER.get_or_init(|| TestServer::start(8 * MIB));
        let (mut stream, _) = welcomed(server);
        for (kind, fields, sound, payload) in frames {
            let mut bytes = Header::bare(Kind::Ping, 0).encode();
            bytes[7..36].copy_from_slice(&fields);
            if sound {
                // A real kind, aligned and of modest length, so that it gets further.
                bytes[6] = [16, 18, 20, 34, 32][usize::from(kind) % 5];
                bytes[7] = 0;
                bytes[16..24].copy_from_slice(&u64::from(fields[9] % 64).wrapping_mul(4096).to_le_bytes());
                bytes[24..28].copy_from_slice(&(u32::from(fields[17] % 4) * 4096).to_le_bytes());
            } else {
                bytes[6] = kind;
            }
            let crc = crc32fast::hash(&bytes[..36]);
            bytes[36..].copy_from_slice(&crc.to_le_bytes());
            if stream.write_all(&bytes).and_then(|()| stream.write_all(&vec![kind; payload])).is_err() {
                break;
            }
        }
        drop(stream);
        let status = server.status_until(|status| status.sessions == 0);
        prop_assert_eq!((status.slots, status.slots_free), (0, 0));
    }
}
