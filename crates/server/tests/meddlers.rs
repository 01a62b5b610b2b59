//! Tests of links with a key against someone in the middle, who passes on, changes, repeats, leaves out, reorders, cuts or
//! moves what both sides send. A client must get right bytes or an error, and the server must go on serving others.

mod common;

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::{Client, MIB, SOON, TestServer, page};
use hanare_wire::frame::HEADER_BYTES;
use hanare_wire::noise::MESSAGE_BYTES;
use hanare_wire::{AckStatus, Endpoint, Key, LinkError, SessionOptions, Wait};

/// Bytes of the first message of each direction: the handshake in a frame.
const HANDSHAKE_BYTES: usize = HEADER_BYTES + MESSAGE_BYTES;
const TAG_BYTES: usize = 16;
/// A link that was meddled with must end within this time.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(1);
const SILENT: LinkError = LinkError::Silent { seconds: 1 };

/// Where a message goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum To {
    Server,
    Client,
}

/// Gets each message (a handshake, or a whole record) with the number of its connection and its place in its direction,
/// from 0. Returns the messages to send instead.
type Meddle = Arc<dyn Fn(usize, To, usize, Vec<u8>) -> Vec<Vec<u8>> + Send + Sync>;

/// A relay between clients and a server. Its threads end with the connections.
struct Relay {
    endpoint: Endpoint,
}

impl Relay {
    fn start(server: &TestServer, meddle: Meddle) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = Endpoint::Tcp(listener.local_addr().expect("an address").to_string());
        let Endpoint::Tcp(address) = server.tcp.clone() else { panic!("a TCP address") };
        std::thread::spawn(move || {
            for (number, client) in listener.incoming().enumerate() {
                let Ok(client) = client else { return };
                let Ok(server) = TcpStream::connect(&address) else { return };
                let ends = || (client.try_clone().expect("a copy"), server.try_clone().expect("a copy"));
                let ((from_client, to_server), (to_client, from_server)) = (ends(), ends());
                let (there, back) = (Arc::clone(&meddle), Arc::clone(&meddle));
                std::thread::spawn(move || pass(from_client, to_server, |at, m| there(number, To::Server, at, m)));
                std::thread::spawn(move || pass(from_server, to_client, |at, m| back(number, To::Client, at, m)));
            }
        });
        Relay { endpoint }
    }
}

/// Passes messages on until a side ends.
fn pass(mut from: TcpStream, mut to: TcpStream, meddle: impl Fn(usize, Vec<u8>) -> Vec<Vec<u8>>) {
    for at in 0.. {
        let Ok(message) = message(&mut from, at) else { break };
        if meddle(at, message).iter().any(|message| to.write_all(message).is_err()) {
            break;
        }
    }
    // The other direction may have ended the connections already.
    let (Ok(()) | Err(_)) = to.shutdown(Shutdown::Both);
    let (Ok(()) | Err(_)) = from.shutdown(Shutdown::Both);
}

/// Receives the next message of a direction.
fn message(from: &mut TcpStream, at: usize) -> io::Result<Vec<u8>> {
    let mut message = vec![0; if at == 0 { HANDSHAKE_BYTES } else { 2 }];
    from.read_exact(&mut message)?;
    if at > 0 {
        let length = usize::from(u16::from_le_bytes([message[0], message[1]]));
        message.resize(2 + length + TAG_BYTES, 0);
        from.read_exact(&mut message[2..])?;
    }
    Ok(message)
}

fn key() -> Key {
    Key::new(b"the key of both sides").expect("long enough")
}

fn options(endpoint: &Endpoint) -> SessionOptions {
    let timeout = PATIENCE;
    let options = SessionOptions::for_endpoint(endpoint, 4096);
    SessionOptions { key: Some(key()), connect_timeout: timeout, silent_timeout: timeout, ..options }
}

