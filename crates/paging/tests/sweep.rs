//! Counts the faults of sweeps over base pages. Each action is carried out immediately.

use hanare_paging::{Action, Actions, Bytes, Class, Config, Event, Geometry, Pager, Space, policy, prefetch};

const UNITS: u32 = 8192;

fn pager() -> Pager {
    let geometry = Geometry { units: UNITS, unit_bytes: 4096, block_units: 1, middle_units: 1 };
    let config = Config {
        geometry,
        budget_units: UNITS / 2,
        small: Class { moves: false, frames: 0 },
        middle: Class { moves: true, frames: 0 },
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

/// Accesses a unit and carries out all resulting actions. Returns whether the access faulted. If the access is a write,
/// all pages evicted by it count as changed.
fn touch(pager: &mut Pager, actions: &mut Actions, unit: u32, write: bool) -> bool {
    touch_counting(pager, actions, (unit, write), write, &mut 0)
}

/// Does the work of [`touch`], but `changed` says whether evicted pages were changed. Adds to `guesses` the number of
/// evicted pages that were opened for writing on a prediction.
fn touch_counting(
    pager: &mut Pager,
    actions: &mut Actions,
    (unit, write): (u32, bool),
    changed: bool,
    guesses: &mut u32,
) -> bool {
    let faulted = !pager.is_accessible(unit, write);
    let mut events = if faulted { vec![Event::Fault { unit, write }] } else { Vec::new() };
    while let Some(event) = events.pop() {
        actions.clear();
        pager.step(event, actions);
        let is_guess = |action: &&Action| matches!(action, Action::TakeOut { bytes: Bytes::Unknown, .. });
        *guesses += actions.as_slice().iter().filter(is_guess).count() as u32;
        events.extend(actions.as_slice().iter().rev().filter_map(|action| match *action {
            Action::Fetch { page, count, .. } => Some(Event::Arrived { page, count, certain: true, ok: true }),
            Action::TakeOut { page, bytes, .. } => Some(Event::TakenOut {
                page,
                ok: true,
                changed: bytes == Bytes::Dirty || changed && bytes != Bytes::Clean,
            }),
            Action::Open { page } => Some(Event::Opened { page }),
            _ => None,
        }));
    }
    faulted
}

/// Accesses all units in order. Returns the number of faults.
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

#[test]
fn that_pages_are_written_to_again_is_guessed_as_long_as_it_comes_true() {
    let (mut pager, mut actions) = (pager(), Actions::new());
    // Reads pages with a stride of seven, until all pages are read. No prefetcher helps with this order. If `writes` is
    // true, also writes to each page.
    let mut pass = |writes: bool, guesses: &mut u32| {
        let mut traps = 0;
        for index in 0..UNITS {
            let unit = index * 7 % UNITS;
            touch_counting(&mut pager, &mut actions, (unit, false), writes, guesses);
            traps += u32::from(writes && touch_counting(&mut pager, &mut actions, (unit, true), true, guesses));
        }
        traps
    };
    let mut guesses = 0;
    pass(true, &mut guesses);
    assert_eq!(pass(true, &mut guesses), 0, "writes that trapped after a read");
    assert!(guesses > UNITS / 4, "{guesses} pages were guessed to be written to");

    guesses = 0;
    (0..4).for_each(|_| _ = pass(false, &mut guesses));
    // Some predictions are unavoidable: for the pages that are resident at the start, and for the pages that arrive
    // before the first eviction of a resident page.
    assert!(guesses < UNITS + 600, "{guesses} guesses");

    (0..2).for_each(|_| _ = pass(true, &mut guesses));
    assert_eq!(pass(true, &mut guesses), 0, "writes that trapped after a read, when they had come back");
}
