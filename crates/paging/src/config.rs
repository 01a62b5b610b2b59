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
    /// The page's bytes are being fetched, either into a frame or straight to the page's address.
    Fetching,
    /// The page is being installed: its bytes move from a frame to the page's address.
    Installing,
    /// The page is mapped.
    Resident,
    /// The page is mapped, and its write protection is being removed for its first write.
    Opening,
    /// The page is being unmapped because it is evicted or discarded.
    TakingOut,
    /// The page is not mapped, but its bytes are in local memory, usually in a frame. The page is being written back,
    /// or it was prefetched and not used yet, or it is unmapped for reference sampling. The bytes of an unmapped page
    /// may also stay at the page's address.
    Staged,
    /// The page is being unmapped for reference sampling, so that its next access traps.
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

/// Describes how the engine moves pages of one page size into and out of local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class {
    /// If true, the engine receives each page in a frame and moves whole frames into and out of the program's mapping.
    /// If false, the engine copies arriving bytes to the page's address. Frames then hold only dirty pages that are
    /// being evicted. They are a fixed pool outside the budget.
    pub moves: bool,
    /// Number of frames. If `moves` is true, this is also the largest budget, in pages.
    pub frames: u32,
}

impl Class {
    /// The class of pages that are copied, and whose dirty bytes need no frame ([`Config::direct`]).
    pub const COPIED: Self = Self { moves: false, frames: 0 };
}

/// The parameters of a pager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Shape of the far space.
    pub geometry: Geometry,
    /// Local memory, in units.
    pub budget_units: u32,
    /// The class of the base pages, whose size is one unit.
    pub small: Class,
    /// The class of the middle pages. It is unused if there are none.
    pub middle: Class,
    /// The class of the huge pages, whose size is one block. It is unused if a block is one unit.
    pub wide: Class,
    /// Whether dirty pages are written straight to the server's memory, without a frame and without a separate
    /// write-back. This holds only for a class with `moves` set to false.
    pub direct: bool,
    /// Whether unmapping a page for reference sampling leaves its bytes at their address and only changes the
    /// protection. If false, the bytes go into a frame. Pages can then be sampled only if their [`Class`] has `moves`
    /// set.
    pub hides_in_place: bool,
    /// Number of units to fetch ahead of a sequential stream of huge pages.
    pub ahead_units: u32,
}

/// The reason why a pager cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// The geometry is outside [`limits`].
    Geometry,
    /// The budget is under [`limits::BUDGET_PAGES_MIN`] pages.
    Budget,
    /// A class of pages needs frames but has none.
    Frames,
}

impl Config {
    /// Whether each page size in use has the frames that it needs.
    pub(crate) fn has_frames(&self) -> bool {
        let needs_small = self.small.moves || !self.direct;
        (!needs_small || self.small.frames > 0)
            && (!self.geometry.has_middle() || self.middle.frames > 0)
            && (self.geometry.block_units == 1 || self.wide.frames > 0)
    }
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
    /// Number of accesses to pages that were unmapped for reference sampling.
    pub faults_hidden: u64,
    pub hidden: u64,
    /// Number of times that a page could not be evicted because a transfer was using it.
    pub held_back: u64,
    pub fetched: u64,
    pub written_back: u64,
    pub dropped_clean: u64,
    pub discarded: u64,
    pub prefetched: u64,
    pub prefetch_used: u64,
    pub prefetch_wasted: u64,
    pub pages_small: u64,
    pub pages_middle: u64,
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
