//! Carries out the coherence machine's actions on the region and the links.

use std::time::{Duration, Instant};

use hanare_wire::frame::HEADER_BYTES;

use super::super::fatal::{EXIT_LOST, die};
use super::super::limit::Trouble;
use super::super::offers::Offers;
use super::super::region::{PAGE, Region};
use super::{Engine, Source, gates_of, memory_of};
use crate::codec;
use crate::coherence::{Action, Message, Purpose, Rank, Run, State};
use crate::diff;

/// Size in pages of the aligned block around an accessed page. An access opens the pages of the block that belong to
/// this rank and that no other rank shares.
const AROUND: u32 = 64;
/// Maximum number of pages named in one frame whose bytes do not travel with the frame.
const NAMED_MAX: usize = 16_384;
/// Maximum number of home pages that are brought into memory together in order to send them.
const FEW: usize = 32;
/// Size in bytes of a [`Message::Joined`] frame, which announces a read of a page.
const JOINED_BYTES: usize = HEADER_BYTES + 4;

impl Engine {
    pub(super) fn carry_out(&mut self, action: Action, source: Source<'_>) {
        let done = self.act(action, source);
        self.must(done);
    }

    fn act(&mut self, action: Action, source: Source<'_>) -> Result<(), Trouble> {
        match action {
            Action::Send { to, message } => {
                self.bodies.clear();
                self.send(to, &message);
            }
            Action::SendPage { to, page } => self.send_page(to, page)?,
            Action::Read { page, home } => self.read(home, page),
            Action::Offer { page } => self.offers.iter().for_each(|offers| offers.offer(page)),
            Action::Withhold { page } => self.offers.iter().for_each(|offers| offers.withhold(page)),
            Action::SendDiffs { to, pages, purpose } => self.send_diffs(to, pages, purpose)?,
            Action::SendUpdates { to, pages } => self.send_updates(to, &pages)?,
            Action::Install { page, writable } => self.install(page, writable, source)?,
            Action::Apply { index, page } => self.apply(page, source.bodies.get(index as usize).copied())?,
            Action::Twin { page } => {
                self.make_twin(page)?;
                self.region.show(page, true)?;
            }
            Action::Watch { page } => {
                self.region.make_twin(page);
                self.offers.iter().for_each(|offers| offers.offer_twin(page));
            }
            Action::Unwatch { page } => {
                self.offers.iter().for_each(|offers| offers.offer(page));
                self.region.forget_twins(Run { first: page, count: 1 })?;
            }
            Action::Open { run } => self.open(run)?,
            Action::Reopen { run } => self.region.unprotect(run)?,
            Action::Protect { run } => self.region.protect(run)?,
            Action::Invalidate { run } => match &mut self.limit {
                Some(limit) => limit.invalidated(&mut self.region, run)?,
                None => self.region.hide(run)?,
            },
            Action::Adopted { page } => {
                if let Some(limit) = &mut self.limit {
                    limit.adopted(&mut self.region, page)?;
                }
            }
            Action::GivenAway { page } => self.give_away(page)?,
            Action::Discard { run } => {
                if let Some(limit) = &mut self.limit {
                    limit.forget(&mut self.region, run)?;
                }
                self.offers.iter().for_each(|offers| run.pages().for_each(|page| offers.withhold(page)));
                self.region.discard(run)?;
            }
            Action::Wake { page } => self.wake(page)?,
            Action::WakeAll => {
                self.timed.clear();
                self.region.wake_all()?;
            }
            Action::Finished { outcome } => {
                self.is_over |= self.is_ending;
                self.outcome = Some(outcome);
            }
            Action::Fail { failure } => {
                self.last_words(Duration::from_secs(1));
                die(EXIT_LOST, &format!("rank {}: {failure}", self.rank))
            }
        }
        Ok(())
    }

    // ---- what this rank keeps ---------------------------------------------------------------------------------------

