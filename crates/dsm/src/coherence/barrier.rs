//! The memory barrier at one rank. It consists of meetings of all ranks, the flush of diffs, and the settlement, in
//! which homes invalidate or update stale copies.

use super::event::{Action, Outcome};
use super::message::{Adopt, Message, Move, Purpose, Together, Violation};
use super::units::{Rank, RankSet, Run, runs_of};
use super::{CHANGED, Call, Checked, Machine, Protocol, State, directory};
use crate::limits::{ADOPTS_MAX, MOVES_MAX, RUNS_MAX};

/// The progress of a rank in a memory barrier.
#[derive(Clone, Copy, Debug)]
pub(super) enum Barrier {
    /// The rank waits until all ranks have stopped computing.
    Stopping,
    /// The rank has sent its own diffs. It waits until all diffs of `expect` ranks have arrived.
    Flushing { expect: u16 },
    /// The rank waits until all ranks have received all diffs.
    Flushed,
    /// With the update protocol, the rank waits until all ranks have sent their updates.
    Updating,
    /// The rank waits until `expect` homes have sent all their invalidations, updates and moves of homes.
    Settling { expect: u16 },
}

/// What a home sends to one rank at a settlement: copies to invalidate, pages to update, and pages whose new home is
/// that rank.
#[derive(Debug)]
struct Share {
    rank: Rank,
    invalid: Vec<u32>,
    updates: Vec<u32>,
    adopts: Vec<Adopt>,
}

impl Machine {
    pub(super) fn enter_barrier(&mut self, actions: &mut Vec<Action>) {
        let mut targets = self.early_homes;
        for &page in self.dirty.iter().filter(|&&page| self.state(page) == State::Dirty) {
            targets.insert(self.pages[page as usize].home);
        }
        self.call = Call::Barrier(Barrier::Stopping);
        self.meet(1, targets, actions);
    }

    fn meet(&mut self, meeting: u8, targets: RankSet, actions: &mut Vec<Action>) {
        let arrive = Message::Arrive { what: Together::Barrier, detail: 0, meeting, targets, values: Vec::new() };
        self.send(Rank(0), arrive, actions);
    }

    /// Continues the barrier after a meeting. The caller has set `self.call` to `Call::None`. If the barrier is not
    /// complete, this function stores the barrier in `self.call` again.
    pub(super) fn go_on(&mut self, at: Barrier, meeting: u8, expect: u16, actions: &mut Vec<Action>) -> Checked {
        match (at, meeting) {
            (Barrier::Stopping, 1) => {
                self.call = Call::Barrier(Barrier::Flushing { expect });
                self.flush(Purpose::Barrier, actions);
                // The barrier makes all copies current. So the next release need not publish the pages in
                // `flushed_early`.
                self.flushed_early.clear();
                self.flushed_by_all(actions);
            }
            (Barrier::Flushed, 2) if self.config.protocol == Protocol::Update => {
                self.call = Call::Barrier(Barrier::Updating);
                let targets = self.settle(actions);
                self.meet(3, targets, actions);
            }
            (Barrier::Flushed, 2) | (Barrier::Updating, 3) => {
                self.call = Call::Barrier(Barrier::Settling { expect });
                self.settled_by_all(actions);
            }
            _ => return Err(Violation::Unasked),
        }
        Ok(())
    }

    /// Flushes this rank's writes: sends the diffs home. Pages with copies on other ranks are write-protected, so that
    /// the next write traps. Returns the homes that get messages. Adds the flushed pages to `flushed_early`, except
    /// pages that no other rank shares.
    pub(super) fn flush(&mut self, purpose: Purpose, actions: &mut Vec<Action>) -> RankSet {
        let me = self.config.rank;
        let mut pages = std::mem::take(&mut self.dirty);
        pages.sort_unstable();
        self.flushes = self.flushes.wrapping_add(1).max(1);
        let mut protect = Vec::with_capacity(pages.len());
        let mut diffs: Vec<(Rank, u32)> = Vec::new();
        for &page in &pages {
            let local = self.pages[page as usize];
            if local.state == State::Dirty {
                self.pages[page as usize].state = State::Clean;
                diffs.push((local.home, page));
                protect.push(page);
            } else if self.directory.get(local.entry).is_none_or(|entry| entry.sharers.is_empty()) {
                self.pages[page as usize].state = State::Open;
                self.unwatch(page, actions);
                self.withhold(page, actions);
                continue;
            } else {
                let local = &mut self.pages[page as usize];
                (local.state, local.told) = (State::HomeClean, self.flushes);
                self.written(page, me, purpose == Purpose::Barrier);
                if !self.watches(page, actions) {
                    protect.push(page);
                }
            }
            self.flushed_early.push(page);
        }
        self.look_after_watched(&mut protect, actions);
        actions.extend(runs_of(&mut protect).into_iter().map(|run| Action::Protect { run }));
        pages.clear();
        self.dirty = pages;
        let mut homes = self.send_diffs(diffs, purpose, actions);
        let mut early = std::mem::take(&mut self.early_homes);
        homes.iter().for_each(|home| early.remove(home));
        self.send_diffs_to(early, purpose, actions);
        homes.extend(early);
        homes
    }

