//! Decides which server holds which part of which page, and what is asked, written and rebuilt. A pure state machine:
//! no links, no clock, no threads. Events go in by its methods. What must be done comes out of its queues.
//!
//! A unit (base page) is cut into K data parts, and M parity parts are computed. All units of a placement extent have
//! their part `p` on the same server, the extent's *home* `p`. The homes of an extent are on different hosts.
//!
//! For each unit, a mask says which parts are *good*: the server acknowledged the part of the unit's last write. A part
//! without a home is not good. A unit can be read while K of its parts are good. A unit is held if any part is good.
//!
//! # Invariants
//! - A frame is given back when each part is acknowledged, or its server's sender has stopped. No sender reads a frame
//!   that was given back.
//! - At most one write of a unit is under way at each server. A program's write waits here while a rebuilt part of the
//!   same unit is on its way to the same server.
//! - A rebuilt part becomes good only if the program neither wrote nor released the unit since its parts were asked for.
//! - A read ends only after each part that a thread receives for it is here. An answer that arrives later goes nowhere. So
//!   no thread writes to the destination of a read after its end, nor to its buffers when they are used again.

use std::collections::VecDeque;

use super::PARTS_MAX;
use crate::bits::Bits;

mod members;
mod reads;
mod rebuild;
#[cfg(test)]
mod world;

pub(super) use members::Member;
pub(super) use reads::{Arrived, Landing, Reading, Ticket};
pub(super) use rebuild::{JOBS, Job};

/// The maximum number of reads in progress, those of the rebuilder included.
pub(super) const READS: usize = 64;
/// No server, in a table of homes.
const NOBODY: u16 = 0;

/// The sizes of a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// The number of units.
    pub(super) units: u32,
    /// The number of units of a placement extent.
    pub(super) extent_units: u32,
    /// The number of frames of both sizes.
    pub(super) frames: u32,
    /// The number of data parts, K.
    pub(super) data: u8,
    /// The number of parity parts, M.
    pub(super) parity: u8,
    /// The maximum number of units that are rebuilt together.
    pub(super) job_units: u32,
}

/// What must be done at a server. The orders are carried out in this order, while the machine is locked. Otherwise a
/// release could overtake a later write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// Write the part of the page in a frame.
    Write { member: usize, part: u8, frame: u32 },
    /// Write the part that a job has computed.
    WriteRebuilt { member: usize, job: usize },
    /// Drop the parts of these units.
    Release { member: usize, unit: u32, count: u32 },
}

/// A request for a part of a run of units. Requests may be sent in any order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) member: usize,
    pub(super) ticket: Ticket,
    pub(super) unit: u32,
    pub(super) count: u32,
}

/// Why the run cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fatal {
    /// Fewer than K parts of a page are left.
    Lost,
    /// Fewer than K servers have room for a page.
    Full,
}

/// The write of the page in a frame.
#[derive(Clone, Copy, Default)]
struct Frame {
    unit: u32,
    count: u32,
    is_busy: bool,
    /// The parts that their servers have not acknowledged.
    pending: u8,
    /// The parts among them that wait for a rebuilt part on its way to the same server.
    waiting: u8,
    /// The server of each part.
    to: [u16; PARTS_MAX],
}

/// Built-in mistakes, which the tests must find.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mistake {
    /// A frame is given back after K acknowledgements.
    AcknowledgesEarly,
    /// A rebuilt part counts although the program has written the unit meanwhile.
    RebuildsStale,
    /// After a job, the servers drop what the program released before, and also what it wrote since.
    ReleasesLate,
    /// An answer goes to its place although the read has all parts that it needs.
    LandsLate,
}

/// The machine.
pub(super) struct Machine {
    sizes: Sizes,
    members: Vec<Member>,
    /// The server of each part of each extent, as its index plus one, or [`NOBODY`].
    homes: Vec<[u16; PARTS_MAX]>,
    /// The number of units of each extent that are held or being written.
    used: Vec<u16>,
    /// The extents in use.
    extents_used: u32,
    /// The good parts of each unit.
    good: Vec<u8>,
    /// The units that are being written.
    writing: Bits,
    /// The extents in which parts may be missing.
    behind: Bits,
    /// The number of these extents.
    behind_count: u32,
    /// The extent from which the rebuilder goes on.
    cursor: u32,
    frames: Vec<Frame>,
    /// The number of frames with waiting parts.
    frames_waiting: u32,
    reads: Vec<Reading>,
    free_reads: Vec<u16>,
    /// The program's read that was begun last.
    last_read: u16,
    serial: u32,
    jobs: [Job; JOBS],
    rebuilt_units: u64,
    fatal: Option<Fatal>,
    orders: VecDeque<Order>,
    requests: VecDeque<Request>,
    given: VecDeque<u32>,
    #[cfg(test)]
    pub(super) mistake: Option<Mistake>,
}

