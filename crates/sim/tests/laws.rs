//! Laws that hold for every policy on every string, and replays of runs that the machine itself recorded.

use std::sync::{Arc, Mutex};

use hanare_paging::policy::{Cause, Leave, Opt, POLICIES, Policy, build};
use hanare_paging::trace::{Framer, Header, Reader, Record, Recorder, Sink, TraceError, write};
use hanare_paging::{PageId, Space};
use hanare_sim::replay::{ReplayError, replay};
use hanare_sim::{Figures, RefString, Step, Visible, machine, opt};
use proptest::prelude::*;

const PAGES: u32 = 64;
const SPACE: Space = Space { units: PAGES, block_units: 1, seed: 7, hides: true };

fn run(policy: &str, string: &RefString, capacity: u32, visible: Visible) -> Figures {
    let mut policy = build(policy, SPACE).unwrap();
    machine::run(string, &mut *policy, capacity, visible, &|_| {}).unwrap()
}

/// Generates steps over few pages, with loops, hot pages and discards.
fn steps(writes: bool) -> impl Strategy<Value = Vec<Step>> {
    let reference = move |page: u32, write: bool| if write && writes { Step::Write(page) } else { Step::Read(page) };
    let one = prop_oneof![
        8 => (0..PAGES, any::<bool>()).prop_map(move |(page, write)| vec![reference(page, write)]),
        4 => (0..8_u32, any::<bool>()).prop_map(move |(page, write)| vec![reference(page, write)]),
        2 => (0..PAGES / 2, 1..PAGES / 2).prop_map(|(first, len)| (first..first + len).map(Step::Read).collect()),
        1 => (0..PAGES).prop_map(|page| vec![Step::Discard(page)]),
        1 => (0..200_u32).prop_map(|ms| vec![Step::Pass(ms)]),
    ];
    proptest::collection::vec(one, 1..150).prop_map(|parts| parts.concat())
}

/// Returns the fewest misses possible, by a search of all choices.
fn least_misses(pages: &[u32], memory: &[u32], capacity: usize) -> u64 {
    let Some((&page, rest)) = pages.split_first() else { return 0 };
    if memory.contains(&page) {
        return least_misses(rest, memory, capacity);
    }
    if memory.len() < capacity {
        return 1 + least_misses(rest, &[memory, &[page]].concat(), capacity);
    }
    let without = |index: usize| {
        let mut memory = memory.to_vec();
        memory[index] = page;
        memory
    };
    1 + (0..memory.len()).map(|index| least_misses(rest, &without(index), capacity)).min().unwrap_or(0)
}

proptest! {
    #[test]
    fn opt_is_never_beaten(steps in steps(true), capacity in 2..PAGES) {
        let string = RefString::new(steps);
        let best = opt::run(&string, capacity).misses;
        for info in POLICIES {
            for visible in [Visible::Traps, Visible::All] {
                let misses = run(info.name, &string, capacity, visible).misses;
                prop_assert!(misses >= best, "{} misses {} times, OPT {}", info.name, misses, best);
            }
        }
    }

    #[test]
    fn opt_is_the_best_there_is(pages in proptest::collection::vec(0_u32..6, 1..14), capacity in 1_usize..4) {
        let string = RefString::new(pages.iter().map(|&page| Step::Read(page)));
        prop_assert_eq!(opt::run(&string, capacity as u32).misses, least_misses(&pages, &[], capacity));
    }

    #[test]
    fn opt_as_a_policy_and_opt_over_the_whole_string_miss_alike(steps in steps(true), capacity in 2..PAGES) {
        let reference = |step: &Step| matches!(step, Step::Read(_) | Step::Write(_));
        let string = RefString::new(steps.into_iter().filter(reference));
        let pages = string.steps().filter_map(|step| match step {
            Step::Read(page) | Step::Write(page) => Some(page),
            _ => None,
        });
        let mut policy = Opt::new(PAGES, &pages.collect::<Vec<_>>());
        let figures = machine::run(&string, &mut policy, capacity, Visible::All, &|_| {}).unwrap();
        prop_assert_eq!(figures.misses, opt::run(&string, capacity).misses);
    }

    #[test]
    fn a_larger_memory_never_costs_lru_or_opt_more(steps in steps(true), capacity in 2..PAGES - 1) {
        let string = RefString::new(steps);
        let lru = |capacity| run("lru", &string, capacity, Visible::All).misses;
        prop_assert!(lru(capacity + 1) <= lru(capacity));
        prop_assert!(opt::run(&string, capacity + 1).misses <= opt::run(&string, capacity).misses);
    }

    #[test]
    fn lru_without_a_visible_reference_is_fifo(steps in steps(false), capacity in 2..PAGES) {
        let string = RefString::new(steps);
        let traps = |policy| run(policy, &string, capacity, Visible::Traps);
        prop_assert_eq!(traps("lru"), traps("fifo"));
    }

    #[test]
    fn every_policy_replays_its_own_victims(steps in steps(true), capacity in 2..PAGES) {
        let discards = steps.iter().filter(|step| matches!(step, Step::Discard(_))).count() as u64;
        let string = RefString::new(steps);
        for info in POLICIES {
            let (trace, figures) = record(info.name, &string, capacity);
            let replayed = replay(&trace).map_err(|error| TestCaseError::fail(format!("{}: {error}", info.name)))?;
            let named = Reader::new(&trace).unwrap().filter(|record| matches!(record, Ok(Record::Victim(_)))).count();
            prop_assert_eq!((replayed.victims, replayed.cut), (named as u64, false));
            prop_assert!(replayed.hidden >= figures.protects);
            prop_assert!(replayed.victims + u64::from(capacity) + discards >= figures.misses);
        }
    }

    #[test]
    fn the_string_of_a_trace_is_what_was_seen(steps in steps(true)) {
        // All pages fit into memory, so the policy sees every reference that costs something.
        let string = RefString::new(steps);
        let (trace, figures) = record("fifo", &string, PAGES);
        let (header, seen) = RefString::from_trace(&trace).unwrap();
        prop_assert_eq!(header.units, PAGES);
        prop_assert_eq!(seen.distinct(), string.distinct());
        prop_assert_eq!(run("fifo", &seen, PAGES, Visible::Traps), figures);
    }
}

