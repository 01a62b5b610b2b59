//! Records which server holds which units (base pages), and which messages wait to be sent to each server.
//!
//! Nothing here waits, allocates or grows. The engine calls [`Places::release`] while it holds the pager's lock, so a
//! wait here would delay every fault.
//!
//! Each frame (local memory outside the program's view) has an entry for its write-back, because a frame has at most
//! one write-back. Each slot has a bit that says whether its discard waits. Each server has a list of the extents in
//! which such a bit is set.
//!
//! A slot's discard waits only while none of the slot's units is held, queued for writing or being written.
//! A write-back cancels the discard of its slot. This is safe because units that are not held are never read, so a
//! discard only frees room. Hence waiting discards and write-backs concern different slots and may be sent in any
//! order.

use hanare_paging::{FrameId, PageId};
use hanare_settings::SERVERS_MAX;
use hanare_wire::limits::DISCARD_MAX;

use super::{EXTENT_BYTES, WRITES_AT_ONCE};
use crate::bits::Bits;
use crate::placement::Placement;

/// The minimum free room of a server, in bytes, for new extents next to extents that it already holds. With less free
/// room, new extents go to the server with the most room. Other processes may have used some room since the server's
/// last report.
const MARGIN_BYTES: usize = 4 << 20;

const _: () = assert!(SERVERS_MAX < u16::MAX as usize);

/// The sizes of a store.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The number of units (base pages).
    pub units: u32,
    /// The number of bytes of a unit.
    pub unit_bytes: usize,
    /// The number of bytes of a slot. Servers discard whole slots.
    pub slot_bytes: usize,
    /// The number of frames for base pages.
    pub small_frames: u32,
    /// The number of frames for huge pages.
    pub wide_frames: u32,
    /// How pages are guarded that leave this process.
    pub guarding: Guarding,
}

/// How the bytes of pages are guarded that leave this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarding {
    /// Pages that come back are not checked. Only to measure what checks cost.
    Nothing,
    /// A checksum of each unit stays in this process.
    Sums,
    /// Units are sealed (encrypted and authenticated), and the key stays in this process.
    Seals,
}

/// The write-back of a page in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriteBack {
    pub(super) page: PageId,
    pub(super) frame: FrameId,
    pub(super) bytes: u32,
    /// The address of the page's bytes.
    pub(super) from: usize,
    /// Whether the server holds bytes of the page that may be the same. False once the page was sent: then the notes
    /// describe what was sent, and no longer what the server holds.
    pub(super) may_be_same: bool,
}

/// A range of far memory that a server may drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Discard {
    pub(super) offset: u64,
    pub(super) bytes: u32,
}

impl Discard {
    /// Checks whether this range and `next` can be sent as one range in one message.
    fn is_followed_by(self, next: Self) -> bool {
        self.offset + u64::from(self.bytes) == next.offset && self.bytes <= DISCARD_MAX - next.bytes
    }
}

/// The result of a write-back after the server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The server has the page.
    Held,
    /// The write-back now waits to be sent to the server with this index.
    GoesTo(usize),
    /// No server has room for the page.
    Nowhere,
}

/// A frame's waiting write-back. `next` is the frame after this frame in the server's list.
#[derive(Clone, Copy, Default)]
struct Waiting {
    from: usize,
    page: u32,
    bytes: u32,
    next: u32,
    may_be_same: bool,
}

/// A list of numbered entries, each of which contains the link to the next. A link is a number plus one, and 0 is no
/// link.
#[derive(Clone, Copy, Default)]
struct List {
    first: u32,
    last: u32,
}

impl List {
    fn push(&mut self, number: u32, link: impl FnOnce(u32, u32)) {
        match self.last {
            0 => self.first = number + 1,
            last => link(last - 1, number + 1),
        }
        self.last = number + 1;
    }

    fn pop(&mut self, next: impl FnOnce(u32) -> u32) -> Option<u32> {
        let number = self.first.checked_sub(1)?;
        self.first = next(number);
        if self.first == 0 {
            self.last = 0;
        }
        Some(number)
    }
}

pub(super) struct Places {
    /// The server of each extent, as its index plus one. 0 means that the extent is on no server.
    of_extent: Vec<u16>,
    /// The server of the newest extent in each range of [`EXTENT_BYTES`], as its index plus one. Empty if all extents
    /// have that length.
    near: Vec<u16>,
    near_extents: u32,
    margin: u64,
    pub(super) placement: Placement,
    /// The units that their servers hold.
    held: Bits,
    /// The units whose write-back is queued or in flight.
    writing: Bits,
    /// The slots whose discard waits to be sent.
    discards: Bits,
    /// The extents that are in the discard list of a server.
    listed: Bits,
    /// For each extent in a discard list: the next extent of that list, as its number plus one. 0 for the last extent.
    next_listed: Vec<u32>,
    /// The discard list of each server.
    discarding: Vec<List>,
    /// The waiting write-back of each frame.
    frames: Vec<Waiting>,
    /// The list of waiting write-backs of each server.
    writes: Vec<List>,
    /// The number of slots on each server that hold pages, as far as the server acknowledged the write-backs.
    slots_of: Vec<u64>,
    small_frames: u32,
    unit_bytes: usize,
    extent_units: u32,
    slot_units: u32,
}