fn keyed_server() -> TestServer {
    TestServer::start_with(8 * MIB, |config| config.key = Some(key()))
}

/// A client that gives a silent server up after [`PATIENCE`].
struct Patient(Client);

impl Patient {
    fn open(endpoint: &Endpoint) -> Result<Patient, LinkError> {
        Client::open_with(endpoint, &options(endpoint)).map(Patient)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), LinkError> {
        self.0.writer.write(offset, offset, &[IoSlice::new(bytes)])?;
        let ack = self.0.writer.try_ack(Wait::Block { timeout: PATIENCE })?.ok_or(SILENT)?;
        assert_eq!((ack.tag, ack.status), (offset, AckStatus::Done));
        Ok(())
    }

    fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, LinkError> {
        self.0.requests.request(offset, offset, length)?;
        let reply = self.0.replies.try_header(Wait::Block { timeout: PATIENCE })?.ok_or(SILENT)?;
        assert_eq!((reply.tag, reply.offset, reply.len), (offset, offset, length));
        let mut bytes = vec![0xEE; length as usize];
        self.0.replies.receive_payload(&mut bytes)?;
        Ok(bytes)
    }
}

/// Uses a session through the relay: writes two pages, one of them twice, and reads them. Returns the error that ended it.
fn use_session(endpoint: &Endpoint) -> Result<(), LinkError> {
    let mut client = Patient::open(endpoint)?;
    for (place, version) in [(0, 1), (1, 1), (0, 2)] {
        client.write(place * 4096, &page(place, version))?;
    }
    for (place, version) in [(0, 2), (1, 1), (0, 2)] {
        assert!(client.read(place * 4096, 4096)? == page(place, version), "wrong bytes of page {place}");
    }
    let all = client.read(0, 8192)?;
    assert!(all == [page(0, 2), page(1, 1)].concat(), "wrong bytes of both pages");
    Ok(())
}

/// Checks that a client of this host is served, which does not use the relay.
fn assert_serves(server: &TestServer) {
    let mut client = Client::open_with(&server.tcp, &options(&server.tcp)).expect("a session");
    assert_eq!(client.write(0, &page(5, 5)).expect("an answer"), AckStatus::Done);
    assert!(client.read(0, 4096).expect("a page") == page(5, 5));
}

/// Runs the session once for each message of an honest run, with this message meddled with by `change`. `change` gets the
/// message, and the one before it in its direction.
fn meddle_with_each(change: fn(&[u8], &[u8]) -> Vec<Vec<u8>>) {
    let server = keyed_server();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    let honest = Relay::start(
        &server,
        Arc::new(move |connection, to, at, message| {
            notes.lock().unwrap_or_else(PoisonError::into_inner).push((connection, to, at));
            vec![message]
        }),
    );
    use_session(&honest.endpoint).expect("an honest relay changes nothing");
    let places = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(places.len() > 15, "{places:?}");
    for target in places {
        let last = Mutex::new(Vec::new());
        let relay = Relay::start(
            &server,
            Arc::new(move |connection, to, at, message| {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                let is_target = (connection, to, at) == target;
                let sent = if is_target { change(&message, &last) } else { vec![message.clone()] };
                if (connection, to) == (target.0, target.1) {
                    *last = message;
                }
                sent
            }),
        );
        let start = Instant::now();
        let ended = use_session(&relay.endpoint);
        assert!(start.elapsed() < ENDS_WITHIN, "{target:?}: {ended:?} after {:?}", start.elapsed());
        // A change of a side's last message may come after the session's end.
        if ended.is_ok() {
            use_session(&relay.endpoint).expect("nobody meddles with the next session");
        }
    }
    assert_serves(&server);
}

#[test]
fn a_flipped_bit_ends_the_link() {
    meddle_with_each(|message, _| {
        let mut changed = message.to_vec();
        let middle = changed.len() / 2;
        changed[middle] ^= 4;
        vec![changed]
    });
}

