//! A store in slots of the private server. The slots are in a memfd, and beyond the memfd's limit in a spill file. This
//! process maps the memfd and copies the slots itself.
//!
//! Because this process copies the slots itself, a fault sends no request to the server and wakes no thread. The server
//! grants slots in runs ahead of need ([`Turn::Upkeep`]). A write itself asks for slots only if none is free.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use hanare_sys::clock::now_ns;
use hanare_sys::futex::{self, LockCell};
use hanare_sys::map::{self, Advice, MapError, Mapping};
use hanare_sys::{again, copy, descriptors};
use hanare_wire::{Attachment, Grant, LinkError, Place};

use crate::guard::Guard;
use crate::held::Held;
use crate::{Ask, Begun, GuardError, Polled, Read, Room, Saved, Shape, Store, StoreError, Take, Turn, Words, Write};
use shared::Shared;

mod fork;
mod sealed;
mod shared;

/// The minimum number of bytes of slots in one request, while the server has much free space. A request doubles what
/// was granted so far. It asks for at most [`GRANT_BYTES_MAX`].
const GRANT_BYTES_MIN: usize = 4 << 20;
/// The maximum number of bytes of slots in one request.
const GRANT_BYTES_MAX: usize = 64 << 20;
/// The part of the server's free space, as a divisor, that is asked for at most at once. Slots that one process has been
/// granted ahead of need are of no use to the others of its run.
const GRANT_PART: u64 = 16;
/// The bit in a slot number which says that the slot is in the spill file.
const SPILLED: u32 = 1 << 31;
/// The time in nanoseconds for which slots must stay free before some are given back to the server. Slots that coming
/// write-backs will need are kept.
const IDLE_NS: u64 = 2_000_000_000;
/// The maximum number of bytes of idle slots that are given back at once.
const IDLE_BYTES_MAX: usize = 64 << 20;
/// The maximum number of runs of idle slots that are given back at once.
const IDLE_RUNS_MAX: usize = 64;

