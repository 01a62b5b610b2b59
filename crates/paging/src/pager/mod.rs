//! The pager: the only module that changes a page's state. Events arrive here, and `page` holds the state of each page.
//! `faults` answers accesses, `completions` continues after an action has ended. `room` frees memory, `shape` discards
//! pages and changes page sizes, `unused` keeps freed ones, `fresh` fills new ones, `ahead` prefetches, `habits` predicts writes. `hide` unmaps
//! pages for reference sampling, `lock` keeps pages from leaving, `park` sends all away, and `fork` stops all transfers.
//!
//! ```text
//!  untouched ──► fetching ──► resident ◄──► opening (first write)
//!      ▲            ▲  │          │
//!      │            │  ▼          ▼
//!   discard      remote staged ◄─ taking out
//!                   ▲    │  ▲ │
//!                   └────┘  └─┴──► installing ──► resident
//! ```
//!
//! Local memory consists of pages that are resident, staged or in flight, and of free frames that keep their memory. It
//! never exceeds the budget. A page in transit belongs to the action that moves it. Until that action completes, the
//! pager makes no other decision about the page.

mod ahead;
mod completions;
mod faults;
mod fork;
mod fresh;
mod habits;
mod hide;
mod lock;
mod page;
mod park;
mod room;
mod shape;
mod transitions;
mod unused;

pub use transitions::{COMPLETIONS, TRANSITIONS, Transition};

use std::collections::VecDeque;

use crate::config::{Class, Config, ConfigError, Counters, Progress, State};
use crate::event::{Actions, Event};
use crate::frames::{Frames, Places};
use crate::grain::Grain;
use crate::limits;
use crate::policy::Policy;
use crate::prefetch::Prefetcher;
use crate::reuse::{Depths, Reuse};
use crate::units::{FrameId, Geometry, PageId};
use page::DIRTY;

struct Pool {
    class: Class,
    frames: Frames,
}

/// The pager.
pub struct Pager {
    geometry: Geometry,
    small: Pool,
    wide: Pool,
    direct: bool,
    hides_in_place: bool,
    ahead_units: u32,
    state: Vec<u8>,
    flags: Vec<u16>,
    frame: Places,
    is_wide: Vec<u8>,
    in_memory: Vec<u16>,
    remote: Vec<u16>,
    policy: Box<dyn Policy>,
    prefetcher: Box<dyn Prefetcher>,
    grain: Grain,
    /// The budget in force. It exceeds the one that was set (`budget_set`) if otherwise locked pages left no room.
    budget: u32,
    budget_set: u32,
    /// Number of units of locked pages, wherever they are.
    locked: u32,
    low: u32,
    high: u32,
    /// Number of future faults during which the pager still keeps room for a run of pages.
    run_faults: u32,
    /// Number of future faults during which the pager still keeps room for a huge page.
    wide_faults: u32,
    /// Number of units that are resident, staged or in flight.
    used: u32,
    /// Number of used units that are becoming free.
    leaving: u32,
    /// Number of used units that become free as soon as they are unmapped.
    leaving_clean: u32,
    /// Number of free frames whose memory is being returned to the system. `freeing` counts their units.
    frees: u32,
    freeing: u32,
    clean: u32,
    /// Number of searches to leave out while only a huge page could be a victim, because the last search found none. The
    /// end of the last write-back is always followed by a search.
    searches_spared: u32,
    /// Number of pages that are neither untouched nor resident nor remote.
    moving: u32,
    /// Number of write-backs in progress.
    writing: u32,
    /// Whether [`Event::Settle`] or [`Event::Park`] was the last event, apart from completions. If true, no page is unmapped for reference
    /// sampling.
    resting: bool,
    /// Number of units that were accessed and not discarded, rounded up to whole blocks.
    touched: u32,
    /// Number of accessed units in each placement extent. Used only if a block has one unit. `extents` is the number of
    /// extents with accessed units.
    in_extent: Vec<u16>,
    extents: u32,
    starved: VecDeque<PageId>,
    ahead: VecDeque<PageId>,
    /// Pages that are being copied out of frames, with these frames. The write-backs of the frames have ended.
    copied_from: Vec<(PageId, FrameId)>,
    guarded: [PageId; 2],
    /// Frequency of writes to pages that were written before, as a share of [`u16::MAX`]. The index is the page's value
    /// of [`page::WRITTEN_BEFORE`] minus one.
    habits: [u16; 3],
    /// Pages that could not be evicted because a transfer was using them. `held_back_ms` is the time of their last
    /// check.
    held_back: Vec<PageId>,
    held_back_ms: u64,
    unused: unused::Unused,
    fresh: fresh::Fresh,
    counters: Counters,
    /// The account of evicted units. `None` unless it was asked for.
    reuse: Option<Box<Reuse>>,
}

