//! The target for traces: decodes them and replays their records.

use hanare_paging::policy;
use hanare_paging::trace::{self, Framer, Header, Reader, Record, TraceError};
use hanare_sim::replay::replay_with;

use crate::first;
use crate::memory::within;

/// Offset of the header's text in a trace, in bytes.
const TEXT_AT: usize = 14;
/// Most units (pages) of a trace that is replayed. The bound is needed because a policy has state for each unit.
const REPLAYED_UNITS_MAX: u32 = 1 << 12;
/// Most requests for a page to unmap in a trace that is replayed. The bound is needed because one record may stand for
/// billions of requests.
const REPLAYED_QUESTIONS_MAX: u64 = 1 << 12;

pub(crate) fn run(data: &[u8]) {
    let Some((how, rest)) = first(data) else { return };
    let bytes = match how % 3 {
        0 => rest.to_vec(),
        1 => sealed(rest),
        _ => framed(how, rest),
    };
    let read = within(bytes.len(), 48, 4096, || read(&bytes));
    if let Ok((header, records)) = read {
        check_again(&header, &records, how % 3 == 2, &bytes);
        replay(&header, &records, &bytes);
    }
}

/// Returns `bytes`, read as a trace, with right checksums. Stops at the first length that points beyond the end.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let Some(length) = bytes.get(10..TEXT_AT).and_then(|raw| raw.try_into().ok()).map(u32::from_le_bytes) else {
        return bytes;
    };
    let mut at = TEXT_AT.saturating_add(length as usize);
    if let Some(head) = bytes.get(..at) {
        let crc = crc32fast::hash(head);
        put(&mut bytes, at, crc);
    }
    at += 4;
    while let Some(raw) = bytes.get(at..at + 4) {
        let length = u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
        let end = at + 8 + (length & !(1 << 31)) as usize;
        let Some(payload) = bytes.get(at + 8..end) else { break };
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&length.to_le_bytes());
        hasher.update(payload);
        put(&mut bytes, at + 4, hasher.finalize());
        at = end;
    }
    bytes
}

fn put(bytes: &mut [u8], at: usize, number: u32) {
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&number.to_le_bytes());
    }
}

/// Makes a complete trace whose records are the bytes of `stream`, up to the end of the last record.
fn framed(how: u8, stream: &[u8]) -> Vec<u8> {
    let end = stream.iter().rposition(|&byte| byte < 0x80).map_or(0, |last| last + 1);
    let mut stream = &stream[..end];
    let names: Vec<&str> = policy::POLICIES.iter().map(|info| info.name).collect();
    let header = Header {
        unit_bytes: 4096,
        units: 64,
        block_units: 1 << (how % 4),
        budget_units: 8,
        seed: how.into(),
        hides: true,
        policy: names[usize::from(how) % names.len()].to_owned(),
        ..Header::default()
    };
    let (mut framer, mut bytes) = Framer::start(&header, u64::MAX);
    loop {
        let (head, length) = framer.chunk(stream);
        if length == 0 {
            break;
        }
        bytes.extend(head);
        bytes.extend(&stream[..length]);
        stream = &stream[length..];
    }
    bytes.extend(framer.end(false));
    bytes
}

/// Returns the header and the records of a complete trace.
fn read(bytes: &[u8]) -> Result<(Header, Vec<Record>), TraceError> {
    let result = Reader::new(bytes).and_then(|mut reader| {
        let mut records = Vec::new();
        for record in reader.by_ref() {
            records.push(record?);
        }
        let end = reader.end().expect("a trace that was read without an error has an end");
        assert_eq!(end.counts.total(), records.len() as u64);
        assert_eq!((reader.offset(), reader.next()), (bytes.len(), None));
        let units = reader.header().units;
        assert!(records.iter().filter_map(page_of).all(|page| page < units), "a page beyond the far space");
        Ok((reader.header().clone(), records))
    });
    if let Err(error) = &result {
        assert!(!error.to_string().contains('\n'));
        if let TraceError::Truncated(at) | TraceError::Damaged(at, _) = error {
            assert!(*at <= bytes.len(), "{error:?} of {} bytes", bytes.len());
        }
    }
    result
}

fn page_of(record: &Record) -> Option<u32> {
    match record {
        Record::Wide(page)
        | Record::Inserted(page, _)
        | Record::Referenced(page, _)
        | Record::Removed(page, _)
        | Record::Forgotten(page)
        | Record::Refused(page)
        | Record::Victim(page)
        | Record::Hide(page)
        | Record::Coming(page) => Some(page.0),
        Record::NoVictim | Record::NoHide(_) | Record::Tick(_) => None,
    }
}

/// Encodes the records again and decodes the result. If `same_bytes` is true, the trace has the recorder's own framing,
/// and the encoding must give the same bytes.
fn check_again(header: &Header, records: &[Record], same_bytes: bool, bytes: &[u8]) {
    let again = trace::write(header, records.iter().copied());
    if same_bytes {
        assert!(again == bytes, "a trace decodes and encodes to other bytes");
    }
    let (second, same) = read(&again).expect("what was written is a trace");
    assert!(same == records, "records change when they are written again");
    // `fields` replaces control characters by blanks, as an encoding does. So the fields do not change.
    assert_eq!(second.fields(), header.fields());
}

fn replay(header: &Header, records: &[Record], bytes: &[u8]) {
    let asked = |record: &Record| if let Record::NoHide(times) = record { u64::from(*times) } else { 0 };
    let small = header.units <= REPLAYED_UNITS_MAX && records.iter().map(asked).sum::<u64>() <= REPLAYED_QUESTIONS_MAX;
    let (Ok(reader), true) = (Reader::new(bytes), small) else { return };
    let Ok(mut policy) = policy::build(&header.policy, header.space()) else { return };
    if let Err(error) = replay_with(reader, &mut *policy) {
        assert!(!error.to_string().contains('\n'));
    }
}
