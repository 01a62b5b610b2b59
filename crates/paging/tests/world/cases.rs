//! The programs that run in the simulated world. Most programs and worlds are drawn at random, and a few are fixed.

use std::cell::Cell;
use std::collections::BTreeSet;

use hanare_paging::{Action, Event, Progress, State, limits};

use super::seeds::{for_seeds, for_seeds_from};
use super::{Mapped, Op, Random, Reached, Shape, Thread, World};

/// Checks that no byte is lost or torn, no fetch is repeated, no thread waits for ever, and the budget is never
/// exceeded.
#[test]
fn any_order_of_completions_keeps_every_byte() {
    for_seeds(3000, "any_order_of_completions", |seed| {
        World::new(seed, Shape::small(&mut Random(seed))).run(3_000);
    });
}

/// Runs random programs in large worlds, whose size exceeds every bound on the work of one step. With some seed, each
/// bound is reached.
#[test]
fn large_worlds_reach_the_bounds_and_keep_every_byte() {
    let reached = Cell::new(Reached::default());
    // Every run uses the same seeds, because with other seeds some bound may not be reached.
    for_seeds_from(Some(0), 60, "large_worlds", |seed| {
        let mut world = World::new(seed, Shape::large(&mut Random(seed)));
        world.run(20_000);
        reached.set(reached.get().with(world.reached));
    });
    if std::env::var_os("HANARE_SEED").is_none() {
        assert!(reached.get().missed().is_empty(), "never reached: {:?}", reached.get());
    }
}

/// Checks that a child finds every byte in its place at a fork, and that the parent continues unchanged.
#[test]
fn a_fork_finds_every_byte_at_rest() {
    for_seeds(600, "a_fork_finds", |seed| {
        let mut random = Random(seed);
        let mut world = World::new(seed, Shape::small(&mut random));
        for _ in 0..3 {
            world.go_on(600);
            world.fork(random.chance(500));
        }
        world.run(600);
    });
}

/// Checks pages that are in memory without a trap, and that the pager adopts. They must count as written, be evicted
/// and keep their bytes like all other pages.
#[test]
fn what_is_adopted_is_not_lost() {
    for_seeds(600, "what_is_adopted", |seed| {
        let mut random = Random(seed);
        let mut world = quiet(seed, 12, 32);
        touch(&mut world, 3, true);
        world.go_on(0);
        world.fork(false);
        world.most = 32;
        let adopted: BTreeSet<u32> = (0..1 + random.below(11)).map(|_| random.below(32) as u32).collect();
        for &unit in &adopted {
            world.pager.adopt(unit);
            world.pager.adopt(unit);
            world.fresh += 1;
            world.view.insert(unit, Mapped { value: world.fresh, writable: true });
            world.model.insert(unit, world.fresh);
        }
        world.run(400);
    });
}

pub(super) fn quiet(seed: u64, budget: u32, units: u32) -> World {
    World::new(
        seed,
        Shape {
            units,
            block_units: 1,
            budget,
            small_moves: true,
            wide_moves: false,
            direct: false,
            frames: 4,
            threads: 1,
            policy: "fifo",
            prefetcher: "none",
            hides_in_place: false,
            failures_per_mille: 0,
            sequential: false,
            pins: false,
            completes_per_mille: 500,
        },
    )
}

/// Completes all pending actions except write-backs.
fn settle_but_writes(world: &mut World) {
    for _ in 0..1000 {
        let Some(index) = world.pending.iter().position(|(action, _)| !matches!(action, Action::WriteBack { .. }))
        else {
            return;
        };
        let last = world.pending.len() - 1;
        world.pending.swap(index, last);
        let (action, seen) = world.pending.pop().expect("one was found");
        let rest = std::mem::take(&mut world.pending);
        world.pending.push((action, seen));
        world.complete();
        world.pending.extend(rest);
    }
}

pub(super) fn touch(world: &mut World, unit: u32, write: bool) {
    world.fresh += 1;
    let op = if write { Op::Write(unit, world.fresh) } else { Op::Read(unit) };
    for _ in 0..4 {
        world.attempt(0, op);
        settle_but_writes(world);
        if world.view.contains_key(&unit) {
            return world.attempt(0, op);
        }
    }
}