    /// Sends messages without diffs to these homes. Each message arrives after the diffs that this rank has sent
    /// before.
    pub(super) fn send_diffs_to(&mut self, homes: RankSet, purpose: Purpose, actions: &mut Vec<Action>) {
        for to in homes.iter() {
            self.counters.flushes += 1;
            actions.push(Action::SendDiffs { to, pages: Vec::new(), purpose });
        }
    }

    /// Sends the diffs of these pages home before the next flush.
    pub(super) fn shed(&mut self, pages: &[u32], actions: &mut Vec<Action>) {
        // Nothing is sent during a call. A release in progress will publish all pages in `flushed_early`. A page added
        // to that list now would be published before its home has the diff.
        if !matches!(self.call, Call::None) {
            return;
        }
        let mut pages: Vec<u32> = pages.iter().copied().filter(|&page| self.state(page) == State::Dirty).collect();
        let runs = runs_of(&mut pages);
        let diffs = self.clean(&pages, runs, actions);
        let homes = self.send_diffs(diffs, Purpose::Early, actions);
        self.early_homes.extend(homes);
    }

    /// Makes the written copies `pages` clean. `pages` must be in ascending order, and `runs` must cover the same
    /// pages. Returns the pages with their homes. The caller must send the diffs. The next release publishes the
    /// writes.
    pub(super) fn clean(&mut self, pages: &[u32], runs: Vec<Run>, actions: &mut Vec<Action>) -> Vec<(Rank, u32)> {
        actions.extend(runs.into_iter().map(|run| Action::Protect { run }));
        self.dirty.retain(|page| pages.binary_search(page).is_err());
        self.flushed_early.extend(pages);
        if self.flushed_early.len() > 2 * self.pages.len() {
            // `runs_of` removes duplicates from the list, so that the list stays bounded.
            runs_of(&mut self.flushed_early);
        }
        let mut diffs = Vec::with_capacity(pages.len());
        for &page in pages {
            let local = &mut self.pages[page as usize];
            local.state = State::Clean;
            diffs.push((local.home, page));
        }
        diffs
    }

    /// Sends diffs of write-protected pages, with one action per home. Returns the homes that get diffs.
    pub(super) fn send_diffs(
        &mut self,
        mut diffs: Vec<(Rank, u32)>,
        purpose: Purpose,
        actions: &mut Vec<Action>,
    ) -> RankSet {
        diffs.sort_unstable();
        let mut homes = RankSet::EMPTY;
        for of_home in diffs.chunk_by(|a, b| a.0 == b.0) {
            let to = of_home[0].0;
            homes.insert(to);
            self.counters.flushes += 1;
            self.counters.pages_flushed += of_home.len() as u64;
            let pages = of_home.iter().map(|&(_, page)| page).collect();
            actions.push(Action::SendDiffs { to, pages, purpose });
        }
        homes
    }

    pub(super) fn take_diffs(
        &mut self,
        from: Rank,
        purpose: Purpose,
        pages: &[u32],
        last: bool,
        actions: &mut Vec<Action>,
    ) -> Checked {
        let at_barrier = purpose == Purpose::Barrier;
        if at_barrier && !matches!(self.call, Call::Barrier(Barrier::Stopping | Barrier::Flushing { .. })) {
            return Err(Violation::Unasked);
        }
        for (index, &page) in pages.iter().enumerate() {
            self.local(page)?;
            if !self.is_home(page) {
                return Err(Violation::NotHome);
            }
            self.written(page, from, at_barrier);
            self.written_by_another(page, actions);
            actions.push(Action::Apply { index: index as u32, page });
        }
        if last && at_barrier {
            if !self.diffs_here.insert(from) {
                return Err(Violation::Unasked);
            }
            self.flushed_by_all(actions);
        } else if last && purpose == Purpose::Lock {
            self.send(from, Message::DiffsDone, actions);
        }
        Ok(())
    }

