//! LeCaR: for each victim, chooses LRU or LFU at random. If an evicted page comes back, the policy that evicted it
//! becomes less probable (Vietri et al., HotStorage'18, algorithms 1 and 2).

use super::list::{Capacity, Ends, Links, Lists};
use super::{Cause, Info, Leave, Policy};
use crate::limits;
use crate::units::PageId;

pub(super) const INFO: Info = Info {
    name: "lecar",
    summary: "LRU or LFU at random, with odds that learn from pages that come back",
    source: "Vietri et al., HotStorage'18",
    params: &[],
    build: |space, _| Box::new(LeCar::new(space.units, space.seed)),
};

/// Learning rate of the weights.
const LEARNING_RATE: f64 = 0.45;
/// Natural logarithm of 0.005. The reward for a page that returns shrinks with the time since its eviction. After as
/// many references as memory holds pages, it is 0.005.
const DISCOUNT_LN: f64 = -5.298_317_366_548_036;
/// Minimum weight of LRU and of LFU. It keeps the probability of each above 0.
const WEIGHT_MIN: f64 = 1e-10;

/// Index of the list of resident pages, by recency.
const VIEW: usize = 0;
/// Index of the ghost list of pages that LRU evicted.
const GONE_LRU: usize = 1;
/// Index of the ghost list of pages that LFU evicted.
const GONE_LFU: usize = 2;
/// Index of the ghost list of pages that both LRU and LFU would have evicted. Their return changes no weight.
const GONE_BOTH: usize = 3;

/// Memory use: four links, one count and one time per unit.
#[derive(Debug)]
pub(super) struct LeCar {
    recency: Lists<4>,
    frequency: Frequency,
    capacity: Capacity,
    /// For each page, the time of its last eviction, in references.
    left_at: Vec<u32>,
    now: u32,
    weight_lru: f64,
    random: u64,
    /// Index of the ghost list that the next evicted page enters.
    blame: usize,
}

impl LeCar {
    pub(super) fn new(units: u32, seed: u64) -> Self {
        Self {
            recency: Lists::new(units),
            frequency: Frequency::new(units),
            capacity: Capacity::default(),
            left_at: vec![0; units as usize],
            now: 0,
            weight_lru: 0.5,
            random: seed,
            blame: GONE_BOTH,
        }
    }

    /// Returns a random number from 0 to below 1 (SplitMix64).
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Notes the return of a page from the ghost list `gone`. Of LRU and LFU, the one that did not evict the page gains
    /// weight. The sooner the page returns, the more weight is gained.
    fn regret(&mut self, page: PageId, gone: usize) {
        let away = f64::from(self.now.wrapping_sub(self.left_at[page.0 as usize]));
        let reward = exp(DISCOUNT_LN * away / f64::from(self.capacity.full().max(1)));
        let gain = exp(LEARNING_RATE * reward);
        let (lru, lfu) = match gone {
            GONE_LRU => (self.weight_lru, (1.0 - self.weight_lru) * gain),
            GONE_LFU => (self.weight_lru * gain, 1.0 - self.weight_lru),
            _ => return,
        };
        self.weight_lru = (lru / (lru + lfu)).clamp(WEIGHT_MIN, 1.0 - WEIGHT_MIN);
    }
}

/// Returns e to the power of `x`. The series is exact enough for `x` up to 1, the largest argument that occurs. The C
/// library's function would load `libm` into every program that a run starts. That would double the start time of a
/// small program.
fn exp(x: f64) -> f64 {
    if x < -700.0 {
        return 0.0;
    }
    // Computes the result as 2^n times the exponential of a remainder of at most half of ln 2. The series for the
    // remainder is so long that its next term would be lost in rounding.
    let n = (x * std::f64::consts::LOG2_E + if x < 0.0 { -0.5 } else { 0.5 }) as i32;
    let rest = x - f64::from(n) * std::f64::consts::LN_2;
    let series = (1..=16).rev().fold(1.0, |sum, k| 1.0 + sum * rest / f64::from(k));
    series * f64::from_bits(((n + 1023) as u64) << 52)
}

impl Policy for LeCar {
    fn inserted(&mut self, page: PageId, _cause: Cause) {
        self.capacity.came(1);
        self.now = self.now.wrapping_add(1);
        match self.recency.remove(page) {
            Some(gone) => self.regret(page, gone),
            None => self.frequency.forget(page),
        }
        self.recency.push_back(VIEW, page);
        self.frequency.push(page);
        // The ghost lists are trimmed after the arrival. Before the arrival, the arriving page may still be in a ghost
        // list while its victim is already in one. Trimming would then drop one ghost too many.
        for gone in [GONE_LRU, GONE_LFU, GONE_BOTH] {
            while self.recency.len(gone) > self.capacity.full() {
                self.recency.pop_front(gone);
            }
        }
    }

    fn referenced(&mut self, page: PageId, _write: bool) {
        self.now = self.now.wrapping_add(1);
        self.recency.move_back(VIEW, page);
        self.frequency.remove(page);
        self.frequency.push(page);
    }

    fn removed(&mut self, page: PageId, why: Leave) {
        self.capacity.left(1);
        self.recency.remove(page);
        self.frequency.remove(page);
        self.left_at[page.0 as usize] = self.now;
        if why == Leave::Evicted {
            self.recency.push_back(self.blame, page);
        }
    }

