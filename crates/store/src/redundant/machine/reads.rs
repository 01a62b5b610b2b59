//! Reads: which servers are asked for a run of units, and when enough parts are here.
//!
//! A read goes through its run in *segments*. All units of a segment have K good parts in common, so K requests fetch it.
//! Almost every read has a single segment. Several are needed only when units of the run lack different parts.

use super::{Fatal, Machine, Request, parts_of};
use crate::Read;
use crate::redundant::PARTS_MAX;

/// The name of a request. A ticket is used once. An answer whose ticket is no longer valid is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::redundant) struct Ticket {
    pub(in crate::redundant) read: u16,
    pub(in crate::redundant) part: u8,
    pub(in crate::redundant) serial: u32,
}

/// Where the bytes of an answer go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(in crate::redundant) enum Landing {
    /// Into the destination of the read: the part of each unit to the place of this data part inside the unit.
    Places(u8),
    /// Into the region with this index of the read's buffer, the parts of all units one after another.
    Region(u8),
    /// Nowhere. Nobody needs the answer any more.
    #[default]
    Nowhere,
}

/// What an answer completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::redundant) enum Arrived {
    /// Nothing yet.
    Nothing,
    /// A segment of this read of the program.
    Segment(u16),
    /// The parts for this job of the rebuilder.
    Job(usize),
}

/// Who reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Reader {
    #[default]
    Nobody,
    Program,
    Job(usize),
}

/// A read in progress.
#[derive(Clone, Copy, Default)]
pub(in crate::redundant) struct Reading {
    reader: Reader,
    /// The read of the program.
    pub(in crate::redundant) whole: Option<Read>,
    unit: u32,
    count: u32,
    /// The number of units before the segment.
    done: u32,
    /// The number of units of the segment.
    len: u32,
    /// The parts that are asked for.
    asked: u8,
    /// The parts that a thread is receiving.
    receiving: u8,
    /// The parts that are here.
    here: u8,
    serials: [u32; PARTS_MAX],
    to: [u16; PARTS_MAX],
    /// Where each part is that is here or being received.
    landings: [Landing; PARTS_MAX],
}

impl Reading {
    /// Returns the segment: the number of units before it, and the number of its units.
    pub(in crate::redundant) fn segment(&self) -> (u32, u32) {
        (self.done, self.len)
    }

    /// Returns the first unit of the read.
    #[cfg(test)]
    pub(super) fn first(&self) -> u32 {
        self.unit
    }

    /// Checks whether the read is complete with this segment.
    pub(in crate::redundant) fn is_last(&self) -> bool {
        self.done + self.len == self.count
    }

    /// Returns the parts that are here.
    pub(in crate::redundant) fn here(&self) -> u8 {
        self.here
    }

    /// Returns where a part is that is here or being received.
    pub(in crate::redundant) fn landing(&self, part: u8) -> Landing {
        self.landings[usize::from(part)]
    }

    /// Checks whether a thread is receiving a part.
    pub(super) fn is_receiving(&self) -> bool {
        self.receiving != 0
    }

    /// Chooses where a part goes. The parts in `taken` are here or being received, fewer than `data`. A data part of a page
    /// for the program goes to its place, and so does a copy. Other parts need a region until the missing parts are
    /// computed from them, and so do all parts for a job, which computes no page.
    fn choose(&self, part: u8, taken: u8, data: u8) -> Landing {
        if self.reader == Reader::Program && (part < data || data == 1) {
            return Landing::Places(if data == 1 { 0 } else { part });
        }
        let is_free = |region: &u8| !parts_of(taken).any(|part| self.landing(part) == Landing::Region(*region));
        Landing::Region((0..data).find(is_free).unwrap_or(0))
    }
}

