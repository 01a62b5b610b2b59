//! Home pages whose writes are found by comparison.
//!
//! If a home writes a page repeatedly while others read it, each time costs a trap and a change of protection. A
//! *watched* page stays writable instead, and its home keeps a twin of it: the bytes that its readers have, or will
//! receive. Before each flush page and twin are compared ([`Event::Wrote`](super::Event::Wrote)), which costs a
//! fraction of a trap. The next flush reports what the home writes after that, even if a reader got the page meanwhile,
//! since it got the twin.
//!
//! A page that another rank also writes is not watched: the twin would lack its diffs. A page that is not written for
//! some flushes is watched no longer: it is protected and compared once more, and then its writes trap again.

use super::event::Action;
use super::units::Run;
use super::{Machine, State, WATCHED};
use crate::limits::{WATCH_AFTER, WATCH_LATER, WATCH_QUIET, WATCHED_MAX};

impl Machine {
    /// The watched pages. Each must be compared with its twin before a memory barrier and a release.
    #[must_use]
    pub fn watched(&self) -> &[u32] {
        &self.watched
    }

    /// Whether readers of a page receive its twin.
    #[must_use]
    pub fn is_watched(&self, page: u32) -> bool {
        self.pages.get(page as usize).is_some_and(|local| local.flags & WATCHED != 0)
    }

    /// Whether [`Action::SendPage`] must send a home page's bytes in the message even where readers could read them
    /// themselves. It must for a watched page, whose readers get the twin, and for a page that will soon be watched: a
    /// late reader would read words that are not in the twin.
    #[must_use]
    pub fn is_carried(&self, page: u32) -> bool {
        let entry = self.pages.get(page as usize).and_then(|local| self.directory.look(local.entry));
        self.config.watch && entry.is_some_and(|entry| entry.traps >= WATCH_AFTER - 1) || self.is_watched(page)
    }

    /// Notes a write of the home to a clean page.
    pub(super) fn home_written(&mut self, page: u32) {
        let Some(local) = self.pages.get_mut(page as usize) else { return };
        local.state = State::HomeDirty;
        self.dirty.push(page);
        if let Some(entry) = self.directory.get(local.entry) {
            entry.traps = entry.traps.saturating_add(1);
            entry.is_leaving = false;
        }
    }

    /// Notes the pages that differed from their twins.
    pub(super) fn found_written(&mut self, pages: &[u32], actions: &mut Vec<Action>) {
        for &page in pages {
            if self.is_watched(page) && self.state(page) == State::HomeClean {
                self.open_watched(page, actions);
                self.home_written(page);
            }
        }
    }

    /// Makes a watched page writable that was protected again, like the other watched pages.
    fn open_watched(&mut self, page: u32, actions: &mut Vec<Action>) {
        if self.entry(page).is_leaving {
            self.entry(page).is_leaving = false;
            actions.push(Action::Open { run: Run { first: page, count: 1 } });
        }
    }

    /// Decides, at a flush, whether a page that its home wrote and others share stays writable.
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

    /// Ends the watch of pages that are no longer written. Adds to `protect` the pages that must be protected before
    /// that.
    pub(super) fn look_after_watched(&mut self, protect: &mut Vec<u32>, actions: &mut Vec<Action>) {
        for at in (0..self.watched.len()).rev() {
            let page = self.watched[at];
            let entry = self.entry(page);
            if entry.is_leaving {
                // The page was protected at the last flush and compared since: nothing was written.
                self.unwatch(page, actions);
            } else if entry.quiet >= WATCH_QUIET {
                entry.is_leaving = true;
                protect.push(page);
            } else {
                entry.quiet += 1;
            }
        }
    }

    /// Notes that another rank wrote a page: its writes trap from now on, and the next flush reports the whole page
    /// once more.
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

    /// Makes the writes to a page trap from now on.
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
