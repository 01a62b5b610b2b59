//! The life of a writer thread: what waits for a server goes there, and what the server answers is told.
//!
//! Discards go first: they make room for what is written. All of them go before the next write-back, and they are no more
//! than there are slots, each of which was written back before, so that write-backs are not kept waiting without end.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

use hanare_paging::Event;
use hanare_sys::futex;
use hanare_wire::limits::{PARTS_MAX, RANGE_MAX};
use hanare_wire::{Ack, AckStatus, LinkError, Wait, Writer};

use super::places::{Discard, Ended, WriteBack};
use super::{Remote, STRETCH_BYTES, Server};
use crate::clock::now_ns;
use crate::store::Client;

/// Bytes a writer has sent and not seen acknowledged.
const UNACKNOWLEDGED_BYTES_MAX: usize = 8 << 20;
/// Frames it has sent and not seen acknowledged: their answers fit into the buffers between, so that the server never
/// stands still with an answer that nobody takes.
const UNACKNOWLEDGED_MAX: usize = 1024;
/// Discards sent at once.
const DISCARDS_AT_ONCE: usize = 256;

/// What a frame was that a server has not answered yet.
enum Sent {
    WriteBacks(Vec<WriteBack>),
    Discard,
    /// A sign of life was asked for, which tells of the server's room: the asking with this number.
    Asking(u32),
}

struct Sender<'a, C: Client> {
    remote: &'a Remote,
    client: &'a C,
    index: usize,
    server: &'a Server,
    writer: Writer,
    unacknowledged: VecDeque<Sent>,
    /// Since when the server owes the next answer.
    last_ack_ns: u64,
    bytes_out: usize,
    /// The number of the next frame.
    tag: u64,
    asked: u32,
    /// What the server keeps in vain: to be discarded before anything else is sent.
    vain: Vec<Discard>,
}

impl Remote {
    /// Serves one server's queue until the process ends.
    pub(crate) fn run_writer<C: Client>(&self, client: &C, index: usize, writer: Writer) {
        let mut sender = Sender {
            remote: self,
            client,
            index,
            server: &self.servers[index],
            writer,
            unacknowledged: VecDeque::new(),
            last_ack_ns: 0,
            bytes_out: 0,
            tag: 0,
            asked: 0,
            vain: Vec::new(),
        };
        loop {
            sender.go_on();
        }
    }
}

