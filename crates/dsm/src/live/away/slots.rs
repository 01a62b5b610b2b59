//! Slots of a private memory server on this host: in a memfd that this rank maps, past its limit in a spill file. A page is
//! a copy away, with no request; only for more slots is the server asked.
#![allow(unsafe_code, reason = "memory that is only borrowed from the program")]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use hanare_sys::copy;
use hanare_sys::map::{self, Advice, Mapping};
use hanare_wire::{Attachment, LinkError, Place};

use super::{AwayError, PAGE};
use crate::coherence::Run;

/// Slots asked for at a time: as many as were granted before, within these bounds.
const GRANT_MIN: u32 = 256;
const GRANT_MAX: u32 = 16 << 10;
/// Free slots beyond which the server gets some back, and how many at most at a time.
const IDLE_MAX: usize = 32 << 10;
/// Set in a slot number that lies in the spill file.
const SPILLED: u32 = 1 << 31;

pub(in crate::live) struct Slots {
    attachment: Attachment,
    slots: Mapping,
    spill: Option<File>,
    /// Of each page: its slot plus one; 0 is none.
    slot_of: Vec<u32>,
    free: Vec<u32>,
    granted: u32,
}

fn lost(source: LinkError) -> AwayError {
    AwayError::Lost { server: "private memory server".to_owned(), source }
}

impl Slots {
    pub(super) fn open(socket: &Path, pages: u32) -> Result<Self, AwayError> {
        let attachment = Attachment::open(socket, PAGE as u32).map_err(lost)?;
        let len = (attachment.capacity_bytes as usize).next_multiple_of(2 << 20) + (2 << 20);
        let slots = Mapping::shared(attachment.memfd.as_fd(), 0, len)?;
        for advice in [Advice::DontFork, Advice::DontDump] {
            // Ignored: merely larger without are a forked child, which uses none of it, and a core file.
            // SAFETY: our own fresh mapping; the advice changes no contents.
            let _ = unsafe { map::advise(slots.addr(), len, advice) };
        }
        let spill = attachment.spill.as_ref().map(|fd| fd.try_clone().map(File::from)).transpose();
        let spill = spill.map_err(|source| AwayError::Spill { what: "kept open", source })?;
        Ok(Self { attachment, slots, spill, slot_of: vec![0; pages as usize], free: Vec::new(), granted: 0 })
    }

    pub(super) fn holds(&self, page: u32) -> bool {
        self.slot_of[page as usize] != 0
    }

    /// Where a slot's bytes lie: an address, or a position in the spill file.
    fn place(&self, slot: u32) -> Result<*mut u8, u64> {
        let position = (slot & !SPILLED) as usize * PAGE;
        if slot & SPILLED != 0 {
            return Err(position as u64);
        }
        assert!(position + PAGE <= self.slots.len(), "a slot that was granted");
        Ok(std::ptr::with_exposed_provenance_mut(self.slots.addr() + position))
    }

    /// # Safety
    /// As for [`super::Away::write`].
    pub(super) unsafe fn write(&mut self, run: Run, from: *const u8) -> Result<(), AwayError> {
        for (index, page) in run.pages().enumerate() {
            let slot = match self.slot_of[page as usize] {
                0 => self.take_slot()?,
                slot => slot - 1,
            };
            self.slot_of[page as usize] = slot + 1;
            // SAFETY: the run's bytes lie there, as the caller promises.
            let from = unsafe { from.add(index * PAGE) };
            match self.place(slot) {
                // SAFETY: a page of the caller's, and a slot of this session's.
                Ok(to) => unsafe { copy::copy(from, to, PAGE) },
                Err(position) => {
                    // SAFETY: nobody writes to it meanwhile, as the caller promises.
                    let bytes = unsafe { std::slice::from_raw_parts(from, PAGE) };
                    let written = self.spill().write_all_at(bytes, position);
                    written.map_err(|source| AwayError::Spill { what: "written", source })?;
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for [`super::Away::read`].
    pub(super) unsafe fn read(&mut self, pages: &[u32], place: impl Fn(u32) -> *mut u8) -> Result<(), AwayError> {
        for &page in pages {
            let to = place(page);
            match self.place(self.slot_of[page as usize].saturating_sub(1)) {
                // SAFETY: a slot of this session's, and a page of the caller's.
                Ok(from) => unsafe { copy::copy(from, to, PAGE) },
                Err(position) => {
                    // SAFETY: nobody else touches it meanwhile, as the caller promises.
                    let bytes = unsafe { std::slice::from_raw_parts_mut(to, PAGE) };
                    let read = self.spill().read_exact_at(bytes, position);
                    read.map_err(|source| AwayError::Spill { what: "read", source })?;
                }
            }
        }
        Ok(())
    }

    /// Only slots of a spill file that came with the session are granted in it.
    fn spill(&self) -> &File {
        self.spill.as_ref().expect("a spilled slot has a spill file")
    }

    pub(super) fn forget(&mut self, run: Run) {
        for page in run.pages() {
            if let Some(slot) = std::mem::take(&mut self.slot_of[page as usize]).checked_sub(1) {
                self.free.push(slot);
            }
        }
        while self.free.len() > IDLE_MAX {
            self.give_back();
        }
    }

    fn take_slot(&mut self) -> Result<u32, AwayError> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        let wanted = self.granted.clamp(GRANT_MIN, GRANT_MAX);
        let runs = self.attachment.grant(wanted).map_err(|error| match error {
            LinkError::Full | LinkError::OverQuota => AwayError::PrivateFull,
            error => lost(error),
        })?;
        for run in runs.iter().rev() {
            let spilled = if run.place == Place::Spill { SPILLED } else { 0 };
            self.free.extend((run.first_slot..run.first_slot + run.count).rev().map(|slot| slot | spilled));
            self.granted += run.count;
        }
        self.free.pop().ok_or(AwayError::PrivateFull)
    }

    /// Lets other ranks have half of the free slots.
    fn give_back(&mut self) {
        let mut slots: Vec<u32> = self.free.drain(..IDLE_MAX / 2).collect();
        slots.sort_unstable();
        for run in slots.chunk_by(|a, b| a + 1 == *b) {
            let place = if run[0] & SPILLED != 0 { Place::Spill } else { Place::Memory };
            // A link that failed is found out about where its pages are wanted.
            if self.attachment.give_back(run[0] & !SPILLED, run.len() as u32, place).is_ok() {
                self.granted -= run.len() as u32;
            }
        }
    }

    pub(super) fn link(&self) -> BorrowedFd<'_> {
        self.attachment.as_fd()
    }

    pub(super) fn look(&self) -> Result<(), AwayError> {
        if self.attachment.is_alive() { Ok(()) } else { Err(AwayError::Gone) }
    }
}
