//! Two sets of slots on a same-host link. The first set contains slots that are shared with a forked process and are
//! only read. The second set contains slots that this process no longer uses and must give back.

use hanare_wire::{Grant, Place};

pub(crate) struct Shared {
    /// One bit for each extent. It is set if the extent's slot is shared.
    extents: Vec<u64>,
    /// The slots that must be given back.
    let_go: Vec<u32>,
}

impl Shared {
    pub(crate) fn new(extents: usize) -> Self {
        Self { extents: vec![0; extents / 64 + 1], let_go: Vec::with_capacity(2 * extents) }
    }

    /// Checks whether an extent's slot is shared.
    pub(crate) fn has(&self, extent: u32) -> bool {
        self.extents[extent as usize / 64] & (1 << (extent % 64)) != 0
    }

    /// Marks an extent's slot as no longer shared. Returns true if it was shared.
    pub(crate) fn take(&mut self, extent: u32) -> bool {
        let was = self.has(extent);
        self.extents[extent as usize / 64] &= !(1 << (extent % 64));
        was
    }

    /// Marks the slot of every extent that has a slot as shared.
    pub(crate) fn add_all(&mut self, slot_of: &[u32]) {
        for (word, slots) in self.extents.iter_mut().zip(slot_of.chunks(64)) {
            let bits = slots.iter().rev().fold(0, |bits, &slot| bits << 1 | u64::from(slot != 0));
            // A word without bits to set is not written, so the kernel allocates no memory for it.
            if bits != 0 {
                *word = bits;
            }
        }
    }

    /// Adds a slot that must be given back.
    pub(crate) fn let_go(&mut self, slot: u32) {
        self.let_go.push(slot);
    }

    /// Moves slots that must be given back into `runs`. Returns the number of runs. `spilled` is the bit that marks
    /// slots in the spill file.
    pub(crate) fn take_runs(&mut self, runs: &mut [Grant], spilled: u32) -> usize {
        let mut count = 0;
        while let Some(&slot) = self.let_go.last() {
            let place = if slot & spilled != 0 { Place::Spill } else { Place::Memory };
            let number = slot & !spilled;
            let room = count < runs.len();
            match runs[..count].last_mut() {
                Some(run) if run.place == place && run.first_slot + run.count == number => run.count += 1,
                Some(run) if run.place == place && number + 1 == run.first_slot => {
                    run.first_slot = number;
                    run.count += 1;
                }
                _ if room => {
                    runs[count] = Grant { place, first_slot: number, count: 1 };
                    count += 1;
                }
                _ => return count,
            }
            self.let_go.pop();
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_slot_is_shared_until_it_is_taken() {
        let mut shared = Shared::new(200);
        let mut slot_of = vec![0; 200];
        for extent in [0, 63, 64, 130, 199] {
            slot_of[extent] = 7;
        }
        shared.add_all(&slot_of);
        for extent in 0..200 {
            assert_eq!(shared.has(extent), slot_of[extent as usize] != 0, "extent {extent}");
        }
        assert!(shared.take(64) && !shared.take(64) && !shared.take(65) && shared.has(63));
    }

    #[test]
    fn slots_go_back_in_runs_each_once() {
        const SPILLED: u32 = 1 << 31;
        let mut shared = Shared::new(10);
        for slot in [4, 5, 6, 20, SPILLED | 21, SPILLED | 20, 9] {
            shared.let_go(slot);
        }
        let mut runs = [Grant { place: Place::Memory, first_slot: 0, count: 0 }; 3];
        let mut back = Vec::new();
        loop {
            let count = shared.take_runs(&mut runs, SPILLED);
            if count == 0 {
                break;
            }
            for run in &runs[..count] {
                back.extend((run.first_slot..run.first_slot + run.count).map(|slot| (run.place, slot)));
            }
        }
        let memory = [4, 5, 6, 9, 20].map(|slot| (Place::Memory, slot));
        let spill = [20, 21].map(|slot| (Place::Spill, slot));
        back.sort_by_key(|&(place, slot)| (place as u32, slot));
        assert_eq!(back, memory.into_iter().chain(spill).collect::<Vec<_>>());
    }
}
