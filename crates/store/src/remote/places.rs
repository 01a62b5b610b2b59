//! Which server holds what, and what waits to be sent there.
//!
//! Nothing here waits, allocates or grows: the pager calls it while it is locked, and a writer needs both locks to send
//! what waits. A write-back waits in the place of its frame, and a frame has one write-back at most. A discard waits as a
//! bit of its slot, and the stretches that have such bits are linked into a list of their server.
//!
//! A slot has a discard waiting only while nothing of it is held and no write-back of any of its units is queued or on its
//! way. A write-back cancels its slot's discard: units that are not held are never read, so a discard only frees room.
//! Hence discards and write-backs that wait at the same time concern different slots, and may go in any order.

use hanare_paging::{FrameId, PageId};
use hanare_settings::SERVERS_MAX;
use hanare_wire::limits::DISCARD_MAX;

use super::bits::Bits;
use super::{STRETCH_BYTES, WRITES_AT_ONCE};
use crate::placement::Placement;

/// Room of a server, in bytes, below which new extents go where there is most room: what other processes take is known
/// late.
const MARGIN_BYTES: usize = 4 << 20;

const _: () = assert!(SERVERS_MAX < u16::MAX as usize);

/// What the store is laid out by.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Pages of the least size.
    pub units: u32,
    /// Bytes of one.
    pub unit_bytes: usize,
    /// Bytes that servers discard at a time.
    pub slot_bytes: usize,
    /// Frames for small pages.
    pub small_frames: u32,
    /// Frames for wide pages.
    pub wide_frames: u32,
}

/// A page on its way to a server, in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriteBack {
    pub(super) page: PageId,
    pub(super) frame: FrameId,
    pub(super) bytes: u32,
    /// Address of its bytes.
    pub(super) from: usize,
}

/// Bytes of far memory that a server need not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Discard {
    pub(super) offset: u64,
    pub(super) bytes: u32,
}

impl Discard {
    /// Whether both fit into one frame as one range.
    fn is_followed_by(self, next: Self) -> bool {
        self.offset + u64::from(self.bytes) == next.offset && self.bytes <= DISCARD_MAX - next.bytes
    }
}

/// What came of a write-back that a server answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The server has the page.
    Held,
    /// It waits for this server now.
    GoesTo(usize),
    /// No server has room.
    Nowhere,
}

/// A write-back in its frame's place, with the link to the next.
#[derive(Clone, Copy, Default)]
struct Waiting {
    from: usize,
    page: u32,
    bytes: u32,
    next: u32,
}

/// A list linked through places that have a link each: numbers plus one; 0 is none.
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
    /// Which server each stretch lies on: its number plus one; 0 is none.
    of_stretch: Vec<u16>,
    /// The same of the newest one within each [`STRETCH_BYTES`]; empty where all are of that length.
    near: Vec<u16>,
    near_stretches: u32,
    margin: u64,
    pub(super) placement: Placement,
    /// Units that their servers hold.
    held: Bits,
    /// Units with a write-back queued or on its way.
    writing: Bits,
    /// Slots to be discarded.
    discards: Bits,
    /// Stretches in the list of a server, their links, and the lists.
    listed: Bits,
    next_listed: Vec<u32>,
    discarding: Vec<List>,
    /// Write-backs by frame, and their lists by server.
    frames: Vec<Waiting>,
    writes: Vec<List>,
    /// Slots that hold something on each server, as far as it was told.
    slots_of: Vec<u64>,
    small_frames: u32,
    unit_bytes: usize,
    stretch_units: u32,
    slot_units: u32,
}

impl Places {
    /// Stretches of this length lie on one server each, as a whole.
    pub(super) fn new(shape: Shape, stretch_bytes: usize, placement: Placement, servers: usize) -> Self {
        let stretch_units = (stretch_bytes / shape.unit_bytes) as u32;
        let near_stretches = (STRETCH_BYTES / stretch_bytes) as u32;
        let slot_units = (shape.slot_bytes / shape.unit_bytes) as u32;
        let stretches = shape.units.div_ceil(stretch_units);
        let units = stretches * stretch_units;
        Self {
            of_stretch: vec![0; stretches as usize],
            near: if near_stretches > 1 { vec![0; stretches.div_ceil(near_stretches) as usize] } else { Vec::new() },
            near_stretches,
            margin: (MARGIN_BYTES / stretch_bytes) as u64,
            placement,
            held: Bits::new(units),
            writing: Bits::new(units),
            discards: Bits::new(units / slot_units),
            listed: Bits::new(stretches),
            next_listed: vec![0; stretches as usize],
            discarding: vec![List::default(); servers],
            frames: vec![Waiting::default(); (shape.small_frames + shape.wide_frames) as usize],
            writes: vec![List::default(); servers],
            slots_of: vec![0; servers],
            small_frames: shape.small_frames,
            unit_bytes: shape.unit_bytes,
            stretch_units,
            slot_units,
        }
    }

