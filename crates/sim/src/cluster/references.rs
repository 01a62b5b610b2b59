//! The reference string of a thread: the page that it references at each clock. The string can be read at any place and
//! in both directions.
//!
//! The paper draws one reference a clock from tables of frequencies (paper 5, 3.1). Here a thread's clocks are divided
//! into blocks whose length is a power of two. A block has one slot for each clock. Each page has slots in proportion
//! to its frequency. A random bijection, drawn for this thread and block, assigns slots to clocks. So the page of a
//! clock, and the next or last clock of a page, are found without reading the clocks in between. Each page occurs in
//! each block in proportion to its frequency, in random order.

use std::cell::Cell;
use std::ops::Range;

use super::draw;

/// Number of rounds of the bijection.
const ROUNDS: usize = 3;
/// The range of the block length, as exponents of two: a block has 2^12 to 2^20 clocks.
const BITS: std::ops::RangeInclusive<u32> = 12..=20;
/// Least mean number of slots for each page. Only a table that is too large for the longest block has fewer.
const SLOTS_MEAN: u32 = 16;
/// Largest number of pages in one table. Every page must have a slot.
pub(super) const PAGES_MAX: u32 = 1 << 18;

/// One reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reference {
    /// The page, by its index in the table. Shared pages come first, then the thread's own pages.
    pub(super) page: u32,
    /// Whether the reference is a write.
    pub(super) write: bool,
}

/// How often a thread references each of its pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Table {
    bits: u32,
    /// The first slot of each page. The last entry is the number of slots.
    starts: Vec<u32>,
    /// For each page, the end of its slots for writes. A page's slots for writes come before its slots for reads.
    write_ends: Vec<u32>,
    /// The page that each slot references. The highest bit marks a write.
    slots: Vec<u32>,
}

const WRITE: u32 = 1 << 31;

impl Table {
    /// Makes a table of these weights. No weight is negative, and at least one is positive. Each page with a positive
    /// weight gets a slot. `write_percent` percent of each page's references are writes.
    pub(super) fn new(weights: &[f64], write_percent: u32) -> Self {
        let pages = weights.len() as u32;
        let bits = (pages * SLOTS_MEAN).next_power_of_two().ilog2().clamp(*BITS.start(), *BITS.end());
        let counts = apportion(weights, 1 << bits);
        let mut table = Self { bits, starts: Vec::new(), write_ends: Vec::new(), slots: Vec::new() };
        for (page, count) in counts.into_iter().enumerate() {
            table.starts.push(table.slots.len() as u32);
            // The number of writes is rounded up for some pages and down for others. So rounding does not favour reads.
            let phase = (page as u64 * 62) % 100;
            let writes = ((u64::from(count) * u64::from(write_percent) + phase) / 100) as u32;
            table.write_ends.push(table.slots.len() as u32 + writes);
            table.slots.extend((0..count).map(|slot| page as u32 | if slot < writes { WRITE } else { 0 }));
        }
        table.starts.push(table.slots.len() as u32);
        table
    }

    pub(super) fn pages(&self) -> u32 {
        self.starts.len() as u32 - 1
    }

    fn mask(&self) -> u32 {
        (1 << self.bits) - 1
    }
}

/// Returns whole numbers in proportion to the weights, with the sum `total`, by largest remainders. Each positive
/// weight gets at least 1.
fn apportion(weights: &[f64], total: u32) -> Vec<u32> {
    let sum: f64 = weights.iter().sum();
    let share = |weight: f64| weight / sum * f64::from(total);
    let mut counts: Vec<u32> = weights.iter().map(|&w| if w > 0.0 { (share(w) as u32).max(1) } else { 0 }).collect();
    let mut order: Vec<usize> = (0..weights.len()).filter(|&page| weights[page] > 0.0).collect();
    order.sort_by(|&a, &b| {
        let rest = |page: usize| share(weights[page]) - f64::from(counts[page]);
        rest(b).total_cmp(&rest(a)).then(a.cmp(&b))
    });
    let mut given: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    for &page in order.iter().cycle().take(total as usize) {
        if given >= u64::from(total) {
            break;
        }
        counts[page] += 1;
        given += 1;
    }
    // Rounding up gave slots to the smallest shares. The same number of slots is removed from the largest shares.
    order.sort_by_key(|&page| std::cmp::Reverse(counts[page]));
    for &page in order.iter().cycle().take(2 * total as usize) {
        if given <= u64::from(total) {
            break;
        }
        if counts[page] > 1 {
            counts[page] -= 1;
            given -= 1;
        }
    }
    counts
}

