//! Tests of the store's tables with fake servers. Write-backs, discards, answers and refusals happen in random order.
//!
//! The tests find this error, for example: no unit of a slot of 2 MiB is held, so the slot is discarded. But the
//! write-back of one of its units is still in flight. The server first stores this unit and then discards it with the
//! slot.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

const UNIT_BYTES: usize = 512 << 10;
const EXTENT_UNITS: u32 = (EXTENT_BYTES / UNIT_BYTES) as u32;
const UNITS: u32 = 6 * EXTENT_UNITS;

/// A message to a server.
#[derive(Clone, Copy, Debug)]
enum Sent {
    Write(WriteBack, u32),
    Discard(Discard),
}

/// A server that stores up to `slots_max` slots.
#[derive(Default)]
struct FakeServer {
    wire: VecDeque<Sent>,
    answers: VecDeque<(WriteBack, bool)>,
    slots: BTreeMap<u32, BTreeMap<u32, u32>>,
    slots_max: usize,
    vain: Vec<Discard>,
}

impl FakeServer {
    fn serve(&mut self, slot_units: u32) {
        match self.wire.pop_front() {
            Some(Sent::Write(job, version)) => {
                let slot = job.page.0 / slot_units;
                let took = self.slots.contains_key(&slot) || self.slots.len() < self.slots_max;
                if took {
                    self.slots.entry(slot).or_default().insert(job.page.0, version);
                }
                self.answers.push_back((job, took));
            }
            Some(Sent::Discard(discard)) => {
                let slot_bytes = u64::from(slot_units) * UNIT_BYTES as u64;
                let end = (discard.offset + u64::from(discard.bytes)) / slot_bytes;
                (discard.offset / slot_bytes..end).for_each(|slot| {
                    self.slots.remove(&(slot as u32));
                });
            }
            None => {}
        }
    }
}

/// What the pager knows about a unit.
#[derive(Clone, Copy, Default)]
struct Unit {
    version: u32,
    writing: bool,
    held: bool,
    /// Whether the write in progress repeats the version that the server holds.
    is_same: bool,
    stale: bool,
}

struct World {
    places: Places,
    servers: Vec<FakeServer>,
    units: Vec<Unit>,
    frames: Vec<u32>,
    slot_units: u32,
    is_full: bool,
}

impl World {
    fn new(slot_units: u32, slots_max: &[usize]) -> World {
        let shape = Shape {
            units: UNITS,
            unit_bytes: UNIT_BYTES,
            slot_bytes: slot_units as usize * UNIT_BYTES,
            small_frames: 5,
            wide_frames: 0,
            guarding: Guarding::Sums,
        };
        // The placement believes that each server has room for all extents. Other clients use some of this room, so a
        // server may refuse a page.
        let placement = Placement::new(&vec![u64::from(UNITS / EXTENT_UNITS); slots_max.len()]);
        World {
            places: Places::new(shape, EXTENT_BYTES, placement, slots_max.len()),
            servers: slots_max.iter().map(|&slots_max| FakeServer { slots_max, ..FakeServer::default() }).collect(),
            units: vec![Unit::default(); UNITS as usize],
            frames: (0..5).collect(),
            slot_units,
            is_full: false,
        }
    }

    fn write(&mut self, number: u32) {
        let unit = &mut self.units[number as usize];
        if unit.writing || self.frames.is_empty() {
            return;
        }
        unit.is_same = unit.held && number.is_multiple_of(3);
        unit.version += u32::from(!unit.is_same);
        unit.writing = true;
        let index = self.frames.pop().expect("a frame");
        let job = WriteBack {
            page: PageId(number),
            frame: FrameId { wide: false, index },
            bytes: UNIT_BYTES as u32,
            from: 0,
            may_be_same: unit.held,
        };
        self.is_full = self.places.write_back(job).is_none();
    }

    fn release(&mut self, number: u32) {
        let unit = &mut self.units[number as usize];
        unit.stale |= unit.writing;
        if unit.held && !unit.writing {
            unit.held = false;
            self.places.release(number, 1);
        }
    }

    /// Sends the waiting write-backs and discards of a server, as a sender does. At most about `discards_max` discards
    /// are sent.
    fn send(&mut self, index: usize, discards_max: usize) {
        let server = &mut self.servers[index];
        let mut discards = std::mem::take(&mut server.vain);
        self.places.take_discards(index, discards_max, &mut discards);
        server.wire.extend(discards.into_iter().map(Sent::Discard));
        if self.places.discards_wait_for(index) {
            return;
        }
        let mut jobs = Vec::new();
        self.places.take_writes(index, 2 * UNIT_BYTES, &mut jobs);
        let mut released = Vec::new();
        for job in jobs {
            let unit = &mut self.units[job.page.0 as usize];
            if job.may_be_same && unit.is_same && self.places.end_if_held(job, index) {
                unit.writing = false;
                self.frames.push(job.frame.index);
                released.extend(std::mem::take(&mut unit.stale).then_some(job.page.0));
                continue;
            }
            self.servers[index].wire.push_back(Sent::Write(job, unit.version));
        }
        released.into_iter().for_each(|number| self.release(number));
    }