impl Places {
    /// Makes tables without pages. Each placement extent of `extent_bytes` is on one server as a whole.
    pub(super) fn new(shape: Shape, extent_bytes: usize, placement: Placement, servers: usize) -> Self {
        let extent_units = (extent_bytes / shape.unit_bytes) as u32;
        let near_extents = (EXTENT_BYTES / extent_bytes) as u32;
        let slot_units = (shape.slot_bytes / shape.unit_bytes) as u32;
        let extents = shape.units.div_ceil(extent_units);
        let units = extents * extent_units;
        Self {
            of_extent: vec![0; extents as usize],
            near: if near_extents > 1 { vec![0; extents.div_ceil(near_extents) as usize] } else { Vec::new() },
            near_extents,
            margin: (MARGIN_BYTES / extent_bytes) as u64,
            placement,
            held: Bits::new(units),
            writing: Bits::new(units),
            discards: Bits::new(units / slot_units),
            listed: Bits::new(extents),
            next_listed: vec![0; extents as usize],
            discarding: vec![List::default(); servers],
            frames: vec![Waiting::default(); (shape.small_frames + shape.wide_frames) as usize],
            writes: vec![List::default(); servers],
            slots_of: vec![0; servers],
            small_frames: shape.small_frames,
            unit_bytes: shape.unit_bytes,
            extent_units,
            slot_units,
        }
    }

    /// Returns the server of a held unit.
    pub(super) fn server_of(&self, unit: u32) -> usize {
        let place = self.of_extent[(unit / self.extent_units) as usize];
        debug_assert!(place > 0, "unit {unit} is on no server");
        usize::from(place.max(1)) - 1
    }

    /// Returns how many of these held units, from the first on, are on the server of the first.
    pub(super) fn reach(&self, unit: u32, count: u32) -> u32 {
        let server = self.server_of(unit);
        (unit..unit + count).take_while(|&unit| self.server_of(unit) == server).count() as u32
    }

    /// Returns the number of bytes that a server holds for this process, as far as acknowledged.
    pub(super) fn bytes_on(&self, server: usize) -> u64 {
        self.slots_of[server].saturating_mul(u64::from(self.slot_units) * self.unit_bytes as u64)
    }

    /// Checks whether anything waits to be sent to a server.
    pub(super) fn waits_for(&self, server: usize) -> bool {
        self.writes[server].first != 0 || self.discards_wait_for(server)
    }

    /// Checks whether discards wait to be sent to a server.
    pub(super) fn discards_wait_for(&self, server: usize) -> bool {
        self.discarding[server].first != 0
    }

    // ---- write-backs -----------------------------------------------------------------------------------------------

    /// Ends a write-back without sending it, if the server holds a version of the page. The caller knows that the bytes
    /// are the same. Returns whether the write-back has ended.
    pub(super) fn end_if_held(&mut self, job: WriteBack, server: usize) -> bool {
        let (unit, count) = (job.page.0, self.count_of(job.bytes));
        let is_held = self.server_of(unit) == server && (unit..unit + count).all(|unit| self.held.has(unit));
        if is_held {
            self.writing.clear(unit, count);
        }
        is_held
    }

    /// Queues a write-back. Returns its server, or `None` if no server has room.
    pub(super) fn write_back(&mut self, job: WriteBack) -> Option<usize> {
        let (unit, count) = (job.page.0, self.count_of(job.bytes));
        let server = self.place(unit)?;
        debug_assert!(!self.writing.any(unit, count), "a page has one write-back at a time");
        self.writing.set(unit, count);
        for slot in self.slots(unit, count) {
            if self.discards.clear(slot, 1) {
                self.slots_of[server] -= 1;
            }
        }
        self.queue(server, job);
        Some(server)
    }

    fn queue(&mut self, server: usize, job: WriteBack) {
        let place = if job.frame.wide { self.small_frames + job.frame.index } else { job.frame.index };
        let WriteBack { page: PageId(page), bytes, from, may_be_same, .. } = job;
        self.frames[place as usize] = Waiting { from, page, bytes, next: 0, may_be_same };
        let frames = &mut self.frames;
        self.writes[server].push(place, |last, next| frames[last as usize].next = next);
    }

