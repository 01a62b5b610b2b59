//! Simulation tests of the production engine. The view needs no kernel, the store fails on purpose, and one thread runs
//! everything without a clock.
//!
//! A random seed determines the sizes of a run, the program's operations and the failures. The simulated program has
//! several threads that read and write. A model without pages predicts the result of each read. Between any two steps,
//! actions complete in any order, the budget changes, transfers hold pages, memory is discarded, and the process forks.
//! The tests check that no byte is lost or torn, that the budget holds, and that no thread waits for ever. If the store
//! is lost or full, the run must end with the error for this failure.
//!
//! The environment variable `HANARE_SEED=n` runs only the seed `n`.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;

use hanare_paging::{Class, Config, Event, Geometry, Pager, Progress, Space, limits, policy, prefetch};
use hanare_store::faulty::{Faults, Faulty};
use hanare_store::{EXIT_FULL, EXIT_LOST};

use super::{Engine, Parts, WORKS};
use crate::counters::Counters;
use crate::fatal::ended::{self, Ended};
use crate::span::{OS_PAGE, Span};
use crate::view::fake::{self, FakeView};
use hanare_sys::map::Mapping;
use hanare_wire::Wait;
use reuse::{Reuse, load};

mod forks;
mod reuse;

/// Indices of the 8-byte words of a unit that the simulated program uses: the first, a middle one and the last.
const WORDS: [usize; 3] = [0, 200, OS_PAGE / 8 - 1];
/// Number of random steps of a run.
const STEPS: usize = 600;
/// Maximum number of turns in which `drain` or a fork completes operations. The test fails if an operation is still
/// pending afterwards.
const DRAIN_MAX: usize = 20_000;
/// Turn of `drain` in which the budget is raised to hold all pages. Otherwise threads could evict each other's pages
/// for ever, because a simulated thread may not run before its page is evicted again.
const THRASHING: usize = 2_000;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        ((mixed >> 20) % n as u64) as usize
    }

    fn chance(&mut self, per_mille: usize) -> bool {
        self.below(1000) < per_mille
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// The random parameters of a run.
#[derive(Clone, Debug)]
struct Shape {
    view: fake::Shape,
    config: Config,
    faults: Faults,
    policy: &'static str,
    prefetcher: &'static str,
    threads: usize,
    /// Whether threads wait in their signal handlers (sigbus and sigsegv mode). If false, the kernel suspends and wakes
    /// them (thread mode).
    waits_in_handlers: bool,
    sequential: bool,
}

fn draw_shape(random: &mut Random) -> Shape {
    let doubled = random.chance(300);
    let block_units = if !doubled && random.chance(400) { 4 } else { 1 };
    let budget = if block_units == 1 { 2 + random.below(22) } else { 32 + random.below(68) };
    let budget = budget.max(limits::BUDGET_PAGES_MIN as usize);
    let units = (budget * 3).next_multiple_of(block_units);
    let small_moves = !doubled && block_units == 1 && random.chance(400);
    let moves = !doubled && random.chance(700);
    let direct = random.chance(500);
    let frames = 1 + random.below(4);
    let (small_frames, wide_frames) = (if small_moves { units } else { frames }, units / block_units);
    let view = fake::Shape {
        units,
        block_units,
        small_frames,
        wide_frames,
        small_moves,
        aside_units: if moves && !small_moves { WORKS * limits::VICTIMS_MAX } else { 0 },
        doubled,
        moves,
        refusals: random.pick(&[0, 50, 300]),
    };
    let config = Config {
        geometry: Geometry { units: units as u32, unit_bytes: OS_PAGE as u32, block_units: block_units as u32 },
        budget_units: budget as u32,
        small: Class { moves: small_moves, frames: small_frames as u32 },
        wide: Class { moves: true, frames: wide_frames as u32 },
        direct,
        hides_in_place: doubled && random.chance(500),
        ahead_units: 2 * block_units as u32,
    };
    let faults = Faults {
        // With a private server, this process copies the pages itself. So every read is complete when it starts.
        at_once: if direct { 1000 } else { random.pick(&[0, 500]) },
        full: random.pick(&[0, 300]),
        slow: random.pick(&[0, 300]),
        writes_later: !direct && random.chance(800),
        units_max: if random.chance(30) { units / 2 } else { usize::MAX },
        lost_at: random.chance(30).then(|| random.below(400) as u64),
    };
    let mut policies: Vec<&str> = policy::POLICIES.iter().map(|info| info.name).collect();
    policies.extend(["nru-timer", "auto"]);
    Shape {
        view,
        config,
        faults,
        policy: random.pick(&policies),
        prefetcher: random.pick(&["none", "sequential", "auto", "streams:gate=0", "cluster:gate=0", "leap:gate=0"]),
        threads: 1 + random.below(5),
        waits_in_handlers: doubled || random.chance(500),
        sequential: random.chance(300),
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Load(usize),
    Store(usize, usize, u64),
}

impl Op {
    fn unit(self) -> usize {
        match self {
            Op::Load(unit) | Op::Store(unit, ..) => unit,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Thread {
    Ready,
    Doing(Op),
    /// The thread is in its signal handler, and the engine has not yet received the trap.
    Trapped(Op),
    /// The thread waits for its page. The number is the value of the page's wait queue at the beginning of the wait.
    Asleep(Op, u32),
}

type TestEngine = Engine<FakeView, Faulty>;

struct World {
    shape: Shape,
    /// The engine. `None` only while a fork replaces it.
    engine: Option<TestEngine>,
    random: Random,
    model: Vec<[u64; WORDS.len()]>,
    threads: Vec<Thread>,
    /// Traps that the engine has not yet received. The number is the index of the thread.
    traps: Vec<(usize, Op)>,
    /// Units to which transfers write. A unit occurs once for each transfer.
    pins: Vec<usize>,
    /// The range of units that is being discarded, and the unit from which the discard continues.
    discard: Option<(std::ops::Range<usize>, u32)>,
    /// The range of units that the program has freed, and how far its reuse has come.
    freed: Option<(std::ops::Range<usize>, Reuse)>,
    /// Units that were freed and are used again, with the other content that they may have: zeroes instead of the bytes
    /// from before the free. The first load of a unit finds out which.
    others: HashMap<usize, [u64; WORDS.len()]>,
    /// Local memory at the last check, in units. After the budget was reduced below this number, local memory must not
    /// grow.
    most: usize,
    now_ms: u64,
    fresh: u64,
    cursor: usize,
}

fn counters() -> &'static Counters {
    static COUNTERS: std::sync::OnceLock<&Counters> = std::sync::OnceLock::new();
    COUNTERS.get_or_init(|| {
        let memory = Mapping::anonymous(size_of::<Counters>()).expect("memory").leak();
        // SAFETY: `memory` is a zeroed mapping with the size of `Counters`, and it is never unmapped. Zero is a valid
        // value of every counter.
        unsafe { &*(memory as *const Counters) }
    })
}

fn pager(shape: &Shape, seed: u64) -> Pager {
    let Geometry { units, block_units, .. } = shape.config.geometry;
    let hides = shape.config.small.moves || shape.config.hides_in_place;
    let space = Space { units, block_units, seed, hides };
    let policy = policy::build(shape.policy, space).expect("a known policy");
    let prefetcher = prefetch::build(shape.prefetcher, space).expect("a known prefetcher");
    Pager::new(&shape.config, policy, prefetcher).expect("a valid configuration")
}

impl World {
    /// Makes the world of a seed. Reuses the work spaces of the previous engine, because an engine never frees them.
    fn new(seed: u64, before: Option<TestEngine>) -> Self {
        let mut random = Random(seed);
        let shape = draw_shape(&mut random);
        let (view, store) = (FakeView::new(shape.view, seed), Faulty::new(OS_PAGE, shape.faults, seed.rotate_left(32)));
        let pager = pager(&shape, seed);
        let (small_moves, units) = (shape.config.small.moves, shape.view.units);
        let engine = match before.map(Engine::apart) {
            Some((kept, ..)) if kept.has_works() => {
                Engine::again(kept.with_pager(pager, small_moves, shape.config.geometry), view, store)
            }
            _ => Engine::new(Parts {
                view,
                store,
                pager,
                small_moves,
                unit_bytes: OS_PAGE,
                block_units: shape.config.geometry.block_units,
                overhead_bytes: 0,
                units_max: units as u32,
                traps_by_signal: false,
                counters: counters(),
            })
            .expect("work spaces"),
        };
        Self {
            engine: Some(engine),
            random,
            model: vec![[0; WORDS.len()]; units],
            threads: vec![Thread::Ready; shape.threads],
            traps: Vec::new(),
            pins: Vec::new(),
            discard: None,
            freed: None,
            others: HashMap::new(),
            most: shape.config.budget_units as usize,
            now_ms: 0,
            fresh: 0,
            cursor: 0,
            shape,
        }
    }

    fn units(&self) -> usize {
        self.model.len()
    }

    fn engine(&self) -> &TestEngine {
        self.engine.as_ref().expect("an engine")
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            match self.random.below(1000) {
                0..300 => self.run_thread(),
                300..500 => drop(self.deliver()),
                500..800 => drop(self.complete()),
                800..830 => self.change_budget(),
                830..860 => self.tick(),
                860..900 => self.pin(),
                900..940 => self.unpin(),
                940..970 => self.choose_discard(),
                970..980 => self.will_need(),
                980..985 => self.fork(),
                985..990 => self.go_on_reusing(),
                990..993 => self.allocate(),
                993..995 => self.park(),
                _ => self.go_on_discarding(),
            }
            self.look();
        }
        self.finish();
    }

    /// Lets the threads whose wait has ended continue. Checks that local memory does not exceed the budget.
    fn look(&mut self) {
        let Some(engine) = &self.engine else { return };
        let woken = engine.view().take_woken();
        for thread in &mut self.threads {
            let Thread::Asleep(op, seen) = *thread else { continue };
            let (unit, write) = (op.unit() as u32, matches!(op, Op::Store(..)));
            let is_awake = match self.shape.waits_in_handlers {
                true => engine.is_accessible(unit, write) || engine.wait_queue(unit).load(SeqCst) != seen,
                false => woken.contains(&op.unit()),
            };
            if is_awake {
                *thread = Thread::Doing(op);
            }
        }
        let (counted, budget) = {
            let core = engine.core.lock();
            (core.pager.local_units() as usize, core.pager.budget_units() as usize)
        };
        let there = engine.view().local_units();
        assert!(counted >= there, "{there} units are in local memory, of which the pager counts {counted}");
        assert!(counted <= budget.max(self.most), "{counted} units, over a budget of {budget}");
        self.most = counted;
    }

    // ---- events outside the program ---------------------------------------------------------------------------------

    /// Lets the store complete a pending operation. Returns whether any operation was pending before.
    fn complete(&mut self) -> bool {
        let is_busy = self.engine().store().is_busy();
        if self.random.chance(500) {
            self.engine().receive(Wait::Now);
        } else if let Some((page, frame)) = self.engine().store().end_write() {
            self.engine().submit(Event::WrittenBack { page, frame, ok: true, changed: true });
        }
        is_busy
    }

    fn change_budget(&mut self) {
        let units =
            limits::BUDGET_PAGES_MIN as usize + self.random.below(self.shape.config.budget_units as usize * 3 / 2);
        self.engine().set_budget((units * OS_PAGE) as u64);
    }

    fn tick(&mut self) {
        self.now_ms += 10 + self.random.below(200) as u64;
        while self.engine().submit_asking(Event::Tick { now_ms: self.now_ms }) != Progress::Done {}
    }

    fn will_need(&mut self) {
        let first = self.random.below(self.units());
        let units = (1 + self.random.below(8)).min(self.units() - first);
        self.engine().will_need(first * OS_PAGE, units * OS_PAGE);
    }

    /// Parks a range, as far as one step gets.
    fn park(&mut self) {
        let first = self.random.below(self.units()) as u32;
        self.engine().submit(Event::Park { first, end: self.units() as u32 });
    }

    /// Begins a transfer into a random unit, if the unit is open for writing.
    fn pin(&mut self) {
        let unit = self.random.below(self.units());
        if !self.is_discarded(unit) && self.engine().view().pin(unit) {
            self.pins.push(unit);
        }
    }

    /// Ends a random transfer, which writes a word of its unit. The unit must still be in view.
    fn unpin(&mut self) {
        if self.pins.is_empty() {
            return;
        }
        let unit = self.pins.swap_remove(self.random.below(self.pins.len()));
        self.fresh += 1;
        self.is_stored(unit, 1, self.fresh);
        self.engine().view().unpin(unit, WORDS[1], Some(self.fresh));
    }

    // ---- the program ------------------------------------------------------------------------------------------------

    fn run_thread(&mut self) {
        let index = self.random.below(self.threads.len());
        match self.threads[index] {
            Thread::Ready => self.choose(index),
            Thread::Doing(op) => self.attempt(index, op),
            // A signal interrupts the wait of the thread, and the thread retries its access.
            Thread::Asleep(op, _) if self.random.chance(20) => self.attempt(index, op),
            Thread::Asleep(..) | Thread::Trapped(_) => {}
        }
    }

    fn choose(&mut self, index: usize) {
        let unit = if self.shape.sequential && self.random.chance(900) {
            self.cursor = (self.cursor + 1) % self.units();
            self.cursor
        } else {
            self.random.below(self.units())
        };
        if self.is_discarded(unit) {
            return;
        }
        self.fresh += 1;
        let word = self.random.below(WORDS.len());
        let op = if self.random.chance(500) { Op::Load(unit) } else { Op::Store(unit, word, self.fresh) };
        self.attempt(index, op);
    }

    fn attempt(&mut self, index: usize, op: Op) {
        let view = self.engine.as_ref().expect("an engine").view();
        let done = match op {
            Op::Load(unit) => load(view, unit).map(|found| {
                if let Some(other) = self.others.remove(&unit).filter(|other| *other == found) {
                    self.model[unit] = other;
                }
                assert_eq!(found, self.model[unit], "unit {unit} reads wrong");
            }),
            Op::Store(unit, at, value) => view.store(unit, WORDS[at], value).map(|()| self.is_stored(unit, at, value)),
        };
        self.threads[index] = Thread::Ready;
        if done == Err(fake::Trapped) {
            let is_asleep = !self.shape.waits_in_handlers;
            self.threads[index] = if is_asleep { Thread::Asleep(op, 0) } else { Thread::Trapped(op) };
            self.traps.push((index, op));
        }
    }

    /// Delivers a random pending trap to the engine. Returns false if no trap was pending.
    fn deliver(&mut self) -> bool {
        if self.traps.is_empty() {
            return false;
        }
        let (index, op) = self.traps.swap_remove(self.random.below(self.traps.len()));
        let unit = op.unit();
        if let Thread::Trapped(_) = self.threads[index] {
            self.threads[index] = Thread::Asleep(op, self.engine().wait_queue(unit as u32).load(SeqCst));
        }
        self.engine().fault_there(1 + index as i32, unit * OS_PAGE, matches!(op, Op::Store(..)));
        true
    }

    fn is_discarded(&self, unit: usize) -> bool {
        let contains = |range: &std::ops::Range<usize>| range.contains(&unit);
        self.discard.as_ref().is_some_and(|(range, _)| contains(range))
            || self.freed.as_ref().is_some_and(|(range, _)| contains(range))
    }

    /// Starts to discard or to free a random range, if no thread uses the range now. If a thread used it, the result of
    /// the thread's reads would be undefined.
    fn choose_discard(&mut self) {
        let first = self.random.below(self.units());
        let end = (first + 1 + self.random.below(2 * self.shape.view.block_units + 2)).min(self.units());
        let in_use = |thread: &Thread| match *thread {
            Thread::Doing(op) | Thread::Trapped(op) | Thread::Asleep(op, _) => (first..end).contains(&op.unit()),
            Thread::Ready => false,
        };
        let is_told = |(_, op): &(usize, Op)| (first..end).contains(&op.unit());
        if self.discard.is_some()
            || self.freed.is_some()
            || self.threads.iter().any(in_use)
            || self.traps.iter().any(is_told)
        {
            return;
        }
        // The discard makes the bytes of a transfer into this range irrelevant. So the transfer ends here without a
        // write.
        let view = self.engine.as_ref().expect("an engine").view();
        self.pins.retain(|&unit| {
            let stays = !(first..end).contains(&unit);
            if !stays {
                view.unpin(unit, 0, None);
            }
            stays
        });
        // A unit has at most one other content, so it is not freed twice without a load in between.
        let is_uncertain = (first..end).any(|unit| self.others.contains_key(&unit));
        if is_uncertain || self.random.chance(500) {
            self.discard = Some((first..end, first as u32));
            self.go_on_discarding();
        } else {
            self.freed = Some((first..end, Reuse::Freeing(first as u32)));
            self.go_on_reusing();
        }
    }

    fn go_on_discarding(&mut self) {
        let Some((range, next)) = self.discard.clone() else { return };
        match self.engine().submit_asking(Event::Discard { first: next, end: range.end as u32 }) {
            Progress::Done => {
                self.others.retain(|unit, _| !range.contains(unit));
                self.model[range].fill([0; WORDS.len()]);
                self.discard = None;
            }
            Progress::Continue(unit) | Progress::Busy(unit) => self.discard = Some((range, unit)),
        }
    }

    // ---- the end ----------------------------------------------------------------------------------------------------

    /// Completes all pending operations and discards, and lets every thread finish its access.
    fn drain(&mut self) {
        let mut idle = 0;
        for turn in 0..DRAIN_MAX {
            if turn == THRASHING {
                self.engine().set_budget((self.units() * OS_PAGE) as u64);
            }
            self.look();
            self.go_on_discarding();
            self.go_on_reusing();
            if let Some(index) = self.threads.iter().position(|thread| matches!(thread, Thread::Doing(_))) {
                let Thread::Doing(op) = self.threads[index] else { continue };
                self.attempt(index, op);
                continue;
            }
            if self.deliver() || self.complete() {
                idle = 0;
                continue;
            }
            let is_resting = self.discard.is_none() && self.freed.is_none();
            let is_done = is_resting && self.threads.iter().all(|thread| matches!(thread, Thread::Ready));
            if is_done {
                return;
            }
            // A tick makes the pager retry evictions that a transfer prevented.
            idle += 1;
            self.tick();
            assert!(idle < 20, "{:?} wait for nothing that is under way; {}", self.threads, self.stand());
        }
        panic!("the program does not come to rest; {}", self.stand());
    }

    fn stand(&self) -> String {
        let mut text = String::new();
        self.engine().write_stand(&mut text).expect("memory");
        text
    }

    /// Ends all transfers, and checks that every word reads as the model predicts.
    fn finish(&mut self) {
        while !self.pins.is_empty() {
            self.unpin();
        }
        self.drain();
        for unit in 0..self.units() {
            self.attempt(0, Op::Load(unit));
            self.drain();
        }
    }
}

/// Runs a seed. Returns the failure, if any, and the engine whose work spaces the next seed reuses.
fn run(seed: u64, before: Option<TestEngine>) -> (Result<(), String>, Option<TestEngine>) {
    let mut world = World::new(seed, before);
    let answer = catch_unwind(AssertUnwindSafe(|| world.run()));
    let has_failed = world.engine.as_ref().is_some_and(|engine| engine.store().has_failed());
    let found = match answer {
        Ok(()) if has_failed => Err("the store was lost, and nobody noticed".to_owned()),
        Ok(()) => Ok(()),
        Err(payload) => match payload.downcast_ref::<Ended>() {
            Some(Ended(EXIT_FULL | EXIT_LOST, _)) if has_failed => Ok(()),
            Some(Ended(code, why)) => Err(format!("ended with {code}: {why}")),
            None => Err(format!("panicked: {}", message(&*payload))),
        },
    };
    (found.map_err(|what| format!("{what}\n{:?}", world.shape)), world.engine)
}

fn message(payload: &(dyn std::any::Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no words")
}

/// Seeds that once found a bug.
const FOUND: [u64; 1] = [3027];

fn run_all(seeds: impl Iterator<Item = u64>) {
    ended::catch();
    let only = std::env::var("HANARE_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let mut engine = None;
    for seed in seeds.filter(|seed| only.is_none_or(|only| only == *seed)) {
        let (found, next) = run(seed, engine.take());
        engine = next;
        if let Err(what) = found {
            panic!("HANARE_SEED={seed} cargo test -p hanare --lib engine::world -- --ignored: {what}");
        }
    }
}

/// Runs 400 seeds and the seeds in `FOUND`. The ignored test `ten_thousand_seeds` runs more seeds.
#[test]
fn whatever_fails_no_byte_is_lost_and_nobody_waits_for_ever() {
    run_all((0..400).chain(FOUND));
}

#[test]
#[ignore = "takes minutes: make worlds"]
fn ten_thousand_seeds() {
    run_all(0..10_000);
}
