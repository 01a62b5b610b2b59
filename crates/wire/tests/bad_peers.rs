//! Tests a client against servers that break the protocol or hang. In each case, the client must return the right error
//! within a time limit.

use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hanare_wire::frame::{FLAG_PAYLOAD_CRC, HEADER_BYTES, Header, Kind};
use hanare_wire::limits::SILENT_DEFAULT;
use hanare_wire::noise::MESSAGE_BYTES;
use hanare_wire::payload::{GRANT_BYTES, HELLO_BYTES, Hello, NO_QUOTA, Welcome};
use hanare_wire::socket::Socket;
use hanare_wire::{
    Attachment, Endpoint, ErrorCode, Grant, Key, LinkError, Place, Session, SessionOptions, Wait, fetch_status,
};

/// The time limit for each answer. It is far longer than an answer takes, so a test that reaches it has found a hang.
const SOON: Duration = Duration::from_secs(30);

/// Starts a server on a free port. It accepts `connections` connections, one after the other, and calls `life` with
/// each connection and its number.
fn server(connections: usize, life: impl Fn(TcpStream, usize) + Send + 'static) -> (Endpoint, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = Endpoint::Tcp(listener.local_addr().expect("an address").to_string());
    let thread = std::thread::spawn(move || {
        for n in 0..connections {
            let (stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(SOON)).expect("a timeout");
            life(stream, n);
        }
    });
    (endpoint, thread)
}

fn options(endpoint: &Endpoint) -> SessionOptions {
    // The timeout is short, because some tests wait until it has passed. It is long enough for a peer that waits for a
    // CPU.
    let timeout = Duration::from_secs(2);
    SessionOptions { connect_timeout: timeout, silent_timeout: timeout, ..SessionOptions::for_endpoint(endpoint, 4096) }
}

fn open_error(life: impl Fn(TcpStream, usize) + Send + 'static) -> LinkError {
    let (endpoint, thread) = server(1, life);
    let start = Instant::now();
    let error = Session::open(&endpoint, &options(&endpoint)).expect_err("no session");
    assert!(start.elapsed() < SOON);
    thread.join().expect("the server did its part");
    error
}

fn read_hello(stream: &mut impl Read) -> Hello {
    let mut frame = [0; HEADER_BYTES + HELLO_BYTES];
    stream.read_exact(&mut frame).expect("a HELLO");
    Hello::decode(&frame[HEADER_BYTES..]).expect("a HELLO that makes sense")
}

fn send(stream: &mut impl Write, header: Header, payload: &[u8]) {
    stream.write_all(&header.encode()).expect("header");
    stream.write_all(payload).expect("payload");
}

fn read_noise(stream: &mut impl Read) {
    let mut frame = [0; HEADER_BYTES + MESSAGE_BYTES];
    stream.read_exact(&mut frame).expect("a handshake");
}

fn welcome_of(slot_size: u32, payload_crc: bool) -> Welcome {
    let (session, token, capacity_bytes) = (5, [1; 16], 1 << 30);
    Welcome { session, token, capacity_bytes, slot_size, payload_crc, quota_bytes: NO_QUOTA, server_id: [0; 16] }
}

fn welcome(stream: &mut (impl Read + Write)) {
    let hello = read_hello(stream);
    let payload = welcome_of(hello.slot_size, hello.payload_crc).encode();
    send(stream, Header { length: payload.len() as u32, ..Header::bare(Kind::Welcome, 0) }, &payload);
}

/// Waits until the client has closed the connection. If the server closed it first, the client could see a reset
/// instead of the error that the test expects.
fn until_closed(mut stream: TcpStream) {
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
}

#[test]
fn nobody_there() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = Endpoint::Tcp(listener.local_addr().expect("an address").to_string());
    drop(listener);
    let error = Session::open(&endpoint, &options(&endpoint)).expect_err("no session");
    assert!(matches!(&error, LinkError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains(&endpoint.to_string()) && error.to_string().contains("hanare serve"));
}

#[test]
fn garbage_instead_of_a_welcome() {
    let error = open_error(|mut stream, _| {
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n").expect("garbage");
        until_closed(stream);
    });
    assert!(matches!(error, LinkError::Garbage { .. }), "{error:?}");
}

#[test]
fn another_version() {
    let error = open_error(|mut stream, _| {
        read_hello(&mut stream);
        let mut frame = Header::bare(Kind::Refused, 0).encode();
        frame[4] = 99;
        stream.write_all(&frame).expect("a frame of version 99");
        until_closed(stream);
    });
    assert!(matches!(error, LinkError::Version { theirs: 99, ours: 2 }), "{error:?}");
}

