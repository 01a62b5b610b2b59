//! Receives the parts of pages from the members, and passes whole pages on to the reader.

use std::sync::atomic::Ordering::Release;

use hanare_paging::{FrameId, PageId};
use hanare_sys::clock::now_ns;

use super::machine::{Arrived, Landing, Request, Ticket};
use super::news::Why;
use super::{PARTS_MAX, Redundant};
use crate::remote::Remote;
use crate::{Read, Take};

/// Makes the read of a part. A member does not use the frame of a read, so the frame carries the ticket.
pub(super) fn read_of(request: Request, part_bytes: usize) -> Read {
    let Request { ticket: Ticket { read, part, serial }, unit, count, .. } = request;
    let index = u32::from(read) * PARTS_MAX as u32 + u32::from(part);
    Read {
        page: PageId(unit),
        count,
        bytes: count * part_bytes as u32,
        frame: Some(FrameId { wide: false, index }),
        writable: serial,
    }
}

/// Returns the ticket of a part's read.
fn ticket_of(read: &Read) -> Ticket {
    let index = read.frame.map_or(0, |frame| frame.index);
    let (read_index, part) = (index / PARTS_MAX as u32, index % PARTS_MAX as u32);
    Ticket { read: read_index as u16, part: part as u8, serial: read.writable }
}

/// Receives parts for `take`.
pub(super) struct Parts<'a> {
    store: &'a Redundant,
    take: &'a mut dyn Take,
    /// The part that is arriving, and where it goes.
    arriving: Option<(Ticket, Landing)>,
    has_come: bool,
    /// Whether the member did not give a part back that it should have.
    has_failed: bool,
}

impl<'a> Parts<'a> {
    pub(super) fn new(store: &'a Redundant, take: &'a mut dyn Take) -> Self {
        Self { store, take, arriving: None, has_come: false, has_failed: false }
    }

    /// Checks whether any answer came.
    pub(super) fn has_come(&self) -> bool {
        self.has_come
    }

    /// Checks whether the member did not give a part back that it should have.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// The link has ended. If it has ended in the middle of a part, this thread no longer receives the part.
    pub(super) fn break_off(&mut self) {
        if let Some((ticket, landing)) = self.arriving.take()
            && landing != Landing::Nowhere
        {
            self.store.machine.lock().broke_off(ticket);
        }
    }

    /// A part is damaged. Its bytes were received and are not used. Returns whether the member should have had it.
    pub(super) fn damaged(&mut self, read: &Read) -> bool {
        self.arriving = None;
        let mut machine = self.store.machine.lock();
        let is_due = machine.damaged(ticket_of(read));
        self.store.obey(&mut machine);
        drop(machine);
        self.store.notify_rebuilder();
        is_due
    }
}

impl Take for Parts<'_> {
    fn place(&mut self, read: &Read) -> Option<*mut u8> {
        let ticket = ticket_of(read);
        let mut machine = self.store.machine.lock();
        let landing = machine.arriving(ticket);
        let reading = machine.reading(ticket.read);
        drop(machine);
        self.arriving = Some((ticket, landing));
        match landing {
            Landing::Places(part) => Some(self.store.buffers.place(ticket.read, &reading, part)),
            Landing::Region(region) => Some(self.store.buffers.region(ticket.read, region)),
            Landing::Nowhere => None,
        }
    }

    fn stride(&self, part_bytes: usize) -> usize {
        match self.arriving {
            Some((_, Landing::Places(_))) => self.store.measures.shape.unit_bytes,
            _ => part_bytes,
        }
    }

    fn placed(&mut self, _: &Read) {}

    /// Nobody needs these bytes.
    unsafe fn part(&mut self, _: &Read, _: usize, _: *const u8, _: usize) {}

    fn arrived(&mut self, _: &Read) {
        self.has_come = true;
        let Some((ticket, _)) = self.arriving.take().filter(|(_, landing)| *landing != Landing::Nowhere) else {
            return;
        };
        let arrived = self.store.machine.lock().arrived(ticket);
        match arrived {
            Arrived::Nothing => {}
            Arrived::Segment(read) => self.store.pass_on(read, self.take),
            Arrived::Job(_) => self.store.notify_rebuilder(),
        }
    }

    fn spare(&mut self) -> *mut u8 {
        self.take.spare()
    }

    fn failed(&mut self, read: &Read) -> bool {
        self.has_come = true;
        self.has_failed |= self.damaged(read);
        true
    }
}

impl Redundant {
    /// A member gave a page back wrong, or not at all. Loses the member if each page can do without it. Otherwise only the wrong part
    /// is taken from another member, and rebuilt.
    pub(super) fn leave_out(&self, index: usize, remote: &Remote, why: Why) {
        self.members[index].has_failed.store(true, Release);
        let can_go = self.machine.lock().bears_loss_of(index);
        if can_go {
            self.lose(index, remote, why);
        }
    }

    /// Passes a segment of a read on to the reader. Enough parts of it are here.
    fn pass_on(&self, read: u16, take: &mut dyn Take) {
        let reading = self.machine.lock().reading(read);
        let Some(whole) = reading.whole else { return };
        self.buffers.complete(&self.code, read, &reading);
        if reading.is_last() && self.buffers.is_at_reader(read) {
            take.placed(&whole);
        } else if reading.is_last() {
            let from = self.buffers.destination(read).cast_const();
            // SAFETY: the buffer has the bytes of the read, and belongs to this thread until the read is over.
            unsafe { take.part(&whole, 0, from, whole.bytes as usize) };
        }
        if self.machine.lock().passed_on(read) {
            self.pace.ends(read, now_ns());
            take.arrived(&whole);
        }
    }
}
