//! Locks. A release publishes the rank's writes, and an acquire invalidates the rank's stale copies.

use super::event::{Action, Misuse, Outcome};
use super::message::{Message, Purpose, Together, Violation};
use super::units::{Rank, RankSet, Run, runs_of};
use super::{Call, Checked, FETCH_AGAIN, Machine, State, Then};
use crate::limits::{LOCKS_MAX, RUNS_MAX};

/// A lock call in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct LockCall {
    lock: u32,
    at: At,
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// The rank waits for the lock.
    Wanted,
    /// The rank has the lock, and has sent diffs of pages that the grant invalidates. The call ends when these homes
    /// have acknowledged the diffs.
    Granted(RankSet),
    /// The rank releases the lock as soon as these homes have acknowledged its diffs.
    Flushing(RankSet),
}

impl LockCall {
    /// Returns the homes that have not yet acknowledged this rank's diffs.
    pub(super) fn flushing(self) -> RankSet {
        match self.at {
            At::Wanted => RankSet::EMPTY,
            At::Granted(homes) | At::Flushing(homes) => homes,
        }
    }
}

impl Machine {
    pub(super) fn acquire(&mut self, lock: u32, actions: &mut Vec<Action>) -> Result<(), Misuse> {
        if lock >= LOCKS_MAX {
            return Err(Misuse::NoLock(lock));
        }
        if self.held.contains(&lock) {
            return Err(Misuse::Held(lock));
        }
        self.call = Call::Lock(LockCall { lock, at: At::Wanted });
        self.send(Rank(0), Message::Acquire { lock }, actions);
        Ok(())
    }

    pub(super) fn release(&mut self, lock: u32, actions: &mut Vec<Action>) -> Result<(), Misuse> {
        if !self.held.remove(&lock) {
            return Err(Misuse::NotHeld(lock));
        }
        let homes = self.flush(Purpose::Lock, actions);
        self.call = Call::Lock(LockCall { lock, at: At::Flushing(homes) });
        self.diffs_arrived(actions);
        Ok(())
    }

    /// Processes a home's acknowledgement of this rank's diffs.
    pub(super) fn diffs_done(&mut self, from: Rank, actions: &mut Vec<Action>) -> Checked {
        match &mut self.call {
            Call::Lock(LockCall { at: At::Granted(homes) | At::Flushing(homes), .. }) if homes.contains(from) => {
                homes.remove(from);
            }
            Call::Freeing { homes, .. } if homes.contains(from) => homes.remove(from),
            _ => return Err(Violation::Unasked),
        }
        self.diffs_arrived(actions);
        Ok(())
    }

    /// Continues a lock call or a free if all homes have acknowledged this rank's diffs.
    pub(super) fn diffs_arrived(&mut self, actions: &mut Vec<Action>) {
        if let Call::Freeing { first, homes } = self.call
            && homes.is_empty()
            && !self.is_fetching_of(first)
        {
            return self.gather(Together::Free, u64::from(first), Vec::new(), Then::Free { first }, actions);
        }
        let Call::Lock(LockCall { lock, at }) = self.call else { return };
        match at {
            At::Granted(homes) if homes.is_empty() => self.counters.locks += 1,
            At::Flushing(homes) if homes.is_empty() => {
                let mut pages = std::mem::take(&mut self.flushed_early);
                let runs = runs_of(&mut pages);
                for runs in runs.chunks(RUNS_MAX) {
                    self.send(Rank(0), Message::Wrote { runs: runs.to_vec() }, actions);
                }
                self.send(Rank(0), Message::Release { lock }, actions);
            }
            _ => return,
        }
        self.call = Call::None;
        actions.push(Action::Finished { outcome: Outcome::Done });
    }

    /// Checks whether any page of an allocation is being fetched. The home must not free a page before a request for it
    /// arrives. A request may be in transit even if no thread waits for the page.
    fn is_fetching_of(&self, first: u32) -> bool {
        let run = self.areas.pages_of(first);
        run.is_some_and(|run| run.pages().any(|page| self.state(page) == State::Fetching))
    }