    /// Moves waiting write-backs of a server to `into`. Stops as soon as the moved ones have `bytes_max` bytes or more.
    pub(super) fn take_writes(&mut self, server: usize, bytes_max: usize, into: &mut Vec<WriteBack>) {
        let mut bytes = 0;
        while bytes < bytes_max && into.len() < WRITES_AT_ONCE {
            let frames = &self.frames;
            let Some(place) = self.writes[server].pop(|place| frames[place as usize].next) else { return };
            let Waiting { from, page, bytes: length, may_be_same, .. } = self.frames[place as usize];
            let wide = place >= self.small_frames;
            let index = if wide { place - self.small_frames } else { place };
            let frame = FrameId { wide, index };
            into.push(WriteBack { page: PageId(page), frame, bytes: length, from, may_be_same });
            bytes += length as usize;
        }
    }

    /// Records a server's answer to a write-back. `took` is true if the server stored the page, and false if it had no
    /// room. Adds to `vain` the ranges that this server still holds although no page needs them. The caller must
    /// discard these ranges before it sends anything else to this server.
    pub(super) fn ended(&mut self, job: WriteBack, server: usize, took: bool, vain: &mut Vec<Discard>) -> Ended {
        let unit = job.page.0;
        let here = self.server_of(unit);
        let to = match (here == server, took) {
            (true, true) => {
                self.mark_held(unit, self.count_of(job.bytes));
                return Ended::Held;
            }
            // The extent has moved to another server, because this server refused another part of it. This part must
            // follow.
            (false, _) => Some(here),
            (true, false) if self.writes.len() > 1 => self.move_away(unit, server, vain),
            // There is no other server.
            (true, false) => None,
        };
        let Some(to) = to else {
            // Several servers may hold copies of the page. The write-back is then over for this one.
            self.writing.clear(unit, self.count_of(job.bytes));
            self.free_if_unused(unit / self.extent_units);
            return Ended::Nowhere;
        };
        if to != server {
            vain.push(self.slot(unit / self.slot_units));
        }
        self.queue(to, WriteBack { may_be_same: false, ..job });
        Ended::GoesTo(to)
    }

    /// The extent has moved to another server, because `server` refused another page of the extent. This page must
    /// follow.
    fn mark_held(&mut self, unit: u32, count: u32) {
        let server = self.server_of(unit);
        for slot in self.slots(unit, count) {
            self.slots_of[server] += u64::from(!self.holds_of(slot));
        }
        self.held.set(unit, count);
        self.writing.clear(unit, count);
    }

    // ---- discards --------------------------------------------------------------------------------------------------

    /// Releases units of one extent. Returns the extent's server if this call adds the extent to the server's discard
    /// list. The caller must then wake the server's sender.
    pub(super) fn release(&mut self, unit: u32, count: u32) -> Option<usize> {
        let extent = unit / self.extent_units;
        debug_assert_eq!(extent, (unit + count - 1) / self.extent_units);
        let server = usize::from(self.of_extent[extent as usize].checked_sub(1)?);
        let mut any = false;
        for slot in self.slots(unit, count) {
            let (first, end) = (slot * self.slot_units, (slot + 1) * self.slot_units);
            let (first, end) = (first.max(unit), end.min(unit + count));
            if !self.held.clear(first, end - first) || self.holds_of(slot) {
                continue;
            }
            if self.writing.any(slot * self.slot_units, self.slot_units) {
                // A write-back to the slot is in flight, so the slot is not discarded now. A later release of the
                // written unit discards the slot.
                self.slots_of[server] -= 1;
            } else {
                self.discards.set(slot, 1);
                any = true;
            }
        }
        let is_new = any && !self.listed.has(extent);
        if is_new {
            self.list(extent, server);
        }
        self.free_if_unused(extent);
        is_new.then_some(server)
    }

    fn list(&mut self, extent: u32, server: usize) {
        self.listed.set(extent, 1);
        self.next_listed[extent as usize] = 0;
        let links = &mut self.next_listed;
        self.discarding[server].push(extent, |last, next| links[last as usize] = next);
    }

