//! The target for messages between ranks of shared memory: their codec, and the coherence machine that receives them.

use hanare_dsm::codec::{self, Arrived, Bodies, Sizes};
use hanare_dsm::coherence::{Action, Config, Event, Machine, Message, Placement, Protocol, Rank};
use hanare_wire::frame::{HEADER_BYTES, Header, Kind};

use crate::first;
use crate::memory::within;

/// Size of a page in bytes.
const PAGE: usize = 64;
/// Number of pages of the shared region.
const PAGES: u32 = 8;
/// Number of ranks of the program.
const RANKS: u16 = 3;
/// Most messages and calls that are taken from one input.
const STEPS_MAX: usize = 64;

pub(crate) fn run(data: &[u8]) {
    let Some((how, mut rest)) = first(data) else { return };
    let protocol = [Protocol::Invalidate, Protocol::Update, Protocol::Adaptive][usize::from(how / 4) % 3];
    let me = Rank(u16::from(how % 3));
    let one_sided = how & 0x80 != 0;
    let config = Config { rank: me, ranks: RANKS, pages: PAGES, protocol, migrate: true, watch: true, one_sided };
    let sizes = Sizes { page: PAGE, carried: if one_sided { 0 } else { PAGE } };
    let mut machine = Machine::new(config).expect("a valid configuration");
    let mut actions = Vec::new();
    for _ in 0..STEPS_MAX {
        let Some((what, behind)) = first(rest) else { return };
        rest = behind;
        actions.clear();
        if what < 8 {
            call(&mut machine, what, &mut actions);
        } else {
            let Some((from, number, payload, behind)) = message(rest) else { return };
            rest = behind;
            let Some(message) = decode(number, payload, sizes) else { continue };
            machine
                .step(Event::Received { from, message }, &mut actions)
                .expect("a message is no misuse of the caller's");
        }
        for action in &actions {
            if let Action::Install { page, .. } | Action::Apply { page, .. } = action {
                assert!(*page < PAGES, "{action:?} beyond the region");
            }
        }
    }
}

/// Splits a message off `bytes`. Returns its sender, number and payload, and the bytes after it.
fn message(bytes: &[u8]) -> Option<(Rank, u32, &[u8], &[u8])> {
    let (&[from, number, low, high], rest) = bytes.split_first_chunk::<4>()?;
    let length = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
    let (payload, behind) = rest.split_at(length);
    Some((Rank(u16::from(from)), u32::from(number), payload, behind))
}

fn decode(number: u32, payload: &[u8], sizes: Sizes) -> Option<Message> {
    let mut header = Header::bare(Kind::BetweenRanks, 1);
    (header.length, header.code) = (payload.len() as u32, number);
    let arrived = within(payload.len(), 48, 1024, || codec::decode(&header, payload, sizes)).ok()?;
    assert!(arrived.bodies.iter().all(|range| range.start <= range.end && range.end <= payload.len()));
    assert_eq!(encode(&arrived, payload, sizes), payload, "{:?} encodes to other bytes", arrived.message);
    Some(arrived.message)
}

fn encode(arrived: &Arrived, payload: &[u8], sizes: Sizes) -> Vec<u8> {
    let mut bodies = Bodies::new();
    for range in &arrived.bodies {
        // If messages do not carry the bytes of pages, `Updates` messages have only empty bodies, which are not
        // encoded.
        if sizes.carried == 0 && matches!(arrived.message, Message::Updates { .. }) {
            continue;
        }
        if !bodies.add(|out| out.extend_from_slice(&payload[range.clone()])) {
            bodies.add_empty();
        }
    }
    let mut frame = Vec::new();
    codec::encode(&arrived.message, &bodies, 1, true, &mut frame);
    frame.split_off(HEADER_BYTES)
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
    let (Ok(()) | Err(_)) = machine.step(event, actions);
}