/// The reasons why the private server's slots cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SlotsError {
    /// The link to the private server failed.
    #[error("private memory server: {0}")]
    Link(#[from] LinkError),
    /// The slots cannot be mapped.
    #[error("cannot map the private memory server's slots: {0}; raise the limit on address space")]
    Map(#[from] MapError),
    /// The pages cannot be sealed.
    #[error(transparent)]
    Guard(#[from] GuardError),
}

/// The store in slots of the private server on this host.
pub struct Slots {
    unit_bytes: usize,
    slot_bytes: usize,
    /// The address of the slots in memory, which are adjacent.
    slots: usize,
    /// The number of bytes that are mapped there.
    mapped_bytes: usize,
    spill: Option<File>,
    /// Seals the pages, or keeps checksums of the pages in the spill file.
    guard: Guard,
    table: LockCell<Table>,
    control: LockCell<Attachment>,
    link_fd: RawFd,
    free_slots: AtomicU32,
    granted_slots: AtomicU32,
    /// The number of bytes that the server could still grant at its last report.
    left_bytes: AtomicU64,
    /// The time of the server's last report, in nanoseconds on CLOCK_MONOTONIC.
    left_known_ns: AtomicU64,
    /// The smallest number of free slots since `idle_since_ns`.
    idle_slots: AtomicU32,
    idle_since_ns: AtomicU64,
    /// A futex word. When few free slots are left, a thread increments the word, and wakes one thread that waits on it.
    wait_word: &'static AtomicU32,
    /// The number of threads that read slots at this moment.
    readers: AtomicU32,
    /// A thread holds this lock while it replaces a shared slot by a slot that only this process uses.
    unsharing: LockCell<()>,
}

/// The slots of the extents, and the free slots. An extent is the range of units (base pages) that one slot holds. In
/// `slot_of`, a slot is its number plus one, and 0 means that the extent has no slot.
struct Table {
    slot_of: Vec<u32>,
    free: Vec<u32>,
    held: Held,
    unit_bytes: usize,
    shared: Shared,
    /// The number of the first extent after all extents that ever had a slot.
    top: usize,
}

impl Slots {
    /// Creates a store on a link to the private server. When few free slots are left, the store increments `wait_word`
    /// and wakes a thread that waits on it. That thread then polls with [`Turn::Upkeep`].
    ///
    /// # Errors
    /// The slots cannot be mapped, or there is no key to seal pages.
    pub fn new(attachment: Attachment, shape: &Shape, wait_word: &'static AtomicU32) -> Result<Self, SlotsError> {
        let Shape { units, unit_bytes, .. } = *shape;
        let extent_units = attachment.slot_size / unit_bytes as u32;
        let extents = units.div_ceil(extent_units) as usize;
        let table = Table {
            slot_of: vec![0; extents],
            free: Vec::with_capacity(extents),
            held: Held::new(units, extent_units),
            unit_bytes,
            shared: Shared::new(extents),
            top: 0,
        };
        Self::with(attachment, Guard::new(units, unit_bytes, shape.guarding)?, table, wait_word)
    }

    fn with(
        attachment: Attachment,
        guard: Guard,
        table: Table,
        wait_word: &'static AtomicU32,
    ) -> Result<Self, SlotsError> {
        let slot_bytes = attachment.slot_size as usize;
        // The whole file: the session's capacity may be less, but its slots lie anywhere in the file.
        let len = (attachment.memory_bytes as usize).max(slot_bytes);
        let mapping = Mapping::shared(attachment.memfd.as_fd(), 0, len)?;
        for advice in [Advice::DontFork, Advice::DontDump] {
            // SAFETY: `mapping` is a new mapping of our own, and the advice changes no contents.
            let advised = again(|| unsafe { map::advise(mapping.addr(), len, advice) });
            advised.map_err(|errno| MapError::Reserve { len, errno })?;
        }
        Ok(Self {
            unit_bytes: table.unit_bytes,
            slot_bytes,
            guard,
            slots: mapping.leak(),
            mapped_bytes: len,
            spill: attachment
                .spill
                .as_ref()
                .map(|fd| fd.try_clone().map(|fd| File::from(descriptors::keep(fd))))
                .transpose()
                .map_err(|source| SlotsError::Link(LinkError::Io { what: "keeping the spill file open", source }))?,
            table: LockCell::new(table),
            left_bytes: AtomicU64::new(attachment.capacity_bytes),
            left_known_ns: AtomicU64::new(now_ns()),
            idle_slots: AtomicU32::new(0),
            idle_since_ns: AtomicU64::new(now_ns()),
            link_fd: attachment.as_fd().as_raw_fd(),
            control: LockCell::new(attachment),
            free_slots: AtomicU32::new(0),
            granted_slots: AtomicU32::new(0),
            wait_word,
            readers: AtomicU32::new(0),
            unsharing: LockCell::new(()),
        })
    }

    /// Returns the location of a held unit's bytes: an address, or a position in the spill file (as `Err`).
    fn locate(&self, unit: u32) -> Result<*const u8, u64> {
        let (slot, inside) = self.table.lock().slot(unit, self.slot_bytes);
        self.place(slot, inside)
    }

    /// Checks whether a unit is held.
    pub fn holds(&self, unit: u32) -> bool {
        self.table.lock().held.has(unit)
    }

    /// Checks whether a held page's bytes equal those at `here`. Returns false if this is not known.
    ///
    /// # Safety
    /// The page's `len` bytes must be at `here` and must not change meanwhile.
    unsafe fn is_as_held(&self, unit: u32, here: *const u8, len: usize) -> bool {
        let holds = || match self.locate(unit) {
            // SAFETY: `len` bytes can be read at both addresses. The slot belongs to the page, and no thread writes to
            // the slot.
            Ok(there) if !self.guard.seals() => unsafe { copy::equal(here, there, len) },
            // SAFETY: the caller promises `len` readable bytes at `here` that do not change during the call.
            Ok(_) | Err(_) => self.guard.fits(unit, unsafe { std::slice::from_raw_parts(here, len) }),
        };
        self.reading(holds)
    }

    /// Runs `read`. During this call, no slot that `read` finds in the table returns to the server.
    fn reading<T>(&self, read: impl FnOnce() -> T) -> T {
        self.readers.fetch_add(1, SeqCst);
        let result = read();
        self.readers.fetch_sub(1, SeqCst);
        result
    }

    fn place(&self, slot: u32, inside: usize) -> Result<*const u8, u64> {
        let position = (slot & !SPILLED) as usize * self.slot_bytes + inside;
        if slot & SPILLED != 0 {
            return Err(position as u64);
        }
        Ok((self.slots + position) as *const u8)
    }

    /// Calls `visit` for each slot of a held range. Each call receives the piece's offset in the range, and the piece's
    /// location and length.
    fn pieces<'a>(
        &'a self,
        unit: u32,
        len: usize,
        mut visit: impl FnMut(usize, Result<*const u8, u64>, usize) -> Result<(), StoreError<'a>>,
    ) -> Result<(), StoreError<'a>> {
        let unit_bytes = self.unit_bytes;
        let per_slot = self.slot_bytes / unit_bytes;
        let mut done = 0;
        while done < len {
            let at = unit + (done / unit_bytes) as u32;
            let piece = ((per_slot - at as usize % per_slot) * unit_bytes).min(len - done);
            self.reading(|| visit(done, self.locate(at), piece))?;
            done += piece;
        }
        Ok(())
    }

    /// Copies a held range to an address.
    ///
    /// # Safety
    /// `to` must have `len` bytes that belong to the caller.
    unsafe fn copy_to(&self, unit: u32, len: usize, to: *mut u8) -> Result<(), StoreError<'_>> {
        self.pieces(unit, len, |done, place, piece| {
            // SAFETY: both pieces have `piece` bytes. The source is inside a slot of this session, and the target
            // belongs to the caller.
            unsafe {
                match place {
                    Ok(address) => copy::copy(address, to.add(done), piece),
                    Err(position) => return self.read_spill(position, to.add(done), piece),
                }
            }
            Ok(())
        })
    }

    fn read_spill(&self, position: u64, to: *mut u8, len: usize) -> Result<(), StoreError<'_>> {
        // SAFETY: the callers pass a buffer of their own with `len` bytes.
        let into = unsafe { std::slice::from_raw_parts_mut(to, len) };
        match self.spill.as_ref().map(|file| file.read_exact_at(into, position)) {
            Some(Ok(())) => Ok(()),
            _ => Err(StoreError::SpillRead),
        }
    }

    /// Writes a page into its slot. `fill` writes the bytes to the address that it receives.
    fn save(
        &self,
        unit: u32,
        len: usize,
        bounce: *mut u8,
        fill: &mut dyn FnMut(*mut u8),
    ) -> Result<(), StoreError<'_>> {
        let (slot, inside) = loop {
            let (found, is_shared) = {
                let mut table = self.table.lock();
                let found = table.slot_for_write(unit, self.slot_bytes);
                self.note_free(&table);
                let extent = unit / table.held.extent_units;
                // The units are marked as held before the write. Otherwise a release of the rest of the extent would
                // free the slot.
                table.held.mark(unit, (len / self.unit_bytes) as u32);
                (found, table.shared.has(extent))
            };
            if is_shared {
                self.unshare(unit, len == self.slot_bytes, bounce)?;
                continue;
            }
            if self.free_slots.load(Relaxed) + 1 == self.low() {
                self.wait_word.fetch_add(1, Release);
                futex::wake_one(self.wait_word);
            }
            match found {
                Some(found) => break found,
                None => self.grant()?,
            }
        };
        match self.place(slot, inside) {
            place if self.guard.seals() => self.fill_sealed(unit, len, place, bounce, fill)?,
            Ok(address) => fill(address.cast_mut()),
            Err(position) => {
                fill(bounce);
                // SAFETY: `bounce` has room for a page, and `fill` has just written `len` bytes to it.
                let bytes = unsafe { std::slice::from_raw_parts(bounce, len) };
                self.guard.note(unit, bytes);
                self.write_spill(position, bytes)?;
            }
        }
        Ok(())
    }

    fn write_spill(&self, position: u64, bytes: &[u8]) -> Result<(), StoreError<'_>> {
        match self.spill.as_ref().map(|file| file.write_all_at(bytes, position)) {
            Some(Ok(())) => Ok(()),
            _ => Err(StoreError::SpillWrite),
        }
    }

    /// Releases units. If no unit of a slot is left, the slot becomes free. A slot that was shared with a forked
    /// process is returned to the server instead.
    fn let_go(&self, unit: u32, count: u32) {
        let mut table = self.table.lock();
        for unit in unit..unit + count {
            if table.held.release(unit) {
                let extent = unit / table.held.extent_units;
                let slot = std::mem::take(&mut table.slot_of[extent as usize]) - 1;
                if table.shared.take(extent) {
                    table.shared.let_go(slot);
                } else {
                    table.free.push(slot);
                    self.note_free(&table);
                }
            }
        }
    }

    /// Takes the slots out of this process' page tables. Otherwise they would count as memory of this process as well as
    /// of the server.
    fn unmap(&self) {
        // SAFETY: the mapping is shared and belongs to this store for the life of the process. In a shared mapping the
        // advice changes no contents: they are in the memfd, from which the next access maps them again.
        let unmapped = unsafe { map::advise(self.slots, self.mapped_bytes, Advice::DontNeed) };
        // Ignored: where the program locks all its memory, the slots stay mapped, which is only a matter of counting.
        let _ = unmapped;
    }

    /// Returns the link to the server. The link becomes readable only when the server ends.
    pub fn link(&self) -> BorrowedFd<'_> {
        // SAFETY: the link stays open until this store is dropped.
        unsafe { BorrowedFd::borrow_raw(self.link_fd) }
    }

    /// Requests more slots if few are left, and gives idle slots back. Also checks that the server has not ended.
    fn refill(&self) -> Result<(), StoreError<'_>> {
        if !self.control.lock().is_alive() {
            return Err(StoreError::Gone);
        }
        self.return_slots();
        if self.free_slots.load(Relaxed) < self.low() {
            // Ignored: a refusal matters only when a write needs a slot, and that write repeats the
            // request.
            self.try_grant().unwrap_or_default();
        }
        if now_ns() - self.idle_since_ns.load(Relaxed) > IDLE_NS {
            self.give_back_idle();
        }
        Ok(())
    }

    /// Gives back slots that stayed free for a while, and begins a new period of observation.
    fn give_back_idle(&self) {
        let keep = self.grant_slots();
        let most = (IDLE_BYTES_MAX / self.slot_bytes) as u32;
        // The link stays locked until this function returns. Another thread that finds no free slot must not ask for
        // more before these slots are given back.
        let mut control = self.control.lock();
        let mut slots: Vec<u32> = {
            let mut table = self.table.lock();
            let idle = self.idle_slots.load(Relaxed).min(table.free.len() as u32);
            let count = idle.saturating_sub(keep).min(most) as usize;
            let slots = table.free.drain(..count).collect();
            self.note_free(&table);
            self.idle_slots.store(table.free.len() as u32, Relaxed);
            slots
        };
        self.idle_since_ns.store(now_ns(), Relaxed);
        slots.sort_unstable();
        let runs: Vec<&[u32]> = slots.chunk_by(|a, b| a + 1 == *b).collect();
        let (now, later) = runs.split_at(runs.len().min(IDLE_RUNS_MAX));
        for run in now {
            let place = if run[0] & SPILLED != 0 { Place::Spill } else { Place::Memory };
            // If the link has failed, these slots are lost with all others. The next poll with [`Turn::Upkeep`] reports
            // the failure.
            if control.give_back(run[0] & !SPILLED, run.len() as u32, place).is_ok() {
                self.granted_slots.fetch_sub(run.len() as u32, Relaxed);
                self.note_room(&control);
            }
        }
        let mut table = self.table.lock();
        table.free.extend(later.iter().copied().flatten());
        self.note_free(&table);
    }

    fn note_room(&self, control: &Attachment) {
        self.left_bytes.store(control.capacity_left_bytes, Relaxed);
        self.left_known_ns.store(now_ns(), Relaxed);
    }

    /// Publishes the number of free slots for threads that do not lock the table.
    fn note_free(&self, table: &Table) {
        let free = table.free.len() as u32;
        self.free_slots.store(free, Relaxed);
        self.idle_slots.fetch_min(free, Relaxed);
    }

    fn grant_slots(&self) -> u32 {
        let bounds = (GRANT_BYTES_MIN.max(self.slot_bytes), GRANT_BYTES_MAX);
        let so_far = self.granted_slots.load(Relaxed) as usize * self.slot_bytes;
        let part = (self.left_bytes.load(Relaxed) / GRANT_PART) as usize;
        (so_far.clamp(bounds.0, bounds.1).min(part).max(self.slot_bytes) / self.slot_bytes) as u32
    }

    /// Returns the number of free slots below which more are requested. It is 0 before the first page is written.
    fn low(&self) -> u32 {
        if self.granted_slots.load(Relaxed) == 0 { 0 } else { self.grant_slots() / 2 }
    }

    fn grant(&self) -> Result<(), StoreError<'_>> {
        let granted = match self.try_grant() {
            Err(LinkError::Full) if self.return_slots() => self.try_grant(),
            granted => granted,
        };
        match granted {
            Ok(()) => Ok(()),
            // The server is full, but another thread received the server's last slots while this thread waited for the
            // link. This thread can use one of them.
            Err(LinkError::Full) if self.free_slots.load(Relaxed) > 0 => Ok(()),
            Err(LinkError::Full) => Err(StoreError::NoSlot {
                memory_bytes: self.mapped_bytes as u64,
                has_spill: self.spill.is_some(),
                own_bytes: u64::from(self.granted_slots.load(Relaxed)) * self.slot_bytes as u64,
            }),
            Err(source) => Err(StoreError::Lost { server: "private memory server", source }),
        }
    }

    fn try_grant(&self) -> Result<(), LinkError> {
        let mut control = self.control.lock();
        // Another thread may have been granted slots while this thread waited for the link.
        if self.free_slots.load(Relaxed) > self.low() {
            return Ok(());
        }
        let mut runs = [Grant { place: Place::Memory, first_slot: 0, count: 0 }; hanare_wire::limits::GRANT_RUNS_MAX];
        let wanted = self.grant_slots();
        let granted = control.grant_into(wanted, &mut runs);
        self.note_room(&control);
        let count = granted?;
        let mut table = self.table.lock();
        for run in runs[..count].iter().rev() {
            let spilled = if run.place == Place::Spill { SPILLED } else { 0 };
            for slot in (run.first_slot..run.first_slot + run.count).rev() {
                table.free.push(slot | spilled);
            }
        }
        let granted: u32 = runs[..count].iter().map(|run| run.count).sum();
        self.granted_slots.fetch_add(granted, Relaxed);
        self.note_free(&table);
        Ok(())
    }
}

