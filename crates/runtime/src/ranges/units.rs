//! Discards a range of bytes. Units that lie completely in the range are discarded. The bytes at the edges of the
//! range, in other units, are zeroed in place.

use hanare_sys::copy;
use hanare_sys::map::Prot;
use hanare_sys::signal::SignalMask;

use crate::process::State;
use crate::span::{OS_PAGE, Span};

impl State {
    /// Returns a size rounded up to whole units. `None` for more bytes than an object may have.
    pub(super) fn whole(&self, len: usize) -> Option<usize> {
        len.max(1).checked_next_multiple_of(self.granularity).filter(|&len| len <= isize::MAX as usize)
    }

    /// Returns the start and the end of the whole units inside a byte range, as offsets in bytes. If the range contains
    /// no whole unit, the start is not below the end.
    fn whole_units(&self, offset: usize, len: usize) -> (usize, usize) {
        let unit = self.granularity;
        (offset.next_multiple_of(unit), (offset + len) / unit * unit)
    }

    /// Returns the first whole unit inside a byte range, and the one past the last. If the range contains no whole unit,
    /// the first is not below the other.
    pub(super) fn inner_units_of(&self, offset: usize, len: usize) -> (u32, u32) {
        let (first, end) = self.whole_units(offset, len);
        ((first / self.granularity) as u32, (end / self.granularity) as u32)
    }

    pub(crate) fn discard_whole(&self, offset: usize, len: usize) {
        let (first, end) = self.inner_units_of(offset, len);
        if first < end {
            self.engine.discard(first, end);
        }
    }

    /// Discards the whole units inside a freed range, and restores read and write access to the range.
    pub(super) fn forget_whole(&self, offset: usize, len: usize) {
        self.discard_whole(offset, len);
        self.forget_locks(offset, len);
        self.engine.view().unrestrict(Span { offset, len });
    }

    /// Extends a range that is about to be freed to the borders of its first and its last unit, where the rest of such a
    /// unit is free already. Otherwise a unit that is freed in parts would never be discarded. The free rest is allocated,
    /// so that no other thread gets it before the whole is freed.
    pub(super) fn with_free_rests(&self, offset: usize, len: usize) -> (usize, usize) {
        let (unit, end) = (self.granularity, offset + len);
        let (low, high) = (offset / unit * unit, end.next_multiple_of(unit));
        let mut extents = self.extents.lock();
        let is_free =
            |from: usize, to: usize| extents.free_bytes_in(from as u64, (to - from) as u64) == (to - from) as u64;
        let (mut is_first, mut is_last) = (is_free(low, offset), is_free(end, high));
        if high - low <= unit {
            (is_first, is_last) = (is_first && is_last, is_first && is_last);
        }
        let (start, stop) = (if is_first { low } else { offset }, if is_last { high } else { end });
        extents.claim(start as u64, (stop - start) as u64);
        (start, stop - start)
    }

    /// Zeroes the bytes of a range that lie in units covered only partly. Writes to the program's view, so the calling
    /// thread may fault. The caller must not have blocked signals, because the fault may arrive as a signal.
    pub(super) fn zero_edges(&self, offset: usize, len: usize) {
        let (first, end) = self.whole_units(offset, len);
        let edges =
            if first > end { [(offset, len), (0, 0)] } else { [(offset, first - offset), (end, offset + len - end)] };
        for (offset, len) in edges {
            let touched = |state: &Self| {
                let _mask = SignalMask::block_all();
                !state.engine.is_untouched((offset / state.granularity) as u32)
            };
            if len > 0 && touched(self) {
                self.zero_pages(offset, len);
            }
        }
    }

    /// Zeroes whole pages of the operating system in place. If the program protected a page, makes the page writable
    /// meanwhile.
    fn zero_pages(&self, offset: usize, len: usize) {
        let view = self.engine.view();
        for offset in (offset..offset + len).step_by(OS_PAGE) {
            let page = Span { offset, len: OS_PAGE };
            let left = view.access(offset);
            if left != Prot::READ_WRITE {
                view.set_access(page, Prot::READ_WRITE);
            }
            // SAFETY: the caller owns this far memory and does not need its bytes. The page is writable now.
            view.windows().runs(page, |addr, part| unsafe { copy::zero(addr as *mut u8, part.len) });
            if left != Prot::READ_WRITE {
                view.set_access(page, left);
            }
        }
    }

    /// Makes a range available to new allocations. Leaves out foreign mappings in the range, because they belong to the
    /// program.
    pub(super) fn give_back(&self, offset: usize, len: usize) {
        let windows = self.engine.view().windows();
        windows.runs(Span { offset, len }, |_, part| {
            self.extents.lock().release(part.offset as u64, part.len as u64);
        });
    }
}
