//! The pager: the only room that changes a page's state. Faults and completions are here; `room` finds memory, `shape`
//! discards and changes page sizes, `ahead` prefetches, `hide` takes pages out of sight for the policy.
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
//! Local memory is what is resident, staged or in flight, plus frames that are free but keep their memory; it never
//! exceeds the budget. A page in transit belongs to the action that moves it, and nothing else is decided about it until
//! that action's completion is told.

mod ahead;
mod fork;
mod hide;
mod room;
mod shape;
mod transitions;

pub use transitions::{COMPLETIONS, TRANSITIONS, Transition};

use std::collections::VecDeque;

use crate::config::{Class, Config, ConfigError, Counters, Progress, STATES, State};
use crate::event::{Action, Actions, Bytes, Event, Source};
use crate::frames::{Frames, Places};
use crate::grain::Grain;
use crate::limits;
use crate::policy::{Cause, Policy};
use crate::prefetch::Prefetcher;
use crate::units::{FrameId, Geometry, PageId};

/// The program may have written to it since the server last had it.
const DIRTY: u16 = 1;
/// The server holds bytes for it.
const HELD: u16 = 2;
/// A thread waits for it.
const WANTED: u16 = 4;
/// A thread waits to write to it; in flight into view: it arrives writable.
const WRITE: u16 = 8;
/// It leaves the view because it was discarded.
const DISCARDED: u16 = 16;
/// It was fetched before anyone asked.
const PREFETCHED: u16 = 32;
/// A write-back of it is under way.
const WRITING: u16 = 64;
/// That write-back's bytes are no longer the page's: release them when it ends.
const STALE: u16 = 128;
/// It came into view open for writing because it was written to before, or could not be protected; whether it is written to
/// this time is not known.
const GUESSED: u16 = 256;
/// Two bits: 3 when it was written to when last in view, one less for each time in view since without a write.
const WRITTEN_BEFORE: u16 = 3 << WRITTEN_SHIFT;
const WRITTEN_SHIFT: u32 = 9;
/// How often a page has to be written to again, of [`u16::MAX`] times, for the guess that it will be. A wrong guess costs a
/// comparison, and the stop to writes before it; a missed one costs a trap, several times as dear.
const GUESS_FROM: u16 = u16::MAX / 4;
/// The last outcome's weight in that frequency is two to the minus this.
const HABIT_SHIFT: u32 = 6;

/// It is out of sight, or going there, so that its next touch is seen.
const HIDDEN: u16 = 2048;
/// A transfer held it when it was to leave. It is no victim until it is looked at again.
const HELD_BACK: u16 = 4096;

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
    budget: u32,
    low: u32,
    high: u32,
    /// Faults for which room for runs is still kept.
    run_faults: u32,
    /// Units resident, staged or in flight.
    used: u32,
    /// Of those, units on their way to being free.
    leaving: u32,
    /// Of those, units that are free as soon as they are out of view.
    leaving_clean: u32,
    /// Free frames whose memory is being given back, and their units.
    frees: u32,
    freeing: u32,
    clean: u32,
    /// Pages that are neither untouched nor resident nor remote.
    moving: u32,
    /// Write-backs under way.
    writing: u32,
    /// Brought to rest since the program last did something: nothing is hidden.
    resting: bool,
    /// Units of pages (of blocks, where a block has several units) of which anything was touched.
    touched: u32,
    /// Where a block has one unit: touched units by stretch, and stretches that have any.
    in_stretch: Vec<u16>,
    stretches: u32,
    starved: VecDeque<PageId>,
    ahead: VecDeque<PageId>,
    /// Pages being copied out of frames whose write-back has ended.
    copied_from: Vec<(PageId, FrameId)>,
    guarded: [PageId; 2],
    /// How often pages were written to, of [`u16::MAX`] times, that were before: by what [`WRITTEN_BEFORE`] says, less one.
    habits: [u16; 3],
    /// Pages that could not leave, and when they were looked at last, in milliseconds.
    held_back: Vec<PageId>,
    held_back_ms: u64,
    counters: Counters,
}

