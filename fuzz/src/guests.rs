//! The target for a memory server whose clients send any bytes. The server must answer in whole frames, end the
//! connection, and continue to serve other clients.

use std::io::{IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hanare_server::{Server, ServerConfig};
use hanare_wire::frame::{FLAG_PAYLOAD_CRC, HEADER_BYTES, Header, Kind};
use hanare_wire::handshake::control_header;
use hanare_wire::payload::{Hello, Role};
use hanare_wire::{
    AckStatus, Endpoint, Identity, ReadReplies, ReadRequests, Session, SessionOptions, Text, Wait, Writer,
};
use tempfile::TempDir;

use crate::first;
use crate::frames::seal;

/// Time limit for the server. It is longer than a server takes to end a connection after the peer's last byte.
const SOON: Duration = Duration::from_secs(20);
/// Most bytes that the server may hold, for all clients together.
const MEMORY_BYTES: u64 = 8 << 20;
/// Most bytes that each client may hold, so that the honest client always finds room.
const QUOTA_BYTES: u64 = 2 << 20;
/// Most bytes of answers that are examined. The bound is needed because a few small requests may ask for many pages.
const ANSWERS_MAX: u64 = 64 << 20;

/// A server that runs for all inputs, and an honest client that checks the server after each input.
struct House {
    path: PathBuf,
    witness: Mutex<Witness>,
    _dir: TempDir,
}

struct Witness {
    requests: ReadRequests,
    replies: ReadReplies,
    writer: Writer,
    round: u64,
}

/// Whether any thread has panicked. The server's threads are not joined, so a panic would not show otherwise.
static PANICKED: AtomicBool = AtomicBool::new(false);

fn house() -> &'static House {
    static HOUSE: OnceLock<House> = OnceLock::new();
    HOUSE.get_or_init(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICKED.store(true, SeqCst);
            before(info);
        }));
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("socket");
        let endpoint = Endpoint::Unix(path.clone());
        let mut config = ServerConfig::new(vec![endpoint.clone()], MEMORY_BYTES);
        (config.spin, config.client_quota) = (Duration::ZERO, Some(QUOTA_BYTES));
        let server = Server::bind(config).expect("a server");
        std::thread::spawn(move || server.run().expect("a good end"));
        let options = SessionOptions::for_endpoint(&endpoint, 4096);
        let (requests, replies, writer, _) = Session::open(&endpoint, &options).expect("a session").split();
        let witness = Witness { requests, replies, writer, round: 0 };
        House { path, witness: Mutex::new(witness), _dir: dir }
    })
}

pub(crate) fn run(data: &[u8]) {
    let Some((how, rest)) = first(data) else { return };
    let house = house();
    let mut stream = rest.to_vec();
    if how & 0x80 == 0 {
        seal(&mut stream);
    }
    let mut said = match how % 4 {
        0 => Vec::new(),
        1 => hello(Role::Session, how & 0x40 != 0),
        2 => hello(Role::Control, false),
        _ => hello(Role::Attach, false),
    };
    said.extend(stream);
    let answers = visit(house, &said);
    check_answers(&answers);
    house.witness.lock().unwrap_or_else(PoisonError::into_inner).check();
    assert!(!PANICKED.load(SeqCst), "a thread of the server panicked");
}

/// Returns a valid HELLO frame for the role. The server then accepts the connection and decodes the bytes that follow.
fn hello(role: Role, payload_crc: bool) -> Vec<u8> {
    let slot_size = if role == Role::Control { 0 } else { 4096 };
    let client = Identity { pid: 1, program: Text::new("guest"), host: Text::new("here") };
    let (session, token) = (0, [0; 16]);
    let payload =
        Hello { role, payload_crc, clone: false, takes_over: false, slot_size, session, token, client }.encode();
    let mut frame = control_header(Kind::Hello, 0, 0, &payload).encode().to_vec();
    frame.extend(payload);
    frame
}

/// Sends the bytes `said` and returns the answers up to the end of the connection.
fn visit(house: &House, said: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(&house.path).expect("the server listens");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    let reading = stream.try_clone().expect("a second descriptor");
    let taking = std::thread::spawn(move || {
        let mut answers = Vec::new();
        let ended = reading.take(ANSWERS_MAX).read_to_end(&mut answers);
        (answers, ended)
    });
    // An error is ignored, because the server may close the connection while the client still sends.
    let (Ok(()) | Err(_)) = stream.write_all(said).and_then(|()| stream.shutdown(Shutdown::Write));
    let (answers, ended) = taking.join().expect("the thread that reads");
    let in_time = ended.as_ref().err().is_none_or(|error| error.kind() != std::io::ErrorKind::WouldBlock);
    assert!(in_time, "the server keeps a connection whose guest has said all");
    answers
}

/// Checks that the answers are whole frames of kinds that servers send. Only the last frame may be incomplete, because
/// the server may end the connection in the middle of a frame.
fn check_answers(answers: &[u8]) {
    let mut rest = answers;
    while let Some((raw, behind)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let header = Header::decode(raw).expect("a header of the server's");
        let sent =
            !matches!(header.kind, Kind::Hello | Kind::Read | Kind::Write | Kind::Discard | Kind::Status | Kind::Ping);
        assert!(sent, "{header:?} from a server");
        let Some((payload, behind)) = behind.split_at_checked(header.payload_bytes()) else { return };
        let crc_fits = header.flags & FLAG_PAYLOAD_CRC == 0 || crc32fast::hash(payload) == header.payload_crc;
        assert!(crc_fits, "{header:?} with another checksum");
        rest = behind;
    }
}

impl Witness {
    /// Writes a page and reads it back. The bytes that are read must be the bytes that were written.
    fn check(&mut self) {
        self.round += 1;
        let page = [(self.round % 251) as u8; 4096];
        let offset = self.round % 16 * 4096;
        let wait = Wait::Block { timeout: SOON };
        self.writer.write(self.round, offset, &[IoSlice::new(&page)]).expect("the server takes a page");
        let ack = self.writer.try_ack(wait).expect("an answer").expect("in time");
        assert_eq!((ack.tag, ack.status), (self.round, AckStatus::Done));
        self.requests.request(self.round, offset, 4096).expect("the server takes a request");
        let reply = self.replies.try_header(wait).expect("a reply").expect("in time");
        let mut read = [0; 4096];
        assert_eq!((reply.tag, reply.offset, reply.len), (self.round, offset, 4096));
        self.replies.receive_payload(&mut read).expect("the page");
        assert!(read == page, "an honest client's page has changed");
    }
}
