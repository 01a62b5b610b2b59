//! Translates between addresses and offsets of far memory. This module only does the bookkeeping and changes no
//! mapping.
//!
//! Far memory is one range of byte offsets. Normally, a byte's address is the start of the reservation (the address
//! range of far memory) plus its offset. There are two exceptions, both in whole pages of the operating system. An
//! alias mapping, here called a *window*, shows a range of offsets at another address, such as that of a static array.
//! A foreign mapping, here called a *hole*, is a range over which the program has mapped something else. A hole is no
//! longer far. Windows and holes are added but never removed. So a lookup takes no lock: a fault in the middle of any
//! operation of the pager finds either the old or the new answer.

use crate::span::{OS_PAGE, Span};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use crate::sync::{LockCell, sized, zeroed_words};

/// Maximum number of windows. Each program or library with large static arrays needs one.
pub(crate) const WINDOWS_MAX: usize = sized(64, 2);

/// Size of a block of offsets in bytes. For each block, one bit tells whether a window or a hole lies in it.
pub(crate) const MARK: usize = 2 << 20;

/// A window: the addresses `addr..addr + len` show the far bytes `offset..offset + len`.
#[derive(Default)]
struct Window {
    addr: AtomicUsize,
    len: AtomicUsize,
    offset: AtomicUsize,
}

pub(crate) struct Windows {
    base: usize,
    len: usize,
    windows: [Window; WINDOWS_MAX],
    /// Number of windows whose fields are all set.
    count: AtomicUsize,
    /// Lock that lets one thread at a time add a window.
    adding: LockCell<()>,
    /// One bit for each block of [`MARK`] bytes: set if a window or a hole overlaps the block.
    marked: Bits,
    /// One bit for each page: set if the page is a hole.
    holes: Bits,
    /// Number of pages that are holes.
    hole_pages: AtomicUsize,
}

impl Windows {
    /// Returns the bookkeeping of a reservation of `len` bytes at `base`, without windows and holes.
    pub(crate) fn new(base: usize, len: usize) -> Windows {
        Windows {
            base,
            len,
            windows: std::array::from_fn(|_| Window::default()),
            count: AtomicUsize::new(0),
            adding: LockCell::default(),
            marked: Bits::new(len / MARK + 1),
            holes: Bits::new(len / OS_PAGE + 1),
            hole_pages: AtomicUsize::new(0),
        }
    }

    /// Adds a window: the far bytes of `span` are at `addr` from now on. Returns false when there are too many windows.
    /// `span` and `addr` are page-aligned. `span` lies in the reservation and overlaps no other window.
    pub(crate) fn add(&self, addr: usize, span: Span) -> bool {
        let adding = self.adding.lock();
        let index = self.count.load(Relaxed);
        let Some(window) = self.windows.get(index) else { return false };
        window.addr.store(addr, Relaxed);
        window.len.store(span.len, Relaxed);
        window.offset.store(span.offset, Relaxed);
        // The fields are set before the window is counted, and the window is counted before its blocks are marked. So a
        // lookup that finds a marked block also finds the whole window.
        self.count.store(index + 1, Release);
        self.mark(span);
        drop(adding);
        true
    }

    /// Makes `span` a hole. A hole never becomes far again.
    pub(crate) fn puncture(&self, span: Span) {
        for page in span.offset / OS_PAGE..(span.offset + span.len).div_ceil(OS_PAGE) {
            if !self.holes.set(page) {
                self.hole_pages.fetch_add(1, Relaxed);
            }
        }
        self.mark(span);
    }

    fn mark(&self, span: Span) {
        for block in span.offset / MARK..(span.offset + span.len).div_ceil(MARK) {
            self.marked.set(block);
        }
    }

    /// Returns the number of bytes that are holes.
    pub(crate) fn hole_bytes(&self) -> usize {
        self.hole_pages.load(Relaxed) * OS_PAGE
    }