    fn answer(&mut self, index: usize) {
        let server = &mut self.servers[index];
        // The ranges in `vain` are discarded before the next answer is read, as in a sender.
        server.wire.extend(std::mem::take(&mut server.vain).into_iter().map(Sent::Discard));
        let Some((job, took)) = server.answers.pop_front() else { return };
        if !took {
            self.places.placement.close(index);
        }
        match self.places.ended(job, index, took, &mut server.vain) {
            Ended::Held => {
                let number = job.page.0;
                self.frames.push(job.frame.index);
                let unit = &mut self.units[number as usize];
                (unit.held, unit.writing) = (true, false);
                if std::mem::take(&mut unit.stale) {
                    self.release(number);
                }
            }
            Ended::GoesTo(_) => {}
            Ended::Nowhere => self.is_full = true,
        }
    }

    /// Checks that each held page is on the server that a read of the page would ask.
    fn check(&self) {
        for (number, unit) in (0..).zip(&self.units).filter(|(_, unit)| unit.held && !unit.writing) {
            let server = &self.servers[self.places.server_of(number)];
            let found = server.slots.get(&(number / self.slot_units)).and_then(|slot| slot.get(&number));
            assert_eq!(found, Some(&unit.version), "unit {number}");
        }
    }

    fn step(&mut self, what: u8, number: u32) {
        let index = number as usize % self.servers.len();
        match what {
            0 | 1 => self.write(number),
            2 => self.release(number),
            3 => self.send(index, 1 + number as usize % 3),
            4 => self.servers[index].serve(self.slot_units),
            _ => self.answer(index),
        }
        self.check();
    }

    fn is_quiet(&self) -> bool {
        (0..self.servers.len()).all(|index| {
            let server = &self.servers[index];
            !self.places.waits_for(index)
                && server.wire.is_empty()
                && server.answers.is_empty()
                && server.vain.is_empty()
        })
    }