impl Pager {
    /// A pager in which nothing was touched yet.
    ///
    /// # Errors
    /// When the configuration is outside its bounds.
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
            grain: Grain::new(geometry.blocks()),
            budget: 0,
            low: 0,
            high: 0,
            run_faults: 0,
            used: 0,
            leaving: 0,
            leaving_clean: 0,
            freeing: 0,
            clean: 0,
            touched: 0,
            in_stretch: match geometry.block_units {
                1 => vec![0; units.div_ceil(geometry.stretch_units() as usize)],
                _ => Vec::new(),
            },
            stretches: 0,
            moving: 0,
            writing: 0,
            resting: false,
            starved: VecDeque::with_capacity(limits::STARVED_MAX),
            ahead: VecDeque::with_capacity(config.wide.frames.max(config.small.frames) as usize + 1),
            copied_from: Vec::with_capacity((config.small.frames + config.wide.frames) as usize),
            guarded: [PageId(u32::MAX); 2],
            // What was written to last time will be again, until it is seen which pages are.
            habits: [0, 0, u16::MAX],
            held_back: Vec::with_capacity(limits::HELD_MAX),
            held_back_ms: 0,
            frees: 0,
            counters: Counters::default(),
        };
        pager.set_budget(config.budget_units);
        Ok(pager)
    }

    /// Takes an event and answers with what is to be done, appended to `actions`.
    pub fn step(&mut self, event: Event, actions: &mut Actions) -> Progress {
        debug_assert!(self.is_legal(&event), "{event:?} does not fit the state of its page");
        let mut progress = Progress::Done;
        match event {
            Event::Settle { .. } => self.resting = true,
            Event::Fault { .. } | Event::Discard { .. } | Event::WillNeed { .. } | Event::Tick { .. } => {
                self.resting = false
            }
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
            Event::WrittenBack { page, frame, ok } => self.written_back(page, frame, ok, actions),
            Event::FrameFreed { frame } => {
                self.frees -= 1;
                self.freeing -= self.span_of(frame.wide);
                self.pool(frame.wide).frames.put_empty(frame.index);
            }
            Event::Discard { first, end } => progress = self.discard(first, end, actions),
            Event::WillNeed { first, end } => {
                self.note_run(true);
                self.prefetch_range(first, end.saturating_sub(first), actions);
            }
            Event::Settle { first, end, leave } => {
                // No time passes for a pager that comes to rest, and a fault that waits for room has to be served first.
                self.look_again(self.held_back_ms);
                progress = self.settle_range(first, end, leave, actions);
            }
            Event::Budget { units } => {
                self.set_budget(units);
            }
        }
        self.balance(actions);
        if !self.resting && self.hide_wished(actions) && matches!(event, Event::Tick { .. }) {
            progress = Progress::Continue(0);
        }
        self.counters.used_peak = self.counters.used_peak.max(u64::from(self.local_units()));
        progress
    }

    /// Units of local memory in use now, free frames that keep their memory included.
    #[must_use]
    pub fn local_units(&self) -> u32 {
        self.used + self.spare() + self.freeing
    }

    /// Whether pages are on their way: what was discarded of them still counts as touched.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        self.moving > 0 || self.writing > 0
    }

    /// Units that need a place sooner or later: those touched and not discarded, rounded up to whole blocks.
    #[must_use]
    pub fn touched_units(&self) -> u32 {
        self.touched
    }

    /// The same, rounded up to whole stretches: what a server that has any page of a stretch keeps room for.
    #[must_use]
    pub fn placed_units(&self) -> u32 {
        if self.geometry.block_units > 1 { self.touched } else { self.stretches * self.geometry.stretch_units() }
    }

    /// The budget in force, in units.
    #[must_use]
    pub fn budget_units(&self) -> u32 {
        self.budget
    }

    /// Counters since the start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What policy and prefetcher have to say of their own choices: one line each, none for those that make none.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn describe(&self, out: &mut dyn std::fmt::Write) -> std::fmt::Result {
        self.policy.describe(out)?;
        out.write_char('\n')?;
        self.prefetcher.describe(out)
    }

    /// Where everything stands, in words.
    ///
    /// # Errors
    /// Those of `out`.
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

    /// The page a unit belongs to and its length in units.
    #[must_use]
    pub fn page_of(&self, unit: u32) -> (PageId, u32) {
        let page = self.head(unit);
        (page, self.span(page))
    }

    /// Whether a touch of this unit would not trap.
    #[must_use]
    pub fn is_accessible(&self, unit: u32, write: bool) -> bool {
        let page = self.head(unit);
        self.state(page) == State::Resident && (!write || self.has(page, DIRTY))
    }

    /// The state of the page a unit belongs to.
    #[must_use]
    pub fn state_of(&self, unit: u32) -> State {
        self.state(self.head(unit))
    }

    // ---- faults -----------------------------------------------------------------------------------------------------

    fn fault(&mut self, unit: u32, write: bool, actions: &mut Actions) {
        let mut page = self.head(unit);
        match self.state(page) {
            State::Resident if write && !self.has(page, DIRTY) => {
                self.counters.faults_first_write += 1;
                self.policy.referenced(page, true);
                self.open(page, actions);
            }
            State::Resident => actions.push(Action::Wake { page }),
            State::Fetching | State::Installing | State::Opening | State::TakingOut | State::Hiding => {
                self.wait_for(page, write);
            }
            State::Untouched | State::Remote if self.has(page, WANTED) => self.wait_for(page, write),
            State::Staged if self.has(page, HIDDEN) => self.show(page, write, actions),
            State::Staged => {
                self.rescue(page, write, actions);
                if self.pool_of(page).class.moves {
                    self.read_ahead(page, None, actions);
                }
            }
            State::Untouched | State::Remote => {
                if self.geometry.block_units > 1 {
                    self.choose_grain(unit);
                    page = self.head(unit);
                }
                self.demand(page, write, actions);
            }
        }
    }

    fn wait_for(&mut self, page: PageId, write: bool) {
        self.counters.faults_waited += 1;
        self.set(page, WANTED);
        // A page in flight into view was told whether to arrive writable: the wish is granted by opening it after.
        if write {
            self.set(page, WRITE);
        }
    }

    fn demand(&mut self, page: PageId, write: bool, actions: &mut Actions) {
        match (self.state(page), write) {
            (State::Untouched, _) => self.counters.faults_zero += 1,
            (_, true) => self.counters.faults_write += 1,
            (_, false) => self.counters.faults_read += 1,
        }
        self.policy.coming(page);
        if self.span(page) > 1 {
            self.grain.wide_fault();
        }
        let Some(frame) = self.admit(page, actions) else {
            if self.geometry.block_units > 1 && self.span(page) == 1 {
                self.grain.small_fault(self.geometry.block(page.0), 1);
            }
            return self.starve(page, write, actions);
        };
        let was_remote = self.state(page) == State::Remote;
        let at = actions.as_slice().len();
        self.launch(page, frame, write, true, actions);
        let run = if was_remote { self.read_ahead(page, Some(at), actions) } else { 0 };
        if self.geometry.block_units > 1 && self.span(page) == 1 {
            self.grain.small_fault(self.geometry.block(page.0), 1 + run);
        }
    }

    /// Queues a fault that has no room; it goes on as soon as there is some.
    fn starve(&mut self, page: PageId, write: bool, actions: &mut Actions) {
        if self.starved.len() == limits::STARVED_MAX {
            return actions.push(Action::Wake { page });
        }
        self.set(page, WANTED);
        if write {
            self.set(page, WRITE);
        }
        self.starved.push_back(page);
    }

    /// Starts bringing in a page for which room and frame were had.
    fn launch(&mut self, page: PageId, frame: Option<FrameId>, write: bool, demand: bool, actions: &mut Actions) {
        let source = if self.state(page) == State::Remote { Source::Server } else { Source::Zero };
        if source == Source::Server {
            self.counters.fetched += u64::from(self.span(page));
        }
        match self.span(page) {
            1 => self.counters.pages_small += 1,
            _ => self.counters.pages_wide += 1,
        }
        self.used += self.span(page);
        self.move_to(page, State::Fetching);
        self.clear(page, WANTED | WRITE | PREFETCHED | GUESSED);
        self.set(page, if demand { WANTED } else { PREFETCHED });
        if !write && frame.is_none() && source == Source::Server && self.will_be_written(page) {
            self.set(page, GUESSED);
        }
        let write = write || self.has(page, GUESSED);
        if write {
            // A page fetched straight into view arrives writable; one in a frame is told when it is installed.
            self.set(page, if frame.is_none() { DIRTY } else { WRITE });
        }
        self.set_frame(page, frame);
        actions.push(Action::Fetch { page, count: 1, source, frame, writable: u32::from(write), demand });
    }

    /// Whether a page that is fetched into view is opened at once: it was written to before, and such pages are again.
    fn will_be_written(&self, page: PageId) -> bool {
        self.direct && self.written_before(page).is_some_and(|times| self.habits[times] >= GUESS_FROM)
    }

    /// What [`WRITTEN_BEFORE`] says of a page, less one.
    fn written_before(&self, page: PageId) -> Option<usize> {
        usize::from((self.flags[page.0 as usize] & WRITTEN_BEFORE) >> WRITTEN_SHIFT).checked_sub(1)
    }

    /// A touch of a page whose bytes wait in a frame.
    fn rescue(&mut self, page: PageId, write: bool, actions: &mut Actions) {
        if self.has(page, DISCARDED) || self.has(page, WRITING) && self.has(page, WANTED) {
            return self.wait_for(page, write);
        }
        if self.has(page, WRITING) {
            // The frame is being read by the link. A second copy is made rather than waiting for it.
            let Some(frame) = self.admit(page, actions) else {
                return self.starve(page, write, actions);
            };
            self.counters.faults_rescued += 1;
            let from = self.frame_of(page);
            self.leave_done(page);
            self.used += self.span(page);
            self.move_to(page, State::Fetching);
            self.set(page, WANTED | DIRTY | WRITE);
            self.set_frame(page, frame);
            let source = Source::Frame(from);
            return actions.push(Action::Fetch { page, count: 1, source, frame, writable: 1, demand: true });
        }
        if self.has(page, PREFETCHED) {
            self.counters.prefetch_used += u64::from(self.span(page));
            self.ahead.retain(|&other| other != page);
        }
        self.counters.faults_rescued += 1;
        self.clear(page, PREFETCHED);
        self.install(page, write, actions);
    }

    fn install(&mut self, page: PageId, write: bool, actions: &mut Actions) {
        let writable = write || self.has(page, DIRTY);
        if writable {
            self.set(page, DIRTY);
        }
        self.clear(page, WRITE);
        self.move_to(page, State::Installing);
        actions.push(Action::Install { page, frame: self.frame_of(page), writable });
    }

    fn open(&mut self, page: PageId, actions: &mut Actions) {
        self.set(page, DIRTY);
        self.clean -= self.span(page);
        self.move_to(page, State::Opening);
        actions.push(Action::Open { page });
    }

    // ---- completions ------------------------------------------------------------------------------------------------

    fn fetched(&mut self, page: PageId, ok: bool, actions: &mut Actions) {
        self.copy_done(page);
        if !ok {
            return self.refetch(page, actions);
        }
        if self.has(page, WANTED) {
            let write = self.has(page, WRITE);
            return self.install(page, write, actions);
        }
        self.move_to(page, State::Staged);
        self.ahead.push_back(page);
    }

    /// A fetch brought nothing: asked again while someone waits for it, given up otherwise.
    fn refetch(&mut self, page: PageId, actions: &mut Actions) {
        let frame = self.its_frame(page);
        let wanted = self.has(page, WANTED);
        let write = self.has(page, WRITE) || frame.is_none() && self.has(page, DIRTY);
        self.used -= self.span(page);
        self.clear(page, WANTED | WRITE | DIRTY | PREFETCHED | GUESSED);
        self.move_to(page, if self.has(page, HELD) { State::Remote } else { State::Untouched });
        if wanted {
            self.launch(page, frame, write, true, actions);
        } else if let Some(frame) = frame {
            // Nobody knows how much of the frame was filled before the failure: its memory counts.
            self.pool(frame.wide).frames.put_filled(frame.index);
        }
    }

    fn arrived(&mut self, page: PageId, certain: bool, ok: bool, actions: &mut Actions) {
        let installing = self.state(page) == State::Installing;
        let hidden = self.has(page, HIDDEN);
        if !ok && installing {
            let writable = self.has(page, DIRTY);
            if hidden {
                return actions.push(Action::Show { page, frame: self.hiding_frame(page), writable });
            }
            return actions.push(Action::Install { page, frame: self.frame_of(page), writable });
        }
        if !ok {
            return self.refetch(page, actions);
        }
        self.copy_done(page);
        if installing && let Some(frame) = self.its_frame(page) {
            self.pool(frame.wide).frames.put_empty(frame.index);
        }
        self.move_to(page, State::Resident);
        if !certain && !self.has(page, DIRTY) {
            // Where it was copied it can be compared when it leaves.
            let guess = self.direct && !self.pool_of(page).class.moves;
            self.set(page, if guess { DIRTY | GUESSED } else { DIRTY });
        }
        self.clean += if self.has(page, DIRTY) { 0 } else { self.span(page) };
        if hidden {
            self.clear(page, HIDDEN);
        } else {
            self.policy.inserted(page, self.cause(page));
        }
        if self.has(page, WANTED) {
            self.guarded = [page, self.guarded[0]];
        }
        let write = self.has(page, WRITE);
        self.clear(page, WANTED | WRITE | PREFETCHED);
        if write && !self.has(page, DIRTY) {
            self.open(page, actions);
        }
    }

    fn opened(&mut self, page: PageId) {
        self.move_to(page, State::Resident);
        self.clear(page, WANTED | WRITE);
    }

    fn taken_out(&mut self, page: PageId, ok: bool, changed: bool, actions: &mut Actions) {
        let guessed = self.has(page, GUESSED);
        let dirty = self.has(page, DIRTY) && (changed || !guessed);
        if !ok {
            return self.still_in_view(page, actions);
        }
        self.clear(page, HIDDEN);
        let pool_frame = self.its_frame(page);
        if self.has(page, DISCARDED) {
            self.leave_done(page);
            self.forget_frame(page, pool_frame);
            self.used -= self.span(page);
            return self.forget(page, actions);
        }
        match pool_frame {
            Some(_) if self.pool_of(page).class.moves && self.has(page, WANTED) => {
                self.leave_done(page);
                self.counters.faults_rescued += 1;
                let write = self.has(page, WRITE);
                self.install(page, write, actions);
            }
            Some(frame) if dirty => {
                if !self.pool_of(page).class.moves {
                    self.leave_done(page);
                    self.used -= self.span(page);
                }
                self.move_to(page, State::Staged);
                self.write_back(page, frame, actions);
                if self.has(page, WANTED) {
                    let write = self.has(page, WRITE);
                    self.clear(page, WANTED | WRITE);
                    self.rescue(page, write, actions);
                }
            }
            _ => self.gone(page, pool_frame, dirty, actions),
        }
    }

    /// The page could not be taken out: it is as before, and at the end of its policy's order. One that was discarded is
    /// dropped where it is, since nobody needs its bytes.
    fn still_in_view(&mut self, page: PageId, actions: &mut Actions) {
        if let Some(frame) = self.its_frame(page) {
            self.pool(frame.wide).frames.put_empty(frame.index);
            self.set_frame(page, None);
        }
        if self.has(page, DISCARDED) {
            return actions.push(Action::TakeOut { page, frame: None, bytes: Bytes::Clean });
        }
        self.counters.held_back += 1;
        if self.held_back.len() < limits::HELD_MAX {
            self.set(page, HELD_BACK);
            self.held_back.push(page);
        }
        self.leave_done(page);
        self.clean += if self.has(page, DIRTY) { 0 } else { self.span(page) };
        self.policy.inserted(page, self.cause(page));
        if self.has(page, HIDDEN) {
            return self.hiding_done(page, true, actions);
        }
        self.move_to(page, State::Resident);
        let write = self.has(page, WRITE) && !self.has(page, DIRTY);
        if self.has(page, WANTED) {
            actions.push(Action::Wake { page });
        }
        self.clear(page, WANTED | WRITE);
        if write {
            self.open(page, actions);
        }
    }

    /// Lets pages that could not leave be victims again: now and then, or at once where a fault waits for room.
    fn look_again(&mut self, now_ms: u64) {
        let is_due = now_ms.saturating_sub(self.held_back_ms) >= limits::HELD_MS || !self.starved.is_empty();
        if self.held_back.is_empty() || !is_due {
            return;
        }
        self.held_back_ms = now_ms;
        while let Some(page) = self.held_back.pop() {
            self.clear(page, HELD_BACK);
        }
    }

    /// The page is out of view and its bytes are nowhere but on the server.
    fn gone(&mut self, page: PageId, frame: Option<FrameId>, dirty: bool, actions: &mut Actions) {
        self.leave_done(page);
        self.forget_frame(page, frame);
        self.used -= self.span(page);
        self.remember(page, dirty);
        if dirty {
            self.set(page, HELD);
            self.counters.written_back += u64::from(self.span(page));
        } else {
            self.counters.dropped_clean += u64::from(self.span(page));
        }
        self.clear(page, DIRTY | GUESSED);
        self.settle(page, actions);
    }

    /// Keeps in mind whether a page was written to this time.
    fn remember(&mut self, page: PageId, written: bool) {
        if let Some(times) = self.written_before(page) {
            let habit = &mut self.habits[times];
            *habit = match written {
                true => *habit + ((u16::MAX - *habit) >> HABIT_SHIFT),
                false => *habit - (*habit >> HABIT_SHIFT),
            };
        }
        let flags = &mut self.flags[page.0 as usize];
        if written {
            *flags |= WRITTEN_BEFORE;
        } else if *flags & WRITTEN_BEFORE != 0 {
            *flags -= 1 << WRITTEN_SHIFT;
        }
    }

    /// A page without local memory comes to rest, or goes back at once when a thread waits for it.
    fn settle(&mut self, page: PageId, actions: &mut Actions) {
        self.move_to(page, if self.has(page, HELD) { State::Remote } else { State::Untouched });
        if self.has(page, WANTED) {
            let write = self.has(page, WRITE);
            self.clear(page, WANTED | WRITE);
            self.demand(page, write, actions);
        }
    }

    fn write_back(&mut self, page: PageId, frame: FrameId, actions: &mut Actions) {
        self.set(page, WRITING);
        self.writing += 1;
        actions.push(Action::WriteBack { page, frame });
    }

    fn written_back(&mut self, page: PageId, frame: FrameId, ok: bool, actions: &mut Actions) {
        let moves = self.pool(frame.wide).class.moves;
        self.writing -= 1;
        if self.state(page) != State::Staged {
            // The page was rescued or discarded meanwhile: the frame is all that is left of this write.
            self.clear(page, WRITING);
            if self.state(page) == State::Fetching {
                // It is being copied out of this very frame: the copy's completion frees it.
                self.copied_from.push((page, frame));
            } else {
                self.free_written(frame);
            }
            if self.has(page, STALE) {
                actions.push(Action::Release { unit: page.0, count: self.span_of(frame.wide) });
                self.clear(page, STALE);
            } else if ok {
                self.set(page, HELD);
            }
            return;
        }
        if !ok && !self.has(page, DISCARDED) {
            return self.write_back(page, frame, actions);
        }
        self.clear(page, WRITING | DIRTY);
        self.set(page, HELD);
        if moves {
            self.leave_done(page);
        }
        if self.has(page, DISCARDED) {
            self.give_frame(frame, moves);
            self.used -= self.span(page) * u32::from(moves);
            return self.forget(page, actions);
        }
        self.counters.written_back += u64::from(self.span(page));
        if moves && self.has(page, WANTED) {
            self.counters.faults_rescued += 1;
            let write = self.has(page, WRITE);
            return self.install(page, write, actions);
        }
        self.give_frame(frame, moves);
        self.used -= self.span(page) * u32::from(moves);
        self.settle(page, actions);
    }

    /// Frees a frame whose page has gone on without it.
    fn free_written(&mut self, frame: FrameId) {
        let moves = self.pool(frame.wide).class.moves;
        self.give_frame(frame, moves);
        self.used -= self.span_of(frame.wide) * u32::from(moves);
    }

    /// A copy out of a frame ended: the frame is free if its write-back ended before.
    fn copy_done(&mut self, page: PageId) {
        if let Some(index) = self.copied_from.iter().position(|&(other, _)| other == page) {
            let (_, frame) = self.copied_from.swap_remove(index);
            self.free_written(frame);
        }
    }

    // ---- small things -----------------------------------------------------------------------------------------------

    fn head(&self, unit: u32) -> PageId {
        match self.is_wide.get(self.geometry.block(unit) as usize) {
            Some(&wide) if wide != 0 => PageId(self.geometry.block_start(unit)),
            _ => PageId(unit),
        }
    }

    fn span(&self, page: PageId) -> u32 {
        match self.is_wide.get(self.geometry.block(page.0) as usize) {
            Some(&wide) if wide != 0 => self.geometry.block_units,
            _ => 1,
        }
    }

    /// Why a page is in view, for the policy.
    fn cause(&self, page: PageId) -> Cause {
        match (self.has(page, PREFETCHED), self.has(page, DIRTY)) {
            (true, _) => Cause::Ahead,
            (false, true) => Cause::Write,
            (false, false) => Cause::Read,
        }
    }

    fn span_of(&self, wide: bool) -> u32 {
        if wide { self.geometry.block_units } else { 1 }
    }

    fn pool(&mut self, wide: bool) -> &mut Pool {
        if wide { &mut self.wide } else { &mut self.small }
    }

    fn pool_of(&self, page: PageId) -> &Pool {
        if self.span(page) > 1 { &self.wide } else { &self.small }
    }

    /// The frame of a page that has one.
    fn frame_of(&self, page: PageId) -> FrameId {
        self.its_frame(page).unwrap_or(FrameId { wide: self.span(page) > 1, index: u32::MAX })
    }

    fn its_frame(&self, page: PageId) -> Option<FrameId> {
        let wide = self.span(page) > 1;
        self.frame.get(page, wide).map(|index| FrameId { wide, index })
    }

    fn set_frame(&mut self, page: PageId, frame: Option<FrameId>) {
        self.frame.set(page, self.span(page) > 1, frame.map(|frame| frame.index));
    }

    /// Units of free frames that keep their memory.
    fn spare(&self) -> u32 {
        let of = |pool: &Pool, span| {
            if pool.class.moves { pool.frames.filled() * span } else { 0 }
        };
        of(&self.small, 1) + of(&self.wide, self.geometry.block_units)
    }

    fn state(&self, page: PageId) -> State {
        STATES[self.state[page.0 as usize] as usize]
    }

    fn move_to(&mut self, page: PageId, to: State) {
        let from = self.state(page);
        debug_assert!(transitions::is_known(from, to), "{page:?} goes from {from:?} to {to:?}");
        self.state[page.0 as usize] = to as u8;
        self.moving -= u32::from(!from.is_at_rest());
        self.moving += u32::from(!to.is_at_rest());
        if self.geometry.block_units == 1 {
            return self.count_touched(page, from != State::Untouched, to != State::Untouched);
        }
        let (block, span) = (self.geometry.block(page.0) as usize, self.span(page) as u16);
        let is_touched = |pager: &Self| pager.in_memory[block] + pager.remote[block] > 0;
        let was_touched = is_touched(self);
        match from {
            State::Untouched => {}
            State::Remote => self.remote[block] -= span,
            _ => self.in_memory[block] -= span,
        }
        match to {
            State::Untouched => {}
            State::Remote => self.remote[block] += span,
            _ => self.in_memory[block] += span,
        }
        match (was_touched, is_touched(self)) {
            (false, true) => self.touched += self.geometry.block_units,
            (true, false) => self.touched -= self.geometry.block_units,
            _ => {}
        }
    }

    fn count_touched(&mut self, page: PageId, was: bool, is: bool) {
        let stretch = &mut self.in_stretch[(page.0 / self.geometry.stretch_units()) as usize];
        match (was, is) {
            (false, true) => {
                self.touched += 1;
                self.stretches += u32::from(*stretch == 0);
                *stretch += 1;
            }
            (true, false) => {
                self.touched -= 1;
                *stretch -= 1;
                self.stretches -= u32::from(*stretch == 0);
            }
            _ => {}
        }
    }

    fn has(&self, page: PageId, flags: u16) -> bool {
        self.flags[page.0 as usize] & flags != 0
    }

    fn set(&mut self, page: PageId, flags: u16) {
        self.flags[page.0 as usize] |= flags;
    }

    fn clear(&mut self, page: PageId, flags: u16) {
        self.flags[page.0 as usize] &= !flags;
    }
}
