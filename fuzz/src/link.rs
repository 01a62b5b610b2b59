//! The target for a client whose memory server sends any bytes.

use std::io::{IoSlice, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use hanare_wire::limits::RANGE_MAX;
use hanare_wire::{Attachment, Endpoint, LinkError, Session, SessionOptions, Wait, fetch_sessions, fetch_status};
use tempfile::TempDir;

use crate::first;
use crate::frames::{seal, words};
use crate::memory::within;

/// Time limit of a call. It is longer than any wait for a server that has closed its end of the connection.
const SOON: Duration = Duration::from_secs(60);
/// Most replies that one session receives. The same limit holds for its acknowledgements.
const TAKEN_MAX: usize = 32;

/// A server that sends the bytes of an input on the first two connections that the client opens for this input.
struct Liar {
    endpoint: Endpoint,
    speech: Mutex<Speech>,
    _dir: TempDir,
}

#[derive(Default)]
struct Speech {
    /// The bytes to send on each further connection. The next connection gets the last element.
    next: Vec<Vec<u8>>,
    /// Connections that were answered. They stay open, because a client that writes to a closed connection would stop
    /// before it has read all bytes.
    open: Vec<UnixStream>,
}

static LIAR: OnceLock<Liar> = OnceLock::new();

fn liar() -> &'static Liar {
    LIAR.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        std::thread::spawn(move || listener.incoming().flatten().for_each(answer));
        Liar { endpoint: Endpoint::Unix(path), speech: Mutex::default(), _dir: dir }
    })
}

fn speech(liar: &Liar) -> MutexGuard<'_, Speech> {
    liar.speech.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn answer(mut stream: UnixStream) {
    let Some(liar) = LIAR.get() else { return };
    let mut speech = speech(liar);
    let words = speech.next.pop().unwrap_or_default();
    // An error is ignored, because the client may have given up and closed the connection.
    let (Ok(()) | Err(_)) = stream.write_all(&words).and_then(|()| stream.shutdown(Shutdown::Write));
    speech.open.push(stream);
}

pub(crate) fn run(data: &[u8]) {
    let Some((how, rest)) = first(data) else { return };
    // Two bytes give the offset at which the bytes for the second connection begin.
    let Some((at, rest)) = rest.split_first_chunk::<2>() else { return };
    let (first, second) = rest.split_at(usize::from(u16::from_le_bytes(*at)).min(rest.len()));
    let mut parts = [second.to_vec(), first.to_vec()];
    if how & 0x80 == 0 {
        parts.iter_mut().for_each(|part| seal(part));
    }
    let liar = liar();
    *speech(liar) = Speech { next: parts.into(), open: Vec::new() };
    // The client may hold 512 KiB for any input: two inboxes and a list of sessions.
    let result = within(data.len(), 16, 512 << 10, || match how % 5 {
        0 => fetch_status(&liar.endpoint, None, SOON).map(drop),
        1 => fetch_sessions(&liar.endpoint, None, SOON).map(drop),
        2 => Attachment::open(path(liar), 4096).map(drop),
        n => converse(liar, n == 4),
    });
    if let Err(error) = result {
        words(&error.to_string());
        assert!(!matches!(error, LinkError::Silent { .. } | LinkError::Misuse { .. }), "{error}");
    }
}

fn path(liar: &Liar) -> &std::path::Path {
    match &liar.endpoint {
        Endpoint::Unix(path) => path,
        Endpoint::Tcp(_) => unreachable!("the liar listens on a path"),
    }
}

/// Opens a session, sends a few reads and writes, and receives the answers.
fn converse(liar: &Liar, payload_checksum: bool) -> Result<(), LinkError> {
    let options = SessionOptions {
        payload_checksum,
        connect_timeout: SOON,
        silent_timeout: SOON,
        ..SessionOptions::for_endpoint(&liar.endpoint, 4096)
    };
    let (mut requests, mut replies, mut writer, _) = Session::open(&liar.endpoint, &options)?.split();
    requests.request_many(&[(1, 0, 4096), (2, 8192, 8192)])?;
    writer.write(3, 0, &[IoSlice::new(&[7; 4096])])?;
    writer.discard(4, 4096, 4096)?;
    writer.ping(5)?;
    let mut page = Vec::new();
    for _ in 0..TAKEN_MAX {
        let Some(reply) = replies.try_header(Wait::Now)? else { break };
        assert!(reply.len > 0 && reply.len <= RANGE_MAX);
        // A caller has room only for the bytes that it has requested. It gives up on a server that sends more.
        if reply.len > 8192 {
            break;
        }
        page.resize(reply.len as usize, 0);
        replies.receive_payload(&mut page)?;
    }
    for _ in 0..TAKEN_MAX {
        if writer.try_ack(Wait::Now)?.is_none() {
            break;
        }
    }
    Ok(())
}
