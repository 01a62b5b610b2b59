//! Guards: the trap of sigsegv mode, if the kernel supports guards on shared memory. A guard is a mark in the page
//! table (MADV_GUARD_INSTALL). An access to a guarded page raises SIGSEGV.
//!
//! Absent pages are guarded. The mapping around them stays accessible (*open*), so a page needs no mapping of its own.
//! Guards need page tables. So ranges that were never used have no guards and are inaccessible (*closed*, PROT_NONE).
//! Closed ranges are guarded and opened in extents of [`EXTENT`] bytes. To detect writes to a clean page, the page is
//! closed against writes (PROT_READ). This splits mappings, so the number of pages closed against writes is bounded.
//! Further clean pages stay open for writing. The caller learns this from the return value.

use hanare_sys::Errno;
use hanare_sys::futex::{LockCell, LockCellGuard};
use hanare_sys::map::{self, Prot};

use super::Doubled;
use crate::kernel::insist;
use crate::span::Span;

/// Size of an extent in bytes. An extent is opened as a whole. An extent is the range that one page table of the
/// processor covers.
const EXTENT: usize = 2 << 20;
/// Number of extents that are opened together if the open extents form many separate runs. Each run costs mappings.
const EXTENTS_MANY: usize = 32;
/// Number of separate runs of open extents beyond which [`EXTENTS_MANY`] extents are opened together.
const RUNS_MAX: usize = 2048;

/// The state of the view's mappings. Every thread that changes a mapping holds the lock of this state.
pub(super) struct Guards {
    /// Bytes of a unit.
    unit: usize,
    /// A bit for each extent, set if the extent is open.
    open: Bits,
    /// A bit for each unit, set if the unit is closed against writes. The bit stays set while the unit is absent,
    /// because the unit is often clean again when it returns.
    read_only: Bits,
    /// Maximum number of mappings that the units closed against writes may cost. The bound also holds if these units
    /// are opened in the worst order.
    read_only_max: usize,
}

impl Guards {
    pub(super) fn new(reserve: usize, unit: usize, read_only_max: usize) -> LockCell<Self> {
        let (open, read_only) = (Bits::new(reserve / EXTENT), Bits::new(reserve / unit));
        LockCell::new(Self { unit, open, read_only, read_only_max })
    }

    fn units(&self, span: Span) -> (usize, usize) {
        (span.offset / self.unit, (span.offset + span.len).div_ceil(self.unit))
    }

    /// Checks whether `units` more units may be closed against writes. Opening a unit in the middle of a run of closed
    /// units splits the run. In the worst case, every second unit of a run is opened.
    fn has_room(&self, units: usize) -> bool {
        self.read_only.count + units + self.read_only.runs < self.read_only_max
    }
}

impl Doubled {
    /// Makes pages accessible. Returns false if the pages should be write-protected but are open for writing.
    pub(super) fn show_unguarded(&self, mut guards: LockCellGuard<'_, Guards>, span: Span, writable: bool) -> bool {
        self.open_extents(&mut guards, span);
        let is_protected = !writable && self.close_to_writes(&mut guards, span);
        if is_protected {
            // The lock of `guards` is still held here. Otherwise [`Self::let_write_around`] in another thread could
            // open the pages for writing before the call below removes their guards.
            self.unguard(span);
            return true;
        }
        self.let_write(&mut guards, span);
        drop(guards);
        self.unguard(span);
        writable
    }

    /// Makes pages in view accessible again, after an access to them trapped. Returns false if the pages must be
    /// write-protected but are not closed against writes. The pages then continue to trap. Otherwise the pager would
    /// miss writes to them.
    pub(super) fn show_again_unguarded(
        &self,
        mut guards: LockCellGuard<'_, Guards>,
        span: Span,
        writable: bool,
    ) -> bool {
        let (first, end) = guards.units(span);
        if writable {
            self.let_write(&mut guards, span);
        } else if !guards.read_only.all(first, end) {
            return false;
        }
        insist("change the access to a page", || self.apply(&guards, span));
        self.unguard(span);
        true
    }

