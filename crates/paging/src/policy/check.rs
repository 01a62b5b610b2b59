//! Tests the contract between policies and pager on all [`POLICIES`](super::POLICIES). A policy gets random calls that
//! respect the pager's side of the contract. Its answers are compared with a plain set of pages.

use std::cell::Cell;
use std::collections::HashSet;
use std::hint::black_box;
use std::time::Instant;

use super::random::Draw;
use super::{Cause, Info, Leave, POLICIES, Policy, Space, build};
use crate::limits;
use crate::units::PageId;

const CAUSES: [Cause; 3] = [Cause::Read, Cause::Write, Cause::Ahead];

/// Returns several descriptions of a policy: one with its defaults, and two for each parameter at its bounds.
fn variants(info: &Info) -> Vec<String> {
    let mut texts = vec![info.name.to_string()];
    for param in info.params {
        texts.push(format!("{}:{}={}", info.name, param.name, param.min));
        texts.push(format!("{}:{}={}", info.name, param.name, param.max));
    }
    texts
}

fn make(text: &str, units: u32, seed: u64) -> Box<dyn Policy> {
    build(text, Space { units, block_units: 1, seed, hides: true }).expect("a policy of the list is built")
}

struct Run {
    text: String,
    policy: Box<dyn Policy>,
    present: HashSet<u32>,
    units: u32,
    room: u32,
    draw: Draw,
    now: u64,
}

impl Run {
    fn new(text: &str, units: u32, room: u32, seed: u64) -> Self {
        let policy = make(text, units, seed);
        Self { text: text.into(), policy, present: HashSet::new(), units, room, draw: Draw::new(seed), now: 0 }
    }

    fn any_present(&mut self) -> Option<u32> {
        let start = self.draw.below(self.units);
        (0..self.units).map(|step| (start + step) % self.units).find(|page| self.present.contains(page))
    }

    fn insert(&mut self, page: u32) {
        let cause = CAUSES[self.draw.below(3) as usize];
        if self.present.insert(page) {
            self.policy.inserted(PageId(page), cause);
        }
    }

    fn remove(&mut self, page: u32, why: Leave) {
        assert!(self.present.remove(&page), "{}: page {page} is not there", self.text);
        self.policy.removed(PageId(page), why);
    }

    /// Asks for a victim with a filter that accepts some pages. If the filter accepts at least one resident page, the
    /// policy must return a victim.
    fn victim(&mut self, passes: impl Fn(u32) -> bool) -> Option<u32> {
        let found = self.policy.victim(&|page| passes(page.0)).map(|page| page.0);
        match found {
            Some(page) => {
                assert!(self.present.contains(&page), "{}: victim {page} is not there", self.text);
                assert!(passes(page), "{}: victim {page} was refused", self.text);
            }
            None => assert!(!self.present.iter().any(|&page| passes(page)), "{}: no victim found", self.text),
        }
        found
    }

    fn hide(&mut self, count: u32) {
        for _ in 0..count {
            let Some(page) = self.policy.next_to_hide() else {
                break;
            };
            assert!(self.policy.hides(), "{} says that it hides nothing", self.text);
            assert!(self.present.contains(&page.0), "{}: hidden page {} is not there", self.text, page.0);
        }
    }

    fn step(&mut self) {
        let page = self.draw.below(self.units);
        match self.draw.below(16) {
            0..6 => {
                if self.present.len() as u32 >= self.room
                    && let Some(victim) = self.victim(|_| true)
                {
                    self.remove(victim, Leave::Evicted);
                }
                self.insert(page);
            }
            6..10 => {
                let write = self.draw.below(2) == 0;
                if let Some(page) = self.any_present() {
                    self.policy.referenced(PageId(page), write);
                }
            }
            10 => {
                let why = [Leave::Evicted, Leave::Forgotten][self.draw.below(2) as usize];
                if let Some(page) = self.any_present() {
                    self.remove(page, why);
                }
            }
            11 if !self.present.contains(&page) => self.policy.forgotten(PageId(page)),
            12 => {
                let (modulus, rest) = (1 + self.draw.below(7), self.draw.below(7));
                self.victim(|page| page % modulus == rest);
            }
            13 => {
                self.now += u64::from(self.draw.below(400));
                self.policy.tick(self.now);
            }
            _ => {
                let count = self.draw.below(6);
                self.hide(count);
            }
        }
    }

    /// Evicts victims until no page is left. Every resident page must become a victim.
    fn drain(&mut self) {
        while let Some(page) = self.victim(|_| true) {
            self.remove(page, Leave::Evicted);
        }
        assert!(self.present.is_empty(), "{}: pages never named: {:?}", self.text, self.present);
        assert_eq!(self.policy.next_to_hide(), None, "{}: a page that is gone is to be hidden", self.text);
    }
}

