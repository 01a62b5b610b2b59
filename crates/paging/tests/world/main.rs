//! Tests the pager against a plain model: random programs, random orders of completion, failures, discards and budgets.
//!
//! The world carries out the pager's actions one at a time in a random order. Its memory is a plain map. So any delay
//! and any order of a real machine can occur. A program of several threads reads and writes this memory. Each read is
//! compared with a model that has no pages. A failing case prints its seed and shape. `HANARE_SEED=n` runs only that
//! seed. The programs and shapes are drawn in `cases.rs`.

use std::collections::{HashMap, HashSet};

use hanare_paging::kinds::{ByKind, Kind};
use hanare_paging::{
    Action, Actions, Class, Config, Event, FrameId, Geometry, PageId, Pager, Progress, Source, Space, State, limits,
};
use hanare_paging::{policy, prefetch};

mod cases;
mod completions;
mod disturbances;
mod hider;
mod parking;
mod program;
mod random;
mod reached;
mod seeds;

use hider::Hider;
use program::{Op, Thread, unit_of};
use random::Random;
use reached::Reached;

#[derive(Clone, Copy, Debug)]
struct Shape {
    units: u32,
    block_units: u32,
    budget: u32,
    small_moves: bool,
    wide_moves: bool,
    direct: bool,
    frames: u32,
    threads: usize,
    policy: &'static str,
    prefetcher: &'static str,
    hides_in_place: bool,
    failures_per_mille: u64,
    sequential: bool,
    /// Whether transfers hold pages.
    pins: bool,
    /// Probability, in thousandths, that a round completes a pending action instead of running the program.
    completes_per_mille: u64,
}

#[derive(Clone, Copy)]
struct Mapped {
    value: u64,
    writable: bool,
}

struct World {
    shape: Shape,
    pager: Pager,
    actions: Actions,
    random: Random,
    view: HashMap<u32, Mapped>,
    /// Units unmapped for reference sampling whose bytes stayed at their address, with their values.
    hidden: HashMap<u32, u64>,
    frames: HashMap<FrameId, Vec<u64>>,
    server: HashMap<u32, u64>,
    pending: Vec<(Action, Option<Vec<u64>>)>,
    model: HashMap<u32, u64>,
    threads: Vec<Thread>,
    /// Units that a thread discards or has freed. No thread accesses them.
    discarding: HashSet<u32>,
    /// Units that the program has allocated, as far as the pager knows. Only these may be filled before an access.
    allocated: HashSet<u32>,
    /// Units that were freed and are used again. Each has its old bytes or zeroes.
    uncertain: HashSet<u32>,
    /// Pages that a transfer pins, by their first unit. The pages cannot be evicted, and the transfer still writes to
    /// them.
    pins: HashSet<u32>,
    /// Units whose pages the pager's caller protects from eviction at the moment.
    kept: HashSet<u32>,
    /// Units that the program has locked. The pager may have more of them locked.
    locked: HashSet<u32>,
    budget_set: u32,
    /// Maximum number of units of local memory in use. If the budget shrank, this is the number in use at the last
    /// check, so that the use may only fall until it is within the budget.
    most: usize,
    reached: Reached,
    steps: u64,
    now_ms: u64,
    fresh: u64,
    cursor: u32,
}

const UNIT_BYTES: u32 = 4096;