    /// Guards and opens all extents of a span that are closed.
    fn open_extents(&self, guards: &mut Guards, span: Span) {
        let (first, end) = (span.offset / EXTENT, (span.offset + span.len).div_ceil(EXTENT));
        if guards.open.all(first, end) {
            return;
        }
        let apart = guards.open.runs > RUNS_MAX;
        let at_once = if apart { EXTENTS_MANY } else { 1 };
        let last = self.sizes.reserve / EXTENT;
        let (first, end) = (first / at_once * at_once, end.next_multiple_of(at_once).min(last));
        let mut next = first;
        while next < end {
            let stop = guards.open.first_unlike(next, end);
            if !guards.open.get(next) {
                let run = Span { offset: next * EXTENT, len: (stop - next) * EXTENT };
                self.guard(run);
                guards.open.set(next, stop, true);
                insist("open an extent of far memory", || self.apply(guards, run));
            }
            next = stop;
        }
    }

    fn let_write(&self, guards: &mut Guards, span: Span) {
        let (first, end) = guards.units(span);
        if guards.read_only.none(first, end) {
            return;
        }
        guards.read_only.set(first, end, false);
        if self.apply(guards, span).is_err() {
            self.let_write_around(guards, span);
        }
    }

    /// Opens a span for writing after the process has used up its mappings. Also opens the adjacent units that are
    /// closed against writes, because opening whole runs needs no further mapping. All units opened here are guarded.
    /// So the next access to a page in view among these units traps.
    #[cold]
    fn let_write_around(&self, guards: &mut Guards, span: Span) {
        let (first, end) = guards.units(span);
        let (from, to) = guards.read_only.around(first, end);
        let run = Span { offset: from * guards.unit, len: (to - from) * guards.unit };
        self.guard(run);
        guards.read_only.set(from, to, false);
        insist("open pages for writing (a larger --page-size needs fewer mappings)", || self.apply(guards, run));
    }

    /// Closes pages against writes. Returns false if this could need more mappings than allowed, or if the kernel
    /// refuses the change.
    fn close_to_writes(&self, guards: &mut Guards, span: Span) -> bool {
        let (first, end) = guards.units(span);
        if guards.read_only.all(first, end) {
            return true;
        }
        if !guards.has_room(end - first) {
            return false;
        }
        guards.read_only.set(first, end, true);
        // The kernel refuses the change if the program has used up the mappings of the process.
        self.apply(guards, span).is_ok()
    }

    /// Sets the protection of the open extents of a span to the access that the program allows. But units that are
    /// closed against writes do not become writable.
    ///
    /// # Errors
    /// The errno with which the kernel refuses a change. A part of the span may have been changed.
    fn apply(&self, guards: &Guards, span: Span) -> Result<(), Errno> {
        let mut answer = Ok(());
        let extents = (span.offset / EXTENT, (span.offset + span.len).div_ceil(EXTENT));
        guards.open.each_run(extents, EXTENT, span, |part, is_open| {
            if is_open {
                guards.read_only.each_run(guards.units(part), guards.unit, part, |part, is_closed| {
                    let most = if is_closed { Prot::READ } else { Prot::READ_WRITE };
                    self.restrictions.runs(part, |run, left| {
                        let changed = self.change(run, Prot(most.0 & left.0));
                        answer = answer.and(changed);
                    });
                });
            }
        });
        answer
    }

    fn change(&self, span: Span, prot: Prot) -> Result<(), Errno> {
        let mut answer = Ok(());
        self.windows.runs(span, |addr, part| {
            let change = || {
                // SAFETY: the range is a part of the program's view of far memory. A change of protection keeps the
                // contents.
                hanare_sys::again(|| unsafe { map::protect(addr, part.len, prot) })
            };
            answer = answer.and(change());
        });
        answer
    }

    /// Applies the new access to a span, after the program changed the access that it allows.
    pub(super) fn reapply(&self, guards: &Guards, span: Span) -> Result<(), Errno> {
        self.apply(guards, span)
    }

    /// Guards and opens the parts of a new alias mapping that lie in open extents. Before the call, the whole mapping
    /// is closed.
    pub(super) fn match_window(&self, guards: &Guards, span: Span) -> Result<(), Errno> {
        let extents = (span.offset / EXTENT, (span.offset + span.len).div_ceil(EXTENT));
        guards.open.each_run(extents, EXTENT, span, |part, is_open| {
            if is_open {
                self.guard(part);
            }
        });
        self.apply(guards, span)
    }

    pub(super) fn guard(&self, span: Span) {
        self.windows.runs(span, |addr, part| {
            // SAFETY: the range is a part of the program's view of far memory. Its bytes stay in the memfd.
            insist("take pages out of view", || unsafe { map::guard(addr, part.len) });
        });
    }

