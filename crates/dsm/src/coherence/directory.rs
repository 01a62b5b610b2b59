//! The directory of a home's shared pages. It says which ranks have copies, which copies are stale, and which ranks
//! write and read a page.

use super::units::{Rank, RankSet};
use crate::limits::{MOVE_AFTER, PROBE_FIRST, PROBE_LAST, UPDATE_AFTER};

/// The index that stands for no entry.
pub(crate) const NONE: u32 = u32::MAX;

/// The writers of a page since the last memory barrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writers {
    Nobody,
    One(Rank),
    Several,
}

/// A sharer's past use of a page, for the adaptive protocol.
#[derive(Clone, Copy, Debug)]
struct Habit {
    rank: Rank,
    /// How many times in a row the rank fetched the page again between an invalidation and the next change of the page.
    fetches: u8,
    /// Number of updates since the last invalidation.
    updates: u8,
    /// Number of updates after which the copy is invalidated once as a probe, to test whether the rank still reads the
    /// page.
    interval: u8,
    /// Whether the copy was invalidated and has not been fetched again.
    away: bool,
}

/// A shared page at its home.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Ranks with a copy, as far as the home knows.
    pub(crate) sharers: RankSet,
    /// Sharers whose copy lacks words that another rank wrote.
    pub(crate) stale: RankSet,
    writers: Writers,
    /// The rank that was the only writer at each of the last `barriers` memory barriers. Barriers without a write to
    /// the page are not counted.
    main_writer: Option<Rank>,
    barriers: u8,
    /// True as long as no memory barrier has found a write to the page. At the first barrier that finds one, the home
    /// may move to the writer, if no other rank wrote the page.
    is_fresh: bool,
    habits: Vec<Habit>,
    /// Number of the home's writes that trapped. At [`WATCH_AFTER`](crate::limits::WATCH_AFTER), the page may be
    /// watched: writes are then found by comparison with a twin. A write of another rank sets the number below 0.
    pub(crate) traps: i8,
    /// Whether a rank may still be reading the page from this rank's memory.
    pub(crate) is_being_read: bool,
    /// Number of flushes since the last write to a watched page. After enough such flushes, the page is write-protected
    /// again.
    pub(crate) quiet: u8,
    /// Whether a watched page is write-protected. If this rank does not write the page before the next flush, the watch
    /// ends.
    pub(crate) is_leaving: bool,
}

impl Entry {
    fn new() -> Self {
        Self {
            sharers: RankSet::EMPTY,
            stale: RankSet::EMPTY,
            writers: Writers::Nobody,
            main_writer: None,
            barriers: 0,
            is_fresh: true,
            habits: Vec::new(),
            traps: 0,
            is_being_read: false,
            quiet: 0,
            is_leaving: false,
        }
    }

    /// Notes that all stale copies have been invalidated or updated.
    pub(crate) fn settled(&mut self) {
        self.is_being_read &= self.sharers.iter().any(|rank| !self.stale.contains(rank));
        self.stale = RankSet::EMPTY;
    }

    /// Notes that a rank gets the current bytes of the page.
    pub(crate) fn fetched(&mut self, rank: Rank) {
        self.sharers.insert(rank);
        self.stale.remove(rank);
        if let Some(habit) = self.habits.iter_mut().find(|habit| habit.rank == rank && habit.away) {
            habit.away = false;
            habit.fetches = habit.fetches.saturating_add(1);
            if habit.fetches > UPDATE_AFTER {
                // The copy was invalidated as a probe. The rank has fetched the page again, so it still reads the page.
                // The interval to the next probe grows.
                habit.interval = habit.interval.saturating_mul(2).min(PROBE_LAST);
            }
        }
    }

    /// Notes that a rank reads the page from this rank's memory. `is_stale` says that the bytes may lack the latest
    /// change.
    pub(crate) fn joined(&mut self, rank: Rank, is_stale: bool) {
        self.fetched(rank);
        if is_stale {
            self.stale.insert(rank);
        }
    }

    /// Notes that the page now has words that `writer` wrote, so that the other copies are stale. `at_barrier` says
    /// that the words arrived at a memory barrier, so that the writer still has its copy.
    pub(crate) fn written(&mut self, writer: Rank, at_barrier: bool) {
        let mut others = self.sharers;
        others.remove(writer);
        self.stale.extend(others);
        self.writers = match self.writers {
            Writers::Nobody if at_barrier => Writers::One(writer),
            Writers::One(rank) if rank == writer && at_barrier => self.writers,
            _ => Writers::Several,
        };
    }

    /// Decides how the adaptive protocol treats the stale copy of `rank`: true for an update, false for an
    /// invalidation.
    ///
    /// A rank that fetched its copy again after each of the last invalidations reads the page. An update then saves a
    /// fetch. But updates do not show whether the rank still reads the page. So after some updates the copy is
    /// invalidated once, as a probe. For a rank that reads the page, this costs one fetch in up to [`PROBE_LAST`]
    /// updates. For a rank that has stopped reading, the updates end at the next probe.
    pub(crate) fn wants_update(&mut self, rank: Rank) -> bool {
        let habit = self.habit(rank);
        let update = habit.fetches >= UPDATE_AFTER && habit.updates < habit.interval;
        if update {
            habit.updates += 1;
        } else {
            habit.updates = 0;
            habit.away = true;
        }
        update
    }

    fn habit(&mut self, rank: Rank) -> &mut Habit {
        let at = match self.habits.iter().position(|habit| habit.rank == rank) {
            Some(at) => at,
            None => {
                self.habits.push(Habit { rank, fetches: 0, updates: 0, interval: PROBE_FIRST, away: false });
                self.habits.len() - 1
            }
        };
        &mut self.habits[at]
    }

