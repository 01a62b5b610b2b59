//! Estimates how often each page was seen recently, with a few bits per page. The method is a count-min sketch of
//! four-bit counters that are halved from time to time (Einziger, Friedman & Manes, TinyLFU, ACM ToS 2017, sections 3.2
//! to 3.4).

use crate::units::PageId;

/// Number of words in a block. All four counters of a page are in one block, so an access causes only one cache miss.
const BLOCK: usize = 8;
const ROWS: usize = 4;
const COUNT_MAX: u64 = 15;
/// Number of counted references per resident page after which all counters are halved (W/C in the paper).
const SAMPLE: u64 = 10;

/// Memory use: 8 to 16 bytes per resident page, at most 16 per unit.
#[derive(Debug)]
pub(super) struct Sketch {
    /// The words of all blocks that can ever be needed. Only the first `blocks` blocks are in use.
    words: Vec<u64>,
    blocks: usize,
    counted: u64,
}

fn spread(page: PageId) -> u64 {
    let mixed = (u64::from(page.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 32
}

impl Sketch {
    pub(super) fn new(units: u32) -> Self {
        let blocks = (units as usize).div_ceil(BLOCK).next_power_of_two();
        Self { words: vec![0; blocks * BLOCK], blocks: 1, counted: 0 }
    }

    /// Grows the sketch for `pages` resident pages. Growth divides the pages of each block between two blocks, and
    /// copies the counters to both. So no estimate changes.
    pub(super) fn fit(&mut self, pages: u32) {
        while self.blocks * BLOCK < pages as usize && self.blocks * BLOCK < self.words.len() {
            let used = self.blocks * BLOCK;
            self.words.copy_within(..used, used);
            self.blocks *= 2;
        }
    }

    /// Returns, for each row, the index of the word with a page's counter and the counter's shift in the word. A row is
    /// two words of a block.
    fn counters(&self, page: PageId) -> [(usize, u32); ROWS] {
        let hash = spread(page);
        let block = (hash as usize & (self.blocks - 1)) * BLOCK;
        let mut counters = [(0, 0); ROWS];
        for (row, counter) in counters.iter_mut().enumerate() {
            let bits = hash >> (40 + 5 * row);
            *counter = (block + 2 * row + (bits & 1) as usize, (bits >> 1 & 15) as u32 * 4);
        }
        counters
    }

    pub(super) fn estimate(&self, page: PageId) -> u32 {
        let count = |(word, shift): (usize, u32)| self.words[word] >> shift & COUNT_MAX;
        self.counters(page).into_iter().map(count).min().unwrap_or(0) as u32
    }

    /// Counts a reference to a page, while `in_view` pages are resident. Only the smallest of the page's counters grow,
    /// because the larger counters also count other pages.
    pub(super) fn count(&mut self, page: PageId, in_view: u32) {
        let least = u64::from(self.estimate(page));
        if least < COUNT_MAX {
            for (word, shift) in self.counters(page) {
                if self.words[word] >> shift & COUNT_MAX == least {
                    self.words[word] += 1 << shift;
                }
            }
        }
        self.counted += 1;
        if self.counted >= SAMPLE * u64::from(in_view).max(BLOCK as u64) {
            self.counted /= 2;
            for word in &mut self.words[..self.blocks * BLOCK] {
                *word = *word >> 1 & 0x7777_7777_7777_7777;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_kept_as_the_sketch_grows_and_halved_in_time() {
        let mut sketch = Sketch::new(4096);
        for page in 0..8 {
            (0..=page).for_each(|_| sketch.count(PageId(page), 4096));
        }
        let before: Vec<u32> = (0..4096).map(|page| sketch.estimate(PageId(page))).collect();
        assert!((0..8).all(|page| before[page] > page as u32), "never too low: {:?}", &before[..8]);
        sketch.fit(4096);
        assert_eq!(before, (0..4096).map(|page| sketch.estimate(PageId(page))).collect::<Vec<_>>());
        (0..40).for_each(|_| sketch.count(PageId(100), 4096));
        assert_eq!(sketch.estimate(PageId(100)), 15, "four bits");
        let rest = SAMPLE * 4096 - sketch.counted;
        (0..rest).for_each(|_| sketch.count(PageId(100), 4096));
        assert_eq!((sketch.estimate(PageId(100)), sketch.counted), (7, SAMPLE * 2048));
        assert!((0..8).all(|page| sketch.estimate(PageId(page as u32)) >= before[page] / 2));
    }

    #[test]
    fn few_pages_are_taken_for_others() {
        let mut sketch = Sketch::new(8192);
        sketch.fit(4096);
        (0..4096).for_each(|page| (0..3).for_each(|_| sketch.count(PageId(page), 4096)));
        let wrong = (4096..8192).filter(|&page| sketch.estimate(PageId(page)) > 0).count();
        assert!(wrong < 4096 / 10, "{wrong}");
        assert!((0..4096).all(|page| sketch.estimate(PageId(page)) >= 3));
    }
}