    fn unguard(&self, span: Span) {
        self.windows.runs(span, |addr, part| insist("show pages", || map::unguard(addr, part.len)));
    }
}

/// A bitmap. `count` is the number of set bits, and `runs` is the number of runs of adjacent set bits.
struct Bits {
    words: Vec<u64>,
    len: usize,
    count: usize,
    runs: usize,
}

impl Bits {
    fn new(len: usize) -> Self {
        Self { words: vec![0; len / 64 + 1], len, count: 0, runs: 0 }
    }

    fn get(&self, index: usize) -> bool {
        index < self.len && self.words[index / 64] & (1 << (index % 64)) != 0
    }

    fn all(&self, first: usize, end: usize) -> bool {
        self.get(first) && self.first_unlike(first, end) == end
    }

    fn none(&self, first: usize, end: usize) -> bool {
        !self.get(first) && self.first_unlike(first, end) == end
    }

    /// Returns the first index in `first..end` whose bit differs from the bit at `first`. Returns `end` if no bit
    /// differs.
    fn first_unlike(&self, first: usize, end: usize) -> usize {
        let flip = if self.get(first) { u64::MAX } else { 0 };
        let mut at = first;
        while at < end {
            let unlike = (self.words[at / 64] ^ flip) & (u64::MAX << (at % 64));
            if unlike != 0 {
                return (at / 64 * 64 + unlike.trailing_zeros() as usize).min(end);
            }
            at = (at / 64 + 1) * 64;
        }
        end
    }

    /// Returns the bounds of a range extended by the set bits directly before and behind the range.
    fn around(&self, first: usize, end: usize) -> (usize, usize) {
        let mut from = first;
        while from > 0 && self.get(from - 1) {
            from -= 1;
        }
        let to = if self.get(end) { self.first_unlike(end, self.len) } else { end };
        (from, to)
    }

    /// Counts the runs of set bits that begin in `first..=end`.
    fn begins(&self, first: usize, end: usize) -> usize {
        (first..=end).filter(|&at| self.get(at) && (at == 0 || !self.get(at - 1))).count()
    }

    fn set(&mut self, first: usize, end: usize, on: bool) {
        self.runs -= self.begins(first, end);
        for at in first..end {
            let bit = 1 << (at % 64);
            let word = &mut self.words[at / 64];
            self.count -= usize::from(*word & bit != 0);
            *word = if on { *word | bit } else { *word & !bit };
            self.count += usize::from(on);
        }
        self.runs += self.begins(first, end);
    }

    /// Calls `visit` for each part of a span whose bits are equal. One bit represents `size` bytes.
    fn each_run(&self, (first, end): (usize, usize), size: usize, span: Span, mut visit: impl FnMut(Span, bool)) {
        let mut next = first;
        while next < end {
            let stop = self.first_unlike(next, end);
            let from = (next * size).max(span.offset);
            let to = (stop * size).min(span.offset + span.len);
            visit(Span { offset: from, len: to - from }, self.get(next));
            next = stop;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LiveView, View};
    use super::*;

    /// Compares `count`, `runs` and `around` with a plain array of booleans.
    #[test]
    fn runs_are_counted_exactly() {
        let mut bits = Bits::new(200);
        let mut plain = [false; 200];
        let mut seed = 1_u64;
        for round in 0..2000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (first, len, on) = ((seed >> 33) as usize % 200, (seed >> 50) as usize % 9, seed >> 60 & 1 == 0);
            let end = (first + 1 + len).min(200);
            bits.set(first, end, on);
            plain[first..end].fill(on);
            let runs = (0..200).filter(|&at| plain[at] && (at == 0 || !plain[at - 1])).count();
            assert_eq!((bits.count, bits.runs), (plain.iter().filter(|&&on| on).count(), runs), "round {round}");
            let (from, to) = bits.around(first, end);
            assert!(plain[from..first].iter().chain(&plain[end..to]).all(|&on| on), "round {round}");
            assert!((from == 0 || !plain[from - 1]) && (to == 200 || !plain[to]), "round {round}");
        }
    }

