//! Discards a range of bytes. Units inside the range are discarded whole; units at its edges are zeroed in place.

use hanare_sys::copy;
use hanare_sys::map::Prot;
use hanare_sys::signal::SignalMask;

use crate::process::State;
use crate::span::{OS_PAGE, Span};

impl State {
    /// The whole units inside a byte range.
    fn whole_units(&self, offset: usize, len: usize) -> (usize, usize) {
        let unit = self.granularity;
        (offset.next_multiple_of(unit), (offset + len) / unit * unit)
    }

    pub(crate) fn discard_whole(&self, offset: usize, len: usize) {
        let (first, end) = self.whole_units(offset, len);
        if first < end {
            self.engine.discard((first / self.granularity) as u32, (end / self.granularity) as u32);
        }
    }

    /// Discards whole units and restores the usual access of freed memory.
    pub(super) fn forget_whole(&self, offset: usize, len: usize) {
        self.discard_whole(offset, len);
        self.engine.view().unrestrict(Span { offset, len });
    }

    /// Zeroes the parts of units that a range covers only partly, through the program's view. Signals must not be
    /// blocked: this faults as the program would.
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

    /// Zeroes pages of the operating system in place, whatever access the program left to them.
    fn zero_pages(&self, offset: usize, len: usize) {
        let view = self.engine.view();
        for offset in (offset..offset + len).step_by(OS_PAGE) {
            let page = Span { offset, len: OS_PAGE };
            let left = view.access(offset);
            if left != Prot::READ_WRITE {
                view.set_access(page, Prot::READ_WRITE);
            }
            // SAFETY: far memory of the caller, which gives these bytes up.
            view.windows().runs(page, |addr, part| unsafe { copy::zero(addr as *mut u8, part.len) });
            if left != Prot::READ_WRITE {
                view.set_access(page, left);
            }
        }
    }

    /// Frees a range for new allocations, except for foreign mappings in it, which no longer belong to Hanare.
    pub(super) fn give_back(&self, offset: usize, len: usize) {
        let windows = self.engine.view().windows();
        windows.runs(Span { offset, len }, |_, part| {
            self.extents.lock().release(part.offset as u64, part.len as u64);
        });
    }
}