#[test]
fn a_fault_does_not_wait_for_a_write_back_while_a_clean_page_could_make_room() {
    let mut world = quiet(1, 8, 16);
    for unit in 0..16 {
        touch(&mut world, unit, true);
        while !world.pending.is_empty() {
            world.complete();
        }
    }
    // Eight dirty pages are resident. Four reads now bring in clean pages. After these reads, no write-back completes.
    for unit in 0..4 {
        touch(&mut world, unit, false);
        while !world.pending.is_empty() {
            world.complete();
        }
    }
    for unit in [4, 5] {
        touch(&mut world, unit, false);
        assert!(world.view.contains_key(&unit), "unit {unit} waits for a write-back with clean pages in view");
    }
}

#[test]
fn a_clean_page_is_not_written_back_again() {
    let mut world = quiet(2, 4, 8);
    for round in 0..5 {
        for unit in 0..8 {
            touch(&mut world, unit, round == 0);
            while !world.pending.is_empty() {
                world.complete();
            }
        }
    }
    assert_eq!(world.pager.counters().written_back, 8, "each page was dirty once");
}

#[test]
fn untouched_and_discarded_pages_cost_no_transfer() {
    let mut world = quiet(3, 4, 64);
    for unit in 0..64 {
        touch(&mut world, unit, false);
        while !world.pending.is_empty() {
            world.complete();
        }
    }
    assert_eq!((world.pager.counters().fetched, world.pager.counters().written_back), (0, 0));
    for unit in 0..4 {
        touch(&mut world, unit, true);
        while !world.pending.is_empty() {
            world.complete();
        }
    }
    let before = *world.pager.counters();
    assert_eq!(world.step(Event::Discard { first: 0, end: 64 }), Progress::Done);
    while !world.pending.is_empty() {
        world.complete();
    }
    world.model.clear();
    let after = *world.pager.counters();
    assert_eq!((after.fetched, after.written_back), (before.fetched, before.written_back), "freeing moves nothing");
    world.finish();
}

/// Guards against a discard that waits for ever. If a huge page was prefetched and never accessed, no action on it is
/// in progress. So no completion ends the wait.
#[test]
fn part_of_a_page_that_was_fetched_ahead_can_be_discarded() {
    const BLOCK: u32 = 64;
    let shape =
        Shape { block_units: BLOCK, wide_moves: true, small_moves: false, direct: true, ..quiet(4, 8, 16).shape };
    let mut world = World::new(4, Shape { units: 40 * BLOCK, budget: 9 * BLOCK, ..shape });
    for unit in (0..40 * BLOCK).chain(BLOCK..40 * BLOCK) {
        touch(&mut world, unit, true);
        while !world.pending.is_empty() {
            world.complete();
        }
    }
    world.step(Event::WillNeed { first: 0, end: BLOCK });
    while !world.pending.is_empty() {
        world.complete();
    }
    assert_eq!(
        (world.pager.page_of(0).1, world.pager.state_of(0)),
        (BLOCK, State::Staged),
        "a large page, fetched ahead"
    );
    for _ in 0..100 {
        if world.step(Event::Discard { first: 3, end: 4 }) == Progress::Done {
            world.model.remove(&3);
            return world.finish();
        }
        while !world.pending.is_empty() {
            world.complete();
        }
    }
    panic!("the discard waits for a page at rest");
}

/// Guards against a fault that waits for ever. A fault on a huge page waited for room, and then the budget shrank below
/// the size of the page.
#[test]
fn a_fault_on_a_huge_page_that_the_budget_can_no_longer_hold_is_answered() {
    const BLOCK: u32 = 64;
    let shape =
        Shape { block_units: BLOCK, wide_moves: true, small_moves: false, direct: true, ..quiet(4, 8, 16).shape };
    let mut world = World::new(4, Shape { units: 40 * BLOCK, budget: 9 * BLOCK, ..shape });
    for unit in (0..40 * BLOCK).chain(BLOCK..40 * BLOCK) {
        touch(&mut world, unit, true);
        while !world.pending.is_empty() {
            world.complete();
        }
    }
    world.threads = vec![Thread::Ready; 12];
    for index in 0..12 {
        world.fresh += 1;
        world.attempt(index, Op::Write(index as u32 * BLOCK, world.fresh));
    }
    let waits = |block: u32| {
        let first = block * BLOCK;
        (world.pager.page_of(first).1, world.pager.state_of(first)) == (BLOCK, State::Remote)
    };
    assert!((0..12).any(waits), "no fault on a huge page waits for room");
    world.step(Event::Budget { units: limits::BUDGET_PAGES_MIN });
    world.finish();
}

