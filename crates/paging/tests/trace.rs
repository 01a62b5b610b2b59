//! Tests that traces survive writing and reading, and that damaged bytes are reported with their offset.

use std::sync::{Arc, Mutex};

use hanare_paging::PageId;
use hanare_paging::policy::{Cause, Leave, Policy, Space, build};
use hanare_paging::trace::{Framer, Header, Reader, Record, Recorder, Sink, TraceError, write};
use proptest::prelude::*;

const UNITS: u32 = 1 << 20;

fn header() -> Header {
    Header {
        unit_bytes: 4096,
        block_units: 1,
        units: UNITS,
        budget_units: 100,
        seed: u64::MAX,
        hides: true,
        policy: "fifo".into(),
        prefetch: "none".into(),
        mode: "thread".into(),
        program: "sort -S 1=2".into(),
    }
}

fn read(bytes: &[u8]) -> Result<Vec<Record>, TraceError> {
    Reader::new(bytes)?.collect()
}

fn record() -> impl Strategy<Value = Record> {
    let page = (0..UNITS).prop_map(PageId);
    let cause = prop_oneof![Just(Cause::Read), Just(Cause::Write), Just(Cause::Ahead)];
    let why = prop_oneof![Just(Leave::Evicted), Just(Leave::Forgotten)];
    prop_oneof![
        (page.clone(), cause).prop_map(|(page, cause)| Record::Inserted(page, cause)),
        (page.clone(), any::<bool>()).prop_map(|(page, write)| Record::Referenced(page, write)),
        (page.clone(), why).prop_map(|(page, why)| Record::Removed(page, why)),
        page.clone().prop_map(Record::Forgotten),
        page.clone().prop_map(Record::Refused),
        page.clone().prop_map(Record::Victim),
        page.clone().prop_map(Record::Coming),
        page.clone().prop_map(Record::Wide),
        Just(Record::NoVictim),
        page.prop_map(Record::Hide),
        any::<u32>().prop_map(Record::NoHide),
        (0_u64..1 << 56).prop_map(Record::Tick),
    ]
}

proptest! {
    #[test]
    fn records_come_back_as_written(records in proptest::collection::vec(record(), 0..5000)) {
        let bytes = write(&header(), records.iter().copied());
        let mut reader = Reader::new(&bytes).unwrap();
        prop_assert_eq!(reader.header(), &header());
        let back: Result<Vec<_>, _> = reader.by_ref().collect();
        prop_assert_eq!(back, Ok(records.clone()));
        let end = reader.end().unwrap();
        prop_assert_eq!(end.counts.total(), records.len() as u64);
        prop_assert!(!end.cut);
    }

    #[test]
    fn any_bytes_at_all_are_read_without_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..400), whole in any::<bool>(),
    ) {
        let mut all = if whole { b"HANTRACE\x01\0".to_vec() } else { Vec::new() };
        all.extend(bytes);
        prop_assert!(read(&all).is_err());
    }
}

#[test]
fn a_trace_cut_anywhere_is_truncated_there() {
    let bytes = write(&header(), (0..9000).map(|i| Record::Victim(PageId(i * 37 % UNITS))));
    assert_eq!(read(&[]), Err(TraceError::Empty));
    for len in (1..bytes.len()).step_by(7).chain(bytes.len() - 200..bytes.len()) {
        let error = read(&bytes[..len]).unwrap_err();
        assert_eq!(error, TraceError::Truncated(len), "{len} of {}", bytes.len());
        assert!(error.to_string().contains(&format!("offset {len}")));
    }
    let mut more = bytes.clone();
    more.push(0);
    assert!(matches!(read(&more), Err(TraceError::Damaged(at, _)) if at == bytes.len()));
}

#[test]
fn a_changed_byte_anywhere_is_found() {
    let bytes = write(&header(), (0..3000).map(|i| Record::Referenced(PageId(i * 11), i % 2 == 0)));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        let error = read(&damaged).unwrap_err();
        let told = match error {
            TraceError::Foreign => 0,
            TraceError::Version(_) => 8,
            TraceError::Truncated(offset) | TraceError::Damaged(offset, _) => offset,
            TraceError::Empty => unreachable!("not empty"),
        };
        // The reported offset is at most one chunk away from the damage. If the damage changed a length, the reported
        // offset may be the end of the trace instead.
        assert!(told.abs_diff(at) <= (16 << 10) + 8 || told == bytes.len(), "byte {at}: {error}");
    }
    assert_eq!(read(b"ELF and so on"), Err(TraceError::Foreign));
    let mut newer = bytes;
    newer[8] = 9;
    assert_eq!(read(&newer), Err(TraceError::Version(9)));
}