/// Returns the maximum number of orders that one event gives. In a release, every second unit of an extent may be held,
/// and a rebuilt part may cut a run in two. After a job, each frame may have waited for it.
fn orders_max(sizes: &Sizes) -> usize {
    (sizes.extent_units as usize + 2) * PARTS_MAX + sizes.frames as usize + PARTS_MAX
}

/// Returns the parts of a mask in ascending order.
pub(super) fn parts_of(mask: u8) -> impl Iterator<Item = u8> {
    (0..PARTS_MAX as u8).filter(move |part| mask >> part & 1 != 0)
}

impl Machine {
    /// Makes a machine that holds nothing.
    pub(super) fn new(sizes: Sizes, members: Vec<Member>) -> Self {
        let extents = sizes.units.div_ceil(sizes.extent_units);
        let units = extents * sizes.extent_units;
        Self {
            sizes,
            members,
            homes: vec![[NOBODY; PARTS_MAX]; extents as usize],
            used: vec![0; extents as usize],
            extents_used: 0,
            good: vec![0; units as usize],
            writing: Bits::new(units),
            behind: Bits::new(extents),
            behind_count: 0,
            cursor: 0,
            frames: vec![Frame::default(); sizes.frames as usize],
            frames_waiting: 0,
            reads: vec![Reading::default(); READS],
            free_reads: (0..READS as u16).rev().collect(),
            last_read: 0,
            serial: 0,
            jobs: [Job::default(); JOBS],
            rebuilt_units: 0,
            fatal: None,
            orders: VecDeque::with_capacity(orders_max(&sizes)),
            requests: VecDeque::with_capacity(READS * PARTS_MAX),
            given: VecDeque::with_capacity(sizes.frames as usize),
            #[cfg(test)]
            mistake: None,
        }
    }

    /// Returns the next order to carry out.
    pub(super) fn next_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// Returns the next request to send.
    pub(super) fn next_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// Returns the next frame whose write has ended, with its first unit.
    pub(super) fn next_given(&mut self) -> Option<(u32, u32)> {
        let frame = self.given.pop_front()?;
        Some((frame, self.frames[frame as usize].unit))
    }

    /// Returns why the run cannot go on. Returns `None` if it can.
    pub(super) fn fatal(&self) -> Option<Fatal> {
        self.fatal
    }

    /// Returns the range of units in a frame that is being written.
    pub(super) fn units_in(&self, frame: u32) -> (u32, u32) {
        let Frame { unit, count, .. } = self.frames[frame as usize];
        (unit, count)
    }

    /// Checks whether nothing is under way: no read, no write, no rebuilding.
    pub(super) fn is_idle(&self) -> bool {
        let is_told = self.given.is_empty() && self.requests.is_empty();
        is_told
            && self.free_reads.len() == READS
            && self.frames.iter().all(|frame| !frame.is_busy)
            && self.are_jobs_idle()
    }

    /// Returns the number of extents in use.
    pub(super) fn extents_used(&self) -> u64 {
        self.extents_used.into()
    }

    /// Returns how many of these units, from the first on, are in the first one's extent.
    pub(super) fn reach(&self, unit: u32, count: u32) -> u32 {
        count.min(self.sizes.extent_units - unit % self.sizes.extent_units)
    }

    /// Begins to count anew, in a forked child.
    pub(super) fn count_anew(&mut self) {
        self.rebuilt_units = 0;
    }

    fn extent_of(&self, unit: u32) -> u32 {
        unit / self.sizes.extent_units
    }

    fn parts(&self) -> u8 {
        self.sizes.data + self.sizes.parity
    }

    fn all_parts(&self) -> u8 {
        ((1_u16 << self.parts()) - 1) as u8
    }

    fn is_enough(&self, parts: u8) -> bool {
        parts.count_ones() >= u32::from(self.sizes.data)
    }

    /// Returns the parts of an extent that have a home.
    fn homed(&self, extent: u32) -> u8 {
        let homes = &self.homes[extent as usize];
        (0..self.parts()).filter(|&part| homes[usize::from(part)] != NOBODY).fold(0, |mask, part| mask | 1 << part)
    }

    /// Returns the parts of a unit that can be read.
    fn readable(&self, unit: u32) -> u8 {
        self.good[unit as usize] & self.homed(self.extent_of(unit))
    }

