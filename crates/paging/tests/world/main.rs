//! The pager against a plain model: random programs, random orders of completion, failures, discards and budgets.
//!
//! The world below carries out the pager's actions one at a time in a random order, as slow and as out of step as a
//! machine may, over memory that is a plain map. A program of several threads reads and writes through it; each read
//! is compared with a model that knows nothing of pages. A failing case prints its seed and shape; `HANARE_SEED=n` runs
//! that seed alone. The programs and shapes are drawn in `cases.rs`.

use std::collections::{HashMap, HashSet};

use hanare_paging::{
    Action, Actions, Bytes, Class, Config, Event, FrameId, Geometry, PageId, Pager, Progress, Source, Space, State,
    limits,
};
use hanare_paging::{policy, prefetch};
mod cases;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0 ^ (self.0 >> 33);
        x.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 16
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

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
}

#[derive(Clone, Copy)]
struct Mapped {
    value: u64,
    writable: bool,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Read(u32),
    Write(u32, u64),
}

#[derive(Clone, Copy, Debug)]
enum Thread {
    Ready,
    Doing(Op),
    Waiting(Op, PageId),
    Discarding { next: u32, end: u32, first: u32 },
}

struct World {
    shape: Shape,
    pager: Pager,
    actions: Actions,
    random: Random,
    view: HashMap<u32, Mapped>,
    /// Units out of sight whose bytes stayed in place.
    hidden: HashMap<u32, u64>,
    frames: HashMap<FrameId, Vec<u64>>,
    server: HashMap<u32, u64>,
    pending: Vec<(Action, Option<Vec<u64>>)>,
    model: HashMap<u32, u64>,
    threads: Vec<Thread>,
    discarding: HashSet<u32>,
    /// Pages that a transfer holds, by their first unit: they cannot leave, and the transfer writes to them yet.
    pins: HashSet<u32>,
    /// Most units of local memory there may be: the budget, or less and less while there are more.
    most: usize,
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
            pins: HashSet::new(),
            most: shape.budget as usize,
            now_ms: 0,
            fresh: 0,
            cursor: 0,
        }
    }

    fn step(&mut self, event: Event) -> Progress {
        self.actions.clear();
        let progress = self.pager.step(event, &mut self.actions);
        for action in self.actions.as_slice().to_vec() {
            self.start(action);
        }
        self.check_budget();
        self.check_touched();
        progress
    }

    /// Notes an action for later; what must hold already when it is answered is checked here.
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
                if source == Source::Server {
                    seen = Some(self.server_bytes(page, self.span(page) * count));
                }
            }
            Action::WriteBack { page, frame } => {
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
        assert!(counted >= physical, "the pager lost count of local memory");
        assert!(counted <= budget.max(self.most), "{counted} units, {framed} in frames, over a budget of {budget}");
        self.most = counted;
    }

    /// The pager's count of what needs a place, against a count of its pages.
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

    fn show(&mut self, first: u32, values: &[u64], writable: bool) {
        for (index, &value) in values.iter().enumerate() {
            let old = self.view.insert(first + index as u32, Mapped { value, writable });
            assert!(old.is_none(), "unit {} came into view twice", first + index as u32);
        }
    }

    /// Carries out one pending action and tells the pager.
    fn complete(&mut self) {
        let index = self.random.below(self.pending.len() as u64) as usize;
        let (action, seen) = self.pending.swap_remove(index);
        let fails = self.random.chance(self.shape.failures_per_mille);
        match action {
            Action::Fetch { page, count, source, frame, writable, .. } => {
                let units = self.span(page) * count;
                let bytes = match source {
                    Source::Server => self.server_bytes(page, units),
                    Source::Zero => vec![0; units as usize],
                    Source::Frame(from) => self.frames[&from].clone(),
                };
                if let Some(seen) = seen {
                    assert_eq!(seen, bytes, "the server's bytes changed under a fetch of {page:?}");
                }
                let ok = !fails || matches!(source, Source::Frame(_));
                match frame {
                    Some(frame) => {
                        self.frames.insert(frame, if ok { bytes } else { vec![u64::MAX - 1; units as usize] });
                        self.step(Event::Fetched { page, ok });
                    }
                    None => {
                        // What cannot be protected comes open.
                        let slips = ok && writable < count && self.random.chance(self.shape.failures_per_mille);
                        if ok {
                            let open = if slips { units } else { writable * self.span(page) };
                            self.show(page.0, &bytes[..open as usize], true);
                            self.show(page.0 + open, &bytes[open as usize..], false);
                        }
                        self.step(Event::Arrived { page, count, certain: !slips, ok });
                        (page.0..page.0 + count).for_each(|unit| self.wake(PageId(unit)));
                    }
                }
            }
            Action::Install { page, frame, writable } => self.complete_install(page, frame, writable, fails),
            Action::Open { page } => {
                for unit in page.0..page.0 + self.span(page) {
                    self.view.get_mut(&unit).expect("an opened page is in view").writable = true;
                }
                self.step(Event::Opened { page });
                self.wake(page);
            }
            Action::TakeOut { page, frame, bytes } => self.complete_take_out(page, frame, bytes, fails),
            Action::WriteBack { page, frame } => {
                let bytes = self.frames[&frame].clone();
                assert_eq!(seen.as_ref(), Some(&bytes), "{frame:?} was disturbed while it was written back");
                if !fails {
                    for (index, &value) in bytes.iter().enumerate() {
                        self.server.insert(page.0 + index as u32, value);
                    }
                }
                self.step(Event::WrittenBack { page, frame, ok: !fails });
            }
            Action::Hide { page, frame, .. } => self.complete_hide(page, frame, fails),
            Action::Show { page, frame, writable } => match frame {
                Some(frame) => self.complete_install(page, frame, writable, fails),
                None => {
                    let take = |unit| self.hidden.remove(&unit).expect("a page shown in place was hidden there");
                    let bytes: Vec<u64> = (page.0..page.0 + self.pager.page_of(page.0).1).map(take).collect();
                    self.show(page.0, &bytes, writable);
                    self.step(Event::Arrived { page, count: 1, certain: true, ok: true });
                    self.wake(page);
                }
            },
            Action::FreeFrame { frame } => {
                self.frames.remove(&frame);
                self.step(Event::FrameFreed { frame });
            }
            Action::Release { .. } | Action::Wake { .. } => unreachable!("done when answered"),
        }
    }

    fn complete_install(&mut self, page: PageId, frame: FrameId, writable: bool, fails: bool) {
        if fails {
            self.step(Event::Arrived { page, count: 1, certain: true, ok: false });
            return;
        }
        let bytes = self.frames.remove(&frame).expect("an installed frame is filled");
        // The window between a move and its protection: a write slips in, and the page is reported as uncertain.
        let slips = !writable && self.random.chance(2 * self.shape.failures_per_mille);
        self.show(page.0, &bytes, writable || slips);
        if slips && self.random.chance(500) && !self.discarding.contains(&page.0) {
            self.fresh += 1;
            let value = self.fresh;
            self.view.get_mut(&page.0).expect("just shown").value = value;
            self.model.insert(page.0, value);
        }
        self.step(Event::Arrived { page, count: 1, certain: !slips, ok: true });
        self.wake(page);
    }

    fn complete_hide(&mut self, page: PageId, frame: Option<FrameId>, fails: bool) {
        let fails = fails || self.is_pinned(page);
        if !fails {
            let take = |unit| self.view.remove(&unit).expect("a page that is hidden was in view").value;
            let bytes: Vec<u64> = (page.0..page.0 + self.pager.page_of(page.0).1).map(take).collect();
            match frame {
                Some(frame) => assert!(self.frames.insert(frame, bytes).is_none(), "{frame:?} was not empty"),
                None => self.hidden.extend((page.0..).zip(bytes)),
            }
        }
        self.step(Event::Hidden { page, ok: !fails });
        self.wake(page);
    }

    fn complete_take_out(&mut self, page: PageId, frame: Option<FrameId>, known: Bytes, fails: bool) {
        let span = self.span(page);
        // What was discarded is dropped wherever it is; a transfer into it writes to nobody's memory.
        let dropped = frame.is_none() && known == Bytes::Clean;
        if fails || !dropped && self.is_pinned(page) {
            self.step(Event::TakenOut { page, ok: false, changed: false });
            return;
        }
        let take = |unit| match self.view.remove(&unit) {
            Some(mapped) => mapped.value,
            None => self.hidden.remove(&unit).expect("a page is taken out of view once"),
        };
        let bytes: Vec<u64> = (page.0..page.0 + span).map(take).collect();
        let changed = match known {
            Bytes::Clean => false,
            Bytes::Dirty => true,
            Bytes::Unknown => bytes != self.server_bytes(page, span),
            Bytes::MaybeZero => bytes.iter().any(|&value| value != 0),
        };
        match frame {
            Some(frame) => {
                // A frame of a copying class is a buffer: it is never empty, only free.
                let moves = if frame.wide { self.shape.wide_moves } else { self.shape.small_moves };
                let old = self.frames.insert(frame, bytes);
                assert!(old.is_none() || !moves, "{frame:?} was not empty");
            }
            None if changed => self.server.extend((page.0..).zip(bytes)),
            None => {}
        }
        self.step(Event::TakenOut { page, ok: true, changed });
    }

    fn change_budget(&mut self) {
        let units = 2 + self.random.below(u64::from(self.shape.budget) * 3 / 2) as u32;
        self.step(Event::Budget { units });
    }

    /// Whether the passing of time brings something under way.
    fn ticked(&mut self) -> bool {
        self.tick();
        !self.pending.is_empty()
    }

    fn tick(&mut self) {
        self.now_ms += 10 + self.random.below(200);
        self.step(Event::Tick { now_ms: self.now_ms });
    }

    /// A transfer into a page begins: it holds a page that is open for writing.
    fn pin(&mut self) {
        let unit = self.random.below(u64::from(self.shape.units)) as u32;
        let (page, span) = self.pager.page_of(unit);
        let open = |unit| self.view.get(&unit).is_some_and(|mapped| mapped.writable);
        let busy = (page.0..page.0 + span).any(|unit| self.discarding.contains(&unit));
        if self.pager.state_of(unit) == State::Resident && (page.0..page.0 + span).all(open) && !busy {
            self.pins.insert(page.0);
        }
    }

    /// A transfer ends: it has written to its page, which has to be where it was.
    fn unpin(&mut self) {
        let Some(&first) = self.pins.iter().min() else { return };
        self.pins.remove(&first);
        self.fresh += 1;
        let mapped = self.view.get_mut(&first).unwrap_or_else(|| panic!("unit {first} left while a transfer held it"));
        mapped.value = self.fresh;
        self.model.insert(first, self.fresh);
    }

    /// What the kernel refuses of a page that is to leave.
    fn is_pinned(&self, page: PageId) -> bool {
        (page.0..page.0 + self.span(page)).any(|unit| self.pins.contains(&unit))
    }

    fn disturb(&mut self) {
        match self.random.below(1000) {
            0..5 => self.change_budget(),
            5..15 => self.tick(),
            15..35 if self.shape.pins => self.pin(),
            35..60 => self.unpin(),
            _ => {}
        }
    }

    fn run_thread(&mut self) {
        let index = self.random.below(self.threads.len() as u64) as usize;
        match self.threads[index] {
            Thread::Ready => self.choose(index),
            Thread::Doing(op) => self.attempt(index, op),
            Thread::Waiting(op, page) => {
                if self.random.chance(20) {
                    self.fault(index, op);
                } else {
                    self.threads[index] = Thread::Waiting(op, page);
                }
            }
            Thread::Discarding { next, end, first } => self.go_on_discarding(index, next, end, first),
        }
    }

    fn choose(&mut self, index: usize) {
        if self.random.chance(30) {
            return self.choose_discard(index);
        }
        let unit = if self.shape.sequential && self.random.chance(900) {
            self.cursor = (self.cursor + 1) % self.shape.units;
            self.cursor
        } else {
            self.random.below(u64::from(self.shape.units)) as u32
        };
        if self.discarding.contains(&unit) {
            return;
        }
        self.fresh += 1;
        let op = if self.random.chance(500) { Op::Read(unit) } else { Op::Write(unit, self.fresh) };
        self.threads[index] = Thread::Doing(op);
    }

    /// Picks a range nobody uses at the moment; a real program that does otherwise has a race of its own.
    fn choose_discard(&mut self, index: usize) {
        let first = self.random.below(u64::from(self.shape.units)) as u32;
        let end =
            (first + 1 + self.random.below(u64::from(2 * self.shape.block_units + 2)) as u32).min(self.shape.units);
        let busy = |unit: u32| {
            self.discarding.contains(&unit)
                || self.threads.iter().any(|thread| match *thread {
                    Thread::Doing(op) | Thread::Waiting(op, _) => unit_of(op) == unit,
                    _ => false,
                })
        };
        if (first..end).any(busy) {
            return;
        }
        self.discarding.extend(first..end);
        // A transfer goes on into memory that is nobody's.
        self.pins.retain(|unit| !(first..end).contains(unit));
        self.threads[index] = Thread::Discarding { next: first, end, first };
    }

    fn go_on_discarding(&mut self, index: usize, next: u32, end: u32, first: u32) {
        let mut next = next;
        if next < end {
            next = match self.step(Event::Discard { first: next, end }) {
                Progress::Done => end,
                Progress::Continue(unit) | Progress::Busy(unit) => unit,
            };
            self.threads[index] = Thread::Discarding { next, end, first };
            return;
        }
        // The caller returns to its program only when what it was answered has been carried out.
        if (first..end).any(|unit| {
            let there = self.view.contains_key(&unit) || self.hidden.contains_key(&unit);
            there && self.pager.state_of(unit) == State::TakingOut
        }) {
            return;
        }
        for unit in first..end {
            self.model.remove(&unit);
            self.discarding.remove(&unit);
        }
        self.threads[index] = Thread::Ready;
    }

    fn attempt(&mut self, index: usize, op: Op) {
        let unit = unit_of(op);
        match (self.view.get_mut(&unit), op) {
            (Some(mapped), Op::Read(_)) => {
                let expected = self.model.get(&unit).copied().unwrap_or(0);
                assert_eq!(mapped.value, expected, "unit {unit} reads wrong");
                self.threads[index] = Thread::Ready;
            }
            (Some(mapped), Op::Write(_, value)) if mapped.writable => {
                mapped.value = value;
                self.model.insert(unit, value);
                self.threads[index] = Thread::Ready;
            }
            _ => self.fault(index, op),
        }
    }

    fn fault(&mut self, index: usize, op: Op) {
        let unit = unit_of(op);
        self.threads[index] = Thread::Waiting(op, PageId(unit));
        self.step(Event::Fault { unit, write: matches!(op, Op::Write(..)) });
    }

    fn run(&mut self, rounds: u64) {
        self.go_on(rounds);
        self.finish();
    }

    fn go_on(&mut self, rounds: u64) {
        for _ in 0..rounds {
            self.disturb();
            if !self.pending.is_empty() && self.random.chance(500) {
                self.complete();
            } else {
                self.run_thread();
            }
        }
    }

    /// Lets everything under way end, brings the pager to rest as a fork does, and looks at what a child would find: each
    /// unit's bytes in view or on the server, or none anywhere.
    fn fork(&mut self, leave: bool) {
        self.come_to_rest();
        let mut next = 0;
        for _ in 0..200_000 {
            if next >= self.shape.units {
                // What could not be taken out has come back.
                let is_back = leave && self.pager.next_in_view(0, self.shape.units).is_some();
                if !is_back && self.pager.is_settled() {
                    break;
                }
                next = 0;
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
            let (found, expected) = (found.unwrap_or(0), self.model.get(&unit).copied().unwrap_or(0));
            assert_eq!(found, expected, "unit {unit} at a fork");
        }
        let mut units = 0;
        let mut from = 0;
        while let Some((page, span, _)) = self.pager.next_in_view(from, self.shape.units) {
            units += span as usize;
            from = page.0 + span;
        }
        assert_eq!(units, self.view.len(), "what is in view");
    }

    /// Lets everything under way end: nobody may be left waiting, and every word must read as the model has it.
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
        for _ in 0..200_000 {
            if !self.pending.is_empty() {
                self.complete();
                continue;
            }
            // What could not leave is looked at again.
            if self.ticked() {
                continue;
            }
            let Some(index) = self.threads.iter().position(|thread| !matches!(thread, Thread::Ready)) else {
                break;
            };
            match self.threads[index] {
                Thread::Doing(op) => self.attempt(index, op),
                Thread::Discarding { next, end, first } => self.go_on_discarding(index, next, end, first),
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

/// A policy that hides whatever it draws, and replaces at random.
struct Hider {
    pages: Vec<PageId>,
    random: Random,
}

impl policy::Policy for Hider {
    fn inserted(&mut self, page: PageId, _cause: policy::Cause) {
        assert!(!self.pages.contains(&page), "{page:?} came into view twice");
        self.pages.push(page);
    }

    fn referenced(&mut self, page: PageId, _write: bool) {
        assert!(self.pages.contains(&page), "{page:?} was referenced out of view");
    }

    fn removed(&mut self, page: PageId, _why: policy::Leave) {
        let at = self.pages.iter().position(|&other| other == page).expect("a page leaves the view once");
        self.pages.swap_remove(at);
    }

    fn forgotten(&mut self, page: PageId) {
        assert!(!self.pages.contains(&page), "{page:?} is in view");
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let accepted: Vec<PageId> = self.pages.iter().copied().filter(|&page| accept(page)).collect();
        (!accepted.is_empty()).then(|| accepted[self.random.below(accepted.len() as u64) as usize])
    }

    fn next_to_hide(&mut self) -> Option<PageId> {
        let wishes = !self.pages.is_empty() && self.random.chance(300);
        wishes.then(|| self.pages[self.random.below(self.pages.len() as u64) as usize])
    }

    fn hides(&self) -> bool {
        true
    }
}

fn unit_of(op: Op) -> u32 {
    match op {
        Op::Read(unit) | Op::Write(unit, _) => unit,
    }
}
