//! Tests the savings and the costs of prefetchers with simulated programs.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::{PREFETCHERS, Prefetcher, Proposals, Space, Touch, build};
use crate::limits;

/// Returns a prefetcher's proposals for an access to an absent page. First uses of prefetched pages are not visible.
pub(super) fn propose(prefetcher: &mut dyn Prefetcher, unit: u32, span: u32, window_max: u32) -> Vec<(u32, u32)> {
    let mut proposals = Proposals::default();
    prefetcher.touched(Touch { unit, span, window_max, staged: false, told: false }, &|_| true, &mut proposals);
    proposals.as_slice().to_vec()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Away,
    Staged,
    Here,
}

/// A memory of fixed size with FIFO replacement. Fetched pages arrive immediately.
struct Machine {
    prefetcher: Box<dyn Prefetcher>,
    at: Vec<At>,
    order: VecDeque<u32>,
    room: usize,
    told: bool,
    misses: u64,
    transfers: u64,
}

impl Machine {
    fn new(prefetcher: &str, units: u32, room: usize, told: bool) -> Self {
        let prefetcher =
            build(prefetcher, Space { units, block_units: 1, seed: 1, hides: true }).expect("a known prefetcher");
        let at = vec![At::Away; units as usize];
        Self { prefetcher, at, order: VecDeque::new(), room, told, misses: 0, transfers: 0 }
    }

    fn bring(&mut self, unit: u32, at: At) {
        self.transfers += 1;
        self.at[unit as usize] = at;
        self.order.push_back(unit);
        if self.order.len() > self.room
            && let Some(victim) = self.order.pop_front()
        {
            self.at[victim as usize] = At::Away;
        }
    }

    fn touch(&mut self, unit: u32) {
        let staged = match self.at[unit as usize] {
            At::Here => return,
            At::Staged => {
                self.at[unit as usize] = At::Here;
                true
            }
            At::Away => {
                self.misses += 1;
                self.bring(unit, At::Here);
                false
            }
        };
        let mut proposals = Proposals::default();
        let touch = Touch { unit, span: 1, window_max: 63, staged, told: self.told };
        let Self { prefetcher, at, .. } = self;
        prefetcher.touched(touch, &|unit| at.get(unit as usize) == Some(&At::Away), &mut proposals);
        for &(first, count) in proposals.as_slice() {
            for unit in first..first.saturating_add(count).min(self.at.len() as u32) {
                if self.at[unit as usize] == At::Away {
                    self.bring(unit, if self.told { At::Staged } else { At::Here });
                }
            }
        }
    }
}

/// Runs a program with and without prefetching. Returns the ratio of the demand misses and the ratio of the transfers.
fn measure(prefetcher: &str, units: u32, room: usize, told: bool, program: &[u32]) -> (f64, f64) {
    let run = |prefetcher: &str| {
        let mut machine = Machine::new(prefetcher, units, room, told);
        program.iter().for_each(|&unit| machine.touch(unit));
        (machine.misses as f64, machine.transfers as f64)
    };
    let (none, some) = (run("none"), run(prefetcher));
    (some.0 / none.0, some.1 / none.1)
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(n)) as u32
    }
}

/// Returns the accesses of a stencil over three arrays of planes. For each point, the program reads the same place in
/// the previous plane, in its own plane and in the next plane.
fn stencil(sweeps: u32) -> (u32, Vec<u32>) {
    let (planes, plane) = (64, 40);
    let array = planes * plane;
    let mut program = Vec::new();
    for _ in 0..sweeps {
        for at in plane..array - plane {
            for base in [0, array, 2 * array] {
                program.extend([base + at - plane, base + at, base + at + plane]);
            }
        }
    }
    (3 * array, program)
}

/// Returns the accesses of an FFT over 2^12 pages: butterflies of each power of two, then the columns of the matrix.
fn fft(rounds: u32) -> (u32, Vec<u32>) {
    let pages = 4096;
    let mut program = Vec::new();
    for _ in 0..rounds {
        for stride in (4..12).map(|bit| 1 << bit) {
            for start in (0..pages).step_by(2 * stride as usize) {
                program.extend((start..start + stride).flat_map(|at| [at, at + stride]));
            }
        }
        for stride in [16, 32] {
            program.extend((0..stride).flat_map(|column| (column..pages).step_by(stride as usize)));
        }
    }
    (pages, program)
}

