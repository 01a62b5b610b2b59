//! Replays a recorded run with its own policy. The policy must give the same answers in the same order.

use std::collections::HashSet;
use std::fmt;

use hanare_paging::PageId;
use hanare_paging::policy::{self, Policy, SpecError};
use hanare_paging::trace::{Reader, Record, TraceError};

/// The result of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Replayed {
    /// Number of recorded victims that the policy named again.
    pub victims: u64,
    /// Number of recorded requests for a victim that the policy answered with none, in the recorded run and again in
    /// the replay.
    pub none: u64,
    /// Number of recorded requests to unmap a page that the policy made again in the replay.
    pub hidden: u64,
    /// Whether recording stopped before the run ended.
    pub cut: bool,
}

/// Why a run could not be replayed, or how it differed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplayError {
    /// The trace is incomplete.
    Trace(TraceError),
    /// The recorded policy cannot be built.
    Policy(SpecError),
    /// The record at this offset describes something impossible.
    Impossible(usize, Record),
    /// The policy's answer differs from the record at `offset`.
    Differs {
        /// Offset of the record, in bytes.
        offset: usize,
        /// The recorded answer of the policy.
        recorded: Option<PageId>,
        /// The policy's answer in the replay.
        replayed: Option<PageId>,
        /// Number of earlier victims that are the same in the record and in the replay.
        after: u64,
    },
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let page = |page: &Option<PageId>| page.map_or("none".to_owned(), |page| format!("page {}", page.0));
        match self {
            Self::Trace(error) => error.fmt(f),
            Self::Policy(error) => write!(f, "was recorded with a policy that is not here: {error}"),
            Self::Impossible(offset, record) => {
                write!(f, "tells at offset {offset} what cannot have happened: {record:?}")
            }
            Self::Differs { offset, recorded, replayed, after } => write!(
                f,
                "is replayed differently at offset {offset}, after {after} equal victims: recorded is {}, replayed {}",
                page(recorded),
                page(replayed)
            ),
        }
    }
}

impl std::error::Error for ReplayError {}

/// Replays a recorded run with its own policy.
///
/// # Errors
/// The trace is incomplete or invalid, or an answer of the policy differs from the recorded answer.
pub fn replay(bytes: &[u8]) -> Result<Replayed, ReplayError> {
    let reader = Reader::new(bytes).map_err(ReplayError::Trace)?;
    let mut policy = policy::build(&reader.header().policy, reader.header().space()).map_err(ReplayError::Policy)?;
    replay_with(reader, &mut *policy)
}

/// Replays a recorded run with any policy.
///
/// # Errors
/// The errors are those of [`replay`].
pub fn replay_with(mut reader: Reader<'_>, policy: &mut dyn Policy) -> Result<Replayed, ReplayError> {
    let words = (reader.header().units as usize).div_ceil(64);
    let mut player = Player { policy, in_view: vec![0; words], refused: HashSet::new(), done: Replayed::default() };
    loop {
        let offset = reader.offset();
        let Some(record) = reader.next() else { break };
        player.play(record.map_err(ReplayError::Trace)?, offset)?;
    }
    player.done.cut = reader.end().is_some_and(|end| end.cut);
    Ok(player.done)
}

struct Player<'a> {
    policy: &'a mut dyn Policy,
    in_view: Vec<u64>,
    /// Pages that the pager's filter refused as victims since the last victim.
    refused: HashSet<u32>,
    done: Replayed,
}

impl Player<'_> {
    fn play(&mut self, record: Record, offset: usize) -> Result<(), ReplayError> {
        if !self.is_possible(record) {
            return Err(ReplayError::Impossible(offset, record));
        }
        match record {
            Record::Wide(page) => self.policy.wide(page),
            Record::Inserted(page, cause) => {
                self.turn(page);
                self.policy.inserted(page, cause);
            }
            Record::Removed(page, why) => {
                self.turn(page);
                self.policy.removed(page, why);
            }
            Record::Referenced(page, write) => self.policy.referenced(page, write),
            Record::Forgotten(page) => self.policy.forgotten(page),
            Record::Coming(page) => self.policy.coming(page),
            Record::Refused(page) => {
                self.refused.insert(page.0);
            }
            Record::Victim(page) => {
                self.answer(Some(page), offset)?;
                self.done.victims += 1;
            }
            Record::NoVictim => {
                self.answer(None, offset)?;
                self.done.none += 1;
            }
            Record::Hide(page) => {
                let hidden = self.policy.next_to_hide();
                self.compare(Some(page), hidden, offset)?;
                self.done.hidden += 1;
            }
            Record::NoHide(times) => {
                for _ in 0..times {
                    let hidden = self.policy.next_to_hide();
                    self.compare(None, hidden, offset)?;
                }
            }
            Record::Tick(ms) => self.policy.tick(ms),
        }
        Ok(())
    }

    /// Whether a record is possible. The policy relies on its contract, so impossible records must not reach the
    /// policy.
    fn is_possible(&self, record: Record) -> bool {
        match record {
            Record::Wide(page) | Record::Inserted(page, _) | Record::Forgotten(page) | Record::Coming(page) => {
                !self.is_in_view(page)
            }
            Record::Removed(page, _) | Record::Referenced(page, _) => self.is_in_view(page),
            _ => true,
        }
    }

    fn is_in_view(&self, page: PageId) -> bool {
        self.in_view[page.0 as usize / 64] & 1 << (page.0 % 64) != 0
    }

    fn turn(&mut self, page: PageId) {
        self.in_view[page.0 as usize / 64] ^= 1 << (page.0 % 64);
    }

    fn answer(&mut self, recorded: Option<PageId>, offset: usize) -> Result<(), ReplayError> {
        let refused = std::mem::take(&mut self.refused);
        let named = self.policy.victim(&|page| !refused.contains(&page.0));
        self.compare(recorded, named, offset)
    }

    fn compare(&self, recorded: Option<PageId>, replayed: Option<PageId>, offset: usize) -> Result<(), ReplayError> {
        if recorded == replayed {
            return Ok(());
        }
        Err(ReplayError::Differs { offset, recorded, replayed, after: self.done.victims })
    }
}
