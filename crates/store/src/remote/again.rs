//! Waits for a memory server that is lost, and opens its links again.
//!
//! A thread that finds a link ended or a server silent records the server as lost ([`Remote::loses`]). Until the server is
//! back, no thread uses its links. Reads are recorded, write-backs and discards stay in their queues, and threads that
//! wait for a page nap. So the fault path needs nothing else.
//!
//! The server's sender tries to join the session again. When it succeeds, it sends every message that was not
//! acknowledged once more, in the order of the first time, and asks once more for every page that is expected. The
//! server may have carried out any of these messages before. Carrying them out again in order has the same effect,
//! because the server has ended the old links before: no older message can follow. A page is read only after its
//! write-back was acknowledged, so no read sees an intermediate state.

use std::fmt;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Duration;

use hanare_sys::clock::now_ns;
use hanare_sys::descriptors;
use hanare_sys::futex::{self, LockCell};
use hanare_wire::{LinkError, Rejoined, Session, Wait, Writer};

use super::writer::{Sender, Sending, Sent, write_group};
use super::{Remote, Requests};
use crate::StoreError;

/// The time between two attempts to reach a lost server.
const RETRY: Duration = Duration::from_secs(1);
/// The length of a nap in place of a spin.
const NAP: Duration = Duration::from_micros(200);
/// The maximum number of pages that are asked for again in one system call.
const ASKED_AT_ONCE: usize = 32;

/// Whether a server is there.
#[derive(Default)]
pub(super) struct Presence {
    /// A futex word: how often the server was lost, plus how often it came back. It is odd while the server is lost. It
    /// changes only under the lock of `why`, or in the thread that opens the links again.
    turns: AtomicU32,
    /// Why the server was lost, until its sender has taken the reason.
    why: LockCell<Option<LinkError>>,
}

impl Presence {
    pub(super) fn is_lost(&self) -> bool {
        self.turns.load(Acquire) % 2 == 1
    }

    /// Sleeps while the server is lost, at most as long as a thread would wait for a page.
    pub(super) fn nap(&self, wait: Wait) {
        let timeout = match wait {
            Wait::Now => return,
            Wait::Spin { .. } => NAP,
            Wait::Block { timeout } => timeout,
        };
        let turns = self.turns.load(Acquire);
        if turns % 2 == 1 {
            futex::wait(&self.turns, turns, Some(timeout));
        }
    }
}

/// What a sender knows of its server's absence.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// What the user is to learn next.
    news: Option<News>,
    /// When the server was lost, in nanoseconds on CLOCK_MONOTONIC.
    lost_ns: u64,
}

/// A change of a server's presence.
#[derive(Debug)]
enum News {
    Lost(LinkError),
    Back { seconds: u64 },
}

/// A message about a server that is lost or back, for the user. It has no line end.
#[derive(Debug)]
pub struct Notice<'a> {
    server: &'a str,
    news: News,
}

impl fmt::Display for Notice<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = self.server;
        match &self.news {
            News::Lost(why) => write!(out, "{server}: {why}; the program waits until this server is back"),
            News::Back { seconds } => write!(out, "{server} is back after {seconds} s; the program goes on"),
        }
    }
}

/// Checks whether an error of a link may pass by itself. After any other error, waiting would be in vain.
pub(crate) fn passes(error: &LinkError) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionReset, HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
    match error {
        LinkError::Closed | LinkError::TimedOut | LinkError::Silent { .. } => true,
        LinkError::Unreachable { .. } | LinkError::Busy { .. } => true,
        LinkError::Io { source, .. } => matches!(
            source.kind(),
            ConnectionAborted | ConnectionReset | HostUnreachable | NetworkDown | NetworkUnreachable | TimedOut
        ),
        _ => false,
    }
}

impl Remote {
    /// Makes the store wait for a server that is lost, until the server is back with this session.
    #[must_use]
    pub(crate) fn waiting(mut self) -> Self {
        self.waits = true;
        self
    }

    /// Checks whether any server is lost.
    pub(crate) fn is_waiting(&self) -> bool {
        self.servers.iter().any(|server| server.presence.is_lost())
    }

    /// Returns how often servers were lost or came back.
    pub(crate) fn turns(&self) -> u32 {
        self.servers.iter().fold(0, |sum: u32, server| sum.wrapping_add(server.presence.turns.load(Acquire)))
    }

    /// Records that a server is lost, if the run waits for it. The caller holds a lock of the failed link, or is the
    /// server's sender. So the link is not one that was opened since.
    ///
    /// # Errors
    /// The run does not wait for the server, or the error will not pass.
    pub(super) fn loses(&self, index: usize, source: LinkError) -> Result<(), StoreError<'_>> {
        if !self.waits || !passes(&source) {
            return Err(self.lost(index, source));
        }
        let presence = &self.servers[index].presence;
        let mut why = presence.why.lock();
        if !presence.is_lost() {
            *why = Some(source);
            presence.turns.fetch_add(1, AcqRel);
        }
        drop(why);
        self.notify(index);
        Ok(())
    }

    /// Clones the session with one server. Waits for the server if it is lost and the run waits for it.
    pub(super) fn share_one(&self, index: usize, limit: Option<Duration>) -> Result<Session, LinkError> {
        let server = &self.servers[index];
        let mut options = server.options.clone();
        options.connect_timeout = limit.unwrap_or(options.connect_timeout);
        loop {
            while server.presence.is_lost() {
                server.presence.nap(Wait::Block { timeout: RETRY });
            }
            match Session::open_clone(&server.info, &options) {
                Err(source) if self.waits && passes(&source) => {
                    let _replies = server.replies.lock();
                    // This cannot fail, because the condition above is that of `loses`.
                    let (Ok(()) | Err(_)) = self.loses(index, source);
                }
                opened => return opened,
            }
        }
    }

    /// Returns what the user is to learn about the sender's server since the last call. The caller asks after each call of
    /// [`Remote::send`].
    pub fn notice(&self, sender: &mut Sender) -> Option<Notice<'_>> {
        let news = sender.told.news.take()?;
        Some(Notice { server: &self.servers[sender.index].name, news })
    }
}

