//! A memory server that runs in the test's process, and helpers for clients of this server.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its own part of this")]

use std::io::IoSlice;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hanare_server::{Server, ServerConfig, StatusHandle, StopHandle};
use hanare_wire::{
    Ack, AckStatus, Endpoint, LinkError, ReadReplies, ReadRequests, Session, SessionInfo, SessionOptions, Status, Wait,
    Writer, fetch_status,
};
use tempfile::TempDir;

/// Time limit of every wait. It is far longer than any request takes, and short enough to report a hang soon.
pub const SOON: Duration = Duration::from_secs(30);
pub const MIB: u64 = 1 << 20;

/// Gives this thread to another user. Only root can do this.
pub fn become_user(user: u32) {
    let user = rustix::process::Uid::from_raw(user);
    rustix::thread::set_thread_res_uid(user, user, user).expect("root may do this");
}

/// A running server. Dropping it stops the server and joins the server's thread.
pub struct TestServer {
    pub tcp: Endpoint,
    pub unix: Endpoint,
    pub stop: StopHandle,
    pub dir: TempDir,
    thread: Option<JoinHandle<()>>,
}

impl TestServer {
    pub fn start(memory: u64) -> TestServer {
        TestServer::start_with(memory, |_| {})
    }

    pub fn start_with(memory: u64, change: impl FnOnce(&mut ServerConfig)) -> TestServer {
        let dir = tempfile::tempdir().expect("temporary directory");
        let unix = Endpoint::Unix(dir.path().join("socket"));
        let mut config = ServerConfig::new(vec!["127.0.0.1:0".parse().expect("an address"), unix.clone()], memory);
        change(&mut config);
        let server = Server::bind(config).expect("a server");
        let tcp = server.local_addrs()[0].clone();
        let stop = server.stop_handle();
        let thread = std::thread::spawn(move || server.run().expect("a good end"));
        TestServer { tcp, unix, stop, dir, thread: Some(thread) }
    }

    /// Starts a server of another user. Only root can do this. The kernel knows the user of each thread.
    pub fn start_by(user: u32, memory: u64, change: impl FnOnce(&mut ServerConfig)) -> (TestServer, StatusHandle) {
        let dir = tempfile::tempdir().expect("temporary directory");
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).expect("its mode");
        let unix = Endpoint::Unix(dir.path().join("socket"));
        let mut config = ServerConfig::new(vec!["127.0.0.1:0".parse().expect("an address"), unix.clone()], memory);
        change(&mut config);
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            become_user(user);
            let server = Server::bind(config).expect("a server");
            let handles = (server.local_addrs()[0].clone(), server.stop_handle(), server.status_handle());
            sender.send(handles).expect("a receiver");
            server.run().expect("a good end");
        });
        let (tcp, stop, status) = receiver.recv().expect("a server");
        (TestServer { tcp, unix, stop, dir, thread: Some(thread) }, status)
    }

    pub fn unix_path(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    pub fn status(&self) -> Status {
        fetch_status(&self.unix, None, SOON).expect("a status")
    }

    /// Waits until the server's status satisfies `wished`, and returns the status. Tests need this because the server
    /// notices the end of a connection with a small delay.
    pub fn status_until(&self, wished: impl Fn(&Status) -> bool) -> Status {
        let end = Instant::now() + SOON;
        loop {
            let status = self.status();
            if wished(&status) {
                return status;
            }
            assert!(Instant::now() < end, "still {status:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn join(mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a good end");
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the server panicked");
        }
    }
}

/// A session with calls that send one request and wait for its answer.
pub struct Client {
    pub requests: ReadRequests,
    pub replies: ReadReplies,
    pub writer: Writer,
    pub info: SessionInfo,
    tag: u64,
}

impl Client {
    pub fn open(endpoint: &Endpoint, slot_size: u32) -> Client {
        Client::open_with(endpoint, &SessionOptions::for_endpoint(endpoint, slot_size)).expect("a session")
    }

    pub fn open_with(endpoint: &Endpoint, options: &SessionOptions) -> Result<Client, LinkError> {
        let (requests, replies, writer, info) = Session::open(endpoint, options)?.split();
        Ok(Client { requests, replies, writer, info, tag: 0 })
    }

    /// Opens a session that begins with the contents of this session.
    pub fn cloned(&self, options: &SessionOptions) -> Client {
        let (requests, replies, writer, info) = Session::open_clone(&self.info, options).expect("a clone").split();
        Client { requests, replies, writer, info, tag: 0 }
    }

    pub fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, LinkError> {
        self.tag += 1;
        self.requests.request(self.tag, offset, len)?;
        self.receive(offset, len)
    }

    /// Receives the reply to the oldest request, and checks that the request was for this range.
    pub fn receive(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, LinkError> {
        let reply = self.replies.try_header(Wait::Block { timeout: SOON })?.expect("a reply in time");
        assert_eq!((reply.offset, reply.len), (offset, len));
        let mut bytes = vec![0xEE; len as usize];
        self.replies.receive_payload(&mut bytes)?;
        Ok(bytes)
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<AckStatus, LinkError> {
        self.tag += 1;
        self.writer.write(self.tag, offset, &[IoSlice::new(bytes)])?;
        self.ack(self.tag)
    }

    pub fn discard(&mut self, offset: u64, len: u32) {
        self.tag += 1;
        self.writer.discard(self.tag, offset, len).expect("sent");
        assert_eq!(self.ack(self.tag).expect("an answer"), AckStatus::Done);
    }

    pub fn ack(&mut self, expected: u64) -> Result<AckStatus, LinkError> {
        let Ack { tag, status, .. } = self.writer.try_ack(Wait::Block { timeout: SOON })?.expect("an ack in time");
        assert_eq!(tag, expected);
        Ok(status)
    }
}

/// Returns a page in which every word encodes `place`, `version` and the word's index.
pub fn page(place: u64, version: u64) -> Vec<u8> {
    (0..512u64).flat_map(|word| (place << 40 | version << 16 | word).to_le_bytes()).collect()
}
