//! Records the access rights that the program itself has set on its far memory (mprotect), for each page of the
//! operating system.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use hanare_sys::futex::LockCell;
use hanare_sys::map::Prot;

use crate::span::{OS_PAGE, Span};

/// The access rights of all pages, two bits for each. Both bits are clear if the page is readable and writable. So the
/// kernel uses no memory for parts of the table without restrictions.
pub(crate) struct Restrictions {
    /// Whether any page was ever restricted.
    any: AtomicBool,
    bits: LockCell<Bits>,
    /// Number of pages without read access.
    closed_pages: AtomicUsize,
}

struct Bits {
    no_read: Vec<u64>,
    no_write: Vec<u64>,
}

impl Restrictions {
    pub(crate) fn new(reserve: usize) -> Self {
        let words = reserve / OS_PAGE / 64 + 1;
        Self {
            any: AtomicBool::new(false),
            bits: LockCell::new(Bits { no_read: vec![0; words], no_write: vec![0; words] }),
            closed_pages: AtomicUsize::new(0),
        }
    }

    /// Records that the program has set the access rights of a range to `prot`.
    pub(crate) fn set(&self, span: Span, prot: i32) {
        let (no_read, no_write) = (prot & libc::PROT_READ == 0, prot & libc::PROT_WRITE == 0);
        if no_read || no_write {
            self.any.store(true, Relaxed);
        } else if !self.any.load(Relaxed) {
            return;
        }
        let mut bits = self.bits.lock();
        let before = put(&mut bits.no_read, pages(span), no_read);
        put(&mut bits.no_write, pages(span), no_write);
        let after = if no_read { pages(span).len() } else { 0 };
        // The lock is held, so the number does not change between the load and the store.
        self.closed_pages.store(self.closed_pages.load(Relaxed) + after - before, Relaxed);
    }

    /// Returns whether any page was ever restricted.
    pub(crate) fn are_any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Returns the number of bytes without read access.
    pub(crate) fn closed_bytes(&self) -> usize {
        self.closed_pages.load(Relaxed) * OS_PAGE
    }

    /// Returns whether any page of a range lacks read or write access.
    pub(crate) fn touch(&self, span: Span) -> bool {
        self.any.load(Relaxed) && {
            let bits = self.bits.lock();
            words(pages(span)).any(|(word, mask)| (bits.no_read[word] | bits.no_write[word]) & mask != 0)
        }
    }

    /// Returns the access rights of the page that contains `offset`.
    pub(crate) fn at(&self, offset: usize) -> Prot {
        if !self.any.load(Relaxed) {
            return Prot::READ_WRITE;
        }
        let bits = self.bits.lock();
        let page = offset / OS_PAGE;
        match (get(&bits.no_read, page), get(&bits.no_write, page)) {
            (true, _) => Prot::NONE,
            (false, true) => Prot::READ,
            (false, false) => Prot::READ_WRITE,
        }
    }

    /// Splits a range into parts with equal access rights. Calls `visit` with each part and its rights.
    pub(crate) fn runs(&self, span: Span, mut visit: impl FnMut(Span, Prot)) {
        if !self.touch(span) {
            return visit(span, Prot::READ_WRITE);
        }
        let mut run = Span { offset: span.offset, len: 0 };
        let mut prot = self.at(span.offset);
        for page in pages(span) {
            let next = self.at(page * OS_PAGE);
            if next != prot {
                visit(run, prot);
                (run, prot) = (Span { offset: run.offset + run.len, len: 0 }, next);
            }
            run.len += OS_PAGE;
        }
        visit(run, prot);
    }
}

fn pages(span: Span) -> Range<usize> {
    span.offset / OS_PAGE..(span.offset + span.len).div_ceil(OS_PAGE)
}

fn get(bits: &[u64], page: usize) -> bool {
    bits[page / 64] & (1 << (page % 64)) != 0
}

/// Returns the index of each word that holds bits of a range, with a mask of these bits.
fn words(range: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let end = if range.is_empty() { 0 } else { range.end.div_ceil(64) };
    (range.start / 64..end).map(move |word| {
        let (from, to) = (range.start.max(word * 64) - word * 64, range.end.min(word * 64 + 64) - word * 64);
        (word, (u64::MAX >> (64 - (to - from))) << from)
    })
}

/// Sets the bits of a range if `on` is true, otherwise clears them. Returns how many bits of the range were set before.
fn put(bits: &mut [u64], range: Range<usize>, on: bool) -> usize {
    let mut before = 0;
    for (word, mask) in words(range) {
        before += (bits[word] & mask).count_ones() as usize;
        if on { bits[word] |= mask } else { bits[word] &= !mask }
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: usize, count: usize) -> Span {
        Span { offset: first * OS_PAGE, len: count * OS_PAGE }
    }

    #[test]
    fn an_empty_range_has_no_page() {
        let restrictions = Restrictions::new(256 * OS_PAGE);
        restrictions.set(span(3, 1), libc::PROT_NONE);
        restrictions.set(span(5, 0), libc::PROT_NONE);
        assert!(!restrictions.touch(span(3, 0)) && !restrictions.touch(span(5, 100)));
        assert_eq!(restrictions.closed_bytes(), OS_PAGE);
    }

    #[test]
    fn runs_follow_what_was_set_and_undone() {
        let restrictions = Restrictions::new(256 * OS_PAGE);
        assert!(!restrictions.touch(span(0, 256)));
        restrictions.set(span(60, 8), libc::PROT_READ);
        restrictions.set(span(64, 2), libc::PROT_NONE);
        let mut seen = Vec::new();
        restrictions.runs(span(58, 12), |run, prot| seen.push((run.offset / OS_PAGE, run.len / OS_PAGE, prot)));
        let expected = [
            (58, 2, Prot::READ_WRITE),
            (60, 4, Prot::READ),
            (64, 2, Prot::NONE),
            (66, 2, Prot::READ),
            (68, 2, Prot::READ_WRITE),
        ];
        assert_eq!(seen, expected);
        assert_eq!(restrictions.closed_bytes(), 2 * OS_PAGE);
        restrictions.set(span(1, 190), libc::PROT_NONE);
        assert_eq!(restrictions.closed_bytes(), 190 * OS_PAGE);
        assert!(
            restrictions.touch(span(190, 5)) && !restrictions.touch(span(191, 65)) && !restrictions.touch(span(0, 1))
        );
        restrictions.set(span(1, 190), libc::PROT_READ | libc::PROT_WRITE);
        assert!(!restrictions.touch(span(0, 256)));
        assert_eq!(restrictions.closed_bytes(), 0);
    }
}