    /// Returns the address and the length of every window.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        self.complete().iter().map(|window| (window.addr.load(Relaxed), window.len.load(Relaxed)))
    }

    fn complete(&self) -> &[Window] {
        &self.windows[..self.count.load(Acquire)]
    }

    /// Returns the offset of a far address, or `None` if the address is not far.
    #[inline]
    pub(crate) fn offset_of(&self, addr: usize) -> Option<usize> {
        let offset = addr.wrapping_sub(self.base);
        if offset < self.len {
            let plain = !self.marked.get(offset / MARK) || self.address_of_page(offset) == Some(addr & !(OS_PAGE - 1));
            return plain.then_some(offset);
        }
        self.complete().iter().find_map(|window| {
            let at = addr.wrapping_sub(window.addr.load(Relaxed));
            let offset = (at < window.len.load(Relaxed)).then(|| window.offset.load(Relaxed) + at)?;
            (!self.holes.get(offset / OS_PAGE)).then_some(offset)
        })
    }

    /// Returns the first page boundary after `addr` at which far memory may begin, end, or continue at another offset.
    /// Returns `end` if the boundary lies beyond `end`.
    pub(crate) fn border_after(&self, addr: usize, end: usize) -> usize {
        let whole = [(self.base, self.len)].into_iter().chain(self.ranges());
        let edges = whole.flat_map(|(start, len)| [start, start + len]);
        let border = edges.filter(|&edge| edge > addr).fold(end, usize::min);
        let offset = self.offset_of(addr).or_else(|| self.offset_in_hole(addr));
        let Some(first) = offset.filter(|_| self.hole_bytes() > 0).map(|offset| offset / OS_PAGE) else {
            return border;
        };
        let start = addr & !(OS_PAGE - 1);
        let last = first + (border - start).div_ceil(OS_PAGE);
        let changed = self.holes.first_unlike(first, last);
        (start + (changed - first) * OS_PAGE).min(border)
    }

    /// Returns whether an address lies in the reservation and in a hole.
    pub(crate) fn is_hole(&self, addr: usize) -> bool {
        let offset = addr.wrapping_sub(self.base);
        offset < self.len && self.holes.get(offset / OS_PAGE)
    }

    /// Calls `visit` with the address and the length of each hole in `span`. The addresses are those in the
    /// reservation.
    pub(crate) fn holes_in(&self, span: Span, mut visit: impl FnMut(usize, usize)) {
        let (mut page, end) = (span.offset / OS_PAGE, (span.offset + span.len).div_ceil(OS_PAGE));
        while page < end && self.hole_bytes() > 0 {
            let next = self.holes.first_unlike(page, end);
            if self.holes.get(page) {
                visit(self.base + page * OS_PAGE, (next - page) * OS_PAGE);
            }
            page = next;
        }
    }

    /// Returns the offset that an address had before its page became a hole. `None` if the page is no hole.
    fn offset_in_hole(&self, addr: usize) -> Option<usize> {
        let shown = self.complete().iter().find_map(|window| {
            let at = addr.wrapping_sub(window.addr.load(Relaxed));
            (at < window.len.load(Relaxed)).then(|| window.offset.load(Relaxed) + at)
        });
        let offset = shown.or_else(|| Some(addr.wrapping_sub(self.base)).filter(|&offset| offset < self.len))?;
        self.holes.get(offset / OS_PAGE).then_some(offset)
    }

    /// Returns the address of the page that contains this offset, or `None` if the page is a hole.
    fn address_of_page(&self, offset: usize) -> Option<usize> {
        let offset = offset & !(OS_PAGE - 1);
        if self.holes.get(offset / OS_PAGE) {
            return None;
        }
        let shown = self.complete().iter().find_map(|window| {
            let at = offset.wrapping_sub(window.offset.load(Relaxed));
            (at < window.len.load(Relaxed)).then(|| window.addr.load(Relaxed) + at)
        });
        Some(shown.unwrap_or(self.base + offset))
    }

    /// Returns the address of `span` if all its bytes are far and adjacent in the address space, otherwise `None`.
    #[inline]
    pub(crate) fn whole(&self, span: Span) -> Option<usize> {
        if self.is_plain(span) {
            return Some(self.base + span.offset);
        }
        let first = self.address_of_page(span.offset)? + span.offset % OS_PAGE;
        let mut one = true;
        self.runs(span, |addr, part| one &= addr == first && part.len == span.len);
        one.then_some(first)
    }

    fn is_plain(&self, span: Span) -> bool {
        self.plain_end(span.offset, span.offset + span.len) >= span.offset + span.len
    }

    /// Returns the end of the blocks from `offset` on in which no window and no hole lies, at most about `end`. It is not
    /// above `offset` if there is one in the first block.
    fn plain_end(&self, offset: usize, end: usize) -> usize {
        let block = offset / MARK;
        if self.marked.get(block) { offset } else { self.marked.first_unlike(block, end.div_ceil(MARK)) * MARK }
    }

    /// Splits `span` into parts whose bytes are adjacent in the address space. Calls `visit` with the address of each
    /// part and the part. Leaves out holes. Takes no time for pages of blocks without windows and holes: a fork splits
    /// the whole reservation.
    pub(crate) fn runs(&self, span: Span, mut visit: impl FnMut(usize, Span)) {
        let end = span.offset + span.len;
        let mut run: Option<(usize, Span)> = None;
        let mut offset = span.offset;
        while offset < end {
            let plain_end = self.plain_end(offset, end).min(end);
            let (next, addr) = match plain_end > offset {
                true => (plain_end, Some(self.base + offset)),
                false => {
                    let addr = self.address_of_page(offset).map(|page| page + offset % OS_PAGE);
                    (end.min((offset / OS_PAGE + 1) * OS_PAGE), addr)
                }
            };
            let len = next - offset;
            match (&mut run, addr) {
                (Some((start, part)), Some(addr)) if *start + part.len == addr => part.len += len,
                (_, addr) => {
                    let next = addr.map(|addr| (addr, Span { offset, len }));
                    if let Some((start, part)) = std::mem::replace(&mut run, next) {
                        visit(start, part);
                    }
                }
            }
            offset = next;
        }
        if let Some((start, part)) = run {
            visit(start, part);
        }
    }
}