    /// Closes as many pages against writes as the bound allows. Then opens every second page, which is the worst order.
    /// The number of mappings must stay within the bound.
    #[test]
    fn pages_closed_to_writes_stay_within_their_mappings() {
        let guards = Guards::new(4096 * 4096, 4096, 100);
        let mut guards = guards.lock();
        let mut next = 0;
        while guards.has_room(1) {
            guards.read_only.set(next, next + 1, true);
            next += 1;
        }
        assert!((90..=100).contains(&guards.read_only.count));
        for at in (1..next).step_by(2) {
            guards.read_only.set(at, at + 1, false);
            assert!(2 * guards.read_only.runs <= 101, "each run has two borders");
        }
    }

    const PAGES: usize = 2048;

    /// Makes a view in sigsegv mode with guards. Returns `None` if the kernel does not support guards.
    fn view(mappings: usize) -> Option<LiveView> {
        use super::super::{Abilities, Mechanism, Protection, Sizes};
        use crate::span::OS_PAGE;
        use hanare_sys::features::{Disabled, Features};
        if !Features::probe(&Disabled::default()).guards {
            return None;
        }
        let sizes = Sizes {
            place: None,
            reserve: PAGES * OS_PAGE,
            unit: OS_PAGE,
            block: OS_PAGE,
            small_frames: 0,
            wide_frames: 0,
            aside_units: 0,
        };
        let mechanism = Mechanism::Protection(Protection::Guards { mappings });
        Some(LiveView::new(mechanism, sizes, Abilities::NONE).expect("a view"))
    }

    fn span(page: usize, pages: usize) -> Span {
        Span { offset: page * 4096, len: pages * 4096 }
    }

    /// Fills a page with `byte` and maps it into the view. Returns false if the page should be write-protected but is
    /// open for writing.
    fn fill(view: &LiveView, page: usize, byte: u8, writable: bool) -> bool {
        let bytes = [byte; 4096];
        // SAFETY: the page is absent, and only this test uses it. `bytes` has the size of a page.
        unsafe { view.copy_in(span(page, 1), bytes.as_ptr(), writable) }
    }

    /// Reads the first byte of a page through the kernel (process_vm_readv). Returns `None` if the page is not
    /// readable.
    fn seen(view: &LiveView, page: usize) -> Option<u8> {
        let mut byte = 0_u8;
        transfer(libc::SYS_process_vm_readv, view, page, &mut byte).then_some(byte)
    }

    /// Writes the first byte of a page through the kernel (process_vm_writev). Returns false if the page is not
    /// writable.
    fn write(view: &LiveView, page: usize, mut byte: u8) -> bool {
        transfer(libc::SYS_process_vm_writev, view, page, &mut byte)
    }

    fn transfer(call: libc::c_long, view: &LiveView, page: usize, byte: &mut u8) -> bool {
        let here = [std::ptr::from_mut(byte) as usize, 1];
        let there = [view.base() + page * 4096, 1];
        let own = std::process::id() as usize;
        let args = [own, here.as_ptr() as usize, 1, there.as_ptr() as usize, 1, 0];
        // SAFETY: `here` names one byte on the stack, and `there` one byte of a page that belongs to the test.
        let moved = unsafe { hanare_sys::syscall(call, args) };
        moved == Ok(1)
    }

