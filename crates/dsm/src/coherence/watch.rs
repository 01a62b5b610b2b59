//! Home pages whose writes are found by comparison.
//!
//! A page that its home writes time and again while others read it costs a trap and a protection each time. A *watched*
//! page stays writable instead, and its home keeps a twin of it: what its readers have, or will be sent. Ahead of each
//! flush page and twin are compared ([`Event::Wrote`](super::Event::Wrote)), which costs a fraction of a trap. What the home
//! writes after that is told by the next flush, whether or not a reader got the page meanwhile, since it got the twin.
//!
//! A page another rank writes as well is not watched: its diffs would be missing in the twin. Nor is one that was not
//! written for some flushes: it is protected, compared once more, and then left to traps.

use super::event::Action;
use super::units::Run;
use super::{Machine, State, WATCHED};
use crate::limits::{WATCH_AFTER, WATCH_LATER, WATCH_QUIET, WATCHED_MAX};

impl Machine {
    /// The watched pages, each of which is to be compared with its twin before a memory barrier and a release.
    #[must_use]
    pub fn watched(&self) -> &[u32] {
        &self.watched
    }

    /// Whether readers of a page get its twin.
    #[must_use]
    pub fn is_watched(&self, page: u32) -> bool {
        self.pages.get(page as usize).is_some_and(|local| local.flags & WATCHED != 0)
    }

    /// Whether a home page's bytes travel with [`Action::SendPage`] even where readers could read them themselves: these are
    /// a twin's, or the page is soon to be watched, and who read it later than it was told to would get what is not in the
    /// twin.
    #[must_use]
    pub fn is_carried(&self, page: u32) -> bool {
        let entry = self.pages.get(page as usize).and_then(|local| self.directory.look(local.entry));
        self.config.watch && entry.is_some_and(|entry| entry.traps >= WATCH_AFTER - 1) || self.is_watched(page)
    }

    /// The home writes a page that was clean.
    pub(super) fn home_written(&mut self, page: u32) {
        let Some(local) = self.pages.get_mut(page as usize) else { return };
        local.state = State::HomeDirty;
        self.dirty.push(page);
        if let Some(entry) = self.directory.get(local.entry) {
            entry.traps = entry.traps.saturating_add(1);
            entry.is_leaving = false;
        }
    }

    /// Pages that differed from their twins.
    pub(super) fn found_written(&mut self, pages: &[u32], actions: &mut Vec<Action>) {
        for &page in pages {
            if self.is_watched(page) && self.state(page) == State::HomeClean {
                self.open_watched(page, actions);
                self.home_written(page);
            }
        }
    }

    /// A watched page that was protected again is writable as the others are.
    fn open_watched(&mut self, page: u32, actions: &mut Vec<Action>) {
        if self.entry(page).is_leaving {
            self.entry(page).is_leaving = false;
            actions.push(Action::Open { run: Run { first: page, count: 1 } });
        }
    }

    /// At a flush, of a page that its home wrote and others share: whether it stays writable.
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

    /// Ends the watch of pages that are no longer written; adds those that are to be protected first.
    pub(super) fn look_after_watched(&mut self, protect: &mut Vec<u32>, actions: &mut Vec<Action>) {
        for at in (0..self.watched.len()).rev() {
            let page = self.watched[at];
            let entry = self.entry(page);
            if entry.is_leaving {
                // Protected since the last flush, and compared since: nothing was written.
                self.unwatch(page, actions);
            } else if entry.quiet >= WATCH_QUIET {
                entry.is_leaving = true;
                protect.push(page);
            } else {
                entry.quiet += 1;
            }
        }
    }

    /// Another rank wrote a page: traps tell from now on, and all of it is told once more.
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

    /// Traps tell of writes from now on.
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
