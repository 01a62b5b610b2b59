//! What a home knows of its shared pages: who has copies, whose are no longer true, who writes and who reads.

use super::units::{Rank, RankSet};
use crate::limits::{MOVE_AFTER, PROBE_FIRST, PROBE_LAST, UPDATE_AFTER};

/// Index that stands for no entry.
pub(crate) const NONE: u32 = u32::MAX;

/// Who wrote a page since the last memory barrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writers {
    Nobody,
    One(Rank),
    Several,
}

/// How a sharer has dealt with a page, for the adaptive protocol.
#[derive(Clone, Copy, Debug)]
struct Habit {
    rank: Rank,
    /// Fetches in a row, each after an invalidation and before the page changed again.
    fetches: u8,
    /// Updates since the last invalidation.
    updates: u8,
    /// Updates until the next one.
    interval: u8,
    /// Invalidated, and not fetched since.
    away: bool,
}

/// A shared page at its home.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Who has, or had when last heard of, a copy.
    pub(crate) sharers: RankSet,
    /// Sharers whose copy lacks something another rank wrote.
    pub(crate) stale: RankSet,
    writers: Writers,
    /// The only writer of the last barriers, and of how many in a row.
    main_writer: Option<Rank>,
    barriers: u8,
    /// Nobody is known to have written it before.
    is_fresh: bool,
    habits: Vec<Habit>,
    /// How often the home wrote it, as far as traps told; below 0 for some time when another rank wrote it.
    pub(crate) traps: i8,
    /// A rank that was told to read the page itself may still be doing so.
    pub(crate) is_being_read: bool,
    /// A watched page: flushes since it was last written, and whether it is protected again to see that it is not.
    pub(crate) quiet: u8,
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

    /// Every stale copy is settled. Its rank hears of that behind what told it to read the page.
    pub(crate) fn settled(&mut self) {
        self.is_being_read &= self.sharers.iter().any(|rank| !self.stale.contains(rank));
        self.stale = RankSet::EMPTY;
    }

    /// A rank gets the page as it is now.
    pub(crate) fn fetched(&mut self, rank: Rank) {
        self.sharers.insert(rank);
        self.stale.remove(rank);
        if let Some(habit) = self.habits.iter_mut().find(|habit| habit.rank == rank && habit.away) {
            habit.away = false;
            habit.fetches = habit.fetches.saturating_add(1);
            if habit.fetches > UPDATE_AFTER {
                // It was asked whether it still reads, and does: ask less often.
                habit.interval = habit.interval.saturating_mul(2).min(PROBE_LAST);
            }
        }
    }

    /// A rank reads the page by itself, perhaps before it was as it is now.
    pub(crate) fn joined(&mut self, rank: Rank, is_stale: bool) {
        self.fetched(rank);
        if is_stale {
            self.stale.insert(rank);
        }
    }

    /// The page has words now that only `writer` had before. `at_barrier`: it still has its copy.
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

    /// The adaptive protocol's choice for a stale copy: whether to send the page rather than to take the copy away.
    ///
    /// A copy that was fetched again after each of the last invalidations is read, and an update saves its fetch. An
    /// update leaves no trace of its use, so after some the copy is taken away once: a reader costs one fetch in up to
    /// [`PROBE_LAST`], an idle sharer at most [`PROBE_FIRST`] updates.
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

    /// The page changed again: whoever was invalidated before and has not fetched since does not read it.
    pub(crate) fn forget_idle(&mut self) {
        for habit in self.habits.iter_mut().filter(|habit| habit.away) {
            (habit.fetches, habit.interval, habit.away) = (0, PROBE_FIRST, false);
        }
    }

    /// The home of such a page is one already that wrote it.
    pub(crate) fn adopted(&mut self, sharers: RankSet) {
        self.sharers = sharers;
        self.is_fresh = false;
    }

    /// Ends the count of this barrier's writers. The rank that should be home, when one other than `home` has been the
    /// only writer often enough: once, where it was the first.
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
        // Nobody else wrote, so its copy is true; it wrote at this barrier, so it has not given the copy up since.
        self.sharers.contains(rank).then_some(rank)
    }
}

/// The entries of all shared pages of one home, named by index.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Directory {
    /// A new entry's index.
    pub(crate) fn add(&mut self) -> u32 {
        if let Some(index) = self.free.pop() {
            return index;
        }
        self.entries.push(Entry::new());
        (self.entries.len() - 1) as u32
    }

    /// The entry of that index, unless it is [`NONE`].
    pub(crate) fn get(&mut self, index: u32) -> Option<&mut Entry> {
        self.entries.get_mut(index as usize)
    }

    /// The same, to look at.
    pub(crate) fn look(&self, index: u32) -> Option<&Entry> {
        self.entries.get(index as usize)
    }

    /// Forgets an entry.
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

    /// One barrier after the page changed; says whether the reader got an update.
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