    /// Counts the kernel's mappings of the view.
    fn mappings(view: &LiveView) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings");
        let start = |line: &str| usize::from_str_radix(line.split('-').next()?, 16).ok();
        let range = view.base()..view.base() + PAGES * 4096;
        maps.lines().filter_map(start).filter(|at| range.contains(at)).count()
    }

    #[test]
    fn pages_come_and_go_without_mappings_of_their_own_and_nobody_sees_zeroes_for_them() {
        let Some(view) = view(0) else { return };
        for page in (1..PAGES).step_by(2) {
            assert!(!fill(&view, page, 7, false), "nothing tells of a write to it");
        }
        assert!(mappings(&view) <= 2, "{}", mappings(&view));
        for page in (1..PAGES).step_by(2) {
            assert_eq!((seen(&view, page), seen(&view, page - 1)), (Some(7), None));
        }
        assert!(write(&view, 5, 9));
        view.write_protect(span(5, 1));
        assert_eq!((seen(&view, 5), write(&view, 5, 3)), (None, false));
        // SAFETY: the address is in the second mapping, where the page's bytes can always be read.
        assert_eq!(unsafe { view.protected_bytes(span(5, 1)).expect("in place").read() }, 9, "no write was lost");
        assert!(view.show(span(5, 1), true));
        assert_eq!(seen(&view, 5), Some(9));
        view.drop_together(&mut std::iter::once(span(5, 1)));
        assert_eq!(seen(&view, 5), None);
        assert!(fill(&view, 5, 0, true));
        assert_eq!(seen(&view, 5), Some(0), "its old bytes are gone");
    }

    #[test]
    fn clean_pages_are_closed_to_writes_as_far_as_there_are_mappings() {
        let Some(view) = view(64) else { return };
        let certain = (0..200).step_by(2).filter(|&page| fill(&view, page, 1, false)).count();
        assert!((20..=32).contains(&certain), "{certain}");
        assert!(mappings(&view) <= 66, "{}", mappings(&view));
        assert!(!write(&view, 0, 2) && write(&view, 198, 2));
        view.open(span(0, 1));
        assert!(write(&view, 0, 2));
        // A page that was taken out of view and shown again is still closed against writes. This needs no new mapping.
        view.write_protect(span(2, 1));
        assert!(view.show(span(2, 1), false) && !write(&view, 2, 2) && seen(&view, 2) == Some(1));
        view.write_protect(span(2, 1));
        assert!(view.show(span(2, 1), true) && write(&view, 2, 2));
    }

    #[test]
    fn the_access_of_the_program_holds_for_pages_in_view_and_for_those_that_come() {
        let Some(view) = view(64) else { return };
        assert!(fill(&view, 0, 1, false) && fill(&view, 1, 1, true));
        view.restrict(span(0, 600), libc::PROT_READ).expect("granted");
        assert!(!write(&view, 0, 2) && !write(&view, 1, 2) && seen(&view, 1) == Some(1));
        // Page 599 lies in the second extent, which was closed so far.
        assert!(fill(&view, 599, 1, true) && seen(&view, 599) == Some(1) && !write(&view, 599, 2));
        view.restrict(span(0, 600), libc::PROT_NONE).expect("granted");
        assert_eq!((seen(&view, 1), seen(&view, 599)), (None, None));
        view.restrict(span(0, 600), libc::PROT_READ | libc::PROT_WRITE).expect("granted");
        assert!(!write(&view, 0, 2), "a clean page stays closed to writes");
        assert!(write(&view, 1, 2) && write(&view, 599, 2));
        assert_eq!(seen(&view, 2), None, "an absent page traps still");
    }

    /// If no mappings are left, a page is opened for writing together with its neighbours that are closed against
    /// writes. The test checks that the neighbours trap again. None of them may become writable before the pager sees
    /// the trap.
    #[test]
    fn without_mappings_left_the_neighbours_are_opened_under_guards() {
        let Some(view) = view(64) else { return };
        for page in 0..8 {
            assert!(fill(&view, page, page as u8, false));
        }
        let LiveView::Doubled(doubled) = &view else { panic!("a view in sigsegv mode") };
        let mut guards = doubled.guards().expect("guards");
        doubled.let_write_around(&mut guards, span(4, 1));
        drop(guards);
        assert!((0..8).all(|page| seen(&view, page).is_none() && !write(&view, page, 9)));
        assert!(!view.show_again(span(3, 1), false), "it would be open for writing");
        assert_eq!(seen(&view, 3), None);
        assert!(view.show_again(span(4, 1), true) && write(&view, 4, 9) && seen(&view, 5).is_none());
    }

    #[test]
    fn a_window_traps_like_what_it_shows() {
        let Some(view) = view(64) else { return };
        assert!(fill(&view, 0, 1, true), "opens the extent");
        let place = hanare_sys::map::Mapping::reserve(4 * 4096, 4096).expect("a place").leak();
        // SAFETY: the test has just reserved the 4 pages at `place`, and nothing else uses them.
        unsafe { view.add_window(place, span(8, 4)) }.expect("a window");
        let there = |page: usize| {
            let mut byte = 0_u8;
            let (here, there) = ([std::ptr::from_mut(&mut byte) as usize, 1], [place + page * 4096, 1]);
            let args = [std::process::id() as usize, here.as_ptr() as usize, 1, there.as_ptr() as usize, 1, 0];
            // SAFETY: `here` names one byte on the stack, and `there` one byte of a page that belongs to the test.
            unsafe { hanare_sys::syscall(libc::SYS_process_vm_readv, args) }.ok().map(|_| byte)
        };
        assert!((0..4).all(|page| there(page).is_none()));
        assert!(fill(&view, 9, 5, true));
        assert_eq!((there(0), there(1), seen(&view, 9)), (None, Some(5), None));
    }
}
