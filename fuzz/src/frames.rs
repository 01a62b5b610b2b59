//! The target for frames and for payloads of a fixed form, as a server and a client decode them.

use hanare_wire::frame::{HEADER_BYTES, Header, Kind, MAGIC, VERSION};
use hanare_wire::limits::{CONTROL_MAX, GRANT_RUNS_MAX, RANGE_MAX, TEXT_MAX};
use hanare_wire::payload::{Grant, Hello, Status, Welcome};
use hanare_wire::{ErrorCode, LinkError, SessionStatus, Text};

use crate::first;
use crate::memory::within;

/// Bit of an input's first byte. If it is set, the checksums of the rest are corrected, so that decoders reach later
/// checks.
const SEALED: u8 = 1;

pub(crate) fn run(data: &[u8]) {
    let Some((how, rest)) = first(data) else { return };
    let mut stream = rest.to_vec();
    if how & SEALED != 0 {
        seal(&mut stream);
    }
    within(stream.len(), 8, 4096, || read(&stream));
}

/// Writes the right magic, version and checksum into every header of a stream. Also corrects the checksum of a payload
/// if the header's flag asks for one.
pub(crate) fn seal(stream: &mut [u8]) {
    let mut at = 0;
    while let Some(raw) = stream.get_mut(at..at + HEADER_BYTES) {
        raw[..4].copy_from_slice(&MAGIC);
        raw[4..6].copy_from_slice(&VERSION.to_le_bytes());
        seal_header(raw);
        at += HEADER_BYTES;
        let Some(header) = decode(&stream[at - HEADER_BYTES..at]) else { continue };
        let end = stream.len().min(at + header.payload_bytes());
        if header.has_payload_crc() {
            let crc = crc32fast::hash(&stream[at..end]).to_le_bytes();
            let raw = &mut stream[at - HEADER_BYTES..at];
            raw[28..32].copy_from_slice(&crc);
            seal_header(raw);
        }
        at = end;
    }
}

fn seal_header(raw: &mut [u8]) {
    let crc = crc32fast::hash(&raw[..36]).to_le_bytes();
    raw[36..40].copy_from_slice(&crc);
}

fn decode(raw: &[u8]) -> Option<Header> {
    Header::decode(raw.try_into().ok()?).ok()
}

/// Decodes the frames of a stream one after another, up to the first frame that is refused.
fn read(stream: &[u8]) {
    let mut rest = stream;
    while let Some((raw, behind)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let header = match Header::decode(raw) {
            Ok(header) => header,
            Err(error) => return words(&LinkError::from(error).to_string()),
        };
        assert_eq!(header.encode(), *raw, "a header decodes and encodes to other bytes");
        assert!((0..=HEADER_BYTES).all(|n| Header::check_beginning(&raw[..n]).is_ok()), "a beginning is refused");
        assert!(header.payload_bytes() <= RANGE_MAX as usize, "{header:?} promises too much");
        let Some((payload, behind)) = behind.split_at_checked(header.payload_bytes()) else { return };
        check_payload(&header, payload);
        rest = behind;
    }
    // If the beginning of a frame is refused, its whole header must be refused as well.
    if Header::check_beginning(rest).is_err() {
        let mut whole = [0; HEADER_BYTES];
        whole[..rest.len()].copy_from_slice(rest);
        seal_header(&mut whole);
        assert!(Header::decode(&whole).is_err(), "a header whose beginning is refused");
    }
}

fn check_payload(header: &Header, payload: &[u8]) {
    match header.kind {
        Kind::Hello => {
            if let Some(hello) = Hello::decode(payload) {
                words(hello.client.program.as_str());
                words(hello.client.host.as_str());
                assert_eq!(hello.encode(), payload);
            }
        }
        Kind::Welcome => drop(Welcome::decode(payload).map(|welcome| assert_eq!(welcome.encode(), payload))),
        Kind::StatusReply => drop(Status::decode(payload).map(|status| assert_eq!(status.encode(), payload))),
        Kind::SessionsReply => {
            if let Some(sessions) = SessionStatus::decode_all(payload, header.offset) {
                sessions.iter().for_each(|session| words(session.client.program.as_str()));
                assert!(sessions.iter().all(|session| session.bytes() >= session.slots.min(session.slot_bytes)
                    || session.slots == 0
                    || session.slot_bytes == 0));
                assert_eq!(sessions.iter().flat_map(SessionStatus::encode).collect::<Vec<_>>(), payload);
                assert!(payload.len() <= CONTROL_MAX);
            }
        }
        Kind::Grant | Kind::Return => check_runs(payload),
        Kind::Error => {
            let text = Text::from_peer(payload);
            words(text.as_str());
            assert!(text.as_str().len() <= TEXT_MAX && text.as_str().len() <= payload.len());
            if let Some(code) = ErrorCode::from_wire(header.code) {
                assert_eq!(code as u32, header.code);
                words(&LinkError::Server { tag: header.tag, code, text }.to_string());
            }
        }
        _ => {}
    }
}

fn check_runs(payload: &[u8]) {
    let Some(runs) = Grant::decode_runs(payload) else { return };
    let mut bytes = Vec::new();
    for run in runs {
        let Some(run) = run else { return };
        assert!(run.count > 0 && run.first_slot.checked_add(run.count).is_some(), "{run:?}");
        bytes.extend(run.encode());
    }
    assert_eq!(bytes, payload);
    assert!((1..=GRANT_RUNS_MAX * 12).contains(&payload.len()));
}

/// Checks that text from a peer has no control characters, because people read it on a terminal.
pub(crate) fn words(text: &str) {
    assert!(!text.chars().any(char::is_control), "control characters of a peer reach people: {text:?}");
}
