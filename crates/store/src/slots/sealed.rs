//! Sealed pages in slots. A page is sealed before it reaches its slot, so neither the private server's memory nor its
//! spill file has the page's bytes. The bytes are sealed in the caller's spare memory, and opened where they are wanted.

use hanare_sys::copy;

use super::Slots;
use crate::guard::{Damaged, KeySpent};
use crate::{Begun, Read, StoreError, Take};

impl Slots {
    /// Reads a held range of sealed pages.
    pub(super) fn read_sealed(&self, read: &Read, take: &mut dyn Take) -> Result<Begun, StoreError<'_>> {
        let (unit, len) = (read.page.0, read.bytes as usize);
        let place = take.place(read);
        let to = place.unwrap_or_else(|| take.spare());
        // SAFETY: `to` has room for all bytes of the read, and no other code uses this memory.
        unsafe { self.copy_to(unit, len, to)? };
        // SAFETY: as above. The copy has initialized the bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(to, len) };
        self.guard.open(unit, bytes).map_err(|Damaged { unit }| StoreError::Damaged {
            server: "the private memory server",
            page: unit,
            read: *read,
        })?;
        match place {
            Some(_) => take.placed(read),
            // SAFETY: the bytes are in the spare memory, which only the taker uses.
            None => unsafe { take.part(read, 0, to, len) },
        }
        Ok(Begun::Done)
    }

    /// Writes a page into its slot, sealed. `place` is the page's address in its slot, or its position in the spill
    /// file. `fill` writes the page's bytes to `bounce`.
    pub(super) fn fill_sealed(
        &self,
        unit: u32,
        len: usize,
        place: Result<*const u8, u64>,
        bounce: *mut u8,
        fill: &mut dyn FnMut(*mut u8),
    ) -> Result<(), StoreError<'_>> {
        fill(bounce);
        // SAFETY: `bounce` has room for a page, only this call uses it, and `fill` has just written `len` bytes to it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(bounce, len) };
        self.guard.seal(unit, bytes).map_err(|KeySpent| StoreError::SealSpent)?;
        match place {
            // SAFETY: the page's part of its slot has `len` bytes, and no other thread accesses it during the write.
            Ok(address) => unsafe { copy::copy(bounce, address.cast_mut(), len) },
            Err(position) => self.write_spill(position, bytes)?,
        }
        Ok(())
    }
}