impl Store for Slots {
    fn read(&self, read: &Read, take: &mut dyn Take) -> Result<Begun, StoreError<'_>> {
        let (unit, len) = (read.page.0, read.bytes as usize);
        if self.guard.seals() {
            return self.read_sealed(read, take);
        }
        if let Some(to) = take.place(read) {
            // SAFETY: `to` has room for `len` bytes, and no other code accesses this memory.
            unsafe { self.copy_to(unit, len, to)? };
            take.placed(read);
            return Ok(Begun::Done);
        }
        self.pieces(unit, len, |done, place, piece| {
            match place {
                // SAFETY: the piece is inside a slot of this session, and nobody writes to the slot meanwhile.
                Ok(address) => unsafe { take.part(read, done, address, piece) },
                Err(position) => {
                    let spare = take.spare();
                    self.read_spill(position, spare, piece)?;
                    // SAFETY: the bytes were just read into `spare`, which only the taker uses.
                    unsafe { take.part(read, done, spare, piece) };
                }
            }
            Ok(())
        })?;
        Ok(Begun::Done)
    }

    unsafe fn write(&self, write: &Write, fill: &mut dyn FnMut(*mut u8)) -> Result<Saved, StoreError<'_>> {
        let (unit, len) = (write.page.0, write.bytes as usize);
        // SAFETY: the caller of `write` keeps the page's bytes at `here` unchanged.
        let is_same = |here| unsafe { self.is_as_held(unit, here, len) };
        if write.may_be_same && write.at.is_some_and(is_same) {
            return Ok(Saved::Same);
        }
        self.save(unit, len, write.spare, fill)?;
        Ok(Saved::Done)
    }

    fn release(&self, unit: u32, count: u32) {
        self.let_go(unit, count);
    }

    fn room(&self, ask: Ask) -> Room {
        if ask == Ask::Servers {
            let mut control = self.control.lock();
            // Ignored: a poll with [`Turn::Upkeep`] notices a failed link.
            control.capacity_left().unwrap_or_default();
            self.note_room(&control);
        }
        let granted_bytes = u64::from(self.granted_slots.load(Relaxed)) * self.slot_bytes as u64;
        Room {
            capacity_bytes: granted_bytes + self.left_bytes.load(Relaxed),
            placed_bytes: None,
            known_ns: self.left_known_ns.load(Relaxed),
        }
    }

    fn poll(&self, turn: Turn, _: &mut dyn Take) -> Result<Polled, StoreError<'_>> {
        match turn {
            Turn::Upkeep => self.refill()?,
            Turn::Unmap => self.unmap(),
            Turn::Receive(_) | Turn::Rest | Turn::GoOn => {}
        }
        Ok(Polled::Idle)
    }

    fn tell(&self, what: Words, out: &mut dyn fmt::Write) -> fmt::Result {
        match what {
            Words::Stand | Words::News => Ok(()),
            Words::NoRoom => out.write_str(
                "the private memory server and its spill space have no room for it; give more --memory, or a --spill \
                 directory with more space",
            ),
        }
    }
}

impl Table {
    fn slot(&self, unit: u32, slot_bytes: usize) -> (u32, usize) {
        let extent = unit / self.held.extent_units;
        let inside = (unit % self.held.extent_units) as usize * self.unit_bytes;
        debug_assert!(inside < slot_bytes && self.slot_of[extent as usize] != 0, "unit {unit} has no slot");
        (self.slot_of[extent as usize].wrapping_sub(1), inside)
    }

    fn slot_for_write(&mut self, unit: u32, slot_bytes: usize) -> Option<(u32, usize)> {
        let extent = (unit / self.held.extent_units) as usize;
        if self.slot_of[extent] == 0 {
            self.slot_of[extent] = self.free.pop()? + 1;
            self.top = self.top.max(extent + 1);
        }
        Some(self.slot(unit, slot_bytes))
    }
}
