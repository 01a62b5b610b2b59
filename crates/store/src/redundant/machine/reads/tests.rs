//! Tests of the places of parts, and of the links on which threads wait for them.

use hanare_paging::PageId;

use super::super::{Member, Order, Sizes};
use super::*;

/// Makes a machine with K = 2 and M = 1 on three servers that holds the first eight units.
fn machine() -> Machine {
    let sizes = Sizes { units: 64, extent_units: 32, frames: 1, data: 2, parity: 1, job_units: 8 };
    let mut machine = Machine::new(sizes, (0..3).map(|host| Member::new(host, 9, false)).collect());
    machine.write(0, 0, 8).expect("room");
    while let Some(order) = machine.next_order() {
        let Order::Write { member, frame, .. } = order else { unreachable!("{order:?}") };
        machine.acknowledged(frame, member);
    }
    assert_eq!(machine.next_given(), Some((0, 0)));
    machine
}

/// Begins a read of the first units, and returns its requests.
fn read(machine: &mut Machine, count: u32) -> Vec<Request> {
    let read = Read { page: PageId(0), count, bytes: count, frame: None, writable: 0 };
    machine.read(read, 0, count).expect("few reads");
    requests(machine)
}

fn requests(machine: &mut Machine) -> Vec<Request> {
    std::iter::from_fn(|| machine.next_request()).collect()
}

#[test]
fn data_parts_go_to_their_places_and_parity_parts_to_regions() {
    let mut machine = machine();
    let asked = read(&mut machine, 4);
    assert_eq!(asked.iter().map(|request| request.ticket.part).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(machine.arriving(asked[1].ticket), Landing::Places(1));
    assert!(machine.slow(0));
    let parity = requests(&mut machine)[0];
    assert_eq!(machine.arriving(parity.ticket), Landing::Region(0));
    assert_eq!(machine.arriving(asked[0].ticket), Landing::Nowhere, "two parts suffice");
    assert_eq!(machine.arrived(parity.ticket), Arrived::Nothing);
    assert_eq!(machine.arrived(asked[1].ticket), Arrived::Segment(0));
    assert!(machine.passed_on(0));
    assert_eq!(machine.arriving(asked[0].ticket), Landing::Nowhere, "the read is over");
}

#[test]
fn a_thread_waits_for_the_part_that_was_asked_for_last_unless_others_would_do() {
    let mut machine = machine();
    assert_eq!(machine.awaited(), None, "no read is in progress");
    let asked = read(&mut machine, 1);
    assert_eq!(machine.awaited(), Some(asked[1].member));
    machine.arriving(asked[1].ticket);
    machine.arrived(asked[1].ticket);
    assert_eq!(machine.awaited(), Some(asked[0].member));
    assert!(machine.slow(0));
    assert_eq!(machine.awaited(), None, "either of two parts would do");
    requests(&mut machine);
    machine.arriving(asked[0].ticket);
    machine.arrived(asked[0].ticket);
    assert!(machine.passed_on(0));
    read(&mut machine, 1);
    assert!(machine.awaited().is_some());
    read(&mut machine, 2);
    assert_eq!(machine.awaited(), None, "the other read may end first");
}