    pub(super) fn take_notices(&mut self, runs: &[Run]) -> Checked {
        if !matches!(self.call, Call::Lock(LockCall { at: At::Wanted, .. })) {
            return Err(Violation::Unasked);
        }
        self.noticed.extend(self.pages_in(runs)?);
        Ok(())
    }

    /// Returns the pages of runs that a peer has sent, or an error if a run lies beyond the allocated pages.
    fn pages_in(&self, runs: &[Run]) -> Result<Vec<u32>, Violation> {
        let known = self.pages.len() as u32;
        let valid = runs.iter().all(|run| !run.pages().is_empty() && run.pages().end <= known);
        if valid { Ok(runs.iter().flat_map(|run| run.pages()).collect()) } else { Err(Violation::Page) }
    }

    /// Processes the grant of a lock. The write notices of other ranks arrived before the grant.
    pub(super) fn granted(&mut self, lock: u32, actions: &mut Vec<Action>) -> Checked {
        match self.call {
            Call::Lock(LockCall { lock: wanted, at: At::Wanted }) if wanted == lock => {}
            _ => return Err(Violation::Unasked),
        }
        self.held.insert(lock);
        let mut pages = std::mem::take(&mut self.noticed);
        // If this rank has written a page that is to be invalidated, the diff goes home first. So the home's page
        // contains the diff when this rank fetches the page again.
        let dirty: Vec<u32> = pages.iter().copied().filter(|&page| self.state(page) == State::Dirty).collect();
        let homes = self.flush_some(dirty, actions);
        for &page in &pages {
            if self.state(page) == State::Fetching {
                self.pages[page as usize].flags |= FETCH_AGAIN;
            }
        }
        pages.retain(|&page| self.take_away(page));
        actions.extend(runs_of(&mut pages).into_iter().map(|run| Action::Invalidate { run }));
        pages.clear();
        self.noticed = pages;
        self.call = Call::Lock(LockCall { lock, at: At::Granted(homes) });
        self.diffs_arrived(actions);
        Ok(())
    }

    /// Flushes some pages before the next release, which publishes them. Returns the homes that get diffs.
    fn flush_some(&mut self, mut pages: Vec<u32>, actions: &mut Vec<Action>) -> RankSet {
        if pages.is_empty() {
            return RankSet::EMPTY;
        }
        let runs = runs_of(&mut pages);
        let diffs = self.clean(&pages, runs, actions);
        self.send_diffs(diffs, Purpose::Lock, actions)
    }

    pub(super) fn lock_wanted(&mut self, from: Rank, lock: u32, actions: &mut Vec<Action>) -> Checked {
        if self.config.rank != Rank(0) || lock >= LOCKS_MAX {
            return Err(Violation::Number);
        }
        if self.keeper.want(from, lock).ok_or(Violation::Unasked)? {
            self.grant(from, lock, actions);
        }
        Ok(())
    }

    pub(super) fn lock_released(&mut self, from: Rank, lock: u32, actions: &mut Vec<Action>) -> Checked {
        if self.config.rank != Rank(0) {
            return Err(Violation::Number);
        }
        if let Some(next) = self.keeper.give(from, lock).ok_or(Violation::Unasked)? {
            self.grant(next, lock, actions);
        }
        Ok(())
    }

    fn grant(&mut self, to: Rank, lock: u32, actions: &mut Vec<Action>) {
        let runs = runs_of(&mut self.keeper.news(to));
        for runs in runs.chunks(RUNS_MAX) {
            self.send(to, Message::Notice { runs: runs.to_vec() }, actions);
        }
        self.send(to, Message::Grant { lock }, actions);
    }

    pub(super) fn log_notices(&mut self, from: Rank, runs: &[Run]) -> Checked {
        if self.config.rank != Rank(0) {
            return Err(Violation::Number);
        }
        for page in self.pages_in(runs)? {
            self.keeper.wrote(from, page);
        }
        Ok(())
    }
}
