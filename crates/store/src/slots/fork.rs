//! Slots at a fork: the slots that two processes share, and the slots that a process gives back.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use hanare_sys::copy;
use hanare_wire::{Attachment, Grant, LinkError, Place};

use super::{SPILLED, Slots, SlotsError};
use crate::StoreError;

impl Slots {
    /// Opens a link to the same slots for a child that is about to be forked. From now on, these slots are only read.
    /// No read or write may be in progress.
    pub(crate) fn share(&self) -> Result<Attachment, LinkError> {
        let attachment = self.control.lock().open_clone()?;
        let table = &mut *self.table.lock();
        table.shared.add_all(&table.slot_of[..table.top]);
        Ok(attachment)
    }

    /// Returns the door, the descriptor that opens further links to the server, and drops the rest of the store.
    pub(crate) fn into_door(self) -> OwnedFd {
        self.control.into_inner().door
    }

    /// Makes the child's store, with the same table, on the child's own link.
    pub(crate) fn again(self, attachment: Attachment) -> Result<Self, SlotsError> {
        let mut table = self.table.into_inner();
        // The parent keeps the slots that were granted ahead of need.
        for slot in table.free.drain(..) {
            table.shared.let_go(slot);
        }
        let guard = self.guard.again()?;
        let again = Self::with(attachment, guard, table, self.wait_word)?;
        again.granted_slots.store(self.granted_slots.into_inner(), Relaxed);
        Ok(again)
    }

    /// Replaces the shared slot of a unit's extent by a slot that only this process uses. If `whole` is true, the
    /// caller is about to write all bytes of the slot. Otherwise copies the shared slot's bytes.
    #[cold]
    pub(super) fn unshare(&self, unit: u32, whole: bool, bounce: *mut u8) -> Result<(), StoreError<'_>> {
        let _alone = self.unsharing.lock();
        let (extent, old, new) = loop {
            {
                let mut table = self.table.lock();
                let extent = unit / table.held.extent_units;
                if !table.shared.has(extent) {
                    return Ok(());
                }
                if let Some(new) = table.free.pop() {
                    self.note_free(&table);
                    break (extent, table.slot_of[extent as usize] - 1, new);
                }
            }
            self.grant()?;
        };
        if !whole {
            self.copy_slot(extent, old, new, bounce)?;
        }
        let mut table = self.table.lock();
        // The caller has marked the unit as held, so the extent still has its slot.
        table.slot_of[extent as usize] = new + 1;
        table.shared.take(extent);
        table.shared.let_go(old);
        Ok(())
    }

    /// Copies the slot of an extent.
    fn copy_slot(&self, extent: u32, old: u32, new: u32, bounce: *mut u8) -> Result<(), StoreError<'_>> {
        let from = match self.place(old, 0) {
            Ok(address) => address,
            Err(position) => {
                self.read_spill(position, bounce, self.slot_bytes)?;
                bounce.cast_const()
            }
        };
        match self.place(new, 0) {
            // SAFETY: `from` is the old slot, to which nobody writes, or `bounce`, which now contains the old slot's
            // bytes. `to` is the new slot, which no table contains yet. Each has `slot_bytes` bytes.
            Ok(to) => unsafe { copy::copy(from, to.cast_mut(), self.slot_bytes) },
            Err(position) => {
                // SAFETY: `from` is the old slot, to which nobody writes, or `bounce`, which now contains the old
                // slot's bytes. Both have `slot_bytes` bytes.
                let bytes = unsafe { std::slice::from_raw_parts(from, self.slot_bytes) };
                if !self.guard.seals() {
                    // No thread reads the notes before the table has the new slot, because the old one was in memory or
                    // its notes are the same.
                    self.guard.note(extent * (self.slot_bytes / self.unit_bytes) as u32, bytes);
                }
                self.write_spill(position, bytes)?;
            }
        }
        Ok(())
    }

    /// Gives back slots that this process no longer uses but another process may use. Returns true if there were any.
    pub(super) fn return_slots(&self) -> bool {
        let mut runs = [Grant { place: Place::Memory, first_slot: 0, count: 0 }; hanare_wire::limits::GRANT_RUNS_MAX];
        let mut control = self.control.lock();
        let count = {
            let mut table = self.table.lock();
            // Slots are given back only while no thread reads. A thread that began to read before a slot was released
            // may still be reading the slot. Later readers do not find the slot in the table.
            if self.readers.load(SeqCst) > 0 { 0 } else { table.shared.take_runs(&mut runs, SPILLED) }
        };
        // A failed link is not reported here. The next poll with `Turn::Upkeep` notices it.
        if count == 0 || control.give_back_runs(&runs[..count]).is_err() {
            return false;
        }
        self.granted_slots.fetch_sub(runs[..count].iter().map(|run| run.count).sum(), Relaxed);
        self.note_room(&control);
        true
    }
}
