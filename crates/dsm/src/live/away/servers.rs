//! Memory servers behind links: reads and writes of runs of pages, writes acknowledged later.
//!
//! Reads and writes of a session travel on two connections, so a page whose write is not acknowledged yet is waited for
//! before it is read again.
#![allow(unsafe_code, reason = "memory that is only borrowed from the program")]

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use hanare_wire::limits::RANGE_MAX;
use hanare_wire::{AckStatus, Key, LinkError, ReadReplies, ReadRequests, Session, SessionOptions, Wait, Writer};

use super::{AwayError, PAGE};
use crate::coherence::Run;
use hanare_settings::ServerSpec;

/// Bytes written and not acknowledged, beyond which a writer waits.
const UNACKNOWLEDGED_MAX: u64 = 8 << 20;
/// Writes and discards not acknowledged, likewise.
const SENT_MAX: usize = 4096;
/// Neighbouring pages that go to one server while it has room.
const STRETCH_PAGES: usize = 512;
/// Room below which a server gets no new pages as long as another has more: what other ranks take is heard of late.
const MARGIN_BYTES: u64 = 4 << 20;
/// Attempts to receive a page before sleeping for it.
const ATTEMPTS: u32 = 50;
/// One sleep while something is waited for.
const NAP: Duration = Duration::from_millis(20);
/// Pages read by one request.
const RUN_MAX: usize = RANGE_MAX as usize / PAGE;

struct Server {
    name: String,
    requests: ReadRequests,
    replies: ReadReplies,
    writer: Writer,
    /// Number of the next write, and those not acknowledged, in order: what pages, none for a discard.
    tag: u64,
    sent: VecDeque<Option<Run>>,
    sent_bytes: u64,
    /// Bytes it can still take, as far as is known, and bytes that it may still be used for.
    room_bytes: u64,
    left_bytes: u64,
}

pub(in crate::live) struct Servers {
    servers: Vec<Server>,
    /// Which server holds a page: its number plus one; 0 is none. Likewise which one the last page of a stretch went to.
    of_page: Vec<u8>,
    of_stretch: Vec<u8>,
    silent: Duration,
}

impl Server {
    fn open(spec: &ServerSpec, key: Option<Key>, silent: Duration, ranks: u16) -> Result<Self, AwayError> {
        let name = format!("memory server {}", spec.endpoint);
        let mut options = SessionOptions::for_endpoint(&spec.endpoint, PAGE as u32);
        (options.key, options.silent_timeout) = (key, silent);
        let lost = |source| AwayError::Lost { server: name.clone(), source };
        let (requests, replies, writer, info) = Session::open(&spec.endpoint, &options).map_err(lost)?.split();
        Ok(Self {
            name,
            requests,
            replies,
            writer,
            tag: 0,
            sent: VecDeque::new(),
            sent_bytes: 0,
            room_bytes: info.capacity_bytes,
            // What the user gives is for all ranks.
            left_bytes: spec.capacity.map_or(u64::MAX, |bytes| bytes / u64::from(ranks)),
        })
    }

    fn lost(&self, source: LinkError) -> AwayError {
        AwayError::Lost { server: self.name.clone(), source }
    }

    fn room(&self) -> u64 {
        self.room_bytes.saturating_sub(self.sent_bytes).min(self.left_bytes)
    }

    /// Takes one acknowledgement; says whether there was any.
    fn acknowledged(&mut self, wait: Wait) -> Result<bool, AwayError> {
        let ack = match self.writer.try_ack(wait) {
            Ok(Some(ack)) => ack,
            Ok(None) => return Ok(false),
            Err(error) => return Err(self.lost(error)),
        };
        let is_next = ack.tag + self.sent.len() as u64 == self.tag;
        let Some(sent) = self.sent.pop_front().filter(|_| is_next) else {
            return Err(self.lost(LinkError::Garbage { what: "an acknowledgement of nothing" }));
        };
        self.sent_bytes -= bytes_of(sent);
        self.room_bytes = ack.capacity_bytes;
        if ack.status == AckStatus::Done { Ok(true) } else { Err(AwayError::Full) }
    }

