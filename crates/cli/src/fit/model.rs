//! Predicts the run time with other sizes of local memory from one run. This module only calculates.
//!
//! The run time is a base, which does not depend on local memory, and waits. Some waits are the same with any local memory:
//! first accesses to pages. The others are those for evicted pages and for what follows from their return. They shrink with
//! the cost of the page-ins and write-backs that more local memory avoids, which the pager counts by depth
//! ([`hanare::counters::reuse`]). Waits of several threads at a time are shared out among the active threads.

use hanare::counters::reuse::{BUCKETS, Depths, Kind, bucket_floor};
use hanare::load::Load;

/// Time of copying a base page, as a part of the time of a fault on one: on this host, and over a link.
const COPY_DIRECT: f64 = 0.15;
const COPY_REMOTE: f64 = 0.05;
/// Smallest part of the run time that is taken for computation. Waits are measured less exactly than this.
const BASE_MIN: f64 = 0.02;
/// Page-ins below which nothing can be predicted.
const ARRIVALS_MIN: u64 = 256;
/// Sizes of local memory between the budget and the peak at which the model is asked for answers.
const STEPS: usize = 400;

/// The observations of one run. Times are in seconds, sizes in bytes.
#[derive(Debug, Clone)]
pub(crate) struct Observed {
    pub(crate) elapsed_s: f64,
    pub(crate) cpu_s: f64,
    /// Waits of all threads for pages, and for present pages to become accessible.
    pub(crate) waits_s: (f64, f64),
    pub(crate) waits_on_cpu: bool,
    /// Time of one fault outside its handler.
    pub(crate) trap_s: f64,
    /// Faults at first accesses to pages.
    pub(crate) faults_zero: u64,
    /// All other faults.
    pub(crate) faults_other: u64,
    pub(crate) depths: Depths,
    /// Base pages of a huge page.
    pub(crate) huge_units: u64,
    /// Base pages written back.
    pub(crate) units_out: u64,
    pub(crate) budget: u64,
    pub(crate) peak: u64,
    /// Whether the policy keeps a part of a loop that does not fit, as LRU does not.
    pub(crate) keeps_parts: bool,
}

/// Why nothing can be predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// The local memory sufficed.
    Ample,
    /// This number of page-ins is too small to predict from.
    Few(u64),
}

/// The run time against local memory.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    base_s: f64,
    varying_s: f64,
    /// Sizes of local memory, ascending, with the part of the varying waits that is left.
    curve: Vec<(f64, f64)>,
}

impl Model {
    pub(crate) fn new(seen: &Observed) -> Result<Self, Unfit> {
        let arrivals: u64 =
            [Kind::Small, Kind::Wide, Kind::Ahead].iter().flat_map(|&kind| seen.depths[kind as usize]).sum();
        match arrivals {
            0 => return Err(Unfit::Ample),
            _ if seen.peak <= seen.budget => return Err(Unfit::Ample),
            few if few < ARRIVALS_MIN => return Err(Unfit::Few(few)),
            _ => {}
        }
        let costs = costs(seen);
        let all: f64 = costs.iter().sum();
        let (swap_s, open_s) = seen.waits_s;
        let load =
            Load { wall: seen.elapsed_s, cpu: seen.cpu_s, waits: swap_s + open_s, waits_on_cpu: seen.waits_on_cpu };
        let threads = load.threads();
        let fixed_part = seen.faults_zero as f64 / (seen.faults_zero as f64 + all);
        let traps = |faults: u64| faults as f64 * seen.trap_s;
        let fixed_s = (swap_s * fixed_part + traps(seen.faults_zero)) / threads;
        let varying_s = (swap_s * (1.0 - fixed_part) + open_s + traps(seen.faults_other)) / threads;
        // If the waits were measured as longer than the run, they are shortened in proportion.
        let room = seen.elapsed_s * (1.0 - BASE_MIN);
        let scale = (room / (fixed_s + varying_s).max(f64::MIN_POSITIVE)).min(1.0);
        let base_s = seen.elapsed_s - varying_s * scale;
        Ok(Model { base_s, varying_s: varying_s * scale, curve: curve(&costs, all, seen) })
    }

    /// Returns the run time with this local memory. Below the budget of the run, returns that of the run or more.
    pub(crate) fn time_s(&self, local: u64) -> f64 {
        self.base_s + self.varying_s * part_at(&self.curve, local as f64)
    }

    /// Returns the run time with this local memory, as a multiple of the time with all memory local.
    pub(crate) fn slowdown(&self, local: u64) -> f64 {
        self.time_s(local) / self.base_s
    }

    /// Returns the smallest of the curve's sizes with at most this slowdown.
    pub(crate) fn least_for(&self, slowdown: f64) -> u64 {
        self.sizes().find(|&bytes| self.slowdown(bytes) <= slowdown).unwrap_or(self.ends().1)
    }

