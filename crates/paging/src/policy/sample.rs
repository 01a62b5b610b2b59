//! The units of a sample: one in 16, drawn at random.

use super::Space;
use crate::units::PageId;

/// Sampling if pages can be unmapped cheaply: two units of each run of 32, not adjacent.
const HIDDEN: Sampling = Sampling { run: 32, units: 2, step: 5, grain: 1 };
/// Sampling if pages are not unmapped: 32 adjacent units of each run of 512. Adjacent sampled units return together, so
/// they can be prefetched.
const IN_ROWS: Sampling = Sampling { run: 512, units: 32, step: 1, grain: 32 };

/// How units are sampled.
#[derive(Clone, Copy, Debug)]
struct Sampling {
    /// Number of neighbouring units in a run.
    run: u32,
    /// Number of sampled units in a run.
    units: u32,
    /// Distance between two sampled units.
    step: u32,
    /// The position of a run's first sampled unit is a multiple of this number.
    grain: u32,
}

impl Sampling {
    /// Returns the position of the first sampled unit in a run. The position is random, but always the same for a run.
    fn start(self, run: u32, salt: u64) -> u32 {
        let mut x = (u64::from(run) ^ salt.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= x >> 32;
        x as u32 % (self.run / self.grain) * self.grain
    }
}

/// The sampled units. Their names are consecutive numbers from 0. The names have the same order as the units, because
/// some policies walk over the pages in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    how: Sampling,
    /// Number of runs in the far space.
    runs: u32,
    salt: u64,
}

impl Sample {
    pub(super) fn of(space: Space) -> Self {
        let how = if space.hides { HIDDEN } else { IN_ROWS };
        Self { how, runs: space.units.div_ceil(how.run), salt: space.seed }
    }

    pub(super) fn names(self) -> u32 {
        self.runs * self.how.units
    }

    pub(super) fn name_of(self, page: PageId) -> Option<PageId> {
        let Sampling { run: len, units, step, .. } = self.how;
        let (run, at) = (page.0 / len, page.0 % len);
        let behind = (at + len - self.how.start(run, self.salt)) % len;
        let which = behind / step;
        (behind.is_multiple_of(step) && which < units).then(|| PageId(run * units + which))
    }

    pub(super) fn page_of(self, name: PageId) -> PageId {
        let (run, which) = (name.0 / self.how.units, name.0 % self.how.units);
        let len = self.how.run;
        PageId(run * len + (self.how.start(run, self.salt) + which * self.how.step) % len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampled_units_have_names_of_their_own_and_come_back_from_them() {
        for hides in [true, false] {
            let which = Sample::of(Space { units: 5120, block_units: 1, seed: 7, hides });
            let mut names: Vec<_> = (0..5120).filter_map(|unit| Some((which.name_of(PageId(unit))?, unit))).collect();
            assert!(names.iter().all(|&(name, unit)| which.page_of(name) == PageId(unit)));
            names.sort_unstable();
            names.dedup_by_key(|&mut (name, _)| name);
            assert_eq!((names.len() as u32, which.names()), (5120 / 16, 5120 / 16));
        }
    }
}