    /// The server a held unit is on.
    pub(super) fn server_of(&self, unit: u32) -> usize {
        let place = self.of_stretch[(unit / self.stretch_units) as usize];
        debug_assert!(place > 0, "unit {unit} is on no server");
        usize::from(place.max(1)) - 1
    }

    /// How many of these held units, from the first on, are on the server of the first.
    pub(super) fn reach(&self, unit: u32, count: u32) -> u32 {
        let server = self.server_of(unit);
        (unit..unit + count).take_while(|&unit| self.server_of(unit) == server).count() as u32
    }

    /// Bytes that a server holds for this process, as far as it was told.
    pub(super) fn bytes_on(&self, server: usize) -> u64 {
        self.slots_of[server].saturating_mul(u64::from(self.slot_units) * self.unit_bytes as u64)
    }

    /// Whether anything waits to be sent to a server.
    pub(super) fn waits_for(&self, server: usize) -> bool {
        self.writes[server].first != 0 || self.discards_wait_for(server)
    }

    /// Whether discards wait to be sent to a server.
    pub(super) fn discards_wait_for(&self, server: usize) -> bool {
        self.discarding[server].first != 0
    }

    // ---- write-backs --------------------------------------------------------------------------------------------------

    /// Queues a write-back that begins; says for which server, if any has room.
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
        self.frames[place as usize] = Waiting { from: job.from, page: job.page.0, bytes: job.bytes, next: 0 };
        let frames = &mut self.frames;
        self.writes[server].push(place, |last, next| frames[last as usize].next = next);
    }

    /// Takes write-backs to be sent to a server now, some `bytes_max` of them at most.
    pub(super) fn take_writes(&mut self, server: usize, bytes_max: usize, into: &mut Vec<WriteBack>) {
        let mut bytes = 0;
        while bytes < bytes_max && into.len() < WRITES_AT_ONCE {
            let frames = &self.frames;
            let Some(place) = self.writes[server].pop(|place| frames[place as usize].next) else { return };
            let Waiting { from, page, bytes: length, .. } = self.frames[place as usize];
            let wide = place >= self.small_frames;
            let index = if wide { place - self.small_frames } else { place };
            into.push(WriteBack { page: PageId(page), frame: FrameId { wide, index }, bytes: length, from });
            bytes += length as usize;
        }
    }

    /// A server answered a write-back: it took it, or had no room. What that server keeps in vain is put into `vain`, to be
    /// discarded there before anything else is sent to it.
    pub(super) fn ended(&mut self, job: WriteBack, server: usize, took: bool, vain: &mut Vec<Discard>) -> Ended {
        let unit = job.page.0;
        let here = self.server_of(unit);
        let to = match (here == server, took) {
            (true, true) => {
                self.mark_held(unit, self.count_of(job.bytes));
                return Ended::Held;
            }
            // The stretch moved on, for another part of it was refused: this part has to follow.
            (false, _) => Some(here),
            (true, false) => self.move_away(unit, server, vain),
        };
        let Some(to) = to else { return Ended::Nowhere };
        if to != server {
            vain.push(self.slot(unit / self.slot_units));
        }
        self.queue(to, job);
        Ended::GoesTo(to)
    }

    /// These units' bytes are on their server from now on, and the write-back that brought them there has ended.
    fn mark_held(&mut self, unit: u32, count: u32) {
        let server = self.server_of(unit);
        for slot in self.slots(unit, count) {
            self.slots_of[server] += u64::from(!self.holds_of(slot));
        }
        self.held.set(unit, count);
        self.writing.clear(unit, count);
    }

    // ---- discards -----------------------------------------------------------------------------------------------------

    /// These units of one stretch are no longer needed. Says which server has something to discard that had nothing.
    pub(super) fn release(&mut self, unit: u32, count: u32) -> Option<usize> {
        let stretch = unit / self.stretch_units;
        debug_assert_eq!(stretch, (unit + count - 1) / self.stretch_units);
        let server = usize::from(self.of_stretch[stretch as usize].checked_sub(1)?);
        let mut any = false;
        for slot in self.slots(unit, count) {
            let (first, end) = (slot * self.slot_units, (slot + 1) * self.slot_units);
            let (first, end) = (first.max(unit), end.min(unit + count));
            if !self.held.clear(first, end - first) || self.holds_of(slot) {
                continue;
            }
            if self.writing.any(slot * self.slot_units, self.slot_units) {
                // A unit of it is on its way there: the slot is discarded when that one is released.
                self.slots_of[server] -= 1;
            } else {
                self.discards.set(slot, 1);
                any = true;
            }
        }
        let is_new = any && !self.listed.has(stretch);
        if is_new {
            self.list(stretch, server);
        }
        self.free_if_unused(stretch);
        is_new.then_some(server)
    }

    fn list(&mut self, stretch: u32, server: usize) {
        self.listed.set(stretch, 1);
        self.next_listed[stretch as usize] = 0;
        let links = &mut self.next_listed;
        self.discarding[server].push(stretch, |last, next| links[last as usize] = next);
    }

    /// Takes what is to be discarded on a server, some `ranges_max` at least if there are so many; neighbours are joined.
    /// The room is free from now on, for what is sent next comes behind it.
    pub(super) fn take_discards(&mut self, server: usize, ranges_max: usize, into: &mut Vec<Discard>) {
        while into.len() < ranges_max {
            let links = &self.next_listed;
            let Some(stretch) = self.discarding[server].pop(|stretch| links[stretch as usize]) else { return };
            self.listed.clear(stretch, 1);
            let here = usize::from(self.of_stretch[stretch as usize]);
            if here == server + 1 {
                self.take_stretch(stretch, server, into);
                self.free_if_unused(stretch);
            } else if here > 0 && self.discards.any(stretch * self.slots_per_stretch(), self.slots_per_stretch()) {
                // It moved on meanwhile. That server's writer finds it at its next look.
                self.list(stretch, here - 1);
            }
        }
    }

    /// Takes the discards of a stretch.
    fn take_stretch(&mut self, stretch: u32, server: usize, into: &mut Vec<Discard>) {
        let first = stretch * self.slots_per_stretch();
        for slot in first..first + self.slots_per_stretch() {
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

    // ---- stretches ----------------------------------------------------------------------------------------------------

    /// The server for a unit to be written, chosen now if its stretch is on none.
    fn place(&mut self, unit: u32) -> Option<usize> {
        let stretch = unit / self.stretch_units;
        if self.of_stretch[stretch as usize] == 0 {
            self.of_stretch[stretch as usize] = self.place_stretch(stretch)? as u16 + 1;
        }
        Some(usize::from(self.of_stretch[stretch as usize]) - 1)
    }

    /// A server for a placement extent. Short ones follow their neighbours, so that one request reaches several.
    fn place_stretch(&mut self, stretch: u32) -> Option<usize> {
        let Some(near) = self.near.get_mut((stretch / self.near_stretches) as usize) else {
            return self.placement.place();
        };
        let server = match usize::from(*near).checked_sub(1) {
            Some(server) if self.placement.follow(server, self.margin) => server,
            _ => self.placement.place()?,
        };
        *near = server as u16 + 1;
        Some(server)
    }

    /// A stretch of which nothing is held, on its way or to be discarded is on no server.
    fn free_if_unused(&mut self, stretch: u32) {
        let server = usize::from(self.of_stretch[stretch as usize]);
        let slots = self.slots_per_stretch();
        if server > 0
            && !self.is_used(stretch, &self.writing)
            && !self.is_used(stretch, &self.held)
            && !self.discards.any(stretch * slots, slots)
        {
            self.of_stretch[stretch as usize] = 0;
            self.placement.free(server - 1);
        }
    }

    /// Another server for a stretch that one refused. A stretch that is partly there already has nowhere to go.
    fn move_away(&mut self, unit: u32, from: usize, vain: &mut Vec<Discard>) -> Option<usize> {
        let stretch = unit / self.stretch_units;
        if self.is_used(stretch, &self.held) {
            return None;
        }
        self.take_stretch(stretch, from, vain);
        self.of_stretch[stretch as usize] = 0;
        self.placement.free(from);
        self.placement.close(from);
        self.place(unit)
    }

    // ---- small things -------------------------------------------------------------------------------------------------

    fn count_of(&self, bytes: u32) -> u32 {
        bytes / self.unit_bytes as u32
    }

    /// The bytes of a slot.
    fn slot(&self, slot: u32) -> Discard {
        let bytes = self.slot_units * self.unit_bytes as u32;
        Discard { offset: u64::from(slot) * u64::from(bytes), bytes }
    }

    fn slots(&self, unit: u32, count: u32) -> std::ops::RangeInclusive<u32> {
        unit / self.slot_units..=(unit + count - 1) / self.slot_units
    }

    fn slots_per_stretch(&self) -> u32 {
        self.stretch_units / self.slot_units
    }

    /// Whether any unit of a slot is held.
    fn holds_of(&self, slot: u32) -> bool {
        self.held.any(slot * self.slot_units, self.slot_units)
    }

    fn is_used(&self, stretch: u32, units: &Bits) -> bool {
        units.any(stretch * self.stretch_units, self.stretch_units)
    }

    /// The parts of a range of units that lie in one stretch each.
    pub(super) fn by_stretch(unit: u32, count: u32, stretch_units: u32) -> impl Iterator<Item = (u32, u32)> {
        let end = unit + count;
        std::iter::successors(Some(unit), move |at| Some((at / stretch_units + 1) * stretch_units))
            .take_while(move |&at| at < end)
            .map(move |at| (at, end.min((at / stretch_units + 1) * stretch_units) - at))
    }
}

#[cfg(test)]
mod tests;
