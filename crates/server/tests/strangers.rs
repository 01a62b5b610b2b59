//! Tests of clients that may not use the server or that break its protocol: wrong keys and tokens, garbage, false
//! lengths. The server must refuse each such client with a reason, and go on serving all other clients.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use common::{Client, MIB, SOON, TestServer, page};
use hanare_server::SystemMemory;
use hanare_wire::frame::{HEADER_BYTES, Header, Kind};
use hanare_wire::limits::CONNECT_DEFAULT;
use hanare_wire::payload::{Hello, Role, Welcome};
use hanare_wire::{
    AckStatus, Attachment, Endpoint, ErrorCode, Identity, Key, LinkError, SessionOptions, fetch_status, patience,
};
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

/// A process of another user connects to a server without a key. Only root can start such a process.
#[test]
fn without_a_key_other_users_of_the_host_are_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can take another user's number");
        return;
    }
    let server = TestServer::start(8 * MIB);
    let Endpoint::Tcp(address) = &server.tcp else { panic!("a TCP address") };
    let port = address.rsplit(':').next().expect("a port");
    let mut other = std::process::Command::new("bash");
    std::os::unix::process::CommandExt::uid(&mut other, 65_534);
    other.args(["-c", &format!("exec 3<>/dev/tcp/127.0.0.1/{port}; timeout 10 head -c 400 <&3")]);
    let answer = other.current_dir("/").output().expect("bash").stdout;
    let said = String::from_utf8_lossy(&answer);
    assert!(said.contains("its own user") && said.contains("65534"), "{said}");
    let mut client = Client::open(&server.tcp, 4096);
    client.write(0, &page(0, 1)).expect("an answer");
    assert!(client.read(0, 4096).expect("a page") == page(0, 1));
}