/// Guards against an access that is repeated for ever. The budget shrank until prefetched pages filled it but for one
/// page. Each page that came in for an access then left before the access was repeated.
#[test]
fn a_page_stays_until_its_access_is_repeated_where_prefetched_pages_fill_the_rest() {
    const BLOCK: u32 = 4;
    let shape =
        Shape { block_units: BLOCK, wide_moves: true, small_moves: false, direct: true, ..quiet(4, 8, 16).shape };
    let mut world = World::new(4, Shape { units: 40 * BLOCK, budget: 16 * BLOCK, ..shape });
    for unit in (0..40 * BLOCK).chain(0..40 * BLOCK) {
        touch(&mut world, unit, true);
        while !world.pending.is_empty() {
            world.complete();
        }
    }
    assert_eq!(world.step(Event::Discard { first: 20 * BLOCK, end: 40 * BLOCK }), Progress::Done);
    world.model.retain(|&unit, _| unit < 20 * BLOCK);
    while !world.pending.is_empty() {
        world.complete();
    }
    world.step(Event::WillNeed { first: 0, end: 4 * BLOCK });
    while !world.pending.is_empty() {
        world.complete();
    }
    assert!((0..4 * BLOCK).all(|unit| world.pager.state_of(unit) == State::Staged), "four blocks, fetched ahead");
    world.step(Event::Budget { units: 4 * BLOCK + 1 });
    world.threads[0] = Thread::Doing(Op::Read(20 * BLOCK));
    world.finish();
}

/// Guards against a fault that waits for ever. Transfers held all pages of the budget but two, and the last accesses had
/// waited for these two.
#[test]
fn a_fault_is_answered_where_transfers_hold_all_other_pages() {
    for budget in [4, 5, 8, 32] {
        for write in [false, true] {
            let mut world = quiet(6, budget, 64);
            let visit = |world: &mut World, unit| {
                world.fresh += 1;
                world.threads[0] = Thread::Doing(if write { Op::Write(unit, world.fresh) } else { Op::Read(unit) });
                for _ in 0..1000 {
                    match world.threads[0] {
                        Thread::Ready => break,
                        Thread::Doing(op) => world.attempt(0, op),
                        _ if world.pending.is_empty() => drop(world.ticked()),
                        _ => world.complete(),
                    }
                }
                assert!(matches!(world.threads[0], Thread::Ready), "an access to {unit} waits, {budget} pages");
            };
            for unit in 0..budget - 1 {
                visit(&mut world, unit);
            }
            world.pins.extend((0..budget - 2).filter(|unit| world.view.contains_key(unit)));
            for unit in 32..40 {
                visit(&mut world, unit);
            }
            world.pins.clear();
            world.finish();
        }
    }
}

/// Guards against a panic. A program had freed most of its memory, and then its budget shrank. The pager returned all
/// free frames in one step, which gave more actions than its list holds.
#[test]
fn a_budget_far_below_the_free_frames_is_reached_step_by_step() {
    const UNITS: u32 = 3 * limits::ACTIONS_MAX as u32;
    let mut world = quiet(5, UNITS, UNITS);
    for unit in 0..UNITS {
        touch(&mut world, unit, true);
    }
    let mut next = 0;
    while next < UNITS {
        next = match world.step(Event::Discard { first: next, end: UNITS }) {
            Progress::Done => UNITS,
            Progress::Continue(unit) | Progress::Busy(unit) => unit,
        };
        settle_but_writes(&mut world);
    }
    world.step(Event::Budget { units: limits::BUDGET_PAGES_MIN });
    while !world.pending.is_empty() {
        assert!(world.pending.len() <= limits::ACTIONS_MAX, "too much is under way at a time");
        world.complete();
    }
    assert!(
        world.pager.local_units() <= limits::BUDGET_PAGES_MIN,
        "{} of {} units stay",
        world.pager.local_units(),
        UNITS
    );
    assert!(world.frames.len() <= limits::BUDGET_PAGES_MIN as usize, "{} frames keep their memory", world.frames.len());
}
