//! Watched pages: home pages whose writes are found by comparison instead of traps.
//!
//! If a home repeatedly writes a page that other ranks read, each round costs a trap and a change of protection. A
//! *watched* page stays writable instead. Its home keeps a twin of the page, with the bytes that the readers have or
//! will receive. Before each flush, the page is compared with its twin ([`Event::Wrote`](super::Event::Wrote)), which
//! costs a fraction of a trap. A write after the comparison is found before the next flush. This holds even if a reader
//! requests the page after that write, because the reader receives the twin.
//!
//! A page that another rank also writes is not watched, because the twin would lack that rank's diffs. After some
//! flushes without a write, a page is write-protected and compared once more. Then the watch ends, and writes to the
//! page trap again.

use super::event::Action;
use super::units::Run;
use super::{Machine, State, WATCHED};
use crate::limits::{WATCH_AFTER, WATCH_LATER, WATCH_QUIET, WATCHED_MAX};

impl Machine {
    /// Returns the watched pages. Each must be compared with its twin before each memory barrier and release.
    #[must_use]
    pub fn watched(&self) -> &[u32] {
        &self.watched
    }

    /// Checks whether a page is watched. Readers of a watched page receive its twin.
    #[must_use]
    pub fn is_watched(&self, page: u32) -> bool {
        self.pages.get(page as usize).is_some_and(|local| local.flags & WATCHED != 0)
    }

    /// Checks whether [`Action::SendPage`] must put the bytes of a home page into the message, even if readers could
    /// read the home's memory. A watched page needs this, because its readers receive the twin. A page that will soon
    /// be watched needs it too. Otherwise a late reader could read words from the page that are not in its new twin.
    #[must_use]
    pub fn is_carried(&self, page: u32) -> bool {
        let entry = self.pages.get(page as usize).and_then(|local| self.directory.look(local.entry));
        self.config.watch && entry.is_some_and(|entry| entry.traps >= WATCH_AFTER - 1) || self.is_watched(page)
    }

    /// Notes that this rank has written a clean page of which it is the home.
    pub(super) fn home_written(&mut self, page: u32) {
        let Some(local) = self.pages.get_mut(page as usize) else { return };
        local.state = State::HomeDirty;
        self.dirty.push(page);
        if let Some(entry) = self.directory.get(local.entry) {
            entry.traps = entry.traps.saturating_add(1);
            entry.is_leaving = false;
        }
    }

    /// Notes that this rank has written these pages, which differed from their twins.
    pub(super) fn found_written(&mut self, pages: &[u32], actions: &mut Vec<Action>) {
        for &page in pages {
            if self.is_watched(page) && self.state(page) == State::HomeClean {
                self.open_watched(page, actions);
                self.home_written(page);
            }
        }
    }

    /// Makes a watched page writable again, if it was write-protected in order to end its watch.
    fn open_watched(&mut self, page: u32, actions: &mut Vec<Action>) {
        if self.entry(page).is_leaving {
            self.entry(page).is_leaving = false;
            actions.push(Action::Open { run: Run { first: page, count: 1 } });
        }
    }

    /// Returns whether a shared page that this rank has written stays writable at a flush. It stays writable if the
    /// page is watched already, or if its watch begins now.
    pub(super) fn watches(&mut self, page: u32, actions: &mut Vec<Action>) -> bool {
        let entry = self.entry(page);
        entry.quiet = 0;
        let is_candidate = entry.traps >= WATCH_AFTER && !entry.is_being_read;
        if self.is_watched(page) {
            return true;
        }
        if !is_candidate || !self.config.watch || self.watched.len() == WATCHED_MAX {
            return false;
        }
        self.pages[page as usize].flags |= WATCHED;
        self.watched.push(page);
        actions.push(Action::Watch { page });
        true
    }

    /// Ends the watch of pages that are no longer written. Adds to `protect` the pages that must be write-protected
    /// before their watch can end.
    pub(super) fn look_after_watched(&mut self, protect: &mut Vec<u32>, actions: &mut Vec<Action>) {
        for at in (0..self.watched.len()).rev() {
            let page = self.watched[at];
            let entry = self.entry(page);
            if entry.is_leaving {
                // The page was write-protected at the last flush. A comparison with its twin since then found no write.
                self.unwatch(page, actions);
            } else if entry.quiet >= WATCH_QUIET {
                entry.is_leaving = true;
                protect.push(page);
            } else {
                entry.quiet += 1;
            }
        }
    }

    /// Notes that another rank has written a page. If the page was watched, its watch ends, and the next flush
    /// publishes the whole page once more.
    pub(super) fn written_by_another(&mut self, page: u32, actions: &mut Vec<Action>) {
        if self.is_watched(page) {
            self.open_watched(page, actions);
            self.unwatch(page, actions);
            if self.state(page) == State::HomeClean {
                self.pages[page as usize].state = State::HomeDirty;
                self.dirty.push(page);
            }
        }
        self.entry(page).traps = -WATCH_LATER;
    }

    /// Ends the watch of a page, if the page is watched.
    pub(super) fn unwatch(&mut self, page: u32, actions: &mut Vec<Action>) {
        if !self.is_watched(page) {
            return;
        }
        self.pages[page as usize].flags &= !WATCHED;
        self.watched.retain(|&other| other != page);
        let entry = self.entry(page);
        (entry.traps, entry.quiet, entry.is_leaving) = (0, 0, false);
        actions.push(Action::Unwatch { page });
    }
}