#[test]
fn victims_and_hidden_pages_are_there_and_every_page_becomes_a_victim() {
    for text in POLICIES.iter().flat_map(|info| variants(info)) {
        for seed in 0..24 {
            let (units, room) = [(1, 1), (6, 3), (40, 16), (200, 64)][seed as usize % 4];
            let mut run = Run::new(&text, units, room, seed);
            for _ in 0..1500 {
                run.step();
            }
            run.drain();
        }
    }
}

#[test]
fn requests_to_hide_end_when_nothing_else_happens() {
    for text in POLICIES.iter().flat_map(|info| variants(info)) {
        let mut run = Run::new(&text, 200, 64, 5);
        for _ in 0..200 {
            (0..20).for_each(|_| run.step());
            let mut count = 0;
            while run.policy.next_to_hide().is_some() {
                count += 1;
                assert!(count <= 2 * run.present.len(), "{text} never ceases to ask");
            }
        }
    }
}

#[test]
fn no_more_than_a_bounded_number_of_pages_is_looked_at() {
    for text in POLICIES.iter().flat_map(|info| variants(info)) {
        let units = 4 * limits::VICTIM_SCAN_MAX as u32;
        for cause in CAUSES {
            let mut policy = make(&text, units, 1);
            (0..units).for_each(|page| policy.inserted(PageId(page), cause));
            for round in 0..20 {
                let looked = Cell::new(0);
                let refuse = |_| {
                    looked.set(looked.get() + 1);
                    false
                };
                assert_eq!(policy.victim(&refuse), None, "{text}");
                assert!(looked.get() <= limits::VICTIM_SCAN_MAX, "{text} looked at {} pages", looked.get());
                assert!(policy.victim(&|_| true).is_some(), "{text} finds none of many, round {round}");
                while policy.next_to_hide().is_some() {}
            }
        }
    }
}

/// Number of resident pages when the cost is measured.
const COST_PAGES: u32 = 1 << 20;

/// Measures the cost of faults. At each fault, an absent page arrives, a victim is evicted, and a few pages are
/// unmapped. Every fourth unmapped page is referenced. Returns, per fault, the nanoseconds and the number of unmapped
/// pages.
fn cost(policy: &mut dyn Policy, sequential: bool) -> (f64, f64) {
    let units = 2 * COST_PAGES;
    let mut present = vec![false; units as usize];
    let mut draw = Draw::new(9);
    for page in 0..COST_PAGES {
        policy.inserted(PageId(page), CAUSES[page as usize % 2]);
        present[page as usize] = true;
    }
    let (mut page, mut hidden) = (COST_PAGES, 0_u32);
    let mut fault = |policy: &mut dyn Policy, count: u32| {
        page = if sequential { (page + 1) % units } else { draw.below(units) };
        while present[page as usize] {
            page = if sequential { (page + 1) % units } else { draw.below(units) };
        }
        present[page as usize] = true;
        policy.inserted(PageId(page), CAUSES[count as usize % 2]);
        if let Some(victim) = policy.victim(&|_| true) {
            policy.removed(victim, Leave::Evicted);
            present[victim.0 as usize] = false;
        }
        for _ in 0..8 {
            let Some(page) = policy.next_to_hide() else {
                break;
            };
            hidden += 1;
            if hidden.is_multiple_of(4) {
                policy.referenced(page, hidden.is_multiple_of(8));
            }
        }
        if count.is_multiple_of(1024) {
            policy.tick(u64::from(count) / 64);
        }
    };
    (0..COST_PAGES).for_each(|count| fault(policy, count));
    let start = Instant::now();
    (0..COST_PAGES).for_each(|count| fault(policy, count + COST_PAGES));
    let spent = start.elapsed().as_nanos() as f64;
    let faults = f64::from(COST_PAGES);
    (spent / faults, f64::from(black_box(hidden)) / faults / 2.0)
}

/// A policy with the least possible work: it chooses victims in a circle and records nothing.
struct Floor(u32);

impl Policy for Floor {
    fn inserted(&mut self, _page: PageId, _cause: Cause) {}
    fn referenced(&mut self, _page: PageId, _write: bool) {}
    fn removed(&mut self, _page: PageId, _why: Leave) {}
    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        self.0 = (self.0 + 1) % (2 * COST_PAGES);
        accept(PageId(self.0)).then_some(PageId(self.0))
    }
}

#[test]
#[ignore = "a measurement: run it alone, with --release --nocapture"]
fn cost_per_fault() {
    println!(
        "{:24} {:>12} {:>12} {:>14} {:>14}",
        "ns a fault", "in sequence", "at random", "hidden, seq.", "hidden, rnd."
    );
    let line = |name: &str, mut make: Box<dyn FnMut() -> Box<dyn Policy>>| {
        let (sequential, sequential_hidden) = cost(&mut *make(), true);
        let (random, random_hidden) = cost(&mut *make(), false);
        println!("{name:24} {sequential:12.0} {random:12.0} {sequential_hidden:14.2} {random_hidden:14.2}");
    };
    line("(the measurement itself)", Box::new(|| Box::new(Floor(0))));
    for info in POLICIES {
        line(info.name, Box::new(|| make(info.name, 2 * COST_PAGES, 1)));
    }
}