impl Pager {
    /// Builds a pager whose pages are all untouched.
    ///
    /// # Errors
    /// The configuration is outside its bounds.
    pub fn new(config: &Config, policy: Box<dyn Policy>, prefetcher: Box<dyn Prefetcher>) -> Result<Self, ConfigError> {
        let geometry = config.geometry;
        if !geometry.is_valid() {
            return Err(ConfigError::Geometry);
        }
        if config.budget_units < limits::BUDGET_PAGES_MIN {
            return Err(ConfigError::Budget);
        }
        let needs_frames = config.small.moves || !config.direct;
        if needs_frames && config.small.frames == 0 || geometry.block_units > 1 && config.wide.frames == 0 {
            return Err(ConfigError::Frames);
        }
        let units = geometry.units as usize;
        let blocks = if geometry.block_units > 1 { geometry.blocks() as usize } else { 0 };
        let mut pager = Self {
            geometry,
            small: Pool { class: config.small, frames: Frames::new(config.small.frames) },
            wide: Pool { class: config.wide, frames: Frames::new(config.wide.frames) },
            direct: config.direct,
            hides_in_place: config.hides_in_place,
            ahead_units: config.ahead_units,
            state: vec![0; units],
            flags: vec![0; units],
            frame: Places::new(&geometry, config.small.frames > 0),
            is_wide: vec![0; blocks],
            in_memory: vec![0; blocks],
            remote: vec![0; blocks],
            policy,
            prefetcher,
            grain: Grain::new(geometry.blocks(), geometry.block_units),
            budget: 0,
            budget_set: 0,
            locked: 0,
            low: 0,
            high: 0,
            run_faults: 0,
            wide_faults: 0,
            used: 0,
            leaving: 0,
            leaving_clean: 0,
            freeing: 0,
            clean: 0,
            searches_spared: 0,
            touched: 0,
            in_extent: match geometry.block_units {
                1 => vec![0; units.div_ceil(geometry.stretch_units() as usize)],
                _ => Vec::new(),
            },
            extents: 0,
            moving: 0,
            writing: 0,
            resting: false,
            starved: VecDeque::with_capacity(limits::STARVED_MAX),
            ahead: VecDeque::with_capacity(config.wide.frames.max(config.small.frames) as usize + 1),
            copied_from: Vec::with_capacity((config.small.frames + config.wide.frames) as usize),
            guarded: [PageId(u32::MAX); 2],
            // Initially, a page that was written to last time is predicted to be written again. Observations replace
            // this value.
            habits: [0, 0, u16::MAX],
            held_back: Vec::with_capacity(limits::HELD_MAX),
            held_back_ms: 0,
            unused: unused::Unused::new(),
            fresh: fresh::Fresh::new(),
            frees: 0,
            counters: Counters::default(),
            reuse: None,
        };
        pager.set_budget(config.budget_units);
        Ok(pager)
    }

    /// Processes an event and appends the resulting actions to `actions`.
    pub fn step(&mut self, event: Event, actions: &mut Actions) -> Progress {
        self.step_keeping(event, actions, &|_| false)
    }