/// Returns the accesses of interleaved streams: one ascending, one descending, and two with strides 7 and -3. One more
/// page is accessed again and again.
fn mixed() -> (u32, Vec<u32>) {
    let units = 60_000;
    let mut program = Vec::new();
    for at in 0..2_000 {
        program.extend([at, 20_000 - at, 30_000 + 7 * at, 59_999, 50_000 - 3 * at]);
    }
    (units, program)
}

fn random(units: u32, count: u32) -> Vec<u32> {
    let mut random = Random(7);
    (0..count).map(|_| random.below(units)).collect()
}

/// Returns several rounds of accesses to all pages. Each round has the same order, which has no strides.
fn chase(units: u32, rounds: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..units).collect();
    let mut random = Random(3);
    for index in (1..units).rev() {
        order.swap(index as usize, random.below(index + 1) as usize);
    }
    (0..rounds).flat_map(|_| order.clone()).collect()
}

const MODES: [bool; 2] = [false, true];

#[test]
fn strides_cost_a_tenth_of_the_misses_and_little_more_transfers() {
    for (name, (units, program)) in [("stencil", stencil(4)), ("fft", fft(2)), ("mixed", mixed())] {
        for prefetcher in ["streams", "auto"] {
            for told in MODES {
                let room = units as usize / 2;
                let (misses, transfers) = measure(prefetcher, units, room, told, &program);
                assert!(
                    misses <= 0.1 && transfers <= 1.15,
                    "{prefetcher} on {name}, told {told}: {misses:.3} of the misses, {transfers:.3} of the transfers"
                );
            }
        }
    }
}

/// Returns the accesses of a matrix product: for each panel of columns, all rows of two matrices of 16,000 bytes a row.
fn panels() -> (u32, Vec<u32>) {
    let (rows, row, panel) = (1_500, 16_000, 2_000);
    let mut program = Vec::new();
    for column in (0..row).step_by(panel) {
        for number in 0..rows {
            for matrix in 0..2 {
                let start = (matrix * rows + number) * row + column;
                program.extend(start as u32 / 4096..=(start + panel - 1) as u32 / 4096);
            }
        }
    }
    ((2 * rows * row) as u32 / 4096 + 1, program)
}

#[test]
fn rows_that_are_no_whole_pages_cost_a_quarter_of_the_misses() {
    let (units, program) = panels();
    for prefetcher in ["rows", "auto"] {
        for told in MODES {
            let (misses, transfers) = measure(prefetcher, units, units as usize / 4, told, &program);
            assert!(
                misses <= 0.25 && transfers <= 1.05,
                "{prefetcher}, told {told}: {misses:.3} of the misses, {transfers:.3} of the transfers"
            );
        }
    }
}

#[test]
fn streams_do_at_least_what_sequential_does() {
    let units = 20_000;
    let program: Vec<u32> = (0..3).flat_map(|_| 0..units).collect();
    for told in MODES {
        let streams = measure("streams:gate=0", units, 5_000, told, &program);
        let sequential = measure("sequential", units, 5_000, told, &program);
        // The windows of the two prefetchers may differ by a page or two.
        assert!(streams.0 <= sequential.0 * 1.05 && streams.1 <= sequential.1 * 1.01, "{streams:?}, {sequential:?}");
    }
}

#[test]
fn random_touches_cost_nothing_behind_the_filter() {
    for units in [1_000, 4_096, 100_000] {
        let program = random(units, 60_000);
        for info in PREFETCHERS.iter().filter(|info| info.name != "sequential") {
            for told in MODES {
                let (_, transfers) = measure(info.name, units, units as usize / 2, told, &program);
                assert!(transfers <= 1.02, "{} on {units} pages, told {told}: {transfers:.3}", info.name);
            }
        }
    }
}

#[test]
fn successors_are_found_where_there_is_no_stride() {
    let program = chase(3_000, 8);
    for prefetcher in ["markov", "markov:depth=16", "auto"] {
        for told in MODES {
            let (misses, transfers) = measure(prefetcher, 3_000, 1_500, told, &program);
            assert!(misses < 0.4 && transfers < 1.05, "{prefetcher}, told {told}: {misses:.3}, {transfers:.3}");
        }
    }
}