/// A sink that accepts a limited number of bytes.
struct Room(Arc<Mutex<Vec<u8>>>, usize);

impl Sink for Room {
    fn push(&mut self, record: &[u8]) -> bool {
        let mut bytes = self.0.lock().unwrap();
        if bytes.len() + record.len() > self.1 {
            return false;
        }
        bytes.extend(record);
        true
    }
}

fn frame(stream: &[u8], bytes_max: u64) -> Vec<u8> {
    let (mut framer, mut bytes) = Framer::start(&header(), bytes_max);
    let mut stream = stream;
    loop {
        let (head, len) = framer.chunk(stream);
        if len == 0 {
            break;
        }
        bytes.extend(head);
        bytes.extend(&stream[..len]);
        stream = &stream[len..];
    }
    assert_eq!(framer.is_cut(), !stream.is_empty());
    bytes.extend(framer.end(false));
    bytes
}

/// Drives a recorded policy. Returns the records that the trace must contain afterwards.
fn drive(recorder: &mut Recorder, rounds: u32) -> Vec<Record> {
    let mut wanted = Vec::new();
    for round in 0..rounds {
        let (old, new) = (PageId(round * 3), PageId(round * 3 + 1));
        for page in [old, new] {
            recorder.coming(page);
            wanted.push(Record::Coming(page));
            recorder.inserted(page, Cause::Write);
            wanted.push(Record::Inserted(page, Cause::Write));
        }
        recorder.tick(u64::from(round) * 20);
        recorder.referenced(old, false);
        assert_eq!(recorder.victim(&|page| page != old), Some(new));
        assert_eq!(recorder.victim(&|_| false), None);
        assert_eq!(recorder.next_to_hide(), None);
        wanted.extend([Record::Tick(u64::from(round) * 20), Record::Referenced(old, false)]);
        wanted.extend([Record::Refused(old), Record::Victim(new), Record::Refused(old), Record::Refused(new)]);
        wanted.push(Record::NoVictim);
        recorder.removed(new, Leave::Evicted);
        recorder.removed(old, Leave::Forgotten);
        recorder.forgotten(new);
        wanted.extend([Record::Removed(new, Leave::Evicted), Record::Removed(old, Leave::Forgotten)]);
        wanted.push(Record::Forgotten(new));
    }
    wanted
}

fn recorded(room: usize) -> (Vec<u8>, Vec<Record>) {
    let stream = Arc::new(Mutex::new(Vec::new()));
    let policy = build("fifo", Space { units: UNITS, block_units: 1, seed: 0, hides: true }).unwrap();
    let mut recorder = Recorder::new(policy, Box::new(Room(Arc::clone(&stream), room)));
    let wanted = drive(&mut recorder, 5000);
    let stream = stream.lock().unwrap().clone();
    (stream, wanted)
}

#[test]
fn a_recorder_passes_all_on_and_writes_all_down() {
    let (stream, wanted) = recorded(usize::MAX);
    assert_eq!(read(&frame(&stream, u64::MAX)), Ok(wanted));
}

#[test]
fn a_bound_leaves_a_whole_trace_of_the_beginning() {
    let (stream, wanted) = recorded(10_000);
    assert!((9_990..=10_000).contains(&stream.len()));
    let back = read(&frame(&stream, u64::MAX)).unwrap();
    assert!(back.len() > 1000);
    assert_eq!(back, wanted[..back.len()], "what the sink took is a prefix");
    let (stream, wanted) = recorded(usize::MAX);
    assert!(stream.len() > 45_000);
    for bound in [0, 100, 1000, 40_000, 40_001] {
        let bytes = frame(&stream, bound);
        let mut reader = Reader::new(&bytes).unwrap();
        let back: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
        assert!(reader.end().unwrap().cut);
        assert_eq!(back, wanted[..back.len()]);
        assert!(bound < 1000 || (bound - 100..=bound).contains(&(bytes.len() as u64)), "{} of {bound}", bytes.len());
    }
}
