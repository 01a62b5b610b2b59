//! Records which ranges of the far address space `[0, len)` are allocated, in whole pages.
//!
//! All bookkeeping is kept outside the managed space, in near memory, as in the DLM allocator (Saito, Midorikawa, Kai,
//! section 3). The gaps (free ranges) are ordered twice: by address, to merge neighbours on a free, and by size, to
//! find the smallest sufficient gap. The allocations are ordered by address. Nothing here accesses a far page or takes
//! a lock.
//!
//! Offsets and lengths are in bytes, and are multiples of [`PAGE`]. An allocation of [`LARGE`] or more bytes starts on
//! a [`LARGE`] boundary. So a huge page never holds the ends of two large arrays.

use std::collections::{BTreeMap, BTreeSet};

use crate::span::Span;

/// Every offset and length is a multiple of this many bytes.
pub const PAGE: u64 = 4096;

/// Largest page of the pager, in bytes. An allocation of at least this size starts on a multiple of it.
pub const LARGE: u64 = 2 << 20;

/// Number of gaps that a search tries first, from the smallest sufficient one on. Because of the alignment, the
/// allocation may fit into none of them. The search then takes a gap that is longer by the alignment.
const CLOSE_FITS_TRIED: usize = 16;

/// The allocated and the free parts of `[0, len)`.
///
/// Invariant: gaps and allocations together fill the space without overlap. No two gaps are adjacent. Two allocations
/// may be adjacent, and each keeps its own boundaries.
#[derive(Debug, Default)]
pub struct Extents {
    /// Address of offset 0. Alignments are those of addresses.
    base: u64,
    /// Length of every gap, by its start.
    gaps: BTreeMap<u64, u64>,
    /// Length and start of every gap, ordered by length.
    gaps_by_len: BTreeSet<(u64, u64)>,
    /// Length of every allocation, by its start.
    taken: BTreeMap<u64, u64>,
    /// Sum of the lengths of all allocations.
    taken_bytes: u64,
}

impl Extents {
    /// Returns a space of `len` free bytes. `len` is rounded down to whole pages. `base` is the address of offset 0, a
    /// multiple of [`LARGE`].
    pub fn new(base: u64, len: u64) -> Extents {
        let mut extents = Extents { base, ..Extents::default() };
        extents.add_gap(0, len & !(PAGE - 1));
        extents
    }

