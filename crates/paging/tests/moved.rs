//! Counts the write-backs of pages that are moved in frames and written to a memory server.

use hanare_paging::{Action, Actions, Class, Config, Event, Geometry, Pager, Space, policy, prefetch};

const UNITS: u32 = 512;
const BUDGET: u32 = 256;

fn pager(direct: bool) -> Pager {
    let geometry = Geometry { units: UNITS, unit_bytes: 2 << 20, block_units: 1, middle_units: 1 };
    let config = Config {
        geometry,
        budget_units: BUDGET,
        small: Class { moves: true, frames: BUDGET },
        middle: Class { moves: true, frames: 0 },
        wide: Class { moves: true, frames: 0 },
        direct,
        hides_in_place: false,
        ahead_units: 2,
    };
    let space = Space { units: UNITS, block_units: 1, seed: 1, hides: true };
    let policy = policy::build("lru", space).expect("a known policy");
    let prefetcher = prefetch::build("sequential", space).expect("a known prefetcher");
    Pager::new(&config, policy, prefetcher).expect("a valid configuration")
}

/// Writes to new pages in order until a page finds no room, while no write-back ends. Returns the number of write-backs
/// that are then in flight.
fn write_backs_in_flight(direct: bool) -> usize {
    let (mut pager, mut actions) = (pager(direct), Actions::new());
    let mut in_flight = 0;
    for unit in 0..UNITS {
        let mut events = vec![Event::Fault { unit, write: true }];
        while let Some(event) = events.pop() {
            actions.clear();
            pager.step(event, &mut actions);
            for action in actions.as_slice() {
                match *action {
                    Action::Fetch { page, .. } => events.push(Event::Fetched { page, ok: true }),
                    Action::Install { page, .. } => {
                        events.push(Event::Arrived { page, count: 1, certain: true, ok: true });
                    }
                    Action::TakeOut { page, .. } => events.push(Event::TakenOut { page, ok: true, changed: true }),
                    Action::Open { page } => events.push(Event::Opened { page }),
                    Action::WriteBack { .. } => in_flight += 1,
                    _ => {}
                }
            }
            assert!(pager.local_units() <= BUDGET, "the budget holds");
        }
        if !pager.is_accessible(unit, true) {
            return in_flight;
        }
    }
    panic!("every page found room although no write-back ended");
}

#[test]
fn enough_write_backs_to_a_server_are_in_flight_before_a_page_waits() {
    let (server, direct) = (write_backs_in_flight(false), write_backs_in_flight(true));
    assert!((8..=12).contains(&server), "{server} write-backs to a server");
    assert!(direct <= 6, "{direct} write-backs to a private server");
}
