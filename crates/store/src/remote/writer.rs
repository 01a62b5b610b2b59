//! A sender, which runs in a thread of its own. It sends write-backs and discards to one server, and reports the end of
//! each write-back.
//!
//! All waiting discards are sent before the next write-back, because they make room for it. There is at most one
//! discard for each slot, and only for slots that were written back before. So the number of discards is bounded, and
//! write-backs do not wait for ever.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

use hanare_paging::{FrameId, PageId};
use hanare_sys::clock::now_ns;
use hanare_sys::futex;
use hanare_wire::limits::{PARTS_MAX, RANGE_MAX};
use hanare_wire::{Ack, AckStatus, LinkError, Wait, Writer};

use super::again::Told;
use super::places::{Discard, Ended, WriteBack};
use super::{EXTENT_BYTES, Remote};
use crate::StoreError;
use crate::guard::KeySpent;

/// The maximum number of bytes that are sent and not yet acknowledged.
const UNACKNOWLEDGED_BYTES_MAX: usize = 8 << 20;
/// The maximum number of messages that are sent and not yet acknowledged. Their answers fit into the socket buffers. So
/// the server never stops because this process does not read its answers.
const UNACKNOWLEDGED_MAX: usize = 1024;
/// The maximum number of discards that are sent in one call.
const DISCARDS_AT_ONCE: usize = 256;

/// A message that the server has not acknowledged yet.
#[derive(Debug)]
pub(super) enum Sent {
    WriteBacks(Vec<WriteBack>),
    Discard(Discard),
    /// A ping whose answer reports the server's room. The number is that of the request for room.
    RoomRequest(u32),
}

/// The end of a write-back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteEnd {
    /// The server holds the page.
    Written,
    /// The server held the same bytes before, and nothing was sent.
    Same,
    /// No server has room.
    Refused,
}

/// The state of the sender of one server.
#[derive(Debug)]
pub struct Sender {
    pub(super) index: usize,
    pub(super) writer: Writer,
    pub(super) unacknowledged: VecDeque<Sent>,
    /// The time since which the server owes the next answer on the clock of [`Remote::awake`].
    pub(super) last_ack_ns: u64,
    bytes_out: usize,
    /// The number of the next message.
    pub(super) tag: u64,
    asked: u32,
    /// The ranges that the server still holds although their pages moved to another server. They are discarded before
    /// anything else is sent.
    vain: Vec<Discard>,
    /// The pages of one message, sealed. Empty until the first such message.
    pub(super) sealed: Vec<u8>,
    /// What the user is to learn about the server.
    pub(super) told: Told,
}

impl Sender {
    pub(super) fn new(index: usize, writer: Writer) -> Self {
        Sender {
            index,
            writer,
            unacknowledged: VecDeque::new(),
            last_ack_ns: 0,
            bytes_out: 0,
            tag: 0,
            asked: 0,
            vain: Vec::new(),
            sealed: Vec::new(),
            told: Told::default(),
        }
    }
}

impl Remote {
    /// Sends what waits for the sender's server, and reads the answers that have arrived. Calls `ended` for each
    /// write-back that has ended, with false if the server held the same bytes before. Sleeps if there is nothing to
    /// do. Returns the number of messages sent. The caller repeats this call in a thread of its own.
    ///
    /// # Errors
    /// The server is lost or silent, it sent invalid data, or no server has room.
    pub fn send(
        &self,
        sender: &mut Sender,
        ended: &mut dyn FnMut(PageId, FrameId, bool),
    ) -> Result<u64, StoreError<'_>> {
        self.send_telling(sender, &mut |page, frame, end| {
            if end != WriteEnd::Refused {
                ended(page, frame, end == WriteEnd::Written);
            }
            end != WriteEnd::Refused
        })
    }

    /// Like [`Self::send`]. Also calls `ended` for a write-back for which no server has room. The result is an error
    /// only if `ended` then returns false.
    pub(crate) fn send_telling(
        &self,
        sender: &mut Sender,
        ended: &mut dyn FnMut(PageId, FrameId, WriteEnd) -> bool,
    ) -> Result<u64, StoreError<'_>> {
        let before = sender.tag;
        Sending { remote: self, sender, ended }.go_on()?;
        Ok(sender.tag - before)
    }
}