    /// Resets the habits of ranks that have not fetched their invalidated copies again. The page has changed again
    /// since the invalidation, so these ranks did not read it in between.
    pub(crate) fn forget_idle(&mut self) {
        for habit in self.habits.iter_mut().filter(|habit| habit.away) {
            (habit.fetches, habit.interval, habit.away) = (0, PROBE_FIRST, false);
        }
    }

    /// Sets the sharers of a page whose home has moved to this rank. The page counts as already written, because this
    /// rank wrote the page before the move.
    pub(crate) fn adopted(&mut self, sharers: RankSet) {
        self.sharers = sharers;
        self.is_fresh = false;
    }

    /// Ends the count of this barrier's writers. Returns the rank to which the home should move, if any. That rank is
    /// not `home`, and was the only writer at enough barriers. For the first writer of a page, one barrier is enough.
    pub(crate) fn count_writers(&mut self, home: Rank) -> Option<Rank> {
        let writers = std::mem::replace(&mut self.writers, Writers::Nobody);
        match writers {
            Writers::Nobody => return None,
            Writers::One(rank) if rank != home && self.is_fresh => {
                (self.main_writer, self.barriers) = (Some(rank), MOVE_AFTER);
            }
            Writers::One(rank) if rank != home => {
                self.barriers = if self.main_writer == Some(rank) { self.barriers.saturating_add(1) } else { 1 };
                self.main_writer = Some(rank);
            }
            _ => (self.main_writer, self.barriers) = (None, 0),
        }
        self.is_fresh = false;
        let rank = self.main_writer.filter(|_| self.barriers >= MOVE_AFTER)?;
        // The copy of `rank` is current, because no other rank wrote the page. A sharer that wrote the page at this
        // barrier still has its copy.
        self.sharers.contains(rank).then_some(rank)
    }
}

/// The directory entries of all shared pages of one home. A page refers to its entry by an index.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Directory {
    /// Adds an entry and returns its index.
    pub(crate) fn add(&mut self) -> u32 {
        if let Some(index) = self.free.pop() {
            return index;
        }
        self.entries.push(Entry::new());
        (self.entries.len() - 1) as u32
    }

    /// Returns the entry at this index. There is no entry at [`NONE`].
    pub(crate) fn get(&mut self, index: u32) -> Option<&mut Entry> {
        self.entries.get_mut(index as usize)
    }

    /// Returns the entry at this index for reading. There is no entry at [`NONE`].
    pub(crate) fn look(&self, index: u32) -> Option<&Entry> {
        self.entries.get(index as usize)
    }

    /// Removes the entry at this index, if there is one.
    pub(crate) fn remove(&mut self, index: u32) {
        if let Some(entry) = self.entries.get_mut(index as usize) {
            *entry = Entry::new();
            self.free.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READER: Rank = Rank(1);
    const WRITER: Rank = Rank(2);

    /// Simulates the settlement of one barrier after a change of the page. Returns whether the reader got an update.
    fn settle(entry: &mut Entry, reads: bool) -> bool {
        entry.forget_idle();
        if !entry.sharers.contains(READER) {
            return false;
        }
        let update = entry.wants_update(READER);
        if !update {
            entry.sharers.remove(READER);
            if reads {
                entry.fetched(READER);
            }
        }
        update
    }

    #[test]
    fn a_constant_reader_is_updated_and_asked_seldom() {
        let mut entry = Entry::new();
        entry.fetched(READER);
        let updates = (0..200).filter(|_| settle(&mut entry, true)).count();
        assert!(updates >= 190, "{updates} of 200 changes came as updates");
    }

    #[test]
    fn a_sharer_that_stops_reading_costs_few_updates() {
        let mut entry = Entry::new();
        entry.fetched(READER);
        (0..4).for_each(|_| {
            settle(&mut entry, true);
        });
        let updates = (0..200).filter(|_| settle(&mut entry, false)).count();
        assert!(updates <= usize::from(PROBE_FIRST), "{updates} updates for nobody");
    }

    #[test]
    fn a_home_follows_the_only_writer_after_some_barriers() {
        let mut entry = Entry::new();
        entry.fetched(WRITER);
        entry.written(Rank(0), true);
        assert_eq!(entry.count_writers(Rank(0)), None, "its home wrote it first");
        entry.fetched(WRITER);
        entry.written(WRITER, true);
        assert_eq!(entry.count_writers(Rank(0)), None, "once is not enough");
        entry.written(WRITER, true);
        assert_eq!(entry.count_writers(Rank(0)), Some(WRITER));
        entry.written(WRITER, true);
        entry.written(Rank(0), true);
        assert_eq!(entry.count_writers(Rank(0)), None, "two writers");
    }

    #[test]
    fn a_home_goes_at_once_to_the_first_rank_that_writes() {
        let mut entry = Entry::new();
        entry.fetched(READER);
        entry.fetched(WRITER);
        assert_eq!(entry.count_writers(Rank(0)), None, "nobody wrote");
        entry.written(WRITER, true);
        assert_eq!(entry.count_writers(Rank(0)), Some(WRITER));
        let mut entry = Entry::new();
        entry.adopted(RankSet::EMPTY);
        entry.fetched(READER);
        entry.written(READER, true);
        assert_eq!(entry.count_writers(WRITER), None, "once only");
    }

    #[test]
    fn a_copy_is_stale_when_another_rank_wrote_since_it_was_fetched() {
        let mut entry = Entry::new();
        entry.fetched(READER);
        entry.fetched(WRITER);
        entry.written(WRITER, true);
        assert!(entry.stale.contains(READER) && !entry.stale.contains(WRITER));
        entry.fetched(READER);
        assert!(entry.stale.is_empty());
    }
}