    /// Continues the barrier once the diffs of all expected ranks have arrived.
    fn flushed_by_all(&mut self, actions: &mut Vec<Action>) {
        let Call::Barrier(Barrier::Flushing { expect }) = self.call else { return };
        if self.diffs_here.len() < u32::from(expect) {
            return;
        }
        self.diffs_here = RankSet::EMPTY;
        self.call = Call::Barrier(Barrier::Flushed);
        let targets = match self.config.protocol {
            Protocol::Update => RankSet::EMPTY,
            Protocol::Invalidate | Protocol::Adaptive => self.settle(actions),
        };
        self.meet(2, targets, actions);
    }

    /// Settles the changed pages of this home: invalidates or updates the stale copies. Returns the ranks that get
    /// messages.
    fn settle(&mut self, actions: &mut Vec<Action>) -> RankSet {
        let mut shares: Vec<Share> = (0..self.config.ranks)
            .map(|rank| Share { rank: Rank(rank), invalid: vec![], updates: vec![], adopts: vec![] })
            .collect();
        let mut moves = Vec::new();
        let mut changed = std::mem::take(&mut self.changed);
        changed.sort_unstable();
        for &page in &changed {
            self.settle_page(page, &mut shares, &mut moves, actions);
        }
        changed.clear();
        self.changed = changed;
        let (me, mut targets) = (self.config.rank, RankSet::EMPTY);
        for share in shares.into_iter().filter(|share| share.rank != me) {
            if !share.invalid.is_empty() || !share.updates.is_empty() || !moves.is_empty() {
                targets.insert(share.rank);
                self.send_share(share, &moves, actions);
            }
        }
        targets
    }

    fn settle_page(&mut self, page: u32, shares: &mut [Share], moves: &mut Vec<Move>, actions: &mut Vec<Action>) {
        let (me, protocol) = (self.config.rank, self.config.protocol);
        let local = &mut self.pages[page as usize];
        local.flags &= !CHANGED;
        let Some(entry) = self.directory.get(local.entry) else { return };
        let stale = entry.stale.common(entry.sharers);
        entry.settled();
        entry.forget_idle();
        for rank in stale.iter() {
            let update = match protocol {
                Protocol::Invalidate => false,
                Protocol::Update => true,
                Protocol::Adaptive => entry.wants_update(rank),
            };
            let share = &mut shares[usize::from(rank.0)];
            if update {
                share.updates.push(page);
                self.counters.pages_updated += 1;
            } else {
                share.invalid.push(page);
                entry.sharers.remove(rank);
            }
        }
        // The home moves only if the page is `HomeClean`. Then the new home's copy is current without an update, and
        // this rank cannot write the page without a trap.
        let may_move = self.config.migrate && local.state == State::HomeClean && moves.len() < MOVES_MAX;
        let writer = entry.count_writers(me).filter(|_| may_move);
        if let Some(home) = writer {
            let mut sharers = entry.sharers;
            sharers.remove(home);
            // This rank invalidates its own copy. The new home will probably write the page next. If no other rank has
            // a copy, that write does not trap.
            self.to_invalidate.push(page);
            shares[usize::from(home.0)].adopts.push(Adopt { page, sharers });
            moves.push(Move { page, home });
            let index = std::mem::replace(&mut local.entry, directory::NONE);
            self.directory.remove(index);
            (local.home, local.state) = (home, State::Clean);
            self.counters.homes_moved += 1;
            self.withhold(page, actions);
            actions.push(Action::GivenAway { page });
        }
    }

    /// Sends one rank its part of the settlement: the stale copies and the moves first, then the updates. Only the last
    /// message has `last` set.
    fn send_share(&mut self, mut share: Share, moves: &[Move], actions: &mut Vec<Action>) {
        let to = share.rank;
        let runs = runs_of(&mut share.invalid);
        let mut runs = runs.chunks(RUNS_MAX).peekable();
        let mut adopts = share.adopts.chunks(ADOPTS_MAX).peekable();
        let mut moves = Some(moves).filter(|moves| !moves.is_empty());
        while runs.peek().is_some() || adopts.peek().is_some() || moves.is_some() {
            let invalid: Vec<Run> = runs.next().unwrap_or_default().to_vec();
            let adopts_now = adopts.next().unwrap_or_default().to_vec();
            let moves = moves.take().unwrap_or_default().to_vec();
            let last = runs.peek().is_none() && adopts.peek().is_none() && share.updates.is_empty();
            let message = Message::Settle { invalid, moves, adopts: adopts_now, last };
            actions.push(Action::Send { to, message });
        }
        if !share.updates.is_empty() {
            actions.push(Action::SendUpdates { to, pages: share.updates });
        }
    }

