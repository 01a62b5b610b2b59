//! Tests of the guard: what comes back changed, old or from another unit is noticed, and nothing else is. Proptest prints
//! what replays a failure.

use std::collections::HashSet;

use proptest::prelude::*;

use super::seal::COUNTER_BITS;
use super::*;

const UNIT: usize = 4096;
const UNITS: u32 = 16;

/// A guard, and what a server would hold of its units.
struct World {
    guard: Guard,
    held: Vec<Vec<u8>>,
}

fn page(unit: u32, version: u8) -> Vec<u8> {
    (0..UNIT).map(|at| (at as u8).wrapping_mul(unit as u8 + 3).wrapping_add(version)).collect()
}

impl World {
    fn new(sealed: bool) -> Self {
        let guard = Guard::new(UNITS, UNIT, guarding(sealed)).expect("room, and a key");
        Self { guard, held: vec![Vec::new(); UNITS as usize] }
    }

    /// Sends adjacent units that begin with `first`, as a sender does.
    fn send(&mut self, first: u32, bytes: &[u8]) {
        let mut sent = bytes.to_vec();
        match self.guard.seals() {
            true => self.guard.seal(first, &mut sent).expect("a nonce"),
            false => self.guard.note(first, &sent),
        }
        for (unit, part) in (first..).zip(sent.chunks(UNIT)) {
            self.held[unit as usize] = part.to_vec();
        }
    }

    /// Receives the units from `first` on. Returns their bytes, or the first unit that is wrong.
    fn receive(&self, first: u32, count: u32) -> Result<Vec<u8>, u32> {
        let mut bytes = self.held[first as usize..(first + count) as usize].concat();
        self.guard.open(first, &mut bytes).map_err(|Damaged { unit }| unit)?;
        Ok(bytes)
    }
}

/// Returns the kind of guard that the tests mean by `sealed`.
fn guarding(sealed: bool) -> Guarding {
    if sealed { Guarding::Seals } else { Guarding::Sums }
}

/// Returns a world in which all units were sent, each in version 1.
fn sent(sealed: bool) -> World {
    let mut world = World::new(sealed);
    for unit in 0..UNITS {
        world.send(unit, &page(unit, 1));
    }
    world
}

