//! Accesses, fetches and homes: how a rank gets its copy of a page.

use super::event::{Action, Misuse};
use super::message::{Message, Violation};
use super::placement::Placement;
use super::units::{Rank, RankSet, Run};
use super::{
    CHANGED, Call, Checked, FETCH_AGAIN, FREE, JOINED, LEFT, Local, Machine, Protocol, State, UNKNOWN, WANTS_WRITE,
    WATCHED, directory,
};
use crate::limits::{FETCH_AHEAD, LOOK_AGAIN, OPEN_AHEAD};

impl Machine {
    /// Processes an access that trapped. It allocates no memory, because its lists have room for every page.
    pub(super) fn touch(&mut self, page: u32, write: bool, actions: &mut Vec<Action>) -> Result<(), Misuse> {
        let in_barrier = self.in_barrier();
        let local =
            self.pages.get_mut(page as usize).filter(|l| l.state != State::Free).ok_or(Misuse::NotAllocated(page))?;
        if write {
            self.counters.write_faults += 1;
        } else {
            self.counters.read_faults += 1;
        }
        match local.state {
            State::Dirty | State::HomeDirty => actions.push(Action::Wake { page }),
            State::Clean | State::HomeClean if !write => actions.push(Action::Wake { page }),
            State::Open => {
                actions.push(Action::Open { run: Run { first: page, count: 1 } });
                actions.push(Action::Wake { page });
            }
            State::Asking | State::Fetching => {
                if write {
                    local.flags |= WANTS_WRITE;
                }
            }
            // Another thread of this rank accesses a page during the memory barrier. The thread waits until the end of
            // the barrier wakes all threads.
            _ if in_barrier => self.is_waited_for = true,
            State::Clean => {
                local.state = State::Dirty;
                self.dirty.push(page);
                self.counters.twins += 1;
                actions.push(Action::Twin { page });
                actions.push(Action::Wake { page });
            }
            State::HomeClean => {
                let told = local.told;
                self.home_written(page);
                actions.push(Action::Open { run: Run { first: page, count: 1 } });
                actions.push(Action::Wake { page });
                self.open_ahead(page, told, actions);
            }
            State::Invalid | State::Free => {
                local.flags = local.flags & !WANTS_WRITE | if write { WANTS_WRITE } else { 0 };
                self.ask(page, actions);
                self.ask_ahead(page, actions);
            }
        }
        Ok(())
    }

    /// After a write to a home page, also makes the following home pages writable. The flush that last published the
    /// written page must also have been the last to publish them. A trap costs more than publishing a page that was not
    /// written after all. Once in every [`LOOK_AGAIN`] times, the following pages stay protected. A trap then shows
    /// whether they are still written.
    fn open_ahead(&mut self, page: u32, told: u32, actions: &mut Vec<Action>) {
        let is_written_with = |local: &Local| {
            local.state == State::HomeClean && local.told == told && told != 0 && local.flags & WATCHED == 0
        };
        if !self.pages.get(page as usize + 1).is_some_and(is_written_with) {
            return;
        }
        self.guesses = self.guesses.wrapping_add(1);
        if self.guesses.is_multiple_of(LOOK_AGAIN) {
            return;
        }
        for next in page + 1..=page + OPEN_AHEAD {
            match self.pages.get_mut(next as usize) {
                Some(local) if is_written_with(local) => self.home_written(next),
                _ => return,
            }
            actions.push(Action::Open { run: Run { first: next, count: 1 } });
        }
    }