#[derive(Clone, Default)]
struct Tape(Arc<Mutex<Vec<u8>>>);

impl Sink for Tape {
    fn push(&mut self, record: &[u8]) -> bool {
        self.0.lock().unwrap().extend(record);
        true
    }
}

/// Runs a policy while recording it. Returns the trace.
fn record(policy: &str, string: &RefString, capacity: u32) -> (Vec<u8>, Figures) {
    let tape = Tape::default();
    let mut recorder: Box<dyn Policy> = Box::new(Recorder::new(build(policy, SPACE).unwrap(), Box::new(tape.clone())));
    let figures = machine::run(string, &mut *recorder, capacity, Visible::Traps, &|_| {}).unwrap();
    let stream = tape.0.lock().unwrap().clone();
    (frame(policy, &stream), figures)
}

fn frame(policy: &str, mut stream: &[u8]) -> Vec<u8> {
    let Space { units, block_units, seed, hides } = SPACE;
    let header =
        Header { unit_bytes: 4096, units, block_units, seed, hides, policy: policy.into(), ..Header::default() };
    let (mut framer, mut bytes) = Framer::start(&header, u64::MAX);
    while !stream.is_empty() {
        let (head, len) = framer.chunk(stream);
        bytes.extend(head);
        bytes.extend(&stream[..len]);
        stream = &stream[len..];
    }
    bytes.extend(framer.end(false));
    bytes
}

#[test]
fn another_policys_victims_are_told_apart_and_nonsense_is_refused() {
    let string = RefString::new((0..40).map(Step::Write).chain([Step::Read(39), Step::Read(3), Step::Write(50)]));
    let (trace, _) = record("fifo", &string, 20);
    assert!(replay(&trace).is_ok_and(|replayed| replayed.victims == 22));
    // The trace was recorded with FIFO, but its header names Simple. Simple evicts pages in the order of their
    // addresses. Its victims differ from FIFO's when pages come in at descending addresses.
    let tape = Tape::default();
    let mut recorder = Recorder::new(build("fifo", SPACE).unwrap(), Box::new(tape.clone()));
    let back_and_forth = RefString::new([9, 8, 7, 6, 5, 4].map(Step::Read));
    machine::run(&back_and_forth, &mut recorder, 3, Visible::Traps, &|_| {}).unwrap();
    let stream = tape.0.lock().unwrap().clone();
    let error = replay(&frame("simple", &stream)).unwrap_err();
    assert!(matches!(error, ReplayError::Differs { after: 0, .. }), "{error}");
    // Impossible records must not reach the policy.
    let come = Record::Inserted(PageId(5), Cause::Read);
    let go = Record::Removed(PageId(5), Leave::Evicted);
    for impossible in
        [&[come, come][..], &[go], &[Record::Referenced(PageId(5), true)], &[come, Record::Forgotten(PageId(5))]]
    {
        let header = Header { units: PAGES, block_units: 1, policy: "fifo".into(), ..Header::default() };
        let trace = write(&header, impossible.iter().copied());
        assert!(matches!(replay(&trace), Err(ReplayError::Impossible(..))), "{impossible:?}");
    }
    assert!(matches!(replay(&frame("best", &stream)), Err(ReplayError::Policy(_))));
    assert_eq!(replay(&trace[..trace.len() - 1]), Err(ReplayError::Trace(TraceError::Truncated(trace.len() - 1))));
}