    /// Moves waiting discards of a server to `into`, until there are `ranges_max` ranges. An extent is always moved
    /// completely, and adjacent ranges are joined. The room of these ranges counts as free from now on, because the
    /// server receives these discards before any later message.
    pub(super) fn take_discards(&mut self, server: usize, ranges_max: usize, into: &mut Vec<Discard>) {
        while into.len() < ranges_max {
            let links = &self.next_listed;
            let Some(extent) = self.discarding[server].pop(|extent| links[extent as usize]) else { return };
            self.listed.clear(extent, 1);
            let here = usize::from(self.of_extent[extent as usize]);
            if here == server + 1 {
                self.take_extent(extent, server, into);
                self.free_if_unused(extent);
            } else if here > 0 && self.discards.any(extent * self.slots_per_extent(), self.slots_per_extent()) {
                // The extent has moved to another server. The thread that sends to that server finds these discards in
                // its own list.
                self.list(extent, here - 1);
            }
        }
    }

    /// Moves the waiting discards of an extent to `into`.
    fn take_extent(&mut self, extent: u32, server: usize, into: &mut Vec<Discard>) {
        let first = extent * self.slots_per_extent();
        for slot in first..first + self.slots_per_extent() {
            if !self.discards.clear(slot, 1) {
                continue;
            }
            self.slots_of[server] -= 1;
            let next = self.slot(slot);
            match into.last_mut() {
                Some(last) if last.is_followed_by(next) => last.bytes += next.bytes,
                _ => into.push(next),
            }
        }
    }

    // ---- extents ---------------------------------------------------------------------------------------------------

    /// Returns the server for a unit to be written. Chooses a server if the unit's extent has none.
    fn place(&mut self, unit: u32) -> Option<usize> {
        let extent = unit / self.extent_units;
        if self.of_extent[extent as usize] == 0 {
            self.of_extent[extent as usize] = self.place_extent(extent)? as u16 + 1;
        }
        Some(usize::from(self.of_extent[extent as usize]) - 1)
    }

    /// Chooses a server for a placement extent. A short extent goes to the server of its neighbours, so that one
    /// request fetches several extents.
    fn place_extent(&mut self, extent: u32) -> Option<usize> {
        let Some(near) = self.near.get_mut((extent / self.near_extents) as usize) else {
            return self.placement.place();
        };
        let server = match usize::from(*near).checked_sub(1) {
            Some(server) if self.placement.follow(server, self.margin) => server,
            _ => self.placement.place()?,
        };
        *near = server as u16 + 1;
        Some(server)
    }

    /// Removes an extent from its server if none of its units is held, being written or to be discarded.
    fn free_if_unused(&mut self, extent: u32) {
        let server = usize::from(self.of_extent[extent as usize]);
        let slots = self.slots_per_extent();
        if server > 0
            && !self.is_used(extent, &self.writing)
            && !self.is_used(extent, &self.held)
            && !self.discards.any(extent * slots, slots)
        {
            self.of_extent[extent as usize] = 0;
            self.placement.free(server - 1);
        }
    }

    /// Chooses another server for an extent that `from` refused. Returns `None` if the extent must stay, because `from`
    /// already holds some of its pages, or if no server has room.
    fn move_away(&mut self, unit: u32, from: usize, vain: &mut Vec<Discard>) -> Option<usize> {
        let extent = unit / self.extent_units;
        if self.is_used(extent, &self.held) {
            return None;
        }
        self.take_extent(extent, from, vain);
        self.of_extent[extent as usize] = 0;
        self.placement.free(from);
        self.placement.close(from);
        self.place(unit)
    }

    // ---- lookups -------------------------------------------------------------------------------------------------

    fn count_of(&self, bytes: u32) -> u32 {
        bytes / self.unit_bytes as u32
    }

    /// Returns the byte range of a slot.
    fn slot(&self, slot: u32) -> Discard {
        let bytes = self.slot_units * self.unit_bytes as u32;
        Discard { offset: u64::from(slot) * u64::from(bytes), bytes }
    }

    fn slots(&self, unit: u32, count: u32) -> std::ops::RangeInclusive<u32> {
        unit / self.slot_units..=(unit + count - 1) / self.slot_units
    }

    fn slots_per_extent(&self) -> u32 {
        self.extent_units / self.slot_units
    }

    /// Checks whether any unit of a slot is held.
    fn holds_of(&self, slot: u32) -> bool {
        self.held.any(slot * self.slot_units, self.slot_units)
    }

    fn is_used(&self, extent: u32, units: &Bits) -> bool {
        units.any(extent * self.extent_units, self.extent_units)
    }

    /// Divides a range of units at the boundaries of extents. Yields the first unit and the number of units of each
    /// part.
    pub(super) fn by_extent(unit: u32, count: u32, extent_units: u32) -> impl Iterator<Item = (u32, u32)> {
        let end = unit + count;
        std::iter::successors(Some(unit), move |at| Some((at / extent_units + 1) * extent_units))
            .take_while(move |&at| at < end)
            .map(move |at| (at, end.min((at / extent_units + 1) * extent_units) - at))
    }
}

#[cfg(test)]
mod tests;
