//! The workers of a redundant store: one for each member. It sends what waits for the member, gives frames back, and
//! tries to reach the member again after a loss.

use std::sync::atomic::Ordering::*;
use std::time::Duration;

use hanare_paging::{FrameId, PageId};
use hanare_sys::clock::now_ns;
use hanare_sys::{futex, ready};
use hanare_wire::{LinkError, Session};

use super::news::Why;
use super::{GO_ON, Member, REST, RETURNS_MAX, Redundant};
use crate::StoreError;
use crate::remote::{Remote, Sender, WriteEnd};

/// The time between two attempts to reach a lost server.
const RETRY: Duration = Duration::from_secs(1);
/// The longest sleep of a worker without work.
const NAP: Duration = Duration::from_millis(100);

/// The state of the worker of one member.
#[derive(Debug)]
pub struct Copyist {
    member: usize,
    sender: Option<Sender>,
    tried_ns: u64,
    /// Whether the user was informed that another user's server is at the lost member's address.
    has_reported_foreign: bool,
}

impl Copyist {
    pub(super) fn new(member: usize) -> Self {
        Self { member, sender: None, tried_ns: now_ns(), has_reported_foreign: false }
    }
}

/// A thread in the background that uses the machine. While it exists, the process does not fork.
pub(super) struct Inside<'a>(&'a Redundant);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.background.fetch_sub(1, SeqCst);
    }
}