#[test]
fn units_come_back_as_they_were_sent_one_by_one_and_in_ranges() {
    for sealed in [false, true] {
        let mut world = sent(sealed);
        let range = [page(5, 9), page(6, 9), page(7, 9)].concat();
        world.send(5, &range);
        assert_eq!(world.receive(5, 3), Ok(range.clone()), "{sealed}");
        assert_eq!(world.receive(6, 1), Ok(page(6, 9)), "{sealed}");
        assert_eq!(world.receive(4, 4), Ok([page(4, 1), range].concat()), "{sealed}");
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    for sealed in [false, true] {
        let mut world = sent(sealed);
        for bit in (0..UNIT * 8).step_by(61) {
            world.held[3][bit / 8] ^= 1 << (bit % 8);
            assert_eq!(world.receive(3, 1), Err(3), "{sealed}: bit {bit}");
            assert_eq!(world.receive(2, 3), Err(3), "{sealed}: bit {bit} in a range");
            world.held[3][bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(world.receive(3, 1), Ok(page(3, 1)), "{sealed}");
    }
}

#[test]
fn bytes_fit_if_they_are_those_that_were_sent_last() {
    for sealed in [false, true] {
        let mut world = sent(sealed);
        world.send(3, &page(3, 2));
        let range = [page(2, 1), page(3, 2), page(4, 1)].concat();
        assert!(world.guard.fits(2, &range), "{sealed}");
        assert!(!world.guard.fits(3, &page(3, 1)) && !world.guard.fits(2, &page(3, 2)), "{sealed}");
        for at in (0..range.len()).step_by(97) {
            let mut other = range.clone();
            other[at] ^= 16;
            assert!(!world.guard.fits(2, &other), "{sealed}: byte {at}");
        }
        let guard = Guard::new(UNITS, UNIT, guarding(sealed)).expect("room, and a key");
        assert!(!guard.fits(3, &[0; UNIT]), "{sealed}: a unit that was never sent");
    }
    let guard = Guard::new(UNITS, UNIT, Guarding::Nothing).expect("room");
    guard.note(3, &page(3, 1));
    assert!(!guard.fits(3, &page(3, 1)));
}

#[test]
fn an_older_version_is_noticed() {
    for sealed in [false, true] {
        let mut world = sent(sealed);
        let old = world.held[3].clone();
        world.send(3, &page(3, 2));
        let new = std::mem::replace(&mut world.held[3], old);
        assert_eq!(world.receive(3, 1), Err(3), "{sealed}");
        world.held[3] = new;
        assert_eq!(world.receive(3, 1), Ok(page(3, 2)), "{sealed}");
    }
}

#[test]
fn swapped_units_are_noticed_unless_their_bytes_are_equal_and_unsealed() {
    for sealed in [false, true] {
        let mut world = sent(sealed);
        world.held.swap(3, 4);
        assert_eq!((world.receive(3, 1), world.receive(4, 1)), (Err(3), Err(4)), "{sealed}");
        for unit in [8, 9] {
            world.send(unit, &page(0, 7));
        }
        world.held.swap(8, 9);
        let wanted = if sealed { Err(8) } else { Ok(page(0, 7)) };
        assert_eq!(world.receive(8, 1), wanted, "{sealed}");
    }
}

#[test]
fn a_unit_that_was_never_sent_or_does_not_exist_is_never_right() {
    for sealed in [false, true] {
        let guard = Guard::new(UNITS, UNIT, guarding(sealed)).expect("room, and a key");
        for unit in [0, UNITS - 1, UNITS, u32::MAX] {
            assert_eq!(guard.open(unit, &mut [0; UNIT]), Err(Damaged { unit }), "{sealed}");
        }
    }
}

#[test]
fn sealed_bytes_show_nothing_and_differ_each_time() {
    let mut world = World::new(true);
    let pattern = b"what nobody may read".repeat(UNIT / 20 + 1);
    let mut seen = HashSet::new();
    for _ in 0..20 {
        world.send(1, &pattern[..UNIT]);
        assert!(!world.held[1].windows(8).any(|window| window == b"nobody m"));
        assert!(seen.insert(world.held[1].clone()), "the same bytes twice");
    }
    assert_eq!(world.receive(1, 1), Ok(pattern[..UNIT].to_vec()));
}

/// Returns a copy of a guard, as a fork makes it: the notes and the keys are copied with the memory.
fn forked(guard: &Guard) -> Guard {
    let kind = match &guard.kind {
        Kind::Sums(sums) => Kind::Sums(sums.copied()),
        Kind::Seals(seal, sums) => Kind::Seals(seal.copied(), sums.copied()),
        Kind::Nothing => Kind::Nothing,
    };
    Guard { unit_bytes: guard.unit_bytes, kind }
}

#[test]
fn a_child_reads_its_parents_units_and_seals_with_a_key_of_its_own() {
    for sealed in [false, true] {
        let mut parent = sent(sealed);
        let mut generations = Vec::new();
        for generation in 0..4 {
            let guard = forked(&parent.guard).again().expect("a key");
            let mut child = World { guard, held: parent.held.clone() };
            for unit in 0..UNITS {
                assert!(child.receive(unit, 1).is_ok(), "{sealed}: unit {unit} in generation {generation}");
            }
            // Both send the same unit. Each reads its own version, and not the other's.
            child.send(2, &page(2, 100 + generation));
            parent.send(2, &page(2, 200 + generation));
            assert_eq!(child.receive(2, 1), Ok(page(2, 100 + generation)), "{sealed}");
            assert_eq!(parent.receive(2, 1), Ok(page(2, 200 + generation)), "{sealed}");
            std::mem::swap(&mut child.held, &mut parent.held);
            assert_eq!((child.receive(2, 1), parent.receive(2, 1)), (Err(2), Err(2)), "{sealed}");
            std::mem::swap(&mut child.held, &mut parent.held);
            generations.push(std::mem::replace(&mut parent, child));
        }
        drop(generations);
    }
}

/// A nonce that is used twice with one key would show the difference of two pages.
#[test]
fn parents_and_children_never_use_a_nonce_twice_with_one_key() {
    let mut seal = Seal::new(UNITS).expect("a key");
    let mut used = HashSet::new();
    let mut use_one = |seal: &Seal| {
        let (number, counter, key) = seal.keys().take_nonce().expect("a nonce");
        // The key itself cannot be compared. It is known by what it makes of zeroes.
        let nonce = ring::aead::Nonce::assume_unique_for_key([0xff; 12]);
        let tag = key.seal_in_place_separate_tag(nonce, ring::aead::Aad::empty(), &mut []).expect("a tag");
        assert!(used.insert((tag.as_ref().to_vec(), counter)), "key {number}, counter {counter}");
    };
    for generation in 0..5_u16 {
        let mut child = seal.copied();
        child.renew().expect("a key");
        for _ in 0..10 {
            use_one(&seal);
            use_one(&child);
        }
        assert_eq!(child.keys().take_nonce().map(|(number, ..)| number), Some(generation + 1));
        seal = child;
    }
}

#[test]
fn a_key_without_a_nonce_left_seals_nothing() {
    let mut seal = Seal::new(UNITS).expect("a key");
    seal.keys_mut().skip_to((1 << COUNTER_BITS) - 1);
    let mut bytes = page(0, 1);
    assert_eq!(seal.seal(0, &mut bytes), Ok(()), "the last one");
    let mut more = page(0, 1);
    assert_eq!([seal.seal(0, &mut more), seal.seal(0, &mut more)], [Err(KeySpent); 2]);
    assert_eq!(more, page(0, 1), "it is not sealed");
    assert!(seal.open(0, &mut bytes) && bytes == page(0, 1), "the last one still opens");
    seal.renew().expect("a key");
    assert_eq!(seal.seal(0, &mut more), Ok(()), "a new key has nonces");
    assert!(seal.open(0, &mut more) && more == page(0, 1));
}

proptest! {
    /// Sends, damages and reads random ranges. Exactly the ranges with a wrong unit are refused, naming the first one.
    #[test]
    fn exactly_what_is_wrong_is_refused(
        sealed: bool,
        steps in prop::collection::vec((0..5_u8, 0..UNITS, 1..5_u32, any::<u16>()), 1..60),
    ) {
        let mut world = sent(sealed);
        let mut model: Vec<Vec<u8>> = (0..UNITS).map(|unit| page(unit, 1)).collect();
        let mut is_wrong = [false; UNITS as usize];
        let mut version = 1;
        for (step, first, count, at) in steps {
            let range = first..(first + count).min(UNITS);
            match step {
                0 | 1 => {
                    version += 1;
                    let bytes: Vec<u8> = range.clone().flat_map(|unit| page(unit, version)).collect();
                    world.send(first, &bytes);
                    for unit in range {
                        model[unit as usize] = page(unit, version);
                        is_wrong[unit as usize] = false;
                    }
                }
                2 => {
                    // Each time another bit, so that no damage is undone.
                    if !is_wrong[first as usize] {
                        world.held[first as usize][usize::from(at) % UNIT] ^= 1 << (at % 8);
                        is_wrong[first as usize] = true;
                    }
                }
                _ => {
                    let wrong = range.clone().find(|&unit| is_wrong[unit as usize]);
                    let wanted: Vec<u8> = range.clone().flat_map(|unit| model[unit as usize].clone()).collect();
                    let found = world.receive(range.start, range.end - range.start);
                    prop_assert_eq!(found, wrong.map_or(Ok(wanted), Err));
                }
            }
        }
    }
}
