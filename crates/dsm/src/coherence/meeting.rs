//! Meetings, at which every rank waits for all others. Rank 0 counts the arrivals. It lets all ranks continue when the
//! last rank has arrived.

use super::event::{Action, Reduction};
use super::message::{Failure, Message, Together, Violation};
use super::units::{Rank, RankSet};
use super::{Checked, Machine};
use crate::limits::VALUES_MAX;

/// The fields of the message by which a rank arrives at a meeting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Arrival {
    pub(super) what: Together,
    pub(super) detail: u64,
    pub(super) meeting: u8,
    pub(super) targets: RankSet,
    pub(super) values: Vec<u64>,
}

/// The ranks that have arrived at the current meeting.
#[derive(Debug)]
pub(super) struct Meeting {
    /// The rank that arrived first, with the fields of its message.
    first: Option<(Rank, Arrival)>,
    here: RankSet,
    ranks: u16,
    /// For each rank, the number of ranks that named it as a target of their messages.
    named: Vec<u16>,
    /// For each rank, its values in a reduction.
    values: Vec<Vec<u64>>,
}

impl Meeting {
    pub(super) fn new(ranks: u16) -> Self {
        let n = usize::from(ranks);
        Self { first: None, here: RankSet::EMPTY, ranks, named: vec![0; n], values: vec![Vec::new(); n] }
    }

    pub(super) fn missing(&self) -> Option<(Together, RankSet)> {
        let (_, arrival) = self.first.as_ref()?;
        let mut missing = RankSet::EMPTY;
        for rank in (0..self.ranks).map(Rank).filter(|&rank| !self.here.contains(rank)) {
            missing.insert(rank);
        }
        Some((arrival.what, missing))
    }

    fn add(&mut self, from: Rank, arrival: Arrival) -> Result<bool, Violation> {
        if arrival.values.len() > VALUES_MAX || !self.here.insert(from) {
            return Err(Violation::Unasked);
        }
        for target in arrival.targets.iter() {
            *self.named.get_mut(usize::from(target.0)).ok_or(Violation::Number)? += 1;
        }
        self.values[usize::from(from.0)].clone_from(&arrival.values);
        if self.first.is_none() {
            self.first = Some((from, arrival));
        }
        Ok(self.here.len() == u32::from(self.ranks))
    }

    /// Combines the values of all ranks, in ascending order of the ranks. So a sum of doubles is the same every time.
    fn reduced(&mut self, detail: u64) -> Result<Vec<u64>, Violation> {
        let reduction = Reduction::from_detail(detail).ok_or(Violation::Number)?;
        let mut ranks = self.values.iter_mut().map(std::mem::take);
        let mut sum = ranks.next().unwrap_or_default();
        for values in ranks {
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum = reduction.combine(*sum, value));
        }
        Ok(sum)
    }
}

impl Machine {
    /// Counts the arrival of a rank, at rank 0. After the last arrival, lets all ranks continue.
    pub(super) fn arrived(&mut self, from: Rank, arrival: Arrival, actions: &mut Vec<Action>) -> Checked {
        if self.config.rank != Rank(0) {
            return Err(Violation::NotHome);
        }
        let (what, detail, meeting) = (arrival.what, arrival.detail, arrival.meeting);
        if let Some((first, other)) = &self.meeting.first {
            let same = (other.what, other.detail, other.meeting, other.values.len())
                == (what, detail, meeting, arrival.values.len());
            if !same {
                let failure = Failure::Mismatch { rank: from, called: what, other: *first, other_called: other.what };
                self.fail(failure, actions);
                return Ok(());
            }
        }
        if !self.meeting.add(from, arrival)? {
            return Ok(());
        }
        let values = match what {
            Together::Reduce => self.meeting.reduced(detail)?,
            _ => Vec::new(),
        };
        self.meeting.first = None;
        self.meeting.here = RankSet::EMPTY;
        if what == Together::Barrier && meeting == 1 {
            // The log of write notices can be emptied. No rank is in a lock call, and the barrier makes every copy
            // current.
            self.keeper.forget_notices();
        }
        for rank in (0..self.config.ranks).map(Rank) {
            let expect = std::mem::take(&mut self.meeting.named[usize::from(rank.0)]);
            self.send(rank, Message::Go { what, meeting, expect, values: values.clone() }, actions);
        }
        Ok(())
    }
}