    /// Returns the size at which more memory stops to pay: the one farthest below the straight line from the first to the
    /// last size. `None` if the curve is nearly that line.
    pub(crate) fn knee(&self) -> Option<u64> {
        let (first, last) = self.ends();
        let (high, low) = (self.time_s(first), self.time_s(last));
        let below = |bytes: u64| {
            let along = (bytes - first) as f64 / (last - first).max(1) as f64;
            (high - self.time_s(bytes)) / (high - low).max(f64::MIN_POSITIVE) - along
        };
        let knee = self.sizes().max_by(|&one, &other| below(one).total_cmp(&below(other)))?;
        (below(knee) > 0.1).then_some(knee)
    }

    fn ends(&self) -> (u64, u64) {
        let at = |point: Option<&(f64, f64)>| point.map_or(0, |&(bytes, _)| bytes as u64);
        (at(self.curve.first()), at(self.curve.last()))
    }

    fn sizes(&self) -> impl Iterator<Item = u64> + '_ {
        let (first, last) = self.ends();
        (0..=STEPS).map(move |step| first + ((last - first) as f64 * step as f64 / STEPS as f64) as u64)
    }
}

/// Returns what was paid by depth, in the time of a fault on a base page.
fn costs(seen: &Observed) -> [f64; BUCKETS] {
    let copy = if seen.waits_on_cpu { COPY_DIRECT } else { COPY_REMOTE };
    let of = |kind: Kind, bucket: usize| seen.depths[kind as usize][bucket] as f64;
    let mut costs = std::array::from_fn(|bucket| {
        of(Kind::Small, bucket) * (1.0 + copy)
            + of(Kind::Wide, bucket) * (1.0 / seen.huge_units.max(1) as f64 + copy)
            + (of(Kind::Ahead, bucket) + of(Kind::Written, bucket)) * copy
    });
    // Pages that were written back and never came in again: each size of local memory would have kept its part of them.
    let returned: u64 = seen.depths[Kind::Written as usize].iter().sum();
    let left = seen.units_out.saturating_sub(returned) as f64 * copy;
    let (first, last) = (seen.budget as f64, seen.peak as f64);
    for (bucket, cost) in costs.iter_mut().enumerate() {
        let (floor, end) = (bucket_floor(bucket) as f64, bucket_floor(bucket + 1) as f64);
        *cost += left * (end.min(last) - floor.max(first)).max(0.0) / (last - first);
    }
    costs
}

/// Returns the part of the costs that is left with each size of local memory, from the budget to the peak.
fn curve(costs: &[f64; BUCKETS], all: f64, seen: &Observed) -> Vec<(f64, f64)> {
    let (first, last) = (seen.budget as f64, seen.peak as f64);
    let left_from = |bucket: usize| costs[bucket..].iter().sum::<f64>() / all;
    let edges: Vec<(f64, f64)> = (0..BUCKETS).map(|bucket| (bucket_floor(bucket) as f64, left_from(bucket))).collect();
    let mut points = vec![(first, part_at(&edges, first))];
    points.extend(edges.iter().copied().filter(|&(bytes, _)| bytes > first && bytes < last));
    points.push((last, 0.0));
    if seen.keeps_parts { hull(&points) } else { points }
}