    /// Also requests the pages after an accessed page. Each of them must belong to a block that is read whole, or must
    /// be a copy that its home has invalidated. Pages that were read between two barriers are mostly read again, and a
    /// trap costs more than sending a page. The adaptive protocol does not request invalidated copies this way, because
    /// it counts every fetch as a sign that the page is read.
    fn ask_ahead(&mut self, page: u32, actions: &mut Vec<Action>) {
        let home = self.home(page);
        if home.is_none() {
            return;
        }
        let is_adaptive = self.config.protocol == Protocol::Adaptive;
        for next in page + 1..=page + FETCH_AHEAD {
            match self.pages.get_mut(next as usize) {
                Some(local)
                    if local.state == State::Invalid
                        && Some(local.home) == home
                        && (local.flags & JOINED != 0 || local.flags & LEFT == 0 && !is_adaptive) =>
                {
                    local.flags &= !WANTS_WRITE;
                    self.ask(next, actions);
                }
                _ => return,
            }
        }
    }

    /// Requests a page from its home, or asks which rank is the home.
    fn ask(&mut self, page: u32, actions: &mut Vec<Action>) {
        let me = self.config.rank;
        let Some(local) = self.pages.get_mut(page as usize) else { return };
        let home = local.home;
        if home == UNKNOWN {
            local.state = State::Asking;
            let keeper = self.first_touch_keeper(page);
            return self.send(keeper, Message::HomeRequest { page }, actions);
        }
        local.state = State::Fetching;
        local.flags &= !(LEFT | FETCH_AGAIN);
        // A direct read of the home's memory is not allowed during a memory barrier. A home's flush at a barrier does
        // not make readers repeat their reads.
        if self.config.one_sided && !self.in_barrier() && !self.is_owed_word(home) {
            actions.push(Action::Read { page, home });
        } else {
            self.send(home, Message::PageRequest { page, reader: me }, actions);
        }
    }

    /// Checks whether diffs of this rank are in transit to a home. A page request arrives after these diffs, but a
    /// direct read of the home's memory may miss them.
    fn is_owed_word(&self, home: Rank) -> bool {
        let homes = match self.call {
            Call::Freeing { homes, .. } => homes,
            Call::Lock(call) => call.flushing(),
            _ => RankSet::EMPTY,
        };
        homes.contains(home) || self.early_homes.contains(home)
    }

    /// Processes the result of this rank's attempt to read a page from the home's memory.
    pub(super) fn has_read(&mut self, page: u32, is_here: bool, actions: &mut Vec<Action>) {
        match self.home(page) {
            Some(home) if self.state(page) == State::Fetching => {
                if is_here {
                    // Ignored: no message has caused the error, so no peer is to blame.
                    let _ = self.fetched(page, actions);
                } else {
                    let reader = self.config.rank;
                    self.send(home, Message::PageRequest { page, reader }, actions);
                }
            }
            _ => {}
        }
    }

    /// Notes that another rank has read, is reading, or has tried to read a page from this rank's memory. This rank is
    /// the page's home.
    pub(super) fn joined(&mut self, from: Rank, page: u32, actions: &mut Vec<Action>) -> Checked {
        let local = *self.local(page)?;
        if !self.is_home(page) || from == self.config.rank {
            return Err(Violation::NotHome);
        }
        // If the page has changed since the last settlement, the reader may have copied it before the change.
        self.entry(page).joined(from, local.flags & CHANGED != 0);
        if local.state == State::Open {
            // This rank may have written the page after the reader copied it. So the next flush publishes the page.
            self.pages[page as usize].state = State::HomeDirty;
            self.dirty.push(page);
            self.offer(page, actions);
        }
        Ok(())
    }

    /// Returns the rank that records which rank accesses a page first.
    fn first_touch_keeper(&self, page: u32) -> Rank {
        Rank((page % u32::from(self.config.ranks)) as u16)
    }

    pub(super) fn say_home(&mut self, from: Rank, page: u32, actions: &mut Vec<Action>) -> Checked {
        if self.first_touch_keeper(page) != self.config.rank {
            return Err(Violation::NotHome);
        }
        let me = self.config.rank;
        let local = self.local(page)?;
        if local.home == UNKNOWN && from != me {
            local.home = from;
            // This rank may have asked itself for the home as well. That request then gets the same answer.
        }
        let home = if local.home == UNKNOWN { from } else { local.home };
        self.send(from, Message::HomeReply { page, home }, actions);
        Ok(())
    }