impl<'a> Sending<'a, '_> {
    /// Tries once to open the links of the lost server again. If this fails, sleeps for a while.
    pub(super) fn open_again(&mut self) -> Result<(), StoreError<'a>> {
        let presence = &self.server().presence;
        let why = presence.why.lock().take();
        if let Some(why) = why {
            // The user learns of the loss before the first attempt, because an attempt may take seconds.
            (self.sender.told.news, self.sender.told.lost_ns) = (Some(News::Lost(why)), now_ns());
            return Ok(());
        }
        match self.join_again()? {
            Ok(()) => {
                let seconds = now_ns().saturating_sub(self.sender.told.lost_ns) / 1_000_000_000;
                self.sender.told.news = Some(News::Back { seconds });
                // The next message asks for room, which may have changed. It also shows the server that this process is
                // there, even if no page is on its way.
                self.server().asked.fetch_add(1, AcqRel);
                Ok(())
            }
            Err(LinkError::Io { .. }) => self.rest(),
            Err(source) if passes(&source) => self.rest(),
            Err(source) => Err(self.lost(source)),
        }
    }

    fn rest(&self) -> Result<(), StoreError<'a>> {
        self.server().presence.nap(Wait::Block { timeout: RETRY });
        Ok(())
    }

    /// Joins the session again, and sends and asks again for all that has no answer. The inner error may pass.
    fn join_again(&mut self) -> Result<Result<(), LinkError>, StoreError<'a>> {
        let server = self.server();
        let mut rejoined = match Rejoined::open(&server.info, &server.options) {
            Ok(rejoined) => rejoined,
            Err(source) => return Ok(Err(source)),
        };
        if let Err(source) = self.send_again(rejoined.writer())? {
            return Ok(Err(source));
        }
        // The locks in the order in which a receiving thread takes them. Nothing is allocated or freed under them: a
        // thread that waits for them may hold a lock of the allocator.
        let mut replies = server.replies.lock();
        let mut requests = server.requests.lock();
        let (installed, replaced) = rejoined.install(&mut requests.link, &mut replies.link);
        let is_asked = ask_again(&mut requests, self.remote.unit_bytes);
        if installed.is_ok() && is_asked.is_ok() {
            server.last_reply_ns.store(self.remote.awake.now_ns(), Relaxed);
            server.presence.turns.fetch_add(1, AcqRel);
        }
        drop(requests);
        drop(replies);
        futex::wake_all(&server.presence.turns);
        let copy = replaced.as_fd().as_raw_fd();
        descriptors::forget(copy);
        drop(replaced);
        // Without its number, the link could not be polled any more. So this error is final.
        let writer = installed.map_err(|source| self.lost(source))?;
        let old = std::mem::replace(&mut self.sender.writer, writer);
        descriptors::forget(old.as_fd().as_raw_fd());
        self.sender.last_ack_ns = self.remote.awake.now_ns();
        Ok(is_asked)
    }

    /// Sends every message that was not acknowledged once more, with its old number. The inner error may pass.
    fn send_again(&mut self, writer: &mut Writer) -> Result<Result<(), LinkError>, StoreError<'a>> {
        let first = self.sender.tag - self.sender.unacknowledged.len() as u64;
        let mut sealed = std::mem::take(&mut self.sender.sealed);
        for (message, tag) in self.sender.unacknowledged.iter().zip(first..) {
            let sent = match message {
                Sent::WriteBacks(group) => {
                    self.prepare(group, &mut sealed)?;
                    write_group(writer, tag, group, &sealed, self.remote.unit_bytes)
                }
                Sent::Discard(discard) => writer.discard(tag, discard.offset, discard.bytes),
                Sent::RoomRequest(_) => writer.ping(tag),
            };
            if sent.is_err() {
                return Ok(sent);
            }
        }
        self.sender.sealed = sealed;
        Ok(Ok(()))
    }
}

/// Asks for every expected page again, in order.
fn ask_again(requests: &mut Requests, unit_bytes: usize) -> Result<(), LinkError> {
    let Requests { link, expected } = requests;
    let mut expected = expected.iter();
    loop {
        let mut ranges = [(0, 0, 0); ASKED_AT_ONCE];
        let count = ranges
            .iter_mut()
            .zip(expected.by_ref())
            .map(|(range, read)| {
                let page = u64::from(read.page.0);
                *range = (page, page * unit_bytes as u64, read.bytes);
            })
            .count();
        if count == 0 {
            return Ok(());
        }
        link.request_many(&ranges[..count])?;
    }
}

#[cfg(test)]
mod tests;