impl World {
    fn new(seed: u64, shape: Shape) -> Self {
        let geometry = Geometry { units: shape.units, unit_bytes: UNIT_BYTES, block_units: shape.block_units };
        let class =
            |moves: bool, span: u32| Class { moves, frames: if moves { shape.units / span } else { shape.frames } };
        let config = Config {
            geometry,
            budget_units: shape.budget,
            small: class(shape.small_moves, 1),
            wide: class(shape.wide_moves, shape.block_units),
            direct: shape.direct,
            hides_in_place: shape.hides_in_place,
            ahead_units: 2 * shape.block_units,
        };
        let space = Space {
            units: shape.units,
            block_units: shape.block_units,
            seed,
            hides: shape.hides_in_place || shape.small_moves,
        };
        let policy: Box<dyn policy::Policy> = match shape.policy {
            "hider" => Box::new(Hider { pages: Vec::new(), random: Random(seed) }),
            "kinds" => Box::new(ByKind::new("lirs", space, Kind::LastShared).expect("a known policy")),
            name => policy::build(name, space).expect("a known policy"),
        };
        let prefetcher = prefetch::build(shape.prefetcher, space).expect("a known prefetcher");
        Self {
            shape,
            pager: Pager::new(&config, policy, prefetcher).expect("a valid configuration"),
            actions: Actions::new(),
            random: Random(seed),
            view: HashMap::new(),
            hidden: HashMap::new(),
            frames: HashMap::new(),
            server: HashMap::new(),
            pending: Vec::new(),
            model: HashMap::new(),
            threads: vec![Thread::Ready; shape.threads],
            discarding: HashSet::new(),
            allocated: HashSet::new(),
            uncertain: HashSet::new(),
            pins: HashSet::new(),
            kept: HashSet::new(),
            locked: HashSet::new(),
            budget_set: shape.budget,
            most: shape.budget as usize,
            reached: Reached::default(),
            steps: 0,
            now_ms: 0,
            fresh: 0,
            cursor: 0,
        }
    }

    fn step(&mut self, event: Event) -> Progress {
        match event {
            Event::Budget { units } => self.budget_set = units,
            Event::Allocated { first, end, is_open: true } => self.allocated.extend(first..end),
            Event::Allocated { first, end, .. } | Event::Discard { first, end } | Event::Unused { first, end, .. } => {
                self.allocated.retain(|unit| !(first..end).contains(unit));
                self.locked.retain(|unit| !(first..end).contains(unit));
            }
            _ => {}
        }
        self.actions.clear();
        let kept = &self.kept;
        let progress = self.pager.step_keeping(event, &mut self.actions, &|page| kept.contains(&page.0));
        self.check_kept(event);
        self.check_locked(event);
        let is_open = !matches!(event, Event::Fault { unit, write } if !self.pager.is_accessible(unit, write));
        self.reached.note(event, progress, self.actions.as_slice(), is_open);
        for action in self.actions.as_slice().to_vec() {
            self.start(action);
        }
        self.check_budget();
        self.steps += 1;
        // This check visits every unit, so large worlds perform it rarely.
        if self.shape.units < 1000 || self.steps.is_multiple_of(512) {
            self.check_touched();
            let is_locked = |unit: &u32| self.pager.locked_run(*unit, *unit + 1).is_some();
            assert_eq!((0..self.shape.units).filter(is_locked).count() as u32, self.pager.locked_units());
        }
        progress
    }

    /// Queues an action. Checks the conditions that must hold when the action is issued.
    fn start(&mut self, action: Action) {
        let mut seen = None;
        match action {
            Action::Release { unit, count } => {
                for unit in unit..unit + count {
                    self.server.remove(&unit);
                }
                return;
            }
            Action::Wake { page } => return self.wake(page),
            Action::Fetch { page, count, source, frame, .. } => {
                for (other, _) in &self.pending {
                    if let Action::Fetch { page: first, count: n, .. } = *other {
                        let disjoint = page.0 + count <= first.0 || first.0 + n <= page.0;
                        assert!(disjoint, "{page:?} is fetched twice at once");
                    }
                }
                if let Some(frame) = frame {
                    let span = self.span(page);
                    self.frames.entry(frame).or_insert_with(|| vec![u64::MAX; span as usize]);
                }
                let ahead = (page.0..page.0 + count).skip(1);
                if source == Source::Zero {
                    for unit in ahead {
                        assert!(self.allocated.contains(&unit), "unit {unit} is filled and was not allocated");
                    }
                }
                if source == Source::Server {
                    seen = Some(self.server_bytes(page, self.span(page) * count));
                }
            }
            Action::WriteBack { page, frame, .. } => {
                seen = Some(self.frames[&frame].clone());
                assert_eq!(self.span(page) as usize, self.frames[&frame].len());
            }
            _ => {}
        }
        self.pending.push((action, seen));
    }