    fn come_to_rest(&mut self) {
        for round in 0.. {
            if self.is_quiet() || self.is_full {
                break;
            }
            assert!(round < 1000, "it never ends");
            for index in 0..self.servers.len() as u32 {
                [3, 4, 5].into_iter().for_each(|what| self.step(what, index));
            }
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<(u8, u32)>> {
    prop::collection::vec((0u8..6, 0..UNITS), 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Tests slots of one, two and four units. Some cases have servers with room for all pages. The others have servers
    /// with less room than they reported.
    #[test]
    fn what_is_held_is_where_it_is_asked_for_and_what_is_released_is_given_back(
        steps in steps(), slot_shift in 0u32..3, tight in any::<bool>(),
    ) {
        let slot_units = 1 << slot_shift;
        let all = (UNITS / slot_units) as usize;
        let mut world = World::new(slot_units, &if tight { [all / 4 + 1, all / 2, all] } else { [all; 3] });
        for (what, number) in steps {
            world.step(what, number);
            if world.is_full {
                return Ok(());
            }
        }
        world.come_to_rest();
        if world.is_full {
            return Ok(());
        }
        for (index, server) in world.servers.iter().enumerate() {
            let held: BTreeSet<u32> = (0..UNITS)
                .filter(|&number| world.units[number as usize].held && world.places.server_of(number) == index)
                .map(|number| number / slot_units)
                .collect();
            prop_assert_eq!(server.slots.keys().copied().collect::<BTreeSet<_>>(), held, "server {}", index);
            prop_assert_eq!(world.places.bytes_on(index), server.slots.len() as u64 * (slot_units as u64 * UNIT_BYTES as u64));
        }
        (0..UNITS).for_each(|number| world.release(number));
        world.come_to_rest();
        prop_assert_eq!(world.places.placement.capacity_and_used().1, 0);
        prop_assert!(world.servers.iter().all(|server| server.slots.is_empty()));
    }
}

/// Tests that a slot is not discarded too early. The only held unit of the slot is released while a write-back of
/// another unit of the slot is in flight.
#[test]
fn a_slot_is_not_discarded_while_a_page_of_it_is_on_its_way() {
    let mut world = World::new(4, &[6]);
    world.write(0);
    world.come_to_rest();
    world.write(1);
    world.release(0);
    world.come_to_rest();
    assert!(world.units[1].held);
    world.release(1);
    world.come_to_rest();
    assert!(world.servers[0].slots.is_empty(), "and then it is");
}

#[test]
fn every_frame_can_wait_at_once_and_they_leave_in_order() {
    const FRAMES: u32 = 1000;
    let (unit_bytes, slot_bytes) = (4096, 4096);
    let shape = Shape {
        units: 2 * FRAMES,
        unit_bytes,
        slot_bytes,
        small_frames: FRAMES,
        wide_frames: 2,
        guarding: Guarding::Sums,
    };
    let mut places = Places::new(shape, EXTENT_BYTES, Placement::new(&[100]), 1);
    let jobs = (0..FRAMES).map(|index| WriteBack {
        page: PageId(index * 7 % FRAMES),
        frame: FrameId { wide: false, index: index * 3 % FRAMES },
        bytes: 4096,
        from: 0x1000 * index as usize,
        may_be_same: false,
    });
    let jobs: Vec<WriteBack> = jobs.collect();
    jobs.iter().for_each(|&job| assert_eq!(places.write_back(job), Some(0)));
    let mut sent = Vec::new();
    while places.waits_for(0) {
        let mut some = Vec::new();
        places.take_writes(0, 10 * 4096, &mut some);
        assert!((1..=10).contains(&some.len()));
        sent.extend(some);
    }
    assert_eq!(sent, jobs);
}

#[test]
fn neighbours_are_discarded_together_and_every_second_page_apart() {
    let (unit_bytes, slot_bytes) = (4096, 4096);
    let shape =
        Shape { units: 4096, unit_bytes, slot_bytes, small_frames: 1, wide_frames: 0, guarding: Guarding::Sums };
    let mut places = Places::new(shape, EXTENT_BYTES, Placement::new(&[100]), 1);
    let hold = |places: &mut Places, page: u32| {
        let job = WriteBack {
            page: PageId(page),
            frame: FrameId { wide: false, index: 0 },
            bytes: 4096,
            from: 0,
            may_be_same: false,
        };
        assert!(places.write_back(job).is_some());
        places.take_writes(0, 4096, &mut Vec::new());
        places.mark_held(page, 1);
    };
    (0..2048).for_each(|page| hold(&mut places, page));
    (2049..4096).step_by(2).for_each(|page| hold(&mut places, page));
    for (first, count) in Places::by_extent(0, 4096, 512) {
        assert!(places.release(first, count).is_some(), "its writer is told");
        assert_eq!(places.release(first, count), None, "once");
    }
    let mut discards = Vec::new();
    places.take_discards(0, 1, &mut discards);
    places.take_discards(0, usize::MAX, &mut discards);
    assert_eq!((discards[0], discards.len()), (Discard { offset: 0, bytes: 2048 * 4096 }, 1 + 1024));
    assert_eq!(places.placement.capacity_and_used().1, 0);
}

/// Tests that the index of every server, plus one, fits into the field that stores it.
#[test]
fn every_server_that_may_be_named_has_a_number() {
    let shape = Shape {
        units: SERVERS_MAX as u32 * 512,
        unit_bytes: 4096,
        slot_bytes: 4096,
        small_frames: SERVERS_MAX as u32,
        wide_frames: 0,
        guarding: Guarding::Sums,
    };
    let mut places = Places::new(shape, EXTENT_BYTES, Placement::new(&[1; SERVERS_MAX]), SERVERS_MAX);
    for index in 0..SERVERS_MAX as u32 {
        let job = WriteBack {
            page: PageId(index * 512),
            frame: FrameId { wide: false, index },
            bytes: 4096,
            from: 0,
            may_be_same: false,
        };
        let server = places.write_back(job).expect("room for one each");
        places.mark_held(index * 512, 1);
        assert_eq!((server, places.server_of(index * 512)), (index as usize, index as usize));
    }
}

/// Tests processes that share a far address space. Each page is placed by itself, and neighbouring pages are on one
/// server.
#[test]
fn short_extents_follow_their_neighbours_and_take_room_for_themselves_only() {
    const PAGES: u32 = 2048;
    let (unit_bytes, slot_bytes) = (4096, 4096);
    let shape =
        Shape { units: PAGES, unit_bytes, slot_bytes, small_frames: PAGES, wide_frames: 0, guarding: Guarding::Sums };
    let placement = Placement::new(&[1500, 1500]);
    let mut places = Places::new(shape, 4096, placement, 2);
    // One of four processes writes every fourth page.
    for page in (0..PAGES).step_by(4) {
        let job = WriteBack {
            page: PageId(page),
            frame: FrameId { wide: false, index: page },
            bytes: 4096,
            from: 0,
            may_be_same: false,
        };
        assert!(places.write_back(job).is_some(), "room for page {page}");
    }
    assert_eq!(places.placement.capacity_and_used(), (3000, u64::from(PAGES / 4)));
    let changes = (4..PAGES).step_by(4).filter(|&page| places.server_of(page - 4) != places.server_of(page));
    assert!((1..=3).contains(&changes.count()), "neighbours are together, and both servers are used");
    // One read can fetch all adjacent pages on one server, but no page on another server.
    let mut places = Places::new(shape, 4096, Placement::new(&[1026, 1]), 2);
    for page in 0..1027 {
        let job = WriteBack {
            page: PageId(page),
            frame: FrameId { wide: false, index: page },
            bytes: 4096,
            from: 0,
            may_be_same: false,
        };
        assert!(places.write_back(job).is_some(), "room for page {page}");
    }
    let first = places.reach(0, 1027);
    assert!((1..1027).contains(&first) && places.server_of(first - 1) != places.server_of(first));
    assert_eq!(places.reach(first - 1, 2), 1);
}