impl<C: Client> Sender<'_, C> {
    /// Sends what waits and takes the answers that have come; sleeps when there is neither.
    fn go_on(&mut self) {
        let bell = self.server.bell.load(Acquire);
        // Before anything is taken from the queue: who finds that empty finds this set.
        self.server.writes_in_flight.store(1, Release);
        // Who asks for the room has given back before what it wants to see counted.
        let asked = self.server.asked.load(Acquire);
        if self.send_discards() {
            self.send_writes();
            self.ask(asked);
        }
        if self.unacknowledged.is_empty() {
            self.server.writes_in_flight.store(0, Release);
            futex::wait(&self.server.bell, bell, Some(Duration::from_millis(200)));
            return;
        }
        let may_send = self.bytes_out < UNACKNOWLEDGED_BYTES_MAX && self.unacknowledged.len() < UNACKNOWLEDGED_MAX;
        let mut wait = match may_send && self.remote.places.lock().waits_for(self.index) {
            true => Wait::Now,
            false => Wait::Block { timeout: Duration::from_millis(20) },
        };
        // What a server keeps in vain goes out before the next answer is looked at.
        while self.vain.is_empty() && self.take_answer(wait) {
            wait = Wait::Now;
        }
    }

    // ---- sending ------------------------------------------------------------------------------------------------------

    /// Sends the discards that wait; whether that were all.
    fn send_discards(&mut self) -> bool {
        let mut discards = std::mem::take(&mut self.vain);
        let room = UNACKNOWLEDGED_MAX.saturating_sub(self.unacknowledged.len()).min(DISCARDS_AT_ONCE);
        let mut places = self.remote.places.lock();
        places.take_discards(self.index, room, &mut discards);
        let all = !places.discards_wait_for(self.index);
        drop(places);
        if discards.is_empty() {
            return all;
        }
        let ranges: Vec<(u64, u64, u32)> =
            discards.iter().zip(self.tag..).map(|(discard, tag)| (tag, discard.offset, discard.bytes)).collect();
        if let Err(error) = self.writer.discard_many(&ranges) {
            self.remote.lost(self.index, &error);
        }
        for _ in &discards {
            self.sent(Sent::Discard);
        }
        all
    }

    fn send_writes(&mut self) {
        if self.bytes_out >= UNACKNOWLEDGED_BYTES_MAX || self.unacknowledged.len() >= UNACKNOWLEDGED_MAX {
            return;
        }
        let mut jobs = Vec::new();
        self.remote.places.lock().take_writes(self.index, RANGE_MAX as usize, &mut jobs);
        // They may change places among each other, for no page is twice among them.
        jobs.sort_by_key(|job| job.page.0);
        let mut rest = jobs.as_slice();
        while !rest.is_empty() {
            let (group, after) = rest.split_at(group_len(rest, self.remote.unit_bytes));
            self.send_group(group);
            rest = after;
        }
    }

    /// Sends write-backs of adjacent pages in one frame.
    fn send_group(&mut self, group: &[WriteBack]) {
        let parts: Vec<IoSlice<'_>> = group
            .iter()
            .map(|job| {
                // SAFETY: a frame being written back is not disturbed until its end is told, so its bytes do not change
                // while they are sent.
                IoSlice::new(unsafe { std::slice::from_raw_parts(self.client.frame(job.frame), job.bytes as usize) })
            })
            .collect();
        if let Err(error) = self.writer.write(self.tag, start(&group[0], self.remote.unit_bytes), &parts) {
            self.remote.lost(self.index, &error);
        }
        self.bytes_out += group_bytes(group);
        self.sent(Sent::WriteBacks(group.to_vec()));
    }

    /// Asks for the server's room, if that is wished for.
    fn ask(&mut self, number: u32) {
        if std::mem::replace(&mut self.asked, number) == number {
            return;
        }
        if let Err(error) = self.writer.ping(self.tag) {
            self.remote.lost(self.index, &error);
        }
        self.sent(Sent::Asking(number));
    }

    fn sent(&mut self, frame: Sent) {
        self.client.requested();
        self.tag += 1;
        if self.unacknowledged.is_empty() {
            self.last_ack_ns = now_ns();
        }
        self.unacknowledged.push_back(frame);
    }

    // ---- answers ------------------------------------------------------------------------------------------------------

    /// Takes one answer; false when none came within `wait`, or none is due.
    fn take_answer(&mut self, wait: Wait) -> bool {
        let due = self.tag - self.unacknowledged.len() as u64;
        if due == self.tag {
            return false;
        }
        let looked_ns = now_ns();
        let ack = match self.writer.try_ack(wait) {
            Ok(None) => {
                if self.remote.is_silent(self.last_ack_ns, looked_ns) {
                    self.remote.lost_in_silence(self.index);
                }
                return false;
            }
            Ok(Some(ack)) if ack.tag == due => ack,
            Ok(Some(_)) => self.remote.lost(self.index, &LinkError::Garbage { what: "an acknowledgement of nothing" }),
            Err(error) => self.remote.lost(self.index, &error),
        };
        self.last_ack_ns = now_ns();
        if ack.status != AckStatus::Done {
            self.remote.places.lock().placement.close(self.index);
        }
        let asking = match self.unacknowledged.pop_front() {
            Some(Sent::WriteBacks(group)) => {
                self.bytes_out -= group_bytes(&group);
                self.written(&group, &ack);
                None
            }
            Some(Sent::Asking(number)) => Some(number),
            Some(Sent::Discard) | None => None,
        };
        // Only now, for what was just written counts as held.
        if ack.status == AckStatus::Done {
            self.remote.heard(self.index, ack.capacity_bytes);
        }
        if let Some(number) = asking {
            self.server.answered.store(number, Release);
            futex::wake_all(&self.server.answered);
        }
        true
    }

    fn written(&mut self, group: &[WriteBack], ack: &Ack) {
        for &job in group {
            let took = ack.status == AckStatus::Done;
            let ended = self.remote.places.lock().ended(job, self.index, took, &mut self.vain);
            match ended {
                // That the page is held is marked when the pager is told so.
                Ended::Held => {
                    self.client.ended(Event::WrittenBack { page: job.page, frame: job.frame, ok: true });
                }
                Ended::GoesTo(other) => self.remote.ring(other),
                Ended::Nowhere => self.remote.full(),
            }
        }
    }
}

/// How many of these write-backs, in the order of their pages, go in one frame: adjacent ones, within its bounds and one
/// stretch.
fn group_len(jobs: &[WriteBack], unit_bytes: usize) -> usize {
    let joined = jobs.windows(2).take_while(|pair| {
        let next = start(&pair[1], unit_bytes);
        start(&pair[0], unit_bytes) + u64::from(pair[0].bytes) == next && !next.is_multiple_of(STRETCH_BYTES as u64)
    });
    1 + joined.take(PARTS_MAX - 1).count()
}

fn group_bytes(group: &[WriteBack]) -> usize {
    group.iter().map(|job| job.bytes as usize).sum()
}

/// Offset of a write-back's first byte in far memory.
fn start(job: &WriteBack, unit_bytes: usize) -> u64 {
    u64::from(job.page.0) * unit_bytes as u64
}