    fn span(&self, page: PageId) -> u32 {
        self.pager.page_of(page.0).1
    }

    fn server_bytes(&self, page: PageId, count: u32) -> Vec<u64> {
        let held = |unit| *self.server.get(&unit).unwrap_or_else(|| panic!("unit {unit} was fetched but is not held"));
        (page.0..page.0 + count).map(held).collect()
    }

    fn check_budget(&mut self) {
        let moves = |frame: &FrameId| {
            if frame.wide { self.shape.wide_moves } else { self.shape.small_moves }
        };
        let framed: usize = self.frames.iter().filter(|(frame, _)| moves(frame)).map(|(_, bytes)| bytes.len()).sum();
        let physical = self.view.len() + self.hidden.len() + framed;
        let budget = self.pager.budget_units() as usize;
        let counted = self.pager.local_units() as usize;
        let least = (self.pager.locked_units() + limits::BUDGET_PAGES_MIN) as usize;
        assert_eq!(budget, least.max(self.budget_set as usize), "only locked pages may extend the budget");
        assert!(counted >= physical, "the pager lost count of local memory");
        assert!(counted <= budget.max(self.most), "{counted} units, {framed} in frames, over a budget of {budget}");
        self.most = counted;
    }

    /// Compares the pager's count of units that need a place on a server with a count over all units.
    fn check_touched(&self) {
        let is_touched = |unit: u32| self.pager.state_of(unit) != State::Untouched;
        let block = self.shape.block_units;
        let blocks = (0..self.shape.units / block).filter(|n| (n * block..(n + 1) * block).any(is_touched));
        assert_eq!(
            self.pager.touched_units() as usize,
            blocks.count() * block as usize,
            "touched units are miscounted"
        );
        let stretch = (limits::PAGE_BYTES_MAX / UNIT_BYTES) as usize;
        let units: Vec<u32> = (0..self.shape.units).collect();
        let stretches = units.chunks(stretch).filter(|stretch| stretch.iter().any(|&unit| is_touched(unit)));
        if block == 1 {
            assert_eq!(self.pager.placed_units() as usize, stretches.count() * stretch, "stretches are miscounted");
        }
    }

    /// Checks that a protected page is evicted only by a discard or a settle event.
    fn check_kept(&self, event: Event) {
        let may_leave = matches!(event, Event::Discard { .. } | Event::Settle { .. });
        for action in self.actions.as_slice() {
            if let Action::TakeOut { page, .. } = action {
                let stays = self.kept.contains(&page.0) && !self.discarding.contains(&page.0);
                assert!(may_leave || !stays, "{page:?} is kept and was evicted");
            }
        }
    }

    /// Checks that no locked page is evicted, but for a fork that needs all pages away.
    fn check_locked(&self, event: Event) {
        let is_locked = |&unit: &u32| self.pager.locked_run(unit, unit + 1) == Some((unit, unit + 1));
        assert!(self.locked.iter().all(is_locked), "a page lost its lock");
        for action in self.actions.as_slice() {
            if let Action::TakeOut { page, .. } | Action::Hide { page, .. } = *action
                && !matches!(event, Event::Settle { .. })
            {
                let is_locked = (page.0..page.0 + self.span(page)).any(|unit| self.locked.contains(&unit));
                assert!(!is_locked, "{page:?} is locked and leaves");
            }
        }
    }

    fn wake(&mut self, page: PageId) {
        let end = page.0 + self.span(page);
        for thread in &mut self.threads {
            if let Thread::Waiting(op, at) = *thread
                && (page.0..end).contains(&at.0)
            {
                *thread = Thread::Doing(op);
            }
        }
    }

    fn run(&mut self, rounds: u64) {
        self.go_on(rounds);
        self.finish();
    }

    fn go_on(&mut self, rounds: u64) {
        for _ in 0..rounds {
            self.disturb();
            if !self.pending.is_empty() && self.random.chance(self.shape.completes_per_mille) {
                self.complete();
            } else {
                self.run_thread();
            }
        }
    }

