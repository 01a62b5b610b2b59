//! The rebuilder: a thread in the background that gives pages their missing parts.

use std::sync::atomic::Ordering::*;
use std::time::Duration;

use hanare_sys::clock::now_ns;
use hanare_sys::futex;
use hanare_wire::Wait;

use super::Redundant;
use super::machine::Job;
use crate::{StoreError, Take};

/// The longest sleep of the rebuilder without work.
const NAP: Duration = Duration::from_millis(100);
/// The longest sleep of the rebuilder while parts are under way.
const NAP_BUSY: Duration = Duration::from_millis(1);

/// The time in nanoseconds after which missing parts count as missing for want of room. It is long enough to look
/// through many extents, and to notice the loss of a server.
const STUCK_NS: u64 = 3_000_000_000;

/// The state of the rebuilder.
#[derive(Debug, Default)]
pub struct Rebuilder {
    /// The time of the last look, in nanoseconds on CLOCK_MONOTONIC.
    looked_ns: u64,
    /// The time in nanoseconds since which parts are missing and none of them can be rebuilt. 0 if it is not so.
    stuck_since_ns: u64,
}

/// The result of a step of the rebuilder.
enum Found {
    /// Jobs are under way.
    Work,
    /// No missing part can be rebuilt now.
    Nothing,
    /// The rebuilder has to wait.
    Pause,
}

impl Redundant {
    /// Goes on with rebuilding. Sleeps if there is nothing to do. The caller repeats this call in a thread of its own.
    ///
    /// # Errors
    /// The errors of [`Store::poll`](crate::Store::poll).
    pub(crate) fn rebuild(&self, rebuilder: &mut Rebuilder, take: &mut dyn Take) -> Result<(), StoreError<'_>> {
        let word = self.rebuild_word.load(Acquire);
        self.note_progress(rebuilder);
        let found = self.enter().map_or(Found::Pause, |_inside| self.step());
        self.note_stuck(rebuilder, &found);
        let is_under_way = matches!(found, Found::Work);
        if is_under_way {
            self.receive(Wait::Block { timeout: NAP_BUSY }, take);
        }
        let machine = self.machine.lock();
        self.check(&machine)?;
        drop(machine);
        futex::wait(&self.rebuild_word, word, Some(if is_under_way { NAP_BUSY } else { NAP }));
        Ok(())
    }

    /// Computes the parts that are ready, and begins further jobs if this is allowed.
    fn step(&self) -> Found {
        loop {
            let ready = self.machine.lock().ready_job();
            let Some((job, read)) = ready else { break };
            let machine = self.machine.lock();
            let (Job { part, count, .. }, reading) = (machine.job(job), machine.reading(read));
            drop(machine);
            // Only this thread ends a job that is ready, so its parts stay where they are.
            self.buffers.rebuild(&self.code, job, part, count, read, &reading);
            let mut machine = self.machine.lock();
            machine.computed(job);
            self.obey(&mut machine);
        }
        let mut found = Found::Pause;
        while self.may_begin() {
            let mut machine = self.machine.lock();
            let has_begun = machine.rebuild();
            self.obey(&mut machine);
            drop(machine);
            self.send_requests();
            if !has_begun {
                found = Found::Nothing;
                break;
            }
        }
        if self.machine.lock().are_jobs_idle() { found } else { Found::Work }
    }

    /// Tells the user if parts stay missing although enough servers are there: the servers have no room.
    fn note_stuck(&self, rebuilder: &mut Rebuilder, found: &Found) {
        let there = self.members.iter().filter(|member| member.is_there.load(Relaxed)).count();
        let is_stuck = matches!(found, Found::Nothing)
            && there >= usize::from(self.measures.redundancy.parts())
            && !self.machine.lock().is_whole();
        match (is_stuck, rebuilder.stuck_since_ns) {
            (true, 0) => rebuilder.stuck_since_ns = now_ns(),
            (true, since_ns) if now_ns().saturating_sub(since_ns) >= STUCK_NS => self.news.short(),
            (true, _) => {}
            (false, _) => rebuilder.stuck_since_ns = 0,
        }
    }

    /// Counts the time in which pages lack parts.
    fn note_progress(&self, rebuilder: &mut Rebuilder) {
        let now_ns = now_ns();
        let since_ns = std::mem::replace(&mut rebuilder.looked_ns, now_ns);
        let is_whole = self.machine.lock().is_whole();
        self.news.is_whole(is_whole);
        if !is_whole && since_ns > 0 {
            self.news.degraded_ns.fetch_add(now_ns.saturating_sub(since_ns), Relaxed);
        }
    }
}
