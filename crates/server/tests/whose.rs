//! Tests of clients without a key at a server of another user. Such a client must end with one line that names the user,
//! before it sends a byte. Only root can run a server as another user, so without root these tests do nothing.

mod common;

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::mpsc;
use std::time::Duration;

use common::{Client, MIB, SOON, TestServer, become_user, page};
use hanare_wire::limits::CONNECT_DEFAULT;
use hanare_wire::{
    Attachment, Endpoint, Key, LinkError, Rejoined, Session, SessionInfo, SessionOptions, fetch_sessions, fetch_status,
};

/// The number of the other user, `nobody`.
const OTHER: u32 = 65_534;

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: only root can take another user's number");
    }
    is_root
}

fn options(endpoint: &Endpoint) -> SessionOptions {
    SessionOptions::for_endpoint(endpoint, 4096)
}

/// Checks that a client did not accept a server of the other user, and said why in one line.
fn assert_foreign<T>(result: Result<T, LinkError>) {
    let error = result.err().expect("refused");
    assert!(matches!(error, LinkError::Foreign { .. }), "{error:?}");
    let line = error.to_string();
    assert!(line.contains("user 65534's") && line.contains("--key") && !line.contains('\n'), "{line}");
}

#[test]
fn a_server_of_another_user_gets_no_session_and_no_page() {
    if !is_root() {
        return;
    }
    let (server, status) = TestServer::start_by(OTHER, 8 * MIB, |_| {});
    for endpoint in [&server.tcp, &server.unix] {
        assert_foreign(Client::open_with(endpoint, &options(endpoint)).map(|mut client| client.write(0, &page(0, 1))));
        assert_foreign(fetch_status(endpoint, None, SOON));
        assert_foreign(fetch_sessions(endpoint, None, SOON));
    }
    assert_foreign(Attachment::open(&server.unix_path(), 4096));
    let status = status.status().expect("it runs");
    assert_eq!((status.sessions, status.slots, status.write_bytes), (0, 0, 0), "{status:?}");
}

/// Accepts `count` connections as another user, by TCP or at a path. Returns the number of bytes that came with each.
fn listen_as_another_user(endpoint: &Endpoint, count: usize) -> mpsc::Receiver<usize> {
    let (sender, receiver) = mpsc::channel();
    let (begun, begins) = mpsc::channel();
    let endpoint = endpoint.clone();
    std::thread::spawn(move || {
        become_user(OTHER);
        let mut take: Box<dyn FnMut() -> Box<dyn Read>> = match &endpoint {
            Endpoint::Tcp(address) => {
                let listener = TcpListener::bind(address.as_str()).expect("the port is free");
                Box::new(move || Box::new(listener.accept().expect("a connection").0))
            }
            Endpoint::Unix(path) => {
                let listener = UnixListener::bind(path).expect("the path is free");
                Box::new(move || Box::new(listener.accept().expect("a connection").0))
            }
        };
        begun.send(()).expect("a receiver");
        for _ in 0..count {
            let mut bytes = Vec::new();
            // A client may end its connection by a reset.
            let (Ok(_) | Err(_)) = take().read_to_end(&mut bytes);
            sender.send(bytes.len()).expect("a receiver");
        }
    });
    begins.recv_timeout(SOON).expect("it listens");
    receiver
}

/// A token opens a session. A process that takes the place of a server that has ended must not learn one.
#[test]
fn whoever_takes_the_place_of_a_server_receives_no_byte() {
    if !is_root() {
        return;
    }
    for by_path in [false, true] {
        let dir = tempfile::tempdir().expect("temporary directory");
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).expect("its mode");
        let path = Endpoint::Unix(dir.path().join("socket"));
        let server = TestServer::start_with(8 * MIB, |config| config.listen.push(path.clone()));
        let endpoint = if by_path { path } else { server.tcp.clone() };
        let info: SessionInfo = Client::open(&endpoint, 4096).info;
        server.stop.stop();
        server.join();
        let calls = if by_path { 5 } else { 4 };
        let received = listen_as_another_user(&endpoint, calls);
        assert_foreign(Session::open(&endpoint, &options(&endpoint)));
        assert_foreign(Session::open_clone(&info, &options(&endpoint)));
        assert_foreign(Rejoined::open(&info, &options(&endpoint)));
        assert_foreign(fetch_status(&endpoint, None, SOON));
        if let Endpoint::Unix(path) = &endpoint {
            assert_foreign(Attachment::open(path, 4096));
        }
        for _ in 0..calls {
            assert_eq!(received.recv_timeout(SOON), Ok(0), "{endpoint}");
        }
    }
}

/// With a key, the server proves that it holds the key. Its user does not matter.
#[test]
fn with_a_key_a_server_may_be_of_any_user() {
    if !is_root() {
        return;
    }
    let key = Key::new(b"the right key 123").expect("a key");
    let (server, _) = TestServer::start_by(OTHER, 8 * MIB, |config| config.key = Some(key.clone()));
    for endpoint in [&server.tcp, &server.unix] {
        let mut client = Client::open_with(endpoint, &SessionOptions { key: Some(key.clone()), ..options(endpoint) })
            .expect("welcome");
        client.write(0, &page(0, 1)).expect("an answer");
        assert!(client.read(0, 4096).expect("a page") == page(0, 1));
    }
}

/// The kernel does not know the user of a server before the server has accepted the connection.
#[test]
fn a_server_that_accepts_late_is_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = Endpoint::Tcp(listener.local_addr().expect("an address").to_string());
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        let mut head = [0; 4];
        listener.accept().expect("a connection").0.read_exact(&mut head).expect("a HELLO");
    });
    let error = Session::open(&endpoint, &options(&endpoint)).expect_err("it does not answer");
    assert!(matches!(error, LinkError::Closed), "{error:?}");
    late.join().expect("the HELLO came");
    // A server that never accepts is silent.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = Endpoint::Tcp(listener.local_addr().expect("an address").to_string());
    let short = SessionOptions { connect_timeout: CONNECT_DEFAULT / 10, ..options(&endpoint) };
    let error = Session::open(&endpoint, &short).expect_err("it does not accept");
    assert!(matches!(error, LinkError::Silent { .. }), "{error:?}");
}