    pub(super) fn learn_home(&mut self, page: u32, home: Rank, actions: &mut Vec<Action>) -> Checked {
        if home.0 >= self.config.ranks {
            return Err(Violation::Number);
        }
        let me = self.config.rank;
        let Some(local) = self.pages.get_mut(page as usize) else { return Err(Violation::Page) };
        if local.state != State::Asking {
            // This rank already knows the home from a page request or from a move of the home, or the page was freed.
            return Ok(());
        }
        if home == me {
            self.become_home(page, actions);
        } else {
            local.home = home;
            self.ask(page, actions);
        }
        Ok(())
    }

    /// Makes this rank the home of a page that it accessed first. The bytes of the page are zeroes.
    fn become_home(&mut self, page: u32, actions: &mut Vec<Action>) {
        let me = self.config.rank;
        if let Some(local) = self.pages.get_mut(page as usize) {
            (local.home, local.state) = (me, State::Open);
            actions.push(Action::Open { run: Run { first: page, count: 1 } });
            actions.push(Action::Wake { page });
        }
    }

    /// Answers a request for a page. If the page's home has moved away from this rank, forwards the request.
    pub(super) fn serve(&mut self, page: u32, reader: Rank, actions: &mut Vec<Action>) -> Checked {
        if reader.0 >= self.config.ranks || reader == self.config.rank {
            return Err(Violation::Number);
        }
        let local = *self.local(page)?;
        if local.state == State::Asking {
            // The reader already knows that this rank is the home. The answer that tells this rank is still in transit.
            self.become_home(page, actions);
        } else if !self.is_home(page) {
            if local.home == UNKNOWN {
                return Err(Violation::NotHome);
            }
            // The home moved while the request was in transit, so the request is forwarded.
            self.send(local.home, Message::PageRequest { page, reader }, actions);
            return Ok(());
        }
        if self.state(page) == State::Open {
            self.local(page)?.state = State::HomeClean;
            actions.push(Action::Protect { run: Run { first: page, count: 1 } });
            self.offer(page, actions);
        }
        let is_carried = self.is_carried(page);
        let entry = self.entry(page);
        entry.fetched(reader);
        entry.is_being_read |= !is_carried;
        actions.push(Action::SendPage { to: reader, page });
        Ok(())
    }

    /// Returns the directory entry of a home page. Adds an entry if there is none.
    pub(super) fn entry(&mut self, page: u32) -> &mut directory::Entry {
        let index = self.pages[page as usize].entry;
        let index = if index == directory::NONE { self.directory.add() } else { index };
        self.pages[page as usize].entry = index;
        self.directory.get(index).expect("the directory holds what it added")
    }

    pub(super) fn fetched(&mut self, page: u32, actions: &mut Vec<Action>) -> Checked {
        let in_barrier = self.in_barrier();
        let Some(local) = self.pages.get_mut(page as usize) else { return Err(Violation::Page) };
        if local.state != State::Fetching {
            // The page was freed while the answer was in transit.
            return Ok(());
        }
        self.counters.pages_fetched += 1;
        if local.flags & FETCH_AGAIN != 0 {
            self.ask(page, actions);
            return Ok(());
        }
        // During a memory barrier no page becomes dirty. A thread that wants to write the page traps again after the
        // barrier.
        let writable = local.flags & WANTS_WRITE != 0 && !in_barrier;
        local.flags &= !WANTS_WRITE;
        local.state = if writable { State::Dirty } else { State::Clean };
        if writable {
            self.dirty.push(page);
            self.counters.twins += 1;
        }
        actions.push(Action::Install { page, writable });
        actions.push(Action::Wake { page });
        if matches!(self.call, Call::Freeing { .. }) {
            self.diffs_arrived(actions);
        }
        Ok(())
    }