impl Machine {
    /// Returns the members that hold the data parts of all these units, which are in one extent. Returns `None` if a
    /// data part of a unit cannot be read.
    pub(in crate::redundant) fn data_homes(&self, unit: u32, count: u32) -> Option<[usize; super::super::DATA_MAX]> {
        let data = (1 << self.sizes.data) - 1;
        if !(unit..unit + count).all(|unit| self.readable(unit) & data == data) {
            return None;
        }
        let mut homes = [0; super::super::DATA_MAX];
        for (part, home) in (0..self.sizes.data).zip(&mut homes) {
            *home = self.home(self.extent_of(unit), part)?;
        }
        Some(homes)
    }

    /// Returns the member that must answer before the last read can end. Returns `None` if the read is not the only one, or
    /// if other answers would do as well.
    pub(in crate::redundant) fn awaited(&self) -> Option<usize> {
        let Reading { reader, asked, receiving, here, to, .. } = self.reads[usize::from(self.last_read)];
        let is_alone = reader == Reader::Program && self.free_reads.len() == super::READS - 1;
        let is_due = (asked | receiving | here).count_ones() == u32::from(self.sizes.data);
        // The requests were sent in the order of the parts, so the last one is likely to be answered last.
        let last = parts_of(asked).last().filter(|_| is_alone && is_due)?;
        Some(usize::from(to[usize::from(last)]))
    }

    /// Returns a read in progress.
    pub(in crate::redundant) fn reading(&self, read: u16) -> Reading {
        self.reads[usize::from(read)]
    }

    /// Checks whether the program waits for the answer to this request.
    #[cfg(test)]
    pub(super) fn is_awaited(&self, ticket: Ticket) -> bool {
        let reading = &self.reads[usize::from(ticket.read)];
        let part = usize::from(ticket.part);
        reading.reader == Reader::Program && reading.serials[part] == ticket.serial && reading.asked >> part & 1 != 0
    }

    /// Begins a read of the program. Returns `None` if too many reads are in progress.
    pub(in crate::redundant) fn read(&mut self, read: Read, unit: u32, count: u32) -> Option<u16> {
        let index = self.free_reads.pop()?;
        self.last_read = index;
        self.reads[usize::from(index)] =
            Reading { reader: Reader::Program, whole: Some(read), unit, count, ..Reading::default() };
        self.begin_segment(index);
        Some(index)
    }

    /// Begins to read the parts for a job. Returns `None` if too many reads are in progress. The program keeps half.
    pub(super) fn read_for_job(&mut self, job: usize, unit: u32, count: u32) -> Option<u16> {
        if self.free_reads.len() <= super::READS / 2 {
            return None;
        }
        let index = self.free_reads.pop()?;
        self.reads[usize::from(index)] = Reading { reader: Reader::Job(job), unit, count, ..Reading::default() };
        self.begin_segment(index);
        Some(index)
    }

    /// Ends a read and frees its buffers.
    pub(super) fn end_read(&mut self, read: u16) {
        debug_assert_eq!(self.reads[usize::from(read)].receiving, 0, "a thread still receives into the buffers");
        self.reads[usize::from(read)] = Reading::default();
        self.free_reads.push(read);
    }

    /// Asks for the next segment of a read.
    fn begin_segment(&mut self, read: u16) {
        let Reading { unit, count, done, .. } = self.reads[usize::from(read)];
        let first = unit + done;
        let mut common = self.readable(first);
        let mut len = 1;
        // A segment ends at the border of its extent, because the next extent has other homes.
        let most = self.reach(first, count - done);
        while len < most && self.is_enough(common & self.readable(first + len)) {
            common &= self.readable(first + len);
            len += 1;
        }
        let reading = &mut self.reads[usize::from(read)];
        (reading.len, reading.asked, reading.here) = (len, 0, 0);
        self.fill(read);
    }

    /// Returns the parts of a segment that could be asked for, besides those that are.
    fn others(&self, read: u16) -> u8 {
        let Reading { unit, done, len, asked, receiving, here, .. } = self.reads[usize::from(read)];
        let first = unit + done;
        let common = (first..first + len).fold(self.all_parts(), |common, unit| common & self.readable(unit));
        common & !(asked | receiving | here)
    }