    /// Does the work of [`Pager::step`], but evicts no page for which `keeps` returns true.
    pub fn step_keeping(&mut self, event: Event, actions: &mut Actions, keeps: &dyn Fn(PageId) -> bool) -> Progress {
        debug_assert!(self.is_legal(&event), "{event:?} does not fit the state of its page");
        let mut progress = Progress::Done;
        match event {
            Event::Settle { .. } | Event::Park { .. } => self.resting = true,
            Event::Fault { .. }
            | Event::Discard { .. }
            | Event::Unused { .. }
            | Event::WillNeed { .. }
            | Event::Tick { .. } => self.resting = false,
            _ => {}
        }
        match event {
            Event::Fault { unit, write } => self.fault(unit, write, actions),
            Event::Fetched { page, ok } => self.fetched(page, ok, actions),
            Event::Arrived { page, count, certain, ok } => {
                for index in 0..count {
                    self.arrived(PageId(page.0 + index), certain, ok, actions);
                }
            }
            Event::Opened { page } => self.opened(page),
            Event::TakenOut { page, ok, changed } => self.taken_out(page, ok, changed, actions),
            Event::Hidden { page, ok } => self.hiding_done(page, ok, actions),
            Event::Tick { now_ms } => {
                self.policy.tick(now_ms);
                self.look_again(now_ms);
            }
            Event::WrittenBack { page, frame, ok, changed } => self.written_back(page, frame, ok, changed, actions),
            Event::FrameFreed { frame } => {
                self.frees -= 1;
                self.freeing -= self.span_of(frame.wide);
                self.pool(frame.wide).frames.put_empty(frame.index);
            }
            Event::Discard { .. }
            | Event::Allocated { .. }
            | Event::Unused { .. }
            | Event::Used { .. }
            | Event::Lock { .. }
            | Event::Unlock { .. } => {
                progress = self.allocation(event, actions);
            }
            Event::WillNeed { first, end } => {
                self.note_run(true);
                self.prefetch_range(first, end.saturating_sub(first), actions);
            }
            Event::Settle { first, end, leave } => {
                self.unused.clear();
                // While a fork waits for the pager's transfers, the pager gets no ticks. If a fault waits for free
                // memory, this call makes pages whose eviction failed candidates again.
                self.look_again(self.held_back_ms);
                progress = self.settle_range(first, end, leave, actions);
            }
            Event::Budget { units } => self.set_budget(units),
            Event::Park { first, end } => progress = self.park(first, end, actions, keeps),
            Event::Kind { unit, kind } => {
                let page = self.head(unit);
                if self.state(page) == State::Untouched {
                    self.policy.kind(page, kind);
                }
            }
            Event::Hold { kind, on } => self.policy.hold(kind, on),
        }
        self.balance(actions, keeps);
        if !self.resting && self.hide_wished(actions) && matches!(event, Event::Tick { .. }) {
            progress = Progress::Continue(0);
        }
        self.counters.used_peak = self.counters.used_peak.max(u64::from(self.local_units()));
        progress
    }

    /// Returns the units of local memory in use now, including free frames that keep their memory.
    #[must_use]
    pub fn local_units(&self) -> u32 {
        self.used + self.spare() + self.freeing
    }

    /// Whether any page is in transit. A discarded page counts as accessed until its transit ends.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        self.moving > 0 || self.writing > 0
    }

    /// Returns the number of units that need a place on a server sooner or later. These are the units accessed and not
    /// discarded, rounded up to whole blocks.
    #[must_use]
    pub fn touched_units(&self) -> u32 {
        self.touched
    }

    /// Returns the number of units accessed and not discarded, rounded up to whole placement extents. A server that
    /// holds any page of an extent keeps room for the whole extent.
    #[must_use]
    pub fn placed_units(&self) -> u32 {
        if self.geometry.block_units > 1 { self.touched } else { self.extents * self.geometry.stretch_units() }
    }

    /// Returns the present budget, in units.
    #[must_use]
    pub fn budget_units(&self) -> u32 {
        self.budget
    }

    /// Returns the counters since the start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Counts from now on what more local memory would have saved ([`crate::reuse`]).
    pub fn count_reuse(&mut self) {
        self.reuse = Some(Box::new(Reuse::new(self.geometry.unit_bytes, limits::REUSE_TRACKED_MAX)));
    }

    /// Returns what was counted since [`Self::count_reuse`]. `None` if it was not called.
    #[must_use]
    pub fn depths(&self) -> Option<&Depths> {
        self.reuse.as_deref().map(Reuse::depths)
    }

    /// Writes the choices that the policy and the prefetcher made, on one line each. If either made no choices, its
    /// line is empty.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn describe(&self, out: &mut dyn std::fmt::Write) -> std::fmt::Result {
        self.policy.describe(out)?;
        out.write_char('\n')?;
        self.prefetcher.describe(out)
    }

    /// Writes the present state of the pager as text.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn write_stand(&self, out: &mut dyn std::fmt::Write) -> std::fmt::Result {
        let Self { budget, used, moving, writing, leaving, freeing, starved, held_back, .. } = self;
        write!(
            out,
            "{used} of {budget} units local, {moving} pages in transit, {writing} being written back, {leaving} units \
             leaving, {freeing} being freed, {} faults waiting for room, {} pages held by transfers",
            starved.len(),
            held_back.len()
        )
    }

    /// Returns the page that contains a unit, and the page's length in units.
    #[must_use]
    pub fn page_of(&self, unit: u32) -> (PageId, u32) {
        let page = self.head(unit);
        (page, self.span(page))
    }

    /// Whether an access to this unit would succeed without a trap.
    #[must_use]
    pub fn is_accessible(&self, unit: u32, write: bool) -> bool {
        let page = self.head(unit);
        self.state(page) == State::Resident && (!write || self.has(page, DIRTY))
    }

    /// Returns the state of the page that contains a unit.
    #[must_use]
    pub fn state_of(&self, unit: u32) -> State {
        self.state(self.head(unit))
    }
}
