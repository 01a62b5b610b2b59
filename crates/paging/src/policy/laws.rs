//! Properties that every policy must have, whichever victims it chooses.

use super::trial::{Numbers, Trial};
use super::{Cause, Leave, POLICIES, Policy, Space, build};
use crate::limits;
use crate::units::PageId;

const UNITS: u32 = 200;

fn policy(name: &str, units: u32, seed: u64) -> Box<dyn Policy> {
    build(name, Space { units, block_units: 1, seed, hides: true }).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn lru_of_more_memory_holds_all_that_lru_of_less_holds() {
    for seed in 0..8 {
        let mut caches: Vec<Trial> = [1, 2, 17, 60, 199].map(|size| Trial::new(policy("lru", UNITS, 0), size)).into();
        for page in Numbers(seed).references(5_000, UNITS) {
            caches.iter_mut().for_each(|cache| {
                cache.touch(page);
            });
            for pair in caches.windows(2) {
                assert!((0..UNITS).all(|page| !pair[0].holds(page) || pair[1].holds(page)), "seed {seed}");
            }
        }
    }
}

#[test]
fn lru_that_sees_no_hits_is_fifo() {
    for seed in 0..8 {
        let mut blind = Trial::new(policy("lru", UNITS, 0), 60);
        blind.visible = false;
        let mut fifo = Trial::new(policy("fifo", UNITS, 0), 60);
        for page in Numbers(seed).references(5_000, UNITS) {
            assert_eq!(blind.touch(page), fifo.touch(page), "seed {seed}");
        }
    }
}

/// After a loop of 55 pages, a loop of 55 other pages starts, which also fits in memory. The policy must learn to keep
/// it, although it sees no hits.
#[test]
fn what_fits_is_learned_without_visible_hits() {
    for name in ["2q", "arc", "lirs", "s3-fifo", "lecar"] {
        let mut trial = Trial::new(policy(name, UNITS, 0), 60);
        trial.visible = false;
        let loops = |first: u32, rounds: u32| (0..rounds * 55).map(move |step| first + step % 55);
        loops(0, 8).chain(loops(100, 8)).for_each(|page| {
            trial.touch(page);
        });
        let before = trial.hits;
        loops(100, 1).for_each(|page| {
            trial.touch(page);
        });
        assert!(trial.hits - before >= 50, "{name}: {}", trial.hits - before);
    }
}

/// A policy, and the pages that it must regard as resident. Tests send the policy random events in random order.
struct Chaos {
    name: &'static str,
    seed: u64,
    policy: Box<dyn Policy>,
    in_view: [bool; UNITS as usize],
    numbers: Numbers,
}

impl Chaos {
    fn step(&mut self) {
        let page = self.numbers.below(UNITS);
        let held = self.in_view[page as usize];
        match self.numbers.below(16) {
            0..6 if !held => self.insert(page),
            6 if !held => self.policy.coming(PageId(page)),
            7 if !held => self.policy.forgotten(PageId(page)),
            0..8 if held => self.policy.referenced(PageId(page), self.numbers.below(2) == 0),
            8 if held => self.remove(page, Leave::Forgotten),
            // The pager may evict a page that the policy did not name, and may keep a page that it named.
            9 if held => self.remove(page, Leave::Evicted),
            10 => self.policy.tick(u64::from(page)),
            11 => {
                self.victim(&|_| false);
            }
            12 => {
                self.victim(&|other| other.0.is_multiple_of(3));
            }
            13 => {
                self.victim(&|_| true);
            }
            14 => {
                for _ in 0..page / 8 {
                    self.evict();
                }
            }
            _ => self.evict(),
        }
    }

    fn insert(&mut self, page: u32) {
        self.in_view[page as usize] = true;
        self.policy.inserted(PageId(page), [Cause::Read, Cause::Write, Cause::Ahead][page as usize % 3]);
    }

    fn remove(&mut self, page: u32, why: Leave) {
        self.in_view[page as usize] = false;
        self.policy.removed(PageId(page), why);
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let victim = self.policy.victim(accept);
        let wanted = (0..UNITS).any(|page| self.in_view[page as usize] && accept(PageId(page)));
        assert_eq!(victim.is_some(), wanted, "{} with seed {}", self.name, self.seed);
        if let Some(victim) = victim {
            assert!(self.in_view[victim.0 as usize], "{}, seed {}: {victim:?} is absent", self.name, self.seed);
            assert!(accept(victim), "{}, seed {}: {victim:?} was refused", self.name, self.seed);
        }
        victim
    }

    fn evict(&mut self) {
        if let Some(victim) = self.victim(&|_| true) {
            self.remove(victim.0, Leave::Evicted);
        }
    }
}

#[test]
fn whatever_happens_victims_are_in_view_and_accepted_and_there_is_one_if_there_can_be() {
    assert!((UNITS as usize) < limits::VICTIM_SCAN_MAX / 2, "no scan ends before all pages were looked at");
    for info in POLICIES {
        for seed in 0..8 {
            let policy = policy(info.name, UNITS, seed);
            let in_view = [false; UNITS as usize];
            let mut chaos = Chaos { name: info.name, seed, policy, in_view, numbers: Numbers(seed) };
            (0..20_000).for_each(|_| chaos.step());
        }
    }
}

#[test]
fn a_policy_that_needs_the_future_says_where_it_is_to_be_had() {
    for text in ["opt", "opt:x=1"] {
        let error = build(text, Space { units: 8, block_units: 1, seed: 0, hides: true }).err().unwrap().to_string();
        assert!(error.contains("hanare simulate policies"), "{error}");
    }
}

/// Prints the cost of a fault for each policy. One million of two million pages are resident. Some faults return to
/// pages seen before. There is one visible hit for each fault.
#[test]
#[ignore = "takes a while and asserts nothing"]
fn cost_per_fault_b() {
    const PAGES: u32 = 1 << 20;
    println!("{:<12} {:>9} {:>9}", "policy", "ns/fault", "ns/hit");
    for info in POLICIES {
        let mut policy = policy(info.name, 2 * PAGES, 1);
        let mut in_view = vec![false; 2 * PAGES as usize];
        for page in 0..PAGES {
            policy.inserted(PageId(page), Cause::Read);
            in_view[page as usize] = true;
        }
        let mut numbers = Numbers(1);
        let string: Vec<u32> = (0..3 * PAGES).map(|_| numbers.below(2 * PAGES)).collect();
        let (mut faults, mut hits) = (0u32, 0u32);
        let start = std::time::Instant::now();
        for &page in &string {
            if in_view[page as usize] {
                continue;
            }
            policy.coming(PageId(page));
            if let Some(victim) = policy.victim(&|_| true) {
                policy.removed(victim, Leave::Evicted);
                in_view[victim.0 as usize] = false;
            }
            policy.inserted(PageId(page), Cause::Read);
            in_view[page as usize] = true;
            faults += 1;
        }
        let spent = start.elapsed().as_nanos();
        let start = std::time::Instant::now();
        for &page in string.iter().filter(|&&page| in_view[page as usize]).take(PAGES as usize) {
            policy.referenced(PageId(page), false);
            hits += 1;
        }
        let hit = start.elapsed().as_nanos();
        println!("{:<12} {:>9} {:>9}", info.name, spent / u128::from(faults), hit / u128::from(hits));
    }
}