    /// Asks for as many parts as are needed.
    fn fill(&mut self, read: u16) {
        let data = u32::from(self.sizes.data);
        loop {
            let Reading { asked, receiving, here, reader, .. } = self.reads[usize::from(read)];
            if (asked | receiving | here).count_ones() >= data {
                return;
            }
            if self.ask_one_more(read) {
                continue;
            }
            match reader {
                Reader::Program => self.shorten(read),
                Reader::Job(job) => self.give_up(job),
                Reader::Nobody => {}
            }
            return;
        }
    }

    /// The units of a segment no longer have K good parts in common. Begins again with fewer units. If even the first
    /// unit has too few parts, the run cannot go on.
    fn shorten(&mut self, read: u16) {
        let Reading { unit, done, receiving, .. } = self.reads[usize::from(read)];
        if !self.is_enough(self.readable(unit + done)) {
            return self.fail(Fatal::Lost);
        }
        // While a thread receives into a buffer, the segment stays. The thread reports when it has ended.
        if receiving == 0 {
            self.begin_segment(read);
        }
    }

    /// Asks for one more part of a segment. Prefers data parts. Copies are asked in turn, by the extent. Returns false if
    /// no further part is good.
    fn ask_one_more(&mut self, read: u16) -> bool {
        let Reading { unit, done, len, .. } = self.reads[usize::from(read)];
        let (first, others) = (unit + done, self.others(read));
        let extent = self.extent_of(first);
        let turn = if self.sizes.data == 1 { (extent % u32::from(self.parts())) as u8 } else { 0 };
        let part = parts_of(others).find(|&part| part >= turn).or_else(|| parts_of(others).next());
        let Some((part, member)) = part.and_then(|part| Some((part, self.home(extent, part)?))) else { return false };
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let reading = &mut self.reads[usize::from(read)];
        reading.asked |= 1 << part;
        reading.serials[usize::from(part)] = serial;
        reading.to[usize::from(part)] = member as u16;
        let ticket = Ticket { read, part, serial };
        self.requests.push_back(Request { member, ticket, unit: first, count: len });
        true
    }

    /// Returns the read of a ticket if the ticket is valid for one of the parts in `among`.
    fn valid(&mut self, ticket: Ticket, among: impl Fn(&Reading) -> u8) -> Option<&mut Reading> {
        let reading = self.reads.get_mut(usize::from(ticket.read))?;
        let part = usize::from(ticket.part);
        let is_valid = reading.reader != Reader::Nobody
            && part < PARTS_MAX
            && reading.serials[part] == ticket.serial
            && among(&*reading) >> part & 1 != 0;
        is_valid.then_some(reading)
    }

    /// An answer begins to arrive. Says where its bytes go. The thread that receives them must report
    /// [`Self::arrived`] or [`Self::broke_off`] if they go anywhere.
    pub(in crate::redundant) fn arriving(&mut self, ticket: Ticket) -> Landing {
        let data = self.sizes.data;
        #[cfg(test)]
        let lands_late = self.mistake == Some(super::Mistake::LandsLate);
        #[cfg(not(test))]
        let lands_late = false;
        let Some(reading) = self.valid(ticket, |reading| reading.asked) else { return Landing::Nowhere };
        reading.asked &= !(1 << ticket.part);
        let taken = reading.receiving | reading.here;
        if taken.count_ones() >= u32::from(data) && !lands_late {
            return Landing::Nowhere;
        }
        reading.receiving |= 1 << ticket.part;
        let landing = reading.choose(ticket.part, taken, data);
        reading.landings[usize::from(ticket.part)] = landing;
        landing
    }