#[test]
fn a_unix_socket_is_its_users_own_from_the_first_moment() {
    use std::os::unix::fs::PermissionsExt;
    let server = TestServer::start(8 * MIB);
    let mode = std::fs::metadata(server.unix_path()).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_machine_short_of_memory_takes_no_new_client_and_serves_the_others() {
    let is_short = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&is_short);
    let server = TestServer::start_with(8 * MIB, |config| {
        config.keep_free = Duration::from_secs(1000);
        config.available =
            Some(Arc::new(move || Some(SystemMemory { available_bytes: 1 << 30, is_short: asked.load(Relaxed) })));
    });
    let mut client = Client::open(&server.tcp, 4096);
    assert_eq!(client.write(0, &page(0, 1)).expect("an answer"), AckStatus::Done);
    let mut other = Client::open(&server.tcp, 4096);
    assert_eq!(other.write(0, &page(0, 2)).expect("an answer"), AckStatus::Done);
    drop(other);
    server.status_until(|status| status.memory_free_bytes > 0);
    is_short.store(true, Relaxed);
    server.status_until(|status| status.is_short_of_memory == 1 && status.memory_free_bytes == 0);
    let error = Client::open_with(&server.tcp, &SessionOptions::for_endpoint(&server.tcp, 4096)).err();
    let error = error.expect("no new client").to_string();
    assert!(error.contains("short of memory"), "{error}");
    assert_eq!(client.write(0, &page(0, 3)).expect("an answer"), AckStatus::Done, "a slot that it has");
    assert!(client.read(0, 4096).expect("a page") == page(0, 3));
    // More than is left of the block that the client has.
    let (far, many) = (64 * MIB, page(1, 1).repeat(1024));
    assert_eq!(client.write(far, &many).expect("an answer"), AckStatus::Full);
    is_short.store(false, Relaxed);
    server.status_until(|status| status.is_short_of_memory == 0);
    assert_eq!(client.write(far, &many).expect("an answer"), AckStatus::Done);
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

/// A program may be stopped between connecting and its HELLO, or wait for a CPU. The server must wait for its HELLO as
/// long as the program would wait for the WELCOME.
#[test]
fn a_program_of_this_host_that_is_slow_to_say_hello_is_welcomed() {
    let server = TestServer::start(8 * MIB);
    let mut stream = UnixStream::connect(server.unix_path()).expect("connected");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    std::thread::sleep(CONNECT_DEFAULT + Duration::from_secs(1));
    hello(&mut stream, Role::Attach, 0, [0; 16]);
    assert_eq!(frame(&mut stream).0.kind, Kind::Welcome);
}

fn connect(server: &TestServer) -> TcpStream {
    let Endpoint::Tcp(address) = &server.tcp else { panic!("a TCP address") };
    let stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    stream
}

fn hello_payload(role: Role, session: u64, token: [u8; 16]) -> Vec<u8> {
    let slot_size = if role == Role::Control { 0 } else { 4096 };
    let client = Identity::unknown();
    Hello { role, payload_crc: false, clone: false, takes_over: false, slot_size, session, token, client }
        .encode()
        .to_vec()
}

fn hello(stream: &mut impl Write, role: Role, session: u64, token: [u8; 16]) {
    let payload = hello_payload(role, session, token);
    send(stream, Header { length: payload.len() as u32, ..Header::bare(Kind::Hello, 0) }, &payload);
}

fn send(stream: &mut impl Write, header: Header, payload: &[u8]) {
    stream.write_all(&header.encode()).expect("header");
    stream.write_all(payload).expect("payload");
}

fn frame(stream: &mut impl Read) -> (Header, Vec<u8>) {
    let mut raw = [0; HEADER_BYTES];
    stream.read_exact(&mut raw).expect("a frame");
    let header = Header::decode(&raw).expect("a header");
    let mut payload = vec![0; header.payload_bytes()];
    stream.read_exact(&mut payload).expect("a payload");
    (header, payload)
}

/// Opens a connection to a new session. Returns the connection and the server's WELCOME.
fn welcomed(server: &TestServer) -> (TcpStream, Welcome) {
    let mut stream = connect(server);
    hello(&mut stream, Role::Session, 0, [0; 16]);
    let (header, payload) = frame(&mut stream);
    assert_eq!(header.kind, Kind::Welcome);
    (stream, Welcome::decode(&payload).expect("a welcome"))
}

/// Reads the ERROR that ends the connection, and checks that nothing follows it.
fn final_error(stream: &mut TcpStream) -> ErrorCode {
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
        final_error(&mut stream)
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
    version[4] = 99;
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
    future[4] = 99;
    stream.write_all(&future).expect("sent");
    let (header, reason) = frame(&mut stream);
    assert_eq!(header.kind, Kind::Refused);
    assert!(String::from_utf8_lossy(&reason).contains("version 99"), "{}", String::from_utf8_lossy(&reason));
}

#[test]
fn more_connections_than_allowed_are_turned_away() {
    let server = TestServer::start_with(8 * MIB, |config| config.connections_max = 2);
    let mut client = Client::open(&server.tcp, 4096);
    let error = fetch_status(&server.tcp, None, SOON).expect_err("no room");
    assert!(matches!(&error, LinkError::Busy { reason } if reason.contains("in use")), "{error:?}");
    client.write(0, &page(0, 0)).expect("an answer");
    drop(client);
    let end = Instant::now() + SOON;
    while fetch_status(&server.tcp, None, SOON).is_err() {
        assert!(Instant::now() < end, "the room of an ended client is never given to another");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Longest time that an honest client may wait while hostile clients are connected.
const SERVED_WITHIN: Duration = Duration::from_secs(5);

/// Checks that the server serves a new client in time. `beside` describes the hostile clients, for the text of a
/// failure.
fn serves_others(server: &TestServer, beside: &str) {
    let start = Instant::now();
    let mut client = Client::open_with(&server.tcp, &SessionOptions::for_endpoint(&server.tcp, 4096))
        .unwrap_or_else(|error| panic!("beside {beside}: {error}"));
    client.write(0, &page(0, 1)).expect("an answer");
    assert!(client.read(0, 4096).expect("a page") == page(0, 1));
    assert!(start.elapsed() < SERVED_WITHIN, "beside {beside}: {:?}", start.elapsed());
}

#[test]
fn those_who_say_half_of_it_or_nothing_keep_nobody_waiting() {
    let server = TestServer::start_with(8 * MIB, |config| config.connections_max = 8);
    let hello = [&Header { length: 64, ..Header::bare(Kind::Hello, 0) }.encode()[..], &[0; 20]].concat();
    let cases: [(&str, &[u8]); 4] = [
        ("silence", &[]),
        ("one byte", &[0x68]),
        ("half a header", &hello[..HEADER_BYTES / 2]),
        ("half a HELLO", &hello),
    ];
    for (what, bytes) in cases {
        let strangers: Vec<TcpStream> = (0..8).map(|_| connect(&server)).collect();
        strangers.iter().for_each(|mut stream| stream.write_all(bytes).expect("sent"));
        serves_others(&server, what);
        let start = Instant::now();
        for mut stream in strangers {
            // The server must end each connection in time, and later on a loaded machine. It may send a reason, or just
            // close the connection.
            let (Ok(_) | Err(_)) = stream.read_to_end(&mut Vec::new());
        }
        assert!(start.elapsed() < patience(2 * SERVED_WITHIN), "{what}: {:?}", start.elapsed());
    }
    server.status_until(|status| status.sessions == 0);
}

#[test]
fn half_frames_and_lying_lengths_after_the_welcome_hold_up_nobody_else() {
    let server = TestServer::start(8 * MIB);
    let long = Header::range(Kind::Write, 1, 0, 4 << 20).encode();
    let half = [&Header::range(Kind::Write, 1, 0, 4096).encode()[..], &[1; 100]].concat();
    for (what, bytes) in
        [("half a header", &long[..17]), ("4 MiB that never come", &long[..]), ("half a page", &half[..])]
    {
        let (mut stream, _) = welcomed(&server);
        stream.write_all(bytes).expect("sent");
        serves_others(&server, what);
        drop(stream);
        server.status_until(|status| status.sessions == 0 && status.slots == 0);
    }
}

/// One peer opens connections as fast as it can, and more than the server's limit. Other clients must still be served.
#[test]
fn a_flood_of_connections_keeps_no_client_out() {
    let server = TestServer::start_with(8 * MIB, |config| config.connections_max = 32);
    let mut old = Client::open(&server.tcp, 4096);
    old.write(0, &page(0, 7)).expect("an answer");
    let Endpoint::Tcp(address) = server.tcp.clone() else { panic!("a TCP address") };
    let ends = Instant::now() + Duration::from_secs(3);
    let flood = std::thread::spawn(move || {
        let mut open = std::collections::VecDeque::new();
        let mut count = 0;
        while Instant::now() < ends {
            open.extend(TcpStream::connect(&address));
            count += 1;
            if open.len() > 200 {
                open.pop_front();
            }
        }
        count
    });
    let mut served = 0;
    while Instant::now() < ends {
        let start = Instant::now();
        assert!(old.read(0, 4096).expect("a page") == page(0, 7));
        // The server may refuse a new client during the flood. The client then tries again.
        while let Err(error) = fetch_status(&server.tcp, None, SERVED_WITHIN) {
            assert!(start.elapsed() < SERVED_WITHIN, "{error}");
        }
        served += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    let count = flood.join().expect("a flood");
    assert!(served > 0 && count > 100, "{served} served beside {count}");
    server.status_until(|status| status.sessions == 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// A client sends random frames after its handshake. The server must keep running, and must free the client's slots
    /// afterwards.
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
                // The frame has a valid kind, an aligned range and a modest length, so that it passes the first checks.
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
        // The server frees a session's slots a moment after the session ends.
        server.status_until(|status| (status.sessions, status.slots, status.slots_free) == (0, 0, 0));
    }
}