    /// Brings home pages into memory before they are read or written here.
    fn have(&mut self, pages: &[u32]) -> Result<(), Trouble> {
        match &mut self.limit {
            Some(limit) => limit.bring_in(&mut self.region, pages),
            None => Ok(()),
        }
    }

    fn make_twin(&mut self, page: u32) -> Result<(), Trouble> {
        if let Some(limit) = &mut self.limit {
            limit.twin_comes(&mut self.region)?;
        }
        self.region.make_twin(page);
        Ok(())
    }

    fn give_away(&mut self, page: u32) -> Result<(), Trouble> {
        self.have(&[page])?;
        self.limit.as_mut().map_or(Ok(()), |limit| limit.given_away(&mut self.region, page))
    }

    // ---- to other ranks ---------------------------------------------------------------------------------------------

    pub(super) fn send(&mut self, to: Rank, message: &Message) {
        let Some(Some(peer)) = self.peers.get_mut(usize::from(to.0)) else { return };
        let mut frame = std::mem::take(&mut self.spare);
        frame.clear();
        let sequence = peer.link.next_sequence();
        codec::encode(message, &self.bodies, sequence, self.is_guarded, &mut frame);
        self.counts.frames_sent += 1;
        self.counts.bytes_sent += frame.len() as u64;
        // Ignored: if the link is closed, its next read notices that.
        if let Ok(Some(emptied)) = peer.link.send(frame, message.urgency()) {
            self.spare = emptied;
        }
    }

    /// Copies the bytes that sharers of a page receive. These are the twin's bytes if the page is watched.
    fn read_for_others(&self, page: u32, into: &mut [u8; PAGE]) {
        match self.machine.is_watched(page) {
            true => self.region.read_twin(page, into),
            false => self.region.read(page, into),
        }
    }

    fn send_page(&mut self, to: Rank, page: u32) -> Result<(), Trouble> {
        self.have(&[page])?;
        self.bodies.clear();
        let is_carried = match &self.limit {
            None => !self.is_zero_copy || self.machine.is_carried(page),
            // If there is no room to keep the page in memory until its reader has read it, the message carries the
            // page's bytes.
            Some(limit) => !self.is_zero_copy || limit.is_exceeded(&self.region),
        };
        if is_carried {
            let mut bytes = [0; PAGE];
            self.read_for_others(page, &mut bytes);
            if bytes != [0; PAGE] || self.is_zero_copy {
                self.bodies.add(|out| out.extend_from_slice(&bytes));
            }
        } else if let Some(limit) = &self.limit {
            limit.gates.pin_for_peer(page);
        }
        self.send(to, &Message::PageReply { page });
        Ok(())
    }

    fn send_diffs(&mut self, to: Rank, pages: Vec<u32>, purpose: Purpose) -> Result<(), Trouble> {
        self.bodies.clear();
        let mut named = Vec::new();
        for &page in &pages {
            if self.diff(to, page) {
                named.push(page);
            }
            if self.bodies.is_full() || named.len() == NAMED_MAX {
                let pages = std::mem::take(&mut named);
                self.send(to, &Message::Diffs { purpose, pages, last: false });
                self.bodies.clear();
            }
        }
        self.send(to, &Message::Diffs { purpose, pages: named, last: true });
        if self.limit.is_some() {
            pages.into_iter().try_for_each(|page| self.region.forget_twins(Run { first: page, count: 1 }))?;
        }
        Ok(())
    }

    /// Writes this rank's changes into the home's page, or adds them to the bodies of the message. Returns whether the
    /// page has changed.
    fn diff(&mut self, to: Rank, page: u32) -> bool {
        match (memory_of(&self.peers, to), gates_of(&self.peers, to)) {
            (Some(memory), None) => return self.region.put_changed(memory, page),
            (Some(memory), Some(gates)) if gates.pin_to_write(page) => {
                let is_changed = self.region.put_changed(memory, page);
                gates.unpin(page);
                if is_changed {
                    self.bodies.add_empty();
                }
                return is_changed;
            }
            _ => {}
        }
        let (mut twin, mut bytes) = ([0; PAGE], [0; PAGE]);
        self.region.read_twin(page, &mut twin);
        self.region.read(page, &mut bytes);
        let differ = &mut self.differ;
        self.bodies.add(|out| {
            differ.encode(&twin, &bytes, out);
        })
    }