    /// Lets other ranks read a shared home page from this rank's memory, if such reads are enabled.
    pub(super) fn offer(&self, page: u32, actions: &mut Vec<Action>) {
        if self.config.one_sided {
            actions.push(Action::Offer { page });
        }
    }

    /// Stops other ranks from reading a home page from this rank's memory.
    pub(super) fn withhold(&self, page: u32, actions: &mut Vec<Action>) {
        if self.config.one_sided {
            actions.push(Action::Withhold { page });
        }
    }

    /// Drops a clean copy and tells its home. Does nothing for other pages or during a memory barrier.
    pub(super) fn drop_copy(&mut self, page: u32, actions: &mut Vec<Action>) {
        if self.state(page) != State::Clean || self.in_barrier() {
            return;
        }
        let Some(local) = self.pages.get_mut(page as usize) else { return };
        local.state = State::Invalid;
        local.flags |= LEFT;
        let home = local.home;
        self.counters.pages_dropped += 1;
        actions.push(Action::Invalidate { run: Run { first: page, count: 1 } });
        self.send(home, Message::Leave { page }, actions);
    }

    pub(super) fn forget_sharer(&mut self, from: Rank, page: u32) -> Checked {
        let index = self.pages.get(page as usize).ok_or(Violation::Page)?.entry;
        // The entry is missing if the page was freed or its home has moved. The new home may still count `from` as a
        // sharer. The rank `from` then ignores the new home's settlements.
        if let Some(entry) = self.directory.get(index) {
            entry.sharers.remove(from);
            entry.stale.remove(from);
        }
        Ok(())
    }

    /// Sets the homes of the pages of a new allocation.
    pub(super) fn lay_out(&mut self, first: u32, count: u32, placement: &Placement, actions: &mut Vec<Action>) {
        let me = self.config.rank;
        let end = (first + count) as usize;
        self.pages.resize(self.pages.len().max(end), FREE);
        let mut open: Option<Run> = None;
        let together = placement.pages_together();
        for index in 0..count {
            let page = first + index;
            let home = placement.home(index, count, self.config.ranks).unwrap_or(UNKNOWN);
            let state = if home == me { State::Open } else { State::Invalid };
            let flags = if index % together > 0 { LEFT | JOINED } else { LEFT };
            self.pages[page as usize] = Local { home, state, flags, entry: directory::NONE, told: 0 };
            if home == me {
                match &mut open {
                    Some(run) if run.first + run.count == page => run.count += 1,
                    _ => actions.extend(open.replace(Run { first: page, count: 1 }).map(|run| Action::Open { run })),
                }
            }
        }
        actions.extend(open.map(|run| Action::Open { run }));
        // Memory for the list `dirty` is reserved now. So no memory is allocated while an access waits for its page.
        let room = self.areas.pages_taken() as usize;
        self.dirty.reserve(room.saturating_sub(self.dirty.len()));
    }

    /// Removes the pages of a freed allocation.
    pub(super) fn clear_away(&mut self, run: Run, actions: &mut Vec<Action>) {
        for page in run.pages() {
            let index = self.pages[page as usize].entry;
            self.directory.remove(index);
            self.pages[page as usize] = FREE;
        }
        for list in [&mut self.dirty, &mut self.flushed_early, &mut self.changed, &mut self.watched] {
            list.retain(|page| !run.pages().contains(page));
        }
        actions.push(Action::Discard { run });
        actions.push(Action::WakeAll);
    }

    /// Notes that a home page now has words that `writer` wrote. `at_barrier` says that they arrived at a memory
    /// barrier.
    pub(super) fn written(&mut self, page: u32, writer: Rank, at_barrier: bool) {
        self.entry(page).written(writer, at_barrier);
        let local = &mut self.pages[page as usize];
        if local.flags & CHANGED == 0 {
            local.flags |= CHANGED;
            self.changed.push(page);
        }
    }
}
