//! The words of a region of far memory. The value of each word depends on its index and on how often it was rewritten.
//! So a lost, stale or misplaced page is noticed when it is read.
#![allow(unsafe_code, reason = "reads and writes far memory, which no Rust reference may cover")]

use super::pattern::{OS_PAGE, mix};

const WORDS_A_PAGE: u64 = OS_PAGE / 8;

/// A word with the wrong value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the word at {addr:#x} is {found:#018x} and should be {expected:#018x}; far memory lost it")]
pub(crate) struct Mismatch {
    addr: usize,
    expected: u64,
    found: u64,
}

/// Whole pages of far memory, which this benchmark never frees.
pub(super) struct Words {
    base: usize,
    /// How often each page's accessed word was rewritten. This vector is in near memory, which never becomes far.
    rewritten: Vec<u32>,
}

impl Words {
    /// Allocates `pages` pages and writes every word. `None` if far memory is exhausted.
    pub(super) fn new(pages: u64) -> Option<Self> {
        let base = hanare::far::alloc((pages * OS_PAGE) as usize, OS_PAGE as usize);
        // SAFETY: `base` is a new allocation of `pages` pages. It is never freed, and no other code uses it.
        (!base.is_null()).then(|| unsafe { Self::over(base.expose_provenance(), pages) })
    }

    /// Writes every word of the memory at `base`.
    ///
    /// # Safety
    /// The memory must hold this number of pages for the life of this value, and no other code may use it.
    unsafe fn over(base: usize, pages: u64) -> Self {
        let words = Self { base, rewritten: vec![0; pages as usize] };
        for index in 0..words.count() {
            words.store(index, value(index, 0));
        }
        words
    }

    pub(super) fn pages(&self) -> u64 {
        self.rewritten.len() as u64
    }

    /// Returns the number of words.
    pub(super) fn count(&self) -> u64 {
        self.pages() * WORDS_A_PAGE
    }

    /// Reads and checks the accessed word of a page. Writes a new value to it if `rewrite` is set.
    #[inline]
    pub(super) fn access(&mut self, page: u64, rewrite: bool) -> Result<(), Mismatch> {
        let index = accessed_word(page);
        let times = u64::from(self.rewritten[page as usize]);
        self.check(index, times)?;
        if rewrite {
            self.rewritten[page as usize] = times as u32 + 1;
            self.store(index, value(index, times + 1));
        }
        Ok(())
    }

    /// Reads and checks every word.
    pub(super) fn verify(&self) -> Result<(), Mismatch> {
        (0..self.pages()).try_for_each(|page| {
            let rewritten = accessed_word(page);
            (page * WORDS_A_PAGE..(page + 1) * WORDS_A_PAGE).try_for_each(|index| {
                let times = if index == rewritten { u64::from(self.rewritten[page as usize]) } else { 0 };
                self.check(index, times)
            })
        })
    }

    #[inline]
    fn check(&self, index: u64, times: u64) -> Result<(), Mismatch> {
        let addr = self.addr(index);
        let word: *const u64 = std::ptr::with_exposed_provenance(addr);
        // SAFETY: `addr` is an aligned word inside the pages of this value. If its page is far, the pager resolves the
        // access.
        let found = unsafe { word.read_volatile() };
        let expected = value(index, times);
        if found == expected { Ok(()) } else { Err(Mismatch { addr, expected, found }) }
    }

    #[inline]
    fn store(&self, index: u64, value: u64) {
        let word: *mut u64 = std::ptr::with_exposed_provenance_mut(self.addr(index));
        // SAFETY: the address is an aligned word inside the pages of this value. If its page is far, the pager resolves
        // the access.
        unsafe { word.write_volatile(value) };
    }

    fn addr(&self, index: u64) -> usize {
        self.base + (index * 8) as usize
    }
}

/// Returns the index of the word of a page that accesses use. Its offset varies from page to page, because equal
/// offsets would all map to the same cache sets.
fn accessed_word(page: u64) -> u64 {
    page * WORDS_A_PAGE + mix(page) % WORDS_A_PAGE
}

/// Returns the value of word `index` after `times` rewrites.
fn value(index: u64, times: u64) -> u64 {
    mix(index.wrapping_add(times << 40))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare_sys::map::Mapping;

    const PAGES: u64 = 16;

    fn words(memory: &Mapping) -> Words {
        // SAFETY: `memory` has `PAGES` pages and outlives the words, and no other code uses it.
        unsafe { Words::over(memory.addr(), PAGES) }
    }

    #[test]
    fn touched_and_rewritten_words_verify() {
        let memory = Mapping::anonymous((PAGES * OS_PAGE) as usize).unwrap();
        let mut words = words(&memory);
        for page in [3, 3, 0, 15, 3] {
            words.access(page, true).unwrap();
        }
        (0..PAGES).for_each(|page| words.access(page, false).unwrap());
        words.verify().unwrap();
    }

    #[test]
    fn a_stale_a_lost_and_a_misplaced_word_are_found() {
        let memory = Mapping::anonymous((PAGES * OS_PAGE) as usize).unwrap();
        let mut words = words(&memory);
        let index = accessed_word(3);
        let stale = value(index, 0);
        words.access(3, true).unwrap();
        for (index, wrong) in [(index, stale), (777, 0), (1000, value(1000 + WORDS_A_PAGE, 0))] {
            let times = u64::from(index == accessed_word(3));
            words.store(index, wrong);
            let found = words.verify().unwrap_err();
            let expected = value(index, times);
            assert_eq!(found, Mismatch { addr: words.addr(index), expected, found: wrong });
            assert!(found.to_string().contains(&format!("{:#x}", words.addr(index))));
            words.store(index, expected);
        }
        words.verify().unwrap();
    }
}