    fn send_updates(&mut self, to: Rank, pages: &[u32]) -> Result<(), Trouble> {
        let since = Instant::now();
        self.bodies.clear();
        let mut named = Vec::new();
        // Works in small groups of pages, so that a rank with little memory has room for each group.
        for (index, few) in pages.chunks(FEW).enumerate() {
            let at_home: Vec<u32> = few.iter().copied().filter(|&page| self.machine.is_home(page)).collect();
            self.have(&at_home)?;
            for (inside, &page) in few.iter().enumerate() {
                named.push(page);
                match memory_of(&self.peers, to) {
                    Some(memory) if self.limit.is_none() => {
                        self.region.put_into(memory, page, self.machine.is_watched(page));
                    }
                    _ => {
                        let mut bytes = [0; PAGE];
                        self.read_for_others(page, &mut bytes);
                        self.bodies.add(|out| out.extend_from_slice(&bytes));
                    }
                }
                let last = index * FEW + inside + 1 == pages.len();
                if last || self.bodies.is_full() || named.len() == NAMED_MAX {
                    let pages = std::mem::take(&mut named);
                    self.send(to, &Message::Updates { pages, last });
                    self.bodies.clear();
                }
            }
        }
        self.counts.update_ns += since.elapsed().as_nanos() as u64;
        Ok(())
    }

    /// Tries to read a page of another rank without a request.
    fn read(&mut self, home: Rank, page: u32) {
        let since = Instant::now();
        let is_here = self.read_offered(home, page).unwrap_or(false);
        self.reads.push((page, is_here));
        if is_here {
            self.counts.share_ns += since.elapsed().as_nanos() as u64;
        }
    }

    /// Reads a published page of another rank. Returns whether the bytes are valid. `None` if the page cannot be read
    /// without a request.
    fn read_offered(&mut self, home: Rank, page: u32) -> Option<bool> {
        let peer = self.peers.get(usize::from(home.0))?.as_ref()?;
        let offer = peer.shelf.as_ref()?.offers.look(page)?;
        if !peer.link.has_room(JOINED_BYTES) {
            return None;
        }
        self.bodies.clear();
        self.send(home, &Message::Joined { page });
        Offers::said();
        let peer = self.peers.get(usize::from(home.0))?.as_ref()?;
        let shelf = peer.shelf.as_ref()?;
        let from = if offer.is_twin() { &shelf.twins } else { peer.memory.as_ref()? };
        self.region.take_from(from, page);
        Some(shelf.offers.is_still(page, offer))
    }

    // ---- from other ranks -------------------------------------------------------------------------------------------

    /// Applies another rank's diff to a page of this rank. Does nothing if that rank has written the words directly.
    fn apply(&mut self, page: u32, body: Option<&[u8]>) -> Result<(), Trouble> {
        let Some(body) = body.filter(|body| !body.is_empty()) else { return Ok(()) };
        self.have(&[page])?;
        if let Some(limit) = &self.limit {
            limit.gates.mark_written(page);
        }
        // Ignored: the diff was checked when its message was decoded.
        let _ = diff::walk_checked(body, PAGE, |at, bytes| self.region.write(page, at, bytes));
        Ok(())
    }

    fn install(&mut self, page: u32, writable: bool, source: Source<'_>) -> Result<(), Trouble> {
        if let Some(limit) = &mut self.limit {
            limit.copy_comes(&mut self.region, page)?;
        }
        // Correct ranks send ascending page numbers. In a message with another order, a page that is not found counts
        // as a page without a body.
        let at = source.pages.binary_search(&page).ok();
        match at.and_then(|at| source.bodies.get(at)) {
            Some(body) if !body.is_empty() => self.region.write(page, 0, body),
            // The page already has its bytes: its home has written them, or this rank has read them from the home's
            // memory.
            _ if source.is_in_place => {}
            _ => match memory_of(&self.peers, source.from) {
                Some(memory) if self.is_zero_copy => self.region.take_from(memory, page),
                _ => self.region.clear(page),
            },
        }
        self.region.came(page);
        self.came(page);
        if writable {
            self.make_twin(page)?;
        }
        Ok(self.region.show(page, writable)?)
    }