/// Returns the lower convex hull of points with ascending sizes. A policy that keeps a part of each loop comes near to it
/// (Beckmann and Sanchez, "Talus", HPCA 2015).
fn hull(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut hull: Vec<(f64, f64)> = Vec::new();
    for &point in points {
        while let [.., before, last] = hull[..]
            && (last.1 - before.1) * (point.0 - before.0) >= (point.1 - before.1) * (last.0 - before.0)
        {
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

/// Interpolates between points with ascending sizes. Outside them, the value of the nearest one holds.
fn part_at(points: &[(f64, f64)], size: f64) -> f64 {
    let after = points.partition_point(|&(bytes, _)| bytes <= size);
    match (after.checked_sub(1).and_then(|at| points.get(at)), points.get(after)) {
        (Some(&(low, from)), Some(&(high, to))) => from + (to - from) * (size - low) / (high - low),
        (Some(&(_, part)), None) | (None, Some(&(_, part))) => part,
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare::counters::reuse::{KINDS, bucket_of};

    const MIB: u64 = 1 << 20;

    /// A run of 10 s with 100 of 1000 MiB local that waits for 8 s.
    fn run(arrivals: &[(u64, u64)]) -> Observed {
        let mut depths = [[0; BUCKETS]; KINDS];
        for &(depth, count) in arrivals {
            depths[Kind::Small as usize][bucket_of(depth)] += count;
        }
        Observed {
            elapsed_s: 10.0,
            cpu_s: 10.0,
            waits_s: (8.0, 0.0),
            waits_on_cpu: true,
            trap_s: 0.0,
            faults_zero: 0,
            faults_other: arrivals.iter().map(|&(_, count)| count).sum(),
            depths,
            huge_units: 1,
            units_out: 0,
            budget: 100 * MIB,
            peak: 1000 * MIB,
            keeps_parts: true,
        }
    }

    fn near(value: f64, wanted: f64) -> bool {
        (value / wanted - 1.0).abs() < 0.03
    }

    #[test]
    fn a_loop_takes_less_time_in_proportion_to_what_stays() {
        let model = Model::new(&run(&[(999 * MIB, 100_000)])).unwrap();
        for (local, time) in [(100, 10.0), (550, 6.0), (775, 4.0), (1000, 2.0), (4000, 2.0)] {
            assert!(near(model.time_s(local * MIB), time), "{local}: {}", model.time_s(local * MIB));
        }
        assert!(near(model.slowdown(550 * MIB), 3.0) && model.knee().is_none());
        assert!(near(model.least_for(3.0) as f64, 550.0 * MIB as f64));
        // LRU keeps nothing of a loop until all of it fits.
        let lru = Model::new(&Observed { keeps_parts: false, ..run(&[(999 * MIB, 100_000)]) }).unwrap();
        assert!(near(lru.time_s(775 * MIB), 10.0) && near(lru.time_s(1000 * MIB), 2.0));
    }

    #[test]
    fn the_knee_is_where_most_of_the_references_fit() {
        let model = Model::new(&run(&[(290 * MIB, 90_000), (990 * MIB, 10_000)])).unwrap();
        let knee = model.knee().unwrap();
        assert!((280 * MIB..340 * MIB).contains(&knee), "{} MiB", knee / MIB);
        assert!(near(model.time_s(knee), 2.8), "{}", model.time_s(knee));
        assert!(model.least_for(1.2) > 600 * MIB);
    }

    #[test]
    fn waits_of_several_threads_are_not_added_up() {
        let one = Model::new(&run(&[(999 * MIB, 100_000)])).unwrap();
        let four = Observed { cpu_s: 40.0, waits_s: (32.0, 0.0), ..run(&[(999 * MIB, 100_000)]) };
        assert_eq!(Model::new(&four).unwrap().time_s(550 * MIB), one.time_s(550 * MIB));
        // Four threads that do not compute while they wait, over a link.
        let remote = Observed { cpu_s: 8.0, waits_on_cpu: false, ..four };
        assert!(near(Model::new(&remote).unwrap().time_s(1000 * MIB), 2.0));
    }

    #[test]
    fn first_accesses_and_traps_stay_or_go() {
        let zeroes = Model::new(&Observed { faults_zero: 115_000, ..run(&[(999 * MIB, 100_000)]) }).unwrap();
        // Half of the waits are for fresh pages.
        assert!(near(zeroes.time_s(1000 * MIB), 6.0), "{}", zeroes.time_s(1000 * MIB));
        let traps = Model::new(&Observed { trap_s: 1e-5, ..run(&[(999 * MIB, 100_000)]) }).unwrap();
        assert!(near(traps.time_s(1000 * MIB), 1.0), "{}", traps.time_s(1000 * MIB));
        // Waits that are longer than the run leave a little of it.
        let wrong = Model::new(&Observed { waits_s: (99.0, 9.0), cpu_s: 1.0, ..run(&[(999 * MIB, 100_000)]) }).unwrap();
        assert!(near(wrong.time_s(1000 * MIB), 10.0 * BASE_MIN) && near(wrong.time_s(100 * MIB), 10.0));
    }

    #[test]
    fn write_backs_count_where_they_are_avoided() {
        let mut seen = run(&[(200 * MIB, 1_000)]);
        seen.depths[Kind::Written as usize][bucket_of(990 * MIB)] = 1_000 * 115 / 15;
        let model = Model::new(&Observed { keeps_parts: false, ..seen.clone() }).unwrap();
        assert!(near(model.time_s(500 * MIB), 6.0), "{}", model.time_s(500 * MIB));
        // As many write-backs of pages that did not return: their depth is taken as anything.
        seen.units_out = 2 * 1_000 * 115 / 15;
        let more = Model::new(&Observed { keeps_parts: false, ..seen }).unwrap();
        assert!(near(more.time_s(550 * MIB), 2.0 + 8.0 * 1.5 / 3.0), "{}", more.time_s(550 * MIB));
    }

    #[test]
    fn little_evidence_gives_no_figures() {
        assert_eq!(Model::new(&run(&[])).unwrap_err(), Unfit::Ample);
        assert_eq!(Model::new(&run(&[(200 * MIB, 9)])).unwrap_err(), Unfit::Few(9));
        assert_eq!(Model::new(&Observed { peak: 100 * MIB, ..run(&[(MIB, 999)]) }).unwrap_err(), Unfit::Ample);
    }

    #[test]
    fn more_memory_never_takes_more_time() {
        for keeps_parts in [true, false] {
            let arrivals: Vec<(u64, u64)> = (1..60).map(|nth| (nth * 31 * MIB, (nth * 7919) % 97 * 100)).collect();
            let model = Model::new(&Observed { keeps_parts, ..run(&arrivals) }).unwrap();
            let times: Vec<f64> = (1..300).map(|nth| model.time_s(nth * 5 * MIB)).collect();
            assert!(times.is_sorted_by(|one, other| one >= other));
        }
    }
}
