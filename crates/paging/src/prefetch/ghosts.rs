//! Ghosts: proposed units that are remembered until they are accessed or have waited too long. Ghosts measure how often
//! a prefetcher is right. They cause no transfer. The idea comes from the ghost entries of ARC and from the filter
//! table of pollution-aware hardware prefetchers.

/// Largest number of ghosts.
const RING: usize = 1024;
/// Number of accesses after which a waiting ghost counts as wrong. Without this limit, every ghost would eventually
/// count as right, even if accesses are random.
const PATIENCE: u32 = 128;
const NONE: u16 = u16::MAX;

const _: () = assert!(RING.is_power_of_two() && RING < NONE as usize);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Waiting,
    Touched,
}

#[derive(Clone, Copy)]
struct Ghost {
    unit: u32,
    born: u32,
    next: u16,
    fate: Fate,
    probe: bool,
}

/// The outcome of one ghost (a unit that was proposed for prefetching but not fetched).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Verdict {
    /// Whether the ghost's unit was accessed in time.
    pub(super) right: bool,
    /// Whether the ghost was a probe.
    pub(super) probe: bool,
}

/// A ring of ghosts in the order of creation. A hash table with chains finds the ghost of a unit.
pub(super) struct Ghosts {
    ring: Vec<Ghost>,
    chains: Vec<u16>,
    first: usize,
    count: usize,
}

impl Ghosts {
    pub(super) fn new() -> Self {
        let empty = Ghost { unit: 0, born: 0, next: NONE, fate: Fate::Touched, probe: false };
        Self { ring: vec![empty; RING], chains: vec![NONE; RING], first: 0, count: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.chains.fill(NONE);
        self.count = 0;
    }

    fn chain(unit: u32) -> usize {
        (unit.wrapping_mul(0x9e37_79b1) >> 16) as usize % RING
    }

    fn find(&self, unit: u32) -> Option<usize> {
        let mut at = self.chains[Self::chain(unit)];
        while at != NONE && self.ring[at as usize].unit != unit {
            at = self.ring[at as usize].next;
        }
        (at != NONE).then_some(at as usize)
    }

    fn unlink(&mut self, index: usize) {
        let Ghost { unit, next, .. } = self.ring[index];
        let chain = Self::chain(unit);
        if self.chains[chain] as usize == index {
            self.chains[chain] = next;
            return;
        }
        let mut at = self.chains[chain];
        while at != NONE {
            let after = self.ring[at as usize].next;
            if after as usize == index {
                self.ring[at as usize].next = next;
                return;
            }
            at = after;
        }
    }

    /// Whether a unit has a waiting ghost.
    pub(super) fn waits(&self, unit: u32) -> bool {
        self.find(unit).is_some()
    }

    /// Remembers a proposed unit, if no ghost waits for the unit yet. If the ring is full, removes the oldest ghost and
    /// returns its verdict.
    pub(super) fn add(&mut self, unit: u32, now: u32, probe: bool) -> Option<Verdict> {
        if self.waits(unit) {
            return None;
        }
        let verdict = if self.count == RING { Some(self.take_first()) } else { None };
        let index = (self.first + self.count) % RING;
        let chain = Self::chain(unit);
        self.ring[index] = Ghost { unit, born: now, next: self.chains[chain], fate: Fate::Waiting, probe };
        self.chains[chain] = index as u16;
        self.count += 1;
        verdict
    }

    /// Notes an access to a unit. If a ghost waited for the unit, returns true for a probe and false for any other
    /// ghost.
    pub(super) fn touch(&mut self, unit: u32) -> Option<bool> {
        let index = self.find(unit)?;
        self.unlink(index);
        self.ring[index].fate = Fate::Touched;
        Some(self.ring[index].probe)
    }

    /// Removes the oldest ghost and returns its verdict, if the verdict is known. Verdicts are returned in the order of
    /// creation. Any other order would favour right ghosts, whose verdicts are known earlier than those of wrong
    /// ghosts.
    pub(super) fn settle(&mut self, now: u32) -> Option<Verdict> {
        let oldest = self.ring[self.first];
        let known = oldest.fate == Fate::Touched || now.wrapping_sub(oldest.born) > PATIENCE;
        (self.count > 0 && known).then(|| self.take_first())
    }

    fn take_first(&mut self) -> Verdict {
        let Ghost { fate, probe, .. } = self.ring[self.first];
        if fate == Fate::Waiting {
            self.unlink(self.first);
        }
        self.first = (self.first + 1) % RING;
        self.count -= 1;
        Verdict { right: fate == Fate::Touched, probe }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(right: bool) -> Verdict {
        Verdict { right, probe: false }
    }

    #[test]
    fn verdicts_come_in_the_order_of_birth() {
        let mut ghosts = Ghosts::new();
        for unit in [5, 6, 7] {
            assert_eq!(ghosts.add(unit, 0, false), None);
        }
        assert_eq!(ghosts.touch(6), Some(false));
        assert_eq!(ghosts.touch(6), None, "a ghost is touched once");
        assert_eq!(ghosts.settle(1), None, "the first still waits");
        assert_eq!(ghosts.touch(5), Some(false));
        assert_eq!(ghosts.settle(1), Some(verdict(true)));
        assert_eq!(ghosts.settle(1), Some(verdict(true)));
        assert_eq!(ghosts.settle(PATIENCE), None);
        assert_eq!(ghosts.settle(PATIENCE + 1), Some(verdict(false)));
        assert_eq!(ghosts.touch(7), None);
        assert_eq!(ghosts.settle(PATIENCE + 1), None);
    }

    #[test]
    fn a_full_ring_gives_up_its_oldest_and_every_chain_stays_whole() {
        let mut ghosts = Ghosts::new();
        for unit in 0..10_000u32 {
            // The hashes of these units collide, so their ghosts share a chain.
            let given_up = ghosts.add(unit.wrapping_mul(65_536), 0, false);
            assert_eq!(given_up.is_some(), unit as usize >= RING);
            assert!(ghosts.waits(unit.wrapping_mul(65_536)));
        }
        for unit in 0..10_000u32 {
            let waits = unit as usize >= 10_000 - RING;
            assert_eq!(ghosts.touch(unit.wrapping_mul(65_536)).is_some(), waits, "{unit}");
        }
    }
}