/// The arguments of one call of [`Remote::send`].
pub(super) struct Sending<'a, 'b> {
    pub(super) remote: &'a Remote,
    pub(super) sender: &'b mut Sender,
    ended: &'b mut dyn FnMut(PageId, FrameId, WriteEnd) -> bool,
}

impl<'a> Sending<'a, '_> {
    /// Sends the waiting discards and write-backs, and reads the answers that have arrived. Sleeps if there is nothing
    /// to do.
    fn go_on(&mut self) -> Result<(), StoreError<'a>> {
        if self.server().presence.is_lost() {
            return self.open_again();
        }
        let wait_word = self.server().wait_word.load(Acquire);
        // `writes_in_flight` is set before anything is removed from the queue. So a thread that finds the queue empty
        // also finds `writes_in_flight` set.
        self.server().writes_in_flight.store(1, Release);
        // A thread that asks for room has queued its discards before. `asked` is read before the discards are sent, so
        // the server frees these discards first and counts their room in its answer.
        let asked = self.server().asked.load(Acquire);
        if self.send_discards()? {
            self.send_writes()?;
            self.ask(asked)?;
        }
        if self.server().presence.is_lost() {
            return Ok(());
        }
        if self.sender.unacknowledged.is_empty() {
            // Nothing was sent, because the pages were the same. Others may wait, and nobody notifies again for these.
            if self.remote.places.lock().waits_for(self.sender.index) {
                return Ok(());
            }
            self.server().writes_in_flight.store(0, Release);
            futex::wait(&self.server().wait_word, wait_word, Some(Duration::from_millis(200)));
            return Ok(());
        }
        let may_send =
            self.sender.bytes_out < UNACKNOWLEDGED_BYTES_MAX && self.sender.unacknowledged.len() < UNACKNOWLEDGED_MAX;
        let mut wait = match may_send && self.remote.places.lock().waits_for(self.sender.index) {
            true => Wait::Now,
            false => Wait::Block { timeout: Duration::from_millis(20) },
        };
        // The discards in `vain` are sent before the next answer is read.
        while self.sender.vain.is_empty() && self.take_answer(wait)? {
            wait = Wait::Now;
        }
        Ok(())
    }

    pub(super) fn server(&self) -> &'a super::Server {
        &self.remote.servers[self.sender.index]
    }

    pub(super) fn lost(&self, source: LinkError) -> StoreError<'a> {
        self.remote.lost(self.sender.index, source)
    }

    // ---- sending ---------------------------------------------------------------------------------------------------

    /// Sends waiting discards. Returns true if no discard waits after that.
    fn send_discards(&mut self) -> Result<bool, StoreError<'a>> {
        let mut discards = std::mem::take(&mut self.sender.vain);
        let room = UNACKNOWLEDGED_MAX.saturating_sub(self.sender.unacknowledged.len()).min(DISCARDS_AT_ONCE);
        let mut places = self.remote.places.lock();
        places.take_discards(self.sender.index, room, &mut discards);
        let all = !places.discards_wait_for(self.sender.index);
        drop(places);
        if discards.is_empty() {
            return Ok(all);
        }
        let ranges: Vec<(u64, u64, u32)> =
            discards.iter().zip(self.sender.tag..).map(|(discard, tag)| (tag, discard.offset, discard.bytes)).collect();
        self.transmit(discards.into_iter().map(Sent::Discard), |writer, _| writer.discard_many(&ranges))?;
        Ok(all)
    }

    fn send_writes(&mut self) -> Result<(), StoreError<'a>> {
        if self.sender.bytes_out >= UNACKNOWLEDGED_BYTES_MAX || self.sender.unacknowledged.len() >= UNACKNOWLEDGED_MAX {
            return Ok(());
        }
        let mut jobs = Vec::new();
        self.remote.places.lock().take_writes(self.sender.index, RANGE_MAX as usize, &mut jobs);
        jobs.retain(|job| !job.may_be_same || !self.ends_as_same(*job));
        // The order of the write-backs does not matter, because no page occurs twice.
        jobs.sort_by_key(|job| job.page.0);
        let mut rest = jobs.as_slice();
        while !rest.is_empty() {
            let (group, after) = rest.split_at(group_len(rest, self.remote.unit_bytes));
            self.send_group(group)?;
            rest = after;
        }
        Ok(())
    }

    /// Ends a write-back if the server holds the same bytes. The comparison is made here, and not where the page is
    /// evicted, because there a thread of the program waits.
    fn ends_as_same(&mut self, job: WriteBack) -> bool {
        let is_same = self.remote.has_sent(job.page, bytes_of(&job))
            && self.remote.places.lock().end_if_held(job, self.sender.index);
        if is_same {
            // Ignored: the result matters only for a write-back without a server.
            let _ = (self.ended)(job.page, job.frame, WriteEnd::Same);
        }
        is_same
    }

    /// Sends write-backs of adjacent pages in one message. Notes what it sends, so that the pages can be checked when
    /// they come back. A page that another server has refused is noted, and sealed, again.
    fn send_group(&mut self, group: &[WriteBack]) -> Result<(), StoreError<'a>> {
        let mut sealed = std::mem::take(&mut self.sender.sealed);
        self.prepare(group, &mut sealed)?;
        self.sender.bytes_out += group_bytes(group);
        let unit_bytes = self.remote.unit_bytes;
        let frame = Sent::WriteBacks(group.to_vec());
        let sent = self.transmit([frame], |writer, tag| write_group(writer, tag, group, &sealed, unit_bytes));
        self.sender.sealed = sealed;
        sent
    }

    /// Notes the pages of a message that is about to be sent. If pages are sealed, seals them into `sealed`, one after
    /// another. Else `sealed` stays empty.
    pub(super) fn prepare(&self, group: &[WriteBack], sealed: &mut Vec<u8>) -> Result<(), StoreError<'a>> {
        let guard = &self.remote.guard;
        if !guard.seals() {
            group.iter().for_each(|job| guard.note(job.page.0, bytes_of(job)));
            return Ok(());
        }
        // The buffer is allocated once, because no message is longer. This thread may allocate.
        sealed.resize(RANGE_MAX as usize, 0);
        let mut rest = sealed.as_mut_slice();
        for job in group {
            let Some((into, after)) = rest.split_at_mut_checked(job.bytes as usize) else {
                return Err(self.lost(LinkError::Misuse { what: "a message of write-backs is longer than a range" }));
            };
            into.copy_from_slice(bytes_of(job));
            guard.seal(job.page.0, into).map_err(|KeySpent| StoreError::SealSpent)?;
            rest = after;
        }
        Ok(())
    }

    /// Asks for the server's room if there is a new request for it.
    fn ask(&mut self, number: u32) -> Result<(), StoreError<'a>> {
        if std::mem::replace(&mut self.sender.asked, number) != number {
            self.transmit([Sent::RoomRequest(number)], |writer, tag| writer.ping(tag))?;
        }
        Ok(())
    }

    /// Sends messages. `send` gets the number of the first one. If the server is lost and the run waits for it, the
    /// messages are sent when it is back.
    fn transmit(
        &mut self,
        messages: impl IntoIterator<Item = Sent>,
        send: impl FnOnce(&mut Writer, u64) -> Result<(), LinkError>,
    ) -> Result<(), StoreError<'a>> {
        let (before, tag) = (self.sender.unacknowledged.len(), self.sender.tag);
        self.sender.unacknowledged.extend(messages);
        self.sender.tag += (self.sender.unacknowledged.len() - before) as u64;
        if !self.server().presence.is_lost()
            && let Err(source) = send(&mut self.sender.writer, tag)
        {
            self.remote.loses(self.sender.index, source)?;
        }
        // The server's silence counts from the end of sending, because sending may take long.
        if before == 0 {
            self.sender.last_ack_ns = self.remote.awake.now_ns();
            self.server().owes_ack_ns.store(self.sender.last_ack_ns, Relaxed);
        }
        Ok(())
    }

    // ---- answers ---------------------------------------------------------------------------------------------------

    /// Reads one answer and acts on it. Returns false if no answer arrived within `wait`, or if none is due.
    fn take_answer(&mut self, wait: Wait) -> Result<bool, StoreError<'a>> {
        let due = self.sender.tag - self.sender.unacknowledged.len() as u64;
        if due == self.sender.tag {
            return Ok(false);
        }
        let looked_ns = now_ns();
        let (remote, index) = (self.remote, self.sender.index);
        let loses = |source| remote.loses(index, source).map(|()| false);
        let ack = match self.sender.writer.try_ack(wait) {
            Err(source) => return loses(source),
            Ok(None) if self.remote.is_silent(self.sender.last_ack_ns, looked_ns) => {
                return loses(self.remote.silence());
            }
            Ok(None) => return Ok(false),
            Ok(Some(ack)) if ack.tag == due => ack,
            Ok(Some(_)) => return Err(self.lost(LinkError::Garbage { what: "an acknowledgement of nothing" })),
        };
        self.sender.last_ack_ns = self.remote.awake.now_ns();
        if ack.status != AckStatus::Done {
            self.remote.places.lock().placement.close(self.sender.index);
        }
        let acknowledged = self.sender.unacknowledged.pop_front();
        let owes_ns = if self.sender.unacknowledged.is_empty() { 0 } else { self.sender.last_ack_ns };
        self.server().owes_ack_ns.store(owes_ns, Relaxed);
        let asking = match acknowledged {
            Some(Sent::WriteBacks(group)) => {
                self.sender.bytes_out -= group_bytes(&group);
                self.written(&group, &ack)?;
                None
            }
            Some(Sent::RoomRequest(number)) => Some(number),
            Some(Sent::Discard(_)) | None => None,
        };
        // The room is recorded after the write-backs, because the server's report already counts their pages as held.
        if ack.status == AckStatus::Done {
            self.remote.note_room(self.sender.index, ack.capacity_bytes);
        }
        if let Some(number) = asking {
            self.server().answered.store(number, Release);
            futex::wake_all(&self.server().answered);
        }
        Ok(true)
    }

    fn written(&mut self, group: &[WriteBack], ack: &Ack) -> Result<(), StoreError<'a>> {
        for &job in group {
            let took = ack.status == AckStatus::Done;
            let ended = self.remote.places.lock().ended(job, self.sender.index, took, &mut self.sender.vain);
            match ended {
                Ended::Held => {
                    // Ignored: the result matters only for a write-back without a server.
                    let _ = (self.ended)(job.page, job.frame, WriteEnd::Written);
                }
                Ended::GoesTo(other) => self.remote.notify(other),
                Ended::Nowhere if (self.ended)(job.page, job.frame, WriteEnd::Refused) => {}
                Ended::Nowhere => return Err(self.remote.full()),
            }
        }
        Ok(())
    }
}

