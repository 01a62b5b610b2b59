//! Tests of peers that send wrong messages. A rank must not panic, and must not use pages or bytes that do not exist.

mod common;

use hanare_dsm::codec::{self, Bodies, Sizes};
use hanare_dsm::coherence::*;
use hanare_wire::frame::{HEADER_BYTES, Header, Kind};
use proptest::prelude::*;

const PAGE: usize = common::PAGE;
const SIZES: Sizes = Sizes { page: PAGE, carried: PAGE };

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..10, Just(u32::MAX), Just(u32::MAX - 1), any::<u32>()]
}

fn rank() -> impl Strategy<Value = Rank> {
    prop_oneof![0u16..4, Just(u16::MAX), any::<u16>()].prop_map(Rank)
}

fn set() -> impl Strategy<Value = RankSet> {
    prop_oneof![Just(RankSet::EMPTY), any::<[u64; 4]>().prop_map(RankSet::from_words)]
}

fn runs() -> impl Strategy<Value = Vec<Run>> {
    proptest::collection::vec((number(), number()).prop_map(|(first, count)| Run { first, count }), 0..4)
}

fn together() -> impl Strategy<Value = Together> {
    (1u8..6).prop_map(|number| Together::from_wire(number).expect("one of five"))
}

fn messages() -> impl Strategy<Value = Message> {
    let pages = || proptest::collection::vec(number(), 0..4);
    let values = || proptest::collection::vec(any::<u64>(), 0..3);
    let purpose = prop_oneof![Just(Purpose::Barrier), Just(Purpose::Lock)];
    let moves = proptest::collection::vec((number(), rank()).prop_map(|(page, home)| Move { page, home }), 0..3);
    let adopts = proptest::collection::vec((number(), set()).prop_map(|(page, sharers)| Adopt { page, sharers }), 0..3);
    prop_oneof![
        (number(), rank()).prop_map(|(page, reader)| Message::PageRequest { page, reader }),
        number().prop_map(|page| Message::PageReply { page }),
        number().prop_map(|page| Message::HomeRequest { page }),
        (number(), rank()).prop_map(|(page, home)| Message::HomeReply { page, home }),
        (purpose, pages(), any::<bool>()).prop_map(|(purpose, pages, last)| Message::Diffs { purpose, pages, last }),
        Just(Message::DiffsDone),
        (runs(), moves, adopts, any::<bool>()).prop_map(|(invalid, moves, adopts, last)| Message::Settle {
            invalid,
            moves,
            adopts,
            last
        }),
        (pages(), any::<bool>()).prop_map(|(pages, last)| Message::Updates { pages, last }),
        number().prop_map(|page| Message::Leave { page }),
        number().prop_map(|page| Message::Joined { page }),
        (together(), 0u64..3, 0u8..4, set(), values()).prop_map(|(what, detail, meeting, targets, values)| {
            Message::Arrive { what, detail, meeting, targets, values }
        }),
        (together(), 0u8..4, 0u16..4, values()).prop_map(|(what, meeting, expect, values)| Message::Go {
            what,
            meeting,
            expect,
            values
        }),
        number().prop_map(|lock| Message::Acquire { lock }),
        number().prop_map(|lock| Message::Grant { lock }),
        number().prop_map(|lock| Message::Release { lock }),
        runs().prop_map(|runs| Message::Wrote { runs }),
        runs().prop_map(|runs| Message::Notice { runs }),
    ]
}

fn calls() -> impl Strategy<Value = u8> {
    0u8..8
}

fn call(machine: &mut Machine, number: u8, actions: &mut Vec<Action>) {
    let placement = Placement::Cyclic(1);
    let event = match number {
        0 => Event::Barrier,
        1 => Event::Acquire { lock: 3 },
        2 => Event::Release { lock: 3 },
        3 => Event::Alloc { pages: 5, placement: &placement },
        4 => Event::Alloc { pages: 2, placement: &Placement::FirstTouch },
        5 => Event::Touch { page: 1, write: true },
        6 => Event::Touch { page: 6, write: false },
        _ => Event::Drop { page: 1 },
    };
    // Ignored: the machine may refuse the call in its present state.
    _ = machine.step(event, actions);
}

/// Makes the bodies that a message needs for its encoding.
fn bodies(message: &Message) -> Bodies {
    let mut bodies = Bodies::new();
    let mut add =
        |bytes: &[u8], count: usize| (0..count).for_each(|_| _ = bodies.add(|out| out.extend_from_slice(bytes)));
    match message {
        Message::PageReply { page } => add(&[7; PAGE], (*page % 2) as usize),
        Message::Diffs { pages, .. } => add(&[1, 0, 0, 1, 2, 0, 1, 0, 9, 9, 9, 9], pages.len()),
        Message::Updates { pages, .. } => add(&[8; PAGE], pages.len()),
        _ => {}
    }
    bodies
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn no_message_at_any_moment_is_the_end_of_a_rank(
        me in 0u16..3,
        protocol in prop_oneof![Just(Protocol::Invalidate), Just(Protocol::Update), Just(Protocol::Adaptive)],
        steps in proptest::collection::vec(prop_oneof![calls().prop_map(Ok), (rank(), messages()).prop_map(Err)], 1..30),
    ) {
        let config = Config { rank: Rank(me), ranks: 3, pages: 8, protocol, migrate: true, watch: true, one_sided: true };
        let mut machine = Machine::new(config).expect("valid");
        let mut actions = Vec::new();
        for step in steps {
            actions.clear();
            match step {
                Ok(number) => call(&mut machine, number, &mut actions),
                Err((from, message)) => machine.step(Event::Received { from, message }, &mut actions).expect("no misuse"),
            }
            for action in &actions {
                if let Action::Install { page, .. } | Action::Apply { page, .. } = action {
                    prop_assert!(*page < 8);
                }
            }
        }
    }

    #[test]
    fn every_message_comes_through_a_frame_unchanged(message in messages()) {
        for (bodies, sizes) in [(bodies(&message), SIZES), (Bodies::new(), Sizes { carried: 0, ..SIZES })] {
            let mut frame = Vec::new();
            codec::encode(&message, &bodies, 9, true, &mut frame);
            let header = Header::decode(frame[..HEADER_BYTES].try_into().expect("a header")).expect("valid");
            let arrived = codec::decode(&header, &frame[HEADER_BYTES..], sizes).expect("valid");
            prop_assert_eq!(arrived.message, message.clone());
        }
    }

    #[test]
    fn damaged_and_foreign_payloads_are_refused_or_read_but_never_believed_too_long(
        message in messages(),
        at in any::<prop::sample::Index>(),
        with in any::<u8>(),
        cut in any::<prop::sample::Index>(),
        code in 0u32..20,
    ) {
        let mut frame = Vec::new();
        codec::encode(&message, &bodies(&message), 9, false, &mut frame);
        let mut payload = frame.split_off(HEADER_BYTES);
        if !payload.is_empty() {
            let index = at.index(payload.len());
            payload[index] ^= with;
            payload.truncate(cut.index(payload.len()) + 1);
        }
        let mut header = Header::bare(Kind::BetweenRanks, 1);
        (header.length, header.code) = (payload.len() as u32, code);
        if let Ok(arrived) = codec::decode(&header, &payload, SIZES) {
            prop_assert!(arrived.bodies.iter().all(|range| range.end <= payload.len()));
        }
    }
}
