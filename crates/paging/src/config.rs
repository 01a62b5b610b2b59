//! The parameters from which a pager is built, and the state and counters that it reports.

use crate::units::Geometry;

/// Where a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// The page was never accessed, or was discarded. It reads as zeroes and uses no memory.
    Untouched = 0,
    /// The page's bytes are only on the memory server.
    Remote,
    /// The page's bytes are on their way into a frame or into view.
    Fetching,
    /// The page is being installed: its bytes go from a frame into view.
    Installing,
    /// The page is in view.
    Resident,
    /// The page is in view and is being opened for its first write.
    Opening,
    /// The page is leaving the view.
    TakingOut,
    /// The page is out of view, with its bytes in a frame. Either it is being written back, or it was prefetched and
    /// not used yet, or it is unmapped so that its next access is seen. The bytes of an unmapped page may also be in
    /// place.
    Staged,
    /// The page is being unmapped so that its next access is seen.
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

/// How pages of one size move in and out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class {
    /// If true, pages are received into frames and moved in and out as a whole. If false, pages are copied in. Frames
    /// then hold only dirty pages that are leaving. These frames are a fixed pool outside the budget.
    pub moves: bool,
    /// Number of frames. If `moves` is true, it is also the largest budget, in pages.
    pub frames: u32,
}

/// The parameters of a pager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Shape of the far space.
    pub geometry: Geometry,
    /// Local memory, in units.
    pub budget_units: u32,
    /// How pages of one unit (base pages) move.
    pub small: Class,
    /// How pages of one block (huge pages) move. Unused when a block is one unit.
    pub wide: Class,
    /// Whether dirty pages of a class that copies go straight to the server's memory, without a frame and without a
    /// write-back.
    pub direct: bool,
    /// Whether a page that is unmapped for the policy stays in place, and only its protection changes. If false, a
    /// class that moves pages puts the page's bytes into a frame.
    pub hides_in_place: bool,
    /// Number of units to fetch ahead of a sequential stream of huge pages.
    pub ahead_units: u32,
}

/// Why a pager cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// The geometry is outside [`limits`].
    Geometry,
    /// The budget is under [`limits::BUDGET_PAGES_MIN`] pages.
    Budget,
    /// A class of pages needs frames but has none.
    Frames,
}

impl State {
    /// Whether no action for a page in this state is in progress.
    #[must_use]
    pub fn is_at_rest(self) -> bool {
        matches!(self, State::Untouched | State::Resident | State::Remote)
    }
}

/// Counters of the pager, in units unless stated otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Counters {
    pub faults_read: u64,
    pub faults_write: u64,
    pub faults_first_write: u64,
    pub faults_zero: u64,
    pub faults_rescued: u64,
    pub faults_waited: u64,
    /// Accesses to pages unmapped for the policy.
    pub faults_hidden: u64,
    pub hidden: u64,
    /// Times that a page could not leave because a transfer used it.
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

/// How much of an event a step has completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The step completed the event.
    Done,
    /// The step stopped at its limit. The caller continues from this unit with another step.
    Continue(u32),
    /// This unit's page is in transit. The caller continues from this unit after the page's completion.
    Busy(u32),
}