#[test]
fn a_flipped_bit_of_the_length_ends_the_link() {
    meddle_with_each(|message, _| {
        let mut changed = message.to_vec();
        changed[0] ^= 1;
        vec![changed]
    });
}

#[test]
fn a_repeated_message_ends_the_link() {
    meddle_with_each(|message, _| vec![message.to_vec(), message.to_vec()]);
}

#[test]
fn a_message_in_place_of_another_ends_the_link() {
    meddle_with_each(|message, last| vec![if last.is_empty() { message[1..].to_vec() } else { last.to_vec() }]);
}

#[test]
fn a_message_that_is_left_out_ends_the_link() {
    meddle_with_each(|_, _| Vec::new());
}

#[test]
fn a_cut_message_ends_the_link() {
    meddle_with_each(|message, _| vec![message[..message.len() - 1].to_vec()]);
}

/// A peer without the key sends everything again that an honest client has sent.
#[test]
fn a_connection_that_was_overheard_opens_nothing() {
    let server = keyed_server();
    let heard = Arc::new(Mutex::new(VecDeque::new()));
    let notes = Arc::clone(&heard);
    let relay = Relay::start(
        &server,
        Arc::new(move |connection, to, _, message| {
            if (connection, to) == (0, To::Server) {
                notes.lock().unwrap_or_else(PoisonError::into_inner).push_back(message.clone());
            }
            vec![message]
        }),
    );
    use_session(&relay.endpoint).expect("an honest relay changes nothing");
    let Endpoint::Tcp(address) = &server.tcp else { panic!("a TCP address") };
    for _ in 0..3 {
        let mut replay = TcpStream::connect(address).expect("connected");
        replay.set_read_timeout(Some(SOON)).expect("a timeout");
        for message in heard.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // The server ends the connection at the first record.
            if replay.write_all(message).is_err() {
                break;
            }
        }
        let mut answer = Vec::new();
        let (Ok(_) | Err(_)) = replay.read_to_end(&mut answer);
        // The server's handshake, and an encrypted refusal at most. No page is in the answer.
        assert!(answer.len() < HANDSHAKE_BYTES + 1024, "{} bytes", answer.len());
        let sessions = hanare_wire::fetch_status(&server.tcp, Some(&key()), SOON).expect("a status").sessions;
        assert!(sessions <= 1, "{sessions} sessions");
    }
    assert_serves(&server);
}

/// What two connections have sent is exchanged between them.
#[test]
fn messages_of_another_connection_end_the_link() {
    let server = keyed_server();
    let stolen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&stolen);
    let relay = Relay::start(
        &server,
        Arc::new(move |connection, to, at, message| {
            let mut stolen = notes.lock().unwrap_or_else(PoisonError::into_inner);
            match (connection, to, at) {
                (0, To::Client, 1) => {
                    *stolen = message.clone();
                    vec![message]
                }
                // The second session gets the WELCOME of the first.
                (2, To::Client, 1) => vec![stolen.clone()],
                _ => vec![message],
            }
        }),
    );
    use_session(&relay.endpoint).expect("the first session");
    let error = use_session(&relay.endpoint).expect_err("the second session");
    assert!(matches!(error, LinkError::Garbage { what } if what.contains("record")), "{error:?}");
    assert_serves(&server);
}

#[test]
fn no_page_travels_in_clear() {
    let server = keyed_server();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&heard);
    let relay = Relay::start(
        &server,
        Arc::new(move |_, _, _, message| {
            notes.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&message);
            vec![message]
        }),
    );
    use_session(&relay.endpoint).expect("a session");
    let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(heard.len() > 5 * 4096, "{} bytes", heard.len());
    for (place, version) in [(0, 1), (0, 2), (1, 1)] {
        let secret = &page(place, version)[64..88];
        assert!(!heard.windows(secret.len()).any(|bytes| bytes == secret), "page {place} {version}");
    }
}
