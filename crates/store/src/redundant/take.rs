//! Receives the parts of pages from the members, and passes whole pages on to the reader.

use std::sync::atomic::Ordering::Release;

use hanare_paging::{FrameId, PageId};
use hanare_sys::clock::now_ns;
use hanare_sys::ready;
use hanare_wire::Wait;

use super::machine::{Arrived, Landing, Request, Ticket};
use super::news::Why;
use super::{Member, PARTS_MAX, Redundant};
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
    /// The read of the program for which the part is.
    whole: Option<Read>,
    has_come: bool,
    /// Whether the member did not give a part back that it should have.
    has_failed: bool,
}

impl<'a> Parts<'a> {
    pub(super) fn new(store: &'a Redundant, take: &'a mut dyn Take) -> Self {
        Self { store, take, arriving: None, whole: None, has_come: false, has_failed: false }
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

    fn straight(&self) -> Option<Read> {
        self.arriving.filter(|(_, landing)| *landing == Landing::Straight).and(self.whole)
    }
}

impl Take for Parts<'_> {
    fn place(&mut self, read: &Read) -> Option<*mut u8> {
        let ticket = ticket_of(read);
        let mut machine = self.store.machine.lock();
        let landing = machine.arriving(ticket);
        self.whole = if landing == Landing::Nowhere { None } else { machine.reading(ticket.read).whole };
        drop(machine);
        self.arriving = Some((ticket, landing));
        match (landing, self.whole) {
            (Landing::Region(region), _) => Some(self.store.buffers.region(ticket.read, region)),
            (Landing::Straight, Some(whole)) => self.take.place(&whole),
            _ => None,
        }
    }

    fn placed(&mut self, _: &Read) {
        if let Some(whole) = self.straight() {
            self.take.placed(&whole);
        }
    }

    unsafe fn part(&mut self, _: &Read, at: usize, from: *const u8, len: usize) {
        if let Some(whole) = self.straight() {
            // SAFETY: the caller promises `len` bytes at `from` that do not change. The part is the whole page.
            unsafe { self.take.part(&whole, at, from, len) };
        }
    }

    fn arrived(&mut self, _: &Read) {
        self.has_come = true;
        let Some((ticket, landing)) = self.arriving.take().filter(|(_, landing)| *landing != Landing::Nowhere) else {
            return;
        };
        let arrived = self.store.machine.lock().arrived(ticket);
        match arrived {
            Arrived::Nothing => {}
            Arrived::Segment(read) => self.store.pass_on(read, landing, self.take),
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

    /// Waits until a part has arrived at any link.
    pub(super) fn wait_for_any(&self, wait: Wait) {
        match wait {
            Wait::Now => {}
            Wait::Spin { iterations } => (0..iterations).for_each(|_| std::hint::spin_loop()),
            Wait::Block { timeout } => {
                let reading = self.members.iter().filter_map(Member::there).filter(|remote| remote.is_reading());
                // Ignored: if the wait fails, the caller checks the links again at once.
                let (Ok(()) | Err(_)) = ready::wait_readable(reading.map(Remote::link), timeout);
            }
        }
    }

    /// Passes a segment of a read on to the reader. Enough parts of it are here.
    fn pass_on(&self, read: u16, landing: Landing, take: &mut dyn Take) {
        let reading = self.machine.lock().reading(read);
        let Some(whole) = reading.whole else { return };
        if landing != Landing::Straight {
            let (done, len) = reading.segment();
            let unit_bytes = self.measures.shape.unit_bytes;
            let (at, bytes) = (done as usize * unit_bytes, len as usize * unit_bytes);
            let is_single = len == reading.units();
            let is_last = done + len == reading.units();
            match take.place(&whole).filter(|_| is_last) {
                Some(place) if is_single => {
                    // SAFETY: `place` is memory for all bytes of the read, and no other code accesses it. The segment
                    // is the whole read.
                    let page = unsafe { std::slice::from_raw_parts_mut(place, bytes) };
                    self.buffers.decode(&self.code, read, &reading, page);
                    take.placed(&whole);
                }
                place => {
                    self.buffers.decode_at(&self.code, read, &reading, at, bytes);
                    if is_last {
                        self.hand_over(read, &whole, place, take);
                    }
                }
            }
        }
        if self.machine.lock().passed_on(read) {
            self.pace.ends(read, now_ns());
            take.arrived(&whole);
        }
    }

    /// Hands all bytes of a read over that were gathered in its buffer.
    fn hand_over(&self, read: u16, whole: &Read, place: Option<*mut u8>, take: &mut dyn Take) {
        let (from, len) = (self.buffers.page(read).cast_const(), whole.bytes as usize);
        match place {
            Some(place) => {
                // SAFETY: `place` is memory for all bytes of the read, and no other code accesses it. The buffer of the
                // read has room for all of them, and belongs to this thread until the read is over.
                unsafe { hanare_sys::copy::copy(from, place, len) };
                take.placed(whole);
            }
            // SAFETY: the buffer has the bytes of the read, and belongs to this thread until the read is over.
            None => unsafe { take.part(whole, 0, from, len) },
        }
    }
}