    fn forgotten(&mut self, page: PageId) {
        self.recency.remove(page);
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        self.capacity.asked();
        let lru = self.recency.first_within(VIEW, accept, limits::VICTIM_SCAN_MAX / 2);
        let lfu = self.frequency.least(accept);
        let choose_lru = self.draw() < self.weight_lru;
        self.blame = match choose_lru {
            _ if lru == lfu => GONE_BOTH,
            true => GONE_LRU,
            false => GONE_LFU,
        };
        if self.blame == GONE_LFU { lfu.or(lru) } else { lru.or(lfu) }
    }

    fn describe(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        write!(out, "LRU trusted to {:.0} %", self.weight_lru * 100.0)
    }
}

/// Number of distinct counts. All pages with at least `COUNTS - 1` references share the last count, in order of age.
const COUNTS: usize = 256;

/// LFU in O(1): a list of pages for each count, and a bit for each list that is not empty.
#[derive(Debug)]
struct Frequency {
    links: Links,
    ends: [Ends; COUNTS],
    occupied: [u64; COUNTS / 64],
    counts: Vec<u8>,
}

impl Frequency {
    fn new(units: u32) -> Self {
        Self {
            links: Links::new(units),
            ends: [Ends::default(); COUNTS],
            occupied: [0; COUNTS / 64],
            counts: vec![0; units as usize],
        }
    }

    /// Counts a reference to a page, and puts the page at the back of its new count's list. The count includes
    /// references before an eviction, until the page is forgotten.
    fn push(&mut self, page: PageId) {
        let count = self.counts[page.0 as usize].saturating_add(1);
        self.counts[page.0 as usize] = count;
        self.links.push_back(&mut self.ends[usize::from(count)], page);
        self.occupied[usize::from(count) / 64] |= 1 << (count % 64);
    }

    fn remove(&mut self, page: PageId) {
        let count = usize::from(self.counts[page.0 as usize]);
        self.links.remove(&mut self.ends[count], page);
        if self.ends[count].is_empty() {
            self.occupied[count / 64] &= !(1 << (count % 64));
        }
    }

    /// Forgets the count of a page that is not resident.
    fn forget(&mut self, page: PageId) {
        self.counts[page.0 as usize] = 0;
    }

    fn least(&self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let mut left = limits::VICTIM_SCAN_MAX / 3;
        for (word, &bits) in self.occupied.iter().enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let count = word * 64 + bits.trailing_zeros() as usize;
                if let Some(page) = self.links.first(self.ends[count], accept, &mut left) {
                    return Some(page);
                }
                bits &= bits - 1;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::trial::{Numbers, Trial};

    #[test]
    fn the_exponential_is_the_c_librarys() {
        for n in -70_000..=1_000 {
            let x = f64::from(n) / 1000.0;
            let (ours, theirs) = (exp(x), x.exp());
            assert!((ours - theirs).abs() <= 1e-14 * theirs, "{x}: {ours} and {theirs}");
        }
        assert!((DISCOUNT_LN - 0.005_f64.ln()).abs() < 1e-15 && exp(-1e9) == 0.0 && exp(f64::NEG_INFINITY) == 0.0);
    }

    #[test]
    fn what_one_side_gave_up_and_comes_back_moves_trust_to_the_other() {
        let mut lecar = LeCar::new(8, 1);
        [0, 1].iter().for_each(|&page| lecar.inserted(PageId(page), Cause::Read));
        [0, 0, 1, 1, 1].iter().for_each(|&page| lecar.referenced(PageId(page), false));
        lecar.inserted(PageId(2), Cause::Read);
        // By recency, the order is 0 1 2. By count, the order is 2 0 1.
        let named: Vec<u32> = (0..64).filter_map(|_| lecar.victim(&|_| true)).map(|page| page.0).collect();
        assert!(named.contains(&0) && named.contains(&2) && !named.contains(&1), "{named:?}");
        while lecar.victim(&|_| true) != Some(PageId(2)) {}
        lecar.removed(PageId(2), Leave::Evicted);
        lecar.inserted(PageId(2), Cause::Read);
        let trusted = lecar.weight_lru;
        assert!(trusted > 0.5 && trusted < 0.62, "{trusted}");
        while lecar.victim(&|_| true) != Some(PageId(0)) {}
        lecar.removed(PageId(0), Leave::Evicted);
        lecar.inserted(PageId(0), Cause::Read);
        assert!(lecar.weight_lru < trusted);
        assert_eq!(lecar.frequency.counts[..3], [4, 4, 2], "counts go on");
        let mut text = String::new();
        assert!(lecar.describe(&mut text).is_ok() && text.contains("50 %"), "{text}");
    }

    #[test]
    fn the_same_seed_gives_the_same_victims_and_another_does_not() {
        let victims = |seed| {
            let references = Numbers(7).references(4000, 100);
            Trial::new(Box::new(LeCar::new(100, seed)), 40).victims(&references)
        };
        assert_eq!(victims(3), victims(3));
        assert_ne!(victims(3), victims(4));
    }

    #[test]
    fn scans_through_pages_never_used_again_teach_to_distrust_lru() {
        let mut lecar = Trial::new(Box::new(LeCar::new(10_000, 1)), 50);
        for scan in (30..6030).step_by(30) {
            (0..30).chain(scan..scan + 30).for_each(|page| {
                lecar.touch(page);
            });
        }
        let mut text = String::new();
        assert!(lecar.policy.describe(&mut text).is_ok());
        let trusted: Option<u32> = text.split_ascii_whitespace().nth(3).and_then(|word| word.parse().ok());
        assert!(trusted.is_some_and(|percent| percent < 10), "{text}");
    }
}