    fn home(&self, extent: u32, part: u8) -> Option<usize> {
        usize::from(self.homes[extent as usize][usize::from(part)]).checked_sub(1)
    }

    fn is_used(&self, unit: u32) -> bool {
        self.good[unit as usize] != 0 || self.writing.has(unit)
    }

    /// Counts a unit that came into use, or is no longer in use.
    fn count_unit(&mut self, unit: u32, is_used: bool) {
        let used = &mut self.used[(unit / self.sizes.extent_units) as usize];
        if is_used {
            self.extents_used += u32::from(*used == 0);
            *used += 1;
        } else {
            debug_assert!(*used > 0);
            self.extents_used -= u32::from(*used == 1);
            *used = used.saturating_sub(1);
        }
    }

    fn mark_behind(&mut self, extent: u32) {
        if !self.behind.has(extent) {
            self.behind.set(extent, 1);
            self.behind_count += 1;
        }
    }

    fn fail(&mut self, fatal: Fatal) {
        self.fatal.get_or_insert(fatal);
    }

    // ---- writes ----------------------------------------------------------------------------------------------------

    /// Begins to write the page in a frame. The page is inside one extent.
    pub(super) fn write(&mut self, frame: u32, unit: u32, count: u32) -> Result<(), Fatal> {
        let extent = self.extent_of(unit);
        self.place(extent)?;
        for unit in unit..unit + count {
            if !self.is_used(unit) {
                self.count_unit(unit, true);
            }
            self.good[unit as usize] = 0;
        }
        self.writing.set(unit, count);
        self.void(unit, count);
        self.frames[frame as usize] = Frame { unit, count, is_busy: true, ..Frame::default() };
        for part in parts_of(self.homed(extent)) {
            self.send_part(frame, part);
        }
        Ok(())
    }

    /// Sends a part of a page to its home, or lets it wait. If another part of the page is on its way there, because that
    /// part was to be there before, this part counts as missing.
    fn send_part(&mut self, frame: u32, part: u8) {
        let Frame { unit, count, .. } = self.frames[frame as usize];
        let Some(member) = self.home(self.extent_of(unit), part) else { return };
        if self.pending_at(frame, member).is_some() {
            return;
        }
        let waits = self.is_rebuilt_at(member, unit, count);
        let page = &mut self.frames[frame as usize];
        page.to[usize::from(part)] = member as u16 + 1;
        page.pending |= 1 << part;
        if waits {
            self.frames_waiting += u32::from(page.waiting == 0);
            page.waiting |= 1 << part;
        } else {
            self.orders.push_back(Order::Write { member, part, frame });
        }
    }

    /// Returns the part of a page that a server has not acknowledged.
    fn pending_at(&self, frame: u32, member: usize) -> Option<u8> {
        let page = self.frames.get(frame as usize).filter(|page| page.is_busy)?;
        parts_of(page.pending).find(|&part| usize::from(page.to[usize::from(part)]) == member + 1)
    }

    /// A server has acknowledged its part of the page in a frame.
    pub(super) fn acknowledged(&mut self, frame: u32, member: usize) {
        let Some(part) = self.pending_at(frame, member) else { return };
        let Frame { unit, count, .. } = self.frames[frame as usize];
        self.frames[frame as usize].pending &= !(1 << part);
        if self.home(self.extent_of(unit), part) == Some(member) {
            (unit..unit + count).for_each(|unit| self.good[unit as usize] |= 1 << part);
        } else {
            // The extent has moved away from this server meanwhile.
            self.orders.push_back(Order::Release { member, unit, count });
        }
        self.end_if_done(frame);
    }

    fn end_if_done(&mut self, frame: u32) {
        let Frame { unit, count, pending, .. } = self.frames[frame as usize];
        #[cfg(test)]
        if self.mistake == Some(Mistake::AcknowledgesEarly) && self.is_enough(self.good[unit as usize]) {
            self.frames[frame as usize].pending = 0;
            return self.end(frame, unit, count);
        }
        if pending == 0 {
            self.end(frame, unit, count);
        }
    }

    fn end(&mut self, frame: u32, unit: u32, count: u32) {
        let extent = self.extent_of(unit);
        self.frames[frame as usize].is_busy = false;
        self.writing.clear(unit, count);
        for unit in unit..unit + count {
            let readable = self.readable(unit);
            if !self.is_enough(readable) {
                self.fail(Fatal::Lost);
            }
            if readable != self.all_parts() {
                self.mark_behind(extent);
            }
            if self.good[unit as usize] == 0 {
                self.count_unit(unit, false);
            }
        }
        self.given.push_back(frame);
    }