    /// Returns the sum of the lengths of all allocations.
    pub fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    /// Returns the allocated ranges, in order, as [`Extents::allocated`] does.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let span = |(offset, len): (u64, u64)| Span { offset: offset as usize, len: len as usize };
        self.allocated().into_iter().map(span).collect()
    }

    /// Returns the offset and length of each allocated range, in order. Adjacent allocations are merged.
    pub fn allocated(&self) -> Vec<(u64, u64)> {
        let mut parts: Vec<(u64, u64)> = Vec::new();
        for (&start, &len) in &self.taken {
            match parts.last_mut() {
                Some((before, n)) if *before + *n == start => *n += len,
                _ => parts.push((start, len)),
            }
        }
        parts
    }

    /// Allocates `len` bytes (rounded up to pages) at an address that is a multiple of `align`. An alignment of less than a page counts as
    /// a page. Uses the smallest sufficient gap, and among equal gaps the one with the lowest address. With an
    /// alignment of more than a page, the gap may be longer than necessary. Returns `None` if no gap is sufficient, if
    /// `len` is 0, or if `align` is not a power of two.
    pub fn alloc(&mut self, len: u64, align: u64) -> Option<u64> {
        let len = round_up(len)?;
        if len == 0 || !align.is_power_of_two() {
            return None;
        }
        let align = align.max(if len >= LARGE { LARGE } else { PAGE });
        let (gap, start) = self.find_gap(len, align)?;
        let gap_len = self.remove_gap(gap);
        self.add_gap(gap, start - gap);
        self.add_gap(start + len, gap + gap_len - (start + len));
        self.add_taken(start, len);
        Some(start)
    }

    /// Allocates all free pages that overlap `[off, off + len)`. The claimed part of each gap becomes a separate
    /// allocation. Used when the program maps freed addresses again (MAP_FIXED). Returns the number of bytes allocated.
    pub fn claim(&mut self, off: u64, len: u64) -> u64 {
        let start = off & !(PAGE - 1);
        let Some(end) = off.checked_add(len).and_then(round_up) else {
            return 0;
        };
        let mut claimed = 0;
        while let Some((gap, gap_len)) = self.first_gap_meeting(start, end) {
            self.remove_gap(gap);
            let (from, to) = (gap.max(start), (gap + gap_len).min(end));
            self.add_gap(gap, from - gap);
            self.add_gap(to, gap + gap_len - to);
            self.add_taken(from, to - from);
            claimed += to - from;
        }
        claimed
    }

    /// Returns the number of free bytes in `[off, off + len)`.
    pub fn free_bytes_in(&self, off: u64, len: u64) -> u64 {
        let end = off.saturating_add(len);
        let before = self.gaps.range(..off).next_back();
        let meeting = before.into_iter().chain(self.gaps.range(off..end));
        meeting.map(|(&gap, &gap_len)| (gap + gap_len).min(end).saturating_sub(gap.max(off))).sum()
    }

    /// Returns the length of the allocation that starts at `off`.
    pub fn allocation(&self, off: u64) -> Option<u64> {
        self.taken.get(&off).copied()
    }

    /// Returns the start and length of the allocation that contains `off`.
    pub fn find(&self, off: u64) -> Option<(u64, u64)> {
        let (&start, &len) = self.taken.range(..=off).next_back()?;
        (off - start < len).then_some((start, len))
    }

    /// Returns whether every byte of `[off, off + len)` lies in an allocation.
    pub fn covers(&self, off: u64, len: u64) -> bool {
        let Some(end) = off.checked_add(len) else {
            return false;
        };
        let mut at = off;
        while at < end {
            match self.find(at) {
                Some((start, held)) => at = start + held,
                None => return false,
            }
        }
        true
    }

    /// Frees the allocation that starts at `off`. Returns its length, or `None` if no allocation starts there.
    pub fn free(&mut self, off: u64) -> Option<u64> {
        let len = self.remove_taken(off)?;
        self.merge_gap(off, len);
        Some(len)
    }

    /// Frees all allocated pages that overlap `[off, off + len)`. An allocation that reaches beyond the range keeps its
    /// pages outside the range. Returns the number of bytes freed.
    pub fn release(&mut self, off: u64, len: u64) -> u64 {
        let start = off & !(PAGE - 1);
        let Some(end) = off.checked_add(len).and_then(round_up) else {
            return 0;
        };
        let mut released = 0;
        let mut at = start;
        while let Some((held, held_len)) = self.first_meeting(at, end) {
            self.remove_taken(held);
            let (from, to) = (held.max(start), (held + held_len).min(end));
            self.add_taken(held, from - held);
            self.add_taken(to, held + held_len - to);
            self.merge_gap(from, to - from);
            released += to - from;
            at = to;
        }
        released
    }

    /// Grows the allocation at `off` in place to `new_len` (rounded up to pages). Returns false, and changes nothing,
    /// if no allocation starts at `off`, if the allocation is longer than `new_len`, or if the gap behind it is too
    /// short. Returns false also if the new length is at least [`LARGE`] and `off` is no multiple of [`LARGE`].
    pub fn grow_in_place(&mut self, off: u64, new_len: u64) -> bool {
        let (Some(old), Some(new)) = (self.allocation(off), round_up(new_len)) else {
            return false;
        };
        if new <= old {
            return new == old;
        }
        if new >= LARGE && !off.is_multiple_of(LARGE) {
            return false;
        }
        let (gap, wanted) = (off + old, new - old);
        let Some(gap_len) = self.gaps.get(&gap).copied().filter(|&len| len >= wanted) else {
            return false;
        };
        self.remove_gap(gap);
        self.add_gap(gap + wanted, gap_len - wanted);
        self.remove_taken(off);
        self.add_taken(off, new);
        true
    }

    /// Shortens the allocation at `off` to `new_len` (rounded up to pages). Returns the number of bytes cut from its
    /// end. Returns `None`, and changes nothing, if no allocation starts at `off`, if the allocation is shorter than
    /// `new_len`, or if `new_len` is 0.
    pub fn shrink(&mut self, off: u64, new_len: u64) -> Option<u64> {
        let old = self.allocation(off)?;
        let new = round_up(new_len).filter(|&new| new > 0 && new <= old)?;
        Some(self.release(off + new, old - new))
    }

    /// Finds a gap for an allocation. Returns the start of the gap and the start of the allocation in it.
    fn find_gap(&self, len: u64, align: u64) -> Option<(u64, u64)> {
        let fit = |&(gap_len, gap): &(u64, u64)| {
            let start = self.base.checked_add(gap)?.checked_next_multiple_of(align)? - self.base;
            (start.checked_add(len)? <= gap + gap_len).then_some((gap, start))
        };
        let close = self.gaps_by_len.range((len, 0)..);
        if let Some(found) = close.take(CLOSE_FITS_TRIED).find_map(fit) {
            return Some(found);
        }
        // A gap of at least `slack` bytes always holds an aligned range of `len` bytes. Shorter gaps are searched only
        // if no such gap exists.
        let slack = len.checked_add(align - PAGE)?;
        let roomy = self.gaps_by_len.range((slack, 0)..).next().and_then(fit);
        roomy.or_else(|| self.gaps_by_len.range((len, 0)..(slack, 0)).find_map(fit))
    }

    /// Returns the start and length of the first allocation that overlaps `[at, end)`.
    fn first_meeting(&self, at: u64, end: u64) -> Option<(u64, u64)> {
        if at >= end {
            return None;
        }
        let following = || self.taken.range(at..end).next().map(|(&start, &len)| (start, len));
        self.find(at).or_else(following)
    }

    /// Returns the start and length of the first gap that overlaps `[at, end)`.
    fn first_gap_meeting(&self, at: u64, end: u64) -> Option<(u64, u64)> {
        let before = self.gaps.range(..=at).next_back().filter(|&(&gap, &len)| gap + len > at);
        before.or_else(|| self.gaps.range(at..end).next()).map(|(&gap, &len)| (gap, len)).filter(|_| at < end)
    }

    fn add_gap(&mut self, start: u64, len: u64) {
        if len > 0 {
            self.gaps.insert(start, len);
            self.gaps_by_len.insert((len, start));
        }
    }

    /// Removes the gap at `start` and returns its length. Returns 0 if no gap starts there.
    fn remove_gap(&mut self, start: u64) -> u64 {
        let len = self.gaps.remove(&start).unwrap_or(0);
        self.gaps_by_len.remove(&(len, start));
        len
    }

    /// Adds a gap and joins it with its neighbours.
    fn merge_gap(&mut self, mut start: u64, mut len: u64) {
        if let Some((&before, &before_len)) = self.gaps.range(..start).next_back()
            && before + before_len == start
        {
            self.remove_gap(before);
            (start, len) = (before, before_len + len);
        }
        len += self.remove_gap(start + len);
        self.add_gap(start, len);
    }

    fn add_taken(&mut self, start: u64, len: u64) {
        if len > 0 {
            self.taken.insert(start, len);
            self.taken_bytes += len;
        }
    }

    fn remove_taken(&mut self, start: u64) -> Option<u64> {
        let len = self.taken.remove(&start)?;
        self.taken_bytes -= len;
        Some(len)
    }
}

