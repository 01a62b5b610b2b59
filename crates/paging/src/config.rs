//! What a pager is built from, and what it tells of itself.

use crate::units::Geometry;

/// Where a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// Never touched, or discarded: reads as zeroes and costs nothing.
    Untouched = 0,
    /// On the memory server only.
    Remote,
    /// Its bytes are on their way into a frame or into view.
    Fetching,
    /// Going from its frame into view.
    Installing,
    /// In view.
    Resident,
    /// In view, being opened for its first write.
    Opening,
    /// Leaving the view.
    TakingOut,
    /// Out of view, its bytes in a frame: being written back, prefetched and not yet used, or hidden (then perhaps in
    /// place).
    Staged,
    /// Going out of sight.
    Hiding,
}

pub(crate) const STATES: [State; 9] = [
    State::Untouched,
    State::Remote,
    State::Fetching,
    State::Installing,
    State::Resident,
    State::Opening,
    State::TakingOut,
    State::Staged,
    State::Hiding,
];

/// How pages of one size move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class {
    /// True: pages are received into frames and moved in and out whole. False: they are copied in, and frames only
    /// hold dirty pages on their way out (such frames are a fixed pool outside the budget).
    pub moves: bool,
    /// Number of frames. With `moves`, as many as the largest budget has pages.
    pub frames: u32,
}

/// What a pager is built from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Shape of the far space.
    pub geometry: Geometry,
    /// Local memory, in units.
    pub budget_units: u32,
    /// Pages of one unit.
    pub small: Class,
    /// Pages of one block; unused when a block is one unit.
    pub wide: Class,
    /// Dirty pages that are copied go straight to the server's memory, with no frame and no write-back.
    pub direct: bool,
    /// Pages are hidden in place, by their protection; else in frames, where they move.
    pub hides_in_place: bool,
    /// Wide pages to have ahead of a sequential sweep, in units.
    pub ahead_units: u32,
}

/// Why a pager cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// The geometry is outside [`limits`].
    Geometry,
    /// The budget is under [`limits::BUDGET_PAGES_MIN`] pages.
    Budget,
    /// Frames are needed and none are given.
    Frames,
}

impl State {
    /// Whether nothing is under way with such a page.
    #[must_use]
    pub fn is_at_rest(self) -> bool {
        matches!(self, State::Untouched | State::Resident | State::Remote)
    }
}

/// What the pager saw and did, in units unless said otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Counters {
    pub faults_read: u64,
    pub faults_write: u64,
    pub faults_first_write: u64,
    pub faults_zero: u64,
    pub faults_rescued: u64,
    pub faults_waited: u64,
    /// Touches of hidden pages.
    pub faults_hidden: u64,
    pub hidden: u64,
    /// Times a page could not leave because a transfer held it.
    pub held_back: u64,
    pub fetched: u64,
    pub written_back: u64,
    pub dropped_clean: u64,
    pub discarded: u64,
    pub prefetched: u64,
    pub prefetch_used: u64,
    pub prefetch_wasted: u64,
    pub pages_small: u64,
    pub pages_wide: u64,
    pub widened: u64,
    pub narrowed: u64,
    pub used_peak: u64,
}

/// How far a discard came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// All of it is done (or the event was no discard).
    Done,
    /// Go on from this unit with another step.
    Continue(u32),
    /// This unit's page is in transit: go on from it after its completion.
    Busy(u32),
}