    pub(super) fn take_settlement(
        &mut self,
        from: Rank,
        invalid: &[Run],
        moves: &[Move],
        adopts: &[Adopt],
        actions: &mut Vec<Action>,
    ) -> Checked {
        if !self.in_barrier() {
            return Err(Violation::Unasked);
        }
        let known = self.pages.len() as u32;
        for run in invalid {
            // A peer chose the run's length, so the run is checked before its pages are visited.
            if run.pages().end > known || run.pages().is_empty() {
                return Err(Violation::Page);
            }
            self.to_invalidate.extend(run.pages());
        }
        let mut own = Vec::new();
        for adopt in adopts {
            self.adopt(adopt, &mut own, actions)?;
        }
        actions.extend(runs_of(&mut own).into_iter().map(|run| Action::Reopen { run }));
        for &Move { page, home } in moves {
            if home.0 >= self.config.ranks || home == from {
                return Err(Violation::Number);
            }
            let me = self.config.rank;
            let is_home = self.is_home(page);
            let local = self.local(page)?;
            if (home == me) != is_home {
                return Err(Violation::NotHome);
            }
            local.home = home;
            if local.state == State::Asking {
                local.state = State::Invalid;
                self.is_waited_for = true;
            }
        }
        Ok(())
    }

    /// Makes this rank the home of a page. The copy here is current, because only this rank wrote the page. The page is
    /// added to `own` if no other rank has a copy.
    fn adopt(&mut self, adopt: &Adopt, own: &mut Vec<u32>, actions: &mut Vec<Action>) -> Checked {
        let local = self.local(adopt.page)?;
        if local.state != State::Clean {
            return Err(Violation::NotHome);
        }
        local.state = State::HomeClean;
        actions.push(Action::Adopted { page: adopt.page });
        let me = self.config.rank;
        let ranks = self.config.ranks;
        let mut sharers = adopt.sharers;
        sharers.remove(me);
        self.entry(adopt.page).adopted(sharers);
        if sharers.is_empty() {
            self.pages[adopt.page as usize].state = State::Open;
            own.push(adopt.page);
        } else {
            self.offer(adopt.page, actions);
        }
        if sharers.iter().any(|rank| rank.0 >= ranks) { Err(Violation::Number) } else { Ok(()) }
    }

    pub(super) fn take_updates(&mut self, pages: &[u32], actions: &mut Vec<Action>) -> Checked {
        if !self.in_barrier() {
            return Err(Violation::Unasked);
        }
        for &page in pages {
            if self.is_home(page) {
                return Err(Violation::NotHome);
            }
            let local = self.local(page)?;
            let wanted = match local.state {
                State::Clean => true,
                // If `LEFT` is set, this rank has dropped its copy, and the home has not learned that yet. The update
                // is ignored. Otherwise a write notice has invalidated the copy, and the update makes it current.
                State::Invalid => local.flags & super::LEFT == 0,
                // The update is ignored. The home answers this rank's request after the settlement, with the current
                // page.
                State::Fetching | State::Asking => false,
                _ => return Err(Violation::Unasked),
            };
            if wanted {
                local.state = State::Clean;
                actions.push(Action::Install { page, writable: false });
            }
        }
        Ok(())
    }

    pub(super) fn count_settlement(&mut self, from: Rank, last: bool, actions: &mut Vec<Action>) -> Checked {
        if last && !self.settled_here.insert(from) {
            return Err(Violation::Unasked);
        }
        if last {
            self.settled_by_all(actions);
        }
        Ok(())
    }

    /// Ends the barrier once all expected homes have sent their settlements.
    fn settled_by_all(&mut self, actions: &mut Vec<Action>) {
        let Call::Barrier(Barrier::Settling { expect }) = self.call else { return };
        if self.settled_here.len() < u32::from(expect) {
            return;
        }
        self.settled_here = RankSet::EMPTY;
        let mut pages = std::mem::take(&mut self.to_invalidate);
        pages.retain(|&page| self.take_away(page));
        actions.extend(runs_of(&mut pages).into_iter().map(|run| Action::Invalidate { run }));
        pages.clear();
        self.to_invalidate = pages;
        self.call = Call::None;
        self.counters.barriers += 1;
        if std::mem::take(&mut self.is_waited_for) {
            actions.push(Action::WakeAll);
        }
        actions.push(Action::Finished { outcome: Outcome::Done });
    }

    /// Invalidates the clean copy of a page. Returns false if this rank has no clean copy.
    pub(super) fn take_away(&mut self, page: u32) -> bool {
        match self.pages.get_mut(page as usize) {
            Some(local) if local.state == State::Clean => {
                local.state = State::Invalid;
                self.counters.pages_invalidated += 1;
                true
            }
            _ => false,
        }
    }
}
