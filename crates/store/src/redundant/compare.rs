//! Compares a page with what its servers hold, without a request.

use hanare_paging::PageId;

use super::{Member, Redundant};

impl Redundant {
    /// Checks whether these `len` bytes of a page are those that the servers of its data parts hold. The notes about what
    /// was sent to these servers tell. No lock is held during the comparison. If a server is lost meanwhile, its notes
    /// still say what the others hold.
    ///
    /// # Safety
    /// The store holds the page, and no write or release of the page is in progress. There are `len` readable bytes at
    /// `here`, which do not change during the call.
    pub(super) unsafe fn has_sent(&self, page: PageId, here: *const u8, len: usize) -> bool {
        let (unit_bytes, part_bytes) = (self.measures.shape.unit_bytes, self.measures.part_bytes);
        let units = len / unit_bytes;
        let Some(homes) = self.machine.lock().data_homes(page.0, units as u32) else { return false };
        let has_part = |unit: usize, part: usize| {
            let (unit_page, at) =
                (PageId(page.0 + unit as u32), here.wrapping_add(unit * unit_bytes + part * part_bytes));
            // SAFETY: the part lies in the page at `here`, which does not change.
            let bytes = unsafe { std::slice::from_raw_parts(at, part_bytes) };
            Member::there(&self.members[homes[part]]).is_some_and(|remote| remote.has_sent(unit_page, bytes))
        };
        (0..units).all(|unit| (0..self.measures.data()).all(|part| has_part(unit, part)))
    }
}