    // ---- into view --------------------------------------------------------------------------------------------------

    /// Opens a home page that was accessed, and some of its neighbours. Does nothing for a run of several pages,
    /// because the first access to each of them opens it. So pages that are never accessed take no memory.
    fn open(&mut self, run: Run) -> Result<(), Trouble> {
        if run.count > 1 {
            return Ok(());
        }
        let page = run.first;
        if self.limit.is_some() {
            return self.open_within_limit(page);
        }
        let is_mine = |page: u32| self.machine.state(page) == State::Open && !self.region.is_shown(page);
        if !is_mine(page) {
            return Ok(self.region.show(page, true)?);
        }
        let block = page / AROUND * AROUND;
        let first = (block..page).rev().take_while(|&page| is_mine(page)).last().unwrap_or(page);
        let count = (page..block + AROUND).take_while(|&page| is_mine(page)).count() as u32 + (page - first);
        Ok(self.region.show_all(Run { first, count }, true)?)
    }

    fn open_within_limit(&mut self, page: u32) -> Result<(), Trouble> {
        match self.touch {
            Some((touched, write)) if touched == page => self.show_own(page, write),
            // A page that is not in memory is not brought in just because another page was accessed. Its own first
            // access will trap.
            Some(_) if self.limit.as_ref().is_some_and(|limit| !limit.is_in(page)) => Ok(()),
            _ => self.show_own(page, true),
        }
    }

    /// Makes a home page accessible, even if the page is not in memory yet. Does the same for other pages that will
    /// probably be accessed next. Pages that come into memory for a read stay protected until a write. If nobody writes
    /// to them, they need not be written to the backing store again.
    fn show_own(&mut self, page: u32, write: bool) -> Result<(), Trouble> {
        let Some(limit) = &mut self.limit else { return Ok(self.region.show(page, true)?) };
        let machine = &self.machine;
        let state = machine.state(page);
        let alike = |region: &Region, next| machine.state(next) == state && !region.is_shown(next);
        let runs = limit.bring_in_with(&mut self.region, page, alike)?;
        let writable = match state {
            State::Open => write,
            State::HomeDirty => true,
            _ => false,
        };
        if let (true, Some(limit)) = (writable, &self.limit) {
            // The pages are marked as written before any thread can write to them.
            runs.iter().flat_map(|run| run.pages()).for_each(|page| limit.gates.mark_written(page));
        }
        for run in runs {
            match run {
                Run { first, count: 1 } if first == page => self.region.show(page, writable)?,
                _ => self.region.show_all(run, writable)?,
            }
        }
        Ok(())
    }

    /// Makes a page accessible as its state allows, and wakes the threads that wait for the page.
    fn wake(&mut self, page: u32) -> Result<(), Trouble> {
        // This step has just shown the page, and has woken the threads that wait for it.
        if self.region.take_last_shown() == Some(page) {
            return Ok(());
        }
        let state = self.machine.state(page);
        match state {
            _ if self.region.is_shown(page) => self.region.show_again(page)?,
            State::Open | State::HomeClean | State::HomeDirty if self.limit.is_some() => {
                let write = self.touch.is_some_and(|(touched, write)| touched == page && write);
                self.show_own(page, write)?;
            }
            State::Clean | State::HomeClean => self.region.show(page, false)?,
            State::Open | State::Dirty | State::HomeDirty => self.region.show(page, true)?,
            _ => {}
        }
        // `show` may have woken the threads that wait for the page.
        if self.region.take_last_shown() != Some(page) {
            self.region.wake(Run { first: page, count: 1 })?;
        }
        Ok(())
    }
}