    /// All bytes of an answer are where [`Self::arriving`] said.
    pub(in crate::redundant) fn arrived(&mut self, ticket: Ticket) -> Arrived {
        let data = u32::from(self.sizes.data);
        let Some(reading) = self.valid(ticket, |reading| reading.receiving) else { return Arrived::Nothing };
        reading.receiving &= !(1 << ticket.part);
        reading.here |= 1 << ticket.part;
        let (here, reader) = (reading.here, reading.reader);
        if here.count_ones() < data {
            // Nothing is asked for if no further part was good before.
            self.fill(ticket.read);
            return Arrived::Nothing;
        }
        match reader {
            Reader::Job(job) => {
                self.is_ready(job);
                Arrived::Job(job)
            }
            _ => Arrived::Segment(ticket.read),
        }
    }

    /// The bytes of a segment were passed on. Returns true if the read is complete and over.
    pub(in crate::redundant) fn passed_on(&mut self, read: u16) -> bool {
        let reading = &mut self.reads[usize::from(read)];
        reading.done += reading.len;
        if reading.done >= reading.count {
            self.end_read(read);
            return true;
        }
        self.begin_segment(read);
        false
    }

    /// The link broke off in the middle of an answer. The calling thread was receiving it.
    pub(in crate::redundant) fn broke_off(&mut self, ticket: Ticket) {
        if let Some(reading) = self.valid(ticket, |reading| reading.receiving) {
            reading.receiving &= !(1 << ticket.part);
            self.fill(ticket.read);
        }
    }

    /// A server answered that it cannot read its part, or the part that came back is wrong. The part counts as missing,
    /// and is rebuilt. The calling thread no longer receives the part. Returns whether the server should have had the part.
    /// It need not have it if the page was released or written again after the request, or has left the server.
    pub(in crate::redundant) fn damaged(&mut self, ticket: Ticket) -> bool {
        let Some(reading) = self.valid(ticket, |reading| reading.asked | reading.receiving) else { return false };
        reading.asked &= !(1 << ticket.part);
        reading.receiving &= !(1 << ticket.part);
        let Reading { unit, done, len, to, reader, .. } = *reading;
        let (first, member) = (unit + done, usize::from(to[usize::from(ticket.part)]));
        let extent = self.extent_of(first);
        // A void job may have asked for units that were released meanwhile.
        let is_void = matches!(reader, Reader::Job(job) if self.is_void(job));
        let is_home = !is_void && self.home(extent, ticket.part) == Some(member);
        let is_good = |unit: u32| !self.writing.has(unit) && self.good[unit as usize] >> ticket.part & 1 != 0;
        let is_due = is_home && (first..first + len).all(is_good);
        if is_home {
            for unit in first..first + len {
                // A unit that is being written gets a new part.
                if !self.writing.has(unit) && self.good[unit as usize] & !(1 << ticket.part) != 0 {
                    self.good[unit as usize] &= !(1 << ticket.part);
                }
            }
            self.mark_behind(extent);
        }
        match reader {
            // The rebuilder begins again with what is left.
            Reader::Job(job) => self.give_up(job),
            _ if self.is_enough(self.readable(first) & !(1 << ticket.part)) => self.fill(ticket.read),
            // The damaged part was one of the last K.
            _ => self.fail(Fatal::Lost),
        }
        is_due
    }

    /// The program has waited long for a read. Asks for one more part of it. Returns true if there was one.
    pub(in crate::redundant) fn slow(&mut self, read: u16) -> bool {
        let reading = &self.reads[usize::from(read)];
        reading.reader == Reader::Program
            && reading.here.count_ones() < u32::from(self.sizes.data)
            && self.ask_one_more(read)
    }

    /// Asks elsewhere for what was asked of a server that is lost. Parts that a thread is receiving from the server stay
    /// with this thread.
    pub(super) fn ask_elsewhere(&mut self, member: usize) {
        for read in 0..self.reads.len() as u16 {
            let reading = &mut self.reads[usize::from(read)];
            let at_member = |part: &u8| usize::from(reading.to[usize::from(*part)]) == member;
            let lost = parts_of(reading.asked).filter(at_member).fold(0, |mask, part| mask | 1 << part);
            if reading.reader != Reader::Nobody && lost != 0 {
                reading.asked &= !lost;
                self.fill(read);
            }
        }
    }
}

#[cfg(test)]
mod tests;
