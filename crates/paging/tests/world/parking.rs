//! Parked pages: all that may leave leaves, and comes back with its bytes.

use hanare_paging::{Event, Progress, State};

use super::cases::{quiet, touch};
use super::{Shape, World};

const BLOCK: u32 = 8;
const UNITS: u32 = 20 * BLOCK;

/// Pages of every form that a store and a view can give them.
fn worlds() -> Vec<World> {
    let mut worlds = Vec::new();
    for (small_moves, direct) in [(false, true), (true, true), (false, false), (true, false)] {
        for hides_in_place in [false, true] {
            for policy in ["lru", "hider"] {
                let shape = Shape { small_moves, direct, hides_in_place, policy, ..quiet(4, 8, 16).shape };
                worlds.push(World::new(7, Shape { units: UNITS, budget: UNITS, ..shape }));
                let shape = Shape { block_units: BLOCK, wide_moves: true, ..worlds.last().unwrap().shape };
                worlds.push(World::new(7, shape));
            }
        }
    }
    worlds
}

fn complete_all(world: &mut World) {
    while !world.pending.is_empty() {
        world.complete();
    }
}

/// Parks everything in steps, as the engine does. Returns the number of steps.
fn park(world: &mut World) -> u32 {
    let mut next = 0;
    for steps in 1..10_000 {
        match world.step(Event::Park { first: next, end: UNITS }) {
            Progress::Done => {
                complete_all(world);
                while world.pager.spare_units() > 0 {
                    assert_eq!(world.step(Event::Park { first: 0, end: 0 }), Progress::Done);
                    complete_all(world);
                }
                return steps;
            }
            Progress::Continue(unit) => next = unit,
            Progress::Busy(unit) => {
                next = unit;
                world.complete();
            }
        }
    }
    panic!("parking does not end");
}

fn write_all(world: &mut World) {
    for unit in 0..UNITS {
        touch(world, unit, true);
        complete_all(world);
    }
}

#[test]
fn all_pages_leave_and_come_back_with_their_bytes() {
    for mut world in worlds() {
        write_all(&mut world);
        for _ in 0..3 {
            world.ticked();
            complete_all(&mut world);
            let budget = world.pager.budget_units();
            park(&mut world);
            assert_eq!((world.pager.local_units(), world.pager.budget_units()), (0, budget), "{:?}", world.shape);
            assert!(world.view.is_empty() && world.hidden.is_empty());
            for unit in (0..UNITS).step_by(3) {
                touch(&mut world, unit, unit % 2 == 0);
                complete_all(&mut world);
            }
        }
        world.finish();
    }
}

#[test]
fn locked_and_pinned_pages_stay() {
    let mut world = World::new(7, Shape { units: UNITS, budget: UNITS, ..quiet(4, 8, 16).shape });
    write_all(&mut world);
    assert_eq!(world.step(Event::Lock { first: 10, end: 20 }), Progress::Done);
    world.locked.extend(10..20);
    world.pins.insert(30);
    park(&mut world);
    assert!((10..20).all(|unit| world.pager.state_of(unit) == State::Resident));
    assert_eq!((world.pager.state_of(30), world.pager.local_units()), (State::Resident, 11));
    world.finish();
}

#[test]
fn unused_pages_are_dropped_without_a_transfer() {
    let mut world = World::new(7, Shape { units: UNITS, budget: UNITS, ..quiet(4, 8, 16).shape });
    write_all(&mut world);
    assert_eq!(world.step(Event::Unused { first: 0, next: 0, end: UNITS }), Progress::Done);
    world.model.clear();
    complete_all(&mut world);
    let before = world.pager.counters().written_back;
    park(&mut world);
    assert_eq!((world.pager.local_units(), world.pager.counters().written_back), (0, before));
}
