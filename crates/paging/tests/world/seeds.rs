//! Draws shapes of worlds from a seed, and runs a test over many seeds.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use hanare_paging::{limits, policy};

use super::Shape;
use super::random::Random;

const PREFETCHERS: [&str; 8] = [
    "none",
    "sequential",
    "auto",
    "streams:gate=0",
    "cluster:gate=0",
    "prepaging:gate=0",
    "leap:gate=0",
    "markov:gate=0",
];

impl Shape {
    /// Draws a small world, in which all kinds of events soon coincide.
    pub(super) fn small(random: &mut Random) -> Self {
        let block_units = if random.chance(500) { 1 } else { 4 };
        let budget = if block_units == 1 { 2 + random.below(22) } else { 32 + random.below(68) } as u32;
        let budget = budget.max(limits::BUDGET_PAGES_MIN);
        let mut policies: Vec<&str> = policy::POLICIES.iter().map(|info| info.name).collect();
        policies.extend(["hider"; 6]);
        policies.extend(["kinds"; 3]);
        Self {
            units: (budget * 3).next_multiple_of(block_units),
            block_units,
            budget,
            small_moves: block_units == 1 && random.chance(500),
            wide_moves: block_units > 1 && random.chance(500),
            direct: random.chance(500),
            frames: 1 + random.below(4) as u32,
            threads: 1 + random.below(5) as usize,
            policy: random.pick(&policies),
            prefetcher: random.pick(&PREFETCHERS),
            hides_in_place: random.chance(500),
            failures_per_mille: random.pick(&[0, 50]),
            sequential: random.chance(500),
            pins: random.chance(500),
            completes_per_mille: 500,
        }
    }

    /// Draws a large world, with more threads, pages and pending actions than one step of the pager allows.
    pub(super) fn large(random: &mut Random) -> Self {
        let small = Self::small(random);
        let budget = random.pick(&[64, 512, 2048]);
        Self {
            units: 6144,
            budget,
            frames: random.pick(&[8, 512]),
            threads: random.pick(&[8, 1500]),
            failures_per_mille: 0,
            completes_per_mille: random.pick(&[20, 500]),
            ..small
        }
    }
}

/// Returns the seed that `HANARE_SEED` names, if it is set.
fn only_seed() -> Option<u64> {
    std::env::var("HANARE_SEED").ok().and_then(|seed| seed.parse().ok())
}

/// Runs a test with `count` seeds, which differ from run to run. If `HANARE_SEED` is set, runs only that seed. A
/// failure prints how to repeat it.
pub(super) fn for_seeds(count: u64, test: &str, run: impl Fn(u64)) {
    for_seeds_from(None, count, test, run);
}

/// Does the work of [`for_seeds`], but starts with the seed `first`. If `first` is `None`, the seed is taken from the
/// clock.
pub(super) fn for_seeds_from(first: Option<u64>, count: u64, test: &str, run: impl Fn(u64)) {
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_micros());
    let first = first.unwrap_or_else(|| now() as u64 % 1_000_000_000 * 1000);
    let seeds = only_seed().map_or(first..first + count, |seed| seed..seed + 1);
    for seed in seeds {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            eprintln!("HANARE_SEED={seed} cargo test -p hanare-paging --test world {test}");
            resume_unwind(payload);
        }
    }
}