/// An array of bits. A bit can be set, but never cleared.
struct Bits(Box<[AtomicU64]>);

impl Bits {
    fn new(len: usize) -> Bits {
        Bits(zeroed_words(len.div_ceil(64)))
    }

    #[inline]
    fn get(&self, index: usize) -> bool {
        self.0.get(index / 64).is_some_and(|word| word.load(Acquire) & (1 << (index % 64)) != 0)
    }

    /// Returns the index of the first bit in `first..end` that differs from the bit at `first`. Returns `end` if all
    /// are equal.
    fn first_unlike(&self, first: usize, end: usize) -> usize {
        let flip = if self.get(first) { u64::MAX } else { 0 };
        let mut at = first;
        while at < end {
            let word = self.0.get(at / 64).map_or(flip, |word| word.load(Acquire));
            let unlike = (word ^ flip) & (u64::MAX << (at % 64));
            if unlike != 0 {
                return (at / 64 * 64 + unlike.trailing_zeros() as usize).min(end);
            }
            at = (at / 64 + 1) * 64;
        }
        end
    }

    /// Sets a bit and returns its previous value. Returns true for an index beyond the array.
    fn set(&self, index: usize) -> bool {
        let bit = 1 << (index % 64);
        self.0.get(index / 64).is_none_or(|word| word.fetch_or(bit, AcqRel) & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: usize = 0x7000_0000_0000;
    const ELSEWHERE: usize = 0x5555_0000_3000;

    fn span(first: usize, count: usize) -> Span {
        Span { offset: first * OS_PAGE, len: count * OS_PAGE }
    }

    fn runs(windows: &Windows, of: Span) -> Vec<(usize, usize, usize)> {
        let mut seen = Vec::new();
        windows.runs(of, |addr, part| seen.push((addr, part.offset / OS_PAGE, part.len / OS_PAGE)));
        seen
    }

    #[test]
    fn without_exceptions_an_offset_is_a_distance() {
        let windows = Windows::new(BASE, 64 << 20);
        assert_eq!(windows.offset_of(BASE + 12345), Some(12345));
        assert_eq!(windows.offset_of(BASE - 1), None);
        assert_eq!(windows.offset_of(BASE + (64 << 20)), None);
        assert_eq!(runs(&windows, span(0, 600)), [(BASE, 0, 600)]);
        assert_eq!(windows.whole(span(5, 7)), Some(BASE + 5 * OS_PAGE));
    }

    #[test]
    fn a_window_shows_its_offsets_elsewhere_and_only_those() {
        let windows = Windows::new(BASE, 64 << 20);
        assert!(windows.add(ELSEWHERE, span(3, 100)));
        assert_eq!(windows.offset_of(ELSEWHERE + 7), Some(3 * OS_PAGE + 7));
        for outside in [ELSEWHERE - 1, ELSEWHERE + 100 * OS_PAGE, 0, usize::MAX] {
            assert_eq!(windows.offset_of(outside), None);
        }
        assert_eq!(windows.offset_of(BASE + 3 * OS_PAGE), None, "shown elsewhere, so not here");
        assert_eq!(windows.offset_of(BASE + 2 * OS_PAGE), Some(2 * OS_PAGE));
        let expected = [(BASE, 0, 3), (ELSEWHERE, 3, 100), (BASE + 103 * OS_PAGE, 103, 409)];
        assert_eq!(runs(&windows, span(0, 512)), expected);
        assert_eq!(windows.whole(span(4, 2)), Some(ELSEWHERE + OS_PAGE));
        assert_eq!(windows.whole(span(2, 2)), None);
        assert_eq!(windows.ranges().collect::<Vec<_>>(), [(ELSEWHERE, 100 * OS_PAGE)]);
    }

    #[test]
    fn a_hole_is_far_no_more_wherever_it_lies() {
        let windows = Windows::new(BASE, 64 << 20);
        assert!(windows.add(ELSEWHERE, span(0, 10)));
        windows.puncture(span(4, 2));
        windows.puncture(span(5, 1));
        windows.puncture(span(600, 1));
        assert_eq!(windows.hole_bytes(), 3 * OS_PAGE);
        assert_eq!(windows.offset_of(ELSEWHERE + 5 * OS_PAGE), None);
        assert_eq!(windows.offset_of(ELSEWHERE + 6 * OS_PAGE), Some(6 * OS_PAGE));
        assert_eq!(windows.offset_of(BASE + 600 * OS_PAGE + 9), None);
        assert_eq!(runs(&windows, span(3, 4)), [(ELSEWHERE + 3 * OS_PAGE, 3, 1), (ELSEWHERE + 6 * OS_PAGE, 6, 1)]);
        assert_eq!(runs(&windows, span(600, 1)), []);
        assert_eq!(windows.whole(span(600, 1)), None);
        assert_eq!(windows.whole(span(601, 100)), Some(BASE + 601 * OS_PAGE));
    }

    #[test]
    fn a_large_reservation_has_few_runs() {
        const PAGES: usize = (256 << 30) / OS_PAGE;
        let windows = Windows::new(BASE, PAGES * OS_PAGE);
        let page = |first: usize| BASE + first * OS_PAGE;
        windows.puncture(span(512 * 70_000 - 1, 2));
        windows.puncture(span(PAGES - 1, 1));
        let (first, second) = (512 * 70_000 - 1, 512 * 70_000 + 1);
        let expected = [(BASE, 0, first), (page(second), second, PAGES - 1 - second)];
        assert_eq!(runs(&windows, span(0, PAGES)), expected);
        assert!(windows.add(ELSEWHERE, span(1000, 24)));
        let parts = [(BASE, 0, 1000), (ELSEWHERE, 1000, 24), (page(1024), 1024, first - 1024)];
        assert_eq!(runs(&windows, span(0, PAGES)), [&parts[..], &expected[1..]].concat());
        let inside = Span { offset: 1023 * OS_PAGE + 5, len: MARK };
        let mut seen = Vec::new();
        windows.runs(inside, |addr, part| seen.push((addr, part.offset, part.len)));
        let cut = OS_PAGE - 5;
        assert_eq!(
            seen,
            [(ELSEWHERE + 23 * OS_PAGE + 5, inside.offset, cut), (page(1024), 1024 * OS_PAGE, MARK - cut)]
        );
    }

    #[test]
    fn borders_are_where_being_far_changes() {
        let windows = Windows::new(BASE, 64 << 20);
        assert!(windows.add(ELSEWHERE, span(0, 10)));
        windows.puncture(span(4, 2));
        windows.puncture(span(700, 200));
        let page = |first: usize| BASE + first * OS_PAGE;
        let end = BASE + (128 << 20);
        assert_eq!(windows.border_after(ELSEWHERE - 1, end), ELSEWHERE);
        assert_eq!(windows.border_after(ELSEWHERE, end), ELSEWHERE + 4 * OS_PAGE);
        assert_eq!(windows.border_after(ELSEWHERE + 4 * OS_PAGE + 9, end), ELSEWHERE + 6 * OS_PAGE);
        assert_eq!(windows.border_after(ELSEWHERE + 6 * OS_PAGE, end), ELSEWHERE + 10 * OS_PAGE);
        assert_eq!(windows.border_after(page(513), end), page(700));
        assert_eq!(windows.border_after(page(700), end), page(900));
        assert_eq!(windows.border_after(page(800), page(850)), page(850));
        assert_eq!(windows.border_after(page(900), end), BASE + (64 << 20));
        assert_eq!(windows.border_after(BASE + (64 << 20), end), end);
    }

    #[test]
    fn only_so_many_windows() {
        let windows = Windows::new(BASE, 1 << 30);
        for index in 0..WINDOWS_MAX {
            assert!(windows.add(ELSEWHERE + index * MARK, span(index * 512, 1)));
        }
        assert!(!windows.add(ELSEWHERE - MARK, span(WINDOWS_MAX * 512, 1)));
    }
}