    /// Waits for acknowledgements until enough is done.
    fn wait_until(&mut self, silent: Duration, enough: impl Fn(&Self) -> bool) -> Result<(), AwayError> {
        let mut since = Instant::now();
        while !enough(self) {
            if self.acknowledged(Wait::Block { timeout: NAP })? {
                since = Instant::now();
            } else if since.elapsed() > silent {
                return Err(self.lost(LinkError::Silent { seconds: silent.as_secs().max(1) as u32 }));
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for [`super::Away::write`].
    unsafe fn write(&mut self, run: Run, from: *const u8, silent: Duration) -> Result<(), AwayError> {
        // SAFETY: so many bytes are there, and nobody writes to them meanwhile, as the caller promises.
        let bytes = unsafe { std::slice::from_raw_parts(from, run.count as usize * PAGE) };
        let offset = u64::from(run.first) * PAGE as u64;
        self.wait_until(silent, |server| server.sent_bytes < UNACKNOWLEDGED_MAX && server.sent.len() < SENT_MAX)?;
        self.writer.write(self.tag, offset, &[IoSlice::new(bytes)]).map_err(|error| self.lost(error))?;
        self.tag += 1;
        self.sent.push_back(Some(run));
        self.sent_bytes += bytes_of(Some(run));
        while self.acknowledged(Wait::Now)? {}
        Ok(())
    }

    fn discard(&mut self, run: Run, silent: Duration) -> Result<(), AwayError> {
        self.wait_until(silent, |server| server.sent.len() < SENT_MAX)?;
        let len = run.count * PAGE as u32;
        self.left_bytes = self.left_bytes.saturating_add(u64::from(len));
        self.writer.discard(self.tag, u64::from(run.first) * PAGE as u64, len).map_err(|error| self.lost(error))?;
        self.tag += 1;
        self.sent.push_back(None);
        while self.acknowledged(Wait::Now)? {}
        Ok(())
    }

    /// Asks for a run once nothing of it is on its way out any more.
    fn request(&mut self, run: Run, silent: Duration) -> Result<(), AwayError> {
        let is_free =
            |sent: &Option<Run>| sent.is_none_or(|sent| sent.pages().end <= run.first || sent.first >= run.pages().end);
        self.wait_until(silent, |server| server.sent.iter().all(is_free))?;
        let (tag, offset) = (u64::from(run.first), u64::from(run.first) * PAGE as u64);
        self.requests.request(tag, offset, (run.count as usize * PAGE) as u32).map_err(|error| self.lost(error))
    }

    /// # Safety
    /// The run fits at `to`, and nobody else touches it meanwhile.
    unsafe fn receive(&mut self, run: Run, to: *mut u8, silent: Duration) -> Result<(), AwayError> {
        let since = Instant::now();
        let len = run.count as usize * PAGE;
        let mut wait = Wait::Spin { iterations: ATTEMPTS };
        loop {
            match self.replies.try_header(std::mem::replace(&mut wait, Wait::Block { timeout: NAP })) {
                Ok(Some(header)) if header.tag == u64::from(run.first) && header.len as usize == len => break,
                Ok(Some(_)) => return Err(self.lost(LinkError::Garbage { what: "a page that was not asked for" })),
                Ok(None) if since.elapsed() > silent => {
                    return Err(self.lost(LinkError::Silent { seconds: silent.as_secs().max(1) as u32 }));
                }
                Ok(None) => {}
                Err(error) => return Err(self.lost(error)),
            }
        }
        // SAFETY: the caller's promise.
        let into = unsafe { std::slice::from_raw_parts_mut(to, len) };
        self.replies.receive_payload(into).map_err(|error| self.lost(error))
    }
}

fn bytes_of(sent: Option<Run>) -> u64 {
    sent.map_or(0, |run| u64::from(run.count) * PAGE as u64)
}

impl Servers {
    pub(super) fn open(
        specs: &[ServerSpec],
        key: Option<Key>,
        silent: Duration,
        pages: u32,
        ranks: u16,
    ) -> Result<Self, AwayError> {
        let servers = specs.iter().map(|spec| Server::open(spec, key.clone(), silent, ranks));
        let pages = pages as usize;
        Ok(Self {
            servers: servers.collect::<Result<_, _>>()?,
            of_page: vec![0; pages],
            of_stretch: vec![0; pages.div_ceil(STRETCH_PAGES)],
            silent,
        })
    }

    pub(super) fn holds(&self, page: u32) -> bool {
        self.of_page[page as usize] != 0
    }

    /// Pages on each server.
    #[cfg(test)]
    pub(super) fn used(&self) -> Vec<usize> {
        let on = |server| self.of_page.iter().filter(|&&of| usize::from(of) == server + 1).count();
        (0..self.servers.len()).map(on).collect()
    }

    fn server_of(&self, page: u32) -> usize {
        usize::from(self.of_page[page as usize]).saturating_sub(1)
    }

    /// Gives a page its place, unless it has one.
    fn place(&mut self, page: u32) -> Result<(), AwayError> {
        if self.holds(page) {
            return Ok(());
        }
        let stretch = page as usize / STRETCH_PAGES;
        let before = usize::from(self.of_stretch[stretch]).checked_sub(1);
        let server = match before.filter(|&server| self.servers[server].room() > MARGIN_BYTES) {
            Some(server) => server,
            None => {
                // The first of those with most room.
                let most = self.servers.iter().enumerate().rev().max_by_key(|(_, server)| server.room());
                most.filter(|(_, server)| server.room() >= PAGE as u64).ok_or(AwayError::Full)?.0
            }
        };
        self.of_stretch[stretch] = server as u8 + 1;
        self.of_page[page as usize] = server as u8 + 1;
        let left = &mut self.servers[server].left_bytes;
        *left = left.saturating_sub(PAGE as u64);
        Ok(())
    }

    /// The parts of ascending pages that one request reaches: neighbours on one server.
    fn runs<'a>(&'a self, pages: &'a [u32]) -> impl Iterator<Item = (usize, Run)> + 'a {
        let joins = |a: &u32, b: &u32| a + 1 == *b && self.server_of(*a) == self.server_of(*b);
        pages
            .chunk_by(joins)
            .flat_map(|part| part.chunks(RUN_MAX))
            .map(|part| (self.server_of(part[0]), Run { first: part[0], count: part.len() as u32 }))
    }

    /// # Safety
    /// As for [`super::Away::write`].
    pub(super) unsafe fn write(&mut self, run: Run, from: *const u8) -> Result<(), AwayError> {
        let pages: Vec<u32> = run.pages().collect();
        pages.iter().try_for_each(|&page| self.place(page))?;
        let runs: Vec<(usize, Run)> = self.runs(&pages).collect();
        for (server, part) in runs {
            // SAFETY: a part of what the caller speaks of.
            unsafe {
                let from = from.add((part.first - run.first) as usize * PAGE);
                self.servers[server].write(part, from, self.silent)?;
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for [`super::Away::read`].
    pub(super) unsafe fn read(&mut self, pages: &[u32], place: impl Fn(u32) -> *mut u8) -> Result<(), AwayError> {
        let runs: Vec<(usize, Run)> = self.runs(pages).collect();
        for &(server, run) in &runs {
            self.servers[server].request(run, self.silent)?;
        }
        for (server, run) in runs {
            // SAFETY: the caller's promise, of neighbouring pages.
            unsafe { self.servers[server].receive(run, place(run.first), self.silent)? };
        }
        Ok(())
    }

    pub(super) fn forget(&mut self, run: Run) -> Result<(), AwayError> {
        let pages: Vec<u32> = run.pages().filter(|&page| self.holds(page)).collect();
        let runs: Vec<(usize, Run)> = self.runs(&pages).collect();
        for (server, run) in runs {
            self.of_page[run.first as usize..][..run.count as usize].fill(0);
            self.servers[server].discard(run, self.silent)?;
        }
        Ok(())
    }

    pub(super) fn links(&self) -> Vec<BorrowedFd<'_>> {
        self.servers.iter().flat_map(|server| [server.requests.as_fd(), server.writer.as_fd()]).collect()
    }

    pub(super) fn look(&mut self) -> Result<(), AwayError> {
        for server in &mut self.servers {
            while server.acknowledged(Wait::Now)? {}
            // Nothing is asked for while this is called: what comes is the end, or nonsense.
            match server.replies.try_header(Wait::Now) {
                Ok(None) => {}
                Ok(Some(_)) => return Err(server.lost(LinkError::Garbage { what: "a page that was not asked for" })),
                Err(error) => return Err(server.lost(error)),
            }
        }
        Ok(())
    }
}