#[test]
fn a_majority_is_found_by_leap_and_blocks_by_cluster_and_prepaging() {
    let program: Vec<u32> = (0..2).flat_map(|_| (0..10_000).map(|at| at * 3)).collect();
    let near: Vec<u32> = (0..20_000).collect();
    for told in MODES {
        let leap = measure("leap", 30_000, 3_000, told, &program);
        assert!(leap.0 < 0.2 && leap.1 < 1.02, "{leap:?}");
        for prefetcher in ["cluster", "prepaging:pages=8", "cluster:pages=64"] {
            let (misses, transfers) = measure(prefetcher, 20_000, 3_000, told, &near);
            assert!(misses < 0.2 && transfers < 1.02, "{prefetcher}: {misses:.3}, {transfers:.3}");
        }
    }
}

#[test]
fn a_phase_of_random_touches_after_a_good_one_is_paid_for_once() {
    let units = 20_000;
    let sweep = || 0..units;
    let mut program: Vec<u32> = sweep().collect();
    program.extend(random(units, 100_000));
    for prefetcher in ["auto", "streams", "cluster", "prepaging", "leap", "markov"] {
        for told in MODES {
            let (_, transfers) = measure(prefetcher, units, 10_000, told, &program);
            assert!(transfers <= 1.04, "{prefetcher}, told {told}: {transfers:.3}");
        }
    }
}

#[test]
fn an_unfiltered_load_asks_for_what_the_paper_asks_for() {
    let mut cluster =
        build("cluster:pages=4,gate=0", Space { units: 64, block_units: 1, seed: 1, hides: true }).expect("known");
    assert_eq!(propose(&mut *cluster, 5, 1, 64), [(6, 2), (4, 1)]);
    let mut filtered =
        build("cluster:pages=4", Space { units: 64, block_units: 1, seed: 1, hides: true }).expect("known");
    assert_eq!(propose(&mut *filtered, 5, 1, 64), []);
}

proptest! {
    #[test]
    fn no_sequence_of_touches_upsets_a_prefetcher(
        which in 0..PREFETCHERS.len(),
        touches in proptest::collection::vec(
            (prop_oneof![0u32..200, Just(u32::MAX), any::<u32>()], prop_oneof![Just(0u32), Just(1), Just(8), any::<u32>()],
             prop_oneof![Just(0u32), Just(63), any::<u32>()], any::<bool>(), any::<bool>()), 0..300),
    ) {
        let mut prefetcher = build(PREFETCHERS[which].name, Space { units: 150, block_units: 1, seed: 1, hides: true }).expect("known");
        for (unit, span, window_max, staged, told) in touches {
            let mut proposals = Proposals::default();
            prefetcher.touched(Touch { unit, span, window_max, staged, told }, &|unit| unit % 3 > 0, &mut proposals);
            prop_assert!(proposals.as_slice().len() <= limits::PROPOSALS_MAX);
        }
        let mut text = String::new();
        prop_assert!(prefetcher.describe(&mut text).is_ok());
    }

    #[test]
    fn what_is_proposed_stays_within_the_window(
        which in 0..PREFETCHERS.len(),
        steps in proptest::collection::vec((0u32..4, 0u32..1000), 1..300),
        window_max in 1u32..100,
    ) {
        let space = Space { units: 1 << 20, block_units: 1, seed: 1, hides: true };
        let mut prefetcher = build(PREFETCHERS[which].name, space).expect("known");
        let mut at = [0u32, 4_000, 300_000, 800_000];
        for (stream, jump) in steps {
            at[stream as usize] += if jump < 900 { stream + 1 } else { jump };
            let mut proposals = Proposals::default();
            let touch = Touch { unit: at[stream as usize], span: 1, window_max, staged: false, told: false };
            prefetcher.touched(touch, &|_| true, &mut proposals);
            let units: u32 = proposals.as_slice().iter().map(|&(_, count)| count).sum();
            prop_assert!(units <= window_max.max(1), "{units} units in a window of {window_max}");
        }
    }
}
