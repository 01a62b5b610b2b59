//! How many faults a sweep over small pages takes, with everything carried out at once.

use hanare_paging::{Action, Actions, Bytes, Class, Config, Event, Geometry, Pager, Space, policy, prefetch};

const UNITS: u32 = 8192;

fn pager() -> Pager {
    let geometry = Geometry { units: UNITS, unit_bytes: 4096, block_units: 1 };
    let config = Config {
        geometry,
        budget_units: UNITS / 2,
        small: Class { moves: false, frames: 0 },
        wide: Class { moves: true, frames: 0 },
        direct: true,
        hides_in_place: false,
        ahead_units: 0,
    };
    let space = Space { units: UNITS, block_units: 1, seed: 1, hides: true };
    let policy = policy::build("lru", space).expect("a known policy");
    let prefetcher = prefetch::build("sequential", space).expect("a known prefetcher");
    Pager::new(&config, policy, prefetcher).expect("a valid configuration")
}

/// Touches a unit and carries out all that follows; whether it faulted. In a sweep of writes all that leaves was changed.
fn touch(pager: &mut Pager, actions: &mut Actions, unit: u32, write: bool) -> bool {
    let faulted = !pager.is_accessible(unit, write);
    let mut events = if faulted { vec![Event::Fault { unit, write }] } else { Vec::new() };
    while let Some(event) = events.pop() {
        actions.clear();
        pager.step(event, actions);
        events.extend(actions.as_slice().iter().rev().filter_map(|action| match *action {
            Action::Fetch { page, count, .. } => Some(Event::Arrived { page, count, certain: true, ok: true }),
            Action::TakeOut { page, bytes, .. } => Some(Event::TakenOut {
                page,
                ok: true,
                changed: bytes == Bytes::Dirty || write && bytes == Bytes::Unknown,
            }),
            Action::Open { page } => Some(Event::Opened { page }),
            _ => None,
        }));
    }
    faulted
}

/// Touches all units in order; how many faulted.
fn sweep(pager: &mut Pager, actions: &mut Actions, write: bool) -> u32 {
    (0..UNITS).map(|unit| u32::from(touch(pager, actions, unit, write))).sum()
}

#[test]
fn a_sweep_takes_a_fault_a_run() {
    let (mut pager, mut actions) = (pager(), Actions::new());
    assert_eq!(sweep(&mut pager, &mut actions, true), UNITS, "each first touch faults");
    for pass in 1..4 {
        let faults = sweep(&mut pager, &mut actions, false);
        assert!(faults < UNITS / 40, "{faults} faults in pass {pass} over {UNITS} units");
    }
}

#[test]
fn what_is_written_each_time_comes_ahead_open_for_it_and_what_is_only_read_does_not() {
    let (mut pager, mut actions) = (pager(), Actions::new());
    for pass in 0..4 {
        let faults = sweep(&mut pager, &mut actions, true);
        assert!(pass == 0 || faults < UNITS / 40, "{faults} faults in pass {pass} of writes");
    }
    for pass in 0..5 {
        let faults = sweep(&mut pager, &mut actions, false);
        assert!(faults < UNITS / 40, "{faults} faults in pass {pass} of reads");
    }
    assert_eq!(pager.counters().faults_first_write, 0);
    let faults = sweep(&mut pager, &mut actions, true);
    assert!(faults > UNITS - UNITS / 40, "only {faults} faults where writes were no longer expected");
}