/// The bijection between the slots and the clocks of one block.
#[derive(Clone, Copy, Debug, Default)]
struct Bijection {
    times: [u32; ROUNDS],
    back: [u32; ROUNDS],
    plus: [u32; ROUNDS],
}

impl Bijection {
    fn new(seed: u64, thread: u64, block: u64) -> Self {
        let mut new = Self::default();
        let mut word = draw::at(seed, thread, block);
        for round in 0..ROUNDS {
            new.times[round] = word as u32 | 1;
            new.back[round] = inverse(new.times[round]);
            new.plus[round] = (word >> 32) as u32;
            word = draw::mix(word);
        }
        new
    }

    /// Returns the slot of a clock.
    fn slot(&self, clock: u32, bits: u32) -> u32 {
        let (mask, half) = ((1u32 << bits) - 1, bits.div_ceil(2));
        let mut x = clock;
        for round in 0..ROUNDS {
            x = x.wrapping_mul(self.times[round]).wrapping_add(self.plus[round]) & mask;
            x ^= x >> half;
        }
        x
    }

    /// Returns the clock of a slot. A shift by half the bits is its own inverse.
    fn clock(&self, slot: u32, bits: u32) -> u32 {
        let (mask, half) = ((1u32 << bits) - 1, bits.div_ceil(2));
        let mut x = slot;
        for round in (0..ROUNDS).rev() {
            x ^= x >> half;
            x = x.wrapping_sub(self.plus[round]).wrapping_mul(self.back[round]) & mask;
        }
        x
    }
}

/// Returns the inverse of an odd number modulo 2^32, by Newton's method. The start value has 3 correct bits, and each
/// round doubles this number.
fn inverse(odd: u32) -> u32 {
    let mut x = odd;
    for _ in 0..4 {
        x = x.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(x)));
    }
    x
}

/// The reference string of one thread.
#[derive(Clone, Debug)]
pub(super) struct References<'a> {
    table: &'a Table,
    seed: u64,
    thread: u64,
    /// The number of the last block used, and its bijection.
    last: Cell<(u64, Bijection)>,
}

impl<'a> References<'a> {
    pub(super) fn new(table: &'a Table, seed: u64, thread: u32) -> Self {
        let thread = u64::from(thread);
        Self { table, seed, thread, last: Cell::new((0, Bijection::new(seed, thread, 0))) }
    }