#[test]
fn silence_and_a_slow_trickle() {
    let error = open_error(|stream, _| until_closed(stream));
    assert!(matches!(error, LinkError::Silent { .. }), "{error:?}");
    // This server sends each byte in time, but the whole handshake takes longer than its time limit, which is four times
    // as long on a loaded machine.
    let error = open_error(|mut stream, _| {
        let header = Header { length: 72, ..Header::bare(Kind::Welcome, 0) }.encode();
        for byte in header.iter().chain(&[0; 71]) {
            if stream.write_all(&[*byte]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    assert!(matches!(error, LinkError::Silent { .. }), "{error:?}");
}

#[test]
fn an_end_instead_of_a_welcome() {
    let error = open_error(|mut stream, _| {
        read_hello(&mut stream);
    });
    assert!(matches!(error, LinkError::Closed), "{error:?}");
}

#[test]
fn a_refusal_tells_the_reason() {
    let error = open_error(|mut stream, _| {
        read_hello(&mut stream);
        send(&mut stream, Header { length: 9, ..Header::bare(Kind::Refused, 0) }, b"full\x1bmoon");
        until_closed(stream);
    });
    assert!(matches!(&error, LinkError::Refused { reason } if reason == "full?moon"), "{error:?}");
}

#[test]
fn a_server_that_cannot_prove_the_key() {
    let key = Key::new(b"0123456789abcdef").expect("a key");
    let with_key = |endpoint: &Endpoint| SessionOptions { key: Some(key.clone()), ..options(endpoint) };
    let (endpoint, thread) = server(1, |mut stream, _| {
        read_noise(&mut stream);
        let payload = welcome_of(4096, false).encode();
        send(&mut stream, Header { length: payload.len() as u32, ..Header::bare(Kind::Welcome, 0) }, &payload);
        until_closed(stream);
    });
    let error = Session::open(&endpoint, &with_key(&endpoint)).expect_err("no session");
    assert!(matches!(&error, LinkError::Refused { reason } if reason.contains("asks for no key")), "{error:?}");
    thread.join().expect("the server did its part");

    let (endpoint, thread) = server(1, |mut stream, _| {
        read_noise(&mut stream);
        let length = MESSAGE_BYTES as u32;
        send(&mut stream, Header { length, ..Header::bare(Kind::Noise, 0) }, &[7; MESSAGE_BYTES]);
        until_closed(stream);
    });
    let error = Session::open(&endpoint, &with_key(&endpoint)).expect_err("no session");
    assert!(matches!(&error, LinkError::Refused { reason } if reason.contains("prove")), "{error:?}");
    thread.join().expect("the server did its part");
}

/// Starts a server that welcomes both connections of a session and then runs `life` with the reading connection. Opens
/// a session with this server, and passes the parts of the session to `check`.
fn with_session(
    payload_checksum: bool,
    life: impl Fn(TcpStream) + Send + 'static,
    check: impl FnOnce(&mut hanare_wire::ReadRequests, &mut hanare_wire::ReadReplies, &mut hanare_wire::Writer),
) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = Endpoint::Tcp(listener.local_addr().expect("an address").to_string());
    let thread = std::thread::spawn(move || {
        let (mut reading, _) = listener.accept().expect("the reading connection");
        welcome(&mut reading);
        let (mut writing, _) = listener.accept().expect("the writing connection");
        welcome(&mut writing);
        reading.set_read_timeout(Some(SOON)).expect("a timeout");
        life(reading);
        drop(writing);
    });
    let options = SessionOptions { payload_checksum, ..options(&endpoint) };
    let (mut requests, mut replies, mut writer, info) = Session::open(&endpoint, &options).expect("a session").split();
    assert_eq!((info.session, info.slot_size, info.payload_checksum), (5, 4096, payload_checksum));
    check(&mut requests, &mut replies, &mut writer);
    drop((requests, replies, writer));
    thread.join().expect("the server did its part");
}

fn read_request(stream: &mut TcpStream) -> Header {
    let mut frame = [0; HEADER_BYTES];
    stream.read_exact(&mut frame).expect("a request");
    Header::decode(&frame).expect("a READ")
}

#[test]
fn a_page_that_stops_half_way_is_silence_and_a_closed_one_is_closed() {
    let block = Wait::Block { timeout: SOON };
    with_session(
        false,
        |mut stream| {
            let request = read_request(&mut stream);
            send(&mut stream, Header { kind: Kind::Data, ..request }, &[1; 100]);
            until_closed(stream);
        },
        |requests, replies, _| {
            requests.request(9, 8192, 4096).expect("sent");
            let reply = replies.try_header(block).expect("a header").expect("in time");
            assert_eq!((reply.tag, reply.offset, reply.len), (9, 8192, 4096));
            let error = replies.receive_payload(&mut [0; 4096]).expect_err("half a page");
            assert!(matches!(error, LinkError::Silent { .. }), "{error:?}");
        },
    );
    with_session(
        false,
        |mut stream| {
            let request = read_request(&mut stream);
            send(&mut stream, Header { kind: Kind::Data, ..request }, &[1; 100]);
        },
        |requests, replies, _| {
            requests.request(9, 8192, 4096).expect("sent");
            replies.try_header(block).expect("a header").expect("in time");
            let error = replies.receive_payload(&mut [0; 4096]).expect_err("half a page");
            assert!(matches!(error, LinkError::Closed), "{error:?}");
        },
    );
}

#[test]
fn a_damaged_page_or_one_without_its_checksum_is_garbage() {
    let block = Wait::Block { timeout: SOON };
    with_session(
        true,
        |mut stream| {
            let request = read_request(&mut stream);
            let page = [5; 4096];
            let good =
                Header { kind: Kind::Data, flags: FLAG_PAYLOAD_CRC, payload_crc: crc32fast::hash(&page), ..request };
            send(&mut stream, good, &page);
            let mut damaged = page;
            damaged[4000] ^= 4;
            send(&mut stream, good, &damaged);
            send(&mut stream, Header { flags: 0, ..good }, &page);
            until_closed(stream);
        },
        |requests, replies, _| {
            let mut page = [0; 4096];
            requests.request_many(&[(0, 0, 4096), (1, 0, 4096), (2, 0, 4096)]).expect("sent");
            replies.try_header(block).expect("a header").expect("in time");
            replies.receive_payload(&mut page).expect("a good page");
            assert_eq!(page, [5; 4096]);
            replies.try_header(block).expect("a header").expect("in time");
            let error = replies.receive_payload(&mut page).expect_err("a damaged page");
            assert!(matches!(error, LinkError::Garbage { .. }), "{error:?}");
            let error = replies.try_header(block).expect_err("no checksum");
            assert!(matches!(error, LinkError::Garbage { .. }), "{error:?}");
        },
    );
}

#[test]
fn an_error_frame_carries_its_tag_and_text_and_the_link_goes_on() {
    with_session(
        false,
        |mut stream| {
            let request = read_request(&mut stream);
            let code = ErrorCode::NotHeld as u32;
            send(&mut stream, Header { length: 4, code, ..Header::bare(Kind::Error, request.tag) }, b"gone");
            send(&mut stream, Header { kind: Kind::Data, ..request }, &[8; 4096]);
            send(&mut stream, Header { length: 4, code: 77, ..Header::bare(Kind::Error, 1) }, b"odd ");
            until_closed(stream);
        },
        |requests, replies, _| {
            let block = Wait::Block { timeout: SOON };
            requests.request(42, 0, 4096).expect("sent");
            match replies.try_header(block).expect_err("an ERROR") {
                LinkError::Server { tag: 42, code: ErrorCode::NotHeld, text } => assert_eq!(text.as_str(), "gone"),
                error => panic!("{error:?}"),
            }
            let mut page = [0; 4096];
            replies.try_header(block).expect("a header").expect("in time");
            replies.receive_payload(&mut page).expect("a page");
            assert_eq!(page, [8; 4096]);
            let error = replies.try_header(block).expect_err("an unknown code");
            assert!(matches!(error, LinkError::Garbage { .. }), "{error:?}");
        },
    );
}

#[test]
fn waiting_ends_when_it_was_said_to_and_misuse_sends_nothing() {
    with_session(
        false,
        |mut stream| {
            let mut got = Vec::new();
            stream.read_to_end(&mut got).expect("the end");
            assert_eq!(got, [], "misuse was sent");
        },
        |requests, replies, writer| {
            for wait in [Wait::Now, Wait::Spin { iterations: 3 }, Wait::Block { timeout: Duration::from_millis(20) }] {
                assert!(replies.try_header(wait).expect("no error").is_none());
                assert!(writer.try_ack(wait).expect("no error").is_none());
            }
            let misuse = |result: Result<(), LinkError>| assert!(matches!(result, Err(LinkError::Misuse { .. })));
            misuse(requests.request(0, 1, 4096));
            misuse(requests.request(0, 0, 8 << 20));
            misuse(requests.request_many(&[(0, 0, 4096), (1, 0, 0)]));
            misuse(replies.receive_payload(&mut [0; 4096]));
            misuse(writer.write(0, 0, &[IoSlice::new(&[0; 100])]));
            misuse(writer.discard(0, 0, 2 << 30));
        },
    );
}

#[test]
fn a_peer_that_takes_nothing_is_silent() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = Endpoint::Tcp(listener.local_addr().expect("an address").to_string());
    let thread = std::thread::spawn(move || {
        let mut streams = Vec::new();
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().expect("a connection");
            welcome(&mut stream);
            streams.push(stream);
        }
        until_closed(streams.remove(0));
    });
    let options = SessionOptions { silent_timeout: Duration::from_millis(300), ..options(&endpoint) };
    let (requests, replies, mut writer, _) = Session::open(&endpoint, &options).expect("a session").split();
    let page = vec![0; 4 << 20];
    // The pages have more bytes than the socket's buffers can hold, so a write has to wait for the server.
    let error = (0..64).find_map(|n| writer.write(n, 0, &[IoSlice::new(&page)]).err()).expect("an end of patience");
    assert!(matches!(error, LinkError::Silent { .. }), "{error:?}");
    drop((requests, replies));
    thread.join().expect("the server did its part");
}

/// Checks that a client waits for a late answer of a server on the same host, which may lack CPU time or memory. If the
/// client gave up, it would lose its pages. If the server ends, the client must return an error.
#[test]
fn a_server_on_this_host_that_still_runs_is_waited_for_and_one_that_ends_is_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    let grant = Grant { place: Place::Memory, first_slot: 7, count: 2 };
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        welcome(&mut stream);
        let mut request = [0; HEADER_BYTES];
        stream.read_exact(&mut request).expect("an ATTACH");
        let file = tempfile::tempfile().expect("a file");
        file.set_len(9 * 4096).expect("nine slots");
        let socket = Socket::new(stream.try_clone().expect("a copy").into(), None).expect("a socket");
        socket.send_files(&Header::bare(Kind::Attached, 0).encode(), &[file.as_fd(), file.as_fd()]).expect("sent");
        let mut asked = || {
            let mut request = [0; HEADER_BYTES + 4];
            socket.wait(hanare_wire::socket::Direction::Receive, SOON).expect("a GRANT_REQUEST");
            stream.read_exact(&mut request).expect("a GRANT_REQUEST");
            Header::decode(request.first_chunk().expect("a header")).expect("a GRANT_REQUEST").tag
        };
        let answer = Header { length: GRANT_BYTES as u32, ..Header::bare(Kind::Grant, asked()) };
        std::thread::sleep(SILENT_DEFAULT + Duration::from_millis(500));
        socket.send_all(&[IoSlice::new(&answer.encode()), IoSlice::new(&grant.encode())]).expect("sent");
        let answer = Header { tag: asked(), ..answer };
        let beyond = Grant { first_slot: 8, ..grant };
        socket.send_all(&[IoSlice::new(&answer.encode()), IoSlice::new(&beyond.encode())]).expect("sent");
        asked();
    });
    let mut link = Attachment::open(&path, 4096).expect("attached");
    assert_eq!(link.grant(2).expect("a late grant"), [grant]);
    let error = link.grant(2).expect_err("the file has no slot 9");
    assert!(matches!(error, LinkError::Garbage { .. }), "{error:?}");
    let start = Instant::now();
    let error = link.grant(2).expect_err("the server ends");
    assert!(matches!(error, LinkError::Closed) && start.elapsed() < SOON, "{error:?}");
    thread.join().expect("the server did its part");
}