fn round_up(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pages in the model's space: a little more than four blocks of [`LARGE`] bytes.
    const PAGES: usize = 4 * (LARGE / PAGE) as usize + 37;

    /// A simple model of the space. It records the owner of each page, or 0 for a free page.
    struct Model {
        owner: Vec<u32>,
        next: u32,
    }

    #[derive(Clone, Debug)]
    enum Op {
        Alloc { len: u64, align: u64 },
        Free { nth: usize },
        Release { page: usize, pages: usize },
        Claim { page: usize, pages: usize },
        Grow { nth: usize, len: u64 },
        Shrink { nth: usize, len: u64 },
    }

    fn ops() -> impl Strategy<Value = Op> {
        let len = prop_oneof![1..=64 * PAGE, LARGE - 5 * PAGE..=LARGE + 700 * PAGE];
        let align = (0u32..=21).prop_map(|shift| 1u64 << shift);
        prop_oneof![
            4 => (len.clone(), align).prop_map(|(len, align)| Op::Alloc { len, align }),
            2 => (0usize..64).prop_map(|nth| Op::Free { nth }),
            1 => (0..PAGES, 0usize..300).prop_map(|(page, pages)| Op::Release { page, pages }),
            1 => (0..PAGES, 0usize..300).prop_map(|(page, pages)| Op::Claim { page, pages }),
            1 => (0usize..64, len.clone()).prop_map(|(nth, len)| Op::Grow { nth, len }),
            1 => (0usize..64, len).prop_map(|(nth, len)| Op::Shrink { nth, len }),
        ]
    }

    impl Model {
        fn new() -> Model {
            Model { owner: vec![0; PAGES], next: 0 }
        }

        /// Returns the first page and the length of each run of pages with the same owner, if `wanted` accepts the
        /// owner.
        fn runs(&self, wanted: impl Fn(u32) -> bool) -> Vec<(usize, usize)> {
            let mut runs = Vec::new();
            let mut at = 0;
            for run in self.owner.chunk_by(|a, b| a == b) {
                if wanted(run[0]) {
                    runs.push((at, run.len()));
                }
                at += run.len();
            }
            runs
        }

        fn allocations(&self) -> Vec<(usize, usize)> {
            self.runs(|owner| owner != 0)
        }

        fn take(&mut self, page: usize, pages: usize) {
            self.next += 1;
            self.own(page, pages, self.next);
        }

        fn own(&mut self, page: usize, pages: usize, owner: u32) {
            self.owner[page..page + pages].fill(owner);
        }

        /// Frees pages. If they lie in the middle of an allocation, two allocations remain.
        fn release(&mut self, page: usize, pages: usize) {
            let end = (page + pages).min(PAGES);
            self.own(page, end - page, 0);
            let tail = self.runs(|owner| owner != 0).into_iter().find(|run| run.0 == end);
            if let Some((start, len)) = tail {
                self.take(start, len);
            }
        }

        /// Returns the length of the smallest gap that can hold the pages at this alignment.
        fn best_gap(&self, pages: usize, align: u64) -> Option<usize> {
            let align = (align.max(PAGE) / PAGE) as usize;
            let fits = |&(page, len): &(usize, usize)| page.next_multiple_of(align) + pages <= page + len;
            self.runs(|owner| owner == 0).into_iter().filter(fits).map(|run| run.1).min()
        }

        fn gap_at(&self, page: usize) -> usize {
            self.owner[page..].iter().take_while(|&&owner| owner == 0).count()
        }
    }

    fn pages(len: u64) -> usize {
        len.div_ceil(PAGE) as usize
    }

    fn off(page: usize) -> u64 {
        page as u64 * PAGE
    }

    fn nth(model: &Model, nth: usize) -> Option<(usize, usize)> {
        let all = model.allocations();
        (!all.is_empty()).then(|| all[nth % all.len()])
    }

    fn apply(extents: &mut Extents, model: &mut Model, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Alloc { len, align } => {
                let align_used = if pages(len) as u64 * PAGE >= LARGE { align.max(LARGE) } else { align };
                let best = model.best_gap(pages(len), align_used);
                let got = extents.alloc(len, align);
                prop_assert_eq!(got.is_some(), best.is_some(), "{} bytes aligned {}", len, align);
                if let (Some(start), Some(best)) = (got, best) {
                    prop_assert_eq!(start % align_used.max(PAGE), 0);
                    let page = (start / PAGE) as usize;
                    prop_assert!(model.gap_at(page) >= pages(len), "taken twice");
                    if align_used <= PAGE {
                        let free_before = model.owner[..page].iter().rev().take_while(|&&owner| owner == 0).count();
                        prop_assert_eq!(free_before + model.gap_at(page), best, "not the best fit");
                    }
                    model.take(page, pages(len));
                }
            }
            Op::Free { nth: which } => {
                if let Some((page, count)) = nth(model, which) {
                    prop_assert_eq!(extents.free(off(page)), Some(off(count)));
                    model.own(page, count, 0);
                    prop_assert_eq!(extents.free(off(page)), None, "freed twice");
                }
            }
            Op::Release { page, pages } => {
                let end = (page + pages).min(PAGES);
                let held = model.owner[page..end].iter().filter(|&&owner| owner != 0).count();
                prop_assert_eq!(extents.release(off(page), off(end - page)), off(held));
                model.release(page, pages);
            }
            Op::Claim { page, pages } => {
                let end = (page + pages).min(PAGES);
                let free: Vec<_> = model.runs(|owner| owner == 0);
                let parts = free.into_iter().map(|(at, len)| (at.max(page), (at + len).min(end)));
                let parts: Vec<_> = parts.filter(|(from, to)| from < to).collect();
                let bytes = off(parts.iter().map(|(from, to)| to - from).sum());
                prop_assert_eq!(extents.free_bytes_in(off(page), off(end - page)), bytes);
                prop_assert_eq!(extents.claim(off(page), off(end - page)), bytes);
                parts.into_iter().for_each(|(from, to)| model.take(from, to - from));
                prop_assert!(extents.covers(off(page), off(end - page)));
            }
            Op::Grow { nth: which, len } => {
                if let Some((page, count)) = nth(model, which) {
                    let new = pages(len);
                    let aligned = off(new) < LARGE || off(page).is_multiple_of(LARGE);
                    let room = new > count && aligned && model.gap_at(page + count) >= new - count;
                    prop_assert_eq!(extents.grow_in_place(off(page), len), new == count || room);
                    if room {
                        let owner = model.owner[page];
                        model.own(page, new, owner);
                    }
                }
            }
            Op::Shrink { nth: which, len } => {
                if let Some((page, count)) = nth(model, which) {
                    let new = pages(len);
                    let want = (new <= count).then(|| off(count - new.min(count)));
                    prop_assert_eq!(extents.shrink(off(page), len), want);
                    if new <= count {
                        model.own(page + new, count - new, 0);
                    }
                }
            }
        }
        Ok(())
    }

    fn compare(extents: &Extents, model: &Model) -> Result<(), TestCaseError> {
        let taken: Vec<_> = extents.taken.iter().map(|(&start, &len)| (start, len)).collect();
        let wanted: Vec<_> = model.allocations().into_iter().map(|(page, count)| (off(page), off(count))).collect();
        prop_assert_eq!(&taken, &wanted);
        let gaps: Vec<_> = extents.gaps.iter().map(|(&start, &len)| (start, len)).collect();
        let free = model.runs(|owner| owner == 0);
        let free: Vec<_> = free.into_iter().map(|(page, count)| (off(page), off(count))).collect();
        prop_assert_eq!(&gaps, &free, "gaps not coalesced");
        let by_len: BTreeSet<_> = gaps.iter().map(|&(start, len)| (len, start)).collect();
        prop_assert_eq!(&extents.gaps_by_len, &by_len);
        prop_assert_eq!(extents.taken_bytes(), taken.iter().map(|run| run.1).sum::<u64>());
        Ok(())
    }

    proptest! {
        #[test]
        fn agrees_with_a_page_by_page_model(ops in prop::collection::vec(ops(), 1..80)) {
            let mut extents = Extents::new(0, off(PAGES) + 123);
            let mut model = Model::new();
            for op in ops {
                apply(&mut extents, &mut model, op)?;
                compare(&extents, &model)?;
            }
            for (page, count) in model.allocations() {
                for probe in [off(page), off(page) + 1, off(page + count) - 1] {
                    prop_assert_eq!(extents.find(probe), Some((off(page), off(count))));
                }
                prop_assert_eq!(extents.allocation(off(page)), Some(off(count)));
                prop_assert!(extents.covers(off(page) + 5, off(count) - 5));
                let following_free = model.gap_at(page + count) > 0 || page + count == PAGES;
                prop_assert_eq!(extents.covers(off(page), off(count) + 1), !following_free);
            }
        }

        #[test]
        fn never_panics_on_any_argument(off: u64, len: u64, align: u64) {
            let mut extents = Extents::new(LARGE, len);
            extents.alloc(off, align);
            extents.alloc(4096, 1);
            extents.grow_in_place(0, off);
            extents.shrink(0, off);
            extents.claim(off, len);
            extents.free_bytes_in(off, len);
            extents.release(off, len);
            extents.covers(off, len);
            extents.find(off);
            extents.free(off);
        }
    }

    #[test]
    fn a_small_hole_is_used_before_a_large_one() {
        let mut extents = Extents::new(0, 1 << 30);
        let blocks: Vec<_> = (0..6).map(|_| extents.alloc(10 * PAGE, 1).expect("room")).collect();
        extents.free(blocks[1]);
        extents.release(blocks[3], 4 * PAGE);
        assert_eq!(extents.alloc(3 * PAGE, 1), Some(blocks[3]));
        assert_eq!(extents.alloc(10 * PAGE, 1), Some(blocks[1]));
    }

    #[test]
    fn large_arrays_start_on_large_boundaries() {
        let mut extents = Extents::new(0, 1 << 30);
        extents.alloc(PAGE, 1).expect("room");
        for _ in 0..5 {
            assert_eq!(extents.alloc(LARGE + PAGE, 1).expect("room") % LARGE, 0);
        }
    }

    /// Alignments above [`LARGE`] were those of offsets once, so that `posix_memalign` gave wrong addresses.
    #[test]
    fn alignments_are_those_of_addresses() {
        let base = 0x7f12_3460_0000;
        let mut extents = Extents::new(base, 1 << 30);
        for shift in 12..30 {
            let start = extents.alloc(3 * PAGE, 1 << shift).expect("room");
            assert_eq!((base + start) % (1 << shift), 0, "1 << {shift}");
        }
    }
}