    pub(super) fn table(&self) -> &'a Table {
        self.table
    }

    fn bijection(&self, block: u64) -> Bijection {
        let (last, bijection) = self.last.get();
        if last == block {
            return bijection;
        }
        let bijection = Bijection::new(self.seed, self.thread, block);
        self.last.set((block, bijection));
        bijection
    }

    fn split(&self, clock: u64) -> (u64, u32) {
        (clock >> self.table.bits, clock as u32 & self.table.mask())
    }

    /// Returns the reference at effective clock `clock`.
    pub(super) fn at(&self, clock: u64) -> Reference {
        let (block, offset) = self.split(clock);
        let table = self.table;
        let slot = self.bijection(block).slot(offset, table.bits);
        let word = table.slots[slot as usize];
        Reference { page: word & !WRITE, write: word & WRITE != 0 }
    }

    /// Returns the first clock from `from` on at which the thread references this page, or `None` if it never does.
    pub(super) fn next(&self, page: u32, from: u64) -> Option<u64> {
        let (first, offset) = self.split(from);
        let table = self.table;
        let slots = table.starts[page as usize]..table.starts[page as usize + 1];
        if slots.is_empty() {
            return None;
        }
        for (block, least) in [(first, offset), (first + 1, 0)] {
            let bijection = self.bijection(block);
            let mut best = u32::MAX;
            for slot in slots.clone() {
                let clock = bijection.clock(slot, table.bits);
                best = best.min(if clock >= least { clock } else { u32::MAX });
            }
            if best != u32::MAX {
                return Some((block << table.bits) + u64::from(best));
            }
        }
        None
    }

    /// Returns the last clock in `range` at which the thread references this page.
    pub(super) fn last(&self, page: u32, range: Range<u64>) -> Option<u64> {
        self.last_of(self.table.starts[page as usize]..self.table.starts[page as usize + 1], range)
    }

    /// Returns the last clock in `range` at which the thread writes this page.
    pub(super) fn last_write(&self, page: u32, range: Range<u64>) -> Option<u64> {
        self.last_of(self.table.starts[page as usize]..self.table.write_ends[page as usize], range)
    }

    fn last_of(&self, slots: Range<u32>, range: Range<u64>) -> Option<u64> {
        let table = self.table;
        if slots.is_empty() || range.is_empty() {
            return None;
        }
        let (mut block, offset) = self.split(range.end - 1);
        let mut most = offset;
        loop {
            let bijection = self.bijection(block);
            // Holds a clock plus one; 0 means no clock.
            let mut best = 0;
            for slot in slots.clone() {
                let clock = bijection.clock(slot, table.bits);
                best = best.max(if clock <= most { clock + 1 } else { 0 });
            }
            if best > 0 {
                let clock = (block << table.bits) + u64::from(best - 1);
                return (clock >= range.start).then_some(clock);
            }
            if block << table.bits <= range.start {
                return None;
            }
            (block, most) = (block - 1, table.mask());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_string_read_from_a_page_is_the_string_read_from_the_clocks(
            weights in prop::collection::vec(prop_oneof![Just(0.0), 0.001..50.0], 1..60),
            seed: u64, from in 0u64..9000, length in 1u64..9000,
        ) {
            prop_assume!(weights.iter().any(|weight| *weight > 0.0));
            let table = Table::new(&weights, 30);
            let refs = References::new(&table, seed, 3);
            let pages: Vec<u32> = (from..from + length).map(|clock| refs.at(clock).page).collect();
            for page in 0..weights.len() as u32 {
                let first = pages.iter().position(|p| *p == page).map(|at| from + at as u64);
                let next = refs.next(page, from);
                prop_assert_eq!(next.filter(|next| *next < from + length), first);
                prop_assert_eq!(next.is_some(), weights[page as usize] > 0.0);
                let last = pages.iter().rposition(|p| *p == page).map(|at| from + at as u64);
                prop_assert_eq!(refs.last(page, from..from + length), last);
                let written = (from..from + length).rev().find(|clock| refs.at(*clock) == Reference { page, write: true });
                prop_assert_eq!(refs.last_write(page, from..from + length), written);
            }
        }

        #[test]
        fn slots_are_apportioned_in_full_and_nobody_goes_without(
            weights in prop::collection::vec(prop_oneof![Just(0.0), 0.0001..1000.0], 1..300),
        ) {
            prop_assume!(weights.iter().any(|weight| *weight > 0.0));
            let counts = apportion(&weights, 8192);
            prop_assert_eq!(counts.iter().sum::<u32>(), 8192);
            let sum: f64 = weights.iter().sum();
            for (&count, &weight) in counts.iter().zip(&weights) {
                prop_assert_eq!(count > 0, weight > 0.0);
                // Rounding the smallest shares up to one slot removes at most this number of slots from the largest
                // share.
                prop_assert!((f64::from(count) - weight / sum * 8192.0).abs() <= 301.0);
            }
        }
    }

    #[test]
    fn a_block_touches_each_page_as_often_as_its_weight_says_in_an_order_of_its_own() {
        let table = Table::new(&[1.0, 2.0, 5.0], 25);
        let refs = References::new(&table, 7, 0);
        let block = |refs: &References<'_>, at: u64| {
            (at * 4096..(at + 1) * 4096).map(|clock| refs.at(clock)).collect::<Vec<_>>()
        };
        let (one, two) = (block(&refs, 0), block(&refs, 1));
        for string in [&one, &two] {
            let count = |page| string.iter().filter(|r| r.page == page).count();
            assert_eq!([count(0), count(1), count(2)], [512, 1024, 2560]);
            assert!(string.iter().filter(|r| r.write).count().abs_diff(1024) <= 3);
        }
        assert!(one != two);
        let other = block(&References::new(&table, 7, 1), 0);
        assert!(one != other);
    }

    #[test]
    fn gaps_between_touches_are_those_of_independent_draws() {
        // Each page has one slot in eight. The gaps are geometric: an eighth of them are 1, and (7/8)^8 = 34 % are
        // longer than 8.
        let table = Table::new(&[1.0; 8], 0);
        let refs = References::new(&table, 11, 0);
        let (mut last, mut gaps) = (None, Vec::new());
        for clock in 0..1 << 19 {
            if refs.at(clock).page == 3 {
                gaps.extend(last.map(|last| clock - last));
                last = Some(clock);
            }
        }
        let share = |f: &dyn Fn(u64) -> bool| gaps.iter().filter(|gap| f(**gap)).count() as f64 / gaps.len() as f64;
        assert!((share(&|gap| gap == 1) - 0.125).abs() < 0.005, "{}", share(&|gap| gap == 1));
        assert!((share(&|gap| gap > 8) - 0.3436).abs() < 0.01, "{}", share(&|gap| gap > 8));
    }
}