    /// Completes all pending actions, settles all pages as for a fork, and checks what a child would find. If a unit
    /// has bytes, they must be mapped or on the server. With `leave`, they must be on the server. If pages have two sizes,
    /// only blocks with pages in use are settled.
    fn fork(&mut self, leave: bool) {
        self.come_to_rest();
        let mut next = 0;
        for _ in 0..200_000 {
            if next >= self.shape.units {
                // Some pages could not be evicted and are mapped again.
                let is_back = leave && self.pager.next_in_view(0, self.shape.units).is_some();
                if !is_back && self.pager.is_settled() {
                    break;
                }
                next = 0;
            }
            if self.shape.block_units > 1 {
                next = self.pager.next_blocks_in_use(next).map_or(self.shape.units, |(first, _)| first.max(next));
            }
            next = match self.step(Event::Settle { first: next, end: self.shape.units, leave }) {
                Progress::Done => self.shape.units,
                Progress::Continue(unit) | Progress::Busy(unit) => unit,
            };
            if !self.pending.is_empty() {
                self.complete();
            }
        }
        assert!(next >= self.shape.units && self.pager.is_settled() && self.pending.is_empty(), "no rest is found");
        for unit in 0..self.shape.units {
            let found = match self.pager.state_of(unit) {
                State::Untouched => None,
                State::Remote => self.server.get(&unit).copied(),
                State::Resident if leave => panic!("unit {unit} has not left"),
                State::Resident => Some(self.view[&unit].value),
                state => panic!("unit {unit} is {state:?}"),
            };
            let found = found.unwrap_or(0);
            assert_eq!(found, self.expected(unit, found), "unit {unit} at a fork");
        }
        let mut units = 0;
        let mut from = 0;
        while let Some((page, span, _)) = self.pager.next_in_view(from, self.shape.units) {
            units += span as usize;
            from = page.0 + span;
        }
        assert_eq!(units, self.view.len(), "what is in view");
    }

    /// Completes all pending actions. Afterwards no thread may wait, and every word must read as the model predicts.
    fn finish(&mut self) {
        self.come_to_rest();
        for unit in 0..self.shape.units {
            self.threads[0] = Thread::Doing(Op::Read(unit));
            for _ in 0..10_000 {
                match self.threads[0] {
                    Thread::Ready => break,
                    Thread::Doing(op) => self.attempt(0, op),
                    _ if !self.pending.is_empty() => self.complete(),
                    waiting => assert!(self.ticked(), "the last read of unit {unit} waits for nothing: {waiting:?}"),
                }
            }
            assert!(matches!(self.threads[0], Thread::Ready), "the last read of unit {unit} does not end");
        }
    }

    fn come_to_rest(&mut self) {
        while !self.pins.is_empty() {
            self.unpin();
        }
        self.kept.clear();
        for kind in [Kind::SharedCopy, Kind::LastShared] {
            self.step(Event::Hold { kind, on: false });
        }
        for _ in 0..200_000 {
            if !self.pending.is_empty() {
                self.complete();
                continue;
            }
            // A tick makes the pager retry the eviction of pages that a transfer had pinned.
            if self.ticked() {
                continue;
            }
            let Some(index) = self.threads.iter().position(|thread| !matches!(thread, Thread::Ready)) else {
                break;
            };
            match self.threads[index] {
                Thread::Doing(op) => self.attempt(index, op),
                Thread::Discarding { next, end, first } => self.go_on_discarding(index, next, end, first),
                Thread::Freeing { next, end, first } => self.go_on_freeing(index, next, end, first),
                Thread::Freed { end, first } => self.go_on_reusing(index, first, end, first),
                Thread::Reusing { next, end, first } => self.go_on_reusing(index, next, end, first),
                Thread::Waiting(op, _) => {
                    let state = self.pager.state_of(unit_of(op));
                    panic!("thread {index} waits for {op:?}, {state:?}, with nothing under way");
                }
                Thread::Ready => {}
            }
        }
        assert!(self.threads.iter().all(|thread| matches!(thread, Thread::Ready)), "the program does not come to rest");
    }
}