/// Sends write-backs of adjacent pages as message `tag`: the bytes that [`Sending::prepare`] has sealed, or the pages as
/// they are if `sealed` is empty.
pub(super) fn write_group(
    writer: &mut Writer,
    tag: u64,
    group: &[WriteBack],
    sealed: &[u8],
    unit_bytes: usize,
) -> Result<(), LinkError> {
    let offset = start(&group[0], unit_bytes);
    match sealed.get(..group_bytes(group)) {
        Some(sealed) => writer.write(tag, offset, &[IoSlice::new(sealed)]),
        None => {
            let parts: Vec<IoSlice<'_>> = group.iter().map(|job| IoSlice::new(bytes_of(job))).collect();
            writer.write(tag, offset, &parts)
        }
    }
}

/// Returns the bytes of a page that is being written.
fn bytes_of(job: &WriteBack) -> &[u8] {
    // SAFETY: `job.from` is the address of `job.bytes` bytes. The caller of `Store::write` keeps them unchanged until the
    // end of the write is reported.
    unsafe { std::slice::from_raw_parts(job.from as *const u8, job.bytes as usize) }
}

/// Returns how many of these write-backs, sorted by page, go into one message. Their pages are adjacent, in one extent,
/// and within the size of a message.
fn group_len(jobs: &[WriteBack], unit_bytes: usize) -> usize {
    let joined = jobs.windows(2).take_while(|pair| {
        let next = start(&pair[1], unit_bytes);
        start(&pair[0], unit_bytes) + u64::from(pair[0].bytes) == next && !next.is_multiple_of(EXTENT_BYTES as u64)
    });
    1 + joined.take(PARTS_MAX - 1).count()
}

fn group_bytes(group: &[WriteBack]) -> usize {
    group.iter().map(|job| job.bytes as usize).sum()
}

/// Returns the offset of a write-back's first byte in far memory.
fn start(job: &WriteBack, unit_bytes: usize) -> u64 {
    u64::from(job.page.0) * unit_bytes as u64
}
