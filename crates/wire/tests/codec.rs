//! Tests the codec of frames with valid headers, with headers in which one bit is flipped, and with random bytes.

use hanare_wire::frame::{FLAG_PAYLOAD_CRC, FrameError, HEADER_BYTES, Header, Kind};
use hanare_wire::limits::{CONTROL_MAX, DISCARD_MAX, RANGE_MAX};
use hanare_wire::payload::{GRANT_BYTES, Hello, Role, Welcome, pack_release, release_text};
use hanare_wire::{ErrorCode, Grant, Identity, LinkError, Place, Status, Text};
use proptest::prelude::*;

fn header() -> impl Strategy<Value = Header> {
    let kind = any::<u8>().prop_filter_map("a kind", Kind::from_wire);
    let fields = (any::<bool>(), any::<u64>(), 0u64..1 << 40, 1u32..=1024, any::<u32>(), any::<u32>());
    (kind, fields).prop_map(|(kind, (flag, tag, unit, units, payload_crc, code))| {
        let length = match kind {
            Kind::Read | Kind::Data | Kind::Write | Kind::Discard => units * 4096,
            Kind::Done | Kind::Status | Kind::Ping | Kind::Pong | Kind::Sessions | Kind::Attach | Kind::Attached => 0,
            _ => units % 81,
        };
        let flags = if flag { FLAG_PAYLOAD_CRC } else { 0 };
        Header { kind, flags, tag, offset: unit * 4096, length, payload_crc, code }
    })
}

/// Stores the CRC-32 of the first 36 bytes in the last 4 bytes. With a right checksum, the codec checks the header's
/// other fields too.
fn sealed(mut bytes: [u8; HEADER_BYTES]) -> [u8; HEADER_BYTES] {
    let crc = crc32fast::hash(&bytes[..36]);
    bytes[36..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

proptest! {
    #[test]
    fn headers_go_there_and_back(header in header()) {
        prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn every_flipped_bit_is_noticed(header in header()) {
        let good = header.encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Header::decode(&bad).is_err(), "bit {} went unnoticed", bit);
        }
    }

    #[test]
    fn bytes_from_nowhere_are_no_header(bytes in any::<[u8; HEADER_BYTES]>()) {
        prop_assert!(Header::decode(&bytes).is_err());
    }

    /// Decodes headers with the right magic, version and checksum, and random bytes in all other fields. The payload of
    /// an accepted header must be within the limits.
    #[test]
    fn lying_fields_never_promise_a_huge_payload(fields in any::<[u8; 30]>()) {
        let mut bytes = Header::bare(Kind::Ping, 0).encode();
        bytes[6..36].copy_from_slice(&fields);
        if let Ok(header) = Header::decode(&sealed(bytes)) {
            let most = if matches!(header.kind, Kind::Data | Kind::Write) { RANGE_MAX as usize } else { CONTROL_MAX };
            prop_assert!(header.payload_bytes() <= most);
            prop_assert_eq!(header.encode(), sealed(bytes));
        }
    }

    #[test]
    fn payloads_of_any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Some(hello) = Hello::decode(&bytes) {
            prop_assert_eq!(&hello.encode()[..], &bytes[..]);
        }
        if let Some(welcome) = Welcome::decode(&bytes) {
            prop_assert_eq!(&welcome.encode()[..], &bytes[..]);
        }
        if let Some(status) = Status::decode(&bytes) {
            prop_assert_eq!(&status.encode()[..], &bytes[..]);
        }
        if let Some(runs) = Grant::decode_runs(&bytes) {
            for (run, raw) in runs.zip(bytes.chunks(GRANT_BYTES)) {
                if let Some(run) = run {
                    prop_assert_eq!(&run.encode()[..], raw);
                    prop_assert!(run.count > 0);
                }
            }
        }
        prop_assert!(Text::from_peer(&bytes).as_str().chars().all(|c| c == '?' || !c.is_ascii_control()));
    }

    #[test]
    fn texts_keep_what_fits(text in ".{0,200}") {
        let kept = Text::new(&text);
        prop_assert!(text.starts_with(kept.as_str()));
        prop_assert!(kept.as_str().len() == text.len() || kept.as_str().len() > hanare_wire::limits::TEXT_MAX - 4);
    }
}

#[test]
fn hello_and_status_go_there_and_back() {
    let hello = Hello {
        role: Role::Session,
        payload_crc: true,
        clone: true,
        takes_over: false,
        slot_size: 65536,
        session: 7,
        token: [3; 16],
        client: Identity::of_this_process(),
    };
    assert_eq!(Hello::decode(&hello.encode()), Some(hello));
    let takes_over = Hello { clone: false, takes_over: true, ..hello };
    assert_eq!(Hello::decode(&takes_over.encode()), Some(takes_over));
    assert_eq!(Hello::decode(&Hello { clone: true, ..takes_over }.encode()), None, "a clone has nothing to take over");
    assert_eq!(Hello::decode(&Hello { session: 0, ..takes_over }.encode()), None, "nor has a new session");
    let mut uneven = hello.encode();
    uneven[4..8].copy_from_slice(&65535u32.to_le_bytes());
    assert_eq!(Hello::decode(&uneven), None, "a slot is a power of two");
    let status = Status { sessions: 1, slots: 2, write_bytes: u64::MAX, ..Status::default() };
    assert_eq!(Status::decode(&status.encode()), Some(status));
    assert_eq!(release_text(pack_release("1.22.333")), "1.22.333");
    let run = Grant { place: Place::Spill, first_slot: u32::MAX - 1, count: 1 };
    assert_eq!(Grant::decode(&run.encode()), Some(run));
    assert_eq!(Grant::decode(&Grant { count: 2, ..run }.encode()), None, "a run ends within 32 bits");
}

#[test]
fn ranges_are_judged() {
    let valid = |kind, offset, length| Header::range(kind, 0, offset, length).names_valid_range();
    assert!(valid(Kind::Read, 0, 4096) && valid(Kind::Read, 4096, RANGE_MAX) && valid(Kind::Discard, 0, DISCARD_MAX));
    for (offset, length) in [(0, 0), (1, 4096), (0, 4095), (0, RANGE_MAX + 4096), (u64::MAX - 4095, 8192)] {
        assert!(!valid(Kind::Read, offset, length), "{offset} {length}");
        let write = sealed(Header::range(Kind::Write, 0, offset, length).encode());
        assert!(matches!(Header::decode(&write), Err(FrameError::Field(_))), "{offset} {length}");
    }
}

#[test]
fn a_foreign_protocol_or_version_is_known_by_its_first_bytes() {
    assert_eq!(Header::check_beginning(b"HTTP/1.1 400"), Err(FrameError::Magic));
    assert_eq!(Header::check_beginning(b"HN"), Ok(()));
    assert_eq!(Header::check_beginning(b"HNRE\x02\x01"), Err(FrameError::Version(0x0102)));
    let error: LinkError = FrameError::Version(9).into();
    assert!(matches!(error, LinkError::Version { theirs: 9, ours: 2 }));
}

#[test]
fn error_codes_keep_their_numbers() {
    for (number, code) in
        [(1, ErrorCode::NotHeld), (2, ErrorCode::Full), (7, ErrorCode::NotAllowed), (8, ErrorCode::OverQuota)]
    {
        assert_eq!(ErrorCode::from_wire(number), Some(code));
    }
    assert_eq!(ErrorCode::from_wire(0), None);
    assert_eq!(ErrorCode::from_wire(9), None);
}