impl Redundant {
    /// Lets a background thread use the machine. Returns `None` while the process forks.
    pub(super) fn enter(&self) -> Option<Inside<'_>> {
        self.background.fetch_add(1, SeqCst);
        let inside = Inside(self);
        (self.pause.load(SeqCst) != REST).then_some(inside)
    }

    /// Checks whether a background thread may begin something that takes time. It may not while the process is about to
    /// fork.
    pub(super) fn may_begin(&self) -> bool {
        self.pause.load(SeqCst) == GO_ON
    }

    /// Sends what waits for a member. Calls `ended` for each write-back of which all parts are held. Sleeps if there is
    /// nothing to do. Returns the number of messages sent. The caller repeats this call in a thread of its own.
    ///
    /// # Errors
    /// Fewer than K parts of a page are left, or fewer than K servers have room.
    pub(crate) fn send(
        &self,
        copyist: &mut Copyist,
        ended: &mut dyn FnMut(PageId, FrameId),
    ) -> Result<u64, StoreError<'_>> {
        let index = copyist.member;
        let member = &self.members[index];
        if copyist.sender.is_none() {
            copyist.sender = member.sender.lock().take();
        }
        let mut sent = 0;
        if let (Some(sender), Some(remote)) = (copyist.sender.as_mut(), member.there()) {
            let result = remote.send_telling(sender, &mut |_, frame, end| {
                self.part_ended(index, frame, end != WriteEnd::Refused);
                self.give_back(ended);
                true
            });
            match result {
                Ok(count) => sent = count,
                Err(error) => self.lose_in_background(index, remote, &error),
            }
        } else if copyist.sender.is_some() {
            self.stop(copyist);
        } else {
            self.reach_again(copyist);
        }
        self.give_back(ended);
        self.send_requests();
        let machine = self.machine.lock();
        self.check(&machine)?;
        Ok(sent)
    }

    fn lose_in_background(&self, member: usize, remote: &Remote, error: &StoreError<'_>) {
        match self.enter() {
            Some(_inside) => self.lose(member, remote, Why::of(error)),
            // The sender returns the same error again after the fork.
            None => self.sleep(member),
        }
    }

    fn sleep(&self, member: usize) {
        let word = &self.members[member].wait_word;
        futex::wait(word, word.load(Acquire), Some(NAP));
    }

    /// A member's sender has ended the write of a part.
    fn part_ended(&self, member: usize, frame: FrameId, took: bool) {
        let mut machine = self.machine.lock();
        match (self.measures.job_of(frame), took) {
            (Some(job), true) => machine.rebuilt(job, member),
            (Some(job), false) => machine.rebuilt_refused(job, member),
            (None, true) => machine.acknowledged(self.measures.index_of(frame), member),
            (None, false) => machine.refused(self.measures.index_of(frame), member),
        }
        self.obey(&mut machine);
        drop(machine);
        if self.measures.job_of(frame).is_some() {
            self.notify_rebuilder();
        }
    }

    /// Reports the writes that have ended.
    fn give_back(&self, ended: &mut dyn FnMut(PageId, FrameId)) {
        loop {
            // The lock is held only while the frame is taken out, because `ended` may use this store.
            let given = self.machine.lock().next_given();
            let Some((frame, unit)) = given else { return };
            ended(PageId(unit), self.measures.frame_of(frame));
        }
    }

    /// Ends the sending to a lost member. The calling thread is the only one that reads frames for this member.
    fn stop(&self, copyist: &mut Copyist) {
        let Some(_inside) = self.enter() else { return self.sleep(copyist.member) };
        // The connection's descriptor stays open, because other threads may still name it. It was shut down.
        std::mem::forget(copyist.sender.take());
        copyist.tried_ns = now_ns();
        let mut machine = self.machine.lock();
        machine.stopped(copyist.member);
        self.obey(&mut machine);
    }

    /// Tries to reach a lost member again. If it is there, it is taken in without contents.
    fn reach_again(&self, copyist: &mut Copyist) {
        let member = &self.members[copyist.member];
        let is_time = now_ns().saturating_sub(copyist.tried_ns) >= RETRY.as_nanos() as u64;
        let may_return = member.returns.load(Relaxed) < RETURNS_MAX && !member.has_failed.load(Acquire);
        if !is_time || !may_return || !self.may_begin() {
            return self.sleep(copyist.member);
        }
        copyist.tried_ns = now_ns();
        let mut options = member.named.options.clone();
        options.connect_timeout = RETRY;
        // A server that cannot be reached is tried again later.
        let session = match Session::open(&member.named.endpoint, &options) {
            Ok(session) => session,
            Err(LinkError::Foreign { .. }) if !copyist.has_reported_foreign => {
                copyist.has_reported_foreign = self.news.is_foreign(copyist.member);
                return;
            }
            Err(_) => return,
        };
        copyist.has_reported_foreign = false;
        let info = session.info().clone();
        let Ok((remote, mut senders)) = self.measures.remote(&member.named, session) else { return };
        let Some(_inside) = self.enter().filter(|_| self.may_begin()) else { return };
        let _alone = self.returning.lock();
        // The address may lead to the server of another member now. Two parts of a page on it would be lost together.
        if self.members.iter().filter_map(Member::there).any(|other| other.is_on(&info)) {
            return;
        }
        member.returns.fetch_add(1, Relaxed);
        let capacity_bytes =
            member.named.limit_bytes.map_or(info.capacity_bytes, |limit| limit.min(info.capacity_bytes));
        copyist.sender = senders.pop();
        member.take_in(remote, None);
        self.machine.lock().joined(copyist.member, self.measures.extents_in(capacity_bytes));
        self.notify_rebuilder();
    }

    /// Waits until no background thread uses the machine. None begins to use it before [`Turn::GoOn`](crate::Turn::GoOn).
    ///
    /// # Errors
    /// A background thread does not come to an end.
    pub(super) fn pause(&self) -> Result<(), LinkError> {
        self.pause.store(REST, SeqCst);
        let end_ns = now_ns() + self.measures.silent.as_nanos() as u64;
        while self.background.load(SeqCst) > 0 {
            if now_ns() > end_ns {
                return Err(LinkError::Silent { seconds: self.measures.silent.as_secs() as u32 });
            }
            ready::nap(Duration::from_micros(100));
        }
        Ok(())
    }
}