#[test]
fn a_status_that_makes_no_sense_is_garbage() {
    let (endpoint, thread) = server(1, |mut stream, _| {
        welcome(&mut stream);
        send(&mut stream, Header { length: 3, ..Header::bare(Kind::StatusReply, 0) }, &[1, 2, 3]);
        until_closed(stream);
    });
    let error = fetch_status(&endpoint, None, SOON).expect_err("no status");
    assert!(matches!(error, LinkError::Garbage { .. }), "{error:?}");
    thread.join().expect("the server did its part");
}

/// Checks that connecting ends after the timeout if the queue of the listening socket is full. In this case, connect(2)
/// blocks.
#[test]
fn a_path_whose_queue_is_full_is_given_up_in_time() {
    let place = tempfile::tempdir().expect("temporary directory");
    let path = place.path().join("socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    rustix::net::listen(&listener, 0).expect("a queue of one");
    let waiting: Vec<_> = std::iter::repeat_with(|| std::os::unix::net::UnixStream::connect(&path)).take(1).collect();
    let start = Instant::now();
    let endpoint = Endpoint::Unix(path);
    let error = fetch_status(&endpoint, None, Duration::from_millis(300)).expect_err("nobody accepts");
    assert!(matches!(error, LinkError::Unreachable { .. }), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    drop(waiting);
}

/// Checks that a same-host client waits for the handshake for longer than [`hanare_wire::limits::CONNECT_DEFAULT`]. The
/// server may wait that long for a CPU.
#[test]
fn a_server_of_this_host_that_lacks_a_processor_is_waited_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    let client = std::thread::spawn(move || Attachment::open(&path, 4096).map(drop));
    let (stream, _) = listener.accept().expect("a connection");
    std::thread::sleep(hanare_wire::limits::CONNECT_DEFAULT + Duration::from_secs(1));
    assert!(!client.is_finished(), "{:?}", client.join());
    drop(stream);
    assert!(matches!(client.join().expect("no panic"), Err(LinkError::Closed)));
}