    /// A server had no room for its part of the page in a frame. The part of the whole extent goes to another server, if
    /// each page of the extent can do without it for a while.
    pub(super) fn refused(&mut self, frame: u32, member: usize) {
        let Some(part) = self.pending_at(frame, member) else { return };
        let Frame { unit, .. } = self.frames[frame as usize];
        let extent = self.extent_of(unit);
        self.frames[frame as usize].pending &= !(1 << part);
        if self.leave(extent, part, member) && (self.home(extent, part).is_some() || self.settle(extent, part)) {
            self.send_part(frame, part);
        }
        let Frame { pending, .. } = self.frames[frame as usize];
        if !self.is_enough(pending | self.readable(unit)) {
            return self.fail(Fatal::Full);
        }
        self.end_if_done(frame);
    }

    /// Makes an extent leave a server that refused a part of it. The server is full from now on. Returns false if the
    /// extent must stay, because the server has parts that are needed.
    fn leave(&mut self, extent: u32, part: u8, member: usize) -> bool {
        self.mark_behind(extent);
        let is_home = self.home(extent, part) == Some(member);
        let leaves = is_home && self.can_do_without(extent, part);
        if leaves {
            self.vacate(extent, part);
            let (unit, count) = (extent * self.sizes.extent_units, self.sizes.extent_units);
            self.orders.push_back(Order::Release { member, unit, count });
        }
        // The server counts as full only now, so that the extent's place does not count as free.
        self.members[member].refuses();
        leaves || !is_home
    }

    /// Checks whether each page of an extent has K parts besides this one. Parts on their way count as well.
    fn can_do_without(&self, extent: u32, part: u8) -> bool {
        let (first, count) = (extent * self.sizes.extent_units, self.sizes.extent_units);
        let rest = |unit: u32| self.readable(unit) & !(1 << part);
        let is_held = |unit: u32| self.good[unit as usize] == 0 || self.writing.has(unit) || self.is_enough(rest(unit));
        let mut pages = self.frames.iter().filter(|page| page.is_busy && self.extent_of(page.unit) == extent);
        (first..first + count).all(is_held) && pages.all(|page| self.is_written_without(page, part))
    }

    /// Checks whether a page in a frame has K parts besides this one. Parts on their way count as well.
    fn is_written_without(&self, page: &Frame, part: u8) -> bool {
        let extent = self.extent_of(page.unit);
        let comes =
            |part: &u8| self.home(extent, *part).is_some_and(|home| page.to[usize::from(*part)] == home as u16 + 1);
        let pending = parts_of(page.pending & !(1 << part)).filter(comes).fold(0, |mask, part| mask | 1 << part);
        self.is_enough(self.readable(page.unit) & !(1 << part) | pending)
    }

    // ---- releases --------------------------------------------------------------------------------------------------

    /// Drops units of one extent. Units that are being written stay.
    pub(super) fn release(&mut self, unit: u32, count: u32) {
        let end = unit + count;
        let mut first = unit;
        while first < end {
            if self.writing.has(first) || self.good[first as usize] == 0 {
                first += 1;
                continue;
            }
            let run = (first..end).take_while(|&unit| !self.writing.has(unit) && self.good[unit as usize] != 0).count();
            self.release_run(first, run as u32);
            first += run as u32;
        }
        self.free_if_unused(self.extent_of(unit));
    }

    fn release_run(&mut self, unit: u32, count: u32) {
        self.void(unit, count);
        for unit in unit..unit + count {
            self.good[unit as usize] = 0;
            self.count_unit(unit, false);
        }
        let extent = self.extent_of(unit);
        for part in parts_of(self.homed(extent)) {
            let Some(member) = self.home(extent, part) else { continue };
            // A rebuilt part that is on its way is dropped after its arrival.
            let (from, to) = self.rebuilt_at(member, extent).unwrap_or((unit, unit));
            let (from, to) = (from.clamp(unit, unit + count), to.clamp(unit, unit + count));
            for (unit, end) in [(unit, from), (to, unit + count)] {
                if unit < end {
                    self.orders.push_back(Order::Release { member, unit, count: end - unit });
                }
            }
        }
    }

    /// Forgets the homes of an extent without units.
    fn free_if_unused(&mut self, extent: u32) {
        if self.used[extent as usize] == 0 && self.homed(extent) != 0 {
            parts_of(self.homed(extent)).for_each(|part| self.vacate(extent, part));
            if self.behind.clear(extent, 1) {
                self.behind_count -= 1;
            }
        }
    }
}
