//! Slots of a private memory server on this host: a page is a copy away, with no request.
#![allow(unsafe_code, reason = "memory that is only borrowed from the program")]

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::AtomicU32;

use hanare_paging::PageId;
use hanare_store::{Begun, Read, Slots, SlotsError, Store, Take, Turn, Write};
use hanare_sys::clock::now_ns;
use hanare_sys::copy;
use hanare_sys::map::Mapping;
use hanare_wire::Attachment;

use super::{AwayError, PAGE};
use crate::coherence::Run;

/// Time between two looks after slots that nobody needs, in nanoseconds.
const UPKEEP_NS: u64 = 1_000_000_000;

/// Rung when few free slots are left; the next write asks for more by itself.
static NOBODY_WAITS: AtomicU32 = AtomicU32::new(0);

pub(in crate::live) struct InSlots {
    slots: Slots,
    /// Room for a slot on its way to the spill file.
    spare: Mapping,
    looked_ns: u64,
}

/// Takes a page at one address.
struct At(*mut u8);

impl Take for At {
    fn place(&mut self, _: &Read) -> Option<*mut u8> {
        Some(self.0)
    }

    fn placed(&mut self, _: &Read) {}

    unsafe fn part(&mut self, _: &Read, _: usize, _: *const u8, _: usize) {}

    fn arrived(&mut self, _: &Read) {}

    fn spare(&mut self) -> *mut u8 {
        self.0
    }
}

impl InSlots {
    pub(super) fn open(socket: &Path, pages: u32) -> Result<Self, AwayError> {
        let attachment = Attachment::open(socket, PAGE as u32).map_err(SlotsError::Link)?;
        let slots = Slots::new(attachment, pages, PAGE, &NOBODY_WAITS)?;
        Ok(Self { slots, spare: Mapping::anonymous(PAGE)?, looked_ns: now_ns() })
    }

    pub(super) fn holds(&self, page: u32) -> bool {
        self.slots.holds(page)
    }

    /// # Safety
    /// As for [`super::Away::write`].
    pub(super) unsafe fn write(&mut self, run: Run, from: *const u8) -> Result<(), AwayError> {
        for (index, page) in run.pages().enumerate() {
            let from = from.wrapping_add(index * PAGE);
            let spare = std::ptr::with_exposed_provenance_mut(self.spare.addr());
            let (page, bytes) = (PageId(page), PAGE as u32);
            let write = Write { page, bytes, frame: None, at: Some(from), may_be_same: false, spare };
            // SAFETY: the run's bytes lie there and nobody writes to them, as the caller promises; `to` has room for a page.
            unsafe { self.slots.write(&write, &mut |to| copy::copy(from, to, PAGE)) }?;
        }
        Ok(())
    }

    /// # Safety
    /// As for [`super::Away::read`].
    pub(super) unsafe fn read(&mut self, pages: &[u32], place: impl Fn(u32) -> *mut u8) -> Result<(), AwayError> {
        for &page in pages {
            let read = Read { page: PageId(page), count: 1, bytes: PAGE as u32, frame: None, writable: 0 };
            let begun = self.slots.read(&read, &mut At(place(page)))?;
            debug_assert_eq!(begun, Begun::Done, "slots are copied at once");
        }
        Ok(())
    }

    pub(super) fn forget(&mut self, run: Run) -> Result<(), AwayError> {
        self.slots.release(run.first, run.count);
        if now_ns().saturating_sub(self.looked_ns) > UPKEEP_NS {
            self.look()?;
        }
        Ok(())
    }

    pub(super) fn link(&self) -> BorrowedFd<'_> {
        self.slots.link()
    }

    /// Finds that the server has ended, and lets other ranks have slots that are not needed here.
    pub(super) fn look(&mut self) -> Result<(), AwayError> {
        self.looked_ns = now_ns();
        self.slots.poll(Turn::Upkeep, &mut At(std::ptr::null_mut()))?;
        Ok(())
    }
}
